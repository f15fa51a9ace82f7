//! The receiving half of a queue pair: which messages are open, and which clear-to-sends the sender does not have yet.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_time::{Duration, Instant};
use longhaul_wire::control::ClearToSend;

use crate::asking::BackOff;

/// What is told again at one question: few enough that an answer is hardly longer than a question.
const TOLD_AGAIN_MAX: usize = 8;

#[derive(Default)]
pub(crate) struct Receiving {
    next_number: u64,
    open: BTreeSet<u64>,
    /// What the sender may not know yet.
    untold: BTreeMap<u64, Untold>,
    /// What it has said that it knows, of messages from `open_from` on: who said so may have been somebody else.
    known: BTreeMap<u64, ClearToSend>,
    /// Every message below has been completed.
    open_from: u64,
    /// The sender has every clear-to-send below.
    peer_cleared_through: u64,
    /// The sender sends nothing more of messages below.
    peer_sends_from: u64,
    /// Of rounds of repetition.
    back_off: BackOff,
    #[cfg(feature = "mutations")]
    pub(crate) never_repeats: bool,
}

struct Untold {
    clear: ClearToSend,
    state: Telling,
}

#[derive(Clone, Copy)]
enum Telling {
    /// Never told.
    Due,
    /// In the frame with this stamp, which was lost.
    Lost(u64),
    /// In the frame with this stamp.
    Told(u64),
}

impl Receiving {
    pub(crate) fn new(first_number: u64) -> Self {
        Receiving {
            next_number: first_number,
            open_from: first_number,
            peer_cleared_through: first_number,
            peer_sends_from: first_number,
            ..Default::default()
        }
    }

    pub(crate) fn open_count(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.next_number
    }

    pub(crate) fn open_from(&self) -> u64 {
        self.open_from
    }

    /// The message that has to be over before the next one can begin, if it is not: the one that has its slot; or the one that had the same
    /// slot in the same generation, as long as the sender might still send it.
    pub(crate) fn obstacle(&self, slot_count: u32, generations: u32) -> Option<u64> {
        // The last number is never used, so that the one after a message always exists.
        if self.next_number == u64::MAX {
            return Some(self.next_number);
        }
        let before = |distance: u64| self.next_number.checked_sub(distance);
        let (slots, generations) = (u64::from(slot_count), u64::from(generations));
        before(slots)
            .filter(|before| self.open.contains(before))
            .or_else(|| before(slots * generations).filter(|before| *before >= self.peer_sends_from))
    }

    pub(crate) fn is_open(&self, number: u64) -> bool {
        self.open.contains(&number)
    }

    /// The sender neither sends nor asks about messages below.
    pub(crate) fn peer_sends_from(&self) -> u64 {
        self.peer_sends_from
    }

    /// The sender sends nothing more of messages below. Returns whether that is news.
    pub(crate) fn on_sends_from(&mut self, sends_from: u64) -> bool {
        let is_news = sends_from > self.peer_sends_from;
        self.peer_sends_from = self.peer_sends_from.max(sends_from);
        is_news
    }

    /// A receive was posted.
    pub(crate) fn opened(&mut self, clear: ClearToSend) {
        debug_assert_eq!(clear.number, self.next_number);
        self.next_number += 1;
        self.open.insert(clear.number);
        self.untold.insert(clear.number, Untold { clear, state: Telling::Due });
    }

    /// A receive was completed.
    pub(crate) fn completed(&mut self, number: u64) {
        self.open.remove(&number);
        self.open_from = self.open.first().copied().unwrap_or(self.next_number);
        self.untold.retain(|number, _| *number >= self.open_from);
        while let Some(first) = self.known.first_entry()
            && *first.key() < self.open_from
        {
            first.remove();
        }
        let untold = self.untold.get_mut(&number).map(|untold| &mut untold.clear);
        if let Some(clear) = untold.or(self.known.get_mut(&number)) {
            *clear = ClearToSend { key: 0, address: 0, length: 0, is_over: true, ..*clear };
        }
    }

    /// The sender was heard of, so the path works: repetitions begin again with the shortest wait.
    pub(crate) fn on_heard(&mut self, now: Instant) {
        self.back_off.on_heard(now);
    }

    /// The sender has what these describe.
    fn forget(&mut self, is_known: impl Fn(u64) -> bool) {
        let known = &mut self.known;
        let before = self.untold.len();
        self.untold.retain(|number, untold| {
            let is_known = is_known(*number);
            if is_known {
                known.insert(*number, untold.clear);
            }
            !is_known
        });
        if self.untold.len() < before {
            self.back_off.on_news();
        }
    }

