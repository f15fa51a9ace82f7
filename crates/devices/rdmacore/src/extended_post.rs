//! Posting by calls (`ibv_qp_ex`, `ibv_wr_*`): where the device gives it, one lock and one doorbell a batch, and no
//! list.
//!
//! Between `wr_start` and `wr_complete` the driver holds the send queue's lock, so nothing may leave that stretch
//! early: a [`Batch`] that is dropped is aborted.
#![allow(unsafe_code, reason = "calls libibverbs through a queue pair's table of functions")]

use std::ffi::c_void;
use std::io;

use longhaul_verbs::{ScatterGatherEntry, SendFlags, SendOperation, SendRequest, Transport};

use crate::address_handle::way_of;
use crate::answer::check;
use crate::handle::Handle;
use longhaul_verbs_abi::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_LOCAL_INV,
    IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND,
    IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_INV, ibv_qp_ex,
};

/// Call a function of the table. `Extended::new` has seen that it is there.
macro_rules! call {
    ($batch:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let queue_pair = $batch.queue_pair.as_ptr();
        let function = (*queue_pair).$function.expect(stringify!($function));
        function(queue_pair $(, $argument)*)
    }};
}

const SENDS: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
const WRITES: u64 = SENDS | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
const READS: u64 = WRITES | IBV_QP_EX_WITH_RDMA_READ;
const EVERYTHING: u64 = READS
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_SEND_WITH_INV
    | IBV_QP_EX_WITH_LOCAL_INV;

/// What to ask a device for, best first: it gives all of it or nothing. What is not among it goes as a list. (Binds
/// always do: they are posted one by one anyway.)
pub(crate) fn operations_of(transport: Transport) -> &'static [u64] {
    match transport {
        Transport::ReliableConnection => &[EVERYTHING, READS],
        Transport::UnreliableConnection => &[WRITES],
        _ => &[SENDS],
    }
}

/// The bit of `send_ops_flags` for an operation; 0 for those that go as a list.
fn flag(operation: &SendOperation) -> u64 {
    match operation {
        SendOperation::Send => IBV_QP_EX_WITH_SEND,
        SendOperation::SendWithImmediate(_) => IBV_QP_EX_WITH_SEND_WITH_IMM,
        SendOperation::SendWithInvalidate(_) => IBV_QP_EX_WITH_SEND_WITH_INV,
        SendOperation::Write(_) => IBV_QP_EX_WITH_RDMA_WRITE,
        SendOperation::WriteWithImmediate(..) => IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        SendOperation::Read(_) => IBV_QP_EX_WITH_RDMA_READ,
        SendOperation::CompareAndSwap { .. } => IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        SendOperation::FetchAndAdd { .. } => IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        SendOperation::LocalInvalidate(_) => IBV_QP_EX_WITH_LOCAL_INV,
        _ => 0,
    }
}

/// A queue pair's table of functions, and which of them it has.
pub(crate) struct Extended {
    queue_pair: Handle<ibv_qp_ex>,
    operations: u64,
}

impl Extended {
    /// The table of a queue pair that was made with these operations; `None` when the driver left something out.
    ///
    /// # Safety
    ///
    /// The queue pair is alive, and stays so for as long as this is used.
    pub(crate) unsafe fn new(queue_pair: Handle<ibv_qp_ex>, operations: u64, transport: Transport) -> Option<Self> {
        // SAFETY: the caller's promise.
        let table = unsafe { &*queue_pair.as_ptr() };
        let builders = [
            (IBV_QP_EX_WITH_SEND, table.wr_send.is_some()),
            (IBV_QP_EX_WITH_SEND_WITH_IMM, table.wr_send_imm.is_some()),
            (IBV_QP_EX_WITH_SEND_WITH_INV, table.wr_send_inv.is_some()),
            (IBV_QP_EX_WITH_RDMA_WRITE, table.wr_rdma_write.is_some()),
            (IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, table.wr_rdma_write_imm.is_some()),
            (IBV_QP_EX_WITH_RDMA_READ, table.wr_rdma_read.is_some()),
            (IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, table.wr_atomic_cmp_swp.is_some()),
            (IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, table.wr_atomic_fetch_add.is_some()),
            (IBV_QP_EX_WITH_LOCAL_INV, table.wr_local_inv.is_some()),
        ];
        let has_builders = builders.iter().all(|(flag, is_there)| operations & flag == 0 || *is_there);
        let has_frame = table.wr_start.is_some() && table.wr_complete.is_some() && table.wr_abort.is_some();
        let has_setters = table.wr_set_sge.is_some() && table.wr_set_inline_data.is_some();
        let has_address = transport != Transport::UnreliableDatagram || table.wr_set_ud_addr.is_some();
        (has_builders && has_frame && has_setters && has_address).then_some(Extended { queue_pair, operations })
    }

