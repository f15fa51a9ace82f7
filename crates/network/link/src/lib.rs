//! A wide-area link between two network interfaces, for real frames of any protocol.
//!
//! ```text
//!   interface A ─▶ Direction (queue, rate, loss, delay, …) ─▶ interface B
//!   interface A ◀─ Direction                               ◀─ interface B
//! ```
//!
//! What happens to a frame is decided by [`longhaul_impair`], from a seed; frames are moved by [`longhaul_forward`].
//! [`Link`] joins the two and is driven: frames and time in, frames out. [`RunningLink`] drives one on a thread of its
//! own, and changes it while it runs; [`control`] lets other processes do that. [`namespaces`] are two places to run
//! programs in, with a link between them.

pub mod control;
mod direction;
mod frame;
mod link;
pub mod namespaces;
mod running;

pub use direction::{DirectionCounters, DirectionOptions};
pub use link::{Link, LinkCounters, Towards};
pub use running::{LinkError, LinkOptions, Ports, RunningCounters, RunningLink};
