//! What the shim reads from packets.

pub(crate) use longhaul_datagram::{Envelope, Packet};
use longhaul_wire::bth::{self, Bth};
use longhaul_wire::icrc::{self, ICRC_BYTES};
use longhaul_wire::repair::Subject;
use longhaul_wire::{IcrcScope, Opcode, Operation, Position, Psn};

/// PSNs that a flow may skip without anything that agrees: more than most READs take, and few enough that a stranger who guesses does
/// not hit them. The sender announces where it goes on behind more.
pub(crate) const SKIPPED_MAX: u16 = 1 << 13;

/// Packets that go on, in order, in either direction.
#[derive(Debug, Default)]
pub struct Onward {
    /// To the network.
    pub outgoing: Vec<Packet>,
    /// To the device or the host.
    pub incoming: Vec<Packet>,
}

/// A packet where it lies: what passes at once is not copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Borrowed<'a> {
    pub(crate) envelope: &'a Envelope,
    /// BTH to ICRC.
    pub(crate) datagram: &'a [u8],
}

impl<'a> From<&'a Packet> for Borrowed<'a> {
    fn from(packet: &'a Packet) -> Borrowed<'a> {
        Borrowed { envelope: &packet.envelope, datagram: &packet.datagram }
    }
}

/// What the ICRC of a packet covers, if it is right. An identification that is not known is solved for.
pub(crate) fn right_scope<'a>(packet: impl Into<Borrowed<'a>>) -> Option<IcrcScope> {
    let Borrowed { envelope, datagram } = packet.into();
    let scope = envelope.icrc_scope;
    let is_known =
        envelope.identification.is_some() || scope.identification().is_none() || scope == IcrcScope::WITHOUT_ADDRESSES;
    if is_known {
        return icrc::verify(&scope, datagram).then_some(scope);
    }
    icrc::solve_identification(&scope, datagram).map(|value| scope.with_identification(value))
}

/// A packet of RC or UC with a right ICRC.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) packet: Packet,
    pub(crate) summary: Summary,
    /// What its ICRC covers.
    pub(crate) scope: IcrcScope,
}

/// What the shim must know of a packet of RC or UC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    /// `None` for requests that we do not speak (FLUSH, ATOMIC WRITE). They have a PSN and are not protected.
    pub(crate) opcode: Option<Opcode>,
    pub(crate) subject: Subject,
    pub(crate) psn: Psn,
    pub(crate) is_reliable: bool,
}

impl Summary {
    /// `None` for packets that the shim leaves alone: of other transports, cut off, or not RoCEv2 at all.
    pub(crate) fn of(datagram: &[u8]) -> Option<Summary> {
        let bth = Bth::new_checked(datagram).ok()?;
        let byte = bth.opcode_byte();
        let opcode = Opcode::from_byte(byte);
        // The upper three bits are the transport's.
        let is_reliable = byte >> 5 == Opcode::RcSendFirst.byte() >> 5;
        let is_connected = is_reliable || byte >> 5 == Opcode::UcSendFirst.byte() >> 5;
        let header_bytes = opcode.map_or(bth::HEADER_BYTES, Opcode::header_bytes);
        let is_whole = datagram.len() >= header_bytes + ICRC_BYTES;
        let subject =
            Subject { queue_pair: bth.destination_qp(), is_responses: opcode.is_some_and(Opcode::is_response) };
        (is_connected && is_whole && bth.version() == 0).then_some(Summary {
            opcode,
            subject,
            psn: bth.psn(),
            is_reliable,
        })
    }

    fn operation(&self) -> Option<Operation> {
        self.opcode.map(Opcode::operation)
    }

    pub(crate) fn position(&self) -> Position {
        self.opcode.map_or(Position::Only, Opcode::position)
    }

    /// Acknowledgements have PSNs that do not count on.
    pub(crate) fn is_acknowledgement(&self) -> bool {
        matches!(self.operation(), Some(Operation::Acknowledge | Operation::AtomicAcknowledge))
    }

    /// Whether the PSN of the next packet cannot be known: responses skip requests that are acknowledged, and a READ request
    /// takes as many PSNs as its response has packets. How many an unknown request takes is unknown too.
    pub(crate) fn leaves_next_open(&self) -> bool {
        let is_read = self.operation().is_none_or(|operation| operation == Operation::ReadRequest);
        is_read || self.subject.is_responses && self.position().is_end()
    }
}
