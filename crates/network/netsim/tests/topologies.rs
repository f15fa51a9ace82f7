//! Topologies: every host reaches every other, flows spread and stay, dead paths are avoided when they must be.

use std::collections::BTreeMap;
use std::sync::Arc;

use longhaul_impair::Profile;
use longhaul_netsim::{
    Destination, Direction, Fabric, FabricProfiles, FabricSwitch, Fault, Flow, FlowOf, Frame, Neighbour, Node, NodeIo,
    PathAvoidance, Shape, Simulation, Topology, TopologyError,
};
use longhaul_time::{Duration, Instant};

const EVERYONE: u32 = u32::MAX;

/// A host that notes what comes, or a switch.
enum Station {
    Host(Vec<(u32, u32)>),
    Switch(FabricSwitch),
}

impl Node for Station {
    fn handle(&mut self, link_port: usize, frame: Frame, now: Instant, io: &mut NodeIo<'_>) {
        match self {
            Station::Host(heard) => {
                heard.push((word(&frame, 0), word(&frame, 1)));
                io.recycle(frame);
            }
            Station::Switch(switch) => switch.handle(link_port, frame, now, io),
        }
    }

    fn poll(&mut self, _now: Instant, _io: &mut NodeIo<'_>) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

/// Frames are a destination and a flow.
fn word(frame: &Frame, index: usize) -> u32 {
    u32::from_le_bytes(frame.bytes[index * 4..][..4].try_into().expect("four bytes"))
}

fn flow_of(frame: &Frame) -> Flow {
    let destination = match word(frame, 0) {
        EVERYONE => Destination::Everyone,
        host => Destination::Host(host as usize),
    };
    Flow { destination, key: word(frame, 1).into() }
}

fn build(shape: Shape, host_count: usize, avoidance: PathAvoidance) -> (Simulation<Station>, Fabric) {
    let topology = Topology::new(shape, host_count).expect("a topology");
    let mut simulation = Simulation::new(5);
    // Something that is no part of the topology, so that numbers of nodes are not those of hosts.
    simulation.add_node(Station::Host(Vec::new()));
    let profile = Profile::default().with_propagation_delay(Duration::from_nanos(100));
    let profiles = FabricProfiles { host: profile.clone(), fabric: profile };
    let flows: FlowOf = Arc::new(flow_of);
    let host = |_| Station::Host(Vec::new());
    let switch = |number| Station::Switch(FabricSwitch::new(topology, number, flows.clone(), avoidance));
    let fabric = topology.build(&mut simulation, &profiles, host, switch).expect("valid profiles");
    (simulation, fabric)
}

fn send(simulation: &mut Simulation<Station>, fabric: &Fabric, from: usize, to: u32, flow: u32) {
    simulation.drive(fabric.hosts()[from], |_, _, io| {
        let bytes = [to.to_le_bytes(), flow.to_le_bytes()].concat();
        io.send(0, Frame::from(bytes));
    });
}

fn heard<'a>(simulation: &'a Simulation<Station>, fabric: &Fabric, host: usize) -> &'a [(u32, u32)] {
    match simulation.node(fabric.hosts()[host]) {
        Station::Host(heard) => heard,
        Station::Switch(_) => unreachable!("it is a host"),
    }
}

fn switch(simulation: &Simulation<Station>, fabric: &Fabric, number: usize) -> longhaul_netsim::FabricSwitchCounters {
    match simulation.node(fabric.switches()[number]) {
        Station::Switch(switch) => switch.counters,
        Station::Host(_) => unreachable!("it is a switch"),
    }
}

const CLOS: Shape = Shape::Clos { leaf_count: 4, spine_count: 4, hosts_per_leaf: 3 };
const FAT_TREE: Shape = Shape::FatTree { arity: 4 };

fn shapes() -> [(Shape, usize); 6] {
    [(Shape::Pair, 2), (Shape::Star, 5), (CLOS, 12), (CLOS, 10), (FAT_TREE, 16), (Shape::FatTree { arity: 6 }, 50)]
}

