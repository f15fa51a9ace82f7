//! Thread domains and parent domains: hints of programs about their threads and their memory, which nothing here needs.
//!
//! A thread domain promises that its objects are used by one thread at a time; locks that nobody contends for cost next to
//! nothing. A parent domain's allocators are for the rings that a driver shares with its NIC; there are none.
#![allow(unsafe_code, reason = "hands structures to C and takes them back")]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use longhaul_verbs_abi as abi;
use longhaul_verbs_abi::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use nix::errno::Errno;

use crate::cancellation::NotCancelled;
use crate::context::context;
use crate::errors::{null, number};
use crate::memory::{ProtectionDomain, domain};
use crate::session::Session;

/// `ibv_td`
#[repr(C)]
struct ThreadDomain {
    c: ibv_td,
    session: Arc<Session>,
    users: Arc<AtomicUsize>,
}

/// Ours behind a pointer of the program.
unsafe fn thread_domain<'a>(of: *mut ibv_td) -> &'a ThreadDomain {
    // SAFETY: the caller's promise: what `ibv_alloc_td` has given; the structure is the first field.
    unsafe { &*of.cast::<ThreadDomain>() }
}

pub(crate) unsafe extern "C" fn alloc_td(of: *mut ibv_context, init: *mut ibv_td_init_attr) -> *mut ibv_td {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: the program gives a structure.
    if unsafe { (*init).comp_mask } != 0 {
        return null(Errno::EINVAL);
    }
    // SAFETY: a context of ours.
    let session = unsafe { &context(of).session }.clone();
    Box::into_raw(Box::new(ThreadDomain { c: ibv_td { context: of }, session, users: Arc::default() })).cast()
}

pub(crate) unsafe extern "C" fn dealloc_td(of: *mut ibv_td) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a thread domain of ours.
    let ours = unsafe { thread_domain(of) };
    if !ours.session.is_of_this_process() {
        return 0;
    }
    if ours.users.load(Ordering::Acquire) > 0 {
        return number(Errno::EBUSY);
    }
    // SAFETY: made by `alloc_td`; nothing uses it, and it is freed once.
    drop(unsafe { Box::from_raw(of.cast::<ThreadDomain>()) });
    0
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    of: *mut ibv_context,
    asked: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: the program gives a structure.
    let ibv_parent_domain_init_attr { pd, td, comp_mask, .. } = unsafe { asked.read() };
    let known = abi::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | abi::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    if pd.is_null() || comp_mask & !known != 0 {
        return null(Errno::EINVAL);
    }
    // SAFETY: a domain of ours.
    let parent = unsafe { domain(pd) };
    let mut parents = vec![parent.users.clone()];
    if !td.is_null() {
        // SAFETY: a thread domain of ours.
        parents.push(unsafe { thread_domain(td) }.users.clone());
    }
    ProtectionDomain::make(of, parent.raw.clone(), parent.session.clone(), parents)
}
