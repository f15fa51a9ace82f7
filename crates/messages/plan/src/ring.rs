//! Ring all-reduce over N sites: 2N − 2 stages, in each of which every site sends 1/N of the buffer to the next
//! (appendix C of the SDR paper).
//!
//! ```text
//!   T(i, r) = max(T(i − 1, r − 1), T(i, r − 1)) + t(i, r)
//! ```
//!
//! where t(i, r) is the completion time of one message. The maxima of neighbours are not independent, and there is no
//! closed form; so the stages are drawn from the distribution of one message, a million and a half of them from a fixed
//! seed, and the recurrence is followed. The answer is a distribution of samples: the same every time, and exact but
//! for their number (one in a thousand is met 13 times with 8 sites, and 30 times with 4).

use std::ops::RangeInclusive;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::distribution::Distribution;
use crate::link::PlanError;
use crate::model::Case;

/// Messages drawn for one answer that must be there within milliseconds.
pub const DRAWS: u64 = 1_500_000;
const SAMPLES_MIN: u64 = 2_000;
/// With few sites a sample is soon drawn, and sorting them takes longer than drawing.
const DRAWS_OF_SAMPLE_MIN: u64 = 50;
/// How many sites a ring may have. One sample of the largest has 8,000 messages; beyond, an answer would take seconds.
pub const RING_SITES: RangeInclusive<u32> = 2..=64;

/// How long a ring of sites takes, when each stage takes as long as a message. Percentiles at the edge of a step are
/// better known the more messages are drawn: [`DRAWS`], unless there is time for more.
pub fn ring(stage: &Distribution, sites: u32, draws: u64, seed: u64) -> Result<Distribution, PlanError> {
    if !RING_SITES.contains(&sites) {
        return Err(PlanError::Ring(sites));
    }
    let stages = 2 * u64::from(sites) - 2;
    let samples = (draws / (u64::from(sites) * stages).max(DRAWS_OF_SAMPLE_MIN)).max(SAMPLES_MIN);
    let inverse = Inverse::new(stage);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut follow = Ring::new(sites);
    let mut bytes = vec![0; 2 * (u64::from(sites) * stages) as usize];
    let mut draw = |times: &mut [f64]| {
        random.fill_bytes(&mut bytes);
        for (time, bytes) in times.iter_mut().zip(bytes.chunks_exact(2)) {
            *time = inverse.time(usize::from(u16::from_le_bytes([bytes[0], bytes[1]])) >> 4, &mut random);
        }
    };
    Ok(Distribution::of_samples((0..samples).map(|_| follow.sample(&mut draw)).collect()))
}

impl Case {
    /// How long a ring of sites takes that reduces this case's message.
    pub fn ring(&self, sites: u32, draws: u64, seed: u64) -> Result<Distribution, PlanError> {
        ring(&self.stage_of_ring(sites).completion()?.distribution, sites, draws, seed)
    }

    /// The message of one stage.
    pub(crate) fn stage_of_ring(&self, sites: u32) -> Case {
        Case { message_bytes: self.message_bytes.div_ceil(sites.max(1).into()), ..*self }
    }
}

/// The recurrence.
pub(crate) struct Ring {
    finished: Vec<f64>,
    before: Vec<f64>,
    /// What each site's message takes, stage by stage.
    times: Vec<f64>,
}

impl Ring {
    pub(crate) fn new(sites: u32) -> Self {
        let sites = sites as usize;
        Ring { finished: vec![0.0; sites], before: vec![0.0; sites], times: vec![0.0; sites * (2 * sites - 2)] }
    }

    /// When the last site is done, with times of all messages from `draw`.
    pub(crate) fn sample(&mut self, draw: impl FnOnce(&mut [f64])) -> f64 {
        draw(&mut self.times);
        self.finished.fill(0.0);
        let last = self.finished.len() - 1;
        for times in self.times.chunks_exact(last + 1) {
            std::mem::swap(&mut self.finished, &mut self.before);
            self.finished[0] = self.before[last].max(self.before[0]) + times[0];
            let neighbours = self.before.windows(2).zip(&times[1..]);
            for (finished, (pair, time)) in self.finished[1..].iter_mut().zip(neighbours) {
                *finished = pair[0].max(pair[1]) + time;
            }
        }
        self.finished.iter().copied().fold(0.0, f64::max)
    }
}

/// The times in the middle of 4,096 equal shares; those of the last of 32 parts in the middle of 4,096 shares of that;
/// and in the last of these, where the rare long times are, any. So both tables stay in the fastest cache.
struct Inverse<'a> {
    distribution: &'a Distribution,
    body: Vec<f64>,
    tail: Vec<f64>,
}

const BINS: usize = 1 << 12;
const TAIL: f64 = 1.0 / 32.0;
const TAIL_BEGINS: usize = BINS - BINS / 32;

impl<'a> Inverse<'a> {
    fn new(distribution: &'a Distribution) -> Self {
        let middle = |bin: usize| (bin as f64 + 0.5) / BINS as f64;
        let body = distribution.quantiles((0..BINS).map(middle));
        let tail = distribution.quantiles((0..BINS).map(|bin| 1.0 - TAIL * (1.0 - middle(bin))));
        Inverse { distribution, body, tail }
    }

    /// That of a bin, or one in the tail.
    #[inline]
    fn time(&self, bin: usize, random: &mut ChaCha8Rng) -> f64 {
        if bin < TAIL_BEGINS {
            return self.body[bin];
        }
        match random.next_u32() as usize % BINS {
            bin if bin == BINS - 1 => self.last_time(random),
            bin => self.tail[bin],
        }
    }

    #[cold]
    fn last_time(&self, random: &mut ChaCha8Rng) -> f64 {
        let share = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        self.distribution.quantile(1.0 - share * TAIL / BINS as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_add_up() {
        let ring = |stage: &Distribution, sites| ring(stage, sites, DRAWS, 1).expect("a ring");
        assert!((ring(&Distribution::constant(2.0), 4).quantile(0.999) - 12.0).abs() < 1e-9);
        // Two sites, two stages; each may take 1 or 2: done when the slower path is. With both sites in each other's
        // way, the second stage begins everywhere when both first ones have ended: 2 only if all four are short.
        let stage = Distribution::of_atoms(vec![(1.0, 0.5), (2.0, 0.5)]);
        let two = ring(&stage, 2);
        assert!(
            (two.cdf(2.0) - 1.0 / 16.0).abs() < 0.01 && (two.cdf(3.0) - 7.0 / 16.0).abs() < 0.01,
            "{}",
            two.cdf(2.0)
        );
        assert!(super::ring(&stage, 1, DRAWS, 1).is_err());
    }
}
