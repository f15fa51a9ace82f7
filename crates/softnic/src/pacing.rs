//! How fast a queue pair sends.
//!
//! Two things, kept apart: a [`RateController`] decides the rate from what the network reports, and the pacer spaces
//! packets at that rate. The controller is the place where congestion control goes; for now there is [`FixedRate`].

use std::time::Duration;

use longhaul_time::Instant;

/// Decides how fast a queue pair may send.
pub trait RateController: Send {
    /// The peer has acknowledged this many bytes more. The round trip is given when it could be measured (never from
    /// a packet that was sent twice).
    fn on_acknowledged(&mut self, now: Instant, bytes: u64, round_trip: Option<Duration>);
    /// A router marked congestion on the way to the peer.
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

/// Spaces packets at a controller's rate. Without a controller it costs nothing and never waits.
#[derive(Default)]
pub(crate) struct Pacer {
    controller: Option<Box<dyn RateController>>,
    /// The next packet may leave then.
    free_at: Instant,
}

/// A sender that was idle may catch up by this much, so that it does not need to be woken for every single packet.
const CATCH_UP: Duration = Duration::from_micros(10);

impl Pacer {
    pub(crate) fn new(controller: Option<Box<dyn RateController>>) -> Self {
        Pacer { controller, free_at: Instant::ZERO }
    }

    /// When the next packet may leave, if that is not now.
    pub(crate) fn blocked_until(&self, now: Instant) -> Option<Instant> {
        (self.controller.is_some() && self.free_at > now).then_some(self.free_at)
    }

    pub(crate) fn on_sent(&mut self, now: Instant, wire_bytes: u64) {
        let Some(rate) = self.controller.as_ref().and_then(|controller| controller.rate_bits_per_second()) else {
            return;
        };
        let nanos = u128::from(wire_bytes) * 8 * 1_000_000_000 / u128::from(rate.max(1));
        let earliest = Instant::from_nanos(now.as_nanos().saturating_sub(CATCH_UP.as_nanos() as u64));
        self.free_at = self.free_at.max(earliest).saturating_add_nanos(nanos.min(u64::MAX.into()) as u64);
    }

    /// Tell the controller something; nothing happens without one.
    pub(crate) fn report(&mut self, report: impl FnOnce(&mut dyn RateController)) {
        if let Some(controller) = &mut self.controller {
            report(controller.as_mut());
        }
    }

    pub(crate) fn has_controller(&self) -> bool {
        self.controller.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_spaced_at_the_rate() {
        let mut pacer = Pacer::new(Some(Box::new(FixedRate(8_000_000_000)))); // one byte a nanosecond
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
    fn without_a_controller_nothing_waits() {
        let mut pacer = Pacer::default();
        pacer.on_sent(Instant::ZERO, 1 << 40);
        assert_eq!(pacer.blocked_until(Instant::ZERO), None);
    }
}
