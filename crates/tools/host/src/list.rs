//! The devices of this host: a softnic on each address that it can use, opened for a moment to ask it.

use std::net::IpAddr;

use longhaul::with_sources;
use longhaul_softnic::Config;
use longhaul_softnic_udp::{UdpConfig, UdpDevice, UdpPortChoice};
use longhaul_verbs::{Counter, DeviceAttributes, GidEntry, LinkState, Mtu, PortAttributes};

use crate::facts::{Address, HostFacts, Interface, RocePort, unusable};
use crate::problems::{Problem, Severity};

/// A device as it is shown.
#[derive(Clone, Debug)]
pub struct Entry {
    /// `softnic:ADDRESS`, as options that name a device take it.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// The interface with that address.
    pub interface: Interface,
    /// UDP port 4791 there.
    pub roce_port: RocePort,
    /// What it reports; `None` when it could not be opened.
    pub details: Option<Details>,
}

/// What an open device reports.
#[derive(Clone, Debug)]
pub struct Details {
    /// Sizes and abilities.
    pub attributes: DeviceAttributes,
    /// Its port.
    pub port: PortAttributes,
    /// The rows of its GID table.
    pub gids: Vec<GidEntry>,
    /// What it has counted.
    pub counters: Vec<Counter>,
}

impl Entry {
    /// Whether it can be opened and its interface carries packets of at least the smallest path MTU.
    pub fn is_usable(&self) -> bool {
        self.active_mtu().is_some()
    }

    /// The port's state, as people and `--json` read it.
    pub fn state(&self) -> &'static str {
        match &self.details {
            _ if !self.interface.is_up || !self.interface.has_carrier => "down",
            Some(details) if self.is_usable() => match details.port.state {
                LinkState::Active => "active",
                LinkState::Initializing => "initializing",
                _ => "down",
            },
            _ => "unusable",
        }
    }

    /// The largest path MTU that works here: the device's and the interface's.
    pub fn active_mtu(&self) -> Option<Mtu> {
        let details = self.details.as_ref()?;
        match self.interface.link.mtu_bytes {
            Some(_) => self.interface.fitting_mtu(self.address).map(|fitting| fitting.min(details.port.active_mtu)),
            None => Some(details.port.active_mtu),
        }
    }
}

/// The devices of a host, and what kept some from being opened.
pub(crate) fn devices(facts: &HostFacts) -> (Vec<Entry>, Vec<Problem>) {
    let mut entries = Vec::new();
    let mut problems = Vec::new();
    for interface in &facts.interfaces {
        for Address { ip, roce_port } in interface.addresses.iter().filter(|address| unusable(address.ip).is_none()) {
            let name = format!("softnic:{ip}");
            let details = match open(&name, *ip) {
                Ok(details) => Some(details),
                // That the interface has no link or carries no packet is said once for the interface.
                Err(_) if !interface.has_carrier || interface.fitting_mtu(*ip).is_none() => None,
                Err(what) => {
                    let remedy = format!("`ip address show {}` shows the state of the address", interface.name);
                    problems.push(Problem { severity: Severity::Error, what: format!("{name}: {what}"), remedy });
                    None
                }
            };
            let (interface, roce_port) = (interface.clone(), roce_port.clone());
            entries.push(Entry { name, address: *ip, interface, roce_port, details });
        }
    }
    (entries, problems)
}

/// Open a device on a free port, so that nobody who wants 4791 is kept from it, and ask it.
fn open(name: &str, address: IpAddr) -> Result<Details, String> {
    // Nobody ever learns a key of this device: any seed is secret enough.
    let config = Config::new(name, vec![address], [0; 32]);
    let mut udp = UdpConfig::default();
    udp.udp_port = UdpPortChoice::Free;
    // Its warnings are left out: they are about what `problems` looks at for the whole host.
    let device = UdpDevice::open(config, udp).map_err(|error| with_sources(&error))?;
    let verbs = device.verbs();
    let attributes = verbs.attributes().map_err(|error| with_sources(&error))?;
    let port = verbs.port_attributes(1).map_err(|error| with_sources(&error))?;
    let gids = (0..port.gid_table_length).filter_map(|index| verbs.gid(1, index).ok()).collect();
    Ok(Details { attributes, port, gids, counters: verbs.counters() })
}
