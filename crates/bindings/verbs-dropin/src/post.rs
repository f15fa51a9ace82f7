//! Work requests: from linked lists to slices.
#![allow(unsafe_code, reason = "reads lists of C")]

use std::ffi::{c_int, c_uint};

use longhaul_verbs::{
    DatagramDestination, PostError, QueuePairNumber, ReceiveRequest, RemoteMemory, ScatterGatherEntry, SendFlags,
    SendOperation, SendRequest, Transport,
};
use longhaul_verbs_abi as abi;
use longhaul_verbs_abi::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_send_wr_ud, ibv_sge, ibv_srq};
use nix::errno::Errno;

use crate::address_handle::handle;
use crate::cancellation::NotCancelled;
use crate::errors::{Number, number};
use crate::queue_pair::{QueuePair, pair};
use crate::shared_receive_queue::shared_queue;
use crate::windows::{BoundTo, window};

/// How many requests of a list are posted at a time. One alone, the usual case, gets no room for others.
const BATCH: usize = 16;

/// The entries of a request, which have the same layout here and there.
///
/// # Safety
///
/// A list that is not null must have that many entries, for as long as the answer is used.
unsafe fn entries<'a>(list: *mut ibv_sge, count: c_int) -> Result<&'a [ScatterGatherEntry], Errno> {
    match usize::try_from(count).map_err(|_| Errno::EINVAL)? {
        0 => Ok(&[]),
        _ if list.is_null() => Err(Errno::EINVAL),
        // SAFETY: the caller's promise.
        count => Ok(unsafe { std::slice::from_raw_parts(list.cast::<ScatterGatherEntry>(), count) }),
    }
}

const _: () = assert!(size_of::<ibv_sge>() == size_of::<ScatterGatherEntry>());
const _: () = assert!(align_of::<ibv_sge>() == align_of::<ScatterGatherEntry>());

