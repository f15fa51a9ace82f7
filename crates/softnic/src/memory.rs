//! Registered memory: the only place where the device touches the memory of programs.
//!
//! Every access names a key, and happens only when that key is registered now, in the protection domain of the queue
//! pair, with the rights that the access needs, and when the range lies inside the region. Deregistration takes the key
//! out of the table; because the device runs under one lock, no copy is under way when it returns.
#![allow(unsafe_code, reason = "copies to and from memory of programs, through pointers that they registered")]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use longhaul_verbs::{Access, ScatterGatherEntry};
use rand_core::Rng;

/// The number of a protection domain.
pub(crate) type DomainId = u32;

/// The key, the range or the rights were wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessDenied;

/// Through which queue pair a key is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accessor {
    pub(crate) domain: DomainId,
    pub(crate) queue_pair: u32,
}

/// What the key of a registration, window or slotted region stands for, told from whatever has the same key later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyId {
    /// The upper 24 bits of the key.
    pub(crate) index: u32,
    pub(crate) serial: u64,
}

/// A window that a request binds, with everything that was known when it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowBind {
    pub(crate) window: KeyId,
    /// The window's key from now on.
    pub(crate) key: u32,
    pub(crate) region: KeyId,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) access: Access,
}

/// Bytes on their way into memory; without payload only their number exists.
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
    fn split_at(self, length: u32) -> (Payload<'a>, Payload<'a>) {
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

/// Where the payload of a packet lies in registered memory. It is good for as long as the device stays locked.
pub(crate) struct Gathered {
    /// By far most payloads are one piece.
    first: Piece,
    more: Vec<Piece>,
}

/// Bytes in registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) memory: *mut u8,
    pub(crate) bytes: usize,
}

impl Piece {
    pub(crate) const EMPTY: Piece = Piece { memory: std::ptr::null_mut(), bytes: 0 };
}

impl Gathered {
    pub(crate) fn len(&self) -> usize {
        self.first.bytes + self.more.iter().map(|piece| piece.bytes).sum::<usize>()
    }

    /// The payload, if it is in one piece.
    pub(crate) fn one_piece(&self) -> Option<Piece> {
        self.more.is_empty().then_some(self.first)
    }

    /// Copy it to a buffer that is as long.
    pub(crate) fn copy_to(&self, into: &mut [u8]) {
        let mut rest = into;
        for piece in std::iter::once(&self.first).chain(&self.more).filter(|piece| piece.bytes > 0) {
            let (part, tail) = rest.split_at_mut(piece.bytes);
            rest = tail;
            // SAFETY: the piece lies inside a region that is registered (`MemoryTable::gather`) and cannot have been
            // deregistered since: the device is still locked. `part` is a buffer of the port's, not memory of the program's.
            unsafe { std::ptr::copy_nonoverlapping(piece.memory, part.as_mut_ptr(), part.len()) }
        }
    }
}

struct Region {
    memory: *mut u8,
    first_address: u64,
    length: u64,
    domain: DomainId,
    access: Access,
}

// SAFETY: the pointer is used for copies only, and who registered the memory has promised that the device may read and
// write it from any thread until it is deregistered.
unsafe impl Send for Region {}

/// Keys are random, so they need no hashing, only spreading: the map wants its upper bits to differ.
#[derive(Default)]
pub(crate) struct SpreadHasher(u64);

impl Hasher for SpreadHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(byte.into());
        }
    }
    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A map from numbers that the device drew at random. Never iterated.
pub(crate) type RandomNumberMap<V> = HashMap<u32, V, BuildHasherDefault<SpreadHasher>>;

/// All regions of a device.
pub(crate) struct MemoryTable {
    regions: RandomNumberMap<Region>,
    /// Keys that a mutation goes on accepting.
    #[cfg(feature = "mutations")]
    retired: Option<RandomNumberMap<Region>>,
}

