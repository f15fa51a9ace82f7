//! How fast a queue pair sends.
//!
//! Two things, kept apart: a [`RateController`] decides the rate from what the network reports, and the pacer spaces
//! packets at that rate. The controller is the place where congestion control goes; for now there are [`FixedRate`], for a rate
//! that the user has asked for, and [`HalvingRate`], which backs off from losses.

use std::time::Duration;

use longhaul_time::Instant;

/// Decides how fast a queue pair may send.
pub trait RateController: Send {
    /// The peer has acknowledged this many bytes more. The round trip is given when it could be measured (never from
    /// a packet that was sent twice).
    fn on_acknowledged(&mut self, now: Instant, bytes: u64, round_trip: Option<Duration>);
    /// A router marked congestion on the path to the peer.
    fn on_congestion(&mut self, now: Instant);
    /// Packets were lost.
    fn on_loss(&mut self, now: Instant, signal: LossSignal);
    /// The rate in bits per second of the wire; `None` is as fast as the port takes packets.
    fn rate_bits_per_second(&self) -> Option<u64>;
}

/// How a loss was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossSignal {
    /// The peer said that a packet is missing.
    SequenceError,
    /// No acknowledgement came.
    Timeout,
}

/// A rate that does not change.
#[derive(Clone, Copy, Debug)]
pub struct FixedRate(pub u64);

impl RateController for FixedRate {
    fn on_acknowledged(&mut self, _now: Instant, _bytes: u64, _round_trip: Option<Duration>) {}
    fn on_congestion(&mut self, _now: Instant) {}
    fn on_loss(&mut self, _now: Instant, _signal: LossSignal) {}
    fn rate_bits_per_second(&self) -> Option<u64> {
        Some(self.0)
    }
}

/// A rate that is halved when packets are lost, at most once in a round trip, and comes back evenly with what is acknowledged.
///
/// Not congestion control in earnest (it knows nothing of a fair share), but a sender that the network cannot bear slows down
/// until it can. For connections that hear of their losses; without acknowledgements the rate would never come back.
#[derive(Clone, Debug)]
pub struct HalvingRate {
    rate: u64,
    rate_max: u64,
    rate_min: u64,
    /// Smoothed; none before the first was measured.
    round_trip: Option<Duration>,
    /// Losses until then belong to what was sent before the last halving.
    next_halving: Instant,
    /// Up to here, time has raised the rate.
    raised_until: Instant,
}

impl HalvingRate {
    /// The rate comes back by this part of its most in a round trip.
    const STEPS: u64 = 64;
    /// It does not fall below this part of its most, or below [`FLOOR`](Self::FLOOR).
    const PARTS_MAX: u64 = 128;
    const FLOOR: u64 = 1_000_000;
    /// Before a round trip was measured, and the shortest that counts.
    const ROUND_TRIP_UNKNOWN: Duration = Duration::from_millis(1);
    const ROUND_TRIP_MIN: Duration = Duration::from_micros(100);

    /// Start at `rate_bits_per_second`, which it never exceeds.
    pub fn new(rate_bits_per_second: u64) -> Self {
        let rate_max = rate_bits_per_second.max(1);
        HalvingRate {
            rate: rate_max,
            rate_max,
            rate_min: (rate_max / Self::PARTS_MAX).max(Self::FLOOR).min(rate_max),
            round_trip: None,
            next_halving: Instant::ZERO,
            raised_until: Instant::ZERO,
        }
    }

    fn round_trip(&self) -> Duration {
        self.round_trip.map_or(Self::ROUND_TRIP_UNKNOWN, |measured| measured.max(Self::ROUND_TRIP_MIN))
    }

    fn halve(&mut self, now: Instant) {
        if now < self.next_halving {
            return;
        }
        self.rate = (self.rate / 2).max(self.rate_min);
        self.next_halving = now + self.round_trip();
        self.raised_until = now;
    }
}

