//! The path to the peer, as a sender sees it: how long it takes, how much may be in flight on it, and how fast it is
//! used.
//!
//! One for each queue pair, over all its channels and generations, on any device. Congestion control, and later several
//! paths, find all that depends on the path in one place.

use std::collections::VecDeque;

use longhaul_congestion::{Announcement, Arrivals, ControllerName, Credit, Flow, PathFacts};
use longhaul_time::{Duration, Instant};
use longhaul_wire::control::{CreditGrant, DataArrivals};

use crate::asking::backed_off;
use crate::attributes::QueuePairAttributes;
use crate::round_trip::RoundTripTime;
use crate::shape::Shape;

/// Bursts that are remembered for finding the newest packet of a report. Older ones measure nothing.
const BURSTS_MAX: usize = 2048;
/// Bursts that a path at rest keeps room for.
const BURSTS_AT_REST: usize = 4;
/// A peer that has reported nothing for a shorter time may only have been held up.
const SILENCE_MIN: Duration = Duration::from_millis(100);
/// Writes that may be in flight to a peer that has fallen silent.
const SILENT_WRITES: u32 = 4;
/// How long credit is good for at least, and how far apart announcements are at least: see [`Credit::with_patience_min`].
const CREDIT_PATIENCE_MIN: Duration = Duration::from_millis(5);
const ANNOUNCEMENT_GAP_MIN: Duration = Duration::from_micros(250);

pub(crate) struct Path {
    pub(crate) round_trip: RoundTripTime,
    /// Writes that the peer has receives for.
    receives: u32,
    shape: Shape,
    control: Control,
    flow: Flow,
    /// When a report said last that something has arrived; or when something was posted with nothing in flight.
    news_at: Instant,
    /// How often the peer has been silent since.
    silences: u32,
    /// Bursts that may be reported, in order of sending.
    sent: VecDeque<SentBurst>,
    /// All credit that was granted, as far as it is known.
    granted: u64,
}

/// What controls the rate, and what it never exceeds.
#[derive(Clone, Copy, Debug)]
struct Control {
    name: Option<ControllerName>,
    rate_max: Option<u64>,
    seed: u64,
}

/// Writes that were posted together.
#[derive(Clone, Copy, Debug)]
struct SentBurst {
    /// One past the number of its last write.
    end: u64,
    writes: u32,
    message: u64,
    first_packet: u32,
}

impl Control {
    /// Congestion control at its start.
    fn flow(&self, shape: &Shape, round_trip: Option<Duration>) -> Flow {
        let facts = PathFacts {
            packet_bytes: u32::try_from(shape.write_wire_bytes()).unwrap_or(u32::MAX),
            round_trip,
            line_bits_per_second: None,
            seed: self.seed,
        };
        let flow = match self.name {
            Some(ControllerName::Credit) => {
                let credit = Credit::new(&facts).with_patience_min(CREDIT_PATIENCE_MIN, ANNOUNCEMENT_GAP_MIN);
                Flow::with_controller(Box::new(credit), &facts)
            }
            Some(name) => Flow::new(name, &facts),
            None => Flow::unlimited(&facts),
        };
        flow.with_rate_max(self.rate_max)
    }
}

impl Path {
    /// For writes of this shape.
    pub(crate) fn new(attributes: &QueuePairAttributes, shape: Shape) -> Self {
        let (name, rate_max) = (attributes.congestion, attributes.rate_bits_per_second);
        let control = Control { name, rate_max, seed: attributes.random };
        Path {
            round_trip: RoundTripTime::default(),
            receives: 0,
            shape,
            control,
            flow: control.flow(&shape, None),
            news_at: Instant::ZERO,
            silences: 0,
            sent: VecDeque::new(),
            granted: 0,
        }
    }

    /// How long to wait for an answer; `guess` is a round trip before one was measured.
    pub(crate) fn patience(&self, guess: Duration) -> Duration {
        self.round_trip.patience(guess)
    }

    /// The peer has receives for this many writes.
    pub(crate) fn set_receives(&mut self, receives: u32) {
        self.receives = receives;
    }

