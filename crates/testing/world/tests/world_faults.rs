//! Faults of a world as verbs programs see them.

use longhaul_impair::Profile;
use longhaul_netsim::{NodeCondition, PathAvoidance};
use longhaul_time::Duration;
use longhaul_verbs::{
    Access, AsyncEventKind, CompletionQueue, CompletionStatus, LinkState, MemoryRegion, Mtu, PathAttributes, QueuePair,
    QueuePairAttributes, QueuePairState, ReceiveRequest, SendOperation, SendRequest, Transport, WorkCompletion,
};
use longhaul_world::{Fault, Link, Topology, Way, World, WorldConfig};

const SLOTS: usize = 64;
const MESSAGE_BYTES: usize = 6_000;

/// The resources of a program on one node.
struct End {
    node: usize,
    completions: CompletionQueue,
    queue_pair: QueuePair,
    region: MemoryRegion,
}

fn open(world: &World, node: usize) -> End {
    let device = world.device(node);
    let domain = device.allocate_protection_domain().unwrap();
    let completions = device.create_completion_queue(4 * SLOTS as u32).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = domain.register_zeroed(SLOTS * MESSAGE_BYTES, access).unwrap();
    let transport = Transport::ReliableConnection;
    let queue_pair = domain.create_queue_pair(transport, &completions, &completions, &Default::default()).unwrap();
    queue_pair.modify(&QueuePairAttributes::init_connected(access)).unwrap();
    End { node, completions, queue_pair, region }
}

/// Timeout 8 is 1 ms; it is tried 7 times again.
fn connect(world: &World, one: &End, other: &End) {
    for (own, peer) in [(one, other), (other, one)] {
        let path = PathAttributes::to(world.gid(peer.node));
        let receive = QueuePairAttributes::ready_to_receive(path, Mtu::Bytes1024, peer.queue_pair.number(), 0);
        own.queue_pair.modify(&receive.reliable_receive(0, 12)).unwrap();
        own.queue_pair.modify(&QueuePairAttributes::ready_to_send(0).reliable_send(8, 7, 7, 0)).unwrap();
    }
}

fn connected(world: &World, one: usize, other: usize) -> (End, End) {
    let (one, other) = (open(world, one), open(world, other));
    connect(world, &one, &other);
    (one, other)
}

impl End {
    fn send(&self, number: usize) {
        let entry = [self.region.entry(number * MESSAGE_BYTES..(number + 1) * MESSAGE_BYTES)];
        let request = SendRequest::new(number as u64, SendOperation::Send, &entry);
        self.queue_pair.post_send(&[request]).unwrap();
    }

    fn receive(&self, number: usize) {
        let entry = [self.region.entry(number * MESSAGE_BYTES..(number + 1) * MESSAGE_BYTES)];
        self.queue_pair.post_receive(&[ReceiveRequest { id: number as u64, local: &entry }]).unwrap();
    }

    fn poll(&self) -> Vec<(u64, CompletionStatus)> {
        let mut completions = [WorkCompletion::default(); 4 * SLOTS];
        let count = self.completions.poll(&mut completions).unwrap();
        completions[..count].iter().map(|completion| (completion.id, completion.status)).collect()
    }
}

fn succeeded(numbers: std::ops::Range<u64>) -> Vec<(u64, CompletionStatus)> {
    numbers.map(|number| (number, CompletionStatus::Success)).collect()
}

fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// Ten messages, during which something goes wrong and is repaired; each arrives once.
fn survives(config: WorldConfig, trouble: Fault, repairing: Fault, expect_loss: bool) -> u64 {
    let mut world = World::new(config);
    let (sender, receiver) = connected(&world, 0, 1);
    (0..10).for_each(|number| receiver.receive(number));
    (0..10).for_each(|number| sender.send(number));
    world.run_for(micros(15));
    world.apply(trouble);
    world.run_for(micros(300));
    assert!(sender.poll().len() < 10, "{trouble} shows");
    world.run_for(micros(1_200));
    assert!(sender.poll().len() < 10, "{trouble} goes on");
    world.apply(repairing);
    world.run_for(Duration::from_millis(20));
    assert_eq!(receiver.poll(), succeeded(0..10), "{trouble}");
    assert_eq!(sender.queue_pair.query().unwrap().state, Some(QueuePairState::ReadyToSend));
    let sent_again = [0, 1].map(|node| world.softnic(node).nic().counters().retransmitted_pkts);
    assert_eq!(sent_again[0] > 0, expect_loss, "{trouble}");
    // Whatever completed while the fault lasted was polled then.
    (10..20).for_each(|number| receiver.receive(number));
    (10..20).for_each(|number| sender.send(number));
    world.run_for(Duration::from_millis(20));
    assert_eq!(receiver.poll(), succeeded(10..20), "{trouble}");
    world.trace_hash()
}

