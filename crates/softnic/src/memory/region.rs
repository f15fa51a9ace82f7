//! Regions: memory of programs that the device may use.
#![allow(unsafe_code, reason = "holds the pointers to memory that programs have registered")]

use longhaul_verbs::{Access, DestroyError};
use rand_core::Rng;

use super::table::{Holder, MemoryTable};
use super::{AccessDenied, DomainId, KeyId};

/// Registered memory.
pub(super) struct Region {
    memory: *mut u8,
    first_address: u64,
    length: u64,
    pub(super) domain: DomainId,
    pub(super) access: Access,
    /// Windows that are bound to it.
    pub(super) windows: u32,
    /// Nobody can name it any more but windows that are still bound to it, and they lead nowhere.
    pub(super) is_abandoned: bool,
}

// SAFETY: the pointer is used for copies only, and who registered the memory has promised that the device may read and
// write it from any thread until it is deregistered.
unsafe impl Send for Region {}

impl Region {
    /// Where a range is in memory, if all of it is inside.
    pub(super) fn locate(&self, address: u64, length: u64) -> Result<*mut u8, AccessDenied> {
        let offset = address.checked_sub(self.first_address).ok_or(AccessDenied)?;
        let end = offset.checked_add(length).ok_or(AccessDenied)?;
        if end > self.length {
            return Err(AccessDenied);
        }
        Ok(self.memory.wrapping_add(offset as usize))
    }
}

impl MemoryTable {
    /// A region's name and its key.
    ///
    /// # Safety
    ///
    /// As `longhaul_verbs::raw::ProtectionDomain::register_memory`: the memory stays valid, and open to the device,
    /// until it has been deregistered or abandoned.
    pub(crate) unsafe fn register(
        &mut self,
        memory: *mut u8,
        length: u64,
        first_address: u64,
        domain: DomainId,
        access: Access,
        random: &mut impl Rng,
    ) -> (KeyId, u32) {
        let region = Region { memory, first_address, length, domain, access, windows: 0, is_abandoned: false };
        self.insert(Holder::Region(region), random)
    }

    /// Revoke a region's key, unless windows are bound to it.
    pub(crate) fn deregister(&mut self, id: KeyId) -> Result<(), DestroyError> {
        let users = match self.holder(id) {
            Some(Holder::Region(region)) => region.windows as usize,
            Some(_) => 0,
            None => return Err(DestroyError::Gone),
        };
        if users > 0 {
            return Err(DestroyError::InUse { users });
        }
        self.remove(id);
        Ok(())
    }

    /// Revoke the key of a region that nobody can deregister later. Windows that are bound to it lead nowhere from now on.
    pub(crate) fn abandon_region(&mut self, id: KeyId) {
        match self.holder_mut(id) {
            Some(Holder::Region(region)) if region.windows > 0 => {
                region.length = 0;
                region.access = Access::empty();
                region.is_abandoned = true;
            }
            Some(_) => self.remove(id),
            None => {}
        }
    }
}
