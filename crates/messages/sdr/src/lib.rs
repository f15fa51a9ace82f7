//! Messages that complete in part: the API of the SDR paper, as Rust types, over any verbs device.
//!
//! ```text
//!   SendStream ─▶ sending (waits for clear-to-send and window) ─▶ one WRITE with immediate a packet ═══▶
//!       ═══▶ completion ─▶ Context::poll_channel ─▶ receive table ─▶ packet bitmap ─▶ chunk bitmap ─▶ Receive::bitmap
//! ```
//!
//! A receiver posts receives, each with memory of its own; the sender's messages go into them in order. Nothing is repeated and
//! nothing is promised: the receiver sees in a bitmap which chunks of a message have arrived, and decides what that means. That is
//! all a reliability scheme needs of a network; the schemes are in `longhaul-reliable`.
//!
//! # What a receiver is protected from
//!
//! A message may be completed while packets of it are still in flight. Their bytes must not reach memory that its owner has back,
//! and their completions must not count for another message:
//!
//! - A message's key is revoked when it is completed: its number under the root key is bound to nothing on devices that have one
//!   (`SLOTTED_REGION`), elsewhere its memory region is deregistered.
//! - Under the root key a message's addresses come from its 64-bit number, so that none is used again until all 64 bits of address space
//!   have been used: after 2^34 messages of up to 1 GiB. When the next message takes the slot, the device refuses packets of the earlier
//!   one, without a completion and however late they are. (In the paper message `i` has the same addresses in every round: there a
//!   late packet sets no bit, but its bytes go into the message that has the slot now, over ones that may have arrived already.)
//! - A message's number has its slot in the immediate's few bits, and its generation in the queue pair that carries its packets. So a
//!   completion that is taken late, when another message has the slot already, sets no bit for it.
//! - Without a root key, each message's region has a fresh key. How soon a device gives the same key again is the device's choice: softnic
//!   draws 32 random bits, Linux Soft-RoCE goes through its indices in order and draws 8 bits, RNICs differ. A slot and generation
//!   are used again only when the sender has said that it sends nothing more of the message that had them.
//! - A write of nothing needs no key, so nothing that it says is believed: neither bits nor fragments of the user's immediate come from a
//!   packet whose key was not checked ([`receive_table`]).
//! - Packets count only if they come from the peer's address and, where both devices show it, from the UDP source port that the peer has
//!   announced in its [`info`].
//!
//! Of a message that is completed in part, the bytes of packets that have not arrived may be anything: what was in the memory before, or
//! what a device that receives in place wrote there before it knew. Clear them before you hand such a message on, as
//! `longhaul-reliable` does.
//!
//! # Names
//!
//! | the paper | here |
//! |---|---|
//! | `context_create` | [`Context::create`] |
//! | `qp_create`, `qp_info_get`, `qp_connect` | [`QueuePair::create`], [`QueuePair::info`], [`QueuePair::connect`] |
//! | `mr_reg` | [`Context::register`] |
//! | `send_stream_start`, `send_stream_continue`, `send_stream_end` | [`QueuePair::start_stream`], [`SendStream::send_at`], [`SendStream::end`] |
//! | `send_post`, `send_poll` | [`QueuePair::post_send`], [`SendStream::status`] |
//! | `recv_post` | [`QueuePair::post_receive`] |
//! | `recv_bitmap_get`, `recv_imm_get`, `recv_complete` | [`Receive::bitmap`], [`Receive::user_immediate`], [`Receive::complete`] |

mod asking;
mod attributes;
mod bitmap;
mod context;
mod control_memory;
mod control_path;
mod credit;
mod dialogue;
mod fragments;
#[doc(hidden)]
pub mod fuzzing;
pub mod info;
pub mod memory;
mod message;
#[cfg(feature = "mutations")]
mod mutation;
mod path;
mod queue_pair;
mod queue_pair_error;
pub mod receive_table;
mod receiving;
mod round_trip;
mod scheme_queue;
mod sending;
mod shape;
mod sync;

pub use asking::{BackOff, backed_off};
pub use attributes::{QueuePairAttributes, default_chunk_bytes};
pub use bitmap::{MessageBitmap, Recorded};
pub use context::{ChannelError, Context, ContextAttributes};
pub use control_memory::ControlMemory;
pub use control_path::ControlPathError;
pub use credit::CreditNews;
pub use dialogue::{ControlCounters, Saying};
/// Why a device gives no memory or key, from below.
pub use longhaul_verbs::RegisterError;
/// The formats of control frames and immediates, from below.
pub use longhaul_wire::{control, immediate_layout as immediate};
pub use memory::Memory;
pub use message::{CompleteError, Receive, ReceiveError, ReceivedMessage, RevokeError, SendError, SendStream};
#[cfg(feature = "mutations")]
pub use mutation::Mutation;
pub use queue_pair::QueuePair;
pub use queue_pair_error::{ConnectError, CreateQueuePairError, QueuePairError};
pub use receive_table::ReceiveCounters;
pub use round_trip::RoundTripTime;
pub use sending::{PeerReceive, SendCounters, SendStatus};
