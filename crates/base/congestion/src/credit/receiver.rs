//! The receiver's half of `credit`: who may send next.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use longhaul_time::{Duration, Instant};

use super::{FIRST_PACKETS, PATIENCE_ROUND_TRIPS, ROUND_TRIP};
use crate::controller::{Announcement, PathFacts};

/// Of the line rate. What is left is for the first windows of new senders and for reports.
const RATE_SHARE: f64 = 0.97;
/// A grant is this part of what may be outstanding,
const GRANTS_OUTSTANDING: u64 = 16;
/// and no more than this.
const GRANT_BYTES_MAX: u64 = 64 << 10;
/// For devices that do not report the rate of their port.
const LINE_BITS_PER_SECOND: u64 = 10_000_000_000;
/// No sender is waited for longer than for one with this round trip: a peer can hold its answers back.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(1);
/// Promises of one sender that are kept apart. A sender that gets more grants than this in its patience is not waited for
/// as exactly.
const PROMISES_MAX: u32 = 128;
/// A sender that has sent nothing yet has no more than this part of its bound outstanding: it may never send.
const UNTRUSTED_PART: u64 = 4;
/// A sender that has let this many grants expire, and sent nothing, must ask again.
const UNUSED_GRANTS_MAX: u64 = 4;
/// How often a promise is postponed at most while the line is slow: a peer can send just enough to look slow.
const POSTPONED_MAX: u32 = 16;
/// All that may be outstanding, as the unit for shares of it.
const WHOLE: u64 = 1 << 32;

/// Credit for one sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whose.
    pub sender: u64,
    /// As many more than before.
    pub bytes: u64,
}

/// What one sender has been granted, for a grant that is sent as a count from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Since the beginning.
    pub granted_bytes: u64,
    /// Of that, so recently that it is neither used for certain nor written off.
    pub recent_bytes: u64,
    /// How long from the last grant on until that is written off, too.
    pub patience: Duration,
}

/// How much a [`Receiver`] lets be outstanding whatever its line and its senders' round trips are, and how long it waits.
/// Hosts need more than fabrics: their threads are woken late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverLimits {
    /// Where the bandwidth-delay product is less, this many bytes are outstanding.
    pub outstanding_bytes_min: u64,
    /// Where it is more, this many.
    pub outstanding_bytes_max: u64,
    /// Credit is not written off sooner.
    pub patience_min: Duration,
}

/// What one sender wants, has been granted and has sent. All but `wanted` are counted from the beginning.
#[derive(Clone, Debug, Default)]
struct Sender {
    wanted: u64,
    granted: u64,
    /// Of that, so long ago that it is used or lost.
    granted_long_ago: u64,
    uncredited: u64,
    /// No more than it was granted, and a first window: copies that a network makes are no credit.
    arrived: u64,
    /// The same, as it was counted.
    arrived_total: u64,
    /// What had been granted when something arrived last.
    granted_at_arrival: u64,
    /// Lost, by the sender's count.
    lost: u64,
    /// Lost, or never sent, because it has not arrived in time.
    written_off: u64,
    has_turn: bool,
    /// If it has been measured.
    round_trip: Option<Duration>,
    /// What may be outstanding if all is its own, and what its own takes of that.
    bound: u64,
    share: u64,
    /// It may have this much more outstanding than one that has sent nothing: as much as has arrived, less what it has
    /// not used.
    trusted: u64,
    /// That have not fallen due, and the key of the last.
    promises: u32,
    last_promise: (Instant, u64),
}

impl Sender {
    fn expected(&self) -> u64 {
        self.granted + self.uncredited
    }

    /// Arrived, or not expected any more.
    fn settled(&self) -> u64 {
        self.arrived.saturating_add(self.lost.max(self.written_off))
    }

    fn outstanding(&self) -> u64 {
        self.expected().saturating_sub(self.settled())
    }

    fn share_of(&self, bytes: u64) -> u64 {
        let share = u128::from(bytes) * u128::from(WHOLE) / u128::from(self.bound.max(1));
        // Beyond this it makes no difference, and sums do not overflow.
        share.min(u128::from(16 * WHOLE)) as u64
    }

    /// Whether it may be granted this much more, if there is room for it.
    fn may_have(&self, bytes: u64) -> bool {
        let most = (self.bound / UNTRUSTED_PART).saturating_add(self.trusted).min(self.bound);
        self.outstanding() == 0 || self.outstanding() + bytes <= most
    }
}

