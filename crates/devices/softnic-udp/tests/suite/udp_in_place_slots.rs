//! Single-packet WRITEs with immediate are received in place only where that cannot be seen: in a slot whose owner has said that it
//! is blank, behind everything that was written through it, and never in its last packet.
//!
//! The peer is a plain socket, so that every datagram, right or wrong, and every join of datagrams is the test's choice.

use crate::udp_ends;
use crate::udp_forger;

use longhaul_verbs::{Access, Mtu, ReceiveRequest, SlotBinding, SlottedRegion, Transport, WorkCompletion};
use longhaul_wire::{Headers, Opcode, Psn, reth};
use rand_chacha::ChaCha12Rng;
use rand_core::Rng;
use udp_ends::{End, device};
use udp_forger::{Forger, POISON, contents, counter, damage, noise, random, settle};

const FIRST_PSN: u32 = 0xff_fff0;
const REGION_BYTES: usize = 100_000;
/// Where the bound part begins, and its packets.
const OFFSET: usize = 3001;
const PACKETS: usize = 20;
const SLOT: u64 = 2;
/// What the region holds before anything is written.
const OLD: u8 = 0x55;

struct Target {
    end: End,
    forger: Forger,
    root: SlottedRegion,
    mtu_bytes: usize,
    contents: Vec<u8>,
    next_psn: Psn,
    /// Datagrams sent so far.
    sent: u64,
    /// Packets that have been sent as they should be.
    placed: Vec<bool>,
}

impl Target {
    fn new(mtu: Mtu, is_blank: bool) -> Target {
        let end = End::new(&device("127.0.9.1"), Transport::UnreliableConnection, REGION_BYTES);
        end.region.copy_in(0, &vec![OLD; REGION_BYTES]);
        let forger = Forger::new("127.0.9.2", &end.device);
        forger.connect(&end.queue_pair, 0x1234, FIRST_PSN, mtu);
        let root = end.domain.allocate_slotted_region(4, 1 << 20, Access::REMOTE_WRITE).unwrap();
        let mtu_bytes = mtu.byte_count() as usize;
        let length = (PACKETS * mtu_bytes) as u64;
        let address = end.region.address() + OFFSET as u64;
        let to = SlotBinding { region: &**end.region.raw(), address, length, is_blank };
        root.raw().bind_slot(SLOT, Some(to)).unwrap();
        for _ in 0..PACKETS {
            end.queue_pair.post_receive(&[ReceiveRequest { id: 0, local: &[] }]).unwrap();
        }
        let contents = contents(1, length as usize);
        let (next_psn, placed) = (Psn::new(FIRST_PSN), vec![false; PACKETS]);
        Target { end, forger, root, mtu_bytes, contents, next_psn, sent: 0, placed }
    }

    fn headers(&self, index: usize, psn: Psn) -> Headers {
        let mut headers = Headers::new(Opcode::UcWriteOnlyWithImmediate, self.end.queue_pair.number().value(), psn);
        let place = self.root.remote(SLOT, (index * self.mtu_bytes) as u64);
        headers.reth = Some(reth::Header {
            virtual_address: place.address,
            remote_key: place.key,
            dma_length: self.mtu_bytes as u32,
        });
        headers.immediate = Some(index as u32);
        headers
    }

    fn send(&mut self, datagram: &[u8]) {
        self.forger.send(datagram);
        self.sent += 1;
    }

    /// Packets as they should be, in one call.
    fn send_good(&mut self, indices: std::ops::Range<usize>) {
        let datagram = |(place, index): (usize, usize)| {
            let payload = &self.contents[index * self.mtu_bytes..][..self.mtu_bytes];
            self.forger.datagram_at(place as u16, &self.headers(index, self.next_psn.add(place as u32)), payload)
        };
        let datagrams: Vec<_> = indices.clone().enumerate().map(datagram).collect();
        self.forger.send_joined(&datagrams);
        self.sent += datagrams.len() as u64;
        self.next_psn = self.next_psn.add(datagrams.len() as u32);
        self.placed[indices].fill(true);
    }

    /// A packet with a wrong payload, and something about it that must keep it out.
    fn send_forged(&mut self, random: &mut ChaCha12Rng, index: usize) {
        let mut headers = self.headers(index, self.next_psn);
        let payload = vec![POISON; self.mtu_bytes];
        let mut is_damaged = false;
        match random.next_u32() % 5 {
            0 => headers.bth.destination_qp ^= 1,
            1 => headers.bth.partition_key = 0x7abc,
            2 => headers.reth = headers.reth.map(|reth| reth::Header { remote_key: reth.remote_key ^ 1, ..reth }),
            // Longer than it is.
            3 => headers.reth = headers.reth.map(|reth| reth::Header { dma_length: reth.dma_length + 1, ..reth }),
            _ => is_damaged = true,
        }
        let mut datagram = self.forger.datagram(&headers, &payload);
        if is_damaged {
            damage(random, &mut datagram);
        }
        self.send(&datagram);
        // A packet that was refused has used its number.
        self.next_psn = self.next_psn.next();
    }

