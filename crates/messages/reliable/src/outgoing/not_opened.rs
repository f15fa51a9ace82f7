//! Errors of opening parts.

use std::sync::Arc;

use longhaul_sdr::{RegisterError, SendError};

use crate::ticket::MessageError;

/// Why the next part of a message cannot be opened.
pub(super) enum NotOpened {
    /// There is no memory for its parity.
    Parity(RegisterError),
    /// It cannot have a number, and not because none is free.
    Stream(SendError),
}

impl From<NotOpened> for MessageError {
    fn from(error: NotOpened) -> Self {
        match error {
            NotOpened::Parity(error) => MessageError::Parity(Arc::new(error)),
            NotOpened::Stream(error) => MessageError::Send(Arc::new(error)),
        }
    }
}
