//! Completion queues that are read field by field: `ibv_create_cq_ex` and `ibv_start_poll`.
#![allow(unsafe_code, reason = "reads and writes structures of C")]

use std::ffi::{c_int, c_uint};

use longhaul_verbs_abi as abi;
use longhaul_verbs_abi::{
    ibv_comp_channel, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc, ibv_wc_tm_info,
};
use nix::errno::Errno;

use crate::cancellation::NotCancelled;
use crate::completion::{CompletionQueue, Made, next_completion, queue};
use crate::errors::{null, number};

pub(crate) unsafe extern "C" fn create_cq_ex(of: *mut ibv_context, asked: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    // SAFETY: the program gives a structure.
    let asked = unsafe { asked.read() };
    let ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, .. } = asked;
    let known = abi::IBV_CQ_INIT_ATTR_MASK_FLAGS | abi::IBV_CQ_INIT_ATTR_MASK_PD;
    // Fields behind the mask mean nothing without their bits. A parent domain changes nothing here: its thread domain is a
    // promise that nobody has to believe.
    let flags = if comp_mask & abi::IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { asked.flags } else { 0 };
    // No time stamps, tags of flows or VLANs; and a queue that overflows ends with an error.
    if comp_mask & !known != 0
        || wc_flags & !abi::IBV_WC_STANDARD_FLAGS != 0
        || flags & !abi::IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
    {
        return null(Errno::EOPNOTSUPP);
    }
    let (Ok(entries), Ok(vector)) = (c_int::try_from(cqe), c_int::try_from(comp_vector)) else {
        return null(Errno::EINVAL);
    };
    let made = Made { is_single_threaded: flags & abi::IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0, readers: readers() };
    let channel: *mut ibv_comp_channel = channel;
    // SAFETY: a context and a channel of ours, as for the plain call.
    unsafe { crate::completion::make(of, entries, cq_context, channel, vector, made) }.cast()
}

/// The functions of a queue that is polled this way.
fn readers() -> ibv_cq_ex {
    ibv_cq_ex {
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_slid),
        read_sl: Some(read_sl),
        read_dlid_path_bits: Some(read_dlid_path_bits),
        // What the queue was not made for: zeros are better than a jump to nowhere.
        read_completion_ts: Some(nothing_long),
        read_cvlan: Some(nothing_short),
        read_flow_tag: Some(nothing),
        read_tm_info: Some(nothing_tagged),
        read_completion_wallclock_ns: Some(nothing_long),
        ..ibv_cq_ex::zeroed()
    }
}

/// Take the next completion and show it. `ENOENT` when there is none.
///
/// # Safety
///
/// A queue of ours, whose polling lock this thread holds.
unsafe fn advance(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's promise.
    let ours = unsafe { queue(cq.cast()) };
    match next_completion(ours) {
        Ok(None) => Errno::ENOENT as c_int,
        Ok(Some(completion)) => {
            // SAFETY: who holds the lock is the only one that reads or writes these.
            unsafe {
                ours.current.get().write(completion);
                (*cq).status = completion.status;
                (*cq).wr_id = completion.wr_id;
            }
            0
        }
        Err(error) => number(error),
    }
}

/// # Safety
///
/// A queue of ours.
unsafe fn polled<'a>(cq: *mut ibv_cq_ex) -> (&'a CompletionQueue, bool) {
    // SAFETY: the caller's promise.
    let ours = unsafe { queue(cq.cast()) };
    (ours, !ours.is_single_threaded)
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attributes: *mut ibv_poll_cq_attr) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: the program gives a structure or null.
    if !attributes.is_null() && unsafe { (*attributes).comp_mask } != 0 {
        return number(Errno::EINVAL);
    }
    // SAFETY: a queue of ours.
    let (ours, has_lock) = unsafe { polled(cq) };
    if has_lock {
        ours.polling.take();
    }
    // SAFETY: the lock is held, or the program has promised to be alone.
    let started = unsafe { advance(cq) };
    // Only a start that has succeeded is ended by the program.
    if started != 0 && has_lock {
        ours.polling.release();
    }
    started
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue of ours, between start and end.
    unsafe { advance(cq) }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue of ours.
    let (ours, has_lock) = unsafe { polled(cq) };
    if has_lock {
        ours.polling.release();
    }
}

/// # Safety
///
/// A queue of ours, between start and end.
unsafe fn current(cq: *mut ibv_cq_ex) -> ibv_wc {
    // SAFETY: the caller's promise: nobody else writes it meanwhile.
    unsafe { queue(cq.cast()).current.get().read() }
}

macro_rules! readers {
    ($($name:ident -> $type:ty = $field:ident;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: a queue of ours, between start and end.
            unsafe { current(cq) }.$field.into()
        })*
    };
}

readers! {
    read_opcode -> c_uint = opcode;
    read_vendor_err -> u32 = vendor_err;
    read_byte_len -> u32 = byte_len;
    read_imm_data -> u32 = imm_data;
    read_qp_num -> u32 = qp_num;
    read_src_qp -> u32 = src_qp;
    read_wc_flags -> c_uint = wc_flags;
    read_slid -> u32 = slid;
    read_sl -> u8 = sl;
    read_dlid_path_bits -> u8 = dlid_path_bits;
}

unsafe extern "C" fn nothing(_: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn nothing_short(_: *mut ibv_cq_ex) -> u16 {
    0
}

unsafe extern "C" fn nothing_long(_: *mut ibv_cq_ex) -> u64 {
    0
}

unsafe extern "C" fn nothing_tagged(_: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: the program gives room for it.
    unsafe { info.write(ibv_wc_tm_info::zeroed()) };
}
