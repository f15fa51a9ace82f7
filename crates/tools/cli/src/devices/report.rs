//! The devices and the problems of a host as a table for people and as JSON for programs.

use std::fmt::Write as _;

use longhaul_verbs::DeviceAttributes;
use longhaul_wire::UDP_PORT_ROCE;
use serde_json::{Value, json};

use super::host::{HostFacts, RocePort, SocketBuffer, unusable};
use super::libibverbs::Libibverbs;
use super::list::{Details, Entry};
use super::problems::{Problem, Severity};
use super::rdma_report;
use crate::quantity::bytes_text;

/// Columns that remarks are folded to.
const LINE_COLUMNS: usize = 100;
/// Columns of a name in the detailed form.
const NAME_COLUMNS: usize = 32;

/// Everything that is shown.
pub(crate) struct Report<'a> {
    /// The host.
    pub(crate) facts: &'a HostFacts,
    /// Its software RNICs.
    pub(crate) devices: &'a [Entry],
    /// What libibverbs knows.
    pub(crate) libibverbs: &'a Libibverbs,
    /// What is wrong with it.
    pub(crate) problems: &'a [Problem],
}

impl Report<'_> {
    /// A table, or with `verbose` everything, and the remarks.
    pub(crate) fn to_text(&self, verbose: bool) -> String {
        let mut text = String::new();
        match verbose {
            true => {
                self.devices.iter().for_each(|device| write_device(&mut text, device));
                self.libibverbs.devices.iter().for_each(|device| rdma_report::write_device(&mut text, device));
                self.write_host(&mut text);
            }
            false => {
                self.write_table(&mut text);
                if !self.libibverbs.devices.is_empty() {
                    text.push('\n');
                    rdma_report::write_table(&mut text, &self.libibverbs.devices);
                }
            }
        }
        self.write_problems(&mut text);
        text
    }

    fn write_table(&self, text: &mut String) {
        if self.devices.is_empty() {
            text.push_str("no device\n");
            return;
        }
        let heading = ["device", "interface", "state", "path MTU", "link MTU", "rate", "UDP port 4791"];
        let mut rows = vec![heading.map(str::to_owned)];
        rows.extend(self.devices.iter().map(|device| {
            [
                device.name.clone(),
                device.interface.name.clone(),
                device.state().to_owned(),
                device.active_mtu().map_or("-".to_owned(), |mtu| mtu.byte_count().to_string()),
                device.interface.link.mtu_bytes.map_or("-".to_owned(), |mtu| mtu.to_string()),
                rate(device),
                roce_port(&device.roce_port),
            ]
        }));
        write_columns(text, &rows, &[3, 4]);
    }

    fn write_host(&self, text: &mut String) {
        text.push_str("host\n");
        let mut line = |name: &str, value: &str| write_line(text, 2, name, value);
        for (name, buffer) in [("receive", self.facts.receive_buffer), ("send", self.facts.send_buffer)] {
            if let Some(SocketBuffer { asked_bytes, granted_bytes, .. }) = buffer {
                let (asked, granted) = (bytes_text(asked_bytes as u64), bytes_text(granted_bytes as u64));
                line(&format!("socket {name} buffer"), &format!("{granted} of {asked} asked for"));
            }
        }
        let there = |is_there: bool| if is_there { "in this kernel" } else { "not in this kernel" };
        line("UDP_SEGMENT (send offload)", there(self.facts.segmentation_offload));
        line("UDP_GRO (receive offload)", there(self.facts.receive_offload));
        if let Some(limit) = self.facts.locked_memory {
            let bytes = limit.limit_bytes.map_or("no limit".to_owned(), bytes_text);
            let remark = if limit.is_exempt { ", not enforced for this user" } else { "" };
            line("lockable memory", &format!("{bytes}{remark}"));
        }
        for (address, why) in self.unused_addresses() {
            line("address not used", &format!("{address} ({why})"));
        }
        let counters: Vec<(&str, u64)> =
            self.facts.udp_counters.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        write_counters(text, "UDP counters", "of all programs since the start", &counters);
    }

    fn write_problems(&self, text: &mut String) {
        if let Some(remark) = &self.libibverbs.remark {
            text.push('\n');
            fold(text, "", remark);
        }
        if self.problems.is_empty() {
            text.push_str("\nNothing is wrong with this host.\n");
            return;
        }
        let count = |severity: Severity| {
            let count = self.problems.iter().filter(|problem| problem.severity == severity).count();
            let plural = if count == 1 { "" } else { "s" };
            (count > 0).then(|| format!("{count} {}{plural}", severity.name()))
        };
        let counts: Vec<String> =
            [Severity::Error, Severity::Warning, Severity::Note].into_iter().filter_map(count).collect();
        let _ = writeln!(text, "\n{}:", counts.join(", "));
        for Problem { severity, what, remedy } in self.problems {
            fold(text, &format!("{:<9}", severity.name()), what);
            fold(text, "  remedy ", remedy);
        }
    }

    fn unused_addresses(&self) -> impl Iterator<Item = (String, &'static str)> {
        self.facts.interfaces.iter().flat_map(|interface| {
            let reason = |ip| Some((format!("{ip}%{}", interface.name), unusable(ip)?));
            interface.addresses.iter().filter_map(move |address| reason(address.ip))
        })
    }

    /// One object.
    pub(crate) fn to_json(&self) -> Value {
        let facts = self.facts;
        let problem = |problem: &Problem| json!({ "what": problem.what, "remedy": problem.remedy, "severity": problem.severity.name() });
        let buffer = |buffer: Option<SocketBuffer>| {
            buffer.map(|buffer| json!({ "asked_bytes": buffer.asked_bytes, "granted_bytes": buffer.granted_bytes }))
        };
        let is_used = |name: &str| self.libibverbs.devices.iter().any(|device| device.description.name == name);
        let kernel_devices = facts.rdma_devices.iter().map(|device| device.name.as_str());
        let rdma_devices: Vec<&str> = kernel_devices.filter(|name| !is_used(name)).collect();
        let of_libibverbs = self.libibverbs.devices.iter().map(rdma_report::device_json);
        let unused: Vec<Value> =
            self.unused_addresses().map(|(address, why)| json!({ "address": address, "why": why })).collect();
        json!({
            "schema": 1,
            "devices": self.devices.iter().map(device_json).chain(of_libibverbs).collect::<Vec<_>>(),
            "problems": self.problems.iter().map(problem).collect::<Vec<_>>(),
            "host": {
                "receive_buffer": buffer(facts.receive_buffer),
                "send_buffer": buffer(facts.send_buffer),
                "segmentation_offload": facts.segmentation_offload,
                "receive_offload": facts.receive_offload,
                // `null` is unlimited, as with the limits of a device.
                "locked_memory_limit_bytes": facts.locked_memory.and_then(|limit| limit.limit_bytes),
                "udp_counters": facts.udp_counters,
                "unused_addresses": unused,
                "unused_rdma_devices": rdma_devices,
                "libibverbs": { "found": self.libibverbs.is_found, "remark": self.libibverbs.remark },
            },
        })
    }
}

