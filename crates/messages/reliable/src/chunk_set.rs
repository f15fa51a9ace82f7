//! A set of chunk or packet numbers, as bits.

use std::ops::Range;

/// Some of the chunks (or packets) `0 … count - 1`.
#[derive(Clone, Debug)]
pub(crate) struct ChunkSet {
    words: Vec<u64>,
    count: u32,
    /// Every chunk below is in it.
    all_below: u32,
}

impl ChunkSet {
    pub(crate) fn new(count: u32) -> Self {
        ChunkSet { words: vec![0; count.div_ceil(64) as usize], count, all_below: 0 }
    }

    pub(crate) fn contains(&self, chunk: u32) -> bool {
        chunk < self.all_below
            || self.words.get((chunk / 64) as usize).is_some_and(|word| word >> (chunk % 64) & 1 == 1)
    }

    /// Adds a chunk; whether it is new.
    pub(crate) fn insert(&mut self, chunk: u32) -> bool {
        let is_new = chunk < self.count && !self.contains(chunk);
        if is_new {
            self.words[(chunk / 64) as usize] |= 1 << (chunk % 64);
        }
        is_new
    }

    /// Adds the chunks of a word of a bitmap, chunk `64 · index` in its lowest bit; whether one of them is new.
    pub(crate) fn insert_word(&mut self, index: usize, word: u64) -> bool {
        let Some(own) = self.words.get_mut(index) else { return false };
        let below = u64::from(self.all_below).saturating_sub(64 * index as u64);
        let known = *own | if below < 64 { (1 << below) - 1 } else { u64::MAX };
        *own |= word;
        word & !known != 0
    }

    /// 64 chunks from chunk `64 · index` on.
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    /// Adds all chunks below; whether there are more of those than were known to be there without a gap.
    pub(crate) fn insert_below(&mut self, end: u32) -> bool {
        let end = end.min(self.count);
        let is_new = end > self.all_below;
        self.all_below = self.all_below.max(end);
        is_new
    }

    /// The runs of chunks in a range that are not in the set and that `also` holds for.
    pub(crate) fn absent(&self, range: Range<u32>, also: impl Fn(u32) -> bool) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        let (start, end) = (range.start.max(self.all_below), range.end.min(self.count));
        for index in start / 64..end.div_ceil(64) {
            // Only what is not there costs something.
            let mut absent = !self.words[index as usize];
            while absent != 0 {
                let chunk = index * 64 + absent.trailing_zeros();
                absent &= absent - 1;
                if (start..end).contains(&chunk) && also(chunk) {
                    match runs.last_mut() {
                        Some(run) if run.end == chunk => run.end += 1,
                        _ => runs.push(chunk..chunk + 1),
                    }
                }
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_what_is_absent() {
        let mut set = ChunkSet::new(200);
        assert!(set.insert(3) && !set.insert(3) && !set.insert(200));
        set.insert_word(1, u64::MAX);
        set.insert_below(2);
        assert_eq!(set.absent(0..500, |_| true), [2..3, 4..64, 128..200]);
        assert_eq!(set.absent(0..200, |chunk| chunk % 2 == 0 && chunk < 8), [2..3, 4..5, 6..7]);
        set.insert_below(1000);
        assert_eq!(set.absent(0..200, |_| true), []);
        assert!(!set.insert(150));
    }
}
