//! What the threads of an end have done so far.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
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

    /// Runs work on a thread of its own; what goes wrong there is kept, and so is a panic: without that thread the row
    /// would only look slow.
    pub(super) fn spawn(self: &Arc<Self>, work: impl FnOnce(&Tally) -> Result<(), EndError> + Send + 'static) {
        let tally = self.clone();
        std::thread::spawn(move || {
            // What the work has left behind is not used again: the row has failed.
            let done = catch_unwind(AssertUnwindSafe(|| work(&tally)));
            if let Err(error) = done.unwrap_or_else(|panic| Err(EndError::Panicked(said(&*panic)))) {
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

/// What a panic says.
fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given").to_owned()
}

/// Sleeps until a time of the monotonic clock.
pub(super) fn sleep_until(at: Duration) {
    std::thread::sleep(at.saturating_sub(now()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_fails_its_row() {
        let tally = Arc::new(Tally::default());
        let count = 3;
        tally.spawn(move |_| panic!("{count} wheels are gone"));
        let error = tally.wait_until(now() + Duration::from_secs(20)).expect_err("a failure");
        assert_eq!(error.to_string(), "a thread of this end panicked: 3 wheels are gone");
        let tally = Arc::new(Tally::default());
        tally.spawn(|tally| {
            tally.stamp();
            tally.end();
            Ok(())
        });
        let [times, completions] = tally.wait_until(now() + Duration::from_secs(20)).expect("no failure");
        assert_eq!((times.len(), completions.len()), (1, 0));
    }
}
