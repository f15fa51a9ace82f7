//! Slotted regions: one key over many messages.
//!
//! Number `n` of a region with slots of `M` bytes has the addresses `[n·M, (n+1)·M)`, and is in slot `n mod slots` while it is live:
//! until another number is bound there. A live number is bound to a part of a region, or to nothing: then writes are taken and not
//! kept, and zeros are read. Everything else is refused. So addresses are used once, and a packet that comes late finds either its
//! own message or nothing. An access may go over several numbers; each part of it goes where its slot leads. Slots do not keep
//! regions alive: one that leads to a region that is gone refuses everything.

use std::cell::Cell;

use longhaul_verbs::{Access, RegisterError};
use rand_core::Rng;

use super::copy::Target;
use super::keys::{AccessDenied, Accessor, DomainId, KeyId};
use super::live_numbers::LiveNumbers;
use super::table::{Holder, MemoryTable};

/// How many slots are looked at when a long message begins.
const SLOTS_CHECKED_AT_ONCE: u64 = 64;

/// A slotted region.
pub(super) struct Slotted {
    domain: DomainId,
    access: Access,
    slot_bytes: u64,
    /// In boxes, because a region keeps room for as many as were ever bound at a time.
    live: LiveNumbers<Box<Bound>>,
}

/// What a slot is bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) region: KeyId,
    /// First byte, as work requests name it.
    pub(crate) address: u64,
    pub(crate) length: u64,
    /// Nobody looks at bytes that no write has reached.
    pub(crate) is_blank: bool,
}

/// A slot that is bound.
struct Bound {
    slot: Slot,
    /// Where what was written through the slot ends: from here to the end of it no byte has been placed.
    written: Cell<u64>,
}

/// Bytes of a blank slot that nothing has been written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unwritten {
    pub(crate) memory: *mut u8,
    /// All but the last one of the slot.
    pub(crate) bytes: u64,
}

impl Slotted {
    /// What a number is bound to, if it is live.
    fn live(&self, number: u64) -> Result<Option<&Bound>, AccessDenied> {
        self.live.get(number).map(|bound| bound.map(|bound| &**bound)).ok_or(AccessDenied)
    }

    /// Whether a range is in one slot.
    pub(super) fn is_one_slot(&self, address: u64, length: u64) -> bool {
        address % self.slot_bytes + length <= self.slot_bytes
    }

    /// Bytes have been placed.
    pub(super) fn note_written(&self, address: u64, length: u64) {
        let (mut number, mut offset) = (address / self.slot_bytes, address % self.slot_bytes);
        let mut left = length;
        while left > 0 {
            let part = left.min(self.slot_bytes - offset);
            if let Ok(Some(bound)) = self.live(number) {
                bound.written.set(bound.written.get().max(offset + part));
            }
            (number, offset, left) = (number + 1, 0, left - part);
        }
    }

    /// Whether peers may do this here, as far as the key is concerned. Which numbers are live is looked at slot by slot.
    pub(super) fn allows(&self, domain: DomainId, needed: Access, address: u64, length: u64) -> bool {
        domain == self.domain && self.access.contains(needed) && address.checked_add(length).is_some()
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
        let slotted = Slotted { domain, access, slot_bytes, live: LiveNumbers::new(slots) };
        Ok(self.insert(Holder::Slotted(slotted), random))
    }

    /// Revoke the key of a slotted region. `false` when it is gone already.
    pub(crate) fn deregister_slotted(&mut self, id: KeyId) -> bool {
        let Some(Holder::Slotted(slotted)) = self.holder(id) else { return false };
        self.slot_count -= slotted.live.slots();
        self.remove(id);
        true
    }