/// A device's row of JSON.
fn device_json(device: &Entry) -> Value {
    let Entry { name, address, interface, roce_port, details } = device;
    let detail_of = |part: fn(&Details) -> Value| details.as_ref().map(part);
    let owner = match roce_port {
        RocePort::Taken(owner) => Some(owner.to_string()),
        RocePort::Free | RocePort::Refused(_) => None,
    };
    json!({
        "name": name,
        "kind": "softnic",
        "addresses": [address.to_string()],
        "gids": detail_of(|details| details.gids.iter().map(|row| format!("{:?}", row.gid)).collect()),
        "interface": interface.name,
        "state": device.state(),
        "usable": device.is_usable(),
        "active_mtu_bytes": device.active_mtu().map(|mtu| mtu.byte_count()),
        "max_mtu_bytes": detail_of(|details| details.port.max_mtu.byte_count().into()),
        "interface_mtu_bytes": interface.link.mtu_bytes,
        "rate_bits_per_second": interface.link.rate_bits_per_second,
        "roce_udp_port": { "port": UDP_PORT_ROCE, "free": *roce_port == RocePort::Free, "owner": owner },
        "capabilities": detail_of(|details| capabilities(&details.attributes).into()),
        "limits": detail_of(|details| limits_json(&details.attributes)),
        "counters": detail_of(|details| {
            details.counters.iter().map(|counter| (counter.name.to_string(), Value::from(counter.value))).collect()
        }),
        "interface_counters": interface.link.counters,
    })
}

/// A device with everything, as `ibv_devinfo -v` users expect it.
fn write_device(text: &mut String, device: &Entry) {
    let _ = writeln!(text, "{}", device.name);
    let interface = &device.interface;
    let mut line = |name: &str, value: &str| write_line(text, 2, name, value);
    line("interface", &interface.name);
    line("state", device.state());
    let link = interface.link.mtu_bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string());
    match (device.active_mtu(), &device.details) {
        (Some(mtu), Some(details)) => {
            let (active, most) = (mtu.byte_count(), details.port.max_mtu.byte_count());
            line("path MTU", &format!("{active}, at most {most} (link MTU {link})"));
        }
        _ => line("path MTU", &format!("none (link MTU {link})")),
    }
    line("rate", &rate(device));
    line("UDP port 4791", &roce_port(&device.roce_port));
    let Some(details) = &device.details else {
        text.push('\n');
        return;
    };
    for row in &details.gids {
        line(&format!("GID {}", row.index), &format!("{:?} ({})", row.gid, row.gid.to_ip()));
    }
    line("version", &details.attributes.firmware_version);
    fold(text, &format!("  {:<NAME_COLUMNS$}", "capabilities"), &capabilities(&details.attributes).join(" "));
    write_limits(text, &details.attributes);
    let counters: Vec<(&str, u64)> =
        details.counters.iter().map(|counter| (counter.name.as_ref(), counter.value)).collect();
    write_counters(text, "counters", "a device counts from when a program opens it", &counters);
    let counters: Vec<(&str, u64)> =
        interface.link.counters.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    write_counters(text, &format!("counters of {}", interface.name), "", &counters);
    text.push('\n');
}

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

