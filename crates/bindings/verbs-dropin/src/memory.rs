//! Protection domains and memory regions.
#![allow(unsafe_code, reason = "hands structures to C and takes them back")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use longhaul_softnic_udp::ForeignMemory;
use longhaul_verbs::{Access, DestroyError, raw};
use longhaul_verbs_abi::{IBV_ACCESS_OPTIONAL_RANGE, ibv_context, ibv_mr, ibv_pd};
use nix::errno::Errno;
use nix::sys::mman::{MmapAdvise, madvise};

use crate::cancellation::NotCancelled;
use crate::context::context;
use crate::errors::{null, number};
use crate::session::Session;

/// `ibv_pd`
#[repr(C)]
pub(crate) struct ProtectionDomain {
    c: ibv_pd,
    pub(crate) raw: Arc<dyn raw::ProtectionDomain>,
    pub(crate) session: Arc<Session>,
    /// What was made from it and is still there.
    pub(crate) users: Arc<AtomicUsize>,
    /// The users of what a parent domain was made from, of whom it is one.
    parents: Vec<Arc<AtomicUsize>>,
}

impl ProtectionDomain {
    pub(crate) fn make(
        context: *mut ibv_context,
        raw: Arc<dyn raw::ProtectionDomain>,
        session: Arc<Session>,
        parents: Vec<Arc<AtomicUsize>>,
    ) -> *mut ibv_pd {
        let c = ibv_pd { context, handle: 0 };
        for parent in &parents {
            parent.fetch_add(1, Ordering::AcqRel);
        }
        Box::into_raw(Box::new(ProtectionDomain { c, raw, session, users: Arc::default(), parents })).cast()
    }
}

/// `ibv_mr`
#[repr(C)]
pub(crate) struct MemoryRegion {
    c: ibv_mr,
    pub(crate) raw: Arc<dyn raw::MemoryRegion>,
}

/// Ours behind a pointer of the program.
///
/// # Safety
///
/// It must be what `ibv_alloc_pd` has given, and not be freed yet.
pub(crate) unsafe fn domain<'a>(domain: *mut ibv_pd) -> &'a ProtectionDomain {
    // SAFETY: the caller's promise; the structure is the first field.
    unsafe { &*domain.cast::<ProtectionDomain>() }
}

/// The same for regions.
///
/// # Safety
///
/// It must be what registering has given, and not be deregistered yet.
pub(crate) unsafe fn region<'a>(region: *mut ibv_mr) -> &'a MemoryRegion {
    // SAFETY: the caller's promise; the structure is the first field.
    unsafe { &*region.cast::<MemoryRegion>() }
}

pub(crate) unsafe extern "C" fn alloc_pd(of: *mut ibv_context) -> *mut ibv_pd {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a context of ours.
    let session = unsafe { &context(of).session }.clone();
    match session.device.raw.allocate_protection_domain() {
        Ok(raw) => ProtectionDomain::make(of, raw, session, Vec::new()),
        Err(error) => null(error),
    }
}

pub(crate) unsafe extern "C" fn dealloc_pd(of: *mut ibv_pd) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a domain of ours.
    let ours = unsafe { domain(of) };
    if !ours.session.is_of_this_process() {
        return 0;
    }
    if ours.users.load(Ordering::Acquire) > 0 {
        return number(Errno::EBUSY);
    }
    // SAFETY: made by `ProtectionDomain::make`; nothing uses it, and it is freed once.
    let gone = unsafe { Box::from_raw(of.cast::<ProtectionDomain>()) };
    for parent in gone.parents {
        parent.fetch_sub(1, Ordering::AcqRel);
    }
    0
}

/// The rights that the flags ask for. Of the flags that need not be known, unknown ones are nothing.
fn access_of(flags: c_uint) -> Option<Access> {
    let optional = Access::from_bits_retain(IBV_ACCESS_OPTIONAL_RANGE);
    let access = Access::from_bits_retain(flags);
    let unknown = access - Access::all() - optional;
    unknown.is_empty().then_some(access & Access::all())
}

/// Of x86-64, the only processor that this library is for.
const PAGE_BYTES: usize = 4096;

