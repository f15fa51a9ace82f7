//! The device that a command works on, by the name that its user gives with `-d`: the one way in which all commands
//! come by one, so that they take the same names and say the same when there is none.
//!
//! ```text
//!   softnic            the software RNIC, at the address that leads to the peer (or those given with --address)
//!   softnic:ADDRESS    the software RNIC at this address of the host
//!   rxe0, mlx5_0, …    a device of libibverbs: the kernel's Soft-RoCE or an RNIC
//! ```
//!
//! Opening needs to know the peer: it decides which address of the host, and so which row of the GID table, is ours.

use std::net::IpAddr;

pub(crate) use longhaul::UDP_PORT_ROCE;
use longhaul::with_sources;
use longhaul::{DeviceName, DeviceNameError, Endpoint, OpenError};
pub use longhaul::{SOFTNIC, Towards};
use longhaul_impair::Counters;
use longhaul_softnic_udp::{CaptureSummary, DecoderCounters, EncoderCounters, PathStatus, UdpConfig, UdpDevice};
use longhaul_verbs::{Device, Gid, Mtu, PathAttributes};

use crate::error::PerfError;

/// A device as its user names it, not opened yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    name: DeviceName,
}

/// An open device, and how it is addressed towards a peer.
pub struct OpenedDevice {
    endpoint: Endpoint,
    /// Our address: what the peer's path leads to.
    pub address: IpAddr,
    /// The GID that stands for it.
    pub gid: Gid,
    /// Its row in the GID table.
    pub gid_index: u8,
    /// The device's port, counted from 1.
    pub port: u8,
    /// The UDP port at which the device listens.
    pub udp_port: u16,
}

/// A device after a measurement.
#[derive(Debug)]
pub struct Finish {
    /// What the emulated network has done to packets, sent and received; `None` without one.
    pub impairment: Option<[Counters; 2]>,
    /// What forward error correction has done; `None` without it.
    pub fec: Option<(EncoderCounters, DecoderCounters)>,
    /// Codes that follow the link, with every change and its reason.
    pub fec_paths: Vec<PathStatus>,
    /// What was captured; `None` for a device that cannot.
    pub capture: Option<Result<CaptureSummary, PerfError>>,
}

impl DeviceChoice {
    /// From a device's name and the addresses that the user gives with it.
    pub fn parse(name: &str, addresses: &[IpAddr]) -> Result<Self, PerfError> {
        match DeviceName::parse(name, addresses) {
            Ok(name) => Ok(DeviceChoice { name }),
            Err(DeviceNameError::SeveralAddresses { name, count }) => Err(PerfError::Request(format!(
                "-d {name}: this device takes at most one --address, one of its own; got {count}"
            ))),
            Err(DeviceNameError::AddressTwice { name }) => Err(PerfError::Request(format!(
                "-d {name} names the address already; leave --address out, or say -d {SOFTNIC}"
            ))),
            Err(error) => Err(PerfError::Missing(error.to_string())),
        }
    }

    /// The software RNIC at one address.
    pub fn softnic_at(address: IpAddr) -> Self {
        DeviceChoice { name: DeviceName::Softnic { addresses: vec![address] } }
    }

    /// Says what is missing when there is no such device, before anybody waits for it.
    pub fn check(&self) -> Result<(), PerfError> {
        self.name.check().map_err(cannot_open)
    }

    /// Whether it is the software RNIC, which alone can impair, capture and choose its UDP port.
    pub const fn is_softnic(&self) -> bool {
        self.name.is_softnic()
    }

    /// The address that the software RNIC is going to have.
    pub fn address_towards(&self, towards: Towards) -> Option<IpAddr> {
        match &self.name {
            DeviceName::Softnic { addresses } if addresses.is_empty() => Some(towards.local),
            DeviceName::Softnic { addresses } => addresses.get(usize::from(towards.gid_index.unwrap_or(0))).copied(),
            DeviceName::Libibverbs { .. } => None,
        }
    }

    /// The address that the user gives the device, if any: a server listens there.
    pub fn given_address(&self) -> Option<IpAddr> {
        self.name.given_address()
    }
}

impl OpenedDevice {
    /// As programs use it.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Opens it. `udp` is for the software RNIC alone.
    pub fn open(choice: &DeviceChoice, towards: Towards, udp: UdpConfig) -> Result<Self, PerfError> {
        let endpoint = Endpoint::open(&choice.name, towards, udp).map_err(cannot_open)?;
        Ok(OpenedDevice {
            address: endpoint.address(),
            gid: endpoint.gid(),
            gid_index: endpoint.gid_index(),
            port: endpoint.port(),
            udp_port: endpoint.udp_port(),
            endpoint,
        })
    }

