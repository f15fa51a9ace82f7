//! An RDMA NIC in software that speaks RoCEv2.
//!
//! Two ways to see it:
//!
//! - from above it is a verbs device: [`Device`] implements [`longhaul_verbs::raw::Device`];
//! - from below it is a driven object: [`Nic`], through a [`NicGuard`], takes datagrams and the time, and hands out datagrams and its next
//!   deadline. It has no clock, no thread and no socket of its own.
//!
//! The folders follow the path of a packet through the device:
//!
//! ```text
//!   device ─▶ nic (post) ─▶ queue_pair ─▶ send ─▶ pace ─▶ port (layers) ═══ network ═══╗
//!   device ◀─ resources (completion) ◀─ memory ◀─ receive ◀─ nic (arrivals) ◀─ port ◀══╝
//! ```

mod config;
mod counters;

mod device;
mod nic;
mod queue_pair;
mod send;

mod pace;
mod port;

mod memory;
mod receive;
mod resources;

#[doc(hidden)]
pub mod fuzzing;

#[cfg(feature = "mutations")]
pub use config::Mutation;
pub use config::{Config, PayloadMode, Type2Windows};
pub use counters::{Counters, QueuePairCounters};
pub use device::{Device, Drive};
pub use memory::{ForeignMemory, Gathered, Piece};
pub use nic::Nic;
pub use nic::guard::{NicGuard, NicLock};
pub use nic::in_place::ExpectedPackets;
pub use pace::PeerWindow;
pub use port::layered::{Layered, Occasion};
pub use port::{
    Direction, Envelope, Impair, ImpairmentLayer, Layer, Onward, Outgoing, OutgoingPayload, Packet, Port, Received,
    Route, ShimLayer, Stack, TransmitSink,
};
pub use resources::Signal;
