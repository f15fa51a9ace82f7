//! The rule that holds a loss budget.

use std::time::Duration;

use crate::durations::Durations;
use crate::factors::{FACTOR, Factors, Outcome};
use crate::report::{Ended, RankReport, ReportError};
use crate::rule::{DeadlineRule, Digest, nanoseconds};
use crate::slow_ranks::SlowRanks;
use crate::took::{Took, median};

/// Most ranks of a group.
pub const RANKS_MAX: usize = 65_536;
/// α of the moving average of what a path loses.
const SMOOTHING_PATH: f64 = 0.05;
/// What was lost at a bound is forgotten with this α.
const SMOOTHING_EXCESS: f64 = 0.1;
/// An operation that was cut would have taken at most this many times as long. The first bytes may come late and the
/// rest at once, so from a few bytes one cannot tell how much longer it would have been.
const LONGER_MAX: f64 = 8.0;
/// Operations have factors in common if their sizes differ by less than this power of two.
const SIZE_BITS: u32 = 4;
const SIZES: usize = 64 / SIZE_BITS as usize;

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
    /// No time, or no bytes: it says nothing about other operations.
    #[error("a warm-up of {bytes} bytes that took {took:?}: expected an operation that takes time")]
    Warmup {
        /// Its bytes.
        bytes: u64,
        /// What it took.
        took: Duration,
    },
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
/// The median is that of operations of about the same size. Each rank has a factor for operations whose sizes differ by
/// less than 16 times, and `1 + m` is the largest of them. A rank's factor is the number of medians after which it
/// would lose as much as its budget says: it rises when the rank loses, or would have lost with its own factor, more
/// than the budget, and falls when it loses less, in proportion to the difference and to the bytes. So a rank that is
/// always slow gets its time, too; it makes the others wait, and [`LearnedDeadline::late_ranks`] names it.
///
/// What is guaranteed, whatever the durations are: while a rank's factor for a size moves in proportion, its mean loss
/// over N operations of that size is at most target · (1 + (rise of its factor) · 500 / N). If sizes differ, each counts
/// by its bytes, over the mean of those before it. A factor does not move in proportion
///
/// - when it is at its bound of 64 medians, or the deadline at its ceiling: a later deadline is impossible. Such
///   operations do not count, so a rank that was silent has no debt to pay off. If a rank loses more than its budget
///   there, [`LearnedDeadline::ranks_over_budget`] names it.
/// - when more than half of the ranks heard nothing: then the median grows instead.
/// - when one operation would raise it by more than a quarter and beyond what the operation would have needed. This
///   takes a target below 0.8 %, an operation that is larger than the mean, or one of which nothing arrived.
/// - when it is above what any of the last 1/target operations (64 to 1024) needed. Then it falls fast, but not below
///   that: of those operations, none would have lost anything.
#[derive(Debug, Clone, PartialEq)]
pub struct LearnedDeadline {
    config: DeadlineConfig,
    durations: Durations,
    /// By size; those of sizes that were seen.
    factors: [Option<Box<Factors>>; SIZES],
    /// Smoothed share that each rank's path loses.
    path_losses: Vec<f64>,
    /// Smoothed share that each rank lost while its deadline was at a bound.
    excesses: Vec<f64>,
    slow: SlowRanks,
}

fn size_of_operation(bytes: u64) -> usize {
    (bytes.max(1).ilog2() / SIZE_BITS) as usize
}