/// The rights for which the device writes into a region.
const WRITES: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Whether memory is there and permits what the region is for. The kernel pins all of it for an RNIC, and so finds out; here
/// the pages are populated, which fails for the same ones.
fn check(memory: ForeignMemory, address: *mut c_void, length: usize, access: Access) -> Result<(), Errno> {
    let end = address.addr().checked_add(length).ok_or(Errno::EINVAL)?;
    if length == 0 {
        return Ok(());
    }
    let advice =
        if access.intersects(WRITES) { MmapAdvise::MADV_POPULATE_WRITE } else { MmapAdvise::MADV_POPULATE_READ };
    let first = address.map_addr(|address| address & !(PAGE_BYTES - 1));
    // The first page is never mapped.
    let first = NonNull::new(first).ok_or(Errno::EFAULT)?;
    let bytes = end.checked_next_multiple_of(PAGE_BYTES).ok_or(Errno::EFAULT)? - first.addr().get();
    // SAFETY: populating changes no byte, and no mapping of memory that is there.
    let populate = |bytes| unsafe { madvise(first, bytes, advice) };
    // Kernels before Linux 5.14 refuse the advice also for no bytes; a region on demand is not populated.
    if access.contains(Access::ON_DEMAND) || populate(0).is_err() {
        return seems_readable(memory, address.addr() as u64, length).then_some(()).ok_or(Errno::EFAULT);
    }
    loop {
        match populate(bytes) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(_) => return Err(Errno::EFAULT),
        }
    }
}

/// Whether the first and the last byte are there.
fn seems_readable(memory: ForeignMemory, address: u64, length: usize) -> bool {
    let last = address + length as u64 - 1;
    let is_there = |address| (memory.read)(address, &mut [0]);
    is_there(address) && is_there(last)
}

fn register(of: *mut ibv_pd, address: *mut c_void, length: usize, first_address: u64, flags: c_uint) -> *mut ibv_mr {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a domain of ours.
    let domain = unsafe { domain(of) };
    let Some(access) = access_of(flags) else { return null(Errno::EOPNOTSUPP) };
    if let Err(errno) = check(domain.session.device.memory, address, length, access) {
        return null(errno);
    }
    // SAFETY: the program may free the memory too early: the device copies it as foreign memory, and so only finds it gone.
    let registered = unsafe { domain.raw.register_memory(address.cast(), length, first_address, access) };
    match registered {
        Ok(raw) => region_to_c(of, domain, raw, address, length),
        Err(error) => null(error),
    }
}

fn region_to_c(
    of: *mut ibv_pd,
    domain: &ProtectionDomain,
    raw: Arc<dyn raw::MemoryRegion>,
    address: *mut c_void,
    length: usize,
) -> *mut ibv_mr {
    let (lkey, rkey) = (raw.local_key(), raw.remote_key());
    let c = ibv_mr { context: domain.c.context, pd: of, addr: address, length, handle: lkey, lkey, rkey };
    domain.users.fetch_add(1, Ordering::AcqRel);
    let made = Box::into_raw(Box::new(MemoryRegion { c, raw: raw.clone() }));
    domain.session.add_region(made.addr(), &raw);
    made.cast()
}

pub(crate) unsafe extern "C" fn alloc_null_mr(of: *mut ibv_pd) -> *mut ibv_mr {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a domain of ours.
    let domain = unsafe { domain(of) };
    match domain.raw.allocate_null_region() {
        Ok(raw) => region_to_c(of, domain, raw, std::ptr::null_mut(), usize::MAX),
        Err(error) => null(error),
    }
}

pub(crate) unsafe extern "C" fn reg_mr(
    of: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let flags = access as c_uint;
    let is_zero_based = Access::from_bits_retain(flags).contains(Access::ZERO_BASED);
    let first_address = if is_zero_based { 0 } else { address.addr() as u64 };
    register(of, address, length, first_address, flags)
}

pub(crate) unsafe extern "C" fn reg_mr_iova(
    of: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    first_address: u64,
    access: c_int,
) -> *mut ibv_mr {
    register(of, address, length, first_address, access as c_uint)
}

pub(crate) unsafe extern "C" fn reg_mr_iova2(
    of: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    first_address: u64,
    access: c_uint,
) -> *mut ibv_mr {
    register(of, address, length, first_address, access)
}

pub(crate) unsafe extern "C" fn dereg_mr(of: *mut ibv_mr) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: made by `register`, and not deregistered yet.
    let region = unsafe { region(of) };
    // SAFETY: its domain is there as long as it is.
    let domain = unsafe { domain(region.c.pd) };
    if !domain.session.is_of_this_process() {
        return 0;
    }
    match region.raw.deregister() {
        // Closing the context has deregistered it; only this is left.
        Ok(()) | Err(DestroyError::Gone) => {}
        Err(error) => return number(error),
    }
    domain.session.remove_region(of.addr());
    domain.users.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: as above; it is freed once.
    drop(unsafe { Box::from_raw(of.cast::<MemoryRegion>()) });
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_rights_are_refused_unless_they_are_optional() {
        assert_eq!(access_of(0b1001), Some(Access::LOCAL_WRITE | Access::REMOTE_ATOMIC));
        assert_eq!(access_of(1 << 20), Some(Access::RELAXED_ORDERING));
        assert_eq!(access_of(1 << 21 | 1), Some(Access::LOCAL_WRITE));
        assert_eq!(access_of(1 << 8), None);
    }
}
