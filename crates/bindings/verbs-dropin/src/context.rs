//! Open devices as programs hold them.
#![allow(unsafe_code, reason = "takes structures back from C")]

use std::ffi::c_void;
use std::fs::File;
use std::mem::offset_of;
use std::sync::Arc;

use longhaul_verbs_abi::{ibv_context, verbs_context};

use crate::session::Session;
use crate::waiter::Waiter;

/// What a program has opened.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) c: verbs_context,
    pub(crate) session: Arc<Session>,
    pub(crate) events: Waiter,
    pub(crate) _commands: File,
}

/// Ours behind a pointer of the program.
///
/// # Safety
///
/// It must be what `ibv_open_device` has given, and not be closed yet.
pub(crate) unsafe fn context<'a>(context: *mut ibv_context) -> &'a Context {
    // SAFETY: the caller's promise; the pointer was made from the whole object, in which it lies at this offset.
    unsafe { &*context.byte_sub(offset_of!(verbs_context, context)).cast::<Context>() }
}

/// A pointer as programs get it back in events.
pub(crate) fn untyped<T>(object: *mut T) -> *mut c_void {
    object.cast()
}
