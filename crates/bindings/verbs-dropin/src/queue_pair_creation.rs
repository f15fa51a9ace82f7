//! Making queue pairs.
#![allow(unsafe_code, reason = "hands structures to C and takes them back")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use longhaul_verbs::{Capabilities, raw};
use longhaul_verbs_abi::{self as abi, ibv_context, ibv_pd, ibv_qp, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex};
use nix::errno::Errno;

use crate::attributes;
use crate::cancellation::NotCancelled;
use crate::completion::queue;
use crate::context::untyped;
use crate::errors::null;
use crate::mailbox::Owner;
use crate::memory::domain;
use crate::outstanding::Outstanding;
use crate::queue_pair::QueuePair;
use crate::send_builder::functions;
use crate::send_list::SendBuilder;
use crate::shared_receive_queue::shared_queue;

pub(crate) unsafe extern "C" fn create_qp(of: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's promises are the same.
    unsafe { make(of, init, None) }
}

pub(crate) unsafe extern "C" fn create_qp_ex(_: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: the program gives a structure.
    let asked = unsafe { init.read() };
    let known = abi::IBV_QP_INIT_ATTR_PD | abi::IBV_QP_INIT_ATTR_CREATE_FLAGS | abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let has = |bit| asked.comp_mask & bit != 0;
    // Of the flags for special queue pairs there is none here.
    if asked.comp_mask & !known != 0 || has(abi::IBV_QP_INIT_ATTR_CREATE_FLAGS) && asked.create_flags != 0 {
        return null(Errno::EOPNOTSUPP);
    }
    if !has(abi::IBV_QP_INIT_ATTR_PD) || asked.pd.is_null() {
        return null(Errno::EINVAL);
    }
    let operations = has(abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(asked.send_ops_flags);
    // SAFETY: a domain of ours; the structure begins with the plain one.
    unsafe { make(asked.pd, init.cast(), operations) }
}

/// # Safety
///
/// As libibverbs demands of `ibv_create_qp`.
unsafe fn make(of: *mut ibv_pd, init: *mut ibv_qp_init_attr, operations: Option<u64>) -> *mut ibv_qp {
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
    let capabilities = session.device.raw.attributes().map_or(Capabilities::empty(), |found| found.capabilities);
    let has_atomics = capabilities.contains(Capabilities::ATOMICS);
    let extended = operations.map(|operations| functions(transport, has_atomics, operations));
    let (is_extended, Some(mut c)) = (extended.is_some(), extended.unwrap_or(Some(ibv_qp_ex::zeroed()))) else {
        return null(Errno::EOPNOTSUPP);
    };
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
    let (mut inline_bytes_max, mut send_requests_max) = (asked.cap.max_inline_data, asked.cap.max_send_wr);
    if let Some(limits) = raw.query().ok().and_then(|attributes| attributes.limits) {
        (inline_bytes_max, send_requests_max) = (limits.inline_bytes, limits.send_requests);
        // SAFETY: as above.
        unsafe { (*init).cap = attributes::limits_to_c(&limits) };
    }
    let base = &mut c.qp_base;
    // SAFETY: as above.
    base.context = unsafe { (*of).context };
    (base.qp_context, base.pd, base.send_cq, base.recv_cq) = (asked.qp_context, of, asked.send_cq, asked.recv_cq);
    base.srq = asked.srq;
    let qp_num = raw.number().value();
    (base.handle, base.qp_num, base.qp_type) = (qp_num, qp_num, asked.qp_type);
    base.state = raw.state() as u32;
    let asynchronous = Arc::new(Outstanding::default());
    let shared_raw = raw.clone();
    let made = Box::into_raw(Box::new(QueuePair {
        c,
        is_extended,
        sends: SendBuilder::default(),
        inline_bytes_max,
        send_requests_max,
        raw,
        transport,
        has_atomics,
        signal_all,
        asynchronous: asynchronous.clone(),
    }));
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
