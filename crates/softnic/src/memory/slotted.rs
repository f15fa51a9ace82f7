//! Slotted regions: one key over many messages.
//!
//! Slot `i` of a region with slots of `M` bytes has the addresses `[i·M, (i+1)·M)`. It is bound to a part of a region, or to
//! nothing: then writes are taken and not kept, and zeros are read. An access may go over several slots; each part of it goes
//! where its slot leads. Slots do not keep regions alive: one that leads to a region that is gone refuses everything.

use longhaul_verbs::{Access, RegisterError};
use rand_core::Rng;

use super::copy::Target;
use super::table::{Holder, MemoryTable};
use super::{AccessDenied, DomainId, KeyId};

/// How many slots are looked at when a long message begins.
const SLOTS_CHECKED_AT_ONCE: u64 = 64;

/// A slotted region.
pub(super) struct Slotted {
    domain: DomainId,
    access: Access,
    slots: u32,
    slot_bytes: u64,
    /// As far as slots were ever bound; the others are bound to nothing.
    bound: Vec<Option<Slot>>,
}

/// What a slot is bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) region: KeyId,
    /// First byte, as work requests name it.
    pub(crate) address: u64,
    pub(crate) length: u64,
}

impl Slotted {
    /// Whether peers may do this here, as far as the key is concerned.
    pub(super) fn allows(&self, domain: DomainId, needed: Access, address: u64, length: u64) -> bool {
        // Checked when it was made.
        let all_bytes = u64::from(self.slots) * self.slot_bytes;
        let is_inside = address.checked_add(length).is_some_and(|end| end <= all_bytes);
        domain == self.domain && self.access.contains(needed) && is_inside
    }

    /// How many bytes from an address on are in few enough slots to look at all of them at once.
    pub(super) fn bytes_checked_at_once(&self, address: u64) -> u64 {
        (self.slot_bytes - address % self.slot_bytes)
            .saturating_add((SLOTS_CHECKED_AT_ONCE - 1).saturating_mul(self.slot_bytes))
    }
}

impl MemoryTable {
    /// A slotted region with all slots bound to nothing: its name and its key.
    pub(crate) fn allocate_slotted_region(
        &mut self,
        slots: u32,
        slot_bytes: u64,
        domain: DomainId,
        access: Access,
        slots_max: u32,
        random: &mut impl Rng,
    ) -> Result<(KeyId, u32), RegisterError> {
        if slots == 0 || slot_bytes == 0 {
            return Err(RegisterError::InvalidArgument {
                what: "slots and their bytes",
                expected: "at least 1 of each",
            });
        }
        if slot_bytes.checked_mul(slots.into()).is_none() {
            return Err(RegisterError::Wraps { address: 0, length: slot_bytes });
        }
        let slot_count = self.slot_count + u64::from(slots);
        if slot_count > slots_max.into() {
            return Err(RegisterError::InvalidArgument {
                what: "slots of all slotted regions",
                expected: "at most the device's limit",
            });
        }
        self.slot_count = slot_count;
        let slotted = Slotted { domain, access, slots, slot_bytes, bound: Vec::new() };
        Ok(self.insert(Holder::Slotted(slotted), random))
    }

    /// Revoke the key of a slotted region. `false` when it is gone already.
    pub(crate) fn deregister_slotted(&mut self, id: KeyId) -> bool {
        let Some(Holder::Slotted(slotted)) = self.holder(id) else { return false };
        self.slot_count -= u64::from(slotted.slots);
        self.remove(id);
        true
    }

    /// Bind a slot to a part of a region of the same protection domain, or to nothing.
    pub(crate) fn bind_slot(&mut self, id: KeyId, slot: u32, to: Option<Slot>) -> Result<(), RegisterError> {
        let Some(Holder::Slotted(slotted)) = self.holder(id) else { return Err(RegisterError::Gone) };
        if slot >= slotted.slots {
            return Err(RegisterError::InvalidArgument { what: "slot", expected: "less than there are slots" });
        }
        if let Some(to) = to {
            let region = self.region(to.region).map_err(|_| RegisterError::Gone)?;
            if region.domain != slotted.domain {
                return Err(RegisterError::ForeignObject { what: "region" });
            }
            if to.length > slotted.slot_bytes || region.locate(to.address, to.length).is_err() {
                return Err(RegisterError::InvalidArgument {
                    what: "part of a region for a slot",
                    expected: "one inside of the region, no longer than a slot",
                });
            }
        }
        let Some(Holder::Slotted(slotted)) = self.holder_mut(id) else { return Err(RegisterError::Gone) };
        let slot = slot as usize;
        if slot >= slotted.bound.len() && to.is_some() {
            slotted.bound.resize(slot + 1, None);
        }
        if let Some(bound) = slotted.bound.get_mut(slot) {
            *bound = to;
        }
        Ok(())
    }

    /// Resolve a range that the key allows, slot by slot: `visit(target, bytes)`.
    pub(super) fn walk_slots(
        &self,
        slotted: &Slotted,
        address: u64,
        length: u64,
        needed: Access,
        mut visit: impl FnMut(Target, u64),
    ) -> Result<(), AccessDenied> {
        let (mut slot, mut offset) = (address / slotted.slot_bytes, address % slotted.slot_bytes);
        let mut left = length;
        while left > 0 {
            let part = left.min(slotted.slot_bytes - offset);
            let target = match slotted.bound.get(slot as usize) {
                Some(Some(bound)) => {
                    let region = self.region(bound.region)?;
                    // Shorter than a slot, perhaps.
                    if offset + part > bound.length || !region.access.contains(needed) {
                        return Err(AccessDenied);
                    }
                    Target::Memory(region.locate(bound.address + offset, part)?)
                }
                _ => Target::Nothing,
            };
            visit(target, part);
            left -= part;
            slot += 1;
            offset = 0;
        }
        Ok(())
    }

    /// Resolve a range that the key allows and that must be in one slot.
    pub(super) fn one_slot(
        &self,
        slotted: &Slotted,
        address: u64,
        length: u64,
        needed: Access,
    ) -> Result<Target, AccessDenied> {
        if address % slotted.slot_bytes + length > slotted.slot_bytes {
            return Err(AccessDenied);
        }
        let mut found = Target::Nothing;
        self.walk_slots(slotted, address, length, needed, |target, _| found = target)?;
        Ok(found)
    }
}
