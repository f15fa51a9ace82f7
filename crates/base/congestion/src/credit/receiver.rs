//! The receiver's half of `credit`: who may send next.

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
    /// That have not fallen due, and the key of the last.
    promises: u32,
    last_promise: (Instant, u64),
}

impl Sender {
    fn expected(&self) -> u64 {
        self.granted + self.uncredited
    }

    fn outstanding(&self) -> u64 {
        let lost = self.lost.max(self.written_off);
        self.expected().saturating_sub(self.arrived.saturating_add(lost))
    }
}

/// What a sender has been granted by a certain time must have arrived by another.
#[derive(Clone, Copy, Debug)]
struct Promise {
    sender: u64,
    granted: u64,
    expected: u64,
}

/// Grants credit to all senders of one host. Driven: announcements and arrivals in, grants out.
#[derive(Clone, Debug)]
pub struct Receiver {
    line: f64,
    packet: u64,
    round_trip: Duration,
    limits: ReceiverLimits,
    grant_bytes: u64,
    outstanding_max: u64,
    /// No sender sends more than this without credit, whatever it announces.
    uncredited_max: u64,
    senders: BTreeMap<u64, Sender>,
    /// Those that want something, in their order.
    turns: VecDeque<u64>,
    /// By when they fall due, and in the order in which they were made.
    promises: BTreeMap<(Instant, u64), Promise>,
    promise_count: u64,
    /// Of all senders.
    outstanding: u64,
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
            outstanding_max: packet,
            uncredited_max: FIRST_PACKETS * packet,
            senders: BTreeMap::new(),
            turns: VecDeque::new(),
            promises: BTreeMap::new(),
            promise_count: 0,
            outstanding: 0,
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

    /// What may be outstanding: the longest round trip of all senders at line rate.
    fn set_bounds(&mut self) {
        let measured = self.senders.values().filter_map(|sender| sender.round_trip).max();
        let round_trip = measured.unwrap_or(self.round_trip);
        let ReceiverLimits { outstanding_bytes_min, outstanding_bytes_max, .. } = self.limits;
        let product = (self.line / 8.0 * round_trip.as_secs_f64()) as u64;
        let product = product.min(outstanding_bytes_max).max(outstanding_bytes_min);
        let grant_bytes = (product / GRANTS_OUTSTANDING).min(GRANT_BYTES_MAX) / self.packet * self.packet;
        self.grant_bytes = grant_bytes.max(self.packet);
        self.outstanding_max = product.max(self.packet);
    }

    fn patience_of(&self, sender: &Sender) -> Duration {
        let round_trip = sender.round_trip.unwrap_or(self.round_trip);
        (PATIENCE_ROUND_TRIPS * round_trip).max(self.limits.patience_min)
    }

    /// The shortest round trip to a sender has been measured. One that is not known yet is ignored.
    pub fn set_round_trip(&mut self, sender: u64, round_trip: Duration) {
        let round_trip = round_trip.min(ROUND_TRIP_MAX);
        let Some(state) = self.senders.get_mut(&sender) else { return };
        // All senders are looked at for it: not for every small change.
        if state.round_trip.is_some_and(|before| before.abs_diff(round_trip) <= before / 8) {
            return;
        }
        state.round_trip = Some(round_trip);
        self.set_bounds();
    }

    /// A sender has announced what it wants. One that is not known yet is added.
    pub fn on_announcement(&mut self, now: Instant, sender: u64, announcement: &Announcement) {
        self.write_off(now);
        let state = self.senders.entry(sender).or_default();
        let before = state.outstanding();
        // Grants that are still in flight to the sender serve what it wants. Older ones that it has not seen are lost.
        let recent = state.granted - state.granted_long_ago;
        let in_flight = state.granted.saturating_sub(announcement.received_bytes).min(recent);
        state.wanted = announcement.wanted_bytes.saturating_sub(in_flight);
        let uncredited = announcement.uncredited_bytes.min(self.uncredited_max);
        let is_longer = uncredited > state.uncredited;
        if is_longer {
            state.uncredited = uncredited;
        }
        state.lost = announcement.lost_bytes;
        self.outstanding = self.outstanding + state.outstanding() - before;
        if state.wanted > 0 && !state.has_turn {
            self.turns.push_back(sender);
        } else if state.wanted == 0 && state.has_turn {
            self.turns.retain(|other| *other != sender);
        }
        state.has_turn = state.wanted > 0;
        if is_longer {
            self.promise(now, sender);
        }
    }

