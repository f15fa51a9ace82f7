//! A peer that speaks the protocol of messages and lies: the body of a fuzz target, and of the ordinary test over its
//! corpus. The bytes are a program, as in `longhaul_softnic::fuzzing`.
//!
//! Hidden from the documentation; not part of the API.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use longhaul_reliable::{Attributes, Connection, NamedScheme, ReceiveTicket, SendTicket, scheme_named};
use longhaul_sdr::control::{
    ClearToSend, ControlFrame, CreditAnnouncement, CreditGrant, DataArrivals, FrameWriter, Header, Record,
};
use longhaul_sdr::immediate::ImmediateLayout;
use longhaul_sdr::info::QueuePairInfo;
use longhaul_sdr::{Context, ContextAttributes, Memory, QueuePair, QueuePairAttributes};
use longhaul_softnic::fuzzing::{Choices, OPERATIONS_MAX, arrive, datagram, poll};
use longhaul_softnic::{Config, Device};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{Gid, Mtu, QueuePairNumber};
use longhaul_wire::{Headers, Opcode, Packet, Psn, reth};

const OURS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const MTU: Mtu = Mtu::Bytes256;
const MEMORY_BYTES: usize = 64 << 10;
const MESSAGE_BYTES_MAX: u64 = 4096;
const CONTROL_QUEUE_PAIR: u32 = 0x100;
const TIMEOUT: Duration = Duration::from_secs(3);
const SCHEMES: [&str; 4] = ["sr:rto", "sr:nack", "ec:mds:4,2", "ec:xor:4,2"];
/// Polls until nothing is due at one instant. An end that never comes to rest keeps a core busy.
const POLLS_MAX: usize = 64;

/// Whatever the peer says: nothing panics, the connection does not end, nothing keeps it busy at one instant, no
/// message is longer than its receive, and every send ends when nothing more is heard.
pub fn peer(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let mut end = End::new(choices.one_of(&SCHEMES));
    for _ in 0..OPERATIONS_MAX {
        if choices.is_over() {
            break;
        }
        match choices.u8() % 8 {
            0 => end.now += choices.time(),
            1 => end.send(&mut choices),
            2 => end.receive(&mut choices),
            3 => end.data(&mut choices),
            4 => end.control(choices.bytes(100)),
            _ => end.frame(&mut choices),
        }
        end.settle();
    }
    end.fall_silent();
}

struct End {
    device: Device,
    context: Context,
    connection: Connection,
    memory: Memory,
    info: QueuePairInfo,
    sends: Vec<SendTicket>,
    receives: Vec<(usize, ReceiveTicket)>,
    /// What we said last, and where messages may go.
    said: Header,
    clears: BTreeMap<u64, ClearToSend>,
    now: Instant,
}

impl End {
    fn new(scheme: &str) -> Self {
        let mut config = Config::new("fuzzed", vec![OURS], [7; 32]);
        config.mtu = MTU;
        let device = Device::new(config, || ());
        let mut context = ContextAttributes::default();
        context.completions = 512;
        let context = Context::create(&device.verbs(), &context).expect("a context");
        let mut attributes = QueuePairAttributes::new(Gid::from_ip(OURS), 4791, MTU);
        attributes.random = 0x0102_0304_0000_0001;
        attributes.chunk_bytes = MTU.byte_count();
        attributes.message_bytes_max = MESSAGE_BYTES_MAX;
        attributes.layout = ImmediateLayout::new(3, 25, 4).expect("32 bits");
        attributes.generations = 2;
        attributes.receive_depth = 64;
        attributes.send_depth = 32;
        let queue_pair = QueuePair::create(&context, &attributes).expect("a queue pair");
        let memory = context.register(vec![0; MEMORY_BYTES]).expect("memory");
        let info = queue_pair.info();
        let mut peer = info.clone();
        peer.gid = Gid::from_ip(PEER);
        peer.control.0 = QueuePairNumber::new(CONTROL_QUEUE_PAIR);
        for (index, (number, _)) in peer.data.iter_mut().enumerate() {
            *number = QueuePairNumber::new(CONTROL_QUEUE_PAIR + 1 + index as u32);
        }
        queue_pair.connect(&peer).expect("they fit");
        let scheme: NamedScheme = scheme.parse().expect("the name of a scheme");
        let mut terms = Attributes::default();
        terms.message_timeout = TIMEOUT;
        terms.waiting_max = 32;
        terms.parts_open_max = 4;
        End {
            device,
            context,
            connection: Connection::new(queue_pair, scheme_named(scheme), terms),
            memory,
            info,
            sends: Vec::new(),
            receives: Vec::new(),
            said: Header::default(),
            clears: BTreeMap::new(),
            now: Instant::from_nanos(1_000_000),
        }
    }

