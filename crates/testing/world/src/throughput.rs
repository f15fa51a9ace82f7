//! How fast the simulator and the software RNIC are: packets through a device at either end, on one core.

use std::net::{Ipv4Addr, SocketAddrV4};

use longhaul_impair::Profile;
use longhaul_softnic::PayloadMode;
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    Access, CompletionQueue, MemoryRegion, Mtu, PathAttributes, QueuePair, QueuePairAttributes, QueuePairLimits,
    QueuePairOptions, ReceiveRequest, SendFlags, SendOperation, SendRequest, Transport, WorkCompletion, WriteBurst,
};
use longhaul_wire::{IcrcScope, icrc};

use crate::world::{World, WorldConfig};

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// UC, single-packet WRITEs with immediate in bursts: every packet consumes a receive and makes a completion.
    UnreliableWriteBursts,
    /// RC, WRITEs of 1 MiB.
    ReliableWrites,
}

/// What a run did. The caller knows how long it took.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// Data packets that arrived and were placed.
    pub packets: u64,
    /// Their payload.
    pub payload_bytes: u64,
    /// Virtual time that passed.
    pub virtual_time: Duration,
    /// Packets of all kinds that the devices sent.
    pub packets_sent: u64,
}

/// Payload of each packet.
pub const PACKET_BYTES: u32 = 4096;
const BURST_PACKETS: usize = 64;
/// In flight at most; the link's bandwidth times delay is less.
const DEPTH_PACKETS: usize = 8 * BURST_PACKETS;
const MESSAGE_BYTES: usize = 1 << 20;
const RELIABLE_DEPTH: usize = 4;
/// RC walks through all of it, UC and the limit through a burst's worth: small enough to stay in the cache of one core,
/// as a program that consumes what it receives would have it.
const BUFFER_BYTES: usize = MESSAGE_BYTES;

struct End {
    completions: CompletionQueue,
    queue_pair: QueuePair,
    region: MemoryRegion,
}

fn open(world: &World, node: usize, transport: Transport) -> End {
    let device = world.device(node);
    let domain = device.allocate_protection_domain().expect("a new device has room");
    let completions = device.create_completion_queue(4 * DEPTH_PACKETS as u32).expect("a new device has room");
    let limits = QueuePairLimits {
        send_requests: DEPTH_PACKETS as u32,
        receive_requests: 2 * DEPTH_PACKETS as u32,
        ..Default::default()
    };
    let options = QueuePairOptions { limits, ..Default::default() };
    let queue_pair =
        domain.create_queue_pair(transport, &completions, &completions, &options).expect("a new device has room");
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = domain.register(vec![0x5a; BUFFER_BYTES], access).expect("a new device has room");
    queue_pair.modify(&QueuePairAttributes::init_connected(access)).expect("INIT follows RESET");
    End { completions, queue_pair, region }
}

fn connect(world: &World, end: &End, peer_node: usize, peer: &End, transport: Transport) {
    let path = PathAttributes::to(world.gid(peer_node));
    let number = peer.queue_pair.number();
    let mut receive = QueuePairAttributes::ready_to_receive(path, Mtu::Bytes4096, number, 0);
    let mut send = QueuePairAttributes::ready_to_send(0);
    if transport == Transport::ReliableConnection {
        receive = receive.reliable_receive(0, 12);
        send = send.reliable_send(14, 7, 7, 0);
    }
    end.queue_pair.modify(&receive).expect("RTR follows INIT");
    end.queue_pair.modify(&send).expect("RTS follows RTR");
}

/// Send at least `packets` data packets from one software RNIC to another over a link of 100 Gbit/s and 10 µs.
pub fn run(traffic: Traffic, payload: PayloadMode, packets: u64) -> Moved {
    let mut config = WorldConfig {
        link: Profile::default()
            .with_propagation_delay(Duration::from_micros(10))
            .with_rate_bits_per_second(100_000_000_000),
        ..Default::default()
    };
    config.nic.payload = payload;
    let mut world = World::new(config);
    let transport = match traffic {
        Traffic::UnreliableWriteBursts => Transport::UnreliableConnection,
        Traffic::ReliableWrites => Transport::ReliableConnection,
    };
    let sender = open(&world, 0, transport);
    let receiver = open(&world, 1, transport);
    connect(&world, &sender, 1, &receiver, transport);
    connect(&world, &receiver, 0, &sender, transport);
    let arrived = match traffic {
        Traffic::UnreliableWriteBursts => unreliable(&mut world, &sender, &receiver, packets),
        Traffic::ReliableWrites => reliable(&mut world, &sender, &receiver, packets),
    };
    Moved {
        packets: arrived,
        payload_bytes: arrived * u64::from(PACKET_BYTES),
        virtual_time: world.now() - Instant::ZERO,
        packets_sent: world.packet_count(),
    }
}

