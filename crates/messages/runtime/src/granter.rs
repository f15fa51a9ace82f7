//! Who grants credit to all senders of an endpoint.
//!
//! ```text
//!   Shared::poll ── announcements, arrivals ──▶ Granter ── grants ──▶ Shared of the sender ─▶ its control messages
//!   Engine ── at its deadline ────────────────▶    └ one CreditReceiver
//! ```
//!
//! One for all connections of an endpoint, and so above them: the point of `credit` is that many senders do not overrun the
//! one port, or socket buffer, that they share. It is next to the engines rather than in one, since an endpoint may have
//! several driver threads, and threads of the program drive connections, too. Whichever of them brings news makes the
//! grants that are possible then, and says them on the connections concerned, without waking anybody.
//!
//! Locks: a thread that has the lock of a connection never takes this one's, and none of a connection is taken while this
//! one is held.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use longhaul_congestion::{CreditReceiver, PathFacts, ReceiverLimits, Standing};
use longhaul_sdr::CreditNews;
use longhaul_time::{Duration, Instant};

/// A full packet of the largest MTU, with its headers.
const PACKET_BYTES: u32 = 4096 + 64;
/// Outstanding at least: threads of hosts are woken late, and a socket's buffer takes a few times this.
const OUTSTANDING_BYTES_MIN: u64 = 1 << 20;
/// Outstanding at most: what one connection to another host may have in flight by default. More than this is in the
/// network, and for another controller.
const OUTSTANDING_BYTES_MAX: u64 = 32 << 20;
/// Credit is not written off sooner.
const PATIENCE_MIN: Duration = Duration::from_millis(5);
/// A slower port is taken for this one: senders would wait for grants without an end in sight.
const BITS_PER_SECOND_MIN: u64 = 1_000_000;
const NEVER: u64 = u64::MAX;

/// Grants credit to all senders of an endpoint.
pub struct Granter {
    state: Mutex<State>,
    /// When it must be asked for grants again, in nanoseconds: known without the lock.
    next: AtomicU64,
}

struct State {
    receiver: CreditReceiver,
    /// Those that are driven. News of others come too late.
    connections: HashMap<u64, Known>,
}

struct Known {
    connection: Weak<dyn Granted>,
    /// News with a lower number are old: two threads may drive a connection, and one of them may come late.
    next_news: u64,
}

/// A connection whose peer is granted credit.
pub(crate) trait Granted: Send + Sync {
    /// The peer has been granted credit, and hears of it at once.
    fn grant_credit(&self, standing: &Standing);
}