    /// What is placed, what is not the slot's, and its last packet are as they must be.
    #[track_caller]
    fn check(&self) {
        settle(&self.end.device, self.sent);
        let region = self.end.region.to_vec(0..REGION_BYTES);
        let length = self.contents.len();
        assert!(region[..OFFSET].iter().all(|&byte| byte == OLD), "before the slot");
        assert!(region[OFFSET + length..].iter().all(|&byte| byte == OLD), "behind the slot");
        for (index, _) in self.placed.iter().enumerate().filter(|(_, placed)| **placed) {
            let range = index * self.mtu_bytes..(index + 1) * self.mtu_bytes;
            assert!(region[OFFSET..][range.clone()] == self.contents[range], "packet {index}, which has been placed");
        }
        if !self.placed[PACKETS - 1] {
            let last = &region[OFFSET..][(PACKETS - 1) * self.mtu_bytes..length];
            assert!(last.iter().all(|&byte| byte == OLD), "the last packet before it has come");
        }
    }

    fn unplaced_bytes(&self) -> Vec<u8> {
        let packets = self.placed.iter().enumerate().filter(|(_, placed)| !**placed);
        packets.flat_map(|(index, _)| self.end.region.to_vec(self.range_of(index))).collect()
    }

    fn range_of(&self, index: usize) -> std::ops::Range<usize> {
        OFFSET + index * self.mtu_bytes..OFFSET + (index + 1) * self.mtu_bytes
    }

    fn completions(&self) -> usize {
        let mut room = [WorkCompletion::default(); 64];
        self.end.completions.poll(&mut room).unwrap()
    }
}

fn each_size(is_blank: bool, test: impl Fn(&mut Target, &mut ChaCha12Rng)) {
    for (seed, mtu) in [Mtu::Bytes4096, Mtu::Bytes1024].into_iter().enumerate() {
        test(&mut Target::new(mtu, is_blank), &mut random(seed as u64));
    }
}

#[test]
fn nothing_that_was_placed_changes_whatever_comes_between() {
    each_size(true, |target, random| {
        let mut next = 0;
        while next < PACKETS {
            // One is left out now and then, and comes last.
            next += usize::from(random.next_u32().is_multiple_of(4));
            let end = (next + 1 + random.next_u32() as usize % 4).min(PACKETS);
            if next < end {
                target.send_good(next..end);
            }
            next = end;
            for _ in 0..5 {
                let index = (next + random.next_u32() as usize % 5).saturating_sub(2).min(PACKETS - 1);
                match random.next_u32() % 2 {
                    0 => target.send_forged(random, index),
                    _ => {
                        let length = 20 + random.next_u32() as usize % 60_000;
                        target.send(&noise(random, length));
                    }
                }
                target.check();
            }
        }
        let left: Vec<usize> = (0..PACKETS).filter(|index| !target.placed[*index]).collect();
        for index in left {
            target.send_good(index..index + 1);
            target.check();
        }
        assert_eq!(target.completions(), PACKETS, "each was told once");
        assert_eq!(counter(&target.end.device, "out_of_buffer"), 0);
    });
}

#[test]
fn packets_that_arrive_joined_and_with_one_missing() {
    each_size(true, |target, _| {
        target.send_good(0..3);
        target.send_good(3..9);
        target.check();
        // Of 9 to 14, which the device expects, 11 is lost.
        let next = target.next_psn;
        target.send_good(9..11);
        target.next_psn = next.add(3);
        target.send_good(12..15);
        target.check();
        target.send_good(15..PACKETS);
        target.send_good(11..12);
        target.check();
        assert_eq!(target.completions(), PACKETS);
    });
}

/// The test of the tests: what comes is written down before it is known, where nobody looks, and nowhere else.
#[test]
fn only_a_blank_slot_is_guessed_for() {
    for is_blank in [true, false] {
        each_size(is_blank, |target, random| {
            target.send_good(0..4);
            target.check();
            target.send(&noise(random, 30_000));
            target.check();
            let is_untouched = target.unplaced_bytes().iter().all(|&byte| byte == OLD);
            assert_eq!(is_untouched, !is_blank, "bytes that no packet has come for");
            // Once: noise is no reason to go on.
            let before = target.unplaced_bytes();
            target.send(&noise(random, 30_000));
            target.check();
            assert!(target.unplaced_bytes() == before);
        });
    }
}

#[test]
fn nothing_is_expected_below_what_was_written() {
    each_size(true, |target, random| {
        target.send_good(0..2);
        target.send_good(7..9);
        target.check();
        // Behind packet 2 lie bytes that may have been written.
        target.send_good(2..3);
        target.check();
        let before = target.unplaced_bytes();
        target.send(&noise(random, 30_000));
        target.check();
        assert!(target.unplaced_bytes() == before);
    });
}

#[test]
fn a_slot_that_was_unbound_ends_what_is_expected() {
    each_size(true, |target, random| {
        target.send_good(0..4);
        target.check();
        target.root.unbind(SLOT).unwrap();
        let before = target.end.region.to_vec(0..REGION_BYTES);
        for index in 4..PACKETS {
            target.send(&noise(random, 30_000));
            target.send_good(index..index + 1);
        }
        settle(&target.end.device, target.sent);
        assert!(
            target.end.region.to_vec(0..REGION_BYTES) == before,
            "memory has changed that its owner has taken back"
        );
    });
}
