//! The thread that drives a connection: what arrives is put into bitmaps, the scheme does what is due, and when nothing
//! happens it sleeps.
//!
//! ```text
//!   Connection::write ─▶ post under the lock, do what is due at once ─▶ ring, if the driver sleeps too long for it
//!   driver:  poll all ─▶ something happened? again ─▶ else ask for events, poll once more, sleep (events, bell, deadline, peer)
//!   Pending::wait ─▶ drives in the driver's place for a moment, then parks and leaves it to the driver
//! ```
//!
//! A thread that waits for a message drives the connection itself for as long as something happens, and for a moment
//! after: that saves waking the driver, and the driver waking it. Meanwhile the driver naps; it looks at the bell, at
//! the peer and at the clock, but at no packets.

use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant as Clock;

use longhaul_reliable::Connection as Reliable;
use longhaul_sdr::Context;
use longhaul_time::{Duration, Instant};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use thiserror::Error;

use crate::panicked::{Panicked, catch};
use crate::waking::Woken;

/// The driver looks again and again for this long after something happened before it sleeps: waking up takes about as
/// long.
const SPIN: Duration = Duration::from_micros(50);
/// A thread that waits drives the connection for this long after something happened; then it parks.
const ATTENDED: Duration = Duration::from_micros(50);
/// The driver leaves the connection alone for this long after such a thread has driven it.
const NAP: Duration = Duration::from_micros(250);
/// Where completions raise no events, it looks this often.
const BLIND_NAP: Duration = Duration::from_micros(100);
/// After the peer has closed, what it sent before may still be on its way; at least, and at most.
const GRACE_MIN: Duration = Duration::from_millis(20);
const GRACE_MAX: Duration = Duration::from_secs(1);
/// When this end closes: the sender of the last message may have to ask whether it is done, after 1, 3 and 7 times its
/// patience.
const LINGER_PATIENCES: u32 = 8;
/// Hosts' timers are not exact, and neither end knows the other's patience.
const LINGER_PATIENCE_MIN: Duration = Duration::from_millis(2);
const LINGER_MAX: Duration = Duration::from_secs(2);

/// What the driver and the program's threads share.
pub(crate) struct Shared {
    pub(crate) context: Context,
    /// Whoever must be woken as soon as `state` is unlocked.
    pub(crate) woken: Arc<Woken>,
    state: Mutex<State>,
    bell: EventFd,
    origin: Clock,
    /// While something is pending, the peer must be heard this often.
    silence_max: Duration,
    /// The peer's device, for errors.
    peer: SocketAddr,
}

/// The state, locked. When it is unlocked, the wakers that were collected meanwhile are called.
pub(crate) struct Locked<'a> {
    // Dropped in this order.
    state: MutexGuard<'a, State>,
    _wakes: WakesOnDrop<'a>,
}

struct WakesOnDrop<'a>(&'a Woken);

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for WakesOnDrop<'_> {
    fn drop(&mut self) {
        self.0.wake_all();
    }
}

pub(crate) struct State {
    /// `None` when it has ended.
    pub(crate) reliable: Option<Reliable>,
    /// Why it has ended.
    pub(crate) end: Option<End>,
    /// Messages of both directions that were posted.
    posted: u64,
    /// A receive was posted: the sender of a message may have to be told again that it is done.
    pub(crate) receives: bool,
    /// This end is to close.
    closing: bool,
    /// When the driver wakes up by itself; `None` while it does not sleep.
    asleep_until: Option<Instant>,
    /// A thread that waits drives it.
    is_attended: bool,
    /// When one did last, and did not leave it to the driver.
    attended: Option<Instant>,
    /// The peer's end of the TCP connection that the handshake was made on: when it goes, the peer has gone.
    lifeline: Option<Arc<TcpStream>>,
}

impl State {
    /// Use the connection. If that panics, the connection has failed, and the driver takes it away.
    fn with<T>(&mut self, work: impl FnOnce(&mut Reliable) -> T) -> Result<T, End> {
        let (Some(reliable), None) = (&mut self.reliable, &self.end) else {
            return Err(self.end.clone().unwrap_or(End::Closed));
        };
        catch(|| work(reliable)).map_err(|panicked| {
            let end = End::from(panicked);
            self.end = Some(end.clone());
            end
        })
    }
}

/// Why a connection has ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// This end has closed it.
    Closed,
    /// The other end has, or its process or host has ended.
    PeerClosed,
    /// It has failed.
    Failed(Arc<dyn std::error::Error + Send + Sync>),
}

