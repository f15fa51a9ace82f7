//! Regions: memory of programs that the device may use.
#![allow(unsafe_code, reason = "holds the pointers to memory that programs have registered")]

use longhaul_verbs::{Access, DestroyError};
use rand_core::Rng;

use super::keys::{AccessDenied, DomainId, KeyId};
use super::table::{Holder, MemoryTable};

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

    /// Revoke the key of a region, whatever is bound to it. Windows lead nowhere from now on.
    pub(crate) fn abandon_region(&mut self, id: KeyId) -> Result<(), DestroyError> {
        match self.holder_mut(id) {
            Some(Holder::Region(region)) if region.windows > 0 => {
                region.length = 0;
                region.access = Access::empty();
                region.is_abandoned = true;
            }
            Some(_) => self.remove(id),
            None => return Err(DestroyError::Gone),
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod fixture {
    //! A table with memory that lives as long as it does.

    use rand_chacha::ChaCha12Rng;
    use rand_core::SeedableRng;

    use super::*;
    use crate::config::Config;
    use crate::config::Type2Windows;
    use crate::memory::Accessor;

    pub(in crate::memory) const DOMAIN: DomainId = 1;
    pub(in crate::memory) const OTHER_DOMAIN: DomainId = 2;
    pub(in crate::memory) const WHO: Accessor = Accessor { domain: DOMAIN, queue_pair: 7 };
    /// Everything that peers could do.
    pub(in crate::memory) const REMOTE: Access =
        Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);
    pub(in crate::memory) const FULL: Access = REMOTE.union(Access::LOCAL_WRITE).union(Access::WINDOW_BIND);

    pub(in crate::memory) struct Fixture {
        pub(in crate::memory) table: MemoryTable,
        pub(in crate::memory) random: ChaCha12Rng,
        /// Words, so that the bytes are aligned for atomics.
        buffers: Vec<*mut [u64]>,
    }

    #[derive(Clone, Copy)]
    pub(in crate::memory) struct TestRegion {
        pub(in crate::memory) id: KeyId,
        pub(in crate::memory) key: u32,
        /// The first byte's.
        pub(in crate::memory) address: u64,
        memory: *mut u8,
        bytes: usize,
    }

    impl Fixture {
        pub(in crate::memory) fn new() -> Self {
            Self::with_windows(Type2Windows::B)
        }

        pub(in crate::memory) fn with_windows(type_2_windows: Type2Windows) -> Self {
            let mut config = Config::new("test", vec!["10.0.0.1".parse().unwrap()], [0; 32]);
            config.type_2_windows = type_2_windows;
            let table = MemoryTable::new(&config);
            Fixture { table, random: ChaCha12Rng::from_seed([1; 32]), buffers: Vec::new() }
        }

        /// A region of `bytes` bytes that count from 0.
        pub(in crate::memory) fn region(&mut self, bytes: usize, domain: DomainId, access: Access) -> TestRegion {
            let buffer = Box::into_raw(vec![0u64; bytes.div_ceil(8)].into_boxed_slice());
            self.buffers.push(buffer);
            let memory = buffer.cast::<u8>();
            let region = self.region_at(memory, bytes, domain, access);
            for offset in 0..bytes {
                region.set(offset, offset as u8);
            }
            region
        }

        /// The same memory from `offset` on under another key.
        pub(in crate::memory) fn region_inside(&mut self, region: TestRegion, offset: usize) -> TestRegion {
            assert!(offset <= region.bytes);
            self.region_at(region.memory.wrapping_add(offset), region.bytes - offset, DOMAIN, FULL)
        }

        fn region_at(&mut self, memory: *mut u8, bytes: usize, domain: DomainId, access: Access) -> TestRegion {
            // Not where it is: addresses need not be those of this process.
            let address = 0x7000;
            // SAFETY: `memory` is of a buffer that lives until the table is gone (`drop` below), and is looked at only through
            // `TestRegion`, on this thread.
            let (id, key) =
                unsafe { self.table.register(memory, bytes as u64, address, domain, access, &mut self.random) };
            TestRegion { id, key, address, memory, bytes }
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            for buffer in self.buffers.drain(..) {
                // SAFETY: made by `Box::into_raw`; the table is not used any more.
                drop(unsafe { Box::from_raw(buffer) });
            }
        }
    }

    impl TestRegion {
        fn at(self, offset: usize) -> *mut u8 {
            assert!(offset < self.bytes);
            self.memory.wrapping_add(offset)
        }

        pub(in crate::memory) fn set(self, offset: usize, byte: u8) {
            // SAFETY: inside of a buffer that lives as long as the fixture, which every test keeps to its end.
            unsafe { self.at(offset).write(byte) }
        }

        pub(in crate::memory) fn bytes(self, range: std::ops::Range<usize>) -> Vec<u8> {
            // SAFETY: as above.
            range.map(|offset| unsafe { self.at(offset).read() }).collect()
        }

        pub(in crate::memory) fn memory(self, offset: usize) -> *mut u8 {
            self.at(offset)
        }
    }
}
