//! Which bits of a packet are flipped.

/// Bit errors of one delivery: enough to flip the same bits again, without holding the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// Decides which bits.
    pub seed: u64,
    /// How many different bits, at most [`Corruption::BIT_COUNT_MAX`].
    pub bit_count: u8,
}

impl Corruption {
    /// The most bits that can be flipped in one packet. A CRC-32 sees every pattern of few bits; more than this
    /// says nothing new.
    pub const BIT_COUNT_MAX: u8 = 64;

    /// Flips `bit_count` different bits of `bytes`, or all of them if there are fewer.
    pub fn apply(&self, bytes: &mut [u8]) {
        let bits_total = bytes.len() as u64 * 8;
        let bit_count = u64::from(self.bit_count.min(Self::BIT_COUNT_MAX)).min(bits_total) as usize;
        let mut flipped = [0u64; Self::BIT_COUNT_MAX as usize];
        let mut flipped_count = 0;
        let mut state = self.seed;
        while flipped_count < bit_count {
            let position = ((u128::from(next(&mut state)) * u128::from(bits_total)) >> 64) as u64;
            // Flipping a bit twice would restore it.
            if flipped[..flipped_count].contains(&position) {
                continue;
            }
            flipped[flipped_count] = position;
            flipped_count += 1;
            bytes[(position / 8) as usize] ^= 1 << (position % 8);
        }
    }
}

/// SplitMix64: a few independent numbers from one, without carrying a generator in the verdict.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flipped_bits(seed: u64, bit_count: u8, byte_count: usize) -> u32 {
        let mut bytes = vec![0u8; byte_count];
        Corruption { seed, bit_count }.apply(&mut bytes);
        bytes.iter().map(|byte| byte.count_ones()).sum()
    }

    #[test]
    fn exactly_the_asked_number_of_bits_flips() {
        for seed in 0..200 {
            for bit_count in [1, 2, 3, 17, 64] {
                assert_eq!(flipped_bits(seed, bit_count, 64), u32::from(bit_count));
            }
        }
    }

    #[test]
    fn short_and_empty_packets_flip_what_they_have() {
        assert_eq!(flipped_bits(1, 64, 2), 16);
        assert_eq!(flipped_bits(1, 64, 0), 0);
    }
}
