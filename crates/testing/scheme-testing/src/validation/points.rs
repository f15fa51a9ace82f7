//! The points at which the model is compared.
//!
//! From one packet to gigabytes, from 0.1 to 100 ms, from one loss in a million to one packet in ten, single and in
//! bursts, with chunks of one packet and of sixteen. The protocol is run where a message has few packets: 16 MiB at 50
//! Gbit/s have the shape of 128 MiB at 400 Gbit/s, and an eighth of the work.

use longhaul_time::Duration;

use super::Point;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What the protocol is run on.
#[derive(Clone, Copy)]
pub(super) enum Run {
    /// Nothing.
    Twin,
    Virtual,
    /// Both.
    Sockets,
}

/// Where there are several points.
#[derive(Clone, Copy)]
pub(super) struct Way {
    rate_gigabits_per_second: f64,
    round_trip_micros: u64,
    run: Run,
}

impl Way {
    pub(super) const fn new(rate_gigabits_per_second: f64, round_trip_micros: u64, run: Run) -> Self {
        Way { rate_gigabits_per_second, round_trip_micros, run }
    }

    pub(super) fn with(self, scheme: &str, message_bytes: u64, chunk_kib: u32, loss: f64) -> Point {
        Point {
            scheme: scheme.parse().expect("the names below are those of schemes"),
            rate_bits_per_second: (self.rate_gigabits_per_second * 1e9) as u64,
            round_trip: Duration::from_micros(self.round_trip_micros),
            loss,
            burst_packets: None,
            message_bytes,
            chunk_bytes: chunk_kib << 10,
            sites: None,
            is_on_virtual_time: !matches!(self.run, Run::Twin),
            is_on_sockets: matches!(self.run, Run::Sockets),
        }
    }

    fn bursts(self, scheme: &str, message_bytes: u64, chunk_kib: u32, loss: f64, packets: f64) -> Point {
        Point { burst_packets: Some(packets), ..self.with(scheme, message_bytes, chunk_kib, loss) }
    }

    fn ring(self, scheme: &str, message_bytes: u64, loss: f64, sites: u32) -> Point {
        Point { sites: Some(sites), ..self.with(scheme, message_bytes, 4, loss) }
    }
}

/// All of them, in the order in which they are compared.
pub fn points() -> Vec<Point> {
    [selective_repeat(), erasure(), go_back_n(), rings(), on_sockets()].concat()
}

/// The paper's link.
const PAPER: Way = Way::new(400.0, 25_000, Run::Twin);
/// The same with an eighth of the packets.
const EIGHTH: Way = Way::new(50.0, 25_000, Run::Virtual);
/// A message takes longer than a round trip.
const SLOW: Way = Way::new(1.0, 10_000, Run::Virtual);
/// Within a building: timers are at their least.
const NEAR: Way = Way::new(1.0, 100, Run::Virtual);
/// Around the world.
const FAR: Way = Way::new(10.0, 100_000, Run::Virtual);

fn selective_repeat() -> Vec<Point> {
    let mut points = Vec::new();
    for scheme in ["sr:rto", "sr:nack"] {
        points.extend([
            PAPER.with(scheme, 128 * MIB, 4, 1e-5),
            PAPER.with(scheme, 128 * MIB, 4, 1e-4),
            PAPER.with(scheme, 128 * MIB, 4, 1e-3),
            PAPER.with(scheme, 128 * MIB, 4, 1e-2),
            PAPER.with(scheme, 8 * GIB, 4, 1e-6),
            PAPER.with(scheme, GIB, 4, 1e-3),
            PAPER.bursts(scheme, 128 * MIB, 4, 1e-4, 8.0),
            PAPER.bursts(scheme, 128 * MIB, 16, 1e-3, 8.0),
            EIGHTH.with(scheme, 16 * MIB, 4, 1e-4),
            EIGHTH.with(scheme, 16 * MIB, 4, 1e-3),
            EIGHTH.with(scheme, 16 * MIB, 4, 1e-2),
            EIGHTH.with(scheme, 16 * MIB, 64, 1e-3),
            EIGHTH.with(scheme, 16 * MIB, 64, 1e-2),
            EIGHTH.bursts(scheme, 16 * MIB, 4, 1e-3, 8.0),
            SLOW.with(scheme, 4 * MIB, 4, 1e-2),
            SLOW.with(scheme, 64 * MIB, 4, 1e-2),
            NEAR.with(scheme, MIB, 4, 1e-2),
            FAR.with(scheme, 4 * MIB, 4, 1e-3),
        ]);
    }
    points.extend([
        PAPER.with("sr:rto", 8 * GIB, 4, 1e-4),
        PAPER.bursts("sr:rto", 128 * MIB, 4, 1e-2, 16.0),
        PAPER.bursts("sr:rto", 128 * MIB, 64, 1e-2, 4.0),
        SLOW.with("sr:rto", 4 * KIB, 4, 0.1),
        SLOW.with("sr:rto", MIB, 4, 0.3),
        PAPER.with("sr:nack", 64 * KIB, 4, 1e-2),
        EIGHTH.with("sr:nack", 128 * KIB, 4, 3e-2),
    ]);
    points
}

