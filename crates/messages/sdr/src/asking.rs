//! When the peer is asked for its state, and which of its answers can be believed.

use std::collections::VecDeque;

use longhaul_time::{Duration, Instant};

/// The longest wait before something is repeated that got no answer, unless a round trip itself takes longer: an end that was
/// unreachable is back within about this time.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(1);
/// Doublings after which the wait no longer grows, whatever the round-trip time.
const DOUBLINGS_MAX: u32 = 16;
/// Stamps that are remembered. When frames get more before the first answer, only every second, fourth, … is: enough to measure with.
const STAMPS_MAX: usize = 1024;

/// The wait before the next repetition, after this many of them.
pub fn backed_off(patience: Duration, repetitions: u32) -> Duration {
    patience.saturating_mul(1 << repetitions.min(DOUBLINGS_MAX)).min(WAIT_MAX.max(patience))
}

/// Repetitions that may be answered with nothing new before they become rarer: what is waited for (that packets are presumed lost, say)
/// may take a few round trips. A peer that answers so for ever does not get a question per round trip for ever.
const IN_VAIN_MAX: u32 = 8;

/// When something is to be said again, to a peer that may not have heard it: after longer and longer times while there is no answer, or
/// none that brings anything new.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackOff {
    /// When it was said last, and whether the peer was heard of since.
    last: Option<Instant>,
    is_answered: bool,
    /// Repetitions since the peer was heard of.
    unanswered: u32,
    /// How often it was heard of after repetitions, since it said something that mattered. Those that a path has swallowed do not count.
    in_vain: u32,
}

impl BackOff {
    /// It was said for the first time, or once more without waiting for an answer.
    pub fn on_said(&mut self, now: Instant) {
        (self.last, self.is_answered) = (Some(now), false);
    }

    /// It was repeated for want of an answer.
    pub fn on_repeated(&mut self, now: Instant) {
        self.on_said(now);
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// The peer was heard of at this time. If it was said before, the path works, or works again: what it swallowed is to be said soon.
    pub fn on_heard(&mut self, at: Instant) {
        if self.last.is_some_and(|last| last < at) {
            self.in_vain = self.in_vain.saturating_add(u32::from(self.unanswered > 0));
            (self.unanswered, self.is_answered) = (0, true);
        }
    }

    /// The peer has said something new.
    pub fn on_news(&mut self) {
        (self.unanswered, self.in_vain) = (0, 0);
    }

    /// Whether the peer was heard of since it was said.
    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// When it was said last.
    pub fn last(&self) -> Option<Instant> {
        self.last
    }

    /// Whether it has been repeated so often that it is likely to be of no use.
    pub fn is_in_vain(&self) -> bool {
        self.in_vain > IN_VAIN_MAX
    }

    /// How long to wait for an answer that takes no longer than `patience`, if it comes.
    pub fn wait(&self, patience: Duration) -> Duration {
        backed_off(patience, self.unanswered.max(self.in_vain.saturating_sub(IN_VAIN_MAX)))
    }

    /// When it is due, for as long as there is a reason to say it: at once for the first time.
    pub fn due_at(&self, patience: Duration) -> Instant {
        self.last.map_or(Instant::ZERO, |last| last + self.wait(patience))
    }

    /// It was said because it was due.
    pub fn on_due_said(&mut self, now: Instant) {
        match self.last {
            Some(_) => self.on_repeated(now),
            None => self.on_said(now),
        }
    }
}

/// The stamps of our frames, so that only an echo of one that was sent counts, and only once.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    /// Sent and newer than the newest echo; oldest first.
    sent: VecDeque<u64>,
    last: u64,
    /// One frame in 2 to the power of this is remembered.
    thinning: u32,
    frames: u64,
}

impl Stamps {
    /// The stamp of a frame that is sent now. No two frames have the same, so that an echo names one frame; 0 means none.
    pub(crate) fn next(&self, now: Instant) -> u64 {
        now.as_nanos().max(self.last.saturating_add(1))
    }

    /// A frame with this stamp was sent.
    pub(crate) fn on_sent(&mut self, stamp: u64) {
        self.last = stamp;
        self.frames += 1;
        if !self.frames.is_multiple_of(1 << self.thinning) {
            return;
        }
        if self.sent.len() == STAMPS_MAX {
            let mut is_kept = false;
            self.sent.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.thinning = (self.thinning + 1).min(63);
        }
        self.sent.push_back(stamp);
    }

