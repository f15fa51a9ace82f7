//! Codes that follow the link.
//!
//! The receiving end reports what it has seen of loss ([`crate::decoder`]'s arrivals). The sending end keeps a window of these
//! reports for each path, as far back as they agree with each other, and takes the cheapest code that is good enough for it:
//!
//! ```text
//!   reports ─▶ window: loss, burst lengths, with bounds of confidence ─▶ model of blocks ─▶ cheapest code within the user's bounds
//! ```
//!
//! Loss belongs to the path, so there is one choice for each peer: a host that was agreed with, or a configured network. The
//! planner (crate `plan`) stands above this crate; the part of its model that is needed, how often a block fails, is short, stands
//! here in `model`, and a test of `plan` holds one against the other.

mod auto;
mod change;
mod chooser;
mod fec;
mod model;
mod window;

pub use auto::Auto;
pub use change::{CodeChange, Reason};
pub(crate) use chooser::Chooser;
pub use fec::{Fec, FecError};
pub use model::{PathLoss, block_failure};
pub(crate) use window::Sample;
