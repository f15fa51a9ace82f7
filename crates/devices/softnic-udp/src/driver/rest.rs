//! What the callers' threads and the background thread agree on: who looks after the device, and who must be woken.
//!
//! It is plain data behind the driver's lock. The background thread, under the lock, does all pending work and writes
//! down how it will rest ([`Rest::look`]); then it releases the lock and rests exactly that way. A thread that adds
//! work, under the lock as well, rings the bell if the background thread would wake too late for it. So no work is
//! overlooked: either the background thread has not looked yet and will see the work, or it has written down how it
//! rests, and the thread that adds the work sees that.
//!
//! `model.rs` has the interleavings of this tried out by loom.

#[cfg(all(test, loom))]
mod model;

use std::time::Duration;

use longhaul_time::Instant;

/// How long the thread leaves the sockets to callers before it looks whether they still poll.
pub(super) const ATTENDED_LOOK: Duration = Duration::from_millis(1);
/// A caller that has polled this often since the last look, and recently, can be relied on.
pub(super) const ATTENDED_POLLS: u32 = 4;

/// While a caller is busy with completions, and posts, and polls again, acknowledgements are kept back this long at most, and
/// one serves several messages: each would cost a system call at a moment when the peer waits for something else. (A caller
/// that then stays away for longer is relieved by the thread, at its next look.) Only callers that can be relied on; who waits for a WRITE to be acknowledged does not wait for this, because a WRITE
/// completes nothing at its target.
const ANSWER_DELAY: Duration = Duration::from_micros(25);
/// After this many messages one is sent in any case.
const ANSWERS_KEPT_MAX: u32 = 8;

/// Ends the background thread's rest, now or, if it does not rest yet, as soon as it does.
pub(super) trait Bell {
    /// Ring it.
    fn ring(&self);
}

/// How the background thread rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nap {
    /// Not at all: it looks at everything again at once, or has been woken and is about to.
    Awake,
    /// Until something arrives, but not longer than this, or the bell rings.
    Watching { until: Option<Instant> },
    /// For [`ATTENDED_LOOK`], or until the bell rings. Arrivals and deadlines are left to callers.
    Attended,
}

/// What is left to do when somebody has done a bounded part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// There is more that could be done at once.
    pub(super) has_more: bool,
    /// When there will be something to do, if nothing happens before.
    pub(super) deadline: Option<Instant>,
}

/// See the module's description.
pub(super) struct Rest {
    nap: Nap,
    /// How often callers have looked for completions and found none, since the thread's last look.
    polls: u32,
    last_poll: Instant,
    /// Since when answers to peers are kept back, because a caller has completions to look at first.
    answers_kept_since: Option<Instant>,
    /// How many times completions have been handed over since.
    answers_kept_times: u32,
    is_closing: bool,
}

impl Rest {
    pub(super) fn new() -> Self {
        Rest {
            nap: Nap::Awake,
            polls: 0,
            last_poll: Instant::ZERO,
            answers_kept_since: None,
            answers_kept_times: 0,
            is_closing: false,
        }
    }

    /// The background thread looks after the device, unless callers do; `work` does all pending work. How it rests
    /// afterwards, which it must do without looking at anything first; `None` when it is to end.
    pub(super) fn look(&mut self, now: Instant, work: impl FnOnce() -> Left) -> Option<Nap> {
        if self.is_closing {
            return None;
        }
        // A few polls long ago say nothing about the next moment.
        let polls = std::mem::take(&mut self.polls);
        let is_attended = polls >= ATTENDED_POLLS && now.saturating_since(self.last_poll) < ATTENDED_LOOK;
        let has_overdue_answers = self.answers_kept_since.is_some_and(|since| now >= since + ANSWER_DELAY);
        self.nap = if is_attended && !has_overdue_answers {
            Nap::Attended
        } else {
            let left = work();
            self.answers_kept_since = None;
            if left.has_more { Nap::Awake } else { Nap::Watching { until: left.deadline } }
        };
        Some(self.nap)
    }

    /// A caller looks for completions, and finds none.
    pub(super) fn note_poll(&mut self, now: Instant) {
        self.polls = self.polls.saturating_add(1);
        self.last_poll = now;
    }

    /// A caller has left work behind. Wakes the thread if it would come too late. (Callers that poll come back themselves.)
    pub(super) fn rouse(&mut self, bell: &impl Bell, left: Left) {
        let Nap::Watching { until } = self.nap else { return };
        let is_earlier = match (left.deadline, until) {
            (Some(deadline), Some(until)) => deadline < until,
            (deadline, _) => deadline.is_some(),
        };
        if left.has_more || is_earlier {
            self.wake(bell);
        }
    }

    /// A caller is about to sleep until there is a completion: however often it has polled, it can be relied on no more.
    pub(super) fn note_armed(&mut self, bell: &impl Bell) {
        self.polls = 0;
        if self.nap == Nap::Attended {
            self.wake(bell);
        }
    }

    /// Have the thread look again, whatever it does.
    pub(super) fn wake(&mut self, bell: &impl Bell) {
        // Said at once, so that others need not ring as well.
        self.nap = Nap::Awake;
        bell.ring();
    }

    /// The device goes: the thread's next look is its last.
    pub(super) fn close(&mut self, bell: &impl Bell) {
        self.is_closing = true;
        self.wake(bell);
    }

    /// A caller has been given completions. A program that has been given something answers it first, as often as not.
    pub(super) fn keep_answers(&mut self, now: Instant) {
        if self.nap == Nap::Attended {
            self.answers_kept_since.get_or_insert(now);
            self.answers_kept_times += 1;
        }
    }

    /// Whether answers are kept back still. Forgets about them when it is time.
    pub(super) fn keeps_answers(&mut self, now: Instant) -> bool {
        let is_early = self.answers_kept_since.is_some_and(|since| now < since + ANSWER_DELAY);
        let keeps = is_early && self.answers_kept_times < ANSWERS_KEPT_MAX && self.nap == Nap::Attended;
        if !keeps {
            self.answers_kept_since = None;
            self.answers_kept_times = 0;
        }
        keeps
    }
}
