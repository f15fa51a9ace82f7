//! Pacing in the program: unreliable transports lose what outruns the receiver, and a guest of a virtual machine
//! without hardware support takes some 25 MB/s, when its host has time for it. So the client keeps to a rate
//! ([`Pace`]), and the server reports what has arrived, which bounds how far ahead it may be ([`credit`]).

use std::time::{Duration, Instant};

/// What an operation costs at least, however short: a receiver works on packets as well as on bytes.
const BYTES_LEAST: u64 = 1500;
/// What headers add to each packet.
const HEADER_BYTES: u64 = 80;
/// What may be caught up on after a sleep that was too long.
const BURST: Duration = Duration::from_millis(8);

/// Bytes that may be in flight on an unreliable transport: what the queues of the network hold.
const CREDIT_BYTES: u32 = 512 << 10;
/// What an operation counts for at least.
const CREDIT_BYTES_LEAST: u32 = 2048;

/// Operations of this size that may be ahead of those that are known to have arrived.
pub(crate) fn credit(bytes: u32) -> u64 {
    u64::from((CREDIT_BYTES / bytes.max(CREDIT_BYTES_LEAST)).max(1))
}

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    bits_per_second: Option<u64>,
    /// When the next operation may begin.
    next: Instant,
}

impl Pace {
    /// `None` is as fast as it goes.
    pub(crate) const fn new(bits_per_second: Option<u64>, now: Instant) -> Pace {
        Pace { bits_per_second, next: now }
    }

    /// How long the next operation has to wait; zero if it may begin.
    pub(crate) fn delay(&self, now: Instant) -> Duration {
        match self.bits_per_second {
            Some(_) => self.next.saturating_duration_since(now),
            None => Duration::ZERO,
        }
    }

    /// An operation of this many bytes, in packets of this size, has begun.
    pub(crate) fn spend(&mut self, bytes: u32, packet_bytes: u32, now: Instant) {
        let Some(rate) = self.bits_per_second else {
            return;
        };
        let packets = u64::from(bytes).div_ceil(u64::from(packet_bytes.max(1))).max(1);
        let cost = (u64::from(bytes) + packets * HEADER_BYTES).max(BYTES_LEAST);
        let nanoseconds = cost.saturating_mul(8_000_000_000) / rate.max(1);
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        self.next = self.next.max(earliest) + Duration::from_nanos(nanoseconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept() {
        let begin = Instant::now();
        let mut pace = Pace::new(Some(100_000_000), begin);
        let mut now = begin;
        for _ in 0..20 {
            now += pace.delay(now);
            pace.spend(1 << 20, 4096, now);
        }
        let seconds = (now - begin).as_secs_f64();
        // The first begins at once: 19 MiB and their headers in 8 ms less at most.
        let exact = 19.0 * ((1 << 20) as f64 + 256.0 * 80.0) * 8.0 / 1e8;
        assert!((exact - 0.008..=exact + 0.001).contains(&seconds), "{seconds} s, expected {exact} s");
    }

    #[test]
    fn there_is_always_credit_for_one() {
        assert_eq!([0, 4096, 1 << 20, u32::MAX].map(credit), [256, 128, 1, 1]);
    }

    #[test]
    fn short_operations_are_not_for_nothing() {
        let begin = Instant::now();
        let mut pace = Pace::new(Some(80_000_000), begin);
        for _ in 0..500 {
            pace.spend(0, 1024, begin);
        }
        let wait = pace.delay(begin);
        assert!(wait > Duration::from_millis(50), "{wait:?}");
        assert_eq!(Pace::new(None, begin).delay(begin), Duration::ZERO);
    }
}
