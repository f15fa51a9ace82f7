//! `longhaul devices` as users run it: on this host, and in network namespaces with planted problems.
//!
//! Namespaces are made by `unshare` (no root needed where user namespaces are allowed) and set up by `ip`; where either
//! is missing those tests say so and pass. What each problem's message says is tested next to the checks themselves.

use std::net::UdpSocket;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// RC, UC and UD at least.
const CAPABILITIES_LEAST: usize = 3;

fn devices(options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.arg("devices").args(options).output().expect("the command starts")
}

fn text(output: &Output) -> String {
    let remark = if output.status.success() { "" } else { "no device of this host can be used\n" };
    assert_eq!(String::from_utf8_lossy(&output.stderr), remark, "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

#[track_caller]
fn json(output: &Output) -> Value {
    let text = text(output);
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    let value: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(value["schema"], 1);
    value
}

fn array<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap_or_else(|| panic!("{name} is an array in {value}"))
}

/// The device with a name.
#[track_caller]
fn device<'a>(report: &'a Value, name: &str) -> &'a Value {
    let found = array(report, "devices").iter().find(|device| device["name"] == name);
    found.unwrap_or_else(|| panic!("there is {name} in {report}"))
}

/// Problems whose text contains this.
fn problems<'a>(report: &'a Value, text: &str) -> Vec<&'a Value> {
    let contains = |problem: &&Value| problem["what"].as_str().is_some_and(|what| what.contains(text));
    array(report, "problems").iter().filter(contains).collect()
}

#[test]
fn json_is_one_object_with_devices_and_problems() {
    let output = devices(&["--json"]);
    assert!(output.status.success(), "{output:?}");
    let report = json(&output);
    let loopback = device(&report, "softnic:127.0.0.1");
    assert_eq!(loopback["addresses"], serde_json::json!(["127.0.0.1"]));
    assert_eq!(loopback["gids"], serde_json::json!(["::ffff:127.0.0.1"]));
    assert_eq!(loopback["state"], "active");
    assert_eq!(loopback["usable"], true);
    assert_eq!(loopback["active_mtu_bytes"], 4096);
    assert!(loopback["interface_mtu_bytes"].as_u64().is_some_and(|bytes| bytes > 4096), "{loopback}");
    assert!(array(loopback, "capabilities").len() >= CAPABILITIES_LEAST, "{loopback}");
    assert!(loopback["limits"]["max_queue_pairs"].as_u64().is_some_and(|most| most > 0), "{loopback}");
    assert_eq!(loopback["counters"]["sent_pkts"], 0);
    for problem in array(&report, "problems") {
        for key in ["what", "remedy"] {
            assert!(problem[key].as_str().is_some_and(|text| !text.is_empty()), "{problem}");
        }
        assert!(["error", "warning", "note"].iter().any(|severity| problem["severity"] == *severity), "{problem}");
    }
}

#[test]
fn the_table_has_a_row_for_each_device() {
    let report = json(&devices(&["--json"]));
    let output = devices(&[]);
    assert!(output.status.success(), "{output:?}");
    let table = text(&output);
    assert!(table.starts_with("device "), "{table}");
    for device in array(&report, "devices") {
        let row = format!("{} ", device["name"].as_str().expect("a name"));
        assert!(table.lines().any(|line| line.starts_with(&row)), "{row} in {table}");
    }
    assert!(!table.contains("max_queue_pairs"), "short: {table}");
}

#[test]
fn verbose_shows_capabilities_limits_and_counters() {
    let text = text(&devices(&["-v"]));
    for part in ["softnic:127.0.0.1", "RELIABLE_CONNECTION", "max_queue_pairs", "counters", "UDP_SEGMENT"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn a_limit_of_what_a_device_lacks_is_zero() {
    let report = json(&devices(&["--json"]));
    let loopback = device(&report, "softnic:127.0.0.1");
    assert!(!array(loopback, "capabilities").contains(&"MULTICAST".into()), "{loopback}");
    assert_eq!(loopback["limits"]["max_multicast_groups"], 0);
}

#[test]
fn a_reader_that_has_gone_is_no_panic() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["devices", "-v"]).stdout(writer).stderr(Stdio::piped());
    let output = command.spawn().and_then(|child| child.wait_with_output()).expect("the command starts");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(128 + 13), "as if SIGPIPE had ended it");
}

#[test]
fn an_unknown_option_is_a_usage_error() {
    assert_eq!(devices(&["--no-such-option"]).status.code(), Some(2));
}

/// Run a test again by its name in a new network namespace. There it runs these `ip` commands and returns `false`;
/// outside it returns `true` once that run has passed, or with a word about it when there can be no such namespace
/// here.
fn in_namespace(test: &str, commands: &[&str]) -> bool {
    const INSIDE: &str = "LONGHAUL_TEST_INSIDE_NAMESPACE";
    if std::env::var_os(INSIDE).is_some() {
        for arguments in commands {
            let done = Command::new("ip").args(arguments.split(' ')).status();
            assert!(done.is_ok_and(|status| status.success()), "ip {arguments}");
        }
        return false;
    }
    let unshare = |program: &str, arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", program]).args(arguments);
        command
    };
    let possible = unshare("ip", &["link", "add", "name", "left", "type", "veth", "peer", "name", "right"]).output();
    if !possible.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped, because no network namespace can be made and set up here: {possible:?}");
        return true;
    }
    let this_program = std::env::current_exe().expect("this program has a path");
    let this_program = this_program.to_str().expect("a path in UTF-8");
    let mut inside = unshare(this_program, &[test, "--exact", "--nocapture"]);
    let output = inside.env(INSIDE, "1").output().expect("unshare was there before");
    let [told, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && told.contains("1 passed"), "in the namespace:\n{told}\n{errors}");
    true
}

