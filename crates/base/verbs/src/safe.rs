//! The safe layer: thin, reference-counted types over [`raw`]. See the crate's documentation for why posting through
//! them is safe.
#![allow(unsafe_code, reason = "this file is where the raw layer is made safe")]

mod memory;

#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::raw;
use crate::{
    AsyncEvent, Counter, CreateError, DatagramDestination, DestroyError, DeviceAttributes, EventError, Gid, GidEntry,
    ModifyError, MulticastError, PathAttributes, PollError, PortAttributes, PostError, PostErrorKind, QueryError,
    QueuePairAttributes, QueuePairLimits, QueuePairNumber, QueuePairState, ReceiveRequest, ScatterGatherEntry,
    SendFlags, SendRequest, SharedReceiveQueueAttributes, SharedReceiveQueueChange, Transport, WorkCompletion,
    WriteBurst,
};

pub use memory::{MemoryRegion, MemoryWindow, NullRegion, SlottedRegion};

/// An open device.
#[derive(Clone)]
pub struct Device {
    raw: Arc<dyn raw::Device>,
}

impl Device {
    /// The safe face of a device.
    pub fn new(raw: Arc<dyn raw::Device>) -> Self {
        Device { raw }
    }

    /// The raw device.
    pub fn raw(&self) -> &Arc<dyn raw::Device> {
        &self.raw
    }

    /// The name that users call it by.
    pub fn name(&self) -> &str {
        self.raw.name()
    }

    /// Sizes and abilities.
    pub fn attributes(&self) -> Result<DeviceAttributes, QueryError> {
        self.raw.attributes()
    }

    /// A port, counted from 1.
    pub fn port_attributes(&self, port: u8) -> Result<PortAttributes, QueryError> {
        self.raw.port_attributes(port)
    }

    /// A row of a port's GID table.
    pub fn gid(&self, port: u8, index: u32) -> Result<GidEntry, QueryError> {
        self.raw.gid(port, index)
    }

    /// A row of a port's partition key table.
    pub fn partition_key(&self, port: u8, index: u16) -> Result<u16, QueryError> {
        self.raw.partition_key(port, index)
    }

    /// What the device has counted so far.
    pub fn counters(&self) -> Vec<Counter> {
        self.raw.counters()
    }

    /// A new protection domain.
    pub fn allocate_protection_domain(&self) -> Result<ProtectionDomain, CreateError> {
        Ok(ProtectionDomain { raw: self.raw.allocate_protection_domain()?, device: self.clone() })
    }

    /// A new completion channel.
    pub fn create_completion_channel(&self) -> Result<CompletionChannel, CreateError> {
        Ok(CompletionChannel { raw: self.raw.create_completion_channel()? })
    }

    /// A new completion queue with room for at least `entries`.
    pub fn create_completion_queue(&self, entries: u32) -> Result<CompletionQueue, CreateError> {
        Ok(CompletionQueue { raw: self.raw.create_completion_queue(entries, None)?, _channel: None })
    }

    /// A new completion queue whose events go to a channel, with this token.
    pub fn create_completion_queue_on(
        &self,
        entries: u32,
        channel: &CompletionChannel,
        token: u64,
    ) -> Result<CompletionQueue, CreateError> {
        let raw = self.raw.create_completion_queue(entries, Some((&*channel.raw, token)))?;
        Ok(CompletionQueue { raw, _channel: Some(channel.clone()) })
    }

    /// The next asynchronous event, if there is one.
    pub fn next_event(&self) -> Result<Option<AsyncEvent>, EventError> {
        self.raw.next_event()
    }

    /// A descriptor that is readable when there is an asynchronous event.
    #[cfg(unix)]
    pub fn event_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.raw.event_descriptor()
    }
}

/// Regions and queue pairs that may work together.
#[derive(Clone)]
pub struct ProtectionDomain {
    raw: Arc<dyn raw::ProtectionDomain>,
    device: Device,
}

