//! How long ten thousand hosts take to build, what they hold, and how many events a second one core handles among them.
//!
//!     cargo run --release -p longhaul-netsim --example topologies [name]

use std::sync::Arc;
use std::time::Instant as WallClock;

use longhaul_impair::Profile;
use longhaul_netsim::{
    Destination, Direction, FabricProfiles, FabricSwitch, Fault, Flow, FlowOf, Frame, Node, NodeIo, PathAvoidance,
    Shape, Simulation, SimulationLimits, Topology,
};
use longhaul_time::{Duration, Instant};

const HOST_COUNT: usize = 10_000;
const EVENT_COUNT: u64 = 10_000_000;
const HEADER_BYTES: usize = 64;

/// A host that answers every frame, or a switch.
enum Station {
    Host(usize),
    Switch(FabricSwitch),
}

impl Node for Station {
    fn handle(&mut self, link_port: usize, mut frame: Frame, now: Instant, io: &mut NodeIo<'_>) {
        match self {
            Station::Host(own) => {
                let peer = word(&frame, 1);
                write(&mut frame.bytes, peer, *own as u32);
                io.send(link_port, frame);
            }
            Station::Switch(switch) => switch.handle(link_port, frame, now, io),
        }
    }

    fn poll(&mut self, _now: Instant, _io: &mut NodeIo<'_>) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

/// Frames begin with their destination and their source.
fn word(frame: &Frame, index: usize) -> u32 {
    u32::from_le_bytes(frame.bytes[index * 4..][..4].try_into().expect("four bytes"))
}

fn write(bytes: &mut [u8], to: u32, from: u32) {
    bytes[..4].copy_from_slice(&to.to_le_bytes());
    bytes[4..8].copy_from_slice(&from.to_le_bytes());
}

fn flow_of(frame: &Frame) -> Flow {
    let (to, from) = (word(frame, 0), word(frame, 1));
    Flow { destination: Destination::Host(to as usize), key: u64::from(from) << 32 | u64::from(to) }
}

fn main() {
    measure("star", Shape::Star, false);
    let clos = Shape::Clos { leaf_count: 200, spine_count: 50, hosts_per_leaf: 50 };
    measure("clos", clos, false);
    measure("clos with a dead link", clos, true);
    measure("fat tree", Shape::FatTree { arity: 36 }, false);
}

fn measure(name: &str, shape: Shape, with_dead_link: bool) {
    if std::env::args().nth(1).is_some_and(|wanted| name != wanted) {
        return;
    }
    let memory_before = resident_bytes();
    let start = WallClock::now();
    let topology = Topology::new(shape, HOST_COUNT).expect("room for the hosts");
    let limits = SimulationLimits { pool_buffer_bytes: HEADER_BYTES, ..SimulationLimits::default() };
    let mut simulation = Simulation::with_limits(1, limits);
    let profile =
        Profile::default().with_propagation_delay(Duration::from_micros(1)).with_rate_bits_per_second(100_000_000_000);
    let profiles = FabricProfiles { host: profile.clone(), fabric: profile };
    let flows: FlowOf = Arc::new(flow_of);
    let switch = |number| Station::Switch(FabricSwitch::new(topology, number, flows.clone(), PathAvoidance::AtOnce));
    let fabric = topology.build(&mut simulation, &profiles, Station::Host, switch).expect("valid profiles");
    let build_seconds = start.elapsed().as_secs_f64();
    let built_bytes = resident_bytes() - memory_before;
    if with_dead_link {
        simulation.apply(Fault::Cut(fabric.fabric_links()[7].link, Direction::Forward));
    }
    // Everyone talks to somebody far away.
    for host in 0..HOST_COUNT {
        for distance in [1, 137, 2_741, 5_003] {
            simulation.drive(fabric.hosts()[host], |_, _, io| {
                let mut bytes = io.take_buffer();
                bytes.resize(HEADER_BYTES, 0);
                write(&mut bytes, ((host + distance) % HOST_COUNT) as u32, host as u32);
                io.send(0, Frame { bytes, elided_bytes: 4096 });
            });
        }
    }
    let start = WallClock::now();
    while simulation.event_count() < EVENT_COUNT {
        simulation.step();
    }
    println!(
        "{name:24} {} switches, {} links: built in {:.3} s, {:.1} MB; {:.2} million events/s; {:.1} MB in the end; trace {:016x}",
        fabric.switches().len(),
        fabric.host_links().len() + fabric.fabric_links().len(),
        build_seconds,
        built_bytes as f64 / 1e6,
        EVENT_COUNT as f64 / start.elapsed().as_secs_f64() / 1e6,
        (resident_bytes() - memory_before) as f64 / 1e6,
        simulation.trace_hash(),
    );
}

/// What the process holds in memory, as Linux counts it; 0 elsewhere.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|line| line.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()));
    pages.unwrap_or(0) * 4096
}
