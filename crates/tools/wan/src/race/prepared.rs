//! An end of any system, ready to run.

use std::sync::Arc;
use std::time::Duration;

use super::end_error::EndError;
use super::tally::Tally;

/// Nobody waits longer for the other end.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

/// An end that is prepared.
pub(super) trait End {
    /// Begins at a time of the monotonic clock, and ends at another. Returns at once: threads do the work.
    fn start(&mut self, start: Duration, until: Duration, tally: &Arc<Tally>) -> Result<(), EndError>;

    /// What was counted, if anything.
    fn counters(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}
