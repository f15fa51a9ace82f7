//! The outcome of a run, in numbers: how requests ended, and what was asked for at all.

use std::collections::BTreeMap;

/// How requests ended, over a whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Sends that succeeded.
    pub succeeded: u64,
    /// Sends that failed without an answer, which a bad network explains.
    pub retries_exceeded: u64,
    /// Sends that failed otherwise, because of mistakes made on purpose.
    pub refused: u64,
    /// Sends flushed, or forgotten in a reset.
    pub flushed: u64,
    /// Receives that took a message.
    pub received: u64,
    /// Keys revoked.
    pub revocations: u64,
    /// Connections made anew.
    pub reconnections: u64,
    /// How often each operation was asked for.
    pub operations: BTreeMap<&'static str, u64>,
    /// How often each fault was made.
    pub faults: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// Adds another run's.
    pub(super) fn add(&mut self, other: &Tally) {
        self.succeeded += other.succeeded;
        self.retries_exceeded += other.retries_exceeded;
        self.refused += other.refused;
        self.flushed += other.flushed;
        self.received += other.received;
        self.revocations += other.revocations;
        self.reconnections += other.reconnections;
        for (name, count) in &other.operations {
            *self.operations.entry(name).or_default() += count;
        }
        for (name, count) in &other.faults {
            *self.faults.entry(name).or_default() += count;
        }
    }

    pub(super) fn count_operation(&mut self, name: &'static str) {
        *self.operations.entry(name).or_default() += 1;
    }
}