    /// Whether a request can go this way. Not one with several entries: Soft-RoCE's driver up to rdma-core 44 adds up
    /// their lengths wrongly here (`wr_set_sge_list`, `wr_set_inline_data_list`), and sends too much or nothing. As a
    /// list it does not.
    pub(crate) fn takes(&self, request: &SendRequest<'_>) -> bool {
        self.operations & flag(&request.operation) != 0 && request.local.len() <= 1
    }

    /// Begin a batch. Nobody else may post to the queue pair until it ends.
    pub(crate) fn start(&self) -> Batch {
        let batch = Batch { queue_pair: self.queue_pair };
        // SAFETY: the queue pair is alive (`new`).
        unsafe { call!(batch, wr_start()) };
        batch
    }
}

/// Requests that are posted together, or not at all.
pub(crate) struct Batch {
    queue_pair: Handle<ibv_qp_ex>,
}

impl Batch {
    /// Add a request.
    ///
    /// # Safety
    ///
    /// The request has been found good, and is of a kind that the queue pair takes. Inline data is readable now.
    pub(crate) unsafe fn add(&mut self, request: &SendRequest<'_>) {
        let has_data = !matches!(request.operation, SendOperation::LocalInvalidate(_));
        // SAFETY: the batch has been started, so the driver's lock is ours; the function is there, as `takes` has said.
        // The address handle is alive during the call, and the driver takes from it what it needs.
        unsafe {
            let queue_pair = self.queue_pair.as_ptr();
            (*queue_pair).wr_id = request.id;
            (*queue_pair).wr_flags = request.flags.bits();
            match request.operation {
                SendOperation::Send => call!(self, wr_send()),
                SendOperation::SendWithImmediate(immediate) => call!(self, wr_send_imm(immediate.to_be())),
                SendOperation::SendWithInvalidate(key) => call!(self, wr_send_inv(key)),
                SendOperation::Write(remote) => call!(self, wr_rdma_write(remote.key, remote.address)),
                SendOperation::WriteWithImmediate(remote, immediate) => {
                    call!(self, wr_rdma_write_imm(remote.key, remote.address, immediate.to_be()))
                }
                SendOperation::Read(remote) => call!(self, wr_rdma_read(remote.key, remote.address)),
                SendOperation::CompareAndSwap { remote, compare, swap } => {
                    call!(self, wr_atomic_cmp_swp(remote.key, remote.address, compare, swap))
                }
                SendOperation::FetchAndAdd { remote, add } => {
                    call!(self, wr_atomic_fetch_add(remote.key, remote.address, add))
                }
                SendOperation::LocalInvalidate(key) => call!(self, wr_local_inv(key)),
                _ => unreachable!("not among the operations that `takes` allows"),
            }
            if let (Some(to), Some(way)) = (&request.destination, way_of(request)) {
                call!(self, wr_set_ud_addr(way.as_ptr(), to.queue_pair.value(), to.queue_key));
            }
            if has_data {
                self.set_data(request);
            }
        }
    }

    /// # Safety
    ///
    /// As for `add`, which has just called a builder.
    unsafe fn set_data(&mut self, request: &SendRequest<'_>) {
        let nothing = ScatterGatherEntry::default();
        let entry = request.local.first().unwrap_or(&nothing);
        // SAFETY: as for `add`.
        unsafe {
            if request.flags.contains(SendFlags::INLINE) {
                call!(self, wr_set_inline_data(entry.address as *mut c_void, entry.length as usize));
            } else {
                call!(self, wr_set_sge(entry.local_key, entry.address, entry.length));
            }
        }
    }

    /// Post them. On error none of them is.
    pub(crate) fn complete(self) -> io::Result<()> {
        // SAFETY: started, and ended here.
        let answer = unsafe { call!(self, wr_complete()) };
        let result = check(answer);
        // It has ended; `drop` would end it again.
        std::mem::forget(self);
        result
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: started, and not ended.
        unsafe { call!(self, wr_abort()) }
    }
}
