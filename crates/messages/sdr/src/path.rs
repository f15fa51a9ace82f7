//! The path to the peer, as a sender sees it: how long it takes, how much may be in flight on it, and how fast it is
//! used.
//!
//! One for each queue pair, over all its channels and generations, on any device. Congestion control, and later several
//! paths, find all that depends on the path in one place.

use std::collections::VecDeque;

use longhaul_congestion::{Arrivals, Flow};
use longhaul_time::{Duration, Instant};
use longhaul_wire::control::DataArrivals;

use crate::round_trip::RoundTripTime;
use crate::shape::Shape;

/// Bursts that are remembered for finding the newest packet of a report. Older ones measure nothing.
const BURSTS_MAX: usize = 8192;

pub(crate) struct Path {
    pub(crate) round_trip: RoundTripTime,
    /// Writes that the peer has receives for.
    receives: u32,
    shape: Shape,
    flow: Flow,
    /// Bursts that may be reported, in order of sending.
    sent: VecDeque<SentBurst>,
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

impl Path {
    /// For writes of this shape.
    pub(crate) fn new(flow: Flow, shape: Shape) -> Self {
        let (round_trip, sent) = (RoundTripTime::default(), VecDeque::new());
        Path { round_trip, receives: 0, shape, flow, sent }
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
        self.receives_left().min(u32::try_from(by_congestion).unwrap_or(u32::MAX))
    }

    /// Receives of the peer that no write is in flight for.
    fn receives_left(&self) -> u32 {
        self.receives.saturating_sub(u32::try_from(self.flow.sampler().in_flight_packets()).unwrap_or(u32::MAX))
    }

    /// Whether nothing may be posted until the peer reports.
    pub(crate) fn is_shut(&self) -> bool {
        self.receives_left() == 0 || self.flow.window_room_bytes() < self.shape.write_wire_bytes()
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

    /// The peer has not answered for so long that what left before `now - horizon` is presumed lost.
    pub(crate) fn on_silence(&mut self, now: Instant, horizon: Duration) {
        self.flow.on_timeout(now, horizon);
    }

    /// The peer has reported how many writes it has consumed, and which arrived last. What left before `now - horizon`
    /// is settled with that. Returns whether more are consumed than was known.
    pub(crate) fn on_report(
        &mut self,
        consumed: u64,
        arrivals: Option<&DataArrivals>,
        now: Instant,
        horizon: Duration,
    ) -> bool {
        let newest = arrivals.and_then(|arrivals| self.number_of(arrivals));
        let held = Duration::from_nanos(arrivals.map_or(0, |arrivals| arrivals.held_ns));
        let marked = arrivals.map_or(0, |arrivals| arrivals.marked);
        let before = self.flow.sampler().delivered_packets();
        self.flow.on_report(now, &Arrivals { packets: consumed, marked, newest, held }, horizon);
        let sampler = self.flow.sampler();
        let settled = sampler.sent_packets() - sampler.in_flight_packets();
        while self.sent.front().is_some_and(|burst| burst.end <= settled) {
            self.sent.pop_front();
        }
        if self.sent.is_empty() {
            // A connection at rest takes no room for what was in flight once.
            self.sent.shrink_to(1);
        }
        self.flow.sampler().delivered_packets() > before
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
