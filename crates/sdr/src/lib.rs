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
//! A message may be completed while packets of it are still on their way. Their bytes must not reach memory that its owner has back,
//! and their completions must not count for another message:
//!
//! - A message's key is revoked when it is completed: its slot of the root key is bound to nothing on devices that have one
//!   (`SLOTTED_REGION`), elsewhere its memory region is deregistered.
//! - A message's number has its slot in the immediate's few bits, and its generation in the queue pair that carries its packets. A late packet
//!   comes on a queue pair of another generation than the message that now has its slot.
//! - The root key has slots for each generation. (In the paper it has not: there a late packet sets no bit, but its bytes go into the
//!   message that has the slot now, over ones that may have arrived already.)
//! - A slot and generation are used again only when the sender has said that it sends nothing more of the message that had them. So
//!   only a packet that the network keeps for longer than all generations take could do harm.
//!
//! Of a message that is completed in part, the bytes of packets that have not arrived may be anything: devices that receive in place
//! write there before they know.
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

mod attributes;
mod bitmap;
mod context;
pub mod control;
mod control_path;
mod dialogue;
pub mod immediate;
pub mod info;
mod link_estimate;
pub mod memory;
mod message;
mod queue_pair;
pub mod receive_table;
mod receiving;
mod sending;
mod sync;

pub use attributes::QueuePairAttributes;
pub use bitmap::{MessageBitmap, Recorded};
pub use context::{ChannelError, Context, ContextAttributes};
pub use control_path::ControlPathError;
pub use dialogue::ControlCounters;
pub use link_estimate::RoundTripTime;
pub use memory::Memory;
pub use message::{CompleteError, Receive, ReceiveError, ReceivedMessage, RevokeError, SendError, SendStream};
#[cfg(feature = "mutations")]
pub use queue_pair::Mutation;
pub use queue_pair::{ConnectError, CreateQueuePairError, QueuePair, QueuePairError};
pub use receive_table::ReceiveCounters;
pub use sending::{SendCounters, SendStatus};