fn rate(device: &Entry) -> String {
    match device.interface.link.rate_bits_per_second {
        Some(rate) => format!("{} Gbit/s", rate as f64 / 1e9),
        None => "-".to_owned(),
    }
}

fn roce_port(port: &RocePort) -> String {
    match port {
        RocePort::Free => "free".to_owned(),
        RocePort::Taken(owner) => format!("held by {owner}"),
        RocePort::Refused(error) => error.clone(),
    }
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

#[cfg(test)]
mod tests {
    use super::super::host::{Interface, RdmaDevice};
    use super::super::port_owner::Owner;
    use super::*;

    fn unopened() -> Entry {
        let interface = Interface { name: "eth0".to_owned(), is_up: true, has_carrier: true, ..Interface::default() };
        let roce_port = RocePort::Taken(Owner::Process { name: "longhaul".to_owned(), id: 7 });
        let address = "10.0.0.1".parse().unwrap();
        Entry { name: "softnic:10.0.0.1".to_owned(), address, interface, roce_port, details: None }
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_shown_all_the_same() {
        let devices = [unopened()];
        let report = Report {
            facts: &HostFacts::default(),
            devices: &devices,
            libibverbs: &Libibverbs::default(),
            problems: &[],
        };
        let text = report.to_text(false);
        let row = "softnic:10.0.0.1  eth0       unusable         -         -  -     held by longhaul (process 7)";
        assert!(text.lines().any(|line| line == row), "{text}");
        assert!(text.ends_with("Nothing is wrong with this host.\n"), "{text}");
        assert!(report.to_text(true).contains("none (link MTU unknown)"));
        let json = report.to_json();
        let device = &json["devices"][0];
        assert_eq!(device["usable"], false);
        assert_eq!(device["capabilities"], Value::Null);
        let expected = json!({ "port": 4791, "free": false, "owner": "longhaul (process 7)" });
        assert_eq!(device["roce_udp_port"], expected);
    }

    #[test]
    fn rdma_devices_that_are_not_used_are_named() {
        let rdma = RdmaDevice { name: "mlx5_0".to_owned(), ..RdmaDevice::default() };
        let facts = HostFacts { rdma_devices: vec![rdma], ..HostFacts::default() };
        let remark = Some("libibverbs is not there".to_owned());
        let libibverbs = Libibverbs { remark, ..Libibverbs::default() };
        let report = Report { facts: &facts, devices: &[], libibverbs: &libibverbs, problems: &[] };
        assert!(report.to_text(false).contains("\nlibibverbs is not there\n"));
        assert_eq!(report.to_json()["host"]["unused_rdma_devices"], json!(["mlx5_0"]));
        assert_eq!(report.to_json()["host"]["libibverbs"]["found"], false);
    }

    #[test]
    fn remarks_are_counted_and_folded() {
        let problem = |severity, what: &str| Problem { severity, what: what.to_owned(), remedy: "fix it".to_owned() };
        let problems = [problem(Severity::Warning, &"word ".repeat(30)), problem(Severity::Warning, "short")];
        let report = Report {
            facts: &HostFacts::default(),
            devices: &[],
            libibverbs: &Libibverbs::default(),
            problems: &problems,
        };
        let text = report.to_text(false);
        assert!(text.contains("\n2 warnings:\nwarning  word word"), "{text}");
        assert!(text.contains("\n         word"), "{text}");
        assert!(text.ends_with("\nwarning  short\n  remedy fix it\n"), "{text}");
        assert!(text.lines().all(|line| line.len() <= LINE_COLUMNS), "{text}");
    }

    #[test]
    fn a_command_stays_in_one_line() {
        let mut text = String::new();
        let command = format!("`sudo {}`", "x ".repeat(30));
        fold(&mut text, "  remedy ", &format!("{} {command}; or not", "word ".repeat(10)));
        assert!(text.lines().any(|line| line.trim_start().starts_with(&command)), "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
    }
}
