//! `longhaul report` as users run it: one file, on the software RNIC, within its time.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A file of this process alone; nothing is left of it.
struct Target(PathBuf);

impl Target {
    fn new(name: &str) -> Target {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.md", std::process::id()));
        let _ = fs::remove_file(&path);
        Target(path)
    }

    fn name(&self) -> &str {
        self.0.to_str().expect("a path of letters")
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.0).expect("the report")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn report(options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.arg("report").args(options).output().expect("the command starts")
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 1, "{output:?}");
    serde_json::from_str(&text).expect("one JSON object")
}

#[test]
fn one_file_has_every_part() {
    let file = Target::new("whole");
    let output = report(&["-d", "softnic", "--seconds", "290", "-o", file.name(), "--json"]);
    let value = json(&output);
    assert!(output.status.success(), "{output:?}");
    assert_eq!((&value["schema"], &value["device"], &value["failed"]), (&1.into(), &"softnic".into(), &0.into()));
    let parts = value["parts"].as_array().expect("parts");
    let names: Vec<&str> = parts.iter().filter_map(|part| part["name"].as_str()).collect();
    let expected =
        ["host", "conformance", "write_bw", "write_lat", "send_bw", "send_lat", "scheme_sr", "scheme_ec", "compare"];
    assert_eq!(names, expected);
    let result = |name: &str| &parts.iter().find(|part| part["name"] == name).expect("a part")["result"];
    assert_eq!(result("conformance")["failed"], 0);
    assert!(result("conformance")["passed"].as_u64().is_some_and(|passed| passed > 50));
    let names = result("conformance")["passed_tests"].as_array().map(Vec::len);
    assert_eq!(names.map(|names| names as u64), result("conformance")["passed"].as_u64(), "each by its name");
    for name in ["write_bw", "send_bw", "scheme_sr", "scheme_ec"] {
        assert!(result(name)["results"][0]["bw_average_gbps"].as_f64().is_some_and(|gbps| gbps > 0.0), "{name}");
    }
    assert_eq!(result("scheme_ec")["scheme"], "ec:mds:32,8");
    assert!(result("send_lat")["results"][0]["t_typical_us"].as_f64().is_some_and(|time| time > 0.0));
    assert!(result("compare")["ratios"]["rc_over_bare"].as_f64().is_some_and(|ratio| ratio > 0.0));
    let text = file.text();
    assert!(text.starts_with("# Longhaul report\n"), "{text}");
    assert_eq!(text.matches("```json").count(), expected.len());
    for name in expected {
        assert!(text.contains(&format!("| {name} | passed | ")), "{name} has no row that passed");
    }
    // What stands in the file is what programs get.
    let blocks = text.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default());
    let blocks: Vec<Value> = blocks.map(|block| serde_json::from_str(block).expect("JSON")).collect();
    assert_eq!(&blocks, parts);
}

/// Only the loopback addresses, which every host has, may be in it.
#[test]
fn no_address_of_this_host_is_in_the_file() {
    let devices = Command::new(env!("CARGO_BIN_EXE_longhaul")).args(["devices", "--json"]).output();
    let devices: Value = serde_json::from_slice(&devices.expect("the command starts").stdout).expect("JSON");
    let addresses = devices["devices"].as_array().into_iter().flatten();
    let addresses = addresses.flat_map(|device| device["addresses"].as_array().into_iter().flatten());
    let secret: Vec<&str> = addresses
        .filter_map(Value::as_str)
        .filter(|text| text.parse::<std::net::IpAddr>().is_ok_and(|address| !address.is_loopback()))
        .collect();
    let file = Target::new("masked");
    // So short that hardly more than the host is in it.
    let output = report(&["-d", "softnic", "--seconds", "10", "-o", file.name(), "--json"]);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    let text = file.text();
    for address in &secret {
        assert!(!text.contains(address), "{address} is in the report");
        assert!(text.contains("address-1"), "nothing stands for {address}");
    }
    assert!(text.contains("are left out"), "{text}");
}

#[test]
fn the_time_is_kept_and_a_part_without_time_fails() {
    let file = Target::new("short");
    let begin = Instant::now();
    let output = report(&["-d", "softnic", "--seconds", "10", "-o", file.name(), "--json"]);
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    let value = json(&output);
    let is_late = |part: &Value| part["status"] == "timed out";
    let late = value["parts"].as_array().expect("parts").iter().filter(|part| is_late(part)).count();
    // A machine that does all of it in ten seconds is welcome.
    assert_eq!(output.status.code(), Some(i32::from(value["failed"] != 0)), "{output:?}");
    assert_eq!(value["error"].is_string(), value["failed"] != 0, "{value}");
    assert!(value["failed"].as_u64() >= Some(late as u64), "{value}");
    assert!(file.text().contains("# Longhaul report"));
}

#[test]
fn a_file_that_exists_is_replaced_with_a_word_about_it() {
    let file = Target::new("existing");
    fs::write(&file.0, "something else").expect("a file");
    let output = report(&["-d", "softnic", "--seconds", "10", "-o", file.name()]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("exists and will be replaced"), "{errors}");
    assert!(!file.text().contains("something else"));
    let summary = String::from_utf8_lossy(&output.stdout);
    assert!(summary.contains("| conformance | ") && summary.contains("Attach this file: "), "{summary}");
}

#[test]
fn what_is_missing_or_wrong_is_said_before_the_run() {
    for (options, status, word) in [
        (&["-d", "no-such-device"][..], 3, "no-such-device"),
        (&["-o", "/proc/nowhere/report.md"], 3, "/proc/nowhere"),
        (&["--seconds", "5"], 2, "10 to 600"),
    ] {
        let begin = Instant::now();
        let output = report(&[options, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(status), "{options:?}: {output:?}");
        assert!(json(&output)["error"].as_str().is_some_and(|error| error.contains(word)), "{output:?}");
        assert!(begin.elapsed() < Duration::from_secs(20), "nothing has run");
    }
}
