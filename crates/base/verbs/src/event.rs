//! What a device reports unasked: asynchronous events.

use crate::QueuePairNumber;

/// What happened. Names follow libibverbs' `ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEventKind {
    /// A completion queue overran; its queue pairs are lost.
    CompletionQueueError,
    /// A queue pair failed inside the device.
    QueuePairFatal,
    /// A peer sent a request that is not valid.
    QueuePairRequestError,
    /// A peer tried an access that is not allowed.
    QueuePairAccessError,
    /// The first packet arrived on a queue pair that is ready to receive.
    CommunicationEstablished,
    /// The send queue has drained.
    SendQueueDrained,
    /// Alternate path in use.
    PathMigrated,
    /// Alternate path failed.
    PathMigrationError,
    /// A shared receive queue failed.
    SharedReceiveQueueError,
    /// A shared receive queue fell below its limit.
    SharedReceiveQueueLimitReached,
    /// A queue pair on a shared receive queue has taken its last receive.
    LastWorkRequestReached,
    /// A port came up.
    PortActive,
    /// A port went down.
    PortError,
    /// GID table changed.
    GidTableChanged,
    /// InfiniBand: a local identifier changed.
    LidChanged,
    /// The partition key table changed.
    PartitionKeyTableChanged,
    /// InfiniBand: another subnet manager.
    SubnetManagerChanged,
    /// InfiniBand: the subnet manager wants its clients to register again.
    ClientReregister,
    /// The device is lost.
    DeviceFatal,
}

/// What it happened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventSource {
    /// A queue pair.
    QueuePair(QueuePairNumber),
    /// A completion queue, by its handle.
    CompletionQueue(u32),
    /// A shared receive queue, by its handle.
    SharedReceiveQueue(u32),
    /// A port, counted from 1.
    Port(u8),
    /// The device.
    Device,
}

/// An asynchronous event. It is a value: there is nothing to acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncEventKind,
    /// To what.
    pub source: EventSource,
}
