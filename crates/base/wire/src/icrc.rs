//! The invariant CRC: the last four bytes of every packet, over everything that routers do not change.
//!
//! ```text
//!           |<------------------------- covered, with the masked bytes as ones ------------------------->|
//! | 8 x ff | IPv4: ff for type of service, time to live, checksum           | UDP: ff for | BTH: ff for    | rest of the | ICRC |
//! |        | IPv6: ff for traffic class, flow label, hop limit (version: 6) | checksum    | the fifth byte | datagram    |      |
//! ```
//!
//! It is Ethernet's CRC-32 (IBTA 7.8.1), over the packet with ones in place of what changes in transit (A17.3.3; the
//! eight bytes before it stand for InfiniBand's local route header). The four bytes go out least significant first.
//!
//! Because IP and UDP headers are covered, computing it needs more than the datagram: an [`IcrcScope`] holds what the covered
//! headers say besides the lengths, which follow from the datagram. A program with a socket knows all of it
//! but IPv4's identification. [`identification`] explains how a receiver gets that.

pub mod identification;
mod polynomial;

pub use identification::{IdentificationTracker, Verdict, solve_identification};

use crate::ip::PROTOCOL_UDP;
use crate::{bth, ipv4, ipv6, repair, udp};
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Bytes of the ICRC.
pub const ICRC_BYTES: usize = 4;

/// What the headers around a datagram say, as far as ICRC covers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IcrcScope {
    /// Over IPv4.
    V4 {
        /// The sender.
        source: Ipv4Addr,
        /// The receiver.
        destination: Ipv4Addr,
        /// The identification in the IP header.
        identification: u16,
        /// Flags and fragment offset; [`ipv4::DONT_FRAGMENT`] in ordinary packets.
        flags_fragment: u16,
        /// The sender's UDP port.
        source_port: u16,
        /// The receiver's UDP port.
        destination_port: u16,
    },
    /// Over IPv6.
    V6 {
        /// The sender.
        source: Ipv6Addr,
        /// The receiver.
        destination: Ipv6Addr,
        /// The sender's UDP port.
        source_port: u16,
        /// The receiver's UDP port.
        destination_port: u16,
    },
}

impl IcrcScope {
    /// Ones for every address, port and the identification, whatever the packet really travels in.
    ///
    /// Not RoCEv2: for two ends of our own that have agreed on it, because there is an address translator between them. The
    /// datagram itself is protected as well as ever. IPv6 packets use it too.
    pub const WITHOUT_ADDRESSES: IcrcScope = IcrcScope::V4 {
        source: Ipv4Addr::BROADCAST,
        destination: Ipv4Addr::BROADCAST,
        identification: 0xffff,
        flags_fragment: 0xffff,
        source_port: 0xffff,
        destination_port: 0xffff,
    };

    /// An unfragmentable IPv4 packet with identification 0, which is what a socket that is not connected sends with "don't
    /// fragment" set.
    #[inline]
    pub const fn v4(source: SocketAddrV4, destination: SocketAddrV4) -> IcrcScope {
        IcrcScope::V4 {
            source: *source.ip(),
            destination: *destination.ip(),
            identification: 0,
            flags_fragment: ipv4::DONT_FRAGMENT,
            source_port: source.port(),
            destination_port: destination.port(),
        }
    }

    /// An IPv6 packet.
    #[inline]
    pub const fn v6(source: SocketAddrV6, destination: SocketAddrV6) -> IcrcScope {
        IcrcScope::V6 {
            source: *source.ip(),
            destination: *destination.ip(),
            source_port: source.port(),
            destination_port: destination.port(),
        }
    }

    /// [`IcrcScope::v4`] or [`IcrcScope::v6`]; `None` when the ends are not of one family.
    #[inline]
    pub const fn between(source: SocketAddr, destination: SocketAddr) -> Option<IcrcScope> {
        match (source, destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => Some(IcrcScope::v4(source, destination)),
            (SocketAddr::V6(source), SocketAddr::V6(destination)) => Some(IcrcScope::v6(source, destination)),
            _ => None,
        }
    }

    /// The same with another identification; IPv6 has none, and stays as it is.
    #[inline]
    #[must_use]
    pub const fn with_identification(mut self, value: u16) -> IcrcScope {
        if let IcrcScope::V4 { identification, .. } = &mut self {
            *identification = value;
        }
        self
    }

