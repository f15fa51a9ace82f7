//! The devices of libibverbs in a table for people and in JSON for programs.

use std::fmt::Write as _;

use longhaul_host::{RdmaEntry, type_name};
use longhaul_verbs::{GidEntry, GidType};
use serde_json::{Value, json};

use super::form::{capabilities, fold, limits_json, write_columns, write_counters, write_limits, write_line};

/// A row for each device.
pub(crate) fn write_table(text: &mut String, devices: &[RdmaEntry]) {
    let heading = ["device", "driver", "interface", "state", "path MTU", "rate", "GIDs (RoCE v2)"];
    let mut rows = vec![heading.map(str::to_owned)];
    let known = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".to_owned());
    rows.extend(devices.iter().map(|device| {
        let roce = device.gids().filter(|(_, row)| row.gid_type == GidType::RoceV2);
        let gids: Vec<String> = roce.map(|(_, row)| format!("{}: {}", row.index, row.gid.to_ip())).collect();
        [
            device.description.name.clone(),
            known(&device.description.driver),
            known(&device.description.interface),
            device.state().to_owned(),
            device.active_mtu().map_or("-".to_owned(), |mtu| mtu.byte_count().to_string()),
            rate(device),
            if gids.is_empty() { "-".to_owned() } else { gids.join(", ") },
        ]
    }));
    write_columns(text, &rows, &[4]);
}

/// A device with everything, as `ibv_devinfo -v` users expect it.
pub(crate) fn write_device(text: &mut String, device: &RdmaEntry) {
    let description = &device.description;
    let _ = writeln!(text, "{}", description.name);
    let mut line = |name: &str, value: &str| write_line(text, 2, name, value);
    line("driver", description.driver.as_deref().unwrap_or("unknown"));
    line("interface", description.interface.as_deref().unwrap_or("unknown"));
    line("kernel device", &description.kernel_device);
    line("node GUID", &format!("{:016x}", description.node_guid));
    line("state", device.state());
    let Some(details) = &device.details else {
        text.push('\n');
        return;
    };
    if let Some(port) = device.port() {
        let (active, most) = (port.attributes.active_mtu.byte_count(), port.attributes.max_mtu.byte_count());
        line("path MTU", &format!("{active}, at most {most}"));
    }
    line("rate", &rate(device));
    let has_ports = details.ports.len() > 1;
    for (port, row) in device.gids() {
        let which = if has_ports { format!("GID {} of port {port}", row.index) } else { format!("GID {}", row.index) };
        line(&which, &gid(row));
    }
    line("firmware", &details.attributes.firmware_version);
    fold(text, &format!("  {:<32}", "capabilities"), &capabilities(&details.attributes).join(" "));
    write_limits(text, &details.attributes);
    let counters: Vec<(&str, u64)> =
        details.counters.iter().map(|counter| (counter.name.as_ref(), counter.value)).collect();
    write_counters(text, "counters", "of all programs since the device was made", &counters);
    text.push('\n');
}

fn gid(row: &GidEntry) -> String {
    match row.gid_type {
        GidType::RoceV2 => format!("{:?} ({}, {})", row.gid, type_name(row.gid_type), row.gid.to_ip()),
        other => format!("{:?} ({})", row.gid, type_name(other)),
    }
}

fn rate(device: &RdmaEntry) -> String {
    let rate = device.port().and_then(|port| port.attributes.rate_bits_per_second);
    rate.map_or("-".to_owned(), |rate| format!("{} Gbit/s", rate as f64 / 1e9))
}

/// A device's row of JSON, with the keys of softnic's rows where they fit.
pub(crate) fn device_json(device: &RdmaEntry) -> Value {
    let description = &device.description;
    let roce = || device.gids().filter(|(_, row)| row.gid_type == GidType::RoceV2);
    let table: Vec<Value> = device
        .gids()
        .map(|(port, row)| {
            let address = (row.gid_type == GidType::RoceV2).then(|| row.gid.to_ip().to_string());
            let (gid, gid_type) = (format!("{:?}", row.gid), type_name(row.gid_type));
            json!({ "port": port, "index": row.index, "gid": gid, "type": gid_type, "address": address })
        })
        .collect();
    let details = device.details.as_ref();
    json!({
        "name": description.name,
        "kind": "libibverbs",
        "driver": description.driver,
        "firmware_version": details.map(|details| details.attributes.firmware_version.clone()),
        "node_guid": format!("{:016x}", description.node_guid),
        "kernel_device": description.kernel_device,
        "addresses": roce().map(|(_, row)| row.gid.to_ip().to_string()).collect::<Vec<_>>(),
        "gids": device.gids().map(|(_, row)| format!("{:?}", row.gid)).collect::<Vec<_>>(),
        "gid_table": table,
        "interface": description.interface,
        "state": device.state(),
        "usable": device.is_usable(),
        "active_mtu_bytes": device.active_mtu().map(|mtu| mtu.byte_count()),
        "max_mtu_bytes": device.port().map(|port| port.attributes.max_mtu.byte_count()),
        "rate_bits_per_second": device.port().and_then(|port| port.attributes.rate_bits_per_second),
        "capabilities": details.map(|details| capabilities(&details.attributes)),
        "limits": details.map(|details| limits_json(&details.attributes)),
        "counters": details.map(|details| {
            details.counters.iter().map(|counter| (counter.name.to_string(), Value::from(counter.value))).collect::<Value>()
        }),
    })
}

