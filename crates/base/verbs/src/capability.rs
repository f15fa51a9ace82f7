//! What a device can do.

use std::fmt;

use bitflags::bitflags;

use crate::flag_names::write_names;

bitflags! {
    /// What a device can do. A flag that is not set means that the calls behind it answer "not supported".
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Capabilities: u64 {
        /// Reliable connection queue pairs.
        const RELIABLE_CONNECTION = 1 << 0;
        /// Unreliable connection queue pairs.
        const UNRELIABLE_CONNECTION = 1 << 1;
        /// Unreliable datagram queue pairs.
        const UNRELIABLE_DATAGRAM = 1 << 2;
        /// RDMA READ on reliable connections.
        const READ = 1 << 3;
        /// Compare-and-swap and fetch-and-add on reliable connections.
        const ATOMICS = 1 << 4;
        /// SEND with invalidate, and local invalidation.
        const INVALIDATE = 1 << 5;
        /// Shared receive queues.
        const SHARED_RECEIVE_QUEUE = 1 << 6;
        /// Type 1 memory windows.
        const WINDOW_TYPE_1 = 1 << 7;
        /// Type 2A memory windows.
        const WINDOW_TYPE_2A = 1 << 8;
        /// Type 2B memory windows.
        const WINDOW_TYPE_2B = 1 << 9;
        /// A region that takes writes and keeps nothing.
        const NULL_REGION = 1 << 10;
        /// Attaching datagram queue pairs to multicast groups.
        const MULTICAST = 1 << 11;
        /// [`WriteBurst`](crate::WriteBurst) handled natively instead of being expanded.
        const WRITE_BURST = 1 << 12;
        /// Completion channels.
        const COMPLETION_CHANNEL = 1 << 13;
        /// Completion channels and asynchronous events have pollable file descriptors.
        const EVENT_DESCRIPTORS = 1 << 14;
        /// Completion queues can be resized.
        const RESIZE_COMPLETION_QUEUE = 1 << 15;
        /// Completion events can be moderated.
        const COMPLETION_MODERATION = 1 << 16;
        /// Regions whose addresses start at zero, wherever their memory lies. (Through libibverbs it would have to
        /// begin on a page.)
        const ZERO_BASED = 1 << 17;
        /// Regions over memory that the CPU cannot read, by dma-buf descriptor.
        const DMA_BUF = 1 << 18;
        /// A region can be registered again with other memory or rights.
        const REREGISTER = 1 << 19;
        /// A rate limit per queue pair.
        const RATE_LIMIT = 1 << 20;
        /// The send queue can be drained (state SQD) with an event at the end.
        const SEND_QUEUE_DRAIN = 1 << 21;
        /// Peers may listen at a UDP port other than RoCEv2's 4791.
        const FREE_UDP_PORT = 1 << 22;
        /// A key over numbered messages, some of them live, each bound to a region or to nothing
        /// ([`raw::SlottedRegion`](crate::raw::SlottedRegion)).
        const SLOTTED_REGION = 1 << 23;
    }
}

/// For people: `shared receive queue, window type 2A`.
impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_names(f, self.iter_names().map(|(name, _)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_printed_in_words() {
        let some = Capabilities::READ | Capabilities::WINDOW_TYPE_2A | Capabilities::FREE_UDP_PORT;
        assert_eq!(some.to_string(), "READ, window type 2A, free UDP port");
        assert_eq!(Capabilities::empty().to_string(), "");
    }
}
