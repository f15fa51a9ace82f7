//! Who the peer is and how to reach it: GIDs, path attributes, MTU.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A queue pair number: 24 bits. 0 and 1 are reserved for management, [`QueuePairNumber::MULTICAST`] names a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct QueuePairNumber(u32);

impl QueuePairNumber {
    /// The number that a datagram to a multicast group carries.
    pub const MULTICAST: QueuePairNumber = QueuePairNumber(0xff_ffff);
    /// The lowest number that a device may give out; 0 and 1 are the management queue pairs of the specification.
    pub const FIRST_ORDINARY: u32 = 2;

    /// The lower 24 bits of `number`.
    pub const fn new(number: u32) -> Self {
        QueuePairNumber(number & 0xff_ffff)
    }

    /// The number.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for QueuePairNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A 128-bit port address. With RoCEv2 it is an IP address: IPv6 as it is, IPv4 mapped (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID that stands for an IP address under RoCEv2.
    pub fn from_ip(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Gid(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Gid(v6.octets()),
        }
    }

    /// The IP address that this GID stands for under RoCEv2.
    pub fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(v6),
        }
    }

    /// Whether this is a multicast group: `ff00::/8`, or a mapped IPv4 group.
    pub fn is_multicast(self) -> bool {
        self.to_ip().is_multicast()
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Self {
        Gid::from_ip(IpAddr::V4(address))
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Gid::from_ip(IpAddr::V6(address))
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0))
    }
}

/// What kind of network a GID belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidType {
    /// Native InfiniBand.
    InfiniBand,
    /// RoCE version 1: directly on Ethernet, not routed.
    RoceV1,
    /// RoCE version 2: in UDP/IP. The only one that Longhaul's own device speaks.
    RoceV2,
}

/// One row of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// Its kind.
    pub gid_type: GidType,
    /// Its row.
    pub index: u32,
}

/// Payload bytes of a full packet: the five values that the specification knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Mtu {
    /// 256 bytes
    Bytes256 = 1,
    /// 512 bytes
    Bytes512 = 2,
    /// 1024 bytes; fits a 1500-byte Ethernet
    #[default]
    Bytes1024 = 3,
    /// 2048 bytes
    Bytes2048 = 4,
    /// 4096 bytes; needs jumbo frames
    Bytes4096 = 5,
}

impl Mtu {
    /// All of them, smallest first.
    pub const ALL: [Mtu; 5] = [Mtu::Bytes256, Mtu::Bytes512, Mtu::Bytes1024, Mtu::Bytes2048, Mtu::Bytes4096];

    /// The number of payload bytes.
    pub const fn byte_count(self) -> u32 {
        128 << (self as u32)
    }

    /// The path MTU with exactly this payload.
    pub fn from_byte_count(byte_count: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|mtu| mtu.byte_count() == byte_count)
    }

    /// The largest MTU whose packets carry at most this many payload bytes; `None` below 256.
    pub fn largest_within(byte_count: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().rev().find(|mtu| mtu.byte_count() <= byte_count)
    }
}

/// The path to a peer: libibverbs' `ibv_ah_attr`. With RoCEv2 only the GIDs, hop limit and traffic class matter; the
/// rest is carried for InfiniBand devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathAttributes {
    /// Where to.
    pub destination: Gid,
    /// Row of the port's GID table that is the source address.
    pub source_gid_index: u8,
    /// IP time to live.
    pub hop_limit: u8,
    /// IP type of service / traffic class (DSCP in the upper six bits; the lower two are ECN's).
    pub traffic_class: u8,
    /// IPv6 flow label; also spreads flows over source ports on some devices.
    pub flow_label: u32,
    /// The device's port, counted from 1.
    pub port: u8,
    /// InfiniBand service level.
    pub service_level: u8,
    /// Static rate limit in the specification's encoding; 0 is the port's rate.
    pub static_rate: u8,
    /// InfiniBand destination LID; 0 with RoCE.
    pub destination_lid: u16,
    /// InfiniBand source path bits; 0 with RoCE.
    pub source_path_bits: u8,
    /// The UDP port at which the peer listens: 4791, RoCEv2's, unless both ends are software that agreed on another.
    /// Devices with the capability [`FREE_UDP_PORT`](crate::Capabilities::FREE_UDP_PORT) only.
    pub udp_port: u16,
    /// RC, UC: the UDP port that the peer's packets come from, as the peer has said
    /// ([`QueuePair::source_port`](crate::QueuePair::source_port)); packets from any other are dropped. 0 when it is
    /// not known, or when addresses are translated in the network. Devices that do not show source ports do not check
    /// it either.
    pub peer_source_port: u16,
}

/// RoCEv2's UDP port.
const UDP_PORT_ROCE: u16 = 4791;

impl PathAttributes {
    /// A path through port 1 from its first GID, 64 hops, best effort.
    pub fn to(destination: Gid) -> Self {
        PathAttributes {
            destination,
            source_gid_index: 0,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            port: 1,
            service_level: 0,
            static_rate: 0,
            destination_lid: 0,
            source_path_bits: 0,
            udp_port: UDP_PORT_ROCE,
            peer_source_port: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_stand_for_ip_addresses() {
        let v4: IpAddr = "10.1.2.3".parse().unwrap();
        let v6: IpAddr = "fd00::7".parse().unwrap();
        assert_eq!(Gid::from_ip(v4).0[10..], [0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!(Gid::from_ip(v4).to_ip(), v4);
        assert_eq!(Gid::from_ip(v6).to_ip(), v6);
        assert!(Gid::from_ip("239.1.1.1".parse().unwrap()).is_multicast());
        assert!(Gid::from_ip("ff05::1".parse().unwrap()).is_multicast());
        assert!(!Gid::from_ip(v4).is_multicast());
    }

    #[test]
    fn mtu_encodings_are_the_specifications() {
        assert_eq!(Mtu::Bytes256.byte_count(), 256);
        assert_eq!(Mtu::Bytes4096.byte_count(), 4096);
        assert_eq!(Mtu::largest_within(1500 - 60), Some(Mtu::Bytes1024));
        assert_eq!(Mtu::largest_within(100), None);
    }
}
