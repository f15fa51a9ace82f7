//! Copies to and from the memory of programs. What is copied was resolved in the key table just before, under the device's lock.
#![allow(unsafe_code, reason = "copies to and from memory of programs, through pointers that they registered")]

use std::sync::atomic::{AtomicU64, Ordering};

use longhaul_verbs::ScatterGatherEntry;

use super::keys::AccessDenied;

/// Bytes to be placed in memory; without payload only their number exists.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    Carried(&'a [u8]),
    /// Where a port has put it, in registered memory: where it belongs if the port guessed right.
    Registered(Piece),
    Elided(u32),
}

impl<'a> Payload<'a> {
    pub(crate) fn len(self) -> u32 {
        match self {
            Payload::Carried(bytes) => bytes.len() as u32,
            Payload::Registered(piece) => piece.bytes as u32,
            Payload::Elided(length) => length,
        }
    }

    /// The first `length` bytes and the rest.
    pub(super) fn split_at(self, length: u32) -> (Payload<'a>, Payload<'a>) {
        match self {
            Payload::Carried(bytes) => {
                let (head, tail) = bytes.split_at(length as usize);
                (Payload::Carried(head), Payload::Carried(tail))
            }
            Payload::Registered(Piece { memory, bytes }) => {
                let head = length as usize;
                let tail = Piece { memory: memory.wrapping_add(head), bytes: bytes - head };
                (Payload::Registered(Piece { memory, bytes: head }), Payload::Registered(tail))
            }
            Payload::Elided(total) => (Payload::Elided(length), Payload::Elided(total - length)),
        }
    }
}

/// Bytes in registered memory. They are there for as long as the device stays locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first of them.
    pub memory: *mut u8,
    /// How many.
    pub bytes: usize,
}

impl Piece {
    pub(crate) const EMPTY: Piece = Piece { memory: std::ptr::null_mut(), bytes: 0 };
}

/// Copies to and from memory that may be gone or not readable, although its region is still registered. A program in C frees
/// memory without asking a device; an RNIC does not notice, because it has pinned the pages.
#[derive(Clone, Copy, Debug)]
pub struct ForeignMemory {
    /// Copy `into.len()` bytes from this address on; `false` if not all of them can be read.
    pub read: fn(from: u64, into: &mut [u8]) -> bool,
    /// Copy these bytes to this address on; `false` if not all of it can be written.
    ///
    /// # Safety
    ///
    /// Nobody may rely on what was there: the range lies in memory that was registered for writing.
    pub write: unsafe fn(from: &[u8], to: u64) -> bool,
}

/// Where a part of an access leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// To registered memory.
    Memory(*mut u8),
    /// Nowhere: writes are not kept, and zeros are read.
    Nothing,
}

/// What is read where there is nothing. As long as the longest packet, so that the payload of one is rarely in pieces.
static ZEROS: [u8; 4096] = [0; 4096];

/// Where the payload of a packet lies in registered memory. It is good for as long as the device stays locked.
#[derive(Debug)]
pub struct Gathered {
    /// By far most payloads are one piece.
    first: Piece,
    more: Vec<Piece>,
    /// The bytes themselves, if they lie in foreign memory. Then there are no pieces.
    copied: Vec<u8>,
}

impl Gathered {
    pub(super) const EMPTY: Gathered = Gathered { first: Piece::EMPTY, more: Vec::new(), copied: Vec::new() };

    /// Copy from foreign memory now, so that a fault is the fault of this access.
    pub(super) fn read_foreign(self, foreign: ForeignMemory) -> Result<Gathered, AccessDenied> {
        let mut copied = vec![0; self.len()];
        let mut rest = &mut copied[..];
        for piece in std::iter::once(&self.first).chain(&self.more) {
            let (part, tail) = rest.split_at_mut(piece.bytes);
            rest = tail;
            let from = piece.memory.addr() as u64;
            if !part.is_empty() && !(foreign.read)(from, part) {
                return Err(AccessDenied);
            }
        }
        Ok(Gathered { copied, ..Gathered::EMPTY })
    }

