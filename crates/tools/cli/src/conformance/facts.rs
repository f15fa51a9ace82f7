//! What was tested: the devices, what they say of themselves, and what they run on. It goes into every report, so that
//! one that is sent to us needs no questions.

use std::fmt::Write as _;

use longhaul_conformance::Environment;
use longhaul_verbs::{Capabilities, DeviceAttributes, GidEntry, PortAttributes, QueryError};
use serde_json::{Value, json};

/// What was tested.
pub(super) struct Facts {
    /// Release of the kernel that runs.
    pub(super) kernel: Option<String>,
    /// Version of rdma-core, where a device of libibverbs was tested.
    pub(super) rdma_core: Option<String>,
    /// The device of each end; one, when both are the same.
    pub(super) devices: Vec<DeviceFacts>,
}

/// A device.
pub(super) struct DeviceFacts {
    pub(super) name: String,
    /// `softnic`, or the kernel's driver: `rxe`, `mlx5`.
    pub(super) driver: String,
    pub(super) attributes: DeviceAttributes,
    port: u8,
    port_attributes: PortAttributes,
    gid: GidEntry,
    udp_port: u16,
}

impl Facts {
    /// Asks the devices of an environment; `drivers` are those of its two ends.
    pub(super) fn of(
        environment: &dyn Environment,
        drivers: [&str; 2],
        rdma_core: Option<String>,
    ) -> Result<Self, QueryError> {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|text| text.trim().to_owned());
        let mut devices: Vec<DeviceFacts> = Vec::new();
        for (end, device) in environment.devices().into_iter().enumerate() {
            if devices.iter().any(|known| known.name == device.name()) {
                continue;
            }
            let port = environment.port(end);
            devices.push(DeviceFacts {
                name: device.name().to_owned(),
                driver: drivers[end].to_owned(),
                attributes: device.attributes()?,
                port,
                port_attributes: device.port_attributes(port)?,
                gid: device.gid(port, environment.gid_index(end).into())?,
                udp_port: environment.udp_port(end),
            });
        }
        Ok(Facts { kernel, rdma_core, devices })
    }

    /// Keys of the report.
    pub(super) fn to_json(&self) -> Value {
        let devices: Vec<Value> = self.devices.iter().map(DeviceFacts::to_json).collect();
        json!({ "kernel": self.kernel, "rdma_core": self.rdma_core, "devices": devices })
    }

    /// Some lines for people.
    pub(super) fn to_text(&self) -> String {
        let mut text = String::new();
        for device in &self.devices {
            text.push_str(&device.to_text());
        }
        let unknown = || "unknown".to_owned();
        // Writing to a string does not fail.
        let _ = writeln!(text, "kernel: {}", self.kernel.clone().unwrap_or_else(unknown));
        if self.devices.iter().any(|device| device.driver != super::testable::SOFTNIC) {
            let _ = writeln!(text, "rdma-core: {}", self.rdma_core.clone().unwrap_or_else(unknown));
        }
        text
    }
}

impl DeviceFacts {
    fn to_json(&self) -> Value {
        let (attributes, port) = (&self.attributes, &self.port_attributes);
        json!({
            "name": self.name,
            "driver": self.driver,
            "firmware": attributes.firmware_version,
            "vendor_id": attributes.vendor_id,
            "node_guid": format!("{:016x}", attributes.node_guid),
            "capabilities": capability_names(attributes.capabilities),
            "limits": limits(attributes),
            "port": {
                "number": self.port,
                "max_mtu_bytes": port.max_mtu.byte_count(),
                "active_mtu_bytes": port.active_mtu.byte_count(),
                "rate_bits_per_second": port.rate_bits_per_second,
                "gid_table_length": port.gid_table_length,
                "gid_index": self.gid.index,
                "gid": format!("{:?}", self.gid.gid),
                "gid_type": format!("{:?}", self.gid.gid_type),
                "udp_port": self.udp_port,
            },
        })
    }

    fn to_text(&self) -> String {
        let (attributes, port) = (&self.attributes, &self.port_attributes);
        let capabilities = capability_names(attributes.capabilities).join(" ");
        let limits: Vec<String> = match limits(attributes) {
            Value::Object(map) => map.into_iter().map(|(name, value)| format!("{name} {value}")).collect(),
            _ => Vec::new(),
        };
        format!(
            "{}: driver {}, firmware {:?}, port {}, MTU {} of {}, GID {} {:?} ({:?}), UDP port {}\n  can: {capabilities}\n  limits: {}\n",
            self.name,
            self.driver,
            attributes.firmware_version,
            self.port,
            port.active_mtu.byte_count(),
            port.max_mtu.byte_count(),
            self.gid.index,
            self.gid.gid,
            self.gid.gid_type,
            self.udp_port,
            limits.join(", "),
        )
    }
}

/// The names of the flags, in their order.
pub(super) fn capability_names(capabilities: Capabilities) -> Vec<String> {
    capabilities.iter_names().map(|(name, _)| name.to_owned()).collect()
}

/// The sizes of a device, by the names of their fields.
pub(super) fn limits(attributes: &DeviceAttributes) -> Value {
    json!({
        "max_region_bytes": attributes.max_region_bytes,
        "max_queue_pairs": attributes.max_queue_pairs,
        "max_work_requests": attributes.max_work_requests,
        "max_scatter_gather_entries": attributes.max_scatter_gather_entries,
        "max_completion_queues": attributes.max_completion_queues,
        "max_completion_queue_entries": attributes.max_completion_queue_entries,
        "max_memory_regions": attributes.max_memory_regions,
        "max_protection_domains": attributes.max_protection_domains,
        "max_inline_bytes": attributes.max_inline_bytes,
        "max_message_bytes": attributes.max_message_bytes,
        "max_destination_read_atomic": attributes.max_destination_read_atomic,
        "max_read_atomic": attributes.max_read_atomic,
        "max_shared_receive_queues": attributes.max_shared_receive_queues,
        "max_memory_windows": attributes.max_memory_windows,
        "max_address_handles": attributes.max_address_handles,
        "max_multicast_groups": attributes.max_multicast_groups,
    })
}
