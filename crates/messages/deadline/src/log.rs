//! The loss log: what every operation lost, so that a run can be replayed.
//!
//! A line for each operation, as text:
//!
//! ```text
//! step 3 operation 0 bytes 1048576 deadline_ns 1520000 ranks 1520000/1048576/deadline/4096-8192,65536-69632 900000/1048576/whole/-
//! ```
//!
//! For each rank, in order: nanoseconds that it took, bytes that were sent to it, how it ended (`whole`, `quiet` or
//! `deadline`), and the ranges of the bytes that were missing, ascending, each up to but not including its end; `-` if none was.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use crate::learned::RANKS_MAX;
use crate::report::{Ended, RankReport, ReportError};
use crate::rule::DeadlineRule;

/// Most ranges of a rank in a record: as many as a message of 64 MiB has, if it loses every other packet of 64 bytes.
pub const RANGES_MAX: usize = 1 << 19;

/// What a rank lost of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankLoss {
    /// How long the operation took at this rank.
    pub elapsed: Duration,
    /// Bytes that were sent to it.
    pub bytes: u64,
    /// How it ended.
    pub ended: Ended,
    /// Those that did not arrive: ascending, apart from each other, none empty.
    pub missing: Vec<Range<u64>>,
}

/// What an operation lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LossRecord {
    /// The training step.
    pub step: u64,
    /// Which operation of the step.
    pub operation: u64,
    /// Bytes for each rank, as for the rule's deadline.
    pub bytes: u64,
    /// The operation's deadline.
    pub deadline: Duration,
    /// Of each rank, in order.
    pub ranks: Vec<RankLoss>,
}

/// Why a log cannot be read or replayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LossLogError {
    /// A line is not one of a loss log.
    #[error("line {line}: {reason}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The rule makes another deadline than the log has: another configuration, or another release.
    #[error("step {step} operation {operation}: the log has a deadline of {logged:?}, the rule {got:?}")]
    OtherDeadline {
        /// The step.
        step: u64,
        /// The operation.
        operation: u64,
        /// In the log.
        logged: Duration,
        /// The rule's.
        got: Duration,
    },
    /// The log is of a group of another size.
    #[error("step {step} operation {operation}: {source}")]
    Reports {
        /// The step.
        step: u64,
        /// The operation.
        operation: u64,
        /// What does not fit.
        source: ReportError,
    },
}

impl RankLoss {
    /// Bytes that did not arrive.
    pub fn undelivered_bytes(&self) -> u64 {
        self.missing.iter().map(|range| range.end - range.start).sum()
    }

    /// What the rank reported.
    pub fn report(&self) -> RankReport {
        let undelivered_bytes = self.undelivered_bytes();
        let delivered_bytes = self.bytes.saturating_sub(undelivered_bytes);
        RankReport { elapsed: self.elapsed, ended: self.ended, delivered_bytes, undelivered_bytes }
    }
}

impl LossRecord {
    /// What the ranks reported, for [`DeadlineRule::observe`].
    pub fn reports(&self) -> Vec<RankReport> {
        self.ranks.iter().map(RankLoss::report).collect()
    }
}

impl fmt::Display for LossRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.deadline.as_nanos();
        let LossRecord { step, operation, bytes, .. } = self;
        write!(f, "step {step} operation {operation} bytes {bytes} deadline_ns {nanoseconds} ranks")?;
        for rank in &self.ranks {
            let ended = match rank.ended {
                Ended::Whole => "whole",
                Ended::Quiet => "quiet",
                Ended::Deadline => "deadline",
            };
            write!(f, " {}/{}/{ended}/", rank.elapsed.as_nanos(), rank.bytes)?;
            for (number, range) in rank.missing.iter().enumerate() {
                let comma = if number > 0 { "," } else { "" };
                write!(f, "{comma}{}-{}", range.start, range.end)?;
            }
            if rank.missing.is_empty() {
                f.write_str("-")?;
            }
        }
        Ok(())
    }
}

