//! `wan`: for paths of unknown bandwidth with loss of their own.
//!
//! In the manner of BBR version 3 (draft-ietf-ccwg-bbr): a model of the path, its bandwidth and its shortest round trip,
//! decides the rate and the window, and is kept up to date by probing:
//!
//! ```text
//!  Startup ─▶ Drain ─▶ Down ─▶ Cruise ─▶ Refill ─▶ Up ─┐        every 5 s, from any of them:
//!                       ▲                              │         ProbeRtt, half the window for 200 ms
//!                       └──────────────────────────────┘
//! ```
//!
//! What differs from the draft, and why:
//!
//! 1. The loss that the path has without congestion is estimated ([`ambient_loss`]), and only loss beyond it counts as
//!    congestion. Plain BBRv3 keeps 1 % of the link at 2 % of random loss.
//! 2. The short-term bounds are cut only for losses at a long queueing delay.
//! 3. Rate and window are divided by the share of packets that arrive: what is measured is what arrives.
//! 4. The window is bound to 10 ms of queue (20 ms while probing), so that deep queues stay short and flows that join
//!    late get their share.
//! 5. While cruising the window may always be one bandwidth-delay product: small queues would keep the link idle.
//! 6. Probing upwards begins steeper, and begins again soon after it has gained from an idle path: links are fast, and
//!    change.
//! 7. Marks (ECN) and notifications of them (CNP) cut the short-term bounds by 0.85 once a round (RFC 8511), at any
//!    round trip.
//! 8. A receiver that takes packets in order only (go-back-N) shows one loss of a flight, whatever else was lost of it,
//!    and each costs a whole flight. So one loss at a long queueing delay ends Startup or a probe, and losses add up over
//!    rounds.
//! 9. A sender of short messages, one at a time, is paced by how fast such messages arrive: over a round trip it shows
//!    only how long they are. Its own pauses show the shortest round trip, so it needs no ProbeRtt, and after a probe that
//!    went too far its next ones do not: it probes on an empty path, a round trip ahead of what it hears.

mod aggregation;
mod ambient_loss;
mod probing;
mod round_trip;
mod short_term;
mod trains;

use longhaul_time::{Duration, Instant};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng as _;

use crate::controller::{Controller, PathFacts, Sample};
use aggregation::Aggregation;
use ambient_loss::{AmbientLoss, DELAY_MIN, Phase};

const STARTUP_GAIN: f64 = 2.77;
const DRAIN_GAIN: f64 = 0.5;
const DOWN_GAIN: f64 = 0.9;
const UP_GAIN: f64 = 1.25;
const WINDOW_GAIN: f64 = 2.0;
const WINDOW_GAIN_UP: f64 = 2.25;
const WINDOW_GAIN_PROBE_RTT: f64 = 0.5;
/// A little below the bandwidth, so that a queue that has built up drains.
const PACING_MARGIN: f64 = 0.99;
/// Part of the long-term bound that is left to others.
const HEADROOM: f64 = 0.15;
/// Loss beyond the ambient loss that is too much.
const LOSS_TOO_HIGH: f64 = 0.02;
/// What a cut leaves.
const BETA: f64 = 0.7;
const BETA_ECN: f64 = 0.85;
/// Growth by less than that is none.
const FULL_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u32 = 3;
/// Separate reports of loss in a round, before Startup ends by it.
const STARTUP_LOSSES: u32 = 6;
const QUEUE_BUDGET: f64 = 0.010;
const QUEUE_BUDGET_UP: f64 = 0.020;
const WINDOW_PACKETS_MIN: f64 = 4.0;
const WINDOW_PACKETS_FIRST: f64 = 10.0;
/// Fewer marks in a report show nothing.
const MARKS_MIN: u64 = 4;
/// A slower sender would hear nothing of a path that recovers.
const PACKETS_PER_SECOND_MIN: f64 = 4.0;
/// Before the first sample.
const RTT_UNKNOWN: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

