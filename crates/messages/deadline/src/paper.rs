//! The rule of the OptiNIC paper (§3.1.2), to compare with.

use std::time::Duration;

use crate::report::{RankReport, ReportError};
use crate::rule::{DeadlineRule, Digest, nanoseconds};

/// Margin and slack of the first deadline: T₀ = 1.25 · T_warmup + 50 µs.
const MARGIN: f64 = 0.25;
const SLACK: f64 = 50_000.0;
/// α of the moving average.
const SMOOTHING: f64 = 0.2;

/// The paper's rule: T ← 0.2 · median + 0.8 · T, where the median is that of all ranks' cost of a byte, times the
/// bytes.
///
/// Margin and slack are in the first deadline only, and the average forgets them: the deadline goes to the median
/// duration. So half of all operations are cut, and a rank that is twice as slow as the others loses half of its bytes
/// for as long as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct PaperDeadline {
    ranks: usize,
    /// Nanoseconds of a byte.
    cost: f64,
}

impl PaperDeadline {
    /// For this many ranks, after a warm-up that took `warmup` for `bytes` bytes.
    pub fn new(ranks: usize, warmup: Duration, bytes: u64) -> PaperDeadline {
        PaperDeadline { ranks, cost: ((1.0 + MARGIN) * warmup.as_nanos() as f64 + SLACK) / bytes.max(1) as f64 }
    }
}

/// The median of what a byte costs at the ranks, as the paper has it: time over bytes that have arrived. `None` if
/// nothing has arrived at half of them or more.
fn median_cost(reports: &[RankReport]) -> Option<f64> {
    let sent_to = reports.iter().filter(|report| report.bytes() > 0);
    // Infinite for silent ranks.
    let cost = |report: &RankReport| report.elapsed.as_nanos().max(1) as f64 / report.delivered_bytes as f64;
    let mut costs: Vec<f64> = sent_to.map(cost).collect();
    costs.sort_by(f64::total_cmp);
    let half = costs.len() / 2;
    let median = match costs.len() {
        0 => return None,
        odd if odd % 2 == 1 => costs[half],
        _ => (costs[half - 1] + costs[half]) / 2.0,
    };
    median.is_finite().then_some(median)
}

impl DeadlineRule for PaperDeadline {
    fn deadline(&self, bytes: u64) -> Duration {
        nanoseconds(self.cost * bytes as f64)
    }

    fn observe(&mut self, bytes: u64, reports: &[RankReport]) -> Result<(), ReportError> {
        ReportError::check(self.ranks, bytes, reports)?;
        if let Some(median) = median_cost(reports) {
            self.cost = SMOOTHING * median + (1.0 - SMOOTHING) * self.cost;
        }
        Ok(())
    }

    fn digest(&self) -> u64 {
        let mut digest = Digest::new();
        digest.numbers([&self.cost]);
        digest.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Ended;

    #[test]
    fn the_margin_is_forgotten() {
        let mut rule = PaperDeadline::new(3, Duration::from_millis(10), 1_000_000);
        assert_eq!(rule.deadline(1_000_000), Duration::from_micros(12_550));
        let report = |milliseconds| RankReport {
            started: Duration::ZERO,
            elapsed: Duration::from_millis(milliseconds),
            ended: Ended::Whole,
            delivered_bytes: 1_000_000,
            undelivered_bytes: 0,
        };
        rule.observe(1_000_000, &[report(8), report(10), report(12)]).expect("three ranks");
        assert_eq!(rule.deadline(1_000_000), Duration::from_micros(12_040));
        for _ in 0..100 {
            rule.observe(1_000_000, &[report(8), report(10), report(12)]).expect("three ranks");
        }
        assert_eq!(rule.deadline(1_000_000).as_micros(), 10_000);
        // Twice the bytes, twice the time.
        assert_eq!(rule.deadline(2_000_000).as_micros(), 20_000);
        assert_eq!(rule.observe(1_000_000, &[]), Err(ReportError::Ranks { expected: 3, got: 0 }));
    }
}
