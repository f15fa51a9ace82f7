//! Atomics: what each of them asks for, and what it must find. RC carries requests out in the order in which they were
//! posted, so that every old value and every final value is known beforehand, and an atomic that is carried out twice,
//! or not at all, is seen by the next one.

use longhaul_verbs::{RemoteMemory, SendOperation};

use crate::contents::mix;
use crate::plan::{Check, Operation};

/// Words that the atomics of a check take in turn.
const WORDS: u64 = 8;

/// The words, as they must be after the atomics so far.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    values: Vec<u64>,
}

/// One atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The slot of its word.
    pub(crate) word: u64,
    /// What it finds, and brings back.
    pub(crate) old: u64,
    request: Request,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    CompareAndSwap { compare: u64, swap: u64 },
    FetchAndAdd { add: u64 },
}

impl Step {
    /// As it is posted.
    pub(crate) fn operation(self, remote: RemoteMemory) -> SendOperation {
        match self.request {
            Request::CompareAndSwap { compare, swap } => SendOperation::CompareAndSwap { remote, compare, swap },
            Request::FetchAndAdd { add } => SendOperation::FetchAndAdd { remote, add },
        }
    }
}

impl Words {
    /// As they are at the start.
    pub(crate) fn new(check: &Check) -> Words {
        let count = WORDS.min(u64::from(check.operations));
        Words { values: (0..count).map(|word| mix(check.seed ^ mix(word))).collect() }
    }

    /// As they must be at the end.
    pub(crate) fn after_all(check: &Check) -> Words {
        let mut words = Words::new(check);
        for number in 0..u64::from(check.operations) {
            words.step(check, number);
        }
        words
    }

    /// The value of the word in this slot, if it is one.
    pub(crate) fn value(&self, slot: u64) -> Option<u64> {
        self.values.get(slot as usize).copied()
    }

    /// The next atomic, carried out. Numbers must come in order.
    pub(crate) fn step(&mut self, check: &Check, number: u64) -> Step {
        let word = number % self.values.len() as u64;
        let value = &mut self.values[word as usize];
        let old = *value;
        let bits = mix(check.seed.rotate_left(32) ^ number);
        let request = match check.operation {
            // Every third one compares with what is not there, and must change nothing.
            Operation::CompareAndSwap if number % 3 == 2 => Request::CompareAndSwap { compare: !old, swap: bits },
            Operation::CompareAndSwap => {
                *value = bits;
                Request::CompareAndSwap { compare: old, swap: bits }
            }
            _ => {
                *value = old.wrapping_add(bits);
                Request::FetchAndAdd { add: bits }
            }
        };
        Step { word, old, request }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Connection;

    /// A device that carries out each atomic this often.
    fn carry_out(check: &Check, times: impl Fn(u64) -> u32) -> (Vec<(u64, u64)>, Vec<u64>) {
        let mut plan = Words::new(check);
        let mut memory = plan.values.clone();
        let mut olds = Vec::new();
        for number in 0..u64::from(check.operations) {
            let step = plan.step(check, number);
            let mut old = memory[step.word as usize];
            for _ in 0..times(number) {
                let value = &mut memory[step.word as usize];
                old = *value;
                match step.request {
                    Request::CompareAndSwap { compare, swap } if old == compare => *value = swap,
                    Request::CompareAndSwap { .. } => {}
                    Request::FetchAndAdd { add } => *value = old.wrapping_add(add),
                }
            }
            olds.push((step.old, old));
        }
        (olds, memory)
    }

    #[test]
    fn a_device_that_carries_each_out_once_finds_what_it_must() {
        for operation in [Operation::CompareAndSwap, Operation::FetchAndAdd] {
            let check = Check { connection: Connection::Rc, operation, bytes: 8, operations: 100, seed: 3 };
            let (olds, memory) = carry_out(&check, |_| 1);
            assert!(olds.iter().all(|(expected, got)| expected == got));
            assert_eq!(memory, Words::after_all(&check).values);
            for wrong in [0, 2] {
                let (olds, memory) = carry_out(&check, |number| if number == 41 - 1 { wrong } else { 1 });
                let is_seen =
                    olds.iter().any(|(expected, got)| expected != got) || memory != Words::after_all(&check).values;
                assert!(is_seen, "{operation:?} carried out {wrong} times");
            }
        }
    }
}