/// What reports are about, with regard to the last probe for bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feedback {
    None,
    /// The probe has begun, reports are about what was sent before.
    Starting,
    /// Reports are about the probe.
    OfProbe,
    /// The probe has ended, reports are still about it.
    Stopping,
}

/// The controller; see the module.
#[derive(Debug)]
pub struct Wan {
    packet_bytes: f64,
    random: ChaCha8Rng,
    state: State,
    window: f64,
    pacing: f64,
    /// Without what short messages have shown.
    model_pacing: f64,

    // Rounds: a round has passed when something is delivered that was sent after it began.
    round_end_bytes: u64,
    rounds: u64,
    is_round_start: bool,

    // Bandwidth, in bytes per second: the maximum of this cycle and of the one before, which began then.
    bandwidth_max: [f64; 2],
    bandwidth_cycle_at: Instant,
    /// What messages shorter than a round trip have shown, of this time and the one before; for as long as the sender has nothing
    /// more to send.
    train_max: [f64; 2],
    train_bytes: f64,
    /// The last round that too much was lost in for trains as fast as these.
    train_cut_round: u64,
    is_app_limited: bool,
    full_bandwidth: f64,
    full_rounds: u32,
    is_full_now: bool,
    /// The bandwidth has been found once.
    is_full: bool,

    // Round trips.
    rtt: Option<Duration>,
    /// The shortest of this round.
    round_rtt_min: Option<Duration>,
    min_rtt: Option<Duration>,
    min_rtt_at: Instant,
    probe_rtt_min: Option<Duration>,
    probe_rtt_min_at: Instant,
    /// When the path was last nearly empty because the sender had paused, and whether that was lately.
    drained_at: Option<Instant>,
    is_pausing: bool,
    probe_rtt_ends: Option<Instant>,
    has_probe_rtt_round: bool,
    window_before: f64,

    // Bounds.
    in_flight_long: f64,
    bandwidth_short: f64,
    in_flight_short: f64,
    latest_bandwidth: f64,
    previous_bandwidth: f64,
    latest_in_flight: f64,
    /// Of this round, at a long queueing delay.
    round_late: Lateness,
    /// The same of the rounds before, if the receiver takes packets in order only.
    carried_late: Lateness,
    round_marks: u64,
    /// Congestion notification packets since the last report.
    notifications: u64,
    round_losses: u32,
    ambient: AmbientLoss,
    aggregation: Aggregation,

    // Probing for bandwidth.
    cycle_at: Instant,
    probe_wait: Duration,
    rounds_since_probe: u64,
    probes_again: bool,
    bandwidth_before_probe: f64,
    queue_before_probe: Duration,
    feedback: Feedback,
    has_probe_samples: bool,
    /// Probes still to come that end before the place where one went too far.
    held_probes: u32,
    up_rounds: u32,
    up_bytes_per_round: f64,
    /// The window was full since the last report.
    is_window_limited: bool,
    is_idle_restart: bool,
}

/// Packets whose queueing delay was long.
#[derive(Clone, Copy, Debug, Default)]
struct Lateness {
    packets: f64,
    lost: f64,
    /// A receiver in order has discarded what came after a loss.
    has_discarded: bool,
}

