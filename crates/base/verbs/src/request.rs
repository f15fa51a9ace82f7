//! What is asked of a queue pair: work requests.

use bitflags::bitflags;

use crate::raw;
use crate::{Access, QueuePairNumber};

/// One piece of local memory: libibverbs' `ibv_sge`, same layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ScatterGatherEntry {
    /// Address within the region (of this process; from zero in a zero-based region).
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The region's local key.
    pub local_key: u32,
}

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RemoteMemory {
    /// Address as the peer sees it.
    pub address: u64,
    /// The key that the peer gave for it.
    pub key: u32,
}

bitflags! {
    /// Options of one send request. Bits are libibverbs'.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u32 {
        /// Wait for earlier READs and atomics of this queue pair.
        const FENCE = 1 << 0;
        /// Make a completion even when it succeeds. Without it only a failure does, unless the queue pair signals all.
        const SIGNALED = 1 << 1;
        /// Raise an event at the receiver's completion queue when that waits for solicited ones.
        const SOLICITED = 1 << 2;
        /// The entries are read by the CPU while posting; keys are ignored and the memory is free afterwards.
        const INLINE = 1 << 3;
    }
}

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum SendOperation {
    /// Send a message into the peer's next receive.
    Send,
    /// The same, with 32 bits for the completion.
    SendWithImmediate(u32),
    /// The same, and invalidate this key at the peer.
    SendWithInvalidate(u32),
    /// Write into the peer's memory; the peer's program gets no completion.
    Write(RemoteMemory),
    /// Write, then consume one of the peer's receives and put 32 bits into its completion.
    WriteWithImmediate(RemoteMemory, u32),
    /// Read the peer's memory.
    Read(RemoteMemory),
    /// Replace eight bytes of the peer's memory by `swap` if they equal `compare`; the old value comes back.
    CompareAndSwap {
        /// Where, aligned to eight bytes.
        remote: RemoteMemory,
        /// The value that must be there.
        compare: u64,
        /// The value to put.
        swap: u64,
    },
    /// Add to eight bytes of the peer's memory; the old value comes back.
    FetchAndAdd {
        /// Where, aligned to eight bytes.
        remote: RemoteMemory,
        /// What to add.
        add: u64,
    },
    /// Make this local key invalid.
    LocalInvalidate(u32),
    /// Bind a type 2 window, as [`SendRequest::window`] says, under this key (its lower byte is the program's to
    /// choose).
    BindWindow(u32),
}

/// Where a datagram goes.
#[derive(Clone, Copy)]
pub struct DatagramDestination<'a> {
    /// The path.
    pub address_handle: &'a dyn raw::AddressHandle,
    /// The peer's queue pair, or [`QueuePairNumber::MULTICAST`].
    pub queue_pair: QueuePairNumber,
    /// The key that the peer's queue pair demands.
    pub queue_key: u32,
}

/// A request for the send queue: libibverbs' `ibv_send_wr`. A batch is a slice of them, not a linked list.
#[derive(Clone, Copy)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do.
    pub operation: SendOperation,
    /// The local memory: gathered from (SEND, WRITE) or scattered to (READ, atomics).
    pub local: &'a [ScatterGatherEntry],
    /// Options.
    pub flags: SendFlags,
    /// For unreliable datagrams only.
    pub destination: Option<DatagramDestination<'a>>,
    /// For [`SendOperation::BindWindow`] only.
    pub window: Option<WindowRequest<'a>>,
}

impl<'a> SendRequest<'a> {
    /// A signalled request without further options.
    pub fn new(id: u64, operation: SendOperation, local: &'a [ScatterGatherEntry]) -> Self {
        SendRequest { id, operation, local, flags: SendFlags::SIGNALED, destination: None, window: None }
    }

    /// The same with these flags instead.
    #[must_use]
    pub fn with_flags(self, flags: SendFlags) -> Self {
        SendRequest { flags, ..self }
    }

    /// The same, to this datagram destination.
    #[must_use]
    pub fn to(self, destination: DatagramDestination<'a>) -> Self {
        SendRequest { destination: Some(destination), ..self }
    }
}

/// A request for a receive queue: libibverbs' `ibv_recv_wr`.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// Where the message goes, entry after entry. For unreliable datagrams the first 40 bytes are for the GRH.
    pub local: &'a [ScatterGatherEntry],
}

