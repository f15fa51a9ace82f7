//! What a checker says when a rule is broken.

use std::fmt;

use longhaul_time::Instant;

/// The rules. Each has a test in this crate that breaks it by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A byte holds what the program put there, or what a message that was legally addressed to it carries.
    Memory,
    /// When a reliable request is reported done, its bytes are in the peer's memory, and so are those of all before it.
    Placement,
    /// A READ brings the bytes that the peer's memory held between its posting and its completion.
    Read,
    /// An atomic happens exactly once, or at most once if it ends without an answer, in the order of its connection.
    Atomic,
    /// After a key has been revoked nothing is written through it, and no request through it succeeds any more.
    RevokedKey,
    /// A request completes at most once, and only if it was posted.
    ExactlyOnce,
    /// The completions of a queue come in the order of its requests, to the completion queue that was named.
    Order,
    /// A request ends with a status that what was posted can lead to.
    Status,
    /// After a failure everything later in the queue is flushed; nothing is flushed without a reason.
    Flush,
    /// A receive completes with the message that belongs to it: length, immediate, kind, sender and bytes.
    Receive,
    /// Asynchronous events come when there is a reason for them, and only then.
    Event,
    /// What the specification allows is not refused.
    Refusal,
    /// Forward error correction hands on what was sent: no repair packet, and nothing with a wrong ICRC that did not arrive so.
    Protection,
    /// Once the network is healed everything that was asked for gets done in bounded time.
    Progress,
}

/// A broken rule, with what was expected and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which rule.
    pub rule: Rule,
    /// When it was noticed, on the run's clock.
    pub at: Instant,
    /// Which request, queue or memory.
    pub subject: String,
    /// What should have been.
    pub expected: String,
    /// What was.
    pub got: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {:?}: {}: expected {}, got {}", self.rule, self.at, self.subject, self.expected, self.got)
    }
}

/// The violations of a run. The first ones are kept, all are counted: after the first the rest often follow from it.
#[derive(Clone, Debug, Default)]
pub struct Violations {
    kept: Vec<Violation>,
    count: u64,
}

impl Violations {
    const KEPT_MAX: usize = 16;

    /// Notes one.
    pub fn add(&mut self, violation: Violation) {
        self.count += 1;
        if self.kept.len() < Self::KEPT_MAX {
            self.kept.push(violation);
        }
    }

    /// The first ones.
    pub fn kept(&self) -> &[Violation] {
        &self.kept
    }

    /// All of them.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}
