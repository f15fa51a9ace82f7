//! What `longhaul perf` costs a host after one of its ends has been killed: nothing.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

/// Killed with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn perf(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.arg("perf").args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn start(arguments: &[&str]) -> (Running, BufReader<ChildStderr>) {
    let mut child = perf(arguments).spawn().expect("the command starts");
    let log = BufReader::new(child.stderr.take().expect("it was asked for as a pipe"));
    (Running(child), log)
}

/// The next line of a log with this word in it.
fn line_with(log: &mut BufReader<ChildStderr>, word: &str) -> String {
    let mut line = String::new();
    while log.read_line(&mut line).expect("the log can be read") > 0 {
        if line.contains(word) {
            return line;
        }
        line.clear();
    }
    panic!("the log ended before \"{word}\"");
}

fn processor_time(process: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("the process is there");
    let times = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok());
    let nanos = times.filter_map(|times| times.split_whitespace().next()?.parse::<u64>().ok());
    Duration::from_nanos(nanos.sum())
}

fn entries(process: u32, folder: &str) -> usize {
    std::fs::read_dir(format!("/proc/{process}/{folder}")).expect("the process is there").count()
}

#[test]
fn a_server_whose_clients_were_killed_is_as_it_was() {
    let (server, mut log) = start(&["server", "-p", "0", "--address", "127.0.0.1"]);
    let line = line_with(&mut log, "TCP port ");
    let port = line.split("TCP port ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port").to_owned();
    let process = server.0.id();
    let mut left = Vec::new();
    for connection in ["RC", "UC", "UD"] {
        let test = if connection == "UD" { "send_bw" } else { "write_bw" };
        let (client, _client_log) = start(&["client", "127.0.0.1", "-p", &port, test, "-D", "60", "-c", connection]);
        line_with(&mut log, "over");
        std::thread::sleep(Duration::from_millis(300));
        // Kill -9, in the middle.
        drop(client);
        std::thread::sleep(Duration::from_millis(700));
        let before = processor_time(process);
        std::thread::sleep(Duration::from_millis(700));
        let ran = processor_time(process) - before;
        assert!(ran < Duration::from_millis(30), "{connection}: a server without clients ran for {ran:?} in 0.7 s");
        left.push((entries(process, "fd"), entries(process, "task")));
    }
    assert!(left.iter().all(|&one| one == left[0]), "descriptors and threads after each client: {left:?}");
}

/// With -e the server of a reliable test has nothing to do between two messages.
#[test]
fn a_server_that_sleeps_does_not_spin() {
    let (server, mut log) = start(&["server", "-p", "0", "--address", "127.0.0.1"]);
    let line = line_with(&mut log, "TCP port ");
    let port = line.split("TCP port ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port").to_owned();
    // Some twenty messages a second.
    let arguments = ["client", "127.0.0.1", "-p", &port, "send_bw", "-D", "60", "-e", "--rate_limit", "0.01"];
    let (_client, _client_log) = start(&arguments);
    line_with(&mut log, "over");
    std::thread::sleep(Duration::from_millis(500));
    let before = processor_time(server.0.id());
    std::thread::sleep(Duration::from_secs(1));
    let ran = processor_time(server.0.id()) - before;
    assert!(ran < Duration::from_millis(400), "a server that is to sleep ran for {ran:?} in 1 s");
}
