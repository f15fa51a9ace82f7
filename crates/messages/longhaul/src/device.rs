//! Devices by the names that their users give them.
//!
//! ```text
//!   softnic            the software RNIC, at the address that leads to the peer
//!   softnic:ADDRESS    the software RNIC at this address of the host
//!   rxe0, mlx5_0, …    a device of libibverbs: the kernel's Soft-RoCE or an RNIC
//! ```

use std::convert::Infallible;
use std::net::IpAddr;
use std::str::FromStr;

use longhaul_softnic_udp::{Fec, UdpConfig};
use thiserror::Error;

use crate::endpoint::OpenError;

/// The software RNIC's name.
pub const SOFTNIC: &str = "softnic";

/// A device as its user names it, not opened yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// The software RNIC.
    Softnic {
        /// At these addresses of the host; at none, where the peer wants it.
        addresses: Vec<IpAddr>,
    },
    /// A device of libibverbs.
    Libibverbs {
        /// What libibverbs calls it.
        name: String,
        /// Which of its addresses to use, when the user says so.
        address: Option<IpAddr>,
    },
}

/// A name that stands for no device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceNameError {
    /// What follows `softnic:` is no address.
    #[error(
        "there is no device \"{name}\" here: \"{text}\" is not an IP address; use {SOFTNIC}:ADDRESS with an address of this host"
    )]
    NotAnAddress {
        /// The whole name.
        name: String,
        /// What should be an address.
        text: String,
    },
    /// A device of libibverbs sends from one address.
    #[error("{name}: this device takes at most one address, one of its own; got {count}")]
    SeveralAddresses {
        /// The device.
        name: String,
        /// The number given.
        count: usize,
    },
    /// An address in the name, and others with it.
    #[error("{name} already names an address; give no other, or use {SOFTNIC}")]
    AddressTwice {
        /// The device.
        name: String,
    },
}

impl From<Infallible> for DeviceNameError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl DeviceName {
    /// From a device's name and the addresses that are given with it.
    pub fn parse(name: &str, addresses: &[IpAddr]) -> Result<Self, DeviceNameError> {
        let in_name = match name.strip_prefix(SOFTNIC) {
            Some("") => return Ok(DeviceName::Softnic { addresses: addresses.to_vec() }),
            Some(rest) => rest.strip_prefix(':'),
            None => None,
        };
        let name = name.to_owned();
        let Some(text) = in_name else {
            return match addresses {
                [] | [_] => Ok(DeviceName::Libibverbs { name, address: addresses.first().copied() }),
                _ => Err(DeviceNameError::SeveralAddresses { name, count: addresses.len() }),
            };
        };
        let Ok(address) = text.parse() else {
            let text = text.to_owned();
            return Err(DeviceNameError::NotAnAddress { name, text });
        };
        match addresses {
            [] => Ok(DeviceName::Softnic { addresses: vec![address] }),
            _ => Err(DeviceNameError::AddressTwice { name }),
        }
    }

    /// Says what is missing when there is no such device, before anybody waits for it.
    pub fn check(&self) -> Result<(), OpenError> {
        let DeviceName::Libibverbs { name, .. } = self else { return Ok(()) };
        match longhaul_rdmacore::devices() {
            Ok(devices) if devices.iter().any(|device| device.name == *name) => Ok(()),
            Ok(devices) => {
                let known = devices.into_iter().map(|device| device.name).collect();
                Err(OpenError::NoSuchDevice { name: name.clone(), known })
            }
            Err(error) => Err(OpenError::NoLibibverbs { name: name.clone(), error }),
        }
    }

    /// Whether it is the software RNIC, which alone can impair, capture and choose its UDP port.
    pub const fn is_softnic(&self) -> bool {
        matches!(self, DeviceName::Softnic { .. })
    }

