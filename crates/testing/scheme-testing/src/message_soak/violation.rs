//! What was wrong.

use std::fmt;

use longhaul_time::Instant;

/// A rule that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// A completed message has exactly its bytes, and says exactly what is missing.
    Contents,
    /// A send that succeeded was received.
    Success,
    /// Memory that was handed back, or was never lent, does not change.
    Memory,
    /// A message ends once.
    Once,
    /// No message fails without a reason.
    Failure,
    /// A connection between honest ends does not fail.
    Connection,
    /// Everything ends.
    Ending,
    /// Nothing waits for longer than the network explains.
    Wait,
    /// What is not lost is not sent again, and of what is lost no more than that.
    Repeats,
    /// The round-trip time is one that the path can have.
    RoundTrip,
    /// Packets that arrived are not taken for lost for good.
    Window,
    /// A rate is not exceeded.
    Rate,
    /// Nothing panics.
    Panic,
    /// Nobody is polled for nothing.
    Busy,
    /// No more memory is taken than the messages explain, and all of it is given back.
    Growth,
}

/// A rule that was broken, where and how.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// When, in virtual time.
    pub at: Instant,
    /// What was seen.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {:.6} s: {}", self.rule, self.at.as_nanos() as f64 / 1e9, self.text)
    }
}
