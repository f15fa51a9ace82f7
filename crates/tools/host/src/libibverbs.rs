//! The devices of libibverbs: RNICs and the kernel's Soft-RoCE, each opened for a moment to ask it.

use longhaul::with_sources;
use longhaul_rdmacore::{DeviceDescription, ListError, RdmaDevice};
use longhaul_verbs::{Counter, DeviceAttributes, Gid, GidEntry, GidType, LinkState, Mtu, PortAttributes};

use crate::facts::{HostFacts, Interface};
use crate::problems::{Problem, Severity};

/// What libibverbs knows.
#[derive(Clone, Debug, Default)]
pub struct Libibverbs {
    /// Its devices.
    pub devices: Vec<RdmaEntry>,
    /// Why there are none: the library is missing, or there is nothing for it to find.
    pub remark: Option<String>,
    /// Whether the library is there.
    pub is_found: bool,
}

/// A device of libibverbs as it is shown.
#[derive(Clone, Debug)]
pub struct RdmaEntry {
    /// What is known without opening it.
    pub description: DeviceDescription,
    /// What it reports; `None` when it could not be opened.
    pub details: Option<RdmaDetails>,
}

/// What an open device reports.
#[derive(Clone, Debug)]
pub struct RdmaDetails {
    /// Sizes and abilities.
    pub attributes: DeviceAttributes,
    /// Its ports, from port 1.
    pub ports: Vec<Port>,
    /// What it has counted.
    pub counters: Vec<Counter>,
}

/// A port and the rows of its GID table that are not empty.
#[derive(Clone, Debug)]
pub struct Port {
    /// Counted from 1.
    pub number: u8,
    /// The port.
    pub attributes: PortAttributes,
    /// Its addresses.
    pub gids: Vec<GidEntry>,
}

impl RdmaEntry {
    /// The first port that is up, or else the first.
    pub fn port(&self) -> Option<&Port> {
        let ports = &self.details.as_ref()?.ports;
        ports.iter().find(|port| port.attributes.state == LinkState::Active).or(ports.first())
    }

    /// The port's state, as people and `--json` read it.
    pub fn state(&self) -> &'static str {
        match self.port().map(|port| port.attributes.state) {
            Some(LinkState::Active) => "active",
            Some(LinkState::Initializing) => "initializing",
            Some(_) => "down",
            None => "unusable",
        }
    }

    /// Whether it can be opened and its port is up.
    pub fn is_usable(&self) -> bool {
        self.state() == "active"
    }

    /// The largest path MTU that works there now.
    pub fn active_mtu(&self) -> Option<Mtu> {
        self.port().map(|port| port.attributes.active_mtu)
    }

    /// All rows of all GID tables.
    pub fn gids(&self) -> impl Iterator<Item = (u8, &GidEntry)> {
        let ports = self.details.iter().flat_map(|details| &details.ports);
        ports.flat_map(|port| port.gids.iter().map(|row| (port.number, row)))
    }
}

/// A GID's type, as sysfs and `ibv_devinfo -v` have it.
pub const fn type_name(gid_type: GidType) -> &'static str {
    match gid_type {
        GidType::RoceV1 => "RoCE v1",
        GidType::RoceV2 => "RoCE v2",
        _ => "InfiniBand",
    }
}

/// The devices of libibverbs, and what kept some from being opened.
pub(crate) fn look(facts: &HostFacts) -> (Libibverbs, Vec<Problem>) {
    match longhaul_rdmacore::devices() {
        Ok(descriptions) => {
            let mut problems = unlisted(facts, &descriptions);
            let devices: Vec<RdmaEntry> = descriptions
                .into_iter()
                .map(|description| {
                    let details = ask(&description.name);
                    if let Err(what) = &details {
                        problems.push(cannot_open(&description, what));
                    }
                    RdmaEntry { description, details: details.ok() }
                })
                .collect();
            let remark = (devices.is_empty() && facts.rdma_devices.is_empty()).then(|| no_devices(facts));
            (Libibverbs { devices, remark, is_found: true }, problems)
        }
        Err(error) => {
            let is_found = !matches!(error, ListError::Load(_));
            let problems = kept_from_use(facts, &error);
            let remark = format!(
                "RDMA hardware and the kernel's Soft-RoCE are not looked at: {error}. The software RNIC needs none of it."
            );
            (Libibverbs { devices: Vec::new(), remark: Some(remark), is_found }, problems)
        }
    }
}

