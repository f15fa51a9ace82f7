//! The table of all keys.
//!
//! The upper 24 bits of a key are its index and the same for as long as there is what it stands for; they are drawn at random, so
//! that peers cannot guess them. The lower 8 bits are random too, but for windows, which get other ones each time they are
//! bound. An access has to name all 32. So a region that has just been registered has the key of one that is gone with a
//! probability of 2^-32 for each of these.

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use longhaul_verbs::{Access, ScatterGatherEntry};
use rand_core::Rng;

use super::copy::{ForeignMemory, Gathered, Payload, Target, place, update_word};
use super::keys::{AccessDenied, Accessor, DomainId, KeyId};
use super::region::Region;
use super::slotted::Slotted;
use super::spread::RandomNumberMap;
use super::windows::Window;
use crate::config::{Config, Type2Windows};

/// More keys than this would make them hard to draw: half of all indexes.
const KEYS_MAX: u64 = 1 << 23;

/// What a key stands for.
pub(super) enum Holder {
    Region(Region),
    /// A null region, which has a local key only.
    Null(DomainId),
    Window(Window),
    Slotted(Slotted),
}

/// A row of the table.
struct KeyEntry {
    key: u32,
    serial: NonZeroU64,
    holder: Holder,
}

/// All keys of a device.
pub(crate) struct MemoryTable {
    /// By index.
    entries: RandomNumberMap<KeyEntry>,
    last_serial: u64,
    window_count: u32,
    /// Slots of all slotted regions.
    pub(super) slot_count: u64,
    pub(super) type_2_windows: Type2Windows,
    foreign: Option<ForeignMemory>,
    /// Changes of what windows and slots are bound to.
    pub(super) binding_count: u64,
    /// Type 2 windows that are bound: the queue pair's number, the window's index.
    pub(super) bound_through: BTreeSet<(u32, u32)>,
    /// Keys that a mutation goes on accepting.
    #[cfg(feature = "mutations")]
    retired: Option<Retired>,
}

/// Keys that should not work any more, by key.
#[cfg(feature = "mutations")]
struct Retired {
    mutation: crate::config::Mutation,
    holders: RandomNumberMap<Holder>,
}

/// Where an access leads.
enum Reach<'a> {
    Memory(*mut u8),
    Slots(&'a Slotted),
}

impl MemoryTable {
    /// Panics when the configuration allows more keys than there are.
    pub(crate) fn new(config: &Config) -> Self {
        let keys_max = u64::from(config.memory_regions_max) + u64::from(config.memory_windows_max);
        assert!(keys_max <= KEYS_MAX, "{keys_max} regions and windows: expected at most {KEYS_MAX}");
        MemoryTable {
            entries: RandomNumberMap::default(),
            last_serial: 0,
            window_count: 0,
            slot_count: 0,
            type_2_windows: config.type_2_windows,
            foreign: config.foreign_memory,
            binding_count: 0,
            bound_through: BTreeSet::new(),
            #[cfg(feature = "mutations")]
            retired: config.mutation.map(|mutation| Retired { mutation, holders: RandomNumberMap::default() }),
        }
    }

    /// Regions of all kinds.
    pub(crate) fn region_count(&self) -> u64 {
        self.entries.len() as u64 - u64::from(self.window_count)
    }

    /// How often what windows and slots are bound to has changed: while it has not, a key leads to where it did.
    pub(crate) fn binding_count(&self) -> u64 {
        self.binding_count
    }

    pub(crate) fn window_count(&self) -> u32 {
        self.window_count
    }

    /// Put something into the table under a key that nobody can guess: its name and its key.
    pub(super) fn insert(&mut self, holder: Holder, random: &mut impl Rng) -> (KeyId, u32) {
        let key = loop {
            let key = random.next_u32();
            // Index 0 stays free: programs take 0 for "no key".
            if key >> 8 != 0 && !self.entries.contains_key(&(key >> 8)) {
                break key;
            }
        };
        self.last_serial += 1;
        let serial = NonZeroU64::new(self.last_serial).expect("64 bits do not wrap in any device's life");
        self.window_count += u32::from(matches!(holder, Holder::Window(_)));
        self.entries.insert(key >> 8, KeyEntry { key, serial, holder });
        (KeyId { index: key >> 8, serial }, key)
    }