/// What a request asks for.
fn operation(request: &ibv_send_wr, has_atomics: bool) -> Result<SendOperation, Errno> {
    let remote = || {
        // SAFETY: plain numbers, of which every pattern is one; the opcode says that they are these.
        let rdma = unsafe { request.wr.rdma };
        RemoteMemory { address: rdma.remote_addr, key: rdma.rkey }
    };
    // SAFETY: as above.
    let atomic = || unsafe { request.wr.atomic };
    let immediate = u32::from_be(request.imm_data);
    match request.opcode {
        abi::IBV_WR_SEND => Ok(SendOperation::Send),
        abi::IBV_WR_SEND_WITH_IMM => Ok(SendOperation::SendWithImmediate(immediate)),
        abi::IBV_WR_SEND_WITH_INV => Ok(SendOperation::SendWithInvalidate(request.imm_data)),
        abi::IBV_WR_RDMA_WRITE => Ok(SendOperation::Write(remote())),
        abi::IBV_WR_RDMA_WRITE_WITH_IMM => Ok(SendOperation::WriteWithImmediate(remote(), immediate)),
        abi::IBV_WR_RDMA_READ => Ok(SendOperation::Read(remote())),
        abi::IBV_WR_LOCAL_INV => Ok(SendOperation::LocalInvalidate(request.imm_data)),
        abi::IBV_WR_ATOMIC_CMP_AND_SWP if has_atomics => {
            let atomic = atomic();
            let remote = RemoteMemory { address: atomic.remote_addr, key: atomic.rkey };
            Ok(SendOperation::CompareAndSwap { remote, compare: atomic.compare_add, swap: atomic.swap })
        }
        abi::IBV_WR_ATOMIC_FETCH_AND_ADD if has_atomics => {
            let atomic = atomic();
            let remote = RemoteMemory { address: atomic.remote_addr, key: atomic.rkey };
            Ok(SendOperation::FetchAndAdd { remote, add: atomic.compare_add })
        }
        abi::IBV_WR_BIND_MW => Ok(SendOperation::BindWindow(request.bind_mw.rkey)),
        abi::IBV_WR_ATOMIC_CMP_AND_SWP | abi::IBV_WR_ATOMIC_FETCH_AND_ADD => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}

fn flags(bits: c_uint) -> Result<SendFlags, Errno> {
    SendFlags::from_bits(bits).ok_or(Errno::EINVAL)
}

/// Where a datagram goes.
///
/// # Safety
///
/// The address handle is null or one of ours.
pub(crate) unsafe fn destination<'a>(datagram: ibv_send_wr_ud) -> Result<DatagramDestination<'a>, Errno> {
    if datagram.ah.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller's promise.
    let address_handle = &*unsafe { handle(datagram.ah) }.raw;
    let queue_pair = QueuePairNumber::new(datagram.remote_qpn);
    Ok(DatagramDestination { address_handle, queue_pair, queue_key: datagram.remote_qkey })
}

/// A request of C in our words.
///
/// # Safety
///
/// As for [`entries`], and for [`destination`] on a queue pair of UD.
unsafe fn send_request<'a>(request: *const ibv_send_wr, ours: &QueuePair) -> Result<SendRequest<'a>, Errno> {
    // SAFETY: a request of the program's list.
    let request = unsafe { &*request };
    let operation = operation(request, ours.has_atomics)?;
    // SAFETY: the caller's promise.
    let local = unsafe { entries(request.sg_list, request.num_sge) }?;
    let translated = SendRequest::new(request.wr_id, operation, local).with_flags(flags(request.send_flags)?);
    match ours.transport {
        // SAFETY: every pattern is a value; on a queue pair of this kind the caller's promise is about this one.
        Transport::UnreliableDatagram => Ok(translated.to(unsafe { destination(request.wr.ud) }?)),
        _ => Ok(translated),
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    request: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: the caller's promises are the same; a request that is not null is one of the program's.
    unsafe {
        if request.is_null() || (*request).next.is_null() {
            post_sends::<1>(qp, request, bad)
        } else {
            post_sends::<BATCH>(qp, request, bad)
        }
    }
}

/// # Safety
///
/// As libibverbs demands of `ibv_post_send`.
unsafe fn post_sends<const BATCH: usize>(
    qp: *mut ibv_qp,
    mut request: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a queue pair of ours.
    let ours = unsafe { pair(qp) };
    let nothing = SendRequest::new(0, SendOperation::Send, &[]);
    // SAFETY: null, or a request of the program's list, which the call may use until it returns.
    let binds = |request: *mut ibv_send_wr| unsafe { (*request).opcode } == abi::IBV_WR_BIND_MW;
    while !request.is_null() {
        if binds(request) {
            // SAFETY: as above.
            match unsafe { post_bind(&*request, ours) } {
                // SAFETY: as above.
                Ok(()) => request = unsafe { (*request).next },
                Err(errno) => {
                    // SAFETY: the program gives room for a pointer.
                    unsafe { bad.write(request) };
                    return number(errno);
                }
            }
            continue;
        }
        let (mut batch, mut pointers) = ([nothing; BATCH], [request; BATCH]);
        let mut count = 0;
        let mut refused = None;
        while !request.is_null() && count < BATCH && !binds(request) {
            // SAFETY: as above.
            match unsafe { send_request(request, ours) } {
                Ok(translated) => (batch[count], pointers[count]) = (translated, request),
                Err(errno) => {
                    refused = Some((request, errno));
                    break;
                }
            }
            count += 1;
            // SAFETY: as above.
            request = unsafe { (*request).next };
        }
        // SAFETY: inline entries are readable, as libibverbs demands of the program; the device checks all others.
        let posted = unsafe { ours.raw.post_send(&batch[..count]) };
        if let Some((first, errno)) = failure(posted, &pointers).or(refused.map(|(at, errno)| (at, errno.into()))) {
            // SAFETY: the program gives room for a pointer.
            unsafe { bad.write(first) };
            return number(errno);
        }
    }
    0
}

/// A request that binds a window of type 2. It is posted alone: what it is about is kept for as long as the call takes.
///
/// # Safety
///
/// Its window and its region must be of ours; the region may be null.
unsafe fn post_bind(request: &ibv_send_wr, ours: &QueuePair) -> Result<(), Number> {
    let of = request.bind_mw.mw;
    if of.is_null() {
        return Err(Errno::EINVAL.into());
    }
    // SAFETY: the caller's promise.
    let (place, window) = unsafe { (BoundTo::new(of, &request.bind_mw.bind_info)?, &*window(of).raw) };
    let flags = flags(request.send_flags & !abi::IBV_SEND_INLINE)?;
    let translated = SendRequest {
        window: Some(place.request(window)),
        ..SendRequest::new(request.wr_id, operation(request, false)?, &[]).with_flags(flags)
    };
    // SAFETY: it has no entries.
    unsafe { ours.raw.post_send(&[translated]) }.map_err(|error| error.kind.into())
}

/// The first request that was not posted, and why.
fn failure<T>(posted: Result<(), PostError>, pointers: &[*mut T]) -> Option<(*mut T, Number)> {
    let PostError { index, kind } = posted.err()?;
    Some((pointers[index.min(pointers.len() - 1)], kind.into()))
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    request: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue pair of ours; the device checks the entries.
    unsafe {
        let ours = pair(qp);
        post_receives(request, bad, |batch| ours.raw.post_receive(batch))
    }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    request: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue of ours; the device checks the entries.
    unsafe {
        let ours = shared_queue(srq);
        post_receives(request, bad, |batch| ours.raw.post_receive(batch))
    }
}

/// # Safety
///
/// As libibverbs demands of `ibv_post_recv`.
unsafe fn post_receives(
    request: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    post: impl Fn(&[ReceiveRequest<'_>]) -> Result<(), PostError>,
) -> c_int {
    // SAFETY: as for `post_send`.
    unsafe {
        if request.is_null() || (*request).next.is_null() {
            post_receive_list::<1>(request, bad, post)
        } else {
            post_receive_list::<BATCH>(request, bad, post)
        }
    }
}

/// # Safety
///
/// As for [`post_receives`].
unsafe fn post_receive_list<const BATCH: usize>(
    mut request: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    post: impl Fn(&[ReceiveRequest<'_>]) -> Result<(), PostError>,
) -> c_int {
    while !request.is_null() {
        let (mut batch, mut pointers) = ([ReceiveRequest { id: 0, local: &[] }; BATCH], [request; BATCH]);
        let mut count = 0;
        let mut refused = None;
        while !request.is_null() && count < BATCH {
            // SAFETY: a request of the program's list, which the call may use until it returns.
            let (id, local, next) =
                unsafe { ((*request).wr_id, entries((*request).sg_list, (*request).num_sge), (*request).next) };
            match local {
                Ok(local) => (batch[count], pointers[count]) = (ReceiveRequest { id, local }, request),
                Err(errno) => {
                    refused = Some((request, errno));
                    break;
                }
            }
            count += 1;
            request = next;
        }
        let posted = post(&batch[..count]);
        if let Some((first, errno)) = failure(posted, &pointers).or(refused.map(|(at, errno)| (at, errno.into()))) {
            // SAFETY: the program gives room for a pointer.
            unsafe { bad.write(first) };
            return number(errno);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: c_uint) -> ibv_send_wr {
        let rdma = abi::ibv_send_wr_rdma { remote_addr: 0x1000, rkey: 7 };
        let mut request = ibv_send_wr::zeroed();
        (request.opcode, request.imm_data) = (opcode, 0x1122_3344_u32.to_be());
        request.wr.rdma = rdma;
        request
    }

    #[test]
    fn operations_are_what_c_means() {
        let remote = RemoteMemory { address: 0x1000, key: 7 };
        let of = |opcode| operation(&request(opcode), false);
        assert_eq!(of(abi::IBV_WR_SEND_WITH_IMM), Ok(SendOperation::SendWithImmediate(0x1122_3344)));
        assert_eq!(of(abi::IBV_WR_RDMA_WRITE_WITH_IMM), Ok(SendOperation::WriteWithImmediate(remote, 0x1122_3344)));
        assert_eq!(of(abi::IBV_WR_RDMA_READ), Ok(SendOperation::Read(remote)));
        let key = 0x1122_3344_u32.to_be();
        assert_eq!(of(abi::IBV_WR_SEND_WITH_INV), Ok(SendOperation::SendWithInvalidate(key)), "keys are as they are");
    }

    #[test]
    fn what_is_not_here_is_not_supported() {
        for opcode in [abi::IBV_WR_ATOMIC_CMP_AND_SWP, abi::IBV_WR_ATOMIC_FETCH_AND_ADD] {
            assert_eq!(operation(&request(opcode), false), Err(Errno::EOPNOTSUPP));
        }
        assert_eq!(operation(&request(77), true), Err(Errno::EINVAL));
        let with_atomics = operation(&request(abi::IBV_WR_ATOMIC_FETCH_AND_ADD), true);
        assert!(matches!(with_atomics, Ok(SendOperation::FetchAndAdd { .. })));
        assert_eq!(flags(1 << 4), Err(Errno::EINVAL));
    }
}
