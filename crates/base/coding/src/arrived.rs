//! Which chunks have arrived.

/// The chunks of one submessage, data and parity, that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Arrived {
    /// The data chunks, counted from 0.
    pub data: ChunkSet,
    /// The parity chunks, counted from 0.
    pub parity: ChunkSet,
}

/// A set of chunk numbers below 256, as bits: chunk `n` is bit `n % 64` of word `n / 64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChunkSet {
    words: [u64; 4],
}

impl ChunkSet {
    /// The set of the bits that are set, as a bitmap holds them.
    pub const fn from_words(words: [u64; 4]) -> ChunkSet {
        ChunkSet { words }
    }

    /// The chunks `0 … count - 1`.
    ///
    /// # Panics
    ///
    /// When `count` is over 256.
    pub const fn first(count: usize) -> ChunkSet {
        assert!(count <= 256, "a set of chunks holds the numbers 0 to 255");
        let mut words = [0; 4];
        let mut word = 0;
        while word < 4 {
            let bits = count.saturating_sub(64 * word);
            words[word] = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
            word += 1;
        }
        ChunkSet { words }
    }

    /// Adds a chunk.
    ///
    /// # Panics
    ///
    /// When `chunk` is over 255.
    pub const fn insert(&mut self, chunk: usize) {
        self.words[chunk / 64] |= 1 << (chunk % 64);
    }

    /// Takes a chunk out.
    ///
    /// # Panics
    ///
    /// When `chunk` is over 255.
    pub const fn remove(&mut self, chunk: usize) {
        self.words[chunk / 64] &= !(1 << (chunk % 64));
    }

    /// Whether the chunk is in the set.
    pub const fn contains(&self, chunk: usize) -> bool {
        chunk < 256 && self.words[chunk / 64] >> (chunk % 64) & 1 != 0
    }

    /// How many of the chunks `0 … count - 1` are in the set.
    pub const fn count_of_first(&self, count: usize) -> usize {
        let within = ChunkSet::first(count);
        let mut ones = 0;
        let mut word = 0;
        while word < 4 {
            ones += (self.words[word] & within.words[word]).count_ones() as usize;
            word += 1;
        }
        ones
    }
}

impl FromIterator<usize> for ChunkSet {
    fn from_iter<I: IntoIterator<Item = usize>>(chunks: I) -> ChunkSet {
        let mut set = ChunkSet::default();
        chunks.into_iter().for_each(|chunk| set.insert(chunk));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
        for count in 0..=256 {
            let set = ChunkSet::first(count);
            assert_eq!(set, (0..count).collect());
            assert_eq!(set.count_of_first(256), count);
            assert_eq!(set.count_of_first(100), count.min(100));
            assert!((0..300).all(|chunk| set.contains(chunk) == (chunk < count)));
        }
        let mut set = ChunkSet::from_words([1, 2, 0, 1 << 63]);
        assert!([0, 65, 255].iter().all(|&chunk| set.contains(chunk)));
        set.remove(65);
        assert_eq!(set, [255, 0].into_iter().collect());
    }
}
