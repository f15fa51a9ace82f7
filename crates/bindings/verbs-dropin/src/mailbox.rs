//! Asynchronous events, sorted by the context that they concern.
#![allow(unsafe_code, reason = "shares pointers between threads")]

use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_verbs::AsyncEvent;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::outstanding::Outstanding;

/// Events for one context.
pub(crate) struct Mailbox {
    events: Mutex<VecDeque<AsyncEvent>>,
    signal: EventFd,
}

/// More are dropped, the oldest first, as the device does.
const EVENTS_MAX: usize = 4096;

impl Mailbox {
    pub(crate) fn new() -> Result<Arc<Mailbox>, Errno> {
        let signal = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Arc::new(Mailbox { events: Mutex::default(), signal }))
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    pub(crate) fn put(&self, event: AsyncEvent) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(event);
        let _ = self.signal.write(1);
    }

    pub(crate) fn take(&self) -> Option<AsyncEvent> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let event = events.pop_front();
        if events.is_empty() {
            let _ = self.signal.read();
        }
        event
    }
}

/// An object that events can be about.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) object: *mut c_void,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) outstanding: Arc<Outstanding>,
}

// SAFETY: the pointer is only handed to the program, which shares its objects between threads anyway.
unsafe impl Send for Owner {}

impl Owner {
    pub(crate) fn new(object: *mut c_void, mailbox: &Arc<Mailbox>, outstanding: &Arc<Outstanding>) -> Owner {
        Owner { object, mailbox: mailbox.clone(), outstanding: outstanding.clone() }
    }
}