    /// The device.
    pub fn verbs(&self) -> Device {
        self.endpoint.device().clone()
    }

    /// In one line for people: which device, of which kind.
    pub fn describe(&self) -> &str {
        self.endpoint.describe()
    }

    /// What the host lacks for this device to do its best.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.endpoint.warnings().iter().map(ToString::to_string)
    }

    /// Nothing more is sent: what was done to the packets, and whether all of a capture is in its file.
    pub fn finish(&self) -> Finish {
        let softnic = self.endpoint.softnic();
        Finish {
            impairment: softnic.and_then(UdpDevice::impairment_counters),
            fec: softnic.and_then(UdpDevice::fec_counters),
            fec_paths: softnic.map(UdpDevice::fec_paths).unwrap_or_default(),
            capture: softnic
                .map(|softnic| softnic.finish_capture().map_err(|error| PerfError::missing("--capture", error))),
        }
    }

    /// The payload of a packet that the port can carry.
    pub fn mtu(&self) -> Result<Mtu, PerfError> {
        self.endpoint.mtu().map_err(|error| PerfError::failed("cannot ask the device for its MTU", error))
    }

    /// The path to a peer's device, which listens at this UDP port.
    pub fn path_to(&self, peer: Gid, udp_port: u16) -> PathAttributes {
        self.endpoint.path_to(peer, udp_port)
    }
}

/// In the words of this command's options.
fn cannot_open(error: OpenError) -> PerfError {
    match error {
        OpenError::NoSuchRow { index, rows } => PerfError::Request(format!(
            "-x {index}: the GID table has {rows} rows, counted from 0; give more with --address"
        )),
        OpenError::Row { name, index, source } => {
            PerfError::Request(format!("-x {index}: {name}: {}", with_sources(&source)))
        }
        OpenError::EmptyRow { name, index } => PerfError::Request(format!(
            "-x {index}: this row of {name}'s GID table is empty; `longhaul devices -v` shows those that are not"
        )),
        OpenError::GidChoice { name, source } => {
            PerfError::Missing(format!("{name}: {} (-x INDEX, --address ADDRESS)", with_sources(&source)))
        }
        OpenError::Softnic(error) => PerfError::Missing(format!("cannot open the device: {}", with_sources(&error))),
        error => PerfError::Missing(with_sources(&error)),
    }
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
        let softnic = |addresses: &[&str]| {
            let addresses = addresses.iter().map(|text| address(text)).collect();
            DeviceChoice { name: DeviceName::Softnic { addresses } }
        };
        assert_eq!(parse("softnic", &[]).unwrap(), softnic(&[]));
        assert_eq!(parse("softnic", &["127.0.0.1", "::1"]).unwrap(), softnic(&["127.0.0.1", "::1"]));
        assert_eq!(parse("softnic:127.0.0.9", &[]).unwrap(), softnic(&["127.0.0.9"]));
        assert_eq!(parse("softnic:::1", &[]).unwrap(), softnic(&["::1"]));
        assert!(matches!(parse("softnic:here", &[]), Err(PerfError::Missing(text)) if text.contains("\"here\"")));
        assert!(matches!(parse("softnic:127.0.0.9", &["127.0.0.8"]), Err(PerfError::Request(_))));
        let name = DeviceName::Libibverbs { name: "rxe0".to_owned(), address: Some(address("192.0.2.1")) };
        let rxe = DeviceChoice { name };
        assert_eq!(parse("rxe0", &["192.0.2.1"]).unwrap(), rxe);
        assert_eq!(rxe.given_address(), Some(address("192.0.2.1")));
        assert!(matches!(parse("rxe0", &["192.0.2.1", "::1"]), Err(PerfError::Request(_))));
    }

    #[test]
    fn the_software_rnic_is_open_towards_its_peer() {
        let towards = Towards { local: address("127.0.0.1"), peer: address("127.0.0.1"), gid_index: None };
        let mut udp = UdpConfig::default();
        udp.udp_port = longhaul_softnic_udp::UdpPortChoice::Free;
        let choice = DeviceChoice::parse(SOFTNIC, &[]).unwrap();
        let opened = OpenedDevice::open(&choice, towards, udp.clone()).unwrap();
        assert_eq!((opened.address, opened.gid_index, opened.port), (towards.local, 0, 1));
        assert_eq!(opened.describe(), format!("softnic:127.0.0.1 (UDP port {})", opened.udp_port));
        let refused = OpenedDevice::open(&choice, Towards { gid_index: Some(1), ..towards }, udp);
        assert!(matches!(refused, Err(PerfError::Request(text)) if text.contains("-x 1")));
    }
}
