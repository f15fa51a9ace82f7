//! The window towards a peer that all reliable connections to it share.

use crate::two_ends;

use std::collections::{BTreeMap, VecDeque};

use longhaul_softnic::{Config, Device, Outgoing, PeerWindow, Route, TransmitSink};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    Access, CompletionQueue, CompletionStatus, Gid, MemoryRegion, Mtu, PathAttributes, ProtectionDomain, QueuePair,
    QueuePairAttributes, QueuePairOptions, QueuePairState, SendOperation, SendRequest, Transport, WorkCompletion,
};
use longhaul_wire::Opcode;
use two_ends::{Datagram, Outbox, at, receive_on};

const MTU: Mtu = Mtu::Bytes256;
/// What a full packet takes of the window: its payload and 768 bytes.
const PACKET_BYTES: u64 = 1024;
const REGION_BYTES: usize = 64 << 10;
/// 4.096 µs · 2^8.
const TIMEOUT: u8 = 8;
const TIMEOUT_TIME: Duration = Duration::from_nanos(4096 << TIMEOUT);
const RETRIES: u8 = 3;

/// A device with many connections.
struct Host {
    device: Device,
    domain: ProtectionDomain,
    completions: CompletionQueue,
    region: MemoryRegion,
    queue_pairs: Vec<QueuePair>,
}

impl Host {
    fn new(address: &str, window_packets: u64, change: impl FnOnce(&mut Config)) -> Host {
        let mut config = Config::new(address, vec![address.parse().unwrap()], [address.len() as u8; 32]);
        config.mtu = MTU;
        config.peer_window_bytes = Some(window_packets * PACKET_BYTES);
        // Only towards peers on the same host is that the most.
        config.local_addresses =
            ["10.0.0.1", "10.0.0.22", "10.0.0.33"].map(|address| address.parse().unwrap()).to_vec();
        change(&mut config);
        let device = Device::new(config, || ());
        let verbs = device.verbs();
        let domain = verbs.allocate_protection_domain().unwrap();
        let completions = verbs.create_completion_queue(1 << 16).unwrap();
        let region = domain.register_zeroed(REGION_BYTES, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        Host { device, domain, completions, region, queue_pairs: Vec::new() }
    }

    fn create(&mut self) -> usize {
        let options = QueuePairOptions::default();
        let transport = Transport::ReliableConnection;
        let queue_pair = self.domain.create_queue_pair(transport, &self.completions, &self.completions, &options);
        self.queue_pairs.push(queue_pair.unwrap());
        self.queue_pairs.len() - 1
    }

    fn connect(&self, index: usize, peer: &Host, timeout: u8) {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let path = PathAttributes::to(Gid::from_ip(peer.device.nic().config().addresses[0]));
        let queue_pair = &self.queue_pairs[index];
        let number = peer.queue_pairs[index].number();
        queue_pair.modify(&QueuePairAttributes::init_connected(access)).unwrap();
        let receive = QueuePairAttributes::ready_to_receive(path, MTU, number, 0);
        queue_pair.modify(&receive.reliable_receive(0, 12)).unwrap();
        queue_pair.modify(&QueuePairAttributes::ready_to_send(0).reliable_send(timeout, RETRIES, 7, 0)).unwrap();
    }

    fn post(&self, index: usize, length: usize, peer: &Host) {
        let entry = [self.region.entry(0..length)];
        let operation = SendOperation::Write(peer.region.remote(0));
        self.queue_pairs[index].post_send(&[SendRequest::new(index as u64, operation, &entry)]).unwrap();
    }

    fn poll(&self, now: Instant) -> Vec<Datagram> {
        let mut outbox = Outbox::default();
        self.device.nic().poll(now, &mut outbox);
        outbox.0
    }

    /// The port takes `room` packets and no more.
    fn poll_with_room(&self, now: Instant, room: usize) -> Vec<Datagram> {
        let mut sink = NarrowPort { outbox: Outbox::default(), room };
        self.device.nic().poll(now, &mut sink);
        sink.outbox.0
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.device.nic().next_deadline()
    }

    fn completions(&self) -> Vec<WorkCompletion> {
        std::iter::from_fn(|| self.completions.poll_one().unwrap()).collect()
    }

    fn window(&self) -> PeerWindow {
        self.device.nic().peer_windows()[0]
    }
}

struct NarrowPort {
    outbox: Outbox,
    room: usize,
}

impl TransmitSink for NarrowPort {
    fn has_room(&self) -> bool {
        self.outbox.0.len() < self.room
    }

