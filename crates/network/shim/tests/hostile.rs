//! Hostile packets: noise, invented flows, malformed headers and repair packets that lie, with a real flow between them.
//!
//! A tenth as many without optimization; as many as `LONGHAUL_HOSTILE_PACKETS` says if it is set (10 million in a long run).

mod ends;

use ends::{Flow, at, config, encode, is_repair};
use longhaul_shim::{Config, Direction, Network, Onward, Packet, Shim};
use longhaul_time::Duration;
use longhaul_wire::repair::{Header, Subject};
use longhaul_wire::{Position, Psn, icrc, repair};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

fn packets() -> u64 {
    let usual = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    std::env::var("LONGHAUL_HOSTILE_PACKETS").map_or(usual, |packets| packets.parse().expect("a number of packets"))
}

const REAL_QUEUE_PAIR: u32 = 7;

/// What an attacker sends who does not see the real flow, but knows its addresses and its queue pair.
struct Attacker {
    random: ChaCha8Rng,
    /// Also lies about the real queue pair, not only about others.
    knows_queue_pair: bool,
    /// Of an attack that takes several packets, the last one first.
    next: Vec<Packet>,
}

/// Packets that wait in an invented flow, and lies about their block.
const BLOCK_PACKETS: u32 = 24;

impl Attacker {
    fn below(&mut self, below: u32) -> u32 {
        self.random.next_u32() % below
    }

    fn noise(&mut self, most: u32) -> Vec<u8> {
        let mut bytes = vec![0; self.below(most) as usize];
        self.random.fill_bytes(&mut bytes);
        bytes
    }

    fn packet(&mut self) -> Packet {
        if self.next.is_empty() && self.below(200) == 0 {
            self.next = self.costly();
        }
        if let Some(packet) = self.next.pop() {
            return packet;
        }
        let queue_pair = match self.knows_queue_pair && self.below(4) == 0 {
            true => REAL_QUEUE_PAIR,
            false => self.below(1 << 24),
        };
        let mut flow = Flow::writes(queue_pair, self.random.next_u32());
        let envelope = flow.envelope;
        let datagram = match self.below(4) {
            0 => self.noise(600),
            1 => {
                // Malformed, but for the opcode.
                let mut noise = self.noise(600);
                noise.first_mut().into_iter().for_each(|byte| *byte = repair::OPCODE);
                noise
            }
            2 => self.lie(queue_pair),
            // A packet of an invented flow, but never of the real queue pair: that would be forging RoCEv2 itself.
            _ => {
                flow.queue_pair = self.below(1 << 24) | 1 << 20;
                let packets = 1 + self.below(3);
                flow.message(packets).swap_remove(0).datagram
            }
        };
        let mut packet = Packet { envelope, datagram };
        if self.below(8) != 0 && is_repair(&packet) {
            icrc::write(&envelope.icrc_scope, &mut packet.datagram);
        }
        packet
    }

    /// An invented flow of which a block waits behind its first packet, and repair packets that lie about that block.
    fn costly(&mut self) -> Vec<Packet> {
        let psn = self.below(1 << 23);
        let flow = Flow::writes(self.below(1 << 24) | 1 << 20, psn);
        let like = Header {
            subject: Subject { queue_pair: flow.queue_pair, is_responses: false },
            is_announcement: true,
            base_psn: Psn::new(psn),
            epoch: self.random.next_u32() as u16,
            is_mds: true,
            block_packets: BLOCK_PACKETS as u8 + 1,
            repair_packets: 1,
            count: BLOCK_PACKETS as u8 + 1,
            index: 0,
            has_first: true,
            has_last: false,
            last_length: 0,
            is_copy: false,
            has_tag: false,
            digest: 0,
        };
        let mut packets = vec![ends::lie(&like, &[])];
        packets.extend((1..=BLOCK_PACKETS).map(|place| flow.packet(psn + place, Position::Middle, ends::MTU)));
        for seed in 0..BLOCK_PACKETS {
            let header = Header { is_announcement: false, digest: seed, ..like };
            packets.push(ends::lie(&header, &ends::bytes(seed, 400)));
        }
        packets.reverse();
        packets
    }

    /// A repair packet or an announcement that is right in form.
    fn lie(&mut self, queue_pair: u32) -> Vec<u8> {
        let is_announcement = self.below(4) == 0;
        let (block_packets, repair_packets) = (1 + self.below(64) as u8, 1 + self.below(8) as u8);
        let count = 1 + self.below(block_packets.into()) as u8;
        let header = Header {
            subject: Subject { queue_pair, is_responses: self.below(2) == 0 },
            is_announcement,
            base_psn: Psn::new(self.random.next_u32()),
            epoch: self.random.next_u32() as u16,
            is_mds: self.below(2) == 0,
            block_packets: block_packets.max(repair_packets),
            repair_packets,
            count,
            index: if is_announcement { 0 } else { self.below(repair_packets.min(count).into()) as u8 },
            has_first: self.below(2) == 0,
            has_last: false,
            last_length: 0,
            is_copy: false,
            has_tag: false,
            digest: self.random.next_u32(),
        };
        let mut datagram = vec![0; repair::HEADER_BYTES];
        header.emit(&mut datagram);
        if !is_announcement {
            let mut sum = vec![0; 9 + self.below(300) as usize];
            self.random.fill_bytes(&mut sum);
            datagram.extend_from_slice(&sum);
        }
        datagram.extend_from_slice(&[0; 4]);
        datagram
    }
}

