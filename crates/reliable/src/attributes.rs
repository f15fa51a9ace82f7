//! What a connection is made with.

use longhaul_time::Duration;

/// What a connection is made with, beside its scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attributes {
    /// A message that is not done this long after it could begin has failed, at both ends.
    pub message_timeout: Duration,
    /// Sends that wait for a place in the message table, and receives that do.
    pub waiting_max: usize,
}

impl Default for Attributes {
    fn default() -> Self {
        Attributes { message_timeout: Duration::from_secs(60), waiting_max: 4096 }
    }
}