    /// Make a number live, and bind it to a part of a region of the same protection domain, or to nothing.
    pub(crate) fn bind_slot(&mut self, id: KeyId, number: u64, to: Option<Slot>) -> Result<(), RegisterError> {
        let Some(Holder::Slotted(slotted)) = self.holder(id) else { return Err(RegisterError::Gone) };
        if number >= u64::MAX / slotted.slot_bytes {
            return Err(RegisterError::InvalidArgument {
                what: "number",
                expected: "one whose addresses have 64 bits",
            });
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
        self.binding_count += 1;
        let Some(Holder::Slotted(slotted)) = self.holder_mut(id) else { return Err(RegisterError::Gone) };
        slotted.live.bind(number, to.map(|slot| Box::new(Bound { slot, written: Cell::new(0) })));
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
        let (mut number, mut offset) = (address / slotted.slot_bytes, address % slotted.slot_bytes);
        let mut left = length;
        while left > 0 {
            let part = left.min(slotted.slot_bytes - offset);
            let target = match slotted.live(number)? {
                Some(Bound { slot: bound, .. }) => {
                    let region = self.region(bound.region)?;
                    let writes = needed.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
                    // As with windows, the rights of peers are the key's; but nobody writes where the program may not. And the bound
                    // part may be shorter than the slot.
                    if offset + part > bound.length || writes && !region.access.contains(Access::LOCAL_WRITE) {
                        return Err(AccessDenied);
                    }
                    Target::Memory(region.locate(bound.address + offset, part)?)
                }
                None => Target::Nothing,
            };
            visit(target, part);
            left -= part;
            number += 1;
            offset = 0;
        }
        Ok(())
    }

    /// What lies behind the last byte that was written through a blank slot, if that is at this address.
    pub(crate) fn find_unwritten(&self, who: Accessor, key: u32, address: u64) -> Option<Unwritten> {
        let Some(Holder::Slotted(slotted)) = self.find(key) else { return None };
        let (number, offset) = (address / slotted.slot_bytes, address % slotted.slot_bytes);
        let bound = slotted.live(number).ok()??;
        if !bound.slot.is_blank || bound.written.get() != offset {
            return None;
        }
        let bytes = bound.slot.length.checked_sub(offset + 1)?;
        if !slotted.allows(who.domain, Access::REMOTE_WRITE, address, bytes) {
            return None;
        }
        match self.one_slot(slotted, address, bytes, Access::REMOTE_WRITE).ok()? {
            Target::Memory(memory) => Some(Unwritten { memory, bytes }),
            Target::Nothing => None,
        }
    }

    /// Resolve a range that the key allows and that must be in one slot.
    pub(super) fn one_slot(
        &self,
        slotted: &Slotted,
        address: u64,
        length: u64,
        needed: Access,
    ) -> Result<Target, AccessDenied> {
        if !slotted.is_one_slot(address, length) {
            return Err(AccessDenied);
        }
        let mut found = Target::Nothing;
        self.walk_slots(slotted, address, length, needed, |target, _| found = target)?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::copy::{Gathered, Payload};
    use super::super::region::fixture::{DOMAIN, FULL, Fixture, OTHER_DOMAIN, REMOTE, TestRegion, WHO};
    use super::super::{Accessor, Piece};
    use super::*;

    const SLOT_BYTES: u64 = 16;

    fn slotted(fixture: &mut Fixture, slots: u32) -> (KeyId, u32) {
        let table = &mut fixture.table;
        table.allocate_slotted_region(slots, SLOT_BYTES, DOMAIN, REMOTE, 1000, &mut fixture.random).unwrap()
    }

    fn slot(region: TestRegion, offset: u64, length: u64) -> Option<Slot> {
        Some(Slot { region: region.id, address: region.address + offset, length, is_blank: false })
    }

    fn contents(gathered: &Gathered) -> Vec<u8> {
        let mut bytes = vec![0xee; gathered.len()];
        gathered.copy_to(&mut bytes);
        bytes
    }

    /// Both ways to ask must agree, so that a message is not begun that cannot be placed.
    fn write(fixture: &Fixture, key: u32, address: u64, bytes: &[u8]) -> Result<(), AccessDenied> {
        let checked = fixture.table.check_remote(WHO, key, address, bytes.len() as u64, Access::REMOTE_WRITE);
        let written = fixture.table.remote_write(WHO, key, address, Payload::Carried(bytes));
        assert_eq!(checked, written);
        written
    }

    #[test]
    fn a_message_goes_where_its_slot_leads() {
        let mut fixture = Fixture::new();
        let region = fixture.region(64, DOMAIN, FULL);
        let other = fixture.region(64, DOMAIN, FULL);
        let (id, key) = slotted(&mut fixture, 4);
        fixture.table.bind_slot(id, 0, slot(region, 32, 16)).unwrap();
        fixture.table.bind_slot(id, 2, slot(other, 0, 16)).unwrap();
        // Over three slots, the one in the middle bound to nothing.
        let message: Vec<u8> = (100..140).collect();
        write(&fixture, key, 8, &message).unwrap();
        assert_eq!(region.bytes(39..49), [39, 100, 101, 102, 103, 104, 105, 106, 107, 48]);
        assert_eq!(
            other.bytes(0..17),
            [124, 125, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139, 16]
        );
        let read = contents(&fixture.table.remote_read(WHO, key, 14, 20).unwrap());
        assert_eq!(read[..2], [106, 107]);
        assert_eq!(read[2..18], [0; 16]);
        assert_eq!(read[18..], [124, 125]);
        // The last slot is bound to nothing as well, and after it is nothing at all.
        write(&fixture, key, 48, &[1; 16]).unwrap();
        assert_eq!(write(&fixture, key, 48, &[1; 17]), Err(AccessDenied));
        assert_eq!(write(&fixture, key, u64::MAX, &[1; 2]), Err(AccessDenied));
    }

    #[test]
    fn binding_again_moves_what_comes_later() {
        let mut fixture = Fixture::new();
        let region = fixture.region(64, DOMAIN, FULL);
        let (id, key) = slotted(&mut fixture, 2);
        fixture.table.bind_slot(id, 1, slot(region, 0, 16)).unwrap();
        write(&fixture, key, 16, &[200; 4]).unwrap();
        fixture.table.bind_slot(id, 1, slot(region, 16, 16)).unwrap();
        write(&fixture, key, 20, &[201; 4]).unwrap();
        fixture.table.bind_slot(id, 1, None).unwrap();
        write(&fixture, key, 24, &[202; 4]).unwrap();
        assert_eq!(region.bytes(0..9), [200, 200, 200, 200, 4, 5, 6, 7, 8]);
        assert_eq!(region.bytes(16..25), [16, 17, 18, 19, 201, 201, 201, 201, 24]);
    }

    /// Addresses are used once: what comes late finds its own message or nothing.
    #[test]
    fn only_the_number_that_a_slot_has_is_reached() {
        let mut fixture = Fixture::new();
        let region = fixture.region(64, DOMAIN, FULL);
        let (id, key) = slotted(&mut fixture, 2);
        let at = |number: u64| number * SLOT_BYTES;
        assert_eq!(write(&fixture, key, at(1), &[1]), Ok(()), "at first slots have their own numbers");
        assert_eq!(write(&fixture, key, at(2), &[1]), Err(AccessDenied));
        fixture.table.bind_slot(id, 1, slot(region, 0, 16)).unwrap();
        write(&fixture, key, at(1), &[201; 4]).unwrap();
        fixture.table.bind_slot(id, 3, slot(region, 16, 16)).unwrap();
        assert_eq!(write(&fixture, key, at(1), &[202; 4]), Err(AccessDenied), "a late packet of number 1");
        write(&fixture, key, at(3), &[203; 4]).unwrap();
        // Bound to nothing it is still live, until the next one takes its slot.
        fixture.table.bind_slot(id, 3, None).unwrap();
        assert_eq!(write(&fixture, key, at(3), &[204; 4]), Ok(()));
        assert_eq!(write(&fixture, key, at(5), &[204; 4]), Err(AccessDenied), "an early one");
        let far = (1 << 59) + 1;
        fixture.table.bind_slot(id, far, slot(region, 32, 16)).unwrap();
        write(&fixture, key, at(far), &[205; 4]).unwrap();
        for number in [1, 3, 5, far - 2, far + 2] {
            assert_eq!(write(&fixture, key, at(number), &[206; 4]), Err(AccessDenied), "number {number}");
            assert!(fixture.table.find_remote_write(WHO, key, at(number), 4).is_err());
            assert!(fixture.table.find_unwritten(WHO, key, at(number)).is_none());
        }
        // From one number into the next only if both are live.
        fixture.table.bind_slot(id, far - 1, slot(region, 48, 16)).unwrap();
        write(&fixture, key, at(far) - 1, &[207; 2]).unwrap();
        assert_eq!(write(&fixture, key, at(far) - 17, &[208; 2]), Err(AccessDenied));
        let mut expected: Vec<u8> = (0..64).collect();
        expected[0..4].fill(201);
        expected[16..20].fill(203);
        expected[32..36].fill(205);
        (expected[63], expected[32]) = (207, 207);
        assert_eq!(region.bytes(0..64), expected);
    }

    #[test]
    fn nothing_is_written_unless_every_slot_takes_its_part() {
        let mut fixture = Fixture::new();
        let region = fixture.region(64, DOMAIN, FULL);
        let gone = fixture.region(16, DOMAIN, FULL);
        let read_only = fixture.region(16, DOMAIN, Access::REMOTE_READ);
        let (id, key) = slotted(&mut fixture, 8);
        fixture.table.bind_slot(id, 0, slot(region, 0, 16)).unwrap();
        fixture.table.bind_slot(id, 1, slot(gone, 0, 16)).unwrap();
        fixture.table.bind_slot(id, 2, slot(region, 16, 16)).unwrap();
        fixture.table.bind_slot(id, 3, slot(read_only, 0, 16)).unwrap();
        // Shorter than the slot.
        fixture.table.bind_slot(id, 4, slot(region, 32, 10)).unwrap();
        fixture.table.deregister(gone.id).unwrap();
        assert_eq!(write(&fixture, key, 8, &[200; 16]), Err(AccessDenied), "the region is gone");
        assert_eq!(write(&fixture, key, 40, &[200; 16]), Err(AccessDenied), "the region may not be written");
        assert!(fixture.table.remote_read(WHO, key, 40, 16).is_ok());
        assert_eq!(write(&fixture, key, 64, &[200; 11]), Err(AccessDenied), "beyond the part");
        assert_eq!(region.bytes(0..64), (0..64).collect::<Vec<u8>>());
        write(&fixture, key, 64, &[200; 10]).unwrap();
        assert_eq!(region.bytes(31..43), [31, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 42]);
        // A region that is given the same key does not take the place of the one that is gone.
        let stale =
            Slot { region: KeyId { serial: gone.id.serial, ..region.id }, address: 0, length: 1, is_blank: false };
        assert!(matches!(fixture.table.bind_slot(id, 5, Some(stale)), Err(RegisterError::Gone)));
    }

    #[test]
    fn the_key_has_rights_of_its_own() {
        let mut fixture = Fixture::new();
        let region = fixture.region(16, DOMAIN, FULL);
        let table = &mut fixture.table;
        let (id, key) =
            table.allocate_slotted_region(1, 16, DOMAIN, Access::REMOTE_READ, 1, &mut fixture.random).unwrap();
        table.bind_slot(id, 0, slot(region, 0, 16)).unwrap();
        assert!(table.remote_read(WHO, key, 0, 16).is_ok());
        assert_eq!(table.remote_write(WHO, key, 0, Payload::Carried(&[1])), Err(AccessDenied));
        assert_eq!(table.remote_atomic(WHO, key, 0, |_| 0), Err(AccessDenied));
        let stranger = Accessor { domain: OTHER_DOMAIN, ..WHO };
        assert!(table.remote_read(stranger, key, 0, 16).is_err());
        // And no local ones.
        let entry = longhaul_verbs::ScatterGatherEntry { address: 0, length: 1, local_key: key };
        assert!(table.gather(DOMAIN, &[entry], 0, 1).is_err());
        assert!(table.deregister_slotted(id));
        assert!(!table.deregister_slotted(id));
        assert!(table.remote_read(WHO, key, 0, 16).is_err());
        assert!(matches!(table.bind_slot(id, 0, None), Err(RegisterError::Gone)));
    }

    #[test]
    fn a_port_may_write_in_place_inside_one_slot_only() {
        let mut fixture = Fixture::new();
        let region = fixture.region(64, DOMAIN, FULL);
        let (id, key) = slotted(&mut fixture, 4);
        // Neighbours in memory too, but they need not stay so.
        fixture.table.bind_slot(id, 0, slot(region, 0, 16)).unwrap();
        fixture.table.bind_slot(id, 1, slot(region, 16, 16)).unwrap();
        let find = |address, length| fixture.table.find_remote_write(WHO, key, address, length);
        assert_eq!(find(20, 12), Ok(region.memory(20)));
        assert_eq!(find(20, 13), Err(AccessDenied));
        assert_eq!(find(8, 9), Err(AccessDenied));
        assert_eq!(find(32, 4), Err(AccessDenied), "bound to nothing");
        // What was written there is not copied again, and bytes for another place are.
        region.set(20, 77);
        let there = Piece { memory: region.memory(20), bytes: 1 };
        fixture.table.remote_write(WHO, key, 20, Payload::Registered(there)).unwrap();
        fixture.table.remote_write(WHO, key, 0, Payload::Registered(there)).unwrap();
        assert_eq!((region.bytes(20..21), region.bytes(0..2)), (vec![77], vec![77, 1]));
    }

    #[test]
    fn atomics_in_slots() {
        let mut fixture = Fixture::new();
        let region = fixture.region(64, DOMAIN, FULL);
        let table = &mut fixture.table;
        // Slots of 12 bytes: an aligned word may lie in two of them, or not be aligned in memory.
        let (id, key) = table.allocate_slotted_region(4, 12, DOMAIN, REMOTE, 4, &mut fixture.random).unwrap();
        table.bind_slot(id, 0, slot(region, 0, 12)).unwrap();
        table.bind_slot(id, 1, slot(region, 16, 12)).unwrap();
        let old = table.remote_atomic(WHO, key, 0, |_| 5).unwrap();
        assert_eq!(old.to_ne_bytes(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(table.remote_atomic(WHO, key, 8, |_| 5), Err(AccessDenied), "in two slots");
        assert_eq!(table.remote_atomic(WHO, key, 16, |_| 5), Err(AccessDenied), "not aligned in memory");
        assert_eq!(table.remote_atomic(WHO, key, 24, |old| old + 1), Ok(0), "nothing is there");
        assert_eq!(table.remote_atomic(WHO, key, 24, |old| old + 1), Ok(0), "and nothing is kept");
        assert_eq!(u64::from_ne_bytes(region.bytes(0..8).try_into().unwrap()), 5);
        assert_eq!(region.bytes(8..28), (8..28).collect::<Vec<u8>>());
    }

    #[test]
    fn what_cannot_be_made_or_bound() {
        let mut fixture = Fixture::new();
        let region = fixture.region(64, DOMAIN, FULL);
        let foreign = fixture.region(64, OTHER_DOMAIN, FULL);
        let (table, random) = (&mut fixture.table, &mut fixture.random);
        let mut allocate = |slots, bytes| table.allocate_slotted_region(slots, bytes, DOMAIN, REMOTE, 10, random);
        assert!(matches!(allocate(0, 1), Err(RegisterError::InvalidArgument { .. })));
        assert!(matches!(allocate(1, 0), Err(RegisterError::InvalidArgument { .. })));
        assert!(matches!(allocate(2, u64::MAX / 2 + 1), Err(RegisterError::Wraps { .. })));
        assert!(matches!(allocate(11, 1), Err(RegisterError::InvalidArgument { .. })));
        let (first, _) = allocate(6, 16).unwrap();
        assert!(allocate(5, 16).is_err(), "all slots together are limited");
        let (id, _) = allocate(4, 16).unwrap();
        assert!(table.deregister_slotted(first));
        assert!(table.allocate_slotted_region(6, 16, DOMAIN, REMOTE, 10, random).is_ok());
        let invalid = |result| matches!(result, Err(RegisterError::InvalidArgument { .. }));
        assert!(invalid(table.bind_slot(id, u64::MAX / 16, None)));
        assert!(table.bind_slot(id, u64::MAX / 16 - 1, None).is_ok());
        assert!(invalid(table.bind_slot(id, 0, slot(region, 0, 17))));
        assert!(invalid(table.bind_slot(id, 0, slot(region, 50, 15))));
        assert!(invalid(table.bind_slot(id, 0, slot(region, 0, 16).map(|slot| Slot { address: u64::MAX, ..slot }))));
        assert!(matches!(table.bind_slot(id, 0, slot(foreign, 0, 16)), Err(RegisterError::ForeignObject { .. })));
        assert!(table.bind_slot(id, 3, slot(region, 48, 16)).is_ok());
    }

    #[test]
    fn a_long_message_is_checked_slot_by_slot_only_at_its_beginning() {
        let mut fixture = Fixture::new();
        let gone = fixture.region(16, DOMAIN, FULL);
        let (id, key) = slotted(&mut fixture, 200);
        let near = SLOTS_CHECKED_AT_ONCE - 1;
        let check = |fixture: &Fixture| fixture.table.check_remote(WHO, key, 3, 190 * 16, Access::REMOTE_WRITE);
        fixture.table.bind_slot(id, near + 1, slot(gone, 0, 16)).unwrap();
        fixture.table.deregister(gone.id).unwrap();
        assert_eq!(check(&fixture), Ok(()));
        let bytes = Payload::Carried(&[1; 20]);
        assert_eq!(fixture.table.remote_write(WHO, key, near * 16, bytes), Err(AccessDenied));
        let gone = fixture.region(16, DOMAIN, FULL);
        fixture.table.bind_slot(id, near, slot(gone, 0, 16)).unwrap();
        assert_eq!(check(&fixture), Ok(()));
        fixture.table.deregister(gone.id).unwrap();
        assert_eq!(check(&fixture), Err(AccessDenied));
    }
}
