//! Time for the loop: nanoseconds since it was made, by the monotonic clock. The kernel stamps frames with the time of
//! day, which is translated.

use std::time::Duration;

use longhaul_time::Instant;
use nix::time::{ClockId, clock_gettime};

/// A frame that arrived longer ago than this was stamped before somebody set the clock.
const STAMP_AGE_MAX: Duration = Duration::from_secs(1);

/// Both clocks are read within this time, if a few tries are enough.
const READ_APART_MAX: Duration = Duration::from_micros(5);
const TRIES_MAX: usize = 4;

/// A clock that starts when it is made. Copies show the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Duration,
}

impl Clock {
    /// Starts now.
    pub fn start() -> Self {
        Clock { origin: read(ClockId::CLOCK_MONOTONIC) }
    }

    /// The time now.
    pub fn now(&self) -> Instant {
        self.at(read(ClockId::CLOCK_MONOTONIC))
    }

    /// A time of the monotonic clock.
    fn at(&self, monotonic: Duration) -> Instant {
        Instant::ZERO + monotonic.saturating_sub(self.origin)
    }

    /// How to translate times of day, for the next moments.
    pub fn translation(&self) -> Translation {
        // The processor may be taken away between two looks. The time of day is read first, so that frames would seem younger, and
        // leave late rather than early.
        let mut before = self.now();
        for _ in 0..TRIES_MAX {
            let time_of_day = read(ClockId::CLOCK_REALTIME);
            let now = self.now();
            if now - before <= READ_APART_MAX {
                return Translation { now, time_of_day };
            }
            before = now;
        }
        let time_of_day = read(ClockId::CLOCK_REALTIME);
        Translation { now: self.now(), time_of_day }
    }

    /// The date at which this clock started, since 1970, as the time of day says now.
    pub fn origin_of_day(&self) -> Duration {
        let Translation { now, time_of_day } = self.translation();
        time_of_day.saturating_sub(now - Instant::ZERO)
    }
}

/// One moment, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Translation {
    now: Instant,
    time_of_day: Duration,
}

impl Translation {
    /// The instant that the kernel has stamped a frame with: never later than now, and now if the stamp cannot be true.
    pub fn instant_of(&self, stamp: Duration) -> Instant {
        let age = self.time_of_day.saturating_sub(stamp);
        if age > STAMP_AGE_MAX {
            return self.now;
        }
        Instant::from_nanos(self.now.as_nanos().saturating_sub(age.as_nanos() as u64))
    }
}

fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_become_instants_of_the_same_age() {
        let translation = Translation { now: Instant::from_nanos(5_000), time_of_day: Duration::from_nanos(1_000_000) };
        let instant = |nanos| translation.instant_of(Duration::from_nanos(nanos)).as_nanos();
        assert_eq!(instant(999_000), 4_000);
        assert_eq!(instant(1_000_500), 5_000, "no frame arrives in the future");
        assert_eq!(instant(990_000), 0, "before the clock has started");
        let set_back = Translation { time_of_day: Duration::from_secs(7_200), ..translation };
        assert_eq!(
            set_back.instant_of(Duration::from_secs(1)).as_nanos(),
            5_000,
            "the clock was set forward by two hours"
        );
    }

    #[test]
    fn a_clock_starts_at_zero_and_knows_its_date() {
        let clock = Clock::start();
        let first = clock.now();
        assert!(first - Instant::ZERO < Duration::from_secs(10) && clock.now() >= first);
        assert!(clock.origin_of_day() > Duration::from_secs(1_600_000_000), "{:?}", clock.origin_of_day());
    }
}
