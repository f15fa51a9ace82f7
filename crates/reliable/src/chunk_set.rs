//! A set of chunk numbers, as bits.

use std::ops::Range;

/// Some of the chunks `0 … count - 1`.
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

    /// Adds the chunks of a word of a bitmap, chunk `64 · index` in its lowest bit.
    pub(crate) fn insert_word(&mut self, index: usize, word: u64) {
        if let Some(own) = self.words.get_mut(index) {
            *own |= word;
        }
    }

    /// 64 chunks from chunk `64 · index` on.
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    /// Adds all chunks below.
    pub(crate) fn insert_below(&mut self, end: u32) {
        let end = end.min(self.count);
        self.all_below = self.all_below.max(end);
    }

    /// The runs of chunks in a range that are not in the set and that `also` holds for.
    pub(crate) fn absent(&self, range: Range<u32>, also: impl Fn(u32) -> bool) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        let mut chunk = range.start.max(self.all_below);
        while chunk < range.end.min(self.count) {
            // Whole words are the common case.
            if chunk.is_multiple_of(64) && self.words[(chunk / 64) as usize] == u64::MAX {
                chunk += 64;
                continue;
            }
            if !self.contains(chunk) && also(chunk) {
                match runs.last_mut() {
                    Some(run) if run.end == chunk => run.end += 1,
                    _ => runs.push(chunk..chunk + 1),
                }
            }
            chunk += 1;
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
