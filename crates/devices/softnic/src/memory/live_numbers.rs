//! Which number each slot of a slotted region has, and what it is bound to.
//!
//! Every slot has a number at all times, but users of slots bind numbers one after another and free them soon: all but
//! the last few numbers are bound to nothing, and follow from the last number that was bound. So only what is bound
//! takes room, however many slots there are.

use std::collections::{BTreeMap, VecDeque};

/// The numbers of all slots. At first each slot has its own, bound to nothing.
///
/// Binding the next number, or one that was bound lately, takes constant time; a jump ahead takes time and room for each
/// slot that it skips.
pub(super) struct LiveNumbers<B> {
    slots: u64,
    /// Every number below has been bound, except for slots that are `odd`.
    next: u64,
    /// What the last numbers before `next` are bound to. All earlier ones are bound to nothing.
    recent: VecDeque<Option<B>>,
    /// Slots whose numbers were not bound in order.
    odd: BTreeMap<u64, (u64, Option<B>)>,
}

impl<B> LiveNumbers<B> {
    /// There must be at least one slot.
    pub(super) fn new(slots: u32) -> Self {
        LiveNumbers { slots: slots.into(), next: 0, recent: VecDeque::new(), odd: BTreeMap::new() }
    }

    pub(super) fn slots(&self) -> u64 {
        self.slots
    }

    /// What a number is bound to; `None` if its slot has another number.
    #[inline]
    pub(super) fn get(&self, number: u64) -> Option<Option<&B>> {
        if !self.odd.is_empty()
            && let Some((live, bound)) = self.odd.get(&(number % self.slots))
        {
            return (*live == number).then_some(bound.as_ref());
        }
        let is_live = match self.next.checked_sub(number) {
            None | Some(0) => number < self.slots,
            Some(age) => age <= self.slots,
        };
        is_live.then(|| self.recent.get(self.recent_index(number)?)?.as_ref())
    }

    /// Give a number its slot, and bind it to something, or to nothing.
    pub(super) fn bind(&mut self, number: u64, bound: Option<B>) {
        let slot = number % self.slots;
        if number >= self.next {
            self.skip_to(number);
            self.odd.remove(&slot);
            self.recent.push_back(bound);
            self.next = number + 1;
        } else if let (true, Some(index)) = (self.is_in_order(number), self.recent_index(number)) {
            self.recent[index] = bound;
        } else if self.in_order(slot) == number && bound.is_none() {
            self.odd.remove(&slot);
        } else {
            let in_order = self.recent_index(self.in_order(slot));
            in_order.into_iter().for_each(|index| self.recent[index] = None);
            self.odd.insert(slot, (number, bound));
        }
        while self.recent.len() as u64 > self.slots || matches!(self.recent.front(), Some(None)) {
            self.recent.pop_front();
        }
    }

    /// Numbers up to this one are not bound: their slots keep what they have.
    fn skip_to(&mut self, number: u64) {
        let skipped = number - self.next;
        for number in number - skipped.min(self.slots)..number {
            let slot = number % self.slots;
            let live = self.in_order(slot);
            // One that is its slot's first number has it anyway.
            if live != number && !self.odd.contains_key(&slot) {
                let bound = self.recent_index(live).and_then(|index| self.recent[index].take());
                self.odd.insert(slot, (live, bound));
            }
        }
        match skipped >= self.slots {
            true => self.recent.clear(),
            false => self.recent.extend((0..skipped).map(|_| None)),
        }
    }

    /// The number that a slot has, unless it is odd.
    fn in_order(&self, slot: u64) -> u64 {
        match self.next.checked_sub(slot + 1) {
            None => slot,
            Some(since) => slot + since / self.slots * self.slots,
        }
    }

    fn is_in_order(&self, number: u64) -> bool {
        let slot = number % self.slots;
        self.in_order(slot) == number && !self.odd.contains_key(&slot)
    }

    #[inline]
    fn recent_index(&self, number: u64) -> Option<usize> {
        let age = usize::try_from(self.next.checked_sub(number)?).ok()?;
        self.recent.len().checked_sub(age).filter(|_| age > 0)
    }

    /// Slots that take room.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.recent.len() + self.odd.len()
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha12Rng;
    use rand_core::{Rng as _, SeedableRng as _};

    use super::*;

    /// The same, with a place for each slot.
    struct Model(Vec<(u64, Option<u32>)>);

    impl Model {
        fn new(slots: u32) -> Self {
            Model((0..slots).map(|slot| (slot.into(), None)).collect())
        }

        fn slot(&mut self, number: u64) -> &mut (u64, Option<u32>) {
            let slots = self.0.len() as u64;
            &mut self.0[(number % slots) as usize]
        }
    }

    fn compare(numbers: &LiveNumbers<u32>, model: &mut Model, around: u64, step: usize) {
        let slots = numbers.slots();
        for number in (0..2 * slots).chain(around.saturating_sub(3 * slots)..around + 2 * slots) {
            let (live, bound) = *model.slot(number);
            let expected = (live == number).then_some(bound.as_ref());
            assert_eq!(numbers.get(number), expected, "number {number} of {slots} slots after step {step}");
        }
        for (live, bound) in &model.0 {
            assert_eq!(numbers.get(*live), Some(bound.as_ref()), "number {live} of {slots} slots after step {step}");
        }
    }

    /// In order, twice, out of order, far ahead and back again: always as if each slot had a place of its own.
    #[test]
    #[cfg_attr(miri, ignore = "safe code, and too slow there")]
    fn every_slot_has_the_number_that_it_was_given_last() {
        for seed in 0..200 {
            let mut random = ChaCha12Rng::seed_from_u64(seed);
            let slots = 1 + random.next_u32() % 9;
            let (mut numbers, mut model) = (LiveNumbers::new(slots), Model::new(slots));
            let mut next = 0_u64;
            for step in 0..150 {
                let number = match random.next_u32() % 16 {
                    0..=6 => next,
                    7..=10 => next.saturating_sub(1 + u64::from(random.next_u32() % slots)),
                    11 | 12 => next.saturating_sub(u64::from(random.next_u32() % (3 * slots))),
                    13 => next + u64::from(random.next_u32() % (2 * slots)),
                    14 => u64::from(random.next_u32() % (2 * slots)),
                    _ if step > 100 => (1 << 50) + u64::from(random.next_u32() % 100),
                    _ => next,
                };
                let bound = (random.next_u32() % 2 == 0).then(|| random.next_u32());
                numbers.bind(number, bound);
                *model.slot(number) = (number, bound);
                next = next.max(number + 1);
                compare(&numbers, &mut model, number, step);
                assert!(numbers.held() <= 2 * slots as usize, "{} of {slots} slots", numbers.held());
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "safe code, and too slow there")]
    fn only_what_is_bound_takes_room() {
        let mut numbers = LiveNumbers::new(1024);
        for number in 0..10_000 {
            numbers.bind(number, Some(7));
            assert!(numbers.held() <= 4);
            if number >= 3 {
                numbers.bind(number - 3, None);
            }
        }
        assert_eq!((numbers.held(), numbers.recent.capacity() <= 8), (3, true));
        assert_eq!(numbers.get(9_999 - 1023), Some(None));
        assert_eq!(numbers.get(9_999 - 1024), None);
    }
}
