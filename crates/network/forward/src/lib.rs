//! Moves Ethernet frames between network interfaces of Linux, in user space.
//!
//! ```text
//!   interface ─▶ Source ─▶ Handler::handle ──────────────▶ Sink ─▶ interface
//!                              │ keeps it, with a deadline   ▲
//!                              └────▶ Handler::poll ─────────┘
//! ```
//!
//! [`Forwarding`] is the loop: it sleeps until a frame arrives or a deadline has come, and passes frames and time to a
//! [`Handler`], which decides what becomes of them. The handler is driven: it has no clock, no thread and no descriptor.
//! What a link, a gateway or a switch does with frames is a handler in another crate; nothing here knows of it. [`running`] gives the
//! loop a thread.
//!
//! Interfaces are reached through a packet socket with a ring in shared memory ([`ring`]), or as a tap whose other end
//! is this process ([`tap`]). Frames are what is on the wire: each at most as long as the MTU allows, with its checksums
//! filled in. [`offloads`] reports whether an interface's driver joins frames or leaves checksums to the hardware, and
//! switches that off.

pub mod clock;
mod error;
mod forwarding;
mod handler;
mod interface;
pub mod names;
pub mod offloads;
pub mod priority;
pub mod ring;
pub mod running;
pub mod tap;

pub use error::ForwardError;
pub use forwarding::{Counters, Forwarding, Woken};
pub use handler::{Fate, Handler, Outbox};
pub use interface::{Arrival, Interface, Sink, Source, SourceCounters};