/// What a sender has been granted by a certain time must have arrived by another.
#[derive(Clone, Copy, Debug)]
struct Promise {
    sender: u64,
    granted: u64,
    expected: u64,
    /// All that was outstanding then has arrived, or is not expected any more, when [`Receiver::settled`] is this.
    settled: u64,
    /// [`Receiver::arrived`] when it was looked at last.
    arrived: u64,
    /// It is not postponed beyond this.
    until: Instant,
}

/// Grants credit to all senders of one host. Driven: announcements and arrivals in, grants out.
#[derive(Clone, Debug)]
pub struct Receiver {
    line: f64,
    packet: u64,
    round_trip: Duration,
    limits: ReceiverLimits,
    grant_bytes: u64,
    /// No sender sends more than this without credit, whatever it announces.
    uncredited_max: u64,
    senders: BTreeMap<u64, Sender>,
    /// Those that want something, in their order.
    turns: VecDeque<u64>,
    /// By when they fall due, and in the order in which they were made.
    promises: BTreeMap<(Instant, u64), Promise>,
    promise_count: u64,
    /// Of all senders, in bytes and in shares of what each may have.
    outstanding: u64,
    occupied: u64,
    /// Of all senders, from the beginning: bytes that have arrived, and bytes that are outstanding no longer.
    arrived: u64,
    settled: u64,
    /// The latest time that was heard of. Threads read their clocks before they have their turn here.
    latest: Instant,
    next_grant: Instant,
    /// Of a nanosecond, beyond `next_grant`.
    next_grant_fraction: f64,
}

impl Receiver {
    /// For a port with this line rate; the round trip is the longest of its senders, as long as none was measured
    /// ([`Receiver::set_round_trip`]).
    pub fn new(facts: &PathFacts) -> Self {
        let packet = u64::from(facts.packet_bytes.max(1));
        let limits =
            ReceiverLimits { outstanding_bytes_min: 0, outstanding_bytes_max: u64::MAX, patience_min: Duration::ZERO };
        let mut receiver = Receiver {
            line: facts.line_bits_per_second.unwrap_or(LINE_BITS_PER_SECOND).max(1) as f64,
            packet,
            round_trip: facts.round_trip.unwrap_or(ROUND_TRIP),
            limits,
            grant_bytes: packet,
            uncredited_max: FIRST_PACKETS * packet,
            senders: BTreeMap::new(),
            turns: VecDeque::new(),
            promises: BTreeMap::new(),
            promise_count: 0,
            outstanding: 0,
            occupied: 0,
            arrived: 0,
            settled: 0,
            latest: Instant::ZERO,
            next_grant: Instant::ZERO,
            next_grant_fraction: 0.0,
        };
        receiver.set_bounds();
        receiver
    }

    /// The same, within these limits.
    pub fn with_limits(mut self, limits: ReceiverLimits) -> Self {
        self.limits = limits;
        self.set_bounds();
        self
    }

    /// What may be outstanding if all senders have this round trip: as much as the line carries in it.
    fn bound(&self, round_trip: Duration) -> u64 {
        let ReceiverLimits { outstanding_bytes_min, outstanding_bytes_max, .. } = self.limits;
        let product = (self.line / 8.0 * round_trip.as_secs_f64()) as u64;
        product.min(outstanding_bytes_max).max(outstanding_bytes_min).max(self.packet)
    }

    /// Grants are as long as suits the nearest sender: all have the same, so that turns are fair.
    fn set_bounds(&mut self) {
        let measured = self.senders.values().filter_map(|sender| sender.round_trip).min();
        let least = self.bound(measured.unwrap_or(self.round_trip));
        let grant_bytes = (least / GRANTS_OUTSTANDING).min(GRANT_BYTES_MAX) / self.packet * self.packet;
        self.grant_bytes = grant_bytes.max(self.packet);
    }

    /// Changes what is known of a sender, and with it what is known of all.
    fn change(&mut self, sender: u64, change: impl FnOnce(&mut Sender)) {
        let Some(state) = self.senders.get_mut(&sender) else { return };
        let (outstanding, share) = (state.outstanding(), state.share);
        change(state);
        state.share = state.share_of(state.outstanding());
        self.occupied = self.occupied - share + state.share;
        self.settled = self.settled.saturating_add(outstanding.saturating_sub(state.outstanding()));
        self.outstanding = self.outstanding - outstanding + state.outstanding();
    }

    /// Bytes take this long on the line.
    fn line_time(&self, bytes: u64) -> Duration {
        Duration::from_nanos((bytes as f64 * 8e9 / self.line) as u64)
    }

    /// How long nothing has to arrive before it is not waited for. On a slow line one packet takes longer than that.
    fn patience_of(&self, sender: &Sender) -> Duration {
        let round_trip = sender.round_trip.unwrap_or(self.round_trip);
        let patience = (PATIENCE_ROUND_TRIPS * round_trip).max(self.limits.patience_min);
        patience.max(self.line_time(2 * self.packet)).max(Duration::from_nanos(1))
    }