    /// Bytes of the payload.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.copied.len() + self.first.bytes + self.more.iter().map(|piece| piece.bytes).sum::<usize>()
    }

    /// The payload, if it is in one piece. It is only to be read: of memory that is bound to nothing, it is a constant.
    #[inline]
    pub fn one_piece(&self) -> Option<Piece> {
        (self.more.is_empty() && self.copied.is_empty()).then_some(self.first)
    }

    /// Add what was resolved.
    pub(super) fn push(&mut self, target: Target, bytes: u64) {
        match target {
            Target::Memory(memory) => self.push_piece(Piece { memory, bytes: bytes as usize }),
            Target::Nothing => {
                let mut left = bytes as usize;
                while left > 0 {
                    let bytes = left.min(ZEROS.len());
                    // Pieces of a payload are only read.
                    self.push_piece(Piece { memory: ZEROS.as_ptr().cast_mut(), bytes });
                    left -= bytes;
                }
            }
        }
    }

    fn push_piece(&mut self, piece: Piece) {
        match self.first.bytes {
            0 => self.first = piece,
            _ => self.more.push(piece),
        }
    }

    /// Copy it to a buffer that is as long.
    pub fn copy_to(&self, into: &mut [u8]) {
        if !self.copied.is_empty() {
            return into.copy_from_slice(&self.copied);
        }
        let mut rest = into;
        for piece in std::iter::once(&self.first).chain(&self.more).filter(|piece| piece.bytes > 0) {
            let (part, tail) = rest.split_at_mut(piece.bytes);
            rest = tail;
            // SAFETY: the piece lies inside a region that is registered (`MemoryTable::gather`, `remote_read`) and cannot have
            // been deregistered since, because the device is still locked; or it is of `ZEROS`. `part` is a buffer of the
            // port's, not memory of the program's.
            unsafe { std::ptr::copy_nonoverlapping(piece.memory, part.as_mut_ptr(), part.len()) }
        }
    }
}

/// Copy payload to where it was just resolved to belong. Foreign memory may not be there.
pub(super) fn place(target: Target, payload: Payload<'_>, foreign: Option<ForeignMemory>) -> Result<(), AccessDenied> {
    let Target::Memory(memory) = target else { return Ok(()) };
    match (payload, foreign) {
        (Payload::Carried([]), _) => Ok(()),
        (Payload::Carried(bytes), Some(foreign)) => {
            // SAFETY: all callers have resolved `bytes.len()` bytes at `memory` inside a region registered for writing.
            let is_written = unsafe { (foreign.write)(bytes, memory.addr() as u64) };
            is_written.then_some(()).ok_or(AccessDenied)
        }
        // Nothing is received in place there (`MemoryTable::find_remote_write`).
        (Payload::Registered(_), Some(_)) => Err(AccessDenied),
        (payload, _) => {
            place_own(memory, payload);
            Ok(())
        }
    }
}

/// Copy payload to memory that is there for as long as its region is registered.
fn place_own(memory: *mut u8, payload: Payload<'_>) {
    match payload {
        // SAFETY: all callers have resolved `bytes.len()` bytes at `memory` inside a region registered for writing;
        // `bytes` is a received packet, not memory of the program's.
        Payload::Carried(bytes) => unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len()) },
        Payload::Registered(piece) if piece.memory == memory => {}
        // SAFETY: as above; and the piece was found in registered memory under the lock that is still held
        // (the caller of `NicGuard::handle_in_place` has promised that). The two may overlap.
        Payload::Registered(piece) => unsafe { std::ptr::copy(piece.memory, memory, piece.bytes) },
        Payload::Elided(_) => {}
    }
}

/// Change eight bytes that were just resolved, in one step that no thread and no other device can come between; what was there
/// before. Where there is nothing, zero was. In this machine's byte order.
pub(super) fn update_word(target: Target, update: impl Fn(u64) -> u64) -> Result<u64, AccessDenied> {
    let Target::Memory(memory) = target else { return Ok(0) };
    let word = memory.cast::<u64>();
    if !word.is_aligned() {
        return Err(AccessDenied);
    }
    // SAFETY: the caller has resolved eight bytes at `memory` inside a region registered for reading and writing; they are
    // aligned. Who else uses them meanwhile has been told that they may change.
    let word = unsafe { AtomicU64::from_ptr(word) };
    let mut old = word.load(Ordering::Acquire);
    loop {
        match word.compare_exchange_weak(old, update(old), Ordering::AcqRel, Ordering::Acquire) {
            Ok(old) => return Ok(old),
            Err(newer) => old = newer,
        }
    }
}

/// Copy inline data while posting.
///
/// # Safety
///
/// Every entry must be readable now, as `longhaul_verbs::raw::QueuePair::post_send` demands of inline requests.
pub(crate) unsafe fn copy_inline(entries: &[ScatterGatherEntry]) -> Box<[u8]> {
    let total = entries.iter().map(|entry| entry.length as usize).sum();
    let mut data = Vec::with_capacity(total);
    for entry in entries.iter().filter(|entry| entry.length > 0) {
        // SAFETY: the caller's promise; an entry with a length has an address that is not null.
        data.extend_from_slice(unsafe {
            std::slice::from_raw_parts(entry.address as *const u8, entry.length as usize)
        });
    }
    data.into_boxed_slice()
}
