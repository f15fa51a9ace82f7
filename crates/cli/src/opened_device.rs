//! The device that a command works on, by the name that its user gives with `-d`: the one way in which all commands come by
//! one, so that they take the same names and say the same when there is none.
//!
//! ```text
//!   softnic            the software RNIC, at the address that leads to the peer (or those given with --address)
//!   softnic:ADDRESS    the software RNIC at this address of the host
//!   rxe0, mlx5_0, …    a device of libibverbs: the kernel's Soft-RoCE or an RNIC
//! ```
//!
//! Opening needs to know the peer: it decides which address of the host, and so which row of the GID table, is ours.

use std::net::IpAddr;

use longhaul_rdmacore::RdmaDevice;
use longhaul_softnic::Config;
use longhaul_softnic::udp::{UdpConfig, UdpDevice};
use longhaul_verbs::{Device, Gid, GidChoice, Mtu, PathAttributes};

use crate::message::with_sources;
use crate::randomness::random;
use crate::stop::Stop;

/// The software RNIC's name.
pub(crate) const SOFTNIC: &str = "softnic";
/// RoCEv2's UDP port: the only one that devices of libibverbs have.
pub(crate) const UDP_PORT_ROCE: u16 = 4791;

/// A device as its user names it, not opened yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// The software RNIC, at these addresses; at none, where the peer wants it.
    Softnic { addresses: Vec<IpAddr> },
    /// A device of libibverbs, and which of its addresses to use, when the user says so.
    Libibverbs { name: String, address: Option<IpAddr> },
}

/// Where the peer is, and what the user says about the way to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Towards {
    /// Our address on the way to the peer, as the TCP connection to it has it.
    pub(crate) local: IpAddr,
    /// The peer's.
    pub(crate) peer: IpAddr,
    /// Row of the GID table, when the user gives one.
    pub(crate) gid_index: Option<u8>,
}

/// An open device, and how it is addressed on the way to a peer.
pub(crate) struct OpenedDevice {
    verbs: Device,
    /// Our address: what the peer's path leads to.
    pub(crate) address: IpAddr,
    /// The GID that stands for it.
    pub(crate) gid: Gid,
    /// Its row in the GID table.
    pub(crate) gid_index: u8,
    /// The device's port, counted from 1.
    pub(crate) port: u8,
    /// The UDP port at which the device listens.
    pub(crate) udp_port: u16,
    warnings: Vec<String>,
    description: String,
}

impl DeviceChoice {
    /// From a device's name and the addresses that the user gives beside it.
    pub(crate) fn parse(name: &str, addresses: &[IpAddr]) -> Result<Self, Stop> {
        let in_name = match name.strip_prefix(SOFTNIC) {
            Some("") => return Ok(DeviceChoice::Softnic { addresses: addresses.to_vec() }),
            Some(rest) => rest.strip_prefix(':'),
            None => None,
        };
        let Some(text) = in_name else {
            return match addresses {
                [] | [_] => Ok(DeviceChoice::Libibverbs { name: name.to_owned(), address: addresses.first().copied() }),
                _ => Err(Stop::Usage(format!(
                    "-d {name}: expected at most one --address, the one to use of those that the device has; came {}",
                    addresses.len()
                ))),
            };
        };
        let address = text.parse().map_err(|_| {
            Stop::Missing(format!(
                "there is no device \"{name}\" here: expected {SOFTNIC}:ADDRESS with an address of this host, came \"{text}\""
            ))
        })?;
        if !addresses.is_empty() {
            return Err(Stop::Usage(format!(
                "-d {name} names the address already; leave --address out, or say -d {SOFTNIC}"
            )));
        }
        Ok(DeviceChoice::Softnic { addresses: vec![address] })
    }

    /// Says what is missing when there is no such device, before anybody waits for it.
    pub(crate) fn check(&self) -> Result<(), Stop> {
        match self {
            DeviceChoice::Softnic { .. } => Ok(()),
            DeviceChoice::Libibverbs { name, .. } => match longhaul_rdmacore::devices() {
                Ok(devices) if devices.iter().any(|device| device.name == *name) => Ok(()),
                Ok(devices) => {
                    let known: Vec<String> = devices.into_iter().map(|device| device.name).collect();
                    let what = match known.is_empty() {
                        true => "libibverbs finds no RDMA device on this host".to_owned(),
                        false => format!("libibverbs finds {}", known.join(", ")),
                    };
                    Err(no_such_device(name, &what))
                }
                Err(error) => Err(no_such_device(name, &with_sources(&error))),
            },
        }
    }

