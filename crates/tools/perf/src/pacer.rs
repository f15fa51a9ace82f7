//! A rate limit for devices that have none of their own: when the next message may be posted.

use std::time::{Duration, Instant};

/// Time that was missed, because the processor was away, and may be made up for.
const SLACK: Duration = Duration::from_millis(1);
/// Small messages are posted together, as many as this much time holds.
const BATCH: Duration = Duration::from_micros(50);

/// Holds messages back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    bits_per_second: u64,
    next: Option<Instant>,
}

impl Pacer {
    pub(crate) const fn new(bits_per_second: u64) -> Self {
        Pacer { bits_per_second, next: None }
    }

    /// How many messages of this size may be posted now.
    pub(crate) fn allowed(&self, now: Instant, message_bytes: u64) -> u64 {
        match self.next {
            Some(next) if now < next => 0,
            _ => (self.bits_of(BATCH) / (message_bytes * 8).max(1)).max(1),
        }
    }

    /// So much was posted.
    pub(crate) fn posted(&mut self, now: Instant, bytes: u64) {
        let earliest = now.checked_sub(SLACK).unwrap_or(now);
        let begin = self.next.map_or(now, |next| next.max(earliest));
        self.next = Some(begin + Duration::from_secs_f64(bytes as f64 * 8.0 / self.bits_per_second as f64));
    }

    fn bits_of(&self, time: Duration) -> u64 {
        (self.bits_per_second as f64 * time.as_secs_f64()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits posted by somebody who looks at the clock this often, for a second.
    fn bits_in_a_second(rate: u64, message_bytes: u64, step: Duration) -> u64 {
        let mut pacer = Pacer::new(rate);
        let begin = Instant::now();
        let mut posted = 0;
        let mut now = begin;
        while now < begin + Duration::from_secs(1) {
            let count = pacer.allowed(now, message_bytes);
            if count > 0 {
                pacer.posted(now, count * message_bytes);
                posted += count * message_bytes * 8;
            }
            now += step;
        }
        posted
    }

    #[test]
    fn the_rate_is_kept_whatever_the_size() {
        for (rate, bytes) in
            [(1_000_000_000, 65_536), (1_000_000_000, 2), (10_000_000, 4096), (100_000_000_000, 1 << 20)]
        {
            let posted = bits_in_a_second(rate, bytes, Duration::from_micros(3)) as f64;
            let most_at_once = (bytes * 8).max(rate / 20_000) as f64;
            let (low, high) = (rate as f64 * 0.97 - most_at_once, rate as f64 * 1.01 + most_at_once);
            assert!((low..=high).contains(&posted), "{rate} bits/s, messages of {bytes} bytes: {posted}");
        }
    }

    #[test]
    fn a_pause_is_not_made_up_for() {
        let mut pacer = Pacer::new(8_000_000);
        let begin = Instant::now();
        pacer.posted(begin, 1000);
        assert_eq!(pacer.allowed(begin, 1000), 0);
        let late = begin + Duration::from_secs(5);
        let mut posted = 0;
        while pacer.allowed(late, 1000) > 0 {
            pacer.posted(late, 1000);
            posted += 1;
        }
        assert!(posted <= 2, "{posted} messages of a millisecond each at once");
    }
}