    /// The same with other flags and another fragment offset; IPv6 has none, and stays as it is.
    #[inline]
    #[must_use]
    pub const fn with_flags_fragment(mut self, value: u16) -> IcrcScope {
        if let IcrcScope::V4 { flags_fragment, .. } = &mut self {
            *flags_fragment = value;
        }
        self
    }

    /// The same with another source port.
    #[inline]
    #[must_use]
    pub const fn with_source_port(mut self, value: u16) -> IcrcScope {
        match &mut self {
            IcrcScope::V4 { source_port, .. } | IcrcScope::V6 { source_port, .. } => *source_port = value,
        }
        self
    }

    /// The same with identification 0 and "don't fragment", which is what repair packets carry of every packet, whatever it had
    /// ([`repair`]). What leaves addresses out stays as it is.
    #[inline]
    #[must_use]
    pub fn canonical(self) -> IcrcScope {
        if self == Self::WITHOUT_ADDRESSES {
            return self;
        }
        self.with_identification(0).with_flags_fragment(ipv4::DONT_FRAGMENT)
    }

    /// The scope of the `index`-th datagram that a socket sends with one call: that is the identification Linux gives it. What
    /// leaves addresses out leaves the identification out as well.
    #[inline]
    #[must_use]
    pub fn of_segment(self, index: u16) -> IcrcScope {
        if self == Self::WITHOUT_ADDRESSES { self } else { self.with_identification(index) }
    }

    /// The identification, where there is one.
    #[inline]
    pub const fn identification(&self) -> Option<u16> {
        match self {
            IcrcScope::V4 { identification, .. } => Some(*identification),
            IcrcScope::V6 { .. } => None,
        }
    }
}

/// Ones in place of InfiniBand's local route header, which RoCEv2 does not have.
const LOCAL_ROUTE_HEADER_BYTES: usize = 8;

/// What comes before the bulk of the datagram: the masked headers, up to and with the BTH.
const PREFIX_V4_BYTES: usize = LOCAL_ROUTE_HEADER_BYTES + ipv4::HEADER_BYTES + udp::HEADER_BYTES + bth::HEADER_BYTES;
const PREFIX_V6_BYTES: usize = LOCAL_ROUTE_HEADER_BYTES + ipv6::HEADER_BYTES + udp::HEADER_BYTES + bth::HEADER_BYTES;

/// The ICRC of a datagram that does not have one yet: BTH to pad.
#[inline]
pub fn compute(scope: &IcrcScope, datagram_without_icrc: &[u8]) -> u32 {
    compute_parts(scope, datagram_without_icrc, &[])
}

/// The same for a datagram whose payload lies elsewhere: the headers, and what follows them.
#[inline]
pub fn compute_parts(scope: &IcrcScope, headers: &[u8], rest: &[&[u8]]) -> u32 {
    let datagram_bytes = headers.len() + rest.iter().map(|part| part.len()).sum::<usize>();
    let udp_length = (udp::HEADER_BYTES + datagram_bytes + ICRC_BYTES) as u16;
    match scope {
        IcrcScope::V4 { source, destination, identification, flags_fragment, source_port, destination_port } => {
            let mut prefix = [0xff; PREFIX_V4_BYTES];
            let total_length = udp_length.wrapping_add(ipv4::HEADER_BYTES as u16);
            let ip = &mut prefix[LOCAL_ROUTE_HEADER_BYTES..][..ipv4::HEADER_BYTES];
            ip[0] = ipv4::VERSION_AND_LENGTH_OF_PLAIN_HEADER;
            ip[2..4].copy_from_slice(&total_length.to_be_bytes());
            ip[4..6].copy_from_slice(&identification.to_be_bytes());
            ip[6..8].copy_from_slice(&flags_fragment.to_be_bytes());
            ip[9] = PROTOCOL_UDP;
            ip[12..16].copy_from_slice(&source.octets());
            ip[16..20].copy_from_slice(&destination.octets());
            put_udp(
                &mut prefix[LOCAL_ROUTE_HEADER_BYTES + ipv4::HEADER_BYTES..],
                *source_port,
                *destination_port,
                udp_length,
            );
            finish(prefix, headers, rest)
        }
        IcrcScope::V6 { source, destination, source_port, destination_port } => {
            let mut prefix = [0xff; PREFIX_V6_BYTES];
            let ip = &mut prefix[LOCAL_ROUTE_HEADER_BYTES..][..ipv6::HEADER_BYTES];
            // The version stays; traffic class and flow label are masked (A17.3.3).
            ip[0] = 0x6f;
            ip[4..6].copy_from_slice(&udp_length.to_be_bytes());
            ip[6] = PROTOCOL_UDP;
            ip[8..24].copy_from_slice(&source.octets());
            ip[24..40].copy_from_slice(&destination.octets());
            put_udp(
                &mut prefix[LOCAL_ROUTE_HEADER_BYTES + ipv6::HEADER_BYTES..],
                *source_port,
                *destination_port,
                udp_length,
            );
            finish(prefix, headers, rest)
        }
    }
}

