//! A `longhaul perf server` of the test's own, and clients of it.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// No client in these tests takes nearly this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn perf(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.arg("perf").args(arguments).stdin(Stdio::null());
    command
}

/// A server on a port of its own, ended with the test.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) port: String,
    pub(crate) log: BufReader<ChildStderr>,
}

impl Server {
    pub(crate) fn start(arguments: &[&str]) -> Server {
        let start = ["server", "-p", "0", "--address", "127.0.0.1"];
        let mut command = perf(&[&start, arguments].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the server starts");
        let mut log = BufReader::new(child.stderr.take().expect("it was asked for as a pipe"));
        let mut line = String::new();
        log.read_line(&mut line).expect("the server says where it waits");
        let port = line.split("TCP port ").nth(1).and_then(|rest| rest.split(' ').next());
        let port = port.unwrap_or_else(|| panic!("a port in {line}")).to_owned();
        Server { child, port, log }
    }

    pub(crate) fn client(&self, arguments: &[&str]) -> Output {
        finish(perf(&[&["client", "127.0.0.1", "-p", &self.port], arguments].concat()))
    }

    /// What the client printed as JSON; it must have succeeded.
    #[track_caller]
    pub(crate) fn measure(&self, arguments: &[&str]) -> Value {
        let output = self.client(&[arguments, &["--json"]].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text.lines().count(), 1, "one line: {output:?}");
        let value: Value = serde_json::from_str(&text).expect("one JSON object");
        assert_eq!(value["schema"], 1);
        // The result of a measurement that lost messages is there, and is a failure.
        let results = value["results"].as_array().into_iter().flatten();
        let lost = results.filter_map(|result| result["messages_lost"].as_u64()).sum::<u64>();
        assert_eq!(output.status.code(), Some(i32::from(lost > 0)), "{arguments:?}: {output:?}");
        assert_eq!(value["error"].as_str().is_some_and(|error| error.contains("were lost")), lost > 0, "{value}");
        value
    }

    /// Says one line to the server, as a client would, and takes its answer.
    pub(crate) fn say(&self, line: &str) -> String {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{}", self.port)).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
        writeln!(stream, "{line}").expect("the server reads");
        let mut answers = BufReader::new(stream).lines().map(|line| line.expect("the server answers"));
        // It may not have noticed yet that the previous client is gone.
        answers.find(|answer| !answer.contains("Waiting")).expect("the server answers")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command that must end in time.
pub(crate) fn finish(mut command: Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    finish_child(child)
}

pub(crate) fn finish_child(mut child: Child) -> Output {
    let begin = Instant::now();
    while child.try_wait().expect("a child can be waited for").is_none() {
        if begin.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("still running after {PATIENCE:?}: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("its output can be read")
}

pub(crate) fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("{name} is a number in {value}"))
}

/// Reads the log up to a line with this word.
pub(crate) fn wait_for(log: &mut impl std::io::BufRead, word: &str) {
    let mut line = String::new();
    while !line.contains(word) {
        line.clear();
        assert_ne!(log.read_line(&mut line).expect("the log can be read"), 0, "the log ended before \"{word}\"");
    }
}
