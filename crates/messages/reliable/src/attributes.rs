//! What a connection is made with.
//!
//! # How long an operation may take
//!
//! - A send or a receive fails when it makes no progress for [`Attributes::message_timeout`]. Progress is that more of its packets have
//!   arrived at the receiver, which reports how many it has. While none have, a message may be queued behind earlier ones, and
//!   progress of those counts; so a message never fails because others take long, only because nothing moves.
//! - A send whose receive the peer has not posted waits for as long as the peer is heard of: it may be a program that is busy. It fails
//!   when nothing at all has come from the peer for [`Attributes::message_timeout`].
//! - A receive that nothing has been sent for waits for ever: the peer's program may send something later. That the peer is gone is for
//!   the layer above to notice; the facade's connection over TCP does.
//! - [`Attributes::message_deadline`] bounds all of it.

use longhaul_time::Duration;

/// What a connection is made with, next to its scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attributes {
    /// A message that has made no progress for this long has failed.
    pub message_timeout: Duration,
    /// A message that has not ended this long after it was sent (sender) or began to arrive (receiver) has failed, whatever its progress.
    pub message_deadline: Option<Duration>,
    /// Sends that wait for a place in the message table, and receives that do.
    pub waiting_max: usize,
    /// Parts of one message that may be in flight. They should cover the bandwidth-delay product and some more for what has to be repeated; each
    /// takes memory for its parity.
    pub parts_open_max: usize,
    /// Bytes of memory for the parity of everything that is received, where the ends have agreed on a code, together with memory that is kept for
    /// reuse; or enough for two parts, if that is more, so that one can arrive while the one before is completed. A receive has its memory before
    /// its sender says which scheme the message has, until it ends or turns out to have no parity. Receives beyond wait for those before.
    pub parity_bytes_max: u64,
    /// Send a checksum with every message: 64 bits over the bytes of each part, computed before the first of them leaves
    /// and verified by the receiver when it has them all, before its program gets them. Only the sender needs this; a
    /// receiver always verifies a checksum that was sent. If it differs, the message has failed at both ends. When a
    /// scheme ends a message with bytes missing, those parts are not verified: there is nothing to compare. Off by
    /// default, because both ends read every byte once more; `longhaul perf client --scheme S --checksum` measures that.
    pub checksum: bool,
    /// A mistake to make.
    #[cfg(feature = "mutations")]
    pub mutation: Option<Mutation>,
}

/// Deliberate mistakes, for testing the checkers.
#[cfg(feature = "mutations")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutation {
    /// A sender that asks about a number that is not known hears that it is done.
    DoneForUnknown,
    /// The length that packets announce ends a message, whatever its offer says or before it says anything.
    OfferLengthIgnored,
    /// A receiver never hears that its message was given up.
    WithdrawalsUntold,
    /// Whatever arrives of a message, its time runs from its beginning.
    ProgressIgnored,
    /// A message that was refused is reported as done.
    RefusalsAreDone,
    /// A receiver does not take the message that its offer carries.
    ContentsIgnored,
    /// What is missing of a bounded receive is not filled: it has what was in the memory before.
    MissingUnfilled,
    /// The first range that is missing begins a packet too late.
    RangesOffByOne,
    /// The deadline of a bounded receive counts from when its message was first heard of.
    DeadlineFromFirstPacket,
}

impl Default for Attributes {
    fn default() -> Self {
        Attributes {
            message_timeout: Duration::from_secs(60),
            message_deadline: None,
            waiting_max: 4096,
            parts_open_max: 16,
            parity_bytes_max: 256 << 20,
            checksum: false,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}
