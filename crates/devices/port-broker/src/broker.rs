//! Drives the decisions: accepts connections, opens sockets, hands them over, and waits for processes to end.

use std::collections::HashMap;
use std::io::{self, IoSlice, Read as _};
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use crate::decisions::{Bounds, Decisions, Verdict};
use crate::group::Group;
use crate::letters::{self, REQUEST_BYTES, Refusal};
use crate::user::is_of_same_user;

/// The listener among the events; clients count from 1.
const LISTENER: u64 = 0;
/// When there is no descriptor for another client: those that are there are served meanwhile.
const DESCRIPTORS_PAUSE: Duration = Duration::from_millis(10);
/// Clients that are accepted before others are served.
const ACCEPTED_AT_ONCE: usize = 64;

/// Be the broker, until nobody needs one any more. The listener is non-blocking from then on.
pub fn serve(listener: UnixListener, bounds: Bounds) -> io::Result<()> {
    let mut broker = Broker::new(listener, bounds)?;
    let mut events = [EpollEvent::empty(); 64];
    loop {
        let now = broker.now();
        let due = broker.decisions.due(now);
        due.close.iter().for_each(|address| drop(broker.groups.remove(address)));
        due.disconnect.iter().for_each(|client| drop(broker.clients.remove(client)));
        // Clients that have connected by now are served.
        if due.end && !broker.accept()? {
            return Ok(());
        }
        if broker.accepts_again_at.is_some_and(|at| at <= now) {
            broker.accept()?;
        }
        let count = match broker.epoll.wait(&mut events, broker.timeout()) {
            Err(Errno::EINTR) => 0,
            result => result?,
        };
        for event in &events[..count] {
            match event.data() {
                LISTENER => drop(broker.accept()?),
                client
                    if event
                        .events()
                        .intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLERR) =>
                {
                    broker.leave(client);
                }
                client => broker.hear(client),
            }
        }
    }
}

struct Broker {
    listener: UnixListener,
    epoll: Epoll,
    decisions: Decisions,
    clients: HashMap<u64, UnixStream>,
    groups: HashMap<IpAddr, Group>,
    next_client: u64,
    started: Instant,
    /// There was no descriptor for a client that waits.
    accepts_again_at: Option<Duration>,
}

impl Broker {
    fn new(listener: UnixListener, bounds: Bounds) -> io::Result<Broker> {
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        // Once for each connection, so that one that cannot be accepted does not wake again and again.
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, LISTENER))?;
        Ok(Broker {
            listener,
            epoll,
            decisions: Decisions::new(bounds, Duration::ZERO),
            clients: HashMap::new(),
            groups: HashMap::new(),
            next_client: LISTENER + 1,
            started: Instant::now(),
            accepts_again_at: None,
        })
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn timeout(&self) -> EpollTimeout {
        let deadline = [self.decisions.next_deadline(), self.accepts_again_at].into_iter().flatten().min();
        // Rounded up: a deadline is not waited for in steps of nothing.
        let wait = |deadline: Duration| deadline.saturating_sub(self.now()) + Duration::from_millis(1);
        deadline.map_or(EpollTimeout::NONE, |deadline| {
            EpollTimeout::try_from(wait(deadline)).unwrap_or(EpollTimeout::from(u16::MAX))
        })
    }

    /// Take the clients that wait. Whether there was one.
    fn accept(&mut self) -> io::Result<bool> {
        self.accepts_again_at = None;
        for accepted in 0..ACCEPTED_AT_ONCE {
            match self.listener.accept() {
                Ok((stream, _)) => self.welcome(stream),
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EAGAIN) => return Ok(accepted > 0),
                    // One that has gone again.
                    Some(Errno::ECONNABORTED | Errno::EINTR) => {}
                    Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                        self.accepts_again_at = Some(self.now() + DESCRIPTORS_PAUSE);
                        return Ok(accepted > 0);
                    }
                    _ => return Err(error),
                },
            }
        }
        self.accepts_again_at = Some(self.now());
        Ok(true)
    }

    fn welcome(&mut self, stream: UnixStream) {
        if !is_of_same_user(&stream) || stream.set_nonblocking(true).is_err() {
            return;
        }
        let client = self.next_client;
        self.next_client += 1;
        let interests = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
        if self.epoll.add(&stream, EpollEvent::new(interests, client)).is_err() {
            return;
        }
        self.clients.insert(client, stream);
        if let Some(evicted) = self.decisions.connect(client, self.now()) {
            self.clients.remove(&evicted);
        }
        // Most have asked by now.
        self.hear(client);
    }

    fn leave(&mut self, client: u64) {
        if let Some((address, part)) = self.decisions.leave(client, self.now())
            && let Some(group) = self.groups.get(&address)
            && let Err(error) = group.close_part(part)
        {
            tracing::warn!(%error, part, "a part that nobody has receives packets");
        }
        self.clients.remove(&client);
    }

    /// Read a client's request, and answer it.
    fn hear(&mut self, client: u64) {
        let Some(stream) = self.clients.get_mut(&client) else { return };
        let mut letter = [0; REQUEST_BYTES + 1];
        let result = match stream.read(&mut letter) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return,
            Err(_) | Ok(0) => return self.leave(client),
            // A letter is sent in one piece, and arrives so.
            Ok(bytes) => letters::requested(&letter[..bytes]).ok_or(Refusal::Malformed),
        };
        let granted = result.and_then(|address| Ok((address, self.grant(client, address)?)));
        if self.answer(client, granted).is_err() || granted.is_err() {
            self.leave(client);
        }
    }

    fn grant(&mut self, client: u64, address: IpAddr) -> Result<u8, Refusal> {
        let mut verdict = self.decisions.request(client, address);
        if verdict == Verdict::Open {
            self.groups.insert(address, Group::open(address)?);
            self.decisions.add_address(address, self.now());
            verdict = self.decisions.request(client, address);
        }
        let part = match verdict {
            Verdict::Granted(part) => part,
            Verdict::Refused(refusal) => return Err(refusal),
            Verdict::Open => return Err(Refusal::Malformed),
        };
        let group = self.groups.get(&address).ok_or(Refusal::Malformed)?;
        group
            .open_part(part)
            .map_err(|error| Refusal::System(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)))?;
        Ok(part)
    }

    /// Tell a client what it gets. It never waits: one that does not read its answer is one that has gone.
    fn answer(&self, client: u64, granted: Result<(IpAddr, u8), Refusal>) -> Result<(), Errno> {
        let stream = self.clients.get(&client).ok_or(Errno::ENOTCONN)?;
        let send = |letter: &[u8], control: &[ControlMessage<'_>]| {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(letter)], control, flags, None).map(drop)
        };
        let sent = match granted {
            Err(refusal) => send(&letters::answer(Err(refusal)), &[]),
            Ok((address, part)) => {
                let group = self.groups.get(&address).ok_or(Errno::ENOENT)?;
                let sockets: Vec<_> = group.sockets().map(|socket| socket.as_raw_fd()).collect();
                send(&letters::answer(Ok(part)), &[ControlMessage::ScmRights(&sockets)])
            }
        };
        if let Err(errno) = sent {
            // Too many descriptors in flight (ETOOMANYREFS), for one.
            let _ = send(&letters::answer(Err(Refusal::System(errno))), &[]);
            return Err(errno);
        }
        // From now on only its end matters.
        let mut lease = EpollEvent::new(EpollFlags::EPOLLRDHUP, client);
        self.epoll.modify(stream.as_fd(), &mut lease)
    }
}
