//! Receiving in place does no harm: whatever arrives at the port, only the unplaced bytes of a live WRITE may change before
//! the packets that belong there have come, never those of its last packet, and nothing at all once it has ended.
//!
//! The peer is a plain socket, so that every datagram, right or wrong, and every join of datagrams is the test's choice.

use crate::udp_ends;
use crate::udp_forger;

use longhaul_verbs::{Mtu, QueuePairAttributes, QueuePairState, Transport};
use longhaul_wire::{Opcode, Psn};
use rand_chacha::ChaCha12Rng;
use rand_core::Rng;
use udp_ends::{End, device};
use udp_forger::{Forger, Message, POISON, contents, counter, damage, noise, random, settle};

const FIRST_PSN: u32 = 0xff_fff0;
const PEER_NUMBER: u32 = 0x1234;
const OFFSET: usize = 3001;
const REGION_BYTES: usize = 100_000;
/// What the region holds before anything is written.
const OLD: u8 = 0x55;

/// A device with one queue pair whose peer is the test, and a WRITE of many packets to it.
struct Target {
    end: End,
    forger: Forger,
    message: Message,
    /// Datagrams sent so far.
    sent: u64,
    /// Packets of the message that have been sent as they should be.
    placed: usize,
}

impl Target {
    fn new(transport: Transport, mtu: Mtu) -> Target {
        let end = End::new(&device("127.0.8.1"), transport, REGION_BYTES);
        end.region.copy_in(0, &vec![OLD; REGION_BYTES]);
        let forger = Forger::new("127.0.8.2", &end.device);
        forger.connect(&end.queue_pair, PEER_NUMBER, FIRST_PSN, mtu);
        // The last packet is short, or as long as any other.
        let tail_bytes = if mtu == Mtu::Bytes4096 { 77 } else { 0 };
        let length = 19 * mtu.byte_count() as usize + tail_bytes;
        let message = Message::to(&end.queue_pair, FIRST_PSN, mtu, &end.region, OFFSET, &contents(1, length));
        Target { end, forger, message, sent: 0, placed: 0 }
    }

    fn send(&mut self, datagram: &[u8]) {
        self.forger.send(datagram);
        self.sent += 1;
    }

    /// The next packets of the message, as they should be, in one call.
    fn send_next(&mut self, count: usize) {
        let last = (self.placed + count).min(self.message.packets());
        if self.placed == 0 {
            // Longer than the others by a header.
            let datagram = self.message.datagram(&self.forger, 0);
            self.send(&datagram);
            self.placed = 1;
        }
        if self.placed == last {
            return;
        }
        let datagrams = self.message.joined(&self.forger, self.placed..last);
        self.forger.send_joined(&datagrams);
        self.sent += datagrams.len() as u64;
        self.placed = last;
    }

    /// Everything sent has been looked at, and what is placed, what is not the message's, and its last packet are as they
    /// must be.
    #[track_caller]
    fn check(&self) {
        settle(&self.end.device, self.sent);
        let (mtu_bytes, length) = (self.message.mtu_bytes, self.message.contents.len());
        let placed_bytes = (self.placed * mtu_bytes).min(length);
        let region = self.end.region.to_vec(0..REGION_BYTES);
        assert!(region[..OFFSET].iter().all(|&byte| byte == OLD), "before the message");
        assert!(region[OFFSET + length..].iter().all(|&byte| byte == OLD), "behind the message");
        let (now, wanted) = (&region[OFFSET..][..length], &self.message.contents);
        assert!(now[..placed_bytes] == wanted[..placed_bytes], "what is placed, {} packets", self.placed);
        if placed_bytes < length {
            let last = (self.message.packets() - 1) * mtu_bytes;
            assert!(now[last..].iter().all(|&byte| byte == OLD), "the last packet's bytes before it has come");
        }
    }

    /// Nothing in the region changes, whatever comes.
    #[track_caller]
    fn check_frozen(&mut self, random: &mut ChaCha12Rng) {
        settle(&self.end.device, self.sent);
        let before = self.end.region.to_vec(0..REGION_BYTES);
        for index in 1..self.message.packets() {
            let datagram = poisoned(&self.message, &self.forger, index);
            self.send(&datagram);
            let length = random.next_u32() as usize % 60_000;
            self.send(&noise(random, length.max(20)));
        }
        settle(&self.end.device, self.sent);
        assert!(self.end.region.to_vec(0..REGION_BYTES) == before, "bytes have changed");
    }
}

/// A packet of the message as it should be, but for its payload.
fn poisoned(message: &Message, forger: &Forger, index: usize) -> Vec<u8> {
    forger.datagram(&message.headers(index), &vec![POISON; message.payload(index).len()])
}

fn each_transport(test: impl Fn(&mut Target, &mut ChaCha12Rng)) {
    for transport in [Transport::ReliableConnection, Transport::UnreliableConnection] {
        for mtu in [Mtu::Bytes4096, Mtu::Bytes1024] {
            test(&mut Target::new(transport, mtu), &mut random(7));
        }
    }
}

