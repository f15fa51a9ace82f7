//! `swift`: for private fabrics, by delay alone.
//!
//! In the manner of Swift (Kumar et al., Swift: Delay is Simple and Effective for Congestion Control in the Datacenter,
//! SIGCOMM 2020). The window follows a target for the round trip:
//!
//! ```text
//!  target = shortest round trip + 20 µs + clamp(a/√window + b, 0, 100 µs)     flow scaling: small windows, longer queue
//!           a = 100 µs / (1/√0.1 − 1/√100),  b = −a/√100
//!  below:   window += 1 packet a round trip
//!  above:   window ×= max(1 − 0.8 · (delay − target)/delay, 1 − 0.5)          once a round trip
//!  loss:    window ×= 1 − 0.5                                                 once a round trip
//! ```
//!
//! The window is counted in packets and may be less than one: then one packet is sent every round trip / window.
//!
//! Where the numbers come from: 0.1 and 100 packets for flow scaling are the paper's. The others (0.8, 0.5, one packet,
//! 20 µs, and a range of flow scaling that is five times as long) are those of public implementations (htsim). There
//! 20 µs are the whole target in a small fabric. Here they are for the queue alone.
//!
//! What differs from the paper:
//!
//! - The shortest round trip ever seen takes the place of the term for each hop: verbs do not show how many hops there
//!   were. After a change to a longer path the target is too small: the flow stays slower than it could be. A flow that
//!   was not told its round trip and joins a queue takes that queue for a part of the path.
//! - There is no second window for delay at the receiving host: reports do not separate it.
//! - Windows of more than one packet are paced at two windows a round trip, at most at line rate: reports come for many
//!   packets at once, and would let as many go at once.
//! - A flow starts with one packet and doubles its window each round trip until the first cut. Growing by a packet
//!   each round trip from the beginning would take 300 of them to fill 100 Gbit/s over 100 µs.

use longhaul_time::{Duration, Instant};

use crate::controller::{Controller, PathFacts, Sample};

/// Packets by which the window grows in a round trip.
const INCREASE: f64 = 1.0;
/// How strongly the excess of delay counts (β).
const DECREASE: f64 = 0.8;
/// The most by which the window is cut at once (max_mdf).
const DECREASE_MAX: f64 = 0.5;
/// The part of the target that is for the queue. With 10 µs, and a range of 50, 64 flows over 100 µs have 2.4 times their
/// target at p99: they all grow by a packet before the first of them sees it.
const BASE_QUEUEING: Duration = Duration::from_micros(20);
/// What flow scaling adds to it at most, at
const SCALING_RANGE: Duration = Duration::from_micros(100);
/// this window,
const SCALING_WINDOW_MIN: f64 = 0.1;
/// falling to zero at this one.
const SCALING_WINDOW_MAX: f64 = 100.0;
const PACKETS_PER_SECOND_MIN: f64 = 4.0;
const WINDOW_MIN: f64 = 0.001;
const WINDOW_MAX: f64 = 65_536.0;
const WINDOW_START: f64 = 1.0;
/// Windows sent in a round trip while nothing slows the flow down.
const PACING_GAIN: f64 = 2.0;
/// Timeouts in a row after which the window falls to its least.
const TIMEOUTS: u32 = 5;

/// The controller `swift`.
#[derive(Clone, Debug)]
pub struct Swift {
    packet_bits: f64,
    line: Option<u64>,
    /// In packets.
    window: f64,
    /// The shortest, and the newest.
    round_trip_min: Option<Duration>,
    round_trip: Option<Duration>,
    /// When the window was last cut; `None` while the flow starts.
    cut_at: Option<Instant>,
    timeouts: u32,
    burst: Duration,
}

impl Swift {
    /// With one packet.
    pub fn new(facts: &PathFacts) -> Self {
        Swift {
            packet_bits: f64::from(facts.packet_bytes.max(1)) * 8.0,
            line: facts.line_bits_per_second,
            window: WINDOW_START,
            round_trip_min: facts.round_trip,
            round_trip: facts.round_trip,
            cut_at: None,
            timeouts: 0,
            burst: facts.fabric_burst(),
        }
    }

