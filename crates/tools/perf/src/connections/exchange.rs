//! What the coordinator and the ends say to each other, a line of JSON each.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::usage::Usage;

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 64;
/// Connections that are made first and not counted: with them comes what all share, a socket for each source port among it.
/// They do all that the counted ones do, so that what a process touches once (code, threads' stacks, the allocator's pools)
/// is not charged to the few connections of a short row.
pub(super) const CONNECTIONS_BEFORE: u32 = 32;

/// What the ends are ordered to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Make this many more connections.
    Connect { to: SocketAddr, connections: u32 },
    /// Send on every connection for this long, and say how many messages each has sent.
    Run(Duration),
    /// Send on every connection for this long, and on the last alone.
    WarmUp(Duration),
    /// Send on every connection until it has sent this many altogether.
    Send(u64),
    /// Say what the process uses.
    Use,
}

/// What they answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Listening(SocketAddr),
    Done,
    Sent { messages: Vec<u64>, elapsed: Duration },
    Uses(Usage),
}
