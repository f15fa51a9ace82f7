//! Reliable connections with congestion control over a bottleneck that they know nothing about.

use longhaul_congestion::ControllerName;
use longhaul_impair::{EcnMarking, Loss, Profile};
use longhaul_softnic::PayloadMode;
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    Access, CompletionQueue, MemoryRegion, Mtu, PathAttributes, QueuePair, QueuePairAttributes, QueuePairLimits,
    QueuePairOptions, SendFlags, SendOperation, SendRequest, Transport, WorkCompletion,
};
use longhaul_world::{Topology, World, WorldConfig};

const BITS_PER_SECOND: u64 = 200_000_000;
/// 5 ms at that rate.
const QUEUE_BYTES: u64 = 125_000;
const MESSAGE_BYTES: usize = 1 << 20;
const DEPTH: usize = 4;
/// What a device on sockets asks the kernel for.
const SOCKET_BUFFER_BYTES: u64 = 16 << 20;
/// IP, UDP, BTH and ICRC.
const HEADER_BYTES: usize = 20 + 8 + 12 + 4;

/// A queue pair with what it needs, on a node.
struct End {
    node: usize,
    completions: CompletionQueue,
    queue_pair: QueuePair,
    region: MemoryRegion,
}

fn open(world: &World, node: usize) -> End {
    let device = world.device(node);
    let domain = device.allocate_protection_domain().unwrap();
    let completions = device.create_completion_queue(64).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let region = domain.register_zeroed(MESSAGE_BYTES, access).unwrap();
    let limits = QueuePairLimits { send_requests: 2 * DEPTH as u32, receive_requests: 1, ..Default::default() };
    let options = QueuePairOptions { limits, ..Default::default() };
    let transport = Transport::ReliableConnection;
    let queue_pair = domain.create_queue_pair(transport, &completions, &completions, &options).unwrap();
    queue_pair.modify(&QueuePairAttributes::init_connected(access)).unwrap();
    End { node, completions, queue_pair, region }
}

fn connect(world: &World, end: &End, peer: &End, mtu: Mtu) {
    let path = PathAttributes::to(world.gid(peer.node));
    let receive = QueuePairAttributes::ready_to_receive(path, mtu, peer.queue_pair.number(), 0);
    end.queue_pair.modify(&receive.reliable_receive(16, 12)).unwrap();
    // A time-out of 0.27 s.
    end.queue_pair.modify(&QueuePairAttributes::ready_to_send(0).reliable_send(16, 7, 7, 16)).unwrap();
}

#[derive(Clone, Copy)]
struct Scenario {
    flows: usize,
    /// All flows are queue pairs of one device, and go to one other; otherwise each has two devices of its own.
    is_one_pair: bool,
    loss: f64,
    marking: EcnMarking,
    mtu: Mtu,
    is_read: bool,
    answers: Option<u64>,
    congestion: Option<ControllerName>,
    seed: u64,
    /// Not counted.
    start_up: Duration,
    time: Duration,
}

const WAN: Scenario = Scenario {
    flows: 1,
    is_one_pair: false,
    loss: 0.0,
    marking: EcnMarking::Off,
    mtu: Mtu::Bytes4096,
    is_read: false,
    answers: None,
    congestion: Some(ControllerName::Wan),
    seed: 1,
    start_up: Duration::from_secs(2),
    time: Duration::from_secs(20),
};

#[derive(Debug)]
struct Outcome {
    /// Payload delivered, of what the link carries of payload, for each flow.
    of_link: Vec<f64>,
    /// Packets lost on links, of those that were sent, with start-up.
    lost: f64,
    /// Packets sent again, of those that were sent.
    repeated: f64,
    timeouts: u64,
    /// Congestion notification packets that arrived.
    notifications: u64,
}

