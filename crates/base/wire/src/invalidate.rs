//! The invalidate extended transport header (IETH): the key that a SEND with invalidate makes invalid at the receiver.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                          remote key                           |
//! +---------------------------------------------------------------+
//! ```
//!
//! In the last (or only) packet of such a SEND (IBTA 9.3.7).

use crate::Truncated;
use crate::field::{self, Field, read_u32, write_u32};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 4;

/// A view of the header over a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Invalidate<T> {
    buffer: T,
}

const REMOTE_KEY: Field = 0..4;

impl<T: AsRef<[u8]>> Invalidate<T> {
    /// A view, when the buffer is long enough for the header.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Invalidate<T>, Truncated> {
        field::check_length(buffer.as_ref(), "IETH", HEADER_BYTES)?;
        Ok(Invalidate { buffer })
    }

    /// The key of the receiver's memory region or window that is to become invalid.
    #[inline]
    pub fn remote_key(&self) -> u32 {
        read_u32(self.buffer.as_ref(), REMOTE_KEY)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Invalidate<T> {
    /// Sets the key.
    #[inline]
    pub fn set_remote_key(&mut self, value: u32) {
        write_u32(self.buffer.as_mut(), REMOTE_KEY, value);
    }
}

/// The header as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The key of the receiver's memory region or window that is to become invalid.
    pub remote_key: u32,
}

impl Header {
    /// Takes the field out of a view.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(view: &Invalidate<T>) -> Header {
        Header { remote_key: view.remote_key() }
    }

    /// Puts the field into a view.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, view: &mut Invalidate<T>) {
        view.set_remote_key(self.remote_key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 4] = [0xca, 0xfe, 0xba, 0xbe];
    const HEADER: Header = Header { remote_key: 0xcafe_babe };

    #[test]
    fn parse() {
        assert_eq!(Header::parse(&Invalidate::new_checked(BYTES).unwrap()), HEADER);
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 4 + 1];
        HEADER.emit(&mut Invalidate::new_checked(&mut buffer[..]).unwrap());
        assert_eq!(buffer[..4], BYTES);
        assert_eq!(buffer[4], 0xa5);
    }

    #[test]
    fn a_short_buffer_has_no_view() {
        assert_eq!(Invalidate::new_checked(&BYTES[1..]).unwrap_err().expected_bytes, 4);
    }
}
