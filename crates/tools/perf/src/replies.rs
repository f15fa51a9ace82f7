//! What a client does with the server's answers.

use std::time::Duration;

use crate::control::{Control, Reply};
use crate::error::PerfError;
use crate::message::kind_of;
use crate::report::ClientEvent;

/// How long to wait while the server measures with other clients.
const TURN_PATIENCE: Duration = Duration::from_secs(3600);
/// How long the server may take to create its queue pairs, or to report what it has seen.
const ANSWER_PATIENCE: Duration = Duration::from_secs(120);

/// The first answer, which comes when the server has time.
pub(crate) fn first_answer(control: &Control, tell: &mut dyn FnMut(ClientEvent<'_>)) -> Result<Reply, PerfError> {
    match answer(control)? {
        Reply::Waiting { .. } => {
            let minutes = TURN_PATIENCE.as_secs() / 60;
            tell(ClientEvent::Note(format!(
                "the server is measuring with another client; waiting up to {minutes} minutes for it to finish"
            )));
            match control.receive(TURN_PATIENCE)? {
                Reply::Refused { reason, .. } => Err(PerfError::Failed(format!("the server: {reason}"))),
                reply => Ok(reply),
            }
        }
        reply => Ok(reply),
    }
}

pub(crate) fn answer(control: &Control) -> Result<Reply, PerfError> {
    match control.receive(ANSWER_PATIENCE)? {
        Reply::Refused { reason, .. } => Err(PerfError::Failed(format!("the server: {reason}"))),
        reply => Ok(reply),
    }
}

pub(crate) fn unexpected(expected: &str, got: &Reply) -> PerfError {
    PerfError::Failed(format!(
        "the server should have said {expected}, but sent \"{}\": use the same release at both ends",
        kind_of(got)
    ))
}
