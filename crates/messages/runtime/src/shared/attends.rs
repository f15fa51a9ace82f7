//! A thread of the program that drives a connection while it waits.

use std::sync::atomic::Ordering;

use longhaul_reliable::Connection as Reliable;
use longhaul_time::Instant;

use super::Shared;

/// A thread that waits drives it. If that panics, the driver goes on.
pub(super) struct Attends<'a>(pub(super) &'a Shared);

impl Attends<'_> {
    pub(super) fn end(self, is_left_to_driver: bool) {
        self.leave(is_left_to_driver);
        std::mem::forget(self);
    }

    fn leave(&self, is_left_to_driver: bool) {
        let shared = self.0;
        shared.is_attended.store(false, Ordering::SeqCst);
        let mut state = shared.state();
        let now = shared.now();
        // What a worker has ended in the last moment, it has told nobody.
        let has_ended_work = state.reliable.as_ref().is_some_and(Reliable::has_ended_work);
        // A driver that rests knows nothing of what is to be said, or waited for, since this thread has looked.
        let next = state.reliable.as_ref().and_then(|reliable| reliable.next_deadline(now));
        let next = Instant::earlier_of(next, shared.next_grant());
        let rests_too_long = state.resting_until.is_some_and(|until| next.is_some_and(|next| next < until));
        if is_left_to_driver || has_ended_work {
            state.attended = None;
        }
        if is_left_to_driver || has_ended_work || rests_too_long {
            state.resting_until = None;
            drop(state);
            shared.wake_driver();
        }
    }
}

impl Drop for Attends<'_> {
    fn drop(&mut self) {
        self.leave(true);
    }
}
