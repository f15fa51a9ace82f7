//! What the simulator guarantees to nodes and to its user.

use longhaul_impair::{EcnMarking, Loss, Profile};
use longhaul_netsim::{ConnectError, Direction, Frame, Node, NodeId, NodeIo, Simulation, SimulationLimits, Switch};
use longhaul_time::{Duration, Instant};

/// Notes what arrives and how often it is polled; has a deadline only if given one.
#[derive(Default)]
struct Recorder {
    arrivals: Vec<(Instant, usize, Frame)>,
    polls: Vec<Instant>,
    deadline_questions: std::cell::Cell<u64>,
    deadlines: std::collections::VecDeque<Instant>,
}

impl Recorder {
    fn with_deadlines(nanos: &[u64]) -> Self {
        Recorder { deadlines: nanos.iter().map(|&nanos| Instant::from_nanos(nanos)).collect(), ..Recorder::default() }
    }

    fn first_bytes(&self) -> Vec<u8> {
        self.arrivals.iter().map(|(_, _, frame)| frame.bytes[0]).collect()
    }
}

impl Node for Recorder {
    fn handle(&mut self, link_port: usize, frame: Frame, now: Instant, _io: &mut NodeIo<'_>) {
        self.arrivals.push((now, link_port, frame));
    }

    fn poll(&mut self, now: Instant, _io: &mut NodeIo<'_>) {
        self.polls.push(now);
        while self.deadlines.front().is_some_and(|deadline| *deadline <= now) {
            self.deadlines.pop_front();
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadline_questions.set(self.deadline_questions.get() + 1);
        self.deadlines.front().copied()
    }
}

fn delay(nanos: u64) -> Profile {
    Profile::default().with_propagation_delay(Duration::from_nanos(nanos))
}

fn send(simulation: &mut Simulation<Recorder>, from: NodeId, port: usize, bytes: &[u8]) {
    simulation.drive(from, |_, _, io| {
        let mut buffer = io.take_buffer();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        io.send(port, Frame::from(buffer));
    });
}

/// Two recorders and a link with this profile from the first to the second.
fn pair(seed: u64, profile: Profile) -> (Simulation<Recorder>, NodeId, NodeId, longhaul_netsim::LinkId) {
    let mut simulation = Simulation::new(seed);
    let left = simulation.add_node(Recorder::default());
    let right = simulation.add_node(Recorder::default());
    let link = simulation.connect(left.port(0), right.port(0), profile, Profile::default()).expect("free ports");
    (simulation, left, right, link)
}

#[test]
fn events_come_in_the_order_of_time_and_ties_in_the_order_of_sending() {
    let mut simulation = Simulation::new(1);
    let sink = simulation.add_node(Recorder::default());
    // Each link is faster than the one before.
    let sources: Vec<NodeId> = (0..5).map(|_| simulation.add_node(Recorder::default())).collect();
    for (port, &source) in sources.iter().enumerate() {
        let nanos = 100 - port as u64 * 10;
        simulation.connect(source.port(0), sink.port(port), delay(nanos), Profile::default()).expect("free ports");
    }
    for (number, &source) in sources.iter().enumerate() {
        send(&mut simulation, source, 0, &[number as u8]);
    }
    // Sent later so that all arrive at 160, in the order of sending: 3, 1, 4, 0, 2.
    simulation.run_until(Instant::from_nanos(60));
    for number in [3usize, 1, 4, 0, 2] {
        let profile = delay(100);
        let link = simulation.connect(sources[number].port(1), sink.port(10 + number), profile, Profile::default());
        link.expect("free ports");
        send(&mut simulation, sources[number], 1, &[10 + number as u8]);
    }
    simulation.run_until(Instant::from_nanos(1_000));
    let sink = simulation.node(sink);
    assert_eq!(sink.first_bytes(), [4, 3, 2, 1, 0, 13, 11, 14, 10, 12]);
    let times: Vec<u64> = sink.arrivals.iter().map(|(at, _, _)| at.as_nanos()).collect();
    assert_eq!(times, [60, 70, 80, 90, 100, 160, 160, 160, 160, 160]);
    assert_eq!(simulation.now(), Instant::from_nanos(1_000));
}

fn noisy_run(seed: u64, extra_link: bool) -> (u64, Vec<u8>) {
    let profile = delay(10_000)
        .with_jitter(Duration::from_micros(3), false)
        .with_loss(Loss::bursts(0.1, 3.0))
        .with_duplication(0.05)
        .with_corruption(0.05, 2);
    let (mut simulation, left, right, _) = pair(seed, profile.clone());
    if extra_link {
        simulation.connect(right.port(1), left.port(1), profile.clone(), profile).expect("free ports");
    }
    for number in 0..500u32 {
        send(&mut simulation, left, 0, &number.to_le_bytes());
        simulation.run_until(Instant::from_nanos(u64::from(number) * 1_000));
        if extra_link {
            send(&mut simulation, left, 1, b"noise");
        }
    }
    simulation.run_until(Instant::FAR_FUTURE);
    let from_first_link = simulation.node(right).arrivals.iter().filter(|(_, port, _)| *port == 0);
    (simulation.trace_hash(), from_first_link.flat_map(|(_, _, frame)| frame.bytes.clone()).collect())
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    assert_eq!(noisy_run(7, false), noisy_run(7, false));
    assert_ne!(noisy_run(7, false).0, noisy_run(8, false).0);
}

#[test]
fn a_further_link_does_not_change_what_happens_on_the_first() {
    let (hash_alone, bytes_alone) = noisy_run(7, false);
    let (hash_together, bytes_together) = noisy_run(7, true);
    assert_eq!(bytes_alone, bytes_together);
    assert_ne!(hash_alone, hash_together);
}

#[test]
fn idle_nodes_are_never_called() {
    let mut simulation = Simulation::new(1);
    let idle: Vec<NodeId> = (0..10_000).map(|_| simulation.add_node(Recorder::default())).collect();
    let left = simulation.add_node(Recorder::with_deadlines(&[10, 20, 30]));
    let right = simulation.add_node(Recorder::default());
    simulation.connect(left.port(0), right.port(0), delay(5), delay(5)).expect("free ports");
    for _ in 0..1000 {
        send(&mut simulation, left, 0, b"busy");
    }
    simulation.run_until(Instant::from_nanos(1_000_000));
    assert_eq!(simulation.node(right).arrivals.len(), 1000);
    assert_eq!(simulation.node(left).polls.len(), 3);
    for id in idle {
        assert!(simulation.node(id).polls.is_empty());
        assert_eq!(simulation.node(id).deadline_questions.get(), 1, "asked once, when it was added");
    }
}

#[test]
fn deadlines_may_move_either_way() {
    let mut simulation = Simulation::new(1);
    let node = simulation.add_node(Recorder::with_deadlines(&[100]));
    // Earlier: takes effect when the simulator asks again.
    simulation.drive(node, |node, _, _| node.deadlines.push_front(Instant::from_nanos(40)));
    simulation.run_until(Instant::from_nanos(50));
    assert_eq!(simulation.node(node).polls, [Instant::from_nanos(40)]);
    // Later, and not even said to the simulator: the old entry comes up and is moved, without a poll.
    simulation.node_mut(node).deadlines = [Instant::from_nanos(150)].into();
    simulation.run_until(Instant::from_nanos(149));
    assert_eq!(simulation.node(node).polls.len(), 1);
    simulation.run_until(Instant::from_nanos(200));
    assert_eq!(simulation.node(node).polls[1..], [Instant::from_nanos(150)]);
    // Gone.
    simulation.drive(node, |node, _, _| node.deadlines.push_front(Instant::from_nanos(300)));
    simulation.node_mut(node).deadlines.clear();
    assert!(!simulation.step(), "nothing is left to happen");
    assert_eq!(simulation.now(), Instant::from_nanos(200), "a deadline that is gone does not move the clock");
    assert_eq!(simulation.node(node).polls.len(), 2);
}

#[test]
fn run_until_does_not_pass_its_end_when_a_deadline_moves_there() {
    let mut simulation = Simulation::new(1);
    let node = simulation.add_node(Recorder::with_deadlines(&[100]));
    simulation.node_mut(node).deadlines = [Instant::from_nanos(500)].into();
    simulation.run_until(Instant::from_nanos(200));
    assert!(simulation.node(node).polls.is_empty());
    assert_eq!(simulation.now(), Instant::from_nanos(200));
}

#[test]
fn a_woken_node_is_polled_once_at_the_present() {
    let mut simulation = Simulation::new(1);
    let node = simulation.add_node(Recorder::default());
    simulation.run_until(Instant::from_nanos(70));
    simulation.wake(node);
    simulation.wake(node);
    simulation.run_until(Instant::from_nanos(100));
    assert_eq!(simulation.node(node).polls, [Instant::from_nanos(70)]);
}

/// Sends whenever its wire is idle, and never otherwise.
struct Polite {
    next_send_at: Option<Instant>,
    left: u32,
    backlog_bytes_max: u64,
}

impl Node for Polite {
    fn handle(&mut self, _link_port: usize, frame: Frame, _now: Instant, io: &mut NodeIo<'_>) {
        io.recycle(frame);
    }

