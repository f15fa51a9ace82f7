//! `longhaul sim completion` as users run it, with short messages.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn command(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["sim", "completion"]).args(options);
    command
}

fn completion(options: &[&str]) -> Output {
    command(options).output().expect("the command starts")
}

#[track_caller]
fn report(options: &[&str], status: i32) -> Value {
    let output = completion(&[options, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    let report: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(report["schema"], 1, "{report}");
    report
}

const SHORT: [&str; 6] = ["--rate", "100G", "--rtt", "5ms", "--size", "512KiB"];

#[test]
fn the_report_has_the_documented_figures() {
    for scheme in ["sr:rto", "sr:nack", "ec:mds:32,8", "ec:xor:32,8", "rc"] {
        let options = [&SHORT[..], &["--loss", "1e-2", "--scheme", scheme, "--samples", "20"]].concat();
        let report = report(&options, 0);
        let slowdown = |key: &str| report["slowdown"][key].as_f64().unwrap_or_else(|| panic!("{key} in {report}"));
        assert!(slowdown("mean") >= 1.0 && slowdown("p50") <= slowdown("p99"), "{report}");
        // Twenty say nothing about one in a thousand.
        assert_eq!(report["slowdown"].get("p999"), Some(&Value::Null), "{report}");
        assert_eq!(
            (&report["scheme"], &report["loss"], &report["samples"]),
            (&scheme.into(), &0.01.into(), &20.into())
        );
        assert_eq!((&report["size_bytes"], &report["chunk_bytes"]), (&(512 << 10).into(), &4096.into()));
        assert!(report["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{report}");
    }
}

#[test]
fn ten_thousand_samples_say_something_about_one_in_a_thousand() {
    let options = ["--rate", "100G", "--rtt", "1ms", "--size", "4KiB", "--loss", "1e-2", "--samples", "10000"];
    let report = report(&options, 0);
    // One in a hundred is lost, and some of those once more, as are what the ends tell each other.
    assert!(report["slowdown"]["p999"].as_f64().is_some_and(|p999| p999 > 3.0), "{report}");
}

#[test]
fn the_same_seed_gives_the_same_figures_on_any_number_of_threads() {
    let figures = |seed, threads| {
        let options = ["--loss", "0,1e-2", "--samples", "25", "--seed", seed, "--threads", threads];
        report(&[&SHORT[..], &options].concat(), 0)["results"].clone()
    };
    let one = figures("3", "1");
    assert_eq!(one.as_array().map(Vec::len), Some(2));
    assert_eq!(one, figures("3", "3"));
    assert_ne!(one, figures("4", "3"));
}

/// It would take hours; it says so before it begins, and is ended then.
#[test]
fn a_long_run_says_so_first() {
    let options = ["--loss", "1e-3", "--samples", "4000000", "--threads", "1", "--json"];
    let mut child = command(&[&SHORT[..], &options].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut lines = BufReader::new(child.stderr.take().expect("it is a pipe")).lines();
    let [first, second] = [lines.next(), lines.next()].map(|line| line.expect("a line").expect("UTF-8"));
    child.kill().expect("it is running");
    let output = child.wait_with_output().expect("it has ended");
    assert!(first.starts_with("this will take about ") && first.contains("4000000 messages"), "{first}");
    assert!(second.contains("--samples"), "{second}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let output = completion(&[&SHORT[..], &["--samples", "10"]].concat());
    assert!(output.stderr.is_empty(), "a short one says nothing: {output:?}");
}

/// With messages so short, timeouts are rarer than the bound for long ones says: a check that can fail.
#[test]
fn the_paper_s_rows_and_bounds() {
    let options = ["--paper", "--size", "64KiB", "--samples", "3"];
    let report = report(&options, 1);
    let results = report["results"].as_array().expect("a list");
    assert_eq!(results.len(), 20);
    assert!(results.iter().all(|row| row["paper"]["formula_mean"].is_f64()), "{report}");
    let check = |what: &str| {
        let checks = report["checks"].as_array().expect("a list");
        checks.iter().find(|check| check["what"] == what).unwrap_or_else(|| panic!("{what} in {report}"))["passed"]
            .clone()
    };
    assert_eq!(check("mean of sr:rto at 1e-2"), false);
    assert_eq!(check("mean of ec:mds:32,8 at 1e-5"), true);
    let output = completion(&options);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for part in ["paper's formula", "up to 6.5", "FAILED: mean of sr:rto at 1e-2, expected 5 to 8"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for (options, words) in [
        (&["--rate", "400"][..], "as in 400G"),
        (&["--rtt", "25"], "as in 25ms"),
        (&["--rtt", "200s"], "1us to 100s"),
        (&["--loss", "1"], "less than 1"),
        (&["--size", "2GiB"], "1 GiB"),
        (&["--chunk", "5000"], "multiple of 4 KiB"),
        (&["--scheme", "magic"], "sr:rto"),
        (&["--paper", "--loss", "0"], "--paper"),
    ] {
        let output = completion(options);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(words), "{options:?}: {output:?}");
    }
}
