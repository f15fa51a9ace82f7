//! From Ethernet frames to the shim's packets, and back.

use std::net::{IpAddr, SocketAddr};

use longhaul_datagram::{Envelope, Packet};
use longhaul_wire::ip::PROTOCOL_UDP;
use longhaul_wire::{Frame, IcrcScope, IpHeader, OrdinaryHeaders, UDP_PORT_ROCE, ethernet, ipv4, udp};

/// Ethernet's header with two tags.
const PREFIX_BYTES_MAX: usize = ethernet::HEADER_BYTES + 8;
/// The first two fields of Ethernet's header.
const ADDRESS_BYTES: usize = 6;

/// A RoCEv2 packet in a frame: nothing is copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parsed<'a> {
    pub(crate) envelope: Envelope,
    /// BTH to ICRC.
    pub(crate) datagram: &'a [u8],
    pub(crate) link: LinkHeader,
    /// The IPv4 checksum is right, and the reserved bit is not set.
    pub(crate) is_intact: bool,
}

/// What surrounds the packets between two hosts, as far as the shim does not know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkHeader {
    /// Addresses, tags and type.
    prefix: [u8; PREFIX_BYTES_MAX],
    prefix_bytes: u8,
    /// IPv6's.
    flow_label: u32,
    /// Packets of IPv4 have one, though they need not.
    has_udp_checksum: bool,
}

impl LinkHeader {
    /// Of packets that go the other way.
    pub(crate) fn reversed(mut self) -> LinkHeader {
        let (destination, source) = self.prefix[..2 * ADDRESS_BYTES].split_at_mut(ADDRESS_BYTES);
        destination.swap_with_slice(source);
        self
    }
}

/// The RoCEv2 packet in a frame. `None` for everything that the gateway leaves alone: other protocols, fragments, IPv4 options,
/// frames that are cut off or whose lengths disagree.
pub(crate) fn parse(frame: &[u8]) -> Option<Parsed<'_>> {
    let (_, packet) = ethernet::payload(frame).ok()?;
    let parsed = Frame::parse_ethernet(frame).ok()?;
    if parsed.udp.destination_port != UDP_PORT_ROCE {
        return None;
    }
    let mut link = LinkHeader {
        prefix: [0; PREFIX_BYTES_MAX],
        prefix_bytes: 0,
        flow_label: 0,
        has_udp_checksum: parsed.udp.checksum != 0,
    };
    let prefix = &frame[..frame.len() - packet.len()];
    link.prefix.get_mut(..prefix.len())?.copy_from_slice(prefix);
    link.prefix_bytes = prefix.len() as u8;
    let (hop_limit, identification, is_intact) = match &parsed.ip {
        IpHeader::V4(header) => {
            // The reserved bit: nobody sets it, and it could not be restored.
            let is_reserved = header.flags_fragment & !ipv4::DONT_FRAGMENT != 0;
            (header.time_to_live, Some(header.identification), header.checksum_is_right() && !is_reserved)
        }
        IpHeader::V6(header) => {
            link.flow_label = header.flow_label;
            (header.hop_limit, None, true)
        }
    };
    let envelope = Envelope {
        source: parsed.source(),
        destination: parsed.destination(),
        traffic_class: parsed.ip.traffic_class(),
        hop_limit,
        identification,
        icrc_scope: parsed.icrc_scope(),
        elided_bytes: 0,
    };
    Some(Parsed { envelope, datagram: parsed.datagram, link, is_intact })
}

/// Writes a packet as a frame. Returns `false`, with nothing of use in the buffer, if there is no such frame.
pub(crate) fn write(packet: &Packet, link: &LinkHeader, frame: &mut Vec<u8>) -> bool {
    let Packet { envelope, datagram } = packet;
    let headers = OrdinaryHeaders {
        source: envelope.source,
        destination: envelope.destination,
        traffic_class: envelope.traffic_class,
        hop_limit: envelope.hop_limit,
        identification: envelope.identification.unwrap_or(0),
    };
    let Some((mut ip, mut udp)) = headers.around(datagram.len()) else { return false };
    let needs_checksum = match &mut ip {
        IpHeader::V4(header) => {
            if let IcrcScope::V4 { flags_fragment, .. } = envelope.icrc_scope {
                header.flags_fragment = flags_fragment;
                header.checksum = header.computed_checksum();
            }
            link.has_udp_checksum
        }
        IpHeader::V6(header) => {
            header.flow_label = link.flow_label;
            true
        }
    };
    if needs_checksum {
        udp.checksum = udp_checksum(envelope.source, envelope.destination, datagram);
    }
    let whole = Frame { ip, udp, datagram };
    let prefix_bytes = usize::from(link.prefix_bytes);
    frame.clear();
    frame.extend_from_slice(&link.prefix[..prefix_bytes]);
    frame.resize(prefix_bytes + whole.byte_count(), 0);
    whole.emit(&mut frame[prefix_bytes..]).is_ok()
}

/// The checksum of a UDP datagram (RFC 768, RFC 8200): never 0, which means that there is none.
fn udp_checksum(source: SocketAddr, destination: SocketAddr, datagram: &[u8]) -> u16 {
    let length = (udp::HEADER_BYTES + datagram.len()) as u16;
    let mut sum = sum_of(datagram);
    for end in [source, destination] {
        sum += match end.ip() {
            IpAddr::V4(address) => sum_of(&address.octets()),
            IpAddr::V6(address) => sum_of(&address.octets()),
        };
        sum += u64::from(end.port());
    }
    // The length is in the pseudo header and in UDP's.
    sum += u64::from(PROTOCOL_UDP) + 2 * u64::from(length);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    match !(sum as u16) {
        0 => 0xffff,
        checksum => checksum,
    }
}

fn sum_of(bytes: &[u8]) -> u64 {
    let pairs = bytes.chunks_exact(2);
    let last = pairs.remainder().first().map_or(0, |byte| u64::from(*byte) << 8);
    pairs.map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u64>() + last
}
