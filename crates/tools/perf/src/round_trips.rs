//! Latency of READs and atomics: one request after another, each timed until its answer is there. The peer's device
//! answers; its program has no part in it, so the time is that of the whole way there and back, as perftest has it.

use std::time::{Duration, Instant};

use longhaul_verbs::WorkCompletion;

use crate::error::PerfError;
use crate::ping_pong::RoundTrips;
use crate::stream::{Bound, Run, Sender};

/// No answer for this long: is the other end still there?
const SILENCE: Duration = Duration::from_millis(20);
/// Polls between two looks at the clock.
const LOOK_EVERY: u32 = 32;

impl Sender {
    /// Times each request by itself, until the bound is reached. `is_peer_gone` is asked now and then.
    pub(crate) fn time_each(&mut self, run: &Run, is_peer_gone: &dyn Fn() -> bool) -> Result<RoundTrips, PerfError> {
        let slots = self.begin(run);
        let mut trips = RoundTrips::default();
        let begin = Instant::now();
        let mut posted = begin;
        while match run.bound {
            Bound::Messages(wanted) => (trips.nanoseconds.len() as u64) < wanted,
            Bound::Time(duration) => posted.duration_since(begin) < duration,
        } {
            posted = Instant::now();
            self.post(run, &slots, 1)?;
            let completion = self.wait(posted, run.message_bytes, is_peer_gone)?;
            trips.nanoseconds.push(posted.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32);
            self.complete(&completion);
        }
        trips.elapsed = begin.elapsed();
        trips.mismatch = self.end().1;
        Ok(trips)
    }

    fn wait(
        &mut self,
        posted: Instant,
        message_bytes: u32,
        is_peer_gone: &dyn Fn() -> bool,
    ) -> Result<WorkCompletion, PerfError> {
        let group = self.group();
        let mut room = [WorkCompletion::default()];
        let mut polls = 0_u32;
        loop {
            if let Some(completion) = group.poll(&mut room, true)?.first() {
                return Ok(*completion);
            }
            polls += 1;
            let looks = group.options.sleeps || polls.is_multiple_of(LOOK_EVERY);
            let silent = if looks { posted.elapsed() } else { Duration::ZERO };
            if silent > SILENCE {
                if is_peer_gone() {
                    return Err(PerfError::peer_gone());
                }
                group.check_silence(silent, message_bytes.into())?;
            }
        }
    }
}
