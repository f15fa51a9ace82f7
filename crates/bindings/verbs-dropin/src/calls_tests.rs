//! The calls as C programs make them, where the programs of the command's tests do not look.
#![allow(unsafe_code, reason = "calls as C does")]

use std::ffi::c_int;

use longhaul_verbs_abi as abi;
use longhaul_verbs_abi::{ibv_context, ibv_device_attr, ibv_port_attr, ibv_qp_init_attr, ibv_wc};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::{completion, events, listing, memory, opening, query, queue_pair};

/// An open device of the loopback addresses; every test has its own.
fn open(index: usize) -> *mut ibv_context {
    // SAFETY: calls as C programs make them. Nothing else reads the environment at the same time: each test is a process
    // of its own with nextest, and all tests set the same value.
    unsafe {
        std::env::set_var(crate::configuration::DEVICES, "127.0.78.1,127.0.78.2,127.0.78.3");
        let mut count = 0;
        let list = listing::get_device_list(&raw mut count);
        assert_eq!(count, 3);
        assert!(list.add(3).read().is_null());
        let device = list.add(index).read();
        listing::free_device_list(list);
        let context = opening::open_device(device);
        assert!(!context.is_null());
        context
    }
}

#[test]
fn what_is_in_use_cannot_be_destroyed() {
    let context = open(0);
    let mut buffer = vec![0_u8; 4096];
    let mut init = ibv_qp_init_attr::zeroed();
    // SAFETY: calls as C programs make them, with objects that are there.
    unsafe {
        let domain = memory::alloc_pd(context);
        let region = memory::reg_mr(domain, buffer.as_mut_ptr().cast(), buffer.len(), 1);
        let channel = completion::create_comp_channel(context);
        let queue = completion::create_cq(context, 16, std::ptr::null_mut(), channel, 0);
        assert!(!region.is_null() && (*queue).cqe >= 16);
        (init.send_cq, init.recv_cq, init.qp_type) = (queue, queue, abi::IBV_QPT_RC);
        (init.cap.max_send_wr, init.cap.max_recv_wr, init.cap.max_send_sge, init.cap.max_recv_sge) = (4, 4, 1, 1);
        let pair = queue_pair::create_qp(domain, &raw mut init);
        assert!(!pair.is_null());
        let busy = Errno::EBUSY as c_int;
        assert_eq!(memory::dealloc_pd(domain), busy);
        assert_eq!(completion::destroy_cq(queue), busy);
        assert_eq!(completion::destroy_comp_channel(channel), busy);
        let mut completion = ibv_wc::zeroed();
        assert_eq!(completion::poll_cq(queue, 1, &raw mut completion), 0);
        assert_eq!(queue_pair::destroy_qp(pair), 0);
        assert_eq!(completion::destroy_cq(queue), 0);
        assert_eq!(completion::destroy_comp_channel(channel), 0);
        assert_eq!(memory::dealloc_pd(domain), busy, "the region is still there");
        assert_eq!(memory::dereg_mr(region), 0);
        assert_eq!(memory::dealloc_pd(domain), 0);
        assert_eq!(opening::close_device(context), 0);
    }
}

#[test]
fn what_cannot_be_done_is_refused_with_the_reason() {
    let context = open(1);
    let mut init = ibv_qp_init_attr::zeroed();
    // SAFETY: as above.
    unsafe {
        let domain = memory::alloc_pd(context);
        let queue = completion::create_cq(context, 16, std::ptr::null_mut(), std::ptr::null_mut(), 0);
        let first_page = std::ptr::without_provenance_mut(0x40);
        assert!(memory::reg_mr(domain, first_page, 64, 1).is_null());
        assert_eq!(Errno::last(), Errno::EFAULT);
        // Raw packets.
        (init.send_cq, init.recv_cq, init.qp_type) = (queue, queue, 8);
        assert!(queue_pair::create_qp(domain, &raw mut init).is_null());
        assert_eq!(Errno::last(), Errno::EOPNOTSUPP);
        assert!(completion::create_cq(context, 0, std::ptr::null_mut(), std::ptr::null_mut(), 0).is_null());
        assert_eq!(Errno::last(), Errno::EINVAL);
        assert_eq!(completion::destroy_cq(queue), 0);
        assert_eq!(memory::dealloc_pd(domain), 0);
        // Old programs have room for less.
        let mut port = ibv_port_attr::zeroed();
        port.port_cap_flags2 = 0x7777;
        assert_eq!(query::query_port(context, 1, &raw mut port), 0);
        assert_eq!((port.state, port.port_cap_flags2), (abi::IBV_PORT_ACTIVE, 0x7777));
        assert_eq!(query::query_port(context, 2, &raw mut port), Errno::EINVAL as c_int);
        let mut device = ibv_device_attr::zeroed();
        assert_eq!(query::query_device(context, &raw mut device), 0);
        assert_eq!((device.phys_port_cnt, device.atomic_cap), (1, abi::IBV_ATOMIC_NONE));
        assert_eq!(opening::close_device(context), 0);
    }
}

#[test]
fn descriptors_that_programs_make_non_blocking_do_not_block() {
    let context = open(2);
    // SAFETY: as above; the descriptors belong to objects that are there.
    unsafe {
        let channel = completion::create_comp_channel(context);
        for descriptor in [(*channel).fd, (*context).async_fd] {
            let descriptor = std::os::fd::BorrowedFd::borrow_raw(descriptor);
            fcntl(descriptor, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        }
        let (mut queue, mut token) = (std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!(completion::get_cq_event(channel, &raw mut queue, &raw mut token), -1);
        assert_eq!(Errno::last(), Errno::EAGAIN);
        let mut event = abi::ibv_async_event::zeroed();
        assert_eq!(events::get_async_event(context, &raw mut event), -1);
        assert_eq!(Errno::last(), Errno::EAGAIN);
        assert_eq!(completion::destroy_comp_channel(channel), 0);
        assert_eq!(opening::close_device(context), 0);
    }
}
