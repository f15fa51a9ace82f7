//! How the background thread sleeps, and is woken.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use longhaul_time::Instant;
use longhaul_verbs::LinkState;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::Epoll;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use super::rest::{ATTENDED_LOOK, Bell, Nap};
use crate::link::LinkWatch;

/// An eventfd to ring, and the sockets to watch with it.
pub(super) struct Doorbell {
    rung: EventFd,
    /// Readable when something has arrived for the port.
    arrivals: Arc<Epoll>,
    /// The port's link; none where the system does not tell.
    link: Option<LinkWatch>,
}

/// A descriptor that is readable while its count is not 0.
pub(super) fn eventfd() -> io::Result<EventFd> {
    Ok(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?)
}

impl Bell for Doorbell {
    fn ring(&self) {
        // Fails only when it has been rung 2^64 times without being heard.
        let _ = self.rung.write(1);
    }
}

impl Doorbell {
    pub(super) fn new(arrivals: Arc<Epoll>, link: Option<LinkWatch>) -> io::Result<Self> {
        Ok(Doorbell { rung: eventfd()?, arrivals, link })
    }

    /// The state of the port's link now, if it can be told.
    pub(super) fn link_state(&self) -> Option<LinkState> {
        let state = self.link.as_ref()?.state();
        state.inspect_err(|error| tracing::warn!(%error, "the state of the port's link could not be asked for")).ok()
    }

    /// Rest as was written down under the lock. Only the background thread does. Whether something has changed at the link.
    pub(super) fn sleep(&self, nap: Nap, now: Instant) -> bool {
        let (watches_sockets, timeout) = match nap {
            Nap::Awake => return false,
            Nap::Watching { until } => (true, until.map(|until| until.saturating_since(now))),
            Nap::Attended => (false, Some(ATTENDED_LOOK)),
        };
        let link = self.link.as_ref().map_or(self.rung.as_fd(), LinkWatch::changes);
        // Without a link to watch, the bell stands in its place: it changes nothing to look at it twice.
        let mut waits = [self.rung.as_fd(), link, self.arrivals.0.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let count = if watches_sockets { 3 } else { 2 };
        match ppoll(&mut waits[..count], timeout.map(TimeSpec::from), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => tracing::error!(%error, "the driver cannot wait"),
        }
        if waits[0].any() == Some(true) {
            // It counts; reading makes it 0 again. Whatever it was rung for is seen in the look that comes now: had this
            // read come after that look, a ring in between would be lost.
            let _ = self.rung.read();
        }
        self.link.is_some() && waits[1].any() == Some(true)
    }
}
