//! Completion queues: `ibv_cq`.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::any::Any;
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_verbs::raw;
use longhaul_verbs::{Capabilities, CreateError, ModifyError, NotSupported, PollError, WorkCompletion};

use crate::answer::{check, check_pointer, is_not_supported};
use crate::channel::{ChannelHandle, CompletionChannel};
use crate::context::Context;
use crate::work_completion::translate;
use longhaul_verbs_abi::{IBV_CQ_ATTR_MODERATE, ibv_cq, ibv_moderate_cq, ibv_modify_cq_attr, ibv_wc};

/// Completions that are taken over at once, on the stack.
const BATCH: usize = 32;

// Tokens of 64 bits travel through C as pointers.
const _: () = assert!(size_of::<usize>() == size_of::<u64>());

/// The queue in C. Queue pairs hold it too, so that it outlives them.
pub(crate) struct QueueHandle {
    context: Arc<Context>,
    raw: NonNull<ibv_cq>,
    _channel: Option<Arc<ChannelHandle>>,
}

// SAFETY: libibverbs' calls on a completion queue may come from any thread, and several at once.
unsafe impl Send for QueueHandle {}
// SAFETY: as above.
unsafe impl Sync for QueueHandle {}

impl QueueHandle {
    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    /// Room, as the library has it now.
    fn entries(&self) -> u32 {
        // SAFETY: the queue is there, and any caller that resizes it holds the lock that this caller holds, or none is
        // possible yet.
        let entries = unsafe { (&raw const (*self.as_ptr()).cqe).read() };
        u32::try_from(entries).unwrap_or(0)
    }
}

impl Drop for QueueHandle {
    fn drop(&mut self) {
        // Waits for events that have been read and not acknowledged; there are none for long, since the reader of one
        // acknowledges it at once. Events that nobody has read go with the queue. SAFETY: ours, and no queue pair holds
        // it any more.
        let answer = unsafe { (self.context.library().ibv_destroy_cq)(self.as_ptr()) };
        if let Err(error) = check(answer) {
            tracing::warn!(%error, "a completion queue could not be destroyed");
        }
    }
}

/// A completion queue.
pub(crate) struct CompletionQueue {
    handle: Arc<QueueHandle>,
    capacity: AtomicU32,
    /// Held while it is resized, because the library then writes its size.
    resizing: Mutex<()>,
    entries_max: u32,
}

impl CompletionQueue {
    /// `entries_max` is the device's limit.
    pub(crate) fn create(
        context: &Arc<Context>,
        entries: u32,
        entries_max: u32,
        channel: Option<(&dyn raw::CompletionChannel, u64)>,
    ) -> Result<Arc<dyn raw::CompletionQueue>, CreateError> {
        let count = check_size(entries, entries_max)?;
        let (channel, token) = match channel {
            None => (None, 0),
            Some((channel, token)) => {
                let own = (channel as &dyn Any).downcast_ref::<CompletionChannel>();
                let own = own.filter(|own| Arc::ptr_eq(own.context(), context));
                let own = own.ok_or(CreateError::ForeignObject { what: "completion channel" })?;
                (Some(own.handle().clone()), token)
            }
        };
        let raw_channel = channel.as_ref().map_or(std::ptr::null_mut(), |channel| channel.as_ptr());
        let raw_token = std::ptr::without_provenance_mut(token as usize);
        // SAFETY: device and channel are there. The token is handed back and never followed.
        let raw = check_pointer(unsafe {
            (context.library().ibv_create_cq)(context.as_ptr(), count, raw_token, raw_channel, 0)
        })?;
        let handle = QueueHandle { context: context.clone(), raw, _channel: channel };
        let capacity = handle.entries().into();
        Ok(Arc::new(CompletionQueue { handle: Arc::new(handle), capacity, resizing: Mutex::new(()), entries_max }))
    }

    /// What queue pairs hold.
    pub(crate) fn object(&self) -> &Arc<QueueHandle> {
        &self.handle
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.handle.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.handle.context
    }
}

fn check_size(entries: u32, most: u32) -> Result<c_int, CreateError> {
    let what = "completion queue entries";
    match c_int::try_from(entries) {
        Ok(0) => Err(CreateError::InvalidArgument { what, expected: "at least 1" }),
        Ok(count) if entries <= most => Ok(count),
        _ => Err(CreateError::TooMany { what, requested: entries.into(), most: most.into() }),
    }
}

fn not_supported(capability: Capabilities) -> NotSupported {
    NotSupported { capability }
}

