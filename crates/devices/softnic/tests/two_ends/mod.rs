//! Two software RNICs and a wire of which the test decides everything: what arrives, in which order, and when.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::net::IpAddr;

use longhaul_softnic::{Config, Counters, Device, Outgoing, Received, Route, TransmitSink};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    Access, CompletionQueue, MemoryRegion, Mtu, PathAttributes, ProtectionDomain, QueuePair, QueuePairAttributes,
    QueuePairOptions, ReceiveRequest, SendOperation, SendRequest, Transport, WorkCompletion,
};
use longhaul_wire::{Headers, Opcode, Packet};

/// A datagram on the test's wire.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) route: Route,
    pub(crate) bytes: Vec<u8>,
    pub(crate) elided_bytes: u32,
}

impl Datagram {
    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes).expect("a device sends well-formed packets")
    }

    pub(crate) fn opcode(&self) -> Opcode {
        self.packet().headers.bth.opcode
    }

    pub(crate) fn psn(&self) -> u32 {
        self.packet().headers.bth.psn.value()
    }
}

/// Keeps what a device sends.
#[derive(Default)]
pub(crate) struct Outbox(pub(crate) Vec<Datagram>);

impl TransmitSink for Outbox {
    fn has_room(&self) -> bool {
        true
    }

    fn transmit(&mut self, route: &Route, datagram: &Outgoing<'_>) {
        let mut bytes = vec![0xee; datagram.len()];
        datagram.write_to(&mut bytes);
        self.0.push(Datagram { route: *route, bytes, elided_bytes: datagram.elided_bytes() });
    }
}

/// One end.
pub(crate) struct End {
    pub(crate) device: Device,
    pub(crate) domain: ProtectionDomain,
    pub(crate) completions: CompletionQueue,
    pub(crate) queue_pair: QueuePair,
    pub(crate) region: MemoryRegion,
}

pub(crate) const MTU: Mtu = Mtu::Bytes256;
pub(crate) const REGION_BYTES: usize = 64 << 10;
const ALL_RIGHTS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

impl End {
    fn new(address: &str, transport: Transport, change: impl FnOnce(&mut Config)) -> End {
        let mut config = Config::new(address, vec![address.parse().unwrap()], [address.len() as u8; 32]);
        change(&mut config);
        let device = Device::new(config, || ());
        let verbs = device.verbs();
        let domain = verbs.allocate_protection_domain().unwrap();
        let completions = verbs.create_completion_queue(1024).unwrap();
        let queue_pair =
            domain.create_queue_pair(transport, &completions, &completions, &QueuePairOptions::default()).unwrap();
        let region = domain.register_zeroed(REGION_BYTES, ALL_RIGHTS).unwrap();
        End { device, domain, completions, queue_pair, region }
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.device.nic().config().addresses[0]
    }

    /// Have the device send what it has to send now.
    pub(crate) fn poll(&self, now: Instant) -> Vec<Datagram> {
        let mut outbox = Outbox::default();
        self.device.nic().poll(now, &mut outbox);
        outbox.0
    }

    pub(crate) fn receive(&self, datagram: &Datagram, now: Instant) {
        self.receive_marked(datagram, now, datagram.route.traffic_class);
    }

    pub(crate) fn receive_marked(&self, datagram: &Datagram, now: Instant, traffic_class: u8) {
        receive_marked_on(&self.device, datagram, now, traffic_class);
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.device.nic().next_deadline()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.device.nic().counters()
    }

    pub(crate) fn completions(&self) -> Vec<WorkCompletion> {
        std::iter::from_fn(|| self.completions.poll_one().unwrap()).collect()
    }

    /// Post a signalled WRITE of `length` bytes at the start of the peer's region.
    pub(crate) fn post_write(&self, id: u64, length: usize, peer: &End) {
        let entry = [self.region.entry(0..length)];
        let request = SendRequest::new(id, SendOperation::Write(peer.region.remote(0)), &entry);
        self.queue_pair.post_send(&[request]).unwrap();
    }

    pub(crate) fn post_send(&self, id: u64, length: usize) {
        let entry = [self.region.entry(0..length)];
        self.queue_pair.post_send(&[SendRequest::new(id, SendOperation::Send, &entry)]).unwrap();
    }

