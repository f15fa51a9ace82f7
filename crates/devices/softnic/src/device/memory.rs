//! Regions of all kinds as verbs programs see them.

use std::sync::{Arc, PoisonError};

use longhaul_verbs::raw;
use longhaul_verbs::{Access, DestroyError, RegisterError, SlotBinding};

use super::shared::{Owned, Shared};
use crate::memory::{DomainId, KeyId, Slot};
use crate::nic::Nic;

/// A region of memory, or a null region.
pub(super) struct MemoryRegion {
    pub(super) shared: Arc<Shared>,
    /// Another region may be given the same key later, but not the same name.
    pub(super) id: KeyId,
    pub(super) key: u32,
    /// Null regions have none.
    pub(super) remote_key: u32,
    pub(super) first_address: u64,
    pub(super) length: u64,
}

impl Owned for MemoryRegion {
    fn owner(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl raw::MemoryRegion for MemoryRegion {
    fn local_key(&self) -> u32 {
        self.key
    }
    fn remote_key(&self) -> u32 {
        self.remote_key
    }
    fn address(&self) -> u64 {
        self.first_address
    }
    fn length(&self) -> u64 {
        self.length
    }
    fn deregister(&self) -> Result<(), DestroyError> {
        // Nobody may hear "gone" before the key really is: the one who hears it frees the memory. So the lock comes
        // first. (A device that has panicked touches nothing any more, because its driver fails at the lock; a key can
        // be taken from it all the same, and a destructor must not panic.)
        let mut nic = self.shared.nic.lock_unless_panicked().unwrap_or_else(PoisonError::into_inner);
        nic.shared.memory.deregister(self.id)
    }
    fn abandon(&self) -> Result<(), DestroyError> {
        let mut nic = self.shared.nic.lock_unless_panicked().unwrap_or_else(PoisonError::into_inner);
        nic.shared.memory.abandon_region(self.id)
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // It may be gone already.
        self.shared.tidy(|nic| nic.shared.memory.abandon_region(self.id));
    }
}

/// Refuse another region when the device has as many as it may have.
pub(super) fn check_region_count(nic: &Nic) -> Result<(), RegisterError> {
    let most = u64::from(nic.config().memory_regions_max);
    if nic.shared.memory.region_count() >= most { Err(RegisterError::TooMany { most }) } else { Ok(()) }
}

pub(super) fn allocate_null_region(shared: &Arc<Shared>, domain: DomainId) -> Result<MemoryRegion, RegisterError> {
    let mut nic = shared.lock();
    check_region_count(&nic)?;
    let Nic { shared: resources, random, .. } = &mut *nic;
    let (id, key) = resources.memory.allocate_null_region(domain, random);
    // Any address will do, and any length.
    Ok(MemoryRegion { shared: shared.clone(), id, key, remote_key: 0, first_address: 0, length: u64::MAX })
}

/// One key over many messages.
pub(super) struct SlottedRegion {
    shared: Arc<Shared>,
    id: KeyId,
    key: u32,
    slots: u32,
    slot_bytes: u64,
}

impl SlottedRegion {
    pub(super) fn allocate(
        shared: &Arc<Shared>,
        domain: DomainId,
        slots: u32,
        slot_bytes: u64,
        access: Access,
    ) -> Result<Self, RegisterError> {
        let mut nic = shared.lock();
        check_region_count(&nic)?;
        let Nic { shared: resources, random, .. } = &mut *nic;
        let slots_max = resources.config.slotted_slots_max;
        let (id, key) =
            resources.memory.allocate_slotted_region(slots, slot_bytes, domain, access, slots_max, random)?;
        Ok(SlottedRegion { shared: shared.clone(), id, key, slots, slot_bytes })
    }
}

impl raw::SlottedRegion for SlottedRegion {
    fn remote_key(&self) -> u32 {
        self.key
    }

    fn slots(&self) -> u32 {
        self.slots
    }

    fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    fn bind_slot(&self, number: u64, to: Option<SlotBinding<'_>>) -> Result<(), RegisterError> {
        let to = match to {
            None => None,
            Some(SlotBinding { region, address, length, is_blank }) => {
                let region = self.shared.own::<MemoryRegion>(region);
                let region = region.ok_or(RegisterError::ForeignObject { what: "region" })?.id;
                Some(Slot { region, address, length, is_blank })
            }
        };
        self.shared.lock().shared.memory.bind_slot(self.id, number, to)
    }

    fn deregister(&self) -> Result<(), DestroyError> {
        // As with regions.
        let mut nic = self.shared.nic.lock_unless_panicked().unwrap_or_else(PoisonError::into_inner);
        let was_there = nic.shared.memory.deregister_slotted(self.id);
        was_there.then_some(()).ok_or(DestroyError::Gone)
    }
}

impl Drop for SlottedRegion {
    fn drop(&mut self) {
        self.shared.tidy(|nic| nic.shared.memory.deregister_slotted(self.id));
    }
}