impl From<Panicked> for End {
    fn from(panicked: Panicked) -> Self {
        End::Failed(Arc::new(panicked))
    }
}

impl Shared {
    pub(crate) fn new(reliable: Reliable, silence_max: Duration, peer: SocketAddr) -> io::Result<Arc<Self>> {
        let bell = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let context = reliable.queue_pair().context().clone();
        let state = State {
            reliable: Some(reliable),
            end: None,
            posted: 0,
            receives: false,
            closing: false,
            asleep_until: None,
            is_attended: false,
            attended: None,
            lifeline: None,
        };
        let woken = Arc::default();
        let (state, origin) = (Mutex::new(state), Clock::now());
        Ok(Arc::new(Shared { context, woken, state, bell, origin, silence_max, peer }))
    }

    pub(crate) fn state(&self) -> Locked<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { state, _wakes: WakesOnDrop(&self.woken) }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn ring(&self) {
        // It fails only when the bell has been rung 2⁶⁴ times and not been heard.
        let _ = self.bell.write(1);
    }

    /// Use the connection from a thread of the program: `post` a message, and do at once what is due for it.
    pub(crate) fn post<T, E>(
        &self,
        post: impl FnOnce(&mut Reliable, Instant) -> Result<T, E>,
    ) -> Result<Result<T, E>, End> {
        let mut state = self.state();
        // Read under the lock, so that time never goes back for what is below.
        let now = self.now();
        let posted = state.with(|reliable| {
            let posted = post(reliable, now);
            // An error shows again at the driver's next poll, which ends the connection.
            let is_failed = reliable.poll(now).is_err();
            (posted, is_failed, reliable.next_deadline(now))
        });
        state.posted += u64::from(matches!(posted, Ok((Ok(_), ..))));
        let is_too_late = state.asleep_until.is_some_and(|until| match &posted {
            Ok((_, is_failed, next)) => *is_failed || next.is_some_and(|next| next < until),
            Err(_) => true,
        });
        if is_too_late {
            state.asleep_until = None;
        }
        drop(state);
        if is_too_late {
            self.ring();
        }
        posted.map(|(posted, ..)| posted)
    }

    /// Drive it from a thread that waits, until `is_done` or nothing has happened for a while.
    pub(crate) fn attend(&self, mut is_done: impl FnMut() -> bool) {
        // One at a time: two would only wait for each other's lock.
        if std::mem::replace(&mut self.state().is_attended, true) {
            return;
        }
        let (mut active, mut seen) = (self.now(), None);
        let is_left_to_driver = loop {
            if is_done() {
                break false;
            }
            // An error shows again when the driver looks.
            let Ok(look) = self.poll() else { break true };
            let progress = (look.progress, look.over_count);
            if look.arrived > 0 || seen.replace(progress) != Some(progress) {
                active = look.now;
            } else if look.now.saturating_since(active) >= ATTENDED {
                break true;
            }
            self.state().attended = Some(look.now);
        };
        let mut state = self.state();
        state.is_attended = false;
        if is_left_to_driver {
            state.attended = None;
            drop(state);
            self.ring();
        }
    }

    /// When this goes, the peer has gone.
    pub(crate) fn set_lifeline(&self, stream: Arc<TcpStream>) {
        self.state().lifeline = Some(stream);
        self.ring();
    }

    /// Have the driver end the connection, when the peer has heard what it must.
    pub(crate) fn close(&self) {
        self.state().closing = true;
        self.ring();
    }

    fn poll(&self) -> Result<Look, End> {
        let failed = |error: Arc<dyn std::error::Error + Send + Sync>| End::Failed(error);
        let mut arrived = 0;
        loop {
            let count = self.context.poll().map_err(|error| failed(Arc::new(error)))?;
            arrived += count;
            if count == 0 {
                break;
            }
        }
        let mut state = self.state();
        let now = self.now();
        let (closing, receives, attended, posted) = (state.closing, state.receives, state.attended, state.posted);
        state.with(|reliable| {
            reliable.poll(now).map_err(|error| failed(error))?;
            let queue_pair = reliable.queue_pair();
            let (sent, _, control) = queue_pair.counters();
            Ok(Look {
                now,
                arrived,
                deadline: reliable.next_deadline(now),
                over_count: reliable.over_count(),
                has_pending: reliable.over_count() < posted,
                progress: (sent.writes, control.received),
                patience: queue_pair.round_trip_time().patience(queue_pair.attributes().round_trip_guess),
                closing,
                receives,
                attended,
            })
        })?
    }

