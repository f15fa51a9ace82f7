//! `longhaul perf` when UDP does not pass while TCP does: it says so and ends, instead of waiting.

use crate::perf_server;

use std::time::{Duration, Instant};

use perf_server::Server;
use serde_json::Value;

/// The command gives up after 10 s of silence; a busy machine may take longer to notice.
const LIMIT: Duration = Duration::from_secs(40);

fn client_that_gets_no_answer(arguments: &[&str]) {
    let server = Server::start(&[]);
    let begin = Instant::now();
    let output = server.client(&[arguments, &["--impair", "loss=100%", "--json"]].concat());
    assert!(begin.elapsed() < LIMIT, "{arguments:?}: {:?}", begin.elapsed());
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "{arguments:?}: one line: {text}");
    let value: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(value["schema"], 1, "{value}");
    let error = value["error"].as_str().unwrap_or_else(|| panic!("{arguments:?}: an error in {value}"));
    for words in ["127.0.0.1", "UDP port", "firewall or loss"] {
        assert!(error.contains(words), "{arguments:?}: {words}: {error}");
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(error), "{arguments:?}: also on standard error: {said}");
}

#[test]
fn every_test_ends_when_udp_does_not_pass() {
    // All at once: they mostly wait.
    std::thread::scope(|scope| {
        for arguments in [
            &["--scheme", "sr:nack"][..],
            &["write_lat", "--scheme", "ec:mds:4,2"],
            &["send_lat", "-c", "UD", "-e"],
            &["send_bw", "-c", "UD", "-e", "-n", "1000000"],
            &["write_bw", "-c", "UC", "-e", "-n", "1000000"],
        ] {
            scope.spawn(move || client_that_gets_no_answer(arguments));
        }
    });
}

#[test]
fn errors_are_json_too() {
    let server = Server::start(&[]);
    for (arguments, status, words) in [
        (&["send_bw", "--scheme", "sr:nack"][..], 2, "write_bw or write_lat"),
        (&["--scheme", "sr:nack", "--chunk", "4352"], 2, "multiple of 4096"),
        (&["--scheme", "sr:nack", "-s", "16777216", "-r", "4096"], 2, "at most 32 messages"),
    ] {
        let output = server.client(&[arguments, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
        let value: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let error = value["error"].as_str().expect("an error");
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
}
