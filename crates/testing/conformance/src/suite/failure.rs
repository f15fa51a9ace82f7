//! What a test says when the device did not do what the specification says: what was expected, and what was found.

use std::error::Error;
use std::fmt;

use longhaul_verbs::{
    CompletionStatus, CreateError, DestroyError, EventError, ModifyError, MulticastError, PollError, PostError,
    QueryError, RegisterError, WorkCompletion,
};

/// Why a test did not pass.
#[derive(Debug)]
pub struct Failure {
    pub(super) kind: FailureKind,
    pub(super) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// The device did something else than it should.
    Wrong,
    /// The test makes no sense here, for a reason that only shows at run time.
    NotApplicable,
}

/// What a test, or a step of one, comes to.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// The device did something else than it should.
    pub fn new(message: impl Into<String>) -> Self {
        Failure { kind: FailureKind::Wrong, message: message.into() }
    }

    /// The usual form: what was expected of `what`, and what came.
    pub fn expected(what: &str, expected: impl fmt::Debug, got: impl fmt::Debug) -> Self {
        Failure::new(format!("{what}: expected {expected:?}, got {got:?}"))
    }

    /// Not a failure: the test needs something that this environment does not have. It counts as skipped.
    pub fn not_applicable(missing: impl Into<String>) -> Self {
        Failure { kind: FailureKind::NotApplicable, message: missing.into() }
    }

    /// The same with the circumstances in front.
    #[must_use]
    pub fn context(self, circumstances: impl fmt::Display) -> Self {
        Failure { message: format!("{circumstances}: {}", self.message), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A call that had to work did not; the error says why, with its sources.
fn refused(call: &str, error: &dyn Error) -> Failure {
    let mut message = format!("expected success of {call}, got: {error}");
    let mut source = error.source();
    while let Some(inner) = source {
        let text = inner.to_string();
        if !message.ends_with(&text) {
            message.push_str(": ");
            message.push_str(&text);
        }
        source = inner.source();
    }
    Failure::new(message)
}

macro_rules! from_errors {
    ($($error:ty => $call:literal),* $(,)?) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                refused($call, &error)
            }
        })*
    };
}

from_errors! {
    CreateError => "creating an object",
    RegisterError => "registering memory",
    DestroyError => "destroying an object",
    QueryError => "a query",
    ModifyError => "modifying a queue pair",
    PostError => "posting",
    PollError => "polling a completion queue",
    EventError => "reading an event",
    MulticastError => "joining or leaving a group",
}

/// Fails unless the two are equal.
pub(super) fn equal<T: PartialEq + fmt::Debug>(what: &str, expected: T, got: T) -> Outcome {
    if expected == got { Ok(()) } else { Err(Failure::expected(what, expected, got)) }
}

/// Fails with the message unless the condition holds.
pub(super) fn ensure(condition: bool, message: impl FnOnce() -> String) -> Outcome {
    if condition { Ok(()) } else { Err(Failure::new(message())) }
}

/// Fails unless the call was refused; the error is returned for a closer look.
pub(super) fn refusal<T, E>(what: &str, result: Result<T, E>) -> Outcome<E> {
    match result {
        Ok(_) => Err(Failure::new(format!("{what}: expected a refusal, got success"))),
        Err(error) => Ok(error),
    }
}

/// Fails unless this completion is that of request `id`, with this status.
pub(super) fn status(what: &str, completion: &WorkCompletion, id: u64, expected: CompletionStatus) -> Outcome {
    status_among(what, completion, id, &[expected])
}

/// Fails unless this completion is that of request `id`, with one of these statuses.
pub(super) fn status_among(what: &str, completion: &WorkCompletion, id: u64, expected: &[CompletionStatus]) -> Outcome {
    if completion.id == id && expected.contains(&completion.status) {
        return Ok(());
    }
    let wanted: Vec<String> = expected.iter().map(|status| format!("{status:?}")).collect();
    Err(Failure::new(format!(
        "{what}: expected a completion of request {id} with {}, got one of request {} with {:?}",
        wanted.join(" or "),
        completion.id,
        completion.status
    )))
}
