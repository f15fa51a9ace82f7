//! Which ranks are late, operation after operation.

use crate::rule::Digest;
use crate::took::Took;

/// A rank is late if its typical duration is this many times the group's median.
const LATE: f64 = 1.5;
/// How far a rank's typical ratio moves with each operation. It follows the median and not the mean, so that single
/// stalls, however long, make nobody late.
const STEP: f64 = 0.01;
/// Before as many operations nobody is named.
const OPERATIONS_MIN: u64 = 32;

/// The typical ratio of each rank's duration to the group's median.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SlowRanks {
    operations: u64,
    ratios: Vec<f64>,
}

impl SlowRanks {
    pub(crate) fn new(ranks: usize) -> SlowRanks {
        SlowRanks { operations: 0, ratios: vec![1.0; ranks] }
    }

    /// Takes what an operation took at each rank, and the median. If there is none, more than half of the ranks were
    /// silent: those are late, and of the others nothing is said.
    pub(crate) fn observe(&mut self, took: &[Took], median: Option<f64>) {
        if !took.iter().any(|took| matches!(took, Took::Nanoseconds(_))) {
            // Nobody is later than the others.
            return;
        }
        self.operations += 1;
        for (ratio, took) in self.ratios.iter_mut().zip(took) {
            let now = match (took, median) {
                (Took::Idle, _) | (Took::Nanoseconds(_), None) => continue,
                (Took::Silent, _) => f64::INFINITY,
                (Took::Nanoseconds(time), Some(median)) => time / median,
            };
            // Bounded, so that a rank that was silent for long is not named for as long again.
            let moved = if now > *ratio { *ratio + STEP } else { *ratio - STEP };
            *ratio = moved.clamp(0.0, 2.0 * LATE);
        }
    }

    pub(crate) fn digest(&self, digest: &mut Digest) {
        digest.word(self.operations);
        digest.numbers(&self.ratios);
    }

    pub(crate) fn late(&self) -> Vec<usize> {
        if self.operations < OPERATIONS_MIN {
            return Vec::new();
        }
        let late = self.ratios.iter().enumerate().filter(|(_, ratio)| **ratio > LATE);
        late.map(|(rank, _)| rank).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(milliseconds: u64) -> Took {
        Took::Nanoseconds(milliseconds as f64)
    }

    #[test]
    fn silent_ranks_are_named_also_if_they_are_most() {
        let mut slow = SlowRanks::new(5);
        let (idle, silent) = (Took::Idle, Took::Silent);
        for _ in 0..100 {
            slow.observe(&[idle, took(10), silent, silent, silent], None);
        }
        assert_eq!(slow.late(), [2, 3, 4]);
        // If nothing arrives anywhere, it is the deadline that is wrong.
        let mut slow = SlowRanks::new(2);
        for _ in 0..100 {
            slow.observe(&[silent, silent], None);
        }
        assert_eq!(slow.late(), [] as [usize; 0]);
    }

    #[test]
    fn a_rank_that_is_always_slow_is_named_and_one_that_stalls_is_not() {
        let mut slow = SlowRanks::new(3);
        for operation in 0..200 {
            let stall = if operation % 3 == 0 { 500 } else { 10 };
            slow.observe(&[took(10), took(stall), took(20)], Some(10.0));
            if operation < 30 {
                assert_eq!(slow.late(), [] as [usize; 0]);
            }
        }
        assert_eq!(slow.late(), [2]);
        // It is no longer slow.
        for _ in 0..100 {
            slow.observe(&[took(10), took(10), took(10)], Some(10.0));
        }
        assert_eq!(slow.late(), [] as [usize; 0]);
    }
}