    fn poll(&mut self, _now: Instant, io: &mut NodeIo<'_>) {
        self.backlog_bytes_max = self.backlog_bytes_max.max(io.egress_backlog_bytes(0));
        self.left -= 1;
        let mut bytes = io.take_buffer();
        bytes.clear();
        io.send(0, Frame { bytes, elided_bytes: 1000 });
        self.next_send_at = (self.left > 0).then(|| io.egress_idle_at(0));
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.next_send_at
    }
}

#[test]
fn back_pressure_keeps_the_wire_busy_and_the_queue_empty() {
    let mut simulation = Simulation::new(1);
    let sender = Polite { next_send_at: Some(Instant::ZERO), left: 1000, backlog_bytes_max: 0 };
    let left = simulation.add_node(sender);
    let right = simulation.add_node(Polite { next_send_at: None, left: 0, backlog_bytes_max: 0 });
    // A queue that takes one frame; 1 byte a nanosecond.
    let profile = delay(500).with_rate_bits_per_second(8_000_000_000).with_queue_limit_bytes(1000);
    let link = simulation.connect(left.port(0), right.port(0), profile, delay(500)).expect("free ports");
    simulation.run_until(Instant::FAR_FUTURE);
    assert_eq!(simulation.now(), Instant::from_nanos(1000 * 1000 + 500));
    assert_eq!(simulation.node(left).backlog_bytes_max, 0);
    let counters = simulation.link_counters(link, Direction::Forward);
    assert_eq!((counters.delivered, counters.impairment.queue_full), (1000, 0));
    assert!(simulation.frame_pool().free_count() <= 2, "a thousand frames shared the buffers of those in flight");
}

#[test]
fn a_queue_that_is_not_watched_overflows() {
    let profile = Profile::default().with_rate_bits_per_second(8_000_000_000).with_queue_limit_bytes(3_000);
    let (mut simulation, left, right, link) = pair(1, profile);
    for _ in 0..5 {
        send(&mut simulation, left, 0, &[0; 1000]);
    }
    simulation.drive(left, |_, _, io| {
        assert_eq!(io.egress_backlog_bytes(0), 3_000);
        assert_eq!(io.egress_idle_at(0), Instant::from_nanos(3_000));
    });
    simulation.run_until(Instant::FAR_FUTURE);
    assert_eq!(simulation.node(right).arrivals.len(), 3);
    assert_eq!(simulation.link_counters(link, Direction::Forward).impairment.queue_full, 2);
}

#[test]
fn congestion_is_marked_by_the_callers_function() {
    let profile = Profile::default()
        .with_rate_bits_per_second(8_000_000_000)
        .with_ecn(EcnMarking::Step { threshold_bytes: 1_500 });
    let (mut simulation, left, right, _) = pair(1, profile);
    simulation.set_ecn_marker(|frame| frame.bytes[0] |= 0b11);
    for _ in 0..4 {
        send(&mut simulation, left, 0, &[0; 1000]);
    }
    simulation.run_until(Instant::FAR_FUTURE);
    assert_eq!(simulation.node(right).first_bytes(), [0, 0, 0b11, 0b11]);
}

#[test]
fn corruption_flips_as_many_bits_as_asked() {
    let (mut simulation, left, right, _) = pair(1, Profile::default().with_corruption(1.0, 3));
    for _ in 0..50 {
        send(&mut simulation, left, 0, &[0; 100]);
    }
    simulation.run_until(Instant::FAR_FUTURE);
    let flipped = |frame: &Frame| frame.bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
    assert!(simulation.node(right).arrivals.iter().all(|(_, _, frame)| flipped(frame) == 3));
    let different: std::collections::BTreeSet<_> =
        simulation.node(right).arrivals.iter().map(|(_, _, frame)| frame.bytes.clone()).collect();
    assert!(different.len() > 45);
}

#[test]
fn duplicates_are_whole_and_damaged_apart() {
    let profile = Profile::default().with_duplication(1.0).with_corruption(0.5, 1);
    let (mut simulation, left, right, link) = pair(1, profile);
    for _ in 0..100 {
        send(&mut simulation, left, 0, &[0; 100]);
    }
    simulation.run_until(Instant::FAR_FUTURE);
    let arrivals = &simulation.node(right).arrivals;
    assert_eq!(arrivals.len(), 200);
    assert!(arrivals.iter().all(|(_, _, frame)| frame.bytes.len() == 100));
    let is_damaged = |frame: &Frame| frame.bytes.iter().any(|&byte| byte != 0);
    let one_of_two = arrivals.chunks(2).filter(|two| is_damaged(&two[0].2) != is_damaged(&two[1].2)).count();
    assert!((30..70).contains(&one_of_two), "{one_of_two}");
    assert_eq!(simulation.link_counters(link, Direction::Forward).delivered, 200);
}

#[test]
fn a_link_made_faster_during_a_run_takes_frames_at_once() {
    let slow = delay(0).with_rate_bits_per_second(1_000_000).with_queue_limit_bytes(200);
    let (mut simulation, left, right, link) = pair(1, slow.clone());
    send(&mut simulation, left, 0, &[0; 200]);
    simulation.run_until(Instant::from_nanos(800_000));
    let fast = slow.with_rate_bits_per_second(100_000_000_000);
    simulation.set_profile(link, Direction::Forward, fast).expect("a good profile");
    // Of the first, 100 bytes are left: 8 ns now.
    send(&mut simulation, left, 0, &[1; 100]);
    simulation.run_until(Instant::from_nanos(800_016));
    assert_eq!(simulation.node(right).first_bytes(), [1]);
    simulation.run_until(Instant::from_nanos(1_600_000));
    assert_eq!(simulation.node(right).first_bytes(), [1, 0], "the first arrives as announced");
}

#[test]
fn links_break_heal_and_shorten_during_a_run() {
    let (mut simulation, left, right, link) = pair(1, delay(1_000));
    send(&mut simulation, left, 0, &[0]);
    let broken = delay(1_000).with_loss(Loss::Independent { probability: 1.0 });
    simulation.set_profile(link, Direction::Forward, broken).expect("a good profile");
    send(&mut simulation, left, 0, &[1]);
    simulation.set_profile(link, Direction::Forward, delay(10)).expect("a good profile");
    send(&mut simulation, left, 0, &[2]);
    send(&mut simulation, left, 0, &[3]);
    assert_eq!(simulation.in_flight_count(link, Direction::Forward), 3);
    simulation.run_until(Instant::FAR_FUTURE);
    // The first was already in flight; the second was lost; the others overtook it, in order.
    assert_eq!(simulation.node(right).first_bytes(), [2, 3, 0]);
    let refused = simulation.set_profile(link, Direction::Backward, delay(10).with_duplication(2.0));
    assert!(refused.is_err());
}

#[test]
fn impossible_links_are_refused_with_a_reason() {
    let (mut simulation, left, right, _) = pair(1, delay(1));
    let perfect = Profile::default;
    let refused = simulation.connect(left.port(0), right.port(1), perfect(), perfect());
    assert_eq!(refused, Err(ConnectError::PortInUse(left.port(0))));
    let refused = simulation.connect(left.port(3), left.port(3), perfect(), perfect());
    assert_eq!(refused, Err(ConnectError::SamePort(left.port(3))));
    let refused = simulation.connect(left.port(1 << 20), right.port(1), perfect(), perfect());
    assert_eq!(refused, Err(ConnectError::PortNumber(left.port(1 << 20))));
    let refused = simulation.connect(left.port(1), right.port(1), perfect(), perfect().with_duplication(2.0));
    assert!(matches!(refused, Err(ConnectError::Profile { direction: Direction::Backward, .. })));
    // A refused link leaves its ports free.
    simulation.connect(left.port(1), right.port(1), perfect(), perfect()).expect("still free");
    send(&mut simulation, left, 9, b"into the void");
    assert_eq!(simulation.frames_without_link(), 1);
}

#[test]
fn frames_in_flight_are_bounded() {
    let limits = SimulationLimits { in_flight_frames_max: 10, ..SimulationLimits::default() };
    let mut simulation = Simulation::with_limits(1, limits);
    let left = simulation.add_node(Recorder::default());
    let right = simulation.add_node(Recorder::default());
    let link = simulation.connect(left.port(0), right.port(0), delay(10), delay(10)).expect("free ports");
    for _ in 0..15 {
        send(&mut simulation, left, 0, b"x");
    }
    simulation.run_until(Instant::FAR_FUTURE);
    let counters = simulation.link_counters(link, Direction::Forward);
    assert_eq!((counters.delivered, counters.in_flight_limit), (10, 5));
}

/// Never satisfied with the present.
struct Restless;

impl Node for Restless {
    fn handle(&mut self, _link_port: usize, _frame: Frame, _now: Instant, _io: &mut NodeIo<'_>) {}
    fn poll(&mut self, _now: Instant, _io: &mut NodeIo<'_>) {}
    fn next_deadline(&self) -> Option<Instant> {
        Some(Instant::ZERO)
    }
}

#[test]
#[should_panic(expected = "time does not advance: 1001 events")]
fn time_that_stands_still_is_noticed() {
    let limits = SimulationLimits { events_per_instant_max: 1_000, ..SimulationLimits::default() };
    let mut simulation = Simulation::with_limits(1, limits);
    simulation.add_node(Restless);
    simulation.run_until(Instant::from_nanos(1));
}

#[test]
fn run_while_says_whether_the_condition_ended_it() {
    let mut simulation = Simulation::new(1);
    let node = simulation.add_node(Recorder::with_deadlines(&[1, 2, 3]));
    assert!(simulation.run_while(|simulation| simulation.node(node).polls.len() < 2));
    assert_eq!(simulation.now(), Instant::from_nanos(2));
    assert!(!simulation.run_while(|simulation| simulation.node(node).polls.len() < 10));
}

/// Nodes of two kinds, as an enum.
enum Host {
    Recorder(Recorder),
    Switch(Switch<fn(&Frame) -> Option<usize>>),
}

impl Node for Host {
    fn handle(&mut self, link_port: usize, frame: Frame, now: Instant, io: &mut NodeIo<'_>) {
        match self {
            Host::Recorder(node) => node.handle(link_port, frame, now, io),
            Host::Switch(node) => node.handle(link_port, frame, now, io),
        }
    }

    fn poll(&mut self, now: Instant, io: &mut NodeIo<'_>) {
        match self {
            Host::Recorder(node) => node.poll(now, io),
            Host::Switch(node) => node.poll(now, io),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        match self {
            Host::Recorder(node) => node.next_deadline(),
            Host::Switch(node) => node.next_deadline(),
        }
    }
}

#[test]
fn a_switch_forwards_what_it_knows_and_floods_the_rest() {
    let mut simulation = Simulation::new(1);
    let switch = simulation.add_node(Host::Switch(Switch::new(|frame| match frame.bytes[0] {
        255 => None,
        port => Some(usize::from(port)),
    })));
    let hosts: Vec<NodeId> = (0..3)
        .map(|port| {
            let host = simulation.add_node(Host::Recorder(Recorder::default()));
            simulation.connect(host.port(0), switch.port(port), delay(5), delay(5)).expect("free ports");
            host
        })
        .collect();
    for destination in [2, 255] {
        simulation.drive(hosts[0], |_, _, io| io.send(0, Frame { bytes: vec![destination], elided_bytes: 99 }));
    }
    simulation.run_until(Instant::FAR_FUTURE);
    let heard = |host: usize| match simulation.node(hosts[host]) {
        Host::Recorder(node) => node.arrivals.iter().map(|(_, _, frame)| frame.clone()).collect::<Vec<_>>(),
        Host::Switch(_) => unreachable!("hosts are recorders"),
    };
    let frame = |byte| Frame { bytes: vec![byte], elided_bytes: 99 };
    assert_eq!(heard(0), []);
    assert_eq!(heard(1), [frame(255)]);
    assert_eq!(heard(2), [frame(2), frame(255)]);
}

#[test]
fn a_simulation_can_run_on_another_thread() {
    fn assert_send<T: Send>() {}
    assert_send::<Simulation<Recorder>>();
    assert_send::<longhaul_impair::Impairment>();
}

#[test]
fn nodes_of_many_types_fit_in_a_box() {
    let mut simulation: Simulation<Box<dyn Node>> = Simulation::new(1);
    let left = simulation.add_node(Box::new(Recorder::default()));
    let hub = simulation.add_node(Box::new(Switch::new(|_: &Frame| None)));
    simulation.connect(left.port(0), hub.port(0), delay(5), delay(5)).expect("free ports");
    simulation.drive(left, |_, _, io| io.send(0, Frame::from(vec![1, 2, 3])));
    simulation.run_until(Instant::FAR_FUTURE);
    assert_eq!(simulation.event_count(), 1);
}
