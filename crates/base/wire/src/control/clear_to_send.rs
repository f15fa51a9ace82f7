//! A clear-to-send record: a message may be sent, to this place; or it has ended, and need not be sent any more.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                          number (8)                           |
//! |                          address (8)                          |
//! |                          length (8)                           |
//! +---------------------------------------------------------------+
//! |                          remote key                           |
//! +---------------+-------------+-+-------------------------------+
//! |  generation   |      0      |O|               0               |
//! +---------------+-------------+-+-------------------------------+
//! ```
//!
//! O is set when the receiver has completed the message early.

use super::frame_error::{CLEAR_TO_SEND_BYTES, FrameError};
use crate::field::{Field, read_u32, read_u64, write_u32, write_u64};

/// The record as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClearToSend {
    /// The message.
    pub number: u64,
    /// Where its first byte goes.
    pub address: u64,
    /// Room in bytes.
    pub length: u64,
    /// The remote key.
    pub key: u32,
    /// On which of the internal queue pairs, counted from 0. Follows from the number; sent so that a mistake shows.
    pub generation: u8,
    /// The receiver has completed it early.
    pub is_over: bool,
}

const NUMBER: Field = 0..8;
const ADDRESS: Field = 8..16;
const LENGTH: Field = 16..24;
const KEY: Field = 24..28;
const GENERATION: usize = 28;
const IS_OVER: usize = 29;

impl ClearToSend {
    /// Reads the contents of a record.
    pub(super) fn parse(bytes: &[u8]) -> Result<ClearToSend, FrameError> {
        if bytes.len() != CLEAR_TO_SEND_BYTES {
            return Err(FrameError::ClearToSendLength(bytes.len()));
        }
        Ok(ClearToSend {
            number: read_u64(bytes, NUMBER),
            address: read_u64(bytes, ADDRESS),
            length: read_u64(bytes, LENGTH),
            key: read_u32(bytes, KEY),
            generation: bytes[GENERATION],
            is_over: bytes[IS_OVER] & 1 != 0,
        })
    }

    /// The contents of a record.
    pub(super) fn contents(&self) -> [u8; CLEAR_TO_SEND_BYTES] {
        let mut bytes = [0; CLEAR_TO_SEND_BYTES];
        write_u64(&mut bytes, NUMBER, self.number);
        write_u64(&mut bytes, ADDRESS, self.address);
        write_u64(&mut bytes, LENGTH, self.length);
        write_u32(&mut bytes, KEY, self.key);
        bytes[GENERATION] = self.generation;
        bytes[IS_OVER] = self.is_over.into();
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 32] =
        [0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 13, 0, 0, 0, 14, 3, 1, 0, 0];
    const CLEAR: ClearToSend =
        ClearToSend { number: 11, address: 12, length: 13, key: 14, generation: 3, is_over: true };

    #[test]
    fn golden_bytes() {
        assert_eq!(ClearToSend::parse(&BYTES), Ok(CLEAR));
        assert_eq!(CLEAR.contents(), BYTES);
        assert_eq!(ClearToSend::parse(&BYTES[1..]), Err(FrameError::ClearToSendLength(31)));
    }

    #[test]
    fn the_document_is_true() {
        let [number, address, length] = &[11_u64, 12, 13].map(u64::to_be_bytes);
        let expected: [(&str, &[u8]); 7] = [
            ("number", number),
            ("address", address),
            ("length", length),
            ("key", &[0, 0, 0, 14]),
            ("generation", &[3]),
            ("is_over", &[1]),
            ("zero", &[0, 0]),
        ];
        crate::document::check_layout("Clear to send", 0, &BYTES, &expected);
    }
}
