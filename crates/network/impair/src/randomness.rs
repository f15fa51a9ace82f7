//! A stream of random numbers that exists only once it is needed.

use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

/// The random numbers of one direction of a link. Most links never draw one, and a stream is larger than all the rest
/// of them, so it is made for the first draw.
#[derive(Clone, Debug)]
pub(crate) struct Randomness {
    seed: u64,
    stream: Option<Box<ChaCha8Rng>>,
}

impl Randomness {
    pub(crate) fn new(seed: u64) -> Self {
        Randomness { seed, stream: None }
    }

    #[inline]
    pub(crate) fn stream(&mut self) -> &mut ChaCha8Rng {
        self.stream.get_or_insert_with(|| Box::new(ChaCha8Rng::seed_from_u64(self.seed)))
    }
}
