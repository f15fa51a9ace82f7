//! The feedback of selective repeat, and of erasure coding's fallback: what has arrived, as a number and as much bitmap as fits.
//!
//! ```text
//!   cumulative 4 · lost below 4 · first 4 · words, 8 each
//! ```
//!
//! Numbers are big-endian. Everything below `cumulative` is there. Bit `i` of word `w` stands for chunk `first + 64·w + i`, and is set when
//! that chunk is there (or can be computed). A chunk below `lost below` whose bit is not set will not come by itself.

use std::ops::Range;

/// Bytes before the words.
const HEADER_BYTES: usize = 12;

/// What one record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledgement<'a> {
    pub(crate) cumulative: u32,
    pub(crate) lost_below: u32,
    /// A multiple of 64.
    pub(crate) first: u32,
    words: &'a [u8],
}

impl<'a> Acknowledgement<'a> {
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let number = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (cumulative, lost_below, first) = (number(0)?, number(4)?, number(8)?);
        let words = &bytes[HEADER_BYTES..];
        let is_readable = first.is_multiple_of(64) && words.len().is_multiple_of(8);
        is_readable.then_some(Acknowledgement { cumulative, lost_below, first, words })
    }

    /// The words, each with its place in the bitmap of the message.
    pub(crate) fn words(&self) -> impl Iterator<Item = (usize, u64)> + use<'a> {
        let first = (self.first / 64) as usize;
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_be_bytes);
        self.words.chunks(8).enumerate().map(move |(index, bytes)| (first + index, word(bytes)))
    }

    /// The chunks that its words are about.
    pub(crate) fn covered(&self) -> Range<u32> {
        let chunks = u32::try_from(self.words.len() * 8).unwrap_or(u32::MAX);
        self.first.max(self.cumulative)..self.first.saturating_add(chunks)
    }
}

/// Records of at most `bytes_max` bytes that tell everything from `cumulative` to `end`; at least one.
pub(crate) fn encode(
    cumulative: u32,
    lost_below: u32,
    end: u32,
    bytes_max: usize,
    word: impl Fn(usize) -> u64,
) -> Vec<Vec<u8>> {
    let words_max = ((bytes_max - HEADER_BYTES) / 8).max(1);
    let all = (cumulative / 64) as usize..end.max(cumulative).div_ceil(64) as usize;
    let mut records = Vec::new();
    let mut first = all.start;
    while first < all.end || records.is_empty() {
        let words = first..all.end.min(first + words_max);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + words.len() * 8);
        for number in [cumulative, lost_below, first as u32 * 64] {
            bytes.extend(number.to_be_bytes());
        }
        first = words.end.max(first + 1);
        words.for_each(|index| bytes.extend(word(index).to_be_bytes()));
        records.push(bytes);
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let records = encode(65, 70, 72, 100, |index| [7, 0x81][index]);
        let expected = [0, 0, 0, 65, 0, 0, 0, 70, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0x81];
        assert_eq!(records, [expected]);
        let read = Acknowledgement::decode(&expected).expect("it is whole");
        assert_eq!((read.cumulative, read.lost_below, read.covered()), (65, 70, 65..128));
        assert_eq!(read.words().collect::<Vec<_>>(), [(1, 0x81)]);
        let fields: [(&str, &[u8]); 4] = [
            ("cumulative", &[0, 0, 0, 65]),
            ("lost_below", &[0, 0, 0, 70]),
            ("first", &[0, 0, 0, 64]),
            ("words", &[0, 0, 0, 0, 0, 0, 0, 0x81]),
        ];
        longhaul_wire::document::check_layout("Acknowledgement", 0, &expected, &fields);
    }

    #[test]
    fn what_does_not_fit_one_record_goes_into_the_next() {
        let records = encode(10, 0, 64 * 5, HEADER_BYTES + 16, |index| index as u64);
        assert_eq!(records.len(), 3);
        let words: Vec<_> = records
            .iter()
            .flat_map(|record| Acknowledgement::decode(record).expect("it is whole").words().collect::<Vec<_>>())
            .collect();
        assert_eq!(words, (0..5).map(|index| (index, index as u64)).collect::<Vec<_>>());
    }

    #[test]
    fn a_cumulative_number_alone() {
        let records = encode(128, 0, 0, 100, |_| unreachable!("no words"));
        assert_eq!(records.len(), 1);
        let read = Acknowledgement::decode(&records[0]).expect("it is whole");
        assert_eq!((read.cumulative, read.covered().is_empty(), read.words().count()), (128, true, 0));
    }

    #[test]
    fn what_cannot_be_read_is_nothing() {
        assert_eq!(Acknowledgement::decode(&[0; 11]), None);
        assert_eq!(Acknowledgement::decode(&[0; 13]), None);
        assert_eq!(Acknowledgement::decode(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), None);
    }
}
