//! `pthread_cancel`: a thread that is cancelled in a system call unwinds from there, which must not go through locks of ours.
#![allow(unsafe_code, reason = "calls pthread_setcancelstate")]

use std::ffi::c_int;
use std::marker::PhantomData;

const DISABLED: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// While it lives, its thread is not cancelled; afterwards as before. What is pending takes effect at the next call where
/// it can.
pub(crate) struct NotCancelled {
    before: c_int,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl NotCancelled {
    pub(crate) fn begin() -> NotCancelled {
        let mut before = 0;
        // SAFETY: there is room for the state before.
        unsafe { pthread_setcancelstate(DISABLED, &raw mut before) };
        NotCancelled { before, _thread: PhantomData }
    }
}

impl Drop for NotCancelled {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(self.before, &raw mut self.before) };
    }
}
