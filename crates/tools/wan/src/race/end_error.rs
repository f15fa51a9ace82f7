//! Why an end of the race has failed.

use std::error::Error;

use thiserror::Error;

/// Why an end has failed.
#[derive(Debug, Error)]
pub(super) enum EndError {
    /// Something did not work.
    #[error("cannot {doing}")]
    Failed { doing: &'static str, source: Box<dyn Error + Send + Sync> },
    /// This build or this host does not have it.
    #[error("{0}")]
    Missing(String),
    /// A bug.
    #[error("a thread of this end panicked: {0}")]
    Panicked(String),
    /// An order at a time when it makes no sense.
    #[error("an end was ordered to run before it was prepared")]
    Unprepared,
}

impl EndError {
    /// Something failed while `doing`.
    pub(super) fn failed<E: Into<Box<dyn Error + Send + Sync>>>(doing: &'static str) -> impl Fn(E) -> EndError {
        move |error| EndError::Failed { doing, source: error.into() }
    }
}
