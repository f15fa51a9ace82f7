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
/// always slow gets its time, too; it makes the others wait, and [`LearnedDeadline::late_ranks`] names it. A rank that
/// begins late makes all others late: [`LearnedDeadline::late_starters`] names it.
///
/// What is guaranteed, whatever the durations are: while a rank's factor for a size moves in proportion, its mean loss
/// over N operations of that size is at most target · (1 + (rise of its factor) · 500 / N). If sizes differ, each
/// counts by its bytes, over the mean of those before it. A factor does not move in proportion
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
    /// The same of when ranks began.
    starters: SlowRanks,
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
            starters: SlowRanks::new(ranks),
        })
    }

    /// Ranks that are late operation after operation, in ascending order.
    pub fn late_ranks(&self) -> Vec<usize> {
        self.slow.late()
    }

    /// Ranks that begin late, operation after operation, in ascending order: by more than half of the median duration
    /// after the start. Those that receive from them are late for it, and not by their own fault.
    pub fn late_starters(&self) -> Vec<usize> {
        self.starters.late()
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
        if let Some(median) = median {
            // A median later than the start counts as twice the median.
            let late = |report: &RankReport| Took::Nanoseconds(median + report.started.as_nanos() as f64);
            self.starters.observe(&reports.iter().map(late).collect::<Vec<_>>(), Some(median));
        }
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
        self.starters.digest(&mut digest);
        digest.0
    }
}

#[cfg(test)]
mod tests;
