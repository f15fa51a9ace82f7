//! The rule that holds a loss budget.

use std::time::Duration;

use crate::needs::Needs;
use crate::report::{Ended, RankReport, ReportError, median_cost};
use crate::rule::{DeadlineRule, nanoseconds};
use crate::slow_ranks::SlowRanks;

/// Most ranks of a group.
pub const RANKS_MAX: usize = 65_536;
/// α of the moving average of medians, as the paper has it.
const SMOOTHING: f64 = 0.2;
/// The same of what a path loses.
const SMOOTHING_PATH: f64 = 0.05;
/// A rank's factor changes by this much, times how far its loss is from its budget. Without loss it falls by this much
/// an operation.
const GAIN: f64 = 0.002;
/// The most that a factor rises with one operation, unless the operation showed that more is needed.
const RISE_MAX: f64 = 0.25;
/// A factor above what recent operations needed falls by this part of the difference with each operation.
const FALL: f64 = 1.0 / 16.0;
/// After as many operations in which nothing was sent to a rank, nobody waits for its sake.
const IDLE_MAX: u16 = 64;
/// What was lost at a bound is forgotten with this α.
const SMOOTHING_EXCESS: f64 = 0.1;
/// No deadline is below or above this many medians, plus the slack.
const FACTOR: (f64, f64) = (0.5, 64.0);
/// Factors begin as the paper's first deadline: 1.25.
const FACTOR_FIRST: f64 = 1.25;

/// What a [`LearnedDeadline`] needs to know.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeadlineConfig {
    /// Ranks of the group, 1 to [`RANKS_MAX`].
    pub ranks: usize,
    /// The loss budget: the share of bytes that each rank may lose to deadlines in the mean, between 0 and 1. What the
    /// path loses comes in addition: see [`LearnedDeadline::path_loss`].
    pub target: f64,
    /// δ: what every deadline has in addition.
    pub slack: Duration,
    /// No deadline is earlier.
    pub floor: Duration,
    /// No deadline is later, even if the budget is exceeded.
    pub ceiling: Duration,
}

impl Default for DeadlineConfig {
    fn default() -> Self {
        DeadlineConfig {
            ranks: 1,
            target: 0.01,
            slack: Duration::from_micros(50),
            floor: Duration::from_micros(100),
            ceiling: Duration::from_secs(10),
        }
    }
}

/// Why a configuration is impossible.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// None, or more than are allowed.
    #[error("{0} ranks: expected 1 to {RANKS_MAX}")]
    Ranks(usize),
    /// Not a share.
    #[error("a target of {0}: expected a share above 0 and below 1, such as 0.01")]
    Target(f64),
    /// The floor is above the ceiling.
    #[error("the earliest deadline, {floor:?}, is after the latest, {ceiling:?}")]
    Bounds {
        /// The floor.
        floor: Duration,
        /// The ceiling.
        ceiling: Duration,
    },
}

/// A deadline that holds a loss budget: T = (1 + m) · median + δ, between floor and ceiling.
///
/// Each rank has a factor, and `1 + m` is the largest of them. A rank's factor is the number of medians after which it
/// would lose as much as its budget says: it rises when the rank loses, or would have lost with its own factor, more
/// than the budget, and falls when it loses less, in proportion. So a rank that is always slow gets its time, too; it
/// makes the others wait, and [`LearnedDeadline::late_ranks`] names it.
///
/// What is guaranteed, whatever the durations are: while a rank's factor moves in proportion, its mean loss over N
/// operations is at most target · (1 + (rise of its factor) · 500 / N). It does not move in proportion
///
/// - when it is at its bound of 64 medians, or the deadline at its ceiling: a later deadline is impossible. Such
///   operations do not count, so a rank that was silent has no debt to pay off. If a rank loses more than its budget
///   there, [`LearnedDeadline::ranks_over_budget`] names it.
/// - when one operation would raise it by more than a quarter and beyond what the operation would have needed. This
///   takes a target below 0.8 %, or an operation of which nothing arrived.
/// - when it is above what any of the last 1/target operations (64 to 1024) needed. Then it falls fast, but not below
///   that: of those operations, none would have lost anything.
#[derive(Debug, Clone, PartialEq)]
pub struct LearnedDeadline {
    config: DeadlineConfig,
    /// Smoothed median of nanoseconds a byte.
    cost: f64,
    factors: Vec<f64>,
    /// Smoothed share that each rank's path loses.
    path_losses: Vec<f64>,
    /// Smoothed share that each rank lost while its deadline was at a bound.
    excesses: Vec<f64>,
    needs: Needs,
    /// For how many operations nothing was sent to each rank.
    idle: Vec<u16>,
    slow: SlowRanks,
}

