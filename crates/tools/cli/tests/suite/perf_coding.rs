//! `longhaul perf coding` as users run it; how fast it is, is not tested.

use std::process::{Command, Output};

use serde_json::Value;

fn coding(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["perf", "coding"]).args(arguments).output().expect("the command starts")
}

fn positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number > 0.0)
}

#[test]
fn reports_every_code_beside_what_it_is_compared_with() {
    let arguments = ["--message", "1MiB", "--chunk", "1000", "--rounds", "9", "--threads", "2", "--kernels", "--json"];
    let output = coding(&arguments);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    let value: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(value["schema"], 1);
    assert_eq!(value["message_bytes"], 1 << 20);
    let results = value["results"].as_array().expect("results");
    for (code, operation, threads) in
        [("copy", "copy", 1), ("mds", "encode", 1), ("mds", "encode", 2), ("mds", "decode", 1), ("xor", "encode", 2)]
    {
        let is_it = |result: &&Value| {
            result["code"] == code && result["operation"] == operation && result["threads"] == threads
        };
        let result =
            results.iter().find(is_it).unwrap_or_else(|| panic!("no {code} {operation} on {threads} in {text}"));
        assert!(positive(&result["bytes_per_second"]), "{result}");
        assert_eq!(result["chunk_bytes"], 1000);
        if code != "copy" {
            assert_eq!((&result["k"], &result["m"]), (&32.into(), &8.into()));
        }
    }
    assert!(results.iter().any(|result| result["kernel"] == "portable"), "--kernels shows them all: {text}");
    assert!(positive(&value["ratios"]["xor_over_copy"]), "{text}");
    // ISA-L takes whole submessages only, which this message does not have.
    assert_eq!(value["ratios"]["mds_over_isal"], Value::Null);
    let remarks = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(remarks.contains("no comparison of mds:32,8 with ISA-L"), "{remarks}");
}

#[test]
fn a_code_that_cannot_be_is_a_usage_error() {
    let output = coding(&["--code", "mds:200,100"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(text.contains("at most 255 chunks"), "{text}");
}
