//! What faults do, and that the same ones give the same run.

use longhaul_impair::{Loss, Profile};
use longhaul_netsim::{
    Direction, Fault, Frame, LinkId, Node, NodeCondition, NodeId, NodeIo, Simulation, SimulationLimits,
};
use longhaul_time::{Duration, Instant};

/// Sends numbered frames at an even pace while it has any left, and notes what comes and when it is polled.
#[derive(Default)]
struct Talker {
    interval: Duration,
    next_at: Option<Instant>,
    sent: u32,
    left: u32,
    heard: Vec<(Instant, u32)>,
    polls: Vec<Instant>,
    /// What it did, in order.
    journal: String,
}

impl Talker {
    fn new(count: u32, interval_nanos: u64) -> Self {
        Talker {
            interval: Duration::from_nanos(interval_nanos),
            next_at: (count > 0).then_some(Instant::ZERO),
            left: count,
            ..Talker::default()
        }
    }

    fn numbers(&self) -> Vec<u32> {
        self.heard.iter().map(|(_, number)| *number).collect()
    }
}

impl Node for Talker {
    fn handle(&mut self, _link_port: usize, frame: Frame, now: Instant, io: &mut NodeIo<'_>) {
        self.journal.push('h');
        self.heard.push((now, u32::from_le_bytes(*frame.bytes.first_chunk().expect("four bytes"))));
        io.recycle(frame);
    }

