//! `longhaul conformance` as users run it, where there is nothing to run it on.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Much longer than looking takes, much shorter than the suite.
const AT_ONCE: Duration = Duration::from_secs(20);

fn conformance(options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.arg("conformance").args(options).output().expect("the command starts")
}

#[test]
fn a_soak_of_nothing_is_a_usage_error() {
    for option in ["--seconds", "--seeds"] {
        let output = conformance(&["-d", "softnic", "--soak", option, "0"]);
        assert_eq!(output.status.code(), Some(2), "{option}: {output:?}");
    }
}

#[test]
fn a_table_that_cannot_be_read_is_told_before_the_suite_runs() {
    let output = conformance(&["-d", "softnic", "--json", "--check-table", "/proc/nowhere"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert!(report["error"].as_str().is_some_and(|error| error.contains("/proc/nowhere")), "{report}");
    assert!(report["device"].is_null(), "nothing has run: {report}");
}

#[test]
fn messages_with_reliability_schemes_on_virtual_time_and_on_sockets() {
    for (device, links) in [("softnic", 7), ("softnic:127.0.0.1,127.0.0.2", 8)] {
        let sizes = ["--sizes", "1,5000", "--messages", "3", "--scheme", "sr:nack", "--scheme", "twice"];
        let output = conformance(&[&["-d", device, "--reliable", "--json"], &sizes[..]].concat());
        assert!(output.status.success(), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        assert_eq!((&report["schema"], &report["failed"]), (&1.into(), &0.into()));
        assert_eq!((&report["passed"], &report["messages"]), (&(links * 4).into(), &(links * 12).into()));
    }
    let output = conformance(&["-d", "softnic", "--reliable", "--scheme", "sr"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// A new network namespace has an interface for loopback, and that is down.
#[test]
fn an_interface_that_is_down_is_told_at_once() {
    let unshare = |program: &str, arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", program]).args(arguments).output()
    };
    let possible = unshare("true", &[]);
    if !possible.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped, because no network namespace can be made here: {possible:?}");
        return;
    }
    for options in [&["--filter", "rc/send/mtu"][..], &["--soak", "--seeds", "1"][..]] {
        let begin = Instant::now();
        let arguments = [&["conformance", "-d", "softnic:127.0.0.1"][..], options].concat();
        let output = unshare(env!("CARGO_BIN_EXE_longhaul"), &arguments).expect("unshare was there before");
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains("`ip link set lo up`"), "{told}");
        assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
    }
}