#[test]
fn whoever_is_behind_a_port_has_its_own_port_there() {
    for (shape, host_count) in shapes() {
        let topology = Topology::new(shape, host_count).expect("a topology");
        let mut hosts_seen = 0;
        for switch in 0..topology.switch_count() {
            let end = topology.up_ports(switch).end;
            for port in 0..end {
                match topology.neighbour(switch, port) {
                    Some(Neighbour::Host(host)) => {
                        assert_eq!(topology.place_of_host(host), Some((switch, port)));
                        hosts_seen += 1;
                    }
                    Some(Neighbour::Switch { switch: next, port: back }) => {
                        assert_eq!(topology.neighbour(next, back), Some(Neighbour::Switch { switch, port }));
                        let is_up = topology.up_ports(switch).contains(&port);
                        assert_eq!(is_up, topology.down_ports(next).contains(&back), "{shape:?} {switch} {port}");
                    }
                    None => assert!(topology.down_ports(switch).contains(&port), "only places for hosts are free"),
                }
            }
            assert_eq!(topology.neighbour(switch, end), None);
        }
        assert_eq!(hosts_seen, if shape == Shape::Pair { 0 } else { host_count });
    }
}

#[test]
fn everyone_reaches_everyone_whatever_way_a_flow_takes() {
    for (shape, host_count) in shapes() {
        let (mut simulation, fabric) = build(shape, host_count, PathAvoidance::AtOnce);
        let flow_count = 8;
        for from in 0..host_count {
            for to in (0..host_count).filter(|&to| to != from) {
                for flow in 0..flow_count {
                    send(&mut simulation, &fabric, from, to as u32, (from as u32) << 8 | flow);
                }
            }
        }
        simulation.run_until(Instant::FAR_FUTURE);
        for host in 0..host_count {
            let mut got = heard(&simulation, &fabric, host).to_vec();
            got.sort_unstable();
            let others = (0..host_count).filter(|&from| from != host);
            let expected: Vec<(u32, u32)> = others
                .flat_map(|from| (0..flow_count).map(move |flow| (host as u32, (from as u32) << 8 | flow)))
                .collect();
            assert_eq!(got, expected, "{shape:?}, host {host}");
        }
    }
}

#[test]
fn a_frame_to_everyone_comes_once_to_each_and_not_back() {
    for (shape, host_count) in shapes() {
        let (mut simulation, fabric) = build(shape, host_count, PathAvoidance::AtOnce);
        for flow in 0..20 {
            send(&mut simulation, &fabric, 1, EVERYONE, flow);
        }
        simulation.run_until(Instant::FAR_FUTURE);
        for host in 0..host_count {
            let mut got: Vec<u32> = heard(&simulation, &fabric, host).iter().map(|(_, flow)| *flow).collect();
            got.sort_unstable();
            let expected: Vec<u32> = if host == 1 { Vec::new() } else { (0..20).collect() };
            assert_eq!(got, expected, "{shape:?}, host {host}");
        }
    }
}

#[test]
fn what_goes_nowhere_is_dropped_and_counted() {
    let (mut simulation, fabric) = build(CLOS, 10, PathAvoidance::AtOnce);
    // There would be room for a host 10.
    send(&mut simulation, &fabric, 0, 10, 0);
    simulation.run_until(Instant::FAR_FUTURE);
    assert_eq!(switch(&simulation, &fabric, 0).unroutable, 1);
    assert_eq!(simulation.event_count(), 1);
}

/// Frames that have been delivered over each link upwards from the first leaf or edge.
fn spread(simulation: &Simulation<Station>, fabric: &Fabric) -> Vec<u64> {
    let links = fabric.fabric_links().iter().filter(|fabric| fabric.lower == 0);
    links.map(|fabric| simulation.link_counters(fabric.link, Direction::Forward).delivered).collect()
}

