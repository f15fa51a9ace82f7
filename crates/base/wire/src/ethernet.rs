//! The Ethernet II header, for captures and packet sockets.
//!
//! ```text
//! | destination, 6 bytes | source, 6 bytes | [ 0x8100 or 0x88a8, tag ] … | EtherType, 2 bytes | payload |
//! ```
//!
//! Tags (IEEE 802.1Q, 802.1ad) are skipped by [`payload`]; a caller that needs them has the bytes before it. A frame
//! shorter than 60 bytes was padded on the wire: the payload may have bytes at its end that belong to no packet, which
//! [`crate::frame`] leaves alone.

use crate::Truncated;
use crate::field::{self, Field, read_u16, write_u16};

/// Bytes of the header without tags.
pub const HEADER_BYTES: usize = 14;

/// EtherType of IPv4.
pub const ETHER_TYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHER_TYPE_IPV6: u16 = 0x86dd;

const ETHER_TYPE_TAG: u16 = 0x8100;
const ETHER_TYPE_SERVICE_TAG: u16 = 0x88a8;
/// More nested tags than this are nobody's network.
const TAG_COUNT_MAX: usize = 2;
const TAG_BYTES: usize = 4;

/// A view of the header, without tags, over a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ethernet<T> {
    buffer: T,
}

const DESTINATION: Field = 0..6;
const SOURCE: Field = 6..12;
const ETHER_TYPE: Field = 12..14;

impl<T: AsRef<[u8]>> Ethernet<T> {
    /// A view, when the buffer is long enough for the header.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Ethernet<T>, Truncated> {
        field::check_length(buffer.as_ref(), "Ethernet header", HEADER_BYTES)?;
        Ok(Ethernet { buffer })
    }

    /// The receiver.
    #[inline]
    pub fn destination(&self) -> [u8; 6] {
        read_address(self.buffer.as_ref(), DESTINATION)
    }

    /// The sender.
    #[inline]
    pub fn source(&self) -> [u8; 6] {
        read_address(self.buffer.as_ref(), SOURCE)
    }

    /// What follows: a packet's EtherType, or a tag's.
    #[inline]
    pub fn ether_type(&self) -> u16 {
        read_u16(self.buffer.as_ref(), ETHER_TYPE)
    }
}

#[inline]
fn read_address(data: &[u8], at: Field) -> [u8; 6] {
    let mut address = [0; 6];
    address.copy_from_slice(&data[at]);
    address
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ethernet<T> {
    /// Sets the receiver.
    #[inline]
    pub fn set_destination(&mut self, value: [u8; 6]) {
        self.buffer.as_mut()[DESTINATION].copy_from_slice(&value);
    }

    /// Sets the sender.
    #[inline]
    pub fn set_source(&mut self, value: [u8; 6]) {
        self.buffer.as_mut()[SOURCE].copy_from_slice(&value);
    }

    /// Sets what follows.
    #[inline]
    pub fn set_ether_type(&mut self, value: u16) {
        write_u16(self.buffer.as_mut(), ETHER_TYPE, value);
    }
}

/// The header as a value, without tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The receiver.
    pub destination: [u8; 6],
    /// The sender.
    pub source: [u8; 6],
    /// What follows.
    pub ether_type: u16,
}

impl Header {
    /// Takes all fields out of a view.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(view: &Ethernet<T>) -> Header {
        Header { destination: view.destination(), source: view.source(), ether_type: view.ether_type() }
    }

    /// Puts all fields into a view.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, view: &mut Ethernet<T>) {
        view.set_destination(self.destination);
        view.set_source(self.source);
        view.set_ether_type(self.ether_type);
    }
}

/// The EtherType and the bytes behind the header and up to two tags.
pub fn payload(frame: &[u8]) -> Result<(u16, &[u8]), Truncated> {
    let mut ether_type = Ethernet::new_checked(frame)?.ether_type();
    let mut rest = &frame[HEADER_BYTES..];
    for _ in 0..TAG_COUNT_MAX {
        if ether_type != ETHER_TYPE_TAG && ether_type != ETHER_TYPE_SERVICE_TAG {
            break;
        }
        field::check_length(rest, "VLAN tag", TAG_BYTES)?;
        ether_type = read_u16(rest, 2..4);
        rest = &rest[TAG_BYTES..];
    }
    Ok((ether_type, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 14] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x08, 0x00];
    const HEADER: Header = Header { destination: [0xff; 6], source: [2, 0, 0, 0, 0, 1], ether_type: ETHER_TYPE_IPV4 };

    #[test]
    fn parse() {
        assert_eq!(Header::parse(&Ethernet::new_checked(BYTES).unwrap()), HEADER);
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 15];
        HEADER.emit(&mut Ethernet::new_checked(&mut buffer[..]).unwrap());
        assert_eq!(buffer[..14], BYTES);
        assert_eq!(buffer[14], 0xa5);
    }

    #[test]
    fn tags_are_skipped() {
        let plain = [&BYTES[..], b"ip"].concat();
        assert_eq!(payload(&plain), Ok((ETHER_TYPE_IPV4, &b"ip"[..])));
        let tagged = [&BYTES[..12], &[0x88, 0xa8, 0, 1, 0x81, 0x00, 0, 2, 0x86, 0xdd], b"ip"].concat();
        assert_eq!(payload(&tagged), Ok((ETHER_TYPE_IPV6, &b"ip"[..])));
        assert_eq!(payload(&tagged[..16]).unwrap_err().header, "VLAN tag");
        assert_eq!(payload(&tagged[..13]).unwrap_err().header, "Ethernet header");
    }

    extern crate std;
}