    /// The sender asks, and says what it has: everything below `cleared_through` and what `bits` says from there on. What it was said
    /// to know and does not is told again.
    pub(crate) fn on_question(&mut self, cleared_through: u64, bits: &[u8]) {
        let end = cleared_through.saturating_add((8 * bits.len() as u64).max(1));
        let lacks = |number: &u64| !is_set(bits, *number - cleared_through);
        let lacking = self.known.range(cleared_through..end).map(|(number, _)| *number).filter(lacks);
        for number in lacking.take(TOLD_AGAIN_MAX).collect::<Vec<_>>() {
            if let Some(clear) = self.known.remove(&number) {
                self.untold.insert(number, Untold { clear, state: Telling::Due });
            }
        }
    }

    /// The sender has every clear-to-send below. More than were ever sent it cannot have.
    pub(crate) fn on_cleared_through(&mut self, cleared_through: u64) {
        if cleared_through > self.peer_cleared_through && cleared_through <= self.next_number {
            self.peer_cleared_through = cleared_through;
            self.forget(|number| number < cleared_through);
        }
    }

    /// The sender has these as well: bit `i` is message `cleared_through + i`.
    pub(crate) fn on_cleared_beyond(&mut self, cleared_through: u64, bits: &[u8]) {
        self.forget(|number| number.checked_sub(cleared_through).is_some_and(|offset| is_set(bits, offset)));
    }

    /// The sender has the frame with this stamp. What was in an earlier one and is still not known there has been lost, so it is due.
    /// Called after the sender's state was taken in, and only for the newest frame of it.
    pub(crate) fn on_echo(&mut self, echo: u64) {
        #[cfg(feature = "mutations")]
        if self.never_repeats {
            return;
        }
        for untold in self.untold.values_mut() {
            if let Telling::Told(stamp) = untold.state
                && stamp < echo
            {
                untold.state = Telling::Lost(stamp);
            }
        }
    }

    /// What the sender is to be told now: what it was never told, what was lost, and what got no answer for too long.
    pub(crate) fn due(&self, now: Instant, patience: Duration) -> impl Iterator<Item = &ClearToSend> {
        let waits = self.waits(patience);
        self.untold.values().filter(move |untold| untold.due_at(waits) <= now).map(|untold| &untold.clear)
    }

    /// It was told these, in a frame with this stamp.
    pub(crate) fn told(&mut self, numbers: &[u64], stamp: u64, now: Instant) {
        let mut is_unanswered = false;
        for number in numbers {
            if let Some(untold) = self.untold.get_mut(number) {
                is_unanswered |= !matches!(untold.state, Telling::Due);
                untold.state = Telling::Told(stamp);
            }
        }
        // A round is as many frames as it takes.
        if is_unanswered && self.back_off.last() != Some(now) {
            self.back_off.on_repeated(now);
        }
    }

    /// How long to wait after a frame that may have been lost, and after one that has been.
    fn waits(&self, patience: Duration) -> (Duration, Duration) {
        #[cfg(feature = "mutations")]
        if self.never_repeats {
            return (Duration::from_secs(1_000_000), Duration::ZERO);
        }
        let wait = self.back_off.wait(patience);
        // A sender that hears it again and again, and still does not say that it has it, has no use for it.
        (wait, if self.back_off.is_in_vain() { wait } else { Duration::ZERO })
    }

    /// When something has to be told again.
    pub(crate) fn next_deadline(&self, patience: Duration) -> Option<Instant> {
        let waits = self.waits(patience);
        self.untold.values().map(|untold| untold.due_at(waits)).min()
    }
}

fn is_set(bits: &[u8], offset: u64) -> bool {
    let byte = usize::try_from(offset / 8).ok().and_then(|index| bits.get(index));
    byte.is_some_and(|byte| byte >> (offset % 8) & 1 != 0)
}