#[test]
fn flows_spread_evenly_and_each_keeps_to_its_way() {
    let (mut simulation, fabric) = build(CLOS, 12, PathAvoidance::AtOnce);
    let flow_count = 4_000;
    for flow in 0..flow_count {
        send(&mut simulation, &fabric, 0, 11, flow);
    }
    simulation.run_until(Instant::FAR_FUTURE);
    let once = spread(&simulation, &fabric);
    assert_eq!(once.len(), 4);
    // 1,000 each, and a standard deviation of √(4000 · 1/4 · 3/4) = 27.
    assert!(once.iter().all(|count| (850..1_150).contains(count)), "{once:?}");
    for _ in 0..2 {
        for flow in 0..flow_count {
            send(&mut simulation, &fabric, 0, 11, flow);
        }
    }
    simulation.run_until(Instant::FAR_FUTURE);
    let thrice: Vec<u64> = once.iter().map(|count| count * 3).collect();
    assert_eq!(spread(&simulation, &fabric), thrice, "every flow went the same way each time");
}

#[test]
fn flows_spread_anew_at_each_tier() {
    let (mut simulation, fabric) = build(Shape::FatTree { arity: 8 }, 128, PathAvoidance::AtOnce);
    for flow in 0..8_000 {
        send(&mut simulation, &fabric, 0, 127, flow);
    }
    simulation.run_until(Instant::FAR_FUTURE);
    // From pod to pod there are 16 ways, one over each core.
    let cores: Vec<u64> = (64..80).map(|core| switch(&simulation, &fabric, core).forwarded).collect();
    // 500 each, and a standard deviation of 22.
    assert!(cores.iter().all(|count| (380..620).contains(count)), "{cores:?}");
}

/// Sends every flow once, and says which arrived.
fn round(simulation: &mut Simulation<Station>, fabric: &Fabric, from: usize, to: u32) -> Vec<u32> {
    let before = heard(simulation, fabric, to as usize).len();
    for flow in 0..200 {
        send(simulation, fabric, from, to, flow);
    }
    // Long enough for the longest way.
    simulation.run_until(simulation.now() + Duration::from_nanos(1_000));
    let mut got: Vec<u32> = heard(simulation, fabric, to as usize)[before..].iter().map(|(_, flow)| *flow).collect();
    got.sort_unstable();
    got
}

/// For each link between switches, near or far from the sender, and each direction of it: is the path over it avoided?
fn cut_each(shape: Shape, host_count: usize, avoidance: PathAvoidance, check: impl Fn(&[Vec<u32>; 4])) -> u64 {
    let link_count = build(shape, host_count, avoidance).1.fabric_links().len();
    let mut rerouted = 0;
    for index in 0..link_count {
        for direction in [Direction::Forward, Direction::Backward] {
            let (mut simulation, fabric) = build(shape, host_count, avoidance);
            let link = fabric.fabric_links()[index].link;
            let to = host_count as u32 - 1;
            let whole = round(&mut simulation, &fabric, 0, to);
            simulation.apply(Fault::Cut(link, direction));
            let cut = round(&mut simulation, &fabric, 0, to);
            simulation.run_until(simulation.now() + Duration::from_micros(10));
            let known = round(&mut simulation, &fabric, 0, to);
            simulation.apply(Fault::Restore(link, direction));
            let restored = round(&mut simulation, &fabric, 0, to);
            check(&[whole, cut, known, restored]);
            let switches = 0..fabric.switches().len();
            rerouted += switches.map(|number| switch(&simulation, &fabric, number).rerouted).sum::<u64>();
        }
    }
    rerouted
}