    pub(super) fn remove(&mut self, id: KeyId) {
        let Some(entry) = self.entries.remove(&id.index) else { return };
        debug_assert_eq!(entry.serial, id.serial, "what is removed was looked up before");
        self.window_count -= u32::from(matches!(entry.holder, Holder::Window(_)));
        #[cfg(feature = "mutations")]
        if let Holder::Region(_) = entry.holder {
            self.retire(crate::config::Mutation::AcceptInvalidatedKey, entry.key, entry.holder);
        }
    }

    /// Go on accepting a key, if that is the mistake to make.
    #[cfg(feature = "mutations")]
    pub(super) fn retire(&mut self, mistake: crate::config::Mutation, key: u32, holder: Holder) {
        if let Some(retired) = self.retired.as_mut().filter(|retired| retired.mutation == mistake) {
            retired.holders.insert(key, holder);
        }
    }

    pub(super) fn holder(&self, id: KeyId) -> Option<&Holder> {
        self.entries.get(&id.index).filter(|entry| entry.serial == id.serial).map(|entry| &entry.holder)
    }

    pub(super) fn holder_mut(&mut self, id: KeyId) -> Option<&mut Holder> {
        self.entries.get_mut(&id.index).filter(|entry| entry.serial == id.serial).map(|entry| &mut entry.holder)
    }

    pub(super) fn region(&self, id: KeyId) -> Result<&Region, AccessDenied> {
        match self.holder(id) {
            Some(Holder::Region(region)) => Ok(region),
            _ => Err(AccessDenied),
        }
    }

    /// The key that something has now.
    pub(crate) fn key_of(&self, id: KeyId) -> Option<u32> {
        self.entries.get(&id.index).filter(|entry| entry.serial == id.serial).map(|entry| entry.key)
    }

    /// Give something another key of the same index.
    pub(super) fn change_key(&mut self, id: KeyId, key: u32) {
        if let Some(entry) = self.entries.get_mut(&id.index).filter(|entry| entry.serial == id.serial) {
            entry.key = key;
        }
    }

    /// What has this key now.
    pub(super) fn id_of(&self, key: u32) -> Option<KeyId> {
        let entry = self.entries.get(&(key >> 8)).filter(|entry| entry.key == key)?;
        Some(KeyId { index: key >> 8, serial: entry.serial })
    }

    /// What has this index now.
    pub(super) fn id_at(&self, index: u32) -> Option<KeyId> {
        Some(KeyId { index, serial: self.entries.get(&index)?.serial })
    }

    pub(super) fn find(&self, key: u32) -> Option<&Holder> {
        self.entries.get(&(key >> 8)).filter(|entry| entry.key == key).map(|entry| &entry.holder)
    }

    /// A region that takes writes and keeps nothing, and reads as zeros: its name and its key.
    pub(crate) fn allocate_null_region(&mut self, domain: DomainId, random: &mut impl Rng) -> (KeyId, u32) {
        self.insert(Holder::Null(domain), random)
    }

    // --- work requests of this process ------------------------------------------------------------------------------

    /// Resolve `length` bytes of a gather list from `offset` on, without reading them.
    pub(crate) fn gather(
        &self,
        domain: DomainId,
        entries: &[ScatterGatherEntry],
        offset: u64,
        length: u64,
    ) -> Result<Gathered, AccessDenied> {
        let mut gathered = Gathered::EMPTY;
        self.walk(domain, entries, offset, length, Access::empty(), |target, bytes| gathered.push(target, bytes))?;
        self.readable(gathered)
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
        self.walk(domain, entries, offset, length, Access::LOCAL_WRITE, |_, _| ())?;
        let mut rest = payload;
        let mut placed = Ok(());
        self.walk(domain, entries, offset, length, Access::LOCAL_WRITE, |target, length| {
            let (part, tail) = rest.split_at(length as u32);
            rest = tail;
            placed = placed.and_then(|()| place(target, part, self.foreign));
        })?;
        placed
    }