    /// Bytes have arrived from a sender.
    pub fn on_arrived(&mut self, sender: u64, bytes: u64) {
        let Some(state) = self.senders.get_mut(&sender) else { return };
        let before = state.outstanding();
        let arrived_max = state.expected() + self.uncredited_max.saturating_sub(state.uncredited);
        state.arrived_total = state.arrived_total.saturating_add(bytes);
        if bytes > 0 {
            state.granted_at_arrival = state.granted;
        }
        state.arrived = state.arrived.saturating_add(bytes).min(arrived_max);
        self.outstanding -= before - state.outstanding();
        // What was written off and has arrived after all is no longer written off.
        state.written_off = state.written_off.min(state.expected().saturating_sub(state.arrived));
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
        self.write_off(now);
        if now < self.next_grant || !self.has_room() {
            return None;
        }
        let sender = self.turns.pop_front()?;
        let state = self.senders.get_mut(&sender)?;
        let bytes = state.wanted.min(self.grant_bytes);
        state.wanted -= bytes;
        state.has_turn = state.wanted > 0;
        if state.has_turn {
            self.turns.push_back(sender);
        }
        let before = state.outstanding();
        state.granted += bytes;
        self.outstanding = self.outstanding + state.outstanding() - before;
        self.promise(now, sender);
        self.pace(now, bytes);
        Some(Grant { sender, bytes })
    }

    /// When to poll again.
    pub fn next_deadline(&self) -> Option<Instant> {
        let grant = (!self.turns.is_empty() && self.has_room()).then_some(self.next_grant);
        Instant::earlier_of(grant, self.promises.first_key_value().map(|((due, _), _)| *due))
    }

    fn has_room(&self) -> bool {
        self.outstanding == 0 || self.outstanding + self.grant_bytes <= self.outstanding_max
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
        let due = now + self.patience_of(state);
        let (granted, expected, last) = (state.granted, state.expected(), state.last_promise);
        let promise = Promise { sender, granted, expected };
        if state.promises >= PROMISES_MAX
            && let Some(last) = self.promises.get_mut(&last)
        {
            *last = promise;
            return;
        }
        self.promise_count += 1;
        let key = (due, self.promise_count);
        self.promises.insert(key, promise);
        if let Some(state) = self.senders.get_mut(&sender) {
            state.promises += 1;
            state.last_promise = key;
        }
    }

