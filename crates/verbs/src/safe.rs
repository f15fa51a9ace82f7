//! The safe layer: thin, reference-counted types over [`raw`]. See the crate's documentation for why posting through
//! them is safe.
#![allow(unsafe_code, reason = "this file is where the raw layer is made safe")]

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::raw;
use crate::{
    Access, AsyncEvent, Counter, CreateError, DatagramDestination, DestroyError, DeviceAttributes, EventError, Gid,
    GidEntry, ModifyError, MulticastError, PathAttributes, PollError, PortAttributes, PostError, PostErrorKind,
    QueryError, QueuePairAttributes, QueuePairLimits, QueuePairNumber, QueuePairState, ReceiveRequest, RegisterError,
    RemoteMemory, ScatterGatherEntry, SendFlags, SendRequest, SharedReceiveQueueAttributes, Transport, WindowType,
    WorkCompletion, WriteBurst,
};

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

    /// Register a buffer; it belongs to the region until [`MemoryRegion::into_buffer`].
    pub fn register(&self, buffer: Vec<u8>, access: Access) -> Result<MemoryRegion, RegisterError> {
        let buffer = buffer.into_boxed_slice();
        let length = buffer.len();
        // From here on the bytes are reached through this pointer only; no `&` or `&mut` to them exists.
        let memory = Box::into_raw(buffer).cast::<u8>();
        let first_address = if access.contains(Access::ZERO_BASED) { 0 } else { memory as u64 };
        // SAFETY: `memory` was just taken from a box and is freed only after deregistration (`MemoryRegion::drop`,
        // `into_buffer`); accesses from this side are copies through the pointer.
        match unsafe { self.raw.register_memory(memory, length, first_address, access) } {
            Ok(raw) => Ok(MemoryRegion { inner: Some(OwnedRegion { raw, memory, length }), domain: self.clone() }),
            Err(error) => {
                // SAFETY: the pointer and length are those of the box above, and nothing was registered.
                drop(unsafe { into_box(memory, length) });
                Err(error)
            }
        }
    }

    /// Register `length` zero bytes.
    pub fn register_zeroed(&self, length: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.register(vec![0; length], access)
    }

    /// A memory window, not yet bound.
    pub fn allocate_memory_window(&self, window_type: WindowType) -> Result<MemoryWindow, CreateError> {
        Ok(MemoryWindow { raw: self.raw.allocate_memory_window(window_type)?, _domain: self.clone() })
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

/// Registered memory that owns its bytes.
///
/// While it is registered a device (or a peer, through it) may change the bytes at any moment, so there is no slice
/// of them: they are copied in and out. A copy that overlaps a change may see part of it. (In Rust's memory model two threads
/// that copy the same bytes at the same time race, and the language has no copy yet that may; on the machines that devices
/// run on the bytes are old or new. A program that waits for the completion, as it must to know what it has, never races.)
pub struct MemoryRegion {
    /// `None` only while being taken apart.
    inner: Option<OwnedRegion>,
    domain: ProtectionDomain,
}

struct OwnedRegion {
    raw: Arc<dyn raw::MemoryRegion>,
    memory: *mut u8,
    length: usize,
}

// SAFETY: the pointer is to memory that the region owns; it is only used for copies, as by the device's own threads.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above; concurrent copies are those that the type's documentation speaks of.
unsafe impl Sync for MemoryRegion {}

/// # Safety
///
/// `memory` and `length` must be those of a `Box<[u8]>` that was turned into a pointer, and nobody else may use them.
unsafe fn into_box(memory: *mut u8, length: usize) -> Box<[u8]> {
    // SAFETY: the caller's promise.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(memory, length)) }
}

/// Have the device let go of a region. That somebody has done so through the raw object is as good.
fn revoke(region: &dyn raw::MemoryRegion) -> Result<(), DestroyError> {
    match region.deregister() {
        Err(DestroyError::Gone) => Ok(()),
        result => result,
    }
}

impl MemoryRegion {
    fn owned(&self) -> &OwnedRegion {
        // Only `into_buffer` and `drop` take it, and both consume the region.
        self.inner.as_ref().expect("a region in use has its memory")
    }

    /// The raw object.
    pub fn raw(&self) -> &Arc<dyn raw::MemoryRegion> {
        &self.owned().raw
    }

    /// Its protection domain.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// The key for this process's work requests.
    pub fn local_key(&self) -> u32 {
        self.owned().raw.local_key()
    }

    /// The key for peers.
    pub fn remote_key(&self) -> u32 {
        self.owned().raw.remote_key()
    }

    /// The first byte's address, as work requests and peers name it.
    pub fn address(&self) -> u64 {
        self.owned().raw.address()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.owned().length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An entry for a work request. Panics when the range is not inside the region.
    pub fn entry(&self, range: Range<usize>) -> ScatterGatherEntry {
        self.check(range.start, range.end - range.start);
        ScatterGatherEntry {
            address: self.address() + range.start as u64,
            length: u32::try_from(range.end - range.start).expect("an entry is shorter than 4 GiB"),
            local_key: self.local_key(),
        }
    }

    /// The place at `offset`, for a peer. Not checked: peers may be told anything.
    pub fn remote(&self, offset: u64) -> RemoteMemory {
        RemoteMemory { address: self.address().wrapping_add(offset), key: self.remote_key() }
    }

    /// Copy bytes into the region. Panics when they do not fit.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: the range was checked, the memory is alive as long as `self`, and `bytes` is not part of it
        // because no slice of it exists. The device may write there meanwhile: the bytes are plain data, and which
        // of the two wins is up to the program, as with every RDMA device.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.owned().memory.add(offset), bytes.len()) }
    }

    /// Copy bytes out of the region. Panics when the range is not inside it.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.check(offset, bytes.len());
        // SAFETY: as in `copy_in`, in the other direction.
        unsafe { std::ptr::copy_nonoverlapping(self.owned().memory.add(offset), bytes.as_mut_ptr(), bytes.len()) }
    }

    /// A copy of a range of the region.
    pub fn to_vec(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.end - range.start];
        self.copy_out(range.start, &mut bytes);
        bytes
    }

    /// Revoke the keys and take the bytes back. When the device cannot revoke them the bytes are leaked, because it
    /// may still write there.
    pub fn into_buffer(mut self) -> Result<Vec<u8>, DestroyError> {
        let OwnedRegion { raw, memory, length } = self.inner.take().expect("taken only here and in drop");
        revoke(&*raw)?;
        // SAFETY: pointer and length are the box's (`register`), and the device has confirmed that it is done.
        Ok(unsafe { into_box(memory, length) }.into_vec())
    }

    fn check(&self, offset: usize, length: usize) {
        let end = offset.checked_add(length).expect("offset plus length does not wrap");
        assert!(end <= self.len(), "bytes {offset}..{end} are not inside a region of {} bytes", self.len());
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let Some(OwnedRegion { raw, memory, length }) = self.inner.take() else {
            return;
        };
        if revoke(&*raw).is_ok() {
            // SAFETY: as in `into_buffer`. If the device could not revoke the key, the bytes are leaked on purpose.
            drop(unsafe { into_box(memory, length) });
        }
    }
}

/// A key for a part of a region.
#[derive(Clone)]
pub struct MemoryWindow {
    raw: Arc<dyn raw::MemoryWindow>,
    _domain: ProtectionDomain,
}

impl MemoryWindow {
    /// The raw object, for binding.
    pub fn raw(&self) -> &Arc<dyn raw::MemoryWindow> {
        &self.raw
    }

    /// The key for peers.
    pub fn remote_key(&self) -> u32 {
        self.raw.remote_key()
    }
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

    /// Everything that can be told of it.
    pub fn query(&self) -> Result<QueuePairAttributes, QueryError> {
        self.raw.query()
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
