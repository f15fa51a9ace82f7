//! How much more arrives at once than the bandwidth explains: reports come in clumps, and the window must cover them.

use longhaul_time::Instant;

/// Rounds over which the maximum counts.
const ROUNDS: u64 = 10;

#[derive(Clone, Debug, Default)]
pub(super) struct Aggregation {
    begun: Instant,
    bytes: f64,
    /// The maxima of this half of the window and of the one before.
    extra: [f64; 2],
    round: u64,
}

impl Aggregation {
    /// Bytes that were delivered beyond what the bandwidth explains, at most, lately.
    pub(super) fn extra_bytes(&self) -> f64 {
        self.extra[0].max(self.extra[1])
    }

    /// Bytes were delivered.
    pub(super) fn on_delivered(&mut self, now: Instant, bytes: f64, bytes_per_second: f64, window: f64, round: u64) {
        if round >= self.round + ROUNDS / 2 {
            self.extra = [0.0, self.extra[0]];
            self.round = round;
        }
        let mut explained = bytes_per_second * (now - self.begun).as_secs_f64();
        if self.bytes <= explained {
            (self.begun, self.bytes, explained) = (now, 0.0, 0.0);
        }
        self.bytes += bytes;
        self.extra[0] = self.extra[0].max((self.bytes - explained).min(window));
    }
}
