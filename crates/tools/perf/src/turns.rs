//! What a server does with a client's requests.

use std::time::{Duration, Instant};

use crate::control::{Control, Request};
use crate::error::PerfError;
use crate::message::kind_of;
use crate::stream::{Bound, Run};

/// How long a client may take to create its queue pairs, or between two runs.
pub(crate) const SETUP_PATIENCE: Duration = Duration::from_secs(120);
/// How much longer than it announced a client may take for a run.
const RUN_PATIENCE: Duration = Duration::from_secs(120);

/// When a client must have ended a run that it has given a time. One with a number of messages is as long as it is: the
/// client gives up when nothing comes back, and keepalive notices when the client's host is gone.
pub(crate) struct RunDeadline(Option<Instant>);

impl RunDeadline {
    pub(crate) fn new(run: &Run) -> Self {
        RunDeadline(match run.bound {
            Bound::Time(duration) => Instant::now().checked_add(duration.saturating_add(RUN_PATIENCE)),
            Bound::Messages(_) => None,
        })
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.0.is_some_and(|deadline| Instant::now() > deadline)
    }
}

/// The next run that the client wants; none when it is done.
pub(crate) fn next_run(control: &mut Control) -> Result<Option<Run>, PerfError> {
    match control.receive(SETUP_PATIENCE) {
        Ok(Request::Run(run)) => Ok(Some(run)),
        Ok(other) => Err(unexpected("a run", &other)),
        Err(_) if control.is_gone() => Ok(None),
        Err(stop) => Err(stop),
    }
}

pub(crate) fn unexpected(expected: &str, got: &Request) -> PerfError {
    PerfError::Failed(format!(
        "the client should have sent {expected}, but sent \"{}\": use the same release at both ends",
        kind_of(got)
    ))
}
