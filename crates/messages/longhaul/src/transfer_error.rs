//! Why a message was not transferred.

use longhaul_reliable::{ConnectionError, MessageError};
use longhaul_runtime::{End, with_sources};
use longhaul_verbs::RegisterError;
use thiserror::Error;

/// Why a message was not written or received.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The other end has closed the connection, or its process or host has ended. For a receive that is the end of what
    /// comes.
    #[error("the peer has closed the connection")]
    PeerClosed,
    /// This end has.
    #[error("the connection was closed before the message was complete")]
    Closed,
    /// The connection has failed.
    #[error("the connection has failed: {0}")]
    Failed(String),
    /// The message cannot be taken.
    #[error("the message was not accepted")]
    Refused(#[from] ConnectionError),
    /// The message has failed.
    #[error("the message has failed")]
    Message(#[source] MessageError),
    /// The host has no memory for this many bytes.
    #[error("this host has no memory for a message of {0} bytes")]
    NoMemory(usize),
    /// The device takes no memory.
    #[error("the device did not register the memory")]
    Register(#[from] RegisterError),
}

impl From<End> for TransferError {
    fn from(end: End) -> Self {
        match end {
            End::Closed => TransferError::Closed,
            End::PeerClosed => TransferError::PeerClosed,
            End::Failed(error) => TransferError::Failed(with_sources(&*error)),
        }
    }
}