    /// Writes that may be posted now.
    pub(crate) fn room(&mut self, now: Instant) -> u32 {
        let by_congestion = self.flow.room_bytes(now) / self.shape.write_wire_bytes();
        self.writes_left().min(u32::try_from(by_congestion).unwrap_or(u32::MAX))
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.flow.sampler().in_flight_packets()).unwrap_or(u32::MAX)
    }

    /// Receives of the peer that no write is in flight for; few, while it is silent.
    fn writes_left(&self) -> u32 {
        let most = if self.silences > 0 { self.receives.min(SILENT_WRITES) } else { self.receives };
        most.saturating_sub(self.in_flight())
    }

    /// Whether nothing may be posted until the peer reports.
    pub(crate) fn is_shut(&self) -> bool {
        self.writes_left() == 0 || self.flow.window_room_bytes() < self.shape.write_wire_bytes()
    }

    /// When the peer should be asked for a report, while nothing may be posted without one: at once if all its receives
    /// are in use. Congestion control waits for reports all the time, and they come without a question.
    pub(crate) fn asks_at(&self, patience: Duration) -> Instant {
        match self.receives <= self.in_flight() {
            true => Instant::ZERO,
            false => self.news_at + patience,
        }
    }

    /// When a peer that reports nothing has been silent for too long, while something is in flight to it.
    pub(crate) fn silent_at(&self, patience: Duration) -> Option<Instant> {
        let wait = backed_off((patience * 2).max(SILENCE_MIN), self.silences);
        (self.in_flight() > 0).then(|| self.news_at + wait)
    }

    /// The peer has reported nothing for too long: what left before `now - horizon` is presumed lost.
    pub(crate) fn on_silence(&mut self, now: Instant, horizon: Duration) {
        self.flow.on_timeout(now, horizon);
        self.silences = self.silences.saturating_add(1);
        self.news_at = now;
    }

    /// When the rate lets more be posted, if the window does.
    pub(crate) fn ready_at(&self) -> Option<Instant> {
        self.flow.ready_at()
    }

    /// The rate at which data is sent now, in bits per second on the wire; `None` when it is not limited.
    pub(crate) fn bits_per_second(&self) -> Option<u64> {
        self.flow.bits_per_second()
    }

    /// When the rate allows data that does not go through `room`, for [`Path::on_data_in_control`].
    pub(crate) fn rate_free_at(&self) -> Instant {
        self.flow.ready_at().unwrap_or(Instant::ZERO)
    }

    /// Data leaves in a control message. It counts against the rate, and is not reported.
    pub(crate) fn on_data_in_control(&mut self, wire_bytes: u64, now: Instant) {
        self.flow.on_unreported_sent(now, wire_bytes);
    }

    /// Writes were given to the device, of a message from a packet on, with `wire_bytes` on the wire.
    pub(crate) fn on_posted(&mut self, message: u64, first_packet: u32, writes: u32, wire_bytes: u64, now: Instant) {
        if self.in_flight() == 0 {
            self.news_at = now;
        }
        let first = self.flow.on_sent(now, writes.into(), wire_bytes);
        if self.sent.len() == BURSTS_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back(SentBurst { end: first + u64::from(writes), writes, message, first_packet });
    }

    /// Writes have left the device.
    pub(crate) fn on_left(&mut self, writes: u32, now: Instant) {
        self.flow.on_left(now, writes.into());
    }

    /// There was room, and nothing to send.
    pub(crate) fn on_nothing_to_send(&mut self) {
        self.flow.on_app_limited();
    }

    /// The round trip to the peer has been measured. Congestion control that has not begun begins with it: a guess would
    /// be the wrong rate for most paths. Credit that has come already is not given twice, so that is a beginning, too.
    pub(crate) fn on_round_trip(&mut self) {
        if self.flow.sampler().sent_packets() == 0 && self.granted == 0 {
            self.flow = self.control.flow(&self.shape, self.round_trip.smoothed);
        }
        self.round_trip.least.into_iter().for_each(|least| self.flow.on_round_trip(least));
    }

    /// The peer has reported how many writes it has consumed, and which arrived last; `arrival` is when the report came,
    /// if that is known. What left before `now - horizon` is settled with it. Returns whether more are consumed than was
    /// known.
    pub(crate) fn on_report(
        &mut self,
        consumed: u64,
        arrivals: Option<&DataArrivals>,
        arrival: Option<Instant>,
        now: Instant,
        horizon: Duration,
    ) -> bool {
        let newest = arrivals.and_then(|arrivals| self.number_of(arrivals));
        let held = match (arrivals, arrival) {
            (Some(arrivals), Some(_)) => Duration::from_nanos(arrivals.held_ns),
            // Measures nothing.
            _ => Duration::MAX,
        };
        let marked = arrivals.map_or(0, |arrivals| arrivals.marked);
        let sample = self.flow.on_report(now, &Arrivals { packets: consumed, marked, newest, held }, horizon);
        if sample.marked_packets > 0 {
            // What a notification packet would say; reports are no more frequent than these are.
            self.flow.on_notification(now);
        }
        let is_news = sample.delivered_packets > 0;
        if is_news {
            (self.news_at, self.silences) = (now, 0);
        }
        let sampler = self.flow.sampler();
        let settled = sampler.sent_packets() - sampler.in_flight_packets();
        while self.sent.front().is_some_and(|burst| burst.end <= settled) {
            self.sent.pop_front();
        }
        if self.sent.len() <= 1 && self.sent.capacity() > BURSTS_AT_REST {
            // A connection at rest takes no room for what was in flight once.
            self.sent.shrink_to(BURSTS_AT_REST);
        }
        is_news
    }

    /// The number of the write that arrived last; `None` if it was sent more than once, or is not known any more.
    fn number_of(&self, arrivals: &DataArrivals) -> Option<u64> {
        let shape = &self.shape;
        let fields = shape.layout.decode(arrivals.immediate);
        let mut matching = self.sent.iter().rev().filter_map(|burst| {
            let is_it = shape.slot_of(burst.message) == fields.slot
                && shape.generation_of(burst.message) == u32::from(arrivals.generation);
            let write = fields.packet.checked_sub(burst.first_packet).filter(|_| is_it)? / shape.packets_per_write;
            (write < burst.writes).then(|| burst.end - u64::from(burst.writes - write))
        });
        let number = matching.next()?;
        matching.next().is_none().then_some(number)
    }

    /// Whether the controller asks the peer for credit, and so must know what is to be sent.
    pub(crate) fn announces(&self) -> bool {
        self.control.name == Some(ControllerName::Credit)
    }

    /// This many writes wait to be posted. Returns what is to be announced to the peer now, if anything is.
    pub(crate) fn on_backlog(&mut self, writes: u64, now: Instant) -> Option<Announcement> {
        // Full ones: a write is posted only when there is room for a full one.
        self.flow.on_backlog(now, writes.saturating_mul(self.shape.write_wire_bytes()));
        let announcement = self.flow.announcement(now)?;
        Some(Announcement { received_bytes: self.granted, ..announcement })
    }

    /// The peer has granted credit.
    pub(crate) fn on_grant(&mut self, grant: &CreditGrant, now: Instant) {
        let missed = grant.granted.saturating_sub(self.granted);
        self.granted += missed;
        let bytes = missed.min(grant.recent);
        if bytes > 0 {
            self.flow.on_credit(now, bytes);
        }
    }

    /// When [`Path::on_deadline`] is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.flow.next_deadline()
    }

    /// Does what the controller has to do at this time.
    pub(crate) fn on_deadline(&mut self, now: Instant) {
        if self.flow.next_deadline().is_some_and(|at| at <= now) {
            self.flow.on_deadline(now);
        }
    }

    /// Writes that are presumed lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.flow.sampler().lost_packets()
    }
}

#[cfg(test)]
mod tests {
    use longhaul_verbs::{Gid, Mtu};

    use super::*;

    #[test]
    fn credit_that_comes_before_anything_is_sent_is_kept() {
        let mut attributes = QueuePairAttributes::new(Gid::default(), 4791, Mtu::Bytes1024);
        attributes.congestion = Some(ControllerName::Credit);
        let layout = attributes.layout;
        let shape = Shape { layout, packet_bytes: 1024, packets_per_write: 1, generations: 4, channels: 1 };
        let mut path = Path::new(&attributes, shape);
        path.set_receives(1000);
        let now = Instant::from_nanos(1_000_000);
        path.on_round_trip();
        let grant = CreditGrant { granted: 30 * shape.write_wire_bytes(), recent: 30 * shape.write_wire_bytes() };
        path.on_grant(&grant, now);
        assert_eq!(path.room(now), 30);
        path.on_round_trip();
        path.on_grant(&grant, now);
        assert_eq!(path.room(now), 30, "a repetition adds nothing, so nothing else would bring it back");
    }
}