impl LearnedDeadline {
    /// A rule for operations like a warm-up that took `warmup` for `bytes` bytes.
    pub fn new(config: DeadlineConfig, warmup: Duration, bytes: u64) -> Result<LearnedDeadline, ConfigError> {
        let DeadlineConfig { ranks, target, floor, ceiling, .. } = config;
        if !(1..=RANKS_MAX).contains(&ranks) {
            return Err(ConfigError::Ranks(ranks));
        }
        if !(target > 0.0 && target < 1.0) {
            return Err(ConfigError::Target(target));
        }
        if floor > ceiling {
            return Err(ConfigError::Bounds { floor, ceiling });
        }
        Ok(LearnedDeadline {
            config,
            cost: warmup.as_nanos() as f64 / bytes.max(1) as f64,
            factors: vec![FACTOR_FIRST; ranks],
            path_losses: vec![0.0; ranks],
            excesses: vec![0.0; ranks],
            needs: Needs::new(ranks, target),
            idle: vec![0; ranks],
            slow: SlowRanks::new(ranks),
        })
    }

    /// Ranks that are late operation after operation, in ascending order.
    pub fn late_ranks(&self) -> Vec<usize> {
        self.slow.late()
    }

    /// Ranks that lately lost more than their budget although no later deadline was possible, in ascending order: the
    /// budget cannot be held for them.
    pub fn ranks_over_budget(&self) -> Vec<usize> {
        let over = self.excesses.iter().enumerate().filter(|(_, excess)| **excess > self.config.target);
        over.map(|(rank, _)| rank).collect()
    }

    /// The share of a rank's bytes that its path loses, smoothed: what is missing of operations that ended before their
    /// deadline. No deadline can cure it, so it is not in the budget. 0 for a rank that does not exist.
    pub fn path_loss(&self, rank: usize) -> f64 {
        self.path_losses.get(rank).copied().unwrap_or(0.0)
    }

    /// 1 + m: how many medians the deadline is.
    pub fn factor(&self) -> f64 {
        let waited_for = self.factors.iter().zip(&self.idle).filter(|(_, idle)| **idle < IDLE_MAX);
        waited_for.map(|(factor, _)| *factor).fold(FACTOR.0, f64::max)
    }

    /// Whether the ceiling holds an operation of `bytes` bytes back: then the budget may be exceeded.
    pub fn is_at_ceiling(&self, bytes: u64) -> bool {
        self.unbounded(self.factor(), bytes) > self.config.ceiling.as_nanos() as f64
    }

    /// Nanoseconds.
    fn unbounded(&self, factor: f64, bytes: u64) -> f64 {
        factor * self.cost * bytes as f64 + self.config.slack.as_nanos() as f64
    }

    /// Nanoseconds.
    fn bounded(&self, factor: f64, bytes: u64) -> f64 {
        let (floor, ceiling) = (self.config.floor.as_nanos() as f64, self.config.ceiling.as_nanos() as f64);
        self.unbounded(factor, bytes).clamp(floor, ceiling)
    }

    /// How long the operation would have taken at a rank, in nanoseconds; `None` if nothing has arrived.
    fn whole(&self, rank: usize, report: &RankReport) -> Option<f64> {
        let whole = report.cost()? * report.bytes() as f64;
        Some(match report.ended {
            Ended::Whole | Ended::Quiet => whole,
            // A part of what is missing would not have come at all: the rest would have taken less time.
            Ended::Deadline => (whole * (1.0 - self.path_losses[rank])).max(report.elapsed.as_nanos() as f64),
        })
    }

    /// What a rank loses of an operation that ends when its own factor says, apart from what its path loses.
    fn loss(&self, rank: usize, report: &RankReport, whole: Option<f64>) -> f64 {
        let path = self.path_losses[rank];
        let late = report.late_share(path);
        // The slowest rank's deadline is the operation's: there, what counts is what really happened. Others would have
        // ended earlier, so they have lost at least as much with their own.
        whole.map_or(late, |whole| {
            let own = (1.0 - self.bounded(self.factors[rank], report.bytes()) / whole).max(0.0) * (1.0 - path);
            own.max(late)
        })
    }

