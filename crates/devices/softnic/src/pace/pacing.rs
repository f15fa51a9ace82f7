//! How fast a queue pair sends, and how much it has in flight: congestion control, as far as a device has it.
//!
//! What decides is a [`Flow`] of crate `congestion`. This file reports to it, in its terms, what happens on a queue pair:
//!
//! ```text
//!   turn begins ──▶ room in bytes ──▶ packets leave ──▶ turn ends: sent at once, as one burst
//!   acknowledgement of a PSN ──▶ delivered up to the number of that packet
//!   sequence error           ──▶ one packet lost, all behind it discarded by the peer
//!   receiver not ready       ──▶ all discarded, none lost
//!   silence                  ──▶ all presumed lost
//! ```
//!
//! Only RC is acknowledged, so only RC has controllers that find the rate of a path. UC, UD and the answers to READs are
//! not: a controller without reports would neither find a rate nor back off. They keep a fixed rate. What answers READs is
//! controlled by the end that asks: what it has asked for is in flight, and at its pace.
//!
//! Packets of a flow have numbers in the order of sending, and a repeated packet has a new one. Sequence numbers of RC do
//! the same between two times that it goes back, so one pair of both is enough to convert.

use longhaul_congestion::{ControllerName, Flow, Pacer};
use longhaul_time::{Duration, Instant};
use longhaul_wire::Psn;

/// Headers of a WRITE's first packet, from IP (version 6) to ICRC.
pub(crate) const PACKET_HEADER_BYTES: u32 = 40 + 8 + 12 + 16 + 4;

/// Acknowledgements are requested at least this often for each window in flight: controllers want several reports in a
/// round trip.
const ACKNOWLEDGES_PER_WINDOW: u64 = 8;

/// The pace of one queue pair.
pub(crate) struct Pacing {
    flow: Flow,
    /// The pace of answers to READs and atomics, if it is not that of the flow.
    answers: Option<Pacer>,
    /// The flow's controller; `None` without one.
    name: Option<ControllerName>,
    /// A program has chosen the controller for this queue pair.
    pub(crate) is_chosen: bool,
    /// A full packet on the wire.
    packet_bytes: u64,
    /// What may still be sent in this turn.
    room_bytes: u64,
    /// Sent in this turn.
    turn: Turn,
    /// A packet, and its number in the flow.
    numbered: (Psn, u64),
    /// It went back, and sends again what comes before this. Means nothing once that is done.
    went_back: Option<Psn>,
    /// Packets with smaller numbers were sent before under other numbers.
    repeats_end: u64,
    /// The flow is for the network's sake, and packets that do not leave this host are not counted.
    pub(crate) spares_local: bool,
}

/// What was sent in a turn.
#[derive(Clone, Copy, Default)]
struct Turn {
    first: Psn,
    packets: u64,
    bytes: u64,
}

impl Pacing {
    /// With the flow of this controller, or of none, for packets of at most this size.
    pub(crate) fn new(name: Option<ControllerName>, flow: Flow, packet_bytes: u32) -> Self {
        Pacing {
            flow,
            answers: None,
            name,
            is_chosen: false,
            packet_bytes: packet_bytes.max(1).into(),
            room_bytes: 0,
            turn: Turn::default(),
            numbered: (Psn::default(), 0),
            went_back: None,
            repeats_end: 0,
            spares_local: false,
        }
    }

    pub(crate) fn name(&self) -> Option<ControllerName> {
        self.name
    }

    /// From now on it sends no faster than this.
    pub(crate) fn set_limit(&mut self, bits_per_second: Option<u64>) {
        self.flow.set_rate_max(bits_per_second);
        // A datagram queue pair has peers here and there.
        self.spares_local = bits_per_second.is_none();
    }

    /// From now on answers to READs and atomics have a pace of their own; `None` does not pace them.
    pub(crate) fn pace_answers_at(&mut self, bits_per_second: Option<u64>) {
        /// As controllers have it by default.
        const BURST: Duration = Duration::from_micros(500);
        let mut pacer = Pacer::new(u32::try_from(self.packet_bytes).unwrap_or(u32::MAX), BURST);
        pacer.set_rate(Instant::ZERO, bits_per_second);
        self.answers = Some(pacer);
    }

    /// From now on answers go at the pace of the flow.
    pub(crate) fn pace_answers_with_requests(&mut self) {
        self.answers = None;
    }

    /// Whether its controller goes by what is delivered, and not by a rate that somebody has chosen.
    pub(crate) fn is_measured(&self) -> bool {
        !matches!(self.name, None | Some(ControllerName::Fixed(_)))
    }

    /// Whether its controller goes by losses.
    pub(crate) fn heeds_losses(&self) -> bool {
        matches!(self.name, Some(ControllerName::Wan | ControllerName::Swift))
    }