#[cfg(test)]
mod tests {
    use longhaul_rdmacore::DeviceDescription;
    use longhaul_verbs::{Capabilities, Counter, DeviceAttributes, Gid, LinkState, Mtu, PortAttributes};

    use super::*;
    use longhaul_host::{Port, RdmaDetails};

    fn rxe() -> RdmaEntry {
        let row = |index, gid: &str, gid_type| GidEntry {
            gid: Gid::from_ip(gid.parse().expect("an address")),
            gid_type,
            index,
        };
        let port = PortAttributes {
            state: LinkState::Active,
            max_mtu: Mtu::Bytes4096,
            active_mtu: Mtu::Bytes1024,
            gid_table_length: 1024,
            partition_key_table_length: 1,
            rate_bits_per_second: Some(2_500_000_000),
            lid: 0,
        };
        let gids = vec![row(0, "fe80::1", GidType::RoceV1), row(1, "192.0.2.2", GidType::RoceV2)];
        let attributes = DeviceAttributes {
            capabilities: Capabilities::RELIABLE_CONNECTION | Capabilities::ATOMICS,
            node_guid: 0,
            vendor_id: 0,
            firmware_version: "1.2".to_owned(),
            port_count: 1,
            max_region_bytes: u64::MAX,
            max_queue_pairs: 9,
            max_work_requests: 9,
            max_scatter_gather_entries: 9,
            max_completion_queues: 9,
            max_completion_queue_entries: 9,
            max_memory_regions: 9,
            max_protection_domains: 9,
            max_inline_bytes: 9,
            max_message_bytes: 9,
            max_destination_read_atomic: 9,
            max_read_atomic: 9,
            max_shared_receive_queues: 9,
            max_memory_windows: 9,
            max_address_handles: 9,
            max_multicast_groups: 9,
        };
        let counters = vec![Counter { name: "sent_pkts".into(), value: 7 }];
        RdmaEntry {
            description: DeviceDescription {
                name: "rxe0".to_owned(),
                driver: Some("rxe".to_owned()),
                node_guid: 0x5054_00ff_fe12_3456,
                interface: Some("eth0".to_owned()),
                kernel_device: "uverbs0".to_owned(),
            },
            details: Some(RdmaDetails {
                attributes,
                ports: vec![Port { number: 1, attributes: port, gids }],
                counters,
            }),
        }
    }

    #[test]
    fn a_device_has_a_row_with_its_addresses() {
        let mut text = String::new();
        write_table(&mut text, &[rxe()]);
        let row = "rxe0    rxe     eth0       active      1024  2.5 Gbit/s  1: 192.0.2.2";
        assert_eq!(text.lines().nth(1), Some(row), "{text}");
        let unopened = RdmaEntry { details: None, ..rxe() };
        text.clear();
        write_table(&mut text, std::slice::from_ref(&unopened));
        assert!(text.lines().nth(1).is_some_and(|row| row.contains("unusable") && row.ends_with("-")), "{text}");
        assert_eq!(device_json(&unopened)["usable"], false);
    }

    #[test]
    fn everything_is_shown_on_demand() {
        let mut text = String::new();
        write_device(&mut text, &rxe());
        for part in ["RoCE v2, 192.0.2.2", "fe80::1 (RoCE v1)", "ATOMICS", "sent_pkts", "505400fffe123456", "1.2"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let json = device_json(&rxe());
        assert_eq!((&json["driver"], &json["usable"]), (&"rxe".into(), &true.into()));
        assert_eq!(json["addresses"], json!(["192.0.2.2"]));
        let row = json!({ "port": 1, "index": 0, "gid": "fe80::1", "type": "RoCE v1", "address": null });
        assert_eq!(json["gid_table"][0], row);
        assert_eq!(json["limits"]["max_region_bytes"], Value::Null, "no limit");
    }
}