impl Wan {
    /// At its start.
    pub fn new(facts: &PathFacts) -> Self {
        let packet_bytes = f64::from(facts.packet_bytes.max(1));
        let window = WINDOW_PACKETS_FIRST * packet_bytes;
        let rtt = facts.round_trip.unwrap_or(RTT_UNKNOWN).max(Duration::from_micros(1));
        let pacing = (STARTUP_GAIN * window / rtt.as_secs_f64()).max(PACKETS_PER_SECOND_MIN * packet_bytes);
        Wan {
            packet_bytes,
            random: ChaCha8Rng::seed_from_u64(facts.seed),
            state: State::Startup,
            window,
            pacing,
            model_pacing: pacing,
            round_end_bytes: 0,
            rounds: 0,
            is_round_start: false,
            bandwidth_max: [0.0; 2],
            bandwidth_cycle_at: Instant::ZERO,
            train_max: [0.0; 2],
            train_bytes: 0.0,
            train_cut_round: 0,
            is_app_limited: false,
            full_bandwidth: 0.0,
            full_rounds: 0,
            is_full_now: false,
            is_full: false,
            rtt: None,
            round_rtt_min: None,
            min_rtt: None,
            min_rtt_at: Instant::ZERO,
            probe_rtt_min: None,
            probe_rtt_min_at: Instant::ZERO,
            drained_at: None,
            is_pausing: false,
            probe_rtt_ends: None,
            has_probe_rtt_round: false,
            window_before: window,
            in_flight_long: f64::INFINITY,
            bandwidth_short: f64::INFINITY,
            in_flight_short: f64::INFINITY,
            latest_bandwidth: 0.0,
            previous_bandwidth: 0.0,
            latest_in_flight: 0.0,
            round_late: Lateness::default(),
            carried_late: Lateness::default(),
            round_marks: 0,
            notifications: 0,
            round_losses: 0,
            ambient: AmbientLoss::default(),
            aggregation: Aggregation::default(),
            cycle_at: Instant::ZERO,
            probe_wait: Duration::ZERO,
            rounds_since_probe: 0,
            probes_again: false,
            bandwidth_before_probe: 0.0,
            queue_before_probe: Duration::ZERO,
            feedback: Feedback::None,
            has_probe_samples: false,
            held_probes: 0,
            up_rounds: 0,
            up_bytes_per_round: 0.0,
            is_window_limited: false,
            is_idle_restart: false,
        }
    }

    /// The loss that the path has without congestion, as a share of what is sent.
    pub fn ambient_loss(&self) -> f64 {
        self.ambient.share()
    }

    fn bandwidth_long(&self) -> f64 {
        self.bandwidth_max[0].max(self.bandwidth_max[1])
    }

    fn bandwidth(&self) -> f64 {
        self.bandwidth_long().min(self.bandwidth_short)
    }

    /// Bytes in flight that fill the path at this part of a bandwidth.
    fn product(&self, bandwidth: f64, gain: f64) -> f64 {
        match self.min_rtt {
            Some(min_rtt) => gain * bandwidth * min_rtt.as_secs_f64() / self.arriving(),
            None => WINDOW_PACKETS_FIRST * self.packet_bytes,
        }
    }

    /// The share of packets that a path without congestion delivers.
    fn arriving(&self) -> f64 {
        1.0 - self.ambient.share()
    }

    fn queue_delay(&self) -> Duration {
        match (self.rtt, self.min_rtt) {
            (Some(rtt), Some(min_rtt)) => rtt.saturating_sub(min_rtt),
            _ => Duration::ZERO,
        }
    }

    /// Whether the queueing delay is long.
    fn is_late(&self) -> bool {
        self.queue_delay() > DELAY_MIN.max(self.ambient.delay_max() / 2)
    }

    // --- what a sample changes, in order -----------------------------------------------------------------------------

    fn update_round(&mut self, sample: &Sample) {
        // Repeated packets measure no round trip, but rounds pass with them.
        let is_measured = sample.round_trip.is_some() || sample.delivery_rate.is_some();
        self.is_round_start = is_measured && sample.delivered_bytes_at_sending >= self.round_end_bytes;
        if self.is_round_start {
            self.start_round(sample);
            self.rounds += 1;
            self.rounds_since_probe += 1;
        }
    }

    fn start_round(&mut self, sample: &Sample) {
        self.round_end_bytes = sample.delivered_bytes_total.max(1);
    }