#[inline]
fn put_udp(udp: &mut [u8], source_port: u16, destination_port: u16, length: u16) {
    udp[0..2].copy_from_slice(&source_port.to_be_bytes());
    udp[2..4].copy_from_slice(&destination_port.to_be_bytes());
    udp[4..6].copy_from_slice(&length.to_be_bytes());
}

/// The ICRC that a datagram has with another identification and other flags, without its bytes: only how many there are between
/// BTH and ICRC. `None` when the scopes differ in anything else, or when there are more bytes than in any packet.
///
/// CRCs are linear, so this costs two multiplications of remainders (some 40 ns), and nothing when the scopes are equal.
#[inline]
pub fn convert(from: &IcrcScope, to: &IcrcScope, datagram_bytes: usize, icrc: u32) -> Option<u32> {
    if from == to {
        return Some(icrc);
    }
    let (
        IcrcScope::V4 { identification: old, flags_fragment: old_flags, .. },
        IcrcScope::V4 { identification: new, flags_fragment: new_flags, .. },
    ) = (*from, *to)
    else {
        return None;
    };
    if from.with_identification(new).with_flags_fragment(new_flags) != *to {
        return None;
    }
    // The four bytes of both fields, where they enter the register: the first in the low eight bits.
    let [a, b] = (old ^ new).to_be_bytes();
    let [c, d] = (old_flags ^ new_flags).to_be_bytes();
    let fields_end = 8;
    let bytes_after = ipv4::HEADER_BYTES - fields_end + udp::HEADER_BYTES + datagram_bytes;
    Some(icrc ^ polynomial::add_bytes(u32::from_le_bytes([a, b, c, d]), bytes_after + size_of::<u32>())?)
}

/// Adds the masked BTH to the end of the prefix, and takes the CRC of that and of the rest.
///
/// crc32fast (PCLMULQDQ and AVX-512 folding, chosen at run time, which is what its `std` feature is for) was measured against
/// crc-fast: a prefix of 52 bytes and 64 B, 1 KiB or 4 KiB after it took 33, 53 and 99 ns against 103, 100 and 153 ns, and most of
/// our packets are short. Starting from the CRC of the eight constant bytes, instead of taking them with the prefix, made no
/// difference that could be measured. `examples/wire_speed.rs` measures.
#[inline]
fn finish<const PREFIX_BYTES: usize>(mut prefix: [u8; PREFIX_BYTES], headers: &[u8], rest: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    let without_bth = PREFIX_BYTES - bth::HEADER_BYTES;
    match headers.split_first_chunk::<{ bth::HEADER_BYTES }>() {
        Some((bth, headers)) => {
            prefix[without_bth..].copy_from_slice(bth);
            // No router changes this byte of a repair packet, where it is the type.
            if bth[0] != repair::OPCODE {
                prefix[without_bth + bth::CONGESTION] = 0xff;
            }
            hasher.update(&prefix);
            hasher.update(headers);
        }
        // Not a packet, but a number all the same.
        None => {
            hasher.update(&prefix[..without_bth]);
            hasher.update(headers);
        }
    }
    for part in rest {
        hasher.update(part);
    }
    hasher.finalize()
}

/// Whether the last four bytes of a datagram are its ICRC.
#[inline]
pub fn verify(scope: &IcrcScope, datagram_with_icrc: &[u8]) -> bool {
    split(datagram_with_icrc).is_some_and(|(datagram, icrc)| compute(scope, datagram) == icrc)
}

/// Computes a datagram's ICRC and writes it to the last four bytes. A buffer shorter than that is left alone.
#[inline]
pub fn write(scope: &IcrcScope, datagram: &mut [u8]) {
    if let Some((datagram, icrc)) = datagram.split_last_chunk_mut::<ICRC_BYTES>() {
        *icrc = compute(scope, datagram).to_le_bytes();
    }
}

