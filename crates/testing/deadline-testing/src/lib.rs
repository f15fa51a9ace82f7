//! Deadlines of bounded operations on virtual time: a group of ranks whose durations vary, some always slower, and what
//! the rules of [`longhaul_deadline`] lose there.

mod scenario;
mod stragglers;

pub use scenario::{Check, Group, Plan, Report, Row, timeouts};
pub use stragglers::{PathLoss, Stragglers};