    fn update_bandwidth(&mut self, sample: &Sample) {
        self.update_trains(sample);
        let Some(rate) = self.rate_of(sample) else { return };
        self.is_app_limited = sample.is_app_limited;
        self.latest_bandwidth = self.latest_bandwidth.max(rate);
        self.latest_in_flight = self.latest_in_flight.max(delivered_in_round_trip(sample));
        if rate >= self.bandwidth_long() || !sample.is_app_limited {
            self.bandwidth_max[1] = self.bandwidth_max[1].max(rate);
        }
    }

    /// The delivery rate, in bytes per second, if the sample is long enough to show one.
    fn rate_of(&self, sample: &Sample) -> Option<f64> {
        let rate = sample.delivery_rate.filter(|_| self.min_rtt.is_none_or(|least| sample.rate_interval >= least));
        rate.map(|rate| rate as f64 / 8.0)
    }

    fn count_losses(&mut self, sample: &Sample) {
        let lost = sample.lost_packets as i64 - sample.found_packets as i64;
        let delay = self.queue_delay();
        self.ambient.count(sample.now, sample.sent_at, sample.delivered_packets, lost, delay);
        if self.is_late() {
            self.round_late.packets += sample.delivered_packets as f64 + lost as f64;
            self.round_late.lost += lost as f64;
            self.round_late.has_discarded |= lost > 0 && sample.discarded_packets > 0;
        }
        self.round_marks += sample.marked_packets;
        self.round_losses += u32::from(sample.lost_packets > 0);
    }

    fn phase(&self) -> Phase {
        match self.state {
            State::Startup => Phase::Beginning,
            State::Cruise => Phase::Steady,
            // At the full rate nothing is drained.
            State::Down if self.is_pausing => Phase::Probing,
            State::Drain | State::Down | State::ProbeRtt => Phase::Draining,
            State::Refill | State::Up => Phase::Probing,
        }
    }

    /// Whether so much was lost around the newest packet that too much was in flight when it was sent.
    fn is_too_high(&self, sample: &Sample) -> bool {
        let sent = sample.in_flight_packets_at_sending as f64;
        let ambient = self.ambient.share() * sent;
        let excess = sample.lost_packets_since_sending as f64 - ambient - 2.0 * ambient.sqrt();
        sent > 0.0 && (excess > LOSS_TOO_HIGH * sent || self.is_of_full_queue(sample))
    }

    /// A receiver in order misses a packet, and the queue is long: it shows one loss of a flight, whatever else was lost of
    /// it.
    fn is_of_full_queue(&self, sample: &Sample) -> bool {
        sample.lost_packets > 0 && sample.discarded_packets > 0 && self.is_late()
    }

    fn check_full_bandwidth(&mut self, sample: &Sample) {
        if self.is_full_now || !self.is_round_start || sample.is_app_limited {
            return;
        }
        let rate = self.rate_of(sample).unwrap_or(0.0);
        if rate >= self.full_bandwidth * FULL_GROWTH {
            self.reset_full_bandwidth(rate);
            return;
        }
        self.full_rounds += 1;
        self.is_full_now = self.full_rounds >= FULL_ROUNDS;
    }

    fn reset_full_bandwidth(&mut self, rate: f64) {
        (self.full_bandwidth, self.full_rounds, self.is_full_now) = (rate, 0, false);
    }

