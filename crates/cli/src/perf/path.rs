//! What the path to a peer can carry, and whether it leaves this host.

use std::net::{IpAddr, UdpSocket};

use longhaul_verbs::Mtu;
use longhaul_wire::{ipv4, ipv6, packet, udp};
use nix::sys::socket::{getsockopt, sockopt};
use nix::{getsockopt_impl, libc, sockopt_impl};

use super::stop::Stop;

/// RFC 863's port: never sent to, only asked the way to.
const UDP_PORT_DISCARD: u16 = 9;

// What nix has no type for; its own macro makes one.
sockopt_impl!(
    /// What the route of a connected socket carries over IPv6
    Ipv6Mtu,
    GetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MTU,
    libc::c_int
);

/// What a packet has around its payload, at most.
pub(crate) fn header_bytes_max(is_ipv6: bool) -> u32 {
    let ip_bytes = if is_ipv6 { ipv6::HEADER_BYTES } else { ipv4::HEADER_BYTES };
    (ip_bytes + udp::HEADER_BYTES + packet::datagram_bytes(packet::MAX_HEADER_BYTES, 0)) as u32
}

/// The largest payload whose packets fit into IP packets of this size.
pub(crate) fn payload_within(ip_mtu_bytes: u32, is_ipv6: bool) -> Option<Mtu> {
    ip_mtu_bytes.checked_sub(header_bytes_max(is_ipv6)).and_then(Mtu::largest_within)
}

/// The largest payload that the route to a peer carries.
pub(crate) fn route_mtu(local: IpAddr, peer: IpAddr) -> Result<Mtu, Stop> {
    let failed = |error: std::io::Error| Stop::failed(format!("cannot find the path from {local} to {peer}"), error);
    let socket = UdpSocket::bind((local, 0)).map_err(failed)?;
    socket.connect((peer, UDP_PORT_DISCARD)).map_err(failed)?;
    let mtu = match peer.is_ipv6() {
        true => getsockopt(&socket, Ipv6Mtu),
        false => getsockopt(&socket, sockopt::IpMtu),
    };
    let bytes = mtu.map_err(|error| failed(error.into()))?;
    let too_small =
        || Stop::Missing(format!("the path from {local} to {peer} carries {bytes} bytes, too few for any RoCE packet"));
    payload_within(u32::try_from(bytes).unwrap_or(0), peer.is_ipv6()).ok_or_else(too_small)
}

/// Whether an address is one of this host's: then a socket can have it.
pub(crate) fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_links_carry_usual_payloads() {
        assert_eq!(payload_within(1500, false), Some(Mtu::Bytes1024));
        assert_eq!(payload_within(1500, true), Some(Mtu::Bytes1024));
        assert_eq!(payload_within(4200, false), Some(Mtu::Bytes4096));
        assert_eq!(payload_within(4200, true), Some(Mtu::Bytes4096));
        assert_eq!(payload_within(9000, false), Some(Mtu::Bytes4096));
        assert_eq!(payload_within(300, false), None);
    }
}
