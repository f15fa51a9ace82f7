//! `RUST_LOG`: what the libraries report goes to standard error, and standard output stays one line of JSON.

use std::process::{Command, Output};

fn compare(log: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["perf", "compare", "--loopback", "--seconds", "0.1", "--only", "sdr-sr", "--json"]);
    match log {
        Some(log) => command.env("RUST_LOG", log),
        None => command.env_remove("RUST_LOG"),
    };
    command.output().expect("the command starts")
}

/// Standard error of a command whose standard output is one line of JSON.
#[track_caller]
fn said(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    let _: serde_json::Value = serde_json::from_str(&text).expect("one JSON object");
    String::from_utf8(output.stderr).expect("UTF-8")
}

#[test]
fn events_are_shown_when_they_are_asked_for() {
    let said = said(compare(Some("longhaul=debug")));
    for event in ["INFO longhaul::endpoint: device opened", "INFO longhaul::path_check: connected"] {
        assert!(said.contains(event), "{event} in\n{said}");
    }
    assert!(said.contains("scheme=\"sr:nack\""), "{said}");
}

#[test]
fn without_being_asked_nothing_is_said_of_what_goes_well() {
    for log in [None, Some("")] {
        let said = said(compare(log));
        assert!(!said.contains("device opened") && !said.contains("connected"), "{said}");
    }
}

#[test]
fn a_filter_that_cannot_be_read_is_reported_and_ignored() {
    let said = said(compare(Some("longhaul=loud")));
    assert!(said.contains("RUST_LOG is ignored") && !said.contains("device opened"), "{said}");
}
