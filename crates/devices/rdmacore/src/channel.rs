//! Completion channels: `ibv_comp_channel`, never blocking.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::ffi::c_int;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use longhaul_verbs::raw;
use longhaul_verbs::{CreateError, EventError};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::answer::{check, check_pointer};
use crate::context::Context;
use longhaul_verbs_abi::ibv_comp_channel;

/// The channel in C. Completion queues hold it too: the kernel lets no channel go before its queues.
pub(crate) struct ChannelHandle {
    context: Arc<Context>,
    raw: NonNull<ibv_comp_channel>,
}

// SAFETY: libibverbs' calls on a channel may come from any thread, and several at once.
unsafe impl Send for ChannelHandle {}
// SAFETY: as above.
unsafe impl Sync for ChannelHandle {}

impl ChannelHandle {
    pub(crate) fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.raw.as_ptr()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is there, and its descriptor stays open as long as it.
        unsafe { BorrowedFd::borrow_raw((&raw const (*self.as_ptr()).fd).read()) }
    }
}

impl Drop for ChannelHandle {
    fn drop(&mut self) {
        // SAFETY: ours, and no completion queue holds it any more.
        let answer = unsafe { (self.context.library().ibv_destroy_comp_channel)(self.as_ptr()) };
        if let Err(error) = check(answer) {
            tracing::warn!(%error, "a completion channel could not be destroyed");
        }
    }
}

/// Reads never wait from now on.
pub(crate) fn make_non_blocking(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(descriptor, FcntlArg::F_GETFL)?);
    fcntl(descriptor, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// `make_non_blocking` for a descriptor of an object in C.
///
/// # Safety
///
/// The descriptor is open during the call.
pub(crate) unsafe fn make_raw_non_blocking(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: the caller's promise.
    make_non_blocking(unsafe { BorrowedFd::borrow_raw(descriptor) })
}

/// What reading an event from a non-blocking descriptor answered: `Ok(false)` when there is none now. Call it right
/// after the function.
pub(crate) fn has_event(answer: c_int) -> Result<bool, EventError> {
    match check(answer) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A completion channel.
pub(crate) struct CompletionChannel {
    handle: Arc<ChannelHandle>,
}

impl CompletionChannel {
    pub(crate) fn create(context: &Arc<Context>) -> Result<Arc<dyn raw::CompletionChannel>, CreateError> {
        // SAFETY: the device is open.
        let raw = check_pointer(unsafe { (context.library().ibv_create_comp_channel)(context.as_ptr()) })?;
        let handle = ChannelHandle { context: context.clone(), raw };
        make_non_blocking(handle.descriptor())?;
        Ok(Arc::new(CompletionChannel { handle: Arc::new(handle) }))
    }

    /// What completion queues hold.
    pub(crate) fn handle(&self) -> &Arc<ChannelHandle> {
        &self.handle
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.handle.context
    }
}

impl raw::CompletionChannel for CompletionChannel {
    fn next_event(&self) -> Result<Option<u64>, EventError> {
        let library = self.handle.context.library();
        let (mut queue, mut token) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is there; both places can be written.
        let answer = unsafe { (library.ibv_get_cq_event)(self.handle.as_ptr(), &mut queue, &mut token) };
        if !has_event(answer)? {
            return Ok(None);
        }
        // At once: a queue cannot be destroyed while one of its events is not acknowledged.
        // SAFETY: for the same reason the queue is still there.
        unsafe { (library.ibv_ack_cq_events)(queue, 1) };
        Ok(Some(token.addr() as u64))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.handle.descriptor())
    }
}