    /// The address that the user gives the device, if any.
    pub fn given_address(&self) -> Option<IpAddr> {
        match self {
            DeviceName::Softnic { addresses } => addresses.first().copied(),
            DeviceName::Libibverbs { address, .. } => *address,
        }
    }
}

impl FromStr for DeviceName {
    type Err = DeviceNameError;

    fn from_str(name: &str) -> Result<Self, DeviceNameError> {
        DeviceName::parse(name, &[])
    }
}

/// A device, and what else its user says about it. Wherever one is wanted, a name does as well.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceChoice {
    /// Which.
    pub name: DeviceName,
    /// Row of the GID table to send from; unless given, the one that leads to the peer.
    pub gid_index: Option<u8>,
    /// Of the software RNIC alone: its UDP port, a bad network in process, a capture.
    pub udp: UdpConfig,
}

/// Messages were asked of a device that was opened with forward error correction, which cannot protect them.
#[derive(Clone, Debug, PartialEq, Error)]
#[error(
    "the device was opened with forward error correction ({fec}), which is for RC and UC queue pairs of your own: each packet of a \
     message is a message of its own to the device, so all of them would be sent twice; leave UdpConfig::fec out and take a scheme \
     that repairs losses, such as ec:mds:32,8, or use a queue pair with UdpDevice::protect_queue_pair"
)]
pub struct FecOnMessagesError {
    /// What it was opened with.
    pub fec: Fec,
}

/// Whether a device, opened with this or not, is for messages.
pub(crate) fn check_fec(fec: Option<Fec>) -> Result<(), FecOnMessagesError> {
    fec.map_or(Ok(()), |fec| Err(FecOnMessagesError { fec }))
}

impl From<DeviceName> for DeviceChoice {
    fn from(name: DeviceName) -> Self {
        DeviceChoice { name, gid_index: None, udp: UdpConfig::default() }
    }
}

impl FromStr for DeviceChoice {
    type Err = DeviceNameError;

    fn from_str(name: &str) -> Result<Self, DeviceNameError> {
        name.parse::<DeviceName>().map(DeviceChoice::from)
    }
}

impl TryFrom<&str> for DeviceChoice {
    type Error = DeviceNameError;

    fn try_from(name: &str) -> Result<Self, DeviceNameError> {
        name.parse()
    }
}

impl TryFrom<&String> for DeviceChoice {
    type Error = DeviceNameError;

    fn try_from(name: &String) -> Result<Self, DeviceNameError> {
        name.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    #[test]
    fn a_device_can_name_its_address() {
        let parse = |name: &str, given: &[&str]| DeviceName::parse(name, &addresses(given));
        let softnic = |given: &[&str]| Ok(DeviceName::Softnic { addresses: addresses(given) });
        assert_eq!(parse("softnic", &[]), softnic(&[]));
        assert_eq!(parse("softnic", &["127.0.0.1", "::1"]), softnic(&["127.0.0.1", "::1"]));
        assert_eq!(parse("softnic:127.0.0.9", &[]), softnic(&["127.0.0.9"]));
        assert_eq!(parse("softnic:::1", &[]), softnic(&["::1"]));
        assert!(
            matches!(parse("softnic:here", &[]), Err(DeviceNameError::NotAnAddress { text, .. }) if text == "here")
        );
        assert!(matches!(parse("softnic:127.0.0.9", &["127.0.0.8"]), Err(DeviceNameError::AddressTwice { .. })));
        let rxe = DeviceName::Libibverbs { name: "rxe0".to_owned(), address: Some(addresses(&["192.0.2.1"])[0]) };
        assert_eq!(parse("rxe0", &["192.0.2.1"]).as_ref(), Ok(&rxe));
        assert_eq!(rxe.given_address(), Some(addresses(&["192.0.2.1"])[0]));
        assert!(matches!(
            parse("rxe0", &["192.0.2.1", "::1"]),
            Err(DeviceNameError::SeveralAddresses { count: 2, .. })
        ));
    }
}
