//! Devices on real sockets of the loopback interface, and queue pairs between them.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use longhaul_softnic::Config;
use longhaul_softnic_udp::{UdpConfig, UdpDevice, UdpPortChoice};
use longhaul_verbs::{
    Access, CompletionQueue, Gid, MemoryRegion, Mtu, PathAttributes, ProtectionDomain, QueuePair, QueuePairAttributes,
    QueuePairOptions, ReceiveRequest, SendOperation, SendRequest, Transport, WorkCompletion,
};

pub(crate) const PSN: u32 = 0xff_fff0;
/// 4.096 µs · 2^14 = 67 ms. Eight times that is half a second: a busy machine keeps a thread waiting for a quarter of one.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 7;

/// A device at a free port of a loopback address.
pub(crate) fn device(address: &str) -> UdpDevice {
    device_with(address, UdpConfig::default())
}

pub(crate) fn device_with(address: &str, mut udp: UdpConfig) -> UdpDevice {
    udp.udp_port = UdpPortChoice::Free;
    let seed = [address.len() as u8; 32];
    UdpDevice::open(Config::new(address, vec![address.parse().unwrap()], seed), udp).unwrap()
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) device: UdpDevice,
    pub(crate) address: IpAddr,
    pub(crate) domain: ProtectionDomain,
    pub(crate) completions: CompletionQueue,
    pub(crate) queue_pair: QueuePair,
    pub(crate) region: MemoryRegion,
}

impl End {
    pub(crate) fn new(device: &UdpDevice, transport: Transport, region_bytes: usize) -> End {
        let completions = device.verbs().create_completion_queue(1024).unwrap();
        End::with_completions(device, transport, region_bytes, completions)
    }

    /// With a completion queue made beforehand.
    pub(crate) fn with_completions(
        device: &UdpDevice,
        transport: Transport,
        region_bytes: usize,
        completions: CompletionQueue,
    ) -> End {
        let verbs = device.verbs();
        let domain = verbs.allocate_protection_domain().unwrap();
        let options = QueuePairOptions::default();
        let queue_pair = domain.create_queue_pair(transport, &completions, &completions, &options).unwrap();
        let region = domain.register_zeroed(region_bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let address = verbs.gid(1, 0).unwrap().gid.to_ip();
        End { device: device.clone(), address, domain, completions, queue_pair, region }
    }

    pub(crate) fn connect(&self, peer: &End, mtu: Mtu) {
        self.connect_with(peer, mtu, TIMEOUT, RETRIES);
    }

    /// With a timeout of 4.096 µs · 2^`timeout`, and this many retries.
    pub(crate) fn connect_with(&self, peer: &End, mtu: Mtu, timeout: u8, retries: u8) {
        let mut path = PathAttributes::to(Gid::from_ip(peer.address));
        path.udp_port = peer.device.udp_port();
        let mut receive = QueuePairAttributes::ready_to_receive(path, mtu, peer.queue_pair.number(), PSN);
        let mut send = QueuePairAttributes::ready_to_send(PSN);
        if self.queue_pair.transport() == Transport::ReliableConnection {
            receive = receive.reliable_receive(0, 12);
            send = send.reliable_send(timeout, retries, 7, 0);
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        self.queue_pair.modify(&QueuePairAttributes::init_connected(access)).unwrap();
        self.queue_pair.modify(&receive).unwrap();
        self.queue_pair.modify(&send).unwrap();
    }

    pub(crate) fn post_write(&self, id: u64, length: usize, peer: &End) {
        let entry = [self.region.entry(0..length)];
        let request = SendRequest::new(id, SendOperation::Write(peer.region.remote(0)), &entry);
        self.queue_pair.post_send(&[request]).unwrap();
    }

    /// Write a part of this end's region to an offset in the peer's.
    pub(crate) fn post_write_from(&self, id: u64, range: std::ops::Range<usize>, peer: &End, peer_offset: u64) {
        let entry = [self.region.entry(range)];
        let request = SendRequest::new(id, SendOperation::Write(peer.region.remote(peer_offset)), &entry);
        self.queue_pair.post_send(&[request]).unwrap();
    }

    pub(crate) fn post_send(&self, id: u64, length: usize) {
        let entry = [self.region.entry(0..length)];
        self.queue_pair.post_send(&[SendRequest::new(id, SendOperation::Send, &entry)]).unwrap();
    }

    pub(crate) fn post_receive(&self, id: u64, length: usize) {
        let entry = [self.region.entry(0..length)];
        self.queue_pair.post_receive(&[ReceiveRequest { id, local: &entry }]).unwrap();
    }

    /// Poll until there is a completion.
    pub(crate) fn wait(&self) -> WorkCompletion {
        self.wait_for(Duration::from_secs(5)).expect("a completion within five seconds")
    }

    pub(crate) fn wait_for(&self, patience: Duration) -> Option<WorkCompletion> {
        let start = Instant::now();
        while start.elapsed() < patience {
            if let Some(completion) = self.completions.poll_one().unwrap() {
                return Some(completion);
            }
        }
        None
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let counters = self.device.verbs().counters();
        counters.iter().find(|counter| counter.name == name).unwrap_or_else(|| panic!("no counter {name}")).value
    }
}

/// Two connected ends on two devices.
pub(crate) fn pair(transport: Transport, region_bytes: usize) -> (End, End) {
    pair_on(&device("127.0.0.1"), &device("127.0.0.2"), transport, region_bytes)
}

pub(crate) fn pair_on(one: &UdpDevice, two: &UdpDevice, transport: Transport, region_bytes: usize) -> (End, End) {
    let (one, two) = (End::new(one, transport, region_bytes), End::new(two, transport, region_bytes));
    one.connect(&two, Mtu::Bytes4096);
    two.connect(&one, Mtu::Bytes4096);
    (one, two)
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
