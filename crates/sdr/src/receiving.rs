//! The receiving half of a queue pair: which messages are open, and what the sender still has to be told of them.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_time::{Duration, Instant};

use crate::control::ClearToSend;

/// A clear-to-send that gets no answer is repeated after longer and longer times, up to this many doublings.
const DOUBLINGS_MAX: u32 = 6;

#[derive(Default)]
pub(crate) struct Receiving {
    next_number: u64,
    open: BTreeSet<u64>,
    /// What the sender may not know yet, and when it was told.
    untold: BTreeMap<u64, Untold>,
    /// Every message below is over.
    open_from: u64,
    /// The sender has every clear-to-send below.
    peer_cleared_through: u64,
    /// The sender sends nothing more of messages below.
    peer_sends_from: u64,
    /// Repetitions since the sender was heard of.
    repetitions: u32,
}

struct Untold {
    clear: ClearToSend,
    told: Option<Instant>,
}

impl Receiving {
    pub(crate) fn next_number(&self) -> u64 {
        self.next_number
    }

    pub(crate) fn open_from(&self) -> u64 {
        self.open_from
    }

    /// The message that has to be over before the next one can begin, if it is not: the one that has its slot; or the one that had the same
    /// slot in the same generation, as long as the sender might still send it.
    pub(crate) fn obstacle(&self, slot_count: u32, generations: u32) -> Option<u64> {
        let before = |distance: u64| self.next_number.checked_sub(distance);
        let (slots, generations) = (u64::from(slot_count), u64::from(generations));
        before(slots)
            .filter(|before| self.open.contains(before))
            .or_else(|| before(slots * generations).filter(|before| *before >= self.peer_sends_from))
    }

    /// The sender tells what it has done with.
    pub(crate) fn on_sends_from(&mut self, sends_from: u64) {
        self.peer_sends_from = self.peer_sends_from.max(sends_from);
    }

    /// A receive was posted.
    pub(crate) fn opened(&mut self, clear: ClearToSend) {
        debug_assert_eq!(clear.number, self.next_number);
        self.next_number += 1;
        self.open.insert(clear.number);
        self.untold.insert(clear.number, Untold { clear, told: None });
    }

    /// A receive was completed.
    pub(crate) fn completed(&mut self, number: u64) {
        self.open.remove(&number);
        self.open_from = self.open.first().copied().unwrap_or(self.next_number);
        self.untold.retain(|number, _| *number >= self.open_from);
        if let Some(untold) = self.untold.get_mut(&number) {
            untold.clear = ClearToSend { key: 0, address: 0, length: 0, is_over: true, ..untold.clear };
        }
    }

    /// The sender tells what it knows.
    pub(crate) fn on_cleared_through(&mut self, cleared_through: u64) {
        if cleared_through > self.peer_cleared_through {
            self.peer_cleared_through = cleared_through;
            self.untold.retain(|number, _| *number >= cleared_through);
            self.repetitions = 0;
        }
    }

    /// What the sender is to be told now: what it was never told, or so long ago that it has been lost.
    pub(crate) fn due(&self, now: Instant, patience: Duration) -> impl Iterator<Item = &ClearToSend> {
        let patience = self.patience(patience);
        let is_due = move |untold: &&Untold| untold.told.is_none_or(|told| told + patience <= now);
        self.untold.values().filter(is_due).map(|untold| &untold.clear)
    }

    /// It was told these.
    pub(crate) fn told(&mut self, numbers: &[u64], now: Instant) {
        let mut is_repetition = false;
        for number in numbers {
            if let Some(untold) = self.untold.get_mut(number) {
                is_repetition |= untold.told.replace(now).is_some();
            }
        }
        self.repetitions += u32::from(is_repetition);
    }

    fn patience(&self, patience: Duration) -> Duration {
        patience * (1 << self.repetitions.min(DOUBLINGS_MAX))
    }

    /// When something has to be told again.
    pub(crate) fn next_deadline(&self, patience: Duration) -> Option<Instant> {
        let patience = self.patience(patience);
        self.untold.values().map(|untold| untold.told.map_or(Instant::ZERO, |told| told + patience)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(10);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn clear(number: u64) -> ClearToSend {
        ClearToSend { number, address: 1, length: 2, key: 3, generation: 0, is_over: false }
    }

    fn due(receiving: &Receiving, now: Instant) -> Vec<u64> {
        receiving.due(now, PATIENCE).map(|clear| clear.number).collect()
    }

    #[test]
    fn what_is_not_answered_is_told_again_and_less_and_less_often() {
        let mut receiving = Receiving::default();
        (0..3).for_each(|number| receiving.opened(clear(number)));
        assert_eq!(due(&receiving, at(0)), [0, 1, 2]);
        receiving.told(&[0, 1, 2], at(0));
        assert_eq!(due(&receiving, at(9)), []);
        assert_eq!(receiving.next_deadline(PATIENCE), Some(at(10)));
        receiving.on_cleared_through(1);
        assert_eq!(due(&receiving, at(10)), [1, 2]);
        receiving.told(&[1, 2], at(10));
        assert_eq!(receiving.next_deadline(PATIENCE), Some(at(30)));
        // An old answer changes nothing.
        receiving.on_cleared_through(1);
        assert_eq!(receiving.next_deadline(PATIENCE), Some(at(30)));
        receiving.on_cleared_through(3);
        assert_eq!((due(&receiving, at(100)), receiving.next_deadline(PATIENCE)), (vec![], None));
    }

    #[test]
    fn a_message_that_is_over_is_told_as_that() {
        let mut receiving = Receiving::default();
        (0..3).for_each(|number| receiving.opened(clear(number)));
        receiving.completed(1);
        assert_eq!(receiving.open_from(), 0);
        let told: Vec<bool> = receiving.due(at(0), PATIENCE).map(|clear| clear.is_over).collect();
        assert_eq!(told, [false, true, false]);
        receiving.completed(0);
        assert_eq!(receiving.open_from(), 2);
        assert_eq!(due(&receiving, at(0)), [2]);
        receiving.completed(2);
        assert_eq!((receiving.open_from(), due(&receiving, at(0))), (3, vec![]));
    }

    #[test]
    fn a_slot_is_free_when_its_last_message_is_over() {
        let mut receiving = Receiving::default();
        (0..4).for_each(|number| receiving.opened(clear(number)));
        assert_eq!(receiving.obstacle(4, 2), Some(0));
        receiving.completed(2);
        assert_eq!(receiving.obstacle(4, 2), Some(0));
        receiving.completed(0);
        assert_eq!(receiving.obstacle(4, 2), None);
        // With one generation the sender must be through with the last message of the slot too.
        assert_eq!(receiving.obstacle(4, 1), Some(0));
        receiving.on_sends_from(1);
        assert_eq!(receiving.obstacle(4, 1), None);
    }
}
