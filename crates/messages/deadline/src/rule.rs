//! What rules have in common.

use std::time::Duration;

use crate::report::{RankReport, ReportError};

/// Makes the next deadline from what the ranks report.
pub trait DeadlineRule {
    /// How long an operation may take, from its start. `bytes` is what is sent to each rank; if that differs, the most.
    fn deadline(&self, bytes: u64) -> Duration;

    /// Takes the reports of an operation, one of each rank, in the order of the ranks. `bytes` is as for its deadline.
    fn observe(&mut self, bytes: u64, reports: &[RankReport]) -> Result<(), ReportError>;
}

/// A duration of this many nanoseconds; what is no duration is none.
pub(crate) fn nanoseconds(value: f64) -> Duration {
    Duration::from_nanos(value as u64)
}
