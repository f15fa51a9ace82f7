//! The immediate data header: four bytes from the sender's work request to the receiver's completion.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                        immediate data                         |
//! +---------------------------------------------------------------+
//! ```
//!
//! In the last (or only) packet of SENDs and WRITEs that carry an immediate (IBTA 9.3.6). The specification gives the bytes no
//! order; here they are a number in network byte order, which is what `imm_data` of libibverbs holds.

use crate::Truncated;
use crate::field::{self, Field, read_u32, write_u32};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 4;

/// A view of the header over a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Immediate<T> {
    buffer: T,
}

const DATA: Field = 0..4;

impl<T: AsRef<[u8]>> Immediate<T> {
    /// A view, when the buffer is long enough for the header.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Immediate<T>, Truncated> {
        field::check_length(buffer.as_ref(), "ImmDt", HEADER_BYTES)?;
        Ok(Immediate { buffer })
    }

    /// The four bytes, as a number in network byte order.
    #[inline]
    pub fn data(&self) -> u32 {
        read_u32(self.buffer.as_ref(), DATA)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Immediate<T> {
    /// Sets the four bytes.
    #[inline]
    pub fn set_data(&mut self, value: u32) {
        write_u32(self.buffer.as_mut(), DATA, value);
    }
}

/// The header as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The four bytes, as a number in network byte order.
    pub data: u32,
}

impl Header {
    /// Takes the field out of a view.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(view: &Immediate<T>) -> Header {
        Header { data: view.data() }
    }

    /// Puts the field into a view.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, view: &mut Immediate<T>) {
        view.set_data(self.data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 4] = [0xde, 0xad, 0xbe, 0xef];
    const HEADER: Header = Header { data: 0xdead_beef };

    #[test]
    fn parse() {
        assert_eq!(Header::parse(&Immediate::new_checked(BYTES).unwrap()), HEADER);
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 4 + 1];
        HEADER.emit(&mut Immediate::new_checked(&mut buffer[..]).unwrap());
        assert_eq!(buffer[..4], BYTES);
        assert_eq!(buffer[4], 0xa5);
    }

    #[test]
    fn a_short_buffer_has_no_view() {
        assert_eq!(Immediate::new_checked(&BYTES[1..]).unwrap_err().expected_bytes, 4);
    }
}
