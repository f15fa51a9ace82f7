//! The two ends, as the coordinator sees them: child processes with a pipe each way.

use super::namespace::{Kind, Place};
use super::orders::{Answer, Contact, Order, Outcome};
use crate::child::Child;
use crate::error::PerfError;
use crate::message::kind_of;

/// One end.
pub(super) struct End {
    child: Child,
    pub(super) process: u32,
    pub(super) namespace: Kind,
}

impl End {
    /// Starts an end at its place and waits until it is there.
    pub(super) fn start(name: &'static str, command: &[&str], place: Place) -> Result<Self, PerfError> {
        let child = Child::start(name, &[command, &["--place", &place.to_string()]].concat())?;
        let mut end = End { child, process: 0, namespace: Kind::Host };
        match end.answer()? {
            Answer::Started { process, namespace } => {
                (end.process, end.namespace) = (process, namespace);
                Ok(end)
            }
            other => Err(end.unexpected("that it has started", &other)),
        }
    }

    pub(super) fn order(&mut self, order: &Order) -> Result<(), PerfError> {
        self.child.order(order)
    }

    fn answer(&mut self) -> Result<Answer, PerfError> {
        self.child.answer()
    }

    fn unexpected(&self, expected: &str, got: &Answer) -> PerfError {
        PerfError::Failed(format!(
            "the {} should have said {expected}, but said \"{}\"",
            self.child.name(),
            kind_of(got)
        ))
    }

    /// Gives an order that is just done.
    pub(super) fn have_done(&mut self, order: &Order) -> Result<(), PerfError> {
        self.order(order)?;
        match self.answer()? {
            Answer::Done => Ok(()),
            other => Err(self.unexpected("that it is done", &other)),
        }
    }

    /// Gives the order to prepare.
    pub(super) fn prepare(&mut self, order: &Order) -> Result<Contact, PerfError> {
        self.order(order)?;
        match self.answer()? {
            Answer::Contact(contact) => Ok(contact),
            other => Err(self.unexpected("a contact", &other)),
        }
    }

    /// Waits until the end says that it runs.
    pub(super) fn running(&mut self) -> Result<(), PerfError> {
        match self.answer()? {
            Answer::Running => Ok(()),
            other => Err(self.unexpected("that it runs", &other)),
        }
    }

    /// Waits for the result of a round.
    pub(super) fn outcome(&mut self) -> Result<Outcome, PerfError> {
        match self.answer()? {
            Answer::Outcome(outcome) => Ok(outcome),
            other => Err(self.unexpected("an outcome", &other)),
        }
    }
}
