//! The base transport header: the first twelve bytes of every packet.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+-+-+---+-------+-------------------------------+
//! |    OpCode     |S|M|Pad| TVer  |        partition key          |
//! +-+-+-----------+-+-+---+-------+-------------------------------+
//! |F|B| reserved  |        destination queue pair number          |
//! +-+-+-----------+-----------------------------------------------+
//! |A|  reserved   |            packet sequence number             |
//! +-+-------------+-----------------------------------------------+
//! ```
//!
//! S solicited event, M migration state, F and B forward and backward explicit congestion notification, A acknowledge
//! request (IBTA 9.2). RoCEv2 marks congestion in the IP header and ignores F and B (A17.4.8), though NICs set B in congestion
//! notification packets. The byte with F and B may change in transit: the ICRC does not cover it.

use crate::field::{self, Field, read_u16, read_u24, write_u16, write_u24};
use crate::{Opcode, ParseError, Psn, Truncated};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 12;

/// The partition that every port is a full member of unless somebody manages partitions (IBTA 10.9).
pub const DEFAULT_PARTITION_KEY: u16 = 0xffff;

/// A view of the header over a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth<T> {
    buffer: T,
}

const OPCODE: usize = 0;
const FLAGS: usize = 1;
const PARTITION_KEY: Field = 2..4;
/// The byte that ICRC masks.
pub(crate) const CONGESTION: usize = 4;
const DESTINATION_QP: Field = 5..8;
const ACK_REQUEST: usize = 8;
const PSN: Field = 9..12;