fn number(text: Option<&str>, what: &str) -> Result<u64, String> {
    let text = text.unwrap_or_default();
    text.parse().map_err(|_| format!("expected {what}, got \"{text}\""))
}

impl FromStr for RankLoss {
    type Err = String;

    fn from_str(text: &str) -> Result<RankLoss, String> {
        let mut parts = text.splitn(4, '/');
        let elapsed = Duration::from_nanos(number(parts.next(), "nanoseconds of a rank")?);
        let bytes = number(parts.next(), "bytes of a rank")?;
        let ended = match parts.next() {
            Some("whole") => Ended::Whole,
            Some("quiet") => Ended::Quiet,
            Some("deadline") => Ended::Deadline,
            other => return Err(format!("expected whole, quiet or deadline, got \"{}\"", other.unwrap_or_default())),
        };
        let ranges = parts.next().ok_or_else(|| format!("expected missing ranges or -, got \"{text}\""))?;
        let mut missing = Vec::new();
        let mut end_before = 0;
        for range in ranges.split(',').filter(|_| ranges != "-") {
            let (start, end) = range.split_once('-').unwrap_or((range, ""));
            let (start, end) = (number(Some(start), "the start of a range")?, number(Some(end), "the end of a range")?);
            if start >= end || end > bytes || (start <= end_before && !missing.is_empty()) {
                return Err(format!("range {range} of {bytes} bytes: empty, not ascending, or beyond the end"));
            }
            if missing.len() == RANGES_MAX {
                return Err(format!("more than {RANGES_MAX} ranges of a rank"));
            }
            missing.push(start..end);
            end_before = end;
        }
        if ended == Ended::Whole && !missing.is_empty() {
            return Err(format!("a whole operation without {ranges}"));
        }
        Ok(RankLoss { elapsed, bytes, ended, missing })
    }
}

impl FromStr for LossRecord {
    type Err = String;

    fn from_str(line: &str) -> Result<LossRecord, String> {
        let mut words = line.split(' ');
        let mut named = |name: &str| match words.next() {
            Some(word) if word == name => number(words.next(), name),
            other => Err(format!("expected \"{name}\", got \"{}\"", other.unwrap_or_default())),
        };
        let (step, operation, bytes) = (named("step")?, named("operation")?, named("bytes")?);
        let deadline = Duration::from_nanos(named("deadline_ns")?);
        if words.next() != Some("ranks") {
            return Err("expected \"ranks\"".to_owned());
        }
        let ranks: Vec<RankLoss> = words.take(RANKS_MAX + 1).map(RankLoss::from_str).collect::<Result<_, _>>()?;
        if ranks.len() > RANKS_MAX {
            return Err(format!("more than {RANKS_MAX} ranks"));
        }
        Ok(LossRecord { step, operation, bytes, deadline, ranks })
    }
}

/// The records of a run, in order. A program that runs for long writes each record out as a line and keeps none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LossLog {
    /// The records.
    pub records: Vec<LossRecord>,
}

impl LossLog {
    /// Feeds the log's reports to a rule that was made as the run's, and compares every deadline with the run's.
    pub fn replay(&self, rule: &mut impl DeadlineRule) -> Result<(), LossLogError> {
        for record in &self.records {
            let LossRecord { step, operation, bytes, deadline: logged, .. } = *record;
            let got = rule.deadline(bytes);
            if got != logged {
                return Err(LossLogError::OtherDeadline { step, operation, logged, got });
            }
            rule.observe(bytes, &record.reports()).map_err(|source| LossLogError::Reports {
                step,
                operation,
                source,
            })?;
        }
        Ok(())
    }
}

impl fmt::Display for LossLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.records.iter().try_for_each(|record| writeln!(f, "{record}"))
    }
}

impl FromStr for LossLog {
    type Err = LossLogError;

    fn from_str(text: &str) -> Result<LossLog, LossLogError> {
        let record = |(index, line): (usize, &str)| {
            line.parse().map_err(|reason| LossLogError::Line { line: index + 1, reason })
        };
        Ok(LossLog { records: text.lines().enumerate().map(record).collect::<Result<_, _>>()? })
    }
}
