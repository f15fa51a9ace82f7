//! The window towards a peer, over simulated links: what it is for, and that nothing else breaks with it.

use std::net::IpAddr;

use longhaul_conformance::soak::{Campaign, SoakOptions};
use longhaul_congestion::ControllerName;
use longhaul_impair::Profile;
use longhaul_softnic::{Config, PayloadMode};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    Access, CompletionQueue, MemoryRegion, Mtu, PathAttributes, QueuePair, QueuePairAttributes, QueuePairLimits,
    QueuePairOptions, SendOperation, SendRequest, Transport, WorkCompletion,
};
use longhaul_world::{World, WorldConfig};

const MESSAGE_BYTES: usize = 64 << 10;
const LINK_BITS_PER_SECOND: u64 = 40_000_000_000;

/// One end of many connections.
struct End {
    completions: CompletionQueue,
    queue_pairs: Vec<QueuePair>,
    region: MemoryRegion,
}

fn open(world: &World, node: usize, queue_pair_count: usize) -> End {
    let device = world.device(node);
    let domain = device.allocate_protection_domain().unwrap();
    let completions = device.create_completion_queue(4 * queue_pair_count as u32 + 16).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = domain.register_zeroed(MESSAGE_BYTES, access).unwrap();
    let limits = QueuePairLimits { send_requests: 2, receive_requests: 1, ..Default::default() };
    let options = QueuePairOptions { limits, ..Default::default() };
    let make = |_| {
        let transport = Transport::ReliableConnection;
        let queue_pair = domain.create_queue_pair(transport, &completions, &completions, &options).unwrap();
        queue_pair.modify(&QueuePairAttributes::init_connected(access)).unwrap();
        queue_pair
    };
    End { queue_pairs: (0..queue_pair_count).map(make).collect(), completions, region }
}

fn connect(world: &World, nodes: [usize; 2], ends: [&End; 2]) {
    for (own, peer) in [(0, 1), (1, 0)] {
        let path = PathAttributes::to(world.gid(nodes[peer]));
        for (queue_pair, other) in ends[own].queue_pairs.iter().zip(&ends[peer].queue_pairs) {
            let receive = QueuePairAttributes::ready_to_receive(path, Mtu::Bytes4096, other.number(), 0);
            queue_pair.modify(&receive.reliable_receive(0, 12)).unwrap();
            queue_pair.modify(&QueuePairAttributes::ready_to_send(0).reliable_send(14, 7, 7, 0)).unwrap();
        }
    }
}

/// Only towards peers on the same host is the configured window the most; so all nodes are.
fn all_nodes() -> Vec<IpAddr> {
    let v4 = (1..=8).map(|number| IpAddr::from([10, 0, 0, number]));
    v4.chain((1..=8).map(|number| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, number]))).collect()
}

/// The outcome.
#[derive(Debug)]
struct Outcome {
    bits_per_second: f64,
    data_packets: u64,
    sent_again: u64,
    failed: u64,
}

/// Keep one message on each of many connections to one receiver on the same host, behind a link with a short queue, as
/// in front of a socket.
fn run(queue_pair_count: usize, peer_window_bytes: Option<u64>, queue_limit_bytes: u64) -> Outcome {
    run_with(queue_pair_count, queue_limit_bytes, |config| {
        config.peer_window_bytes = peer_window_bytes;
        config.local_addresses = all_nodes();
    })
}