/// The command in a mount namespace where libibverbs is an empty file; `None`, with a word about it, where there can be
/// no such.
fn without_libibverbs(arguments: &[&str]) -> Option<Output> {
    const SCRIPT: &str = r#"
        for file in /lib/libibverbs.so.1 /lib64/libibverbs.so.1 /usr/lib/libibverbs.so.1 /usr/lib64/libibverbs.so.1 \
            /usr/lib/*/libibverbs.so.1 /usr/local/lib/libibverbs.so.1; do
            ! [ -e "$file" ] || mount --bind /dev/null "$file" || exit 77
        done
        exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh", env!("CARGO_BIN_EXE_longhaul")]);
    let output = command.args(arguments).output();
    match output {
        Ok(output) if output.status.code() != Some(77) && !output.stderr.starts_with(b"unshare") => Some(output),
        other => {
            eprintln!("skipped, because no mount namespace can be made and set up here: {other:?}");
            None
        }
    }
}

#[test]
fn without_libibverbs_everything_else_works_and_the_package_is_named() {
    let Some(output) = without_libibverbs(&["devices", "--json"]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = json(&output);
    assert_eq!(device(&report, "softnic:127.0.0.1")["usable"], true);
    let libibverbs = &report["host"]["libibverbs"];
    assert_eq!(libibverbs["found"], false);
    let remark = libibverbs["remark"].as_str().expect("a remark");
    assert!(remark.contains("libibverbs1") && remark.contains("not looked at"), "{remark}");
    let shown = text(&without_libibverbs(&["devices"]).expect("it was possible before"));
    assert!(shown.contains("libibverbs1"), "{shown}");
    // Who asks for such a device is told the same.
    let output = without_libibverbs(&["perf", "server", "-d", "rxe0"]).expect("it was possible before");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("\"rxe0\"") && said.contains("libibverbs1") && said.contains("softnic"), "{said}");
}

#[test]
fn without_an_address_the_exit_status_says_that_something_is_missing() {
    if in_namespace("without_an_address_the_exit_status_says_that_something_is_missing", &[]) {
        return;
    }
    let output = devices(&["--json"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let report = json(&output);
    assert_eq!(array(&report, "devices").len(), 0);
    assert_eq!(problems(&report, "no interface has an IP address")[0]["severity"], "error");
    assert!(text(&devices(&[])).starts_with("no device\n"));
}

#[test]
fn a_taken_port_is_told_with_its_owner() {
    if in_namespace("a_taken_port_is_told_with_its_owner", &["link set lo up"]) {
        return;
    }
    assert_eq!(device(&json(&devices(&["--json"])), "softnic:127.0.0.1")["roce_udp_port"]["free"], true);
    let holder = UdpSocket::bind("127.0.0.1:4791").expect("nobody else is in this namespace");
    let report = json(&devices(&["--json"]));
    // The device can still be used.
    let loopback = device(&report, "softnic:127.0.0.1");
    assert_eq!((&loopback["usable"], &loopback["roce_udp_port"]["free"]), (&true.into(), &false.into()));
    let problem = problems(&report, "UDP port 4791 is held by")[0];
    let owner = format!("(process {}) at 127.0.0.1", std::process::id());
    assert!(problem["what"].as_str().is_some_and(|what| what.ends_with(&owner)), "{problem}");
    drop(holder);
    assert_eq!(problems(&json(&devices(&["--json"])), "4791 is held").len(), 0);
}

#[test]
fn interfaces_with_small_mtus_and_without_link_are_told() {
    let commands = [
        "link set lo up",
        "link add name left mtu 1500 type veth peer name right",
        "address add 10.99.1.1/24 dev left",
        "address add 10.99.2.1/24 dev right",
        "link set left up",
        "link set right mtu 300 up",
        "link add name first mtu 9000 type veth peer name second",
        "address add 10.99.3.1/24 dev first",
        "address add 10.99.4.1/24 dev second",
        "link set first up",
    ];
    if in_namespace("interfaces_with_small_mtus_and_without_link_are_told", &commands) {
        return;
    }
    let output = devices(&["--json"]);
    assert!(output.status.success(), "there is still the loopback device: {output:?}");
    let report = json(&output);
    let expected = [
        ("10.99.1.1", "active", Value::from(1024), true),
        ("10.99.2.1", "unusable", Value::Null, false),
        ("10.99.3.1", "down", Value::from(4096), true),
    ];
    for (address, state, mtu, is_usable) in expected {
        let device = device(&report, &format!("softnic:{address}"));
        assert_eq!((&device["state"], &device["active_mtu_bytes"]), (&state.into(), &mtu), "{device}");
        assert_eq!(device["usable"], is_usable, "{device}");
    }
    let severity = |text: &str| {
        let found = problems(&report, text);
        assert_eq!(found.len(), 1, "{text} in {report}");
        found[0]["severity"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(severity("left has MTU 1500: path MTU 1024 is the largest that fits"), "note");
    assert_eq!(severity("right has MTU 300: no path MTU fits"), "error");
    assert_eq!(severity("first has no link"), "warning");
    assert_eq!(severity("second is down"), "warning");
    assert_eq!(problems(&report, "first has MTU").len(), 0);
}
