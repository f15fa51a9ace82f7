//! `longhaul perf hadamard` as users run it. How fast it is, is not tested: on a small buffer, and with others at work.

use std::process::{Command, Output};

use serde_json::Value;

fn hadamard(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["perf", "hadamard"]).args(arguments).output().expect("the command starts")
}

#[test]
fn the_error_is_the_loss_in_every_layout() {
    let output = hadamard(&["--buffer", "1MiB", "--rounds", "3", "--trials", "24", "--samples", "20000", "--json"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    let value: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(value["schema"], 1);
    let rows = value["rows"].as_array().expect("rows");
    for (kind, block, stride) in [("f32", 1, 1024), ("f32", 1024, 64), ("bf16", 1024, 1024), ("f16", 2048, 64)] {
        let is_it = |row: &&Value| row["type"] == kind && row["block"] == block && row["stride"] == stride;
        let row = rows.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} {block} {stride} in {text}"));
        for key in
            ["bytes_per_second", "of_copy", "decode_of_copy", "relative_mse", "block_error_p999", "block_error_mean"]
        {
            assert!(row[key].as_f64().is_some_and(|number| number > 0.0), "{key} of {row}");
        }
    }
    let checks = value["checks"].as_array().expect("checks");
    assert!(checks.len() >= 3 * rows.len() + 9, "{text}");
    let is_speed = |check: &Value| check["name"].as_str().is_some_and(|name| name.contains("of_copy"));
    for check in checks.iter().filter(|check| !is_speed(check)) {
        assert_eq!(check["passed"], true, "{check}");
    }
    // The exit status says whether all hold, the speed among them.
    let all = checks.iter().all(|check| check["passed"] == true);
    assert_eq!(output.status.code(), Some(if all { 0 } else { 1 }));
    assert_eq!(value.get("error").is_none(), all, "{text}");
}

#[test]
fn a_loss_that_cannot_be_is_a_usage_error() {
    let output = hadamard(&["--loss", "120%"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("expected a share"), "{output:?}");
}
