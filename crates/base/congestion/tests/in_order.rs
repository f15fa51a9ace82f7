//! `wan` with a receiver that takes packets in order only (go-back-N), behind a bottleneck with a short queue.

use std::collections::VecDeque;

use longhaul_congestion::{ControllerName, Flow, PathFacts};
use longhaul_time::{Duration, Instant};

const PACKET: u32 = 1000;
/// Of a packet at 100 Mbit/s.
const PACKET_TIME: Duration = Duration::from_micros(80);
const BITS_PER_SECOND: f64 = 100e6;
const ROUND_TRIP: Duration = Duration::from_millis(20);
const QUEUE: Duration = Duration::from_millis(5);
const TIMEOUT: Duration = Duration::from_millis(60);
const TICK: Duration = Duration::from_micros(100);

enum Answer {
    /// All before this number have arrived.
    Acknowledged(u64),
    /// A packet is missing, and those behind it are discarded.
    Missing,
}

/// A flow, its path, and its receiver.
struct Path {
    flow: Flow,
    now: Instant,
    /// When the last packet leaves the bottleneck.
    departs: Instant,
    answers: VecDeque<(Instant, Answer)>,
    /// The receiver misses a packet, and whether it has said so.
    missing: Option<bool>,
    heard_at: Instant,
    dropped: u64,
}

impl Path {
    fn new() -> Self {
        let facts = PathFacts { packet_bytes: PACKET, round_trip: None, line_bits_per_second: None, seed: 1 };
        let flow = Flow::new(ControllerName::Wan, &facts);
        let (now, answers) = (Instant::ZERO, VecDeque::new());
        Path { flow, now, departs: now, answers, missing: None, heard_at: now, dropped: 0 }
    }

    fn send(&mut self) {
        let number = self.flow.on_sent(self.now, 1, PACKET.into());
        self.flow.on_left(self.now, 1);
        let departs = self.departs.max(self.now) + PACKET_TIME;
        if departs - self.now > QUEUE {
            self.missing = self.missing.or(Some(false));
            self.dropped += 1;
            return;
        }
        self.departs = departs;
        let answer = match self.missing {
            None => Answer::Acknowledged(number + 1),
            Some(false) => Answer::Missing,
            Some(true) => return,
        };
        self.missing = self.missing.map(|_| true);
        self.answers.push_back((departs + ROUND_TRIP, answer));
    }

    fn tick(&mut self, is_held_up: bool) {
        while let Some((at, answer)) = self.answers.pop_front_if(|(at, _)| *at <= self.now) {
            self.heard_at = at;
            match answer {
                Answer::Acknowledged(end) => self.flow.on_acknowledged(self.now, end, false),
                Answer::Missing => {
                    self.missing = None;
                    self.flow.on_went_back(self.now, 1)
                }
            };
        }
        if self.now - self.heard_at > TIMEOUT {
            (self.missing, self.heard_at) = (None, self.now);
            self.flow.on_timeout(self.now, Duration::ZERO);
        }
        while self.flow.room_bytes(self.now) >= PACKET.into() {
            self.send();
        }
        if is_held_up {
            self.flow.on_app_limited();
        }
        self.now += TICK;
    }
}

#[test]
fn start_up_ends_for_a_sender_that_is_held_up_now_and_then() {
    for is_held_up in [false, true] {
        let mut path = Path::new();
        while path.now < Instant::ZERO + Duration::from_secs(2) {
            path.tick(is_held_up);
        }
        let dropped = path.dropped;
        while path.now < Instant::ZERO + Duration::from_secs(10) {
            path.tick(is_held_up);
        }
        let delivered = path.flow.sampler().delivered_packets() as f64 * f64::from(PACKET) * 8.0;
        let of_link = delivered / BITS_PER_SECOND / 10.0;
        let lost = (path.dropped - dropped) as f64 / path.flow.sampler().sent_packets() as f64;
        println!("held up {is_held_up}: {of_link} of the link, {lost} lost");
        assert!(of_link > 0.85 && lost < 0.02, "held up {is_held_up}: {of_link} of the link, {lost} lost");
    }
}
