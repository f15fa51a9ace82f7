//! What the path to a peer carries, and whether it leaves this host.

use std::net::IpAddr;

use longhaul_verbs::Mtu;
use longhaul_wire::{ipv4, ipv6, packet, udp};

use crate::socket::interface_mtu;
pub use crate::socket::route_mtu_bytes;

/// What a packet has around its payload, at most.
pub fn header_bytes_max(is_ipv6: bool) -> u32 {
    let ip_bytes = if is_ipv6 { ipv6::HEADER_BYTES } else { ipv4::HEADER_BYTES };
    (ip_bytes + udp::HEADER_BYTES + packet::datagram_bytes(packet::MAX_HEADER_BYTES, 0)) as u32
}

/// The largest payload whose packets fit into IP packets of this size.
pub fn largest_mtu(ip_mtu_bytes: u32, is_ipv6: bool) -> Option<Mtu> {
    Mtu::largest_within(ip_mtu_bytes.checked_sub(header_bytes_max(is_ipv6))?)
}

/// Whether packets to an address do not leave this host.
pub fn is_of_this_host(address: IpAddr) -> bool {
    address.is_loopback() || host_addresses().contains(&address)
}

/// All addresses of this host.
pub(crate) fn host_addresses() -> Vec<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    interfaces.filter_map(|interface| ip_of(&interface)).collect()
}

fn ip_of(interface: &nix::ifaddrs::InterfaceAddress) -> Option<IpAddr> {
    let storage = interface.address?;
    let v4 = storage.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

/// Whether an interface has an address.
pub(crate) fn has_address(interface: &nix::ifaddrs::InterfaceAddress, address: IpAddr) -> bool {
    // All of 127.0.0.0/8 is the loopback interface's.
    let is_loopback =
        |found: IpAddr| address.is_loopback() && found.is_loopback() && address.is_ipv4() == found.is_ipv4();
    ip_of(interface).is_some_and(|found| found == address || is_loopback(found))
}

/// Name and MTU of the interface that has an address.
pub(crate) fn interface_of(address: IpAddr) -> Option<(String, u32)> {
    let mut interfaces = nix::ifaddrs::getifaddrs().ok()?;
    let name = interfaces.find(|interface| has_address(interface, address))?.interface_name;
    let mtu_bytes = interface_mtu(&name).ok()?;
    Some((name, mtu_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_links_carry_usual_payloads() {
        assert_eq!(largest_mtu(1500, false), Some(Mtu::Bytes1024));
        assert_eq!(largest_mtu(1500, true), Some(Mtu::Bytes1024));
        assert_eq!(largest_mtu(4200, false), Some(Mtu::Bytes4096));
        assert_eq!(largest_mtu(4200, true), Some(Mtu::Bytes4096));
        assert_eq!(largest_mtu(9000, false), Some(Mtu::Bytes4096));
        assert_eq!(largest_mtu(300, false), None);
    }
}