    /// Bytes for a message of up to 16 KiB, so of several parts.
    fn range(choices: &mut Choices<'_>) -> std::ops::Range<usize> {
        let start = usize::from(choices.u8()) << 7;
        start..start + (usize::from(choices.u16()) % (16 << 10))
    }

    fn send(&mut self, choices: &mut Choices<'_>) {
        // Too many, or bytes that are in use: ordinary answers.
        if let Ok(ticket) = self.connection.send(&self.memory, Self::range(choices), self.now) {
            self.sends.push(ticket);
        }
        if choices.u8() == 0 {
            self.sends.clear();
        }
    }

    fn receive(&mut self, choices: &mut Choices<'_>) {
        let range = Self::range(choices);
        let length = range.len();
        if let Ok(ticket) = self.connection.post_receive(&self.memory, range) {
            self.receives.push((length, ticket));
        }
    }

    /// A packet of a message, with a key that we gave away or with another.
    fn data(&mut self, choices: &mut Choices<'_>) {
        let lane = usize::from(choices.u8()) % self.info.data.len();
        let right = self.clears.values().nth(usize::from(choices.u8()) % self.clears.len().max(1)).copied();
        let (address, key) = right.map_or((0, 0), |clear| (clear.address, clear.key));
        let length = usize::from(choices.u16()) % 257;
        let packet = choices.u8();
        let address = choices.number(address.wrapping_add(u64::from(packet) * 256));
        let opcode = choices.one_of(&[Opcode::UcWriteOnlyWithImmediate, Opcode::UcWriteOnly, Opcode::UcWriteFirst]);
        let mut headers = Headers::new(opcode, self.info.data[lane].0.value(), Psn::new(choices.u8().into()));
        let remote_key = choices.number(key.into()) as u32;
        let dma_length = choices.number(length as u64) as u32;
        headers.reth = Some(reth::Header { virtual_address: address, remote_key, dma_length });
        let slot = right.map_or(0, |clear| clear.number as u32 % 8);
        let immediate = u64::from(slot << 29 | u32::from(packet) << 4 | u32::from(choices.u8() & 15));
        headers.immediate = opcode.has_immediate().then(|| choices.number(immediate) as u32);
        arrive(&self.device, PEER, OURS, &datagram(headers, &vec![0xc3; length]), self.now);
    }

    /// A control message, whatever is in it.
    fn control(&mut self, frame: &[u8]) {
        let headers = Headers::new(Opcode::UcSendOnly, self.info.control.0.value(), Psn::new(0));
        arrive(&self.device, PEER, OURS, &datagram(headers, frame), self.now);
    }

    /// A control message that can be read.
    fn frame(&mut self, choices: &mut Choices<'_>) {
        let mut bytes = [0; MTU.byte_count() as usize];
        let header = Header {
            wants_answer: choices.flag(),
            receiver: if choices.u8() == 0 { 9 } else { self.info.receiver },
            sent_at: choices.number(self.now.as_nanos()),
            echo: choices.number(self.said.sent_at),
            held_ns: choices.number(0),
            consumed: choices.number(self.connection.queue_pair().counters().0.writes),
            window: choices.number(64) as u32,
            cleared_through: choices.number(self.said.open_from),
            open_from: choices.number(self.said.sends_from),
            sends_from: choices.number(self.said.open_from),
        };
        let mut writer = FrameWriter::new(&mut bytes, &header).expect("room for a header");
        for _ in 0..choices.u8() % 4 {
            if choices.flag() {
                let number = choices.number(self.said.sends_from);
                let clear = ClearToSend {
                    number,
                    address: choices.number(0x1000),
                    length: choices.number(MESSAGE_BYTES_MAX),
                    key: choices.u8().into(),
                    generation: choices.number(number / 8 % 2) as u8,
                    is_over: choices.u8() == 0,
                };
                writer.push(&Record::ClearToSend(clear));
            } else if choices.u8() < 64 {
                let (immediate, generation) = (choices.number(0) as u32, choices.u8() % 4);
                let (held_ns, marked) = (choices.number(0), choices.number(1));
                writer.push(&Record::DataArrivals(DataArrivals { immediate, generation, held_ns, marked }));
            } else if choices.u8() < 32 {
                let [wanted, received, uncredited, lost] = std::array::from_fn(|_| choices.number(4096));
                let wants = CreditAnnouncement { wanted, received, uncredited, lost };
                writer.push(&Record::CreditAnnouncement(wants));
            } else if choices.u8() < 32 {
                let (granted, recent) = (choices.number(4096), choices.number(4096));
                writer.push(&Record::CreditGrant(CreditGrant { granted, recent }));
            } else {
                writer.push(&Record::Scheme(&self.record(choices)));
            }
        }
        let length = writer.finish();
        self.control(&bytes[..length]);
    }

