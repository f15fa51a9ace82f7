//! Opening and closing devices, and the table of functions that an open one comes with.
#![allow(unsafe_code, reason = "hands structures to C and takes them back")]

use std::ffi::c_int;
use std::fs::File;
use std::io::Write as _;
use std::mem::offset_of;
use std::os::fd::AsRawFd as _;

use longhaul_verbs_abi::{VERBS_ABI_IS_EXTENDED, ibv_context, ibv_context_ops, ibv_device, verbs_context};

use crate::cancellation::NotCancelled;
use crate::context::Context;
use crate::device::Device;
use crate::errors::null;
use crate::listing::listed;
use crate::mailbox::Mailbox;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::waiter::Waiter;
use crate::{
    completion, extended_polling, memory, parent_domains, post, query, queue_pair, queue_pair_creation, windows,
};

fn operations() -> ibv_context_ops {
    ibv_context_ops {
        poll_cq: Some(completion::poll_cq),
        req_notify_cq: Some(completion::req_notify_cq),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        post_srq_recv: Some(post::post_srq_recv),
        alloc_mw: Some(windows::alloc_mw),
        bind_mw: Some(windows::bind_mw),
        dealloc_mw: Some(windows::dealloc_mw),
        // The others are of the time before the library had symbols for them.
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
    // The kernel's descriptor in other hands. Some programs copy it or change its flags; one that sends it commands gets ENOTTY.
    let commands = match File::open("/dev/null") {
        Ok(commands) => commands,
        Err(error) => return null(error),
    };
    let mut c = verbs_context::zeroed();
    c.sz = size_of::<verbs_context>();
    c.query_port = Some(query::query_port_sized);
    c.query_device_ex = Some(query::query_device_ex);
    c.create_cq_ex = Some(extended_polling::create_cq_ex);
    c.modify_cq = Some(completion::modify_cq);
    c.create_qp_ex = Some(queue_pair_creation::create_qp_ex);
    c.modify_qp_rate_limit = Some(queue_pair::modify_qp_rate_limit);
    c.alloc_null_mr = Some(memory::alloc_null_mr);
    c.alloc_td = Some(parent_domains::alloc_td);
    c.dealloc_td = Some(parent_domains::dealloc_td);
    c.alloc_parent_domain = Some(parent_domains::alloc_parent_domain);
    // The header answers "not supported" for the others.
    c.context.device = device;
    c.context.ops = operations();
    c.context.cmd_fd = commands.as_raw_fd();
    c.context.async_fd = events.descriptor().as_raw_fd();
    // As Soft-RoCE: one for each processor, all the same. Programs spread their queues over them.
    c.context.num_comp_vectors = std::thread::available_parallelism().map_or(1, |count| count.get() as c_int);
    c.context.abi_compat = VERBS_ABI_IS_EXTENDED;
    let session = Session::new(opened, mailbox);
    let whole = Box::into_raw(Box::new(Context { c, session, events, _commands: commands }));
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
