//! One error type per operation.

use std::io;

use crate::{AttributeMask, Capabilities, QueuePairState, TransitionError, Transport};

/// The device cannot do this; [`Capabilities`] said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device does not support this: {capability}; query its capabilities before use")]
pub struct NotSupported {
    /// The flag that is missing.
    pub capability: Capabilities,
}

/// An object could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// Not with this device.
    #[error(transparent)]
    NotSupported(#[from] NotSupported),
    /// More than the device allows.
    #[error("{what}: {requested} requested, but this device supports at most {most}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// Asked for.
        requested: u64,
        /// Possible.
        most: u64,
    },
    /// An argument does not fit.
    #[error("{what}: expected {expected}")]
    InvalidArgument {
        /// Which.
        what: &'static str,
        /// What would have fitted.
        expected: &'static str,
    },
    /// A parent object belongs to another device.
    #[error("the {what} belongs to another device")]
    ForeignObject {
        /// Which.
        what: &'static str,
    },
    /// The operating system or the driver refused.
    #[error("the system refused")]
    System(#[from] io::Error),
}

/// Memory could not be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// Not with this device.
    #[error(transparent)]
    NotSupported(#[from] NotSupported),
    /// Remote writes or atomics without local write.
    #[error("remote write and remote atomic access need local write access")]
    RemoteWriteWithoutLocalWrite,
    /// Too large.
    #[error("a region of {requested} bytes is too large: this device supports at most {most}; register several")]
    TooLarge {
        /// Asked for.
        requested: u64,
        /// Possible.
        most: u64,
    },
    /// No room for another region.
    #[error("the device already holds {most} regions, its limit; deregister some first")]
    TooMany {
        /// Possible.
        most: u64,
    },
    /// The range wraps around the end of the address space.
    #[error("address {address:#x} plus {length} bytes wraps around")]
    Wraps {
        /// First byte.
        address: u64,
        /// Bytes.
        length: u64,
    },
    /// An argument does not fit.
    #[error("{what}: expected {expected}")]
    InvalidArgument {
        /// Which.
        what: &'static str,
        /// What would have fitted.
        expected: &'static str,
    },
    /// The region belongs to another device or protection domain.
    #[error("the {what} belongs to another device or protection domain")]
    ForeignObject {
        /// Which.
        what: &'static str,
    },
    /// It has been deregistered.
    #[error("it has been deregistered already")]
    Gone,
    /// The operating system or the driver refused; often the limit of locked memory (`ulimit -l`).
    #[error("the system refused; is the limit of locked memory (ulimit -l) large enough?")]
    System(#[from] io::Error),
}

/// An object could not be destroyed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DestroyError {
    /// Others still use it.
    #[error("still in use by {users} other objects; destroy them first")]
    InUse {
        /// How many.
        users: usize,
    },
    /// It is gone already.
    #[error("it has been destroyed already")]
    Gone,
    /// The operating system or the driver refused.
    #[error("the system refused")]
    System(#[from] io::Error),
}

/// A question could not be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// Not with this device.
    #[error(transparent)]
    NotSupported(#[from] NotSupported),
    /// No such thing.
    #[error("there is no {what} {index}; there are {count}")]
    NoSuch {
        /// Port, GID, …
        what: &'static str,
        /// Asked for.
        index: u32,
        /// There are.
        count: u32,
    },
    /// It has been destroyed.
    #[error("it has been destroyed already")]
    Gone,
    /// The operating system or the driver refused.
    #[error("the system refused")]
    System(#[from] io::Error),
}

/// A queue pair (or shared receive queue) could not be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// Not with this device.
    #[error(transparent)]
    NotSupported(#[from] NotSupported),
    /// The state diagram has no such step, or it needs other attributes.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// The caller believed it to be in another state.
    #[error("the queue pair is in state {actual}, not in {believed}")]
    CurrentState {
        /// What `current_state` said.
        believed: QueuePairState,
        /// What it is.
        actual: QueuePairState,
    },
    /// An attribute's value does not fit.
    #[error("{attribute}: expected {expected}")]
    InvalidValue {
        /// Which.
        attribute: AttributeMask,
        /// What would have fitted.
        expected: &'static str,
    },
    /// Of a shared receive queue or completion queue: an argument does not fit.
    #[error("{what}: expected {expected}")]
    InvalidArgument {
        /// Which.
        what: &'static str,
        /// What would have fitted.
        expected: &'static str,
    },
    /// It has been destroyed.
    #[error("it has been destroyed already")]
    Gone,
    /// The operating system or the driver refused.
    #[error("the system refused")]
    System(#[from] io::Error),
}

/// A batch could not be posted whole. Requests before `index` were posted.
#[derive(Debug, thiserror::Error)]
#[error("request {index} of the batch was not posted: {kind}")]
pub struct PostError {
    /// The first request that was not posted: libibverbs' `bad_wr`.
    pub index: usize,
    /// Why.
    #[source]
    pub kind: PostErrorKind,
}

/// Why a request was not posted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// The queue is full.
    #[error("the queue is full ({depth} requests); poll completions first")]
    QueueFull {
        /// Its size.
        depth: u32,
    },
    /// The queue pair's state does not allow it.
    #[error("not possible in state {state}; modify the queue pair first")]
    InvalidState {
        /// The state.
        state: QueuePairState,
    },
    /// Too many entries.
    #[error("{entries} scatter-gather entries are too many: this queue takes at most {most}")]
    TooManyEntries {
        /// In the request.
        entries: usize,
        /// Possible.
        most: u32,
    },
    /// Too much inline data.
    #[error("{bytes} inline bytes are too many: this queue pair takes at most {most}")]
    TooMuchInline {
        /// In the request.
        bytes: u64,
        /// Possible.
        most: u32,
    },
    /// The message is longer than can be sent.
    #[error("a message of {bytes} bytes is too long: at most {most} are possible here")]
    MessageTooLong {
        /// In the request.
        bytes: u64,
        /// Possible.
        most: u64,
    },
    /// The transport has no such operation.
    #[error("{transport} has no such operation")]
    WrongTransport {
        /// The transport.
        transport: Transport,
    },
    /// The result of an atomic does not fit where it is wanted.
    #[error("an atomic returns 8 bytes, but the request has room for {bytes}; give it exactly 8")]
    AtomicLength {
        /// In the request.
        bytes: u64,
    },
    /// A bind without a window.
    #[error("a request that binds a window needs its field `window`")]
    Window,
    /// The queue pair has no receive queue of its own.
    #[error("the queue pair takes its receives from a shared receive queue; post them there")]
    SharedReceives,
    /// A datagram without destination, or a destination on a connected queue pair.
    #[error("UD requests need a destination, and requests of other transports must have none")]
    Destination,
    /// A burst whose immediates do not match its length, or that asks for inline data.
    #[error("the burst is not consistent: one immediate for each stride of the length, no inline data")]
    InconsistentBurst,
    /// In the safe layer, inline data is given as a slice.
    #[error("the flag INLINE is not allowed here; use post_send_inline, which takes a slice")]
    InlineFlag,
    /// An object of the request belongs to another device.
    #[error("the {what} belongs to another device")]
    ForeignObject {
        /// Which.
        what: &'static str,
    },
    /// Not with this device.
    #[error(transparent)]
    NotSupported(#[from] NotSupported),
    /// The queue pair has been destroyed.
    #[error("the queue pair has been destroyed already")]
    Gone,
    /// The operating system or the driver refused.
    #[error("the system refused")]
    System(#[from] io::Error),
}

impl PostErrorKind {
    /// As the answer for the request at `index`.
    pub fn at(self, index: usize) -> PostError {
        PostError { index, kind: self }
    }
}

/// A completion queue could not be polled or armed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// More completions arrived than it has room for; some are lost.
    #[error("the completion queue overran; make it at least as large as the queues that complete into it")]
    Overrun,
    /// Not with this device.
    #[error(transparent)]
    NotSupported(#[from] NotSupported),
    /// It has been destroyed.
    #[error("it has been destroyed already")]
    Gone,
    /// The operating system or the driver refused.
    #[error("the system refused")]
    System(#[from] io::Error),
}

/// An event could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// Not with this device.
    #[error(transparent)]
    NotSupported(#[from] NotSupported),
    /// The operating system or the driver refused.
    #[error("the system refused")]
    System(#[from] io::Error),
}

/// A queue pair could not be attached to, or detached from, a multicast group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MulticastError {
    /// Not with this device.
    #[error(transparent)]
    NotSupported(#[from] NotSupported),
    /// Only datagram queue pairs can be.
    #[error("only unreliable datagram queue pairs can join a group")]
    WrongTransport,
    /// Not a group.
    #[error("the address is not a multicast group")]
    NotAGroup,
    /// Not a member.
    #[error("the queue pair is not attached to that group")]
    NotAttached,
    /// No room for another membership.
    #[error("the device already holds {most} multicast memberships, its limit; leave a group first")]
    TooMany {
        /// Possible.
        most: u64,
    },
    /// It has been destroyed.
    #[error("the queue pair has been destroyed already")]
    Gone,
    /// The operating system or the driver refused.
    #[error("the system refused")]
    System(#[from] io::Error),
}
