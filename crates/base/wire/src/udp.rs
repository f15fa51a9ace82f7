//! The UDP header.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------------------------------+-------------------------------+
//! |          source port          |       destination port        |
//! +-------------------------------+-------------------------------+
//! |            length             |           checksum            |
//! +-------------------------------+-------------------------------+
//! ```
//!
//! RFC 768. The source port of RoCEv2 says nothing but which flow a packet belongs to: routers spread flows over equal
//! paths by it (A17.3.2.1, A17.9.4). The checksum is usually 0, "not computed" (A17.3.2.4), because ICRC does its work;
//! ICRC leaves it out.

use crate::Truncated;
use crate::field::{self, Field, read_u16, write_u16};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;

/// The destination port of RoCEv2 (A17.3.2.2; the number is IANA's).
pub const UDP_PORT_ROCE: u16 = 4791;

/// A view of the header over a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp<T> {
    buffer: T,
}

const SOURCE_PORT: Field = 0..2;
const DESTINATION_PORT: Field = 2..4;
const LENGTH: Field = 4..6;
const CHECKSUM: Field = 6..8;

impl<T: AsRef<[u8]>> Udp<T> {
    /// A view, when the buffer is long enough for the header.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Udp<T>, Truncated> {
        field::check_length(buffer.as_ref(), "UDP header", HEADER_BYTES)?;
        Ok(Udp { buffer })
    }

    /// The sender's port.
    #[inline]
    pub fn source_port(&self) -> u16 {
        read_u16(self.buffer.as_ref(), SOURCE_PORT)
    }

    /// The receiver's port.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        read_u16(self.buffer.as_ref(), DESTINATION_PORT)
    }

    /// Bytes of header and datagram.
    #[inline]
    pub fn length(&self) -> u16 {
        read_u16(self.buffer.as_ref(), LENGTH)
    }

    /// The checksum; 0 when there is none.
    #[inline]
    pub fn checksum(&self) -> u16 {
        read_u16(self.buffer.as_ref(), CHECKSUM)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Udp<T> {
    /// Sets the sender's port.
    #[inline]
    pub fn set_source_port(&mut self, value: u16) {
        write_u16(self.buffer.as_mut(), SOURCE_PORT, value);
    }

    /// Sets the receiver's port.
    #[inline]
    pub fn set_destination_port(&mut self, value: u16) {
        write_u16(self.buffer.as_mut(), DESTINATION_PORT, value);
    }

    /// Sets the number of bytes of header and datagram.
    #[inline]
    pub fn set_length(&mut self, value: u16) {
        write_u16(self.buffer.as_mut(), LENGTH, value);
    }

    /// Sets the checksum.
    #[inline]
    pub fn set_checksum(&mut self, value: u16) {
        write_u16(self.buffer.as_mut(), CHECKSUM, value);
    }
}

/// The header as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    /// Bytes of header and datagram.
    pub length: u16,
    /// The checksum; 0 when there is none.
    pub checksum: u16,
}

impl Header {
    /// Takes all fields out of a view.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(view: &Udp<T>) -> Header {
        Header {
            source_port: view.source_port(),
            destination_port: view.destination_port(),
            length: view.length(),
            checksum: view.checksum(),
        }
    }

    /// Puts all fields into a view.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, view: &mut Udp<T>) {
        view.set_source_port(self.source_port);
        view.set_destination_port(self.destination_port);
        view.set_length(self.length);
        view.set_checksum(self.checksum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 8] = [0xc0, 0x01, 0x12, 0xb7, 0x01, 0x00, 0xab, 0xcd];
    const HEADER: Header =
        Header { source_port: 0xc001, destination_port: UDP_PORT_ROCE, length: 256, checksum: 0xabcd };

    #[test]
    fn parse() {
        assert_eq!(Header::parse(&Udp::new_checked(BYTES).unwrap()), HEADER);
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 9];
        HEADER.emit(&mut Udp::new_checked(&mut buffer[..]).unwrap());
        assert_eq!(buffer[..8], BYTES);
        assert_eq!(buffer[8], 0xa5);
    }

    #[test]
    fn a_short_buffer_has_no_view() {
        assert_eq!(Udp::new_checked(&BYTES[..7]).unwrap_err().found_bytes, 7);
    }
}