impl LearnedDeadline {
    /// A rule that begins with a warm-up of `bytes` bytes for each rank that took `warmup`.
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
        if bytes == 0 || warmup.is_zero() {
            return Err(ConfigError::Warmup { bytes, took: warmup });
        }
        let mut factors = [const { None }; SIZES];
        factors[size_of_operation(bytes)] = Some(Box::new(Factors::new(ranks, target)));
        Ok(LearnedDeadline {
            config,
            durations: Durations::new(bytes, warmup.as_nanos() as f64),
            factors,
            path_losses: vec![0.0; ranks],
            excesses: vec![0.0; ranks],
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

    /// 1 + m: how many medians the deadline of an operation of `bytes` bytes is.
    pub fn factor(&self, bytes: u64) -> f64 {
        self.factors_of(bytes).map_or(FACTOR.0, Factors::most)
    }

    /// Whether the ceiling holds an operation of `bytes` bytes back: then the budget may be exceeded.
    pub fn is_at_ceiling(&self, bytes: u64) -> bool {
        self.unbounded(self.factor(bytes), bytes) > self.config.ceiling.as_nanos() as f64
    }

    /// Those of the size, or else of the next size that was seen.
    fn factors_of(&self, bytes: u64) -> Option<&Factors> {
        let size = size_of_operation(bytes);
        let seen = self.factors.iter().enumerate().filter_map(|(of, factors)| Some((of, factors.as_deref()?)));
        seen.min_by_key(|(of, _)| of.abs_diff(size)).map(|(_, factors)| factors)
    }

    /// Nanoseconds.
    fn unbounded(&self, factor: f64, bytes: u64) -> f64 {
        factor * self.durations.median(bytes) + self.config.slack.as_nanos() as f64
    }

    /// Nanoseconds.
    fn bounded(&self, factor: f64, bytes: u64) -> f64 {
        let (floor, ceiling) = (self.config.floor.as_nanos() as f64, self.config.ceiling.as_nanos() as f64);
        self.unbounded(factor, bytes).clamp(floor, ceiling)
    }

    /// How long the operation would have taken at a rank.
    fn took(&self, rank: usize, report: &RankReport) -> Took {
        let elapsed = report.elapsed.as_nanos() as f64;
        match (report.bytes(), report.delivered_bytes, report.ended) {
            (0, ..) => Took::Idle,
            (_, 0, _) => Took::Silent,
            // What was lost in transit takes no more time.
            (.., Ended::Whole | Ended::Quiet) => Took::Nanoseconds(elapsed),
            (bytes, delivered, Ended::Deadline) => {
                // A part of what is missing would not have come at all.
                let longer = bytes as f64 * (1.0 - self.path_losses[rank]) / delivered as f64;
                Took::Nanoseconds(elapsed * longer.clamp(1.0, LONGER_MAX))
            }
        }
    }

    /// What a rank lost of an operation, apart from what its path loses.
    fn outcome(&self, rank: usize, bytes: u64, factor: f64, report: &RankReport, took: Took) -> Outcome {
        let path = self.path_losses[rank];
        let late = report.late_share(path);
        let may_rise = factor < FACTOR.1 && self.unbounded(factor, bytes) < self.config.ceiling.as_nanos() as f64;
        let Took::Nanoseconds(whole) = took else {
            return Outcome { bytes: report.bytes(), loss: late, need: None, may_rise };
        };
        // The slowest rank's deadline is the operation's: there, what counts is what really happened. Others would have
        // ended earlier, so they have lost at least as much with their own.
        let own = (1.0 - self.bounded(factor, bytes) / whole).max(0.0) * (1.0 - path);
        let need = (whole - self.config.slack.as_nanos() as f64) / self.durations.median(bytes);
        Outcome { bytes: report.bytes(), loss: own.max(late), need: Some(need), may_rise }
    }

    fn observe_rank(&mut self, rank: usize, outcome: Outcome, report: &RankReport) {
        let at_bound = if outcome.may_rise { 0.0 } else { outcome.loss };
        let excess = &mut self.excesses[rank];
        *excess += SMOOTHING_EXCESS * (at_bound - *excess);
        if report.ended != Ended::Deadline {
            let path_loss = &mut self.path_losses[rank];
            *path_loss += SMOOTHING_PATH * (report.undelivered_share() - *path_loss);
        }
    }
}

impl DeadlineRule for LearnedDeadline {
    fn deadline(&self, bytes: u64) -> Duration {
        nanoseconds(self.bounded(self.factor(bytes), bytes))
    }

    fn observe(&mut self, bytes: u64, reports: &[RankReport]) -> Result<(), ReportError> {
        ReportError::check(self.config.ranks, bytes, reports)?;
        if reports.iter().all(|report| report.bytes() == 0) {
            return Ok(());
        }
        let size = size_of_operation(bytes);
        let known = self.factors[size].take();
        let mut factors = known.unwrap_or_else(|| {
            let other = self.factors_of(bytes).map(Factors::of_another_size);
            Box::new(other.unwrap_or_else(|| Factors::new(self.config.ranks, self.config.target)))
        });
        let took: Vec<Took> = reports.iter().enumerate().map(|(rank, report)| self.took(rank, report)).collect();
        let median = median(&took);
        for (rank, (report, took)) in reports.iter().zip(&took).enumerate() {
            if *took == Took::Idle {
                factors.idle(rank);
                continue;
            }
            let outcome = self.outcome(rank, bytes, factors.of(rank), report, *took);
            self.observe_rank(rank, outcome, report);
            // Without a median it is not single ranks that need more time.
            factors.observe(rank, Outcome { may_rise: outcome.may_rise && median.is_some(), ..outcome });
        }
        factors.next_operation();
        let deadline = self.bounded(factors.most(), bytes);
        self.factors[size] = Some(factors);
        self.slow.observe(&took, median);
        match median {
            Some(median) => self.durations.observe(bytes, median),
            None => self.durations.grow(bytes, deadline, self.config.ceiling.as_nanos() as f64),
        }
        Ok(())
    }

    fn digest(&self) -> u64 {
        let mut digest = Digest::new();
        self.durations.digest(&mut digest);
        for (size, factors) in self.factors.iter().enumerate() {
            if let Some(factors) = factors {
                digest.word(size as u64);
                factors.digest(&mut digest);
            }
        }
        digest.numbers(self.path_losses.iter().chain(&self.excesses));
        self.slow.digest(&mut digest);
        digest.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::factors::{FACTOR_FIRST, GAIN};

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
            clean.observe(BYTES, &reports).expect("three ranks");
            let reports = whole.map(|whole| {
                let report = report(&lossy, whole);
                let delivered_bytes = report.delivered_bytes / 20 * 19;
                let ended = if report.ended == Ended::Whole { Ended::Quiet } else { Ended::Deadline };
                RankReport { ended, delivered_bytes, undelivered_bytes: BYTES - delivered_bytes, ..report }
            });
            lossy.observe(BYTES, &reports).expect("three ranks");
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
            rule.observe(BYTES, &reports).expect("two ranks");
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
            rule.observe(BYTES, &reports).expect("five ranks");
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
            rule.observe(BYTES, &reports).expect("three ranks");
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
            rule.observe(BYTES, &[silent, healthy, healthy]).expect("three ranks");
        }
        assert_eq!(rule.ranks_over_budget(), [0]);
        assert!(rule.factor(BYTES) < 3.0, "{rule:?}");
        for _ in 0..50 {
            let healthy = report(&rule, Duration::from_millis(10));
            rule.observe(BYTES, &[healthy; 3]).expect("three ranks");
        }
        assert_eq!(rule.ranks_over_budget(), [] as [usize; 0]);
    }

    #[test]
    fn the_guarantee_holds_for_any_durations_while_factors_move_in_proportion() {
        // Durations that do their worst: each just above the deadline, or far above it, or short.
        let mut rule = rule(3, 0.01);
        let (first, mut lost) = (rule.factor(BYTES), 0.0);
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
            rule.observe(BYTES, &reports).expect("three ranks");
        }
        let bound = 0.01 * (1.0 + (rule.factor(BYTES) - first) / (GAIN * OPERATIONS as f64));
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
            with.observe(BYTES, &[a, root, b, c]).expect("four ranks");
            without.observe(BYTES, &[a, b, c]).expect("three ranks");
        }
        assert_eq!(with.deadline(BYTES), without.deadline(BYTES));
        assert_eq!(with.factors_of(BYTES).expect("seen").of(1), FACTOR_FIRST);
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
                rule.observe(BYTES, &reports).expect("four ranks");
            }
            assert_eq!(rule.late_ranks(), Vec::from_iter(4 - silent_ranks..4));
        }
    }

    /// What a path with a latency delivers of an operation until its deadline: all ranks alike, but for noise.
    fn over_latency(rule: &mut LearnedDeadline, bytes: u64, latency: f64, noise: u64) -> [f64; 3] {
        let deadline = rule.deadline(bytes);
        let cut = deadline.as_nanos() as f64;
        let reports = [0, 1, 2].map(|rank| {
            let slower = 1.0 + ((noise * 7 + rank * 5) % 11) as f64 / 100.0;
            let (first, last) = (latency * slower, (latency + bytes as f64) * slower);
            let delivered_bytes = (bytes as f64 * ((cut - first) / (last - first)).clamp(0.0, 1.0)) as u64;
            let ended = if delivered_bytes == bytes { Ended::Whole } else { Ended::Deadline };
            let elapsed = Duration::from_nanos(last.min(cut) as u64);
            RankReport { elapsed, ended, delivered_bytes, undelivered_bytes: bytes - delivered_bytes }
        });
        rule.observe(bytes, &reports).expect("three ranks");
        reports.map(|report| report.undelivered_share())
    }

    #[test]
    fn small_messages_on_a_long_path_arrive() {
        // 25 ms, and a nanosecond a byte. The warm-up was of 8 MiB, or wrong: nothing would arrive.
        for warmup in [Duration::from_micros(33_400), Duration::from_micros(10)] {
            let config = DeadlineConfig { ranks: 3, ..DeadlineConfig::default() };
            let mut rule = LearnedDeadline::new(config, warmup, 8 << 20).expect("possible");
            let lost: Vec<[f64; 3]> = (0..1100).map(|noise| over_latency(&mut rule, 1024, 25e6, noise)).collect();
            let whole = lost.iter().position(|lost| *lost != [1.0; 3]).expect("something arrives");
            assert!(whole < 20, "{whole}");
            for rank in 0..3 {
                let mean = lost[100..].iter().map(|lost| lost[rank]).sum::<f64>() / 1000.0;
                assert!(mean < 0.015, "{rank}: {mean}");
            }
            let deadline = rule.deadline(1024).as_secs_f64();
            assert!((0.025..0.032).contains(&deadline), "{deadline}");
        }
    }

    #[test]
    fn a_small_operation_among_large_ones_changes_nothing_for_them() {
        let config = DeadlineConfig { ranks: 3, ..DeadlineConfig::default() };
        let new = || LearnedDeadline::new(config, Duration::from_micros(33_400), 8 << 20).expect("possible");
        let (mut alone, mut mixed) = (new(), new());
        for noise in 0..1000 {
            over_latency(&mut alone, 8 << 20, 25e6, noise);
            over_latency(&mut mixed, 8 << 20, 25e6, noise);
            if noise % 10 == 0 {
                over_latency(&mut mixed, 8, 25e6, noise);
            }
            assert_eq!(alone.deadline(8 << 20), mixed.deadline(8 << 20));
        }
        assert!((0.025..0.032).contains(&mixed.deadline(8).as_secs_f64()), "{mixed:?}");
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
        for _ in 0..100_000 {
            // Silence: nothing is known, and nothing grows without bound.
            let (elapsed, ended) = (Duration::from_millis(5), Ended::Deadline);
            rule.observe(BYTES, &[RankReport { elapsed, ended, delivered_bytes: 0, undelivered_bytes: BYTES }])
                .expect("one rank");
        }
        assert!(rule.factor(BYTES) <= FACTOR.1);
        assert_eq!(rule.deadline(BYTES), Duration::from_millis(5));
        let rule = LearnedDeadline::new(config, Duration::from_millis(1), BYTES).expect("possible");
        assert_eq!(rule.deadline(BYTES), Duration::from_millis(2));
    }

    #[test]
    fn impossible_configurations_and_reports_are_refused() {
        let new = |config| LearnedDeadline::new(config, Duration::from_millis(1), 1);
        let default = DeadlineConfig::default();
        assert_eq!(new(DeadlineConfig { ranks: 0, ..default }), Err(ConfigError::Ranks(0)));
        assert_eq!(new(DeadlineConfig { target: 1.0, ..default }), Err(ConfigError::Target(1.0)));
        let floor = Duration::from_secs(20);
        assert!(matches!(new(DeadlineConfig { floor, ..default }), Err(ConfigError::Bounds { .. })));
        let nothing = |took, bytes| LearnedDeadline::new(default, Duration::from_millis(took), bytes);
        assert!(matches!(nothing(0, 1), Err(ConfigError::Warmup { .. })));
        assert!(matches!(nothing(1, 0), Err(ConfigError::Warmup { .. })));
        let mut rule = rule(2, 0.01);
        let before = rule.clone();
        let more = report(&rule, Duration::from_millis(1));
        let error = rule.observe(BYTES - 1, &[more; 2]).expect_err("more than the operation has");
        assert_eq!(error, ReportError::Bytes { rank: 0, most: BYTES - 1, got: BYTES });
        assert_eq!(rule.observe(BYTES, &[]), Err(ReportError::Ranks { expected: 2, got: 0 }));
        assert_eq!(rule, before);
    }
}
