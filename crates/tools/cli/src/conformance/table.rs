//! A reviewed table of what a device can do and where it departs, held against what a run found (`--check-table`), so
//! that what docs/DEVICES.md says of devices that are not everywhere stays true.
//!
//! The table is a small file of JSON in `docs/devices`. It does not hold how many tests passed, so that a new test does
//! not need a new table; a new test that departs does. Departures that show now and then are left out.

use std::collections::BTreeSet;
use std::path::Path;

use longhaul_conformance::{Remark, Report, Shown, known_departures};
use serde_json::{Value, json};

use super::facts::{Facts, capability_names, limits};

/// What a run says that a table should hold.
pub(super) fn of_run(facts: &Facts, report: &Report) -> Value {
    let attributes = facts.devices.first().map(|device| &device.attributes);
    let driver = facts.devices.first().map(|device| device.driver.clone());
    let known = known_departures(driver.as_deref().unwrap_or_default());
    let is_certain = |remark: &&Remark| {
        !known.iter().any(|known| known.shown == Shown::Sometimes && known.is_shown_by(&remark.test))
    };
    let departures: Vec<&str> =
        report.departures.iter().filter(is_certain).map(|remark| remark.test.as_str()).collect();
    json!({
        "schema": 1,
        "driver": driver,
        "kernel": facts.kernel,
        "rdma_core": facts.rdma_core,
        "capabilities": attributes.map(|attributes| capability_names(attributes.capabilities)),
        "limits": attributes.map(limits),
        "departures": departures,
    })
}

/// The table in a file.
pub(super) fn read(file: &Path) -> Result<Value, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read the table {}: {error}; --write-table writes one", file.display()))?;
    serde_json::from_str(&text)
        .map_err(|error| format!("expected a table of a device in {}, got {error}", file.display()))
}

/// Differences between a table and a run, one a line; none when they agree. Kernel and rdma-core may be other ones than
/// the table's: what they do is what counts.
pub(super) fn check(table: &Value, facts: &Facts, report: &Report) -> Vec<String> {
    let mut differences = compare(table, &of_run(facts, report));
    for test in &report.unexpectedly_passed {
        differences.push(format!("{test} passed, although it is listed as a known departure"));
    }
    differences
}

fn compare(table: &Value, run: &Value) -> Vec<String> {
    let mut differences = Vec::new();
    for key in ["schema", "driver"] {
        if table[key] != run[key] {
            differences.push(format!("{key}: the table has {}, the run {}", table[key], run[key]));
        }
    }
    for key in ["capabilities", "departures"] {
        let [expected, got] = [table, run].map(|value| texts(&value[key]));
        differences.extend(expected.difference(&got).map(|text| format!("{key}: only the table has {text}")));
        differences.extend(got.difference(&expected).map(|text| format!("{key}: the table lacks {text}")));
    }
    let names: BTreeSet<&String> = [table, run]
        .into_iter()
        .filter_map(|value| value["limits"].as_object())
        .flat_map(serde_json::Map::keys)
        .collect();
    for name in names {
        let [expected, got] = [table, run].map(|value| &value["limits"][name]);
        if expected != got {
            differences.push(format!("limits: {name} is {expected} in the table, {got} in the run"));
        }
    }
    differences
}

fn texts(list: &Value) -> BTreeSet<String> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_told_in_both_directions() {
        let table = json!({
            "schema": 1, "driver": "rxe", "kernel": "6.1", "capabilities": ["READ", "DMA_BUF"], "limits": {"max_queue_pairs": 3},
            "departures": ["rc/send/mtu"],
        });
        assert_eq!(compare(&table, &table), [""; 0]);
        let mut run = table.clone();
        run["kernel"] = json!("6.12");
        assert_eq!(compare(&table, &run), [""; 0]);
        run["capabilities"] = json!(["READ", "ATOMICS"]);
        run["limits"] = json!({"max_queue_pairs": 4});
        run["departures"] = json!([]);
        let expected = [
            "capabilities: only the table has DMA_BUF",
            "capabilities: the table lacks ATOMICS",
            "departures: only the table has rc/send/mtu",
            "limits: max_queue_pairs is 3 in the table, 4 in the run",
        ];
        assert_eq!(compare(&table, &run), expected);
    }
}
