//! How long operations take: lognormal, and some ranks always slower.

use std::f64::consts::TAU;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// The 99th percentile of the normal distribution.
const NORMAL_P99: f64 = 2.326_347_874;

/// Durations of a group's operations. Each rank's is drawn on its own, from the same seed in the same order.
#[derive(Debug, Clone)]
pub struct Stragglers {
    random: ChaCha8Rng,
    sigma: f64,
    median_ns: f64,
    /// For each rank, how many times slower it is.
    slowness: Vec<f64>,
}

impl Stragglers {
    /// A group with this many ranks. `tail` is the 99th percentile of durations over their median; the ranks in `slow`
    /// always take twice as long.
    pub fn new(ranks: usize, tail: f64, slow: &[usize], median_ns: f64, seed: u64) -> Stragglers {
        let slowness = (0..ranks).map(|rank| if slow.contains(&rank) { 2.0 } else { 1.0 }).collect();
        Stragglers { random: ChaCha8Rng::seed_from_u64(seed), sigma: tail.ln() / NORMAL_P99, median_ns, slowness }
    }

    /// One of this many, each as likely as the others.
    pub fn next_choice(&mut self, of: usize) -> usize {
        (self.random.next_u64() % of.max(1) as u64) as usize
    }

    /// Nanoseconds of each rank's next operation.
    pub fn next_operation(&mut self) -> Vec<f64> {
        let Stragglers { random, sigma, median_ns, slowness } = self;
        slowness.iter().map(|slowness| *median_ns * slowness * (*sigma * normal(random)).exp()).collect()
    }
}

/// Which packets a path loses: each on its own, drawn apart from the durations.
#[derive(Debug, Clone)]
pub struct PathLoss {
    random: ChaCha8Rng,
    share: f64,
}

impl PathLoss {
    /// A path that loses this share of its packets.
    pub fn new(share: f64, seed: u64) -> PathLoss {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(1);
        PathLoss { random, share }
    }

    /// Whether the next packet is lost.
    pub fn next_is_lost(&mut self) -> bool {
        self.share > 0.0 && share(&mut self.random) <= self.share
    }
}

/// From 0 to 1, without 0.
fn share(random: &mut ChaCha8Rng) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// Normal, with mean 0 and variance 1 (Box and Muller).
fn normal(random: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * share(random).ln()).sqrt();
    radius * (TAU * share(random)).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_tail_that_was_asked_for() {
        for tail in [1.12, 1.5, 3.0] {
            let mut stragglers = Stragglers::new(4, tail, &[3], 1e7, 1);
            let mut all: Vec<f64> = (0..20_000).flat_map(|_| stragglers.next_operation()[..3].to_vec()).collect();
            all.sort_by(f64::total_cmp);
            let percentile = |percent: usize| all[all.len() * percent / 100];
            assert!((percentile(50) / 1e7 - 1.0).abs() < 0.02, "{tail}");
            assert!((percentile(99) / percentile(50) / tail - 1.0).abs() < 0.05, "{tail}");
        }
        let mut stragglers = Stragglers::new(4, 1.0, &[3], 1e7, 1);
        assert_eq!(stragglers.next_operation(), [1e7, 1e7, 1e7, 2e7]);
    }
}
