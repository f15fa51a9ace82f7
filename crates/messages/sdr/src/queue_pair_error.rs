//! Why a queue pair cannot be made, connected or used.

use longhaul_verbs::{CompletionStatus, CreateError, ModifyError, PollError, PostError, QueryError, RegisterError};
use thiserror::Error;

use crate::control_path::ControlPathError;

/// Why a queue pair could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CreateQueuePairError {
    /// An attribute does not fit.
    #[error("{what}: expected {expected}")]
    Attribute {
        /// Which.
        what: &'static str,
        /// What it may be.
        expected: String,
    },
    /// The channels have no room for its completions.
    #[error("the context's channels have no room for {entries} more completions each; create it with more")]
    NoRoom {
        /// What is needed.
        entries: u32,
    },
    /// The device refused.
    #[error("the device refused to make a queue")]
    Create(#[from] CreateError),
    /// The device refused memory.
    #[error("the device refused the root key")]
    Register(#[from] RegisterError),
    /// Control messages have no path.
    #[error(transparent)]
    ControlPath(#[from] ControlPathError),
    /// The device does not report its capabilities.
    #[error("cannot query the capabilities of the device")]
    Query(#[from] QueryError),
    /// A queue pair cannot be initialized.
    #[error("cannot initialize an internal queue pair")]
    Modify(#[from] ModifyError),
}

/// Why two ends cannot be connected.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The ends were made differently.
    #[error("the ends do not fit: {what} is {ours} here and {theirs} at the peer; make both with the same")]
    Mismatch {
        /// What.
        what: &'static str,
        /// Here.
        ours: String,
        /// There.
        theirs: String,
    },
    /// `credit` needs a peer that grants it.
    #[error(
        "the peer grants no credit, so congestion control \"credit\" would never send to it; update the peer, or use \
         another one, such as wan"
    )]
    NoCredit,
    /// The device refused.
    #[error("cannot connect an internal queue pair")]
    Modify(#[from] ModifyError),
    /// Receives cannot be posted.
    #[error("cannot post receives")]
    Post(#[from] PostError),
    /// A queue pair is connected once.
    #[error("the queue pair is connected already")]
    AlreadyConnected,
}

/// Why a queue pair cannot go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum QueuePairError {
    /// It has no peer yet.
    #[error("the queue pair is not connected yet; connect it first")]
    NotConnected,
    /// An internal queue pair has failed.
    #[error("an internal queue pair has failed: {0}")]
    Failed(CompletionStatus),
    /// Completions cannot be polled.
    #[error("cannot poll completions")]
    Poll(#[from] PollError),
    /// The device refused a request.
    #[error("the device refused a request")]
    Post(#[from] PostError),
}
