//! Two shims and the packets between them.
#![allow(dead_code, reason = "each test uses a part")]

use std::net::SocketAddr;

use longhaul_shim::{BlockCode, Config, Direction, Envelope, Network, Onward, Packet, Shim};
use longhaul_time::{Duration, Instant};
use longhaul_wire::packet::write_datagram;
use longhaul_wire::repair::{self, Datagram, Header};
use longhaul_wire::{
    Headers, IcrcScope, Opcode, Operation, Position, Psn, Syndrome, Trailer, Transport, aeth, icrc, reth,
};

pub(crate) const MTU: usize = 256;

pub(crate) fn at(micros: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(micros)
}

pub(crate) fn config(code: &str) -> Config {
    let peers = Network::EVERYWHERE.to_vec();
    Config { datagram_bytes_max: 512, peers, ..Config::new(code.parse::<BlockCode>().unwrap()) }
}

/// Bytes that differ with everything.
pub(crate) fn bytes(seed: u32, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) ^ 0x1234_5678 | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 7) as u8
    };
    (0..count).map(next).collect()
}

pub(crate) fn envelope(source: &str, identification: u16) -> Envelope {
    let source: SocketAddr = source.parse().unwrap();
    let destination: SocketAddr =
        if source.is_ipv4() { "10.0.0.2:4791" } else { "[2001:db8::2]:4791" }.parse().unwrap();
    let icrc_scope = IcrcScope::between(source, destination).unwrap().with_identification(identification);
    Envelope {
        source,
        destination,
        traffic_class: 2,
        hop_limit: 64,
        identification: icrc_scope.identification(),
        icrc_scope,
        elided_bytes: 0,
    }
}

pub(crate) const SOURCE: &str = "10.0.0.1:50000";

/// A flow that makes packets.
#[derive(Clone)]
pub(crate) struct Flow {
    pub(crate) queue_pair: u32,
    pub(crate) operation: Operation,
    pub(crate) transport: Transport,
    pub(crate) psn: u32,
    pub(crate) envelope: Envelope,
    pub(crate) seed: u32,
}

impl Flow {
    pub(crate) fn writes(queue_pair: u32, psn: u32) -> Flow {
        Flow {
            queue_pair,
            operation: Operation::Write,
            transport: Transport::ReliableConnection,
            psn,
            envelope: envelope(SOURCE, 0),
            seed: queue_pair,
        }
    }

    pub(crate) fn reads(queue_pair: u32, psn: u32) -> Flow {
        Flow { operation: Operation::ReadResponse, seed: queue_pair + 77, ..Flow::writes(queue_pair, psn) }
    }

    pub(crate) fn packet(&self, psn: u32, position: Position, payload: usize) -> Packet {
        let opcode = match self.operation {
            Operation::ReadResponse => Opcode::read_response(position),
            operation => Opcode::request(self.transport, operation, position, Trailer::None).unwrap(),
        };
        let mut headers = Headers::new(opcode, self.queue_pair, Psn::new(psn));
        headers.reth = opcode.has_reth().then_some(reth::Header {
            virtual_address: u64::from(psn) << 12,
            remote_key: 7,
            dma_length: payload as u32,
        });
        headers.aeth = opcode
            .has_aeth()
            .then_some(aeth::Header { syndrome: Syndrome::ACK_WITHOUT_CREDITS, message_sequence_number: psn });
        let mut datagram = vec![0; 512];
        let contents = bytes(self.seed ^ psn.wrapping_mul(31), payload);
        let length = write_datagram(&headers, &contents, &self.envelope.icrc_scope, &mut datagram).unwrap();
        datagram.truncate(length);
        Packet { envelope: self.envelope, datagram }
    }

    /// The packets of a message; the last one is shorter.
    pub(crate) fn message(&mut self, packets: u32) -> Vec<Packet> {
        let made = (0..packets).map(|index| {
            let is_last = index + 1 == packets;
            let payload = if is_last { MTU - 37 } else { MTU };
            self.packet(self.psn.wrapping_add(index), Position::of(index == 0, is_last), payload)
        });
        let made = made.collect();
        self.psn = self.psn.wrapping_add(packets);
        made
    }
}