    /// The shortest round trip to a sender has been measured. One that is not known yet is ignored.
    pub fn set_round_trip(&mut self, sender: u64, round_trip: Duration) {
        let round_trip = round_trip.min(ROUND_TRIP_MAX);
        let Some(state) = self.senders.get_mut(&sender) else { return };
        // All senders are looked at for it: not for every small change.
        if state.round_trip.is_some_and(|before| before.abs_diff(round_trip) <= before / 8) {
            return;
        }
        let bound = self.bound(round_trip);
        self.change(sender, |state| (state.round_trip, state.bound) = (Some(round_trip), bound));
        self.set_bounds();
    }

    /// A sender has announced what it wants. One that is not known yet is added.
    pub fn on_announcement(&mut self, now: Instant, sender: u64, announcement: &Announcement) {
        let now = self.latest_of(now);
        self.write_off(now);
        let bound = self.bound(self.round_trip);
        let state = self.senders.entry(sender).or_insert_with(|| Sender { bound, ..Sender::default() });
        // Grants that are still in flight to the sender serve what it wants. Older ones that it has not seen are lost.
        let recent = state.granted - state.granted_long_ago;
        let in_flight = state.granted.saturating_sub(announcement.received_bytes).min(recent);
        let (had_turn, wanted) = (state.has_turn, announcement.wanted_bytes.saturating_sub(in_flight));
        let uncredited = announcement.uncredited_bytes.min(self.uncredited_max).max(state.uncredited);
        let is_longer = uncredited > state.uncredited;
        self.change(sender, |state| {
            (state.wanted, state.has_turn) = (wanted, wanted > 0);
            (state.uncredited, state.lost) = (uncredited, announcement.lost_bytes);
        });
        if wanted > 0 && !had_turn {
            self.turns.push_back(sender);
        } else if wanted == 0 && had_turn {
            self.turns.retain(|other| *other != sender);
        }
        if is_longer {
            self.promise(now, sender);
        }
    }

    /// Bytes have arrived from a sender.
    pub fn on_arrived(&mut self, sender: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let (uncredited_max, mut counted) = (self.uncredited_max, 0);
        self.change(sender, |state| {
            let arrived_max = state.expected() + uncredited_max.saturating_sub(state.uncredited);
            let arrived = state.arrived.saturating_add(bytes).min(arrived_max);
            counted = arrived - state.arrived;
            state.arrived = arrived;
            state.arrived_total = state.arrived_total.saturating_add(bytes);
            state.granted_at_arrival = state.granted;
            state.trusted = (state.trusted + counted).min(state.bound);
            // What was written off and has arrived after all is no longer written off.
            state.written_off = state.written_off.min(state.expected().saturating_sub(state.arrived));
        });
        self.arrived = self.arrived.saturating_add(counted);
    }

    /// This many bytes have arrived from a sender since the beginning.
    pub fn on_arrived_total(&mut self, sender: u64, bytes: u64) {
        if let Some(state) = self.senders.get(&sender) {
            self.on_arrived(sender, bytes.saturating_sub(state.arrived_total));
        }
    }

    /// A sender has gone.
    pub fn remove(&mut self, sender: u64) {
        if let Some(state) = self.senders.remove(&sender) {
            self.outstanding -= state.outstanding();
            self.settled = self.settled.saturating_add(state.outstanding());
            self.occupied -= state.share;
            self.turns.retain(|other| *other != sender);
            self.promises.retain(|_, promise| promise.sender != sender);
            self.set_bounds();
        }
    }

    /// Granted, or sent without credit, and neither arrived nor written off: of all senders, in bytes.
    pub fn outstanding_bytes(&self) -> u64 {
        self.outstanding
    }

    /// What a sender has been granted so far; `None` if it has announced nothing.
    pub fn standing_of(&self, sender: u64) -> Option<Standing> {
        let state = self.senders.get(&sender)?;
        Some(Standing {
            granted_bytes: state.granted,
            recent_bytes: state.granted - state.granted_long_ago,
            patience: self.patience_of(state),
        })
    }

    /// The next grant, if one may be made now; call it until there is none.
    pub fn poll(&mut self, now: Instant) -> Option<Grant> {
        let now = self.latest_of(now);
        self.write_off(now);
        if now < self.next_grant {
            return None;
        }
        let sender = self.turns.remove(self.next_turn()?)?;
        let bytes = self.senders.get(&sender)?.wanted.min(self.grant_bytes);
        let mut has_turn = false;
        self.change(sender, |state| {
            state.wanted -= bytes;
            state.granted += bytes;
            has_turn = state.wanted > 0;
            state.has_turn = has_turn;
        });
        if has_turn {
            self.turns.push_back(sender);
        }
        self.promise(now, sender);
        self.pace(now, bytes);
        Some(Grant { sender, bytes })
    }

