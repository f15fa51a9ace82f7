//! Packets into a device that has queue pairs of every transport in use.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use longhaul_time::Instant;
use longhaul_verbs::{
    Access, CompletionQueue, Gid, MemoryRegion, Mtu, PathAttributes, QueuePair, QueuePairAttributes, QueuePairNumber,
    QueuePairOptions, QueuePairState, ReceiveRequest, RemoteMemory, SendOperation, SendRequest, Transport,
};
use longhaul_wire::{Headers, Opcode, Psn, Syndrome, aeth, atomic_ack, atomic_eth, deth, reth};

use super::choices::Choices;
use super::{OPERATIONS_MAX, arrive, datagram, poll};
use crate::{Config, Device};

const OURS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const MTU: Mtu = Mtu::Bytes256;
const REGION_BYTES: usize = 4096;
const FIRST_PSN: u32 = 0xff_fff0;
const PEER_QUEUE_PAIR: u32 = 0x77;
const QUEUE_KEY: u32 = 0x1234;
const GUARD: u8 = 0x5a;
const ALL_RIGHTS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Whatever comes: nothing panics, every request completes at most once, bytes that peers have no right to stay as they
/// are, and a packet is never answered by a flood.
pub fn nic(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let mut target = Target::new();
    for _ in 0..OPERATIONS_MAX {
        if choices.is_over() {
            break;
        }
        match choices.u8() % 8 {
            0 => target.now += choices.time(),
            1 => target.post_send(&mut choices),
            2 => target.post_receive(&mut choices),
            3 => arrive(&target.device, PEER, OURS, choices.bytes(80), target.now),
            _ => target.packet(&mut choices),
        }
        target.settle();
    }
}

struct Target {
    device: Device,
    completions: CompletionQueue,
    queue_pairs: Vec<QueuePair>,
    /// Peers may do everything there.
    open: MemoryRegion,
    /// And nothing here.
    guard: MemoryRegion,
    /// Posted and not completed.
    posted: BTreeSet<u64>,
    next_id: u64,
    /// What the peer sends next, and what it was sent last, of each queue pair.
    peer_psn: [u32; 3],
    seen_psn: [u32; 3],
    now: Instant,
}

impl Target {
    fn new() -> Self {
        let device = Device::new(Config::new("fuzzed", vec![OURS], [7; 32]), || ());
        let verbs = device.verbs();
        let domain = verbs.allocate_protection_domain().expect("a domain");
        let completions = verbs.create_completion_queue(4096).expect("a queue");
        let path = PathAttributes::to(Gid::from_ip(PEER));
        let connected = |transport| {
            let queue_pair = domain
                .create_queue_pair(transport, &completions, &completions, &QueuePairOptions::default())
                .expect("a queue pair");
            let mut receive =
                QueuePairAttributes::ready_to_receive(path, MTU, QueuePairNumber::new(PEER_QUEUE_PAIR), FIRST_PSN);
            let mut send = QueuePairAttributes::ready_to_send(FIRST_PSN);
            let init = match transport {
                Transport::UnreliableDatagram => {
                    receive = QueuePairAttributes::to_state(QueuePairState::ReadyToReceive);
                    QueuePairAttributes::init_datagram(QUEUE_KEY)
                }
                _ => QueuePairAttributes::init_connected(ALL_RIGHTS),
            };
            if transport == Transport::ReliableConnection {
                receive = receive.reliable_receive(4, 12);
                send = send.reliable_send(8, 3, 2, 4);
            }
            for attributes in [init, receive, send] {
                queue_pair.modify(&attributes).expect("an ordinary way to ready-to-send");
            }
            queue_pair
        };
        let transports =
            [Transport::ReliableConnection, Transport::UnreliableConnection, Transport::UnreliableDatagram];
        let queue_pairs = transports.map(connected).into();
        let open = domain.register_zeroed(REGION_BYTES, ALL_RIGHTS).expect("memory");
        let guard = domain.register(vec![GUARD; 64], Access::LOCAL_WRITE).expect("memory");
        let first = [FIRST_PSN; 3];
        let (posted, now) = (BTreeSet::new(), Instant::from_nanos(1));
        Target {
            device,
            completions,
            queue_pairs,
            open,
            guard,
            posted,
            next_id: 0,
            peer_psn: first,
            seen_psn: first,
            now,
        }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.posted.insert(self.next_id);
        self.next_id
    }

