//! Deadlines of many queue pairs.
//!
//! A queue pair's deadline moves with almost every acknowledgement, nearly always to later. So the heap is lazy: an
//! entry stays where it is, and when it comes up too early the owner is asked again. Each owner remembers the earliest
//! entry that it has in the heap ([`Scheduled`]) and adds one only when its deadline is before that.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use longhaul_time::Instant;

/// The earliest entry that an owner has in the heap; [`Instant::FAR_FUTURE`] without one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scheduled(Instant);

impl Default for Scheduled {
    fn default() -> Self {
        Scheduled(Instant::FAR_FUTURE)
    }
}

/// A lazy heap of deadlines of owners `K`.
pub(crate) struct Timers<K: Ord> {
    heap: BinaryHeap<Reverse<(Instant, K)>>,
}

impl<K: Ord + Copy> Timers<K> {
    pub(crate) fn new() -> Self {
        Timers { heap: BinaryHeap::new() }
    }

    /// See to it that `owner` comes up at `deadline` or before.
    pub(crate) fn schedule(&mut self, owner: K, deadline: Instant, scheduled: &mut Scheduled) {
        if deadline < scheduled.0 {
            self.heap.push(Reverse((deadline, owner)));
            scheduled.0 = deadline;
        }
    }

    /// The next owner whose time has come. The caller clears what it had scheduled with [`Timers::came_up`], and
    /// schedules again.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, K)> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// Note that the entry at `at` has left the heap.
    pub(crate) fn came_up(at: Instant, scheduled: &mut Scheduled) {
        if scheduled.0 >= at {
            scheduled.0 = Instant::FAR_FUTURE;
        }
    }

    /// Nothing comes up before this.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_moves_later_costs_nothing() {
        let mut timers = Timers::new();
        let mut scheduled = Scheduled::default();
        for nanos in 10..1000 {
            timers.schedule(7u32, Instant::from_nanos(nanos), &mut scheduled);
        }
        assert_eq!(timers.heap.len(), 1);
        timers.schedule(7, Instant::from_nanos(5), &mut scheduled);
        assert_eq!(timers.heap.len(), 2);
        assert_eq!(timers.next(), Some(Instant::from_nanos(5)));
        assert_eq!(timers.pop_due(Instant::from_nanos(4)), None);
        let (at, owner) = timers.pop_due(Instant::from_nanos(5)).unwrap();
        assert_eq!(owner, 7);
        Timers::<u32>::came_up(at, &mut scheduled);
        timers.schedule(7, Instant::from_nanos(20), &mut scheduled);
        assert_eq!(scheduled.0, Instant::from_nanos(20));
    }
}
