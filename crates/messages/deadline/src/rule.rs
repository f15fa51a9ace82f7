//! What rules have in common.

use std::time::Duration;

use crate::report::{RankReport, ReportError};

/// Makes the next deadline from what the ranks report.
pub trait DeadlineRule {
    /// How long an operation may take, from its start. `bytes` is what is sent to each rank; if that differs, the most.
    fn deadline(&self, bytes: u64) -> Duration;

    /// Takes the reports of an operation, one of each rank, in the order of the ranks. `bytes` is as for its deadline.
    fn observe(&mut self, bytes: u64, reports: &[RankReport]) -> Result<(), ReportError>;

    /// A digest of all that the rule has learned: 64 bits, no protection against malice. Ranks that observed
    /// the same reports have the same. If it travels with the ranks' reports, a rank that has missed one notices.
    fn digest(&self) -> u64;
}

/// FNV-1a, a word at a time, and rotated so that high bits count in low ones.
#[derive(Debug)]
pub(crate) struct Digest(pub(crate) u64);

impl Digest {
    pub(crate) fn new() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    }

    /// Numbers count by their bits.
    pub(crate) fn numbers<'a>(&mut self, numbers: impl IntoIterator<Item = &'a f64>) {
        numbers.into_iter().for_each(|number| self.word(number.to_bits()));
    }
}

/// A duration of this many nanoseconds; what is no duration is none.
pub(crate) fn nanoseconds(value: f64) -> Duration {
    Duration::from_nanos(value as u64)
}
