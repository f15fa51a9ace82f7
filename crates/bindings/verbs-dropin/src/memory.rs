//! Protection domains and memory regions.
#![allow(unsafe_code, reason = "hands structures to C and takes them back")]

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use longhaul_softnic_udp::ForeignMemory;
use longhaul_verbs::{Access, raw};
use longhaul_verbs_abi::{IBV_ACCESS_OPTIONAL_RANGE, ibv_context, ibv_mr, ibv_pd};
use nix::errno::Errno;

use crate::context::context;
use crate::errors::{null, number};

/// `ibv_pd`
#[repr(C)]
pub(crate) struct ProtectionDomain {
    c: ibv_pd,
    pub(crate) raw: Arc<dyn raw::ProtectionDomain>,
    /// What was made from it and is still there.
    pub(crate) users: AtomicUsize,
}

/// `ibv_mr`
#[repr(C)]
struct MemoryRegion {
    c: ibv_mr,
    raw: Arc<dyn raw::MemoryRegion>,
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

pub(crate) unsafe extern "C" fn alloc_pd(of: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: a context of ours.
    match unsafe { context(of) }.device.raw.allocate_protection_domain() {
        Ok(raw) => {
            let c = ibv_pd { context: of, handle: 0 };
            Box::into_raw(Box::new(ProtectionDomain { c, raw, users: AtomicUsize::new(0) })).cast()
        }
        Err(error) => null(error),
    }
}

pub(crate) unsafe extern "C" fn dealloc_pd(of: *mut ibv_pd) -> c_int {
    // SAFETY: a domain of ours.
    if unsafe { domain(of) }.users.load(Ordering::Acquire) > 0 {
        return number(Errno::EBUSY);
    }
    // SAFETY: made by `alloc_pd`; nothing uses it, and it is freed once.
    drop(unsafe { Box::from_raw(of.cast::<ProtectionDomain>()) });
    0
}

/// The rights that the flags ask for. Of the flags that need not be known, unknown ones are nothing.
fn access_of(flags: c_uint) -> Option<Access> {
    let optional = Access::from_bits_retain(IBV_ACCESS_OPTIONAL_RANGE);
    let access = Access::from_bits_retain(flags);
    let unknown = access - Access::all() - optional;
    unknown.is_empty().then_some(access & Access::all())
}

/// Whether memory seems to be there: its first and its last byte. The kernel pins all of it, and so finds out.
fn seems_readable(memory: ForeignMemory, address: u64, length: usize) -> bool {
    let last = address.wrapping_add(length as u64).wrapping_sub(1);
    let is_there = |address| (memory.read)(address, &mut [0]);
    length == 0 || is_there(address) && is_there(last)
}

fn register(of: *mut ibv_pd, address: *mut c_void, length: usize, first_address: u64, flags: c_uint) -> *mut ibv_mr {
    // SAFETY: a domain of ours, and the context that it was made from.
    let (domain, context) = unsafe { (domain(of), context((*of).context)) };
    let Some(access) = access_of(flags) else { return null(Errno::EOPNOTSUPP) };
    if !seems_readable(context.device.memory, address.addr() as u64, length) {
        return null(Errno::EFAULT);
    }
    // SAFETY: the program may free the memory too early: the device copies it as foreign memory, and so only finds it gone.
    let registered = unsafe { domain.raw.register_memory(address.cast(), length, first_address, access) };
    match registered {
        Ok(raw) => {
            let (lkey, rkey) = (raw.local_key(), raw.remote_key());
            let c = ibv_mr { context: domain.c.context, pd: of, addr: address, length, handle: lkey, lkey, rkey };
            domain.users.fetch_add(1, Ordering::AcqRel);
            Box::into_raw(Box::new(MemoryRegion { c, raw })).cast()
        }
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
    // SAFETY: made by `register`, and not deregistered yet.
    let region = unsafe { &*of.cast::<MemoryRegion>() };
    if let Err(error) = region.raw.deregister() {
        return number(error);
    }
    // SAFETY: its domain is there as long as it is.
    unsafe { domain(region.c.pd) }.users.fetch_sub(1, Ordering::AcqRel);
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