    /// A deadline of the controller may have come.
    pub(crate) fn handle_deadline(&mut self, now: Instant) {
        if self.flow.next_deadline().is_some_and(|at| at <= now) {
            self.flow.on_deadline(now);
        }
    }

    /// Requests have a turn. With `must_ask` one packet may leave although the window is full: it is to ask for the
    /// acknowledgement that opens the window.
    pub(crate) fn begin_turn(&mut self, now: Instant, must_ask: bool) {
        self.handle_deadline(now);
        self.room_bytes = self.flow.room_bytes(now);
        let has_flight = self.flow.sampler().in_flight_packets() > 0;
        if must_ask && has_flight && !self.has_window_room() && self.flow.ready_at().is_none_or(|at| at <= now) {
            self.room_bytes = self.packet_bytes;
        }
    }

    /// Answers to READs and atomics have a turn.
    pub(crate) fn begin_answers(&mut self, now: Instant) {
        match &self.answers {
            Some(pacer) => self.room_bytes = pacer.room_bytes(now),
            None => self.room_bytes = self.flow.rate_room_bytes(now),
        }
    }

    /// Whether another packet may leave in this turn.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.room_bytes >= self.packet_bytes
    }

    /// Whether a full packet would be the last one in this turn.
    pub(crate) fn is_full_after_next(&self) -> bool {
        self.room_bytes < 2 * self.packet_bytes
    }

    /// Packets that may be in flight besides those that are, whatever the rate.
    pub(crate) fn window_room_packets(&self) -> u64 {
        self.flow.window_room_bytes().saturating_sub(self.turn.bytes) / self.packet_bytes
    }

    /// Packets that one READ may ask for when `outstanding` of them may be in flight: a burst, but as many as fill the
    /// window. Their answers arrive at the pace of the device that answers.
    pub(crate) fn question_packets_max(&self, outstanding: u8) -> u64 {
        if !self.is_measured() {
            return u64::MAX;
        }
        let of_window = self.window_bytes() / u64::from(outstanding.max(1));
        (self.room_bytes.max(of_window) / self.packet_bytes).min(self.window_room_packets()).max(1)
    }

    fn window_bytes(&self) -> u64 {
        self.flow.window_room_bytes().saturating_add(self.flow.sampler().in_flight_bytes())
    }

    /// An acknowledgement is to be requested after at most this many packets.
    pub(crate) fn acknowledge_packets(&self) -> u64 {
        (self.window_bytes() / self.packet_bytes / ACKNOWLEDGES_PER_WINDOW).max(1)
    }

    /// RC: this many packets from `first` on were asked for, with a question that takes `wire_bytes` itself. If answers are
    /// measured, they are in flight, and at the pace of this end: it alone hears of their losses.
    pub(crate) fn note_asked(&mut self, first: Psn, packets: u32, payload_bytes: u32, wire_bytes: u64) {
        let answer_bytes = u64::from(payload_bytes) + u64::from(packets) * u64::from(PACKET_HEADER_BYTES);
        self.note_sent(first, packets, if self.is_measured() { answer_bytes } else { wire_bytes });
    }

    /// RC: packets from `first` on have left.
    #[inline]
    pub(crate) fn note_sent(&mut self, first: Psn, packets: u32, wire_bytes: u64) {
        if self.turn.packets == 0 {
            self.turn.first = first;
        }
        self.turn.packets += u64::from(packets);
        self.turn.bytes += wire_bytes;
        self.room_bytes = self.room_bytes.saturating_sub(wire_bytes);
    }

    /// A packet has left that nobody acknowledges.
    #[inline]
    pub(crate) fn note_unacknowledged(&mut self, now: Instant, wire_bytes: u64) {
        self.flow.on_unreported_sent(now, wire_bytes);
        self.room_bytes = self.room_bytes.saturating_sub(wire_bytes);
    }

    /// An answer to a READ or an atomic has left.
    pub(crate) fn note_answered(&mut self, now: Instant, wire_bytes: u64) {
        match &mut self.answers {
            Some(pacer) => {
                pacer.on_sent(now, wire_bytes);
                self.room_bytes = self.room_bytes.saturating_sub(wire_bytes);
            }
            None => self.note_unacknowledged(now, wire_bytes),
        }
    }

    /// RC: the turn is over. `is_starved` when there was nothing to send, or something else held it up.
    pub(crate) fn end_turn(&mut self, now: Instant, is_starved: bool) {
        let Turn { first, packets, bytes } = std::mem::take(&mut self.turn);
        if packets > 0 {
            let number = self.flow.on_sent(now, packets, bytes);
            self.flow.on_left(now, packets);
            self.note_numbers(first, number);
        }
        if is_starved && self.has_room() {
            self.flow.on_app_limited();
        }
    }

    /// Packets were sent from `first` on, which has this number.
    fn note_numbers(&mut self, first: Psn, number: u64) {
        // It went back, or on to what turned out to have arrived.
        if self.number_of(first) != Some(number) {
            self.numbered = (first, number);
            let repeated = self.went_back.map_or(0, |sent_end| sent_end.distance_from(first));
            self.repeats_end = number + u64::try_from(repeated).unwrap_or(0);
        }
        // Close to what is in flight: sequence numbers wrap.
        let (psn, number) = self.numbered;
        let settled = self.flow.sampler().sent_packets() - self.flow.sampler().in_flight_packets();
        let ahead = u32::try_from(settled.saturating_sub(number)).unwrap_or(0);
        self.numbered = (psn.add(ahead), number + u64::from(ahead));
    }

    /// The number in the flow of a packet; `None` for one from before it went back last.
    fn number_of(&self, psn: Psn) -> Option<u64> {
        let (known, number) = self.numbered;
        u64::try_from(psn.distance_from(known)).ok().map(|distance| number + distance)
    }

    /// RC: everything before `end` has been acknowledged.
    pub(crate) fn note_acknowledged(&mut self, now: Instant, end: Psn) {
        if let Some(end) = self.number_of(end) {
            self.flow.on_acknowledged(now, end, end <= self.repeats_end);
        }
    }

    /// RC: the peer has missed a packet (`lost` is 1), or was not ready for one (0), and everything from there to `sent_end`
    /// is sent again.
    pub(crate) fn note_went_back(&mut self, now: Instant, lost: u64, sent_end: Psn) {
        self.flow.on_went_back(now, lost);
        self.went_back = Some(sent_end);
    }

    /// RC: nothing was heard for a time-out, and everything up to `sent_end` is sent again.
    pub(crate) fn note_timeout(&mut self, now: Instant, sent_end: Psn) {
        self.flow.on_timeout(now, Duration::ZERO);
        self.went_back = Some(sent_end);
    }

    /// The peer has sent a congestion notification packet.
    pub(crate) fn note_congestion(&mut self, now: Instant) {
        self.flow.on_notification(now);
    }

    fn has_window_room(&self) -> bool {
        self.flow.window_room_bytes() >= self.packet_bytes
    }

    /// When requests may leave, if that is not now. Never by itself while the window is full, unless it `must_ask`.
    pub(crate) fn blocked_until(&self, now: Instant, must_ask: bool) -> Option<Instant> {
        if !must_ask && !self.has_window_room() {
            return Some(Instant::FAR_FUTURE);
        }
        self.flow.ready_at().filter(|at| *at > now)
    }

    /// When answers to READs and atomics may leave, if that is not now.
    pub(crate) fn answers_blocked_until(&self, now: Instant) -> Option<Instant> {
        match &self.answers {
            Some(pacer) => pacer.ready_at().filter(|at| *at > now),
            None => self.flow.ready_at().filter(|at| *at > now),
        }
    }

    /// Whether requests and answers share one pace.
    pub(crate) fn shares_pace(&self) -> bool {
        self.answers.is_none()
    }

    /// When the controller's own timers are due. None while nothing is in flight: a rate that nobody uses may
    /// stay.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.flow.next_deadline().filter(|_| self.flow.sampler().in_flight_packets() > 0)
    }
}