    fn check_startup(&mut self, sample: &Sample) {
        let losses = match self.is_round_start {
            true => std::mem::take(&mut self.round_losses),
            false => self.round_losses,
        };
        if self.state != State::Startup {
            return;
        }
        // A path with bursts of loss is not full: that shows in the delay, or in a bandwidth that no longer grows.
        let is_suspicious = self.queue_delay() > DELAY_MIN || self.full_rounds > 0;
        let is_lossy = losses >= STARTUP_LOSSES && self.is_too_high(sample) && is_suspicious;
        // A receiver in order shows one loss in a round trip, and a sender that something else holds up now and then never
        // sees that its bandwidth is full: it would go on for ever. One loss says little of how much is too much.
        let is_overrun = self.is_of_full_queue(sample);
        // All through a round: one late report is the host's doing.
        let queued = self.round_rtt_min.and_then(|rtt| Some(rtt.saturating_sub(self.min_rtt?))).unwrap_or_default();
        let is_queued = self.is_round_start && queued.as_secs_f64() > QUEUE_BUDGET_UP.max(self.min_rtt_secs());
        if self.is_round_start {
            self.round_rtt_min = None;
        }
        self.round_rtt_min = [self.round_rtt_min, sample.round_trip].into_iter().flatten().min();
        if self.is_full_now || is_lossy || is_overrun || is_queued || self.is_mostly_marked(sample) {
            if is_lossy {
                let product = self.product(self.bandwidth_long(), 1.0);
                self.in_flight_long = product.max(delivered_in_round_trip(sample));
                self.hold_probes();
            }
            self.is_full = true;
            self.state = State::Drain;
            self.cycle_at = sample.now;
        }
    }

    fn min_rtt_secs(&self) -> f64 {
        self.min_rtt.unwrap_or(RTT_UNKNOWN).as_secs_f64()
    }

    fn check_drain(&mut self, sample: &Sample) {
        if self.state != State::Drain {
            return;
        }
        let is_drained = sample.in_flight_bytes as f64 <= self.product(self.bandwidth_long(), 1.0);
        if is_drained || sample.now - self.cycle_at > 3 * self.rtt.unwrap_or(RTT_UNKNOWN) {
            self.start_down(sample);
        }
    }

    fn set_pacing(&mut self) {
        let gain = match self.state {
            State::Startup => STARTUP_GAIN,
            State::Drain => DRAIN_GAIN,
            State::Down if !self.is_pausing => DOWN_GAIN,
            State::Up => self.up_gain(),
            // The queue of a sender that pauses drains in its pauses.
            State::Down | State::Cruise | State::Refill | State::ProbeRtt => 1.0,
        };
        // While the queue is drained no more is sent than the path delivers: otherwise loss that the sender causes itself
        // would look like the path's own, and the rate would rise with it.
        let is_draining = self.phase() == Phase::Draining;
        let arriving = if is_draining { 1.0 } else { self.arriving() };
        let paced_at = |bandwidth: f64| bandwidth * PACING_MARGIN / arriving;
        let pacing = paced_at(gain * self.bandwidth());
        if pacing > 0.0 && (self.is_full || pacing > self.model_pacing) {
            self.model_pacing = pacing.max(PACKETS_PER_SECOND_MIN * self.packet_bytes);
        }
        // Trains grow, too, as long as the path follows; and get slower in any state.
        self.pacing = self.model_pacing.max(paced_at(UP_GAIN * self.train_bandwidth()));
    }

    fn set_window(&mut self, sample: &Sample) {
        let bandwidth = self.bandwidth();
        let gain = if self.state == State::Up { WINDOW_GAIN_UP } else { WINDOW_GAIN };
        // Without a round trip nothing is known, and the window stays what it was at first.
        let extra = if self.min_rtt.is_some() { self.aggregation.extra_bytes() } else { 0.0 };
        let mut most = self.product(bandwidth, gain) + extra;
        if self.is_full {
            most = most.min(self.queue_budget(bandwidth) + extra);
        }
        // Two bursts and one report at least.
        let floor = WINDOW_PACKETS_MIN * self.packet_bytes + 2.0 * self.model_pacing * 0.0005;
        most = most.max(floor);
        let grown = self.window + sample.delivered_bytes as f64;
        self.window = match self.is_full {
            true => grown.min(most),
            false if self.window < most => grown,
            false => self.window,
        };
        let bound = match self.state {
            State::Cruise => {
                let product = self.product(self.bandwidth_long(), 1.0) + extra;
                ((1.0 - HEADROOM) * self.in_flight_long).max(product)
            }
            State::ProbeRtt => self.probe_rtt_window().min(self.in_flight_long),
            State::Up => self.up_bound(),
            _ => self.in_flight_long,
        };
        let least = WINDOW_PACKETS_MIN * self.packet_bytes;
        self.window = self.window.min(bound).min(self.in_flight_short).max(least);
    }

