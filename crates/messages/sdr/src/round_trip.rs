//! The round-trip time to the peer, measured with control messages.

use longhaul_time::{Duration, Instant};

/// The longest time beyond the shortest round trip that an answer is waited for. What takes longer is in a queue that is worth no
/// waiting for, or was held up by a network that will do so again: repeating something once a second costs nothing.
const PATIENCE_MAX: Duration = Duration::from_secs(1);
/// The shortest time that an answer is waited for: hosts are not woken sooner. A peer that claims a round trip of a nanosecond would
/// otherwise be asked without end, because the back-off stops growing after a number of doublings.
const PATIENCE_MIN: Duration = Duration::from_micros(50);
/// The longest time that the peer may have held a frame before the answer to it is no good for measuring: two clocks that differ by
/// 100 parts in a million drift apart by 10 us meanwhile.
const HELD_MAX: Duration = Duration::from_millis(100);

/// A sample that is this many times shorter than the mean begins a new mean.
const HELD_UP: u32 = 4;

/// The round-trip time, measured with every control message that is the first to echo one of ours (RFC 6298's smoothing).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTripTime {
    /// The newest measurement.
    pub latest: Option<Duration>,
    /// The mean, newer ones counting more.
    pub smoothed: Option<Duration>,
    /// How far measurements lie from it.
    pub variation: Duration,
    /// The shortest.
    pub least: Option<Duration>,
}

impl RoundTripTime {
    /// A frame that was sent with this stamp was answered, after the peer had held it for a while. Without the time of arrival, or when
    /// the peer claims to have held it for longer than it was away, nothing is measured.
    pub(crate) fn measure_answer(&mut self, stamp: u64, held: Duration, arrival: Option<Instant>) {
        let away = arrival.map(|arrival| arrival.saturating_since(Instant::from_nanos(stamp)));
        if let Some(sample) = away.and_then(|away| away.checked_sub(held))
            && !sample.is_zero()
            && held <= HELD_MAX
        {
            self.measure(sample);
        }
    }

    /// A frame came back after this time.
    fn measure(&mut self, sample: Duration) {
        self.latest = Some(sample);
        self.least = Some(self.least.map_or(sample, |least| least.min(sample)));
        match self.smoothed {
            Some(smoothed) if sample >= smoothed / HELD_UP => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(sample)) / 4;
                self.smoothed = Some((smoothed * 7 + sample) / 8);
            }
            // The first; or what went before was held up, by a host that stood still for example: it would count for many samples.
            _ => {
                self.smoothed = Some(sample);
                self.variation = sample / 2;
            }
        }
    }

    /// After this long without an answer something was most likely lost: RFC 6298's time-out, at least a quarter above the smoothed time,
    /// because a path that is always the same has no variation but hosts have, and at most a second above the shortest; never so short that a
    /// peer that lies is asked without end.
    pub fn patience(&self, unknown: Duration) -> Duration {
        let (Some(smoothed), Some(least)) = (self.smoothed, self.least) else { return unknown };
        (smoothed + (self.variation * 4).max(smoothed / 4)).min(least + PATIENCE_MAX).max(PATIENCE_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn what_was_held_up_does_not_count_for_long() {
        let mut time = RoundTripTime::default();
        let mut measure = |sent: u64, came: u64| {
            time.measure_answer(at(sent).as_nanos(), Duration::ZERO, Some(at(came)));
            time.patience(Duration::ZERO)
        };
        assert!(measure(1, 3001) >= Duration::from_secs(3), "a host that stood still");
        assert!(measure(4000, 4020) <= Duration::from_millis(60), "the next one is right at once");
        (0..50).for_each(|round| assert!(measure(5000 + round * 20, 5020 + round * 20) < Duration::from_millis(60)));
        assert!(measure(7000, 10_000) > Duration::from_secs(1), "one that is late is believed");
        assert!(measure(11_000, 11_020) <= Duration::from_millis(60), "until the next");
    }
}