#[cfg(test)]
mod tests {
    use longhaul_congestion::PathFacts;

    use super::*;

    const PACKET: u32 = 1000;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn pacing(name: ControllerName) -> Pacing {
        let facts = PathFacts { packet_bytes: PACKET, round_trip: None, line_bits_per_second: None, seed: 1 };
        Pacing::new(Some(name), Flow::new(name, &facts), PACKET)
    }

    /// A turn of this many packets.
    fn send(pacing: &mut Pacing, now: Instant, first: Psn, packets: u32) {
        pacing.begin_turn(now, false);
        (0..packets).for_each(|index| pacing.note_sent(first.add(index), 1, PACKET.into()));
        pacing.end_turn(now, false);
    }

    /// In flight, lost, discarded, delivered.
    fn counts(pacing: &Pacing) -> [u64; 4] {
        let sampler = pacing.flow.sampler();
        [sampler.in_flight_packets(), sampler.lost_packets(), sampler.discarded_packets(), sampler.delivered_packets()]
    }

    #[test]
    fn acknowledgements_count_across_the_wrap_and_after_going_back() {
        let mut pacing = pacing(ControllerName::Wan);
        let first = Psn::new(0xff_fffc);
        send(&mut pacing, at(0), first, 10);
        pacing.note_acknowledged(at(10), first.add(5));
        assert_eq!(counts(&pacing), [5, 0, 0, 5]);
        // The sixth is missing.
        pacing.note_went_back(at(11), 1, first.add(10));
        assert_eq!(counts(&pacing), [0, 1, 4, 5]);
        // An acknowledgement that was in flight says nothing new.
        pacing.note_acknowledged(at(12), first.add(5));
        send(&mut pacing, at(13), first.add(5), 8);
        assert_eq!(counts(&pacing), [8, 1, 4, 5]);
        pacing.note_acknowledged(at(23), first.add(9));
        assert_eq!(counts(&pacing), [4, 1, 4, 9]);
        pacing.note_acknowledged(at(24), first.add(13));
        assert_eq!(counts(&pacing), [0, 1, 4, 13]);
    }

