//! Completions, completion queues and channels, and asynchronous events.

use std::ffi::{c_int, c_uint, c_void};

use nix::libc::{pthread_cond_t, pthread_mutex_t};

use super::ibv_context;

mirrored! {
    struct ibv_wc {
        wr_id: u64,
        status: c_uint,
        opcode: c_uint,
        vendor_err: u32,
        byte_len: u32,
        /// With `IBV_WC_WITH_IMM` the immediate in network byte order; with `IBV_WC_WITH_INV` the invalidated key.
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    struct ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: c_int,
    }

    struct ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    struct ibv_moderate_cq {
        cq_count: u16,
        cq_period: u16,
    }

    struct ibv_modify_cq_attr {
        attr_mask: u32,
        moderate: ibv_moderate_cq,
    }

    struct ibv_async_event {
        /// The object that it is about, or the number of a port in the first bytes: `event_type` says which.
        element: *mut c_void,
        event_type: c_uint,
    }
}
