//! The calls as C programs make them, where the programs of the command's tests do not look.
#![allow(unsafe_code, reason = "calls as C does")]

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use longhaul_verbs::DestroyError;
use longhaul_verbs_abi as abi;
use longhaul_verbs_abi::{ibv_context, ibv_device_attr, ibv_port_attr, ibv_qp_init_attr, ibv_wc};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::{completion, events, listing, memory, opening, query, queue_pair, queue_pair_creation};

const ADDRESSES: &str =
    "127.0.78.1,127.0.78.2,127.0.78.3,127.0.78.4,127.0.78.5,127.0.78.6,127.0.78.7,127.0.78.8,127.0.78.9";

/// An open device of the loopback addresses; every test has its own.
fn open(index: usize) -> *mut ibv_context {
    let context = try_open(index);
    assert!(!context.is_null());
    context
}

fn try_open(index: usize) -> *mut ibv_context {
    // SAFETY: calls as C programs make them. Nothing else reads the environment at the same time: each test is a process
    // of its own with nextest, and all tests set the same value.
    unsafe {
        std::env::set_var(crate::configuration::DEVICES, ADDRESSES);
        let mut count = 0;
        let list = listing::get_device_list(&raw mut count);
        assert_eq!(count, 9);
        assert!(list.add(9).read().is_null());
        let device = list.add(index).read();
        listing::free_device_list(list);
        opening::open_device(device)
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
        let pair = queue_pair_creation::create_qp(domain, &raw mut init);
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
        assert!(queue_pair_creation::create_qp(domain, &raw mut init).is_null());
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

#[test]
fn closing_a_context_ends_what_is_left_and_the_device_opens_again() {
    let context = open(3);
    let mut buffer = vec![0_u8; 4096];
    let mut init = ibv_qp_init_attr::zeroed();
    // SAFETY: calls as C programs make them. Objects of a closed context are only destroyed.
    unsafe {
        let domain = memory::alloc_pd(context);
        let region = memory::reg_mr(domain, buffer.as_mut_ptr().cast(), buffer.len(), 1);
        let channel = completion::create_comp_channel(context);
        let queue = completion::create_cq(context, 16, std::ptr::null_mut(), channel, 0);
        (init.send_cq, init.recv_cq, init.qp_type) = (queue, queue, abi::IBV_QPT_RC);
        (init.cap.max_send_wr, init.cap.max_recv_wr, init.cap.max_send_sge, init.cap.max_recv_sge) = (4, 4, 1, 1);
        let pair = queue_pair_creation::create_qp(domain, &raw mut init);
        assert!(!region.is_null() && !pair.is_null());
        assert_eq!(opening::close_device(context), 0);
        assert!(matches!(memory::region(region).raw.deregister(), Err(DestroyError::Gone)), "no peer writes any more");
        assert!(matches!(queue_pair::pair(pair).raw.destroy(), Err(DestroyError::Gone)));
        let again = try_open(3);
        assert!(!again.is_null(), "{}", Errno::last());
        let second = memory::alloc_pd(again);
        assert!(!second.is_null());
        assert_eq!(queue_pair::destroy_qp(pair), 0);
        assert_eq!(completion::destroy_cq(queue), 0);
        assert_eq!(completion::destroy_comp_channel(channel), 0);
        assert_eq!(memory::dereg_mr(region), 0);
        assert_eq!(memory::dealloc_pd(domain), 0);
        assert_eq!(memory::dealloc_pd(second), 0);
        assert_eq!(opening::close_device(again), 0);
    }
}

#[test]
fn memory_that_does_not_permit_what_is_asked_is_refused_at_registration() {
    let context = open(4);
    let map = |protection| {
        // SAFETY: a mapping where nothing was.
        unsafe { mmap_anonymous(None, (3 * 4096).try_into().unwrap(), protection, MapFlags::MAP_PRIVATE) }.unwrap()
    };
    let write = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let (read_only, nothing, hole) = (map(ProtFlags::PROT_READ), map(ProtFlags::PROT_NONE), map(write));
    // SAFETY: as above; nothing uses the page in the middle.
    unsafe {
        munmap(hole.byte_add(4096), 4096).unwrap();
        let domain = memory::alloc_pd(context);
        let refused = |address: *mut c_void, access| {
            let region = memory::reg_mr(domain, address, 3 * 4096, access);
            region.is_null().then(Errno::last)
        };
        assert_eq!(refused(read_only.as_ptr(), 1), Some(Errno::EFAULT));
        assert_eq!(refused(nothing.as_ptr(), 0), Some(Errno::EFAULT));
        assert_eq!(refused(hole.as_ptr(), 0), Some(Errno::EFAULT));
        assert!(memory::reg_mr(domain, hole.as_ptr(), usize::MAX, 1).is_null());
        let region = memory::reg_mr(domain, read_only.as_ptr().byte_add(5), 4096, 0);
        assert!(!region.is_null(), "sending from memory that is only readable is fine");
        assert_eq!(memory::dereg_mr(region), 0);
        assert_eq!(memory::dealloc_pd(domain), 0);
    }
    // SAFETY: it is open.
    assert_eq!(unsafe { opening::close_device(context) }, 0);
}

#[test]
fn a_child_of_fork_leaves_its_parents_devices_alone() {
    let context = open(5);
    // SAFETY: calls as C programs make them. The child only makes calls of this library, and ends.
    unsafe {
        let domain = memory::alloc_pd(context);
        let channel = completion::create_comp_channel(context);
        let child = match fork().unwrap() {
            ForkResult::Child => {
                let mut failed = 0;
                failed |= c_int::from(memory::dealloc_pd(domain) != 0);
                failed |= c_int::from(completion::destroy_comp_channel(channel) != 0) << 1;
                failed |= c_int::from(opening::close_device(context) != 0) << 2;
                // The port is the parent's.
                failed |= c_int::from(!try_open(5).is_null() || Errno::last() != Errno::EBUSY) << 3;
                let own = try_open(8);
                failed |= c_int::from(own.is_null() || opening::close_device(own) != 0) << 4;
                libc::_exit(failed);
            }
            ForkResult::Parent { child } => child,
        };
        assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        assert_eq!(completion::destroy_comp_channel(channel), 0);
        assert_eq!(memory::dealloc_pd(domain), 0);
        assert_eq!(opening::close_device(context), 0);
    }
}

extern "C" fn handler(_: c_int) {}

/// SIGUSR1, caught.
fn catch(flags: c_int) {
    // SAFETY: a handler that does nothing, and structures that are there.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// Waits for an event of the channel; the error's number.
extern "C-unwind" fn wait_for_event(channel: *mut c_void) -> *mut c_void {
    let (mut queue, mut token) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: a channel that is there.
    let answer = unsafe { completion::get_cq_event(channel.cast(), &raw mut queue, &raw mut token) };
    std::ptr::without_provenance_mut(if answer == 0 { 0 } else { Errno::last_raw() as usize })
}

/// Waits for an event of the context.
extern "C-unwind" fn wait_for_async_event(context: *mut c_void) -> *mut c_void {
    let mut event = abi::ibv_async_event::zeroed();
    // SAFETY: a context that is there.
    unsafe { events::get_async_event(context.cast(), &raw mut event) };
    std::ptr::null_mut()
}

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
}

/// A thread of C, which signals and cancelling are for.
fn start(routine: extern "C-unwind" fn(*mut c_void) -> *mut c_void, argument: *mut c_void) -> libc::pthread_t {
    let mut thread = 0;
    // SAFETY: the routine takes such an argument. It only differs in that it may be unwound.
    unsafe {
        let routine: extern "C" fn(*mut c_void) -> *mut c_void = std::mem::transmute(routine);
        assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), routine, argument), 0);
    }
    thread
}

