//! Probing for bandwidth: the cycle of Down, Cruise, Refill and Up, and the long-term bound that it finds.

use longhaul_time::{Duration, Instant};
use rand_core::Rng as _;

use super::ambient_loss::DELAY_MIN;
use super::{BETA, Feedback, HEADROOM, Lateness, QUEUE_BUDGET, QUEUE_BUDGET_UP, RTT_UNKNOWN, State, UP_GAIN, Wan};
use crate::controller::Sample;

/// Rounds between probes at most: as often as a Reno flow in a queue of that many packets cuts its window.
const PROBE_ROUNDS_MAX: u64 = 63;
/// A cycle, and what it has shown of the bandwidth, lasts at least that long. Without a minimum, cycles at a round trip of 30 µs last
/// less than a millisecond, and a receiver that is kept off its processor for two of them erases the bandwidth: messages between two
/// namespaces of a host with 2 processors fell from 24 to 7 Gbit/s for a second and longer.
const CYCLE_TIME_MIN: Duration = Duration::from_millis(25);
/// A probe that has gained this much is followed by another after a few round trips.
const PROBE_GAINED: f64 = 1.15;
const PROBE_AGAIN_ROUNDS: u64 = 3;
/// Loss of this part of what was in flight, while probing for a quarter more.
const PATH_GONE: f64 = 0.3;
const PATH_GONE_PACKETS: u64 = 10;
/// Probes of a sender that pauses, after one (or Startup) that went too far, which end halfway there: going too far costs a message
/// dozens of packets.
const HELD_PROBES: u32 = 6;
/// What a loss leaves of the long-term bound of a sender that had nothing more to send, in bandwidth-delay products.
const APP_LIMITED_MIN: f64 = 1.05;
/// Round trips of a probe of such a sender at most: the next message would go further before anything is heard of this one.
const PAUSING_PROBE_ROUND_TRIPS: u32 = 2;

impl Wan {
    pub(super) fn update_probing(&mut self, sample: &Sample) {
        if !self.is_full {
            return;
        }
        // Before the bound is raised.
        let is_bound = self.is_window_limited && self.window >= self.up_bound();
        self.adapt_long_term_bounds(sample);
        let in_flight = sample.in_flight_bytes as f64;
        let state = self.state;
        match state {
            State::Down if self.is_time_to_probe(sample.now) => self.start_refill(sample),
            State::Down => {
                let has_room = in_flight <= (1.0 - HEADROOM) * self.in_flight_long;
                let drained = self.product(self.bandwidth_long(), self.arriving());
                if in_flight <= drained && (has_room || self.is_cruise_capped()) {
                    self.state = State::Cruise;
                }
            }
            State::Cruise if self.is_time_to_probe(sample.now) => self.start_refill(sample),
            State::Refill if self.is_round_start => self.start_up(sample),
            State::Up if self.is_time_to_go_down(sample, is_bound) => self.start_down(sample),
            _ => {}
        }
    }

    /// Cruising is bounded by one bandwidth-delay product, not by the long-term bound.
    pub(super) fn is_cruise_capped(&self) -> bool {
        (1.0 - HEADROOM) * self.in_flight_long <= self.product(self.bandwidth_long(), 1.0)
    }

    pub(super) fn adapt_long_term_bounds(&mut self, sample: &Sample) {
        if self.feedback == Feedback::Starting && self.is_round_start {
            self.feedback = Feedback::OfProbe;
        }
        if self.feedback == Feedback::Stopping && self.is_round_start {
            // The bandwidth is the maximum of two cycles.
            if !sample.is_app_limited && sample.now - self.bandwidth_cycle_at >= CYCLE_TIME_MIN {
                self.bandwidth_max = [self.bandwidth_max[1], 0.0];
                self.bandwidth_cycle_at = sample.now;
            }
            self.feedback = Feedback::None;
            self.has_probe_samples = false;
        }
        if self.is_too_high(sample) {
            if self.has_probe_samples {
                self.on_too_high(sample);
            }
            return;
        }
        if self.in_flight_long.is_infinite() {
            return;
        }
        self.in_flight_long = self.in_flight_long.max(sample.in_flight_bytes_at_sending as f64);
        if self.state == State::Up && !self.is_held() {
            self.raise_long_term_bound(sample);
        }
    }

    pub(super) fn on_too_high(&mut self, sample: &Sample) {
        self.has_probe_samples = false;
        let lost = sample.lost_packets_since_sending;
        let product = self.product(self.bandwidth(), 1.0);
        let in_flight = sample.in_flight_bytes_at_sending as f64;
        self.in_flight_long = match sample.is_app_limited {
            // A message that began on an empty path may have been too fast, and not too much.
            true => self.in_flight_long.min(in_flight.max(APP_LIMITED_MIN * product)),
            false => in_flight.max(BETA * product.min(self.in_flight_long)),
        };
        let measured = self.latest_bandwidth.max(self.previous_bandwidth);
        let is_gone = lost as f64 > PATH_GONE * sample.in_flight_packets_at_sending as f64 && lost >= PATH_GONE_PACKETS;
        if is_gone && measured > 0.0 && !sample.is_app_limited {
            // No probe loses as much on the path that was measured: it has less bandwidth now.
            self.bandwidth_max = self.bandwidth_max.map(|before| before.min(measured));
        }
        if self.state == State::Up {
            self.start_down(sample);
        }
        self.hold_probes();
    }

