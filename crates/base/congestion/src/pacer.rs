//! Spaces what a sender posts at a rate that may change at any time.

use longhaul_time::{Duration, Instant};

const BURST_PACKETS_MIN: u64 = 2;
const BURST_BYTES_MAX: u64 = 64 << 10;

/// A token bucket that may be overdrawn by one burst.
///
/// In any time `t` at most the rate times `t` plus two bursts are sent: a sender that was woken late catches up by one
/// burst at most. What was overdrawn is kept in bytes, so that a new rate neither forgives nor freezes it.
#[derive(Clone, Debug)]
pub struct Pacer {
    bits_per_second: Option<u64>,
    burst: Duration,
    burst_bytes: u64,
    packet_bytes: u64,
    /// What may be sent besides a burst; negative while the last burst has not been earned.
    credit_bytes: f64,
    /// When that was computed.
    computed: Instant,
}

impl Pacer {
    /// For packets of at most this size, in bursts that last this long at the rate, but are two packets at least.
    pub fn new(packet_bytes: u32, burst: Duration) -> Self {
        Pacer {
            bits_per_second: None,
            burst,
            burst_bytes: u64::MAX,
            packet_bytes: u64::from(packet_bytes.max(1)),
            credit_bytes: 0.0,
            computed: Instant::ZERO,
        }
    }

    /// Changes the rate; `None` does not pace. The slowest is one bit per second: at none a sender would wait for ever.
    pub fn set_rate(&mut self, now: Instant, bits_per_second: Option<u64>) {
        let bits_per_second = bits_per_second.map(|rate| rate.max(1));
        if bits_per_second == self.bits_per_second {
            return;
        }
        self.earn(now);
        self.bits_per_second = bits_per_second;
        let of_rate = bits_per_second.map(|rate| (rate as f64 / 8.0 * self.burst.as_secs_f64()) as u64);
        let least = BURST_PACKETS_MIN * self.packet_bytes;
        self.burst_bytes = of_rate.map_or(u64::MAX, |bytes| bytes.clamp(least, BURST_BYTES_MAX.max(least)));
    }

    /// What may be sent now, in bytes.
    pub fn room_bytes(&self, now: Instant) -> u64 {
        if self.bits_per_second.is_none() {
            return u64::MAX;
        }
        let credit = self.credit_at(now);
        if credit < 0.0 { 0 } else { self.burst_bytes.saturating_add(credit as u64) }
    }

    /// When something may be sent; `None` when that is at any time.
    pub fn ready_at(&self) -> Option<Instant> {
        let rate = self.bits_per_second?;
        let nanos = (-self.credit_bytes).max(0.0) * 8e9 / rate as f64;
        Some(self.computed.saturating_add_nanos(nanos.ceil() as u64))
    }

    /// Bytes were sent.
    pub fn on_sent(&mut self, now: Instant, bytes: u64) {
        self.earn(now);
        if self.bits_per_second.is_some() {
            self.credit_bytes -= bytes as f64;
        }
    }

    fn earn(&mut self, now: Instant) {
        self.credit_bytes = self.credit_at(now);
        self.computed = self.computed.max(now);
    }

    fn credit_at(&self, now: Instant) -> f64 {
        let Some(rate) = self.bits_per_second else { return 0.0 };
        // Times are whole nanoseconds, and `ready_at` rounds up: less than a byte missing is none.
        let earned = self.credit_bytes + (now - self.computed).as_secs_f64() * rate as f64 / 8.0;
        let earned = if earned > -1e-3 { earned.max(0.0) } else { earned };
        earned.min(self.burst_bytes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: Duration = Duration::from_micros(500);

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// Sends packets of 1,000 bytes as fast as the pacer lets it, waking at its deadlines but no more often than `wake`.
    fn send(pacer: &mut Pacer, from: Instant, time: Duration, wake: Duration) -> u64 {
        let (mut now, mut sent) = (from, 0);
        while now - from < time {
            let mut room = pacer.room_bytes(now);
            while room >= 1000 {
                pacer.on_sent(now, 1000);
                (sent, room) = (sent + 1000, room - 1000);
            }
            now = pacer.ready_at().expect("there is a rate").max(now + wake);
        }
        sent
    }

    #[test]
    fn the_rate_holds_for_punctual_and_for_late_senders() {
        for wake in [1, 400, 900] {
            let mut pacer = Pacer::new(1000, BURST);
            pacer.set_rate(at(5), Some(800_000_000));
            let sent = send(&mut pacer, at(5), Duration::from_secs(1), Duration::from_micros(wake));
            assert!((99_900_000..=100_000_000 + 2 * 50_000).contains(&sent), "{sent} when woken after {wake} µs");
        }
    }

    #[test]
    fn a_sender_that_slept_catches_up_by_one_burst() {
        let mut pacer = Pacer::new(1000, BURST);
        pacer.set_rate(at(0), Some(800_000_000));
        assert_eq!(pacer.room_bytes(at(60_000_000)), 2 * 50_000);
    }

    #[test]
    fn a_new_rate_keeps_what_was_overdrawn_in_bytes() {
        let mut pacer = Pacer::new(1000, BURST);
        pacer.set_rate(at(0), Some(8_000_000));
        pacer.on_sent(at(0), 10_000);
        assert_eq!(pacer.ready_at(), Some(at(10_000)));
        pacer.set_rate(at(0), Some(80_000_000));
        assert_eq!(pacer.ready_at(), Some(at(1000)), "ten times as fast");
        pacer.set_rate(at(500), Some(800_000));
        assert_eq!(pacer.ready_at(), Some(at(50_500)), "half of it is left");
        assert_eq!(pacer.room_bytes(at(50_499)), 0);
    }

    #[test]
    fn bursts_are_two_packets_at_least_and_64_kib_at_most() {
        let mut pacer = Pacer::new(4200, BURST);
        pacer.set_rate(at(0), Some(1_000_000));
        assert_eq!(pacer.room_bytes(at(0)), 8400);
        pacer.set_rate(at(0), Some(100_000_000_000));
        assert_eq!(pacer.room_bytes(at(0)), 64 << 10);
    }

    #[test]
    fn a_rate_of_nothing_is_the_slowest_and_the_fastest_is_none_without_end() {
        let mut pacer = Pacer::new(1000, BURST);
        pacer.set_rate(at(0), Some(0));
        pacer.on_sent(at(0), 1);
        // A driver that sleeps until then must find room, or it would never sleep again.
        let ready = pacer.ready_at().expect("there is a rate");
        assert_eq!((ready, pacer.room_bytes(ready)), (at(8_000_000), 2000));
        pacer.set_rate(ready, Some(u64::MAX));
        pacer.on_sent(ready, 1 << 40);
        let ready = pacer.ready_at().expect("there is a rate");
        assert!(ready < at(8_000_001) && pacer.room_bytes(ready) >= 64 << 10);
    }

    #[test]
    fn without_a_rate_it_is_always_ready() {
        let mut pacer = Pacer::new(1000, BURST);
        pacer.on_sent(at(1), u64::MAX);
        assert_eq!((pacer.room_bytes(at(1)), pacer.ready_at()), (u64::MAX, None));
    }
}