#[test]
fn damaged_packets() {
    each_transport(|target, random| {
        while target.placed < target.message.packets() {
            target.send_next(1 + random.next_u32() as usize % 4);
            for _ in 0..20 {
                // The packets that are expected next, and some before and after them.
                let packets = target.message.packets();
                let index = (target.placed + random.next_u32() as usize % 6).saturating_sub(2).min(packets - 1);
                let mut datagram = poisoned(&target.message, &target.forger, index);
                damage(random, &mut datagram);
                target.send(&datagram);
            }
            target.check();
        }
        let good = target.message.packets() as u64;
        assert_eq!(counter(&target.end.device, "rx_icrc_encapsulated") + good, target.sent, "all damage was found");
    });
}

#[test]
fn a_damaged_packet_among_good_ones_that_arrive_joined() {
    let mtu = Mtu::Bytes1024;
    let mut target = Target::new(Transport::ReliableConnection, mtu);
    let mut random = random(8);
    target.send_next(1);
    while target.placed < target.message.packets() {
        let end = (target.placed + 1 + random.next_u32() as usize % 12).min(target.message.packets());
        let mut datagrams = target.message.joined(&target.forger, target.placed..end);
        let bad = random.next_u32() as usize % datagrams.len();
        damage(&mut random, &mut datagrams[bad]);
        target.forger.send_joined(&datagrams);
        target.sent += datagrams.len() as u64;
        // What follows a missing packet is dropped, and has to be sent again.
        target.placed += bad;
        target.check();
        target.send_next(1);
        target.check();
    }
}

#[test]
fn noise_of_every_length() {
    each_transport(|target, random| {
        for _ in 0..target.message.packets() {
            target.send_next(1);
            for _ in 0..10 {
                let length = match random.next_u32() % 3 {
                    0 => random.next_u32() as usize % 65_508,
                    1 => random.next_u32() as usize % 40,
                    // As long as the packet that is expected.
                    _ => target.message.mtu_bytes + 16,
                };
                let bytes = noise(random, length);
                target.send(&bytes);
            }
            target.check();
        }
    });
}

#[test]
fn forged_headers() {
    each_transport(|target, random| {
        let stranger = Forger::new("127.0.8.3", &target.end.device);
        let is_reliable = target.message.transport == Transport::ReliableConnection;
        while target.placed < target.message.packets() {
            target.send_next(1);
            let index = target.placed.min(target.message.packets() - 1);
            let payload = vec![POISON; target.message.payload(index).len()];
            for kind in 0..8 {
                let mut headers = target.message.headers(index);
                match kind {
                    0 => headers.bth.destination_qp ^= 1 << (random.next_u32() % 24),
                    1 => headers.bth.partition_key = 0x7abc,
                    2 => headers.bth.version = 1 + (random.next_u32() % 15) as u8,
                    3 => {
                        stranger.send(&stranger.datagram(&headers, &payload));
                        target.sent += 1;
                        continue;
                    }
                    // Of the other connected transport.
                    4 => headers.bth.opcode = if is_reliable { Opcode::UcWriteMiddle } else { Opcode::RcWriteMiddle },
                    5 => {
                        headers.bth.opcode =
                            if is_reliable { Opcode::UcSendMiddle } else { Opcode::RcReadResponseMiddle }
                    }
                    // Too old, or too early. A gap would end an unreliable message.
                    6 if is_reliable => headers.bth.psn = Psn::new(FIRST_PSN).back(random.next_u32() % 1000),
                    7 if is_reliable => headers.bth.psn = headers.bth.psn.add(1 + random.next_u32() % 0xffff),
                    _ => continue,
                }
                headers.reth = headers.reth.filter(|_| headers.bth.opcode.position().is_start());
                let datagram = target.forger.datagram(&headers, &payload);
                target.send(&datagram);
            }
            target.check();
        }
        let icrc_errors = counter(&target.end.device, "rx_icrc_encapsulated");
        assert_eq!(icrc_errors, 0, "the forgeries are well made");
        assert_eq!(target.end.queue_pair.state(), QueuePairState::ReadyToSend);
    });
}