fn run(scenario: Scenario) -> Outcome {
    let Scenario { flows, loss, mtu, .. } = scenario;
    let host = Profile::default().with_rate_bits_per_second(10_000_000_000);
    // Two of them on each way.
    let mut bottleneck = host
        .clone()
        .with_propagation_delay(Duration::from_micros(6250))
        .with_rate_bits_per_second(BITS_PER_SECOND)
        .with_queue_limit_bytes(QUEUE_BYTES)
        .with_ecn(scenario.marking);
    if loss > 0.0 {
        bottleneck = bottleneck.with_loss(Loss::Independent { probability: loss / 2.0 });
    }
    let topology = Topology::Clos { leaf_count: 2, spine_count: 1 };
    let pairs = if scenario.is_one_pair { 1 } else { flows };
    let mut config = WorldConfig { seed: scenario.seed, nodes: 2 * pairs, topology, link: host, ..Default::default() };
    config.fabric_link = Some(bottleneck);
    config.nic.payload = PayloadMode::Elided;
    config.nic.congestion = scenario.congestion;
    config.nic.unacknowledged_bits_per_second = scenario.answers;
    // As a device on sockets sets it: it is there on every real device.
    config.nic.peer_window_bytes = Some(SOCKET_BUFFER_BYTES);
    config.nic.turn_packets = 60;
    let mut world = World::new(config);
    let senders: Vec<End> = (0..flows).map(|flow| open(&world, flow % pairs)).collect();
    let receivers: Vec<End> = (0..flows).map(|flow| open(&world, pairs + flow % pairs)).collect();
    for (sender, receiver) in senders.iter().zip(&receivers) {
        connect(&world, sender, receiver, mtu);
        connect(&world, receiver, sender, mtu);
    }
    let post = |flow: usize| {
        let entry = [senders[flow].region.entry(0..MESSAGE_BYTES)];
        let remote = receivers[flow].region.remote(0);
        let operation = if scenario.is_read { SendOperation::Read(remote) } else { SendOperation::Write(remote) };
        let request = SendRequest::new(flow as u64, operation, &entry).with_flags(SendFlags::SIGNALED);
        senders[flow].queue_pair.post_send(&[request]).unwrap();
    };
    (0..flows).for_each(|flow| (0..DEPTH).for_each(|_| post(flow)));
    let mut delivered = vec![0_usize; flows];
    let mut completions = [WorkCompletion::default(); 16];
    while world.now() < Instant::ZERO + scenario.start_up + scenario.time {
        world.run_for(Duration::from_millis(1));
        for (flow, end) in senders.iter().enumerate() {
            let count = end.completions.poll(&mut completions).unwrap();
            for completion in &completions[..count] {
                assert!(completion.is_success(), "{completion:?}");
                if world.now() > Instant::ZERO + scenario.start_up {
                    delivered[flow] += MESSAGE_BYTES;
                }
                post(flow);
            }
        }
    }
    let counters: Vec<_> = (0..2 * pairs).map(|node| world.softnic(node).nic().counters()).collect();
    let sum = |of: fn(&longhaul_softnic::Counters) -> u64| counters.iter().map(of).sum::<u64>();
    let payload = mtu.byte_count() as usize;
    let link = BITS_PER_SECOND as f64 / 8.0 * payload as f64 / (payload + HEADER_BYTES) as f64;
    let sent = sum(|counters| counters.sent_pkts) as f64;
    Outcome {
        of_link: delivered.iter().map(|bytes| *bytes as f64 / scenario.time.as_secs_f64() / link).collect(),
        lost: world.link_totals().lost as f64 / sent,
        repeated: sum(|counters| counters.retransmitted_pkts) as f64 / sent,
        timeouts: sum(|counters| counters.local_ack_timeout_err),
        notifications: sum(|counters| counters.rp_cnp_handled),
    }
}

impl Outcome {
    fn total(&self) -> f64 {
        self.of_link.iter().sum()
    }
}

#[test]
fn a_writer_finds_the_bottleneck_and_keeps_its_queue_short() {
    for mtu in [Mtu::Bytes4096, Mtu::Bytes1024] {
        for seed in [11, 12, 13] {
            let outcome = run(Scenario { mtu, seed, ..WAN });
            println!("{mtu:?}: {outcome:?}");
            assert!(outcome.total() > 0.9 && outcome.lost < 0.01, "{mtu:?}, seed {seed}: {outcome:?}");
            assert!(outcome.timeouts == 0 && outcome.repeated < 0.06, "{mtu:?}, seed {seed}: {outcome:?}");
        }
    }
    // The check can fail: this is what congestion control is for.
    for mtu in [Mtu::Bytes4096, Mtu::Bytes1024] {
        let without = run(Scenario { mtu, congestion: None, ..WAN });
        println!("{mtu:?} without control: {without:?}");
        assert!(without.total() < 0.3 && without.repeated > 0.1, "{mtu:?}: {without:?}");
    }
}

