//! What the threads of an end have done so far.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::now;
use crate::meter::Meter;

use super::end_error::EndError;

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) meter: Arc<Meter>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    times: Vec<u64>,
    completions: Vec<u64>,
    is_over: bool,
    failed: Option<EndError>,
}

impl Tally {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message was posted, or has arrived, now.
    pub(super) fn stamp(&self) {
        let at = now().as_nanos() as u64;
        self.state().times.push(at);
    }

    /// A message took this long, as the sender knows itself.
    #[cfg(feature = "quic")]
    pub(super) fn complete(&self, time: Duration) {
        self.state().completions.push(time.as_nanos() as u64);
    }

    /// Everything is done before its time.
    pub(super) fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }

    pub(super) fn fail(&self, error: EndError) {
        self.state().failed.get_or_insert(error);
        self.changed.notify_all();
    }

    /// Runs work on a thread of its own; what goes wrong there is kept.
    pub(super) fn spawn(self: &Arc<Self>, work: impl FnOnce(&Tally) -> Result<(), EndError> + Send + 'static) {
        let tally = self.clone();
        std::thread::spawn(move || {
            if let Err(error) = work(&tally) {
                tally.fail(error);
            }
        });
    }

    /// Sleeps until a time of the monotonic clock, or until everything is done. Times of messages and completion times,
    /// or what went wrong.
    pub(super) fn wait_until(&self, until: Duration) -> Result<[Vec<u64>; 2], EndError> {
        let mut state = self.state();
        loop {
            if let Some(error) = state.failed.take() {
                return Err(error);
            }
            let left = until.saturating_sub(now());
            if state.is_over || left.is_zero() {
                return Ok([std::mem::take(&mut state.times), std::mem::take(&mut state.completions)]);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Sleeps until a time of the monotonic clock.
pub(super) fn sleep_until(at: Duration) {
    std::thread::sleep(at.saturating_sub(now()));
}
