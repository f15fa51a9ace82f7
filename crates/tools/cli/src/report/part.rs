//! The parts of a report: commands of this program, each in a process of its own and within a time.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use longhaul::with_sources;
use serde_json::{Value, json};

use super::loopback::Loopback;

/// How often to look whether a process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a server may take to listen.
const SERVER_PATIENCE: Duration = Duration::from_secs(20);
/// The words before a server's port.
const WAITING: &str = "waiting on TCP port ";

/// What became of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Passed,
    Failed,
    /// The time was over before it was done.
    TimedOut,
    /// The device does not have it.
    Skipped,
}

impl Status {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Status::Passed => "passed",
            Status::Failed => "failed",
            Status::TimedOut => "timed out",
            Status::Skipped => "skipped",
        }
    }

    pub(super) const fn is_bad(self) -> bool {
        matches!(self, Status::Failed | Status::TimedOut)
    }
}

/// One part of the report.
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) status: Status,
    pub(super) seconds: f64,
    /// The JSON that the command printed.
    pub(super) result: Option<Value>,
    /// Why there is none, or what is wrong with it.
    pub(super) error: Option<String>,
}

impl Part {
    pub(super) fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "status": self.status.name(),
            "seconds": (self.seconds * 10.0).round() / 10.0,
            "error": self.error,
            "result": self.result,
        })
    }
}

/// What a part takes to run.
pub(super) struct Order {
    pub(super) name: &'static str,
    work: Work,
}

enum Work {
    /// A command that prints one line of JSON.
    Command(Vec<String>),
    /// A server, and a client that prints it; the client's host is the address and the server's port.
    Measurement {
        server: Vec<String>,
        address: String,
        client: Vec<String>,
    },
    Skipped(String),
}

impl Order {
    pub(super) fn command(name: &'static str, arguments: &[&str]) -> Order {
        Order { name, work: Work::Command(owned(arguments)) }
    }

    pub(super) fn skipped(name: &'static str, why: &str) -> Order {
        Order { name, work: Work::Skipped(why.to_owned()) }
    }

    /// A client of `perf` with these options, against a server on the same device.
    pub(super) fn measurement(name: &'static str, device: &str, loopback: &Loopback, options: &[&str]) -> Order {
        let work = match loopback {
            Loopback::None(why) => Work::Skipped(why.clone()),
            Loopback::At(address) => Work::Measurement {
                server: owned(&["perf", "server", "--once", "-p", "0", "-d", device]),
                address: if address.is_ipv6() { format!("[{address}]") } else { address.to_string() },
                client: [owned(options), owned(&["-d", device, "--json"])].concat(),
            },
        };
        Order { name, work }
    }

    /// Runs it, until the deadline at most.
    pub(super) fn run(&self, deadline: Instant) -> Part {
        let begin = Instant::now();
        let outcome = match &self.work {
            Work::Skipped(why) => Outcome::of(Status::Skipped, why),
            _ if begin >= deadline => Outcome::of(Status::TimedOut, "no time was left for it"),
            Work::Command(arguments) => run(arguments, deadline),
            Work::Measurement { server, address, client } => measure(server, address, client, deadline),
        };
        let Outcome { status, result, error } = outcome;
        Part { name: self.name, status, seconds: begin.elapsed().as_secs_f64(), result, error }
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

struct Outcome {
    status: Status,
    result: Option<Value>,
    error: Option<String>,
}

impl Outcome {
    fn of(status: Status, why: &str) -> Outcome {
        Outcome { status, result: None, error: Some(why.to_owned()) }
    }
}

/// A process that does not outlive its part.
struct Process(Child);

impl Process {
    fn start(arguments: &[String]) -> std::io::Result<Process> {
        let program = std::env::current_exe()?;
        let command = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        Ok(Process(command))
    }

    /// Its end; `None` if there is none before the deadline.
    fn wait(&mut self, deadline: Instant) -> std::io::Result<Option<ExitStatus>> {
        loop {
            match self.0.try_wait()? {
                Some(status) => return Ok(Some(status)),
                None if Instant::now() >= deadline => return Ok(None),
                None => std::thread::sleep(LOOK_EVERY),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Everything that a process writes there, when it has ended.
fn collect(stream: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, text) = sync_channel(1);
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    text
}

/// A command that prints one line of JSON.
fn run(arguments: &[String], deadline: Instant) -> Outcome {
    let failed = |error: std::io::Error| Outcome::of(Status::Failed, &with_sources(&error));
    let mut process = match Process::start(arguments) {
        Ok(process) => process,
        Err(error) => return failed(error),
    };
    let (output, errors) = (collect(process.0.stdout.take()), collect(process.0.stderr.take()));
    let ended = match process.wait(deadline) {
        Ok(ended) => ended,
        Err(error) => return failed(error),
    };
    drop(process);
    let output = output.recv().unwrap_or_default();
    let result: Option<Value> = output.lines().last().and_then(|line| serde_json::from_str(line).ok());
    let errors = errors.recv().unwrap_or_default();
    let last = errors.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned);
    let said = result.as_ref().and_then(|result| result["error"].as_str()).map(str::to_owned);
    match ended {
        None => Outcome { status: Status::TimedOut, result, error: Some("it did not finish in time".to_owned()) },
        Some(status) if status.success() && result.is_some() => Outcome { status: Status::Passed, result, error: None },
        Some(status) => {
            Outcome { status: Status::Failed, result, error: said.or(last).or_else(|| Some(status.to_string())) }
        }
    }
}

/// A client against a server of its own.
fn measure(server: &[String], address: &str, client: &[String], deadline: Instant) -> Outcome {
    let mut server = match Process::start(server) {
        Ok(server) => server,
        Err(error) => return Outcome::of(Status::Failed, &with_sources(&error)),
    };
    let (sender, lines) = sync_channel(64);
    let errors = server.0.stderr.take();
    std::thread::spawn(move || {
        let lines = errors.into_iter().flat_map(|errors| BufReader::new(errors).lines()).map_while(Result::ok);
        // Read to the end even if nobody listens, so that the server can write.
        lines.for_each(|line| drop(sender.try_send(line)));
    });
    let mut last = "the server did not listen in time".to_owned();
    let until = deadline.min(Instant::now() + SERVER_PATIENCE);
    let port = loop {
        let Ok(line) = lines.recv_timeout(until.saturating_duration_since(Instant::now())) else { break None };
        let port = line.strip_prefix(WAITING).and_then(|rest| rest.split(' ').next()?.parse::<u16>().ok());
        if port.is_some() {
            break port;
        }
        last = line;
    };
    let Some(port) = port else { return Outcome::of(Status::Failed, &format!("the server: {last}")) };
    let host = format!("{address}:{port}");
    run(&[owned(&["perf", "client", &host]), client.to_vec()].concat(), deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_run_says_why() {
        let skipped = Order::skipped("x", "it has none").run(Instant::now() + Duration::from_secs(1));
        assert_eq!((skipped.status, skipped.error.as_deref()), (Status::Skipped, Some("it has none")));
        let late = Order::command("x", &["devices"]).run(Instant::now());
        assert_eq!(late.status, Status::TimedOut);
        assert!(late.status.is_bad() && !skipped.status.is_bad());
    }
}
