//! What a receiver's half reports about arrived packets, cut into as many acknowledgements as it takes.

use longhaul_wire::acknowledgement::{HEADER_BYTES, Header, WORD_BYTES, WORD_CHUNKS};

/// Acknowledgements of at most `bytes_max` bytes that report everything from `cumulative` to `end`; at least one.
pub(crate) fn encode(
    cumulative: u32,
    lost_below: u32,
    end: u32,
    bytes_max: usize,
    word: impl Fn(usize) -> u64,
) -> Vec<Vec<u8>> {
    let words_max = ((bytes_max - HEADER_BYTES) / WORD_BYTES).max(1);
    let all = (cumulative / WORD_CHUNKS) as usize..end.max(cumulative).div_ceil(WORD_CHUNKS) as usize;
    let mut records = Vec::new();
    let mut first = all.start;
    while first < all.end || records.is_empty() {
        let words = first..all.end.min(first + words_max);
        let mut bytes = vec![0; HEADER_BYTES + words.len() * WORD_BYTES];
        let header = Header { cumulative, lost_below, first: first as u32 * WORD_CHUNKS };
        first = words.end.max(first + 1);
        header.emit(words.map(&word), &mut bytes).expect("it has the size of its words");
        records.push(bytes);
    }
    records
}

#[cfg(test)]
mod tests {
    use longhaul_wire::acknowledgement::Acknowledgement;

    use super::*;

    #[test]
    fn words_are_those_from_the_cumulative_number_on() {
        let records = encode(65, 70, 72, 100, |index| [7, 0x81][index]);
        assert_eq!(records, [[0, 0, 0, 65, 0, 0, 0, 70, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0x81]]);
    }

    #[test]
    fn what_does_not_fit_one_record_goes_into_the_next() {
        let records = encode(10, 0, 64 * 5, HEADER_BYTES + 16, |index| index as u64);
        assert_eq!(records.len(), 3);
        let words: Vec<_> = records
            .iter()
            .flat_map(|record| Acknowledgement::parse(record).expect("it is whole").words().collect::<Vec<_>>())
            .collect();
        assert_eq!(words, (0..5).map(|index| (index, index as u64)).collect::<Vec<_>>());
    }

    #[test]
    fn a_cumulative_number_alone() {
        let records = encode(128, 0, 0, 100, |_| unreachable!("no words"));
        assert_eq!(records.len(), 1);
        let read = Acknowledgement::parse(&records[0]).expect("it is whole");
        assert_eq!((read.header.cumulative, read.covered().is_empty(), read.words().count()), (128, true, 0));
    }
}