/// Many single-packet WRITEs with immediate in one call: the form in which messages with partial completion are
/// sent. Request `i` writes bytes `[i·stride, (i+1)·stride)` of `local` (the last one what is left) to the same
/// offset from `remote`, with `immediates[i]`.
///
/// Only the last request can make a completion on success, when [`SendFlags::SIGNALED`] is set (or the queue pair
/// signals all, then every one does); all carry the same `id`. A device without
/// [`WRITE_BURST`](crate::Capabilities::WRITE_BURST) expands it into single requests.
#[derive(Clone, Copy, Debug)]
pub struct WriteBurst<'a> {
    /// Comes back in the completions.
    pub id: u64,
    /// The memory to send; at most `immediates.len() · stride` bytes, more than one stride less.
    pub local: ScatterGatherEntry,
    /// Where the first byte goes.
    pub remote: RemoteMemory,
    /// Bytes of each request, at most the path MTU when each is to be one packet.
    pub stride: u32,
    /// One for each request.
    pub immediates: &'a [u32],
    /// Options, as for a single request; `INLINE` is not allowed.
    pub flags: SendFlags,
}

impl WriteBurst<'_> {
    /// The `index`-th of the requests that this burst stands for, with its one entry (the caller keeps it alive).
    pub fn entry(&self, index: usize) -> ScatterGatherEntry {
        let offset = index as u64 * u64::from(self.stride);
        let left = u64::from(self.local.length).saturating_sub(offset);
        ScatterGatherEntry {
            address: self.local.address.wrapping_add(offset),
            length: left.min(u64::from(self.stride)) as u32,
            local_key: self.local.local_key,
        }
    }

    /// The operation of the `index`-th request.
    pub fn operation(&self, index: usize) -> SendOperation {
        let remote = RemoteMemory {
            address: self.remote.address.wrapping_add(index as u64 * u64::from(self.stride)),
            key: self.remote.key,
        };
        SendOperation::WriteWithImmediate(remote, self.immediates[index])
    }

    /// The flags of the `index`-th request: only the last one is signalled.
    pub fn request_flags(&self, index: usize) -> SendFlags {
        if index + 1 == self.immediates.len() { self.flags } else { self.flags - SendFlags::SIGNALED }
    }

    /// Whether `immediates` has exactly as many entries as strides are needed for the length.
    pub fn is_consistent(&self) -> bool {
        let needed = u64::from(self.local.length).div_ceil(u64::from(self.stride.max(1))).max(1);
        self.stride > 0 && needed == self.immediates.len() as u64 && !self.flags.contains(SendFlags::INLINE)
    }
}

/// The kinds of memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// Bound by a call; key chosen by the device.
    Type1,
    /// Bound by a work request; key chosen by the program. Whether 2A or 2B is the device's capability.
    Type2,
}

/// A type 2 window that a send request binds.
#[derive(Clone, Copy)]
pub struct WindowRequest<'a> {
    /// The window.
    pub window: &'a dyn raw::MemoryWindow,
    /// What it is bound to.
    pub binding: WindowBinding<'a>,
}

/// What a memory window is bound to.
#[derive(Clone, Copy)]
pub struct WindowBinding<'a> {
    /// The region behind the window.
    pub region: &'a dyn raw::MemoryRegion,
    /// First byte.
    pub address: u64,
    /// Bytes; 0 unbinds.
    pub length: u64,
    /// What the peer may do through it.
    pub access: Access,
}

/// What a slot of a [`raw::SlottedRegion`] is bound to: the first `length` bytes of the slot are those from `address`
/// on.
#[derive(Clone, Copy)]
pub struct SlotBinding<'a> {
    /// The region, of the same protection domain.
    pub region: &'a dyn raw::MemoryRegion,
    /// First byte, as work requests name it.
    pub address: u64,
    /// Bytes, at most those of a slot.
    pub length: u64,
    /// What the bytes hold now does not matter, and nobody looks at those that no write through this slot has reached
    /// since. So a device may have written anything there, but nothing that reaches beyond `length`, nor what a write
    /// has brought.
    pub is_blank: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_its_single_requests() {
        let burst = WriteBurst {
            id: 7,
            local: ScatterGatherEntry { address: 1000, length: 2500, local_key: 3 },
            remote: RemoteMemory { address: 9000, key: 4 },
            stride: 1024,
            immediates: &[10, 11, 12],
            flags: SendFlags::SIGNALED,
        };
        assert!(burst.is_consistent());
        assert_eq!(burst.entry(0).length, 1024);
        assert_eq!(burst.entry(2).address, 1000 + 2048);
        assert_eq!(burst.entry(2).length, 2500 - 2048);
        let third = SendOperation::WriteWithImmediate(RemoteMemory { address: 9000 + 2048, key: 4 }, 12);
        assert_eq!(burst.operation(2), third);
        assert_eq!(burst.request_flags(0), SendFlags::empty());
        assert_eq!(burst.request_flags(2), SendFlags::SIGNALED);
        let too_few = WriteBurst { immediates: &[10, 11], ..burst };
        assert!(!too_few.is_consistent());
    }
}