#[test]
fn packets_of_another_queue_pair() {
    each_transport(|target, random| {
        // In another protection domain, with another peer, and with its own WRITE in flight: each guess is wrong.
        let other = End::new(&target.end.device, target.message.transport, REGION_BYTES);
        other.region.copy_in(0, &vec![OLD; REGION_BYTES]);
        let forger = Forger::new("127.0.8.4", &target.end.device);
        let mtu = if target.message.mtu_bytes == 4096 { Mtu::Bytes4096 } else { Mtu::Bytes1024 };
        forger.connect(&other.queue_pair, 0x4321, 5, mtu);
        let length = target.message.contents.len();
        let message = Message::to(&other.queue_pair, 5, mtu, &other.region, 40, &contents(2, length));
        let mut placed = 0;
        while placed < message.packets() {
            let count = (1 + random.next_u32() as usize % 3).min(message.packets() - placed);
            target.send_next(count);
            if placed == 0 {
                forger.send(&message.datagram(&forger, 0));
            }
            let rest = placed.max(1)..placed + count;
            if !rest.is_empty() {
                forger.send_joined(&message.joined(&forger, rest));
            }
            target.sent += count as u64;
            placed += count;
            target.check();
        }
        assert!(other.region.to_vec(40..40 + length) == message.contents, "the other queue pair's message");
        // With the key of memory that is not its own.
        let stolen = Message {
            psn: 5 + message.packets() as u32,
            key: target.message.key,
            address: target.message.address,
            contents: vec![POISON; length],
            ..message
        };
        for index in 0..stolen.packets() {
            forger.send(&stolen.datagram(&forger, index));
        }
        target.sent += stolen.packets() as u64;
        target.check();
        assert_eq!(counter(&target.end.device, "resp_remote_access_errors"), 1);
        let is_reliable = target.message.transport == Transport::ReliableConnection;
        let state = if is_reliable { QueuePairState::Error } else { QueuePairState::ReadyToSend };
        assert_eq!(other.queue_pair.state(), state);
    });
}

#[test]
fn nothing_is_expected_of_a_queue_pair_in_error() {
    each_transport(|target, random| {
        target.send_next(5);
        target.check();
        target.end.queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::Error)).unwrap();
        target.check_frozen(random);
        target.end.queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::Reset)).unwrap();
        target.check_frozen(random);
        // The same number again, from the beginning: the old message is forgotten.
        let mtu = if target.message.mtu_bytes == 4096 { Mtu::Bytes4096 } else { Mtu::Bytes1024 };
        target.forger.connect(&target.end.queue_pair, PEER_NUMBER, 77, mtu);
        target.check_frozen(random);
    });
}

#[test]
fn nothing_is_expected_of_a_queue_pair_that_is_gone() {
    each_transport(|target, random| {
        target.send_next(5);
        target.check();
        target.end.queue_pair.destroy().unwrap();
        target.check_frozen(random);
    });
}

#[test]
fn nothing_is_expected_behind_a_gap_of_an_unreliable_message() {
    for mtu in [Mtu::Bytes4096, Mtu::Bytes1024] {
        let mut target = Target::new(Transport::UnreliableConnection, mtu);
        target.send_next(5);
        target.check();
        let datagram = target.message.datagram(&target.forger, 7);
        target.send(&datagram);
        target.check_frozen(&mut random(9));
        assert_eq!(counter(&target.end.device, "dropped_messages"), 1);
    }
}

/// An unreliable connection carries out a first packet whatever its number, also a copy of one whose message is complete.
#[test]
fn nothing_is_expected_of_a_copy_of_a_complete_unreliable_message() {
    for mtu in [Mtu::Bytes4096, Mtu::Bytes1024] {
        let mut target = Target::new(Transport::UnreliableConnection, mtu);
        while target.placed < target.message.packets() {
            target.send_next(5);
        }
        target.check();
        let before = target.end.region.to_vec(0..REGION_BYTES);
        for copied in 1..4 {
            for index in 0..copied {
                let datagram = target.message.datagram(&target.forger, index);
                target.send(&datagram);
            }
            target.send(&noise(&mut random(3), 30_000));
        }
        settle(&target.end.device, target.sent);
        assert!(target.end.region.to_vec(0..REGION_BYTES) == before, "bytes of a complete message have changed");
    }
}

/// A peer that has died in mid-message is no reason to write down what everybody else sends.
#[test]
fn nothing_more_is_expected_after_something_else_has_come() {
    each_transport(|target, random| {
        target.send_next(5);
        target.check();
        target.send(&noise(random, 30_000));
        target.check();
        let before = target.end.region.to_vec(0..REGION_BYTES);
        for _ in 0..20 {
            target.send(&noise(random, 30_000));
        }
        settle(&target.end.device, target.sent);
        assert!(target.end.region.to_vec(0..REGION_BYTES) == before, "noise was written again");
        target.send_next(target.message.packets());
        target.check();
    });
}

#[test]
fn a_revoked_key_ends_what_is_expected() {
    each_transport(|target, random| {
        target.send_next(5);
        target.check();
        let empty = target.end.domain.register_zeroed(1, longhaul_verbs::Access::empty()).unwrap();
        let region = std::mem::replace(&mut target.end.region, empty);
        let buffer = region.into_buffer().unwrap();
        let before = buffer.clone();
        for index in 5..target.message.packets() {
            let bytes = noise(random, 30_000);
            target.send(&bytes);
            let datagram = target.message.datagram(&target.forger, index);
            target.send(&datagram);
        }
        settle(&target.end.device, target.sent);
        assert!(buffer == before, "memory has changed that its owner has taken back");
        assert_eq!(counter(&target.end.device, "resp_remote_access_errors"), 1);
    });
}