    /// Whether it is the software RNIC, which alone can impair, capture and choose its UDP port.
    pub(crate) const fn is_softnic(&self) -> bool {
        matches!(self, DeviceChoice::Softnic { .. })
    }

    /// The address that the software RNIC is going to have.
    pub(crate) fn address_towards(&self, towards: Towards) -> Option<IpAddr> {
        match self {
            DeviceChoice::Softnic { addresses } if addresses.is_empty() => Some(towards.local),
            DeviceChoice::Softnic { addresses } => addresses.get(usize::from(towards.gid_index.unwrap_or(0))).copied(),
            DeviceChoice::Libibverbs { .. } => None,
        }
    }

    /// The address that the user gives the device, if any: a server listens there.
    pub(crate) fn given_address(&self) -> Option<IpAddr> {
        match self {
            DeviceChoice::Softnic { addresses } => addresses.first().copied(),
            DeviceChoice::Libibverbs { address, .. } => *address,
        }
    }
}

impl OpenedDevice {
    /// Opens it. `udp` is for the software RNIC alone.
    pub(crate) fn open(choice: &DeviceChoice, towards: Towards, udp: UdpConfig) -> Result<Self, Stop> {
        match choice {
            DeviceChoice::Softnic { addresses } => Self::open_softnic(addresses, towards, udp),
            DeviceChoice::Libibverbs { name, address } => {
                choice.check()?;
                Self::open_libibverbs(name, *address, towards)
            }
        }
    }

    fn open_softnic(addresses: &[IpAddr], towards: Towards, udp: UdpConfig) -> Result<Self, Stop> {
        let addresses = if addresses.is_empty() { vec![towards.local] } else { addresses.to_vec() };
        let gid_index = towards.gid_index.unwrap_or(0);
        let Some(&address) = addresses.get(usize::from(gid_index)) else {
            return Err(Stop::Usage(format!(
                "-x {gid_index}: the GID table has {} rows, counted from 0; give more with --address",
                addresses.len()
            )));
        };
        let opened = UdpDevice::open(Config::new(SOFTNIC, addresses, random()?), udp);
        let device =
            opened.map_err(|error| Stop::Missing(format!("cannot open the device: {}", with_sources(&error))))?;
        let udp_port = device.udp_port();
        Ok(OpenedDevice {
            verbs: device.verbs(),
            address,
            gid: Gid::from_ip(address),
            gid_index,
            port: 1,
            udp_port,
            warnings: device.warnings().iter().map(ToString::to_string).collect(),
            description: format!("{SOFTNIC}:{address} (UDP port {udp_port})"),
        })
    }

    fn open_libibverbs(name: &str, address: Option<IpAddr>, towards: Towards) -> Result<Self, Stop> {
        let device = RdmaDevice::open(name).map_err(|error| Stop::Missing(with_sources(&error)))?;
        let verbs = device.verbs();
        let row = match towards.gid_index {
            Some(index) => given_row(&verbs, index)?,
            None => {
                // From the host's loopback address no device sends; its peer is another device of this host, or the same one.
                let local = address.or(Some(towards.local).filter(|local| !local.is_loopback()));
                let chosen = verbs.choose_gid(local, towards.peer);
                chosen.map_err(|error| {
                    Stop::Missing(format!("{name}: {} (-x INDEX, --address ADDRESS)", with_sources(&error)))
                })?
            }
        };
        let gid_index = u8::try_from(row.index).map_err(|_| {
            Stop::Missing(format!(
                "{name}: row {} of the GID table is beyond 255, which no request can name",
                row.index
            ))
        })?;
        let driver = device.driver().map_or_else(String::new, |driver| format!(", {driver}"));
        Ok(OpenedDevice {
            verbs,
            address: row.address,
            gid: row.gid,
            gid_index,
            port: row.port,
            udp_port: UDP_PORT_ROCE,
            warnings: Vec::new(),
            description: format!("{name} (libibverbs{driver})"),
        })
    }

    /// The device.
    pub(crate) fn verbs(&self) -> Device {
        self.verbs.clone()
    }

