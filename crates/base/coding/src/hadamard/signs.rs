//! Random signs: the same at every rank, without a word between them.

/// The step of SplitMix64: 2⁶⁴ divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Which random signs the elements of a tensor are multiplied by before the transform.
///
/// Without them, the sum of a block lands in its first coefficient, and the first packets of a group carry nearly all
/// energy of a tensor whose elements have a common mean. With them, every packet carries about the same.
///
/// All ranks must use the same signs. They are a fixed format: with `mix(x)` the output function of SplitMix64 (Steele
/// and others, 2014) of the state `x + 0x9e3779b97f4a7c15`, the key is `mix(mix(mix(seed) ^ step) ^ tensor)`, and
/// element `i` of the tensor is negated if bit `i mod 64` of `mix(key + (i / 64) · 0x9e3779b97f4a7c15)` is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HadamardSigns {
    key: u64,
}

fn mix(state: u64) -> u64 {
    let mut mixed = state.wrapping_add(STEP);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl HadamardSigns {
    /// The signs of a tensor in one step of a training run. The seed is the run's.
    pub fn new(seed: u64, step: u64, tensor: u64) -> HadamardSigns {
        HadamardSigns { key: mix(mix(mix(seed) ^ step) ^ tensor) }
    }

    /// Whether element `index` of the tensor is negated.
    pub fn is_negated(&self, index: usize) -> bool {
        self.word(index / 64) >> (index % 64) & 1 == 1
    }

    /// The signs of elements `64 · number` and the 63 after it.
    fn word(&self, number: usize) -> u64 {
        mix(self.key.wrapping_add((number as u64).wrapping_mul(STEP)))
    }
}

/// The signs of a block that begins at element `first`, the lowest bit of a word first. A block is a power of two and
/// begins at a multiple of itself, so one shorter than a word lies within a word.
pub(super) fn fill_words(signs: Option<HadamardSigns>, first: usize, words: &mut [u64]) {
    let Some(signs) = signs else {
        words.fill(0);
        return;
    };
    for (number, word) in words.iter_mut().enumerate() {
        *word = signs.word(first / 64 + number);
    }
    if let [word] = words {
        *word >>= first % 64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_a_fixed_format() {
        // SplitMix64's first output for seed 0, as its authors' reference has it.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        let signs = HadamardSigns::new(1, 2, 3);
        let first: String = (0..16).map(|index| if signs.is_negated(index) { '-' } else { '+' }).collect();
        assert_eq!(first, FIRST);
        let mut words = [0; 2];
        fill_words(Some(signs), 128, &mut words);
        for index in 128..256 {
            assert_eq!(words[(index - 128) / 64] >> (index % 64) & 1 == 1, signs.is_negated(index));
        }
        let mut short = [0];
        fill_words(Some(signs), 72, &mut short);
        assert_eq!(short[0] & 1 == 1, signs.is_negated(72));
    }

    /// Of run 1, step 2, tensor 3.
    const FIRST: &str = "---++-+-+++-+++-";

    #[test]
    fn seed_step_and_tensor_all_count_and_signs_are_fair() {
        let all = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1)];
        let negated: Vec<Vec<bool>> = all
            .iter()
            .map(|&(seed, step, tensor)| {
                let signs = HadamardSigns::new(seed, step, tensor);
                (0..10_000).map(|index| signs.is_negated(index)).collect()
            })
            .collect();
        for (index, one) in negated.iter().enumerate() {
            let count = one.iter().filter(|negated| **negated).count();
            assert!((4_800..=5_200).contains(&count), "{count} of 10000");
            for other in &negated[index + 1..] {
                let equal = one.iter().zip(other).filter(|(one, other)| one == other).count();
                assert!((4_800..=5_200).contains(&equal), "{equal} of 10000 equal");
            }
        }
    }
}
