//! A process of this program that another one has started: orders on its standard input, answers on its standard
//! output, a line of JSON each. It ends when its standard input closes, so also when the process that started it is
//! killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};

use longhaul::with_sources;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::PerfError;

/// The process, as the one that has started it sees it.
pub(crate) struct Child {
    name: &'static str,
    process: Process,
    /// `None` once it has been ordered to end.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Child {
    /// Start this program with other arguments. People know the process by its name.
    pub(crate) fn start(name: &'static str, arguments: &[&str]) -> Result<Self, PerfError> {
        let program = std::env::current_exe().map_err(|error| PerfError::missing("cannot find this program", error))?;
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| PerfError::missing("cannot start an end", error))?;
        let (Some(orders), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            unreachable!("both were asked for as pipes");
        };
        Ok(Child { name, process, orders: Some(orders), answers: BufReader::new(answers) })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn order(&mut self, order: &impl Serialize) -> Result<(), PerfError> {
        let mut line =
            serde_json::to_string(order).map_err(|error| PerfError::failed("cannot write an order", error))?;
        line.push('\n');
        let Some(orders) = &mut self.orders else {
            return Err(PerfError::Failed(format!("the {} has already been ordered to end", self.name)));
        };
        orders
            .write_all(line.as_bytes())
            .map_err(|error| PerfError::failed(format!("the {} is gone", self.name), error))
    }

    /// Wait for the next answer. What went wrong there is an error here.
    pub(crate) fn answer<Answer: DeserializeOwned>(&mut self) -> Result<Answer, PerfError> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => {
                let status = self.process.wait().map(|status| status.to_string());
                Err(PerfError::Failed(format!("the {} ended early: {}", self.name, status.unwrap_or_default())))
            }
            Ok(_) => match serde_json::from_str::<Result<Answer, String>>(&line) {
                Ok(answer) => answer.map_err(|why| PerfError::Failed(format!("the {}: {why}", self.name))),
                Err(error) => Err(PerfError::failed(format!("the {} answered {}", self.name, line.trim()), error)),
            },
            Err(error) => Err(PerfError::failed(format!("cannot read what the {} answers", self.name), error)),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.orders = None; // The end of its input ends it.
        // It is gone when we return, and what it had with it.
        let _ = self.process.wait();
    }
}

/// In the child: say how an order went.
pub(crate) fn answer<Answer: Serialize>(answer: &Result<Answer, PerfError>) {
    let line = serde_json::to_string(&answer.as_ref().map_err(|error| with_sources(error)));
    let line = line.unwrap_or_else(|error| format!("{{\"Err\":\"{error}\"}}"));
    // If nobody reads the answer, standard input closes too, which ends this process.
    let _ = writeln!(std::io::stdout(), "{line}");
}
