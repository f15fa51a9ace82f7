//! A plain UDP socket that speaks RoCEv2 by hand: for datagrams that no device would send.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::io::IoSlice;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use longhaul_softnic_udp::UdpDevice;
use longhaul_verbs::{
    Access, Gid, MemoryRegion, Mtu, PathAttributes, QueuePair, QueuePairAttributes, QueuePairNumber, Transport,
};
use longhaul_wire::{Headers, IcrcScope, Opcode, Psn, icrc, packet, reth};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg};
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

/// In no message of these tests: where it is found, something forged was written.
pub(crate) const POISON: u8 = 0xee;

/// A socket at the address of a peer, or of somebody else.
pub(crate) struct Forger {
    socket: UdpSocket,
    local: SocketAddr,
    target: SocketAddr,
}

impl Forger {
    /// At a free port of `address`, against a device that has one address.
    pub(crate) fn new(address: &str, device: &UdpDevice) -> Forger {
        Forger::against(address, SocketAddr::new(device.verbs().gid(1, 0).unwrap().gid.to_ip(), device.udp_port()))
    }

    /// The same against a device of any process.
    pub(crate) fn against(address: &str, target: SocketAddr) -> Forger {
        let socket = UdpSocket::bind((address, 0)).unwrap();
        Forger { local: socket.local_addr().unwrap(), socket, target }
    }

    /// A datagram as it should be: the `index`-th of one call. (The kernel gives it that identification.)
    pub(crate) fn datagram_at(&self, index: u16, headers: &Headers, payload: &[u8]) -> Vec<u8> {
        let scope = IcrcScope::between(self.local, self.target).unwrap().with_identification(index);
        let mut bytes = vec![0; packet::datagram_bytes(packet::MAX_HEADER_BYTES, payload.len())];
        let length = packet::write_datagram(headers, payload, &scope, &mut bytes).unwrap();
        bytes.truncate(length);
        bytes
    }

    pub(crate) fn datagram(&self, headers: &Headers, payload: &[u8]) -> Vec<u8> {
        self.datagram_at(0, headers, payload)
    }

    /// Make the ICRC of a datagram that was changed right again.
    pub(crate) fn seal(&self, datagram: &mut [u8]) {
        icrc::write(&IcrcScope::between(self.local, self.target).unwrap(), datagram);
    }

    pub(crate) fn send(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, self.target).unwrap();
    }

    /// In one call, joined at the receiver if it joins: all of one length, but the last may be shorter.
    #[track_caller]
    pub(crate) fn send_joined(&self, datagrams: &[Vec<u8>]) {
        let SocketAddr::V4(target) = self.target else { unreachable!("these tests use IPv4") };
        let parts: Vec<_> = datagrams.iter().map(|datagram| IoSlice::new(datagram)).collect();
        let segment_bytes = datagrams[0].len() as u16;
        let (_, but_last) = datagrams.split_last().unwrap();
        assert!(but_last.iter().all(|datagram| datagram.len() == segment_bytes.into()), "all of one length");
        let control = [ControlMessage::UdpGsoSegments(&segment_bytes)];
        let target = SockaddrIn::from(target);
        sendmsg(self.socket.as_raw_fd(), &parts, &control, MsgFlags::empty(), Some(&target)).unwrap();
    }

    /// Make this the peer of a queue pair, with the number `number` and first sequence number `psn` in both directions.
    pub(crate) fn connect(&self, queue_pair: &QueuePair, number: u32, psn: u32, mtu: Mtu) {
        let mut path = PathAttributes::to(Gid::from_ip(self.local.ip()));
        path.udp_port = self.local.port();
        let peer = QueuePairNumber::new(number);
        let mut receive = QueuePairAttributes::ready_to_receive(path, mtu, peer, psn);
        let mut send = QueuePairAttributes::ready_to_send(psn);
        if queue_pair.transport() == Transport::ReliableConnection {
            receive = receive.reliable_receive(0, 12);
            send = send.reliable_send(14, 3, 7, 0);
        }
        queue_pair.modify(&QueuePairAttributes::init_connected(Access::LOCAL_WRITE | Access::REMOTE_WRITE)).unwrap();
        queue_pair.modify(&receive).unwrap();
        queue_pair.modify(&send).unwrap();
    }
}

/// The packets of one WRITE.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) transport: Transport,
    pub(crate) queue_pair: u32,
    pub(crate) psn: u32,
    pub(crate) mtu_bytes: usize,
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) contents: Vec<u8>,
}

