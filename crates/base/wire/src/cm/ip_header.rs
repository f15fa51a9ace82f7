//! Who connects to whom by IP addresses: what private data begin with in requests of programs that use them.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+-------+-------+-------------------------------+
//! | version, 0    |IP, 4/6|reserve|       source TCP/UDP port     |
//! +---------------+-------+-------+-------------------------------+
//! |                    source address, 16 bytes                   |
//! |                  destination address, 16 bytes                |
//! +---------------------------------------------------------------+
//! ```
//!
//! An IPv4 address is in the last four of its sixteen bytes, zeros before it. The service names the destination's port:
//! `0x0000_0000_01PP_port`, with PP the IP protocol that programs connect as (IBTA annex A11).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::field::{read_u16, write_u16};

/// Bytes of the header.
pub const BYTES: usize = 36;
/// PP of connections, as TCP.
pub const PROTOCOL_TCP: u8 = 0x06;
/// PP of datagrams, as UDP.
pub const PROTOCOL_UDP: u8 = 0x11;

/// The service at a port.
pub const fn service(protocol: u8, port: u16) -> u64 {
    0x0100_0000 | (protocol as u64) << 16 | port as u64
}

/// The protocol and port of a service, if it is one of these.
pub const fn port_of(service: u64) -> Option<(u8, u16)> {
    match service >> 24 {
        1 => Some(((service >> 16) as u8, service as u16)),
        _ => None,
    }
}

/// The header as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The end that connects.
    pub source: IpAddr,
    /// The end that listens.
    pub destination: IpAddr,
    /// The port of the end that connects.
    pub source_port: u16,
}

impl Header {
    /// Reads it from the beginning of private data; `None` if they do not begin with one.
    pub fn parse(private_data: &[u8]) -> Option<Header> {
        let bytes: &[u8; BYTES] = private_data.first_chunk()?;
        let address = |from: usize| -> Option<IpAddr> {
            let all: [u8; 16] = core::array::from_fn(|index| bytes[from + index]);
            match bytes[1] >> 4 {
                4 => Some(Ipv4Addr::new(all[12], all[13], all[14], all[15]).into()),
                6 => Some(Ipv6Addr::from(all).into()),
                _ => None,
            }
        };
        if bytes[0] != 0 {
            return None;
        }
        Some(Header { source: address(4)?, destination: address(20)?, source_port: read_u16(bytes, 2..4) })
    }

    /// Its bytes. The version is the source's; both addresses must be of one family.
    pub fn emit(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[1] = if self.source.is_ipv4() { 0x40 } else { 0x60 };
        write_u16(&mut bytes, 2..4, self.source_port);
        for (from, address) in [(4, self.source), (20, self.destination)] {
            match address {
                IpAddr::V4(v4) => bytes[from + 12..from + 16].copy_from_slice(&v4.octets()),
                IpAddr::V6(v6) => bytes[from..from + 16].copy_from_slice(&v6.octets()),
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;

    #[test]
    fn version_4() {
        let header = Header {
            source: "10.47.91.2".parse().unwrap(),
            destination: "10.47.91.1".parse().unwrap(),
            source_port: 0x933a,
        };
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&[0, 0x40, 0x93, 0x3a]);
        bytes[16..20].copy_from_slice(&[10, 47, 91, 2]);
        bytes[32..].copy_from_slice(&[10, 47, 91, 1]);
        assert_eq!(header.emit(), bytes);
        assert_eq!(Header::parse(&bytes), Some(header));
        let expected: [(&str, &[u8]); 5] = [
            ("version", &[0]),
            ("ip_version", &[0x40]),
            ("source_port", &[0x93, 0x3a]),
            ("source", &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 47, 91, 2]),
            ("destination", &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 47, 91, 1]),
        ];
        document::check_layout("Connection management", 1, &bytes, &expected);
    }

    #[test]
    fn version_6() {
        let header =
            Header { source: "fd00::2".parse().unwrap(), destination: "fd00::1".parse().unwrap(), source_port: 1 };
        let bytes = header.emit();
        assert_eq!((bytes[1], bytes[4], bytes[19], bytes[20], bytes[35]), (0x60, 0xfd, 2, 0xfd, 1));
        assert_eq!(Header::parse(&bytes), Some(header));
    }

    #[test]
    fn what_is_no_header_is_none() {
        assert_eq!(Header::parse(&[0; BYTES]), None, "no IP version");
        assert_eq!(Header::parse(&[0x40; 10]), None);
        let mut bytes = [0; BYTES];
        (bytes[0], bytes[1]) = (1, 0x40);
        assert_eq!(Header::parse(&bytes), None, "a version that is not known");
    }

    #[test]
    fn services_have_ports() {
        assert_eq!(service(PROTOCOL_TCP, 7174), 0x0106_1c06);
        assert_eq!(port_of(0x0106_1c06), Some((PROTOCOL_TCP, 7174)));
        assert_eq!(port_of(service(PROTOCOL_UDP, 1)), Some((PROTOCOL_UDP, 1)));
        assert_eq!(port_of(0x0206_1c06), None);
        assert_eq!(port_of(1 << 63 | 0x0106_1c06), None);
    }
}
