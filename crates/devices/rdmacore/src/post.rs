//! Posting sends: from slices of requests to libibverbs' linked lists (`ibv_post_send`).
//!
//! A list is built in memory that is used again and again, so that posting allocates nothing once it has been done a
//! few times. Scatter-gather lists are not copied: ours have C's layout. Where the device has given the queue pair the
//! extended interface, sends go through that (`extended_post`), and come here only when a batch does not fit: then the
//! list says which of its requests was the first that did not.
#![allow(unsafe_code, reason = "builds linked lists for libibverbs")]

use std::ffi::c_uint;
use std::sync::Arc;

use longhaul_verbs::{
    PostError, PostErrorKind, QueuePairState, ScatterGatherEntry, SendOperation, SendRequest, WriteBurst,
};

use crate::address_handle::{Way, way_of};
use crate::answer::{is_full, refusal};
use crate::context::Context;
use crate::extended_post::Extended;
use crate::handle::Handle;
use crate::request_check::{Bounds, Posting, check_send};
use crate::request_list::{LIST_MOST, entries_to_c, index_of};
use crate::windows;
use longhaul_verbs_abi::{
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, ibv_qp,
    ibv_send_wr, ibv_send_wr_atomic, ibv_send_wr_bind_mw, ibv_send_wr_rdma, ibv_send_wr_ud,
};

/// The sending half of a queue pair, behind a lock of its own. While a batch is being posted no other one comes
/// between.
pub(crate) struct SendSide {
    queue_pair: Handle<ibv_qp>,
    context: Arc<Context>,
    pub(crate) bounds: Bounds,
    /// The state that the program has put it in. By itself it only goes to states that take requests, too.
    pub(crate) state: QueuePairState,
    extended: Option<Extended>,
    list: Vec<ibv_send_wr>,
    ways: RecentWays,
}

// SAFETY: the list's pointers mean something during a call only.
unsafe impl Send for SendSide {}

impl SendSide {
    pub(crate) fn new(
        context: &Arc<Context>,
        queue_pair: Handle<ibv_qp>,
        bounds: Bounds,
        extended: Option<Extended>,
    ) -> Self {
        let ways = RecentWays::new(bounds.limits.send_requests);
        let (context, state) = (context.clone(), QueuePairState::Reset);
        SendSide { queue_pair, context, bounds, state, extended, list: Vec::new(), ways }
    }

    #[cfg(test)]
    pub(crate) fn posts_by_calls(&self) -> bool {
        self.extended.is_some()
    }

    fn depth(&self) -> u32 {
        self.bounds.limits.send_requests
    }

    fn check_state(&self) -> Result<(), PostErrorKind> {
        // Drivers put requests of a queue pair that cannot send into its queue all the same.
        if self.state.takes_sends() { Ok(()) } else { Err(PostErrorKind::InvalidState { state: self.state }) }
    }

    /// Have `call` post one request in its own way; it gets the queue pair and the queue's depth.
    pub(crate) fn post_one(
        &self,
        call: impl FnOnce(*mut ibv_qp, u32) -> Result<(), PostErrorKind>,
    ) -> Result<(), PostErrorKind> {
        self.check_state()?;
        call(self.queue_pair.as_ptr(), self.depth())
    }

