//! The end-to-end suite of reliability schemes: messages of many sizes over bad links, contents verified.
//!
//! A ground is two ends of a connection and the network between them: on virtual time ([`VirtualGround`]), or on real
//! time, over devices of any kind and through the library, as programs have it ([`LibraryGround`]). A [`Case`] is what
//! is sent over it; [`Suite`] is all of them: links, schemes and sizes. The same suite runs on every ground.
//!
//! ```text
//!   Suite: link × scheme × size ──▶ run_case ──▶ CaseSender   ─▶ Connection ═══ the ground ═══ Connection ─▶ CaseReceiver
//! ```
//!
//! Where the two ends are two processes (`crate::interop`), each has its half of a case, and its own [`LibraryEnd`].

mod end;
mod halves;
mod library;
mod suite;
mod twice;
mod virtual_time;

use longhaul_reliable::{Connection, MessageReport};
use longhaul_sdr::Memory;
use longhaul_time::{Duration, Instant};
use thiserror::Error;

use longhaul_runtime::with_sources;

pub use end::GroundOptions;
pub use halves::{CaseHalf, CaseReceiver, CaseSender};
pub use library::{
    LibraryEnd, LibraryGround, LibraryReceiver, LibrarySender, Operation, accept, endpoint_of, patient_options,
};
pub use suite::{Figures, Link, Suite, SuiteError, links, scheme_by_name, schemes};
pub use twice::Twice;
pub use virtual_time::VirtualGround;

/// Two connected ends: messages go from the first to the second.
pub trait Ground {
    /// The time.
    fn now(&self) -> Instant;

    /// The end that sends, and the memory it sends from.
    fn sender(&mut self) -> (&mut Connection, &Memory);

    /// The end that receives, and the memory it receives into.
    fn receiver(&mut self) -> (&mut Connection, &Memory);

    /// Let both ends do what is due, and time pass until something may have happened, but not beyond `limit`.
    fn step(&mut self, limit: Instant) -> Result<(), CaseError>;
}

/// Where cases can be run.
pub trait CaseRunner {
    /// Send the messages of a case, and look whether they arrive as they were sent.
    fn run_case(&mut self, case: &Case) -> Result<Outcome, CaseError>;
}

impl<G: Ground> CaseRunner for G {
    fn run_case(&mut self, case: &Case) -> Result<Outcome, CaseError> {
        run_case(self, case)
    }
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
    fn of_ground(error: impl std::error::Error) -> Self {
        CaseError::Ground(with_sources(&error))
    }
}

/// Send the messages of a case, and look whether they arrive as they were sent.
pub fn run_case(ground: &mut impl Ground, case: &Case) -> Result<Outcome, CaseError> {
    let limit = ground.now() + case.limit;
    let mut sending = CaseSender::new(case, ground.sender().1.len());
    let mut receiving = CaseReceiver::new(case, ground.receiver().1.len());
    loop {
        let now = ground.now();
        let (connection, memory) = ground.receiver();
        receiving.poll(connection, memory)?;
        let (connection, memory) = ground.sender();
        sending.poll(connection, memory, now)?;
        if sending.is_done() && receiving.is_done() {
            return Ok(Outcome { sent: sending.into_reports(), received: receiving.into_reports() });
        }
        if now >= limit {
            let done = sending.done_count().min(receiving.done_count());
            return Err(CaseError::Hung { done, messages: case.messages, limit: case.limit });
        }
        ground.step(limit)?;
    }
}