/// The limit to compare with: what copying a packet out of memory and into memory, and computing its ICRC at either
/// end, costs alone. Walks through buffers of the same size as UC does. Returns `packets`.
pub fn copy_and_check(packets: u64) -> u64 {
    let source = vec![0x5a_u8; BURST_PACKETS * PACKET_BYTES as usize];
    let mut destination = vec![0_u8; BURST_PACKETS * PACKET_BYTES as usize];
    let mut frame = vec![0_u8; 12 + PACKET_BYTES as usize + 4];
    let scope = IcrcScope::v4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1), SocketAddrV4::new(Ipv4Addr::LOCALHOST, 2));
    for packet in 0..packets {
        let offset = packet as usize % BURST_PACKETS * PACKET_BYTES as usize;
        let range = offset..offset + PACKET_BYTES as usize;
        frame[12..12 + PACKET_BYTES as usize].copy_from_slice(&source[range.clone()]);
        icrc::write(&scope, &mut frame);
        assert!(icrc::verify(&scope, std::hint::black_box(&frame)), "nothing has changed the frame");
        destination[range].copy_from_slice(&frame[12..12 + PACKET_BYTES as usize]);
    }
    std::hint::black_box(&destination);
    packets
}

/// A pause of the program between two looks at its completions.
const TICK: Duration = Duration::from_micros(20);

fn unreliable(world: &mut World, sender: &End, receiver: &End, packets: u64) -> u64 {
    let immediates: Vec<u32> = (0..BURST_PACKETS as u32).collect();
    let burst = WriteBurst {
        id: 0,
        local: sender.region.entry(0..BURST_PACKETS * PACKET_BYTES as usize),
        remote: receiver.region.remote(0),
        stride: PACKET_BYTES,
        immediates: &immediates,
        flags: SendFlags::SIGNALED,
    };
    let mut completions = [WorkCompletion::default(); BURST_PACKETS];
    let receives = vec![ReceiveRequest { id: 0, local: &[] }; 2 * DEPTH_PACKETS];
    receiver.queue_pair.post_receive(&receives).expect("room for all");
    let mut bursts_in_flight = 0;
    let mut arrived = 0;
    while arrived < packets {
        while bursts_in_flight < DEPTH_PACKETS / BURST_PACKETS {
            sender.queue_pair.post_write_burst(&burst).expect("room for the bursts in flight");
            bursts_in_flight += 1;
        }
        world.run_for(TICK);
        bursts_in_flight -= sender.completions.poll(&mut completions).expect("the queue is large enough");
        loop {
            let count = receiver.completions.poll(&mut completions).expect("the queue is large enough");
            if count == 0 {
                break;
            }
            arrived += count as u64;
            receiver.queue_pair.post_receive(&receives[..count]).expect("as many as were consumed");
        }
    }
    arrived
}

fn reliable(world: &mut World, sender: &End, receiver: &End, packets: u64) -> u64 {
    let entry = [sender.region.entry(0..MESSAGE_BYTES)];
    let request = SendRequest::new(0, SendOperation::Write(receiver.region.remote(0)), &entry);
    let mut completions = [WorkCompletion::default(); RELIABLE_DEPTH];
    let mut in_flight = 0;
    let mut done = 0;
    while done * (MESSAGE_BYTES as u64 / u64::from(PACKET_BYTES)) < packets {
        while in_flight < RELIABLE_DEPTH {
            sender.queue_pair.post_send(&[request]).expect("room for the messages in flight");
            in_flight += 1;
        }
        world.run_for(TICK);
        let count = sender.completions.poll(&mut completions).expect("the queue is large enough");
        assert!(completions[..count].iter().all(WorkCompletion::is_success), "nothing fails on a perfect link");
        in_flight -= count;
        done += count as u64;
    }
    done * (MESSAGE_BYTES as u64 / u64::from(PACKET_BYTES))
}