    /// The queueing delay that a flow with a window of this many packets aims at.
    pub fn target_queueing(window: f64) -> Duration {
        let slope = SCALING_RANGE.as_secs_f64() / (SCALING_WINDOW_MIN.powf(-0.5) - SCALING_WINDOW_MAX.powf(-0.5));
        let scaling = slope * (window.max(WINDOW_MIN).powf(-0.5) - SCALING_WINDOW_MAX.powf(-0.5));
        BASE_QUEUEING + Duration::from_secs_f64(scaling.clamp(0.0, SCALING_RANGE.as_secs_f64()))
    }

    /// Whether the window is what bounds the flow: one that has nothing to send, or the line to itself, would let it grow
    /// without end.
    fn is_window_used(&self, sample: &Sample) -> bool {
        !sample.is_app_limited && sample.in_flight_packets_at_sending as f64 * 2.0 >= self.window
    }

    /// Multiplies the window, unless that was done in this round trip.
    fn cut(&mut self, now: Instant, by: f64) {
        let round_trip = self.round_trip.unwrap_or_default();
        if self.cut_at.is_none_or(|at| now >= at + round_trip) {
            self.cut_at = Some(now);
            self.window = (self.window * by).max(WINDOW_MIN);
        }
    }
}

impl Controller for Swift {
    fn on_sample(&mut self, sample: &Sample) {
        if sample.delivered_packets > 0 {
            self.timeouts = 0;
        }
        if let Some(delay) = sample.round_trip {
            self.round_trip = Some(delay);
            let shortest = self.round_trip_min.map_or(delay, |shortest| shortest.min(delay));
            self.round_trip_min = Some(shortest);
            let target = shortest + Swift::target_queueing(self.window);
            if delay >= target {
                let excess = (delay - target).as_secs_f64() / delay.as_secs_f64();
                self.cut(sample.now, (1.0 - DECREASE * excess).max(1.0 - DECREASE_MAX));
            } else if self.is_window_used(sample) && sample.lost_packets == 0 {
                let packets = sample.delivered_packets as f64;
                let growth = if self.cut_at.is_none() { packets } else { INCREASE * packets / self.window.max(1.0) };
                self.window = (self.window + growth).min(WINDOW_MAX);
            }
        }
        if sample.lost_packets > 0 {
            self.cut(sample.now, 1.0 - DECREASE_MAX);
        }
    }

    fn on_timeout(&mut self, now: Instant) {
        self.timeouts += 1;
        if self.timeouts >= TIMEOUTS {
            self.window = WINDOW_MIN;
        } else {
            self.cut(now, 1.0 - DECREASE_MAX);
        }
    }

    fn window_bytes(&self) -> u64 {
        // Less than one packet is one packet, further apart.
        (self.window.max(1.0) * self.packet_bits / 8.0) as u64
    }

    fn bits_per_second(&self) -> Option<u64> {
        let Some(round_trip) = self.round_trip else { return self.line };
        let of_window = self.window * self.packet_bits / round_trip.as_secs_f64().max(1e-9);
        let gain = if self.window < 1.0 { 1.0 } else { PACING_GAIN };
        // A host that stood still shows a round trip of seconds: a rate of that would not recover for hours.
        let rate = (of_window * gain).max(PACKETS_PER_SECOND_MIN * self.packet_bits);
        Some((rate as u64).clamp(1, self.line.unwrap_or(u64::MAX).max(1)))
    }