impl RateController for HalvingRate {
    fn on_acknowledged(&mut self, now: Instant, bytes: u64, round_trip: Option<Duration>) {
        if let Some(measured) = round_trip {
            self.round_trip = Some(self.round_trip.map_or(measured, |smoothed| (7 * smoothed + measured) / 8));
        }
        if self.rate == self.rate_max {
            return;
        }
        // Only the time in which something was sent counts: what was not tried says nothing about the path.
        let round_trip = self.round_trip();
        let sending = Duration::from_nanos(bytes.saturating_mul(8_000_000_000) / self.rate);
        let passed = (now - self.raised_until).min(round_trip.max(sending));
        let raise = u128::from(self.rate_max) * passed.as_nanos() / (u128::from(Self::STEPS) * round_trip.as_nanos());
        if raise > 0 {
            self.raised_until = now;
            self.rate = (self.rate + raise as u64).min(self.rate_max);
        }
    }

    fn on_congestion(&mut self, now: Instant) {
        // A mark is a loss that did not have to happen (RFC 3168, section 6.1.2).
        self.halve(now);
    }

    fn on_loss(&mut self, now: Instant, _signal: LossSignal) {
        self.halve(now);
    }

    fn rate_bits_per_second(&self) -> Option<u64> {
        Some(self.rate)
    }
}

/// Spaces packets at a controller's rate.
pub(crate) struct Pacer {
    controller: Box<dyn RateController>,
    /// A sender that was idle, or that was woken late, may catch up by this much.
    burst: Duration,
    /// The next packet may leave then.
    free_at: Instant,
    /// The controller stands for the network's sake, and packets that do not leave this host are not counted.
    pub(crate) spares_local: bool,
}

impl Pacer {
    pub(crate) fn new(controller: Box<dyn RateController>, burst: Duration) -> Self {
        Pacer { controller, burst, free_at: Instant::ZERO, spares_local: false }
    }

    /// When the next packet may leave, if that is not now.
    pub(crate) fn blocked_until(&self, now: Instant) -> Option<Instant> {
        (self.free_at > now).then_some(self.free_at)
    }

    /// Whether a packet would be the last one for now.
    pub(crate) fn blocks_after(&self, now: Instant, wire_bytes: u64) -> bool {
        self.free_after(now, wire_bytes) > now
    }

    pub(crate) fn on_sent(&mut self, now: Instant, wire_bytes: u64) {
        self.free_at = self.free_after(now, wire_bytes);
    }

    fn free_after(&self, now: Instant, wire_bytes: u64) -> Instant {
        let Some(rate) = self.controller.rate_bits_per_second() else {
            return self.free_at;
        };
        let nanos = u128::from(wire_bytes) * 8 * 1_000_000_000 / u128::from(rate.max(1));
        let earliest = Instant::from_nanos(now.as_nanos().saturating_sub(self.burst.as_nanos() as u64));
        self.free_at.max(earliest).saturating_add_nanos(nanos.min(u64::MAX.into()) as u64)
    }