#[test]
fn signals_end_a_wait_only_if_their_handler_says_so() {
    let context = open(6);
    // SAFETY: calls as C programs make them; the thread is joined once, and signalled before.
    unsafe {
        let channel = completion::create_comp_channel(context);
        catch(libc::SA_RESTART);
        let thread = start(wait_for_event, channel.cast());
        let mut result = std::ptr::null_mut();
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(10));
            assert_eq!(libc::pthread_kill(thread, libc::SIGUSR1), 0);
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_ne!(libc::pthread_tryjoin_np(thread, &raw mut result), 0, "it waits on");
        catch(0);
        let start = Instant::now();
        while libc::pthread_tryjoin_np(thread, &raw mut result) != 0 {
            assert!(start.elapsed() < Duration::from_secs(10), "the signal did not end the wait");
            libc::pthread_kill(thread, libc::SIGUSR1);
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(result.addr(), Errno::EINTR as usize);
        assert_eq!(completion::destroy_comp_channel(channel), 0);
        assert_eq!(opening::close_device(context), 0);
    }
}

#[test]
fn threads_that_wait_can_be_cancelled() {
    let context = open(7);
    // SAFETY: calls as C programs make them; the threads are cancelled and joined once.
    unsafe {
        let channel = completion::create_comp_channel(context);
        for thread in [start(wait_for_event, channel.cast()), start(wait_for_async_event, context.cast())] {
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(pthread_cancel(thread), 0);
            let mut result = std::ptr::null_mut();
            assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
            assert_eq!(result.addr() as isize, -1, "PTHREAD_CANCELED");
        }
        assert_eq!(completion::destroy_comp_channel(channel), 0, "no lock is held");
        assert_eq!(opening::close_device(context), 0);
    }
}

/// Copies memory when the process's first thread has left; ends the process.
extern "C-unwind" fn copy_without_the_first_thread(_: *mut c_void) -> *mut c_void {
    // By then it has left.
    std::thread::sleep(Duration::from_millis(100));
    let (from, mut into) = (*b"bytes", [0; 5]);
    let copies = longhaul_softnic_udp::foreign_memory()
        .is_ok_and(|memory| (memory.read)(from.as_ptr().addr() as u64, &mut into) && from == into);
    // SAFETY: it ends the process, a child of a test.
    unsafe { libc::_exit(c_int::from(!copies)) }
}

#[test]
fn memory_is_copied_after_the_first_thread_has_left() {
    // SAFETY: the child starts a thread, and its first one leaves without unwinding, as with pthread_exit.
    unsafe {
        let child = match fork().unwrap() {
            ForkResult::Child => {
                start(copy_without_the_first_thread, std::ptr::null_mut());
                libc::syscall(libc::SYS_exit, 0);
                unreachable!("the thread has left");
            }
            ForkResult::Parent { child } => child,
        };
        assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
    }
}
