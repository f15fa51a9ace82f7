//! The two ends, as the coordinator sees them: child processes with a pipe each way.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::namespace::{Kind, Place};
use super::orders::{Answer, Contact, Order, Outcome};
use crate::message::kind_of;
use crate::stop::Stop;

/// One end: a process of this program. It ends when its standard input does, so also when the coordinator is killed.
pub(super) struct End {
    name: &'static str,
    child: Child,
    /// `None` once it has been told to end.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    pub(super) process: u32,
    pub(super) namespace: Kind,
}

impl End {
    /// Starts an end at its place and waits until it is there.
    pub(super) fn start(name: &'static str, place: Place) -> Result<Self, Stop> {
        let program = std::env::current_exe().map_err(|error| Stop::missing("cannot find this program", error))?;
        let mut child = Command::new(program)
            .args(["perf", "end", "--place", &place.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Stop::missing("cannot start an end", error))?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked for as pipes");
        };
        let (orders, answers) = (Some(orders), BufReader::new(answers));
        let mut end = End { name, child, orders, answers, process: 0, namespace: Kind::Host };
        match end.answer()? {
            Answer::Started { process, namespace } => {
                (end.process, end.namespace) = (process, namespace);
                Ok(end)
            }
            other => Err(end.unexpected("that it has started", &other)),
        }
    }

    pub(super) fn order(&mut self, order: &Order) -> Result<(), Stop> {
        let mut line = serde_json::to_string(order).map_err(|error| Stop::failed("cannot write an order", error))?;
        line.push('\n');
        let Some(orders) = &mut self.orders else {
            return Err(Stop::Failed(format!("the {} has already been told to end", self.name)));
        };
        orders.write_all(line.as_bytes()).map_err(|error| Stop::failed(format!("the {} is gone", self.name), error))
    }

    fn answer(&mut self) -> Result<Answer, Stop> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        match read {
            Ok(0) => {
                let status = self.child.wait().map(|status| status.to_string());
                Err(Stop::Failed(format!("the {} ended early: {}", self.name, status.unwrap_or_default())))
            }
            Ok(_) => match serde_json::from_str(&line) {
                Ok(Answer::Failed(why)) => Err(Stop::Failed(format!("the {}: {why}", self.name))),
                Ok(answer) => Ok(answer),
                Err(error) => Err(Stop::failed(format!("the {} answered {}", self.name, line.trim()), error)),
            },
            Err(error) => Err(Stop::failed(format!("cannot read what the {} answers", self.name), error)),
        }
    }

    fn unexpected(&self, expected: &str, got: &Answer) -> Stop {
        Stop::Failed(format!("expected of the {} {expected}, got \"{}\"", self.name, kind_of(got)))
    }

    /// Gives an order that is just done.
    pub(super) fn have_done(&mut self, order: &Order) -> Result<(), Stop> {
        self.order(order)?;
        match self.answer()? {
            Answer::Done => Ok(()),
            other => Err(self.unexpected("that it is done", &other)),
        }
    }

    /// Gives the order to prepare.
    pub(super) fn prepare(&mut self, order: &Order) -> Result<Contact, Stop> {
        self.order(order)?;
        match self.answer()? {
            Answer::Contact(contact) => Ok(contact),
            other => Err(self.unexpected("a contact", &other)),
        }
    }

    /// Waits until the end says that it runs.
    pub(super) fn running(&mut self) -> Result<(), Stop> {
        match self.answer()? {
            Answer::Running => Ok(()),
            other => Err(self.unexpected("that it runs", &other)),
        }
    }

    /// Waits for what came of a round.
    pub(super) fn outcome(&mut self) -> Result<Outcome, Stop> {
        match self.answer()? {
            Answer::Outcome(outcome) => Ok(outcome),
            other => Err(self.unexpected("an outcome", &other)),
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.orders = None; // The end of its input ends it.
        // It is gone when we return: the namespaces with it.
        let _ = self.child.wait();
    }
}
