//! The report of a run, for people and for programs.

use std::fmt::Write as _;

use longhaul_conformance::{Remark, Report};
use serde_json::{Value, json};

use super::facts::Facts;

fn remarks(remarks: &[Remark], message: &str) -> Vec<Value> {
    remarks.iter().map(|remark| json!({ "test": remark.test, message: remark.message })).collect()
}

pub(super) fn to_json(device: &str, facts: &Facts, report: &Report, seconds: f64) -> Value {
    let mut value = json!({
        "schema": 1,
        "device": device,
        "passed": report.passed.len(),
        "failed": report.failed.len(),
        "failures": remarks(&report.failed, "message"),
        "skipped": remarks(&report.skipped, "capability"),
        "departures": remarks(&report.departures, "message"),
        "unexpectedly_passed": report.unexpectedly_passed,
        "seconds": seconds,
    });
    if let (Value::Object(report), Value::Object(facts)) = (&mut value, facts.to_json()) {
        report.extend(facts);
    }
    value
}

/// Counts by the first part of the names, then everything that is not simply good, then what was tested.
pub(super) fn to_table(device: &str, facts: &Facts, report: &Report, seconds: f64) -> String {
    let of = |remarks: &[Remark]| -> Vec<String> { remarks.iter().map(|remark| remark.test.clone()).collect() };
    let columns = [report.passed.clone(), of(&report.failed), of(&report.skipped), of(&report.departures)];
    let subject = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
    let mut subjects: Vec<String> = Vec::new();
    for name in columns.iter().flatten() {
        if !subjects.contains(&subject(name)) {
            subjects.push(subject(name));
        }
    }
    let width = device.len().max(14);
    let mut text = format!("{device:<width$} {:>7} {:>7} {:>8} {:>9}\n", "passed", "failed", "skipped", "departed");
    let mut row = |name: &str, counts: [usize; 4]| {
        let [passed, failed, skipped, departed] = counts;
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<width$} {passed:>7} {failed:>7} {skipped:>8} {departed:>9}");
    };
    for name in &subjects {
        let count = |names: &Vec<String>| names.iter().filter(|test| subject(test) == *name).count();
        row(name, columns.each_ref().map(count));
    }
    row("all", columns.each_ref().map(Vec::len));
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
    if !report.unexpectedly_passed.is_empty() {
        let _ = writeln!(text, "\npassed, although the driver is known to depart there:");
    }
    for test in &report.unexpectedly_passed {
        let _ = writeln!(text, "  {test}");
    }
    let _ = writeln!(text, "\n{}{seconds:.1} s", facts.to_text());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_the_documented_form() {
        let remark = |test: &str, message: &str| Remark { test: test.to_owned(), message: message.to_owned() };
        let report = Report {
            passed: vec!["rc/send/mtu".to_owned()],
            failed: vec![remark("uc/send/mtu", "expected 1, got 2")],
            skipped: vec![remark("ud/multicast/refusals", "MULTICAST")],
            departures: vec![remark("keys/rights", "counts up")],
            unexpectedly_passed: vec!["rc/send/mtu".to_owned()],
        };
        let facts = Facts { kernel: Some("6.1.0".to_owned()), rdma_core: None, devices: Vec::new() };
        let expected = json!({
            "schema": 1,
            "device": "softnic",
            "passed": 1,
            "failed": 1,
            "failures": [{"test": "uc/send/mtu", "message": "expected 1, got 2"}],
            "skipped": [{"test": "ud/multicast/refusals", "capability": "MULTICAST"}],
            "departures": [{"test": "keys/rights", "message": "counts up"}],
            "unexpectedly_passed": ["rc/send/mtu"],
            "seconds": 0.5,
            "kernel": "6.1.0",
            "rdma_core": null,
            "devices": [],
        });
        assert_eq!(to_json("softnic", &facts, &report, 0.5), expected);
        let table = to_table("softnic", &facts, &report, 0.5);
        assert!(table.contains("ud/multicast/refusals: needs MULTICAST"), "{table}");
        assert!(table.contains("keys/rights: counts up"), "{table}");
        assert!(table.contains("kernel: 6.1.0"), "{table}");
    }
}
