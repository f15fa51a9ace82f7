//! `longhaul sim timeout` as users run it.

use std::process::{Command, Output};

use serde_json::Value;

fn timeout(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["sim", "timeout"]).args(arguments).output().expect("the command starts")
}

#[test]
fn the_learned_rule_holds_its_budget_and_the_papers_does_not() {
    let output = timeout(&["--operations", "2000", "--seeds", "2", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    let value: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(value["schema"], 1);
    let rows = value["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 30, "{text}");
    for row in rows {
        let worst = row["undelivered_worst_rank"].as_f64().expect("a share");
        match row["rule"].as_str() {
            Some("learned") => {
                assert!(worst <= 1.5 * row["target"].as_f64().expect("a budget"), "{row}");
                assert_eq!(row["late_ranks"], row["slow_ranks"]);
            }
            _ => assert!(worst > 0.015 && row["target"].is_null(), "{row}"),
        }
    }
    assert!(value["checks"].as_array().expect("checks").iter().all(|check| check["passed"] == true), "{text}");
}

#[test]
fn pictures_are_written() {
    let directory = std::env::temp_dir().join(format!("longhaul-sim-timeout-{}", std::process::id()));
    let name = directory.to_str().expect("UTF-8");
    let output = timeout(&["--operations", "500", "--seeds", "1", "--svg", name]);
    // So few operations may break a bound.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    for (picture, words) in [("timeout-tails", "budget 5 %"), ("timeout-ranks", "7: late")] {
        let svg = std::fs::read_to_string(directory.join(format!("{picture}.svg"))).expect("it is written");
        assert!(svg.contains(words), "{picture}: {words}");
    }
    std::fs::remove_dir_all(&directory).expect("nobody else uses it");
}

#[test]
fn a_check_that_fails_is_exit_status_1() {
    // Far too few operations for so small a budget.
    let output = timeout(&["--target", "0.05%", "--operations", "100", "--seeds", "20", "--json"]);
    let value: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let failed = value["checks"].as_array().expect("checks").iter().any(|check| check["passed"] == false);
    assert_eq!(output.status.code(), Some(if failed { 1 } else { 0 }), "{value}");
    assert_eq!(value.get("error").is_some(), failed, "{value}");
    assert_eq!(timeout(&["--target", "2"]).status.code(), Some(2));
}