/// Runs a real flow through an attack: one real packet in eight, of which one in fifty is lost. How many of the real ones arrived, how
/// many there were, and the receiver.
fn attack(config: &Config, knows_queue_pair: bool) -> (u64, u64, Shim) {
    let mut attacker = Attacker { random: ChaCha8Rng::seed_from_u64(5), knows_queue_pair, next: Vec::new() };
    let mut random = ChaCha8Rng::seed_from_u64(6);
    let (mut sender, mut receiver) = (Shim::new(config.clone(), 1).unwrap(), Shim::new(config.clone(), 2).unwrap());
    let bound = config.memory_bytes_max();
    let mut flow = Flow::writes(REAL_QUEUE_PAIR, 100);
    let (mut message, mut sent, mut arrived) = (flow.message(16), 0, 0);
    let mut next_psn = 100;
    let (begin, mut most_bytes) = (std::time::Instant::now(), 0);
    for index in 0..packets() {
        let now = at(index);
        let mut onward = Onward::default();
        if index % 8 == 0 {
            if message.is_empty() {
                message = flow.message(16);
            }
            sent += 1;
            for packet in encode(&mut sender, &[message.remove(0)], now) {
                if random.next_u32() % 50 != 0 {
                    receiver.handle(Direction::Incoming, packet, now, &mut onward);
                }
            }
        } else {
            receiver.handle(Direction::Incoming, attacker.packet(), now, &mut onward);
        }
        receiver.poll(now, &mut onward);
        for packet in &onward.incoming {
            assert!(!is_repair(packet), "a repair packet reached the host");
            let is_real = packet.datagram.len() > 12
                && packet.datagram[5..8] == [0, 0, REAL_QUEUE_PAIR as u8]
                && icrc::verify(&packet.envelope.icrc_scope, &packet.datagram);
            if is_real {
                // What the receiver of UC or RC would take: in order.
                let psn = ends::psn(packet);
                let contents = ends::bytes(REAL_QUEUE_PAIR ^ psn.wrapping_mul(31), 64);
                assert!(packet.datagram.windows(64).any(|window| window == contents), "a lie reached the host");
                if psn >= next_psn {
                    arrived += 1;
                    next_psn = psn + 1;
                }
            }
        }
        if index % 1000 == 0 {
            let bytes = receiver.memory_bytes() + sender.memory_bytes();
            most_bytes = most_bytes.max(bytes);
            assert!(bytes <= bound, "{bytes} bytes at packet {index}, at most {bound}");
            assert!(receiver.decoder().held_packets() <= config.held_packets_max);
        }
    }
    let share = arrived as f64 / sent as f64;
    let per_second = packets() as f64 / begin.elapsed().as_secs_f64();
    println!("{share:.4} of the real packets, {per_second:.0} packets/s, at most {most_bytes} of {bound} bytes");
    (arrived, sent, receiver)
}

fn small() -> Config {
    Config {
        units_max: 64,
        held_packets_max: 128,
        flows_max: 32,
        flow_idle: Duration::from_millis(1),
        ..config("mds:8,2")
    }
}

#[test]
fn lies_of_strangers_change_nothing() {
    let (arrived, sent, receiver) = attack(&small(), false);
    println!("{arrived} of {sent}: {:?}", receiver.decoder().counters());
    let counters = receiver.decoder().counters();
    assert!(
        arrived * 1000 >= sent * 999 && counters.wrong_blocks > packets() / 20_000,
        "{arrived} of {sent}: {counters:?}"
    );
}

#[test]
fn with_a_key_even_a_known_queue_pair_is_safe() {
    let config = Config { key: Some(*b"a key of 16 byte"), ..small() };
    let (arrived, sent, receiver) = attack(&config, true);
    let counters = receiver.decoder().counters();
    assert!(arrived * 1000 >= sent * 999 && counters.refused > packets() / 10, "{arrived} of {sent}: {counters:?}");
}

#[test]
fn without_a_key_no_lie_reaches_the_host_and_most_packets_do() {
    let (arrived, sent, receiver) = attack(&small(), true);
    println!("{arrived} of {sent}: {:?}", receiver.decoder().counters());
    assert!(arrived * 10 >= sent * 8, "{arrived} of {sent}: {:?}", receiver.decoder().counters());
}

#[test]
fn repair_packets_of_other_sources_are_not_looked_at() {
    let elsewhere = Network { address: [192, 0, 2, 0].into(), prefix_bits: 24 };
    let (_, _, receiver) = attack(&Config { peers: vec![elsewhere], ..small() }, true);
    let counters = receiver.decoder().counters();
    assert_eq!((counters.repairs, counters.restored), (0, 0));
    assert!(counters.refused > 0);
}