    fn post_send(&mut self, choices: &mut Choices<'_>) {
        let id = self.new_id();
        let length = usize::from(choices.u16()) % REGION_BYTES;
        let remote = RemoteMemory { address: 0x1000, key: 0x1000 };
        let (operation, length) = match choices.u8() % 6 {
            0 => (SendOperation::Send, length),
            1 => (SendOperation::SendWithImmediate(9), length),
            2 => (SendOperation::Write(remote), length),
            3 => (SendOperation::Read(remote), length),
            4 => (SendOperation::FetchAndAdd { remote, add: 1 }, 8),
            _ => (SendOperation::CompareAndSwap { remote, compare: 0, swap: 1 }, 8),
        };
        let entry = [self.open.entry(0..length)];
        let queue_pair = &self.queue_pairs[usize::from(choices.u8()) % 2];
        // Full, failed, or not on this transport: ordinary answers.
        if queue_pair.post_send(&[SendRequest::new(id, operation, &entry)]).is_err() {
            self.posted.remove(&id);
        }
    }

    fn post_receive(&mut self, choices: &mut Choices<'_>) {
        let id = self.new_id();
        let entry = [self.open.entry(0..usize::from(choices.u16()) % REGION_BYTES)];
        let queue_pair = &self.queue_pairs[usize::from(choices.u8()) % 3];
        if queue_pair.post_receive(&[ReceiveRequest { id, local: &entry }]).is_err() {
            self.posted.remove(&id);
        }
    }

    /// A packet that is right but for what the choices make wrong.
    fn packet(&mut self, choices: &mut Choices<'_>) {
        let opcode = choices.one_of(Opcode::ALL);
        let index = match opcode.transport() {
            longhaul_wire::Transport::UnreliableConnection => 1,
            longhaul_wire::Transport::UnreliableDatagram => 2,
            _ => 0,
        };
        let index = if choices.u8() == 0 { usize::from(choices.u8()) % 3 } else { index };
        let right = if opcode.is_response() { self.seen_psn[index] } else { self.peer_psn[index] };
        let psn = choices.number(right.into()) as u32 & 0xff_ffff;
        if !opcode.is_response() && psn == right {
            self.peer_psn[index] = (right + 1) & 0xff_ffff;
        }
        let mut headers = Headers::new(opcode, self.queue_pairs[index].number().value(), Psn::new(psn));
        headers.bth.ack_request = choices.flag();
        let address = choices.number(self.open.address());
        let key = if choices.u8() == 0 { self.guard.remote_key() } else { self.open.remote_key() };
        if opcode.has_deth() {
            headers.deth = Some(deth::Header::new(choices.number(QUEUE_KEY.into()) as u32, PEER_QUEUE_PAIR));
        }
        let payload_bytes = usize::from(choices.u16()) % 300;
        if opcode.has_reth() {
            let dma_length = choices.number(payload_bytes as u64) as u32;
            headers.reth = Some(reth::Header { virtual_address: address, remote_key: key, dma_length });
        }
        if opcode.has_atomic_eth() {
            let (swap_or_add, compare) = (choices.number(1), choices.number(0));
            headers.atomic =
                Some(atomic_eth::Header { virtual_address: address, remote_key: key, swap_or_add, compare });
        }
        if opcode.has_aeth() {
            let message_sequence_number = choices.number(1) as u32 & 0xff_ffff;
            headers.aeth = Some(aeth::Header { syndrome: Syndrome::from_byte(choices.u8()), message_sequence_number });
        }
        headers.atomic_ack = opcode.has_atomic_ack().then(|| atomic_ack::Header { original: choices.number(0) });
        headers.immediate = opcode.has_immediate().then(|| choices.u32());
        headers.invalidate = opcode.has_invalidate().then(|| choices.number(key.into()) as u32);
        let source = if choices.u8() == 0 { IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3)) } else { PEER };
        arrive(&self.device, source, OURS, &datagram(headers, &vec![0xc3; payload_bytes]), self.now);
    }

    fn settle(&mut self) {
        for bytes in poll(&self.device, self.now) {
            let (headers, _) = Headers::parse_prefix(&bytes).expect("a device sends well-formed packets");
            if !headers.bth.opcode.is_response() && headers.bth.destination_qp == PEER_QUEUE_PAIR {
                let index =
                    usize::from(headers.bth.opcode.transport() == longhaul_wire::Transport::UnreliableConnection);
                self.seen_psn[index] = headers.bth.psn.value();
            }
        }
        while let Some(completion) = self.completions.poll_one().expect("the queue has room for all") {
            assert!(self.posted.remove(&completion.id), "request {} completes twice", completion.id);
        }
        assert!(self.guard.to_vec(0..64).iter().all(|byte| *byte == GUARD), "bytes that peers have no right to");
        if let Some(deadline) = self.device.nic().next_deadline() {
            assert!(
                deadline > self.now || self.device.nic().has_output(),
                "a deadline that has passed and does nothing"
            );
        }
    }
}