    /// Have everything raise an event.
    fn arm(&self) -> Result<(), End> {
        let failed = |error: longhaul_verbs::PollError| End::Failed(Arc::new(error));
        self.context.request_notification().map_err(failed)?;
        let state = self.state();
        let Some(reliable) = &state.reliable else { return Err(End::Closed) };
        reliable.queue_pair().request_notification().map_err(failed)
    }
}

/// How the driver rests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// Until something arrives.
    Sleep,
    /// A thread that waits sees to what arrives.
    Nap,
}

/// What the driver saw.
struct Look {
    now: Instant,
    arrived: usize,
    deadline: Option<Instant>,
    over_count: u64,
    /// Messages have been posted that have not ended.
    has_pending: bool,
    /// Writes that were sent, and control messages that were received.
    progress: (u64, u64),
    patience: Duration,
    closing: bool,
    receives: bool,
    attended: Option<Instant>,
}

/// A peer that is asked is given this many times the patience for an answer, and no less than `SILENCE_MIN`, before it
/// is taken for gone.
const SILENCE_PATIENCES: u32 = 8;
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// Drives a connection until it ends. Whatever happens, nobody waits for it afterwards.
pub(crate) fn drive(shared: &Shared) {
    let end = catch(|| {
        let mut driver = Driver::new(shared);
        driver.run()
    });
    let end = end.unwrap_or_else(End::from);
    let (reliable, lifeline) = {
        let mut state = shared.state();
        // A panic on another thread is the reason, if there was one.
        state.end.get_or_insert(end);
        state.asleep_until = None;
        (state.reliable.take(), state.lifeline.take())
    };
    // Messages that are open fail now. A scheme that has panicked may do so again.
    let _ = catch(|| drop(reliable));
    drop(lifeline);
    shared.woken.wake_all();
}

struct Driver<'a> {
    shared: &'a Shared,
    lifeline: Option<Arc<TcpStream>>,
    /// When something happened last.
    active: Instant,
    seen: (u64, u64, u64),
    /// When a message was over last.
    over: Option<Instant>,
    /// Since when the peer is gone.
    peer_gone: Option<Instant>,
    /// When something came from the peer's device last.
    heard: Instant,
    /// Since when something is pending.
    pending: Option<Instant>,
    /// The peer was asked for a sign of life.
    has_asked: bool,
}

/// The peer's device has not been heard for too long while something was pending.
#[derive(Clone, Debug, Error)]
#[error(
    "nothing from {peer} has arrived over UDP for {silence:?}, although the TCP connection to it lives; has the path failed, or does a \
     firewall drop UDP port {}?", peer.port()
)]
struct Silent {
    peer: SocketAddr,
    silence: Duration,
}

impl<'a> Driver<'a> {
    fn new(shared: &'a Shared) -> Self {
        Driver {
            shared,
            lifeline: None,
            active: Instant::ZERO,
            seen: (0, 0, 0),
            over: None,
            peer_gone: None,
            heard: Instant::ZERO,
            pending: None,
            has_asked: false,
        }
    }

    fn run(&mut self) -> End {
        loop {
            match self.step() {
                Ok(()) => {}
                Err(end) => return end,
            }
        }
    }

    fn step(&mut self) -> Result<(), End> {
        let look = self.shared.poll()?;
        let happened = self.note(&look);
        let until = Instant::earlier_of(self.end_of(&look)?, self.listen(&look)?);
        if let Some(nap) = look.attended.map(|attended| attended + NAP).filter(|nap| *nap > look.now) {
            let until = Instant::earlier_of(Instant::earlier_of(until, look.deadline), Some(nap));
            return self.sleep(until, look.now, Rest::Nap);
        }
        if happened || look.now.saturating_since(self.active) < SPIN {
            std::thread::yield_now();
            return Ok(());
        }
        self.shared.arm()?;
        let look = self.shared.poll()?;
        if self.note(&look) {
            return Ok(());
        }
        let until = Instant::earlier_of(until, look.deadline);
        self.sleep(until, look.now, Rest::Sleep)
    }

    /// Whether something has happened.
    fn note(&mut self, look: &Look) -> bool {
        let (sent, received) = look.progress;
        let seen = (sent, received, look.over_count);
        let happened = look.arrived > 0 || seen != self.seen;
        if look.arrived > 0 || received != self.seen.1 {
            (self.heard, self.has_asked) = (look.now, false);
        }
        if look.over_count != self.seen.2 {
            self.over = Some(look.now);
        }
        self.seen = seen;
        if happened {
            self.active = look.now;
        }
        happened
    }

