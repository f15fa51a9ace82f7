//! The forms in which what devices report is shown: columns, names with values, folded paragraphs.

use std::fmt::Write as _;

use longhaul_units::bytes_text;
use longhaul_verbs::DeviceAttributes;
use serde_json::Value;

/// Columns that remarks are folded to.
pub(super) const LINE_COLUMNS: usize = 100;
/// Columns of a name in the detailed form.
pub(super) const NAME_COLUMNS: usize = 32;

pub(super) fn write_limits(text: &mut String, attributes: &DeviceAttributes) {
    write_line(text, 2, "limits", "");
    for (name, most) in limits(attributes) {
        let most = match (most, name.ends_with("_bytes")) {
            (None, _) => "no limit".to_owned(),
            (Some(most), true) => bytes_text(most),
            (Some(most), false) => most.to_string(),
        };
        write_line(text, 4, name, &most);
    }
}

pub(super) fn limits_json(attributes: &DeviceAttributes) -> Value {
    let limits = limits(attributes).into_iter();
    limits.map(|(name, most)| (name.to_owned(), most.map_or(Value::Null, Value::from))).collect()
}

/// Rows with columns as wide as their widest cell; numbers to the right.
pub(super) fn write_columns<const COLUMNS: usize>(text: &mut String, rows: &[[String; COLUMNS]], numbers: &[usize]) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    for row in rows {
        let cells = row.iter().zip(widths).enumerate();
        let line: Vec<String> = cells
            .map(|(column, (cell, width))| match numbers.contains(&column) {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            })
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
}

/// Counters that are not zero, and how many are.
pub(super) fn write_counters(text: &mut String, title: &str, remark: &str, counters: &[(&str, u64)]) {
    let (counted, zero): (Vec<_>, Vec<_>) = counters.iter().partition(|(_, value)| *value > 0);
    let zero = match (counted.len(), zero.len()) {
        (_, 0) => String::new(),
        (0, zero) => format!("all {zero} are 0"),
        (_, zero) => format!("{zero} more are 0"),
    };
    let remarks: Vec<&str> = [zero.as_str(), remark].into_iter().filter(|remark| !remark.is_empty()).collect();
    write_line(text, 2, title, &remarks.join("; "));
    for (name, value) in counted {
        write_line(text, 4, name, &value.to_string());
    }
}

pub(super) fn write_line(text: &mut String, indent: usize, name: &str, value: &str) {
    let columns = NAME_COLUMNS + 2 - indent;
    let line = format!("{:indent$}{name:<columns$}{value}", "");
    text.push_str(line.trim_end());
    text.push('\n');
}

/// A paragraph behind a label, folded at spaces, but not within a `command`, which people copy.
pub(super) fn fold(text: &mut String, label: &str, paragraph: &str) {
    let mut units: Vec<String> = Vec::new();
    let mut is_in_command = false;
    for word in paragraph.split(' ') {
        match units.last_mut().filter(|_| is_in_command) {
            Some(unit) => {
                unit.push(' ');
                unit.push_str(word);
            }
            None => units.push(word.to_owned()),
        }
        is_in_command ^= word.matches('`').count() % 2 == 1;
    }
    let indent = label.chars().count();
    text.push_str(label);
    let mut column = indent;
    for (index, unit) in units.iter().enumerate() {
        let length = unit.chars().count();
        if index > 0 && column + 1 + length > LINE_COLUMNS {
            let _ = write!(text, "\n{:indent$}", "");
            column = indent;
        } else if index > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(unit);
        column += length;
    }
    text.push('\n');
}

/// Names of flags, as the verbs crate has them.
pub(super) fn capabilities(attributes: &DeviceAttributes) -> Vec<&'static str> {
    attributes.capabilities.iter_names().map(|(name, _)| name).collect()
}

/// Limits by name; `None` is no limit.
fn limits(attributes: &DeviceAttributes) -> [(&'static str, Option<u64>); 16] {
    let limit = |most: u32| (most != u32::MAX).then_some(u64::from(most));
    [
        ("max_region_bytes", (attributes.max_region_bytes != u64::MAX).then_some(attributes.max_region_bytes)),
        ("max_message_bytes", Some(attributes.max_message_bytes)),
        ("max_queue_pairs", limit(attributes.max_queue_pairs)),
        ("max_work_requests", limit(attributes.max_work_requests)),
        ("max_scatter_gather_entries", limit(attributes.max_scatter_gather_entries)),
        ("max_completion_queues", limit(attributes.max_completion_queues)),
        ("max_completion_queue_entries", limit(attributes.max_completion_queue_entries)),
        ("max_memory_regions", limit(attributes.max_memory_regions)),
        ("max_protection_domains", limit(attributes.max_protection_domains)),
        ("max_inline_bytes", limit(attributes.max_inline_bytes)),
        ("max_destination_read_atomic", Some(attributes.max_destination_read_atomic.into())),
        ("max_read_atomic", Some(attributes.max_read_atomic.into())),
        ("max_shared_receive_queues", limit(attributes.max_shared_receive_queues)),
        ("max_memory_windows", limit(attributes.max_memory_windows)),
        ("max_address_handles", limit(attributes.max_address_handles)),
        ("max_multicast_groups", limit(attributes.max_multicast_groups)),
    ]
}
