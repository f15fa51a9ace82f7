//! Packets of a stranger into a device that has queue pairs of every transport in use: the body of a fuzz target, and of
//! the ordinary test over its corpus.
//!
//! The bytes are a program: what the stranger sends, what the program at this end does, and how time passes, one after
//! the other. The body panics when something happens that no stranger may bring about. What other crates need to drive a
//! device with bytes is here too.
//!
//! Hidden from the documentation; not part of the API.

mod choices;
mod nic;

use std::net::IpAddr;

use longhaul_time::Instant;
use longhaul_wire::{Headers, Packet};

pub use choices::Choices;
pub use nic::nic;

use crate::{Device, Outgoing, Received, Route, TransmitSink};

/// Operations of one input. The rest of a longer input is left unread: it would find nothing that a shorter one does
/// not.
pub const OPERATIONS_MAX: usize = 256;
/// Packets that a device may answer with before time passes. More would be a flood that a stranger causes.
const ANSWERS_MAX: usize = 4096;

/// Keeps what a device sends.
#[derive(Default)]
struct Outbox(Vec<Vec<u8>>);

impl TransmitSink for Outbox {
    fn has_room(&self) -> bool {
        self.0.len() <= ANSWERS_MAX
    }

    fn transmit(&mut self, _: &Route, datagram: &Outgoing<'_>) {
        let mut bytes = vec![0; datagram.len()];
        datagram.write_to(&mut bytes);
        self.0.push(bytes);
    }
}

/// What a device sends now.
pub fn poll(device: &Device, now: Instant) -> Vec<Vec<u8>> {
    let mut outbox = Outbox::default();
    device.nic().poll(now, &mut outbox);
    assert!(outbox.0.len() <= ANSWERS_MAX, "more than {ANSWERS_MAX} packets at one instant");
    outbox.0
}

/// A datagram arrives, its ICRC checked.
pub fn arrive(device: &Device, source: IpAddr, destination: IpAddr, datagram: &[u8], now: Instant) {
    // A source port that says nothing, so that it is not compared.
    let (source_port, traffic_class, hop_limit, elided_bytes) = (0, 0, 64, 0);
    let received = Received { source, source_port, destination, traffic_class, hop_limit, datagram, elided_bytes };
    device.nic().handle(&received, now);
}

/// Headers that fit their opcode, and payload, as a datagram.
pub fn datagram(mut headers: Headers, payload: &[u8]) -> Vec<u8> {
    headers.bth.pad_count = (payload.len().wrapping_neg() % 4) as u8;
    let packet = Packet { headers, payload, icrc: 0 };
    let mut bytes = vec![0; packet.byte_count()];
    packet.emit(&mut bytes).expect("headers fit their opcode");
    bytes
}
