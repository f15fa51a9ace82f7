//! Memory that messages are sent from and received into, where it lies.
//!
//! A device may write into a buffer while a receive is open on it, and read from it while a send is. Each of them borrows the bytes
//! that it works on, as Rust's references do, only at run time: sends may share bytes, a receive has its bytes alone, and a
//! slice exists only of bytes that no receive has borrowed. So [`Memory::read`] and [`Memory::write`] give plain slices, and nothing
//! is copied.
#![allow(unsafe_code, reason = "owns memory that a device uses through a pointer, and lends slices of it")]

use std::any::Any;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_verbs::{
    Access, DestroyError, ProtectionDomain, RegisterError, ScatterGatherEntry, SlotBinding, SlottedRegion, raw,
};
use thiserror::Error;

/// Registered bytes, for sends and receives of every queue pair of a context. Clones are the same bytes.
#[derive(Clone)]
pub struct Memory {
    inner: Arc<Inner>,
}

struct Inner {
    pointer: *mut u8,
    length: usize,
    owner: Owner,
    /// For this device's own reading, and what slots are bound to. Peers have no right to it.
    local: Arc<dyn raw::MemoryRegion>,
    domain: ProtectionDomain,
    borrows: Mutex<Borrows>,
}

// SAFETY: the pointer is to memory that `Inner` keeps alive; who may touch which bytes is decided by `borrows`, under its lock.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// What the bytes belong to.
enum Owner {
    /// A box, that was turned into the pointer.
    Buffer,
    /// Something of the program's, that is to be dropped.
    Program(Box<dyn Any + Send + Sync>),
    /// They have been given away.
    Nobody,
}

impl Owner {
    /// Free the bytes.
    ///
    /// # Safety
    ///
    /// Pointer and length must be those that this is the owner of, and nobody may use the bytes any more.
    unsafe fn free(self, pointer: *mut u8, length: usize) {
        match self {
            // SAFETY: the caller's promise.
            Owner::Buffer => drop(unsafe { into_box(pointer, length) }),
            Owner::Program(owner) => drop(owner),
            Owner::Nobody => {}
        }
    }
}

#[derive(Default)]
struct Borrows {
    /// By number. Bytes that are being sent or read: as many as pieces of messages wait, which can be thousands, so nothing
    /// looks at all of them for another piece to send.
    shared: BTreeMap<u64, Range<usize>>,
    /// Bytes that one alone has: receives, their results, and guards for writing.
    alone: BTreeMap<u64, Range<usize>>,
    next: u64,
    /// There will be no others.
    are_retired: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Shared,
    Alone,
}

/// Bytes that cannot be borrowed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BorrowError {
    /// They are not there.
    #[error("bytes {range:?} are outside the memory, which has {length} bytes")]
    Outside {
        /// What was wanted.
        range: Range<usize>,
        /// Bytes of the memory.
        length: usize,
    },
    /// Somebody has them.
    #[error("bytes {range:?} are in use: bytes {by:?} are being sent, received or read; wait until that has ended")]
    InUse {
        /// What was wanted.
        range: Range<usize>,
        /// What is in use.
        by: Range<usize>,
    },
    /// Nobody can have them any more.
    #[error("the memory cannot be used any more: the scope that lent it has ended")]
    Retired,
}

impl Memory {
    /// Register bytes; they come back with [`Memory::into_buffer`]. Every context of the protection domain can use them.
    pub fn register(domain: &ProtectionDomain, buffer: Vec<u8>) -> Result<Self, RegisterError> {
        let buffer = buffer.into_boxed_slice();
        let length = buffer.len();
        let pointer = Box::into_raw(buffer).cast::<u8>();
        // SAFETY: the pointer comes from a box that is freed only after deregistration (`Inner::drop`, `into_buffer`).
        unsafe { Self::register_owned(domain, pointer, length, Owner::Buffer) }
    }

