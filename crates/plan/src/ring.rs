//! Ring all-reduce over N sites: 2N − 2 stages, in each of which every site sends 1/N of the buffer to the next (appendix C of the SDR paper).
//!
//! ```text
//!   T(i, r) = max(T(i − 1, r − 1), T(i, r − 1)) + t(i, r)
//! ```
//!
//! where t(i, r) is the completion time of one message. The maxima of neighbours are not independent, and there is no closed form; so the stages are
//! drawn from the distribution of one message, two million of them from a fixed seed, and the recurrence is followed. The answer is a
//! distribution of samples: the same every time, and exact but for their number (one in a thousand is met 18 times with 8 sites, and 83 times with 4).

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::distribution::Distribution;
use crate::link::PlanError;

/// Stages drawn for one answer.
const DRAWS: u64 = 2_000_000;
const SAMPLES_MIN: u64 = 2_000;
const SAMPLES_MAX: u64 = 100_000;
const SITES_MAX: u32 = 1024;

/// How long a ring of sites takes, when each stage takes as long as a message.
pub fn ring(stage: &Distribution, sites: u32, seed: u64) -> Result<Distribution, PlanError> {
    if !(2..=SITES_MAX).contains(&sites) {
        return Err(PlanError::Ring(sites));
    }
    let stages = 2 * u64::from(sites) - 2;
    let samples = (DRAWS / (u64::from(sites) * stages)).clamp(SAMPLES_MIN, SAMPLES_MAX);
    let inverse = Inverse::new(stage);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut follow = Ring::new(sites);
    // Two draws of each random number.
    let mut half = None;
    let mut draw = || {
        let bits = half.take().unwrap_or_else(|| {
            let both = random.next_u64();
            half = Some((both >> 32) as u32);
            both as u32
        });
        inverse.draw(bits)
    };
    Ok(Distribution::of_samples((0..samples).map(|_| follow.sample(&mut draw)).collect()))
}

/// The recurrence.
pub(crate) struct Ring {
    finished: Vec<f64>,
    before: Vec<f64>,
}

impl Ring {
    pub(crate) fn new(sites: u32) -> Self {
        Ring { finished: vec![0.0; sites as usize], before: vec![0.0; sites as usize] }
    }

    /// When the last site is done, with stages from `draw`.
    pub(crate) fn sample(&mut self, mut draw: impl FnMut() -> f64) -> f64 {
        self.finished.fill(0.0);
        let sites = self.finished.len();
        for _ in 0..2 * sites - 2 {
            std::mem::swap(&mut self.finished, &mut self.before);
            let mut neighbour = self.before[sites - 1];
            for (own, finished) in self.before.iter().zip(&mut self.finished) {
                *finished = neighbour.max(*own) + draw();
                neighbour = *own;
            }
        }
        self.finished.iter().copied().fold(0.0, f64::max)
    }
}

const BIN_BITS: u32 = 11;
/// Quantiles that differ more from one step to the next are looked up.
const JUMP: f64 = 1.002;
const BINS: usize = 1 << BIN_BITS;

/// Quantiles at equal steps, and those of the last step at equal steps again.
struct Inverse<'a> {
    distribution: &'a Distribution,
    body: Vec<f64>,
    tail: Vec<f64>,
}

impl<'a> Inverse<'a> {
    fn new(distribution: &'a Distribution) -> Self {
        let step = 1.0 / BINS as f64;
        let body = (0..=BINS).map(|bin| distribution.quantile(bin as f64 * step)).collect();
        let tail = (0..=BINS).map(|bin| distribution.quantile(1.0 - step + bin as f64 * step * step)).collect();
        Inverse { distribution, body, tail }
    }

    #[inline]
    fn draw(&self, random: u32) -> f64 {
        let (mut bin, mut rest) = ((random >> (32 - BIN_BITS)) as usize, random << BIN_BITS);
        let mut table = &self.body;
        if bin == BINS - 1 {
            (bin, rest, table) = ((rest >> (32 - BIN_BITS)) as usize, rest << BIN_BITS, &self.tail);
        }
        let (low, high) = (table[bin], table[bin + 1]);
        if high > low * JUMP {
            // There is nothing between the two sides of a jump.
            return self.distribution.quantile(f64::from(random) / 4_294_967_296.0);
        }
        low + f64::from(rest) / 4_294_967_296.0 * (high - low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_add_up() {
        let ring = |stage: &Distribution, sites| ring(stage, sites, 1).expect("a ring");
        assert!((ring(&Distribution::constant(2.0), 4).quantile(0.999) - 12.0).abs() < 1e-9);
        // Two sites, two stages; each may take 1 or 2: done when the slower path is. With both sites in each other's way, the second stage
        // begins everywhere when both first ones are over: 2 only if all four are short.
        let stage = Distribution::of_atoms(vec![(1.0, 0.5), (2.0, 0.5)]);
        let two = ring(&stage, 2);
        assert!(
            (two.cdf(2.0) - 1.0 / 16.0).abs() < 0.01 && (two.cdf(3.0) - 7.0 / 16.0).abs() < 0.01,
            "{}",
            two.cdf(2.0)
        );
        assert!(super::ring(&stage, 1, 1).is_err());
    }
}
