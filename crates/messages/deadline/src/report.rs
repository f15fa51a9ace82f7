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
    /// How long after the operation's start the rank itself began to take part. The others wait for what it sends.
    pub started: Duration,
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
    /// A rank reports more bytes than the operation had for any.
    #[error("rank {rank} reports {got} bytes of an operation of {most}")]
    Bytes {
        /// The rank.
        rank: usize,
        /// Bytes of the operation.
        most: u64,
        /// Bytes that the rank reports.
        got: u64,
    },
}

impl ReportError {
    pub(crate) fn check(expected: usize, most: u64, reports: &[RankReport]) -> Result<(), ReportError> {
        if reports.len() != expected {
            return Err(ReportError::Ranks { expected, got: reports.len() });
        }
        let bytes = |(rank, report): (usize, &RankReport)| (rank, report.bytes());
        match reports.iter().enumerate().map(bytes).find(|(_, got)| *got > most) {
            Some((rank, got)) => Err(ReportError::Bytes { rank, most, got }),
            None => Ok(()),
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(milliseconds: u64, delivered_bytes: u64, undelivered_bytes: u64) -> RankReport {
        let ended = if undelivered_bytes == 0 { Ended::Whole } else { Ended::Deadline };
        let (started, elapsed) = (Duration::ZERO, Duration::from_millis(milliseconds));
        RankReport { started, elapsed, ended, delivered_bytes, undelivered_bytes }
    }

    #[test]
    fn only_what_is_missing_at_a_deadline_was_late() {
        let quiet = RankReport { ended: Ended::Quiet, ..report(10, 750, 250) };
        assert_eq!((quiet.late_share(0.0), quiet.undelivered_share()), (0.0, 0.25));
        let cut = report(10, 750, 250);
        assert_eq!((cut.late_share(0.0), cut.late_share(0.125), cut.late_share(0.5)), (0.25, 0.125, 0.0));
    }

    #[test]
    fn shares_are_of_what_was_sent() {
        assert_eq!(report(10, 250, 750).undelivered_share(), 0.75);
        assert_eq!(report(0, 0, 0).undelivered_share(), 0.0);
    }
}
