//! Why a command ended without a result.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use longhaul::with_sources;
use longhaul_perf::PerfError;
use serde_json::Value;

use crate::exit;

/// What the system says (EMFILE) when a process may open nothing more.
const NO_DESCRIPTORS: &str = "(os error 24)";

/// The status that a command exits with. The reason for having no result goes to standard error; with `--json` it is
/// also a line of JSON on standard output, where the result would have been.
pub(crate) fn exit_code(outcome: Result<(), Stop>, json: bool) -> ExitCode {
    match outcome.map_err(Stop::with_remedy) {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => {
            if json && !matches!(stop, Stop::Shown(_)) {
                println!("{}", serde_json::json!({ "schema": 1, "error": stop.to_string() }));
            }
            eprintln!("{stop}");
            ExitCode::from(stop.exit_status())
        }
    }
}

/// Prints a result, as a line of JSON or as a table. What is wrong with it is the `error` of the former.
pub(crate) fn tell(
    json: bool,
    value: impl FnOnce() -> Value,
    table: impl FnOnce() -> String,
    wrong: Option<Stop>,
) -> Result<(), Stop> {
    match json {
        true => println!("{}", with_error(value(), wrong.as_ref())),
        false => print!("{}", table()),
    }
    wrong.map_or(Ok(()), |stop| Err(stop.shown()))
}

/// A result that shows an error.
pub(crate) fn with_error(mut result: Value, error: Option<&Stop>) -> Value {
    if let Some(error) = error {
        result["error"] = error.to_string().into();
    }
    result
}

/// Why a command ended without a result, and with which exit status.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The arguments are wrong.
    Usage(String),
    /// Something is missing on this host.
    Missing(String),
    /// It was tried and failed.
    Failed(String),
    /// There is a result, which was printed and shows this failure: with `--json`, as its `error`.
    Shown(Box<Stop>),
}

impl Stop {
    /// Why a command that checks its own figures failed, if some check did.
    pub(crate) fn checks_failed(failed: usize, checks: usize) -> Option<Stop> {
        (failed > 0).then(|| Stop::Failed(format!("{failed} of {checks} checks failed")))
    }

    /// The status that the command exits with.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Stop::Usage(_) => exit::USAGE,
            Stop::Missing(_) => exit::MISSING,
            Stop::Failed(_) => exit::FAILED,
            Stop::Shown(stop) => stop.exit_status(),
        }
    }

    /// Whatever was being done: where the host has no more descriptors, it is the host that lacks something, and there
    /// is a remedy.
    fn with_remedy(self) -> Stop {
        match self {
            Stop::Failed(text) | Stop::Missing(text) if text.contains(NO_DESCRIPTORS) => Stop::Missing(format!(
                "{text}; the process has no file descriptors left: allow it more (`ulimit -n`), or use fewer connections"
            )),
            Stop::Shown(stop) => stop.with_remedy().shown(),
            stop => stop,
        }
    }

    /// The same, of a result that was printed and shows it.
    pub(crate) fn shown(self) -> Stop {
        Stop::Shown(Box::new(self))
    }

    /// Something went wrong while `doing`: the error with all its causes, or a text.
    pub(crate) fn failed(doing: impl fmt::Display, error: impl Into<Box<dyn Error>>) -> Stop {
        Stop::Failed(format!("{doing}: {}", with_sources(&*error.into())))
    }

    /// This host lacks something, found out while `doing`.
    pub(crate) fn missing(doing: impl fmt::Display, error: impl Into<Box<dyn Error>>) -> Stop {
        Stop::Missing(format!("{doing}: {}", with_sources(&*error.into())))
    }
}

impl Stop {
    /// A measurement that has no result.
    pub(crate) fn from_perf(error: &PerfError) -> Stop {
        let text = with_sources(error);
        match error {
            PerfError::Request(_) => Stop::Usage(text),
            PerfError::Missing(_) | PerfError::MissingFor { .. } => Stop::Missing(text),
            _ => Stop::Failed(text),
        }
    }
}

impl From<PerfError> for Stop {
    fn from(error: PerfError) -> Stop {
        Stop::from_perf(&error)
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Usage(text) | Stop::Missing(text) | Stop::Failed(text) => f.write_str(text),
            Stop::Shown(stop) => stop.fmt(f),
        }
    }
}

impl Error for Stop {}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the queue is full")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn an_error_shows_all_its_causes() {
        let cause = || Outer(std::io::Error::other("no room"));
        assert_eq!(Stop::failed("cannot send", cause()).to_string(), "cannot send: the queue is full: no room");
        assert_eq!(Stop::missing("cannot open", cause()).to_string(), "cannot open: the queue is full: no room");
        let stop = Stop::failed("cannot open", std::io::Error::from_raw_os_error(24)).with_remedy();
        assert!(stop.to_string().contains("Too many open files") && stop.to_string().contains("ulimit -n"), "{stop}");
        assert_eq!(stop.exit_status(), exit::MISSING);
        assert_eq!(Stop::failed("cannot send", "it is late").to_string(), "cannot send: it is late");
    }
}
