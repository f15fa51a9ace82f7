//! What the messages of a measurement are.

use longhaul_verbs::Access;
use serde::{Deserialize, Serialize};

/// What the messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Into the peer's memory.
    Write,
    /// Into the peer's receives.
    Send,
    /// Out of the peer's memory.
    Read,
    /// Eight bytes of the peer's memory are replaced if they are what the requester believes.
    CompareAndSwap,
    /// Something is added to eight bytes of the peer's memory.
    FetchAndAdd,
}

impl Operation {
    /// In JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Write => "write",
            Operation::Send => "send",
            Operation::Read => "read",
            Operation::CompareAndSwap => "compare_and_swap",
            Operation::FetchAndAdd => "fetch_and_add",
        }
    }

    /// Whether the peer's device answers with contents, while its program does nothing. Only RC has such operations.
    pub const fn is_answered(self) -> bool {
        matches!(self, Operation::Read | Operation::CompareAndSwap | Operation::FetchAndAdd)
    }

    /// Whether it is an atomic.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Operation::CompareAndSwap | Operation::FetchAndAdd)
    }

    /// What the peer must be allowed to do.
    pub const fn remote_access(self) -> Access {
        match self {
            Operation::Write => Access::REMOTE_WRITE,
            Operation::Send => Access::empty(),
            Operation::Read => Access::REMOTE_READ,
            Operation::CompareAndSwap | Operation::FetchAndAdd => Access::REMOTE_ATOMIC,
        }
    }
}
