//! How the driver is reached: letters of the program's threads, events of completion queues, and what peers say over
//! TCP.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant as Clock;

use longhaul_runtime::{End, Letter, Letterbox};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::CompletionChannel;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

/// Tokens of what is watched in addition to the peers, whose tokens are connections.
const BELL: u64 = u64::MAX;
const EVENTS: u64 = u64::MAX - 1;
/// Descriptors that are looked at in one go. The rest shows the next time.
const WATCHED_MAX: usize = 64;

pub(crate) struct Mailbox {
    letters: Mutex<Letters>,
    /// The driver sleeps, or is about to: the bell must be rung.
    is_asleep: AtomicBool,
    bell: EventFd,
    watched: Epoll,
    /// Where completion queues raise events, on devices that can.
    events: Option<CompletionChannel>,
    origin: Clock,
}

#[derive(Default)]
struct Letters {
    waiting: Vec<Letter>,
    /// Why nobody reads them any more.
    end: Option<End>,
}

impl Mailbox {
    /// Time begins at `origin`. All drivers of an endpoint have the same: what they share, such as who grants credit,
    /// compares their times.
    pub(crate) fn new(events: Option<CompletionChannel>, origin: Clock) -> io::Result<Arc<Self>> {
        let bell = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let watched = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        watched.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        if let Some(descriptor) = events.as_ref().and_then(CompletionChannel::descriptor) {
            watched.add(descriptor, EpollEvent::new(EpollFlags::EPOLLIN, EVENTS))?;
        }
        Ok(Arc::new(Mailbox {
            letters: Mutex::default(),
            is_asleep: AtomicBool::new(false),
            bell,
            watched,
            events,
            origin,
        }))
    }

    pub(crate) fn events(&self) -> Option<&CompletionChannel> {
        self.events.as_ref()
    }

    fn letters(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody reads letters any more.
    pub(crate) fn shut(&self, end: &End) {
        let waiting = {
            let mut letters = self.letters();
            letters.end = Some(end.clone());
            std::mem::take(&mut letters.waiting)
        };
        waiting.into_iter().for_each(|letter| letter.return_to_sender(end));
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.letters().end.is_some()
    }

    /// Wake the driver when this peer sends something.
    pub(crate) fn watch(&self, peer: BorrowedFd<'_>, id: u64) -> io::Result<()> {
        Ok(self.watched.add(peer, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP, id))?)
    }

    /// What it says is of no interest any more.
    pub(crate) fn watch_no_longer(&self, peer: BorrowedFd<'_>) {
        let _ = self.watched.delete(peer);
    }

    /// All that has come, without waiting for more.
    pub(crate) fn take(&self, taken: &mut Vec<Letter>) -> io::Result<()> {
        let mut seen = [EpollEvent::empty(); WATCHED_MAX];
        let count = match self.watched.wait(&mut seen, EpollTimeout::ZERO) {
            Err(Errno::EINTR) => 0,
            count => count?,
        };
        for token in seen[..count].iter().map(EpollEvent::data) {
            match token {
                BELL => drop(self.bell.read()),
                EVENTS => {
                    let Some(events) = &self.events else { continue };
                    // An error stays readable: a driver that ignored it would never sleep again.
                    while let Some(id) = events.next_event().map_err(io::Error::other)? {
                        taken.push(Letter::Look(id));
                    }
                }
                id => taken.push(Letter::PeerSaid(id)),
            }
        }
        taken.append(&mut self.letters().waiting);
        Ok(())
    }

    /// Wait until something comes, or for so long.
    pub(crate) fn wait(&self, patience: Option<Duration>, taken: &mut Vec<Letter>) -> io::Result<()> {
        self.is_asleep.store(true, Ordering::SeqCst);
        // What was put before rang no bell.
        let is_time_over = self.letters().waiting.is_empty() && {
            // Epoll's own timeouts are milliseconds, and the next deadline may be microseconds away.
            let timeout = patience.map(TimeSpec::from_duration);
            match ppoll(&mut [PollFd::new(self.watched.0.as_fd(), PollFlags::POLLIN)], timeout, None) {
                Ok(0) => true,
                Ok(_) | Err(Errno::EINTR) => false,
                Err(error) => return Err(error.into()),
            }
        };
        self.is_asleep.store(false, Ordering::SeqCst);
        if is_time_over {
            taken.append(&mut self.letters().waiting);
            return Ok(());
        }
        self.take(taken)
    }
}

impl Letterbox for Mailbox {
    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn put(&self, letter: Letter) {
        let mut letters = self.letters();
        if let Some(end) = letters.end.clone() {
            drop(letters);
            letter.return_to_sender(&end);
            return;
        }
        letters.waiting.push(letter);
        drop(letters);
        if self.is_asleep.load(Ordering::SeqCst) {
            // It fails only when the bell has been rung 2⁶⁴ times and not been heard.
            let _ = self.bell.write(1);
        }
    }
}