    fn transmit(&mut self, route: &Route, datagram: &Outgoing<'_>) {
        self.outbox.transmit(route, datagram);
    }
}

/// Two devices with this many connections between them; the first one's window has `window_packets` packets.
fn hosts(queue_pair_count: usize, window_packets: u64) -> (Host, Host) {
    let mut one = Host::new("10.0.0.1", window_packets, |_| ());
    let mut two = Host::new("10.0.0.22", window_packets, |_| ());
    for index in 0..queue_pair_count {
        one.create();
        two.create();
        one.connect(index, &two, TIMEOUT);
        two.connect(index, &one, TIMEOUT);
    }
    (one, two)
}

/// Deliver packets, and have what comes back delivered.
fn exchange(one: &Host, two: &Host, packets: &[Datagram], now: Instant) {
    packets.iter().for_each(|packet| receive_on(&two.device, packet, now));
    two.poll(now).iter().for_each(|answer| receive_on(&one.device, answer, now));
}

#[test]
fn all_connections_together_stay_within_the_window_and_nobody_waits_for_a_timer() {
    let (one, two) = hosts(50, 32);
    (0..50).for_each(|index| one.post(index, 10_000, &two));
    let mut rounds = 0;
    loop {
        // Time stands still: whatever needs a timer would never come.
        let packets = one.poll(at(1));
        if packets.is_empty() {
            break;
        }
        assert!(packets.len() <= 32, "{} packets at once", packets.len());
        assert!(one.window().in_flight_bytes <= 32 * PACKET_BYTES, "{:?}", one.window());
        exchange(&one, &two, &packets, at(1));
        rounds += 1;
    }
    let completions = one.completions();
    assert_eq!(completions.len(), 50);
    assert!(completions.iter().all(WorkCompletion::is_success));
    assert_eq!(one.device.nic().counters().retransmitted_pkts, 0);
    assert_eq!((one.window().in_flight_bytes, one.window().waiting), (0, 0));
    assert!(rounds <= 50 * 40 / 32 + 60, "{rounds} rounds for 50 messages of 40 packets");
}

#[test]
fn connections_get_the_same_while_all_have_something_to_send() {
    let (one, two) = hosts(10, 20);
    // Coming first is no advantage, and neither is a longer message.
    (0..10).for_each(|index| one.post(index, if index % 2 == 0 { 60_000 } else { 50_000 }, &two));
    let mut sent: BTreeMap<u32, u32> = BTreeMap::new();
    for _ in 0..60 {
        let packets = one.poll(at(1));
        for packet in &packets {
            *sent.entry(packet.packet().headers.bth.destination_qp).or_default() += 1;
        }
        exchange(&one, &two, &packets, at(1));
    }
    let (least, most) = (sent.values().min().unwrap(), sent.values().max().unwrap());
    assert!(sent.len() == 10 && most - least <= 20, "{sent:?}: at most about a turn apart");
}

#[test]
fn a_newcomer_does_not_overtake_those_who_wait() {
    let (one, two) = hosts(3, 8);
    one.post(0, 8 * 256, &two);
    one.post(1, 4 * 256, &two);
    let packets = one.poll(at(1));
    assert_eq!(packets.len(), 8);
    one.post(2, 4 * 256, &two);
    exchange(&one, &two, &packets, at(1));
    let numbers: Vec<u32> = one.poll(at(1)).iter().map(|packet| packet.packet().headers.bth.destination_qp).collect();
    let expected = [1, 2].map(|index: usize| [two.queue_pairs[index].number().value(); 4]);
    assert_eq!(numbers, expected.concat());
}

#[test]
fn acknowledgements_are_asked_for_four_times_in_a_window_and_at_its_end() {
    let (one, two) = hosts(1, 32);
    one.post(0, 60_000, &two);
    let packets = one.poll(at(1));
    let asked: Vec<usize> =
        (0..packets.len()).filter(|index| packets[*index].packet().headers.bth.ack_request).collect();
    assert_eq!(packets.len(), 32);
    assert_eq!(asked, [7, 15, 23, 31]);
}

#[test]
fn small_packets_take_little_of_the_window() {
    let (one, two) = hosts(20, 16);
    (0..20).for_each(|index| one.post(index, 1, &two));
    assert_eq!(one.poll(at(1)).len(), 20);
    assert_eq!(one.window().in_flight_bytes, 20 * 769);
    (0..20).for_each(|index| one.post(index, 1, &two));
    assert_eq!(one.poll(at(1)).len(), (16 * 1024 / 769) - 20);
}

#[test]
fn a_loss_halves_the_window_once_and_acknowledgements_widen_it() {
    let (one, two) = hosts(4, 64);
    (0..4).for_each(|index| one.post(index, 60_000, &two));
    let packets = one.poll(at(1));
    assert_eq!(packets.len(), 64);
    // Each connection loses its first packet: one event.
    let mut is_first = BTreeMap::new();
    let rest: Vec<Datagram> = packets
        .into_iter()
        .filter(|packet| is_first.insert(packet.packet().headers.bth.destination_qp, ()).is_some())
        .collect();
    exchange(&one, &two, &rest, at(2));
    assert_eq!(one.device.nic().counters().rcvd_seq_err, 4);
    assert_eq!(one.window().limit_bytes, 32 * PACKET_BYTES);
    let packets = one.poll(at(2));
    assert_eq!(packets.len(), 32);
    let mut packets = packets;
    while !packets.is_empty() {
        exchange(&one, &two, &packets, at(3));
        packets = one.poll(at(3));
    }
    assert_eq!(one.completions().len(), 4);
    let limit_packets = one.window().limit_bytes / PACKET_BYTES;
    assert_eq!(limit_packets, 64, "back at its most after 960 packets, and not beyond");
}

/// Let time pass with nothing arriving until the device has nothing more to do. Returns when that was.
fn run_in_silence(host: &Host) -> Instant {
    let mut now = at(0);
    host.poll(now);
    while let Some(deadline) = host.next_deadline() {
        now = deadline.max(now);
        host.poll(now);
        assert!(now < at(60_000_000), "a minute is enough");
    }
    now
}

#[test]
fn connections_to_a_dead_peer_end_by_their_own_retries_also_those_that_wait() {
    // One has 60 packets to send and the window takes 8.
    let (one, two) = hosts(200, 8);
    (0..200).for_each(|index| one.post(index, 60 * 256, &two));
    let end = run_in_silence(&one);
    let completions = one.completions();
    assert_eq!(completions.len(), 200);
    assert!(completions.iter().all(|completion| completion.status == CompletionStatus::RetryExceededError));
    assert!(one.queue_pairs.iter().all(|queue_pair| queue_pair.state() == QueuePairState::Error));
    assert_eq!(one.window().in_flight_bytes, 0);
    // Each waits for the time-out of the others, and then has its own tries; not one after the other.
    assert!(end > at(0) + (1 + u32::from(RETRIES)) * TIMEOUT_TIME);
    assert!(end < at(0) + 3 * (1 + u32::from(RETRIES)) * TIMEOUT_TIME, "took until {end:?}");
}

#[test]
fn a_connection_that_never_times_out_does_not_hold_up_the_others() {
    let mut one = Host::new("10.0.0.1", 8, |_| ());
    let mut two = Host::new("10.0.0.22", 8, |_| ());
    for index in 0..4 {
        one.create();
        two.create();
        let timeout = if index == 0 { 0 } else { TIMEOUT };
        one.connect(index, &two, timeout);
        two.connect(index, &one, timeout);
    }
    one.post(0, 60 * 256, &two);
    assert_eq!(one.poll(at(0)).len(), 8); // lost, and nobody will ever notice
    (1..4).for_each(|index| one.post(index, 2560, &two));
    let (mut now, mut done) = (at(0), 0);
    while done < 3 {
        let packets = one.poll(now);
        exchange(&one, &two, &packets, now);
        done += one.completions().iter().filter(|completion| completion.is_success()).count();
        if packets.is_empty() {
            now = one.next_deadline().expect("somebody still wants to send").max(now);
        }
        assert!(now < at(1_000_000), "{:?}", one.window());
    }
}

#[test]
fn a_dead_peer_does_not_hold_up_another() {
    let (mut one, mut two) = hosts(4, 8);
    let mut other = Host::new("10.0.0.77", 8, |_| ());
    for index in 0..4 {
        one.post(index, 60 * 256, &two);
        // So that the number of each is the index.
        other.create();
    }
    one.create();
    other.create();
    two.create();
    one.connect(4, &other, TIMEOUT);
    other.connect(4, &one, TIMEOUT);
    one.post(4, 2560, &other);
    let mut packets = one.poll(at(1));
    loop {
        packets.retain(|packet| packet.route.destination == other.device.nic().config().addresses[0]);
        if packets.is_empty() {
            break;
        }
        exchange(&one, &other, &packets, at(1));
        packets = one.poll(at(1));
    }
    assert!(one.completions()[0].is_success());
}

#[test]
fn room_comes_back_when_connections_are_reset_or_destroyed() {
    let (mut one, two) = hosts(4, 8);
    (0..4).for_each(|index| one.post(index, 60 * 256, &two));
    assert_eq!(one.poll(at(1)).len(), 8);
    one.queue_pairs[0].modify(&QueuePairAttributes::to_state(QueuePairState::Reset)).unwrap();
    assert_eq!(one.poll(at(1)).len(), 8, "the next one has the room");
    one.queue_pairs[1].modify(&QueuePairAttributes::to_state(QueuePairState::Error)).unwrap();
    assert_eq!(one.poll(at(1)).len(), 8);
    one.queue_pairs.remove(2);
    assert_eq!(one.poll(at(1)).len(), 8);
    assert_eq!(one.window().queue_pairs, 2, "one that is reset has no peer, one in error still has");
    one.queue_pairs.clear();
    assert!(one.device.nic().peer_windows().is_empty(), "the last one takes the peer with it");
}

#[test]
fn without_a_limit_there_is_no_table() {
    let mut one = Host::new("10.0.0.1", 8, |config| config.peer_window_bytes = None);
    let mut two = Host::new("10.0.0.22", 8, |_| ());
    one.create();
    two.create();
    one.connect(0, &two, TIMEOUT);
    one.post(0, 60_000, &two);
    assert_eq!(one.poll(at(1)).len(), 235);
    assert!(one.device.nic().peer_windows().is_empty());
}

/// Numbers that look random (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Whatever happens, the sum is right, and nobody is forgotten: the device checks itself after every poll (debug builds), and at
/// the end everything has been sent.
#[test]
fn random_traffic_losses_and_changes_of_state_leave_the_sum_right() {
    for seed in 1_u64..=40 {
        let dice = &mut Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (mut one, mut two) = hosts(12, 8 + dice.below(40));
        let mut wire: VecDeque<Datagram> = VecDeque::new();
        let mut now = at(0);
        for _ in 0..600 {
            let index = dice.below(one.queue_pairs.len() as u64) as usize;
            match dice.below(20) {
                0..=5 if one.queue_pairs[index].state() == QueuePairState::ReadyToSend => {
                    let length = dice.below(30 * 256) as usize;
                    one.post(index, length, &two);
                }
                6 if dice.below(4) == 0 => reconnect(&one, &two, index),
                7 if dice.below(4) == 0 => {
                    // A new one takes the place at the end; indexes of both sides stay the same.
                    one.queue_pairs.remove(index);
                    two.queue_pairs.remove(index);
                    one.create();
                    two.create();
                    reconnect(&one, &two, one.queue_pairs.len() - 1);
                }
                8 => now = one.next_deadline().unwrap_or(now).max(now),
                9 => now += Duration::from_micros(dice.below(300)),
                _ => {}
            }
            let room = dice.below(10) as usize;
            wire.extend(one.poll_with_room(now, room));
            for _ in 0..dice.below(12) {
                if let Some(packet) = wire.pop_front()
                    && dice.below(20) > 0
                {
                    exchange(&one, &two, &[packet], now);
                }
            }
            one.completions();
        }
        // A perfect network from now on.
        for index in 0..one.queue_pairs.len() {
            if one.queue_pairs[index].state() != QueuePairState::ReadyToSend {
                reconnect(&one, &two, index);
            }
            one.post(index, 1000, &two);
        }
        let mut rounds = 0;
        while one.window().in_flight_bytes > 0 || one.window().waiting > 0 || !wire.is_empty() || rounds == 0 {
            wire.extend(one.poll(now));
            let packets: Vec<Datagram> = wire.drain(..).collect();
            exchange(&one, &two, &packets, now);
            if packets.is_empty() {
                now = one.next_deadline().unwrap_or(now).max(now);
            }
            rounds += 1;
            assert!(rounds < 10_000, "seed {seed}: {:?}", one.window());
        }
        assert!(one.queue_pairs.iter().all(|queue_pair| queue_pair.state() == QueuePairState::ReadyToSend), "{seed}");
    }
}

fn reconnect(one: &Host, two: &Host, index: usize) {
    for host in [one, two] {
        host.queue_pairs[index].modify(&QueuePairAttributes::to_state(QueuePairState::Reset)).unwrap();
    }
    one.connect(index, two, TIMEOUT);
    two.connect(index, one, TIMEOUT);
}

#[test]
fn answers_are_not_held_up_by_the_window() {
    let (one, two) = hosts(2, 8);
    one.post(0, 60 * 256, &two);
    one.poll(at(1)); // the window is full
    two.post(1, 10, &one);
    for packet in two.poll(at(1)) {
        receive_on(&one.device, &packet, at(1));
    }
    let answers = one.poll(at(1));
    assert_eq!(answers.iter().map(Datagram::opcode).collect::<Vec<_>>(), [Opcode::RcAcknowledge]);
}
