//! READs and atomics: what lies in the memory of the end that is asked, and whether the answers are right.
//!
//! Both ends divide their memory into the same slots. A READ brings the slot of its number, which holds what the slot's
//! number says. A fetch-and-add adds 1 to the first eight bytes of all, whichever queue pair it is on, so that no two
//! of them may find the same value. A compare-and-swap counts one further in the eight bytes of its queue pair: it
//! succeeds if its predecessor was carried out once, and fails for ever if one was not or was twice.

use crate::arrivals::Arrivals;
use crate::connection::{Group, Slots};
use crate::operation::Operation;
use crate::pattern::Pattern;
use crate::stream::{Received, Run};

/// Bytes of an atomic.
pub(crate) const ATOMIC_BYTES: u32 = 8;

/// Where in the peer's memory a queue pair's atomics go.
pub(crate) const fn atomic_offset(operation: Operation, slots: &Slots, queue_pair: usize) -> usize {
    match operation {
        Operation::CompareAndSwap => slots.offset(queue_pair as u64),
        _ => slots.offset(0),
    }
}

/// Checks the answers of one run.
pub(crate) struct Answers {
    operation: Operation,
    pattern: Pattern,
    slots: Slots,
    message_bytes: usize,
    values: Values,
    scratch: Vec<u8>,
    pub(crate) checked: u64,
    /// The first that was wrong.
    pub(crate) mismatch: Option<String>,
}

impl Answers {
    /// `None` when there is nothing to check here.
    pub(crate) fn new(run: &Run, slots: &Slots, queue_pairs: usize) -> Option<Answers> {
        let seed = run.verify_seed.filter(|_| run.operation.is_answered())?;
        Some(Answers {
            operation: run.operation,
            pattern: Pattern::new(seed),
            slots: slots.clone(),
            message_bytes: run.message_bytes as usize,
            values: Values::new(queue_pairs),
            scratch: Vec::new(),
            checked: 0,
            mismatch: None,
        })
    }

    /// To be called before a request is posted: what is in its place must not be taken for the answer.
    pub(crate) fn expect(&mut self, slot: u64) {
        self.values.posted += 1;
        self.scratch.resize(self.message_bytes, 0);
        match self.operation {
            Operation::Read => {
                self.pattern.fill(slot, &mut self.scratch);
                self.scratch.iter_mut().for_each(|byte| *byte = !*byte);
            }
            _ => self.scratch.fill(0xff),
        }
        self.slots.region().copy_in(self.slots.offset(slot), &self.scratch);
    }

    /// The answer to a request is in its place.
    pub(crate) fn check(&mut self, queue_pair: usize, slot: u64) {
        self.scratch.resize(self.message_bytes, 0);
        self.slots.region().copy_out(self.slots.offset(slot), &mut self.scratch);
        let wrong = match self.operation {
            Operation::Read => self.pattern.check(slot, &self.scratch).err().map(|error| error.to_string()),
            operation => {
                let value = self.scratch[..].try_into().map_or(u64::MAX, u64::from_ne_bytes);
                match operation {
                    Operation::CompareAndSwap => self.values.check_swap(queue_pair, value),
                    _ => self.values.check_sum(value),
                }
            }
        };
        self.checked += 1;
        self.mismatch = self.mismatch.take().or(wrong);
    }
}

/// What atomics of one run found before they changed it.
struct Values {
    /// Requests so far.
    posted: u64,
    /// Compare-and-swap: those of each queue pair that were answered.
    swaps: Vec<u64>,
    /// Fetch-and-add: the values that were found.
    sums: Arrivals,
}

impl Values {
    fn new(queue_pairs: usize) -> Values {
        Values { posted: 0, swaps: vec![0; queue_pairs], sums: Arrivals::new() }
    }

    /// What is wrong, if anything, with what the next compare-and-swap of a queue pair found.
    fn check_swap(&mut self, queue_pair: usize, value: u64) -> Option<String> {
        let expected = self.swaps[queue_pair];
        self.swaps[queue_pair] += 1;
        (value != expected).then(|| {
            format!(
                "compare-and-swap {expected} of queue pair {queue_pair}: expected old value {expected}, got {value}"
            )
        })
    }

    /// What is wrong, if anything, with what a fetch-and-add found.
    fn check_sum(&mut self, value: u64) -> Option<String> {
        if value >= self.posted {
            return Some(format!("fetch-and-add: expected an old value below {}, got {value}", self.posted));
        }
        (!self.sums.is_new(value)).then(|| format!("fetch-and-add: two requests returned the old value {value}"))
    }
}

/// The end that is asked, before a run: what READs are to find, and counters that begin at 0.
pub(crate) fn prepare_memory(group: &Group, run: &Run) {
    let slots = Slots::new(group, run.message_bytes as usize);
    let mut contents = vec![0; run.message_bytes as usize];
    if run.operation.is_atomic() {
        for queue_pair in 0..group.queue_pairs.len() {
            slots.region().copy_in(slots.offset(queue_pair as u64), &contents);
        }
    } else if let Some(seed) = run.verify_seed {
        for slot in 0..slots.count() as u64 {
            Pattern::new(seed).fill(slot, &mut contents);
            slots.region().copy_in(slots.offset(slot), &contents);
        }
    }
}

/// The responder, after a run of this many requests: have the atomics counted that far?
pub(crate) fn check_memory(group: &Group, run: &Run, requests: u64, received: &mut Received) {
    if run.verify_seed.is_none() || !run.operation.is_atomic() {
        return;
    }
    let slots = Slots::new(group, run.message_bytes as usize);
    let counters = (0..group.queue_pairs.len() as u64).map(|queue_pair| {
        let mut value = [0; ATOMIC_BYTES as usize];
        slots.region().copy_out(slots.offset(queue_pair), &mut value);
        u64::from_ne_bytes(value)
    });
    let counted = counters.fold(0_u64, u64::wrapping_add);
    if counted != requests {
        received.mismatch =
            Some(format!("{requests} atomics should have counted to {requests}, but the word holds {counted}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_that_was_carried_out_twice_or_never_is_seen() {
        let mut values = Values::new(2);
        for number in 0..3 {
            assert_eq!(values.check_swap(0, number), None);
            assert_eq!(values.check_swap(1, number), None, "each queue pair counts for itself");
        }
        assert!(values.check_swap(0, 4).is_some_and(|text| text.contains("expected old value 3, got 4")));
        assert!(values.check_swap(1, 2).is_some());
    }

    #[test]
    fn sums_are_all_different() {
        let mut values = Values::new(1);
        values.posted = 5;
        for found in [2, 0, 4, 1] {
            assert_eq!(values.check_sum(found), None);
        }
        assert!(values.check_sum(2).is_some_and(|text| text.contains("two requests returned the old value 2")));
        assert!(values.check_sum(5).is_some_and(|text| text.contains("below 5")));
        assert!(values.check_sum(u64::MAX).is_some(), "memory that was never written");
        assert_eq!(values.check_sum(3), None);
    }
}
