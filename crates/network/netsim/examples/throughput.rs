//! How many frames a second one core delivers: pairs of nodes that send frames of 4 KiB back and forth, without looking
//! at their payload.
//!
//!     cargo run --release -p longhaul-netsim --example throughput [part of a name]

use std::time::Instant as WallClock;

use longhaul_impair::{Loss, Profile};
use longhaul_netsim::{Frame, Node, NodeIo, Simulation};
use longhaul_time::{Duration, Instant};

const FRAME_BYTES: usize = 4096;
const DELIVERY_COUNT: u64 = 20_000_000;

/// Sends back whatever comes.
struct Echo;

impl Node for Echo {
    fn handle(&mut self, link_port: usize, frame: Frame, _now: Instant, io: &mut NodeIo<'_>) {
        io.send(link_port, frame);
    }

    fn poll(&mut self, _now: Instant, _io: &mut NodeIo<'_>) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

/// Keeps a link busy without filling its queue: sends a fresh frame whenever the wire falls idle, and drops what
/// comes. One delivery and one deadline a frame.
struct Blaster {
    next_send_at: Instant,
}

impl Node for Blaster {
    fn handle(&mut self, _link_port: usize, frame: Frame, _now: Instant, io: &mut NodeIo<'_>) {
        io.recycle(frame);
    }

    fn poll(&mut self, _now: Instant, io: &mut NodeIo<'_>) {
        let mut bytes = io.take_buffer();
        bytes.resize(64, 0);
        io.send(0, Frame { bytes, elided_bytes: FRAME_BYTES as u32 - 64 });
        self.next_send_at = io.egress_idle_at(0);
    }

    fn next_deadline(&self) -> Option<Instant> {
        Some(self.next_send_at)
    }
}

fn main() {
    let delay = |micros| Profile::default().with_propagation_delay(Duration::from_micros(micros));
    let rated = |micros| delay(micros).with_rate_bits_per_second(100_000_000_000);
    echo("1 pair, 10 µs, window 64", 1, 64, |_| delay(10));
    echo("1 pair, 10 µs, 100 Gbit/s, window 64", 1, 64, |_| rated(10));
    echo("1 pair, 1 ms, 100 Gbit/s, window 4096", 1, 4096, |_| rated(1000));
    echo("1000 pairs, 1–1000 µs, 100 Gbit/s, window 16", 1000, 16, |pair| rated(1 + pair));
    echo("10000 pairs, 1–10000 µs, 100 Gbit/s, window 4", 10_000, 4, |pair| rated(1 + pair));
    echo("1 pair, 10 µs, jitter that reorders, window 256", 1, 256, |_| {
        rated(10).with_jitter(Duration::from_micros(5), false)
    });
    blast("1 pair, both ways at 100 Gbit/s with deadlines", 1, &rated(10));
    blast("1000 pairs, both ways, loss 1e-3", 1000, &rated(10).with_loss(Loss::Independent { probability: 1e-3 }));
}

/// Whether a measurement was asked for.
fn is_wanted(name: &str) -> bool {
    std::env::args().nth(1).is_none_or(|part| name.contains(&part))
}

fn echo(name: &str, pair_count: u64, window: u64, profile: impl Fn(u64) -> Profile) {
    if !is_wanted(name) {
        return;
    }
    let mut simulation = Simulation::new(1);
    for pair in 0..pair_count {
        let left = simulation.add_node(Echo);
        let right = simulation.add_node(Echo);
        simulation.connect(left.port(0), right.port(0), profile(pair), profile(pair)).expect("a good profile");
        simulation.drive(left, |_, _, io| {
            for _ in 0..window {
                let mut bytes = io.take_buffer();
                bytes.resize(FRAME_BYTES, 0);
                io.send(0, Frame::from(bytes));
            }
        });
    }
    measure(name, &mut simulation);
}

fn blast(name: &str, pair_count: u64, profile: &Profile) {
    if !is_wanted(name) {
        return;
    }
    let mut simulation = Simulation::new(1);
    for _ in 0..pair_count {
        let left = simulation.add_node(Blaster { next_send_at: Instant::ZERO });
        let right = simulation.add_node(Blaster { next_send_at: Instant::ZERO });
        simulation.connect(left.port(0), right.port(0), profile.clone(), profile.clone()).expect("a good profile");
    }
    measure(name, &mut simulation);
}

fn measure<N: Node>(name: &str, simulation: &mut Simulation<N>) {
    let start = WallClock::now();
    while simulation.event_count() < DELIVERY_COUNT {
        simulation.step();
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{name:52} {:6.2} million events/s  ({:.3} s of virtual time, trace {:016x})",
        DELIVERY_COUNT as f64 / seconds / 1e6,
        simulation.now().as_secs_f64(),
        simulation.trace_hash()
    );
}
