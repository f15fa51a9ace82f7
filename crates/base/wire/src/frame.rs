//! An IP packet with a UDP datagram in it: what captures, raw sockets, gateways and switches see.
//!
//! ```text
//! | IPv4 (20 bytes) or IPv6 (40 bytes) | UDP (8 bytes) | datagram: BTH … ICRC |
//! ```
//!
//! IPv4 options, fragments and IPv6 extension headers do not occur in RoCEv2 (A17.3.1) and are refused. IP and UDP must
//! agree about the length; bytes behind it, such as Ethernet's padding, are left alone. Whether checksums are right is not
//! looked at: network cards fill them in after a capture has seen the packet ([`ipv4::Header::checksum_is_right`]).

use crate::icrc::IcrcScope;
use crate::ip::PROTOCOL_UDP;
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::udp::Udp;
use crate::{EmitError, IpHeader, Truncated, ethernet, ipv4, ipv6, udp};
use core::fmt;
use core::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

/// Hops that an ordinary packet may take.
const HOP_LIMIT: u8 = 64;

/// An IP packet that carries UDP; the datagram is still in the buffer that it came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The IP header.
    pub ip: IpHeader,
    /// The UDP header.
    pub udp: udp::Header,
    /// What UDP carries: see [`crate::Packet`].
    pub datagram: &'a [u8],
}

/// Why bytes are not an IP packet with UDP as we want it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FrameError {
    /// There are fewer bytes than the headers or the lengths in them say.
    Truncated(Truncated),
    /// Neither IPv4 without options nor IPv6.
    UnsupportedIp {
        /// The first byte: version, and header length of IPv4.
        first_byte: u8,
    },
    /// A piece of an IPv4 packet.
    Fragment {
        /// Its flags and fragment offset.
        flags_fragment: u16,
    },
    /// Not UDP.
    UnexpectedProtocol {
        /// The protocol number that was found where 17 was expected.
        protocol: u8,
    },
    /// Not IP.
    UnexpectedEtherType {
        /// The EtherType that was found.
        ether_type: u16,
    },
    /// IP and UDP do not agree about the length.
    LengthMismatch {
        /// Bytes of UDP header and datagram that IP says there are.
        ip_payload_bytes: usize,
        /// Bytes that UDP says.
        udp_bytes: usize,
    },
}

impl From<Truncated> for FrameError {
    fn from(error: Truncated) -> FrameError {
        FrameError::Truncated(error)
    }
}

impl fmt::Display for FrameError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Truncated(error) => error.fmt(formatter),
            FrameError::UnsupportedIp { first_byte } => {
                write!(formatter, "expected IPv4 without options (0x45) or IPv6 (0x6.), and found {first_byte:#04x}")
            }
            FrameError::Fragment { flags_fragment } => {
                write!(formatter, "expected a whole packet, and found a fragment ({flags_fragment:#06x})")
            }
            FrameError::UnexpectedProtocol { protocol } => {
                write!(formatter, "expected UDP (protocol 17), and found protocol {protocol}")
            }
            FrameError::UnexpectedEtherType { ether_type } => {
                write!(formatter, "expected EtherType 0x0800 or 0x86dd, and found {ether_type:#06x}")
            }
            FrameError::LengthMismatch { ip_payload_bytes, udp_bytes } => {
                write!(formatter, "IP says that it carries {ip_payload_bytes} bytes, and UDP says {udp_bytes}")
            }
        }
    }
}

impl core::error::Error for FrameError {}