    #[test]
    fn only_packets_that_were_sent_once_measure_round_trips() {
        let mut pacing = pacing(ControllerName::Wan);
        let first = Psn::new(100);
        send(&mut pacing, at(0), first, 10);
        pacing.note_timeout(at(100), first.add(10));
        assert_eq!(counts(&pacing), [0, 10, 0, 0], "nothing was heard of any of them");
        send(&mut pacing, at(100), first, 4);
        // The first ones have arrived after all: no round trip of 1 ms.
        pacing.note_acknowledged(at(101), first.add(10));
        assert_eq!(counts(&pacing), [0, 10, 0, 4], "no more than was sent");
        // So it goes on behind them.
        send(&mut pacing, at(102), first.add(10), 4);
        assert_eq!(counts(&pacing), [4, 10, 0, 4]);
        let is_repeat = |pacing: &Pacing, end: Psn| pacing.number_of(end).is_none_or(|end| end <= pacing.repeats_end);
        assert!(is_repeat(&pacing, first.add(10)) && !is_repeat(&pacing, first.add(11)));
        pacing.note_acknowledged(at(132), first.add(14));
        assert_eq!(counts(&pacing), [0, 10, 0, 8]);
    }

    #[test]
    fn a_full_window_waits_for_an_acknowledgement_unless_it_has_to_ask_for_one() {
        let mut pacing = pacing(ControllerName::Wan);
        let first = Psn::new(0);
        pacing.begin_turn(at(0), false);
        let mut sent = 0;
        while pacing.has_room() {
            pacing.note_sent(first.add(sent), 1, PACKET.into());
            sent += 1;
        }
        pacing.end_turn(at(0), false);
        assert_eq!(sent, 10, "the first window");
        assert_eq!(pacing.blocked_until(at(1000), false), Some(Instant::FAR_FUTURE));
        pacing.begin_turn(at(1000), false);
        assert!(!pacing.has_room());
        assert_eq!(pacing.blocked_until(at(1000), true), None);
        pacing.begin_turn(at(1000), true);
        assert!(pacing.has_room() && pacing.is_full_after_next());
        pacing.note_acknowledged(at(1001), first.add(sent));
        assert_eq!(pacing.blocked_until(at(1001), false), None);
    }

    #[test]
    fn what_a_read_asks_for_is_in_flight_and_takes_the_time_of_the_pace() {
        let mut pacing = pacing(ControllerName::Wan);
        pacing.begin_turn(at(1), false);
        assert_eq!(pacing.question_packets_max(16), 10);
        pacing.note_asked(Psn::new(0), 5, 5 * (PACKET - PACKET_HEADER_BYTES), 60);
        pacing.end_turn(at(1), false);
        assert_eq!((counts(&pacing)[0], pacing.flow.sampler().in_flight_bytes()), (5, 5000));
        assert!(pacing.blocked_until(at(1), false).is_some_and(|until| until < at(10)));
    }

    #[test]
    fn answers_have_a_pace_of_their_own_where_requests_are_measured() {
        let mut pacing = pacing(ControllerName::Wan);
        pacing.pace_answers_at(Some(8_000_000));
        send(&mut pacing, at(1000), Psn::new(0), 10);
        assert_eq!(pacing.answers_blocked_until(at(1000)), None, "a full window is about requests");
        pacing.begin_answers(at(1000));
        let mut answered = 0;
        while pacing.has_room() {
            pacing.note_answered(at(1000), PACKET.into());
            answered += 1;
        }
        assert_eq!(answered, 4, "a burst, and one more after an idle time");
        assert_eq!(pacing.answers_blocked_until(at(1000)), Some(at(1002)), "a packet in each millisecond");
        assert!(!pacing.shares_pace());
    }

    #[test]
    fn a_fixed_rate_is_for_requests_and_answers_together() {
        let mut pacing = pacing(ControllerName::Fixed(8_000_000));
        pacing.begin_turn(at(1000), false);
        pacing.note_sent(Psn::new(0), 2, 2 * u64::from(PACKET));
        pacing.end_turn(at(1000), false);
        assert!(pacing.shares_pace());
        assert_eq!(pacing.blocked_until(at(1000), false), Some(at(1002)));
        assert_eq!(pacing.answers_blocked_until(at(1000)), Some(at(1002)));
    }
}