fn erasure() -> Vec<Point> {
    vec![
        PAPER.with("ec:mds:32,8", 128 * MIB, 4, 1e-3),
        PAPER.with("ec:mds:32,8", 128 * MIB, 4, 1e-2),
        PAPER.with("ec:mds:32,8", 128 * MIB, 64, 1e-2),
        PAPER.bursts("ec:mds:32,8", 128 * MIB, 4, 1e-4, 4.0),
        PAPER.bursts("ec:mds:32,8", 128 * MIB, 4, 1e-3, 16.0),
        EIGHTH.with("ec:mds:32,8", 16 * MIB, 4, 1e-2),
        EIGHTH.with("ec:mds:32,8", 16 * MIB, 4, 0.1),
        EIGHTH.with("ec:mds:8,2", 16 * MIB, 4, 1e-2),
        EIGHTH.with("ec:mds:32,8", 16 * MIB, 64, 1e-3),
        EIGHTH.with("ec:mds:32,8", 16 * MIB, 64, 1e-2),
        EIGHTH.bursts("ec:mds:32,8", 16 * MIB, 4, 1e-3, 8.0),
        SLOW.with("ec:mds:16,4", 4 * MIB, 4, 3e-2),
        SLOW.with("ec:mds:8,2", 4 * MIB, 64, 1e-2),
        NEAR.with("ec:mds:32,8", MIB, 4, 1e-2),
        PAPER.with("ec:xor:32,8", 128 * MIB, 4, 1e-4),
        PAPER.with("ec:xor:32,8", 128 * MIB, 4, 1e-3),
        PAPER.with("ec:xor:32,8", 128 * MIB, 4, 1e-2),
        PAPER.bursts("ec:xor:32,8", 128 * MIB, 4, 1e-4, 4.0),
        PAPER.bursts("ec:xor:32,8", 128 * MIB, 4, 1e-3, 16.0),
        PAPER.bursts("ec:mds:8,2", 128 * MIB, 16, 1e-3, 8.0),
        EIGHTH.with("ec:xor:32,8", 16 * MIB, 4, 1e-3),
        EIGHTH.with("ec:xor:32,8", 16 * MIB, 4, 1e-2),
        EIGHTH.bursts("ec:xor:32,8", 16 * MIB, 4, 1e-3, 8.0),
        EIGHTH.with("ec:xor:32,8", 16 * MIB, 64, 1e-2),
        FAR.with("ec:xor:16,4", 4 * MIB, 4, 1e-2),
    ]
}

fn go_back_n() -> Vec<Point> {
    vec![
        PAPER.with("rc", 128 * MIB, 4, 1e-5),
        PAPER.with("rc", 128 * MIB, 4, 1e-3),
        PAPER.with("rc", 128 * MIB, 4, 1e-2),
        PAPER.bursts("rc", 128 * MIB, 4, 1e-3, 8.0),
        EIGHTH.with("rc", 16 * MIB, 4, 1e-4),
        EIGHTH.with("rc", 16 * MIB, 4, 1e-3),
        EIGHTH.bursts("rc", 16 * MIB, 4, 1e-3, 8.0),
        NEAR.with("rc", MIB, 4, 1e-2),
        PAPER.with("lowar:32,1", 16 * MIB, 4, 1e-3),
        PAPER.with("lowar:32,1", 128 * MIB, 4, 1e-3),
        PAPER.bursts("lowar:64,8", 128 * MIB, 4, 1e-3, 4.0),
        Way::new(10.0, 40_000, Run::Twin).bursts("lowar:64,8", 64 * MIB, 4, 1e-3, 4.0),
    ]
}

fn rings() -> Vec<Point> {
    vec![
        PAPER.ring("sr:rto", 128 * MIB, 1e-5, 4),
        PAPER.ring("ec:mds:32,8", 128 * MIB, 1e-3, 4),
        PAPER.ring("rc", 128 * MIB, 1e-5, 4),
    ]
}

/// Slow and long, so that milliseconds of a scheduler do not matter; and a message has losses more often than not, so
/// that few of them have a mean.
fn on_sockets() -> Vec<Point> {
    let way = |megabits: f64, millis: u64| Way::new(megabits / 1e3, 1000 * millis, Run::Sockets);
    vec![
        way(200.0, 40).with("sr:rto", MIB, 4, 1e-2),
        way(200.0, 40).with("sr:rto", 256 * KIB, 4, 5e-2),
        way(100.0, 40).with("sr:rto", 128 * KIB, 4, 5e-2),
        way(200.0, 40).with("sr:nack", MIB, 4, 1e-2),
        way(200.0, 60).with("sr:nack", 4 * MIB, 4, 1e-3),
        way(200.0, 60).with("sr:nack", 4 * MIB, 64, 1e-3),
        way(200.0, 40).with("ec:mds:32,8", MIB, 4, 2e-2),
        way(200.0, 40).with("ec:mds:8,2", MIB, 4, 3e-2),
        way(200.0, 60).with("ec:mds:32,8", 4 * MIB, 4, 1e-2),
        way(200.0, 40).with("ec:xor:32,8", MIB, 4, 1e-2),
        way(100.0, 40).with("ec:xor:32,8", 256 * KIB, 4, 5e-3),
    ]
}
