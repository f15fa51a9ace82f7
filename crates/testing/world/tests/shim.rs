//! Forward error correction in the port of a device: RC and UC over a link that loses, with and without it.

use longhaul_impair::{Loss, Profile};
use longhaul_shim::{Agreement, BlockCode, DecoderCounters, EncoderCounters};
use longhaul_softnic::ShimLayer;
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    Access, CompletionQueue, MemoryRegion, Mtu, PathAttributes, QueuePair, QueuePairAttributes, QueuePairLimits,
    QueuePairOptions, ReceiveRequest, SendOperation, SendRequest, Transport, WorkCompletion,
};
use longhaul_world::{World, WorldConfig};
use std::sync::Arc;

const MESSAGE_BYTES: usize = 64 << 10;
const MESSAGES: usize = 64;
const DEPTH: usize = 16;

/// How messages go from the first node to the second; READs from the second to the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Write,
    Send,
    Read,
}

struct End {
    completions: CompletionQueue,
    queue_pair: QueuePair,
    region: MemoryRegion,
}

fn open(world: &World, node: usize, transport: Transport) -> End {
    let device = world.device(node);
    let domain = device.allocate_protection_domain().unwrap();
    let completions = device.create_completion_queue(4 * MESSAGES as u32).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let bytes = (0..MESSAGES * MESSAGE_BYTES).map(|index| ((index * 7 + index / 4093 + 1) * node.abs_diff(1)) as u8);
    let region = domain.register(bytes.collect(), access).unwrap();
    let requests = MESSAGES as u32;
    let limits = QueuePairLimits { send_requests: requests, receive_requests: requests, ..Default::default() };
    let options = QueuePairOptions { limits, ..Default::default() };
    let queue_pair = domain.create_queue_pair(transport, &completions, &completions, &options).unwrap();
    queue_pair.modify(&QueuePairAttributes::init_connected(access)).unwrap();
    End { completions, queue_pair, region }
}

fn connect(world: &World, end: &End, peer: &End, peer_node: usize, transport: Transport) {
    let path = PathAttributes::to(world.gid(peer_node));
    let mut receive = QueuePairAttributes::ready_to_receive(path, Mtu::Bytes1024, peer.queue_pair.number(), 0);
    let mut send = QueuePairAttributes::ready_to_send(0);
    if transport == Transport::ReliableConnection {
        receive = receive.reliable_receive(16, 12);
        send = send.reliable_send(14, 7, 7, 16);
    }
    end.queue_pair.modify(&receive).unwrap();
    end.queue_pair.modify(&send).unwrap();
}

/// What it took to move all messages.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    time: Duration,
    retransmitted: u64,
    arrived: usize,
    encoder: EncoderCounters,
    decoder: DecoderCounters,
    hash: u64,
}

