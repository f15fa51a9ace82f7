//! `longhaul conformance`: the verbs conformance suite on a device, and a report that can be sent to us.

mod reachability;
mod soak;

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use longhaul_softnic::udp::UdpConfig;
use longhaul_testbed::conformance::{self, Environment, RealTime, Remark, Report, Test, Verdict, VirtualTime};
use serde_json::{Value, json};

use crate::{exit, message};

/// Run the verbs conformance suite on a device
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The device to test: `softnic` is the software RNIC on virtual time, `softnic:ADDRESS` two of them on UDP sockets of
    /// an address of this host, `softnic:ADDRESS,ADDRESS` on those of two
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

    /// Seed of the virtual time's random numbers; with --soak the first of many
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Instead of the suite: random programs over a network that loses, repeats, reorders and corrupts packets, in process,
    /// with checkers of what the specification allows (as `longhaul sim soak`, but on this device)
    #[arg(long, conflicts_with_all = ["list", "filter"])]
    soak: bool,

    /// With --soak: begin no other program after this time
    #[arg(long, value_name = "NUMBER", default_value_t = 30, requires = "soak", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,

    /// With --soak: at most this many programs
    #[arg(long, value_name = "NUMBER", requires = "soak", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,

    /// With --soak and --seeds 1: write the packets as pcapng, on real time a file for each device
    #[arg(long, value_name = "FILE", requires = "soak")]
    capture: Option<PathBuf>,
}

/// A device that can be tested, by what users call it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Testable {
    /// The software RNIC on virtual time.
    Virtual,
    /// Two software RNICs on UDP sockets of these addresses.
    Udp([IpAddr; 2]),
}

impl Testable {
    fn parse(name: &str) -> Result<Testable, String> {
        if name == "softnic" {
            return Ok(Testable::Virtual);
        }
        let Some(addresses) = name.strip_prefix("softnic:") else {
            return Err(format!(
                "there is no device \"{name}\" here; available: softnic, softnic:ADDRESS, softnic:ADDRESS,ADDRESS"
            ));
        };
        let parse = |text: &str| {
            text.parse::<IpAddr>()
                .map_err(|_| format!("expected an IP address of this host in \"{name}\", came \"{text}\""))
        };
        let (first, second) = addresses.split_once(',').unwrap_or((addresses, addresses));
        Ok(Testable::Udp([parse(first)?, parse(second)?]))
    }

    /// Says why its two ends cannot reach each other, before every test finds that out for itself.
    fn check(&self) -> Result<(), String> {
        match self {
            Testable::Virtual => Ok(()),
            Testable::Udp(addresses) => reachability::check(*addresses),
        }
    }

    /// Says what is missing when it cannot be opened.
    fn open(&self, seed: u64) -> Result<Box<dyn Environment>, String> {
        match self {
            Testable::Virtual => Ok(Box::new(VirtualTime::new(seed))),
            Testable::Udp(addresses) => {
                let environment =
                    RealTime::open(*addresses, &UdpConfig::default()).map_err(|error| message::with_sources(&error))?;
                for warning in environment.udp_devices()[0].warnings() {
                    eprintln!("{warning}");
                }
                Ok(Box::new(environment))
            }
        }
    }
}

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
    let device = match Testable::parse(name) {
        Ok(device) => device,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(exit::MISSING);
        }
    };
    let is_missing = |missing: String| {
        eprintln!("{name} cannot be tested here: {missing}");
        ExitCode::from(exit::MISSING)
    };
    if let Err(missing) = device.check() {
        return is_missing(missing);
    }
    if arguments.soak {
        return soak_on(&device, name, arguments);
    }
    let mut environment = match device.open(arguments.seed) {
        Ok(environment) => environment,
        Err(missing) => return is_missing(missing),
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

fn soak_on(device: &Testable, name: &str, arguments: &Arguments) -> ExitCode {
    if arguments.capture.is_some() && arguments.seeds != Some(1) {
        eprintln!("expected --seeds 1 with --capture: a capture holds one run");
        return ExitCode::from(exit::USAGE);
    }
    soak::run(&soak::Options {
        device: name,
        addresses: match device {
            Testable::Virtual => None,
            Testable::Udp([first, second]) if first == second => Some(vec![*first]),
            Testable::Udp(addresses) => Some(addresses.to_vec()),
        },
        seconds: arguments.seconds,
        first_seed: arguments.seed,
        seeds: arguments.seeds,
        capture: arguments.capture.clone(),
        json: arguments.json,
    })
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
    fn devices_are_named_by_their_addresses() {
        let [one, other]: [IpAddr; 2] = ["127.0.0.1", "::1"].map(|text| text.parse().expect("an address"));
        assert_eq!(Testable::parse("softnic"), Ok(Testable::Virtual));
        assert_eq!(Testable::parse("softnic:127.0.0.1"), Ok(Testable::Udp([one, one])));
        assert_eq!(Testable::parse("softnic:127.0.0.1,::1"), Ok(Testable::Udp([one, other])));
        let refused = Testable::parse("softnic:nowhere").expect_err("not an address");
        assert!(refused.contains("\"nowhere\""), "{refused}");
        let refused = Testable::parse("mlx5_0").expect_err("not there yet");
        assert!(refused.contains("softnic:ADDRESS"), "{refused}");
    }

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