    /// Post sends, in order.
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::post_send`](longhaul_verbs::raw::QueuePair::post_send); the queue pair has not been
    /// destroyed.
    pub(crate) unsafe fn post(&mut self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.check_state().map_err(|kind| kind.at(0))?;
        let mut first = 0;
        while first < requests.len() {
            // As many as can go together; then what stopped us.
            let mut end = first;
            let stopped = loop {
                match requests.get(end).map(|request| check_send(&self.bounds, &self.context, request)) {
                    Some(Ok(Posting::InBatch)) if end - first < LIST_MOST => end += 1,
                    Some(Ok(Posting::Bind(key))) => break Ok(Some(key)),
                    Some(Err(kind)) => break Err(kind),
                    Some(Ok(Posting::InBatch)) | None => break Ok(None),
                }
            };
            // SAFETY: the caller's promise, and all of them have been checked.
            unsafe { self.post_batch(&requests[first..end]) }.map_err(|error| later(error, first))?;
            if let Some(key) = stopped.map_err(|kind| kind.at(end))? {
                self.post_bind(&requests[end], key).map_err(|kind| kind.at(end))?;
                end += 1;
            }
            first = end;
        }
        Ok(())
    }

    /// Post requests that can go together.
    ///
    /// # Safety
    ///
    /// As for `post`, and the requests have been found good.
    unsafe fn post_batch(&mut self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        if requests.is_empty() {
            return Ok(());
        }
        if let Some(extended) = self.extended.as_ref().filter(|extended| requests.iter().all(|r| extended.takes(r))) {
            let mut batch = extended.start();
            for request in requests {
                // SAFETY: a good request, of a kind that the queue pair takes; inline data is readable now.
                unsafe { batch.add(request) };
            }
            match batch.complete() {
                Ok(()) => {
                    self.ways.keep(requests);
                    return Ok(());
                }
                // Nothing of it was posted. As a list, what fits is posted, and the answer says where the queue was
                // full.
                Err(error) if is_full(&error) => {}
                Err(error) => return Err(PostErrorKind::System(error).at(0)),
            }
        }
        self.list.clear();
        self.list.extend(requests.iter().map(to_c));
        // SAFETY: as for this function.
        let result = unsafe { self.post_list() };
        let posted = result.as_ref().map_or_else(|error| error.index, |()| requests.len());
        self.ways.keep(&requests[..posted]);
        result
    }

    /// Post the requests in the list.
    ///
    /// # Safety
    ///
    /// As for `post`, and what the requests in the list point to is there.
    unsafe fn post_list(&mut self) -> Result<(), PostError> {
        let count = self.list.len();
        let first = self.list.as_mut_ptr();
        for index in 1..count {
            // SAFETY: both indices are in the list.
            unsafe { (*first.add(index - 1)).next = first.add(index) };
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is alive, the list is linked and ends with a null pointer.
        let result = unsafe { self.context.post_send(self.queue_pair.as_ptr(), first, &mut bad) };
        result.map_err(|error| refusal(error, self.depth()).at(index_of(bad, first, count)))
    }

    fn post_bind(&mut self, request: &SendRequest<'_>, key: u32) -> Result<(), PostErrorKind> {
        let window = request.window.as_ref().ok_or(PostErrorKind::Window)?;
        let context = self.context.clone();
        windows::post_bind(&context, window, key, |bind_mw| {
            self.list.clear();
            self.list.push(bind_to_c(request, bind_mw));
            // SAFETY: the queue pair is alive; window and region are held by the caller of this.
            unsafe { self.post_list() }.map_err(|error| error.kind)
        })
    }

    /// Post many single-packet WRITEs with immediate.
    ///
    /// # Safety
    ///
    /// As for `post`.
    pub(crate) unsafe fn post_burst(&mut self, burst: &WriteBurst<'_>) -> Result<(), PostError> {
        if !burst.is_consistent() {
            return Err(PostErrorKind::InconsistentBurst.at(0));
        }
        self.check_state().map_err(|kind| kind.at(0))?;
        let total = burst.immediates.len();
        // They differ in places and length only, and the first is the longest.
        let entry = [burst.entry(0)];
        let request = single(burst, 0, &entry);
        check_send(&self.bounds, &self.context, &request).map_err(|kind| kind.at(0))?;
        if let Some(extended) = self.extended.as_ref().filter(|extended| extended.takes(&request)) {
            let mut batch = extended.start();
            for index in 0..total {
                let entry = [burst.entry(index)];
                // SAFETY: found good above, and not inline.
                unsafe { batch.add(&single(burst, index, &entry)) };
            }
            match batch.complete() {
                Err(error) if is_full(&error) => {}
                result => return result.map_err(|error| PostErrorKind::System(error).at(0)),
            }
        }
        const PIECE: usize = 32;
        for first in (0..total).step_by(PIECE) {
            let count = PIECE.min(total - first);
            let entries: [_; PIECE] = std::array::from_fn(|index| [burst.entry(first + index.min(count - 1))]);
            self.list.clear();
            self.list.extend((0..count).map(|index| to_c(&single(burst, first + index, &entries[index]))));
            // SAFETY: as above; the entries outlive the call.
            unsafe { self.post_list() }.map_err(|error| later(error, first))?;
        }
        Ok(())
    }

    /// Have the device look at its send queue. After a queue pair was drained and goes on, Soft-RoCE would leave what
    /// was posted meanwhile until something new comes. A batch of nothing is a doorbell.
    pub(crate) fn ring_doorbell(&self) {
        if let Some(Err(error)) = self.extended.as_ref().map(|extended| extended.start().complete()) {
            tracing::debug!(%error, "a doorbell was not heard");
        }
    }

    /// The queue pair has been reset: nothing that was posted is there any more.
    pub(crate) fn forget(&mut self) {
        self.ways.forget();
    }
}

/// One of the requests that a burst stands for.
fn single<'a>(burst: &WriteBurst<'_>, index: usize, entry: &'a [ScatterGatherEntry]) -> SendRequest<'a> {
    SendRequest::new(burst.id, burst.operation(index), entry).with_flags(burst.request_flags(index))
}

/// The same of a batch that began `first` requests later.
fn later(error: PostError, first: usize) -> PostError {
    PostError { index: first + error.index, ..error }
}

/// `ibv_wr_opcode` of an operation; `None` for one that this version does not know.
pub(crate) fn opcode(operation: &SendOperation) -> Option<c_uint> {
    Some(match operation {
        SendOperation::Send => IBV_WR_SEND,
        SendOperation::SendWithImmediate(_) => IBV_WR_SEND_WITH_IMM,
        SendOperation::SendWithInvalidate(_) => IBV_WR_SEND_WITH_INV,
        SendOperation::Write(_) => IBV_WR_RDMA_WRITE,
        SendOperation::WriteWithImmediate(..) => IBV_WR_RDMA_WRITE_WITH_IMM,
        SendOperation::Read(_) => IBV_WR_RDMA_READ,
        SendOperation::CompareAndSwap { .. } => IBV_WR_ATOMIC_CMP_AND_SWP,
        SendOperation::FetchAndAdd { .. } => IBV_WR_ATOMIC_FETCH_AND_ADD,
        SendOperation::LocalInvalidate(_) => IBV_WR_LOCAL_INV,
        SendOperation::BindWindow(_) => IBV_WR_BIND_MW,
        _ => return None,
    })
}

/// A request that was found good, not yet linked.
fn to_c(request: &SendRequest<'_>) -> ibv_send_wr {
    let (sg_list, num_sge) = entries_to_c(request.local);
    let mut c = ibv_send_wr {
        wr_id: request.id,
        sg_list,
        num_sge,
        opcode: opcode(&request.operation).expect("unknown operations are refused before"),
        send_flags: request.flags.bits(),
        ..ibv_send_wr::zeroed()
    };
    match request.operation {
        SendOperation::SendWithImmediate(immediate) => c.imm_data = immediate.to_be(),
        SendOperation::SendWithInvalidate(key) => c.imm_data = key,
        SendOperation::LocalInvalidate(key) => {
            c.imm_data = key;
            (c.sg_list, c.num_sge) = (std::ptr::null_mut(), 0);
        }
        SendOperation::Write(remote) | SendOperation::Read(remote) => {
            c.wr.rdma = ibv_send_wr_rdma { remote_addr: remote.address, rkey: remote.key };
        }
        SendOperation::WriteWithImmediate(remote, immediate) => {
            c.wr.rdma = ibv_send_wr_rdma { remote_addr: remote.address, rkey: remote.key };
            c.imm_data = immediate.to_be();
        }
        SendOperation::CompareAndSwap { remote, compare, swap } => {
            c.wr.atomic =
                ibv_send_wr_atomic { remote_addr: remote.address, compare_add: compare, swap, rkey: remote.key };
        }
        SendOperation::FetchAndAdd { remote, add } => {
            c.wr.atomic =
                ibv_send_wr_atomic { remote_addr: remote.address, compare_add: add, swap: 0, rkey: remote.key };
        }
        // The rest has nothing of its own, or comes through `bind_to_c`.
        _ => {}
    }
    if let Some(to) = &request.destination
        && let Some(way) = way_of(request)
    {
        c.wr.ud = ibv_send_wr_ud { ah: way.as_ptr(), remote_qpn: to.queue_pair.value(), remote_qkey: to.queue_key };
    }
    c
}

fn bind_to_c(request: &SendRequest<'_>, bind_mw: ibv_send_wr_bind_mw) -> ibv_send_wr {
    ibv_send_wr {
        wr_id: request.id,
        opcode: IBV_WR_BIND_MW,
        send_flags: (request.flags - longhaul_verbs::SendFlags::INLINE).bits(),
        bind_mw,
        ..ibv_send_wr::zeroed()
    }
}

/// The address handles of as many datagrams as can be in the send queue.
///
/// libibverbs wants an address handle to live until the datagrams that go along it have left (Soft-RoCE looks it up
/// only then); at our boundary it may go as soon as they have been posted. So the queue pair keeps them: what was
/// posted more than a queue's length ago has left.
struct RecentWays {
    slots: Vec<Option<Arc<Way>>>,
    room: usize,
    next: usize,
}

impl RecentWays {
    fn new(depth: u32) -> Self {
        // Drivers round the queue up, some without saying so.
        RecentWays { slots: Vec::new(), room: (depth as usize + 1).next_power_of_two() * 2, next: 0 }
    }

    fn keep(&mut self, posted: &[SendRequest<'_>]) {
        for way in posted.iter().filter_map(way_of) {
            if self.slots.is_empty() {
                self.slots.resize_with(self.room, || None);
            }
            let slot = &mut self.slots[self.next];
            // Mostly the same one again, and then nothing is counted up or down.
            if !slot.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, way)) {
                *slot = Some(way.clone());
            }
            self.next = (self.next + 1) % self.room;
        }
    }

    fn forget(&mut self) {
        self.slots.fill(None);
    }
}

#[cfg(test)]
mod tests {
    use longhaul_verbs::{RemoteMemory, SendFlags};

    use super::*;

    const REMOTE: RemoteMemory = RemoteMemory { address: 0x1122_3344_5566_7788, key: 0x99aa_bbcc };

    fn convert(operation: SendOperation) -> ibv_send_wr {
        to_c(&SendRequest::new(7, operation, &[ScatterGatherEntry { address: 1, length: 2, local_key: 3 }]))
    }

    #[test]
    fn every_operation_has_its_opcode() {
        use SendOperation as O;
        let table = [
            (O::Write(REMOTE), 0),
            (O::WriteWithImmediate(REMOTE, 1), 1),
            (O::Send, 2),
            (O::SendWithImmediate(1), 3),
            (O::Read(REMOTE), 4),
            (O::CompareAndSwap { remote: REMOTE, compare: 1, swap: 2 }, 5),
            (O::FetchAndAdd { remote: REMOTE, add: 1 }, 6),
            (O::LocalInvalidate(1), 7),
            (O::BindWindow(1), 8),
            (O::SendWithInvalidate(1), 9),
        ];
        for (operation, number) in table {
            assert_eq!(opcode(&operation), Some(number), "{operation:?}");
        }
    }

    #[test]
    fn operations_carry_what_they_need() {
        let c = convert(SendOperation::SendWithImmediate(0x0102_0304));
        assert_eq!((c.wr_id, c.num_sge, c.send_flags), (7, 1, SendFlags::SIGNALED.bits()));
        assert_eq!(c.imm_data.to_ne_bytes(), [1, 2, 3, 4], "immediates are in network byte order");
        assert_eq!(convert(SendOperation::SendWithInvalidate(0x0102_0304)).imm_data, 0x0102_0304, "keys are not");
        let c = convert(SendOperation::LocalInvalidate(5));
        assert_eq!((c.imm_data, c.num_sge, c.sg_list.is_null()), (5, 0, true));
        let c = convert(SendOperation::WriteWithImmediate(REMOTE, 0x0102_0304));
        // SAFETY: the operation's member of the union.
        let rdma = unsafe { c.wr.rdma };
        assert_eq!((rdma.remote_addr, rdma.rkey), (REMOTE.address, REMOTE.key));
        assert_eq!(c.imm_data.to_ne_bytes(), [1, 2, 3, 4]);
        let c = convert(SendOperation::CompareAndSwap { remote: REMOTE, compare: 11, swap: 12 });
        // SAFETY: as above.
        let atomic = unsafe { c.wr.atomic };
        assert_eq!((atomic.remote_addr, atomic.rkey), (REMOTE.address, REMOTE.key));
        assert_eq!((atomic.compare_add, atomic.swap), (11, 12));
        let c = convert(SendOperation::FetchAndAdd { remote: REMOTE, add: 13 });
        // SAFETY: as above.
        assert_eq!(unsafe { c.wr.atomic.compare_add }, 13);
        assert!(c.next.is_null());
    }
}
