//! Descriptors that programs wait on.
//!
//! A descriptor that a program gets is an epoll over what is behind it: programs make theirs non-blocking, which must not
//! change how ours behave.

use std::os::fd::{AsFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
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

    /// Wait until it is readable; EAGAIN if the program has made it non-blocking.
    pub(crate) fn wait(&self) -> Result<(), Errno> {
        let flags = fcntl(self.descriptor(), FcntlArg::F_GETFL)?;
        if OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK) {
            return Err(Errno::EAGAIN);
        }
        let mut descriptors = [PollFd::new(self.descriptor(), PollFlags::POLLIN)];
        match poll(&mut descriptors, PollTimeout::NONE) {
            // libibverbs reads here, and a read goes on after a signal whose handler was set with signal(3).
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}