impl Message {
    pub(crate) fn to(
        queue_pair: &QueuePair,
        psn: u32,
        mtu: Mtu,
        region: &MemoryRegion,
        offset: usize,
        contents: &[u8],
    ) -> Message {
        Message {
            transport: queue_pair.transport(),
            queue_pair: queue_pair.number().value(),
            psn,
            mtu_bytes: mtu.byte_count() as usize,
            address: region.address() + offset as u64,
            key: region.remote_key(),
            contents: contents.to_vec(),
        }
    }

    pub(crate) fn packets(&self) -> usize {
        self.contents.len().div_ceil(self.mtu_bytes)
    }

    pub(crate) fn headers(&self, index: usize) -> Headers {
        use Opcode::*;
        let is_reliable = self.transport == Transport::ReliableConnection;
        let opcode = match (index, index + 1 == self.packets()) {
            (0, true) => [UcWriteOnly, RcWriteOnly],
            (0, false) => [UcWriteFirst, RcWriteFirst],
            (_, false) => [UcWriteMiddle, RcWriteMiddle],
            (_, true) => [UcWriteLast, RcWriteLast],
        }[usize::from(is_reliable)];
        let mut headers = Headers::new(opcode, self.queue_pair, Psn::new(self.psn).add(index as u32));
        if index == 0 {
            headers.reth = Some(reth::Header {
                virtual_address: self.address,
                remote_key: self.key,
                dma_length: self.contents.len() as u32,
            });
        }
        headers
    }

    pub(crate) fn payload(&self, index: usize) -> &[u8] {
        let start = index * self.mtu_bytes;
        &self.contents[start..self.contents.len().min(start + self.mtu_bytes)]
    }

    pub(crate) fn datagram(&self, forger: &Forger, index: usize) -> Vec<u8> {
        forger.datagram(&self.headers(index), self.payload(index))
    }

    /// Some of its packets in one call.
    pub(crate) fn joined(&self, forger: &Forger, indices: std::ops::Range<usize>) -> Vec<Vec<u8>> {
        let datagram = |(place, index)| forger.datagram_at(place as u16, &self.headers(index), self.payload(index));
        indices.enumerate().map(datagram).collect()
    }
}

/// Change a burst of one to three bits, so that any check of the ICRC, even one that does not know the identification,
/// must notice. The congestion bits are spared: they are not covered.
pub(crate) fn damage(random: &mut ChaCha12Rng, datagram: &mut [u8]) {
    let bits = datagram.len() * 8 - 2;
    let (first, pattern) = loop {
        let first = random.next_u32() as usize % bits;
        let pattern = [0b1, 0b11, 0b101, 0b111][random.next_u32() as usize % 4];
        if !(first..first + 3).any(|bit| bit / 8 == 4) {
            break (first, pattern);
        }
    };
    for offset in 0..3 {
        if pattern >> offset & 1 == 1 {
            let bit = first + offset;
            datagram[bit / 8] ^= 0x80 >> (bit % 8);
        }
    }
}

pub(crate) fn random(seed: u64) -> ChaCha12Rng {
    ChaCha12Rng::seed_from_u64(seed)
}

pub(crate) fn noise(random: &mut ChaCha12Rng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill_bytes(&mut bytes);
    bytes
}

/// Every byte is below 0x80, so that poison is never part of it.
pub(crate) fn contents(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = noise(&mut random(seed), length);
    for byte in &mut bytes {
        *byte &= 0x7f;
    }
    bytes
}

pub(crate) fn counter(device: &UdpDevice, name: &str) -> u64 {
    let counters = device.verbs().counters();
    counters.iter().find(|counter| counter.name == name).unwrap_or_else(|| panic!("no counter {name}")).value
}

/// All datagrams that a device has seen, good or bad.
pub(crate) fn seen(device: &UdpDevice) -> u64 {
    let counters = device.verbs().counters();
    let names = ["rcvd_pkts", "rx_malformed", "rx_icrc_encapsulated"];
    counters.iter().filter(|counter| names.contains(&counter.name.as_ref())).map(|counter| counter.value).sum()
}

/// Wait until a device has seen this many datagrams; it must not have seen more.
#[track_caller]
pub(crate) fn settle(device: &UdpDevice, count: u64) {
    wait_until("all datagrams have been looked at", || seen(device) >= count);
    assert_eq!(seen(device), count, "datagrams seen");
}

#[track_caller]
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited 20 seconds until {what}");
        std::thread::sleep(Duration::from_micros(50));
    }
}
