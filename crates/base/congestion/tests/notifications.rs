//! Congestion notification packets (CNP) and `wan`.

use std::collections::VecDeque;

use longhaul_congestion::{ControllerName, Flow, PathFacts};
use longhaul_time::{Duration, Instant};

const PACKET: u32 = 1000;
/// Of a packet at 100 Mbit/s.
const PACKET_TIME: Duration = Duration::from_micros(80);
const ROUND_TRIP: Duration = Duration::from_millis(20);
const TICK: Duration = Duration::from_micros(100);

/// A flow on a path with a bottleneck, whose receiver acknowledges each packet.
struct Path {
    flow: Flow,
    now: Instant,
    /// When the last packet leaves the bottleneck.
    departs: Instant,
    acknowledgements: VecDeque<(Instant, u64)>,
}

impl Path {
    fn new() -> Self {
        let facts = PathFacts { packet_bytes: PACKET, round_trip: None, line_bits_per_second: None, seed: 1 };
        let flow = Flow::new(ControllerName::Wan, &facts);
        Path { flow, now: Instant::ZERO, departs: Instant::ZERO, acknowledgements: VecDeque::new() }
    }

    fn tick(&mut self) {
        while let Some(&(at, end)) = self.acknowledgements.front()
            && at <= self.now
        {
            self.acknowledgements.pop_front();
            self.flow.on_acknowledged(self.now, end, false);
        }
        while self.flow.room_bytes(self.now) >= PACKET.into() {
            let number = self.flow.on_sent(self.now, 1, PACKET.into());
            self.flow.on_left(self.now, 1);
            self.departs = self.departs.max(self.now) + PACKET_TIME;
            self.acknowledgements.push_back((self.departs + ROUND_TRIP, number + 1));
        }
        self.now += TICK;
    }

    fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.tick();
        }
    }

    fn is_cruising(&self) -> bool {
        format!("{:?}", self.flow.controller()).contains("state: Cruise")
    }

    /// On to a time at which it has cruised for three round trips.
    fn run_until_cruising(&mut self) {
        let mut cruised = Duration::ZERO;
        while cruised < 3 * ROUND_TRIP {
            self.tick();
            cruised = if self.is_cruising() { cruised + TICK } else { Duration::ZERO };
            assert!(self.now < Instant::from_nanos(60_000_000_000), "{:?}", self.flow.controller());
        }
    }

    fn rate(&self) -> f64 {
        self.flow.bits_per_second().unwrap() as f64
    }
}

/// The rate two round trips after this many notifications in a hundredth of one, of that before them.
fn kept_after(notifications: usize) -> f64 {
    let mut path = Path::new();
    path.run_for(Duration::from_secs(1));
    path.run_until_cruising();
    let before = path.rate();
    for _ in 0..notifications {
        path.flow.on_notification(path.now);
    }
    path.run_for(2 * ROUND_TRIP);
    assert!(path.is_cruising(), "{:?}", path.flow.controller());
    path.rate() / before
}

#[test]
fn notifications_cut_once_a_round() {
    let free = kept_after(0);
    assert!(free > 0.98, "{free}");
    for notifications in [1, 3, 100] {
        let kept = kept_after(notifications);
        assert!((0.8..0.9).contains(&kept), "{notifications} notifications leave {kept}");
    }
}

#[test]
fn a_round_of_notifications_ends_start_up() {
    let window_after = |is_notified: bool| {
        let mut path = Path::new();
        // Three round trips: far from the 260 packets that fill the path.
        path.run_for(3 * ROUND_TRIP);
        for _ in 0..if is_notified { 10 } else { 0 } {
            path.flow.on_notification(path.now);
        }
        path.run_for(2 * ROUND_TRIP);
        path.flow.controller().window_bytes()
    };
    let (free, notified) = (window_after(false), window_after(true));
    assert!(10 * notified < 7 * free, "{notified} bytes against {free}");
}