    fn burst(&self) -> Duration {
        self.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: u32 = 1000;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    /// Started, with a window of 20 packets.
    fn controller() -> Swift {
        let mut swift = Swift::new(&PathFacts {
            packet_bytes: PACKET,
            round_trip: Some(micros(20)),
            line_bits_per_second: Some(8_000_000_000),
            seed: 1,
        });
        (swift.window, swift.cut_at) = (20.0, Some(at(0)));
        swift
    }

    fn sample(now: Instant, round_trip: Duration, delivered_packets: u64, lost_packets: u64) -> Sample {
        Sample {
            now,
            round_trip: Some(round_trip),
            sent_at: now,
            delivery_rate: None,
            rate_interval: Duration::ZERO,
            is_app_limited: false,
            train_rate: None,
            train_bytes: 0,
            delivered_packets,
            delivered_bytes: delivered_packets * u64::from(PACKET),
            delivered_bytes_total: 0,
            delivered_bytes_at_sending: 0,
            lost_packets,
            discarded_packets: 0,
            found_packets: 0,
            lost_packets_since_sending: 0,
            marked_packets: 0,
            in_flight_bytes_at_sending: 0,
            in_flight_packets_at_sending: 50,
            in_flight_bytes: 0,
        }
    }

    #[test]
    fn it_starts_with_a_packet_and_doubles_until_the_first_cut() {
        let facts = PathFacts { packet_bytes: PACKET, round_trip: None, line_bits_per_second: None, seed: 1 };
        let mut swift = Swift::new(&facts);
        assert_eq!((swift.window_bytes(), swift.bits_per_second()), (1000, None));
        for (micros_now, window) in [(20, 2000), (40, 4000), (60, 8000)] {
            swift.on_sample(&sample(at(micros_now), micros(20), swift.window_bytes() / 1000, 0));
            assert_eq!(swift.window_bytes(), window);
        }
        swift.on_sample(&sample(at(80), micros(20), 4, 4));
        assert_eq!(swift.window_bytes(), 4000);
        swift.on_sample(&sample(at(100), micros(20), 4, 0));
        assert_eq!(swift.window_bytes(), 5000);
    }

    #[test]
    fn small_windows_aim_at_longer_queues() {
        let target = |window| Swift::target_queueing(window).as_nanos() as f64 / 1e3;
        assert_eq!((target(100.0), target(1000.0)), (20.0, 20.0));
        assert_eq!((target(0.1), target(0.001)), (120.0, 120.0));
        // 100 / (3.1623 − 0.1) · (1 − 0.1) = 29.39.
        assert!((target(1.0) - 49.39).abs() < 0.01, "{}", target(1.0));
    }

    #[test]
    fn below_the_target_the_window_grows_by_a_packet_a_round_trip() {
        let mut swift = controller();
        for count in 0..4 {
            swift.on_sample(&sample(at(20 + 5 * count), micros(22), 5, 0));
        }
        assert!((swift.window - 21.0).abs() < 0.05, "{}", swift.window);
    }

    #[test]
    fn above_the_target_it_is_cut_in_proportion_once_a_round_trip() {
        let mut swift = controller();
        let target = micros(20) + Swift::target_queueing(20.0);
        let delay = target.mul_f64(1.25);
        swift.on_sample(&sample(at(100), delay, 5, 0));
        // A fifth of the delay is excess: 0.8 · 0.2.
        assert!((swift.window - 20.0 * 0.84).abs() < 1e-3, "{}", swift.window);
        let window = swift.window;
        swift.on_sample(&sample(at(110), delay, 5, 0));
        assert_eq!(swift.window, window, "the same round trip");
        swift.on_sample(&sample(at(160), delay, 5, 0));
        assert!(swift.window < window);
    }

    #[test]
    fn loss_and_long_delays_halve_it_once_a_round_trip() {
        let mut swift = controller();
        swift.on_sample(&sample(at(100), micros(22), 5, 3));
        swift.on_sample(&sample(at(121), micros(22), 5, 3));
        assert!((swift.window - 10.0).abs() < 1e-9, "{}", swift.window);
        swift.on_sample(&sample(at(20_000), Duration::from_millis(10), 5, 0));
        assert!((swift.window - 5.0).abs() < 1e-9, "{}", swift.window);
    }

    #[test]
    fn a_window_below_one_packet_paces() {
        let mut swift = controller();
        let mut now = at(0);
        while swift.window > 0.3 {
            now += Duration::from_millis(1);
            swift.on_sample(&sample(now, micros(800), 1, 0));
        }
        assert_eq!(swift.window_bytes(), 1000);
        let rate = swift.bits_per_second().expect("it has a rate") as f64;
        // A packet every 800 µs / window.
        assert!((rate - 8000.0 * swift.window / 800e-6).abs() < 1.0, "{rate}");
        let window = swift.window;
        swift.on_sample(&sample(now + Duration::from_millis(5), micros(22), 1, 0));
        assert!((swift.window - window - 1.0).abs() < 1e-9, "one packet was a round trip");
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut swift = controller();
        swift.on_sample(&Sample { in_flight_packets_at_sending: 9, ..sample(at(100), micros(22), 5, 0) });
        swift.on_sample(&Sample { is_app_limited: true, ..sample(at(100), micros(22), 5, 0) });
        assert_eq!(swift.window, 20.0);
    }

    #[test]
    fn timeouts_in_a_row_end_with_the_smallest_window() {
        let mut swift = controller();
        for count in 1..5 {
            swift.on_timeout(at(1000 * count));
        }
        assert!((swift.window - 20.0 / 16.0).abs() < 1e-9, "{}", swift.window);
        swift.on_timeout(at(5000));
        assert_eq!(swift.window, WINDOW_MIN);
    }
}
