//! How many medians each rank needs so that it loses what its budget says.

use crate::needs::Needs;
use crate::rule::Digest;

/// A rank's factor changes by this much, times how far its loss is from its budget. Without loss it falls by this much
/// an operation.
pub(crate) const GAIN: f64 = 0.002;
/// The most that a factor rises with one operation, unless the operation showed that more is needed.
const RISE_MAX: f64 = 0.25;
/// A factor above what recent operations needed falls by this part of the difference with each operation.
const FALL: f64 = 1.0 / 16.0;
/// No deadline is below or above this many medians, plus the slack.
pub(crate) const FACTOR: (f64, f64) = (0.5, 64.0);
/// Factors begin as the paper's first deadline: 1.25.
pub(crate) const FACTOR_FIRST: f64 = 1.25;
/// α of the moving average of a rank's bytes.
const SMOOTHING_BYTES: f64 = 1.0 / 16.0;
/// After as many operations in which nothing was sent to a rank, nobody waits for its sake.
const IDLE_MAX: u16 = 64;

/// A rank's part of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    /// Bytes that were sent to it.
    pub(crate) bytes: u64,
    /// The share that it lost to its deadline.
    pub(crate) loss: f64,
    /// The factor with which it would have lost nothing, if that is known.
    pub(crate) need: Option<f64>,
    /// Whether a larger factor would make the deadline later.
    pub(crate) may_rise: bool,
}

/// The factors of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Factors {
    target: f64,
    factors: Vec<f64>,
    /// Mean bytes of each rank's operations; 0 before the first.
    means: Vec<f64>,
    needs: Needs,
    /// For how many operations nothing was sent to each rank.
    idle: Vec<u16>,
}

impl Factors {
    pub(crate) fn new(ranks: usize, target: f64) -> Factors {
        Factors {
            target,
            factors: vec![FACTOR_FIRST; ranks],
            means: vec![0.0; ranks],
            needs: Needs::new(ranks, target),
            idle: vec![0; ranks],
        }
    }

    /// For operations of another size: the same factors, and nothing else is known.
    pub(crate) fn of_another_size(&self) -> Factors {
        let factors = self.factors.clone();
        Factors { factors, ..Factors::new(self.factors.len(), self.target) }
    }

    /// The largest: that of the deadline.
    pub(crate) fn most(&self) -> f64 {
        let waited_for = self.factors.iter().zip(&self.idle).filter(|(_, idle)| **idle < IDLE_MAX);
        waited_for.map(|(factor, _)| *factor).fold(FACTOR.0, f64::max)
    }

    pub(crate) fn of(&self, rank: usize) -> f64 {
        self.factors[rank]
    }

    /// Nothing was sent to a rank: it lost nothing and shows nothing.
    pub(crate) fn idle(&mut self, rank: usize) {
        self.idle[rank] = self.idle[rank].saturating_add(1);
    }

    /// Moves a rank's factor.
    pub(crate) fn observe(&mut self, rank: usize, outcome: Outcome) {
        let factor = self.factors[rank];
        // Budgets are of bytes, so an operation counts by its bytes.
        let (mean, bytes) = (&mut self.means[rank], outcome.bytes as f64);
        *mean = if *mean == 0.0 { bytes } else { *mean + SMOOTHING_BYTES * (bytes - *mean) };
        let step = GAIN * (outcome.loss / self.target - 1.0) * (bytes / *mean);
        let need = outcome.need.map_or(factor, |need| need.clamp(FACTOR.0, FACTOR.1));
        let moved = match step > 0.0 {
            true if outcome.may_rise => factor + step.min(RISE_MAX.max(need - factor)),
            // It would change nothing now, and would have to be unlearned later.
            true => factor,
            false => factor + step.min(-FALL * (factor - self.needs.most(rank)).max(0.0)),
        };
        self.factors[rank] = moved.clamp(FACTOR.0, FACTOR.1);
        self.needs.observe(rank, need);
        self.idle[rank] = 0;
    }

    /// All ranks of an operation were observed.
    pub(crate) fn next_operation(&mut self) {
        self.needs.next_operation();
    }

    pub(crate) fn digest(&self, digest: &mut Digest) {
        digest.numbers(self.factors.iter().chain(&self.means));
        self.idle.iter().for_each(|idle| digest.word(u64::from(*idle)));
        self.needs.digest(digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_counts_by_its_bytes() {
        let mut factors = Factors::new(1, 0.01);
        let mut rises = [0.0; 2];
        for operation in 0..1000 {
            let bytes = [1_000_000, 250_000][operation % 2];
            let before = factors.of(0);
            factors.observe(0, Outcome { bytes, loss: 0.02, need: None, may_rise: true });
            factors.next_operation();
            rises[operation % 2] += factors.of(0) - before;
        }
        let ratio = rises[0] / rises[1];
        assert!((3.3..4.0).contains(&ratio), "{ratio}");
        // Twice the budget: one gain an operation.
        assert!(((rises[0] + rises[1]) / (1000.0 * GAIN) - 1.0).abs() < 0.05, "{rises:?}");
    }
}
