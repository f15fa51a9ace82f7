//! Opening and closing devices, and the table of functions that an open one comes with.
#![allow(unsafe_code, reason = "hands structures to C and takes them back")]

use std::ffi::c_int;
use std::io::Write as _;
use std::mem::offset_of;
use std::os::fd::AsRawFd as _;

use longhaul_verbs_abi::{VERBS_ABI_IS_EXTENDED, ibv_context, ibv_context_ops, ibv_device, verbs_context};

use crate::cancellation::NotCancelled;
use crate::context::Context;
use crate::device::{Device, Refusal};
use crate::errors::null;
use crate::listing::listed;
use crate::mailbox::Mailbox;
use crate::session::Session;
use crate::waiter::Waiter;
use crate::{completion, post, query};

fn operations() -> ibv_context_ops {
    ibv_context_ops {
        poll_cq: Some(completion::poll_cq),
        req_notify_cq: Some(completion::req_notify_cq),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        post_srq_recv: Some(post::post_srq_recv),
        // The header checks the others before it calls them, or they need objects that cannot be made here.
        ..ibv_context_ops::zeroed()
    }
}

pub(crate) unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a device of our list.
    let address = unsafe { listed(device) }.address;
    let opened = match Device::open(address) {
        Ok(opened) => opened,
        Err(Refusal { text, errno }) => {
            // Nobody may read it: no reason to end.
            let _ = writeln!(std::io::stderr(), "longhaul: cannot open a device at {address}: {text}");
            return null(errno);
        }
    };
    let mailbox = match Mailbox::new() {
        Ok(mailbox) => mailbox,
        Err(errno) => return null(errno),
    };
    let events = match Waiter::new(opened.raw.event_descriptor().into_iter().chain([mailbox.descriptor()])) {
        Ok(events) => events,
        Err(errno) => return null(errno),
    };
    let mut c = verbs_context::zeroed();
    c.sz = size_of::<verbs_context>();
    c.query_port = Some(query::query_port_sized);
    c.query_device_ex = Some(query::query_device_ex);
    c.context.device = device;
    c.context.ops = operations();
    c.context.cmd_fd = -1;
    c.context.async_fd = events.descriptor().as_raw_fd();
    c.context.num_comp_vectors = 1;
    c.context.abi_compat = VERBS_ABI_IS_EXTENDED;
    let session = Session::new(opened, mailbox);
    let whole = Box::into_raw(Box::new(Context { c, session, events }));
    // SAFETY: it was just made.
    unsafe { &raw mut (*whole).c.context }
}

pub(crate) unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a context of ours.
    let session = unsafe { &crate::context::context(context).session };
    if !session.is_of_this_process() {
        return 0;
    }
    session.close();
    let whole = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<Context>();
    // SAFETY: made by `open_device`, and closed once. What was made from it keeps the session.
    drop(unsafe { Box::from_raw(whole) });
    0
}
