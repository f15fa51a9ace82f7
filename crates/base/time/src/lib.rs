//! Time as an argument.
//!
//! Protocol code in Longhaul never reads a clock: every driven object takes `now: Instant` with each input and names
//! the instant of its next deadline. An [`Instant`] is a count of nanoseconds since an origin that its driver chose:
//! the start of a simulation, or the moment a driver was started. It is eight bytes, so that deadlines of a hundred
//! thousand queue pairs stay small and compare in one instruction; `std::time::Instant` is twice that, and cannot be
//! made up by a simulator.
#![no_std]

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
pub use core::time::Duration;

/// A point in time: nanoseconds since the driver's origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The driver's origin.
    pub const ZERO: Instant = Instant(0);
    /// Later than everything that happens (584 years after the origin): "no deadline" where an `Option` would cost
    /// space.
    pub const FAR_FUTURE: Instant = Instant(u64::MAX);

    /// The instant this many nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the origin, for people and for statistics.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Time from `earlier` to `self`; zero when `earlier` is in fact later.
    pub const fn saturating_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The earlier of two instants of which each may be missing: the next deadline of two objects.
    pub fn earlier_of(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
        match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// This instant moved by a number of nanoseconds, stopping at [`Instant::FAR_FUTURE`].
    pub const fn saturating_add_nanos(self, nanos: u64) -> Instant {
        Instant(self.0.saturating_add(nanos))
    }
}

/// Saturates at [`Instant::FAR_FUTURE`], so that "never" plus anything stays "never".
impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, duration: Duration) -> Instant {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.saturating_add_nanos(nanos)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

/// Time between two instants; zero when the right one is later (see [`Instant::saturating_since`]).
impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Instant::FAR_FUTURE {
            return f.write_str("never");
        }
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let early = Instant::from_nanos(5);
        let late = Instant::from_nanos(12);
        assert_eq!(late - early, Duration::from_nanos(7));
        assert_eq!(early - late, Duration::ZERO);
        assert_eq!(Instant::FAR_FUTURE + Duration::from_secs(1), Instant::FAR_FUTURE);
        assert_eq!(early + Duration::MAX, Instant::FAR_FUTURE);
    }

    #[test]
    fn a_missing_instant_is_not_the_earlier_one() {
        let (early, late) = (Some(Instant::from_nanos(5)), Some(Instant::from_nanos(12)));
        assert_eq!(Instant::earlier_of(late, early), early);
        assert_eq!(Instant::earlier_of(None, late), late);
        assert_eq!(Instant::earlier_of(late, None), late);
        assert_eq!(Instant::earlier_of(None, None), None);
    }
}
