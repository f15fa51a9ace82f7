//! One connection, as the driver sees it: whether something happens on it, and whether the peer is still there.

use std::net::SocketAddr;
use std::sync::Arc;

use longhaul_sdr::Saying;
use longhaul_time::{Duration, Instant};
use thiserror::Error;

use crate::end::End;
use crate::shared::{Look, Shared};

/// The driver looks again and again for this long after something happened before it leaves a connection alone: waking
/// up takes about as long. Where it has several that are busy, they share this time: it does not sleep anyway.
pub const SPIN: Duration = Duration::from_micros(50);
/// Unless the peer is further away than this: waking up costs a twentieth of a round trip there at most, and packets of a wide-area path
/// come just so far apart that the driver would look for them all the time.
const NEAR: Duration = Duration::from_millis(1);
/// While threads that wait drive a connection, the driver looks at it this often: whether the peer is still there, and whether it is to be closed.
const LOOK_ALL_THE_SAME: Duration = Duration::from_millis(10);
/// Where completions raise no events, it looks this often.
const BLIND_NAP: Duration = Duration::from_micros(100);
/// After the peer has closed, what it sent before may still be in flight: how long to wait for it, at least and at
/// most.
const GRACE_MIN: Duration = Duration::from_millis(20);
const GRACE_MAX: Duration = Duration::from_secs(1);
/// When this end closes: the sender of the last message may have to ask whether it is done, after 1, 3 and 7 times its
/// patience.
const LINGER_PATIENCES: u32 = 8;
/// Hosts' timers are not exact, and neither end knows the other's patience.
const LINGER_PATIENCE_MIN: Duration = Duration::from_millis(2);
/// A connection that closes lingers no longer than this.
pub const LINGER_MAX: Duration = Duration::from_secs(2);
/// A peer that is asked is given this many times the patience for an answer, and no less than `SILENCE_MIN`, before it
/// is taken for gone.
const SILENCE_PATIENCES: u32 = 8;
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// What a connection needs next, or all of a driver's together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Another turn.
    Again,
    /// None before something happens, or before this moment.
    Rest(Option<Instant>),
}

/// A connection that is driven.
pub(crate) struct Driven {
    shared: Arc<Shared>,
    /// When something happened last.
    active: Instant,
    /// When it was looked at last.
    looked: Instant,
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

impl Driven {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let now = shared.now();
        Driven {
            shared,
            active: now,
            looked: Instant::ZERO,
            seen: (0, 0, 0),
            over: None,
            peer_gone: None,
            heard: now,
            pending: None,
            has_asked: false,
        }
    }

    /// It has ended.
    pub(crate) fn let_go(self, end: End) {
        self.shared.let_go(end);
    }

    /// It is looked at again; because something happened, if `is_news`, and not because it is time.
    pub(crate) fn wake(&mut self, is_news: bool) {
        self.shared.rest_no_longer();
        if is_news {
            self.active = self.shared.now();
            self.looked = Instant::ZERO;
        }
    }

    /// The lifeline carries nothing but its end.
    pub(crate) fn on_peer_said(&mut self) {
        if self.shared.lifeline().is_some_and(|lifeline| lifeline.has_ended()) {
            self.peer_gone = Some(self.shared.now());
            self.shared.drop_lifeline();
        }
    }

    /// Do what is due. It has another turn for so long after something has happened.
    pub(crate) fn turn(&mut self, spin: Duration) -> Result<Turn, End> {
        let now = self.shared.now();
        let left_alone = self.shared.left_alone_until(now);
        if left_alone.is_some() && now < self.looked + LOOK_ALL_THE_SAME {
            // A post does not wake the driver, as if it polled all the time: it polls again soon.
            return Ok(Turn::Rest(left_alone));
        }
        let look = self.shared.poll(Saying::All)?;
        self.looked = look.now;
        self.note(&look);
        let until = Instant::earlier_of(self.end_of(&look)?, self.listen(&look)?);
        if left_alone.is_some() {
            return Ok(Turn::Rest(left_alone));
        }
        let is_near = look.round_trip_least.is_none_or(|least| least < NEAR);
        if is_near && look.now.saturating_since(self.active) < spin {
            return Ok(Turn::Again);
        }
        let has_events = self.shared.context.events().is_some();
        if has_events {
            self.shared.arm()?;
        }
        let look = self.shared.poll(Saying::All)?;
        if self.note(&look) {
            return Ok(Turn::Again);
        }
        let blind = (!has_events).then(|| look.now + BLIND_NAP);
        self.shared.rest(Instant::earlier_of(until, blind), look.now).map(Turn::Rest)
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
            let (peer, silence) = (self.shared.peer, look.now.saturating_since(since));
            tracing::debug!(%peer, ?silence, "no packet from the peer; asking for a sign of life");
            self.shared.ask_peer()?;
            return Ok(Some(look.now));
        }
        Ok(Some(if self.has_asked { end_at } else { ask_at }))
    }
}
