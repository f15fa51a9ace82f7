//! `longhaul plan validate` as users run it, with few samples of the twin.

use std::process::{Command, Output};

use serde_json::Value;

fn validate(options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["plan", "validate"]).args(options).output().expect("the command starts")
}

const FEW: [&str; 4] = ["--only", "twin", "--samples", "2000"];

fn report(options: &[&str]) -> Value {
    let output = validate(&[&FEW, options, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    serde_json::from_str(&text).expect("one JSON object")
}

#[test]
fn the_report_has_the_documented_keys() {
    let report = report(&["--threads", "1"]);
    assert_eq!((&report["schema"], &report["passed"]), (&1.into(), &true.into()), "{report}");
    assert!(report["worst"]["twin"].as_f64().is_some_and(|worst| worst > 0.0 && worst < 0.05), "{report}");
    for missing in ["virtual", "sockets"] {
        assert_eq!(report["worst"].get(missing), Some(&Value::Null), "nothing was compared: {report}");
    }
    assert!(report["worst_p999_rank"].as_f64().is_some(), "{report}");
    // Bounded messages have no twin.
    assert_eq!(report["arrived"]["points"], Value::Array(Vec::new()), "{report}");
    let points = report["points"].as_array().expect("a list");
    assert!(points.len() >= 24, "{}", points.len());
    for point in points {
        for key in ["rate_bits_per_second", "rtt_seconds", "loss", "size_bytes", "chunk_bytes"] {
            assert!(point[key].as_f64().is_some_and(|value| value > 0.0), "{key} in {point}");
        }
        for (place, keys) in [("model", &[][..]), ("twin", &["samples", "deviation", "p999_rank"])] {
            for key in ["mean_ms", "p50_ms", "p99_ms", "p999_ms"].iter().chain(keys) {
                assert!(point[place][key].as_f64().is_some(), "{place}, {key} in {point}");
            }
        }
        // So few say nothing about one in a thousand.
        assert_eq!((&point["twin"]["passed"], &point["twin"]["p999_passed"]), (&true.into(), &Value::Null), "{point}");
        assert!(point["scheme"].is_string() && point.get("burst_packets").is_some(), "{point}");
        assert_eq!((&point["virtual"], &point["sockets"]), (&Value::Null, &Value::Null));
    }
}

#[test]
fn the_same_seed_gives_the_same_figures_on_any_number_of_threads() {
    let points = |options: &[&str]| report(options)["points"].clone();
    let one = points(&["--threads", "1"]);
    assert_eq!(one, points(&["--threads", "3"]));
    assert_ne!(one, points(&["--seed", "2"]));
}

#[test]
fn the_table_ends_with_the_worst() {
    let output = validate(&FEW);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("worst mean, twin: ") && text.contains("not judged with 2000 samples"), "{text}");
    assert!(!text.contains("FAILED"), "{text}");
}

#[test]
fn what_has_arrived_of_bounded_messages_is_compared_on_virtual_time() {
    let output = validate(&["--only", "virtual", "--arrived", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!((output.status.code(), &report["passed"]), (Some(0), &true.into()), "{report}");
    let arrived = &report["arrived"];
    let worst = arrived["worst"]["virtual"].as_f64().expect("it was compared");
    assert!(worst > 0.0 && worst <= arrived["bounds"]["virtual"].as_f64().expect("a bound"), "{arrived}");
    let points = arrived["points"].as_array().expect("a list");
    assert!(points.len() >= 20 && report["points"] == Value::Array(Vec::new()), "{}", points.len());
    for point in points {
        for key in ["rate_bits_per_second", "rtt_seconds", "loss", "size_bytes", "deadline_seconds"] {
            assert!(point[key].as_f64().is_some_and(|value| value > 0.0), "{key} in {point}");
        }
        let [model, measured] = ["model", "virtual"].map(|of| point[of]["mean"].as_f64().expect("a share"));
        let difference = point["virtual"]["difference"].as_f64().expect("a number");
        assert!(
            (model - measured - difference).abs() < 1e-9 && point["virtual"]["at_least_p99"].is_number(),
            "{point}"
        );
        assert_eq!(point["sockets"], Value::Null);
    }
    assert_eq!(validate(&["--only", "twin", "--arrived"]).status.code(), Some(2));
}

#[test]
fn what_is_not_understood_is_refused() {
    for (options, allowed) in [
        (["--only", "all"], "twin, virtual, sockets"),
        (["--samples", "10"], "from 1000 to 10000000"),
        (["--samples", "many"], "from 1000 to 10000000"),
        (["--threads", "0"], "from 1 to 1024"),
        (["--seed", "-1"], "from 0 to 18446744073709551615"),
    ] {
        let output = validate(&options);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        assert!(error.contains(allowed), "{options:?}: {error}");
    }
}