    /// Whether an echo names a frame that was sent, newer than any that was echoed before.
    pub(crate) fn take(&mut self, echo: u64) -> bool {
        let Ok(index) = self.sent.binary_search(&echo) else { return false };
        self.sent.drain(..=index);
        match self.sent.len() {
            0 => self.thinning = 0,
            few if few < STAMPS_MAX / 4 => self.thinning = self.thinning.saturating_sub(1),
            _ => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn what_a_path_swallowed_was_not_in_vain() {
        let patience = Duration::from_millis(1);
        let mut back_off = BackOff::default();
        (0..20).for_each(|millis| back_off.on_repeated(at(millis)));
        assert!(back_off.wait(patience) >= Duration::from_millis(500));
        back_off.on_heard(at(19));
        assert!(back_off.wait(patience) >= Duration::from_millis(500), "what it said before is no answer");
        back_off.on_heard(at(20));
        assert_eq!((back_off.wait(patience), back_off.is_in_vain()), (patience, false));
        // Answers that bring nothing new make it rare again.
        for millis in 30..30 + u64::from(IN_VAIN_MAX) + 2 {
            back_off.on_repeated(at(millis));
            back_off.on_heard(at(millis + 1));
        }
        assert!(back_off.is_in_vain() && back_off.wait(patience) > patience);
    }

    #[test]
    fn questions_become_rare_and_never_rarer_than_the_longest_wait() {
        let patience = Duration::from_millis(50);
        let mut asking = BackOff::default();
        assert_eq!(asking.due_at(patience), Instant::ZERO);
        let mut now = at(7);
        let mut waits = Vec::new();
        for _ in 0..40 {
            asking.on_due_said(now);
            waits.push((asking.due_at(patience) - now).as_millis());
            now = asking.due_at(patience);
        }
        assert_eq!(waits[..7], [50, 100, 200, 400, 800, 1000, 1000]);
        assert!(waits[7..].iter().all(|wait| *wait == 1000));
        asking.on_news();
        assert_eq!(asking.due_at(patience) + Duration::from_millis(950), now);
        // A round trip that takes longer is waited for.
        assert_eq!(backed_off(Duration::from_secs(3), 5), Duration::from_secs(3));
    }

    #[test]
    fn answers_without_news_keep_the_questions_frequent_for_a_while_only() {
        let patience = Duration::from_millis(50);
        let mut asking = BackOff::default();
        let mut now = at(7);
        let mut waits = Vec::new();
        for _ in 0..30 {
            asking.on_due_said(now);
            asking.on_heard(now + Duration::from_millis(1));
            waits.push((asking.due_at(patience) - now).as_millis());
            now = asking.due_at(patience);
        }
        assert!(waits[..9].iter().all(|wait| *wait == 50), "{waits:?}");
        assert_eq!(waits[9..15], [100, 200, 400, 800, 1000, 1000]);
        asking.on_news();
        asking.on_due_said(now);
        asking.on_heard(now + Duration::from_millis(1));
        assert_eq!((asking.due_at(patience) - now).as_millis(), 50);
    }

    #[test]
    fn an_echo_counts_once_and_only_if_its_frame_was_sent() {
        let mut stamps = Stamps::default();
        let first = stamps.next(Instant::ZERO);
        assert_eq!(first, 1, "0 means none");
        stamps.on_sent(first);
        let second = stamps.next(Instant::ZERO);
        assert_ne!(second, first);
        stamps.on_sent(second);
        stamps.on_sent(stamps.next(at(5)));
        assert!(!stamps.take(0) && !stamps.take(3) && !stamps.take(u64::MAX), "never sent");
        assert!(stamps.take(second));
        assert!(!stamps.take(second), "a second time");
        assert!(!stamps.take(first), "older than one that was echoed");
        assert!(stamps.take(5_000_000));
    }

    #[test]
    fn without_echoes_stamps_stay_few_and_spread_over_the_whole_time() {
        let mut stamps = Stamps::default();
        for step in 0..100_000 {
            stamps.on_sent(stamps.next(Instant::from_nanos(step * 1000)));
        }
        assert!(stamps.sent.len() <= STAMPS_MAX);
        // Whatever the round-trip time, there are stamps of about that age.
        for age in [1000, 4000, 16_000, 40_000] {
            let ages = (100_000_u64 - 2 * age) * 1000..(100_000 - age) * 1000;
            let count = stamps.sent.iter().filter(|stamp| ages.contains(*stamp)).count();
            assert!(count >= age as usize / 400, "{count} of {age} frames ago");
        }
        // With answers every frame is remembered again.
        assert!(stamps.take(*stamps.sent.back().expect("many")));
        let next = stamps.next(Instant::ZERO);
        stamps.on_sent(next);
        assert!(stamps.take(next));
    }
}