    /// Register bytes that something else owns. `owner` is dropped when the device and all messages have let go of them; at once if they
    /// cannot be registered, and never if the device does not let go of them.
    ///
    /// # Safety
    ///
    /// The pointer must be valid for reads and writes of `length` bytes, from any thread, until `owner` is dropped. By
    /// other means than this memory nobody may write bytes while they are being sent or a [`ReadGuard`] of them exists,
    /// nor read or write them while a receive into them is open, or [`ReceivedBytes`] or a [`WriteGuard`] of them
    /// exist.
    pub unsafe fn register_pointer(
        domain: &ProtectionDomain,
        pointer: NonNull<u8>,
        length: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self, RegisterError> {
        // SAFETY: the caller's promise.
        unsafe { Self::register_owned(domain, pointer.as_ptr(), length, Owner::Program(owner)) }
    }

    /// # Safety
    ///
    /// As for [`Memory::register_pointer`]; [`Owner::Buffer`] is for a box that was turned into a pointer.
    unsafe fn register_owned(
        domain: &ProtectionDomain,
        pointer: *mut u8,
        length: usize,
        owner: Owner,
    ) -> Result<Self, RegisterError> {
        // SAFETY: the owner is dropped only after deregistration. Peers have no right to this region, so the device touches bytes only for
        // requests of ours, which hold a borrow of them.
        match unsafe { domain.raw().register_memory(pointer, length, pointer as u64, Access::LOCAL_WRITE) } {
            Ok(local) => {
                let (domain, borrows) = (domain.clone(), Mutex::default());
                Ok(Memory { inner: Arc::new(Inner { pointer, length, owner, local, domain, borrows }) })
            }
            Err(error) => {
                // SAFETY: nothing was registered, so nobody uses the bytes.
                unsafe { owner.free(pointer, length) };
                Err(error)
            }
        }
    }

    /// Whether no message has these bytes, and there is no other clone.
    pub fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.inner) == 1
    }

    /// Take the bytes out of use for all clones: from now on nobody can borrow any of them. Returns whether nobody has borrowed any, and the device has
    /// let go of them; if not, ask again.
    pub fn retire(&self) -> bool {
        let is_unused = {
            let mut borrows = self.inner.borrows();
            borrows.are_retired = true;
            borrows.shared.is_empty() && borrows.alone.is_empty()
        };
        is_unused && matches!(self.inner.local.deregister(), Ok(()) | Err(DestroyError::Gone))
    }

    /// Whether it was registered in this protection domain. A request with memory of another one would end its queue pair.
    pub(crate) fn is_of(&self, domain: &ProtectionDomain) -> bool {
        Arc::ptr_eq(self.inner.domain.raw(), domain.raw())
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.inner.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Look at bytes. They may be sent meanwhile, but no receive may be open on them.
    pub fn read(&self, range: Range<usize>) -> Result<ReadGuard<'_>, BorrowError> {
        self.read_owned(range)
    }

    /// As [`Memory::read`], for as long as wanted, and on any thread: the memory lives as long as the guard does.
    pub fn read_owned(&self, range: Range<usize>) -> Result<ReadGuard<'static>, BorrowError> {
        Ok(ReadGuard { borrow: self.borrow(range, Kind::Shared)?, _memory: PhantomData })
    }

    /// Change bytes that nobody else uses.
    pub fn write(&self, range: Range<usize>) -> Result<WriteGuard<'_>, BorrowError> {
        self.write_owned(range)
    }

    /// As [`Memory::write`], for as long as wanted, and on any thread: the memory lives as long as the guard does.
    pub fn write_owned(&self, range: Range<usize>) -> Result<WriteGuard<'static>, BorrowError> {
        Ok(WriteGuard { borrow: self.borrow(range, Kind::Alone)?, _memory: PhantomData })
    }

    /// The bytes again, if they were registered as a buffer, this is the last clone, and nothing is in flight on them; otherwise the memory
    /// itself.
    pub fn into_buffer(self) -> Result<Vec<u8>, Memory> {
        let mut inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(inner) => return Err(Memory { inner }),
        };
        let is_buffer = matches!(inner.owner, Owner::Buffer);
        if !is_buffer || !matches!(inner.local.deregister(), Ok(()) | Err(DestroyError::Gone)) {
            return Err(Memory { inner: Arc::new(inner) });
        }
        inner.owner = Owner::Nobody;
        // SAFETY: pointer and length are the box's; the device has let go of it, nobody else has the memory, and `inner` does not free it.
        Ok(unsafe { into_box(inner.pointer, inner.length) }.into_vec())
    }

    /// Bytes that are to be sent.
    pub(crate) fn lend_to_send(&self, range: Range<usize>) -> Result<Outgoing, BorrowError> {
        Ok(Outgoing { borrow: Arc::new(self.borrow(range, Kind::Shared)?) })
    }

    /// Bytes that a message is to be received into.
    pub(crate) fn lend_to_receive(&self, range: Range<usize>) -> Result<Incoming, BorrowError> {
        Ok(Incoming { borrow: self.borrow(range, Kind::Alone)? })
    }

    fn borrow(&self, range: Range<usize>, kind: Kind) -> Result<Borrow, BorrowError> {
        if range.start > range.end || range.end > self.len() {
            return Err(BorrowError::Outside { range, length: self.len() });
        }
        let mut borrows = self.inner.borrows();
        if borrows.are_retired {
            return Err(BorrowError::Retired);
        }
        if let Some(by) = borrows.conflict(&range, kind) {
            return Err(BorrowError::InUse { by: by.clone(), range });
        }
        let id = borrows.next;
        borrows.next += 1;
        let of_its_kind = match kind {
            Kind::Shared => &mut borrows.shared,
            Kind::Alone => &mut borrows.alone,
        };
        of_its_kind.insert(id, range.clone());
        drop(borrows);
        Ok(Borrow { memory: self.inner.clone(), id, range })
    }
}

