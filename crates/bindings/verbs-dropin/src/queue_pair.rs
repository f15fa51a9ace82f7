//! Queue pairs: made, changed, asked, destroyed.
#![allow(unsafe_code, reason = "hands structures to C and takes them back")]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use longhaul_verbs::{DestroyError, QueuePairAttributes, Transport, raw};
use longhaul_verbs_abi::{
    IBV_QP_STATE, ibv_ece, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_rate_limit_attr,
};
use nix::errno::Errno;

use crate::attributes;
use crate::cancellation::NotCancelled;
use crate::completion::queue;
use crate::errors::{answer, number};
use crate::memory::domain;
use crate::outstanding::Outstanding;
use crate::send_list::SendBuilder;
use crate::shared_receive_queue::shared_queue;

/// `ibv_qp`, and `ibv_qp_ex`, which begins with it.
#[repr(C)]
pub(crate) struct QueuePair {
    pub(crate) c: ibv_qp_ex,
    /// Made for requests that are built call by call.
    pub(crate) is_extended: bool,
    pub(crate) sends: SendBuilder,
    pub(crate) inline_bytes_max: u32,
    pub(crate) send_requests_max: u32,
    pub(crate) raw: Arc<dyn raw::QueuePair>,
    pub(crate) transport: Transport,
    pub(crate) has_atomics: bool,
    pub(crate) signal_all: bool,
    pub(crate) asynchronous: Arc<Outstanding>,
}

/// Ours behind a pointer of the program.
///
/// # Safety
///
/// It must be what `ibv_create_qp` has given, and not be destroyed yet.
pub(crate) unsafe fn pair<'a>(queue_pair: *mut ibv_qp) -> &'a QueuePair {
    // SAFETY: the caller's promise; the structure is the first field.
    unsafe { &*queue_pair.cast::<QueuePair>() }
}

/// The extended form, or null for a queue pair that was made without operations.
pub(crate) unsafe extern "C" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: a queue pair of ours.
    if unsafe { pair(qp) }.is_extended { qp.cast() } else { std::ptr::null_mut() }
}

pub(crate) unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue pair of ours, and attributes of the program.
    let (ours, given) = unsafe { (pair(qp), attributes::given(&*attributes, mask)) };
    let Some(given) = given else { return number(Errno::EINVAL) };
    let modified = ours.raw.modify(&given);
    if modified.is_ok() && mask & IBV_QP_STATE != 0 {
        // SAFETY: the program's own structure, as libibverbs changes it.
        unsafe { (*qp).state = (*attributes).qp_state };
    }
    answer(modified)
}

pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue pair of ours.
    let ours = unsafe { pair(qp) };
    let queried = match ours.raw.query() {
        Ok(queried) => queried,
        Err(error) => return number(error),
    };
    let c = attributes::answered(&queried);
    let made_from = ibv_qp_init_attr {
        qp_context: ours.c.qp_base.qp_context,
        send_cq: ours.c.qp_base.send_cq,
        recv_cq: ours.c.qp_base.recv_cq,
        srq: ours.c.qp_base.srq,
        cap: c.cap,
        qp_type: ours.c.qp_base.qp_type,
        sq_sig_all: ours.signal_all.into(),
    };
    // SAFETY: the program gives room for both, and its own structure follows the state as with libibverbs.
    unsafe {
        (*qp).state = c.qp_state;
        attributes.write(c);
        init.write(made_from);
    }
    0
}

pub(crate) unsafe extern "C" fn modify_qp_rate_limit(qp: *mut ibv_qp, asked: *mut ibv_qp_rate_limit_attr) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue pair of ours, and attributes of the program.
    let (ours, asked) = unsafe { (pair(qp), asked.read()) };
    // A burst or a packet size is a hint for hardware.
    if asked.comp_mask != 0 {
        return number(Errno::EINVAL);
    }
    let rate_limit_kilobits_per_second = Some(asked.rate_limit);
    answer(ours.raw.modify(&QueuePairAttributes { rate_limit_kilobits_per_second, ..Default::default() }))
}

/// Enhanced connection establishment is a vendor's own: there is nothing to agree on.
pub(crate) unsafe extern "C" fn query_ece(_: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the program gives room for it.
    unsafe { ece.write(ibv_ece::zeroed()) };
    number(Errno::EOPNOTSUPP)
}

pub(crate) unsafe extern "C" fn set_ece(_: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the program gives a structure.
    let asked = unsafe { ece.read() };
    match (asked.comp_mask, asked.vendor_id) {
        // The peer has nothing to agree on either.
        (0, 0) => 0,
        _ => number(Errno::EOPNOTSUPP),
    }
}

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue pair of ours.
    let ours = unsafe { pair(qp) };
    // SAFETY: what it was made from is there as long as it is.
    let session = unsafe { &domain(ours.c.qp_base.pd).session };
    if !session.is_of_this_process() {
        return 0;
    }
    match ours.raw.destroy() {
        Ok(()) => {
            session.device.owners().queue_pairs.remove(&ours.c.qp_base.qp_num);
        }
        // Closing the context has destroyed it; only this is left.
        Err(DestroyError::Gone) => {}
        Err(error) => return number(error),
    }
    session.remove_queue_pair(qp.addr());
    ours.asynchronous.wait();
    // SAFETY: as above.
    unsafe {
        domain(ours.c.qp_base.pd).users.fetch_sub(1, Ordering::AcqRel);
        queue(ours.c.qp_base.send_cq).users.fetch_sub(1, Ordering::AcqRel);
        queue(ours.c.qp_base.recv_cq).users.fetch_sub(1, Ordering::AcqRel);
        if !ours.c.qp_base.srq.is_null() {
            shared_queue(ours.c.qp_base.srq).users.fetch_sub(1, Ordering::AcqRel);
        }
    }
    // SAFETY: made by `create_qp`; nobody finds it any more, and it is freed once.
    drop(unsafe { Box::from_raw(qp.cast::<QueuePair>()) });
    0
}
