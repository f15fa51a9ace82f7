//! An open device, and the functions of the header that are not in the library: those that call through the tables of
//! functions that come with an open device. Every object of a device holds its [`Context`], so the device is closed
//! when the last of them is gone.
#![allow(unsafe_code, reason = "calls C through tables of functions")]

use std::ffi::{c_int, c_uint};
use std::io;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;

use nix::libc::{EINVAL, ENOSYS, EOPNOTSUPP, EPERM};

use crate::answer::{check, check_pointer};
use crate::library::Library;
use crate::listing::text;
use crate::sysfs::DeviceFolder;
use longhaul_verbs_abi::{
    IBV_MW_TYPE_1, VERBS_ABI_IS_EXTENDED, ibv_context, ibv_cq, ibv_device_attr_ex, ibv_modify_cq_attr, ibv_mr, ibv_mw,
    ibv_mw_bind, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex, ibv_qp_rate_limit_attr, ibv_recv_wr, ibv_send_wr,
    ibv_srq, ibv_wc, verbs_context,
};

/// An open device. Closed on drop; every object of it holds one of these.
pub(crate) struct Context {
    library: Arc<Library>,
    raw: NonNull<ibv_context>,
}

// SAFETY: libibverbs may be called from any thread with the same device.
unsafe impl Send for Context {}
// SAFETY: and from several at once.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it came from `ibv_open_device`, and no object of it is left: each holds a reference to this.
        let answer = unsafe { (self.library.ibv_close_device)(self.raw.as_ptr()) };
        if let Err(error) = check(answer) {
            tracing::warn!(%error, "a device could not be closed");
        }
    }
}

/// The function in field `$field` of the extended table, if the device has that much of a table and the function.
macro_rules! extended {
    ($context:expr, $field:ident) => {
        $context.extended_table(offset_of!(verbs_context, $field)).and_then(|table| {
            // SAFETY: the table reaches down to this field.
            unsafe { (&raw const (*table).$field).read() }
        })
    };
}

/// The function in field `$field` of the first table, if it is there.
macro_rules! basic {
    ($context:expr, $field:ident) => {
        // SAFETY: the device is open, and its first table is always whole.
        unsafe { (&raw const (*$context.raw.as_ptr()).ops.$field).read() }
    };
}

fn not_supported() -> io::Error {
    io::Error::from_raw_os_error(EOPNOTSUPP)
}

impl Context {
    /// Takes an open device over.
    ///
    /// # Safety
    ///
    /// `raw` came from `ibv_open_device` of this library and is nobody else's.
    pub(crate) unsafe fn new(library: Arc<Library>, raw: NonNull<ibv_context>) -> Self {
        Context { library, raw }
    }

    /// The functions of the library.
    pub(crate) fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// What the kernel reports about the device.
    pub(crate) fn folder(&self) -> DeviceFolder {
        // SAFETY: the device is open, and its description is there as long as it is.
        let device = unsafe { (&raw const (*self.raw.as_ptr()).device).read() };
        // SAFETY: as above.
        DeviceFolder::new(text(unsafe { &(*device).ibdev_path }))
    }

    /// For the library's functions.
    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// The second table, if it reaches down to `offset`.
    fn extended_table(&self, offset: usize) -> Option<*const verbs_context> {
        let context = self.raw.as_ptr();
        // SAFETY: the device is open.
        let abi = unsafe { (&raw const (*context).abi_compat).read() };
        if abi != VERBS_ABI_IS_EXTENDED {
            return None;
        }
        // SAFETY: the mark that was just read says that the context is the last field of a `verbs_context`, and its
        // field `sz` lies right before.
        let (table, sz) = unsafe {
            let table = context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>().cast_const();
            (table, (&raw const (*table).sz).read())
        };
        verbs_context::has(sz, offset).then_some(table)
    }

    // --- Devices and ports ---

    /// `ibv_query_device_ex`, or what `ibv_query_device` knows when the driver has only that.
    pub(crate) fn query_device(&self) -> io::Result<ibv_device_attr_ex> {
        let mut attributes = ibv_device_attr_ex::zeroed();
        if let Some(query) = extended!(self, query_device_ex) {
            let size = size_of::<ibv_device_attr_ex>();
            // SAFETY: the device is open, and the structure is as large as we say.
            let answer = unsafe { query(self.as_ptr(), std::ptr::null(), &mut attributes, size) };
            if !matches!(answer, EOPNOTSUPP | ENOSYS) {
                return check(answer).map(|()| attributes);
            }
        }
        attributes = ibv_device_attr_ex::zeroed();
        // SAFETY: the device is open.
        check(unsafe { (self.library.ibv_query_device)(self.as_ptr(), &mut attributes.orig_attr) })?;
        Ok(attributes)
    }

