//! READs over links that lose, repeat and reorder, with and without a window towards the peer: they finish, as WRITEs
//! of the same bytes do.

use std::net::IpAddr;

use longhaul_impair::{Loss, Profile};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    Access, CompletionQueue, MemoryRegion, Mtu, PathAttributes, QueuePair, QueuePairAttributes, QueuePairOptions,
    SendOperation, SendRequest, Transport, WorkCompletion,
};
use longhaul_world::{World, WorldConfig};

const MESSAGE_BYTES: usize = 64 << 10;
const MESSAGES: usize = 100;
const DEPTH: usize = 16;

struct End {
    completions: CompletionQueue,
    queue_pair: QueuePair,
    region: MemoryRegion,
}

fn open(world: &World, node: usize) -> End {
    let device = world.device(node);
    let domain = device.allocate_protection_domain().unwrap();
    let completions = device.create_completion_queue(256).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let region = domain.register_zeroed(MESSAGE_BYTES, access).unwrap();
    let options = QueuePairOptions::default();
    let transport = Transport::ReliableConnection;
    let queue_pair = domain.create_queue_pair(transport, &completions, &completions, &options).unwrap();
    queue_pair.modify(&QueuePairAttributes::init_connected(access)).unwrap();
    End { completions, queue_pair, region }
}

fn connect(world: &World, end: &End, peer: &End, peer_node: usize) {
    let path = PathAttributes::to(world.gid(peer_node));
    let receive = QueuePairAttributes::ready_to_receive(path, Mtu::Bytes4096, peer.queue_pair.number(), 0);
    end.queue_pair.modify(&receive.reliable_receive(16, 12)).unwrap();
    end.queue_pair.modify(&QueuePairAttributes::ready_to_send(0).reliable_send(12, 7, 7, 16)).unwrap();
}

/// What it took to move all messages.
#[derive(Debug)]
struct Cost {
    time: Duration,
    packets: u64,
    repeated: u64,
    done: usize,
}

fn run(is_read: bool, profile: Profile, peer_window_bytes: Option<u64>) -> Cost {
    let mut config = WorldConfig { link: profile, ..Default::default() };
    config.nic.peer_window_bytes = peer_window_bytes;
    config.nic.local_addresses = [1, 2].map(|node| IpAddr::from([10, 0, 0, node])).to_vec();
    let mut world = World::new(config);
    let ends = [open(&world, 0), open(&world, 1)];
    connect(&world, &ends[0], &ends[1], 1);
    connect(&world, &ends[1], &ends[0], 0);
    let [requester, responder] = &ends;
    let remote = responder.region.remote(0);
    let operation = if is_read { SendOperation::Read(remote) } else { SendOperation::Write(remote) };
    let entry = [requester.region.entry(0..MESSAGE_BYTES)];
    let mut room = [WorkCompletion::default(); 32];
    let (mut posted, mut done) = (0, 0);
    while done < MESSAGES && world.now() < Instant::ZERO + Duration::from_secs(20) {
        while posted < MESSAGES && posted - done < DEPTH {
            requester.queue_pair.post_send(&[SendRequest::new(posted as u64, operation, &entry)]).unwrap();
            posted += 1;
        }
        world.run_for(Duration::from_micros(50));
        let count = requester.completions.poll(&mut room).unwrap();
        assert!(room[..count].iter().all(WorkCompletion::is_success), "{:?}", &room[..count]);
        done += count;
    }
    let counters = world.softnic(0).nic().counters();
    let (time, packets) = (world.now() - Instant::ZERO, world.packet_count());
    Cost { time, packets, repeated: counters.retransmitted_pkts, done }
}

#[test]
fn reads_finish_as_writes_do() {
    let good =
        Profile::default().with_propagation_delay(Duration::from_micros(20)).with_rate_bits_per_second(10_000_000_000);
    let profiles = [
        ("good", good.clone()),
        ("loss 4%", good.clone().with_loss(Loss::Independent { probability: 0.04 })),
        ("reorder 4%", good.clone().with_reordering(0.04, Duration::from_micros(500))),
        ("duplicate 10%", good.clone().with_duplication(0.1)),
        (
            "all",
            good.with_loss(Loss::Independent { probability: 0.04 })
                .with_reordering(0.04, Duration::from_micros(500))
                .with_duplication(0.1),
        ),
    ];
    for (name, profile) in profiles {
        for window in [None, Some(256 << 10)] {
            let [write, read] = [false, true].map(|is_read| run(is_read, profile.clone(), window));
            for (what, cost) in [("WRITE", &write), ("READ", &read)] {
                let Cost { time, packets, repeated, .. } = cost;
                println!("{name}, window {window:?}, {what}: {time:?}, {packets} packets, {repeated} repeated");
            }
            assert_eq!((write.done, read.done), (MESSAGES, MESSAGES), "{name}, {window:?}: {write:?}, {read:?}");
        }
    }
}
