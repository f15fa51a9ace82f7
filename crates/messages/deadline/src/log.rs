//! The loss log: what every operation lost, so that a run can be replayed.
//!
//! A line for each operation, as text (here it is broken after `ranks`):
//!
//! ```text
//! step 3 operation 0 bytes 1048576 deadline_ns 1520000 state 90ab12cd34ef5678 ranks
//!     0/1520000/1048576/deadline/4096-8192,65536-69632 0/900000/1048576/whole/- end
//! ```
//!
//! `state` is the rule's [`DeadlineRule::digest`] after the operation. For each rank, in order: nanoseconds after which
//! it began, nanoseconds that it took, bytes that were sent to it, how it ended (`whole`, `quiet` or `deadline`), and
//! the ranges of the bytes that were missing, ascending, each up to but not including its end; `-` if none was. Without
//! `end` a line was cut off.

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
    /// How long after the operation's start the rank began.
    pub started: Duration,
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
    /// The rule's digest after the operation.
    pub state: u64,
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
    /// The rule's state is another after the operation: what the ranks reported is not what the log has, or the rule is
    /// another.
    #[error("step {step} operation {operation}: after it, the log has the state {logged:016x}, the rule {got:016x}")]
    OtherState {
        /// The step.
        step: u64,
        /// The operation.
        operation: u64,
        /// In the log.
        logged: u64,
        /// The rule's.
        got: u64,
    },
    /// A record that no log can have.
    #[error("step {step} operation {operation}: {reason}")]
    Record {
        /// The step.
        step: u64,
        /// The operation.
        operation: u64,
        /// What is wrong with it.
        reason: String,
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
        RankReport {
            started: self.started,
            elapsed: self.elapsed,
            ended: self.ended,
            delivered_bytes,
            undelivered_bytes,
        }
    }
}

impl LossRecord {
    /// What the ranks reported, for [`DeadlineRule::observe`].
    pub fn reports(&self) -> Vec<RankReport> {
        self.ranks.iter().map(RankLoss::report).collect()
    }

    /// The record as a line, without its end. Fails if it would not be read again: ranges that are empty, beyond the
    /// rank's bytes or not ascending, more bytes than the operation has, more ranks or ranges than are allowed, more
    /// nanoseconds than 64 bits hold.
    pub fn to_line(&self) -> Result<String, LossLogError> {
        let LossRecord { step, operation, bytes, state, .. } = *self;
        self.check().map_err(|reason| LossLogError::Record { step, operation, reason })?;
        let nanoseconds = self.deadline.as_nanos();
        let mut line = format!(
            "step {step} operation {operation} bytes {bytes} deadline_ns {nanoseconds} state {state:016x} ranks"
        );
        for rank in &self.ranks {
            line += &format!(" {rank}");
        }
        Ok(line + " end")
    }

    fn check(&self) -> Result<(), String> {
        if self.ranks.len() > RANKS_MAX {
            return Err(format!("{} ranks: at most {RANKS_MAX}", self.ranks.len()));
        }
        if u64::try_from(self.deadline.as_nanos()).is_err() {
            return Err(format!("a deadline of {:?}", self.deadline));
        }
        self.ranks.iter().try_for_each(|rank| match rank.bytes > self.bytes {
            true => Err(format!("{} bytes at a rank, of an operation of {}", rank.bytes, self.bytes)),
            false => rank.check(),
        })
    }

    /// Feeds the record to the rule that made its deadline, or one made alike, and compares deadline and state.
    pub fn replay(&self, rule: &mut impl DeadlineRule) -> Result<(), LossLogError> {
        let LossRecord { step, operation, bytes, deadline: logged, .. } = *self;
        let got = rule.deadline(bytes);
        if got != logged {
            return Err(LossLogError::OtherDeadline { step, operation, logged, got });
        }
        rule.observe(bytes, &self.reports()).map_err(|source| LossLogError::Reports { step, operation, source })?;
        match rule.digest() {
            got if got == self.state => Ok(()),
            got => Err(LossLogError::OtherState { step, operation, logged: self.state, got }),
        }
    }
}

