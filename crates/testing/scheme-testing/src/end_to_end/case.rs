//! What is sent over a ground, and the outcome.

use longhaul_reliable::MessageReport;
use longhaul_runtime::with_sources;
use longhaul_time::Duration;
use thiserror::Error;

/// Where cases can be run.
pub trait CaseRunner {
    /// Send the messages of a case, and look whether they arrive as they were sent.
    fn run_case(&mut self, case: &Case) -> Result<Outcome, CaseError>;
}

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Messages.
    pub messages: usize,
    /// Bytes of each.
    pub message_bytes: usize,
    /// Messages in flight at a time, as far as there is memory for them.
    pub in_flight: usize,
    /// How much longer than its message a receive is.
    pub slack_bytes: usize,
    /// All of it must be done within this.
    pub limit: Duration,
}

impl Case {
    /// This many messages of this size, a few at a time.
    pub fn new(messages: usize, message_bytes: usize) -> Self {
        Case { messages, message_bytes, in_flight: 8, slack_bytes: 0, limit: Duration::from_secs(120) }
    }
}

/// The outcome.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Of each message, as its sender saw it.
    pub sent: Vec<MessageReport>,
    /// Of each message, as its receiver saw it.
    pub received: Vec<MessageReport>,
}

/// What went wrong.
#[derive(Debug, Error)]
pub enum CaseError {
    /// Nothing more happened.
    #[error("{done} of {messages} messages were done within {limit:?}")]
    Hung {
        /// Messages that were done.
        done: usize,
        /// All.
        messages: usize,
        /// The time they had.
        limit: Duration,
    },
    /// Other bytes arrived than were sent.
    #[error("message {message}: byte {place} is not what was sent")]
    Contents {
        /// Which.
        message: usize,
        /// The first that is wrong.
        place: usize,
    },
    /// Something is missing, or too much arrived.
    #[error("message {message}: {received} bytes of {sent} arrived, {missing} ranges are missing")]
    Incomplete {
        /// Which.
        message: usize,
        /// Its bytes.
        sent: usize,
        /// Bytes received.
        received: usize,
        /// Ranges.
        missing: usize,
    },
    /// A message has failed, or could not be posted.
    #[error("message {message}: {why}")]
    Failed {
        /// Which.
        message: usize,
        /// What was said.
        why: String,
    },
    /// The ground gave way.
    #[error("{0}")]
    Ground(String),
}

impl CaseError {
    /// What the ground is made from has failed.
    pub(super) fn of_ground(error: impl std::error::Error) -> Self {
        CaseError::Ground(with_sources(&error))
    }
}
