//! One connection, as the program's threads and the driver share it.
//!
//! ```text
//!   send, post_receive ─▶ post under the lock, do what is due at once ─▶ wake the driver, if it would look too late
//!   driver:  poll ─▶ something happened? again ─▶ else ask for events, poll once more, leave it alone until one comes, or the deadline
//!   attend ─▶ drives in the driver's place for a moment, then parks and leaves it to the driver
//! ```
//!
//! A thread that waits for a message drives the connection itself for as long as something happens, and for a moment
//! after: that saves waking the driver, and the driver waking it. Meanwhile the driver looks at the peer and at the
//! clock, but at no packets.

mod attends;
mod credit;

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use longhaul_reliable::{
    Bound, BoundedSendTicket, Choice, Connection as Reliable, ConnectionError, Deadline, ReceiveTicket, SendTicket,
    Workers,
};
use longhaul_sdr::{Context, Memory, Saying};
use longhaul_time::{Duration, Instant};

use crate::end::{End, log_end};
use crate::granter::Granter;
use crate::letter::{Letter, Letterbox, Lifeline};
use crate::panicked::catch;
use crate::waking::Woken;

/// The driver leaves a connection alone for this long after a thread that waits has driven it.
const LEFT_ALONE: Duration = Duration::from_micros(250);
/// Batches of packets that are put into bitmaps in one turn. The driver has other connections, too.
const BATCHES_A_TURN: usize = 16;

/// A connection: what the driver and the program's threads share of it.
pub struct Shared {
    pub(crate) context: Context,
    /// The wakers to call as soon as `state` is unlocked.
    pub(crate) woken: Arc<Woken>,
    state: Mutex<State>,
    /// Of the driver.
    letterbox: Arc<dyn Letterbox>,
    /// A thread that waits drives it.
    is_attended: Arc<AtomicBool>,
    /// While something is pending, the peer must be heard this often.
    pub(crate) silence_max: Duration,
    /// The peer's device, for errors.
    pub(crate) peer: SocketAddr,
    /// Who grants its peer credit: its driver says so.
    granter: OnceLock<Arc<Granter>>,
    #[cfg(feature = "mutations")]
    mutation: Option<Mutation>,
}

/// A deliberate mistake, so that tests can show that checkers find it.
#[cfg(feature = "mutations")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Completions are not asked to raise events.
    EventsUnasked,
    /// The driver rests until something happens, whatever the deadline.
    DeadlinesForgotten,
}

/// What a thread that drives a connection while it waits is up to.
pub enum Attending {
    /// It still waits.
    Waits,
    /// What it waited for is there; the next thing that it waits for may come soon.
    Done,
    /// It waits no longer, and what it waited for is not there.
    TooLate,
}

/// What a thread of the program posts.
#[derive(Clone, Copy)]
enum Posting {
    /// With what the peer must be told at once while the connection is left to a thread.
    Send(Saying),
    Receive,
}

/// The state, locked. When it is unlocked, the wakers that were collected meanwhile are called.
struct Locked<'a> {
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

struct State {
    /// `None` when it has ended.
    reliable: Option<Reliable>,
    /// Why it has ended.
    end: Option<End>,
    /// What had been counted by then.
    last_counters: Vec<(&'static str, u64)>,
    /// Messages of both directions that were posted.
    posted: u64,
    /// One was sent since the last look.
    has_sent: bool,
    /// A receive was posted: the sender of a message may have to be told again that it is done.
    receives: bool,
    /// This end is to close; holds what to call when it has.
    closing: Option<WhenClosed>,
    /// The driver has let go of it.
    is_let_go: bool,
    /// When the driver looks again by itself; `None` while it looks all the time.
    resting_until: Option<Instant>,
    /// When one did last, and did not leave it to the driver.
    attended: Option<Instant>,
    /// When this ends, the peer has gone.
    lifeline: Option<Arc<dyn Lifeline>>,
}

/// Called when a connection is closed.
pub type WhenClosed = Box<dyn FnOnce() + Send>;

impl State {
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let Some(reliable) = &self.reliable else { return self.last_counters.clone() };
        let mut counters = Vec::new();
        // A scheme that has panicked may do so again.
        let _ = catch(|| reliable.visit_counters(&mut |name, value| counters.push((name, value))));
        counters
    }