/// Both ends agree on `code`, if there is one; the layer is there in any case.
fn run(transport: Transport, way: Way, code: Option<&str>, loss: f64) -> Cost {
    let link = Profile::default()
        .with_propagation_delay(Duration::from_millis(5))
        .with_rate_bits_per_second(1_000_000_000)
        .with_loss(Loss::Independent { probability: loss });
    let config = |code: &str| longhaul_shim::Config::new(code.parse().unwrap());
    let layers = Arc::new(move |node| {
        let layer: Box<dyn longhaul_softnic::Layer> =
            Box::new(ShimLayer::new(config("xor:32,1"), node as u64).unwrap());
        vec![layer]
    });
    let mut world = World::new(WorldConfig { link, layers: Some(layers), ..Default::default() });
    let ends = [open(&world, 0, transport), open(&world, 1, transport)];
    for (own, peer) in [(0, 1), (1, 0)] {
        connect(&world, &ends[own], &ends[peer], peer, transport);
        if let Some(code) = code {
            let code: BlockCode = code.parse().unwrap();
            let [ours, theirs] = [own, peer].map(|end| ends[end].queue_pair.number().value());
            let agreement = Agreement { peer: world.gid(peer).to_ip(), ours, theirs, code };
            world.with_layers(own, |stack| stack.layers_mut::<ShimLayer>().next().unwrap().agree(&agreement)).unwrap();
        }
    }
    let (requester, other) = if way == Way::Read { (1, 0) } else { (0, 1) };
    let (requester, other) = (&ends[requester], &ends[other]);
    let place = |number: usize| number * MESSAGE_BYTES..(number + 1) * MESSAGE_BYTES;
    if way == Way::Send {
        for number in 0..MESSAGES {
            let local = [other.region.entry(place(number))];
            other.queue_pair.post_receive(&[ReceiveRequest { id: number as u64, local: &local }]).unwrap();
        }
    }
    let mut room = [WorkCompletion::default(); 32];
    let (mut posted, mut done, mut received) = (0, 0, 0);
    let end = Instant::ZERO + Duration::from_secs(60);
    let mut quiet_since = Instant::ZERO;
    while world.now() < end {
        while posted < MESSAGES && posted - done < DEPTH {
            let remote = other.region.remote(place(posted).start as u64);
            let operation = match way {
                Way::Write => SendOperation::Write(remote),
                Way::Send => SendOperation::Send,
                Way::Read => SendOperation::Read(remote),
            };
            let entry = [requester.region.entry(place(posted))];
            requester.queue_pair.post_send(&[SendRequest::new(posted as u64, operation, &entry)]).unwrap();
            posted += 1;
        }
        world.run_for(Duration::from_micros(100));
        for (completions, count) in [(&requester.completions, &mut done), (&other.completions, &mut received)] {
            let taken = completions.poll(&mut room).unwrap();
            assert!(room[..taken].iter().all(WorkCompletion::is_success), "{:?}", &room[..taken]);
            *count += taken;
            if taken > 0 {
                quiet_since = world.now();
            }
        }
        // An unreliable WRITE is done when it has left, and of its SENDs some may never arrive.
        let is_told = transport == Transport::ReliableConnection || way == Way::Send;
        let is_over = done == MESSAGES && is_told && (way != Way::Send || received == MESSAGES);
        if is_over || done == MESSAGES && world.now() > quiet_since + Duration::from_millis(100) {
            break;
        }
    }
    let is_equal = |number: &usize| ends[0].region.to_vec(place(*number)) == ends[1].region.to_vec(place(*number));
    let arrived = (0..MESSAGES).filter(is_equal).count();
    let retransmitted = [0, 1].map(|node| world.softnic(node).nic().counters().retransmitted_pkts).iter().sum();
    let time = world.now() - Instant::ZERO;
    let counters = |world: &mut World, node| {
        world.with_layers(node, |stack| stack.layers_mut::<ShimLayer>().next().unwrap().counters())
    };
    let (encoder, decoder) = (counters(&mut world, 0).0, counters(&mut world, 1).1);
    Cost { time, retransmitted, arrived, encoder, decoder, hash: world.trace_hash() }
}

#[test]
fn rc_has_little_to_repeat() {
    let rc = Transport::ReliableConnection;
    for way in [Way::Write, Way::Send, Way::Read] {
        let plain = run(rc, way, None, 3e-3);
        let repaired = run(rc, way, Some("mds:32,4"), 3e-3);
        assert_eq!((plain.arrived, repaired.arrived), (MESSAGES, MESSAGES), "{way:?}");
        assert_eq!((plain.encoder.repairs, plain.decoder.repairs), (0, 0), "nobody has agreed to it");
        assert!(repaired.decoder.restored > 0, "{way:?}: {repaired:?}");
        assert!(repaired.retransmitted * 10 < plain.retransmitted, "{way:?}: {plain:?}, {repaired:?}");
        assert!(repaired.time * 2 < plain.time, "{way:?}: {plain:?}, {repaired:?}");
    }
}

#[test]
fn uc_loses_nothing() {
    let uc = Transport::UnreliableConnection;
    let plain = run(uc, Way::Send, None, 3e-3);
    let repaired = run(uc, Way::Send, Some("mds:32,4"), 3e-3);
    assert!(plain.arrived < MESSAGES, "{plain:?}");
    assert_eq!(repaired.arrived, MESSAGES, "{repaired:?}");
    let written = run(uc, Way::Write, Some("xor:8,1"), 1e-3);
    assert_eq!(written.arrived, MESSAGES, "{written:?}");
}

#[test]
fn one_seed_gives_one_result() {
    // SENDs: the addresses that WRITEs carry differ from run to run.
    let run = || run(Transport::ReliableConnection, Way::Send, Some("xor:16,2"), 3e-3);
    assert_eq!(run(), run());
}

#[test]
fn without_loss_it_costs_its_repair_packets_and_no_time() {
    let rc = Transport::ReliableConnection;
    let (plain, repaired) = (run(rc, Way::Write, None, 0.0), run(rc, Way::Write, Some("xor:32,1"), 0.0));
    assert_eq!((repaired.retransmitted, repaired.decoder.restored), (0, 0));
    // A repair packet for 32 is 3 %.
    assert!(repaired.time < plain.time * 105 / 100, "{plain:?}, {repaired:?}");
}
