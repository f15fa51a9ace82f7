//! Why a measurement has no result.

use std::error::Error;
use std::fmt;

/// What lies below an error.
type Source = Box<dyn Error + Send + Sync>;

/// Why a measurement has no result. `longhaul::with_sources` shows it in one line with all its causes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// What was asked for cannot be measured.
    #[error("{0}")]
    Request(String),
    /// Something is missing on this host.
    #[error("{0}")]
    Missing(String),
    /// The same, with its cause.
    #[error("{doing}")]
    MissingFor {
        /// What needs it.
        doing: String,
        /// What the system says.
        source: Source,
    },
    /// It was tried and failed.
    #[error("{0}")]
    Failed(String),
    /// The same, with its cause.
    #[error("{doing}")]
    FailedAt {
        /// What was tried.
        doing: String,
        /// What went wrong.
        source: Source,
    },
}

impl PerfError {
    /// Something went wrong while `doing`.
    pub(crate) fn failed(doing: impl fmt::Display, error: impl Into<Source>) -> Self {
        PerfError::FailedAt { doing: doing.to_string(), source: error.into() }
    }

    /// The TCP connection has ended before the work has.
    pub(crate) fn peer_gone() -> Self {
        let text =
            "the other end is gone: its program has ended, or its host cannot be reached; what it printed may say why";
        PerfError::Failed(text.to_owned())
    }

    /// This host lacks something, found out while `doing`.
    pub(crate) fn missing(doing: impl fmt::Display, error: impl Into<Source>) -> Self {
        PerfError::MissingFor { doing: doing.to_string(), source: error.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_all_its_causes() {
        let error = PerfError::failed("cannot send", std::io::Error::other("no room"));
        assert_eq!(longhaul::with_sources(&error), "cannot send: no room");
        assert_eq!(longhaul::with_sources(&PerfError::missing("cannot open", "it is late")), "cannot open: it is late");
    }
}
