//! Making queue pairs: with the extended interface for sends if the device has it, without it otherwise.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::io;
use std::sync::Arc;

use longhaul_verbs::{QueuePairLimits, Transport};
use nix::libc::EINVAL;

use crate::answer::{check, check_pointer, is_not_supported};
use crate::domain::Domain;
use crate::extended_post::{Extended, operations_of};
use crate::handle::Handle;
use crate::queue_pair_attributes::limits_from_c;
use longhaul_verbs_abi::{
    IBV_QP_CAP, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, ibv_qp, ibv_qp_attr, ibv_qp_cap,
    ibv_qp_init_attr, ibv_qp_init_attr_ex,
};

/// A new queue pair.
pub(crate) struct Created {
    pub(crate) queue_pair: Handle<ibv_qp>,
    /// How to post by calls, if it can.
    pub(crate) extended: Option<Extended>,
}

/// The sizes that a new queue pair really has. Drivers round up; most say so when it is made (`cap`), Soft-RoCE only
/// when asked.
///
/// # Safety
///
/// The queue pair is of the domain's device, and alive.
pub(crate) unsafe fn real_limits(domain: &Domain, queue_pair: Handle<ibv_qp>, cap: &ibv_qp_cap) -> QueuePairLimits {
    let mut attributes = ibv_qp_attr::zeroed();
    let mut init = ibv_qp_init_attr::zeroed();
    let query = domain.context().library().ibv_query_qp;
    // SAFETY: the caller's promise; there is room for the answers.
    let answer = unsafe { query(queue_pair.as_ptr(), &mut attributes, IBV_QP_CAP, &mut init) };
    let asked = if check(answer).is_ok() { attributes.cap } else { *cap };
    QueuePairLimits {
        send_requests: cap.max_send_wr.max(asked.max_send_wr),
        receive_requests: cap.max_recv_wr.max(asked.max_recv_wr),
        // These the driver itself checks, against what it said first.
        ..limits_from_c(cap)
    }
}

/// Make a queue pair; `attributes` then holds the sizes that the driver says it has.
///
/// # Safety
///
/// All objects in the attributes are of the domain's device and alive, and stay so for as long as the queue pair is.
pub(crate) unsafe fn create(
    domain: &Arc<Domain>,
    attributes: &mut ibv_qp_init_attr,
    transport: Transport,
    wants_extended: bool,
) -> io::Result<Created> {
    let library = domain.context().library();
    let tries = if wants_extended { operations_of(transport) } else { &[] };
    if let Some(to_extended) = library.ibv_qp_to_qp_ex {
        for &operations in tries {
            // SAFETY: the caller's promise.
            match unsafe { create_extended(domain, attributes, operations) } {
                Ok(queue_pair) => {
                    // SAFETY: just made.
                    let table = unsafe { to_extended(queue_pair.as_ptr()) };
                    let table = std::ptr::NonNull::new(table).map(Handle::new);
                    // SAFETY: the table is the queue pair's, and goes with it.
                    let extended = table.and_then(|table| unsafe { Extended::new(table, operations, transport) });
                    return Ok(Created { queue_pair, extended });
                }
                // "Not these operations", as drivers say it; if it was something else, they will say so again.
                Err(error) if is_not_supported(&error) || error.raw_os_error() == Some(EINVAL) => {}
                Err(error) => return Err(error),
            }
        }
    }
    // SAFETY: the caller's promise.
    let queue_pair = check_pointer(unsafe { (library.ibv_create_qp)(domain.as_ptr(), attributes) })?;
    Ok(Created { queue_pair: Handle::new(queue_pair), extended: None })
}

/// # Safety
///
/// As for `create`.
unsafe fn create_extended(
    domain: &Arc<Domain>,
    attributes: &mut ibv_qp_init_attr,
    operations: u64,
) -> io::Result<Handle<ibv_qp>> {
    let mut extended = ibv_qp_init_attr_ex {
        send_cq: attributes.send_cq,
        recv_cq: attributes.recv_cq,
        srq: attributes.srq,
        cap: attributes.cap,
        qp_type: attributes.qp_type,
        sq_sig_all: attributes.sq_sig_all,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        pd: domain.as_ptr(),
        send_ops_flags: operations,
        ..ibv_qp_init_attr_ex::zeroed()
    };
    // SAFETY: the caller's promise.
    let queue_pair = unsafe { domain.context().create_qp_ex(&mut extended) }?;
    attributes.cap = extended.cap;
    Ok(Handle::new(queue_pair))
}
