//! Queue pairs: made, changed, asked, destroyed.
#![allow(unsafe_code, reason = "hands structures to C and takes them back")]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use longhaul_verbs::{Capabilities, DestroyError, Transport, raw};
use longhaul_verbs_abi::{IBV_QP_STATE, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr};
use nix::errno::Errno;

use crate::attributes;
use crate::cancellation::NotCancelled;
use crate::completion::queue;
use crate::context::untyped;
use crate::errors::{answer, null, number};
use crate::mailbox::Owner;
use crate::memory::domain;
use crate::outstanding::Outstanding;
use crate::shared_receive_queue::shared_queue;

/// `ibv_qp`
#[repr(C)]
pub(crate) struct QueuePair {
    c: ibv_qp,
    pub(crate) raw: Arc<dyn raw::QueuePair>,
    pub(crate) transport: Transport,
    pub(crate) has_atomics: bool,
    signal_all: bool,
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

pub(crate) unsafe extern "C" fn create_qp(of: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: the program gives a structure, which also takes the answer.
    let asked = unsafe { init.read() };
    let Some(transport) = attributes::transport(asked.qp_type) else { return null(Errno::EOPNOTSUPP) };
    if asked.send_cq.is_null() || asked.recv_cq.is_null() {
        return null(Errno::EINVAL);
    }
    // SAFETY: a domain and two queues of ours.
    let (domain, send, receive) = unsafe { (domain(of), queue(asked.send_cq), queue(asked.recv_cq)) };
    let session = &domain.session;
    // SAFETY: null, or a queue of ours.
    let shared = (!asked.srq.is_null()).then(|| unsafe { shared_queue(asked.srq) });
    let signal_all = asked.sq_sig_all != 0;
    let made = domain.raw.create_queue_pair(&raw::QueuePairInit {
        transport,
        send_queue: &*send.raw,
        receive_queue: &*receive.raw,
        shared_receive_queue: shared.map(|queue| &*queue.raw),
        limits: attributes::limits(&asked.cap),
        signal_all,
    });
    let raw = match made {
        Ok(raw) => raw,
        Err(error) => return null(error),
    };
    if let Some(limits) = raw.query().ok().and_then(|attributes| attributes.limits) {
        // SAFETY: as above.
        unsafe { (*init).cap = attributes::limits_to_c(&limits) };
    }
    let capabilities = session.device.raw.attributes().map_or(Capabilities::empty(), |found| found.capabilities);
    let mut c = ibv_qp::zeroed();
    // SAFETY: as above.
    c.context = unsafe { (*of).context };
    (c.qp_context, c.pd, c.send_cq, c.recv_cq) = (asked.qp_context, of, asked.send_cq, asked.recv_cq);
    c.srq = asked.srq;
    (c.handle, c.qp_num, c.qp_type) = (raw.number().value(), raw.number().value(), asked.qp_type);
    c.state = raw.state() as u32;
    let asynchronous = Arc::new(Outstanding::default());
    let has_atomics = capabilities.contains(Capabilities::ATOMICS);
    let shared_raw = raw.clone();
    let made = Box::new(QueuePair { c, raw, transport, has_atomics, signal_all, asynchronous: asynchronous.clone() });
    let qp_num = made.c.qp_num;
    let made = Box::into_raw(made);
    domain.users.fetch_add(1, Ordering::AcqRel);
    send.users.fetch_add(1, Ordering::AcqRel);
    receive.users.fetch_add(1, Ordering::AcqRel);
    if let Some(queue) = shared {
        queue.users.fetch_add(1, Ordering::AcqRel);
    }
    let owner = Owner::new(untyped(made), &session.mailbox, &asynchronous);
    session.device.owners().queue_pairs.insert(qp_num, owner);
    session.add_queue_pair(made.addr(), &shared_raw);
    made.cast()
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
        qp_context: ours.c.qp_context,
        send_cq: ours.c.send_cq,
        recv_cq: ours.c.recv_cq,
        srq: ours.c.srq,
        cap: c.cap,
        qp_type: ours.c.qp_type,
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

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue pair of ours.
    let ours = unsafe { pair(qp) };
    // SAFETY: what it was made from is there as long as it is.
    let session = unsafe { &domain(ours.c.pd).session };
    if !session.is_of_this_process() {
        return 0;
    }
    match ours.raw.destroy() {
        Ok(()) => {
            session.device.owners().queue_pairs.remove(&ours.c.qp_num);
        }
        // Closing the context has destroyed it; only this is left.
        Err(DestroyError::Gone) => {}
        Err(error) => return number(error),
    }
    session.remove_queue_pair(qp.addr());
    ours.asynchronous.wait();
    // SAFETY: as above.
    unsafe {
        domain(ours.c.pd).users.fetch_sub(1, Ordering::AcqRel);
        queue(ours.c.send_cq).users.fetch_sub(1, Ordering::AcqRel);
        queue(ours.c.recv_cq).users.fetch_sub(1, Ordering::AcqRel);
        if !ours.c.srq.is_null() {
            shared_queue(ours.c.srq).users.fetch_sub(1, Ordering::AcqRel);
        }
    }
    // SAFETY: made by `create_qp`; nobody finds it any more, and it is freed once.
    drop(unsafe { Box::from_raw(qp.cast::<QueuePair>()) });
    0
}
