//! The atomic extended transport header: which eight bytes to change, and how.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                                                               |
//! +                        virtual address                        +
//! |                                                               |
//! +---------------------------------------------------------------+
//! |                          remote key                           |
//! +---------------------------------------------------------------+
//! |                                                               |
//! +                 swap (or the number to add)                   +
//! |                                                               |
//! +---------------------------------------------------------------+
//! |                                                               |
//! +                           compare                             +
//! |                                                               |
//! +---------------------------------------------------------------+
//! ```
//!
//! In compare-and-swap and fetch-and-add requests; the latter ignores the last field (IBTA 9.3.4).

use crate::Truncated;
use crate::field::{self, Field, read_u32, read_u64, write_u32, write_u64};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 28;

/// A view of the header over a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth<T> {
    buffer: T,
}

const VIRTUAL_ADDRESS: Field = 0..8;
const REMOTE_KEY: Field = 8..12;
const SWAP_OR_ADD: Field = 12..20;
const COMPARE: Field = 20..28;

impl<T: AsRef<[u8]>> AtomicEth<T> {
    /// A view, when the buffer is long enough for the header.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<AtomicEth<T>, Truncated> {
        field::check_length(buffer.as_ref(), "AtomicETH", HEADER_BYTES)?;
        Ok(AtomicEth { buffer })
    }

    /// Where in the responder's address space.
    #[inline]
    pub fn virtual_address(&self) -> u64 {
        read_u64(self.buffer.as_ref(), VIRTUAL_ADDRESS)
    }

    /// The key that allows it.
    #[inline]
    pub fn remote_key(&self) -> u32 {
        read_u32(self.buffer.as_ref(), REMOTE_KEY)
    }

    /// The new value of a compare-and-swap, the addend of a fetch-and-add.
    #[inline]
    pub fn swap_or_add(&self) -> u64 {
        read_u64(self.buffer.as_ref(), SWAP_OR_ADD)
    }

    /// What a compare-and-swap compares with.
    #[inline]
    pub fn compare(&self) -> u64 {
        read_u64(self.buffer.as_ref(), COMPARE)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> AtomicEth<T> {
    /// Sets the address.
    #[inline]
    pub fn set_virtual_address(&mut self, value: u64) {
        write_u64(self.buffer.as_mut(), VIRTUAL_ADDRESS, value);
    }

    /// Sets the key.
    #[inline]
    pub fn set_remote_key(&mut self, value: u32) {
        write_u32(self.buffer.as_mut(), REMOTE_KEY, value);
    }

    /// Sets the new value or the addend.
    #[inline]
    pub fn set_swap_or_add(&mut self, value: u64) {
        write_u64(self.buffer.as_mut(), SWAP_OR_ADD, value);
    }

    /// Sets what to compare with.
    #[inline]
    pub fn set_compare(&mut self, value: u64) {
        write_u64(self.buffer.as_mut(), COMPARE, value);
    }
}

/// The header as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Where in the responder's address space.
    pub virtual_address: u64,
    /// The key that allows it.
    pub remote_key: u32,
    /// The new value of a compare-and-swap, the addend of a fetch-and-add.
    pub swap_or_add: u64,
    /// What a compare-and-swap compares with.
    pub compare: u64,
}

impl Header {
    /// Takes all fields out of a view.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(view: &AtomicEth<T>) -> Header {
        Header {
            virtual_address: view.virtual_address(),
            remote_key: view.remote_key(),
            swap_or_add: view.swap_or_add(),
            compare: view.compare(),
        }
    }

    /// Puts all fields into a view.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, view: &mut AtomicEth<T>) {
        view.set_virtual_address(self.virtual_address);
        view.set_remote_key(self.remote_key);
        view.set_swap_or_add(self.swap_or_add);
        view.set_compare(self.compare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 28] = [
        1, 2, 3, 4, 5, 6, 7, 8, // address
        0xca, 0xfe, 0xba, 0xbe, // key
        0, 0, 0, 0, 0, 0, 0, 9, // swap
        0xff, 0, 0, 0, 0, 0, 0, 1, // compare
    ];
    const HEADER: Header = Header {
        virtual_address: 0x0102_0304_0506_0708,
        remote_key: 0xcafe_babe,
        swap_or_add: 9,
        compare: 0xff00_0000_0000_0001,
    };

    #[test]
    fn parse() {
        assert_eq!(Header::parse(&AtomicEth::new_checked(BYTES).unwrap()), HEADER);
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 29];
        HEADER.emit(&mut AtomicEth::new_checked(&mut buffer[..]).unwrap());
        assert_eq!(buffer[..28], BYTES);
        assert_eq!(buffer[28], 0xa5);
    }

    #[test]
    fn a_short_buffer_has_no_view() {
        assert_eq!(AtomicEth::new_checked(&BYTES[..27]).unwrap_err().found_bytes, 27);
    }
}
