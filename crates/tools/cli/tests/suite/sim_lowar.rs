//! `longhaul sim lowar` as users run it, for a short time.

use std::process::{Command, Output};

use serde_json::Value;

fn lowar(options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["sim", "lowar"]).args(options).output().expect("the command starts")
}

#[test]
fn rows_have_the_documented_keys() {
    let options =
        ["--rate", "1G", "--seconds", "0.2", "--loss", "1e-3", "--scheme", "rc,lowar:8,1,lowar:mds:64,8", "--json"];
    let output = lowar(&options);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let rows = report["rows"].as_array().expect("rows");
    let schemes: Vec<&str> = rows.iter().filter_map(|row| row["scheme"].as_str()).collect();
    assert_eq!((&report["schema"], schemes), (&Value::from(1), vec!["rc", "lowar:8,1", "lowar:mds:64,8"]));
    for row in rows {
        for key in ["rtt_ms", "loss", "burst", "connections", "message_bytes", "goodput_gbit_per_second", "over_rc"] {
            assert!(row[key].as_f64().is_some_and(|figure| figure > 0.0), "{key} in {row}");
        }
        assert!(row["repair_share"].is_number() && row["timeouts"].is_number(), "{row}");
        assert!(row["fct_ms"]["p99"].as_f64() >= row["fct_ms"]["mean"].as_f64().map(|mean| mean / 2.0), "{row}");
    }
    let [rc, xor, mds] = [0, 1, 2].map(|index| rows[index]["goodput_gbit_per_second"].as_f64().expect("a number"));
    // In so short a time both codes may restore all that is lost.
    assert!(rc < 0.5 * xor && xor <= mds && mds > 0.75, "{rc} {xor} {mds}");
    assert_eq!(report["checks"], Value::Array(Vec::new()));
    // The same seed on one thread.
    let again: Value =
        serde_json::from_slice(&lowar(&[&options[..], &["--threads", "1"]].concat()).stdout).expect("JSON");
    assert_eq!(again["rows"], report["rows"]);
}

#[test]
fn what_cannot_be_is_refused_with_a_way_out() {
    for (options, words) in [
        (&["--scheme", "lowar:32"][..], "lowar:32"),
        (&["--rtt", "20s"], "use 1us to 10s"),
        (&["--quick"], "--paper"),
        (&["--paper", "--loss", "1e-3"], "--loss"),
    ] {
        let output = lowar(options);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(words), "{options:?}: {text}");
    }
}
