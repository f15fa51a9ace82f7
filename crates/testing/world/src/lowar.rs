//! RC over a long link that loses, with and without forward error correction below it: what LoWAR's paper measures, on virtual time.
//!
//! WRITEs from one software RNIC to another, without payload, so that seconds of 10 Gbit/s pass in seconds. There is no congestion
//! control, as in the paper: the link is theirs alone, and loss is not congestion.
//!
//! [`Scenario`] is one run; [`Point`] one point of a figure, in several runs; [`paper`] has all points of the paper's figures,
//! [`checks()`] what they must show; [`Recovery`] measures how long packets wait for a repair.

mod checks;
pub mod paper;
mod point;
mod recovery;
mod scenario;
mod scheme;
mod witness;

pub use checks::{Bound, Check, checks};
pub use point::{Figure, Measured, Point, Row};
pub use recovery::{Recovery, RecoveryPoint};
pub use scenario::{Outcome, Scenario};
pub use scheme::Scheme;
