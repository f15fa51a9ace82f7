//! What IPv4 and IPv6 have in common here: addresses, congestion marks, and one enum for either header.
//!
//! ```text
//!   7 6 5 4 3 2 1 0
//! +-----------+---+
//! |   DSCP    |ECN|   IPv4's "type of service" byte, IPv6's "traffic class" byte (RFC 2474, RFC 3168)
//! +-----------+---+
//! ```

use crate::{ipv4, ipv6};
use core::net::IpAddr;

/// The protocol number of UDP in either header.
pub const PROTOCOL_UDP: u8 = 17;

/// The two explicit congestion notification bits (RFC 3168, section 5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not react to marks: congestion means loss.
    #[default]
    NotCapable = 0b00,
    /// ECT(1).
    Capable1 = 0b01,
    /// ECT(0), what RoCEv2 senders use.
    Capable0 = 0b10,
    /// A queue in the network was too long.
    CongestionExperienced = 0b11,
}

impl Ecn {
    /// The low two bits of a type of service or traffic class byte.
    #[inline]
    pub const fn from_bits(byte: u8) -> Ecn {
        match byte & 0b11 {
            0b00 => Ecn::NotCapable,
            0b01 => Ecn::Capable1,
            0b10 => Ecn::Capable0,
            _ => Ecn::CongestionExperienced,
        }
    }

    /// The two bits.
    #[inline]
    pub const fn bits(self) -> u8 {
        self as u8
    }

    /// The byte with its low two bits replaced by these.
    #[inline]
    pub const fn apply_to(self, traffic_class: u8) -> u8 {
        (traffic_class & !0b11) | self.bits()
    }
}

/// The header of an IP packet of either version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpHeader {
    /// Version 4.
    V4(ipv4::Header),
    /// Version 6.
    V6(ipv6::Header),
}

impl IpHeader {
    /// Bytes of the header.
    #[inline]
    pub const fn byte_count(&self) -> usize {
        match self {
            IpHeader::V4(_) => ipv4::HEADER_BYTES,
            IpHeader::V6(_) => ipv6::HEADER_BYTES,
        }
    }

    /// The sender's address.
    #[inline]
    pub const fn source(&self) -> IpAddr {
        match self {
            IpHeader::V4(header) => IpAddr::V4(header.source),
            IpHeader::V6(header) => IpAddr::V6(header.source),
        }
    }

    /// The receiver's address.
    #[inline]
    pub const fn destination(&self) -> IpAddr {
        match self {
            IpHeader::V4(header) => IpAddr::V4(header.destination),
            IpHeader::V6(header) => IpAddr::V6(header.destination),
        }
    }

    /// DSCP and ECN.
    #[inline]
    pub const fn traffic_class(&self) -> u8 {
        match self {
            IpHeader::V4(header) => header.type_of_service,
            IpHeader::V6(header) => header.traffic_class,
        }
    }

    /// The congestion mark.
    #[inline]
    pub const fn ecn(&self) -> Ecn {
        Ecn::from_bits(self.traffic_class())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ecn_is_the_low_two_bits() {
        for bits in 0..4 {
            assert_eq!(Ecn::from_bits(0xb8 | bits).bits(), bits);
            assert_eq!(Ecn::from_bits(bits).apply_to(0xff), 0xfc | bits);
        }
        assert_eq!(Ecn::from_bits(0b11), Ecn::CongestionExperienced);
        assert_eq!(Ecn::from_bits(0b10), Ecn::Capable0);
    }
}