    /// Post a signalled READ of `length` bytes from the peer's region, from the same place there as here.
    pub(crate) fn post_read(&self, id: u64, place: usize, length: usize, peer: &End) {
        let entry = [self.region.entry(place..place + length)];
        let request = SendRequest::new(id, SendOperation::Read(peer.region.remote(place as u64)), &entry);
        self.queue_pair.post_send(&[request]).unwrap();
    }

    /// Post a signalled fetch-and-add on the peer's word `word`; the old value goes to our word `result`.
    pub(crate) fn post_add(&self, id: u64, result: usize, word: usize, add: u64, peer: &End) {
        let entry = [self.region.entry(8 * result..8 * result + 8)];
        let operation = SendOperation::FetchAndAdd { remote: peer.region.remote(8 * word as u64), add };
        self.queue_pair.post_send(&[SendRequest::new(id, operation, &entry)]).unwrap();
    }

    /// The same with compare-and-swap.
    pub(crate) fn post_swap(&self, id: u64, result: usize, word: usize, (compare, swap): (u64, u64), peer: &End) {
        let entry = [self.region.entry(8 * result..8 * result + 8)];
        let remote = peer.region.remote(8 * word as u64);
        let operation = SendOperation::CompareAndSwap { remote, compare, swap };
        self.queue_pair.post_send(&[SendRequest::new(id, operation, &entry)]).unwrap();
    }

    pub(crate) fn word(&self, index: usize) -> u64 {
        let mut bytes = [0; 8];
        self.region.copy_out(8 * index, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    pub(crate) fn set_word(&self, index: usize, value: u64) {
        self.region.copy_in(8 * index, &value.to_ne_bytes());
    }

    /// Ids of all completions since, which must be successes.
    pub(crate) fn done(&self) -> Vec<u64> {
        let completions = self.completions();
        assert!(completions.iter().all(WorkCompletion::is_success), "{completions:?}");
        completions.iter().map(|done| done.id).collect()
    }

    pub(crate) fn post_receive(&self, id: u64, length: usize) {
        let entry = [self.region.entry(0..length)];
        self.queue_pair.post_receive(&[ReceiveRequest { id, local: &entry }]).unwrap();
    }
}

/// Reproducible chances, from a seed that is not 0.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn chance(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// One packet in `rarity` is lost, as many are repeated, as many are late.
    pub(crate) fn fate(&mut self, rarity: u64) -> Fate {
        match self.chance() % (3 * rarity) {
            0..3 => Fate::Lost,
            3..6 => Fate::Repeated,
            6..9 => Fate::Late,
            _ => Fate::Arrives,
        }
    }
}

/// What the wire does to a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    Arrives,
    /// Arrives, and once more after what is sent next.
    Repeated,
    /// Arrives after what is sent next.
    Late,
}

/// Carries packets between two ends until neither has anything to send or to wait for. `arrives` is asked about each packet, in
/// the order in which they are sent. Returns the time of the end.
pub(crate) fn carry(ends: (&End, &End), from: Instant, mut arrives: impl FnMut(&Datagram) -> bool) -> Instant {
    carry_badly(ends, from, |datagram| if arrives(datagram) { Fate::Arrives } else { Fate::Lost })
}

/// The same over a wire that also repeats and reorders.
pub(crate) fn carry_badly(ends: (&End, &End), from: Instant, mut fate: impl FnMut(&Datagram) -> Fate) -> Instant {
    let (one, two) = ends;
    let mut now = from;
    let mut held = [Vec::new(), Vec::new()];
    for _ in 0..100_000 {
        let mut is_quiet = true;
        for (index, (sender, receiver)) in [(one, two), (two, one)].into_iter().enumerate() {
            let before = std::mem::take(&mut held[index]);
            for datagram in sender.poll(now) {
                is_quiet = false;
                let fate = fate(&datagram);
                if matches!(fate, Fate::Arrives | Fate::Repeated) {
                    receiver.receive(&datagram, now);
                }
                if matches!(fate, Fate::Late | Fate::Repeated) {
                    held[index].push(datagram);
                }
            }
            for datagram in before {
                is_quiet = false;
                receiver.receive(&datagram, now);
            }
        }
        if is_quiet && held.iter().all(Vec::is_empty) {
            match one.next_deadline().into_iter().chain(two.next_deadline()).min() {
                Some(deadline) => now = deadline.max(now),
                None => return now,
            }
        }
    }
    panic!("two ends that never come to rest");
}