#[test]
fn two_writers_share_the_bottleneck() {
    for mtu in [Mtu::Bytes4096, Mtu::Bytes1024] {
        for seed in [11, 12, 13] {
            let outcome = run(Scenario { mtu, seed, flows: 2, ..WAN });
            println!("{mtu:?} two: {outcome:?}");
            let least = outcome.of_link.iter().copied().fold(f64::INFINITY, f64::min);
            assert!(outcome.total() > 0.75 && outcome.lost < 0.02, "{mtu:?}, seed {seed}: {outcome:?}");
            assert!(least > outcome.total() / 4.0, "{mtu:?}, seed {seed}: {outcome:?}");
        }
    }
}

#[test]
fn four_writers_get_something_each_from_a_queue_of_a_few_packets() {
    for mtu in [Mtu::Bytes4096, Mtu::Bytes1024] {
        for seed in [11, 12, 13] {
            let outcome = run(Scenario { mtu, seed, flows: 4, ..WAN });
            println!("{mtu:?} four: {outcome:?}");
            let least = outcome.of_link.iter().copied().fold(f64::INFINITY, f64::min);
            assert!(outcome.total() > 0.6 && outcome.lost < 0.05, "{mtu:?}, seed {seed}: {outcome:?}");
            assert!(least > outcome.total() / 8.0, "{mtu:?}, seed {seed}: {outcome:?}");
        }
    }
}

#[test]
fn queue_pairs_of_one_device_share_the_bottleneck() {
    // A window towards the peer is theirs together, and holds them up now and then.
    let time = Duration::from_secs(10);
    for (flows, least, lost) in [(4, 0.75, 0.02), (16, 0.4, 0.05)] {
        for (seed, loss) in [(11, 0.0), (12, 1e-3)] {
            let outcome = run(Scenario { flows, is_one_pair: true, mtu: Mtu::Bytes1024, loss, seed, time, ..WAN });
            println!("{flows} queue pairs, {loss}: {outcome:?}");
            let least = if loss > 0.0 { 0.85 * least } else { least };
            assert!(outcome.total() > least && outcome.lost < lost + loss, "{flows}, {loss}, seed {seed}: {outcome:?}");
        }
    }
}

#[test]
fn random_loss_costs_what_go_back_n_costs_and_not_the_rate() {
    for (loss, mtu, least) in [
        // A loss costs a round trip: at 1e-4 and 4 KiB that is one of some sixty.
        (1e-4, Mtu::Bytes4096, 0.85),
        (1e-3, Mtu::Bytes4096, 0.6),
        (1e-4, Mtu::Bytes1024, 0.85),
        // Five round trips of 600 packets between two losses: half of each is sent again.
        (1e-3, Mtu::Bytes1024, 0.4),
    ] {
        for seed in [11, 12, 13] {
            let outcome = run(Scenario { loss, mtu, seed, ..WAN });
            println!("{loss} {mtu:?}: {outcome:?}");
            assert!(outcome.total() > least && outcome.lost < 0.02, "{loss}, {mtu:?}, seed {seed}: {outcome:?}");
        }
    }
}

#[test]
fn notifications_of_marks_keep_the_queue_from_filling() {
    let marking = EcnMarking::Step { threshold_bytes: QUEUE_BYTES / 2 };
    for is_read in [false, true] {
        for seed in [11, 12, 13] {
            let outcome = run(Scenario { marking, is_read, seed, ..WAN });
            println!("is_read {is_read}: {outcome:?}");
            assert!(outcome.notifications > 0 && outcome.total() > 0.65, "{is_read}, seed {seed}: {outcome:?}");
            assert!(outcome.lost < 0.0025, "{is_read}, seed {seed}: {outcome:?}");
        }
    }
}

#[test]
fn a_reader_controls_the_rate_of_the_answers() {
    for answers in [None, Some(1_000_000_000)] {
        let outcome = run(Scenario { is_read: true, answers, ..WAN });
        println!("{answers:?}: {outcome:?}");
        assert!(outcome.total() > 0.8 && outcome.lost < 0.02, "{answers:?}: {outcome:?}");
    }
}

#[test]
fn a_fixed_rate_below_the_bottleneck_loses_nothing() {
    let outcome = run(Scenario { congestion: Some(ControllerName::Fixed(190_000_000)), ..WAN });
    assert!(outcome.total() > 0.93 && outcome.lost == 0.0, "{outcome:?}");
}