impl MemoryTable {
    pub(crate) fn new(config: &crate::Config) -> Self {
        let _ = config;
        MemoryTable {
            regions: RandomNumberMap::default(),
            #[cfg(feature = "mutations")]
            retired: (config.mutation == Some(crate::config::Mutation::AcceptInvalidatedKey)).then(Default::default),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.regions.len()
    }

    /// # Safety
    ///
    /// As `longhaul_verbs::raw::ProtectionDomain::register_memory`: the memory stays valid, and open to the device,
    /// until the key has been deregistered.
    pub(crate) unsafe fn register(
        &mut self,
        memory: *mut u8,
        length: u64,
        first_address: u64,
        domain: DomainId,
        access: Access,
        random: &mut impl Rng,
    ) -> u32 {
        let key = loop {
            let key = random.next_u32();
            // 0 stays free: programs take it for "no key".
            if key != 0 && !self.regions.contains_key(&key) {
                break key;
            }
        };
        self.regions.insert(key, Region { memory, first_address, length, domain, access });
        key
    }

    /// Revoke a key. `false` when there is no such key.
    pub(crate) fn deregister(&mut self, key: u32) -> bool {
        let removed = self.regions.remove(&key);
        let found = removed.is_some();
        #[cfg(feature = "mutations")]
        if let (Some(retired), Some(region)) = (&mut self.retired, removed) {
            retired.insert(key, region);
        }
        found
    }

    /// Resolve `length` bytes of a gather list from `offset` on, without reading them.
    pub(crate) fn gather(
        &self,
        domain: DomainId,
        entries: &[ScatterGatherEntry],
        offset: u64,
        length: u64,
    ) -> Result<Gathered, AccessDenied> {
        let mut gathered = Gathered { first: Piece::EMPTY, more: Vec::new() };
        self.walk(domain, entries, offset, length, Access::empty(), |memory, _, bytes| {
            let piece = Piece { memory, bytes: bytes as usize };
            match gathered.first.bytes {
                0 => gathered.first = piece,
                _ => gathered.more.push(piece),
            }
        })?;
        Ok(gathered)
    }

    /// Copy payload to the bytes from `offset` on of a scatter list. Nothing is written unless everything can be.
    pub(crate) fn scatter(
        &self,
        domain: DomainId,
        entries: &[ScatterGatherEntry],
        offset: u64,
        payload: Payload<'_>,
    ) -> Result<(), AccessDenied> {
        let length = u64::from(payload.len());
        self.walk(domain, entries, offset, length, Access::LOCAL_WRITE, |_, _, _| ())?;
        let mut rest = payload;
        self.walk(domain, entries, offset, length, Access::LOCAL_WRITE, |memory, _, length| {
            let (part, tail) = rest.split_at(length as u32);
            rest = tail;
            place(memory, part);
        })
    }

    /// Whether a peer may do this with a range.
    pub(crate) fn check_remote(
        &self,
        who: Accessor,
        key: u32,
        address: u64,
        length: u64,
        needed: Access,
    ) -> Result<(), AccessDenied> {
        self.resolve_remote(who, key, address, length, needed).map(drop)
    }

    /// Copy payload to where a peer wants it.
    pub(crate) fn remote_write(
        &self,
        who: Accessor,
        key: u32,
        address: u64,
        payload: Payload<'_>,
    ) -> Result<(), AccessDenied> {
        let memory = self.resolve_remote(who, key, address, payload.len().into(), Access::REMOTE_WRITE)?;
        place(memory, payload);
        Ok(())
    }

    /// Resolve what a peer reads, without reading it.
    pub(crate) fn remote_read(
        &self,
        who: Accessor,
        key: u32,
        address: u64,
        length: u64,
    ) -> Result<Gathered, AccessDenied> {
        let memory = self.resolve_remote(who, key, address, length, Access::REMOTE_READ)?;
        Ok(Gathered { first: Piece { memory, bytes: length as usize }, more: Vec::new() })
    }

    /// Change eight bytes that a peer names, in one step that no other thread or device can come between; what was there
    /// before. The number is in the byte order of this machine.
    pub(crate) fn remote_atomic(
        &self,
        who: Accessor,
        key: u32,
        address: u64,
        update: impl Fn(u64) -> u64,
    ) -> Result<u64, AccessDenied> {
        let word = self.resolve_remote(who, key, address, 8, Access::REMOTE_ATOMIC)?.cast::<u64>();
        if !word.is_aligned() {
            return Err(AccessDenied);
        }
        // SAFETY: eight bytes inside a region registered for atomics, which includes writing, and aligned.
        let word = unsafe { AtomicU64::from_ptr(word) };
        let mut old = word.load(Ordering::Acquire);
        loop {
            match word.compare_exchange_weak(old, update(old), Ordering::AcqRel, Ordering::Acquire) {
                Ok(old) => return Ok(old),
                Err(newer) => old = newer,
            }
        }
    }

    /// Where in memory a range is that a peer may write, when it is one piece.
    pub(crate) fn find_remote_write(
        &self,
        who: Accessor,
        key: u32,
        address: u64,
        length: u64,
    ) -> Result<*mut u8, AccessDenied> {
        self.resolve_remote(who, key, address, length, Access::REMOTE_WRITE)
    }

    /// Make a key invalid, as a request of this queue pair or its peer asks.
    pub(crate) fn invalidate(&mut self, _who: Accessor, _key: u32) -> Result<(), AccessDenied> {
        Err(AccessDenied)
    }

    /// Carry out a request that binds a window.
    pub(crate) fn bind_window(&mut self, _who: Accessor, _bind: &WindowBind) -> Result<(), AccessDenied> {
        Err(AccessDenied)
    }

    /// A queue pair is gone: the windows that were bound through it cannot be used any more.
    pub(crate) fn forget_queue_pair(&mut self, _queue_pair: u32) {}

    fn resolve_remote(
        &self,
        who: Accessor,
        key: u32,
        address: u64,
        length: u64,
        needed: Access,
    ) -> Result<*mut u8, AccessDenied> {
        let region = self.regions.get(&key);
        #[cfg(feature = "mutations")]
        let region = region.or_else(|| self.retired.as_ref()?.get(&key));
        resolve(region, who.domain, address, length, needed)
    }

    /// Resolve the range `offset..offset + length` of a list, entry by entry: `visit(memory, place in the range, bytes)`.
    fn walk(
        &self,
        domain: DomainId,
        entries: &[ScatterGatherEntry],
        offset: u64,
        length: u64,
        needed: Access,
        mut visit: impl FnMut(*mut u8, u64, u64),
    ) -> Result<(), AccessDenied> {
        let mut skip = offset;
        let mut done = 0;
        for entry in entries {
            if done == length {
                break;
            }
            let entry_length = u64::from(entry.length);
            if skip >= entry_length {
                skip -= entry_length;
                continue;
            }
            let part = (entry_length - skip).min(length - done);
            let address = entry.address.checked_add(skip).ok_or(AccessDenied)?;
            let memory = resolve(self.regions.get(&entry.local_key), domain, address, part, needed)?;
            visit(memory, done, part);
            done += part;
            skip = 0;
        }
        // The caller cuts messages to the length of their lists.
        debug_assert_eq!(done, length, "a list is as long as what is taken from it");
        Ok(())
    }
}

fn resolve(
    region: Option<&Region>,
    domain: DomainId,
    address: u64,
    length: u64,
    needed: Access,
) -> Result<*mut u8, AccessDenied> {
    let region = region.ok_or(AccessDenied)?;
    let offset = address.checked_sub(region.first_address).ok_or(AccessDenied)?;
    let end = offset.checked_add(length).ok_or(AccessDenied)?;
    if region.domain != domain || !region.access.contains(needed) || end > region.length {
        return Err(AccessDenied);
    }
    Ok(region.memory.wrapping_add(offset as usize))
}

/// Copy payload to memory that was just resolved.
fn place(memory: *mut u8, payload: Payload<'_>) {
    match payload {
        // SAFETY: both callers have resolved `bytes.len()` bytes at `memory` inside a region registered for writing;
        // `bytes` is a received packet, not memory of the program's.
        Payload::Carried(bytes) => unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len()) },
        Payload::Registered(piece) if piece.memory == memory => {}
        // SAFETY: as above; and the piece was found in registered memory under the lock that is still held
        // (`Nic::expected_packets`). The two may overlap.
        Payload::Registered(piece) => unsafe { std::ptr::copy(piece.memory, memory, piece.bytes) },
        Payload::Elided(_) => {}
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

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng;

