//! Address handles, for datagrams.
#![allow(unsafe_code, reason = "hands structures to C and takes them back")]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use longhaul_verbs::raw;
use longhaul_verbs_abi::{ibv_ah, ibv_ah_attr, ibv_pd};
use nix::errno::Errno;

use crate::attributes;
use crate::cancellation::NotCancelled;
use crate::errors::null;
use crate::memory::domain;

/// `ibv_ah`
#[repr(C)]
pub(crate) struct AddressHandle {
    c: ibv_ah,
    pub(crate) raw: Arc<dyn raw::AddressHandle>,
}

/// Ours behind a pointer of the program.
///
/// # Safety
///
/// It must be what `ibv_create_ah` has given, and not be destroyed yet.
pub(crate) unsafe fn handle<'a>(handle: *mut ibv_ah) -> &'a AddressHandle {
    // SAFETY: the caller's promise; the structure is the first field.
    unsafe { &*handle.cast::<AddressHandle>() }
}

pub(crate) unsafe extern "C" fn create_ah(of: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a domain of ours, and attributes of the program.
    let (domain, path) = unsafe { (domain(of), attributes::path(&*attributes, (*attributes).port_num)) };
    let Some(path) = path else { return null(Errno::EINVAL) };
    match domain.raw.create_address_handle(&path) {
        Ok(raw) => {
            domain.users.fetch_add(1, Ordering::AcqRel);
            // SAFETY: as above.
            let c = ibv_ah { context: unsafe { (*of).context }, pd: of, handle: 0 };
            Box::into_raw(Box::new(AddressHandle { c, raw })).cast()
        }
        Err(error) => null(error),
    }
}

pub(crate) unsafe extern "C" fn destroy_ah(of: *mut ibv_ah) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: made by `create_ah`, and destroyed once; its domain is there as long as it is.
    unsafe {
        let domain = domain(handle(of).c.pd);
        if !domain.session.is_of_this_process() {
            return 0;
        }
        domain.users.fetch_sub(1, Ordering::AcqRel);
        drop(Box::from_raw(of.cast::<AddressHandle>()));
    }
    0
}
