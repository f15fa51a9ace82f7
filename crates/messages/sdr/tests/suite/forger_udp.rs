//! Somebody on the peer's host, at another port of its address, who knows every queue pair number and sees how far the
//! messages are, but has no key: nothing that he sends changes a message.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use longhaul_sdr::immediate::ImmediateLayout;
use longhaul_sdr::info::QueuePairInfo;
use longhaul_sdr::{Context, ContextAttributes, Memory, QueuePair, QueuePairAttributes};
use longhaul_softnic::Config;
use longhaul_softnic_udp::{UdpConfig, UdpDevice, UdpPortChoice};
use longhaul_time::Instant;
use longhaul_verbs::Mtu;
use longhaul_wire::{Headers, IcrcScope, Opcode, Psn, packet, reth};

const MESSAGES: u64 = 50;
const LENGTH: usize = 1 << 20;
/// What the forger wants the receiver to believe of a message's length.
const FORGED_LENGTH: u32 = 4096;
/// What he sends at most.
const FORGED_MAX: u64 = 500_000;

struct End {
    device: UdpDevice,
    context: Context,
    queue_pair: QueuePair,
    memory: Memory,
}

impl End {
    fn new(address: IpAddr, random: u64) -> End {
        let mut udp = UdpConfig::default();
        udp.udp_port = UdpPortChoice::Free;
        let device = UdpDevice::open(Config::new("forged", vec![address], [random as u8; 32]), udp).unwrap();
        let context = Context::create(&device.verbs(), &ContextAttributes::default()).unwrap();
        let gid = device.verbs().gid(1, 0).unwrap().gid;
        let mut attributes = QueuePairAttributes::new(gid, device.udp_port(), Mtu::Bytes4096);
        attributes.message_bytes_max = LENGTH as u64;
        attributes.receive_depth = 128;
        attributes.random = random << 32 | random;
        let queue_pair = QueuePair::create(&context, &attributes).unwrap();
        let memory = context.register(vec![0; LENGTH]).unwrap();
        End { device, context, queue_pair, memory }
    }

    fn poll(&self, now: Instant) {
        while self.context.poll().unwrap() > 0 {}
        self.queue_pair.poll(now).unwrap();
    }

    fn counter(&self, name: &str) -> u64 {
        self.device.verbs().counters().iter().find(|counter| counter.name == name).unwrap().value
    }
}

/// A plain socket that speaks RoCEv2 by hand.
struct Forger<'a> {
    socket: UdpSocket,
    target: SocketAddr,
    info: &'a QueuePairInfo,
}

impl Forger<'_> {
    /// All fragments of a length, to every data queue pair: in writes of nothing, which need no key, and in writes of a
    /// byte under a key that he makes up.
    fn forge(&self, message: u64) -> u64 {
        let layout = ImmediateLayout::default();
        let scope = IcrcScope::between(self.socket.local_addr().unwrap(), self.target).unwrap();
        let mut sent = 0;
        for (number, psn) in &self.info.data {
            for fragment in 0..layout.fragment_count() {
                for payload in [&[][..], &[0xee]] {
                    let mut headers =
                        Headers::new(Opcode::UcWriteOnlyWithImmediate, number.value(), Psn::new(psn + fragment));
                    headers.reth = Some(reth::Header {
                        virtual_address: message * LENGTH as u64,
                        remote_key: 0x1234_5678,
                        dma_length: payload.len() as u32,
                    });
                    headers.immediate = Some(layout.encode(layout.slot_of(message), fragment, FORGED_LENGTH));
                    let mut bytes = vec![0; packet::datagram_bytes(packet::MAX_HEADER_BYTES, payload.len())];
                    let length = packet::write_datagram(&headers, payload, &scope, &mut bytes).unwrap();
                    self.socket.send_to(&bytes[..length], self.target).unwrap();
                    sent += 1;
                }
            }
        }
        sent
    }
}