    /// In one line for people: which device, of which kind.
    pub(crate) fn describe(&self) -> &str {
        &self.description
    }

    /// What the host lacks for this device to do its best, to standard error.
    pub(crate) fn tell_warnings(&self) {
        for warning in &self.warnings {
            eprintln!("warning: {warning}");
        }
    }

    /// The payload of a packet that the port can carry.
    pub(crate) fn mtu(&self) -> Result<Mtu, Stop> {
        let port = self.verbs.port_attributes(self.port);
        Ok(port.map_err(|error| Stop::failed("cannot ask the device for its MTU", error))?.active_mtu)
    }

    /// The way to a peer's device, which listens at this UDP port.
    pub(crate) fn path_to(&self, peer: Gid, udp_port: u16) -> PathAttributes {
        PathAttributes { source_gid_index: self.gid_index, port: self.port, udp_port, ..PathAttributes::to(peer) }
    }
}

fn no_such_device(name: &str, what_there_is: &str) -> Stop {
    Stop::Missing(format!(
        "there is no device \"{name}\" here: {what_there_is}. There are also {SOFTNIC}, and {SOFTNIC}:ADDRESS with an address of \
         this host; `longhaul devices` shows them all"
    ))
}

/// The row of the first port's GID table that the user names.
fn given_row(verbs: &Device, index: u8) -> Result<GidChoice, Stop> {
    let name = verbs.name();
    let row = verbs.gid(1, index.into());
    let row = row.map_err(|error| Stop::Usage(format!("-x {index}: {name}: {}", with_sources(&error))))?;
    if row.gid == Gid::default() {
        return Err(Stop::Usage(format!(
            "-x {index}: this row of {name}'s GID table is empty; `longhaul devices -v` shows those that are not"
        )));
    }
    Ok(GidChoice { port: 1, index: row.index, gid: row.gid, address: row.gid.to_ip() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_device_can_name_its_address() {
        let parse = |name: &str, addresses: &[&str]| {
            let addresses: Vec<IpAddr> = addresses.iter().map(|text| address(text)).collect();
            DeviceChoice::parse(name, &addresses)
        };
        let softnic = |addresses: &[&str]| DeviceChoice::Softnic {
            addresses: addresses.iter().map(|text| address(text)).collect(),
        };
        assert_eq!(parse("softnic", &[]).unwrap(), softnic(&[]));
        assert_eq!(parse("softnic", &["127.0.0.1", "::1"]).unwrap(), softnic(&["127.0.0.1", "::1"]));
        assert_eq!(parse("softnic:127.0.0.9", &[]).unwrap(), softnic(&["127.0.0.9"]));
        assert_eq!(parse("softnic:::1", &[]).unwrap(), softnic(&["::1"]));
        assert!(matches!(parse("softnic:here", &[]), Err(Stop::Missing(text)) if text.contains("\"here\"")));
        assert!(matches!(parse("softnic:127.0.0.9", &["127.0.0.8"]), Err(Stop::Usage(_))));
        let rxe = DeviceChoice::Libibverbs { name: "rxe0".to_owned(), address: Some(address("192.0.2.1")) };
        assert_eq!(parse("rxe0", &["192.0.2.1"]).unwrap(), rxe);
        assert_eq!(rxe.given_address(), Some(address("192.0.2.1")));
        assert!(matches!(parse("rxe0", &["192.0.2.1", "::1"]), Err(Stop::Usage(_))));
    }

    #[test]
    fn the_software_rnic_is_open_towards_its_peer() {
        let towards = Towards { local: address("127.0.0.1"), peer: address("127.0.0.1"), gid_index: None };
        let mut udp = UdpConfig::default();
        udp.udp_port = longhaul_softnic::udp::UdpPortChoice::Free;
        let choice = DeviceChoice::parse(SOFTNIC, &[]).unwrap();
        let opened = OpenedDevice::open(&choice, towards, udp.clone()).unwrap();
        assert_eq!((opened.address, opened.gid_index, opened.port), (towards.local, 0, 1));
        assert_eq!(opened.describe(), format!("softnic:127.0.0.1 (UDP port {})", opened.udp_port));
        let refused = OpenedDevice::open(&choice, Towards { gid_index: Some(1), ..towards }, udp);
        assert!(matches!(refused, Err(Stop::Usage(text)) if text.contains("-x 1")));
    }
}
