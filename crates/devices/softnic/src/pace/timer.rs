//! Deadlines of many queue pairs.
//!
//! A queue pair's deadline moves with almost every acknowledgement, nearly always to later. So an entry is left where it is
//! when its owner's deadline moves on; when it comes up too early, the owner is asked again. An entry is moved only when the
//! deadline becomes earlier. Each owner has at most one entry, so the set is never larger than the number of owners
//! (a heap with an entry for every deadline that ever was would grow without bound behind short deadlines like pacing).

use std::collections::BTreeSet;

use longhaul_time::Instant;

/// The entry that an owner has in the set; [`Instant::FAR_FUTURE`] without one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scheduled(Instant);

impl Scheduled {
    pub(crate) const NEVER: Self = Scheduled(Instant::FAR_FUTURE);
}

impl Default for Scheduled {
    fn default() -> Self {
        Scheduled::NEVER
    }
}

/// Deadlines of owners `K`.
pub(crate) struct Timers<K: Ord> {
    entries: BTreeSet<(Instant, K)>,
}

impl<K: Ord + Copy> Timers<K> {
    pub(crate) fn new() -> Self {
        Timers { entries: BTreeSet::new() }
    }

    /// See to it that `owner` comes up at `deadline` or before.
    pub(crate) fn schedule(&mut self, owner: K, deadline: Instant, scheduled: &mut Scheduled) {
        if deadline < scheduled.0 {
            self.cancel(owner, scheduled);
            self.entries.insert((deadline, owner));
            scheduled.0 = deadline;
        }
    }

    /// Forget an owner's entry.
    pub(crate) fn cancel(&mut self, owner: K, scheduled: &mut Scheduled) {
        if scheduled.0 != Instant::FAR_FUTURE {
            self.entries.remove(&(scheduled.0, owner));
            scheduled.0 = Instant::FAR_FUTURE;
        }
    }

    /// The next owner that has an entry at or before `now`. The caller cancels it and schedules anew.
    pub(crate) fn next_due(&self, now: Instant) -> Option<K> {
        self.entries.first().filter(|(at, _)| *at <= now).map(|(_, owner)| *owner)
    }

    /// Nothing comes up before this.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.entries.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn an_owner_has_one_entry_that_moves_only_to_earlier() {
        let mut timers = Timers::new();
        let mut scheduled = Scheduled::default();
        for nanos in 10..1000 {
            timers.schedule(7u32, at(nanos), &mut scheduled);
        }
        assert_eq!(timers.next(), Some(at(10)));
        timers.schedule(7, at(5), &mut scheduled);
        assert_eq!(timers.entries.len(), 1);
        assert_eq!(timers.next_due(at(4)), None);
        assert_eq!(timers.next_due(at(5)), Some(7));
        timers.cancel(7, &mut scheduled);
        timers.schedule(7, at(20), &mut scheduled);
        assert_eq!(timers.next(), Some(at(20)));
    }

    #[test]
    fn short_deadlines_before_a_long_one_leave_nothing_behind() {
        let mut timers = Timers::new();
        let mut scheduled = Scheduled::default();
        for tick in 0..1000 {
            timers.schedule(1u32, at(1_000_000), &mut scheduled);
            timers.schedule(1, at(tick), &mut scheduled);
            assert_eq!(timers.next_due(at(tick)), Some(1));
            timers.cancel(1, &mut scheduled);
        }
        assert!(timers.entries.is_empty());
    }
}
