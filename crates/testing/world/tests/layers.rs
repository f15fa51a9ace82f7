//! Layers on both ports, the simulated wire and UDP sockets: a small forward error correction that restores what a
//! layer below it loses. It uses all that a layer has: it changes packets, adds some of its own, restores others with
//! the ICRC that they had, and has deadlines.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longhaul_softnic::{Config, Direction, Envelope, Layer, Onward, Packet};
use longhaul_softnic_udp::{UdpConfig, UdpDevice, UdpPortChoice};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    Access, CompletionQueue, Device, Gid, MemoryRegion, Mtu, PathAttributes, QueuePair, QueuePairAttributes,
    QueuePairLimits, QueuePairOptions, ReceiveRequest, SendOperation, SendRequest, Transport, WorkCompletion,
};
use longhaul_world::{World, WorldConfig};

/// Packets that one parity packet protects.
const BLOCK_PACKETS: u8 = 4;
/// A block that does not fill ends after this.
const BLOCK_PATIENCE: Duration = Duration::from_micros(50);
/// Blocks that a receiver remembers.
const BLOCKS_MAX: usize = 64;
/// Behind each packet: number of the block, number in the block, and, in parity packets, packets of the block.
const TRAILER_BYTES: usize = 6;
const PARITY: u8 = 0xff;

/// Sends a parity packet, the exclusive or of the packets before it, after each few packets; restores one that is
/// missing.
struct Parity {
    sending: Block,
    block: u32,
    flush_at: Option<Instant>,
    envelope: Option<Envelope>,
    receiving: BTreeMap<u32, Block>,
    restored: Arc<AtomicU64>,
}

#[derive(Default)]
struct Block {
    /// Exclusive or of lengths and bytes.
    sum: Vec<u8>,
    packets: u8,
    /// As the parity packet says, once it is there.
    packets_expected: Option<u8>,
}

impl Block {
    fn add(&mut self, datagram: &[u8]) {
        self.packets += 1;
        let length = (datagram.len() as u16).to_le_bytes();
        self.add_bytes(length.iter().chain(datagram).copied());
    }

    fn add_bytes(&mut self, bytes: impl Iterator<Item = u8>) {
        for (index, byte) in bytes.enumerate() {
            match self.sum.get_mut(index) {
                Some(sum) => *sum ^= byte,
                None => self.sum.push(byte),
            }
        }
    }
}

impl Parity {
    fn new(restored: Arc<AtomicU64>) -> Parity {
        let (sending, receiving) = (Block::default(), BTreeMap::new());
        Parity { sending, block: 0, flush_at: None, envelope: None, receiving, restored }
    }

    fn end_block(&mut self, onward: &mut Onward<'_>) {
        let Block { sum, packets, .. } = std::mem::take(&mut self.sending);
        self.flush_at = None;
        if let Some(envelope) = self.envelope {
            let trailer = trailer(self.block, PARITY, packets);
            onward.pass(Direction::Outgoing, Packet { envelope, datagram: [&sum[..], &trailer].concat() });
        }
        self.block += 1;
    }
}

fn trailer(block: u32, index: u8, packets: u8) -> [u8; TRAILER_BYTES] {
    let [a, b, c, d] = block.to_le_bytes();
    [a, b, c, d, index, packets]
}

impl Layer for Parity {
    fn handle(&mut self, direction: Direction, mut packet: Packet, now: Instant, onward: &mut Onward<'_>) {
        if direction == Direction::Outgoing {
            let index = self.sending.packets;
            self.sending.add(&packet.datagram);
            self.envelope = Some(packet.envelope);
            self.flush_at.get_or_insert(now + BLOCK_PATIENCE);
            packet.datagram.extend(trailer(self.block, index, 0));
            onward.pass(direction, packet);
            if self.sending.packets == BLOCK_PACKETS {
                self.end_block(onward);
            }
            return;
        }
        let Some(body_bytes) = packet.datagram.len().checked_sub(TRAILER_BYTES) else { return };
        let trailer = packet.datagram.split_off(body_bytes);
        let number = u32::from_le_bytes([trailer[0], trailer[1], trailer[2], trailer[3]]);
        let block = self.receiving.entry(number).or_default();
        if trailer[4] == PARITY {
            block.add_bytes(packet.datagram.iter().copied());
            block.packets_expected = Some(trailer[5]);
        } else {
            block.add(&packet.datagram);
            onward.pass(direction, packet.clone());
        }
        if block.packets_expected == Some(block.packets + 1) && block.sum.len() >= 2 {
            let length = usize::from(u16::from_le_bytes([block.sum[0], block.sum[1]]));
            let datagram = block.sum[2..2 + length].to_vec();
            self.restored.fetch_add(1, Ordering::Relaxed);
            block.packets += 1;
            onward.pass(direction, Packet { envelope: packet.envelope, datagram });
        }
        while self.receiving.len() > BLOCKS_MAX {
            self.receiving.pop_first();
        }
    }

