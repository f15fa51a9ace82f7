//! What a rank says about an operation.

use std::time::Duration;

/// How an operation ended at a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Everything had arrived.
    Whole,
    /// Nothing more was to be expected before the deadline: what is missing was lost in transit, and no deadline would
    /// have brought it.
    Quiet,
    /// At the deadline. What is missing was late, or lost in transit.
    Deadline,
}

/// What a rank says about an operation that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankReport {
    /// From the operation's start until it ended.
    pub elapsed: Duration,
    /// How it ended.
    pub ended: Ended,
    /// Bytes that have arrived.
    pub delivered_bytes: u64,
    /// Bytes that have not.
    pub undelivered_bytes: u64,
}

/// Why reports cannot be used. The rule is as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// One of each rank is needed.
    #[error("expected reports of {expected} ranks, got {got}")]
    Ranks {
        /// Ranks of the group.
        expected: usize,
        /// Reports.
        got: usize,
    },
}

impl ReportError {
    pub(crate) fn check(expected: usize, got: usize) -> Result<(), ReportError> {
        if got == expected { Ok(()) } else { Err(ReportError::Ranks { expected, got }) }
    }
}

impl RankReport {
    /// Bytes that were sent to the rank.
    pub fn bytes(&self) -> u64 {
        self.delivered_bytes.saturating_add(self.undelivered_bytes)
    }

    /// The share of bytes that has not arrived; none of nothing.
    pub fn undelivered_share(&self) -> f64 {
        match self.bytes() {
            0 => 0.0,
            bytes => self.undelivered_bytes as f64 / bytes as f64,
        }
    }

    /// The share of bytes that was late: that a later deadline would have brought, if `path_loss` is the share that the
    /// path loses. An operation that ended before its deadline has none.
    pub(crate) fn late_share(&self, path_loss: f64) -> f64 {
        match self.ended {
            Ended::Whole | Ended::Quiet => 0.0,
            Ended::Deadline => (self.undelivered_share() - path_loss).max(0.0),
        }
    }

    /// Nanoseconds a byte. Of an operation that was cut, those of the bytes that have arrived: it says how long the rest
    /// would have taken. `None` if nothing has arrived.
    pub(crate) fn cost(&self) -> Option<f64> {
        let bytes = match self.ended {
            // What was lost in transit takes no more time.
            Ended::Whole | Ended::Quiet => self.bytes(),
            Ended::Deadline => self.delivered_bytes,
        };
        (self.delivered_bytes > 0).then(|| self.elapsed.as_nanos() as f64 / bytes as f64)
    }
}

/// The median cost of a byte of all ranks that were sent something; those of which nothing has arrived are slower than
/// all others. Of an even number it is the lower one, so half of a group may be silent. `None` if more is.
pub(crate) fn median_cost(reports: &[RankReport]) -> Option<f64> {
    let sent_to = reports.iter().filter(|report| report.bytes() > 0);
    let mut costs: Vec<f64> = sent_to.map(|report| report.cost().unwrap_or(f64::INFINITY)).collect();
    costs.sort_by(f64::total_cmp);
    let lower = costs.len().checked_sub(1)? / 2;
    costs.get(lower).copied().filter(|cost| cost.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(milliseconds: u64, delivered_bytes: u64, undelivered_bytes: u64) -> RankReport {
        let ended = if undelivered_bytes == 0 { Ended::Whole } else { Ended::Deadline };
        RankReport { elapsed: Duration::from_millis(milliseconds), ended, delivered_bytes, undelivered_bytes }
    }

    #[test]
    fn only_what_is_missing_at_a_deadline_was_late() {
        let quiet = RankReport { ended: Ended::Quiet, ..report(10, 750, 250) };
        assert_eq!((quiet.late_share(0.0), quiet.undelivered_share()), (0.0, 0.25));
        // Nobody waits for what was lost: it took as long as the whole.
        assert_eq!(quiet.cost(), report(10, 1000, 0).cost());
        let cut = report(10, 750, 250);
        assert_eq!((cut.late_share(0.0), cut.late_share(0.125), cut.late_share(0.5)), (0.25, 0.125, 0.0));
    }

    #[test]
    fn a_cut_operation_counts_with_the_time_it_would_have_taken() {
        // Half in 10 ms is as slow as the whole in 20 ms.
        assert_eq!(report(10, 500, 500).cost(), report(20, 1000, 0).cost());
        let reports = [report(20, 1000, 0), report(10, 500, 500), report(40, 1000, 0)];
        assert_eq!(median_cost(&reports), Some(20_000.0));
        assert_eq!(report(10, 250, 750).undelivered_share(), 0.75);
    }

    #[test]
    fn silent_ranks_are_the_slowest() {
        let (silent, fast, slow) = (report(10, 0, 1000), report(1, 1000, 0), report(3, 1000, 0));
        assert_eq!(median_cost(&[silent, fast, slow]), Some(3000.0));
        assert_eq!(median_cost(&[silent, silent, slow]), None);
        assert_eq!(median_cost(&[silent, slow]), Some(3000.0));
        assert_eq!(median_cost(&[silent, fast, slow, silent]), Some(3000.0));
        assert_eq!(median_cost(&[silent]), None);
        assert_eq!(median_cost(&[]), None);
        // The root of a broadcast is sent nothing: it is neither silent nor slow.
        let root = report(10, 0, 0);
        assert_eq!(median_cost(&[root, fast, slow, slow]), Some(3000.0));
        assert_eq!(median_cost(&[root, root, fast, slow]), Some(1000.0));
        assert_eq!(median_cost(&[root, root]), None);
        assert_eq!((report(0, 0, 0).undelivered_share(), report(0, 0, 0).cost()), (0.0, None));
    }
}
