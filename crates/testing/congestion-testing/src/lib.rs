//! Congestion control on virtual time: flows that share one bottleneck, scenarios for each controller, and what they
//! must reach.
//!
//! The flows are [`longhaul_congestion::Flow`]s, as senders own them; the bottleneck is an
//! [`Impairment`](longhaul_impair::Impairment). Repair is ideal: what is lost is not sent again, and does not count.

mod cross_traffic;
mod cubic;
mod fabric;
mod row;
mod simulation;
mod statistics;
mod wide_area;

pub use cross_traffic::CrossTraffic;
pub use cubic::Cubic;
pub use fabric::fabric;
pub use row::{Bar, Check, Report, Row, median};
pub use simulation::{FlowPlan, Simulation, SimulationPlan};
pub use statistics::{FlowStatistics, Statistics, jain};
pub use wide_area::wide_area;
