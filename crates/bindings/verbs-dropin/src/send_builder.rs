//! Send requests that programs make call by call: `ibv_wr_start`, an operation, its data, …, `ibv_wr_complete`.
#![allow(unsafe_code, reason = "reads structures of C")]

use std::ffi::{c_int, c_void};

use longhaul_verbs::{RemoteMemory, ScatterGatherEntry, SendFlags, SendOperation, SendRequest, Transport};
use longhaul_verbs_abi as abi;
use longhaul_verbs_abi::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_send_wr_ud, ibv_sge};
use nix::errno::Errno;

use crate::cancellation::NotCancelled;
use crate::errors::{Number, number};
use crate::post::destination;
use crate::queue_pair::{QueuePair, pair};
use crate::send_list::{Building, Data, List};
use crate::windows::{BoundTo, window};

/// The operations that a queue pair of a transport can be made for. `None` for all others of the header.
pub(crate) fn functions(transport: Transport, has_atomics: bool, asked: u64) -> Option<ibv_qp_ex> {
    let sends = abi::IBV_QP_EX_WITH_SEND | abi::IBV_QP_EX_WITH_SEND_WITH_IMM;
    let writes = abi::IBV_QP_EX_WITH_RDMA_WRITE | abi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let keys = abi::IBV_QP_EX_WITH_SEND_WITH_INV | abi::IBV_QP_EX_WITH_LOCAL_INV | abi::IBV_QP_EX_WITH_BIND_MW;
    let atomics = abi::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | abi::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    let possible = match transport {
        Transport::ReliableConnection => {
            sends | writes | keys | abi::IBV_QP_EX_WITH_RDMA_READ | if has_atomics { atomics } else { 0 }
        }
        Transport::UnreliableConnection => sends | writes | keys,
        Transport::UnreliableDatagram => sends,
        _ => 0,
    };
    if asked & !possible != 0 {
        return None;
    }
    let mut c = ibv_qp_ex::zeroed();
    let has = |operation| asked & operation != 0;
    c.wr_send = has(abi::IBV_QP_EX_WITH_SEND).then_some(wr_send);
    c.wr_send_imm = has(abi::IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(wr_send_imm);
    c.wr_send_inv = has(abi::IBV_QP_EX_WITH_SEND_WITH_INV).then_some(wr_send_inv);
    c.wr_rdma_write = has(abi::IBV_QP_EX_WITH_RDMA_WRITE).then_some(wr_rdma_write);
    c.wr_rdma_write_imm = has(abi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(wr_rdma_write_imm);
    c.wr_rdma_read = has(abi::IBV_QP_EX_WITH_RDMA_READ).then_some(wr_rdma_read);
    c.wr_atomic_cmp_swp = has(abi::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(wr_atomic_cmp_swp);
    c.wr_atomic_fetch_add = has(abi::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(wr_atomic_fetch_add);
    c.wr_local_inv = has(abi::IBV_QP_EX_WITH_LOCAL_INV).then_some(wr_local_inv);
    c.wr_bind_mw = has(abi::IBV_QP_EX_WITH_BIND_MW).then_some(wr_bind_mw);
    c.wr_set_ud_addr = (transport == Transport::UnreliableDatagram).then_some(wr_set_ud_addr);
    c.wr_set_inline_data = Some(wr_set_inline_data);
    c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    c.wr_set_sge = Some(wr_set_sge);
    c.wr_set_sge_list = Some(wr_set_sge_list);
    c.wr_start = Some(wr_start);
    c.wr_complete = Some(wr_complete);
    c.wr_abort = Some(wr_abort);
    Some(c)
}

/// Post the requests; none of them if one cannot be understood.
fn post(list: &mut List, ours: &QueuePair) -> Result<(), Number> {
    if let Some(errno) = list.refused {
        return Err(errno.into());
    }
    // Nothing moves the data any more.
    for request in &mut list.requests {
        let Data::Inline(range) = &request.data else { continue };
        let (first, length) = (list.entries.len(), range.len());
        if length > 0 {
            let address = list.inline[range.clone()].as_ptr().expose_provenance() as u64;
            list.entries.push(ScatterGatherEntry { address, length: length as u32, local_key: 0 });
        }
        request.flags |= SendFlags::INLINE;
        request.data = Data::Entries(first..list.entries.len());
    }
    if let [only] = &list.requests[..] {
        return post_one(list, ours, only);
    }
    // More than there could ever be room for. With less, the device posts what fits.
    if list.requests.len() > ours.send_requests_max as usize {
        return Err(Errno::ENOMEM.into());
    }
    let places = list.requests.iter().map(bound_to).collect::<Result<Vec<_>, _>>()?;
    let all = list.requests.iter().zip(&places).map(|(request, place)| translate(list, ours, request, place));
    let all = all.collect::<Result<Vec<_>, _>>()?;
    // SAFETY: inline data was copied; the device checks all other entries.
    unsafe { ours.raw.post_send(&all) }.map_err(|error| error.kind.into())
}

fn post_one(list: &List, ours: &QueuePair, request: &Building) -> Result<(), Number> {
    let place = bound_to(request)?;
    let request = translate(list, ours, request, &place)?;
    // SAFETY: as above.
    unsafe { ours.raw.post_send(&[request]) }.map_err(|error| error.kind.into())
}

fn translate<'a>(
    list: &'a List,
    ours: &QueuePair,
    request: &'a Building,
    place: &'a Option<BoundTo<'a>>,
) -> Result<SendRequest<'a>, Errno> {
    let Data::Entries(range) = &request.data else { return Err(Errno::EINVAL) };
    let local = &list.entries[range.clone()];
    let mut translated = SendRequest::new(request.id, request.operation, local).with_flags(request.flags);
    if let (Some(place), Some((of, _))) = (place, request.window) {
        // SAFETY: a window of ours, which the program may not free before the call ends.
        translated.window = Some(place.request(&*unsafe { window(of) }.raw));
    }
    match ours.transport {
        Transport::UnreliableDatagram => {
            let datagram = request.datagram.ok_or(Errno::EINVAL)?;
            // SAFETY: null or a handle of ours, which the program may not destroy before the call ends.
            Ok(translated.to(unsafe { destination(datagram) }?))
        }
        _ => Ok(translated),
    }
}

/// What the window of a request is bound to.
fn bound_to(request: &Building) -> Result<Option<BoundTo<'_>>, Errno> {
    // SAFETY: a window and a region of ours, which the program may not free before the call ends.
    request.window.as_ref().map(|(of, info)| unsafe { BoundTo::new(*of, info) }).transpose()
}

/// The list that is being made.
///
/// # Safety
///
/// A queue pair of ours with a list that has been started, in the thread that did.
unsafe fn list<'a>(qp: *mut ibv_qp_ex) -> &'a mut List {
    // SAFETY: the caller's promise: it has the lock, so this is the only reference.
    unsafe { &mut *pair(qp.cast()).sends.list.get() }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue pair of ours.
    unsafe { pair(qp.cast()) }.sends.started.take();
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue pair of ours, between start and this.
    let (ours, list) = unsafe { (pair(qp.cast()), list(qp)) };
    let posted = post(list, ours);
    list.clear();
    ours.sends.started.release();
    posted.map_or_else(number, |()| 0)
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: as above.
    let (ours, list) = unsafe { (pair(qp.cast()), list(qp)) };
    list.clear();
    ours.sends.started.release();
}

/// Begin a request.
///
/// # Safety
///
/// As for [`list`].
unsafe fn begin(qp: *mut ibv_qp_ex, operation: SendOperation) {
    // SAFETY: the caller's promise; the program has set both before.
    let (list, id, flags) = unsafe { (list(qp), (*qp).wr_id, (*qp).wr_flags) };
    // Data is inline when it is set so.
    let Some(flags) = SendFlags::from_bits(flags & !abi::IBV_SEND_INLINE) else { return list.refuse(Errno::EINVAL) };
    let data = Data::Entries(0..0);
    list.requests.push(Building { id, flags, operation, data, datagram: None, window: None });
}

const fn remote(key: u32, address: u64) -> RemoteMemory {
    RemoteMemory { address, key }
}

macro_rules! operations {
    ($($name:ident($($argument:ident: $type:ty),*) = $operation:expr;)*) => {
        $(unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
            // SAFETY: a queue pair of ours with a list that has been started.
            unsafe { begin(qp, $operation) }
        })*
    };
}

