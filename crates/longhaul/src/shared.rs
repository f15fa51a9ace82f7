//! One connection, as the program's threads and the driver share it.
//!
//! ```text
//!   Connection::write ─▶ post under the lock, do what is due at once ─▶ wake the driver, if it would look too late
//!   driver:  poll ─▶ something happened? again ─▶ else ask for events, poll once more, leave it alone until one comes, or the deadline
//!   Pending::wait ─▶ drives in the driver's place for a moment, then parks and leaves it to the driver
//! ```
//!
//! A thread that waits for a message drives the connection itself for as long as something happens, and for a moment
//! after: that saves waking the driver, and the driver waking it. Meanwhile the driver looks at the peer and at the
//! clock, but at no packets.

use std::net::{SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longhaul_reliable::{Connection as Reliable, Workers};
use longhaul_sdr::Context;
use longhaul_time::{Duration, Instant};

use crate::endpoint::with_sources;
use crate::mailbox::{Letter, Mailbox};
use crate::panicked::{Panicked, catch};
use crate::pending::Promised;
use crate::runtime::Runtime;
use crate::statistics::Statistics;
use crate::waking::Woken;

/// A thread that waits drives the connection for this long after something happened; then it parks.
const ATTENDED: Duration = Duration::from_micros(50);
/// Batches of packets that are put into bitmaps in one turn. The driver has other connections, too.
const BATCHES_A_TURN: usize = 16;

/// What the driver and the program's threads share.
pub(crate) struct Shared {
    pub(crate) context: Context,
    /// Whoever must be woken as soon as `state` is unlocked.
    pub(crate) woken: Arc<Woken>,
    state: Mutex<State>,
    /// Of the driver.
    mailbox: Arc<Mailbox>,
    /// A thread that waits drives it.
    is_attended: Arc<AtomicBool>,
    /// While something is pending, the peer must be heard this often.
    pub(crate) silence_max: Duration,
    /// The peer's device, for errors.
    pub(crate) peer: SocketAddr,
}

/// What a thread that drives a connection while it waits is up to.
pub(crate) enum Attending {
    /// It still waits.
    Waits,
    /// What it waited for is there; the next thing that it waits for may come soon.
    Done,
    /// It waits no longer, and what it waited for is not there.
    TooLate,
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
    /// What had been counted by then.
    last_statistics: Statistics,
    /// Messages of both directions that were posted.
    posted: u64,
    /// A receive was posted: the sender of a message may have to be told again that it is done.
    pub(crate) receives: bool,
    /// This end is to close.
    closing: Option<Closing>,
    /// The driver has let go of it.
    is_let_go: bool,
    /// When the driver looks again by itself; `None` while it looks all the time.
    resting_until: Option<Instant>,
    /// When one did last, and did not leave it to the driver.
    attended: Option<Instant>,
    /// The peer's end of the TCP connection that the handshake was made on: when it goes, the peer has gone.
    lifeline: Option<Arc<TcpStream>>,
}

/// Somebody wants it closed.
pub(crate) struct Closing {
    /// Who hears when it is.
    closed: Arc<Promised<()>>,
    /// Until then there must be somebody to do it.
    runtime: Arc<Runtime>,
}

impl State {
    /// What was counted so far, or until it ended.
    pub(crate) fn statistics(&self) -> Statistics {
        let Some(reliable) = &self.reliable else { return self.last_statistics.clone() };
        let mut statistics = Statistics::default();
        // A scheme that has panicked may do so again.
        let _ = catch(|| reliable.visit_counters(&mut |name, value| statistics.add(name, value)));
        statistics
    }

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

/// What whoever drives it saw.
pub(crate) struct Look {
    pub(crate) now: Instant,
    pub(crate) arrived: usize,
    pub(crate) deadline: Option<Instant>,
    pub(crate) over_count: u64,
    /// Messages have been posted that have not ended.
    pub(crate) has_pending: bool,
    /// Writes that were sent, and control messages that were received.
    pub(crate) progress: (u64, u64),
    pub(crate) patience: Duration,
    pub(crate) closing: bool,
    pub(crate) receives: bool,
    pub(crate) attended: Option<Instant>,
}

impl Shared {
    pub(crate) fn new(reliable: Reliable, mailbox: Arc<Mailbox>, silence_max: Duration, peer: SocketAddr) -> Arc<Self> {
        let context = reliable.queue_pair().context().clone();
        let state = State {
            reliable: Some(reliable),
            end: None,
            last_statistics: Statistics::default(),
            posted: 0,
            receives: false,
            closing: None,
            is_let_go: false,
            resting_until: None,
            attended: None,
            lifeline: None,
        };
        let (woken, is_attended) = (Arc::default(), Arc::default());
        Arc::new(Shared { context, woken, state: Mutex::new(state), mailbox, is_attended, silence_max, peer })
    }

    /// Have these encode and decode.
    pub(crate) fn set_workers(&self, workers: Arc<dyn Workers>) {
        let (id, mailbox, is_attended) = (self.id(), self.mailbox.clone(), self.is_attended.clone());
        let wake = move || {
            // A thread that drives it while it waits looks all the time, and the driver soon after that.
            if !is_attended.load(Ordering::SeqCst) {
                mailbox.put(Letter::Look(id));
            }
        };
        if let Some(reliable) = &mut self.state().reliable {
            reliable.set_workers(workers, wake);
        }
    }

    /// Names it to the driver, and in the events of its completion queues.
    pub(crate) fn id(&self) -> u64 {
        self.context.token()
    }

    pub(crate) fn state(&self) -> Locked<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { state, _wakes: WakesOnDrop(&self.woken) }
    }

    pub(crate) fn now(&self) -> Instant {
        self.mailbox.now()
    }

    fn wake_driver(&self) {
        self.mailbox.put(Letter::Look(self.id()));
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
        let is_too_late = state.resting_until.is_some_and(|until| match &posted {
            Ok((_, is_failed, next)) => *is_failed || next.is_some_and(|next| next < until),
            Err(_) => true,
        });
        if is_too_late {
            state.resting_until = None;
        }
        drop(state);
        if is_too_late {
            self.wake_driver();
        }
        posted.map(|(posted, ..)| posted)
    }

    /// Drive it from a thread that waits, until that is done or too late, or nothing has happened for a while.
    pub(crate) fn attend(&self, mut ask: impl FnMut() -> Attending) {
        // One at a time: two would only wait for each other's lock.
        if self.is_attended.swap(true, Ordering::SeqCst) {
            return;
        }
        let (mut active, mut seen) = (self.now(), None);
        let is_left_to_driver = loop {
            match ask() {
                Attending::Done => break false,
                // If it was too late at once, nothing has been done that the driver should know of.
                Attending::TooLate => break seen.is_some(),
                Attending::Waits => {}
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
        self.is_attended.store(false, Ordering::SeqCst);
        let mut state = self.state();
        // What a worker has ended in the last moment, it has told nobody.
        let has_ended_work = state.reliable.as_ref().is_some_and(Reliable::has_ended_work);
        if is_left_to_driver || has_ended_work {
            state.attended = None;
            drop(state);
            self.wake_driver();
        }
    }

    /// When this goes, the peer has gone.
    pub(crate) fn set_lifeline(&self, stream: Arc<TcpStream>) -> std::io::Result<()> {
        let mut state = self.state();
        // Of a connection that has ended nobody wants to know, and dropping the stream tells the peer.
        if state.is_let_go {
            return Ok(());
        }
        self.mailbox.watch(&stream, self.id())?;
        state.lifeline = Some(stream);
        drop(state);
        // It may have gone in between.
        self.mailbox.put(Letter::PeerSaid(self.id()));
        Ok(())
    }

    pub(crate) fn lifeline(&self) -> Option<Arc<TcpStream>> {
        self.state().lifeline.clone()
    }

    /// The peer has gone: there is nothing more to hear from it.
    pub(crate) fn drop_lifeline(&self) {
        let lifeline = self.state().lifeline.take();
        lifeline.into_iter().for_each(|stream| self.mailbox.watch_no_longer(&stream));
    }

    /// Have the driver end the connection, when the peer has heard what it must.
    pub(crate) fn close(&self, runtime: Arc<Runtime>) -> Arc<Promised<()>> {
        let closed = Promised::new();
        let mut state = self.state();
        if state.is_let_go {
            drop(state);
            closed.give(());
            return closed;
        }
        state.closing = Some(Closing { closed: closed.clone(), runtime });
        drop(state);
        self.wake_driver();
        closed
    }

    /// Put what has arrived into bitmaps, and do what is due.
    pub(crate) fn poll(&self) -> Result<Look, End> {
        let failed = |error: Arc<dyn std::error::Error + Send + Sync>| End::Failed(error);
        let mut arrived = 0;
        for _ in 0..BATCHES_A_TURN {
            let count = self.context.poll().map_err(|error| failed(Arc::new(error)))?;
            arrived += count;
            if count == 0 {
                break;
            }
        }
        let mut state = self.state();
        let now = self.now();
        let (closing, receives) = (state.closing.is_some(), state.receives);
        let (attended, posted) = (state.attended, state.posted);
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

    /// Ask the peer for a sign of life.
    pub(crate) fn ask_peer(&self) -> Result<(), End> {
        self.state().with(|reliable| reliable.queue_pair().ask_peer())
    }

    /// Have everything raise an event.
    pub(crate) fn arm(&self) -> Result<(), End> {
        let failed = |error: longhaul_verbs::PollError| End::Failed(Arc::new(error));
        self.context.request_notification().map_err(failed)?;
        let state = self.state();
        let Some(reliable) = &state.reliable else { return Err(End::Closed) };
        reliable.queue_pair().request_notification().map_err(failed)
    }

    /// From here on whoever posts wakes the driver if it is needed. Returns `false` if that came too late: something that
    /// was posted since the last look is due before.
    pub(crate) fn rest(&self, until: Option<Instant>, now: Instant) -> bool {
        let mut state = self.state();
        let next = state.reliable.as_ref().and_then(|reliable| reliable.next_deadline(now));
        let may_rest = state.end.is_none() && next.is_none_or(|next| until.is_some_and(|until| until <= next));
        state.resting_until = may_rest.then_some(until.unwrap_or(Instant::FAR_FUTURE));
        may_rest
    }

    /// The driver looks again.
    pub(crate) fn rest_no_longer(&self) {
        self.state().resting_until = None;
    }

    /// End it from a thread of the program: when this returns, it uses no memory any more.
    pub(crate) fn end(&self, end: End) {
        self.let_go(end);
        self.wake_driver();
    }

    /// It has ended, and nobody drives it any more. Whatever happened, nobody waits for it afterwards.
    pub(crate) fn let_go(&self, end: End) {
        self.drop_lifeline();
        let (reliable, closing, ended) = {
            let mut state = self.state();
            let is_let_go = state.is_let_go;
            // A panic on another thread is the reason, if there was one.
            let ended = state.end.get_or_insert(end).clone();
            state.resting_until = None;
            state.is_let_go = true;
            state.last_statistics = state.statistics();
            (state.reliable.take(), state.closing.take(), (!is_let_go).then_some(ended))
        };
        // Without the lock: whoever subscribes to events may use the connection.
        ended.into_iter().for_each(|end| log_end(self.peer, &end));
        // Messages that are open fail now. A scheme that has panicked may do so again.
        let _ = catch(|| drop(reliable));
        self.woken.wake_all();
        if let Some(Closing { closed, runtime }) = closing {
            // Whoever waits has it, too, and can wait for its threads, which this one cannot.
            drop(runtime);
            closed.give(());
        }
    }
}

fn log_end(peer: SocketAddr, end: &End) {
    match end {
        End::Closed => tracing::info!(%peer, "connection closed"),
        End::PeerClosed => tracing::info!(%peer, "connection closed by the peer"),
        End::Failed(error) => tracing::info!(%peer, "connection failed: {}", with_sources(&**error)),
    }
}