/// What makes a device where there is none.
fn no_devices(facts: &HostFacts) -> String {
    let is_wired = |interface: &&Interface| interface.name != "lo" && interface.is_up;
    let interface = facts.interfaces.iter().find(is_wired).map_or("INTERFACE", |interface| interface.name.as_str());
    format!(
        "libibverbs finds no RDMA device on this host. The kernel's Soft-RoCE makes one of an Ethernet interface: \
         `sudo rdma link add rxe0 type rxe netdev {interface}` (needs the kernel's module rdma_rxe, and package iproute2)."
    )
}

/// The kernel has devices, and nobody to ask for them.
fn kept_from_use(facts: &HostFacts, error: &ListError) -> Vec<Problem> {
    let names: Vec<&str> = facts.rdma_devices.iter().map(|device| device.name.as_str()).collect();
    if names.is_empty() {
        return Vec::new();
    }
    vec![Problem {
        severity: Severity::Warning,
        what: format!("the kernel's RDMA devices cannot be used ({}): {}", names.join(", "), with_sources(error)),
        remedy: "`sudo apt install libibverbs1 ibverbs-providers`, or what your distribution calls them".to_owned(),
    }]
}

/// Devices of the kernel that libibverbs does not show: it has no driver for them.
fn unlisted(facts: &HostFacts, listed: &[DeviceDescription]) -> Vec<Problem> {
    let is_listed = |name: &str| listed.iter().any(|description| description.name == name);
    let problem = |name: &String| Problem {
        severity: Severity::Warning,
        what: format!("the kernel has the RDMA device {name}, and libibverbs does not know it"),
        remedy:
            "install its driver for libibverbs: `sudo apt install ibverbs-providers`; and is /dev/infiniband there?"
                .to_owned(),
    };
    facts.rdma_devices.iter().map(|device| &device.name).filter(|name| !is_listed(name)).map(problem).collect()
}

fn cannot_open(description: &DeviceDescription, what: &str) -> Problem {
    let file = format!("/dev/infiniband/{}", description.kernel_device);
    Problem {
        severity: Severity::Error,
        what: what.to_owned(),
        remedy: format!("`ls -l {file}` shows who may use the device; programs need to read and write this file"),
    }
}

fn ask(name: &str) -> Result<RdmaDetails, String> {
    let device = RdmaDevice::open(name).map_err(|error| with_sources(&error))?;
    let verbs = device.verbs();
    let attributes = verbs.attributes().map_err(|error| with_sources(&error))?;
    let mut ports = Vec::new();
    for number in 1..=attributes.port_count {
        let port = verbs.port_attributes(number).map_err(|error| with_sources(&error))?;
        let rows = (0..port.gid_table_length).filter_map(|index| verbs.gid(number, index).ok());
        let gids = rows.filter(|row| row.gid != Gid::default()).collect();
        ports.push(Port { number, attributes: port, gids });
    }
    Ok(RdmaDetails { attributes, ports, counters: verbs.counters() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts;

    fn kernel_device(name: &str) -> facts::RdmaDevice {
        facts::RdmaDevice { name: name.to_owned(), ..facts::RdmaDevice::default() }
    }

    #[test]
    fn a_host_without_devices_is_told_how_to_make_one() {
        let interface = |name: &str, is_up| Interface { name: name.to_owned(), is_up, ..Interface::default() };
        let interfaces = vec![interface("lo", true), interface("eth0", false), interface("eth1", true)];
        let facts = HostFacts { interfaces, ..HostFacts::default() };
        let remark = no_devices(&facts);
        assert!(remark.contains("`sudo rdma link add rxe0 type rxe netdev eth1`"), "{remark}");
        assert!(no_devices(&HostFacts::default()).contains("netdev INTERFACE`"));
    }

    #[test]
    fn devices_that_libibverbs_does_not_know_are_told() {
        let facts =
            HostFacts { rdma_devices: vec![kernel_device("mlx5_0"), kernel_device("rxe0")], ..HostFacts::default() };
        let listed = DeviceDescription {
            name: "rxe0".to_owned(),
            driver: None,
            node_guid: 0,
            interface: None,
            kernel_device: "uverbs0".to_owned(),
        };
        let problems = unlisted(&facts, &[listed]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].what.contains("mlx5_0") && problems[0].remedy.contains("ibverbs-providers"));
    }
}
