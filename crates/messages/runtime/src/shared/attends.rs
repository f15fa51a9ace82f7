//! A thread of the program that drives a connection while it waits.

use std::sync::atomic::Ordering;

use longhaul_reliable::Connection as Reliable;
use longhaul_sdr::Saying;
use longhaul_time::{Duration, Instant};

use super::{Attending, Shared};

/// A thread that waits drives the connection for this long after something happened; then it parks.
const ATTENDED: Duration = Duration::from_micros(50);

impl Shared {
    /// Drive it from a thread that waits, until that is done or too late, or nothing has happened for a while.
    pub fn attend(&self, mut ask: impl FnMut() -> Attending) {
        // One at a time: two would only wait for each other's lock.
        if self.is_attended.swap(true, Ordering::SeqCst) {
            return;
        }
        let attends = Attends(self);
        let (mut active, mut seen) = (self.now(), None);
        let is_left_to_driver = loop {
            match ask() {
                // The driver looks soon by itself, if this thread does not come back before.
                Attending::Done | Attending::TooLate => break false,
                Attending::Waits => {}
            }
            // What a message that is over now has to be acknowledged with waits for what the program posts next. An error shows again when the
            // driver looks.
            let Ok(look) = self.poll(Saying::Urgent) else { break true };
            let progress = (look.progress, look.over_count);
            let mut state = self.state();
            let is_news = seen.replace(progress) != Some(progress);
            if look.arrived > 0 || is_news {
                active = look.now;
            } else if look.now.saturating_since(active) >= ATTENDED
                || state.with(|reliable| reliable.say(look.now, Saying::ExceptAnswers)).is_err()
            {
                break true;
            }
            state.attended = Some(look.now);
        };
        attends.end(is_left_to_driver);
    }
}

/// A thread that waits drives it. If that panics, the driver goes on.
struct Attends<'a>(&'a Shared);

impl Attends<'_> {
    fn end(self, is_left_to_driver: bool) {
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