/// An acknowledgement of a PSN.
pub(crate) fn acknowledgement(queue_pair: u32, psn: u32) -> Packet {
    let mut headers = Headers::new(Opcode::RcAcknowledge, queue_pair, Psn::new(psn));
    headers.aeth = Some(aeth::Header { syndrome: Syndrome::ACK_WITHOUT_CREDITS, message_sequence_number: psn });
    let envelope = envelope(SOURCE, 0);
    let mut datagram = vec![0; 64];
    let length = write_datagram(&headers, &[], &envelope.icrc_scope, &mut datagram).unwrap();
    datagram.truncate(length);
    Packet { envelope, datagram }
}

/// Two ends with one configuration.
pub(crate) fn with(config: Config) -> (Shim, Shim) {
    (Shim::new(config.clone(), 1).unwrap(), Shim::new(config, 2).unwrap())
}

/// What the encoder makes of packets.
pub(crate) fn encode(shim: &mut Shim, packets: &[Packet], now: Instant) -> Vec<Packet> {
    let mut onward = Onward::default();
    packets.iter().for_each(|packet| shim.handle(Direction::Outgoing, packet.clone(), now, &mut onward));
    assert!(onward.incoming.is_empty());
    onward.outgoing
}

/// What the decoder makes of packets.
pub(crate) fn decode(shim: &mut Shim, packets: &[Packet], now: Instant) -> Vec<Packet> {
    let mut onward = Onward::default();
    packets.iter().for_each(|packet| shim.handle(Direction::Incoming, packet.clone(), now, &mut onward));
    assert!(onward.outgoing.is_empty());
    onward.incoming
}

/// Time passes at one end.
pub(crate) fn poll(shim: &mut Shim, now: Instant) -> Onward {
    let mut onward = Onward::default();
    shim.poll(now, &mut onward);
    onward
}

pub(crate) fn is_repair(packet: &Packet) -> bool {
    repair::is_repair(&packet.datagram)
}

pub(crate) fn header(packet: &Packet) -> Option<Header> {
    match Datagram::parse(&packet.datagram) {
        Ok(Datagram::Block(header, _)) => Some(header),
        _ => None,
    }
}

pub(crate) fn psn(packet: &Packet) -> u32 {
    let at = &packet.datagram[9..12];
    u32::from_be_bytes([0, at[0], at[1], at[2]])
}

/// Asserts that packets are the same byte for byte, and that each has a right ICRC.
#[track_caller]
pub(crate) fn assert_same(got: &[Packet], expected: &[Packet]) {
    assert_eq!(got.iter().map(psn).collect::<Vec<_>>(), expected.iter().map(psn).collect::<Vec<_>>());
    for (got, expected) in got.iter().zip(expected) {
        assert_eq!(got, expected);
        assert!(icrc::verify(&got.envelope.icrc_scope, &got.datagram));
    }
}

/// The data packets of what was sent, and the others.
pub(crate) fn split(sent: &[Packet]) -> (Vec<Packet>, Vec<Packet>) {
    let (repairs, data) = sent.iter().cloned().partition(is_repair);
    (data, repairs)
}

pub(crate) fn unreliable(queue_pair: u32, psn: u32) -> Flow {
    Flow { transport: Transport::UnreliableConnection, ..Flow::writes(queue_pair, psn) }
}

/// One message of four packets passes with one of them lost, and comes out whole: the flow is protected.
#[track_caller]
pub(crate) fn assert_protected(sender: &mut Shim, receiver: &mut Shim, flow: &mut Flow, micros: u64) {
    let message = flow.message(4);
    let mut sent = encode(sender, &message, at(micros));
    sent.retain(|packet| is_repair(packet) || psn(packet) != psn(&message[1]));
    assert_same(&decode(receiver, &sent, at(micros)), &message);
}

/// A repair packet or an announcement with any header, and a right ICRC.
pub(crate) fn lie(header: &Header, sum: &[u8]) -> Packet {
    let envelope = envelope(SOURCE, 0);
    let mut datagram = vec![0; repair::HEADER_BYTES];
    header.emit(&mut datagram);
    datagram.extend_from_slice(sum);
    datagram.extend_from_slice(&[0; 4]);
    icrc::write(&envelope.icrc_scope, &mut datagram);
    Packet { envelope, datagram }
}