    /// `ibv_query_port`
    pub(crate) fn query_port(&self, port: u8) -> io::Result<ibv_port_attr> {
        let mut attributes = ibv_port_attr::zeroed();
        let answer = match extended!(self, query_port) {
            // SAFETY: the device is open, and the structure is as large as we say.
            Some(query) => unsafe { query(self.as_ptr(), port, &mut attributes, size_of::<ibv_port_attr>()) },
            // SAFETY: the device is open, and the old form of the structure is the beginning of the new one.
            None => unsafe { (self.library.ibv_query_port)(self.as_ptr(), port, &mut attributes) },
        };
        check(answer).map(|()| attributes)
    }

    // --- Memory ---

    /// `ibv_alloc_null_mr`
    ///
    /// # Safety
    ///
    /// The protection domain is this device's and not yet deallocated.
    pub(crate) unsafe fn alloc_null_mr(&self, pd: *mut ibv_pd) -> io::Result<NonNull<ibv_mr>> {
        let allocate = extended!(self, alloc_null_mr).ok_or_else(not_supported)?;
        // SAFETY: the caller's promise.
        check_pointer(unsafe { allocate(pd) })
    }

    /// `ibv_alloc_mw`
    ///
    /// # Safety
    ///
    /// The protection domain is this device's and not yet deallocated.
    pub(crate) unsafe fn alloc_mw(&self, pd: *mut ibv_pd, window_type: c_uint) -> io::Result<NonNull<ibv_mw>> {
        let allocate = basic!(self, alloc_mw).ok_or_else(not_supported)?;
        // SAFETY: the caller's promise.
        check_pointer(unsafe { allocate(pd, window_type) })
    }

    /// `ibv_dealloc_mw`
    ///
    /// # Safety
    ///
    /// The window is this device's and not yet deallocated.
    pub(crate) unsafe fn dealloc_mw(&self, mw: *mut ibv_mw) -> io::Result<()> {
        let deallocate = basic!(self, dealloc_mw).ok_or_else(not_supported)?;
        // SAFETY: the caller's promise.
        check(unsafe { deallocate(mw) })
    }