impl Borrows {
    /// Bytes that somebody has, who would not share them.
    fn conflict(&self, range: &Range<usize>, kind: Kind) -> Option<&Range<usize>> {
        let overlaps = |other: &&Range<usize>| other.start < range.end && range.start < other.end;
        let shared = (kind == Kind::Alone).then_some(&self.shared);
        self.alone.values().chain(shared.into_iter().flat_map(BTreeMap::values)).find(overlaps)
    }
}

impl Inner {
    fn borrows(&self) -> std::sync::MutexGuard<'_, Borrows> {
        self.borrows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let owner = std::mem::replace(&mut self.owner, Owner::Nobody);
        match self.local.abandon() {
            // SAFETY: pointer and length are the owner's; the device has let go of the bytes, and nobody else has the memory.
            Ok(()) | Err(DestroyError::Gone) => unsafe { owner.free(self.pointer, self.length) },
            // The device could not let go of them: they are leaked on purpose.
            Err(_) => std::mem::forget(owner),
        }
    }
}

/// # Safety
///
/// Pointer and length must be those of a `Box<[u8]>` that was turned into a pointer, and nobody else may use them.
unsafe fn into_box(pointer: *mut u8, length: usize) -> Box<[u8]> {
    // SAFETY: the caller's promise.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(pointer, length)) }
}

/// Some bytes, as long as this exists.
struct Borrow {
    memory: Arc<Inner>,
    id: u64,
    range: Range<usize>,
}

impl Drop for Borrow {
    fn drop(&mut self) {
        let mut borrows = self.memory.borrows();
        if borrows.shared.remove(&self.id).is_none() {
            borrows.alone.remove(&self.id);
        }
    }
}

impl Borrow {
    fn pointer(&self) -> *mut u8 {
        // SAFETY: the range was checked against the length when it was borrowed.
        unsafe { self.memory.pointer.add(self.range.start) }
    }
}

/// Bytes to look at.
pub struct ReadGuard<'a> {
    borrow: Borrow,
    _memory: PhantomData<&'a Memory>,
}

impl Deref for ReadGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the borrow is shared: others only read these bytes until it ends, the device included.
        unsafe { std::slice::from_raw_parts(self.borrow.pointer(), self.borrow.range.len()) }
    }
}

/// Bytes to change.
pub struct WriteGuard<'a> {
    borrow: Borrow,
    _memory: PhantomData<&'a Memory>,
}

impl Deref for WriteGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: nobody else has these bytes until the borrow ends.
        unsafe { std::slice::from_raw_parts(self.borrow.pointer(), self.borrow.range.len()) }
    }
}

impl DerefMut for WriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: nobody else has these bytes until the borrow ends, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.borrow.pointer(), self.borrow.range.len()) }
    }
}

/// Bytes of a send. Clones are parts of the same one.
#[derive(Clone)]
pub(crate) struct Outgoing {
    borrow: Arc<Borrow>,
}

impl Outgoing {
    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.borrow.range.len()
    }

    /// An entry for a work request. Panics when the range is not inside.
    pub(crate) fn entry(&self, range: Range<usize>) -> ScatterGatherEntry {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        ScatterGatherEntry {
            address: self.borrow.pointer() as u64 + range.start as u64,
            length: u32::try_from(range.len()).expect("an entry is shorter than 4 GiB"),
            local_key: self.borrow.memory.local.local_key(),
        }
    }
}

/// Bytes of a receive.
pub(crate) struct Incoming {
    borrow: Borrow,
}