    /// Tell the controller something.
    pub(crate) fn report(&mut self, report: impl FnOnce(&mut dyn RateController)) {
        report(self.controller.as_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_spaced_at_the_rate() {
        let burst = Duration::from_micros(10);
        let mut pacer = Pacer::new(Box::new(FixedRate(8_000_000_000)), burst); // one byte a nanosecond
        let mut now = Instant::from_nanos(1_000_000);
        let start = now;
        let mut sent_bytes = 0;
        while sent_bytes < 1_000_000 {
            match pacer.blocked_until(now) {
                Some(later) => now = later,
                None => {
                    pacer.on_sent(now, 1000);
                    sent_bytes += 1000;
                }
            }
        }
        let elapsed = (now - start).as_nanos() as u64;
        assert!((985_000..=1_000_000).contains(&elapsed), "1 MB at 1 B/ns took {elapsed} ns");
    }

    #[test]
    fn a_sender_that_is_woken_late_keeps_its_rate() {
        // 1 Gbit/s, woken every 100 µs only, which is three packets.
        let sent = |burst_us| {
            let mut pacer = Pacer::new(Box::new(FixedRate(1_000_000_000)), Duration::from_micros(burst_us));
            let mut sent_bytes = 0;
            for tick in 1..=1000 {
                let now = Instant::from_nanos(tick * 100_000);
                while pacer.blocked_until(now).is_none() {
                    pacer.on_sent(now, 4166);
                    sent_bytes += 4166;
                }
            }
            sent_bytes
        };
        let expected = 12_500_000; // in 100 ms
        assert!((expected - 30_000..expected + 30_000).contains(&sent(200)), "{}", sent(200));
        assert!(sent(10) < expected / 2, "without catching up the rate is not reached: {}", sent(10));
    }

    fn milliseconds(milliseconds: u64) -> Instant {
        Instant::from_nanos(milliseconds * 1_000_000)
    }

    #[test]
    fn a_loss_halves_the_rate_once_in_a_round_trip() {
        let mut controller = HalvingRate::new(1_000_000_000);
        controller.on_acknowledged(milliseconds(1), 4096, Some(Duration::from_millis(20)));
        for late in 0..20 {
            controller.on_loss(milliseconds(100 + late), LossSignal::SequenceError);
        }
        assert_eq!(controller.rate_bits_per_second(), Some(500_000_000));
        controller.on_loss(milliseconds(120), LossSignal::Timeout);
        assert_eq!(controller.rate_bits_per_second(), Some(250_000_000));
        for round_trip in 0..100 {
            controller.on_loss(milliseconds(140 + 20 * round_trip), LossSignal::Timeout);
        }
        assert_eq!(controller.rate_bits_per_second(), Some(1_000_000_000 / 128), "there is a floor");
    }

    #[test]
    fn before_a_round_trip_was_measured_a_loss_halves_once_in_a_millisecond() {
        let mut controller = HalvingRate::new(800_000_000);
        for micros in (0..1000).step_by(10) {
            controller.on_loss(Instant::from_nanos(micros * 1000), LossSignal::SequenceError);
        }
        assert_eq!(controller.rate_bits_per_second(), Some(400_000_000));
    }

    #[test]
    fn the_rate_comes_back_with_acknowledgements_and_no_further() {
        let rate_after = |round_trips: u64, acknowledgements_per_round_trip: u64| {
            let mut controller = HalvingRate::new(1_000_000_000);
            controller.on_acknowledged(milliseconds(0), 4096, Some(Duration::from_millis(10)));
            controller.on_loss(milliseconds(10), LossSignal::SequenceError);
            let step = 10_000_000 / acknowledgements_per_round_trip;
            for number in 1..=round_trips * acknowledgements_per_round_trip {
                controller.on_acknowledged(Instant::from_nanos(10_000_000 + number * step), 4096, None);
            }
            controller.rate_bits_per_second().unwrap_or(0)
        };
        assert_eq!(rate_after(1, 1), 500_000_000 + 1_000_000_000 / 64);
        let many = rate_after(16, 1000);
        assert!((740_000_000..=750_000_000).contains(&many), "{many}: as much as with few acknowledgements");
        assert_eq!(rate_after(40, 10), 1_000_000_000);
        // Silence raises nothing, but what was sent since the last acknowledgement counts.
        let rate_after_pause = |bytes| {
            let mut controller = HalvingRate::new(1_000_000_000);
            controller.on_loss(milliseconds(10), LossSignal::SequenceError);
            controller.on_acknowledged(milliseconds(10_000), bytes, None);
            controller.rate_bits_per_second()
        };
        assert_eq!(rate_after_pause(4096), Some(500_000_000 + 1_000_000_000 / 64));
        let ten_milliseconds_bytes = 500_000_000 / 8 / 100;
        assert_eq!(rate_after_pause(ten_milliseconds_bytes), Some(500_000_000 + 10 * 1_000_000_000 / 64));
    }

    #[test]
    fn a_slow_rate_has_no_floor_above_it() {
        let mut controller = HalvingRate::new(100_000);
        controller.on_loss(milliseconds(10), LossSignal::Timeout);
        assert_eq!(controller.rate_bits_per_second(), Some(100_000));
    }
}
