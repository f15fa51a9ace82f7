//! Frames for tests.

use std::net::SocketAddr;

use longhaul_wire::{Frame, Headers, IcrcScope, IpHeader, Opcode, Psn, Syndrome, aeth, ipv4, packet};

/// A frame with this datagram between two ends, with VLAN tags of these numbers.
pub(crate) fn frame_between(source: &str, destination: &str, datagram: &[u8], tags: &[u16]) -> Vec<u8> {
    let (source, destination): (SocketAddr, SocketAddr) = (source.parse().unwrap(), destination.parse().unwrap());
    let packet = Frame::new(source, destination, datagram).unwrap();
    framed(&packet, tags)
}

fn framed(packet: &Frame<'_>, tags: &[u16]) -> Vec<u8> {
    let last = |ip: std::net::IpAddr| match ip {
        std::net::IpAddr::V4(address) => address.octets()[3],
        std::net::IpAddr::V6(address) => address.octets()[15],
    };
    let (to, from) = (last(packet.destination().ip()), last(packet.source().ip()));
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from];
    for tag in tags {
        frame.extend([0x81, 0]);
        frame.extend(tag.to_be_bytes());
    }
    let ether_type: u16 = if matches!(packet.ip, IpHeader::V4(_)) { 0x0800 } else { 0x86dd };
    frame.extend(ether_type.to_be_bytes());
    let start = frame.len();
    frame.resize(start + packet.byte_count(), 0);
    packet.emit(&mut frame[start..]).unwrap();
    frame
}

/// A frame of RoCEv2 as a host sends it.
pub(crate) struct Sample {
    pub(crate) source: &'static str,
    pub(crate) destination: &'static str,
    pub(crate) tags: &'static [u16],
    pub(crate) identification: u16,
    pub(crate) hop_limit: u8,
    pub(crate) flow_label: u32,
    pub(crate) has_udp_checksum: bool,
    pub(crate) queue_pair: u32,
    pub(crate) traffic_class: u8,
}

impl Sample {
    /// Over IPv4.
    pub(crate) const V4: Sample = Sample {
        source: "10.1.0.1:50000",
        destination: "10.2.0.2:4791",
        tags: &[],
        identification: 0x1234,
        hop_limit: 61,
        flow_label: 0,
        has_udp_checksum: false,
        queue_pair: 0x17,
        traffic_class: 0x6a,
    };
    /// Over IPv6.
    pub(crate) const V6: Sample = Sample {
        source: "[2001:db8:1::1]:50000",
        destination: "[2001:db8:2::2]:4791",
        flow_label: 0xabcde,
        ..Sample::V4
    };

    /// The `number`-th packet of messages of `of` packets.
    pub(crate) fn frame(&self, number: u32, of: u32) -> Vec<u8> {
        let place = number % of;
        let opcode = match place {
            0 => Opcode::RcSendFirst,
            place if place + 1 == of => Opcode::RcSendLast,
            _ => Opcode::RcSendMiddle,
        };
        self.with(opcode, number, &vec![number as u8 ^ 0x5a; 256 + 4 * (place as usize)])
    }

    pub(crate) fn with(&self, opcode: Opcode, psn: u32, payload: &[u8]) -> Vec<u8> {
        let (source, destination): (SocketAddr, SocketAddr) =
            (self.source.parse().unwrap(), self.destination.parse().unwrap());
        let scope = IcrcScope::between(source, destination)
            .unwrap()
            .with_identification(self.identification.wrapping_add(psn as u16));
        let mut datagram = vec![0; payload.len() + 64];
        let mut headers = Headers::new(opcode, self.queue_pair, Psn::new(psn));
        if opcode == Opcode::RcAcknowledge {
            let syndrome = Syndrome::from_byte(0x1f);
            headers.aeth = Some(aeth::Header { syndrome, message_sequence_number: 1 });
        }
        let length = packet::write_datagram(&headers, payload, &scope, &mut datagram).unwrap();
        datagram.truncate(length);
        let mut whole = Frame::new(source, destination, &datagram).unwrap();
        match &mut whole.ip {
            IpHeader::V4(header) => {
                header.identification = scope.identification().unwrap();
                header.flags_fragment = ipv4::DONT_FRAGMENT;
                header.time_to_live = self.hop_limit;
                header.type_of_service = self.traffic_class;
                header.checksum = header.computed_checksum();
            }
            IpHeader::V6(header) => {
                header.hop_limit = self.hop_limit;
                header.flow_label = self.flow_label;
                header.traffic_class = self.traffic_class;
            }
        }
        if self.has_udp_checksum || matches!(whole.ip, IpHeader::V6(_)) {
            whole.udp.checksum = reference_checksum(source, destination, &datagram);
        }
        framed(&whole, self.tags)
    }
}

/// UDP's checksum, word by word over a copy of everything it covers.
pub(crate) fn reference_checksum(source: SocketAddr, destination: SocketAddr, datagram: &[u8]) -> u16 {
    let mut covered = Vec::new();
    for end in [source, destination] {
        match end.ip() {
            std::net::IpAddr::V4(address) => covered.extend(address.octets()),
            std::net::IpAddr::V6(address) => covered.extend(address.octets()),
        }
    }
    let length = (datagram.len() + 8) as u16;
    covered.extend([0, 17]);
    covered.extend(length.to_be_bytes());
    covered.extend(source.port().to_be_bytes());
    covered.extend(destination.port().to_be_bytes());
    covered.extend(length.to_be_bytes());
    covered.extend([0, 0]);
    covered.extend(datagram);
    covered.resize(covered.len().next_multiple_of(2), 0);
    let mut sum = 0_u16;
    for pair in covered.chunks(2) {
        let (next, carry) = sum.overflowing_add(u16::from_be_bytes([pair[0], pair[1]]));
        sum = next + u16::from(carry);
    }
    if sum == 0xffff { 0xffff } else { !sum }
}