    /// Moves a rank's factor.
    fn adjust(&mut self, rank: usize, report: &RankReport) {
        let factor = self.factors[rank];
        let whole = self.whole(rank, report);
        let loss = self.loss(rank, report, whole);
        // The factor with which everything would have arrived.
        let need = whole.map_or(factor, |whole| {
            let slack = self.config.slack.as_nanos() as f64;
            ((whole - slack) / (self.cost * report.bytes() as f64)).clamp(FACTOR.0, FACTOR.1)
        });
        let step = GAIN * (loss / self.config.target - 1.0);
        let at_bound =
            factor >= FACTOR.1 || self.unbounded(factor, report.bytes()) >= self.config.ceiling.as_nanos() as f64;
        let moved = match step > 0.0 {
            // More would change nothing now, and would have to be unlearned later.
            true if at_bound => factor,
            true => factor + step.min(RISE_MAX.max(need - factor)),
            false => {
                let unneeded = (factor - self.needs.most(rank)).max(0.0);
                factor + step.min(-FALL * unneeded)
            }
        };
        self.factors[rank] = moved.clamp(FACTOR.0, FACTOR.1);
        self.needs.observe(rank, need);
        let excess = &mut self.excesses[rank];
        *excess += SMOOTHING_EXCESS * (if at_bound { loss } else { 0.0 } - *excess);
        if report.ended != Ended::Deadline {
            let path_loss = &mut self.path_losses[rank];
            *path_loss += SMOOTHING_PATH * (report.undelivered_share() - *path_loss);
        }
    }
}

impl DeadlineRule for LearnedDeadline {
    fn deadline(&self, bytes: u64) -> Duration {
        nanoseconds(self.bounded(self.factor(), bytes))
    }