#[test]
fn a_dead_way_is_avoided_as_told() {
    let all: Vec<u32> = (0..200).collect();
    for (shape, host_count) in [(CLOS, 12), (FAT_TREE, 16)] {
        let rerouted = cut_each(shape, host_count, PathAvoidance::AtOnce, |rounds| {
            assert!(rounds.iter().all(|got| *got == all), "{shape:?}: at once");
        });
        assert!(rerouted > 0);

        let some_lost = std::cell::Cell::new(0);
        cut_each(shape, host_count, PathAvoidance::After(Duration::from_micros(5)), |rounds| {
            let [whole, cut, known, restored] = rounds;
            assert!([whole, known, restored].iter().all(|got| **got == all), "{shape:?}: after a while");
            some_lost.set(some_lost.get() + usize::from(*cut != all));
        });
        assert!(some_lost.get() > 0, "until then the path is a black hole");

        some_lost.set(0);
        let rerouted = cut_each(shape, host_count, PathAvoidance::Never, |rounds| {
            let [whole, cut, known, restored] = rounds;
            assert!(*whole == all && *restored == all);
            assert_eq!(cut, known, "the same flows are lost for ever");
            some_lost.set(some_lost.get() + usize::from(*cut != all));
        });
        assert!(some_lost.get() > 0 && rerouted == 0);
    }
}

#[test]
fn only_flows_on_the_dead_way_move() {
    let (mut simulation, fabric) = build(CLOS, 12, PathAvoidance::AtOnce);
    let way = |simulation: &mut Simulation<Station>| {
        let mut ways = BTreeMap::new();
        for flow in 0..200 {
            let before = spread(simulation, &fabric);
            send(simulation, &fabric, 0, 11, flow);
            simulation.run_until(simulation.now() + Duration::from_nanos(1_000));
            let after = spread(simulation, &fabric);
            ways.insert(flow, (0..4).find(|&way| after[way] > before[way]).expect("it goes some way"));
        }
        ways
    };
    let before = way(&mut simulation);
    // Far from the sender: from the third spine down to the receiver's leaf.
    let is_far = |link: &&longhaul_netsim::FabricLink| link.lower == 3 && link.upper == 4 + 2;
    let far = fabric.fabric_links().iter().find(is_far).expect("every leaf is joined to every spine").link;
    simulation.apply(Fault::Cut(far, Direction::Backward));
    let during = way(&mut simulation);
    for flow in 0..200 {
        assert_ne!(during[&flow], 2);
        assert!(before[&flow] == 2 || during[&flow] == before[&flow]);
    }
    let moved: Vec<usize> = (0..200).filter(|flow| before[flow] == 2).map(|flow| during[&flow]).collect();
    assert!([0, 1, 3].iter().all(|way| moved.contains(way)), "those that move spread over all that is left");
    simulation.apply(Fault::Restore(far, Direction::Backward));
    assert_eq!(way(&mut simulation), before);
}

#[test]
fn a_host_whose_link_is_cut_is_unreachable_and_nobody_looks_for_another_way() {
    let (mut simulation, fabric) = build(CLOS, 12, PathAvoidance::AtOnce);
    simulation.apply(Fault::Cut(fabric.host_links()[11], Direction::Backward));
    assert!(round(&mut simulation, &fabric, 0, 11).is_empty());
    assert_eq!(simulation.link_counters(fabric.host_links()[11], Direction::Backward).sent_into_cut, 200);
    assert_eq!(switch(&simulation, &fabric, 0).rerouted, 0);
}

#[test]
fn impossible_topologies_are_refused_with_a_reason() {
    let refused = |shape, hosts| Topology::new(shape, hosts).expect_err("impossible");
    assert_eq!(refused(Shape::Pair, 3), TopologyError::NotAPair { hosts: 3 });
    assert_eq!(refused(CLOS, 13), TopologyError::HostCount { hosts: 13, places: 12 });
    assert_eq!(refused(Shape::Star, 0), TopologyError::HostCount { hosts: 0, places: 1 << 16 });
    assert_eq!(refused(Shape::FatTree { arity: 5 }, 4), TopologyError::Arity { arity: 5 });
    let no_spines = Shape::Clos { leaf_count: 2, spine_count: 0, hosts_per_leaf: 2 };
    assert_eq!(refused(no_spines, 4), TopologyError::EmptyTier);
    assert_eq!(refused(Shape::Star, 70_000), TopologyError::PortCount { ports: 70_000 });
}
