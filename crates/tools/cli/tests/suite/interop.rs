//! `longhaul interop server` and `client` as users run them: two processes, each with a software RNIC on loopback.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Nothing in these tests takes nearly this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

fn interop(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.arg("interop").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A process of the test's own, ended with it.
struct Process {
    child: Option<Child>,
    log: BufReader<ChildStderr>,
}

impl Process {
    fn start(arguments: &[&str]) -> Process {
        let mut child = interop(arguments).spawn().expect("the command starts");
        let log = BufReader::new(child.stderr.take().expect("it was asked for as a pipe"));
        Process { child: Some(child), log }
    }

    /// The next line of its standard error with this word.
    fn line_with(&mut self, word: &str) -> String {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert_ne!(
                self.log.read_line(&mut line).expect("the log can be read"),
                0,
                "the log ended before \"{word}\""
            );
        }
        line
    }

    /// As `kill -9` does.
    fn kill(mut self) {
        let mut child = self.child.take().expect("it was not ended yet");
        child.kill().expect("it can be killed");
        child.wait().expect("it is a child");
    }

    fn finish(mut self) -> Output {
        let mut child = self.child.take().expect("it was not ended yet");
        let begin = Instant::now();
        while child.try_wait().expect("a child can be waited for").is_none() {
            if begin.elapsed() > PATIENCE {
                let _ = child.kill();
                panic!("still running after {PATIENCE:?}: {:?}", child.wait_with_output());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut output = child.wait_with_output().expect("its output can be read");
        self.log.read_to_end(&mut output.stderr).expect("the rest of its log can be read");
        output
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A server and the port at which it waits.
fn server(arguments: &[&str]) -> (Process, String) {
    let mut server = Process::start(&[&["server", "--port", "0", "--address", "127.0.0.1"], arguments].concat());
    let line = server.line_with("TCP port");
    let port = line.split("TCP port ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port").to_owned();
    (server, port)
}

fn client(port: &str, arguments: &[&str]) -> Output {
    Process::start(&[&["client", "127.0.0.1", "--port", port], arguments].concat()).finish()
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 1, "one line: {output:?}");
    let value: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(value["schema"], 1);
    value
}

const QUICK: [&str; 4] = ["--operations", "40", "--large-operations", "3"];

#[test]
fn every_operation_over_every_connection_type() {
    let (server, port) = server(&[]);
    for (connection, mtu, checks) in [("RC", "1024", 31), ("UC", "4096", 23), ("UD", "1024", 8), ("RC", "4096", 31)] {
        let output = client(&port, &[&["-c", connection, "-m", mtu, "--json"], &QUICK[..]].concat());
        assert!(output.status.success(), "{output:?}");
        let value = json(&output);
        assert_eq!(
            (&value["connection"], &value["passed"], &value["failed"]),
            (&connection.into(), &checks.into(), &0.into())
        );
        assert_eq!(value["mtu_bytes"].to_string(), mtu);
        for device in ["client_device", "server_device"] {
            assert!(value[device].as_str().is_some_and(|name| name.starts_with("softnic:127.0.0.1")), "{value}");
        }
        let names: Vec<_> =
            value["checks"].as_array().expect("checks").iter().filter_map(|one| one["name"].as_str()).collect();
        assert_eq!(names.len(), checks, "{names:?}");
        assert!(names.contains(&format!("{}/send/{mtu}", connection.to_ascii_lowercase()).as_str()), "{names:?}");
    }
    server.kill();
}

#[test]
fn people_get_a_line_for_each_check() {
    let (server, port) = server(&["--once", "--json"]);
    let output = client(
        &port,
        &[
            "--only",
            "write,fetch-and-add",
            "--sizes",
            "0,mtu+1",
            "-m",
            "256",
            "--operations",
            "7",
            "--large-operations",
            "0",
        ],
    );
    assert!(output.status.success(), "{output:?}");
    let expected = "passed rc/write/0 7 operations\npassed rc/write/257 7 operations\npassed rc/fetch-and-add/8 7 operations\n3 passed, 0 failed\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    let served = server.finish();
    assert!(served.status.success(), "{served:?}");
    assert_eq!((&json(&served)["passed"], &json(&served)["failed"]), (&3.into(), &0.into()));
}

#[test]
fn messages_with_reliability_schemes_in_both_directions() {
    let (server, port) = server(&["--once"]);
    let sizes = ["--message-sizes", "1,70000", "--messages", "4", "--impair", "loss=2%"];
    let output = client(&port, &[&["--scheme", "ec:mds:4,2", "--scheme", "twice", "--json"], &sizes[..]].concat());
    assert!(output.status.success(), "{output:?}");
    let value = json(&output);
    assert_eq!((&value["connection"], &value["passed"], &value["failed"]), (&"messages".into(), &8.into(), &0.into()));
    assert_eq!(value["checks"][3]["name"], "ec:mds:4,2/70000/from-server");
    assert!(server.finish().status.success());
}

#[test]
fn nothing_is_lost_and_nothing_comes_twice_on_a_bad_wire() {
    let bad = ["--impair", "loss=1%,reorder=1%,duplicate=2%,hold=500us"];
    let (server, port) = server(&[&["--once"], &bad[..]].concat());
    let output = client(&port, &[&["-u", "12", "--json"], &bad[..], &QUICK[..]].concat());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(json(&output)["passed"], 31);
    assert!(server.finish().status.success());
}

#[test]
fn what_is_lost_fails_the_check_at_both_ends() {
    let (server, port) = server(&["--once"]);
    let some =
        ["-c", "UC", "--only", "send-immediate", "--sizes", "100", "--operations", "200", "--large-operations", "0"];
    let output = client(&port, &[&some[..], &["--impair", "loss=10%"]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("failed uc/send-immediate/100 200 operations: at the server: receive"), "{text}");
    assert!(text.contains("of 200 arrived") && text.ends_with("0 passed, 1 failed\n"), "{text}");
    assert_eq!(server.finish().status.code(), Some(1));
}

#[test]
fn a_survivor_is_told_when_the_server_dies() {
    let (server, port) = server(&["--until-death"]);
    let arguments = ["client", "127.0.0.1", "--port", &port, "--until-death", "-u", "14", "--json"];
    let mut client = Process::start(&arguments);
    client.line_with("in progress");
    server.kill();
    let output = client.finish();
    assert!(output.status.success(), "{output:?}");
    let value = json(&output);
    assert_eq!((&value["passed"], &value["failure_status"]), (&true.into(), &"RetryExceededError".into()), "{value}");
    assert_eq!((&value["flushed_requests"], &value["flushed_receives"]), (&15.into(), &16.into()), "{value}");
    // Seven times 67 ms.
    assert!(value["time_to_failure_ms"].as_u64().is_some_and(|time| time > 300), "{value}");
}

#[test]
fn a_survivor_is_told_when_the_client_dies() {
    for from_server in [true, false] {
        let (mut server, port) = server(&["--until-death"]);
        let mut arguments = vec!["client", "127.0.0.1", "--port", &port, "--until-death", "-u", "14"];
        arguments.extend(from_server.then_some("--from-server"));
        let mut client = Process::start(&arguments);
        client.line_with("in progress");
        server.line_with("in progress");
        client.kill();
        let output = server.finish();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.ends_with("1 passed, 0 failed\n"), "{output:?}");
        // An end that only receives finds out by TCP; its receives are flushed all the same.
        let expected = if from_server { "then RetryExceededError" } else { "then no failure" };
        assert!(text.contains(expected) && text.contains("16 receives"), "{text}");
    }
}

#[test]
fn the_other_end_may_go_at_any_time() {
    let (server, port) = server(&[]);
    let arguments = ["client", "127.0.0.1", "--port", &port, "--operations", "1000000", "--sizes", "1"];
    let mut client = Process::start(&arguments);
    client.line_with("RC from");
    server.kill();
    let output = client.finish();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("the other end is gone"), "{output:?}");
}

#[test]
fn a_server_survives_its_clients() {
    let (mut server, port) = server(&[]);
    for (line, word) in [("GET / HTTP/1.1", "same release"), ("{\"Hello\":{\"version\":999}}", "version 999")] {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("the server listens");
        writeln!(stream, "{line}").expect("the server reads");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out can be set");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("the server answers");
        assert!(answer.contains("Refused") && answer.contains(word), "{answer}");
        server.line_with(word);
    }
    let arguments = ["client", "127.0.0.1", "--port", &port, "--operations", "1000000", "--sizes", "1"];
    let mut vanishing = Process::start(&arguments);
    vanishing.line_with("RC from");
    vanishing.kill();
    server.line_with("the other end is gone");
    let output = client(&port, &["--only", "send", "--sizes", "1", "--operations", "3", "--large-operations", "0"]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn what_is_missing_is_said() {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port is free");
    let output = client(&free.port().to_string(), &[]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("longhaul interop server"), "{output:?}");
    let output = client("1", &["-c", "UD", "--only", "read"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    // Said before anybody is connected to.
    let output = client(&free.port().to_string(), &["-d", "no-such-device0"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-device0"), "{output:?}");
}
