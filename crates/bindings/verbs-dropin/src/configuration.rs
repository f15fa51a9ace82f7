//! Which devices the program finds: what `longhaul run` has said in the environment, or all addresses of this host.

use std::io::Write as _;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;

/// Addresses that are devices, with commas between them. Without it, every address of this host is one.
pub(crate) const DEVICES: &str = "LONGHAUL_RUN_DEVICES";

/// The addresses of the devices, in the order in which the program lists them.
pub(crate) fn addresses() -> Vec<IpAddr> {
    match std::env::var(DEVICES) {
        Ok(list) => chosen(&list),
        Err(_) => of_this_host(),
    }
}

/// A list of addresses. `longhaul run` has checked them; what is no address is reported and left out.
fn chosen(list: &str) -> Vec<IpAddr> {
    let parse = |text: &str| match text.parse() {
        Ok(address) => Some(address),
        Err(_) => {
            // Nobody may read it: no reason to end.
            let _ = writeln!(std::io::stderr(), "longhaul: {DEVICES}: \"{text}\" is not an IP address, and no device");
            None
        }
    };
    list.split(',').map(str::trim).filter(|text| !text.is_empty()).filter_map(parse).collect()
}

/// All addresses of this host that a device can be opened at.
fn of_this_host() -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for interface in getifaddrs().into_iter().flatten() {
        let Some(storage) = interface.address else { continue };
        let v4 = storage.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        let address = v4.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())));
        let Some(address) = address else { continue };
        let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if !is_link_local && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// The name of the device at an address: unique, stable, and made of what names of RDMA devices are made of.
pub(crate) fn device_name(address: IpAddr) -> String {
    let text = address.to_string();
    let text: String = text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("softnic_{text}")
}

/// The name of the device's special file.
pub(crate) fn verbs_name(address: IpAddr) -> String {
    format!("uverbs_{}", device_name(address))
}

/// A GUID that says the same on every host: of the address, and marked as given locally.
pub(crate) fn guid(address: IpAddr) -> u64 {
    let octets = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    // FNV-1a: the same for ever, which the standard library's hasher does not promise.
    let hash = octets
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &octet| (hash ^ u64::from(octet)).wrapping_mul(0x0100_0000_01b3));
    (hash & 0xfcff_ffff_ffff_ffff) | 0x0200_0000_0000_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_what_is_no_address_is_left_out() {
        let expected: Vec<IpAddr> = vec!["127.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert_eq!(chosen("127.0.0.1, eth0,,fd00::1"), expected);
        assert_eq!(chosen(""), Vec::<IpAddr>::new());
    }

    #[test]
    fn names_and_guids_are_of_the_address() {
        let (one, two): (IpAddr, IpAddr) = ("127.0.0.1".parse().unwrap(), "::1".parse().unwrap());
        assert_eq!(device_name(one), "softnic_127_0_0_1");
        assert_eq!(device_name(two), "softnic___1");
        assert_ne!(guid(one), guid(two));
        assert_eq!(guid(one) >> 56 & 3, 2, "locally administered, not a group");
    }

    #[test]
    fn this_host_has_a_loopback_device() {
        assert!(of_this_host().iter().any(IpAddr::is_loopback));
    }
}