impl RankLoss {
    fn check(&self) -> Result<(), String> {
        if [self.started, self.elapsed].iter().any(|time| u64::try_from(time.as_nanos()).is_err()) {
            return Err(format!("a rank began after {:?} and took {:?}", self.started, self.elapsed));
        }
        if self.missing.len() > RANGES_MAX {
            return Err(format!("more than {RANGES_MAX} ranges of a rank"));
        }
        if self.ended == Ended::Whole && !self.missing.is_empty() {
            return Err(format!("a whole operation without {}", Ranges(&self.missing)));
        }
        let mut free = 0;
        for (number, range) in self.missing.iter().enumerate() {
            if range.is_empty() || range.end > self.bytes || range.start < free {
                let (range, bytes) = (Ranges(&self.missing[number..=number]), self.bytes);
                return Err(format!("range {range} of {bytes} bytes: empty, not ascending, or beyond the end"));
            }
            // The next one begins after a byte that is not missing.
            free = range.end.saturating_add(1);
        }
        Ok(())
    }
}

/// As in a line.
struct Ranges<'a>(&'a [Range<u64>]);

impl fmt::Display for Ranges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, range) in self.0.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{}-{}", range.start, range.end)?;
        }
        if self.0.is_empty() { f.write_str("-") } else { Ok(()) }
    }
}

impl fmt::Display for RankLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = match self.ended {
            Ended::Whole => "whole",
            Ended::Quiet => "quiet",
            Ended::Deadline => "deadline",
        };
        write!(
            f,
            "{}/{}/{}/{ended}/{}",
            self.started.as_nanos(),
            self.elapsed.as_nanos(),
            self.bytes,
            Ranges(&self.missing)
        )
    }
}

fn number(text: Option<&str>, what: &str) -> Result<u64, String> {
    let text = text.unwrap_or_default();
    text.parse().map_err(|_| format!("expected {what}, got \"{text}\""))
}

impl FromStr for RankLoss {
    type Err = String;

    fn from_str(text: &str) -> Result<RankLoss, String> {
        let mut parts = text.splitn(5, '/');
        let started = Duration::from_nanos(number(parts.next(), "nanoseconds until a rank began")?);
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
        for range in ranges.split(',').filter(|_| ranges != "-") {
            let (start, end) = range.split_once('-').unwrap_or((range, ""));
            if missing.len() == RANGES_MAX {
                return Err(format!("more than {RANGES_MAX} ranges of a rank"));
            }
            missing.push(number(Some(start), "the start of a range")?..number(Some(end), "the end of a range")?);
        }
        let loss = RankLoss { started, elapsed, bytes, ended, missing };
        loss.check().map(|()| loss)
    }
}

impl FromStr for LossRecord {
    type Err = String;

    fn from_str(line: &str) -> Result<LossRecord, String> {
        let line = line.strip_suffix(" end").ok_or("it does not end with \"end\": it was cut off")?;
        let mut words = line.split(' ');
        let mut named = |name: &str| match words.next() {
            Some(word) if word == name => Ok(words.next().unwrap_or_default()),
            other => Err(format!("expected \"{name}\", got \"{}\"", other.unwrap_or_default())),
        };
        let mut counted = |name: &str| number(Some(named(name)?), name);
        let (step, operation, bytes) = (counted("step")?, counted("operation")?, counted("bytes")?);
        let deadline = Duration::from_nanos(counted("deadline_ns")?);
        let state = named("state")?;
        let is_state = state.len() == 16 && state.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let state = u64::from_str_radix(state, 16).ok().filter(|_| is_state);
        let state = state.ok_or("expected a state of 16 hexadecimal digits")?;
        if words.next() != Some("ranks") {
            return Err("expected \"ranks\"".to_owned());
        }
        let ranks = words.take(RANKS_MAX + 1).map(RankLoss::from_str).collect::<Result<_, _>>()?;
        let record = LossRecord { step, operation, bytes, deadline, state, ranks };
        record.check().map(|()| record)
    }
}

/// The records of a run, in order. A program that runs for long writes each record out as a line and keeps none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LossLog {
    /// The records.
    pub records: Vec<LossRecord>,
}

impl LossLog {
    /// Feeds the log's reports to a rule that was made as the run's, and compares every deadline and state with the
    /// run's.
    pub fn replay(&self, rule: &mut impl DeadlineRule) -> Result<(), LossLogError> {
        self.records.iter().try_for_each(|record| record.replay(rule))
    }

    /// The log as text. Fails as [`LossRecord::to_line`].
    pub fn to_text(&self) -> Result<String, LossLogError> {
        self.records.iter().map(|record| Ok(record.to_line()? + "\n")).collect()
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