    /// When to poll again.
    pub fn next_deadline(&self) -> Option<Instant> {
        let grant = self.next_turn().map(|_| self.next_grant);
        Instant::earlier_of(grant, self.promises.first_key_value().map(|((due, _), _)| *due))
    }

    /// Drivers' times as one that does not go backwards.
    fn latest_of(&mut self, now: Instant) -> Instant {
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Whose turn it is, if there is room for a grant: its place in `turns`. Those that have enough outstanding wait in
    /// their places. They are few, since there is room for few of them.
    fn next_turn(&self) -> Option<usize> {
        if self.occupied >= WHOLE {
            return None;
        }
        let state_of = |(place, sender)| self.senders.get(sender).map(|state| (place, state));
        let mut waiting = self.turns.iter().enumerate().filter_map(state_of);
        let (place, state) = waiting.find(|(_, state)| state.may_have(self.grant_bytes))?;
        let has_room = self.occupied == 0 || self.occupied + state.share_of(self.grant_bytes) <= WHOLE;
        has_room.then_some(place)
    }

    /// After a grant. A driver that comes late catches up by one grant at most.
    fn pace(&mut self, now: Instant, bytes: u64) {
        let nanos = bytes as f64 * 8e9 / (self.line * RATE_SHARE);
        let late = (now - self.next_grant).as_nanos() as f64 - self.next_grant_fraction;
        let next = nanos - late.min(nanos);
        self.next_grant = now.saturating_add_nanos(next as u64);
        self.next_grant_fraction = next.fract();
    }

    /// What a sender has been granted so far must have arrived in time.
    fn promise(&mut self, now: Instant, sender: u64) {
        let Some(state) = self.senders.get(&sender) else { return };
        let patience = self.patience_of(state);
        let waits_max = (POSTPONED_MAX * patience).max(2 * self.line_time(self.outstanding));
        let promise = Promise {
            sender,
            granted: state.granted,
            expected: state.expected(),
            settled: self.settled.saturating_add(self.outstanding),
            arrived: self.arrived,
            until: now + waits_max,
        };
        // It makes up for the last one if there are too many, and is due later than that: rather late than early.
        let last = state.last_promise;
        let is_instead = state.promises >= PROMISES_MAX && self.promises.remove(&last).is_some();
        let key = self.keep(now + patience, promise);
        if let Some(state) = self.senders.get_mut(&sender) {
            state.promises += u32::from(!is_instead);
            state.last_promise = key;
        }
    }

    fn keep(&mut self, due: Instant, promise: Promise) -> (Instant, u64) {
        self.promise_count += 1;
        let key = (due, self.promise_count);
        self.promises.insert(key, promise);
        key
    }

    /// Presumes lost what should have arrived by now.
    fn write_off(&mut self, now: Instant) {
        while let Some(first) = self.promises.first_entry().filter(|first| first.key().0 <= now) {
            let (key, promise) = first.remove_entry();
            let Some(state) = self.senders.get(&promise.sender) else { continue };
            let is_kept = state.settled() >= promise.expected;
            // The line is slow: what was outstanding before it is still arriving.
            let is_slow = self.arrived > promise.arrived && self.settled < promise.settled;
            if is_slow && !is_kept && now < promise.until {
                let was_last = state.last_promise == key;
                let due = now + self.patience_of(state);
                let key = self.keep(due, Promise { arrived: self.arrived, ..promise });
                if let Some(state) = self.senders.get_mut(&promise.sender).filter(|_| was_last) {
                    state.last_promise = key;
                }
                continue;
            }
            let unused = promise.granted.saturating_sub(state.granted_at_arrival);
            if unused >= UNUSED_GRANTS_MAX * self.grant_bytes && state.has_turn {
                // It has been granted a lot and has sent nothing: it gets no more until it announces again.
                self.change(promise.sender, |state| (state.wanted, state.has_turn) = (0, false));
                self.turns.retain(|other| *other != promise.sender);
            }
            self.change(promise.sender, |state| {
                let before = state.outstanding();
                state.promises -= 1;
                state.granted_long_ago = state.granted_long_ago.max(promise.granted);
                state.written_off = state.written_off.max(promise.expected.saturating_sub(state.arrived));
                state.trusted = state.trusted.saturating_sub(before - state.outstanding());
            });
        }
    }
}
