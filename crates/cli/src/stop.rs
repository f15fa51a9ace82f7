//! Why a command ended without a result.

use std::fmt;
use std::process::ExitCode;

use crate::exit;

/// The status that a command exits with; why it has no result is said on standard error.
pub(crate) fn exit_code(outcome: Result<(), Stop>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => {
            eprintln!("{stop}");
            ExitCode::from(stop.exit_status())
        }
    }
}

/// Why a command ended without a result, and with which exit status.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The arguments fit nothing.
    Usage(String),
    /// Something is missing on this host.
    Missing(String),
    /// It was tried and failed.
    Failed(String),
}

impl Stop {
    /// The status that the command exits with.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Stop::Usage(_) => exit::USAGE,
            Stop::Missing(_) => exit::MISSING,
            Stop::Failed(_) => exit::FAILED,
        }
    }

    /// Something went wrong while `doing`.
    pub(crate) fn failed(doing: impl fmt::Display, error: impl fmt::Display) -> Stop {
        Stop::Failed(format!("{doing}: {error}"))
    }

    /// This host lacks something, found out while `doing`.
    pub(crate) fn missing(doing: impl fmt::Display, error: impl fmt::Display) -> Stop {
        Stop::Missing(format!("{doing}: {error}"))
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Usage(text) | Stop::Missing(text) | Stop::Failed(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Stop {}