    fn poll(&mut self, now: Instant, io: &mut NodeIo<'_>) {
        self.journal.push('p');
        self.polls.push(now);
        if self.next_at.is_some_and(|at| at <= now) {
            let mut bytes = io.take_buffer();
            bytes.clear();
            bytes.extend_from_slice(&self.sent.to_le_bytes());
            io.send(0, Frame::from(bytes));
            self.sent += 1;
            self.left -= 1;
            self.next_at = (self.left > 0).then(|| now + self.interval);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.next_at
    }
}

const FORWARD: Direction = Direction::Forward;
const BACKWARD: Direction = Direction::Backward;

fn delay(nanos: u64) -> Profile {
    Profile::default().with_propagation_delay(Duration::from_nanos(nanos))
}

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// Two talkers, 50 ns apart; each sends `count` frames, one every 10 ns.
fn pair(count: u32) -> (Simulation<Talker>, NodeId, NodeId, LinkId) {
    let mut simulation = Simulation::new(3);
    let left = simulation.add_node(Talker::new(count, 10));
    let right = simulation.add_node(Talker::new(count, 10));
    let link = simulation.connect(left.port(0), right.port(0), delay(50), delay(50)).expect("free ports");
    (simulation, left, right, link)
}

#[test]
fn no_frame_crosses_a_cut_direction_and_the_other_one_lives() {
    let (mut simulation, left, right, link) = pair(100);
    simulation.schedule(at(203), Fault::Cut(link, FORWARD)).expect("room");
    simulation.schedule(at(407), Fault::Restore(link, FORWARD)).expect("room");
    simulation.run_until(at(300));
    assert!(simulation.is_cut(link, FORWARD) && !simulation.is_cut(link, BACKWARD));
    assert_eq!(simulation.in_flight_count(link, FORWARD), 0, "what was in flight is lost");
    simulation.run_until(Instant::FAR_FUTURE);
    // Sent at 10 × number. 0 to 15 had arrived by 203, 16 to 20 were in flight, 21 to 40 were sent into the cut.
    let expected: Vec<u32> = (0..=15).chain(41..100).collect();
    assert_eq!(simulation.node(right).numbers(), expected);
    assert_eq!(simulation.node(left).numbers(), (0..100).collect::<Vec<_>>());
    let counters = simulation.link_counters(link, FORWARD);
    assert_eq!((counters.lost_by_cut, counters.sent_into_cut, counters.delivered), (5, 20, 75));
    assert_eq!(simulation.link_counters(link, BACKWARD).delivered, 100);
    assert_eq!(simulation.cut_count(), 0);
}

#[test]
fn a_cut_made_twice_is_one_cut_and_mended_once() {
    let (mut simulation, _, right, link) = pair(3);
    simulation.apply(Fault::Cut(link, FORWARD));
    simulation.apply(Fault::Cut(link, FORWARD));
    assert_eq!(simulation.cut_count(), 1);
    simulation.apply(Fault::Restore(link, FORWARD));
    simulation.apply(Fault::Restore(link, FORWARD));
    assert_eq!(simulation.cut_count(), 0);
    simulation.run_until(Instant::FAR_FUTURE);
    assert_eq!(simulation.node(right).numbers(), [0, 1, 2]);
}

#[test]
fn a_cut_takes_frames_that_overtake_others_too() {
    let mut simulation = Simulation::new(3);
    let left = simulation.add_node(Talker::new(0, 10));
    let right = simulation.add_node(Talker::new(0, 10));
    let link = simulation.connect(left.port(0), right.port(0), delay(500), delay(0)).expect("free ports");
    let send = |simulation: &mut Simulation<Talker>| {
        simulation.drive(left, |_, _, io| io.send(0, Frame::from(vec![0; 4])));
    };
    send(&mut simulation);
    simulation.set_profile(link, FORWARD, delay(100)).expect("a valid profile");
    send(&mut simulation);
    simulation.apply(Fault::Cut(link, FORWARD));
    simulation.apply(Fault::Restore(link, FORWARD));
    assert!(!simulation.step(), "nothing is in flight");
    assert_eq!(simulation.link_counters(link, FORWARD).lost_by_cut, 2);
    assert!(simulation.node(right).heard.is_empty());
}

#[test]
fn the_wire_in_front_of_a_cut_keeps_its_pace() {
    let mut simulation = Simulation::new(3);
    let left = simulation.add_node(Talker::new(0, 10));
    let right = simulation.add_node(Talker::new(0, 10));
    let rated = delay(5).with_rate_bits_per_second(8_000_000_000);
    let link = simulation.connect(left.port(0), right.port(0), rated, delay(0)).expect("free ports");
    simulation.apply(Fault::Cut(link, FORWARD));
    simulation.drive(left, |_, _, io| {
        io.send(0, Frame { bytes: vec![0; 4], elided_bytes: 996 });
        assert_eq!(io.egress_idle_at(0), at(1_000));
    });
}

#[test]
fn a_paused_node_gets_what_came_meanwhile_in_order_and_before_it_is_polled() {
    let (mut simulation, left, right, _) = pair(30);
    simulation.schedule(at(101), Fault::Pause(right)).expect("room");
    simulation.run_until(at(250));
    assert_eq!(simulation.condition(right), NodeCondition::Paused);
    assert_eq!(simulation.node(right).numbers(), (0..=5).collect::<Vec<_>>());
    assert_eq!(simulation.node(right).sent, 11, "it is not polled");
    simulation.wake(right);
    simulation.run_until(at(260));
    assert_eq!(simulation.node(right).sent, 11, "nor when it is woken");
    let journal_before = simulation.node(right).journal.len();
    simulation.apply(Fault::Resume(right));
    simulation.run_until(at(260));
    assert_eq!(simulation.node(right).numbers(), (0..=21).collect::<Vec<_>>());
    assert!(simulation.node(right).heard[6..].iter().all(|(heard_at, _)| *heard_at == at(260)));
    assert_eq!(&simulation.node(right).journal[journal_before..], "hhhhhhhhhhhhhhhhp");
    simulation.run_until(Instant::FAR_FUTURE);
    assert_eq!(simulation.node(right).numbers(), (0..30).collect::<Vec<_>>());
    assert_eq!(simulation.node(left).numbers(), (0..30).collect::<Vec<_>>(), "it went on where it had been");
}

#[test]
fn a_node_woken_while_paused_is_polled_when_it_goes_on() {
    let mut simulation = Simulation::new(3);
    let node = simulation.add_node(Talker::new(0, 10));
    simulation.apply(Fault::Pause(node));
    simulation.wake(node);
    simulation.run_until(at(10));
    assert!(simulation.node(node).polls.is_empty());
    simulation.apply(Fault::Resume(node));
    simulation.run_until(at(20));
    assert_eq!(simulation.node(node).polls, [at(10)]);
}

#[test]
fn what_waits_for_a_paused_node_is_bounded() {
    let limits = SimulationLimits { paused_frames_max: 3, ..SimulationLimits::default() };
    let mut simulation = Simulation::with_limits(3, limits);
    let left = simulation.add_node(Talker::new(8, 10));
    let right = simulation.add_node(Talker::new(0, 10));
    simulation.connect(left.port(0), right.port(0), delay(50), delay(50)).expect("free ports");
    simulation.apply(Fault::Pause(right));
    simulation.run_until(at(1_000));
    assert_eq!(simulation.node_counters(right).lost_while_paused, 5);
    simulation.apply(Fault::Resume(right));
    assert_eq!(simulation.node(right).numbers(), [0, 1, 2], "the first that arrived are kept");
}

#[test]
fn a_stopped_node_is_silent_and_deaf_and_comes_back_empty() {
    let (mut simulation, left, right, link) = pair(30);
    simulation.schedule(at(101), Fault::Stop(right)).expect("room");
    simulation.run_until(at(202));
    assert_eq!(simulation.condition(right), NodeCondition::Stopped);
    assert_eq!(simulation.node(right).sent, 11);
    assert_eq!(simulation.node(left).numbers(), (0..=10).collect::<Vec<_>>(), "what it had sent is in flight");
    // 6 to 15 arrived at nobody.
    assert_eq!(simulation.node_counters(right).lost_while_stopped, 10);
    simulation.wake(right);
    simulation.apply(Fault::Resume(right));
    assert_eq!(simulation.condition(right), NodeCondition::Stopped, "one cannot resume what is gone");
    let old = simulation.replace(right, Talker::new(2, 10));
    assert_eq!(old.numbers(), (0..=5).collect::<Vec<_>>());
    assert_eq!(simulation.condition(right), NodeCondition::Running);
    simulation.run_until(Instant::FAR_FUTURE);
    assert_eq!(simulation.node(right).numbers(), (16..30).collect::<Vec<_>>(), "it has nothing from before");
    assert_eq!(simulation.node(left).numbers()[11..], [0, 1]);
    assert_eq!(simulation.node(right).polls.len(), 2, "what woke the old one does not wake the new one");
    assert_eq!(simulation.link_counters(link, FORWARD).delivered, 20);
}

#[test]
fn what_waited_for_a_paused_node_is_lost_when_it_stops() {
    let (mut simulation, _, right, _) = pair(10);
    simulation.apply(Fault::Pause(right));
    simulation.run_until(at(1_000));
    simulation.apply(Fault::Stop(right));
    assert_eq!(simulation.node_counters(right).lost_while_stopped, 10);
    simulation.replace(right, Talker::new(0, 10));
    simulation.run_until(at(2_000));
    assert!(simulation.node(right).heard.is_empty());
}

#[test]
fn a_schedule_is_kept_in_order_printed_and_forgotten() {
    let (mut simulation, left, right, link) = pair(0);
    simulation.schedule(at(70), Fault::Resume(left)).expect("room");
    simulation.schedule(at(50), Fault::Cut(link, BACKWARD)).expect("room");
    simulation.schedule(at(70), Fault::Stop(right)).expect("room");
    let printed: Vec<String> =
        simulation.scheduled_faults().map(|(when, fault)| format!("{} {fault}", when.as_nanos())).collect();
    assert_eq!(printed, ["50 cut link 0 backward", "70 resume node 0", "70 stop node 1"]);
    simulation.run_until(at(60));
    assert_eq!(simulation.scheduled_faults().count(), 2);
    simulation.clear_schedule();
    assert!(!simulation.step());
    assert_eq!(simulation.condition(right), NodeCondition::Running);
}

#[test]
fn a_schedule_is_bounded() {
    let limits = SimulationLimits { scheduled_faults_max: 1, ..SimulationLimits::default() };
    let mut simulation = Simulation::with_limits(3, limits);
    let node = simulation.add_node(Talker::new(0, 10));
    assert!(simulation.schedule(at(1), Fault::Pause(node)).is_ok());
    assert!(simulation.schedule(at(2), Fault::Resume(node)).is_err());
}

/// A noisy run of four talkers in a ring with every kind of fault.
fn faulty_run(seed: u64, skipped: Option<usize>) -> u64 {
    let mut simulation = Simulation::new(seed);
    let noisy =
        delay(500).with_jitter(Duration::from_nanos(300), false).with_loss(Loss::Independent { probability: 0.1 });
    let pairs: Vec<(NodeId, NodeId, LinkId)> = (0..2)
        .map(|_| {
            let one = simulation.add_node(Talker::new(300, 17));
            let other = simulation.add_node(Talker::new(300, 13));
            let link = simulation.connect(one.port(0), other.port(0), noisy.clone(), noisy.clone());
            (one, other, link.expect("free ports"))
        })
        .collect();
    let (one, other, link) = pairs[0];
    let faults = [
        (700, Fault::Cut(link, FORWARD)),
        (1_100, Fault::Cut(link, BACKWARD)),
        (1_500, Fault::Restore(link, FORWARD)),
        (1_600, Fault::Restore(link, BACKWARD)),
        (2_000, Fault::Pause(one)),
        (2_600, Fault::Resume(one)),
        (3_000, Fault::Stop(other)),
    ];
    for (index, (nanos, fault)) in faults.into_iter().enumerate() {
        if Some(index) != skipped {
            simulation.schedule(at(nanos), fault).expect("room");
        }
    }
    simulation.run_until(at(3_500));
    simulation.replace(other, Talker::new(20, 11));
    simulation.run_until(Instant::FAR_FUTURE);
    simulation.trace_hash()
}

#[test]
fn the_same_faults_give_the_same_run() {
    for seed in 0..20 {
        assert_eq!(faulty_run(seed, None), faulty_run(seed, None));
        for skipped in 0..7 {
            assert_ne!(faulty_run(seed, None), faulty_run(seed, Some(skipped)), "each fault shows: {skipped}");
        }
    }
    assert_ne!(faulty_run(1, None), faulty_run(2, None));
}
