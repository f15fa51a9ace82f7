//! `longhaul sim scale` as users run it, with few nodes.

use std::process::{Command, Output};

use serde_json::Value;

fn scale(options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["sim", "scale"]).args(options).output().expect("the command starts")
}

#[track_caller]
fn report(options: &[&str]) -> Value {
    let output = scale(&[options, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    serde_json::from_str(&text).expect("one JSON object")
}

#[test]
fn the_report_has_the_documented_figures() {
    let report = report(&["--nodes", "50", "--queue-pairs", "3", "--messages", "2"]);
    assert_eq!((&report["schema"], &report["nodes"], &report["queue_pairs"]), (&1.into(), &50.into(), &150.into()));
    assert_eq!((&report["messages"], &report["failures"]), (&300.into(), &0.into()));
    for key in ["packets_per_second", "bytes_per_queue_pair", "seconds", "virtual_seconds", "events_per_second"] {
        assert!(report[key].as_f64().is_some_and(|figure| figure > 0.0), "{key} in {report}");
    }
    // More than a kilobyte or two for four of them on each device would be a queue that was allocated before its use.
    assert!(report["bytes_per_queue_pair"].as_f64().is_some_and(|bytes| bytes < 4096.0), "{report}");
}

#[test]
fn the_same_seed_gives_the_same_hash_in_another_process() {
    for topology in ["star", "clos", "fat-tree"] {
        let hash = |seed| {
            let options = ["--nodes", "20", "--topology", topology, "--seed", seed];
            report(&options)["trace_hash"].as_str().expect("a string").to_owned()
        };
        assert_eq!(hash("5"), hash("5"), "{topology}");
        assert_ne!(hash("5"), hash("6"), "{topology}");
    }
}

#[test]
fn contents_are_compared_when_asked_for() {
    let report = report(&["--nodes", "21", "--contents"]);
    assert_eq!((&report["contents_checked"], &report["failures"]), (&true.into(), &0.into()));
}

#[test]
fn people_get_a_table() {
    let output = scale(&["--nodes", "4"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for row in ["queue pairs", "bytes per queue pair", "packets/s", "trace hash", "failures"] {
        assert!(text.contains(row), "{row} in {text}");
    }
}

#[test]
fn more_contents_than_memory_are_refused() {
    let output = scale(&["--contents", "--messages", "1000"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--contents"), "{output:?}");
}
