//! The clock that all processes of a machine share.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The time of the monotonic clock.
pub(crate) fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}
