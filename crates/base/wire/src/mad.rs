//! The common header of management datagrams (MADs): which service a datagram is for, and which request it answers.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+---------------+---------------+---------------+
//! | base version  |     class     | class version |R|   method    |
//! +---------------+---------------+---------------+---------------+
//! |            status             |        class specific         |
//! +-------------------------------+-------------------------------+
//! |                        transaction                            |
//! |                                                               |
//! +-------------------------------+-------------------------------+
//! |           attribute           |           reserved            |
//! +-------------------------------+-------------------------------+
//! |                      attribute modifier                       |
//! +---------------------------------------------------------------+
//! ```
//!
//! In every packet of the management queue pairs (IBTA 13.4.3). A management datagram always has 256 bytes. With RoCE only
//! queue pair 1 exists, and connection management ([`crate::cm`]) is what uses it.

use crate::Truncated;
use crate::field::{self, Field, read_u16, read_u32, read_u64, write_u16, write_u32, write_u64};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 24;
/// Bytes of every management datagram.
pub const DATAGRAM_BYTES: usize = 256;
/// What follows the header.
pub const DATA_BYTES: usize = DATAGRAM_BYTES - HEADER_BYTES;
/// The queue pair of general services, which connection management is one of (IBTA 3.9.5).
pub const QUEUE_PAIR_GENERAL: u32 = 1;
/// The queue key of datagrams to that queue pair, the same everywhere (IBTA 10.2.5).
pub const QUEUE_KEY_GENERAL: u32 = 0x8001_0000;
/// The only base version there is.
pub const BASE_VERSION: u8 = 1;

/// A view of the header over a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mad<T> {
    buffer: T,
}

const VERSION: usize = 0;
const CLASS: usize = 1;
const CLASS_VERSION: usize = 2;
const METHOD: usize = 3;
const STATUS: Field = 4..6;
const CLASS_SPECIFIC: Field = 6..8;
const TRANSACTION: Field = 8..16;
const ATTRIBUTE: Field = 16..18;
const RESERVED: Field = 18..20;
const MODIFIER: Field = 20..24;

impl<T: AsRef<[u8]>> Mad<T> {
    /// A view, when the buffer is long enough for the header.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Mad<T>, Truncated> {
        field::check_length(buffer.as_ref(), "management datagram header", HEADER_BYTES)?;
        Ok(Mad { buffer })
    }

    /// The version of this header.
    #[inline]
    pub fn base_version(&self) -> u8 {
        self.buffer.as_ref()[VERSION]
    }

    /// The service that the datagram is for.
    #[inline]
    pub fn class(&self) -> u8 {
        self.buffer.as_ref()[CLASS]
    }

    /// The version of that service's datagrams.
    #[inline]
    pub fn class_version(&self) -> u8 {
        self.buffer.as_ref()[CLASS_VERSION]
    }

    /// What to do, with the response bit.
    #[inline]
    pub fn method(&self) -> u8 {
        self.buffer.as_ref()[METHOD]
    }

    /// How it went, in responses.
    #[inline]
    pub fn status(&self) -> u16 {
        read_u16(self.buffer.as_ref(), STATUS)
    }

    /// Two bytes that are the class's own.
    #[inline]
    pub fn class_specific(&self) -> u16 {
        read_u16(self.buffer.as_ref(), CLASS_SPECIFIC)
    }

    /// By which a response is matched with its request.
    #[inline]
    pub fn transaction(&self) -> u64 {
        read_u64(self.buffer.as_ref(), TRANSACTION)
    }

    /// What the datagram is about: with connection management, the kind of message.
    #[inline]
    pub fn attribute(&self) -> u16 {
        read_u16(self.buffer.as_ref(), ATTRIBUTE)
    }

    /// The reserved bytes.
    #[inline]
    pub fn reserved(&self) -> u16 {
        read_u16(self.buffer.as_ref(), RESERVED)
    }

    /// More about the attribute.
    #[inline]
    pub fn modifier(&self) -> u32 {
        read_u32(self.buffer.as_ref(), MODIFIER)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Mad<T> {
    /// Sets the version of this header.
    #[inline]
    pub fn set_base_version(&mut self, value: u8) {
        self.buffer.as_mut()[VERSION] = value;
    }

    /// Sets the service.
    #[inline]
    pub fn set_class(&mut self, value: u8) {
        self.buffer.as_mut()[CLASS] = value;
    }

    /// Sets the version of the service's datagrams.
    #[inline]
    pub fn set_class_version(&mut self, value: u8) {
        self.buffer.as_mut()[CLASS_VERSION] = value;
    }

    /// Sets the method, with the response bit.
    #[inline]
    pub fn set_method(&mut self, value: u8) {
        self.buffer.as_mut()[METHOD] = value;
    }

    /// Sets the status.
    #[inline]
    pub fn set_status(&mut self, value: u16) {
        write_u16(self.buffer.as_mut(), STATUS, value);
    }

    /// Sets the bytes that are the class's own.
    #[inline]
    pub fn set_class_specific(&mut self, value: u16) {
        write_u16(self.buffer.as_mut(), CLASS_SPECIFIC, value);
    }

    /// Sets the transaction.
    #[inline]
    pub fn set_transaction(&mut self, value: u64) {
        write_u64(self.buffer.as_mut(), TRANSACTION, value);
    }

    /// Sets the attribute.
    #[inline]
    pub fn set_attribute(&mut self, value: u16) {
        write_u16(self.buffer.as_mut(), ATTRIBUTE, value);
    }

    /// Sets the reserved bytes.
    #[inline]
    pub fn set_reserved(&mut self, value: u16) {
        write_u16(self.buffer.as_mut(), RESERVED, value);
    }

    /// Sets the attribute modifier.
    #[inline]
    pub fn set_modifier(&mut self, value: u32) {
        write_u32(self.buffer.as_mut(), MODIFIER, value);
    }
}

/// The header as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The version of this header.
    pub base_version: u8,
    /// The service that the datagram is for.
    pub class: u8,
    /// The version of that service's datagrams.
    pub class_version: u8,
    /// What to do, with the response bit.
    pub method: u8,
    /// How it went, in responses.
    pub status: u16,
    /// Two bytes that are the class's own.
    pub class_specific: u16,
    /// By which a response is matched with its request.
    pub transaction: u64,
    /// What the datagram is about.
    pub attribute: u16,
    /// Sent as zero and ignored on receipt; kept so that a datagram keeps its bytes.
    pub reserved: u16,
    /// More about the attribute.
    pub modifier: u32,
}