    fn poll(&mut self, _now: Instant, onward: &mut Onward<'_>) {
        self.end_block(onward);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.flush_at
    }

    fn close(&mut self, _now: Instant, onward: &mut Onward<'_>) {
        if self.sending.packets > 0 {
            self.end_block(onward);
        }
    }

    fn overhead_bytes(&self) -> usize {
        // Parity packets also carry a length.
        TRAILER_BYTES + 2
    }
}

/// Loses every seventh packet that goes out.
#[derive(Default)]
struct Lossy {
    passed: u64,
}

impl Layer for Lossy {
    fn handle(&mut self, direction: Direction, packet: Packet, _now: Instant, onward: &mut Onward<'_>) {
        self.passed += u64::from(direction == Direction::Outgoing);
        if direction == Direction::Incoming || !self.passed.is_multiple_of(7) {
            onward.pass(direction, packet);
        }
    }
}

/// Which layers both ends have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layers {
    Lossy,
    LossyWithParity,
}

impl Layers {
    fn make(self, restored: &Arc<AtomicU64>) -> Vec<Box<dyn Layer>> {
        let mut layers: Vec<Box<dyn Layer>> = Vec::new();
        if self == Layers::LossyWithParity {
            layers.push(Box::new(Parity::new(restored.clone())));
        }
        layers.push(Box::<Lossy>::default());
        layers
    }

    fn messages_expected(self) -> usize {
        match self {
            Layers::Lossy => MESSAGES - MESSAGES / 7,
            Layers::LossyWithParity => MESSAGES,
        }
    }
}

/// The last block is not full.
const MESSAGES: usize = 4 * 50 + 2;
/// One packet.
const MESSAGE_BYTES: usize = 1000;

struct End {
    completions: CompletionQueue,
    queue_pair: QueuePair,
    region: MemoryRegion,
}

fn open(device: &Device) -> End {
    let domain = device.allocate_protection_domain().unwrap();
    let completions = device.create_completion_queue(2 * MESSAGES as u32).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = domain.register_zeroed(MESSAGES * MESSAGE_BYTES, access).unwrap();
    let requests = MESSAGES as u32;
    let limits = QueuePairLimits { send_requests: requests, receive_requests: requests, ..Default::default() };
    let options = QueuePairOptions { limits, ..Default::default() };
    let transport = Transport::UnreliableConnection;
    let queue_pair = domain.create_queue_pair(transport, &completions, &completions, &options).unwrap();
    queue_pair.modify(&QueuePairAttributes::init_connected(access)).unwrap();
    End { completions, queue_pair, region }
}

fn connect(end: &End, peer: &End, path: PathAttributes) {
    let receive = QueuePairAttributes::ready_to_receive(path, Mtu::Bytes1024, peer.queue_pair.number(), 0);
    end.queue_pair.modify(&receive).unwrap();
    end.queue_pair.modify(&QueuePairAttributes::ready_to_send(0)).unwrap();
}

fn message(number: usize) -> Vec<u8> {
    (0..MESSAGE_BYTES).map(|index| (number * 31 + index * 7) as u8).collect()
}

/// Sends messages of a packet each over an unreliable connection; how many arrive. `wait` gets the number so far, lets
/// time pass, and says `false` when it has been enough.
fn exchange(sender: &End, receiver: &End, mut wait: impl FnMut(usize) -> bool) -> usize {
    let place = |number: usize| number * MESSAGE_BYTES..(number + 1) * MESSAGE_BYTES;
    for number in 0..MESSAGES {
        let local = [receiver.region.entry(place(number))];
        receiver.queue_pair.post_receive(&[ReceiveRequest { id: number as u64, local: &local }]).unwrap();
        sender.region.copy_in(place(number).start, &message(number));
    }
    for number in 0..MESSAGES {
        let entry = [sender.region.entry(place(number))];
        let request = SendRequest::new(number as u64, SendOperation::SendWithImmediate(number as u32), &entry);
        sender.queue_pair.post_send(&[request]).unwrap();
    }
    let mut arrived = [false; MESSAGES];
    let mut room = [WorkCompletion::default(); 64];
    let count = |arrived: &[bool]| arrived.iter().filter(|&&has_arrived| has_arrived).count();
    while arrived.contains(&false) && wait(count(&arrived)) {
        let _ = sender.completions.poll(&mut room).unwrap();
        let taken = receiver.completions.poll(&mut room).unwrap();
        for completion in &room[..taken] {
            assert!(completion.is_success(), "{completion:?}");
            let number = completion.immediate().expect("each message has one") as usize;
            assert!(!std::mem::replace(&mut arrived[number], true), "message {number} has arrived twice");
            let bytes = receiver.region.to_vec(place(completion.id as usize));
            assert!(bytes == message(number), "message {number} differs");
        }
    }
    count(&arrived)
}