    /// What was resolved, read if it lies in foreign memory.
    fn readable(&self, gathered: Gathered) -> Result<Gathered, AccessDenied> {
        match self.foreign {
            Some(foreign) if gathered.len() > 0 => gathered.read_foreign(foreign),
            _ => Ok(gathered),
        }
    }

    /// Resolve the range `offset..offset + length` of a list, entry by entry: `visit(target, bytes)`.
    fn walk(
        &self,
        domain: DomainId,
        entries: &[ScatterGatherEntry],
        offset: u64,
        length: u64,
        needed: Access,
        mut visit: impl FnMut(Target, u64),
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
            let target = match self.find(entry.local_key) {
                Some(Holder::Region(region)) if region.domain == domain && region.access.contains(needed) => {
                    let address = entry.address.checked_add(skip).ok_or(AccessDenied)?;
                    Target::Memory(region.locate(address, part)?)
                }
                Some(Holder::Null(null_domain)) if *null_domain == domain => Target::Nothing,
                _ => return Err(AccessDenied),
            };
            visit(target, part);
            done += part;
            skip = 0;
        }
        // The caller cuts messages to the length of their lists.
        debug_assert_eq!(done, length, "a list is as long as what is taken from it");
        Ok(())
    }

    // --- requests of peers ------------------------------------------------------------------------------------------

    /// Whether a peer may do this with a range. Of a range over very many slots only the first ones are looked at: the others
    /// are when bytes come to them, and may be bound to something else by then.
    pub(crate) fn check_remote(
        &self,
        who: Accessor,
        key: u32,
        address: u64,
        length: u64,
        needed: Access,
    ) -> Result<(), AccessDenied> {
        match self.reach(who, key, address, length, needed)? {
            Reach::Memory(_) => Ok(()),
            Reach::Slots(slotted) => {
                let length = length.min(slotted.bytes_checked_at_once(address));
                self.walk_slots(slotted, address, length, needed, |_, _| ())
            }
        }
    }

    /// Copy payload to where a peer wants it. Nothing is written unless everything can be.
    pub(crate) fn remote_write(
        &self,
        who: Accessor,
        key: u32,
        address: u64,
        payload: Payload<'_>,
    ) -> Result<(), AccessDenied> {
        let (length, needed) = (payload.len().into(), Access::REMOTE_WRITE);
        match self.reach(who, key, address, length, needed)? {
            Reach::Memory(memory) => place(Target::Memory(memory), payload, self.foreign)?,
            // Nearly all are in one slot.
            Reach::Slots(slotted) if slotted.is_one_slot(address, length) => {
                place(self.one_slot(slotted, address, length, needed)?, payload, self.foreign)?;
                slotted.note_written(address, length);
            }
            Reach::Slots(slotted) => {
                self.walk_slots(slotted, address, length, needed, |_, _| ())?;
                let mut rest = payload;
                let mut placed = Ok(());
                self.walk_slots(slotted, address, length, needed, |target, length| {
                    let (part, tail) = rest.split_at(length as u32);
                    rest = tail;
                    placed = placed.and_then(|()| place(target, part, self.foreign));
                })?;
                placed?;
                slotted.note_written(address, length);
            }
        }
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
        let needed = Access::REMOTE_READ;
        let mut gathered = Gathered::EMPTY;
        match self.reach(who, key, address, length, needed)? {
            Reach::Memory(memory) => gathered.push(Target::Memory(memory), length),
            Reach::Slots(slotted) => {
                self.walk_slots(slotted, address, length, needed, |target, bytes| gathered.push(target, bytes))?;
            }
        }
        self.readable(gathered)
    }

    /// Change eight bytes that a peer names, in one step that no thread and no other device can come between; what was there
    /// before. The number is in this machine's byte order, because the program may use it with its own instructions. Memory that
    /// is not aligned is refused: there is no such step for it.
    pub(crate) fn remote_atomic(
        &self,
        who: Accessor,
        key: u32,
        address: u64,
        update: impl Fn(u64) -> u64,
    ) -> Result<u64, AccessDenied> {
        if self.foreign.is_some() {
            // No system call changes eight bytes in one step and reports a fault.
            return Err(AccessDenied);
        }
        let (length, needed) = (8, Access::REMOTE_ATOMIC);
        match self.reach(who, key, address, length, needed)? {
            Reach::Memory(memory) => update_word(Target::Memory(memory), update),
            Reach::Slots(slotted) => {
                let old = update_word(self.one_slot(slotted, address, length, needed)?, update)?;
                slotted.note_written(address, length);
                Ok(old)
            }
        }
    }

    /// Where in memory a range is that a peer may write, when it is one piece of memory.
    pub(crate) fn find_remote_write(
        &self,
        who: Accessor,
        key: u32,
        address: u64,
        length: u64,
    ) -> Result<*mut u8, AccessDenied> {
        if self.foreign.is_some() {
            return Err(AccessDenied);
        }
        let needed = Access::REMOTE_WRITE;
        match self.reach(who, key, address, length, needed)? {
            Reach::Memory(memory) => Ok(memory),
            Reach::Slots(slotted) => match self.one_slot(slotted, address, length, needed)? {
                Target::Memory(memory) => Ok(memory),
                Target::Nothing => Err(AccessDenied),
            },
        }
    }

    fn find_remote(&self, key: u32) -> Result<&Holder, AccessDenied> {
        let found = self.find(key);
        #[cfg(feature = "mutations")]
        let found = found.or_else(|| self.retired.as_ref()?.holders.get(&key));
        found.ok_or(AccessDenied)
    }

    fn reach(
        &self,
        who: Accessor,
        key: u32,
        address: u64,
        length: u64,
        needed: Access,
    ) -> Result<Reach<'_>, AccessDenied> {
        match self.find_remote(key)? {
            Holder::Region(region) if region.domain == who.domain && region.access.contains(needed) => {
                region.locate(address, length).map(Reach::Memory)
            }
            Holder::Window(window) => self.through_window(window, who, address, length, needed).map(Reach::Memory),
            Holder::Slotted(slotted) if slotted.allows(who.domain, needed, address, length) => {
                Ok(Reach::Slots(slotted))
            }
            _ => Err(AccessDenied),
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_verbs::DestroyError;

    use super::super::region::fixture::{DOMAIN, FULL, Fixture, OTHER_DOMAIN, WHO};
    use super::*;

    const TEN: Payload<'static> = Payload::Carried(&[200; 10]);

    fn contents(gathered: &Gathered) -> Vec<u8> {
        let mut bytes = vec![0xee; gathered.len()];
        gathered.copy_to(&mut bytes);
        bytes
    }

    #[test]
    fn only_the_right_key_domain_range_and_rights() {
        let mut fixture = Fixture::new();
        let region = fixture.region(100, DOMAIN, FULL);
        let (key, address) = (region.key, region.address);
        let stranger = Accessor { domain: OTHER_DOMAIN, ..WHO };
        let table = &mut fixture.table;
        assert_eq!(table.remote_write(WHO, key, address + 90, TEN), Ok(()));
        assert_eq!(table.remote_write(WHO, key, address + 91, TEN), Err(AccessDenied));
        assert_eq!(table.remote_write(WHO, key, address - 1, TEN), Err(AccessDenied));
        assert_eq!(table.remote_write(WHO, key, u64::MAX - 3, TEN), Err(AccessDenied));
        assert_eq!(table.remote_write(stranger, key, address, TEN), Err(AccessDenied));
        // Both parts of the key count.
        assert_eq!(table.remote_write(WHO, key ^ 1, address, TEN), Err(AccessDenied));
        assert_eq!(table.remote_write(WHO, key ^ 0x100, address, TEN), Err(AccessDenied));
        assert_eq!(table.region_count(), 1);
        assert!(table.deregister(region.id).is_ok());
        assert!(matches!(table.deregister(region.id), Err(DestroyError::Gone)));
        assert_eq!(table.region_count(), 0);
        assert_eq!(table.remote_write(WHO, key, address, TEN), Err(AccessDenied));
        assert_eq!(region.bytes(88..100), [88, 89, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200]);
        assert_eq!(region.bytes(0..3), [0, 1, 2]);
    }

    #[test]
    fn each_access_needs_its_own_right() {
        let mut fixture = Fixture::new();
        for right in [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            let region = fixture.region(64, DOMAIN, right | Access::LOCAL_WRITE);
            let (table, key, address) = (&fixture.table, region.key, region.address);
            assert_eq!(table.remote_read(WHO, key, address, 8).is_ok(), right == Access::REMOTE_READ);
            assert_eq!(table.remote_write(WHO, key, address, TEN).is_ok(), right == Access::REMOTE_WRITE);
            assert_eq!(table.find_remote_write(WHO, key, address, 8).is_ok(), right == Access::REMOTE_WRITE);
            assert_eq!(table.remote_atomic(WHO, key, address, |_| 1).is_ok(), right == Access::REMOTE_ATOMIC);
            for needed in [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
                assert_eq!(table.check_remote(WHO, key, address, 64, needed).is_ok(), needed == right);
                assert_eq!(table.check_remote(WHO, key, address, 65, needed), Err(AccessDenied));
            }
        }
    }

    #[test]
    fn a_region_for_reading_takes_no_writes() {
        let mut fixture = Fixture::new();
        let region = fixture.region(16, DOMAIN, Access::empty());
        let entry = ScatterGatherEntry { address: region.address, length: 16, local_key: region.key };
        let table = &fixture.table;
        assert_eq!(table.scatter(DOMAIN, &[entry], 0, Payload::Carried(&[1; 4])), Err(AccessDenied));
        assert_eq!(contents(&table.gather(DOMAIN, &[entry], 0, 4).unwrap()), [0, 1, 2, 3]);
        assert!(table.gather(OTHER_DOMAIN, &[entry], 0, 4).is_err());
    }

    #[test]
    fn scatter_and_gather_cross_entries_at_any_offset() {
        let mut fixture = Fixture::new();
        let region = fixture.region(64, DOMAIN, FULL);
        let entry = |offset: u64, length| ScatterGatherEntry {
            address: region.address + offset,
            length,
            local_key: region.key,
        };
        let list = [entry(0, 3), entry(10, 0), entry(20, 5), entry(40, 4)];
        let table = &fixture.table;
        assert_eq!(contents(&table.gather(DOMAIN, &list, 2, 7).unwrap()), [2, 20, 21, 22, 23, 24, 40]);
        table.scatter(DOMAIN, &list, 2, Payload::Carried(&[200; 7])).unwrap();
        // A list whose second entry is not allowed changes nothing at all.
        let bad = [entry(60, 2), entry(62, 10)];
        assert_eq!(table.scatter(DOMAIN, &bad, 0, Payload::Carried(&[9; 12])), Err(AccessDenied));
        assert_eq!(region.bytes(0..4), [0, 1, 200, 3]);
        assert_eq!(region.bytes(19..26), [19, 200, 200, 200, 200, 200, 25]);
        assert_eq!(region.bytes(40..42), [200, 41]);
        assert_eq!(region.bytes(60..64), [60, 61, 62, 63]);
    }

    #[test]
    fn a_null_region_keeps_nothing_reads_zeros_and_is_local_only() {
        let mut fixture = Fixture::new();
        let region = fixture.region(8, DOMAIN, FULL);
        let (id, key) = fixture.table.allocate_null_region(DOMAIN, &mut fixture.random);
        let table = &mut fixture.table;
        let memory = ScatterGatherEntry { address: region.address, length: 4, local_key: region.key };
        let nothing = ScatterGatherEntry { address: u64::MAX - 1, length: 100_000, local_key: key };
        let list = [memory, nothing, memory];
        let read = contents(&table.gather(DOMAIN, &list, 2, 100_004).unwrap());
        assert_eq!((&read[..2], &read[100_002..]), (&[2, 3][..], &[0, 1][..]));
        assert!(read[2..100_002].iter().all(|&byte| byte == 0));
        let mut message = vec![7; 100_004];
        message[100_002..].fill(8);
        table.scatter(DOMAIN, &list, 2, Payload::Carried(&message)).unwrap();
        assert_eq!(region.bytes(0..5), [8, 8, 7, 7, 4]);
        assert!(contents(&table.gather(DOMAIN, &[nothing], 0, 5000).unwrap()).iter().all(|&byte| byte == 0));
        assert!(table.gather(OTHER_DOMAIN, &[nothing], 0, 1).is_err());
        assert!(table.remote_read(WHO, key, 0, 1).is_err());
        assert_eq!(table.remote_write(WHO, key, 0, TEN), Err(AccessDenied));
        assert!(table.deregister(id).is_ok());
        assert!(table.gather(DOMAIN, &[nothing], 0, 1).is_err());
    }

    #[test]
    fn atomics_change_one_aligned_word_in_native_order() {
        let mut fixture = Fixture::new();
        let region = fixture.region(24, DOMAIN, FULL);
        let before = u64::from_ne_bytes(region.bytes(8..16).try_into().unwrap());
        let old = fixture.table.remote_atomic(WHO, region.key, region.address + 8, |old| old.wrapping_add(1 << 40));
        assert_eq!(old, Ok(before));
        let after = u64::from_ne_bytes(region.bytes(8..16).try_into().unwrap());
        assert_eq!(after, before + (1 << 40));
        assert_eq!((region.bytes(7..8), region.bytes(16..17)), (vec![7], vec![16]));
        let last_word = region.address + 16;
        assert!(fixture.table.remote_atomic(WHO, region.key, last_word, |old| old).is_ok());
        assert_eq!(fixture.table.remote_atomic(WHO, region.key, last_word + 8, |old| old), Err(AccessDenied));
    }

    #[test]
    fn an_atomic_on_memory_that_is_not_aligned_is_refused() {
        let mut fixture = Fixture::new();
        let region = fixture.region(24, DOMAIN, FULL);
        // Aligned for the peer, but not in this process.
        let odd = fixture.region_inside(region, 4);
        assert_eq!(fixture.table.remote_atomic(WHO, odd.key, odd.address, |_| 0), Err(AccessDenied));
        // The other way round it could be done; the caller refuses addresses that are not aligned for the peer.
        assert!(fixture.table.remote_atomic(WHO, odd.key, odd.address + 4, |_| 0).is_ok());
        assert_eq!(region.bytes(0..17), [0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0, 16]);
    }

    #[test]
    fn concurrent_atomics_lose_nothing() {
        const COUNT: u64 = if cfg!(miri) { 100 } else { 100_000 };
        let mut fixture = Fixture::new();
        let region = fixture.region(8, DOMAIN, FULL);
        fixture.table.remote_atomic(WHO, region.key, region.address, |_| 0).unwrap();
        let word = region.memory(0) as usize;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..COUNT {
                    update_word(Target::Memory(word as *mut u8), |old| old + 1).unwrap();
                }
            });
            for _ in 0..COUNT {
                fixture.table.remote_atomic(WHO, region.key, region.address, |old| old + 1).unwrap();
            }
        });
        assert_eq!(u64::from_ne_bytes(region.bytes(0..8).try_into().unwrap()), 2 * COUNT);
    }

    #[test]
    fn a_region_without_any_name_left_is_gone() {
        let mut fixture = Fixture::new();
        let region = fixture.region(16, DOMAIN, FULL);
        fixture.table.abandon_region(region.id).unwrap();
        assert_eq!(fixture.table.remote_write(WHO, region.key, region.address, TEN), Err(AccessDenied));
        assert_eq!(fixture.table.region_count(), 0);
        // What has the same index later is another thing.
        let (id, _) = fixture.table.allocate_null_region(DOMAIN, &mut fixture.random);
        let stale = KeyId { serial: region.id.serial, ..id };
        assert!(matches!(fixture.table.deregister(stale), Err(DestroyError::Gone)));
        assert!(matches!(fixture.table.abandon_region(stale), Err(DestroyError::Gone)));
        assert_eq!(fixture.table.region_count(), 1);
    }
}
