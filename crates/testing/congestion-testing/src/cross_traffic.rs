//! Traffic that does not react to congestion: packets at random times, in busy and quiet periods.

use longhaul_time::{Duration, Instant};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng as _};

/// How much of it there is.
#[derive(Clone, Copy, Debug)]
pub struct CrossTraffic {
    /// While it is busy.
    pub bits_per_second: u64,
    /// Of each packet.
    pub packet_bytes: u32,
    /// A busy period, and then a quiet one, on average; without quiet ones it is always busy.
    pub busy: Duration,
    /// See `busy`.
    pub quiet: Duration,
}

#[derive(Debug)]
pub(crate) struct Source {
    traffic: CrossTraffic,
    random: ChaCha8Rng,
    busy_until: Instant,
}

impl Source {
    pub(crate) fn new(traffic: CrossTraffic, seed: u64) -> Self {
        Source { traffic, random: ChaCha8Rng::seed_from_u64(seed ^ 0x5eed), busy_until: Instant::ZERO }
    }

    /// A packet's bytes, and when the next one enters.
    pub(crate) fn next(&mut self, now: Instant) -> (u32, Instant) {
        let CrossTraffic { bits_per_second, packet_bytes, busy, quiet } = self.traffic;
        let gap = f64::from(packet_bytes) * 8.0 / bits_per_second as f64;
        let mut next = now + Duration::from_secs_f64(self.exponential() * gap);
        if next > self.busy_until && !quiet.is_zero() {
            next = self.busy_until.max(now) + quiet.mul_f64(self.exponential());
            self.busy_until = next + busy.mul_f64(self.exponential());
        }
        (packet_bytes, next)
    }

    /// With mean 1.
    fn exponential(&mut self) -> f64 {
        let uniform = (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        -(1.0 - uniform).ln()
    }
}
