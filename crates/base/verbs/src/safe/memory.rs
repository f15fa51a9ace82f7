//! Memory in the safe layer: regions that own their bytes, and keys for parts of them.
#![allow(unsafe_code, reason = "a region owns memory that a device uses through a pointer")]

use std::ops::Range;
use std::sync::Arc;

use super::{ProtectionDomain, QueuePair};
use crate::raw;
use crate::{
    Access, CreateError, DestroyError, PostError, RegisterError, RemoteMemory, ScatterGatherEntry, SendFlags,
    SlotBinding, WindowBinding, WindowType,
};

impl ProtectionDomain {
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

    /// A region that takes writes and keeps nothing, and reads as zeros.
    pub fn allocate_null_region(&self) -> Result<NullRegion, RegisterError> {
        Ok(NullRegion { raw: self.raw.allocate_null_region()?, _domain: self.clone() })
    }

    /// A key over `slots` slots of `slot_bytes` bytes each, all of them bound to nothing.
    pub fn allocate_slotted_region(
        &self,
        slots: u32,
        slot_bytes: u64,
        access: Access,
    ) -> Result<SlottedRegion, RegisterError> {
        Ok(SlottedRegion { raw: self.raw.allocate_slotted_region(slots, slot_bytes, access)?, _domain: self.clone() })
    }

    /// A memory window, not yet bound.
    pub fn allocate_memory_window(&self, window_type: WindowType) -> Result<MemoryWindow, CreateError> {
        Ok(MemoryWindow { raw: self.raw.allocate_memory_window(window_type)?, _domain: self.clone() })
    }
}

/// Registered memory that owns its bytes.
///
/// While it is registered a device (or a peer, through it) may change the bytes at any moment, so there is no slice of
/// them: they are copied in and out. A copy that overlaps a change may see part of it. (In Rust's memory model two
/// threads that copy the same bytes at the same time race, and the language has no copy yet that may; on the machines
/// that devices run on the bytes are old or new. A program that waits for the completion, as it must to know what it
/// has, never races.)
///
/// A device does not deregister a region that windows are bound to ([`DestroyError::InUse`]). One that is dropped all
/// the same is out of their reach, or, if the device cannot do that, leaks its bytes. Slots of a [`SlottedRegion`] do
/// not count; they refuse everything from then on.
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

/// The result of deregistering a region. If the raw object has already been deregistered, that is success too.
fn let_go(result: Result<(), DestroyError>) -> Result<(), DestroyError> {
    match result {
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

    /// The place at `offset`, for a peer. Not checked here: the device checks what a peer does with it.
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

    /// Revoke the keys and take the bytes back. When the device does not revoke them (windows are bound to the region,
    /// for one) the region is dropped.
    pub fn into_buffer(mut self) -> Result<Vec<u8>, DestroyError> {
        let_go(self.owned().raw.deregister())?;
        let OwnedRegion { memory, length, .. } = self.inner.take().expect("taken only here and in drop");
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
        if let_go(raw.abandon()).is_ok() {
            // SAFETY: as in `into_buffer`. If the device could not revoke the key, the bytes are leaked on purpose.
            drop(unsafe { into_box(memory, length) });
        }
    }
}

/// A region that takes writes and keeps nothing, and reads as zeros.
#[derive(Clone)]
pub struct NullRegion {
    raw: Arc<dyn raw::MemoryRegion>,
    _domain: ProtectionDomain,
}

impl NullRegion {
    /// The raw object.
    pub fn raw(&self) -> &Arc<dyn raw::MemoryRegion> {
        &self.raw
    }

    /// An entry of this many bytes for a work request.
    pub fn entry(&self, length: u32) -> ScatterGatherEntry {
        ScatterGatherEntry { address: 0, length, local_key: self.raw.local_key() }
    }
}

/// One key over many messages, each in its slot.
#[derive(Clone)]
pub struct SlottedRegion {
    raw: Arc<dyn raw::SlottedRegion>,
    _domain: ProtectionDomain,
}

impl SlottedRegion {
    /// The raw object.
    pub fn raw(&self) -> &Arc<dyn raw::SlottedRegion> {
        &self.raw
    }

    /// The key for peers.
    pub fn remote_key(&self) -> u32 {
        self.raw.remote_key()
    }

    /// Numbers that have addresses.
    pub fn number_count(&self) -> u64 {
        u64::MAX / self.raw.slot_bytes()
    }

    /// The place `offset` bytes into a number's slot, for a peer. Not checked here: the device checks what a peer does
    /// with it.
    pub fn remote(&self, number: u64, offset: u64) -> RemoteMemory {
        let address = self.raw.slot_bytes().wrapping_mul(number).wrapping_add(offset);
        RemoteMemory { address, key: self.remote_key() }
    }

    /// Bind a number to bytes of a region. When this returns, nothing is written any more to what its slot was bound to
    /// before. Panics when the range is not inside the region.
    pub fn bind(&self, number: u64, region: &MemoryRegion, range: Range<usize>) -> Result<(), RegisterError> {
        let length = range.end - range.start;
        region.check(range.start, length);
        let address = region.address() + range.start as u64;
        self.raw.bind_slot(
            number,
            Some(SlotBinding { region: &**region.raw(), address, length: length as u64, is_blank: false }),
        )
    }

    /// Bind a number to nothing: writes are taken and not kept.
    pub fn unbind(&self, number: u64) -> Result<(), RegisterError> {
        self.raw.bind_slot(number, None)
    }

    /// Revoke the key.
    pub fn deregister(&self) -> Result<(), DestroyError> {
        self.raw.deregister()
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

    /// Bind a type 1 window through a queue pair's send queue. The request ends with a completion, as every other; from
    /// this call on [`remote_key`](MemoryWindow::remote_key) is the new key.
    pub fn bind(
        &self,
        through: &QueuePair,
        id: u64,
        flags: SendFlags,
        binding: &WindowBinding<'_>,
    ) -> Result<(), PostError> {
        self.raw.bind(&*through.raw, id, flags, binding)
    }

    /// Free the window: its key is revoked when this returns.
    pub fn deallocate(&self) -> Result<(), DestroyError> {
        self.raw.deallocate()
    }
}
