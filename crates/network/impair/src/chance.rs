//! Random decisions, prepared so that an impossible or certain one costs no random number.

use rand_chacha::ChaCha8Rng;
use rand_core::Rng;

/// A probability as a threshold for a 64-bit random number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    /// `probability` has been checked to lie in 0..=1.
    pub(crate) fn new(probability: f64) -> Self {
        if probability >= 1.0 {
            return Chance(u64::MAX);
        }
        // 2^64 as a float; the product is below it, and a float-to-integer cast saturates anyway.
        Chance((probability * 18_446_744_073_709_551_616.0) as u64)
    }

    #[inline]
    pub(crate) fn is_never(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) fn draw(self, random: &mut ChaCha8Rng) -> bool {
        match self.0 {
            0 => false,
            u64::MAX => true,
            threshold => random.next_u64() < threshold,
        }
    }
}

/// A number in 0..=`bound`, by multiplication: the bias is below bound / 2^64.
#[inline]
pub(crate) fn up_to(bound: u64, random: &mut ChaCha8Rng) -> u64 {
    let range = u128::from(bound) + 1;
    ((u128::from(random.next_u64()) * range) >> 64) as u64
}
