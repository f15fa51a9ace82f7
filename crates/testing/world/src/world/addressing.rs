//! Which addresses the nodes of a world have, and what its switches make of a packet's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use longhaul_netsim::{Destination, Flow, Frame};
use longhaul_wire::{ipv4, ipv6, udp};

/// The addresses of a node, rows 0 and 1 of its GID table.
pub(super) fn addresses(node: usize) -> [IpAddr; 2] {
    let number = node as u32 + 1;
    let v4 = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + number);
    let v6 = Ipv6Addr::from_bits((0xfd00_u128 << 112) + u128::from(number));
    [IpAddr::V4(v4), IpAddr::V6(v6)]
}

/// What a switch on one of several planes makes of a packet. A flow is what routers take for one: the addresses and the
/// UDP source port, which RoCEv2 varies for their sake.
pub(super) fn flow_of(frame: &Frame, plane: usize, plane_count: usize) -> Flow {
    let Some((address, addresses_key, header_bytes)) = destination_of(frame) else {
        return Flow { destination: Destination::Nowhere, key: 0 };
    };
    let source_port = frame.bytes.get(header_bytes..).and_then(|datagram| udp::Udp::new_checked(datagram).ok());
    let source_port = source_port.map_or(0, |header| u64::from(header.source_port()));
    let destination = match address {
        Address::Group => Destination::Everyone,
        Address::Node(node) if node % plane_count == plane => Destination::Host(node / plane_count),
        Address::Node(_) | Address::Unknown => Destination::Nowhere,
    };
    Flow { destination, key: addresses_key.rotate_left(16) ^ source_port }
}

enum Address {
    Node(usize),
    Group,
    /// No node has it: bits were flipped in transit.
    Unknown,
}

/// Where a packet is going, its two addresses folded into one number, and the length of its IP header.
fn destination_of(frame: &Frame) -> Option<(Address, u64, usize)> {
    let bytes = &frame.bytes;
    let node = |number: u32| (number as usize).checked_sub(1).map_or(Address::Unknown, Address::Node);
    match bytes.first()? >> 4 {
        4 => {
            let header = ipv4::Ipv4::new_checked(bytes).ok()?;
            let (source, destination) = (header.source(), header.destination());
            let address =
                if destination.is_multicast() { Address::Group } else { node(destination.to_bits() & 0x00ff_ffff) };
            let key = (u64::from(source.to_bits()) << 32) | u64::from(destination.to_bits());
            Some((address, key, ipv4::HEADER_BYTES))
        }
        6 => {
            let header = ipv6::Ipv6::new_checked(bytes).ok()?;
            let (source, destination) = (header.source(), header.destination());
            let address = if destination.is_multicast() { Address::Group } else { node(destination.to_bits() as u32) };
            let key = ((source.to_bits() as u64) << 32) ^ destination.to_bits() as u64;
            Some((address, key, ipv6::HEADER_BYTES))
        }
        _ => None,
    }
}
