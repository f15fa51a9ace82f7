//! What a connection is made with.

use longhaul_time::Duration;

/// What a connection is made with, beside its scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attributes {
    /// A message that is not done this long after it could begin has failed, at both ends. One that is cut into parts has this long for each of
    /// them, from the moment that the one before was done.
    pub message_timeout: Duration,
    /// Sends that wait for a place in the message table, and receives that do.
    pub waiting_max: usize,
    /// Parts of one message that may be under way. They should be enough for all that fits on the way to the peer and back (bandwidth × delay),
    /// some more for what has to be repeated; each takes memory for its parity.
    pub parts_open_max: usize,
}

impl Default for Attributes {
    fn default() -> Self {
        Attributes { message_timeout: Duration::from_secs(60), waiting_max: 4096, parts_open_max: 16 }
    }
}