/// Send the messages while somebody forges; what was forged, and the receiver.
fn run(addresses: [&str; 2], announces_ports: bool) -> (u64, End) {
    let [sender, receiver] = addresses.map(|address| address.parse::<IpAddr>().unwrap());
    let started = std::time::Instant::now();
    let now = || Instant::from_nanos(started.elapsed().as_nanos() as u64);
    let (sender, receiver) = (End::new(sender, 5), End::new(receiver, 6));
    let mut infos = [&sender, &receiver].map(|end| end.queue_pair.info());
    for info in &mut infos {
        assert!(info.source_ports.len() == 5 && !info.source_ports.contains(&0), "{:?}", info.source_ports);
        if !announces_ports {
            info.source_ports.clear();
        }
    }
    sender.queue_pair.connect(&infos[1]).unwrap();
    receiver.queue_pair.connect(&infos[0]).unwrap();
    let forger = Forger {
        socket: UdpSocket::bind((infos[0].gid.to_ip(), 0)).unwrap(),
        target: SocketAddr::new(infos[1].gid.to_ip(), infos[1].udp_port),
        info: &infos[1],
    };
    let (message, is_over, forged) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) && forged.load(Ordering::Relaxed) < FORGED_MAX {
                forged.fetch_add(forger.forge(message.load(Ordering::Relaxed)), Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        for number in 0..MESSAGES {
            message.store(number, Ordering::Relaxed);
            let contents: Vec<u8> = (0..LENGTH).map(|index| (index as u64 * 7 + number * 13) as u8 & 0x7f).collect();
            sender.memory.write(0..LENGTH).unwrap().copy_from_slice(&contents);
            let receive = receiver.queue_pair.post_receive(&receiver.memory, 0..LENGTH).unwrap();
            let stream = sender.queue_pair.start_stream(Some(LENGTH as u32)).unwrap();
            stream.send_at(0, &sender.memory, 0..LENGTH).unwrap();
            let mut repeat_at = now() + Duration::from_millis(200);
            while !receive.bitmap().is_complete() {
                assert!(now() < Instant::from_nanos(60_000_000_000), "message {number} does not arrive");
                sender.poll(now());
                receiver.poll(now());
                if now() >= repeat_at {
                    repeat_at = now() + Duration::from_millis(200);
                    let chunk = sender.queue_pair.attributes().chunk_bytes as usize;
                    for chunks in receive.bitmap().missing() {
                        let range = chunks.start as usize * chunk..(chunks.end as usize * chunk).min(LENGTH);
                        stream.send_at(range.start as u64, &sender.memory, range).unwrap();
                    }
                }
            }
            assert_eq!(receive.user_immediate(), Some(LENGTH as u32), "message {number}");
            assert!(receive.complete().unwrap().bytes() == contents, "message {number}");
            stream.abandon();
            drop(stream);
            while sender.memory.write(0..LENGTH).is_err() {
                sender.poll(now());
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    (forged.into_inner(), receiver)
}

#[test]
fn a_forger_at_another_port_is_not_heard() {
    let (forged, receiver) = run(["127.0.3.1", "127.0.3.2"], true);
    // The kernel may drop some of these.
    let dropped = receiver.counter("rx_wrong_source_port");
    assert!(forged > 1000 && dropped > forged / 2, "{dropped} of {forged} forged packets were counted");
    assert_eq!(receiver.counter("resp_remote_access_errors"), 0);
    assert_eq!(receiver.queue_pair.counters().1.stray, 0);
}

/// As on devices that hide source ports, or behind a translator.
#[test]
fn a_forger_without_a_key_is_not_believed() {
    let (forged, receiver) = run(["127.0.3.3", "127.0.3.4"], false);
    let (refused, stray) = (receiver.counter("resp_remote_access_errors"), receiver.queue_pair.counters().1.stray);
    assert!(forged > 1000 && refused > 0 && stray > 0, "{forged} forged, {refused} refused, {stray} stray");
    assert_eq!(receiver.counter("rx_wrong_source_port"), 0);
}
