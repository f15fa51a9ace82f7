//! The devices and the problems of a host as a table for people and as JSON for programs.

use std::fmt::Write as _;

use longhaul_host::{Details, Diagnosis, Entry, HostFacts, Problem, RocePort, Severity, SocketBuffer, unusable};
use longhaul_units::bytes_text;
use longhaul_wire::UDP_PORT_ROCE;
use serde_json::{Value, json};

use super::form::{
    NAME_COLUMNS, capabilities, fold, limits_json, write_columns, write_counters, write_limits, write_line,
};
use super::rdma_report;

/// A table, or with `verbose` everything, and the remarks.
pub(super) fn to_text(diagnosis: &Diagnosis, verbose: bool) -> String {
    let mut text = String::new();
    match verbose {
        true => {
            diagnosis.devices.iter().for_each(|device| write_device(&mut text, device));
            diagnosis.libibverbs.devices.iter().for_each(|device| rdma_report::write_device(&mut text, device));
            write_host(diagnosis, &mut text);
        }
        false => {
            write_table(diagnosis, &mut text);
            if !diagnosis.libibverbs.devices.is_empty() {
                text.push('\n');
                rdma_report::write_table(&mut text, &diagnosis.libibverbs.devices);
            }
        }
    }
    write_problems(diagnosis, &mut text);
    text
}