impl ProtectionDomain {
    /// The raw object.
    pub fn raw(&self) -> &Arc<dyn raw::ProtectionDomain> {
        &self.raw
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A shared receive queue.
    pub fn create_shared_receive_queue(
        &self,
        attributes: SharedReceiveQueueAttributes,
    ) -> Result<SharedReceiveQueue, CreateError> {
        Ok(SharedReceiveQueue { raw: self.raw.create_shared_receive_queue(attributes)?, _domain: self.clone() })
    }

    /// A way to a peer, for datagrams.
    pub fn create_address_handle(&self, path: &PathAttributes) -> Result<AddressHandle, CreateError> {
        Ok(AddressHandle { raw: self.raw.create_address_handle(path)?, _domain: self.clone() })
    }

    /// A queue pair in state RESET.
    pub fn create_queue_pair(
        &self,
        transport: Transport,
        send_queue: &CompletionQueue,
        receive_queue: &CompletionQueue,
        options: &QueuePairOptions,
    ) -> Result<QueuePair, CreateError> {
        let raw = self.raw.create_queue_pair(&raw::QueuePairInit {
            transport,
            send_queue: &*send_queue.raw,
            receive_queue: &*receive_queue.raw,
            shared_receive_queue: options.shared_receive_queue.as_ref().map(|queue| &*queue.raw),
            limits: options.limits,
            signal_all: options.signal_all,
        })?;
        Ok(QueuePair {
            raw,
            domain: self.clone(),
            _completion_queues: [send_queue.clone(), receive_queue.clone()],
            _shared_receive_queue: options.shared_receive_queue.clone(),
        })
    }
}

/// What else a queue pair is made from.
#[derive(Clone, Default)]
pub struct QueuePairOptions {
    /// Sizes.
    pub limits: QueuePairLimits,
    /// Every send makes a completion, whatever its flags.
    pub signal_all: bool,
    /// Receives come from here instead of its own queue.
    pub shared_receive_queue: Option<SharedReceiveQueue>,
}

/// Where events of completion queues arrive.
#[derive(Clone)]
pub struct CompletionChannel {
    raw: Arc<dyn raw::CompletionChannel>,
}

impl CompletionChannel {
    /// The token of a completion queue that has something, if there is one.
    pub fn next_event(&self) -> Result<Option<u64>, EventError> {
        self.raw.next_event()
    }

    /// A descriptor that is readable when there is an event.
    #[cfg(unix)]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.raw.descriptor()
    }
}

/// Where completions arrive.
#[derive(Clone)]
pub struct CompletionQueue {
    raw: Arc<dyn raw::CompletionQueue>,
    _channel: Option<CompletionChannel>,
}

impl CompletionQueue {
    /// The raw object.
    pub fn raw(&self) -> &Arc<dyn raw::CompletionQueue> {
        &self.raw
    }

    /// Names it in asynchronous events.
    pub fn handle(&self) -> u32 {
        self.raw.handle()
    }

    /// Room.
    pub fn capacity(&self) -> u32 {
        self.raw.capacity()
    }

    /// Take completions; the number taken.
    pub fn poll(&self, completions: &mut [WorkCompletion]) -> Result<usize, PollError> {
        self.raw.poll(completions)
    }

    /// Take one completion, if there is one.
    pub fn poll_one(&self) -> Result<Option<WorkCompletion>, PollError> {
        let mut one = [WorkCompletion::default()];
        Ok((self.raw.poll(&mut one)? == 1).then_some(one[0]))
    }

    /// Raise one event at the next (solicited) completion.
    pub fn request_notification(&self, solicited_only: bool) -> Result<(), PollError> {
        self.raw.request_notification(solicited_only)
    }

    /// Make room for at least this many.
    pub fn resize(&self, entries: u32) -> Result<(), CreateError> {
        self.raw.resize(entries)
    }

    /// Raise an event only after `count` completions or `period_us` microseconds after the first of them.
    /// With either of them 0, events come at once.
    pub fn moderate(&self, count: u16, period_us: u16) -> Result<(), ModifyError> {
        self.raw.moderate(count, period_us)
    }
}

/// Receives for many queue pairs.
#[derive(Clone)]
pub struct SharedReceiveQueue {
    raw: Arc<dyn raw::SharedReceiveQueue>,
    _domain: ProtectionDomain,
}

impl SharedReceiveQueue {
    /// The raw object.
    pub fn raw(&self) -> &Arc<dyn raw::SharedReceiveQueue> {
        &self.raw
    }

    /// Names it in asynchronous events.
    pub fn handle(&self) -> u32 {
        self.raw.handle()
    }

    /// Change its limit or size.
    pub fn modify(&self, change: SharedReceiveQueueChange) -> Result<(), ModifyError> {
        self.raw.modify(change)
    }

