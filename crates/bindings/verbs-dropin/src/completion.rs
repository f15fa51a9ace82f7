//! Completion channels and completion queues.
#![allow(unsafe_code, reason = "hands structures to C and takes them back")]

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longhaul_verbs::{CompletionFlags, PollError, WorkCompletion, raw};
use longhaul_verbs_abi::{
    IBV_CQ_ATTR_MODERATE, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr, ibv_wc,
};
use nix::errno::Errno;

use crate::cancellation::NotCancelled;
use crate::context::{context, untyped};
use crate::errors::{Number, answer, minus_one, null, number};
use crate::held_lock::HeldLock;
use crate::mailbox::Owner;
use crate::outstanding::Outstanding;
use crate::session::Session;
use crate::waiter::Waiter;

/// How many completions are fetched at a time, if the program wants more than one.
const BATCH: usize = 32;

/// `ibv_comp_channel`
#[repr(C)]
struct CompletionChannel {
    c: ibv_comp_channel,
    raw: Arc<dyn raw::CompletionChannel>,
    session: Arc<Session>,
    waiter: Waiter,
    queues: Mutex<Queues>,
}

/// Queues of a channel, by the token that their events carry.
#[derive(Default)]
struct Queues {
    by_token: HashMap<u64, QueuePointer>,
    last_token: u64,
}

#[derive(Clone, Copy)]
struct QueuePointer(*mut CompletionQueue);

// SAFETY: programs share their objects between threads; a queue leaves the table before it goes.
unsafe impl Send for QueuePointer {}

impl CompletionChannel {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `ibv_cq` and `ibv_cq_ex`, which begins with it.
#[repr(C)]
pub(crate) struct CompletionQueue {
    c: ibv_cq_ex,
    pub(crate) raw: Arc<dyn raw::CompletionQueue>,
    session: Arc<Session>,
    token: u64,
    /// Queue pairs that complete into it.
    pub(crate) users: AtomicUsize,
    completions: Outstanding,
    pub(crate) asynchronous: Arc<Outstanding>,
    /// From the start of an extended poll to its end.
    pub(crate) polling: HeldLock,
    pub(crate) is_single_threaded: bool,
    /// What an extended poll has taken last; for the one that holds the lock.
    pub(crate) current: UnsafeCell<ibv_wc>,
}

/// How a queue is polled.
pub(crate) struct Made {
    pub(crate) is_single_threaded: bool,
    /// The functions that read completions; everything else in it is zero.
    pub(crate) readers: ibv_cq_ex,
}

/// Ours behind a pointer of the program.
///
/// # Safety
///
/// It must be what `ibv_create_cq` has given, and not be destroyed yet.
pub(crate) unsafe fn queue<'a>(queue: *mut ibv_cq) -> &'a CompletionQueue {
    // SAFETY: the caller's promise; the structure is the first field.
    unsafe { &*queue.cast::<CompletionQueue>() }
}

/// The same for channels.
unsafe fn channel_of<'a>(channel: *mut ibv_comp_channel) -> &'a CompletionChannel {
    // SAFETY: the caller's promise; the structure is the first field.
    unsafe { &*channel.cast::<CompletionChannel>() }
}

pub(crate) unsafe extern "C" fn create_comp_channel(of: *mut ibv_context) -> *mut ibv_comp_channel {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a context of ours.
    let session = unsafe { &context(of).session }.clone();
    let raw = match session.device.raw.create_completion_channel() {
        Ok(raw) => raw,
        Err(error) => return null(error),
    };
    let waiter = match Waiter::new(raw.descriptor().into_iter()) {
        Ok(waiter) => waiter,
        Err(errno) => return null(errno),
    };
    let c = ibv_comp_channel { context: of, fd: waiter.descriptor().as_raw_fd(), refcnt: 0 };
    Box::into_raw(Box::new(CompletionChannel { c, raw, session, waiter, queues: Mutex::default() })).cast()
}

pub(crate) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a channel of ours.
    let ours = unsafe { channel_of(channel) };
    if !ours.session.is_of_this_process() {
        return 0;
    }
    if !ours.queues().by_token.is_empty() {
        return number(Errno::EBUSY);
    }
    // SAFETY: made by `create_comp_channel`; no queue uses it, and it is freed once.
    drop(unsafe { Box::from_raw(channel.cast::<CompletionChannel>()) });
    0
}

pub(crate) unsafe extern "C" fn create_cq(
    of: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let made = Made { is_single_threaded: false, readers: ibv_cq_ex::zeroed() };
    // SAFETY: the caller's promises are the same.
    unsafe { make(of, entries, cq_context, channel, vector, made) }
}