impl Untold {
    fn due_at(&self, (told, lost): (Duration, Duration)) -> Instant {
        match self.state {
            Telling::Due => Instant::ZERO,
            Telling::Lost(stamp) => Instant::from_nanos(stamp) + lost,
            Telling::Told(stamp) => Instant::from_nanos(stamp) + told,
        }
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

    fn told(receiving: &mut Receiving, numbers: &[u64], now: Instant) {
        receiving.told(numbers, now.as_nanos(), now);
    }

    #[test]
    fn what_is_not_answered_is_told_again_and_less_and_less_often() {
        let mut receiving = Receiving::default();
        (0..3).for_each(|number| receiving.opened(clear(number)));
        assert_eq!(due(&receiving, at(0)), [0, 1, 2]);
        told(&mut receiving, &[0, 1, 2], at(0));
        assert_eq!(due(&receiving, at(9)), []);
        assert_eq!(receiving.next_deadline(PATIENCE), Some(at(10)));
        receiving.on_cleared_through(1);
        assert_eq!(due(&receiving, at(10)), [1, 2]);
        told(&mut receiving, &[1, 2], at(10));
        assert_eq!(receiving.next_deadline(PATIENCE), Some(at(30)));
        // An old answer says nothing new of them, but the path works.
        receiving.on_cleared_through(1);
        assert_eq!(receiving.next_deadline(PATIENCE), Some(at(30)));
        receiving.on_heard(at(11));
        assert_eq!(receiving.next_deadline(PATIENCE), Some(at(20)));
        receiving.on_cleared_through(3);
        assert_eq!((due(&receiving, at(100)), receiving.next_deadline(PATIENCE)), (vec![], None));
    }

    #[test]
    fn a_round_counts_once_whatever_its_frames_and_no_wait_is_longer_than_a_second() {
        let mut receiving = Receiving::default();
        (0..260).for_each(|number| receiving.opened(clear(number)));
        let mut now = at(1);
        let mut waits = Vec::new();
        for _ in 0..12 {
            // Ten frames of 26.
            let numbers = due(&receiving, now);
            assert_eq!(numbers.len(), 260);
            numbers.chunks(26).for_each(|numbers| told(&mut receiving, numbers, now));
            let next = receiving.next_deadline(PATIENCE).expect("it goes on");
            waits.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 1000, 1000]);
    }

    #[test]
    fn what_the_sender_has_beyond_a_hole_is_not_repeated_and_the_hole_at_once() {
        let mut receiving = Receiving::default();
        (0..40).for_each(|number| receiving.opened(clear(number)));
        told(&mut receiving, &(0..10).collect::<Vec<_>>(), at(1));
        told(&mut receiving, &(10..20).collect::<Vec<_>>(), at(2));
        told(&mut receiving, &(20..40).collect::<Vec<_>>(), at(3));
        // The second frame was lost, the third has come: the sender has 0 to 9 and 20 to 39.
        receiving.on_cleared_through(10);
        receiving.on_cleared_beyond(10, &[0, 0xfc, 0xff, 0x3f]);
        receiving.on_echo(at(3).as_nanos());
        assert_eq!(due(&receiving, at(4)), (10..20).collect::<Vec<_>>());
        told(&mut receiving, &(10..20).collect::<Vec<_>>(), at(4));
        // The same echo is no reason to repeat it once more.
        receiving.on_echo(at(3).as_nanos());
        assert_eq!(due(&receiving, at(5)), []);
    }

    #[test]
    fn a_sender_cannot_have_what_it_was_never_told() {
        let mut receiving = Receiving::default();
        (0..3).for_each(|number| receiving.opened(clear(number)));
        receiving.on_cleared_through(4);
        receiving.on_cleared_through(u64::MAX);
        receiving.on_cleared_beyond(u64::MAX, &[0xff; 200]);
        assert_eq!(due(&receiving, at(0)), [0, 1, 2]);
    }

    #[test]
    fn what_somebody_else_said_that_the_sender_knows_is_told_again_when_it_asks() {
        let mut receiving = Receiving::default();
        (0..20).for_each(|number| receiving.opened(clear(number)));
        told(&mut receiving, &(0..20).collect::<Vec<_>>(), at(0));
        // Forged.
        receiving.on_cleared_through(10);
        receiving.on_cleared_beyond(10, &[0xff, 0xff]);
        assert_eq!(due(&receiving, at(100)), []);
        receiving.completed(3);
        // The sender has 0 and 2.
        receiving.on_question(1, &[0b10]);
        assert_eq!(due(&receiving, at(100)), [1, 3, 4, 5, 6, 7, 8]);
        assert!(receiving.due(at(100), PATIENCE).all(|clear| clear.is_over == (clear.number == 3)));
        told(&mut receiving, &[1, 3, 4, 5, 6, 7, 8], at(100));
        receiving.on_cleared_through(9);
        receiving.on_question(9, &[]);
        assert_eq!(due(&receiving, at(101)), [9]);
        // Whatever is asked for, what is over is not told any more.
        (0..20).filter(|number| *number != 3).for_each(|number| receiving.completed(number));
        receiving.on_question(0, &[0; 100]);
        receiving.on_question(u64::MAX, &[0; 100]);
        assert_eq!(due(&receiving, at(200)), []);
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