    /// Packets were lost because too much was sent: the next probes are held, for as long as the sender pauses.
    pub(super) fn hold_probes(&mut self) {
        self.held_probes = HELD_PROBES;
    }

    pub(super) fn raise_long_term_bound(&mut self, sample: &Sample) {
        if self.is_round_start {
            self.set_slope();
        }
        if self.is_window_limited && self.window >= self.in_flight_long {
            let share = sample.delivered_bytes as f64 / self.window.max(self.packet_bytes);
            self.in_flight_long += self.up_bytes_per_round * share;
        }
    }

    /// Twice as steep each round, from half the square root of the packets in flight on.
    pub(super) fn set_slope(&mut self) {
        // Less than proportional to what the flow has, so that a small flow gains more than a large one.
        let packets = self.in_flight_long.min(self.window) / self.packet_bytes;
        let first = (packets.sqrt() / 2.0).max(1.0) * self.packet_bytes;
        self.up_bytes_per_round = first * f64::from(1_u32 << self.up_rounds.min(20));
        self.up_rounds = (self.up_rounds + 1).min(20);
    }

    pub(super) fn is_time_to_probe(&self, now: Instant) -> bool {
        let product_packets = self.product(self.bandwidth(), 1.0) / self.packet_bytes;
        let rounds = (product_packets as u64).min(PROBE_ROUNDS_MAX);
        let again = self.probes_again && self.rounds_since_probe >= PROBE_AGAIN_ROUNDS;
        let waited = now - self.cycle_at;
        let has_waited_rounds = self.rounds_since_probe >= rounds.max(1) && waited >= CYCLE_TIME_MIN;
        waited >= self.probe_wait || has_waited_rounds || again
    }

    pub(super) fn is_time_to_go_down(&mut self, sample: &Sample, is_bound: bool) -> bool {
        // A queue that others keep up must not keep a small flow small.
        let queue_max = QUEUE_BUDGET_UP.max(self.queue_before_probe.as_secs_f64() + QUEUE_BUDGET);
        if self.is_mostly_marked(sample) || self.queue_delay().as_secs_f64() > queue_max {
            return true;
        }
        let is_long = sample.now - self.cycle_at > PAUSING_PROBE_ROUND_TRIPS * self.rtt.unwrap_or(RTT_UNKNOWN);
        if self.is_pausing && is_long || self.is_held() && is_bound {
            return true;
        }
        if is_bound {
            // The bound held the bandwidth down, not the path.
            self.reset_full_bandwidth(self.rate_of(sample).unwrap_or(0.0));
            return false;
        }
        self.is_full_now
    }

    /// Whether probes end before the place where one went too far. Flows that always send must go there to get their share from others.
    fn is_held(&self) -> bool {
        self.held_probes > 0 && self.is_pausing
    }

    /// What a probe may have in flight. A held one: half the queue that was too much.
    pub(super) fn up_bound(&self) -> f64 {
        match self.is_held() {
            true => self.in_flight_long.min((self.product(self.bandwidth_long(), 1.0) + self.in_flight_long) / 2.0),
            false => self.in_flight_long,
        }
    }

    /// By how much a probe is faster than the bandwidth. A message that begins on an empty path leaves at that pace for a round trip
    /// before anything is heard of it, so a held probe is only as much faster as fits into the queue.
    pub(super) fn up_gain(&self) -> f64 {
        match self.is_held() {
            true => (self.up_bound() / self.product(self.bandwidth_long(), 1.0)).clamp(1.0, UP_GAIN),
            false => UP_GAIN,
        }
    }

    pub(super) fn start_down(&mut self, sample: &Sample) {
        let bandwidth = self.bandwidth_long();
        // Gained from the path, not from others: then no queue has built up.
        let has_room = self.queue_delay() <= DELAY_MIN;
        self.probes_again =
            self.state == State::Up && has_room && bandwidth >= PROBE_GAINED * self.bandwidth_before_probe;
        if self.state == State::Up {
            self.held_probes = if self.probes_again { 0 } else { self.held_probes.saturating_sub(1) };
        }
        self.state = State::Down;
        self.reset_congestion_signals();
        self.cycle_at = sample.now;
        self.probe_wait = Duration::from_millis(2000 + u64::from(self.random.next_u32() % 1000));
        self.rounds_since_probe = u64::from(self.random.next_u32() & 1);
        self.feedback = Feedback::Stopping;
        self.start_round(sample);
    }

    pub(super) fn reset_congestion_signals(&mut self) {
        self.round_late = Lateness::default();
        self.round_marks = 0;
        (self.latest_bandwidth, self.previous_bandwidth, self.latest_in_flight) = (0.0, 0.0, 0.0);
    }

    pub(super) fn start_refill(&mut self, sample: &Sample) {
        self.state = State::Refill;
        self.reset_short_term_bounds();
        self.up_rounds = 0;
        self.bandwidth_before_probe = self.bandwidth_long();
        self.start_round(sample);
    }

    pub(super) fn start_up(&mut self, sample: &Sample) {
        self.state = State::Up;
        self.queue_before_probe = self.queue_delay();
        self.has_probe_samples = true;
        self.feedback = Feedback::Starting;
        self.cycle_at = sample.now;
        self.start_round(sample);
        self.reset_full_bandwidth(self.rate_of(sample).unwrap_or(0.0));
        self.set_slope();
    }
}