/// A datagram arrives at a device.
pub(crate) fn receive_on(device: &Device, datagram: &Datagram, now: Instant) {
    receive_marked_on(device, datagram, now, datagram.route.traffic_class);
}

fn receive_marked_on(device: &Device, datagram: &Datagram, now: Instant, traffic_class: u8) {
    let received = Received {
        source: datagram.route.source,
        source_port: datagram.route.source_port,
        destination: datagram.route.destination,
        traffic_class,
        hop_limit: 63,
        datagram: &datagram.bytes,
        elided_bytes: datagram.elided_bytes,
    };
    device.nic().handle(&received, now);
}

/// Attributes of a connection that tests change.
#[derive(Clone)]
pub(crate) struct Reliability {
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) receiver_not_ready_retry: u8,
    pub(crate) min_receiver_not_ready_timer: u8,
    pub(crate) read_atomic: u8,
    pub(crate) destination_read_atomic: u8,
}

impl Default for Reliability {
    fn default() -> Self {
        Reliability {
            timeout: 8,
            retry_count: 3,
            receiver_not_ready_retry: 2,
            min_receiver_not_ready_timer: 12,
            read_atomic: 4,
            destination_read_atomic: 4,
        }
    }
}

/// What time-out 8 means: 4.096 µs · 2^8.
pub(crate) const TIMEOUT_8: Duration = Duration::from_nanos(4096 << 8);
/// What receiver-not-ready timer 12 means (IBTA table 46).
pub(crate) const NOT_READY_12: Duration = Duration::from_micros(640);

pub(crate) const FIRST_PSN: u32 = 0xff_fffd;

/// Two connected ends.
pub(crate) fn pair(transport: Transport) -> (End, End) {
    pair_with(transport, Reliability::default(), |_| ())
}

pub(crate) fn pair_with(transport: Transport, reliability: Reliability, change: impl Fn(&mut Config)) -> (End, End) {
    let one = End::new("10.0.0.1", transport, &change);
    let two = End::new("10.0.0.22", transport, &change);
    for (end, peer) in [(&one, &two), (&two, &one)] {
        let mut path = PathAttributes::to(peer.address().into_gid());
        path.peer_source_port = peer.queue_pair.source_port(0).expect("softnic shows it");
        let mut receive = QueuePairAttributes::ready_to_receive(path, MTU, peer.queue_pair.number(), FIRST_PSN);
        let mut send = QueuePairAttributes::ready_to_send(FIRST_PSN);
        if transport == Transport::ReliableConnection {
            let Reliability { timeout, retry_count, receiver_not_ready_retry, .. } = reliability;
            let Reliability { min_receiver_not_ready_timer, read_atomic, destination_read_atomic, .. } = reliability;
            receive = receive.reliable_receive(destination_read_atomic, min_receiver_not_ready_timer);
            send = send.reliable_send(timeout, retry_count, receiver_not_ready_retry, read_atomic);
        }
        end.queue_pair.modify(&QueuePairAttributes::init_connected(ALL_RIGHTS)).unwrap();
        end.queue_pair.modify(&receive).unwrap();
        end.queue_pair.modify(&send).unwrap();
    }
    (one, two)
}

trait IntoGid {
    fn into_gid(self) -> longhaul_verbs::Gid;
}

impl IntoGid for IpAddr {
    fn into_gid(self) -> longhaul_verbs::Gid {
        longhaul_verbs::Gid::from_ip(self)
    }
}

pub(crate) fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

/// A packet that a peer could have sent.
pub(crate) fn forge(from: &End, to: &End, headers: Headers, payload: &[u8]) -> Datagram {
    let route = Route {
        source: from.address(),
        destination: to.address(),
        source_port: from.queue_pair.source_port(0).expect("softnic shows it"),
        destination_port: 4791,
        traffic_class: 0,
        hop_limit: 1,
    };
    Datagram { route, bytes: datagram_bytes(headers, payload), elided_bytes: 0 }
}

/// Headers, payload and an ICRC that nobody checks.
pub(crate) fn datagram_bytes(headers: Headers, payload: &[u8]) -> Vec<u8> {
    let packet = Packet { headers, payload, icrc: 0 };
    let mut bytes = vec![0; packet.byte_count()];
    packet.emit(&mut bytes).expect("the buffer has the right size");
    bytes
}