    /// Most of what was delivered met congestion: a probe has found the end of the path. Single marks are others' bursts.
    /// A notification stands for any number of marks in its interval.
    fn is_mostly_marked(&self, sample: &Sample) -> bool {
        let is_mostly_marked =
            sample.marked_packets >= MARKS_MIN && 2 * sample.marked_packets > sample.delivered_packets;
        is_mostly_marked || self.notifications >= MARKS_MIN
    }

    /// Bytes in flight that keep no more than a few milliseconds of queue.
    fn queue_budget(&self, bandwidth: f64) -> f64 {
        let min_rtt = self.min_rtt_secs();
        let time = match self.state {
            State::Up => UP_GAIN * min_rtt + QUEUE_BUDGET_UP,
            _ => min_rtt + QUEUE_BUDGET,
        };
        bandwidth * time / self.arriving()
    }
}

/// Delivered between the sending of the newest packet and its report: what was in flight and arrived.
fn delivered_in_round_trip(sample: &Sample) -> f64 {
    sample.delivered_bytes_total.saturating_sub(sample.delivered_bytes_at_sending) as f64
}

impl Controller for Wan {
    fn on_sent(&mut self, _now: Instant, _bytes: u64, in_flight_bytes: u64) {
        self.is_window_limited |= in_flight_bytes as f64 + self.packet_bytes > self.window;
    }

    fn on_restart(&mut self, now: Instant) {
        // What was learned is kept, and the rate is the bandwidth, without gain.
        self.is_idle_restart = true;
        self.aggregation = Aggregation::default();
        let least = PACKETS_PER_SECOND_MIN * self.packet_bytes;
        if matches!(self.state, State::Down | State::Cruise | State::Refill | State::Up) {
            let paced_at = |bandwidth: f64| (bandwidth * PACING_MARGIN / self.arriving()).max(least);
            (self.model_pacing, self.pacing) =
                (paced_at(self.bandwidth()), paced_at(self.bandwidth().max(self.train_bandwidth())));
        }
        if self.state == State::ProbeRtt && self.probe_rtt_ends.is_some_and(|ends| now > ends) {
            self.probe_rtt_min_at = now;
            self.reset_short_term_bounds();
            self.window = self.window.max(self.window_before);
            self.state = if self.is_full { State::Cruise } else { State::Startup };
        }
    }

    fn on_sample(&mut self, sample: &Sample) {
        self.update_round(sample);
        self.update_bandwidth(sample);
        self.update_min_rtt(sample);
        self.count_losses(sample);
        self.adapt_short_term_bounds();
        self.check_full_bandwidth(sample);
        self.check_startup(sample);
        self.check_drain(sample);
        self.update_probing(sample);
        self.check_probe_rtt(sample);
        let bandwidth = self.bandwidth();
        let delivered = sample.delivered_bytes as f64;
        self.aggregation.on_delivered(sample.now, delivered, bandwidth, self.window, self.rounds);
        self.set_pacing();
        self.set_window(sample);
        self.is_idle_restart &= sample.delivered_bytes == 0;
        self.notifications = 0;
        self.ambient.enter(sample.now, self.phase());
        // Remembered for each round (and not read after the report, when there is room again).
        self.is_window_limited &= !self.is_round_start;
    }

    fn on_notification(&mut self, _now: Instant) {
        self.round_marks += 1;
        self.notifications += 1;
    }

    fn on_timeout(&mut self, _now: Instant) {
        self.window = WINDOW_PACKETS_MIN * self.packet_bytes;
    }

    fn window_bytes(&self) -> u64 {
        self.window as u64
    }

    fn bits_per_second(&self) -> Option<u64> {
        Some((self.pacing * 8.0) as u64)
    }
}
