//! The atomic acknowledge extended transport header: what was in memory before the atomic operation.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                                                               |
//! +                     original remote data                      +
//! |                                                               |
//! +---------------------------------------------------------------+
//! ```
//!
//! After the AETH of an atomic acknowledgement (IBTA 9.5.3).

use crate::Truncated;
use crate::field::{self, Field, read_u64, write_u64};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;

/// A view of the header over a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicAck<T> {
    buffer: T,
}

const ORIGINAL: Field = 0..8;

impl<T: AsRef<[u8]>> AtomicAck<T> {
    /// A view, when the buffer is long enough for the header.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<AtomicAck<T>, Truncated> {
        field::check_length(buffer.as_ref(), "AtomicAckETH", HEADER_BYTES)?;
        Ok(AtomicAck { buffer })
    }

    /// The eight bytes before the operation, as a number.
    #[inline]
    pub fn original(&self) -> u64 {
        read_u64(self.buffer.as_ref(), ORIGINAL)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> AtomicAck<T> {
    /// Sets the original value.
    #[inline]
    pub fn set_original(&mut self, value: u64) {
        write_u64(self.buffer.as_mut(), ORIGINAL, value);
    }
}

/// The header as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The eight bytes before the operation, as a number.
    pub original: u64,
}

impl Header {
    /// Takes the field out of a view.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(view: &AtomicAck<T>) -> Header {
        Header { original: view.original() }
    }

    /// Puts the field into a view.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, view: &mut AtomicAck<T>) {
        view.set_original(self.original);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
    const HEADER: Header = Header { original: 0x0102_0304_0506_0708 };

    #[test]
    fn parse() {
        assert_eq!(Header::parse(&AtomicAck::new_checked(BYTES).unwrap()), HEADER);
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 8 + 1];
        HEADER.emit(&mut AtomicAck::new_checked(&mut buffer[..]).unwrap());
        assert_eq!(buffer[..8], BYTES);
        assert_eq!(buffer[8], 0xa5);
    }

    #[test]
    fn a_short_buffer_has_no_view() {
        assert_eq!(AtomicAck::new_checked(&BYTES[1..]).unwrap_err().expected_bytes, 8);
    }
}