    /// What the peer's scheme says: a kind, a message, then numbers, and bytes to the end.
    fn record(&self, choices: &mut Choices<'_>) -> Vec<u8> {
        let mut record = vec![choices.u8() % 14];
        record.extend(choices.number(self.said.sends_from).to_be_bytes());
        for _ in 0..choices.u8() % 8 {
            match choices.flag() {
                true => record.extend(choices.number(4096).to_be_bytes()),
                false => record.extend((choices.number(256) as u32).to_be_bytes()),
            }
        }
        if choices.flag() {
            record.extend(choices.one_of(&SCHEMES).as_bytes());
        }
        let length = choices.u8() % 32;
        record.extend(choices.bytes(length.into()));
        record
    }

    /// Do what is due now, and hear what we say.
    fn settle(&mut self) {
        for _ in 0..POLLS_MAX {
            while self.context.poll().expect("what a peer sends breaks no queue") > 0 {}
            self.connection.poll(self.now).expect("what a peer says ends no connection");
            let packets = poll(&self.device, self.now);
            packets.iter().for_each(|packet| self.hear(packet));
            self.finish();
            let deadline =
                Instant::earlier_of(self.connection.next_deadline(self.now), self.device.nic().next_deadline());
            if packets.is_empty() && deadline.is_none_or(|deadline| deadline > self.now) {
                return;
            }
        }
        panic!("an end that is still busy after {POLLS_MAX} polls at one instant");
    }

    fn hear(&mut self, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("a device sends well-formed packets");
        if packet.headers.bth.destination_qp != CONTROL_QUEUE_PAIR {
            return;
        }
        let frame = ControlFrame::new_checked(packet.payload).expect("an end sends frames that can be read");
        self.said = Header::parse(&frame);
        for record in frame.records() {
            if let Record::ClearToSend(clear) = record.expect("and records") {
                self.clears.insert(clear.number, clear);
                // The newest, in which packets can still arrive.
                while self.clears.len() > 8 {
                    self.clears.pop_first();
                }
            }
        }
    }

    fn finish(&mut self) {
        self.receives.retain(|(room, ticket)| match ticket.take() {
            None => true,
            Some(Err(_)) => false,
            Some(Ok(message)) => {
                assert!(message.bytes().len() <= *room, "more bytes than there was room for");
                let bytes = message.bytes().len() as u64;
                assert!(message.missing().iter().all(|missing| missing.start < missing.end && missing.end <= bytes));
                false
            }
        });
    }

    /// Nothing more is heard: everything that was sent ends.
    fn fall_silent(&mut self) {
        let end = self.now + TIMEOUT * 40;
        for _ in 0..100_000 {
            let deadline =
                Instant::earlier_of(self.connection.next_deadline(self.now), self.device.nic().next_deadline());
            if self.sends.iter().all(SendTicket::is_over) {
                return;
            }
            match deadline {
                Some(deadline) if deadline <= end => self.now = deadline.max(self.now),
                _ => self.now = end,
            }
            self.settle();
            if self.now == end {
                break;
            }
        }
        let open = self.sends.iter().filter(|ticket| !ticket.is_over()).count();
        assert_eq!(open, 0, "sends that never end");
    }
}