#[test]
fn a_connection_survives_what_is_mended_in_time() {
    let slow = Profile::default().with_propagation_delay(micros(5)).with_rate_bits_per_second(1_000_000_000);
    let two = WorldConfig { link: slow.clone(), ..WorldConfig::default() };
    let star = WorldConfig { topology: Topology::Star, ..two.clone() };
    let cut = |node, way| (Fault::Cut(Link::Nic(node), way), Fault::Restore(Link::Nic(node), way), true);
    let troubles = [
        (Fault::SetLink(0, false), Fault::SetLink(0, true), true),
        (Fault::SetLink(1, false), Fault::SetLink(1, true), true),
        cut(0, Way::Both),
        cut(1, Way::Both),
        cut(0, Way::Up),
        cut(0, Way::Down),
        cut(1, Way::Up),
        cut(1, Way::Down),
        (Fault::Pause(0), Fault::Resume(0), false),
        (Fault::Pause(1), Fault::Resume(1), true),
    ];
    for config in [two, star] {
        let mut hashes = Vec::new();
        for (trouble, repairing, expect_loss) in troubles {
            let hash = survives(config.clone(), trouble, repairing, expect_loss);
            assert_eq!(
                hash,
                survives(config.clone(), trouble, repairing, expect_loss),
                "{trouble}: the same run twice"
            );
            hashes.push(hash);
        }
        hashes.sort_unstable();
        hashes.dedup();
        // Some are the same: in a pair a link down at one end is so at the other, and what no data reach sends no
        // answer.
        assert!(hashes.len() >= 4, "different faults make different runs");
    }
}

#[test]
fn a_connection_fails_when_its_link_stays_down() {
    let mut world = World::new(WorldConfig { nodes: 3, ..WorldConfig::default() });
    let (sender, _receiver) = connected(&world, 0, 1);
    world.set_link(1, false);
    sender.send(0);
    world.run_for(Duration::from_secs(1));
    assert_eq!(sender.poll(), [(0, CompletionStatus::RetryExceededError)]);
}

#[test]
fn a_nic_is_told_when_its_link_goes_down_and_up() {
    // In a pair both NICs lose the link; with a switch between them only one does.
    for (topology, other_is_told) in [(Topology::PairOrStar, true), (Topology::Star, false)] {
        let mut world = World::new(WorldConfig { topology, ..WorldConfig::default() });
        let states = |world: &World| [0, 1].map(|node| world.device(node).port_attributes(1).unwrap().state);
        let events = |world: &World, node: usize| {
            let device = world.device(node);
            std::iter::from_fn(move || device.next_event().unwrap().map(|event| event.kind)).collect::<Vec<_>>()
        };
        let other_state = if other_is_told { LinkState::Down } else { LinkState::Active };
        world.set_link(0, false);
        assert_eq!(states(&world), [LinkState::Down, other_state]);
        world.restart(0);
        assert_eq!(states(&world), [LinkState::Down, other_state], "a device that comes back finds its link as it is");
        world.set_link(0, true);
        assert_eq!(states(&world), [LinkState::Active; 2]);
        let both = [AsyncEventKind::PortError, AsyncEventKind::PortActive];
        // The one that was restarted has not seen the link go down.
        assert_eq!(events(&world, 0), both[1..]);
        assert_eq!(events(&world, 1), if other_is_told { &both[..] } else { &[] });
        // Nobody notices a cut in the middle of the path.
        world.cut(Link::Nic(0), Way::Both);
        assert_eq!(states(&world), [LinkState::Active; 2]);
    }
}

/// Sixteen connections between two leaves, of which some go over each spine; a link to a spine is cut for good. Says
/// how many connections survived.
fn lose_a_path(topology: Topology, nodes: usize, path_avoidance: PathAvoidance) -> usize {
    let mut world = World::new(WorldConfig { nodes, topology, path_avoidance, ..WorldConfig::default() });
    let far = nodes - 1;
    let ends: Vec<(End, End)> = (0..16).map(|_| connected(&world, 0, far)).collect();
    let send = |world: &mut World, number: usize| {
        for (sender, receiver) in &ends {
            receiver.receive(number);
            sender.send(number);
        }
        world.run_for(Duration::from_millis(100));
        ends.iter().filter(|(sender, _)| sender.poll() == succeeded(number as u64..number as u64 + 1)).count()
    };
    assert_eq!(send(&mut world, 0), 16);
    world.cut(Link::Fabric(0), Way::Both);
    send(&mut world, 1)
}

#[test]
fn connections_on_a_dead_path_move_if_switches_may_avoid_it() {
    let clos = Topology::Clos { leaf_count: 2, spine_count: 4 };
    for (topology, nodes) in [(clos, 8), (Topology::FatTree { arity: 4 }, 16)] {
        assert_eq!(lose_a_path(topology, nodes, PathAvoidance::AtOnce), 16);
        assert_eq!(lose_a_path(topology, nodes, PathAvoidance::After(Duration::from_millis(2))), 16);
        let left = lose_a_path(topology, nodes, PathAvoidance::Never);
        assert!((1..16).contains(&left), "{left} of 16 connections left with {topology:?}");
    }
}

