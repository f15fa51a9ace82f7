//! Descriptors that programs wait on.
//!
//! A descriptor that a program gets is an epoll over what is behind it: programs make theirs non-blocking, which must not
//! change how ours behave.

#![allow(
    unsafe_code,
    reason = "polls so that a cancelled thread may unwind, and asks for handlers without setting them"
)]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

/// A descriptor that is readable when one of others is.
pub(crate) struct Waiter(Epoll);

impl Waiter {
    pub(crate) fn new<'a>(descriptors: impl Iterator<Item = BorrowedFd<'a>>) -> Result<Waiter, Errno> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for descriptor in descriptors {
            epoll.add(descriptor, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        Ok(Waiter(epoll))
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }

    /// Wait until it is readable, or may be; EAGAIN if the program has made it non-blocking, EINTR if a handler has run
    /// that ends calls. A cancelled thread unwinds from here: nothing in this function or its callers may need to be dropped.
    pub(crate) fn wait(&self) -> Result<(), Errno> {
        let flags = fcntl(self.descriptor(), FcntlArg::F_GETFL)?;
        if OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK) {
            return Err(Errno::EAGAIN);
        }
        let mut descriptor = libc::pollfd { fd: self.descriptor().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure is there, for as long as the call takes.
        match Errno::result(unsafe { poll(&raw mut descriptor, 1, -1) }) {
            // libibverbs reads here, and a read goes on after a handler with SA_RESTART. The kernel never restarts poll, and
            // does not say which handler has run.
            Err(Errno::EINTR) if (1..=libc::SIGRTMAX()).any(ends_calls) => Err(Errno::EINTR),
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

unsafe extern "C-unwind" {
    /// libc's declaration does not let a cancelled thread unwind.
    fn poll(descriptors: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
}

/// Whether the signal has a handler in this thread that ends system calls.
fn ends_calls(signal: c_int) -> bool {
    // What a thread does to itself does not interrupt it while it waits. Runtimes catch these without SA_RESTART.
    if matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS) {
        return false;
    }
    let (mut action, mut mask) = (MaybeUninit::<libc::sigaction>::zeroed(), MaybeUninit::<libc::sigset_t>::zeroed());
    // SAFETY: both calls only ask, and fill structures of which every pattern is a value.
    unsafe {
        if libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) != 0
            || libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr()) != 0
            || libc::sigismember(mask.as_ptr(), signal) == 1
        {
            return false;
        }
        let action = action.assume_init();
        !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) && action.sa_flags & libc::SA_RESTART == 0
    }
}