    /// Its sizes.
    pub fn query(&self) -> Result<SharedReceiveQueueAttributes, QueryError> {
        self.raw.query()
    }

    /// Post receives, in order.
    pub fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the device checks the entries' keys and ranges.
        unsafe { self.raw.post_receive(requests) }
    }
}

/// A way to a peer, for datagrams.
#[derive(Clone)]
pub struct AddressHandle {
    raw: Arc<dyn raw::AddressHandle>,
    _domain: ProtectionDomain,
}

impl AddressHandle {
    /// The destination of a datagram along this path.
    pub fn destination(&self, queue_pair: QueuePairNumber, queue_key: u32) -> DatagramDestination<'_> {
        DatagramDestination { address_handle: &*self.raw, queue_pair, queue_key }
    }
}

/// A queue pair.
#[derive(Clone)]
pub struct QueuePair {
    raw: Arc<dyn raw::QueuePair>,
    domain: ProtectionDomain,
    _completion_queues: [CompletionQueue; 2],
    _shared_receive_queue: Option<SharedReceiveQueue>,
}

impl QueuePair {
    /// The raw object.
    pub fn raw(&self) -> &Arc<dyn raw::QueuePair> {
        &self.raw
    }

    /// Its protection domain.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Its number.
    pub fn number(&self) -> QueuePairNumber {
        self.raw.number()
    }

    /// Its transport.
    pub fn transport(&self) -> Transport {
        self.raw.transport()
    }

    /// Its state now.
    pub fn state(&self) -> QueuePairState {
        self.raw.state()
    }

    /// Change it.
    pub fn modify(&self, attributes: &QueuePairAttributes) -> Result<(), ModifyError> {
        self.raw.modify(attributes)
    }

    /// All its attributes.
    pub fn query(&self) -> Result<QueuePairAttributes, QueryError> {
        self.raw.query()
    }

    /// The UDP port that its packets come from, when they leave from this row of the GID table; `None` on devices that
    /// do not show it. Peers that know it can drop packets from other ports ([`PathAttributes::peer_source_port`]).
    pub fn source_port(&self, source_gid_index: u8) -> Option<u16> {
        self.raw.source_port(source_gid_index)
    }

    /// Post sends, in order. Without the flag `INLINE`; see [`QueuePair::post_send_inline`].
    pub fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        if let Some(index) = requests.iter().position(|request| request.flags.contains(SendFlags::INLINE)) {
            return Err(PostErrorKind::InlineFlag.at(index));
        }
        // SAFETY: nothing is inline, so the device checks every entry's key and range.
        unsafe { self.raw.post_send(requests) }
    }

    /// Post one send whose data is copied now. `request.local` is not used.
    pub fn post_send_inline(&self, request: &SendRequest<'_>, data: &[u8]) -> Result<(), PostError> {
        let Ok(length) = u32::try_from(data.len()) else {
            return Err(PostErrorKind::TooMuchInline { bytes: data.len() as u64, most: u32::MAX }.at(0));
        };
        let entry = [ScatterGatherEntry { address: data.as_ptr() as u64, length, local_key: 0 }];
        let request = SendRequest { local: &entry, flags: request.flags | SendFlags::INLINE, ..*request };
        // SAFETY: the one entry is `data`, readable during the call.
        unsafe { self.raw.post_send(&[request]) }
    }

    /// Post receives, in order.
    pub fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the device checks the entries' keys and ranges.
        unsafe { self.raw.post_receive(requests) }
    }

    /// Post many single-packet WRITEs with immediate.
    pub fn post_write_burst(&self, burst: &WriteBurst<'_>) -> Result<(), PostError> {
        // SAFETY: a burst is never inline (the device refuses it), so the device checks its entry.
        unsafe { self.raw.post_write_burst(burst) }
    }

    /// Receive what is sent to a group.
    pub fn attach_multicast(&self, group: Gid) -> Result<(), MulticastError> {
        self.raw.attach_multicast(group, 0)
    }

    /// Stop receiving it.
    pub fn detach_multicast(&self, group: Gid) -> Result<(), MulticastError> {
        self.raw.detach_multicast(group, 0)
    }

    /// Destroy it now; requests that had not completed are forgotten.
    pub fn destroy(&self) -> Result<(), DestroyError> {
        self.raw.destroy()
    }
}
