//! The datagram extended transport header: who sent a datagram, and that it may.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                           queue key                           |
//! +---------------+-----------------------------------------------+
//! |   reserved    |          source queue pair number             |
//! +---------------+-----------------------------------------------+
//! ```
//!
//! In every unreliable datagram (IBTA 9.3.2).

use crate::Truncated;
use crate::field::{self, Field, read_u24, read_u32, write_u24, write_u32};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;

/// A view of the header over a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth<T> {
    buffer: T,
}

const QUEUE_KEY: Field = 0..4;
const RESERVED: usize = 4;
const SOURCE_QP: Field = 5..8;

impl<T: AsRef<[u8]>> Deth<T> {
    /// A view, when the buffer is long enough for the header.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Deth<T>, Truncated> {
        field::check_length(buffer.as_ref(), "DETH", HEADER_BYTES)?;
        Ok(Deth { buffer })
    }

    /// The key that the receiving queue pair compares with its own.
    #[inline]
    pub fn queue_key(&self) -> u32 {
        read_u32(self.buffer.as_ref(), QUEUE_KEY)
    }

    /// The reserved byte.
    #[inline]
    pub fn reserved(&self) -> u8 {
        self.buffer.as_ref()[RESERVED]
    }

    /// The queue pair that sent the packet.
    #[inline]
    pub fn source_qp(&self) -> u32 {
        read_u24(self.buffer.as_ref(), SOURCE_QP)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Deth<T> {
    /// Sets the key.
    #[inline]
    pub fn set_queue_key(&mut self, value: u32) {
        write_u32(self.buffer.as_mut(), QUEUE_KEY, value);
    }

    /// Sets the reserved byte.
    #[inline]
    pub fn set_reserved(&mut self, value: u8) {
        self.buffer.as_mut()[RESERVED] = value;
    }

    /// Sets the source queue pair number, of which 24 bits are taken.
    #[inline]
    pub fn set_source_qp(&mut self, value: u32) {
        write_u24(self.buffer.as_mut(), SOURCE_QP, value);
    }
}

/// The header as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The key that the receiving queue pair compares with its own.
    pub queue_key: u32,
    /// The queue pair that sent the packet, 24 bits.
    pub source_qp: u32,
    /// Sent as zero and ignored on receipt; kept so that a packet keeps its bytes.
    pub reserved: u8,
}

impl Header {
    /// A header with the reserved byte zero.
    #[inline]
    pub const fn new(queue_key: u32, source_qp: u32) -> Header {
        Header { queue_key, source_qp, reserved: 0 }
    }

    /// Takes all fields out of a view.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(view: &Deth<T>) -> Header {
        Header { queue_key: view.queue_key(), source_qp: view.source_qp(), reserved: view.reserved() }
    }

    /// Puts all fields into a view.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, view: &mut Deth<T>) {
        view.set_queue_key(self.queue_key);
        view.set_reserved(self.reserved);
        view.set_source_qp(self.source_qp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 8] = [0x11, 0x11, 0x11, 0x12, 0x07, 0x00, 0x01, 0xff];
    const HEADER: Header = Header { queue_key: 0x1111_1112, source_qp: 0x1ff, reserved: 7 };

    #[test]
    fn parse() {
        assert_eq!(Header::parse(&Deth::new_checked(BYTES).unwrap()), HEADER);
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 9];
        HEADER.emit(&mut Deth::new_checked(&mut buffer[..]).unwrap());
        assert_eq!(buffer[..8], BYTES);
        assert_eq!(buffer[8], 0xa5);
    }

    #[test]
    fn a_short_buffer_has_no_view() {
        assert_eq!(Deth::new_checked(&BYTES[..7]).unwrap_err().found_bytes, 7);
    }
}