    /// Presumes lost what should have arrived by now.
    fn write_off(&mut self, now: Instant) {
        while let Some(first) = self.promises.first_entry().filter(|first| first.key().0 <= now) {
            let promise = first.remove();
            let Some(state) = self.senders.get_mut(&promise.sender) else { continue };
            let before = state.outstanding();
            state.promises -= 1;
            let unused = promise.granted.saturating_sub(state.granted_at_arrival);
            if unused > GRANTS_OUTSTANDING * self.grant_bytes && state.has_turn {
                // It has been granted a lot and has sent nothing: it gets no more until it announces again.
                (state.wanted, state.has_turn) = (0, false);
                self.turns.retain(|other| *other != promise.sender);
            }
            state.granted_long_ago = state.granted_long_ago.max(promise.granted);
            state.written_off = state.written_off.max(promise.expected.saturating_sub(state.arrived));
            self.outstanding -= before - state.outstanding();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: u64 = 1000;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// 8 Gbit/s and 32 µs: 32 packets outstanding, grants of two.
    fn receiver() -> Receiver {
        Receiver::new(&PathFacts {
            packet_bytes: PACKET as u32,
            round_trip: Some(Duration::from_micros(32)),
            line_bits_per_second: Some(8_000_000_000),
            seed: 1,
        })
    }

    fn wants(packets: u64) -> Announcement {
        Announcement { wanted_bytes: packets * PACKET, received_bytes: 0, uncredited_bytes: 0, lost_bytes: 0 }
    }

    /// All grants until then, with their times in nanoseconds.
    fn grants(receiver: &mut Receiver, from: Instant, until: Instant) -> Vec<(u64, Grant)> {
        let (mut now, mut all) = (from, Vec::new());
        while now <= until {
            while let Some(grant) = receiver.poll(now) {
                all.push((now.as_nanos(), grant));
            }
            let Some(next) = receiver.next_deadline() else { break };
            assert!(next > now, "it waits for {next:?} at {now:?}");
            now = next;
        }
        all
    }

    #[test]
    fn senders_have_their_turns_at_just_under_line_rate() {
        let mut receiver = receiver();
        for sender in [7, 3, 5] {
            receiver.on_announcement(at(0), sender, &wants(4));
        }
        let all = grants(&mut receiver, at(0), at(200));
        let order: Vec<u64> = all.iter().map(|(_, grant)| grant.sender).collect();
        assert_eq!(order, [7, 3, 5, 7, 3, 5]);
        assert!(all.iter().all(|(_, grant)| grant.bytes == 2 * PACKET));
        // 2,000 bytes at 0.97 · 8 Gbit/s.
        let nanos: Vec<u64> = all.iter().map(|(nanos, _)| *nanos).collect();
        assert_eq!(nanos[..3], [0, 2061, 4123]);
        assert_eq!(receiver.outstanding_bytes(), 0, "after four round trips it is written off");
    }

    #[test]
    fn no_more_than_a_bandwidth_delay_product_is_outstanding() {
        let mut receiver = receiver();
        receiver.on_announcement(at(0), 1, &wants(1000));
        assert_eq!(grants(&mut receiver, at(0), at(127)).len(), 16);
        assert_eq!((receiver.outstanding_bytes(), receiver.next_deadline()), (32 * PACKET, Some(at(128))));
        receiver.on_arrived(1, PACKET);
        assert_eq!(receiver.poll(at(127)), None, "a grant is two packets");
        receiver.on_arrived(1, PACKET);
        assert_eq!(receiver.poll(at(127)), Some(Grant { sender: 1, bytes: 2 * PACKET }));
    }

    #[test]
    fn lost_packets_do_not_hold_up_the_rest() {
        let mut receiver = receiver();
        receiver.on_announcement(at(0), 1, &wants(100_000));
        // Every fifth packet is lost; the others arrive 30 µs after their grant. The sender knows after 46 µs.
        let (mut arrivals, mut losses) = (VecDeque::new(), VecDeque::new());
        let (mut sent, mut granted, mut lost_bytes) = (0, 0, 0);
        let take = |queue: &mut VecDeque<u64>, now| queue.pop_front_if(|due| *due <= now).is_some();
        for micros in 0..10_000 {
            while let Some(grant) = receiver.poll(at(micros)) {
                granted += grant.bytes;
                for _ in 0..grant.bytes / PACKET {
                    sent += 1;
                    if sent % 5 == 0 { losses.push_back(micros + 46) } else { arrivals.push_back(micros + 30) }
                }
            }
            while take(&mut arrivals, micros) {
                receiver.on_arrived(1, PACKET);
            }
            while take(&mut losses, micros) {
                lost_bytes += PACKET;
                let wanted_bytes = 100_000 * PACKET - granted;
                let announcement = Announcement { wanted_bytes, received_bytes: granted, lost_bytes, ..wants(0) };
                receiver.on_announcement(at(micros), 1, &announcement);
            }
        }
        // 10 ms at 0.97 GB/s are 9,700 packets. 32 are outstanding for 0.8 · 30 + 0.2 · 46 µs.
        assert!(granted > 9_000 * PACKET, "{granted}");
        assert!(receiver.outstanding_bytes() <= 32 * PACKET);
    }

    #[test]
    fn a_first_window_counts_as_outstanding() {
        let mut receiver = receiver();
        for sender in 0..4 {
            let announcement = Announcement { uncredited_bytes: 10 * PACKET, ..wants(5) };
            receiver.on_announcement(at(0), sender, &announcement);
        }
        assert_eq!((receiver.outstanding_bytes(), receiver.poll(at(0))), (40 * PACKET, None));
        for _ in 0..10 {
            receiver.on_arrived(0, PACKET);
        }
        assert_eq!(receiver.poll(at(5)), Some(Grant { sender: 0, bytes: 2 * PACKET }));
        assert_eq!(receiver.poll(at(128)).map(|grant| grant.sender), Some(1), "what is lost of it is written off");
    }

    #[test]
    fn lost_grants_are_made_again_when_the_sender_announces_again() {
        let mut receiver = receiver();
        receiver.on_announcement(at(0), 1, &wants(4));
        assert_eq!(grants(&mut receiver, at(0), at(10)).len(), 2);
        receiver.on_announcement(at(20), 1, &wants(4));
        assert_eq!(receiver.poll(at(20)), None, "they may still be in flight");
        receiver.on_announcement(at(200), 1, &wants(4));
        assert_eq!(grants(&mut receiver, at(200), at(210)).len(), 2);
        let announcement = Announcement { received_bytes: 8 * PACKET, ..wants(2) };
        receiver.on_announcement(at(220), 1, &announcement);
        assert_eq!(grants(&mut receiver, at(220), at(230)).len(), 1, "it has seen them, and wants more");
    }

    #[test]
    fn a_sender_that_goes_or_withdraws_gets_nothing() {
        let mut receiver = receiver();
        receiver.on_announcement(at(0), 1, &wants(4));
        receiver.on_announcement(at(0), 2, &wants(4));
        receiver.poll(at(0));
        receiver.remove(1);
        receiver.on_announcement(at(1), 2, &wants(0));
        assert_eq!((grants(&mut receiver, at(1), at(1000)).len(), receiver.outstanding_bytes()), (0, 0));
    }

    #[test]
    fn wild_announcements_get_no_more_than_their_turns() {
        let mut receiver = receiver();
        let wild = Announcement {
            wanted_bytes: u64::MAX,
            received_bytes: u64::MAX,
            uncredited_bytes: u64::MAX,
            lost_bytes: u64::MAX,
        };
        for sender in 0..3 {
            receiver.on_announcement(at(0), sender, &wild);
            receiver.on_arrived(sender, PACKET);
        }
        receiver.on_announcement(at(0), 3, &wants(10));
        receiver.on_arrived(99, PACKET);
        let all = grants(&mut receiver, at(0), at(40));
        assert_eq!(all.iter().filter(|(_, grant)| grant.sender == 3).count(), 5);
        assert!((19..=21).contains(&all.len()), "the rate stays: {}", all.len());
        let honest = Announcement { lost_bytes: 0, ..wants(0) };
        receiver.on_announcement(at(41), 0, &honest);
        assert!(receiver.outstanding_bytes() <= 50 * PACKET);
    }

    #[test]
    fn limits_hold_whatever_the_round_trips_are() {
        let limits = ReceiverLimits {
            outstanding_bytes_min: 64 * PACKET,
            outstanding_bytes_max: 128 * PACKET,
            patience_min: Duration::from_millis(1),
        };
        let mut receiver = receiver().with_limits(limits);
        receiver.on_announcement(at(0), 1, &wants(10_000));
        grants(&mut receiver, at(0), at(900));
        assert_eq!(receiver.outstanding_bytes(), 64 * PACKET, "more than the product, and for longer than 128 µs");
        // One that holds its answers back: more is outstanding, but no more than that, and it is not waited for for ever.
        receiver.on_announcement(at(900), 2, &wants(10_000));
        receiver.set_round_trip(2, Duration::from_secs(1000));
        grants(&mut receiver, at(900), at(999));
        assert_eq!(receiver.outstanding_bytes(), 128 * PACKET);
        receiver.remove(1);
        receiver.on_announcement(at(1000), 2, &wants(0));
        assert_eq!(receiver.standing_of(2).map(|standing| standing.patience), Some(Duration::from_secs(4)));
        grants(&mut receiver, at(1000), at(5_100_000));
        assert_eq!(receiver.outstanding_bytes(), 0);
    }

    #[test]
    fn each_sender_has_its_own_patience() {
        let mut receiver = receiver();
        for (sender, micros) in [(1, 1000), (2, 10)] {
            receiver.on_announcement(at(0), sender, &wants(2));
            receiver.set_round_trip(sender, Duration::from_micros(micros));
        }
        assert_eq!(grants(&mut receiver, at(0), at(10)).len(), 2);
        receiver.poll(at(43));
        assert_eq!(receiver.outstanding_bytes(), 2 * PACKET, "the near one is given up");
        receiver.poll(at(4000));
        assert_eq!(receiver.outstanding_bytes(), 0);
    }

    #[test]
    fn a_sender_that_takes_credit_and_sends_nothing_must_ask_again() {
        let mut receiver = receiver();
        let liar = Announcement { wanted_bytes: u64::MAX, lost_bytes: u64::MAX, ..wants(0) };
        receiver.on_announcement(at(0), 1, &liar);
        receiver.on_announcement(at(0), 2, &wants(100_000));
        let mut counts = [0; 3];
        for micros in 0..1000 {
            while let Some(grant) = receiver.poll(at(micros)) {
                counts[grant.sender as usize] += 1;
                if grant.sender == 2 {
                    receiver.on_arrived(2, grant.bytes);
                }
            }
        }
        // It had its turns for 16 grants and four round trips of 32 µs, and the other all of them afterwards.
        assert!((17..80).contains(&counts[1]) && counts[2] > 380, "{counts:?}");
        receiver.on_announcement(at(1000), 1, &liar);
        assert!(grants(&mut receiver, at(1000), at(1020)).iter().any(|(_, grant)| grant.sender == 1));
    }

    #[test]
    fn copies_that_a_network_makes_are_no_room_for_more() {
        let mut receiver = receiver();
        receiver.on_announcement(at(0), 1, &wants(1000));
        assert_eq!(grants(&mut receiver, at(0), at(100)).len(), 16);
        receiver.on_arrived_total(1, 1_000_000 * PACKET);
        receiver.on_arrived_total(1, 3);
        assert_eq!(receiver.outstanding_bytes(), 0);
        // Ten packets of a first window might have been among them.
        assert_eq!(grants(&mut receiver, at(100), at(200)).len(), 16 + 5);
    }

    #[test]
    fn a_sender_that_wants_little_again_and_again_takes_no_memory() {
        let mut receiver = receiver();
        for step in 0..20_000 {
            if step == 10_000 {
                receiver.on_announcement(Instant::from_nanos(step), 2, &wants(1000));
            }
            let received_bytes = receiver.standing_of(1).map_or(0, |standing| standing.granted_bytes);
            let little = Announcement { wanted_bytes: 1, received_bytes, lost_bytes: u64::MAX, ..wants(0) };
            receiver.on_announcement(Instant::from_nanos(step), 1, &little);
            while receiver.poll(Instant::from_nanos(step)).is_some() {}
        }
        assert!(receiver.promises.len() <= 2 * PROMISES_MAX as usize, "{}", receiver.promises.len());
        let granted = receiver.standing_of(2).map_or(0, |standing| standing.granted_bytes);
        assert!(granted >= 6 * PACKET, "the other is not held up: {granted}");
    }

    #[test]
    fn a_late_driver_catches_up_by_one_grant() {
        let mut receiver = receiver();
        receiver.on_announcement(at(0), 1, &wants(100));
        assert!(receiver.poll(at(0)).is_some());
        assert!(receiver.poll(at(50)).is_some());
        assert!(receiver.poll(at(50)).is_some());
        assert_eq!(receiver.poll(at(50)), None);
    }
}
