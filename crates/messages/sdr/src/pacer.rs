//! One rate for all that a queue pair sends: over channels and generations, on any device.

use longhaul_time::{Duration, Instant};

/// How far ahead of the rate data may be given to a device that spaces its packets evenly: enough to sleep through on a busy host.
pub(crate) const AHEAD_OF_LIMITER: Duration = Duration::from_millis(20);
/// The same for other devices, where it is a burst on the wire.
pub(crate) const AHEAD: Duration = Duration::from_millis(5);

/// Says when data may be given to the device. In any time `t`, at most the rate times (`t` + `ahead`) is, and one burst.
///
/// Devices that can limit a queue pair's rate do so as well, and space packets evenly; but a message's generation decides which queue pair it
/// leaves by, and several can be busy at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    bits_per_second: Option<u64>,
    ahead: Duration,
    /// When everything that was given to the device has left it at this rate.
    free_at: Instant,
}

impl Pacer {
    pub(crate) fn new(bits_per_second: Option<u64>, ahead: Duration) -> Self {
        Pacer { bits_per_second, ahead, free_at: Instant::ZERO }
    }

    /// When more may be given to the device; `None` when it may be at any time.
    pub(crate) fn ready_at(&self) -> Option<Instant> {
        self.bits_per_second?;
        Some(Instant::ZERO + self.free_at.saturating_since(Instant::ZERO + self.ahead))
    }

    pub(crate) fn is_ready(&self, now: Instant) -> bool {
        self.ready_at().is_none_or(|at| at <= now)
    }

    /// When data may leave that the device does not space: it is a burst on the wire.
    pub(crate) fn burst_at(&self) -> Instant {
        match self.bits_per_second {
            Some(_) => Instant::ZERO + self.free_at.saturating_since(Instant::ZERO + AHEAD.min(self.ahead)),
            None => Instant::ZERO,
        }
    }

    /// Bytes were given to the device.
    pub(crate) fn on_posted(&mut self, bytes: u64, now: Instant) {
        let Some(rate) = self.bits_per_second else { return };
        let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.max(1));
        self.free_at = self.free_at.max(now).saturating_add_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_over_any_time() {
        let mut pacer = Pacer::new(Some(8_000_000), AHEAD);
        let mut now = Instant::from_nanos(1_000_000_000);
        let start = now;
        let mut bytes = 0;
        while now - start < Duration::from_secs(10) {
            if pacer.is_ready(now) {
                pacer.on_posted(10_000, now);
                bytes += 10_000;
            }
            now = pacer.ready_at().expect("there is a rate").max(now.saturating_add_nanos(1));
        }
        // 1 MB a second for ten seconds, 5 ms ahead, and a burst.
        assert!((10_000_000..=10_000_000 + 5_000 + 10_000).contains(&bytes), "{bytes}");
        // Time that was not used is not made up for.
        now += Duration::from_secs(60);
        let mut bursts = 0;
        while pacer.is_ready(now) {
            pacer.on_posted(1000, now);
            bursts += 1;
        }
        assert!(bursts <= 6, "{bursts} of 1 ms each");
    }

    #[test]
    fn without_a_rate_it_is_always_ready() {
        let mut pacer = Pacer::new(None, AHEAD);
        pacer.on_posted(u64::MAX, Instant::ZERO);
        assert!(pacer.is_ready(Instant::ZERO) && pacer.ready_at().is_none());
        let mut slow = Pacer::new(Some(0), AHEAD);
        slow.on_posted(u64::MAX, Instant::ZERO);
        assert!(!slow.is_ready(Instant::from_nanos(1 << 60)));
    }
}
