//! `longhaul perf compare` as users run it. Where namespaces cannot be made it runs on the loopback device and says so;
//! both are tested here, the former only where it is possible.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn compare(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["perf", "compare"]).args(arguments).output().expect("the command starts")
}

#[track_caller]
fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    serde_json::from_str(&text).expect("one JSON object")
}

fn positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0)
}

#[track_caller]
fn check_report(value: &Value) {
    assert_eq!(value["schema"], 1);
    let results = value["results"].as_array().expect("results");
    let names: Vec<_> = results.iter().map(|result| result["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["bare-udp", "tcp", "uc-write", "rc-write", "sdr-sr", "sdr-ec", "sdr-ec-inline"]);
    let coding_threads = |index: usize| results[index]["coding_threads"].as_u64();
    assert!(coding_threads(5).is_some_and(|threads| threads > 0), "{value}");
    assert_eq!((coding_threads(4), coding_threads(6)), (None, Some(0)), "{value}");
    assert!(results.iter().all(|result| positive(&result["gbps"])), "{value}");
    for name in ["bare_udp", "rc_send", "rc_send_events", "facade", "facade_sleeping"] {
        assert!(positive(&value["latency_us"][name]), "{name} in {value}");
    }
    let ratios = [
        "uc_over_bare",
        "rc_over_bare",
        "rc_over_tcp",
        "sdr_sr_over_uc",
        "sdr_ec_over_uc",
        "sdr_ec_inline_over_uc",
        "facade_sr_over_uc",
        "rc_latency_over_bare",
        "facade_latency_over_rc",
        "facade_sleeping_over_rc_events",
    ];
    for name in ratios {
        assert!(positive(&value["ratios"][name]), "{name} in {value}");
    }
}

/// Whether this host lets us make what the command uses, found out by other means than the command's own.
fn can_make_namespaces() -> bool {
    let works = |arguments: &[&str]| {
        let script = "ip link add one type veth peer name two && ip address add 198.18.0.1/24 dev one";
        let mut command = Command::new("unshare");
        let command = command.args(arguments).args(["sh", "-c", script]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    works(&["--net"]) || works(&["--user", "--map-root-user", "--net"])
}

#[test]
fn compares_in_namespaces_where_they_can_be_made() {
    let value = json(&compare(&["--seconds", "0.3", "--json"]));
    check_report(&value);
    assert_eq!(value["mtu_bytes"], 4200);
    if value["environment"] == "loopback" {
        assert!(!can_make_namespaces(), "namespaces can be made here, and the loopback device was used: {value}");
        eprintln!("SKIPPED: no network namespaces here, only the loopback device was tested");
    }
}

#[test]
fn compares_on_loopback_and_says_so() {
    let value = json(&compare(&["--seconds", "0.3", "--loopback", "--json"]));
    check_report(&value);
    assert_eq!(value["environment"], "loopback");
    let output = compare(&["--seconds", "0.1", "--loopback", "--only", "bare-udp", "--costs"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.starts_with("LOOPBACK"), "{text}");
    assert!(text.contains("packets as for an MTU of 4200"), "the link's own MTU is another: {text}");
    assert!(text.contains("ns a packet"), "{text}");
}

#[test]
fn several_mtus_are_a_list() {
    let value = json(&compare(&["--seconds", "0.1", "--mtu", "1500,9000", "--only", "bare-udp,rc-write", "--json"]));
    let list = value["comparisons"].as_array().expect("comparisons");
    let of = |name: &str| list.iter().map(|one| one[name].as_u64().expect("a number")).collect::<Vec<_>>();
    assert_eq!(of("mtu_bytes"), [1500, 9000]);
    assert_eq!(of("payload_bytes_per_packet"), [1024, 4096]);
}

#[test]
fn reads_are_compared_when_they_are_named() {
    let value = json(&compare(&["--seconds", "0.3", "--only", "rc-write,rc-read", "--json"]));
    let results = value["results"].as_array().expect("results");
    let names: Vec<_> = results.iter().map(|result| result["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["rc-write", "rc-read"]);
    assert!(results.iter().all(|result| positive(&result["gbps"])), "{value}");
    assert!(positive(&value["ratios"]["rc_read_over_write"]), "{value}");
}

#[test]
fn schemes_are_named_in_the_table() {
    let output = compare(&["--seconds", "0.3", "--only", "uc-write,sdr-sr"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("(sdr-sr: sr:nack, messages of 16 MiB") && text.contains("sdr_sr_over_uc"), "{text}");
    assert!(!text.contains("sdr-ec"), "{text}");
    let output = compare(&["--seconds", "0.3", "--only", "uc-write,sdr-ec-inline"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("coded on the threads that drive the connection"), "{text}");
    assert!(text.contains("sdr_ec_inline_over_uc"), "{text}");
}

#[test]
fn impossible_mtus_are_usage_errors() {
    assert_eq!(compare(&["--mtu", "100"]).status.code(), Some(2));
    assert_eq!(compare(&["--ipv6", "--mtu", "1279"]).status.code(), Some(2));
    assert_eq!(compare(&["--seconds", "0"]).status.code(), Some(2));
}

#[test]
fn nothing_is_left_when_it_is_killed() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    let command = command.args(["perf", "compare", "--only", "tcp", "--seconds", "60"]);
    let mut coordinator = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command starts");
    let process = coordinator.id();
    let children = || fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let begin = Instant::now();
    while children().split_whitespace().count() < 2 {
        assert!(begin.elapsed() < Duration::from_secs(30), "the ends have not started");
        std::thread::sleep(Duration::from_millis(5));
    }
    let ends: Vec<String> = children().split_whitespace().map(str::to_owned).collect();
    coordinator.kill().expect("it can be killed");
    coordinator.wait().expect("it is dead");
    let is_alive = |process: &String| {
        let state = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // A zombie waits for its new parent only.
        state.contains("longhaul") && !state.contains(") Z ")
    };
    let begin = Instant::now();
    while ends.iter().any(is_alive) {
        assert!(begin.elapsed() < Duration::from_secs(30), "ends {ends:?} live on without their coordinator");
        std::thread::sleep(Duration::from_millis(5));
    }
}