    fn observe(&mut self, reports: &[RankReport]) -> Result<(), ReportError> {
        ReportError::check(self.config.ranks, reports.len())?;
        for (rank, report) in reports.iter().enumerate() {
            // A rank that nothing is sent to, as the root of a broadcast, loses nothing and shows nothing.
            if report.bytes() > 0 {
                self.idle[rank] = 0;
                self.adjust(rank, report);
            } else {
                self.idle[rank] = self.idle[rank].saturating_add(1);
            }
        }
        self.needs.next_operation();
        let median = median_cost(reports);
        self.slow.observe(reports, median);
        if let Some(median) = median {
            self.cost = SMOOTHING * median + (1.0 - SMOOTHING) * self.cost;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1_000_000;

    fn rule(ranks: usize, target: f64) -> LearnedDeadline {
        let config = DeadlineConfig { ranks, target, ..DeadlineConfig::default() };
        LearnedDeadline::new(config, Duration::from_millis(10), BYTES).expect("possible")
    }

    /// An operation that would take so long, cut at the deadline.
    fn report(rule: &LearnedDeadline, whole: Duration) -> RankReport {
        let deadline = rule.deadline(BYTES);
        let share = (deadline.as_secs_f64() / whole.as_secs_f64()).min(1.0);
        let delivered_bytes = (BYTES as f64 * share) as u64;
        let (elapsed, undelivered_bytes) = (whole.min(deadline), BYTES - delivered_bytes);
        let ended = if undelivered_bytes == 0 { Ended::Whole } else { Ended::Deadline };
        RankReport { elapsed, ended, delivered_bytes, undelivered_bytes }
    }

    #[test]
    fn what_the_path_loses_makes_no_deadline_later() {
        // Of two groups with the same durations, one loses 5 % in transit.
        let (mut clean, mut lossy) = (rule(3, 0.01), rule(3, 0.01));
        for operation in 0..2000 {
            let whole = [0, 1, 2].map(|rank| Duration::from_micros(9_000 + (operation * 7 + rank * 5) % 11 * 300));
            let reports = whole.map(|whole| report(&clean, whole));
            clean.observe(&reports).expect("three ranks");
            let reports = whole.map(|whole| {
                let report = report(&lossy, whole);
                let delivered_bytes = report.delivered_bytes / 20 * 19;
                let ended = if report.ended == Ended::Whole { Ended::Quiet } else { Ended::Deadline };
                RankReport { ended, delivered_bytes, undelivered_bytes: BYTES - delivered_bytes, ..report }
            });
            lossy.observe(&reports).expect("three ranks");
        }
        let ratio = lossy.deadline(BYTES).as_secs_f64() / clean.deadline(BYTES).as_secs_f64();
        assert!((0.98..1.02).contains(&ratio), "{ratio}, {lossy:?}");
        assert!((lossy.path_loss(1) - 0.05).abs() < 1e-3, "{lossy:?}");
        assert_eq!(clean.path_loss(1), 0.0);
    }

    #[test]
    fn a_constant_duration_is_cut_at_its_budget_and_no_sooner() {
        let mut rule = rule(2, 0.02);
        for _ in 0..1000 {
            let reports = [report(&rule, Duration::from_millis(10)), report(&rule, Duration::from_millis(20))];
            rule.observe(&reports).expect("two ranks");
        }
        // The slow one's: 98 % of its 20 ms.
        let deadline = rule.deadline(BYTES).as_secs_f64();
        assert!((deadline - 0.0196).abs() < 0.0001, "{deadline}");
        assert_eq!(rule.late_ranks(), [1], "of two, the median is the faster one");
    }

    #[test]
    fn a_slow_rank_gets_its_time_and_is_named() {
        let mut rule = rule(5, 0.01);
        for _ in 0..300 {
            let whole = [10, 10, 10, 20, 10].map(Duration::from_millis);
            let reports = whole.map(|whole| report(&rule, whole));
            rule.observe(&reports).expect("five ranks");
        }
        assert!((rule.deadline(BYTES).as_secs_f64() - 0.0198).abs() < 0.0001, "{:?}", rule.deadline(BYTES));
        assert_eq!(rule.late_ranks(), [3]);
    }

    /// Healthy operations until the deadline is as it would be if rank 0 had never been away for `silent` operations.
    fn operations_to_recover(config: DeadlineConfig, silent: usize) -> usize {
        let new = || LearnedDeadline::new(config, Duration::from_millis(10), BYTES).expect("possible");
        let (mut healthy, mut rule) = (new(), new());
        let whole = |operation: u64, rank: u64| Duration::from_micros(9_000 + (operation * 7 + rank * 5) % 11 * 300);
        let observe = |rule: &mut LearnedDeadline, operation: u64, is_silent: bool| {
            let reports = [0, 1, 2].map(|rank| match (rank, is_silent) {
                (0, true) => {
                    let (elapsed, ended) = (rule.deadline(BYTES), Ended::Deadline);
                    RankReport { elapsed, ended, delivered_bytes: 0, undelivered_bytes: BYTES }
                }
                _ => report(rule, whole(operation, rank)),
            });
            rule.observe(&reports).expect("three ranks");
        };
        for operation in 0..3000 {
            observe(&mut healthy, operation, false);
            observe(&mut rule, operation, false);
        }
        for operation in 0..silent as u64 {
            observe(&mut rule, operation, true);
        }
        assert_eq!(rule.ranks_over_budget(), Vec::from_iter((silent > 340).then_some(0)), "{rule:?}");
        (0..)
            .find(|&operation| {
                observe(&mut rule, operation, false);
                rule.deadline(BYTES).as_secs_f64() < 1.1 * healthy.deadline(BYTES).as_secs_f64()
            })
            .expect("some time") as usize
    }

    #[test]
    fn a_rank_that_was_silent_for_long_is_forgotten_within_a_few_hundred_operations() {
        let config = DeadlineConfig { ranks: 3, ..DeadlineConfig::default() };
        for silent in [20, 350, 5000] {
            let operations = operations_to_recover(config, silent);
            assert!(operations < 350, "{operations} after {silent}");
        }
        // Where the deadline is at its ceiling, silence changes nothing more.
        let config = DeadlineConfig { ceiling: Duration::from_millis(25), ..config };
        let mut rule = LearnedDeadline::new(config, Duration::from_millis(10), BYTES).expect("possible");
        for _ in 0..1000 {
            let (elapsed, ended) = (rule.deadline(BYTES), Ended::Deadline);
            let silent = RankReport { elapsed, ended, delivered_bytes: 0, undelivered_bytes: BYTES };
            let healthy = report(&rule, Duration::from_millis(10));
            rule.observe(&[silent, healthy, healthy]).expect("three ranks");
        }
        assert_eq!(rule.ranks_over_budget(), [0]);
        assert!(rule.factor() < 3.0, "{rule:?}");
        for _ in 0..50 {
            let healthy = report(&rule, Duration::from_millis(10));
            rule.observe(&[healthy; 3]).expect("three ranks");
        }
        assert_eq!(rule.ranks_over_budget(), [] as [usize; 0]);
    }

    #[test]
    fn the_guarantee_holds_for_any_durations_while_factors_move_in_proportion() {
        // Durations that do their worst: each just above the deadline, or far above it, or short.
        let mut rule = rule(3, 0.01);
        let (first, mut lost) = (rule.factors[0], 0.0);
        const OPERATIONS: usize = 5000;
        let mut word = 1_u64;
        for _ in 0..OPERATIONS {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let share = (word >> 33) % 100;
            let whole = match share {
                0..=4 => rule.deadline(BYTES) * 2,
                5..=30 => rule.deadline(BYTES) * 101 / 100,
                _ => Duration::from_millis(9),
            };
            let healthy = report(&rule, Duration::from_millis(10));
            let reports = [report(&rule, whole), healthy, healthy];
            lost += reports[0].undelivered_share();
            rule.observe(&reports).expect("three ranks");
        }
        let bound = 0.01 * (1.0 + (rule.factors[0] - first) / (GAIN * OPERATIONS as f64));
        let mean = lost / OPERATIONS as f64;
        assert!(mean <= 1.000_001 * bound && mean > 0.9 * bound, "{mean}, {bound}, {rule:?}");
    }

    #[test]
    fn the_root_of_a_broadcast_is_neither_silent_nor_late() {
        let (mut without, mut with) = (rule(3, 0.01), rule(4, 0.01));
        for operation in 0..500 {
            let whole = [0, 1, 2].map(|rank| Duration::from_micros(9_000 + (operation * 7 + rank * 5) % 11 * 300));
            let [a, b, c] = whole.map(|whole| report(&with, whole));
            let root = RankReport { delivered_bytes: 0, undelivered_bytes: 0, ..a };
            with.observe(&[a, root, b, c]).expect("four ranks");
            without.observe(&[a, b, c]).expect("three ranks");
        }
        assert_eq!(with.deadline(BYTES), without.deadline(BYTES));
        assert_eq!(with.factors[1], FACTOR_FIRST);
        assert_eq!(with.late_ranks(), [] as [usize; 0]);
    }

    #[test]
    fn half_of_a_group_that_is_silent_is_named() {
        for silent_ranks in [2, 3] {
            let mut rule = rule(4, 0.01);
            for _ in 0..100 {
                let (elapsed, ended) = (rule.deadline(BYTES), Ended::Deadline);
                let silent = RankReport { elapsed, ended, delivered_bytes: 0, undelivered_bytes: BYTES };
                let mut reports = [report(&rule, Duration::from_millis(10)); 4];
                reports[4 - silent_ranks..].fill(silent);
                rule.observe(&reports).expect("four ranks");
            }
            assert_eq!(rule.late_ranks(), Vec::from_iter(4 - silent_ranks..4));
        }
    }

    #[test]
    fn floor_and_ceiling_hold() {
        let config = DeadlineConfig {
            ranks: 1,
            floor: Duration::from_millis(2),
            ceiling: Duration::from_millis(5),
            ..DeadlineConfig::default()
        };
        let mut rule = LearnedDeadline::new(config, Duration::from_millis(10), BYTES).expect("possible");
        assert_eq!(rule.deadline(BYTES), Duration::from_millis(5));
        assert!(rule.is_at_ceiling(BYTES));
        assert_eq!(rule.deadline(1), Duration::from_millis(2));
        for _ in 0..100_000 {
            // Silence: nothing is known, and nothing grows without bound.
            let (elapsed, ended) = (Duration::from_millis(5), Ended::Deadline);
            rule.observe(&[RankReport { elapsed, ended, delivered_bytes: 0, undelivered_bytes: 1 }]).expect("one rank");
        }
        assert!(rule.factor() <= FACTOR.1);
        assert_eq!(rule.deadline(BYTES), Duration::from_millis(5));
    }

    #[test]
    fn impossible_configurations_and_reports_are_refused() {
        let new = |config| LearnedDeadline::new(config, Duration::from_millis(1), 1);
        let default = DeadlineConfig::default();
        assert_eq!(new(DeadlineConfig { ranks: 0, ..default }), Err(ConfigError::Ranks(0)));
        assert_eq!(new(DeadlineConfig { target: 1.0, ..default }), Err(ConfigError::Target(1.0)));
        let floor = Duration::from_secs(20);
        assert!(matches!(new(DeadlineConfig { floor, ..default }), Err(ConfigError::Bounds { .. })));
        let mut rule = rule(2, 0.01);
        let before = rule.clone();
        assert_eq!(rule.observe(&[]), Err(ReportError::Ranks { expected: 2, got: 0 }));
        assert_eq!(rule, before);
    }
}
