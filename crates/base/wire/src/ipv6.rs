//! The IPv6 header.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+---------------+---------------------------------------+
//! |   6   | traffic class |              flow label               |
//! +-------+---------------+-------+---------------+---------------+
//! |        payload length         |  next header  |   hop limit   |
//! +-------------------------------+---------------+---------------+
//! |                                                               |
//! +                  source address, 16 bytes                     +
//! |                                                               |
//! +---------------------------------------------------------------+
//! |                                                               |
//! +                destination address, 16 bytes                  +
//! |                                                               |
//! +---------------------------------------------------------------+
//! ```
//!
//! RFC 8200. In InfiniBand packets the same 40 bytes are the global route header. ICRC covers everything but traffic class,
//! flow label and hop limit. There is no identification.

use crate::field::{self, Field, read_u16, read_u32, write_u16, write_u32};
use crate::{Ecn, Truncated};
use core::net::Ipv6Addr;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 40;

/// A view of the header over a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6<T> {
    buffer: T,
}

const FIRST_WORD: Field = 0..4;
const PAYLOAD_LENGTH: Field = 4..6;
const NEXT_HEADER: usize = 6;
const HOP_LIMIT: usize = 7;
const SOURCE: Field = 8..24;
const DESTINATION: Field = 24..40;

impl<T: AsRef<[u8]>> Ipv6<T> {
    /// A view, when the buffer is long enough for the header. Whether it holds one is [`Ipv6::version`].
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Ipv6<T>, Truncated> {
        field::check_length(buffer.as_ref(), "IPv6 header", HEADER_BYTES)?;
        Ok(Ipv6 { buffer })
    }

    #[inline]
    fn first_word(&self) -> u32 {
        read_u32(self.buffer.as_ref(), FIRST_WORD)
    }

    /// The IP version.
    #[inline]
    pub fn version(&self) -> u8 {
        (self.first_word() >> 28) as u8
    }

    /// DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (self.first_word() >> 20) as u8
    }

    /// What routers spread flows by, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        self.first_word() & 0xf_ffff
    }

    /// Bytes after this header.
    #[inline]
    pub fn payload_length(&self) -> u16 {
        read_u16(self.buffer.as_ref(), PAYLOAD_LENGTH)
    }

    /// What follows this header.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.buffer.as_ref()[NEXT_HEADER]
    }

    /// How many routers the packet may still pass.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.buffer.as_ref()[HOP_LIMIT]
    }

    /// The sender.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        read_address(self.buffer.as_ref(), SOURCE)
    }

    /// The receiver.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        read_address(self.buffer.as_ref(), DESTINATION)
    }
}

#[inline]
fn read_address(data: &[u8], at: Field) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&data[at]);
    Ipv6Addr::from(octets)
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv6<T> {
    /// Sets version 6, traffic class and flow label, of which 20 bits are taken.
    #[inline]
    pub fn set_first_word(&mut self, traffic_class: u8, flow_label: u32) {
        let word = (6 << 28) | (u32::from(traffic_class) << 20) | (flow_label & 0xf_ffff);
        write_u32(self.buffer.as_mut(), FIRST_WORD, word);
    }

    /// Sets the number of bytes after this header.
    #[inline]
    pub fn set_payload_length(&mut self, value: u16) {
        write_u16(self.buffer.as_mut(), PAYLOAD_LENGTH, value);
    }

    /// Sets what follows.
    #[inline]
    pub fn set_next_header(&mut self, value: u8) {
        self.buffer.as_mut()[NEXT_HEADER] = value;
    }

    /// Sets the number of routers the packet may pass.
    #[inline]
    pub fn set_hop_limit(&mut self, value: u8) {
        self.buffer.as_mut()[HOP_LIMIT] = value;
    }

    /// Sets the sender.
    #[inline]
    pub fn set_source(&mut self, value: Ipv6Addr) {
        self.buffer.as_mut()[SOURCE].copy_from_slice(&value.octets());
    }

    /// Sets the receiver.
    #[inline]
    pub fn set_destination(&mut self, value: Ipv6Addr) {
        self.buffer.as_mut()[DESTINATION].copy_from_slice(&value.octets());
    }
}

/// The header as a value: version 6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// What routers spread flows by, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_length: u16,
    /// What follows this header.
    pub next_header: u8,
    /// How many routers the packet may still pass.
    pub hop_limit: u8,
    /// The sender.
    pub source: Ipv6Addr,
    /// The receiver.
    pub destination: Ipv6Addr,
}

impl Header {
    /// Takes all fields out of a view.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(view: &Ipv6<T>) -> Header {
        Header {
            traffic_class: view.traffic_class(),
            flow_label: view.flow_label(),
            payload_length: view.payload_length(),
            next_header: view.next_header(),
            hop_limit: view.hop_limit(),
            source: view.source(),
            destination: view.destination(),
        }
    }

    /// Puts all fields into a view.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, view: &mut Ipv6<T>) {
        view.set_first_word(self.traffic_class, self.flow_label);
        view.set_payload_length(self.payload_length);
        view.set_next_header(self.next_header);
        view.set_hop_limit(self.hop_limit);
        view.set_source(self.source);
        view.set_destination(self.destination);
    }

    /// The congestion mark.
    #[inline]
    pub const fn ecn(&self) -> Ecn {
        Ecn::from_bits(self.traffic_class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 40] = [
        0x6b, 0x92, 0x34, 0x56, 0x01, 0x00, 0x11, 0x40, // up to the addresses
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, //
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
    ];
    const HEADER: Header = Header {
        traffic_class: 0xb9,
        flow_label: 0x2_3456,
        payload_length: 256,
        next_header: 17,
        hop_limit: 64,
        source: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1),
        destination: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2),
    };

    #[test]
    fn parse() {
        let view = Ipv6::new_checked(BYTES).unwrap();
        assert_eq!(view.version(), 6);
        assert_eq!(Header::parse(&view), HEADER);
        assert_eq!(HEADER.ecn(), Ecn::Capable1);
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 41];
        HEADER.emit(&mut Ipv6::new_checked(&mut buffer[..]).unwrap());
        assert_eq!(buffer[..40], BYTES);
        assert_eq!(buffer[40], 0xa5);
    }

    #[test]
    fn a_wide_flow_label_does_not_spill() {
        let mut buffer = [0xa5; 40];
        let wide = Header { flow_label: 0xfff2_3456, ..HEADER };
        wide.emit(&mut Ipv6::new_checked(&mut buffer).unwrap());
        assert_eq!(buffer, BYTES);
    }

    #[test]
    fn a_short_buffer_has_no_view() {
        assert_eq!(Ipv6::new_checked(&BYTES[..39]).unwrap_err().found_bytes, 39);
    }
}
