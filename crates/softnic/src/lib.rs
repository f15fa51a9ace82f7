//! An RDMA NIC in software that speaks RoCEv2.
//!
//! Two ways to see it:
//!
//! - from above it is a verbs device: [`Device`] implements [`longhaul_verbs::raw::Device`];
//! - from below it is a driven object: [`Nic`], through a [`NicGuard`], takes datagrams and the time, and hands out datagrams and its next
//!   deadline. It has no clock, no thread and no socket of its own.
//!
//! The modules are in the order of a message's way through the device:
//!
//! ```text
//!   device ─▶ post ─▶ work ─▶ {rc,uc,ud}_requester ─▶ requester ─▶ pacing ─▶ layer ─▶ port ═══ network ═══╗
//!   device ◀─ completion ◀─ memory ◀─ responder ◀─ {rc,uc,ud}_responder ◀─ nic ◀───── layer ◀─ port ◀═════╝
//! ```

mod config;
mod counters;
mod device;
mod guard;
mod modify;
mod nic;
mod post;
mod work;

mod lazy;
mod queue_pair;
mod rc_completer;
mod rc_requester;
mod receive_queue;
mod requester;
mod uc_requester;
mod ud_requester;

mod pacing;
mod peer;
mod timer;

mod layer;
mod layered;
mod port;

mod drive;

mod rc_responder;
mod rc_responses;
mod responder;
mod uc_responder;
mod ud_responder;

mod completion;
mod in_place;
mod memory;
mod resources;
mod shared_receive;

#[cfg(feature = "mutations")]
pub use config::Mutation;
pub use config::{Config, PayloadMode, Type2Windows};
pub use counters::{Counters, QueuePairCounters};
pub use device::Device;
pub use drive::{Drive, Signal};
pub use guard::{NicGuard, NicLock};
pub use in_place::ExpectedPackets;
pub use layer::impairment::{Impair, ImpairmentLayer};
pub use layer::{Direction, Envelope, Layer, Onward, Packet, Stack};
pub use layered::{Layered, Occasion};
pub use memory::{Gathered, Piece};
pub use nic::Nic;
pub use pacing::{FixedRate, HalvingRate, LossSignal, RateController};
pub use peer::PeerWindow;
pub use port::{Outgoing, OutgoingPayload, Port, Received, Route, TransmitSink};
