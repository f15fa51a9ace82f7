//! The acknowledgement: feedback of selective repeat, and of erasure coding where it falls back to that. It says what has
//! arrived, as a number and as much bitmap as fits.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                          cumulative                           |
//! +---------------------------------------------------------------+
//! |                          lost below                           |
//! +---------------------------------------------------------------+
//! |                             first                             |
//! +---------------------------------------------------------------+
//! |                 words of the bitmap (8 each) …                |
//! +---------------------------------------------------------------+
//! ```
//!
//! Everything below `cumulative` is there. Bit `i` of word `w` stands for chunk `first + 64·w + i`, and is set when that chunk
//! is there (or can be computed). A chunk below `lost below` whose bit is not set will not come by itself.

use core::ops::Range;

use crate::Truncated;
use crate::field::{self, Field, read_u32, read_u64, write_u32, write_u64};

/// Bytes before the words.
pub const HEADER_BYTES: usize = 12;
/// Bytes of a word.
pub const WORD_BYTES: usize = 8;
/// Chunks that a word is about.
pub const WORD_CHUNKS: u32 = 64;

const CUMULATIVE: Field = 0..4;
const LOST_BELOW: Field = 4..8;
const FIRST: Field = 8..12;

/// The header as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Every chunk below is there.
    pub cumulative: u32,
    /// A chunk below that is not there will not come by itself.
    pub lost_below: u32,
    /// The chunk of the first bit; a multiple of [`WORD_CHUNKS`].
    pub first: u32,
}

impl Header {
    /// Writes an acknowledgement with these words at the beginning of `bytes`; how many bytes they are.
    pub fn emit(&self, words: impl ExactSizeIterator<Item = u64>, bytes: &mut [u8]) -> Result<usize, Truncated> {
        let byte_count = HEADER_BYTES + words.len() * WORD_BYTES;
        field::check_length(bytes, "an acknowledgement", byte_count)?;
        write_u32(bytes, CUMULATIVE, self.cumulative);
        write_u32(bytes, LOST_BELOW, self.lost_below);
        write_u32(bytes, FIRST, self.first);
        let places = bytes[HEADER_BYTES..].chunks_exact_mut(WORD_BYTES);
        places.zip(words).for_each(|(place, word)| write_u64(place, 0..WORD_BYTES, word));
        Ok(byte_count)
    }
}

/// An acknowledgement, its words where they lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acknowledgement<'a> {
    /// What it says besides its words.
    pub header: Header,
    words: &'a [[u8; WORD_BYTES]],
}

impl<'a> Acknowledgement<'a> {
    /// Reads one; `None` when it is cut off or its words begin between words of the message's bitmap.
    pub fn parse(bytes: &'a [u8]) -> Option<Acknowledgement<'a>> {
        let (words, rest) = bytes.get(HEADER_BYTES..)?.as_chunks();
        let header = Header {
            cumulative: read_u32(bytes, CUMULATIVE),
            lost_below: read_u32(bytes, LOST_BELOW),
            first: read_u32(bytes, FIRST),
        };
        let is_readable = header.first.is_multiple_of(WORD_CHUNKS) && rest.is_empty();
        is_readable.then_some(Acknowledgement { header, words })
    }

    /// The words, each with its place in the bitmap of the message.
    pub fn words(&self) -> impl Iterator<Item = (usize, u64)> + use<'a> {
        let first = (self.header.first / WORD_CHUNKS) as usize;
        self.words.iter().enumerate().map(move |(index, word)| (first + index, read_u64(word, 0..WORD_BYTES)))
    }

    /// The chunks that its words are about.
    pub fn covered(&self) -> Range<u32> {
        let Header { cumulative, first, .. } = self.header;
        let chunks = u32::try_from(self.words.len() * WORD_CHUNKS as usize).unwrap_or(u32::MAX);
        first.max(cumulative)..first.saturating_add(chunks)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    const BYTES: [u8; 20] = [0, 0, 0, 65, 0, 0, 0, 70, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0x81];
    const HEADER: Header = Header { cumulative: 65, lost_below: 70, first: 64 };

    #[test]
    fn parse() {
        let read = Acknowledgement::parse(&BYTES).expect("it is whole");
        assert_eq!((read.header, read.covered()), (HEADER, 65..128));
        assert_eq!(read.words().collect::<Vec<_>>(), [(1, 0x81)]);
        let none = Acknowledgement::parse(&BYTES[..HEADER_BYTES]).expect("it is whole");
        assert_eq!((none.covered().is_empty(), none.words().count()), (true, 0));
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 21];
        assert_eq!(HEADER.emit([0x81].into_iter(), &mut buffer), Ok(20));
        assert_eq!(buffer[..20], BYTES);
        assert_eq!(buffer[20], 0xa5);
        assert_eq!(HEADER.emit([0x81].into_iter(), &mut [0; 19]).map_err(|error| error.expected_bytes), Err(20));
    }

    #[test]
    fn the_document_is_true() {
        let fields: [(&str, &[u8]); 4] = [
            ("cumulative", &[0, 0, 0, 65]),
            ("lost_below", &[0, 0, 0, 70]),
            ("first", &[0, 0, 0, 64]),
            ("words", &[0, 0, 0, 0, 0, 0, 0, 0x81]),
        ];
        crate::document::check_layout("Acknowledgement", 0, &BYTES, &fields);
    }

    #[test]
    fn what_cannot_be_read_is_nothing() {
        assert_eq!(Acknowledgement::parse(&[0; 11]), None);
        assert_eq!(Acknowledgement::parse(&[0; 13]), None);
        assert_eq!(Acknowledgement::parse(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), None);
    }
}