    use super::*;

    const FULL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

    fn through(domain: DomainId) -> Accessor {
        Accessor { domain, queue_pair: 7 }
    }

    fn table_with(memory: &mut [u8], access: Access) -> (MemoryTable, u32, u64) {
        let config = crate::Config::new("test", vec!["10.0.0.1".parse().unwrap()], [0; 32]);
        let mut table = MemoryTable::new(&config);
        let mut random = ChaCha12Rng::from_seed([1; 32]);
        let address = memory.as_mut_ptr() as u64;
        let (pointer, length) = (memory.as_mut_ptr(), memory.len() as u64);
        // SAFETY: the tests keep `memory` until the table is gone, and look at it only when nothing is copied.
        let key = unsafe { table.register(pointer, length, address, 1, access, &mut random) };
        (table, key, address)
    }

    #[test]
    fn only_the_right_key_domain_range_and_rights() {
        let mut memory = vec![0u8; 100];
        let (mut table, key, address) = table_with(&mut memory, FULL);
        let bytes = Payload::Carried(&[7; 10]);
        assert_eq!(table.remote_write(through(1), key, address + 90, bytes), Ok(()));
        assert_eq!(table.remote_write(through(1), key, address + 91, bytes), Err(AccessDenied));
        assert_eq!(table.remote_write(through(1), key, address.wrapping_sub(1), bytes), Err(AccessDenied));
        assert_eq!(table.remote_write(through(1), key, u64::MAX - 3, bytes), Err(AccessDenied));
        assert_eq!(table.remote_write(through(2), key, address, bytes), Err(AccessDenied));
        assert_eq!(table.remote_write(through(1), key ^ 1, address, bytes), Err(AccessDenied));
        assert!(table.deregister(key));
        assert!(!table.deregister(key));
        assert_eq!(table.remote_write(through(1), key, address, bytes), Err(AccessDenied));
        assert_eq!(&memory[88..], &[0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
    }

    #[test]
    fn a_region_for_reading_takes_no_writes() {
        let mut memory = vec![0u8; 16];
        let (table, key, address) = table_with(&mut memory, Access::empty());
        let entry = ScatterGatherEntry { address, length: 16, local_key: key };
        assert_eq!(table.scatter(1, &[entry], 0, Payload::Carried(&[1; 4])), Err(AccessDenied));
        assert!(table.gather(1, &[entry], 0, 4).is_ok());
    }

    #[test]
    fn scatter_and_gather_cross_entries_at_any_offset() {
        let mut memory: Vec<u8> = (0..64).collect();
        let (table, key, address) = table_with(&mut memory, FULL);
        let entry = |offset: u64, length| ScatterGatherEntry { address: address + offset, length, local_key: key };
        let list = [entry(0, 3), entry(10, 0), entry(20, 5), entry(40, 4)];
        let mut out = [0; 7];
        table.gather(1, &list, 2, 7).unwrap().copy_to(&mut out);
        assert_eq!(out, [2, 20, 21, 22, 23, 24, 40]);
        table.scatter(1, &list, 2, Payload::Carried(&[200; 7])).unwrap();
        // A list whose second entry is not allowed changes nothing at all.
        let bad = [entry(60, 2), entry(62, 10)];
        assert_eq!(table.scatter(1, &bad, 0, Payload::Carried(&[9; 12])), Err(AccessDenied));
        drop(table);
        assert_eq!(memory[0..4], [0, 1, 200, 3]);
        assert_eq!(memory[19..26], [19, 200, 200, 200, 200, 200, 25]);
        assert_eq!(memory[40..42], [200, 41]);
        assert_eq!(memory[60..64], [60, 61, 62, 63]);
    }
}