fn write_table(diagnosis: &Diagnosis, text: &mut String) {
    if diagnosis.devices.is_empty() {
        text.push_str("no device\n");
        return;
    }
    let heading = ["device", "interface", "state", "path MTU", "link MTU", "rate", "UDP port 4791"];
    let mut rows = vec![heading.map(str::to_owned)];
    rows.extend(diagnosis.devices.iter().map(|device| {
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

fn write_host(diagnosis: &Diagnosis, text: &mut String) {
    text.push_str("host\n");
    let mut line = |name: &str, value: &str| write_line(text, 2, name, value);
    for (name, buffer) in [("receive", diagnosis.facts.receive_buffer), ("send", diagnosis.facts.send_buffer)] {
        if let Some(SocketBuffer { asked_bytes, granted_bytes, .. }) = buffer {
            let (asked, granted) = (bytes_text(asked_bytes as u64), bytes_text(granted_bytes as u64));
            line(&format!("socket {name} buffer"), &format!("{granted} of {asked} asked for"));
        }
    }
    let there = |is_there: bool| if is_there { "in this kernel" } else { "not in this kernel" };
    line("UDP_SEGMENT (send offload)", there(diagnosis.facts.segmentation_offload));
    line("UDP_GRO (receive offload)", there(diagnosis.facts.receive_offload));
    if let Some(limit) = diagnosis.facts.locked_memory {
        let bytes = limit.limit_bytes.map_or("no limit".to_owned(), bytes_text);
        let remark = if limit.is_exempt { ", not enforced for this user" } else { "" };
        line("lockable memory", &format!("{bytes}{remark}"));
    }
    for (address, why) in unused_addresses(&diagnosis.facts) {
        line("address not used", &format!("{address} ({why})"));
    }
    let counters: Vec<(&str, u64)> =
        diagnosis.facts.udp_counters.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    write_counters(text, "UDP counters", "of all programs since the start", &counters);
}

fn write_problems(diagnosis: &Diagnosis, text: &mut String) {
    if let Some(remark) = &diagnosis.libibverbs.remark {
        text.push('\n');
        fold(text, "", remark);
    }
    if diagnosis.problems.is_empty() {
        text.push_str("\nNothing is wrong with this host.\n");
        return;
    }
    let count = |severity: Severity| {
        let count = diagnosis.problems.iter().filter(|problem| problem.severity == severity).count();
        let plural = if count == 1 { "" } else { "s" };
        (count > 0).then(|| format!("{count} {}{plural}", severity.name()))
    };
    let counts: Vec<String> =
        [Severity::Error, Severity::Warning, Severity::Note].into_iter().filter_map(count).collect();
    let _ = writeln!(text, "\n{}:", counts.join(", "));
    for Problem { severity, what, remedy } in &diagnosis.problems {
        fold(text, &format!("{:<9}", severity.name()), what);
        fold(text, "  remedy ", remedy);
    }
}

fn unused_addresses(facts: &HostFacts) -> impl Iterator<Item = (String, &'static str)> {
    facts.interfaces.iter().flat_map(|interface| {
        let reason = |ip| Some((format!("{ip}%{}", interface.name), unusable(ip)?));
        interface.addresses.iter().filter_map(move |address| reason(address.ip))
    })
}

/// One object.
pub(crate) fn to_json(diagnosis: &Diagnosis) -> Value {
    let facts = &diagnosis.facts;
    let problem = |problem: &Problem| json!({ "what": problem.what, "remedy": problem.remedy, "severity": problem.severity.name() });
    let buffer = |buffer: Option<SocketBuffer>| {
        buffer.map(|buffer| json!({ "asked_bytes": buffer.asked_bytes, "granted_bytes": buffer.granted_bytes }))
    };
    let is_used = |name: &str| diagnosis.libibverbs.devices.iter().any(|device| device.description.name == name);
    let kernel_devices = facts.rdma_devices.iter().map(|device| device.name.as_str());
    let rdma_devices: Vec<&str> = kernel_devices.filter(|name| !is_used(name)).collect();
    let of_libibverbs = diagnosis.libibverbs.devices.iter().map(rdma_report::device_json);
    let unused: Vec<Value> =
        unused_addresses(&diagnosis.facts).map(|(address, why)| json!({ "address": address, "why": why })).collect();
    json!({
        "schema": 1,
        "devices": diagnosis.devices.iter().map(device_json).chain(of_libibverbs).collect::<Vec<_>>(),
        "problems": diagnosis.problems.iter().map(problem).collect::<Vec<_>>(),
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
            "libibverbs": { "found": diagnosis.libibverbs.is_found, "remark": diagnosis.libibverbs.remark },
        },
    })
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

#[cfg(test)]
mod tests {
    use longhaul_host::{Interface, Libibverbs, Owner, RdmaDevice};

    use super::super::form::LINE_COLUMNS;
    use super::*;

    fn unopened() -> Entry {
        let interface = Interface { name: "eth0".to_owned(), is_up: true, has_carrier: true, ..Interface::default() };
        let roce_port = RocePort::Taken(Owner::Process { name: "longhaul".to_owned(), id: 7 });
        let address = "10.0.0.1".parse().unwrap();
        Entry { name: "softnic:10.0.0.1".to_owned(), address, interface, roce_port, details: None }
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_shown_all_the_same() {
        let report = Diagnosis { devices: vec![unopened()], ..Diagnosis::default() };
        let text = to_text(&report, false);
        let row = "softnic:10.0.0.1  eth0       unusable         -         -  -     held by longhaul (process 7)";
        assert!(text.lines().any(|line| line == row), "{text}");
        assert!(text.ends_with("Nothing is wrong with this host.\n"), "{text}");
        assert!(to_text(&report, true).contains("none (link MTU unknown)"));
        let json = to_json(&report);
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
        let report = Diagnosis { facts, libibverbs, ..Diagnosis::default() };
        assert!(to_text(&report, false).contains("\nlibibverbs is not there\n"));
        assert_eq!(to_json(&report)["host"]["unused_rdma_devices"], json!(["mlx5_0"]));
        assert_eq!(to_json(&report)["host"]["libibverbs"]["found"], false);
    }

    #[test]
    fn remarks_are_counted_and_folded() {
        let problem = |severity, what: &str| Problem { severity, what: what.to_owned(), remedy: "fix it".to_owned() };
        let problems = vec![problem(Severity::Warning, &"word ".repeat(30)), problem(Severity::Warning, "short")];
        let report = Diagnosis { problems, ..Diagnosis::default() };
        let text = to_text(&report, false);
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
