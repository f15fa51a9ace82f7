//! How long the schemes wait for what. Every rule starts from the round trip, because a fixed time fits one link only.
//!
//! Protocols measure the round trip in whole nanoseconds and models compute with seconds, so each rule has both forms.

use std::time::Duration;

/// A number of round trips, but never less than a minimum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timeout {
    /// How many.
    pub round_trips: f64,
    /// The minimum: timers of hosts are not exact, and repeating something for nothing is a waste.
    pub least: Duration,
}

impl Timeout {
    /// As a protocol has it.
    pub fn after(&self, round_trip: Duration) -> Duration {
        round_trip.mul_f64(self.round_trips).max(self.least)
    }

    /// As a model has it.
    pub fn seconds(&self, round_trip: f64) -> f64 {
        (self.round_trips * round_trip).max(self.least.as_secs_f64())
    }
}

/// A fraction of a round trip, but never less than a minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// How many of them a round trip has.
    pub per_round_trip: u32,
    /// The minimum.
    pub least: Duration,
}

impl Period {
    /// As a protocol has it.
    pub fn after(&self, round_trip: Duration) -> Duration {
        (round_trip / self.per_round_trip).max(self.least)
    }

    /// As a model has it.
    pub fn seconds(&self, round_trip: f64) -> f64 {
        (round_trip / f64::from(self.per_round_trip)).max(self.least.as_secs_f64())
    }
}

/// α of selective repeat: a packet is repeated (1 + α) round trips after it left.
pub const ALPHA: f64 = 2.0;
/// β of erasure coding: the receiver asks when nothing has come for β round trips. The sender repeats only
/// what left more than a round trip ago, so that asking too early costs little; with one round trip, messages of 1 MiB
/// that a short queue had dropped packets of took 112 ms at 25 ms, and with a quarter 92 ms.
pub const BETA: f64 = 0.25;
/// No timeout is shorter by default.
pub const TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// With negative acknowledgements a timeout is only for the case that the reports are lost, too, or nothing arrives at
/// all. It can wait until a peer that was kept off its processor is back, which takes 5 to 30 ms on a busy host.
pub const TIMEOUT_MIN_WITH_REPORTS: Duration = Duration::from_millis(20);

/// When selective repeat sends a packet again that has not been acknowledged.
pub const fn retransmission(alpha: f64, least: Duration) -> Timeout {
    Timeout { round_trips: 1.0 + alpha, least }
}

/// When erasure coding falls back to asking, after the last packet that arrived, or would have left, of data and
/// parity.
pub const fn fallback(beta: f64, least: Duration) -> Timeout {
    Timeout { round_trips: beta, least }
}

/// Feedback more often than this costs more than it brings.
const PERIOD_MIN: Duration = Duration::from_micros(50);
/// How far apart acknowledgements are at least.
pub const ACKNOWLEDGEMENTS: Period = Period { per_round_trip: 8, least: PERIOD_MIN };
/// Gaps that show within this time are reported together.
pub const GAP_REPORTS: Period = Period { per_round_trip: 32, least: PERIOD_MIN };
/// When nothing has come for this long, all that is missing is reported. Within a fraction of the minimum, hosts pause
/// between any two packets.
pub const SILENCE: Period = Period { per_round_trip: 4, least: Duration::from_millis(1) };
/// With best effort, a message of which everything was sent ends when nothing has come for this long: packets that others
/// have overtaken come within it.
pub const QUIET: Period = SILENCE;
/// How many packets may overtake one before it is reported missing.
pub const REORDERING_PACKETS: u32 = 64;

/// How often the receiver reports that a message is done without being asked.
pub const DONE_TIMES: u32 = 3;
/// How far apart.
pub const DONE_REPORTS: Period = Period { per_round_trip: 32, least: Duration::ZERO };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_and_models_wait_equally_long() {
        for (round_trip, expected) in
            [(32_000, [96_000, 8_000, 4_000, 1_000, 8_000]), (96, [1_000, 1_000, 50, 50, 1_000])]
        {
            let (duration, seconds) = (Duration::from_micros(round_trip), round_trip as f64 / 1e6);
            let timeouts = [retransmission(ALPHA, TIMEOUT_MIN), fallback(BETA, TIMEOUT_MIN)];
            let periods = [ACKNOWLEDGEMENTS, GAP_REPORTS, SILENCE];
            let waited = timeouts.map(|rule| (rule.after(duration), rule.seconds(seconds))).into_iter();
            let waited = waited.chain(periods.map(|rule| (rule.after(duration), rule.seconds(seconds))));
            for ((protocol, model), micros) in waited.zip(expected) {
                assert_eq!(protocol, Duration::from_micros(micros));
                assert!((model - micros as f64 / 1e6).abs() < 1e-12, "{model}");
            }
        }
    }
}
