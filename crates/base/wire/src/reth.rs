//! The RDMA extended transport header: where a WRITE puts its bytes, or where a READ takes them.
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
//! |                          DMA length                           |
//! +---------------------------------------------------------------+
//! ```
//!
//! In the first (or only) packet of a WRITE and in READ requests; the length is the whole message's (IBTA 9.3.3).

use crate::Truncated;
use crate::field::{self, Field, read_u32, read_u64, write_u32, write_u64};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 16;

/// A view of the header over a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth<T> {
    buffer: T,
}

const VIRTUAL_ADDRESS: Field = 0..8;
const REMOTE_KEY: Field = 8..12;
const DMA_LENGTH: Field = 12..16;

impl<T: AsRef<[u8]>> Reth<T> {
    /// A view, when the buffer is long enough for the header.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Reth<T>, Truncated> {
        field::check_length(buffer.as_ref(), "RETH", HEADER_BYTES)?;
        Ok(Reth { buffer })
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

    /// Bytes of the whole message.
    #[inline]
    pub fn dma_length(&self) -> u32 {
        read_u32(self.buffer.as_ref(), DMA_LENGTH)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Reth<T> {
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

    /// Sets the length.
    #[inline]
    pub fn set_dma_length(&mut self, value: u32) {
        write_u32(self.buffer.as_mut(), DMA_LENGTH, value);
    }
}

/// The header as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Where in the responder's address space.
    pub virtual_address: u64,
    /// The key that allows it.
    pub remote_key: u32,
    /// Bytes of the whole message.
    pub dma_length: u32,
}

impl Header {
    /// Takes all fields out of a view.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(view: &Reth<T>) -> Header {
        Header { virtual_address: view.virtual_address(), remote_key: view.remote_key(), dma_length: view.dma_length() }
    }

    /// Puts all fields into a view.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, view: &mut Reth<T>) {
        view.set_virtual_address(self.virtual_address);
        view.set_remote_key(self.remote_key);
        view.set_dma_length(self.dma_length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 0xca, 0xfe, 0xba, 0xbe, 0, 1, 0, 0];
    const HEADER: Header =
        Header { virtual_address: 0x0102_0304_0506_0708, remote_key: 0xcafe_babe, dma_length: 65_536 };

    #[test]
    fn parse() {
        assert_eq!(Header::parse(&Reth::new_checked(BYTES).unwrap()), HEADER);
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 17];
        HEADER.emit(&mut Reth::new_checked(&mut buffer[..]).unwrap());
        assert_eq!(buffer[..16], BYTES);
        assert_eq!(buffer[16], 0xa5);
    }

    #[test]
    fn a_short_buffer_has_no_view() {
        assert_eq!(Reth::new_checked(&BYTES[..15]).unwrap_err().found_bytes, 15);
    }
}