/// # Safety
///
/// As libibverbs demands of `ibv_create_cq`.
pub(crate) unsafe fn make(
    of: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
    made: Made,
) -> *mut ibv_cq {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a context of ours.
    let session = unsafe { &context(of).session }.clone();
    let Ok(entries) = u32::try_from(entries) else { return null(Errno::EINVAL) };
    // All are the same: one thread makes all events.
    // SAFETY: as above.
    if !(0..unsafe { (*of).num_comp_vectors }).contains(&vector) {
        return null(Errno::EINVAL);
    }
    // SAFETY: null, or a channel of ours.
    let ours = (!channel.is_null()).then(|| unsafe { channel_of(channel) });
    let token = ours.map_or(0, |channel| {
        let mut queues = channel.queues();
        queues.last_token += 1;
        queues.last_token
    });
    let with_channel = ours.map(|channel| (&*channel.raw, token));
    let raw = match session.device.raw.create_completion_queue(entries, with_channel) {
        Ok(raw) => raw,
        Err(error) => return null(error),
    };
    let handle = raw.handle();
    let Made { is_single_threaded, readers: mut c } = made;
    (c.context, c.channel, c.cq_context, c.handle) = (of, channel, cq_context, handle);
    c.cqe = c_int::try_from(raw.capacity()).unwrap_or(c_int::MAX);
    let asynchronous = Arc::new(Outstanding::default());
    let (users, completions) = (AtomicUsize::new(0), Outstanding::default());
    let made = Box::into_raw(Box::new(CompletionQueue {
        c,
        raw,
        session: session.clone(),
        token,
        users,
        completions,
        asynchronous: asynchronous.clone(),
        polling: HeldLock::default(),
        is_single_threaded,
        current: UnsafeCell::new(ibv_wc::zeroed()),
    }));
    if let Some(channel) = ours {
        channel.queues().by_token.insert(token, QueuePointer(made));
    }
    let owner = Owner::new(untyped(made), &session.mailbox, &asynchronous);
    session.device.owners().completion_queues.insert(handle, owner);
    made.cast()
}

pub(crate) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue of ours.
    let ours = unsafe { queue(cq) };
    let Ok(entries) = u32::try_from(entries) else { return number(Errno::EINVAL) };
    let resized = ours.raw.resize(entries);
    // SAFETY: the program's own structure; it may not use the queue from other threads meanwhile.
    unsafe { (*cq).cqe = c_int::try_from(ours.raw.capacity()).unwrap_or(c_int::MAX) };
    answer(resized)
}

pub(crate) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue of ours.
    let ours = unsafe { queue(cq) };
    if !ours.session.is_of_this_process() {
        return 0;
    }
    if ours.users.load(Ordering::Acquire) > 0 {
        return number(Errno::EBUSY);
    }
    ours.session.device.owners().completion_queues.remove(&ours.c.handle);
    if !ours.c.channel.is_null() {
        // SAFETY: its channel is there as long as it is.
        unsafe { channel_of(ours.c.channel) }.queues().by_token.remove(&ours.token);
    }
    ours.completions.wait();
    ours.asynchronous.wait();
    // SAFETY: made by `create_cq`; nobody finds it any more, and it is freed once.
    drop(unsafe { Box::from_raw(cq.cast::<CompletionQueue>()) });
    0
}

/// Cancelling a thread that waits here unwinds through this function, so nothing in it may need to be dropped.
pub(crate) unsafe extern "C-unwind" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    loop {
        // SAFETY: the caller's promises are the same.
        match unsafe { next_event(channel, cq, cq_context) } {
            Some(Ok(())) => return 0,
            Some(Err(Number(errno))) => return minus_one(errno),
            // SAFETY: a channel of ours.
            None => match unsafe { channel_of(channel) }.waiter.wait() {
                Ok(()) => {}
                Err(errno) => return minus_one(errno),
            },
        }
    }
}

/// Take an event if there is one.
///
/// # Safety
///
/// As libibverbs demands of `ibv_get_cq_event`.
unsafe fn next_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> Option<Result<(), Number>> {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a channel of ours.
    let channel = unsafe { channel_of(channel) };
    loop {
        let token = match channel.raw.next_event() {
            Ok(token) => token?,
            Err(error) => return Some(Err(error.into())),
        };
        let queues = channel.queues();
        // Without an entry it has been destroyed since.
        let Some(&QueuePointer(found)) = queues.by_token.get(&token) else { continue };
        // SAFETY: a queue that is in the table is there, and the table is locked.
        let found_queue = unsafe { &*found };
        found_queue.completions.add();
        // SAFETY: the program gives room for two pointers.
        unsafe {
            cq.write(found.cast());
            cq_context.write(found_queue.c.cq_context);
        }
        return Some(Ok(()));
    }
}

