//! An arrivals record: what the sender of data needs for congestion control, besides the count in the header.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                           immediate                           |
//! +---------------+-----------------------------------------------+
//! |  generation   |                       0                       |
//! +---------------+-----------------------------------------------+
//! |                           held (8)                            |
//! |                          marked (8)                           |
//! +---------------------------------------------------------------+
//! ```

use super::frame_error::{DATA_ARRIVALS_BYTES, FrameError};
use crate::field::{Field, read_u32, read_u64, write_u32, write_u64};

/// The record as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataArrivals {
    /// The immediate of the data packet that arrived last.
    pub immediate: u32,
    /// On which of the internal queue pairs it arrived, counted from 0.
    pub generation: u8,
    /// Nanoseconds between its arrival and this frame.
    pub held_ns: u64,
    /// Data packets that arrived with a mark of congestion since the beginning; 0 from devices that do not show marks.
    pub marked: u64,
}

const IMMEDIATE: Field = 0..4;
const GENERATION: usize = 4;
const HELD: Field = 8..16;
const MARKED: Field = 16..24;

impl DataArrivals {
    /// Reads the contents of a record.
    pub(super) fn parse(bytes: &[u8]) -> Result<DataArrivals, FrameError> {
        if bytes.len() != DATA_ARRIVALS_BYTES {
            return Err(FrameError::DataArrivalsLength(bytes.len()));
        }
        Ok(DataArrivals {
            immediate: read_u32(bytes, IMMEDIATE),
            generation: bytes[GENERATION],
            held_ns: read_u64(bytes, HELD),
            marked: read_u64(bytes, MARKED),
        })
    }

    /// The contents of a record.
    pub(super) fn contents(&self) -> [u8; DATA_ARRIVALS_BYTES] {
        let mut bytes = [0; DATA_ARRIVALS_BYTES];
        write_u32(&mut bytes, IMMEDIATE, self.immediate);
        bytes[GENERATION] = self.generation;
        write_u64(&mut bytes, HELD, self.held_ns);
        write_u64(&mut bytes, MARKED, self.marked);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 24] = [1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7];
    const ARRIVALS: DataArrivals = DataArrivals { immediate: 0x0102_0304, generation: 5, held_ns: 6, marked: 7 };

    #[test]
    fn golden_bytes() {
        assert_eq!(DataArrivals::parse(&BYTES), Ok(ARRIVALS));
        assert_eq!(ARRIVALS.contents(), BYTES);
        assert_eq!(DataArrivals::parse(&BYTES[1..]), Err(FrameError::DataArrivalsLength(23)));
    }

    #[test]
    fn the_document_is_true() {
        let [held, marked] = &[6_u64, 7].map(u64::to_be_bytes);
        let expected: [(&str, &[u8]); 5] = [
            ("immediate", &[1, 2, 3, 4]),
            ("generation", &[5]),
            ("zero", &[0, 0, 0]),
            ("held", held),
            ("marked", marked),
        ];
        crate::document::check_layout("Data arrivals", 0, &BYTES, &expected);
    }
}