impl Header {
    /// Takes all fields out of a view.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(view: &Mad<T>) -> Header {
        Header {
            base_version: view.base_version(),
            class: view.class(),
            class_version: view.class_version(),
            method: view.method(),
            status: view.status(),
            class_specific: view.class_specific(),
            transaction: view.transaction(),
            attribute: view.attribute(),
            reserved: view.reserved(),
            modifier: view.modifier(),
        }
    }

    /// Puts all fields into a view.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, view: &mut Mad<T>) {
        view.set_base_version(self.base_version);
        view.set_class(self.class);
        view.set_class_version(self.class_version);
        view.set_method(self.method);
        view.set_status(self.status);
        view.set_class_specific(self.class_specific);
        view.set_transaction(self.transaction);
        view.set_attribute(self.attribute);
        view.set_reserved(self.reserved);
        view.set_modifier(self.modifier);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 24] = [
        0x01, 0x07, 0x02, 0x83, 0x00, 0x1c, 0xab, 0xcd, 0x00, 0x00, 0x00, 0x02, 0x6c, 0x52, 0x46, 0x5b, 0x00, 0x10,
        0x12, 0x34, 0x55, 0x66, 0x77, 0x88,
    ];
    const HEADER: Header = Header {
        base_version: 1,
        class: 7,
        class_version: 2,
        method: 0x83,
        status: 0x1c,
        class_specific: 0xabcd,
        transaction: 0x2_6c52_465b,
        attribute: 0x10,
        reserved: 0x1234,
        modifier: 0x5566_7788,
    };

    #[test]
    fn parse() {
        assert_eq!(Header::parse(&Mad::new_checked(BYTES).unwrap()), HEADER);
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 25];
        HEADER.emit(&mut Mad::new_checked(&mut buffer[..]).unwrap());
        assert_eq!(buffer[..24], BYTES);
        assert_eq!(buffer[24], 0xa5);
    }

    #[test]
    fn a_short_buffer_has_no_view() {
        assert_eq!(Mad::new_checked(&BYTES[..23]).unwrap_err().found_bytes, 23);
    }
}