    /// `ibv_bind_mw`, with the checks that the header makes.
    ///
    /// # Safety
    ///
    /// Queue pair, window and region are this device's and not yet destroyed.
    pub(crate) unsafe fn bind_mw(&self, qp: *mut ibv_qp, mw: *mut ibv_mw, bind: &mut ibv_mw_bind) -> io::Result<()> {
        let info = &bind.bind_info;
        // SAFETY: the caller's promise.
        let (window_type, domain) = unsafe { ((*mw).r#type, (*mw).pd) };
        if window_type != IBV_MW_TYPE_1 || info.mr.is_null() && (info.addr != 0 || info.length != 0) {
            return Err(io::Error::from_raw_os_error(EINVAL));
        }
        // SAFETY: the caller's promise, when there is a region.
        if !info.mr.is_null() && unsafe { (*info.mr).pd } != domain {
            return Err(io::Error::from_raw_os_error(EPERM));
        }
        let call = basic!(self, bind_mw).ok_or_else(not_supported)?;
        // SAFETY: the caller's promise.
        check(unsafe { call(qp, mw, bind) })
    }

    // --- Completion queues ---

    /// `ibv_poll_cq`: how many completions were written, or a negative number.
    ///
    /// # Safety
    ///
    /// The completion queue is this device's and not yet destroyed; there is room for `count` completions.
    pub(crate) unsafe fn poll_cq(&self, cq: *mut ibv_cq, count: c_int, completions: *mut ibv_wc) -> c_int {
        match basic!(self, poll_cq) {
            // SAFETY: the caller's promise.
            Some(poll) => unsafe { poll(cq, count, completions) },
            None => -EOPNOTSUPP,
        }
    }

    /// `ibv_req_notify_cq`
    ///
    /// # Safety
    ///
    /// The completion queue is this device's and not yet destroyed.
    pub(crate) unsafe fn req_notify_cq(&self, cq: *mut ibv_cq, solicited_only: bool) -> io::Result<()> {
        let request = basic!(self, req_notify_cq).ok_or_else(not_supported)?;
        // SAFETY: the caller's promise.
        check(unsafe { request(cq, solicited_only.into()) })
    }

    /// `ibv_modify_cq`
    ///
    /// # Safety
    ///
    /// The completion queue is this device's and not yet destroyed.
    pub(crate) unsafe fn modify_cq(&self, cq: *mut ibv_cq, attributes: &mut ibv_modify_cq_attr) -> io::Result<()> {
        let modify = extended!(self, modify_cq).ok_or_else(not_supported)?;
        // SAFETY: the caller's promise.
        check(unsafe { modify(cq, attributes) })
    }

    // --- Queue pairs ---

    /// `ibv_create_qp_ex`, for masks with more than the protection domain in them.
    ///
    /// # Safety
    ///
    /// All objects in the attributes are this device's and not yet destroyed.
    pub(crate) unsafe fn create_qp_ex(&self, attributes: &mut ibv_qp_init_attr_ex) -> io::Result<NonNull<ibv_qp>> {
        let create = extended!(self, create_qp_ex).ok_or_else(not_supported)?;
        // SAFETY: the caller's promise.
        check_pointer(unsafe { create(self.as_ptr(), attributes) })
    }

    /// `ibv_modify_qp_rate_limit`
    ///
    /// # Safety
    ///
    /// The queue pair is this device's and not yet destroyed.
    pub(crate) unsafe fn modify_qp_rate_limit(
        &self,
        qp: *mut ibv_qp,
        attributes: &mut ibv_qp_rate_limit_attr,
    ) -> io::Result<()> {
        let modify = extended!(self, modify_qp_rate_limit).ok_or_else(not_supported)?;
        // SAFETY: the caller's promise.
        check(unsafe { modify(qp, attributes) })
    }

    /// `ibv_post_send`. The answer is 0 or an error number; `bad` is then the first request that was not posted.
    ///
    /// # Safety
    ///
    /// The queue pair is this device's and not yet destroyed; the list and what its inline entries name is readable.
    pub(crate) unsafe fn post_send(
        &self,
        qp: *mut ibv_qp,
        requests: *mut ibv_send_wr,
        bad: &mut *mut ibv_send_wr,
    ) -> io::Result<()> {
        let post = basic!(self, post_send).ok_or_else(not_supported)?;
        // SAFETY: the caller's promise.
        check(unsafe { post(qp, requests, bad) })
    }

    /// `ibv_post_recv`
    ///
    /// # Safety
    ///
    /// The queue pair is this device's and not yet destroyed; the list is readable.
    pub(crate) unsafe fn post_recv(
        &self,
        qp: *mut ibv_qp,
        requests: *mut ibv_recv_wr,
        bad: &mut *mut ibv_recv_wr,
    ) -> io::Result<()> {
        let post = basic!(self, post_recv).ok_or_else(not_supported)?;
        // SAFETY: the caller's promise.
        check(unsafe { post(qp, requests, bad) })
    }

    /// `ibv_post_srq_recv`
    ///
    /// # Safety
    ///
    /// The shared receive queue is this device's and not yet destroyed; the list is readable.
    pub(crate) unsafe fn post_srq_recv(
        &self,
        srq: *mut ibv_srq,
        requests: *mut ibv_recv_wr,
        bad: &mut *mut ibv_recv_wr,
    ) -> io::Result<()> {
        let post = basic!(self, post_srq_recv).ok_or_else(not_supported)?;
        // SAFETY: the caller's promise.
        check(unsafe { post(srq, requests, bad) })
    }
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;

    use super::*;

    /// Where an open device would be, with a second table of `sz` bytes before it, and what is found of it.
    fn with_table(library: &Arc<Library>, sz: usize, is_extended: bool, look: impl FnOnce(&Context)) {
        let mut table = Box::new(verbs_context::zeroed());
        table.sz = sz;
        if is_extended {
            table.context.abi_compat = VERBS_ABI_IS_EXTENDED;
        }
        let raw = NonNull::from(&mut *table).cast::<u8>();
        // SAFETY: the field lies inside the table.
        let raw = unsafe { raw.add(offset_of!(verbs_context, context)) }.cast::<ibv_context>();
        // SAFETY: no device is behind it, so it must never be closed, and only its tables are looked at.
        let context = ManuallyDrop::new(unsafe { Context::new(library.clone(), raw) });
        look(&context);
    }

    /// Older libraries have shorter tables, and what they lack must not be read: it would be other memory.
    #[test]
    fn tables_of_any_length_are_read_only_as_far_as_they_go() {
        let Ok(library) = Library::load() else {
            eprintln!("SKIPPED: libibverbs is not installed; what its tables hold was not looked at");
            return;
        };
        let whole = size_of::<verbs_context>();
        let query_port = offset_of!(verbs_context, query_port);
        let create_qp_ex = offset_of!(verbs_context, create_qp_ex);
        let has = |sz, is_extended, offset| {
            let mut found = false;
            with_table(&library, sz, is_extended, |context| found = context.extended_table(offset).is_some());
            found
        };
        assert!(has(whole, true, query_port));
        assert!(has(whole + 64, true, query_port), "a newer library has more");
        assert!(!has(whole - 1, true, query_port), "it is the last that was added");
        assert!(has(whole - create_qp_ex, true, create_qp_ex));
        assert!(!has(whole - create_qp_ex - 8, true, create_qp_ex));
        assert!(!has(whole, false, create_qp_ex), "a device without a second table");
        with_table(&library, whole, true, |context| {
            assert!(extended!(context, alloc_null_mr).is_none(), "a table that reaches it, with nothing there");
            assert!(basic!(context, post_send).is_none());
        });
    }
}
