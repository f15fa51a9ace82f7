//! Deadlines that learn: how long a group of ranks waits for an operation whose messages may stay incomplete.
//!
//! After each operation the ranks exchange a [`RankReport`] each: when it began, how long it took, how many bytes
//! arrived, how many did not, and how it ended. A rule makes the next operation's deadline from them. Every rank has
//! the same reports, and a rule uses only additions, multiplications, divisions and comparisons, which give the same
//! bits on every processor; so all ranks have the same deadline without agreeing on it.
//!
//! - [`LearnedDeadline`] holds a loss budget: the share of bytes that each rank may lose, the slowest too.
//! - [`PaperDeadline`] is the rule of the OptiNIC paper, for comparison. It follows the median duration, and so cuts
//!   half of all operations.
//!
//! [`LossLog`] records what every operation lost, by byte ranges. A run can be replayed from it: [`LossLog::replay`]
//! repeats the deadlines, and a program that sets the same ranges to zero computes the same numbers.
//!
//! Ranks whose reports differ have different deadlines from then on. [`DeadlineRule::digest`] is for that: it travels
//! with the next reports, and a rank whose digest is not the others' has missed something. What is missing here: a way
//! to hand a rule's state to a rank that joins. Until then a group that changes begins with new rules at all ranks, or
//! the joiner replays the loss log.
//!
//! Nothing here reads a clock or knows what carries the messages.
//!
//! ```
//! use std::time::Duration;
//! use longhaul_deadline::{DeadlineConfig, DeadlineRule, Ended, LearnedDeadline, RankReport};
//!
//! let config = DeadlineConfig { ranks: 2, target: 0.01, ..DeadlineConfig::default() };
//! let mut rule = LearnedDeadline::new(config, Duration::from_millis(10), 1 << 20)?;
//! let deadline = rule.deadline(1 << 20);
//! let (started, ended, half) = (Duration::ZERO, Ended::Whole, 1 << 19);
//! let elapsed = Duration::from_millis(9);
//! let whole = RankReport { started, elapsed, ended, delivered_bytes: 2 * half, undelivered_bytes: 0 };
//! let (elapsed, ended) = (deadline, Ended::Deadline);
//! let cut = RankReport { started, elapsed, ended, delivered_bytes: half, undelivered_bytes: half };
//! rule.observe(1 << 20, &[whole, cut])?;
//! // The second rank has lost more than its budget: the next deadline is later.
//! assert!(rule.deadline(1 << 20) > deadline);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod durations;
mod factors;
mod learned;
mod log;
mod needs;
mod paper;
mod report;
mod rule;
mod slow_ranks;
mod took;

pub use learned::{ConfigError, DeadlineConfig, LearnedDeadline, RANKS_MAX};
pub use log::{LossLog, LossLogError, LossRecord, RANGES_MAX, RankLoss};
pub use paper::PaperDeadline;
pub use report::{Ended, RankReport, ReportError};
pub use rule::DeadlineRule;
