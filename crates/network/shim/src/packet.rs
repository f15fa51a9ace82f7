//! Complete packets, as they pass the shim.

use std::net::SocketAddr;

use longhaul_wire::bth::Bth;
use longhaul_wire::icrc::ICRC_BYTES;
use longhaul_wire::repair::Subject;
use longhaul_wire::{IcrcScope, Opcode, Operation, Psn, Transport};

/// A complete packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// What surrounds the datagram.
    pub envelope: Envelope,
    /// BTH to ICRC. Of what has arrived nothing has been checked: a stranger can send anything, even nothing.
    pub datagram: Vec<u8>,
}

/// What surrounds the datagram of a packet: its IP and UDP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// IP time to live.
    pub hop_limit: u8,
    /// What the ICRC covers of these headers. Where the identification is not known it is 0 here.
    pub icrc_scope: IcrcScope,
    /// Bytes that exist only as a length, behind the headers of the datagram: simulations leave payload out.
    pub elided_bytes: u32,
}

/// Where a packet is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device or the host to the network.
    Outgoing,
    /// From the network to the device or the host.
    Incoming,
}

/// Packets that go on, in order, in either direction.
#[derive(Debug, Default)]
pub struct Onward {
    /// To the network.
    pub outgoing: Vec<Packet>,
    /// To the device or the host.
    pub incoming: Vec<Packet>,
}

/// What the shim must know of a packet of RC or UC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    pub(crate) opcode: Opcode,
    pub(crate) subject: Subject,
    pub(crate) psn: Psn,
}

impl Summary {
    /// `None` for packets that the shim leaves alone: of other transports, cut off, or not RoCEv2 at all.
    pub(crate) fn of(datagram: &[u8]) -> Option<Summary> {
        let bth = Bth::new_checked(datagram).ok()?;
        let opcode = Opcode::from_byte(bth.opcode_byte())?;
        let is_connected =
            matches!(opcode.transport(), Transport::ReliableConnection | Transport::UnreliableConnection);
        let is_whole = datagram.len() >= opcode.header_bytes() + ICRC_BYTES;
        let subject = Subject { queue_pair: bth.destination_qp(), is_responses: opcode.is_response() };
        (is_connected && is_whole && bth.version() == 0).then_some(Summary { opcode, subject, psn: bth.psn() })
    }

    /// Acknowledgements have PSNs that do not count on.
    pub(crate) fn is_acknowledgement(&self) -> bool {
        matches!(self.opcode.operation(), Operation::Acknowledge | Operation::AtomicAcknowledge)
    }

    pub(crate) fn is_reliable(&self) -> bool {
        self.opcode.transport() == Transport::ReliableConnection
    }

    /// Whether the PSN of the next packet cannot be known: responses skip requests that are acknowledged, and a READ request
    /// takes as many PSNs as its response has packets.
    pub(crate) fn leaves_next_open(&self) -> bool {
        let is_read = self.opcode.operation() == Operation::ReadRequest;
        is_read || self.subject.is_responses && self.opcode.position().is_end()
    }
}