pub(crate) unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue of ours.
    unsafe { queue(cq) }.completions.acknowledge(events.into());
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue of ours.
    answer(unsafe { queue(cq) }.raw.request_notification(solicited_only != 0))
}

fn to_c(ours: &WorkCompletion) -> ibv_wc {
    let flags = ours.flags - CompletionFlags::CONGESTION_MARK;
    let immediate_or_key = match ours.immediate() {
        Some(immediate) => immediate.to_be(),
        None => ours.immediate_or_key,
    };
    ibv_wc {
        wr_id: ours.id,
        status: ours.status as c_uint,
        opcode: ours.operation as c_uint,
        vendor_err: ours.vendor_error,
        byte_len: ours.byte_count,
        imm_data: immediate_or_key,
        qp_num: ours.queue_pair.value(),
        src_qp: ours.source_queue_pair.value(),
        wc_flags: flags.bits(),
        pkey_index: 0,
        slid: ours.source_lid,
        sl: ours.service_level,
        dlid_path_bits: ours.destination_path_bits,
    }
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, completions: *mut ibv_wc) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue of ours.
    let ours = unsafe { queue(cq) };
    match usize::try_from(entries) {
        Ok(1) => poll::<1>(ours, 1, completions),
        Ok(wanted) => poll::<BATCH>(ours, wanted, completions),
        Err(_) => minus_one(Errno::EINVAL),
    }
}

/// One completion if there is one.
pub(crate) fn next_completion(ours: &CompletionQueue) -> Result<Option<ibv_wc>, PollError> {
    let mut one = [WorkCompletion::default()];
    Ok((ours.raw.poll(&mut one)? > 0).then(|| to_c(&one[0])))
}

pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attributes: *mut ibv_modify_cq_attr) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a queue of ours, and attributes of the program.
    let (ours, asked) = unsafe { (queue(cq), attributes.read()) };
    match asked.attr_mask {
        0 => 0,
        IBV_CQ_ATTR_MODERATE => answer(ours.raw.moderate(asked.moderate.cq_count, asked.moderate.cq_period)),
        _ => number(Errno::EINVAL),
    }
}

/// There must be room for `wanted` completions.
fn poll<const BATCH: usize>(ours: &CompletionQueue, wanted: usize, completions: *mut ibv_wc) -> c_int {
    let mut batch = [WorkCompletion::default(); BATCH];
    let mut total = 0;
    while total < wanted {
        let room = BATCH.min(wanted - total);
        let count = match ours.raw.poll(&mut batch[..room]) {
            Ok(count) => count,
            // What was taken is reported first; the error comes again.
            Err(_) if total > 0 => break,
            Err(error) => return minus_one(error),
        };
        for (index, completion) in batch[..count].iter().enumerate() {
            // SAFETY: the program gives room for `entries` completions.
            unsafe { completions.add(total + index).write(to_c(completion)) };
        }
        total += count;
        if count < room {
            break;
        }
    }
    total as c_int
}

#[cfg(test)]
mod tests {
    use longhaul_verbs::{CompletionOperation, CompletionStatus};

    use super::*;

    #[test]
    fn immediates_are_in_network_byte_order_and_keys_are_not() {
        let received = WorkCompletion {
            id: 7,
            operation: CompletionOperation::Receive,
            flags: CompletionFlags::IMMEDIATE | CompletionFlags::CONGESTION_MARK,
            immediate_or_key: 0x1122_3344,
            byte_count: 10,
            ..Default::default()
        };
        let c = to_c(&received);
        assert_eq!((c.wr_id, c.opcode, c.byte_len, c.wc_flags), (7, 128, 10, 2));
        assert_eq!(c.imm_data.to_ne_bytes(), [0x11, 0x22, 0x33, 0x44]);
        let with_key = WorkCompletion { flags: CompletionFlags::INVALIDATED, ..received };
        assert_eq!(to_c(&with_key).imm_data, 0x1122_3344);
        let failed = WorkCompletion { status: CompletionStatus::RetryExceededError, ..Default::default() };
        assert_eq!(to_c(&failed).status, 12);
    }
}