#[test]
fn a_node_that_restarts_comes_back_empty() {
    let mut world = World::new(WorldConfig { nodes: 3, ..WorldConfig::default() });
    let (sender, receiver) = connected(&world, 0, 1);
    receiver.receive(0);
    sender.send(0);
    world.run_for(Duration::from_millis(1));
    assert_eq!((sender.poll(), receiver.poll()), (succeeded(0..1), succeeded(0..1)));
    let packets = world.packet_count();
    // Its packets are in flight while its peer is replaced.
    sender.send(1);
    world.run_for(micros(5));
    receiver.receive(1);
    world.restart(1);
    assert!(world.packet_count() >= packets, "what the old device had sent still counts");
    world.run_for(Duration::from_secs(1));
    assert_eq!(sender.poll(), [(1, CompletionStatus::RetryExceededError)]);
    // The old objects can be called, and nothing comes of it.
    receiver.send(2);
    world.run_for(Duration::from_secs(1));
    assert_eq!(receiver.poll(), []);
    let fresh_device = world.device(1);
    assert_eq!(fresh_device.gid(1, 0).unwrap().gid, world.gid(1), "it has the old address");
    assert_eq!(world.softnic(1).nic().counters().sent_pkts, 0, "and has said nothing");
    // A new connection works, with numbers of its own.
    let (again, fresh) = connected(&world, 0, 1);
    assert_ne!(fresh.queue_pair.number(), receiver.queue_pair.number());
    assert_ne!(fresh.region.remote(0).key, receiver.region.remote(0).key);
    fresh.receive(5);
    again.send(5);
    world.run_for(Duration::from_millis(1));
    assert_eq!((again.poll(), fresh.poll()), (succeeded(5..6), succeeded(5..6)));
    assert_eq!(receiver.poll(), [], "it did not reach the old objects");
    drop(receiver);
    fresh.receive(6);
    again.send(6);
    world.run_for(Duration::from_millis(1));
    assert_eq!(fresh.poll(), succeeded(6..7), "nor does their end matter");
}

#[test]
fn a_stopped_node_answers_nobody_and_healing_brings_it_back() {
    let mut world = World::new(WorldConfig { nodes: 4, ..WorldConfig::default() });
    let (sender, _receiver) = connected(&world, 0, 1);
    world.stop(1);
    world.pause(2);
    world.set_link(3, false);
    world.cut(Link::Nic(0), Way::Down);
    sender.send(0);
    world.run_for(Duration::from_secs(1));
    assert_eq!(sender.poll(), [(0, CompletionStatus::RetryExceededError)]);
    assert_eq!(world.condition(1), NodeCondition::Stopped);
    world.heal_all();
    assert_eq!([0, 1, 2, 3].map(|node| world.condition(node)), [NodeCondition::Running; 4]);
    assert_eq!([0, 1, 2, 3].map(|node| world.restart_count(node)), [0, 1, 0, 0]);
    for (one, other) in [(0, 1), (2, 3), (3, 0)] {
        let (sender, receiver) = connected(&world, one, other);
        receiver.receive(1);
        sender.send(1);
        world.run_for(Duration::from_millis(1));
        assert_eq!((sender.poll(), receiver.poll()), (succeeded(1..2), succeeded(1..2)));
    }
}

#[test]
fn nodes_reach_each_other_on_their_plane_only() {
    for nodes in [4, 8] {
        let mut world = World::new(WorldConfig { nodes, plane_count: 2, ..WorldConfig::default() });
        let attempts = [(0, 2), (1, 3), (0, 3), (1, 2)].map(|(one, other)| connected(&world, one, other));
        for (sender, receiver) in &attempts {
            receiver.receive(0);
            sender.send(0);
        }
        world.run_for(Duration::from_secs(1));
        let failed = [(0, CompletionStatus::RetryExceededError)].to_vec();
        let outcomes = attempts.each_ref().map(|(sender, _)| sender.poll());
        assert_eq!(outcomes, [succeeded(0..1), succeeded(0..1), failed.clone(), failed]);
        // One plane fails, the other lives.
        let (first, second) = (connected(&world, 0, 2), connected(&world, 1, 3));
        world.set_link(0, false);
        for (sender, receiver) in [&first, &second] {
            receiver.receive(0);
            sender.send(0);
        }
        world.run_for(Duration::from_millis(1));
        assert_eq!((first.0.poll(), second.0.poll()), (Vec::new(), succeeded(0..1)));
    }
}

#[test]
fn faults_can_be_printed() {
    let faults = [
        Fault::SetLink(3, false),
        Fault::Cut(Link::Fabric(2), Way::Down),
        Fault::Restore(Link::Nic(1), Way::Both),
        Fault::Restart(0),
    ];
    let printed = faults.map(|fault| fault.to_string());
    assert_eq!(
        printed,
        [
            "node 3: link down",
            "fabric link 2: cut downwards",
            "the link of node 1: restored both ways",
            "node 0: restarted, empty"
        ]
    );
}