impl Incoming {
    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.borrow.range.len()
    }

    /// Bind a number of a root key to the bytes.
    pub(crate) fn bind(&self, root: &SlottedRegion, number: u64) -> Result<(), RegisterError> {
        let (address, length) = (self.borrow.pointer() as u64, self.len() as u64);
        let region = &*self.borrow.memory.local;
        // Only what a bit stands for is looked at.
        root.raw().bind_slot(number, Some(SlotBinding { region, address, length, is_blank: true }))
    }

    /// A key for the peer that leads to the bytes and to nothing else.
    pub(crate) fn register(&self) -> Result<Arc<dyn raw::MemoryRegion>, RegisterError> {
        let (pointer, length) = (self.borrow.pointer(), self.len());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // SAFETY: the bytes are borrowed for a receive alone, so no slice of them exists, and the borrow is kept until the region
        // has been deregistered (`ReceiveKey`).
        unsafe { self.borrow.memory.domain.raw().register_memory(pointer, length, pointer as u64, access) }
    }

    /// Never give the bytes back: a device that could not revoke a key may still write there.
    pub(crate) fn quarantine(self) {
        std::mem::forget(self.borrow.memory.clone());
        std::mem::forget(self);
    }

    /// The bytes, once no device writes there any more.
    ///
    /// # Safety
    ///
    /// The key to them must have been revoked, and the device must have confirmed it.
    pub(crate) unsafe fn into_received(self) -> ReceivedBytes {
        ReceivedBytes { borrow: self.borrow }
    }
}

/// A byte that empty messages are written to and from, so that their key can be checked. Nobody ever looks at it.
pub(crate) struct GuardByte {
    byte: Outgoing,
}

impl GuardByte {
    pub(crate) fn new(domain: &ProtectionDomain) -> Result<Self, RegisterError> {
        let memory = Memory::register(domain, vec![0])?;
        let byte = memory.lend_to_send(0..1).expect("nobody else has this memory");
        Ok(GuardByte { byte })
    }

    /// Bind a number of a root key to it.
    pub(crate) fn bind(&self, root: &SlottedRegion, number: u64) -> Result<(), RegisterError> {
        let Borrow { memory, .. } = &*self.byte.borrow;
        let to = SlotBinding { region: &*memory.local, address: memory.pointer as u64, length: 1, is_blank: false };
        root.raw().bind_slot(number, Some(to))
    }

    /// A key for the peer that leads to it.
    pub(crate) fn register(&self) -> Result<Arc<dyn raw::MemoryRegion>, RegisterError> {
        let Borrow { memory, .. } = &*self.byte.borrow;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // SAFETY: no slice of the byte ever exists, only the device touches it; the owner of the region has the queue
        // pair that this belongs to, and so keeps the memory.
        unsafe { memory.domain.raw().register_memory(memory.pointer, 1, memory.pointer as u64, access) }
    }

    /// As the only byte of a write.
    pub(crate) fn lend_to_send(&self) -> Outgoing {
        self.byte.clone()
    }

    /// Never free it: a device that could not revoke a key may still write there.
    pub(crate) fn quarantine(&self) {
        std::mem::forget(self.byte.clone());
    }
}

/// The bytes of a message that has been completed. Nobody else uses them until this is dropped.
pub struct ReceivedBytes {
    borrow: Borrow,
}

impl ReceivedBytes {
    /// These bytes and the next ones as one piece, if they lie side by side in the same memory; otherwise both again.
    pub fn join(mut self, next: ReceivedBytes) -> Result<ReceivedBytes, (ReceivedBytes, ReceivedBytes)> {
        let (ours, theirs) = (&self.borrow, &next.borrow);
        if !Arc::ptr_eq(&ours.memory, &theirs.memory) || ours.range.end != theirs.range.start {
            return Err((self, next));
        }
        let whole = ours.range.start..theirs.range.end;
        let mut borrows = ours.memory.borrows();
        // Under one lock: nobody can borrow the next bytes while they pass from one borrow to the other.
        borrows.alone.remove(&theirs.id);
        borrows.alone.insert(ours.id, whole.clone());
        drop(borrows);
        self.borrow.range = whole;
        // What `next` had borrowed is ours now: dropping it finds nothing to give back.
        Ok(self)
    }

    /// Where they lie in their memory.
    pub fn range(&self) -> Range<usize> {
        self.borrow.range.clone()
    }
}

impl Deref for ReceivedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the borrow is this message's alone, and the device has let go of the bytes (`into_received`); `join` makes one borrow
        // of two for which both holds.
        unsafe { std::slice::from_raw_parts(self.borrow.pointer(), self.borrow.range.len()) }
    }
}

impl DerefMut for ReceivedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.borrow.pointer(), self.borrow.range.len()) }
    }
}