/// On virtual time. How many messages arrived, packets restored, and a hash of everything.
fn run_virtual(layers: Layers) -> (usize, u64, u64) {
    let restored = Arc::new(AtomicU64::new(0));
    let of_node = restored.clone();
    let config = WorldConfig { layers: Some(Arc::new(move |_| layers.make(&of_node))), ..Default::default() };
    let mut world = World::new(config);
    let ends = [open(&world.device(0)), open(&world.device(1))];
    connect(&ends[0], &ends[1], PathAttributes::to(world.gid(1)));
    connect(&ends[1], &ends[0], PathAttributes::to(world.gid(0)));
    let end = Instant::ZERO + Duration::from_millis(10);
    let arrived = exchange(&ends[0], &ends[1], |_| {
        world.run_for(Duration::from_micros(5));
        world.now() < end
    });
    (arrived, restored.load(Ordering::Relaxed), world.trace_hash())
}

/// On UDP sockets. How many messages arrived, and packets restored.
fn run_sockets(layers: Layers, number: u8) -> (usize, u64) {
    let restored = Arc::new(AtomicU64::new(0));
    let devices = [number, number + 1].map(|last| {
        let address = IpAddr::V4(Ipv4Addr::new(127, 0, 3, last));
        let mut udp = UdpConfig::default();
        udp.udp_port = UdpPortChoice::Free;
        UdpDevice::open_layered(Config::new("layered", vec![address], [last; 32]), udp, layers.make(&restored)).unwrap()
    });
    let ends = [0, 1].map(|end: usize| open(&devices[end].verbs()));
    for (own, peer) in [(0, 1), (1, 0)] {
        let mut path = PathAttributes::to(Gid::from_ip(devices[peer].device().nic().config().addresses[0]));
        path.udp_port = devices[peer].udp_port();
        connect(&ends[own], &ends[peer], path);
    }
    let start = std::time::Instant::now();
    let is_enough = |arrived| arrived >= layers.messages_expected() || start.elapsed() > Duration::from_secs(10);
    let arrived = exchange(&ends[0], &ends[1], |arrived| !is_enough(arrived));
    (arrived, restored.load(Ordering::Relaxed))
}

/// Of the packets of whole blocks, their parity included, and of the last one, every seventh is lost; those of data are
/// restored.
fn lost_data_packets() -> u64 {
    let per_block = u64::from(BLOCK_PACKETS) + 1;
    let blocks = (MESSAGES as u64).div_ceil(BLOCK_PACKETS.into());
    let packets = MESSAGES as u64 + blocks;
    (1..=packets).filter(|number| number % 7 == 0 && number % per_block != 0 && *number != packets).count() as u64
}

#[test]
fn without_correction_what_is_lost_is_lost() {
    let expected = Layers::Lossy.messages_expected();
    assert_eq!(run_virtual(Layers::Lossy).0, expected);
    assert_eq!(run_sockets(Layers::Lossy, 1).0, expected);
}

#[test]
fn correction_on_virtual_time_restores_everything_and_repeats_to_the_byte() {
    let (arrived, restored, hash) = run_virtual(Layers::LossyWithParity);
    assert_eq!((arrived, restored), (MESSAGES, lost_data_packets()));
    assert_eq!(run_virtual(Layers::LossyWithParity), (arrived, restored, hash));
}

#[test]
fn correction_on_sockets_restores_everything() {
    let (arrived, restored) = run_sockets(Layers::LossyWithParity, 3);
    // Blocks that end early, because the host was slow, are protected all the same.
    assert_eq!(arrived, MESSAGES);
    assert!(restored > 0);
}
