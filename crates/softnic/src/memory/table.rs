//! The table of all keys.
//!
//! The upper 24 bits of a key are its index and the same for as long as there is what it stands for; they are drawn at random, so
//! that peers cannot guess them. The lower 8 bits are random too, but for windows, which get other ones each time they are
//! bound. An access has to name all 32.

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use longhaul_verbs::{Access, ScatterGatherEntry};
use rand_core::Rng;

use super::copy::{Gathered, Payload, Target, place, update_word};
use super::region::Region;
use super::slotted::Slotted;
use super::spread::RandomNumberMap;
use super::windows::Window;
use super::{AccessDenied, Accessor, DomainId, KeyId};
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
    /// Type 2 windows that are bound: the queue pair's number, the window's index.
    pub(super) bound_through: BTreeSet<(u32, u32)>,
    /// Keys that a mutation goes on accepting.
    #[cfg(feature = "mutations")]
    retired: Option<RandomNumberMap<KeyEntry>>,
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
            bound_through: BTreeSet::new(),
            #[cfg(feature = "mutations")]
            retired: (config.mutation == Some(crate::config::Mutation::AcceptInvalidatedKey)).then(Default::default),
        }
    }

    /// Regions of all kinds.
    pub(crate) fn region_count(&self) -> u64 {
        self.entries.len() as u64 - u64::from(self.window_count)
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
        if let (Some(retired), Holder::Region(_)) = (&mut self.retired, &entry.holder) {
            retired.insert(entry.key, entry);
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

    fn find(&self, key: u32) -> Option<&Holder> {
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
        self.walk(domain, entries, offset, length, Access::LOCAL_WRITE, |_, _| ())?;
        let mut rest = payload;
        self.walk(domain, entries, offset, length, Access::LOCAL_WRITE, |target, length| {
            let (part, tail) = rest.split_at(length as u32);
            rest = tail;
            place(target, part);
        })
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
            Reach::Memory(memory) => place(Target::Memory(memory), payload),
            Reach::Slots(slotted) => {
                self.walk_slots(slotted, address, length, needed, |_, _| ())?;
                let mut rest = payload;
                self.walk_slots(slotted, address, length, needed, |target, length| {
                    let (part, tail) = rest.split_at(length as u32);
                    rest = tail;
                    place(target, part);
                })?;
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
        Ok(gathered)
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
        let (length, needed) = (8, Access::REMOTE_ATOMIC);
        match self.reach(who, key, address, length, needed)? {
            Reach::Memory(memory) => update_word(Target::Memory(memory), update),
            Reach::Slots(slotted) => update_word(self.one_slot(slotted, address, length, needed)?, update),
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
        let found = found.or_else(|| self.retired.as_ref()?.get(&key).map(|entry| &entry.holder));
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