    fn left_alone_until(&self, now: Instant) -> Option<Instant> {
        self.attended.map(|attended| attended + LEFT_ALONE).filter(|until| *until > now)
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

/// What its driver saw.
pub(crate) struct Look {
    pub(crate) now: Instant,
    pub(crate) arrived: usize,
    pub(crate) over_count: u64,
    /// Messages have been posted that have not ended.
    pub(crate) has_pending: bool,
    /// Writes that were sent, and control messages that were received.
    pub(crate) progress: (u64, u64),
    pub(crate) patience: Duration,
    pub(crate) round_trip_least: Option<Duration>,
    pub(crate) closing: bool,
    pub(crate) receives: bool,
}

impl Shared {
    /// Have a connection driven by the reader of these letters; its context must be of the same driver. While something
    /// is pending, the peer must be heard within `silence_max`; `peer` is its device, for errors.
    pub fn start(
        reliable: Reliable,
        letterbox: Arc<dyn Letterbox>,
        silence_max: Duration,
        peer: SocketAddr,
    ) -> Arc<Self> {
        Self::add(Self::new(reliable, letterbox, silence_max, peer))
    }

    /// The same with a deliberate mistake.
    #[cfg(feature = "mutations")]
    pub fn start_mutated(
        reliable: Reliable,
        letterbox: Arc<dyn Letterbox>,
        silence_max: Duration,
        peer: SocketAddr,
        mutation: Mutation,
    ) -> Arc<Self> {
        let mut shared = Self::new(reliable, letterbox, silence_max, peer);
        shared.mutation = Some(mutation);
        Self::add(shared)
    }

    fn add(shared: Self) -> Arc<Self> {
        let shared = Arc::new(shared);
        shared.letterbox.put(Letter::Add(shared.clone()));
        shared
    }

    #[cfg(feature = "mutations")]
    fn is_mutated(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn new(reliable: Reliable, letterbox: Arc<dyn Letterbox>, silence_max: Duration, peer: SocketAddr) -> Self {
        let context = reliable.queue_pair().context().clone();
        let state = State {
            reliable: Some(reliable),
            end: None,
            last_counters: Vec::new(),
            posted: 0,
            has_sent: false,
            receives: false,
            closing: None,
            is_let_go: false,
            resting_until: None,
            attended: None,
            lifeline: None,
        };
        Shared {
            context,
            woken: Arc::default(),
            state: Mutex::new(state),
            letterbox,
            is_attended: Arc::default(),
            silence_max,
            peer,
            granter: OnceLock::new(),
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }

    /// The peer's device, for errors.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Have these encode and decode.
    pub fn set_workers(&self, workers: Arc<dyn Workers>) {
        let (id, letterbox, is_attended) = (self.id(), self.letterbox.clone(), self.is_attended.clone());
        let wake = move || {
            // A thread that drives it while it waits looks all the time, and the driver soon after that.
            if !is_attended.load(Ordering::SeqCst) {
                letterbox.put(Letter::Look(id));
            }
        };
        if let Some(reliable) = &mut self.state().reliable {
            reliable.set_workers(workers, wake);
        }
    }

    /// Names it to the driver, and in the events of its completion queues.
    pub fn id(&self) -> u64 {
        self.context.token()
    }

    /// What messages are made in, and memory is registered with.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Look at the connection below; `None` when it has ended.
    pub fn look_at<T>(&self, look: impl FnOnce(&Reliable) -> T) -> Option<T> {
        self.state().reliable.as_ref().map(look)
    }

    /// The longest message that can be bounded; `None` when it has ended.
    pub fn bounded_bytes_max(&self) -> Option<u64> {
        self.state().reliable.as_mut().and_then(Reliable::part_bytes)
    }

    /// Why it has ended, if it has.
    pub fn end(&self) -> Option<End> {
        self.state().end.clone()
    }

    /// Whether nobody drives it any more: it has ended, and so have all its messages.
    pub fn is_let_go(&self) -> bool {
        self.state().is_let_go
    }

    /// What was counted in every layer, so far or until it ended.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.state().counters()
    }

    /// Send bytes as one message.
    pub fn send(
        &self,
        memory: &Memory,
        range: Range<usize>,
        choice: &Choice,
    ) -> Result<Result<SendTicket, ConnectionError>, End> {
        // The first of several goes at once. What the peer has to know of the others it is told together.
        let mut state = self.state();
        let saying = if std::mem::replace(&mut state.has_sent, true) { Saying::Urgent } else { Saying::All };
        self.post(state, Posting::Send(saying), |reliable, now| reliable.send_chosen(memory, range, choice, now))
    }

    /// Receive the peer's next message here, all of it.
    pub fn post_receive(
        &self,
        memory: &Memory,
        range: Range<usize>,
    ) -> Result<Result<ReceiveTicket, ConnectionError>, End> {
        self.post(self.state(), Posting::Receive, |reliable, _| reliable.post_receive(memory, range))
    }

    /// Receive what the scheme leaves of the peer's next message here.
    pub fn post_receive_partial(
        &self,
        memory: &Memory,
        range: Range<usize>,
    ) -> Result<Result<ReceiveTicket, ConnectionError>, End> {
        self.post(self.state(), Posting::Receive, |reliable, _| reliable.post_receive_partial(memory, range))
    }

    /// Send bytes as one message that ends by a deadline.
    pub fn send_bounded(
        &self,
        memory: &Memory,
        range: Range<usize>,
        deadline: Deadline,
        choice: &Choice,
    ) -> Result<Result<BoundedSendTicket, ConnectionError>, End> {
        let mut state = self.state();
        let saying = if std::mem::replace(&mut state.has_sent, true) { Saying::Urgent } else { Saying::All };
        self.post(state, Posting::Send(saying), |reliable, now| {
            reliable.send_bounded_chosen(memory, range, deadline, choice, now)
        })
    }

    /// Receive the peer's next message here, and end by a deadline.
    pub fn receive_bounded(
        &self,
        memory: &Memory,
        range: Range<usize>,
        bound: Bound,
    ) -> Result<Result<ReceiveTicket, ConnectionError>, End> {
        self.post(self.state(), Posting::Receive, |reliable, now| reliable.receive_bounded(memory, range, bound, now))
    }

    fn state(&self) -> Locked<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { state, _wakes: WakesOnDrop(&self.woken) }
    }

    /// The time that the driver goes by.
    pub fn now(&self) -> Instant {
        self.letterbox.now()
    }

    /// Have the driver look at it.
    pub fn wake_driver(&self) {
        self.letterbox.put(Letter::Look(self.id()));
    }

    /// Use the connection from a thread of the program: `post` a message, and do at once what is due for it.
    ///
    /// Some of what the peer has to know may wait ([`Saying`]) while a thread drives the connection, which will wait for something soon: for at most as
    /// long as the driver leaves the connection to it. Then nothing is due for a receive, either: the thread's next poll informs the peer of all that
    /// were posted meanwhile.
    fn post<T, E>(
        &self,
        mut state: Locked<'_>,
        posting: Posting,
        post: impl FnOnce(&mut Reliable, Instant) -> Result<T, E>,
    ) -> Result<Result<T, E>, End> {
        state.receives |= matches!(posting, Posting::Receive);
        // Read under the lock, so that time never goes back for what is below.
        let now = self.now();
        let is_left_alone = state.left_alone_until(now).is_some();
        let is_resting = state.resting_until.is_some();
        let posted = state.with(|reliable| {
            let posted = post(reliable, now);
            // An error shows again at the driver's next poll, which ends the connection.
            let is_failed = match posting {
                Posting::Receive if is_left_alone => false,
                Posting::Send(saying) if is_left_alone => reliable.advance(now, saying).is_err(),
                _ => reliable.advance(now, Saying::All).is_err(),
            };
            // All open messages have to be asked for it.
            (posted, is_failed, is_resting.then(|| reliable.next_deadline(now)).flatten())
        });
        state.posted += u64::from(matches!(posted, Ok((Ok(_), ..))));
        let outcome = posted.as_ref().ok().map(|(_, is_failed, next)| (*is_failed, *next));
        self.wake_if_too_late(state, outcome);
        posted.map(|(posted, ..)| posted)
    }

    /// After something was done in the driver's place: it looks again, if it rests for longer than until what is due next,
    /// or if that has failed (`None`, or `true` with it).
    fn wake_if_too_late(&self, mut state: Locked<'_>, outcome: Option<(bool, Option<Instant>)>) {
        let is_too_late = state.resting_until.is_some_and(|until| match outcome {
            Some((is_failed, next)) => is_failed || next.is_some_and(|next| next < until),
            None => true,
        });
        if is_too_late {
            state.resting_until = None;
        }
        drop(state);
        if is_too_late {
            self.wake_driver();
        }
    }

    /// When this ends, the peer has gone.
    pub fn set_lifeline(&self, lifeline: Arc<dyn Lifeline>) -> std::io::Result<()> {
        let mut state = self.state();
        // Nobody needs events of a connection that has ended, and dropping the lifeline informs the peer.
        if state.is_let_go {
            return Ok(());
        }
        lifeline.watch(self.id())?;
        state.lifeline = Some(lifeline);
        drop(state);
        // It may have gone in between.
        self.letterbox.put(Letter::PeerSaid(self.id()));
        Ok(())
    }

    pub(crate) fn lifeline(&self) -> Option<Arc<dyn Lifeline>> {
        self.state().lifeline.clone()
    }

    /// The peer has gone: there is nothing more to hear from it.
    pub(crate) fn drop_lifeline(&self) {
        let lifeline = self.state().lifeline.take();
        lifeline.into_iter().for_each(|lifeline| lifeline.watch_no_longer());
    }

    /// Have the driver end the connection, when the peer has heard what it must.
    pub fn close(&self, when_closed: WhenClosed) {
        let mut state = self.state();
        if state.is_let_go {
            drop(state);
            when_closed();
            return;
        }
        state.closing = Some(when_closed);
        drop(state);
        self.wake_driver();
    }

    /// Put what has arrived into bitmaps, and do what is due.
    pub(crate) fn poll(&self, saying: Saying) -> Result<Look, End> {
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
        state.has_sent = false;
        let posted = state.posted;
        let granter = self.granter.get();
        let (look, news) = state.with(|reliable| {
            reliable.poll_saying(now, saying).map_err(|error| failed(error))?;
            let queue_pair = reliable.queue_pair();
            let (sent, _, control) = queue_pair.counters();
            let round_trip = queue_pair.round_trip_time();
            let look = Look {
                now,
                arrived,
                over_count: reliable.over_count(),
                has_pending: reliable.over_count() < posted,
                progress: (sent.writes, control.received),
                patience: round_trip.patience(queue_pair.attributes().round_trip_guess),
                round_trip_least: round_trip.least,
                closing,
                receives,
            };
            Ok::<_, End>((look, granter.and_then(|_| queue_pair.take_credit_news())))
        })??;
        drop(state);
        match (granter, news) {
            (Some(granter), Some(news)) => granter.on_news(self.id(), &news, now),
            // Each thread that drives a connection makes grants to others in time, too.
            (Some(granter), None) => granter.on_time(now),
            (None, _) => {}
        }
        Ok(look)
    }

    /// Ask the peer for a sign of life.
    pub(crate) fn ask_peer(&self) -> Result<(), End> {
        self.state().with(|reliable| reliable.queue_pair().ask_peer())
    }

    /// Have everything raise an event.
    pub(crate) fn arm(&self) -> Result<(), End> {
        #[cfg(feature = "mutations")]
        if self.is_mutated(Mutation::EventsUnasked) {
            return Ok(());
        }
        let failed = |error: longhaul_verbs::PollError| End::Failed(Arc::new(error));
        self.context.request_notification().map_err(failed)?;
        let state = self.state();
        let Some(reliable) = &state.reliable else { return Err(End::Closed) };
        reliable.queue_pair().request_notification().map_err(failed)
    }

    /// Rest until its next deadline, at most until `most`. From here on a post wakes the driver if it is needed.
    /// Returns until when it rests, if that is known; an error if it has ended.
    pub(crate) fn rest(&self, most: Option<Instant>, now: Instant) -> Result<Option<Instant>, End> {
        let mut state = self.state();
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        let next = state.reliable.as_ref().and_then(|reliable| reliable.next_deadline(now));
        #[cfg(feature = "mutations")]
        let next = next.filter(|_| !self.is_mutated(Mutation::DeadlinesForgotten));
        let until = Instant::earlier_of(most, next);
        state.resting_until = Some(until.unwrap_or(Instant::FAR_FUTURE));
        Ok(until)
    }

    /// Until when the driver leaves it to a thread that waits.
    pub(crate) fn left_alone_until(&self, now: Instant) -> Option<Instant> {
        self.state().left_alone_until(now)
    }

    /// The driver looks again.
    pub(crate) fn rest_no_longer(&self) {
        self.state().resting_until = None;
    }

    /// End it from a thread of the program: when this returns, it uses no memory any more.
    pub fn end_now(&self, end: End) {
        self.let_go(end);
        self.wake_driver();
    }

    /// It has ended, and nobody drives it any more. Whatever happened, nobody waits for it afterwards.
    pub(crate) fn let_go(&self, end: End) {
        let (reliable, closing, ended, lifeline) = {
            let mut state = self.state();
            let is_let_go = state.is_let_go;
            // A panic on another thread is the reason, if there was one.
            let ended = state.end.get_or_insert(end).clone();
            state.resting_until = None;
            state.is_let_go = true;
            state.last_counters = state.counters();
            (state.reliable.take(), state.closing.take(), (!is_let_go).then_some(ended), state.lifeline.take())
        };
        lifeline.into_iter().for_each(|lifeline| lifeline.watch_no_longer());
        self.granter.get().into_iter().for_each(|granter| granter.remove(self.id()));
        // Without the lock: a subscriber to events may use the connection.
        ended.into_iter().for_each(|end| log_end(self.peer, &end));
        // Messages that are open fail now. A scheme that has panicked may do so again.
        if let Err(panicked) = catch(|| drop(reliable)) {
            tracing::error!(peer = %self.peer, "a scheme panicked while its connection ended");
            self.state().end = Some(End::from(panicked));
        }
        self.woken.wake_all();
        if let Some(when_closed) = closing {
            when_closed();
        }
    }
}