impl<'a> Frame<'a> {
    /// An ordinary packet around a datagram: see [`OrdinaryHeaders`]. `None` when the ends are not of one family, or the
    /// datagram is longer than an IP packet can be.
    pub fn new(source: SocketAddr, destination: SocketAddr, datagram: &'a [u8]) -> Option<Frame<'a>> {
        let (ip, udp) = OrdinaryHeaders::between(source, destination).around(datagram.len())?;
        Some(Frame { ip, udp, datagram })
    }

    /// Takes an IP packet apart.
    pub fn parse(packet: &'a [u8]) -> Result<Frame<'a>, FrameError> {
        let first_byte = packet.first().copied().unwrap_or(ipv4::VERSION_AND_LENGTH_OF_PLAIN_HEADER);
        let (ip, protocol, packet_bytes) = if first_byte >> 4 == 6 {
            let header = ipv6::Header::parse(&Ipv6::new_checked(packet)?);
            let packet_bytes = ipv6::HEADER_BYTES + usize::from(header.payload_length);
            (IpHeader::V6(header), header.next_header, packet_bytes)
        } else {
            let view = Ipv4::new_checked(packet)?;
            if !view.is_plain() {
                return Err(FrameError::UnsupportedIp { first_byte });
            }
            let header = ipv4::Header::parse(&view);
            if header.is_fragment() {
                return Err(FrameError::Fragment { flags_fragment: header.flags_fragment });
            }
            (IpHeader::V4(header), header.protocol, usize::from(header.total_length))
        };
        if protocol != PROTOCOL_UDP {
            return Err(FrameError::UnexpectedProtocol { protocol });
        }
        let Some(ip_payload) = packet.get(ip.byte_count()..packet_bytes) else {
            let expected_bytes = packet_bytes.max(ip.byte_count());
            return Err(Truncated { header: "IP packet", expected_bytes, found_bytes: packet.len() }.into());
        };
        let udp = udp::Header::parse(&Udp::new_checked(ip_payload)?);
        let udp_bytes = usize::from(udp.length);
        if udp_bytes != ip_payload.len() {
            return Err(FrameError::LengthMismatch { ip_payload_bytes: ip_payload.len(), udp_bytes });
        }
        Ok(Frame { ip, udp, datagram: &ip_payload[udp::HEADER_BYTES..] })
    }

    /// Takes the IP packet of an Ethernet frame apart, skipping tags.
    pub fn parse_ethernet(frame: &'a [u8]) -> Result<Frame<'a>, FrameError> {
        match ethernet::payload(frame)? {
            (ethernet::ETHER_TYPE_IPV4 | ethernet::ETHER_TYPE_IPV6, packet) => Frame::parse(packet),
            (ether_type, _) => Err(FrameError::UnexpectedEtherType { ether_type }),
        }
    }

    /// Bytes of the IP packet.
    pub const fn byte_count(&self) -> usize {
        self.ip.byte_count() + udp::HEADER_BYTES + self.datagram.len()
    }

    /// Writes the IP packet, all header fields as they are in `self`, and says how many bytes it has.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let needed_bytes = self.byte_count();
        let too_small = EmitError::BufferTooSmall { needed_bytes, available_bytes: buffer.len() };
        let Some(buffer) = buffer.get_mut(..needed_bytes) else {
            return Err(too_small);
        };
        let (headers, datagram) = buffer.split_at_mut(needed_bytes - self.datagram.len());
        emit_headers(&self.ip, &self.udp, headers).map_err(|_| too_small)?;
        datagram.copy_from_slice(self.datagram);
        Ok(needed_bytes)
    }

    /// What the datagram's ICRC covers besides the datagram.
    pub const fn icrc_scope(&self) -> IcrcScope {
        match self.ip {
            IpHeader::V4(header) => IcrcScope::V4 {
                source: header.source,
                destination: header.destination,
                identification: header.identification,
                flags_fragment: header.flags_fragment,
                source_port: self.udp.source_port,
                destination_port: self.udp.destination_port,
            },
            IpHeader::V6(header) => IcrcScope::V6 {
                source: header.source,
                destination: header.destination,
                source_port: self.udp.source_port,
                destination_port: self.udp.destination_port,
            },
        }
    }

    /// Where the packet comes from.
    pub const fn source(&self) -> SocketAddr {
        match self.ip {
            IpHeader::V4(header) => SocketAddr::V4(SocketAddrV4::new(header.source, self.udp.source_port)),
            IpHeader::V6(header) => SocketAddr::V6(SocketAddrV6::new(header.source, self.udp.source_port, 0, 0)),
        }
    }

    /// Where it goes.
    pub const fn destination(&self) -> SocketAddr {
        match self.ip {
            IpHeader::V4(header) => SocketAddr::V4(SocketAddrV4::new(header.destination, self.udp.destination_port)),
            IpHeader::V6(header) => {
                SocketAddr::V6(SocketAddrV6::new(header.destination, self.udp.destination_port, 0, 0))
            }
        }
    }
}

/// The headers of an ordinary packet, such as a UDP socket sends that has "don't fragment" set: right lengths and IPv4
/// checksum, and no UDP checksum, because RoCEv2's ICRC is stronger (A17.3.2).
///
/// For those who have the datagram in place already, and for those who do not have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrdinaryHeaders {
    /// Where the packet comes from.
    pub source: SocketAddr,
    /// Where it goes.
    pub destination: SocketAddr,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// IPv4's time to live.
    pub hop_limit: u8,
    /// IPv4's; IPv6 has none.
    pub identification: u16,
}

impl OrdinaryHeaders {
    /// Without DSCP and ECN bits, with 64 hops and identification 0.
    pub const fn between(source: SocketAddr, destination: SocketAddr) -> OrdinaryHeaders {
        OrdinaryHeaders { source, destination, traffic_class: 0, hop_limit: HOP_LIMIT, identification: 0 }
    }

