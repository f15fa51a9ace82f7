//! Random choices of one seed.

use std::ops::RangeInclusive;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// A seeded source of choices, the same on every machine.
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// The choices of this seed.
    pub fn new(seed: u64) -> Self {
        Dice(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number in the range.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let count = u128::from(range.end() - range.start()) + 1;
        range.start() + ((u128::from(self.0.next_u64()) * count) >> 64) as u64
    }

    /// An index below `count`, which is not zero.
    pub fn index(&mut self, count: usize) -> usize {
        self.within(0..=count as u64 - 1) as usize
    }

    /// Whether something that happens so often happens now.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.within(0..=99) < u64::from(percent)
    }

    /// A number between 0 and `most`, mostly small.
    pub fn fraction(&mut self, most: f64) -> f64 {
        let uniform = self.within(0..=1_000_000) as f64 / 1e6;
        most * uniform * uniform
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }
}
