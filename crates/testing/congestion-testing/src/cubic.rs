//! A sender as TCP has it, to compete with: CUBIC (RFC 9438), simplified.
//!
//! Slow start, cubic growth after a loss, and a cut by 0.7 at most once in a round trip; no pacing, no HyStart, no
//! fast convergence.

use longhaul_congestion::{Controller, PathFacts, Sample};
use longhaul_time::Instant;

const BETA: f64 = 0.7;
const SCALE: f64 = 0.4;
const WINDOW_FIRST: f64 = 10.0;

/// CUBIC, windows in packets.
#[derive(Debug)]
pub struct Cubic {
    packet_bytes: f64,
    window: f64,
    threshold: f64,
    window_max: f64,
    epoch: Option<Instant>,
    /// What was sent before this does not cut again.
    cut_at: Instant,
    round_trip_secs: f64,
}

impl Cubic {
    /// At its start.
    pub fn new(facts: &PathFacts) -> Self {
        Cubic {
            packet_bytes: f64::from(facts.packet_bytes),
            window: WINDOW_FIRST,
            threshold: f64::INFINITY,
            window_max: 0.0,
            epoch: None,
            cut_at: Instant::ZERO,
            round_trip_secs: 0.001,
        }
    }
}

impl Controller for Cubic {
    fn on_sample(&mut self, sample: &Sample) {
        if let Some(round_trip) = sample.round_trip {
            self.round_trip_secs = round_trip.as_secs_f64();
        }
        if sample.lost_packets > 0 && sample.sent_at >= self.cut_at {
            self.window_max = self.window;
            self.window = (self.window * BETA).max(2.0);
            (self.threshold, self.epoch, self.cut_at) = (self.window, None, sample.now);
            return;
        }
        let delivered = sample.delivered_packets as f64;
        if self.window < self.threshold {
            self.window += delivered;
            return;
        }
        let epoch = *self.epoch.get_or_insert(sample.now);
        let time = (sample.now - epoch).as_secs_f64() + self.round_trip_secs;
        let until_max = (self.window_max * (1.0 - BETA) / SCALE).cbrt();
        let cubic = SCALE * (time - until_max).powi(3) + self.window_max;
        let reno = self.window_max * BETA + 3.0 * (1.0 - BETA) / (1.0 + BETA) * time / self.round_trip_secs;
        let target = cubic.max(reno).clamp(self.window, 1.5 * self.window);
        self.window += (target - self.window) / self.window * delivered;
    }

    fn window_bytes(&self) -> u64 {
        (self.window * self.packet_bytes) as u64
    }

    fn bits_per_second(&self) -> Option<u64> {
        None
    }
}