impl Granter {
    /// For a port with this rate, if that is known.
    pub fn new(bits_per_second: Option<u64>) -> Self {
        let bits_per_second = bits_per_second.map(|rate| rate.max(BITS_PER_SECOND_MIN));
        let facts =
            PathFacts { packet_bytes: PACKET_BYTES, round_trip: None, line_bits_per_second: bits_per_second, seed: 0 };
        let receiver = CreditReceiver::new(&facts).with_limits(ReceiverLimits {
            outstanding_bytes_min: OUTSTANDING_BYTES_MIN,
            outstanding_bytes_max: OUTSTANDING_BYTES_MAX,
            patience_min: PATIENCE_MIN,
        });
        Granter { state: Mutex::new(State { receiver, connections: HashMap::new() }), next: AtomicU64::new(NEVER) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, id: u64, connection: Weak<dyn Granted>) {
        self.state().connections.insert(id, Known { connection, next_news: 0 });
    }

    /// A connection has ended: what it was granted is free for the others.
    pub(crate) fn remove(&self, id: u64) {
        let mut state = self.state();
        if state.connections.remove(&id).is_some() {
            state.receiver.remove(id);
            self.note_deadline(&state);
        }
    }

    /// A connection has news, which may make room for grants, to it or to others.
    pub(crate) fn on_news(&self, id: u64, news: &CreditNews, now: Instant) {
        let mut state = self.state();
        let Some(known) = state.connections.get_mut(&id) else { return };
        if news.number >= known.next_news {
            known.next_news = news.number + 1;
            if let Some(announcement) = &news.announcement {
                state.receiver.on_announcement(now, id, announcement);
            }
            if let Some(round_trip) = news.round_trip {
                state.receiver.set_round_trip(id, round_trip);
            }
        }
        state.receiver.on_arrived_total(id, news.arrived_bytes);
        self.grant(state, now);
    }

    /// Makes the grants that have fallen due.
    pub(crate) fn on_time(&self, now: Instant) {
        if self.next_deadline().is_some_and(|at| at <= now) {
            self.grant(self.state(), now);
        }
    }

    fn grant(&self, mut state: MutexGuard<'_, State>, now: Instant) {
        // Each connection says what it was granted in all, so that one message does for several grants.
        let mut granted: Vec<(u64, Arc<dyn Granted>, Standing)> = Vec::new();
        while let Some(grant) = state.receiver.poll(now) {
            let standing = state.receiver.standing_of(grant.sender);
            match granted.iter_mut().find(|(id, ..)| *id == grant.sender) {
                Some((_, _, known)) => *known = standing.unwrap_or(*known),
                None => {
                    let connection = state.connections.get(&grant.sender).and_then(|known| known.connection.upgrade());
                    granted.extend(
                        connection.zip(standing).map(|(connection, standing)| (grant.sender, connection, standing)),
                    );
                }
            }
        }
        self.note_deadline(&state);
        drop(state);
        granted.into_iter().for_each(|(_, connection, standing)| connection.grant_credit(&standing));
    }

    fn note_deadline(&self, state: &State) {
        let next = state.receiver.next_deadline();
        self.next.store(next.map_or(NEVER, Instant::as_nanos), Ordering::Relaxed);
    }

    /// When [`Granter::on_time`] is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let next = self.next.load(Ordering::Relaxed);
        (next != NEVER).then(|| Instant::from_nanos(next))
    }

    /// Granted, or sent without credit, and neither arrived nor written off: of all connections, in bytes.
    pub fn outstanding_bytes(&self) -> u64 {
        self.state().receiver.outstanding_bytes()
    }
}

#[cfg(test)]
mod tests {
    use longhaul_congestion::Announcement;

    use super::*;

    /// Remembers what it was granted.
    #[derive(Default)]
    struct Told(AtomicU64);

    impl Granted for Told {
        fn grant_credit(&self, standing: &Standing) {
            self.0.store(standing.granted_bytes, Ordering::Relaxed);
        }
    }

    fn news(number: u64, wanted_bytes: Option<u64>, arrived_bytes: u64) -> CreditNews {
        let announcement = wanted_bytes.map(|wanted_bytes| Announcement {
            wanted_bytes,
            received_bytes: 0,
            uncredited_bytes: 0,
            lost_bytes: 0,
        });
        CreditNews { number, announcement, arrived_bytes, round_trip: Some(Duration::from_micros(100)) }
    }

    #[test]
    fn news_that_another_thread_has_overtaken_change_nothing() {
        let granter = Granter::new(Some(1_000_000_000));
        let connection = Arc::new(Told::default());
        let weak: Weak<dyn Granted> = Arc::downgrade(&connection) as _;
        granter.add(7, weak);
        let mut now = Instant::from_nanos(1_000_000_000);
        granter.on_news(7, &news(0, Some(5000), 0), now);
        assert_eq!(connection.0.load(Ordering::Relaxed), 5000);
        // One thread has taken the first, but the other comes before it.
        now += Duration::from_secs(1);
        granter.on_news(7, &news(2, Some(1 << 20), 5000), now);
        granter.on_news(7, &news(1, Some(0), 4000), now);
        for _ in 0..3 {
            now += Duration::from_millis(1);
            granter.on_time(now);
        }
        let granted = connection.0.load(Ordering::Relaxed);
        assert!(granted > 3 * 60_000, "it still wants more: {granted}");
        assert!(granter.outstanding_bytes() <= granted - 5000, "and what has arrived, has");
    }
}