/// The same with devices that `configure` sets up.
fn run_with(queue_pair_count: usize, queue_limit_bytes: u64, configure: impl FnOnce(&mut Config)) -> Outcome {
    let link = Profile::default()
        .with_propagation_delay(Duration::from_micros(10))
        .with_rate_bits_per_second(LINK_BITS_PER_SECOND)
        .with_queue_limit_bytes(queue_limit_bytes);
    // Three nodes, so that a switch with its queue is in front of the receiver.
    let mut config = WorldConfig { nodes: 3, link, ..Default::default() };
    config.nic.payload = PayloadMode::Elided;
    configure(&mut config.nic);
    let mut world = World::new(config);
    let receiver = [open(&world, 2, queue_pair_count / 2), open(&world, 2, queue_pair_count / 2)];
    let senders = [open(&world, 0, queue_pair_count / 2), open(&world, 1, queue_pair_count / 2)];
    for (node, sender) in senders.iter().enumerate() {
        connect(&world, [node, 2], [sender, &receiver[node]]);
    }
    let post = |sender: usize, index: usize| {
        let entry = [senders[sender].region.entry(0..MESSAGE_BYTES)];
        let operation = SendOperation::Write(receiver[sender].region.remote(0));
        let queue_pair = &senders[sender].queue_pairs[index];
        queue_pair.post_send(&[SendRequest::new(index as u64, operation, &entry)]).unwrap();
    };
    for sender in 0..2 {
        (0..queue_pair_count / 2).for_each(|index| post(sender, index));
    }
    let (mut done, mut failed) = (0, 0);
    let mut completions = [WorkCompletion::default(); 64];
    let total = Duration::from_millis(60);
    while world.now() < Instant::ZERO + total {
        world.run_for(Duration::from_micros(20));
        for (sender, end) in senders.iter().enumerate() {
            loop {
                let count = end.completions.poll(&mut completions).unwrap();
                for completion in &completions[..count] {
                    match completion.is_success() {
                        true => post(sender, completion.id as usize),
                        false => failed += 1,
                    }
                    done += 1;
                }
                if count < completions.len() {
                    break;
                }
            }
        }
    }
    let counters = [0, 1].map(|node| world.softnic(node).nic().counters());
    let sent_again = counters.iter().map(|counters| counters.retransmitted_pkts).sum();
    Outcome {
        bits_per_second: (done - failed) as f64 * MESSAGE_BYTES as f64 * 8.0 / total.as_secs_f64(),
        data_packets: counters.iter().map(|counters| counters.sent_pkts).sum(),
        sent_again,
        failed,
    }
}

/// What the queue in front of the receiver takes.
const QUEUE_BYTES: u64 = 600 << 10;

#[test]
fn many_connections_do_not_overrun_the_receiver() {
    let few = run(20, Some(256 << 10), QUEUE_BYTES);
    let many = run(2000, Some(256 << 10), QUEUE_BYTES);
    assert_eq!((many.sent_again, many.failed), (0, 0), "{many:?}");
    assert!(many.bits_per_second > 0.95 * few.bits_per_second, "{many:?} against {few:?}");
    // The check can fail: this is what the window is for.
    let without = run(2000, None, QUEUE_BYTES);
    assert!(without.sent_again > without.data_packets / 10, "{without:?}");
    assert!(without.bits_per_second < 0.8 * few.bits_per_second, "{without:?} against {few:?}");
}

#[test]
fn a_window_that_is_far_too_large_is_found_out() {
    let outcome = run(2000, Some(16 << 20), QUEUE_BYTES);
    assert!(0 < outcome.sent_again && outcome.sent_again < outcome.data_packets / 50, "{outcome:?}");
    assert!(outcome.bits_per_second > 0.8 * LINK_BITS_PER_SECOND as f64, "{outcome:?}");
}

#[test]
fn many_controlled_connections_to_another_host_do_not_overrun_it() {
    let run = |peer_window_bytes| {
        run_with(2000, QUEUE_BYTES, |config| {
            config.peer_window_bytes = peer_window_bytes;
            config.congestion = Some(ControllerName::Wan);
        })
    };
    let (with, without) = (run(Some(16 << 20)), run(None));
    println!("{with:?}, without the window {without:?}");
    assert!(with.failed == 0 && with.sent_again < with.data_packets / 100, "{with:?}");
    assert!(with.bits_per_second > 0.9 * without.bits_per_second, "{with:?} against {without:?}");
    // The check can fail: the controllers alone do not see the buffer that they share.
    assert!(without.sent_again > without.data_packets / 20, "{without:?}");
}

/// Narrow windows reach more of the code.
fn soak(configure: fn(&mut Config)) {
    let options = SoakOptions { operations: 150, configure, ..SoakOptions::default() };
    let campaign = Campaign { first_seed: 1, seed_count: 48, options, thread_count: 2, time_limit: None };
    let summary = campaign.run(|_| {}).expect("nothing is written");
    for report in &summary.failing {
        for violation in report.violations.kept() {
            eprintln!("seed {}: {violation}", report.seed);
        }
    }
    assert_eq!(summary.violations, 0);
    assert!(summary.tally.succeeded > 1000, "{:?}", summary.tally);
}

#[test]
fn the_soak_is_clean_with_the_narrowest_window() {
    soak(|config| {
        config.peer_window_bytes = Some(0);
        config.local_addresses = all_nodes();
    });
}

#[test]
fn the_soak_is_clean_with_a_window_and_a_pace() {
    soak(|config| {
        config.peer_window_bytes = Some(256 << 10);
        config.local_addresses = all_nodes();
        config.congestion = Some(ControllerName::Fixed(1_000_000_000));
    });
}