impl<T: AsRef<[u8]>> Bth<T> {
    /// A view, when the buffer is long enough for the header.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Bth<T>, Truncated> {
        field::check_length(buffer.as_ref(), "BTH", HEADER_BYTES)?;
        Ok(Bth { buffer })
    }

    /// The buffer back.
    pub fn into_inner(self) -> T {
        self.buffer
    }

    /// The opcode's byte; [`Opcode::from_byte`] says whether we speak it.
    #[inline]
    pub fn opcode_byte(&self) -> u8 {
        self.buffer.as_ref()[OPCODE]
    }

    /// Whether the responder is to raise an event when the message has arrived.
    #[inline]
    pub fn solicited_event(&self) -> bool {
        self.buffer.as_ref()[FLAGS] & 0x80 != 0
    }

    /// MigReq: the sender's path migration state is "migrated".
    #[inline]
    pub fn migration(&self) -> bool {
        self.buffer.as_ref()[FLAGS] & 0x40 != 0
    }

    /// How many bytes were added to the payload to make it a multiple of four, 0 to 3.
    #[inline]
    pub fn pad_count(&self) -> u8 {
        (self.buffer.as_ref()[FLAGS] >> 4) & 0x3
    }

    /// Transport header version; 0 is the only one there is.
    #[inline]
    pub fn version(&self) -> u8 {
        self.buffer.as_ref()[FLAGS] & 0xf
    }

    /// The partition the packet belongs to.
    #[inline]
    pub fn partition_key(&self) -> u16 {
        read_u16(self.buffer.as_ref(), PARTITION_KEY)
    }

    /// FECN: the packet met congestion.
    #[inline]
    pub fn forward_ecn(&self) -> bool {
        self.buffer.as_ref()[CONGESTION] & 0x80 != 0
    }

    /// BECN: a packet in the other direction did.
    #[inline]
    pub fn backward_ecn(&self) -> bool {
        self.buffer.as_ref()[CONGESTION] & 0x40 != 0
    }

    /// The queue pair the packet is for.
    #[inline]
    pub fn destination_qp(&self) -> u32 {
        read_u24(self.buffer.as_ref(), DESTINATION_QP)
    }

    /// Whether the responder is to acknowledge this packet.
    #[inline]
    pub fn ack_request(&self) -> bool {
        self.buffer.as_ref()[ACK_REQUEST] & 0x80 != 0
    }

    /// The packet's sequence number.
    #[inline]
    pub fn psn(&self) -> Psn {
        Psn::new(read_u24(self.buffer.as_ref(), PSN))
    }

    /// The six reserved bits next to FECN and BECN.
    #[inline]
    pub fn reserved_congestion(&self) -> u8 {
        self.buffer.as_ref()[CONGESTION] & 0x3f
    }

    /// The seven reserved bits next to the acknowledge request.
    #[inline]
    pub fn reserved_ack_request(&self) -> u8 {
        self.buffer.as_ref()[ACK_REQUEST] & 0x7f
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Bth<T> {
    #[inline]
    fn set_bits(&mut self, at: usize, mask: u8, bits: u8) {
        let byte = &mut self.buffer.as_mut()[at];
        *byte = (*byte & !mask) | (bits & mask);
    }

    /// Sets the opcode.
    #[inline]
    pub fn set_opcode(&mut self, opcode: Opcode) {
        self.buffer.as_mut()[OPCODE] = opcode.byte();
    }

    /// Sets the solicited event bit.
    #[inline]
    pub fn set_solicited_event(&mut self, value: bool) {
        self.set_bits(FLAGS, 0x80, u8::from(value) << 7);
    }

    /// Sets the migration bit.
    #[inline]
    pub fn set_migration(&mut self, value: bool) {
        self.set_bits(FLAGS, 0x40, u8::from(value) << 6);
    }

    /// Sets the pad count, of which two bits are taken.
    #[inline]
    pub fn set_pad_count(&mut self, value: u8) {
        self.set_bits(FLAGS, 0x30, value << 4);
    }

    /// Sets the version, of which four bits are taken.
    #[inline]
    pub fn set_version(&mut self, value: u8) {
        self.set_bits(FLAGS, 0x0f, value);
    }

    /// Sets the partition key.
    #[inline]
    pub fn set_partition_key(&mut self, value: u16) {
        write_u16(self.buffer.as_mut(), PARTITION_KEY, value);
    }

    /// Sets FECN.
    #[inline]
    pub fn set_forward_ecn(&mut self, value: bool) {
        self.set_bits(CONGESTION, 0x80, u8::from(value) << 7);
    }

    /// Sets BECN.
    #[inline]
    pub fn set_backward_ecn(&mut self, value: bool) {
        self.set_bits(CONGESTION, 0x40, u8::from(value) << 6);
    }

    /// Sets the destination queue pair number, of which 24 bits are taken.
    #[inline]
    pub fn set_destination_qp(&mut self, value: u32) {
        write_u24(self.buffer.as_mut(), DESTINATION_QP, value);
    }

    /// Sets the acknowledge request bit.
    #[inline]
    pub fn set_ack_request(&mut self, value: bool) {
        self.set_bits(ACK_REQUEST, 0x80, u8::from(value) << 7);
    }

    /// Sets the packet sequence number.
    #[inline]
    pub fn set_psn(&mut self, value: Psn) {
        write_u24(self.buffer.as_mut(), PSN, value.value());
    }

    /// Sets the six reserved bits next to FECN and BECN.
    #[inline]
    pub fn set_reserved_congestion(&mut self, value: u8) {
        self.set_bits(CONGESTION, 0x3f, value);
    }

    /// Sets the seven reserved bits next to the acknowledge request.
    #[inline]
    pub fn set_reserved_ack_request(&mut self, value: u8) {
        self.set_bits(ACK_REQUEST, 0x7f, value);
    }
}

/// The header as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the packet is.
    pub opcode: Opcode,
    /// Whether the responder is to raise an event when the message has arrived.
    pub solicited_event: bool,
    /// MigReq: the sender's path migration state is "migrated", as it is wherever nothing migrates.
    pub migration: bool,
    /// Bytes added to the payload, 0 to 3.
    pub pad_count: u8,
    /// Transport header version, 0 to 15; 0 is the only one there is.
    pub version: u8,
    /// The partition the packet belongs to.
    pub partition_key: u16,
    /// FECN: the packet met congestion.
    pub forward_ecn: bool,
    /// BECN: a packet in the other direction did.
    pub backward_ecn: bool,
    /// The queue pair the packet is for, 24 bits.
    pub destination_qp: u32,
    /// Whether the responder is to acknowledge this packet.
    pub ack_request: bool,
    /// The packet's sequence number.
    pub psn: Psn,
    /// Six bits next to FECN and BECN, sent as zero and ignored on receipt; kept so that a packet keeps its bytes.
    pub reserved_congestion: u8,
    /// Seven bits next to the acknowledge request, the same; these are covered by ICRC.
    pub reserved_ack_request: u8,
}

