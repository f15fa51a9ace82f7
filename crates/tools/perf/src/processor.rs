//! What a measurement costs in processor time.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::time::{ClockId, clock_gettime};

use crate::error::PerfError;

/// Processor time of this process so far, all its threads, in the program and in the kernel on its behalf.
pub(crate) fn time_used() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
        return Duration::ZERO; // It fails for unknown arguments only.
    };
    duration(usage.user_time()) + duration(usage.system_time())
}

fn duration(value: TimeVal) -> Duration {
    let seconds = u64::try_from(value.tv_sec()).unwrap_or(0);
    let microseconds = u64::try_from(value.tv_usec()).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(microseconds)
}

/// Processor time of this thread so far.
pub fn thread_time_used() -> Result<Duration, PerfError> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map(Duration::from).map_err(|error| PerfError::missing("reading the processor time of a thread", error))
}
