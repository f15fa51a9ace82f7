//! `longhaul conformance`: the verbs conformance suite on a device, and a report that can be sent to us.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use longhaul_testbed::conformance::{self, Environment, Remark, Report, Test, Verdict, VirtualTime};
use serde_json::{Value, json};

use crate::exit;

/// Run the verbs conformance suite on a device
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The device to test; `softnic` is the software RNIC on virtual time
    #[arg(short, long, value_name = "DEVICE", required_unless_present = "list")]
    device: Option<String>,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,

    /// Only tests whose name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,

    /// Print the names of the tests and run none
    #[arg(long)]
    list: bool,

    /// Seed of the virtual time's random numbers
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

/// A device that can be tested.
struct Testable {
    /// What users call it.
    name: &'static str,
    /// Says what is missing when it cannot be opened.
    open: fn(&Arguments) -> Result<Box<dyn Environment>, String>,
}

const DEVICES: &[Testable] =
    &[Testable { name: "softnic", open: |arguments| Ok(Box::new(VirtualTime::new(arguments.seed))) }];

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let mut tests = conformance::registry();
    if let Some(text) = &arguments.filter {
        tests.retain(|test| test.name().contains(text.as_str()));
        if tests.is_empty() {
            eprintln!("no test's name contains \"{text}\"; `longhaul conformance --list` prints the names");
            return ExitCode::from(exit::USAGE);
        }
    }
    if arguments.list {
        list(&tests, arguments.json);
        return ExitCode::SUCCESS;
    }
    let name = arguments.device.as_deref().unwrap_or_default();
    let Some(device) = DEVICES.iter().find(|device| device.name == name) else {
        let known: Vec<&str> = DEVICES.iter().map(|device| device.name).collect();
        eprintln!("there is no device \"{name}\" here; available: {}", known.join(", "));
        return ExitCode::from(exit::MISSING);
    };
    let mut environment = match (device.open)(arguments) {
        Ok(environment) => environment,
        Err(missing) => {
            eprintln!("{name} cannot be tested here: {missing}");
            return ExitCode::from(exit::MISSING);
        }
    };
    let begin = Instant::now();
    // On standard error, and only when that is a terminal.
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a valid template");
    let progress = ProgressBar::new(tests.len() as u64).with_style(style);
    let report = conformance::run(&mut *environment, &tests, |test, verdict| {
        progress.inc(1);
        progress.set_message(test.name().to_owned());
        if let Verdict::Failed(message) = verdict {
            progress.suspend(|| eprintln!("failed: {}: {message}", test.name()));
        }
    });
    progress.finish_and_clear();
    let seconds = begin.elapsed().as_secs_f64();
    match arguments.json {
        true => println!("{}", to_json(name, &report, seconds)),
        false => print!("{}", to_table(name, &report, seconds)),
    }
    match report.is_good() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(exit::FAILED),
    }
}

fn list(tests: &[Test], as_json: bool) {
    if as_json {
        let names: Vec<&str> = tests.iter().map(Test::name).collect();
        println!("{}", json!({ "schema": 1, "tests": names }));
        return;
    }
    for test in tests {
        println!("{}", test.name());
    }
}

fn remarks(remarks: &[Remark], message: &str) -> Vec<Value> {
    remarks.iter().map(|remark| json!({ "test": remark.test, message: remark.message })).collect()
}

fn to_json(device: &str, report: &Report, seconds: f64) -> Value {
    json!({
        "schema": 1,
        "device": device,
        "passed": report.passed.len(),
        "failed": report.failed.len(),
        "failures": remarks(&report.failed, "message"),
        "skipped": remarks(&report.skipped, "capability"),
        "departures": remarks(&report.departures, "message"),
        "seconds": seconds,
    })
}

/// Counts by the first part of the names, then everything that is not simply good.
fn to_table(device: &str, report: &Report, seconds: f64) -> String {
    let of = |remarks: &[Remark]| -> Vec<String> { remarks.iter().map(|remark| remark.test.clone()).collect() };
    let (failed, skipped) = (of(&report.failed), of(&report.skipped));
    let subject = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
    let mut subjects: Vec<String> = Vec::new();
    for name in report.passed.iter().chain(&failed).chain(&skipped) {
        if !subjects.contains(&subject(name)) {
            subjects.push(subject(name));
        }
    }
    let count = |names: &[String], wanted: &str| names.iter().filter(|name| subject(name) == wanted).count();
    let mut text = format!("{:<12} {:>7} {:>7} {:>8}\n", device, "passed", "failed", "skipped");
    let mut row = |name: &str, counts: [usize; 3]| {
        let [passed, failed, skipped] = counts;
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<12} {passed:>7} {failed:>7} {skipped:>8}");
    };
    for name in &subjects {
        row(name, [count(&report.passed, name), count(&failed, name), count(&skipped, name)]);
    }
    row("all", [report.passed.len(), failed.len(), skipped.len()]);
    let sections = [
        ("failed", "", &report.failed),
        ("skipped", "needs ", &report.skipped),
        ("departs from the specification", "", &report.departures),
    ];
    for (title, prefix, remarks) in sections {
        if !remarks.is_empty() {
            let _ = writeln!(text, "\n{title}:");
        }
        for remark in remarks {
            let _ = writeln!(text, "  {}: {prefix}{}", remark.test, remark.message);
        }
    }
    let _ = writeln!(text, "\n{seconds:.1} s");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_the_documented_form() {
        let remark = |test: &str, message: &str| Remark { test: test.to_owned(), message: message.to_owned() };
        let report = Report {
            passed: vec!["rc/send/mtu".to_owned()],
            failed: vec![remark("uc/send/mtu", "expected 1, came 2")],
            skipped: vec![remark("ud/multicast/refusals", "MULTICAST")],
            departures: Vec::new(),
        };
        let expected = json!({
            "schema": 1,
            "device": "softnic",
            "passed": 1,
            "failed": 1,
            "failures": [{"test": "uc/send/mtu", "message": "expected 1, came 2"}],
            "skipped": [{"test": "ud/multicast/refusals", "capability": "MULTICAST"}],
            "departures": [],
            "seconds": 0.5,
        });
        assert_eq!(to_json("softnic", &report, 0.5), expected);
        let table = to_table("softnic", &report, 0.5);
        assert!(table.contains("ud/multicast/refusals: needs MULTICAST"), "{table}");
    }
}
