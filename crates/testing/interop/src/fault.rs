//! What can go wrong: a check can fail, and the session that checks are made in can break.

use longhaul_runtime::with_sources;

/// Why a session ended before all was checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InteropError {
    /// The TCP connection is closed: the other end has died, or has given up.
    #[error("the other end is gone: it has closed the TCP connection while {during}")]
    Gone {
        /// What this end was doing.
        during: &'static str,
    },
    /// It says nothing.
    #[error("the other end has said nothing for {seconds} s while {during}; it hangs, or the network is cut")]
    Silent {
        /// How long.
        seconds: u64,
        /// What this end was doing.
        during: &'static str,
    },
    /// The TCP connection failed.
    #[error("cannot {doing} the TCP connection")]
    Tcp {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It speaks another language.
    #[error(
        "expected version {expected} of the exchange of `longhaul interop`, got {got}: use the same release at both ends"
    )]
    Version {
        /// Ours.
        expected: u32,
        /// Theirs.
        got: String,
    },
    /// Out of turn.
    #[error("expected {expected} from the other end, got {got}")]
    Unexpected {
        /// What was its turn to say.
        expected: &'static str,
        /// What it said.
        got: String,
    },
    /// The other end cannot or will not.
    #[error("the other end refuses: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// A device cannot do what is asked for.
    #[error("{0}")]
    Impossible(String),
    /// The device failed before anything was checked.
    #[error("cannot {doing}")]
    Device {
        /// What was tried.
        doing: &'static str,
        /// What the device said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl InteropError {
    pub(crate) fn device(
        doing: &'static str,
    ) -> impl Fn(Box<dyn std::error::Error + Send + Sync>) -> InteropError + Copy {
        move |source| InteropError::Device { doing, source }
    }
}

/// What ends a check before its time.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Something is not as it must be.
    Check(String),
    /// Nothing more can be checked.
    Session(InteropError),
}

impl From<InteropError> for Fault {
    fn from(error: InteropError) -> Fault {
        Fault::Session(error)
    }
}

impl From<String> for Fault {
    fn from(message: String) -> Fault {
        Fault::Check(message)
    }
}

/// What a device refuses is a failed check.
pub(crate) fn refused_by_device<E: std::error::Error>(doing: &str) -> impl Fn(E) -> Fault {
    move |error| Fault::Check(format!("cannot {doing}: {}", with_sources(&error)))
}
