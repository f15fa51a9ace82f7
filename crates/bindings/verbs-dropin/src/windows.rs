//! Memory windows.
#![allow(unsafe_code, reason = "hands structures to C and takes them back")]

use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use longhaul_verbs::{Access, DestroyError, SendFlags, WindowBinding, WindowRequest, WindowType, raw};
use longhaul_verbs_abi as abi;
use longhaul_verbs_abi::{ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp};
use nix::errno::Errno;

use crate::cancellation::NotCancelled;
use crate::errors::{null, number};
use crate::memory::{domain, region};
use crate::queue_pair::pair;

/// `ibv_mw`
#[repr(C)]
pub(crate) struct MemoryWindow {
    c: ibv_mw,
    pub(crate) raw: Arc<dyn raw::MemoryWindow>,
}

/// Ours behind a pointer of the program.
///
/// # Safety
///
/// It must be what `ibv_alloc_mw` has given, and not be freed yet.
pub(crate) unsafe fn window<'a>(window: *mut ibv_mw) -> &'a MemoryWindow {
    // SAFETY: the caller's promise; the structure is the first field.
    unsafe { &*window.cast::<MemoryWindow>() }
}

/// What a window is bound to.
pub(crate) struct BoundTo<'a> {
    region: Region<'a>,
    address: u64,
    length: u64,
    access: Access,
}

enum Region<'a> {
    Given(&'a dyn raw::MemoryRegion),
    /// To unbind a window, programs need not name one.
    None(Arc<dyn raw::MemoryRegion>),
}

impl BoundTo<'_> {
    /// # Safety
    ///
    /// The window must be one of ours; the region too, or null.
    pub(crate) unsafe fn new<'a>(of: *mut ibv_mw, info: &ibv_mw_bind_info) -> Result<BoundTo<'a>, Errno> {
        let (address, length) = (info.addr, info.length);
        let access = Access::from_bits(info.mw_access_flags).ok_or(Errno::EINVAL)?;
        let region = if info.mr.is_null() {
            if of.is_null() || length > 0 {
                return Err(Errno::EINVAL);
            }
            // SAFETY: the caller's promise; a window's domain is there as long as it is.
            let domain = unsafe { domain((*of).pd) };
            Region::None(domain.raw.allocate_null_region().map_err(|_| Errno::EINVAL)?)
        } else {
            // SAFETY: the caller's promise.
            Region::Given(&*unsafe { region(info.mr) }.raw)
        };
        Ok(BoundTo { region, address, length, access })
    }

    fn binding(&self) -> WindowBinding<'_> {
        let region = match &self.region {
            Region::Given(region) => *region,
            Region::None(region) => &**region,
        };
        WindowBinding { region, address: self.address, length: self.length, access: self.access }
    }

    /// For a window of type 2.
    pub(crate) fn request<'a>(&'a self, window: &'a dyn raw::MemoryWindow) -> WindowRequest<'a> {
        WindowRequest { window, binding: self.binding() }
    }
}

pub(crate) unsafe extern "C" fn alloc_mw(of: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    let _not_cancelled = NotCancelled::begin();
    let window_type = match kind {
        abi::IBV_MW_TYPE_1 => WindowType::Type1,
        abi::IBV_MW_TYPE_2 => WindowType::Type2,
        _ => return null(Errno::EINVAL),
    };
    // SAFETY: a domain of ours.
    let domain = unsafe { domain(of) };
    match domain.raw.allocate_memory_window(window_type) {
        Ok(raw) => {
            domain.users.fetch_add(1, Ordering::AcqRel);
            let rkey = raw.remote_key();
            // SAFETY: as above.
            let c = ibv_mw { context: unsafe { (*of).context }, pd: of, rkey, handle: rkey >> 8, r#type: kind };
            Box::into_raw(Box::new(MemoryWindow { c, raw })).cast()
        }
        Err(error) => null(error),
    }
}

/// Type 1; the header checks that.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue pair and a window of ours, and a structure of the program.
    let (ours, raw, asked) = unsafe { (pair(qp), window(mw).raw.clone(), bind.read()) };
    let Some(flags) = SendFlags::from_bits(asked.send_flags & !abi::IBV_SEND_INLINE) else {
        return number(Errno::EINVAL);
    };
    // SAFETY: a window of ours; the region is one of ours or null.
    let bound_to = match unsafe { BoundTo::new(mw, &asked.bind_info) } {
        Ok(bound_to) => bound_to,
        Err(errno) => return number(errno),
    };
    match raw.bind(&*ours.raw, asked.wr_id, flags, &bound_to.binding()) {
        Ok(()) => {
            // SAFETY: the program's own structure, as libibverbs changes it.
            unsafe { (*mw).rkey = raw.remote_key() };
            0
        }
        Err(error) => number(error.kind),
    }
}

pub(crate) unsafe extern "C" fn dealloc_mw(of: *mut ibv_mw) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a window of ours; its domain is there as long as it is.
    let (ours, domain) = unsafe { (window(of), domain((*of).pd)) };
    if !domain.session.is_of_this_process() {
        return 0;
    }
    match ours.raw.deallocate() {
        Ok(()) | Err(DestroyError::Gone) => {}
        Err(error) => return number(error),
    }
    domain.users.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: made by `alloc_mw`, and freed once.
    drop(unsafe { Box::from_raw(of.cast::<MemoryWindow>()) });
    0
}
