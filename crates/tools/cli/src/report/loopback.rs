//! Where a device reaches itself.

use std::net::{IpAddr, Ipv4Addr};

use longhaul_host::Diagnosis;
use longhaul_perf::SOFTNIC;
use longhaul_verbs::GidType;

/// Where a device reaches itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Loopback {
    At(IpAddr),
    /// It does not, and why.
    None(String),
}

impl Loopback {
    /// The address that both ends of a measurement on this device use.
    pub(super) fn of(device: &str, diagnosis: &Diagnosis) -> Loopback {
        if device == SOFTNIC {
            return Loopback::At(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        if let Some(address) = device.strip_prefix("softnic:").and_then(|address| address.parse().ok()) {
            return Loopback::At(address);
        }
        let entry = diagnosis.libibverbs.devices.iter().find(|entry| entry.description.name == device);
        let rows = entry.into_iter().flat_map(|entry| entry.gids()).map(|(_, row)| row);
        let mut addresses =
            rows.filter(|row| row.gid_type == GidType::RoceV2).map(|row| row.gid.to_ip().to_canonical());
        // A link-local address says nothing without its interface.
        match addresses.find(|address| !is_link_local(*address)) {
            Some(address) => Loopback::At(address),
            None => Loopback::None(format!("{device} has no RoCEv2 address that TCP can use as well")),
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_reached_at_its_address() {
        let diagnosis = Diagnosis::default();
        let at = |text: &str| Loopback::At(text.parse().expect("an address"));
        assert_eq!(Loopback::of("softnic", &diagnosis), at("127.0.0.1"));
        assert_eq!(Loopback::of("softnic:::1", &diagnosis), at("::1"));
        assert!(matches!(Loopback::of("mlx5_0", &diagnosis), Loopback::None(why) if why.contains("mlx5_0")));
        assert!(is_link_local("fe80::1".parse().expect("an address")));
    }
}