    /// When the connection ends by itself, as far as it is known; an error when it has.
    fn end_of(&mut self, look: &Look) -> Result<Option<Instant>, End> {
        let mut until = None;
        if let Some(gone) = self.peer_gone {
            let grace = (look.patience * 2).clamp(GRACE_MIN, GRACE_MAX);
            // Nobody is left to be told anything.
            if look.closing || gone + grace <= look.now {
                return Err(if look.closing { End::Closed } else { End::PeerClosed });
            }
            until = Some(gone + grace);
        }
        if look.closing {
            let linger = ((look.patience * 5 / 4).max(LINGER_PATIENCE_MIN) * LINGER_PATIENCES).min(LINGER_MAX);
            match self.over.filter(|_| look.receives).map(|over| over + linger) {
                Some(end) if end > look.now => until = Instant::earlier_of(until, Some(end)),
                _ => return Err(End::Closed),
            }
        }
        Ok(until)
    }

    /// Whether the peer's device is still heard, while something is pending. TCP does not show that: it may pass where
    /// UDP is dropped. Returns when to look again.
    fn listen(&mut self, look: &Look) -> Result<Option<Instant>, End> {
        if !look.has_pending || self.peer_gone.is_some() {
            self.pending = None;
            return Ok(None);
        }
        let silence_max = self.shared.silence_max.max(look.patience * SILENCE_PATIENCES).max(SILENCE_MIN);
        let since = self.heard.max(*self.pending.get_or_insert(look.now));
        let (ask_at, end_at) = (since + silence_max / 4, since + silence_max);
        if end_at <= look.now {
            let silent = Silent { peer: self.shared.peer, silence: look.now.saturating_since(since) };
            return Err(End::Failed(Arc::new(silent)));
        }
        if ask_at <= look.now && !std::mem::replace(&mut self.has_asked, true) {
            self.shared.state().with(|reliable| reliable.queue_pair().ask_peer())?;
            return Ok(Some(look.now));
        }
        Ok(Some(if self.has_asked { end_at } else { ask_at }))
    }

    fn sleep(&mut self, until: Option<Instant>, now: Instant, rest: Rest) -> Result<(), End> {
        let shared = self.shared;
        let events = shared.context.events().and_then(|events| events.descriptor());
        let blind = (events.is_none() && rest == Rest::Sleep).then(|| now + BLIND_NAP);
        let events = events.filter(|_| rest == Rest::Sleep);
        let until = Instant::earlier_of(until, blind);
        {
            let mut state = shared.state();
            if let Some(stream) = state.lifeline.take() {
                self.lifeline = Some(stream);
            }
            // From here on whoever posts rings if it is needed; what was posted since the last look is seen here.
            state.asleep_until = Some(until.unwrap_or(Instant::FAR_FUTURE));
            let next = state.reliable.as_ref().and_then(|reliable| reliable.next_deadline(now));
            if next.is_some_and(|next| until.is_none_or(|until| next < until)) {
                state.asleep_until = None;
                return Ok(());
            }
        }
        let readable = PollFlags::POLLIN;
        let mut watched = vec![PollFd::new(shared.bell.as_fd(), readable)];
        watched.extend(events.map(|events| PollFd::new(events, readable)));
        if self.peer_gone.is_none() {
            watched.extend(self.lifeline.as_ref().map(|stream| PollFd::new(stream.as_fd(), readable)));
        }
        let timeout = until.map(|until| TimeSpec::from_duration(until.saturating_since(now)));
        match ppoll(&mut watched, timeout, None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(End::Failed(Arc::new(io::Error::from(error)))),
        }
        shared.state().asleep_until = None;
        let _ = shared.bell.read();
        if let Some(events) = shared.context.events().filter(|_| rest == Rest::Sleep) {
            while let Ok(Some(_)) = events.next_event() {}
        }
        self.look_at_peer();
        self.active = shared.now();
        Ok(())
    }

    /// The TCP connection carries nothing any more, but its end.
    fn look_at_peer(&mut self) {
        let Some(stream) = self.lifeline.as_ref().filter(|_| self.peer_gone.is_none()) else { return };
        match (&**stream).read(&mut [0; 64]) {
            Ok(1..) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Ok(0) | Err(_) => self.peer_gone = Some(self.shared.now()),
        }
    }
}
