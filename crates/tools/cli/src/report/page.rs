//! The report as a page of Markdown: a summary for people, then the JSON of each part.

use std::fmt::Write as _;

use serde_json::Value;

/// The title, what was tested, and a row for each part.
pub(super) fn summary(report: &Value) -> String {
    let mut text = String::from("# Longhaul report\n\n");
    let known = |key: &str| match &report[key] {
        Value::String(text) => text.clone(),
        Value::Null => "not known".to_owned(),
        other => other.to_string(),
    };
    let _ = writeln!(text, "- device: {}", known("device"));
    let _ = writeln!(text, "- longhaul: {}", known("version"));
    let _ =
        writeln!(text, "- kernel: {}, {}, processors: {}", known("kernel"), known("architecture"), known("processors"));
    let _ = writeln!(text, "- rdma-core: {}", known("rdma_core"));
    let _ = writeln!(
        text,
        "- {} passed, {} failed, {} skipped, in {} s\n",
        report["passed"], report["failed"], report["skipped"], report["seconds"]
    );
    text.push_str("| part | status | result |\n|---|---|---|\n");
    for part in report["parts"].as_array().into_iter().flatten() {
        let (name, status) = (word(&part["name"]), word(&part["status"]));
        let result = part["error"].as_str().map_or_else(|| headline(name, &part["result"]), str::to_owned);
        let _ = writeln!(text, "| {name} | {status} | {} |", result.replace('|', "\\|").replace('\n', " "));
    }
    text
}

/// All of it.
pub(super) fn markdown(report: &Value) -> String {
    let mut text = summary(report);
    text.push_str(
        "\nThe host name, IP and MAC addresses and GUIDs are left out: equal labels (`address-1`) are equal addresses.\n",
    );
    for part in report["parts"].as_array().into_iter().flatten() {
        let _ = writeln!(text, "\n## {}\n", word(&part["name"]));
        let _ = writeln!(text, "<details><summary>JSON</summary>\n\n```json\n{part:#}\n```\n\n</details>");
    }
    text
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// What people want to know first.
fn headline(name: &str, result: &Value) -> String {
    let first = &result["results"][0];
    let number = |value: &Value| value.as_f64().map_or_else(|| "?".to_owned(), |number| format!("{number:.2}"));
    match name {
        "host" => {
            let problems = result["problems"].as_array().map_or(0, Vec::len);
            let devices = result["devices"].as_array().map_or(0, Vec::len);
            format!("{devices} devices, {problems} remarks")
        }
        "conformance" => {
            let count = |key: &str| result[key].as_array().map_or(0, Vec::len);
            format!(
                "{} passed, {} failed, {} skipped, {} departures",
                result["passed"],
                result["failed"],
                count("skipped"),
                count("departures")
            )
        }
        "write_lat" | "send_lat" => {
            format!("{} µs typical, {} µs p99", number(&first["t_typical_us"]), number(&first["p99_us"]))
        }
        "compare" => {
            let row = |row: &Value| format!("{} {}", word(&row["name"]), number(&row["gbps"]));
            let rows: Vec<String> = result["results"].as_array().into_iter().flatten().map(row).collect();
            format!("{} Gbit/s", rows.join(", "))
        }
        _ => format!("{} Gbit/s", number(&first["bw_average_gbps"])),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_part_has_a_row_and_its_json() {
        let part = |name: &str, status: &str, error: Value, result: Value| json!({ "name": name, "status": status, "error": error, "result": result });
        let bandwidth = json!({ "results": [{ "bw_average_gbps": 12.345 }] });
        let report = json!({
            "device": "rxe0", "version": "0.1.0", "kernel": "6.1.0", "rdma_core": null, "passed": 1, "failed": 1, "skipped": 0,
            "seconds": 3.5,
            "parts": [
                part("write_bw", "passed", Value::Null, bandwidth),
                part("send_bw", "failed", json!("a | b"), Value::Null),
            ],
        });
        let text = markdown(&report);
        assert!(text.contains("| write_bw | passed | 12.35 Gbit/s |"), "{text}");
        assert!(text.contains("| send_bw | failed | a \\| b |"), "{text}");
        assert!(text.contains("- rdma-core: not known"), "{text}");
        assert_eq!(text.matches("```json").count(), 2);
    }
}
