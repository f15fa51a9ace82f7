//! RoCEv2 packets in frames, as a host sends them, and as they leave a gateway.

use std::net::SocketAddr;

use longhaul_forward::{Arrival, Fate, Handler as _, Outbox};
use longhaul_gateway::settings::{Settings, SettingsError};
use longhaul_gateway::{Gateway, SITE};
use longhaul_link::namespaces::Side;
use longhaul_time::Instant;
use longhaul_wire::icrc::{self, ICRC_BYTES};
use longhaul_wire::{Frame, Headers, IcrcScope, Opcode, Psn, UDP_PORT_ROCE, bth, packet, repair};

pub(super) const PORT: u16 = UDP_PORT_ROCE;
/// Of both ends: see the namespaces.
const ADDRESSES: [u8; 12] = [2, 0, 0, 0x12, 0, 2, 2, 0, 0, 0x12, 0, 1];
const ETHER_TYPE_IPV4: [u8; 2] = [8, 0];
pub(super) const QUEUE_PAIR: u32 = 0x17;
const SOURCE_PORT: u16 = 50_000;
/// Packets of a message: 64 KiB and 256 KiB.
const MESSAGE_PACKETS: u32 = 64;
/// At the beginning of each payload.
const NUMBER_BYTES: usize = 4;

/// Messages from the left end to the right one, packet by packet. Each payload begins with its number: no packet can pass for another.
pub(super) struct Messages {
    payload: Vec<u8>,
    psn: u32,
}

impl Messages {
    pub(super) fn new(rdma_mtu: usize) -> Self {
        Messages { payload: (0..rdma_mtu).map(|index| (index * 7) as u8).collect(), psn: 0 }
    }

    pub(super) fn next_frame(&mut self) -> Vec<u8> {
        let opcode = match self.psn % MESSAGE_PACKETS {
            0 => Opcode::RcSendFirst,
            place if place == MESSAGE_PACKETS - 1 => Opcode::RcSendLast,
            _ => Opcode::RcSendMiddle,
        };
        let scope = scope(SOURCE_PORT);
        let mut datagram = vec![0; self.payload.len() + 64];
        let headers = Headers::new(opcode, QUEUE_PAIR, Psn::new(self.psn));
        self.payload[..NUMBER_BYTES].copy_from_slice(&self.psn.to_be_bytes());
        let length = packet::write_datagram(&headers, &self.payload, &scope, &mut datagram).expect("it fits");
        datagram.truncate(length);
        self.psn = (self.psn + 1) & 0xff_ffff;
        frame_of(SOURCE_PORT, &datagram)
    }

    /// Whether this is one of its packets, as it was sent.
    pub(super) fn has_sent(&self, frame: &[u8]) -> bool {
        let Some(datagram) = datagram_of(frame) else { return false };
        let payload = datagram.get(bth::HEADER_BYTES..datagram.len() - ICRC_BYTES);
        let parts = payload.and_then(|payload| payload.split_at_checked(NUMBER_BYTES));
        let number = psn_of(frame).map(u32::to_be_bytes);
        let is_whole = parts.is_some_and(|(begin, rest)| {
            number.as_ref().map(|number| &number[..]) == Some(begin) && *rest == self.payload[NUMBER_BYTES..]
        });
        is_whole && icrc::verify(&scope(SOURCE_PORT), datagram)
    }
}

fn ends(source_port: u16) -> (SocketAddr, SocketAddr) {
    ((Side::Left.address(), source_port).into(), (Side::Right.address(), PORT).into())
}

pub(super) fn scope(source_port: u16) -> IcrcScope {
    let (source, destination) = ends(source_port);
    IcrcScope::between(source, destination).expect("one family")
}

/// A datagram from the left end to the right one.
pub(super) fn frame_of(source_port: u16, datagram: &[u8]) -> Vec<u8> {
    let (source, destination) = ends(source_port);
    let packet = Frame::new(source, destination, datagram).expect("it fits");
    let mut frame = [&ADDRESSES[..], &ETHER_TYPE_IPV4].concat();
    let start = frame.len();
    frame.resize(start + packet.byte_count(), 0);
    packet.emit(&mut frame[start..]).expect("it fits");
    frame
}