    /// Bytes of both headers.
    pub const fn byte_count(&self) -> usize {
        udp::HEADER_BYTES
            + match self.destination {
                SocketAddr::V4(_) => ipv4::HEADER_BYTES,
                SocketAddr::V6(_) => ipv6::HEADER_BYTES,
            }
    }

    /// Writes the headers that come before a datagram of this length, and returns how many bytes they have. The buffer
    /// may be longer, with the datagram behind them.
    pub fn emit(&self, datagram_bytes: usize, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let needed_bytes = self.byte_count();
        let too_small = EmitError::BufferTooSmall { needed_bytes, available_bytes: buffer.len() };
        let buffer = buffer.get_mut(..needed_bytes).ok_or(too_small)?;
        let (ip, udp) = self.around(datagram_bytes).ok_or(too_small)?;
        emit_headers(&ip, &udp, buffer).map_err(|_| too_small)?;
        Ok(needed_bytes)
    }

    /// The headers around a datagram of this length. `None` when the ends are not of one family, or an IP packet cannot
    /// be that long.
    pub fn around(&self, datagram_bytes: usize) -> Option<(IpHeader, udp::Header)> {
        let length = u16::try_from(udp::HEADER_BYTES.checked_add(datagram_bytes)?).ok()?;
        let ip = match (self.source, self.destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => {
                let mut header = ipv4::Header {
                    type_of_service: self.traffic_class,
                    total_length: length.checked_add(ipv4::HEADER_BYTES as u16)?,
                    identification: self.identification,
                    flags_fragment: ipv4::DONT_FRAGMENT,
                    time_to_live: self.hop_limit,
                    protocol: PROTOCOL_UDP,
                    checksum: 0,
                    source: *source.ip(),
                    destination: *destination.ip(),
                };
                header.checksum = header.computed_checksum();
                IpHeader::V4(header)
            }
            (SocketAddr::V6(source), SocketAddr::V6(destination)) => IpHeader::V6(ipv6::Header {
                traffic_class: self.traffic_class,
                flow_label: destination.flowinfo() & 0xf_ffff,
                payload_length: length,
                next_header: PROTOCOL_UDP,
                hop_limit: self.hop_limit,
                source: *source.ip(),
                destination: *destination.ip(),
            }),
            _ => return None,
        };
        let (source_port, destination_port) = (self.source.port(), self.destination.port());
        Some((ip, udp::Header { source_port, destination_port, length, checksum: 0 }))
    }
}

/// Writes both headers into a buffer of their size.
fn emit_headers(ip: &IpHeader, udp: &udp::Header, buffer: &mut [u8]) -> Result<(), Truncated> {
    let (ip_buffer, udp_buffer) = buffer.split_at_mut(ip.byte_count());
    match ip {
        IpHeader::V4(header) => header.emit(&mut Ipv4::new_checked(ip_buffer)?),
        IpHeader::V6(header) => header.emit(&mut Ipv6::new_checked(ip_buffer)?),
    }
    udp.emit(&mut Udp::new_checked(udp_buffer)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::{Opcode, Packet, icrc};
    use core::net::{Ipv4Addr, Ipv6Addr};
    use std::vec::Vec;

    /// Packet 2 of `tests/captures/rc-access-nak-v4.pcap`: a NAK of Linux Soft-RoCE.
    const PACKET: [u8; 48] = [
        0x45, 0x00, 0x00, 0x30, 0x8d, 0x7b, 0x40, 0x00, 0x40, 0x11, 0xe2, 0xe0, // IPv4
        0x0a, 0x2f, 0x5b, 0x01, 0x0a, 0x2f, 0x5b, 0x02, //
        0xc7, 0x90, 0x12, 0xb7, 0x00, 0x1c, 0x00, 0x00, // UDP
        0x11, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x2c, 0x00, 0xff, 0xff, 0xfd, // BTH
        0x62, 0x00, 0x00, 0x00, // AETH
        0x3a, 0xce, 0x67, 0x4a, // ICRC
    ];

    fn ends() -> (SocketAddr, SocketAddr) {
        let source = SocketAddrV4::new(Ipv4Addr::new(10, 47, 91, 1), 0xc790);
        (source.into(), SocketAddrV4::new(Ipv4Addr::new(10, 47, 91, 2), 4791).into())
    }

    #[test]
    fn parse() {
        let frame = Frame::parse(&PACKET).unwrap();
        assert_eq!((frame.source(), frame.destination()), ends());
        assert_eq!(frame.datagram, &PACKET[28..]);
        assert!(icrc::verify(&frame.icrc_scope(), frame.datagram));
        assert_eq!(Packet::parse(frame.datagram).unwrap().headers.bth.opcode, Opcode::RcAcknowledge);
    }

    #[test]
    fn padding_of_ethernet_is_left_alone() {
        let ethernet = [&[0xff; 12][..], &[0x08, 0x00], &PACKET, &[0xee; 5]].concat();
        assert_eq!(Frame::parse_ethernet(&ethernet), Frame::parse(&PACKET));
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 50];
        assert_eq!(Frame::parse(&PACKET).unwrap().emit(&mut buffer), Ok(48));
        assert_eq!(buffer[..48], PACKET);
        assert_eq!(buffer[48..], [0xa5; 2]);
        let error = Frame::parse(&PACKET).unwrap().emit(&mut buffer[..47]);
        assert_eq!(error, Err(EmitError::BufferTooSmall { needed_bytes: 48, available_bytes: 47 }));
    }

    #[test]
    fn new_differs_from_the_real_packet_in_identification_and_checksum_only() {
        let (source, destination) = ends();
        let mut frame = Frame::new(source, destination, &PACKET[28..]).unwrap();
        let IpHeader::V4(header) = &mut frame.ip else { unreachable!() };
        assert!(header.checksum_is_right());
        header.identification = 0x8d7b;
        header.checksum = header.computed_checksum();
        assert_eq!(Ok(frame), Frame::parse(&PACKET));
    }

    #[test]
    fn ordinary_headers_before_a_datagram_that_is_in_place() {
        let (source, destination) = ends();
        let headers = OrdinaryHeaders { identification: 0x8d7b, ..OrdinaryHeaders::between(source, destination) };
        let mut buffer = [0xa5; 48];
        buffer[28..].copy_from_slice(&PACKET[28..]);
        assert_eq!(headers.emit(20, &mut buffer), Ok(28));
        assert_eq!(buffer, PACKET);
        let marked = OrdinaryHeaders { traffic_class: 0x6b, hop_limit: 3, ..headers };
        assert_eq!(marked.emit(20, &mut buffer), Ok(28));
        let frame = Frame::parse(&buffer).unwrap();
        let IpHeader::V4(header) = frame.ip else { unreachable!() };
        assert_eq!((header.type_of_service, header.time_to_live, header.identification), (0x6b, 3, 0x8d7b));
        assert!(header.checksum_is_right());
        assert!(headers.emit(20, &mut buffer[..27]).is_err());
        assert!(headers.emit(65_508, &mut buffer).is_err(), "longer than an IP packet");
        assert!(headers.emit(65_507, &mut buffer).is_ok());
    }

    #[test]
    fn ipv6() {
        let end = |last| SocketAddrV6::new(Ipv6Addr::new(0xfd47, 0x91, 0, 0, 0, 0, 0, last), 4791, 0, 0);
        let frame = Frame::new(end(1).into(), end(2).into(), b"datagram").unwrap();
        let mut buffer = [0xa5; 56];
        assert_eq!(frame.emit(&mut buffer), Ok(56));
        assert_eq!(buffer[..8], [0x60, 0, 0, 0, 0, 16, 17, 64]);
        assert_eq!(buffer[40..48], [0x12, 0xb7, 0x12, 0xb7, 0, 16, 0, 0]);
        assert_eq!(Frame::parse(&buffer), Ok(frame));
        let (version_4, _) = ends();
        assert_eq!(Frame::new(end(1).into(), version_4, b""), None);
    }

    #[test]
    fn what_is_not_ours_is_refused_by_name() {
        let with = |at: usize, value: u8| {
            let mut packet = PACKET;
            packet[at] = value;
            Frame::parse(&packet).map(|_| ()).unwrap_err()
        };
        assert_eq!(with(0, 0x46), FrameError::UnsupportedIp { first_byte: 0x46 });
        assert_eq!(with(0, 0x55), FrameError::UnsupportedIp { first_byte: 0x55 });
        assert_eq!(with(6, 0x20), FrameError::Fragment { flags_fragment: 0x2000 });
        assert_eq!(with(9, 6), FrameError::UnexpectedProtocol { protocol: 6 });
        assert_eq!(with(25, 0x1b), FrameError::LengthMismatch { ip_payload_bytes: 28, udp_bytes: 27 });
        for (total_length, expected_bytes) in [(49, 49), (0, 20), (27, 8)] {
            match with(3, total_length) {
                FrameError::Truncated(error) => assert_eq!(error.expected_bytes, expected_bytes),
                other => panic!("{other}"),
            }
        }
        let arp: Vec<u8> = [&[0xff; 12][..], &[0x08, 0x06], &PACKET].concat();
        assert_eq!(Frame::parse_ethernet(&arp), Err(FrameError::UnexpectedEtherType { ether_type: 0x0806 }));
        assert!(Frame::parse(&[]).is_err());
    }
}
