//! A process of this program that is one end of the race, as the race sees it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child as Process, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use longhaul_link::namespaces::{Namespaces, Side};
use serde::de::DeserializeOwned;

use super::orders::Order;
use super::report::RaceError;

/// What the libraries say.
const LOG_VARIABLE: &str = "RUST_LOG";

/// It is ended when this is dropped, by its id.
pub(super) struct Child {
    name: String,
    process: Process,
    orders: ChildStdin,
    answers: Receiver<String>,
}

/// What an end answers: its result, or whether something is missing on this host and what went wrong.
type Answer<T> = Result<T, (bool, String)>;

impl Child {
    /// Starts this program with other arguments, on one side of the link.
    pub(super) fn start(
        namespaces: &Namespaces,
        side: Side,
        name: &str,
        arguments: &[&str],
    ) -> Result<Self, RaceError> {
        let program = std::env::current_exe().map_err(RaceError::Start)?;
        // That packets of an MTU of 1500 are short is no surprise to who asked for it.
        let log = std::env::var(LOG_VARIABLE).unwrap_or_else(|_| "error".to_owned());
        let spawned = namespaces.within(side, || {
            Command::new(program)
                .args(arguments)
                .env(LOG_VARIABLE, log)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
        })?;
        let mut process = spawned.map_err(RaceError::Start)?;
        let (Some(orders), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            unreachable!("both were asked for as pipes");
        };
        let (sender, answers) = mpsc::channel();
        // Ends with the process, whose output it reads.
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Child { name: name.to_owned(), process, orders, answers })
    }

    pub(super) fn order(&mut self, order: &Order) -> Result<(), RaceError> {
        let line = serde_json::to_string(order).unwrap_or_default();
        let sent = writeln!(self.orders, "{line}");
        sent.map_err(|error| RaceError::End { end: self.name.clone(), why: format!("it has ended early: {error}") })
    }

    /// Waits for the next answer, but not for longer than this.
    pub(super) fn answer<T: DeserializeOwned>(&mut self, patience: Duration) -> Result<T, RaceError> {
        let end = || self.name.clone();
        let line = self.answers.recv_timeout(patience).map_err(|error| match error {
            mpsc::RecvTimeoutError::Timeout => RaceError::OutOfTime { end: end(), patience },
            mpsc::RecvTimeoutError::Disconnected => RaceError::End { end: end(), why: "it has ended early".to_owned() },
        })?;
        match serde_json::from_str::<Answer<T>>(&line) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err((true, why))) => Err(RaceError::Missing(why)),
            Ok(Err((false, why))) => Err(RaceError::End { end: end(), why }),
            Err(error) => Err(RaceError::End { end: end(), why: format!("it answered {line}: {error}") }),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It has nothing to save, and may be waiting for a peer that has gone.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