fn datagram_of(frame: &[u8]) -> Option<&[u8]> {
    let frame = Frame::parse_ethernet(frame).ok().filter(|frame| frame.udp.destination_port == PORT)?;
    (frame.datagram.len() >= bth::HEADER_BYTES + ICRC_BYTES).then_some(frame.datagram)
}

/// Whether it is a repair packet.
pub(super) fn is_repair(frame: &[u8]) -> bool {
    datagram_of(frame).is_some_and(repair::is_repair)
}

/// The number of a data packet to the real queue pair.
pub(super) fn psn_of(frame: &[u8]) -> Option<u32> {
    let datagram = datagram_of(frame)?;
    let bth = bth::Bth::new_checked(datagram).ok()?;
    let is_real = bth.destination_qp() == QUEUE_PAIR && !repair::is_repair(datagram);
    is_real.then(|| bth.psn().value())
}

/// What leaves a gateway of the left end, with losses behind it.
pub(super) struct Encoded {
    messages: Messages,
    gateway: Gateway,
    outbox: Outbox,
    loss: f64,
    random: Random,
    lost: u64,
}

impl Encoded {
    pub(super) fn new(rdma_mtu: usize, code: &str, loss: f64) -> Result<Self, SettingsError> {
        let text = format!(
            "site = \"a\"\nwide = \"b\"\npeer = \"{}\"\ncode = \"{code}\"\nrdma_mtu = {rdma_mtu}\nwait_for_peer = false\n",
            Side::Right.address()
        );
        let config = Settings::parse(&text)?.to_config(rdma_mtu + 104, rdma_mtu + 104)?;
        let gateway = Gateway::new(config, 1).map_err(|error| SettingsError::Form(error.to_string()))?;
        let messages = Messages::new(rdma_mtu);
        Ok(Encoded { messages, gateway, outbox: Outbox::default(), loss, random: Random(1), lost: 0 })
    }

    /// The next data packet, unless it is lost, and repair packets that belong there.
    pub(super) fn next_frames(&mut self, now: Instant) -> Vec<Vec<u8>> {
        if self.gateway.next_deadline().is_some_and(|due| due <= now) {
            self.gateway.poll(now, &mut self.outbox);
        }
        let mut frame = self.messages.next_frame();
        let fate = self.gateway.handle(SITE, &mut Arrival { bytes: &mut frame, at: now }, &mut self.outbox);
        let mut frames: Vec<Vec<u8>> = self.outbox.take_all().into_iter().map(|(_, frame, _)| frame).collect();
        if matches!(fate, Fate::Forward(_)) {
            frames.push(frame);
        }
        frames.retain(|frame| {
            let is_lost = psn_of(frame).is_some() && self.random.chance(self.loss);
            self.lost += u64::from(is_lost);
            !is_lost
        });
        frames
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, below: u32) -> u32 {
        (self.next() % u64::from(below)) as u32
    }

    /// True with this probability.
    fn chance(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64 / (1_u64 << 53) as f64) < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_with_the_payload_of_another_was_not_sent() {
        let mut messages = Messages::new(256);
        let frames: Vec<Vec<u8>> = (0..3).map(|_| messages.next_frame()).collect();
        assert!(frames.iter().all(|frame| Messages::new(256).has_sent(frame)));
        // The second packet again, with the number of the third.
        let mut datagram = datagram_of(&frames[1]).expect("a packet").to_vec();
        datagram[9..12].copy_from_slice(&[0, 0, 2]);
        icrc::write(&scope(SOURCE_PORT), &mut datagram);
        let forged = frame_of(SOURCE_PORT, &datagram);
        assert_eq!(psn_of(&forged), Some(2));
        assert!(!messages.has_sent(&forged));
    }
}