impl Header {
    /// A header with every field that is not named at the value it has in an ordinary packet.
    #[inline]
    pub const fn new(opcode: Opcode, destination_qp: u32, psn: Psn) -> Header {
        Header {
            opcode,
            solicited_event: false,
            migration: true,
            pad_count: 0,
            version: 0,
            partition_key: DEFAULT_PARTITION_KEY,
            forward_ecn: false,
            backward_ecn: false,
            destination_qp,
            ack_request: false,
            psn,
            reserved_congestion: 0,
            reserved_ack_request: 0,
        }
    }

    /// Takes all fields out of a view; fails when we do not speak the opcode.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(view: &Bth<T>) -> Result<Header, ParseError> {
        let byte = view.opcode_byte();
        let Some(opcode) = Opcode::from_byte(byte) else {
            return Err(ParseError::UnknownOpcode { byte });
        };
        Ok(Header {
            opcode,
            solicited_event: view.solicited_event(),
            migration: view.migration(),
            pad_count: view.pad_count(),
            version: view.version(),
            partition_key: view.partition_key(),
            forward_ecn: view.forward_ecn(),
            backward_ecn: view.backward_ecn(),
            destination_qp: view.destination_qp(),
            ack_request: view.ack_request(),
            psn: view.psn(),
            reserved_congestion: view.reserved_congestion(),
            reserved_ack_request: view.reserved_ack_request(),
        })
    }

    /// Puts all fields into a view.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, view: &mut Bth<T>) {
        view.set_opcode(self.opcode);
        view.set_solicited_event(self.solicited_event);
        view.set_migration(self.migration);
        view.set_pad_count(self.pad_count);
        view.set_version(self.version);
        view.set_partition_key(self.partition_key);
        view.set_forward_ecn(self.forward_ecn);
        view.set_backward_ecn(self.backward_ecn);
        view.set_destination_qp(self.destination_qp);
        view.set_ack_request(self.ack_request);
        view.set_psn(self.psn);
        view.set_reserved_congestion(self.reserved_congestion);
        view.set_reserved_ack_request(self.reserved_ack_request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 12] = [0x0b, 0xe0, 0x80, 0x01, 0xc5, 0x12, 0x34, 0x56, 0x83, 0xff, 0x00, 0x01];

    fn header() -> Header {
        Header {
            opcode: Opcode::RcWriteOnlyWithImmediate,
            solicited_event: true,
            migration: true,
            pad_count: 2,
            version: 0,
            partition_key: 0x8001,
            forward_ecn: true,
            backward_ecn: true,
            destination_qp: 0x12_3456,
            ack_request: true,
            psn: Psn::new(0xff_0001),
            reserved_congestion: 5,
            reserved_ack_request: 3,
        }
    }

    #[test]
    fn parse() {
        assert_eq!(Header::parse(&Bth::new_checked(BYTES).unwrap()), Ok(header()));
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 13];
        header().emit(&mut Bth::new_checked(&mut buffer[..]).unwrap());
        assert_eq!(buffer[..12], BYTES);
        assert_eq!(buffer[12], 0xa5, "nothing is written past the header");
    }

    #[test]
    fn an_ordinary_header() {
        let mut buffer = [0xa5; 12];
        Header::new(Opcode::UdSendOnly, 1, Psn::new(7)).emit(&mut Bth::new_checked(&mut buffer).unwrap());
        assert_eq!(buffer, [0x64, 0x40, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 7]);
    }

    #[test]
    fn too_wide_values_do_not_spill() {
        let mut wide = header();
        wide.destination_qp = 0xff12_3456;
        wide.pad_count = 0xf2;
        wide.version = 0xf0;
        wide.reserved_congestion = 0xc5;
        wide.reserved_ack_request = 0x83;
        let mut buffer = [0xa5; 12];
        wide.emit(&mut Bth::new_checked(&mut buffer).unwrap());
        assert_eq!(buffer, BYTES);
    }

    #[test]
    fn a_short_buffer_has_no_view() {
        let error = Bth::new_checked(&BYTES[..11]).unwrap_err();
        assert_eq!(error, Truncated { header: "BTH", expected_bytes: 12, found_bytes: 11 });
    }

    #[test]
    fn unknown_opcodes_are_named() {
        let mut bytes = BYTES;
        bytes[0] = 0x15;
        let view = Bth::new_checked(bytes).unwrap();
        assert_eq!(Header::parse(&view), Err(ParseError::UnknownOpcode { byte: 0x15 }));
    }
}