/// The datagram and the ICRC at its end.
#[inline]
fn split(datagram_with_icrc: &[u8]) -> Option<(&[u8], u32)> {
    let (datagram, icrc) = datagram_with_icrc.split_last_chunk::<ICRC_BYTES>()?;
    Some((datagram, u32::from_le_bytes(*icrc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packet 2 of `tests/captures/rc-access-nak-v4.pcap`: a NAK of Linux Soft-RoCE.
    const NAK: [u8; 20] = [
        0x11, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x2c, 0x00, 0xff, 0xff, 0xfd, // BTH
        0x62, 0x00, 0x00, 0x00, // AETH
        0x3a, 0xce, 0x67, 0x4a, // ICRC
    ];

    fn scope() -> IcrcScope {
        let source = SocketAddrV4::new(Ipv4Addr::new(10, 47, 91, 1), 0xc790);
        let destination = SocketAddrV4::new(Ipv4Addr::new(10, 47, 91, 2), 4791);
        IcrcScope::v4(source, destination).with_identification(0x8d7b)
    }

    #[test]
    fn a_real_packet() {
        assert_eq!(compute(&scope(), &NAK[..16]), 0x4a67_ce3a);
        assert!(verify(&scope(), &NAK));
        let mut datagram = NAK;
        datagram[16..].fill(0xa5);
        write(&scope(), &mut datagram);
        assert_eq!(datagram, NAK);
    }

    #[test]
    fn an_icrc_is_converted_to_other_identifications_and_flags() {
        let bytes: [u8; 1100] = core::array::from_fn(|index| (index * 7) as u8);
        for length in [12, 13, 16, 255, 256, 1100] {
            let (from, to) = (scope().with_flags_fragment(0), scope().canonical());
            let icrc = compute(&from, &bytes[..length]);
            assert_ne!(icrc, compute(&to, &bytes[..length]));
            assert_eq!(convert(&from, &to, length, icrc), Some(compute(&to, &bytes[..length])), "{length}");
            assert_eq!(convert(&from, &from, length, icrc), Some(icrc));
            assert_eq!(convert(&from, &to.with_source_port(1), length, icrc), None);
        }
        assert_eq!(convert(&scope(), &scope().canonical(), 1 << 16, 0), None);
        assert_eq!(IcrcScope::WITHOUT_ADDRESSES.canonical(), IcrcScope::WITHOUT_ADDRESSES);
    }

    #[test]
    fn the_type_of_a_repair_packet_is_covered() {
        let mut datagram = NAK;
        datagram[bth::CONGESTION] ^= 0xff;
        assert!(verify(&scope(), &datagram), "the byte is masked in a packet of RoCEv2");
        datagram[0] = repair::OPCODE;
        write(&scope(), &mut datagram);
        assert!(verify(&scope(), &datagram));
        datagram[bth::CONGESTION] ^= 1;
        assert!(!verify(&scope(), &datagram));
    }

    #[test]
    fn a_datagram_in_parts() {
        let whole: [u8; 100] = core::array::from_fn(|index| index as u8);
        let expected = compute(&scope(), &whole);
        for split in 12..100 {
            let (headers, rest) = whole.split_at(split);
            let (middle, end) = rest.split_at(rest.len() / 2);
            assert_eq!(compute_parts(&scope(), headers, &[middle, end]), expected, "{split}");
        }
    }

    #[test]
    fn congestion_marks_are_not_covered() {
        let mut datagram = NAK;
        datagram[4] = 0xc0;
        assert!(verify(&scope(), &datagram));
        datagram[5] = 1;
        assert!(!verify(&scope(), &datagram));
    }

    #[test]
    fn addresses_ports_and_identification_are_covered() {
        assert!(!verify(&scope().with_identification(0x8d7c), &NAK));
        let IcrcScope::V4 { source, destination, identification, flags_fragment, source_port, destination_port } =
            scope()
        else {
            unreachable!()
        };
        let with = |source, flags_fragment, source_port| IcrcScope::V4 {
            source,
            destination,
            identification,
            flags_fragment,
            source_port,
            destination_port,
        };
        assert!(verify(&with(source, flags_fragment, source_port), &NAK));
        assert!(!verify(&with(destination, flags_fragment, source_port), &NAK));
        assert!(!verify(&with(source, 0, source_port), &NAK));
        assert!(!verify(&with(source, flags_fragment, 1), &NAK));
    }

    #[test]
    fn short_buffers_have_no_icrc() {
        for length in 0..16 {
            let mut buffer = [0xa5; 16];
            assert!(!verify(&scope(), &buffer[..length]));
            write(&scope(), &mut buffer[..length]);
            assert_eq!(verify(&scope(), &buffer[..length]), length >= ICRC_BYTES);
            assert_eq!(buffer[length..], [0xa5; 16][length..]);
        }
    }
}
