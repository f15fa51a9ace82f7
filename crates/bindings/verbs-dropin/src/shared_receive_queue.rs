//! Shared receive queues.
#![allow(unsafe_code, reason = "hands structures to C and takes them back")]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use longhaul_verbs::{SharedReceiveQueueAttributes, SharedReceiveQueueChange, raw};
use longhaul_verbs_abi::{IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use nix::errno::Errno;

use crate::cancellation::NotCancelled;
use crate::context::untyped;
use crate::errors::{answer, null, number};
use crate::mailbox::Owner;
use crate::memory::domain;
use crate::outstanding::Outstanding;

/// `ibv_srq`
#[repr(C)]
pub(crate) struct SharedReceiveQueue {
    c: ibv_srq,
    pub(crate) raw: Arc<dyn raw::SharedReceiveQueue>,
    /// Queue pairs that take their receives from it.
    pub(crate) users: AtomicUsize,
    pub(crate) asynchronous: Arc<Outstanding>,
}

/// Ours behind a pointer of the program.
///
/// # Safety
///
/// It must be what `ibv_create_srq` has given, and not be destroyed yet.
pub(crate) unsafe fn shared_queue<'a>(queue: *mut ibv_srq) -> &'a SharedReceiveQueue {
    // SAFETY: the caller's promise; the structure is the first field.
    unsafe { &*queue.cast::<SharedReceiveQueue>() }
}

fn to_c(ours: &SharedReceiveQueueAttributes) -> ibv_srq_attr {
    ibv_srq_attr { max_wr: ours.requests, max_sge: ours.entries, srq_limit: ours.limit }
}

pub(crate) unsafe extern "C" fn create_srq(of: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a domain of ours, and a structure of the program, which also takes the answer.
    let (domain, asked) = unsafe { (domain(of), init.read()) };
    // The limit is set by modifying it, as with libibverbs.
    let attributes =
        SharedReceiveQueueAttributes { requests: asked.attr.max_wr, entries: asked.attr.max_sge, limit: 0 };
    let raw = match domain.raw.create_shared_receive_queue(attributes) {
        Ok(raw) => raw,
        Err(error) => return null(error),
    };
    if let Ok(given) = raw.query() {
        // SAFETY: as above.
        unsafe { (*init).attr = to_c(&given) };
    }
    let mut c = ibv_srq::zeroed();
    // SAFETY: as above.
    c.context = unsafe { (*of).context };
    (c.pd, c.srq_context, c.handle) = (of, asked.srq_context, raw.handle());
    let (handle, asynchronous) = (c.handle, Arc::new(Outstanding::default()));
    let users = AtomicUsize::new(0);
    let made = Box::into_raw(Box::new(SharedReceiveQueue { c, raw, users, asynchronous: asynchronous.clone() }));
    domain.users.fetch_add(1, Ordering::AcqRel);
    let owner = Owner::new(untyped(made), &domain.session.mailbox, &asynchronous);
    domain.session.device.owners().shared_receive_queues.insert(handle, owner);
    made.cast()
}

pub(crate) unsafe extern "C" fn modify_srq(srq: *mut ibv_srq, attributes: *mut ibv_srq_attr, mask: c_int) -> c_int {
    if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
        return number(Errno::EINVAL);
    }
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue of ours, and attributes of the program.
    let (ours, given) = unsafe { (shared_queue(srq), attributes.read()) };
    answer(ours.raw.modify(SharedReceiveQueueChange {
        requests: (mask & IBV_SRQ_MAX_WR != 0).then_some(given.max_wr),
        limit: (mask & IBV_SRQ_LIMIT != 0).then_some(given.srq_limit),
    }))
}

pub(crate) unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attributes: *mut ibv_srq_attr) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue of ours.
    match unsafe { shared_queue(srq) }.raw.query() {
        Ok(ours) => {
            // SAFETY: the program gives room for it.
            unsafe { attributes.write(to_c(&ours)) };
            0
        }
        Err(error) => number(error),
    }
}

pub(crate) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue of ours.
    let ours = unsafe { shared_queue(srq) };
    // SAFETY: its domain is there as long as it is.
    let domain = unsafe { domain(ours.c.pd) };
    if !domain.session.is_of_this_process() {
        return 0;
    }
    if ours.users.load(Ordering::Acquire) > 0 {
        return number(Errno::EBUSY);
    }
    domain.session.device.owners().shared_receive_queues.remove(&ours.c.handle);
    ours.asynchronous.wait();
    domain.users.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: made by `create_srq`; nobody finds it any more, and it is freed once.
    drop(unsafe { Box::from_raw(srq.cast::<SharedReceiveQueue>()) });
    0
}