impl raw::CompletionQueue for CompletionQueue {
    fn handle(&self) -> u32 {
        // SAFETY: the queue is there; the library writes this field only when it makes the queue.
        unsafe { (&raw const (*self.as_ptr()).handle).read() }
    }

    fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    fn poll(&self, completions: &mut [WorkCompletion]) -> Result<usize, PollError> {
        let mut taken = 0;
        while taken < completions.len() {
            let wanted = BATCH.min(completions.len() - taken);
            let mut theirs = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
            // Drivers leave out fields that say nothing about a completion; no byte is read that nobody wrote.
            theirs[..wanted].fill(MaybeUninit::new(ibv_wc::zeroed()));
            // SAFETY: the queue is there, and there is room for as many.
            let answer =
                unsafe { self.context().poll_cq(self.as_ptr(), wanted as c_int, theirs.as_mut_ptr().cast::<ibv_wc>()) };
            let Ok(count) = usize::try_from(answer) else {
                // What was taken before must not be lost; the next call fails again.
                return if taken > 0 { Ok(taken) } else { Err(poll_error(answer)) };
            };
            let count = count.min(wanted);
            for (place, theirs) in completions[taken..].iter_mut().zip(&theirs[..count]) {
                // SAFETY: the first `wanted` of them were written above.
                *place = translate(unsafe { theirs.assume_init_ref() });
            }
            taken += count;
            if count < wanted {
                break;
            }
        }
        Ok(taken)
    }

    fn request_notification(&self, solicited_only: bool) -> Result<(), PollError> {
        // SAFETY: the queue is there.
        unsafe { self.context().req_notify_cq(self.as_ptr(), solicited_only) }.map_err(|error| {
            match is_not_supported(&error) {
                true => not_supported(Capabilities::COMPLETION_CHANNEL).into(),
                false => error.into(),
            }
        })
    }

    fn resize(&self, entries: u32) -> Result<(), CreateError> {
        let count = check_size(entries, self.entries_max)?;
        let _alone = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the queue is there.
        let answer = check(unsafe { (self.context().library().ibv_resize_cq)(self.as_ptr(), count) });
        self.capacity.store(self.handle.entries(), Ordering::Relaxed);
        answer.map_err(|error| match error.raw_os_error() {
            _ if is_not_supported(&error) => not_supported(Capabilities::RESIZE_COMPLETION_QUEUE).into(),
            // Its size is within the device's limit, so this is what is left.
            Some(nix::libc::EINVAL) => CreateError::InvalidArgument {
                what: "completion queue entries",
                expected: "at least as many as are waiting in it",
            },
            _ => error.into(),
        })
    }

    fn moderate(&self, count: u16, period_us: u16) -> Result<(), ModifyError> {
        let mut attributes = ibv_modify_cq_attr {
            attr_mask: IBV_CQ_ATTR_MODERATE,
            moderate: ibv_moderate_cq { cq_count: count, cq_period: period_us },
        };
        // SAFETY: the queue is there.
        unsafe { self.context().modify_cq(self.as_ptr(), &mut attributes) }.map_err(|error| {
            match is_not_supported(&error) {
                true => not_supported(Capabilities::COMPLETION_MODERATION).into(),
                false => error.into(),
            }
        })
    }
}

/// Drivers answer -1 and the like without setting `errno`; a number that means nothing would mislead.
fn poll_error(answer: c_int) -> PollError {
    match answer {
        -1 | -2 => {
            io::Error::other("the driver could not read the completion queue; it or the device has failed").into()
        }
        number => io::Error::from_raw_os_error(-number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_checked_before_the_driver_sees_them() {
        assert_eq!(check_size(1, 100).unwrap(), 1);
        assert_eq!(check_size(100, 100).unwrap(), 100);
        let text = |entries, most| check_size(entries, most).unwrap_err().to_string();
        assert_eq!(text(0, 100), "completion queue entries: expected at least 1");
        assert_eq!(text(101, 100), "completion queue entries: 101 requested, but this device supports at most 100");
        assert!(text(u32::MAX, u32::MAX).contains("4294967295 requested"), "more than C's int holds");
    }

    #[test]
    fn a_failed_driver_is_not_called_a_missing_permission() {
        // Error number 1 is EPERM, and -1 is all that most drivers say.
        assert!(poll_error(-1).to_string().contains("refused"));
        let PollError::System(error) = poll_error(-1) else { panic!("a system error") };
        assert!(error.to_string().contains("could not read the completion queue"), "{error}");
    }
}
