//! Which ranks are late, operation after operation.

use crate::report::RankReport;

/// A rank is late if its typical cost of a byte is this many times the group's.
const LATE: f64 = 1.5;
/// How far a rank's typical ratio moves with each operation. It follows the median and not the mean, so that single
/// stalls, however long, make nobody late.
const STEP: f64 = 0.01;
/// Before as many operations nobody is named.
const OPERATIONS_MIN: u64 = 32;

/// The typical ratio of each rank's cost to the group's median.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SlowRanks {
    operations: u64,
    ratios: Vec<f64>,
}

impl SlowRanks {
    pub(crate) fn new(ranks: usize) -> SlowRanks {
        SlowRanks { operations: 0, ratios: vec![1.0; ranks] }
    }

    pub(crate) fn observe(&mut self, reports: &[RankReport], median_cost: f64) {
        self.operations += 1;
        for (ratio, report) in self.ratios.iter_mut().zip(reports) {
            let now = report.cost().map_or(f64::INFINITY, |cost| cost / median_cost);
            // Bounded, so that a rank that was silent for long is not named for as long again.
            let moved = if now > *ratio { *ratio + STEP } else { *ratio - STEP };
            *ratio = moved.clamp(0.0, 2.0 * LATE);
        }
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
    use std::time::Duration;

    use super::*;
    use crate::report::Ended;

    fn report(milliseconds: u64) -> RankReport {
        let (elapsed, ended) = (Duration::from_millis(milliseconds), Ended::Whole);
        RankReport { elapsed, ended, delivered_bytes: 1_000_000, undelivered_bytes: 0 }
    }

    #[test]
    fn a_rank_that_is_always_slow_is_named_and_one_that_stalls_is_not() {
        let mut slow = SlowRanks::new(3);
        for operation in 0..200 {
            let stall = if operation % 3 == 0 { 500 } else { 10 };
            slow.observe(&[report(10), report(stall), report(20)], 10.0);
            if operation < 30 {
                assert_eq!(slow.late(), [] as [usize; 0]);
            }
        }
        assert_eq!(slow.late(), [2]);
        // It is no longer slow.
        for _ in 0..100 {
            slow.observe(&[report(10), report(10), report(10)], 10.0);
        }
        assert_eq!(slow.late(), [] as [usize; 0]);
    }
}