operations! {
    wr_send() = SendOperation::Send;
    wr_send_imm(immediate: u32) = SendOperation::SendWithImmediate(u32::from_be(immediate));
    wr_send_inv(key: u32) = SendOperation::SendWithInvalidate(key);
    wr_rdma_write(key: u32, address: u64) = SendOperation::Write(remote(key, address));
    wr_rdma_write_imm(key: u32, address: u64, immediate: u32) =
        SendOperation::WriteWithImmediate(remote(key, address), u32::from_be(immediate));
    wr_rdma_read(key: u32, address: u64) = SendOperation::Read(remote(key, address));
    wr_atomic_cmp_swp(key: u32, address: u64, compare: u64, swap: u64) =
        SendOperation::CompareAndSwap { remote: remote(key, address), compare, swap };
    wr_atomic_fetch_add(key: u32, address: u64, add: u64) =
        SendOperation::FetchAndAdd { remote: remote(key, address), add };
    wr_local_inv(key: u32) = SendOperation::LocalInvalidate(key);
}

unsafe extern "C" fn wr_bind_mw(qp: *mut ibv_qp_ex, of: *mut ibv_mw, key: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: a queue pair of ours with a list that has been started, and a structure of the program.
    unsafe {
        begin(qp, SendOperation::BindWindow(key));
        let info = info.read();
        list(qp).set(|last| last.window = Some((of, info)));
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    let datagram = ibv_send_wr_ud { ah, remote_qpn, remote_qkey };
    // SAFETY: as above.
    unsafe { list(qp) }.set(|last| last.datagram = Some(datagram));
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let entry = ibv_sge { addr, length, lkey };
    // SAFETY: as above; one entry is there.
    unsafe { wr_set_sge_list(qp, 1, &raw const entry) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, entries: *const ibv_sge) {
    // SAFETY: as above.
    let list = unsafe { list(qp) };
    let first = list.entries.len();
    if count > 0 {
        // SAFETY: the program gives that many, of the same layout.
        let given = unsafe { std::slice::from_raw_parts(entries.cast::<ScatterGatherEntry>(), count) };
        list.entries.extend_from_slice(given);
    }
    let range = first..list.entries.len();
    list.set(|last| last.data = Data::Entries(range));
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    // SAFETY: as above; one buffer is there.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const buffer) };
}

/// The program may change the data as soon as this returns, so it is copied.
unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, buffers: *const ibv_data_buf) {
    // SAFETY: as above.
    let (list, ours) = unsafe { (list(qp), pair(qp.cast())) };
    // SAFETY: the program gives that many.
    let buffers = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(buffers, count) } };
    let first = list.inline.len();
    let total = buffers.iter().fold(0_usize, |total, buffer| total.saturating_add(buffer.length));
    if total > ours.inline_bytes_max as usize {
        return list.refuse(Errno::EINVAL);
    }
    for buffer in buffers.iter().filter(|buffer| buffer.length > 0) {
        // SAFETY: inline data is readable now, as libibverbs demands of the program.
        list.inline.extend_from_slice(unsafe { std::slice::from_raw_parts(buffer.addr.cast(), buffer.length) });
    }
    let range = first..list.inline.len();
    list.set(|last| last.data = Data::Inline(range));
}
