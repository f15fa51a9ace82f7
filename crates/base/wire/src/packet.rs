//! A whole RoCEv2 packet: the payload of one UDP datagram.
//!
//! ```text
//! | BTH | DETH | RETH | AtomicETH | AETH | AtomicAckETH | ImmDt | IETH | payload | pad | ICRC |
//!   12     8      16        28       4         8            4      4      n bytes   0-3    4
//! ```
//!
//! The BTH and the ICRC are always there; the headers between them as the opcode says ([`Opcode`]), in this order
//! (IBTA 5.2). The pad makes the payload a multiple of four bytes and is not part of the message (IBTA 9.2).
//!
//! [`Packet::parse`] and [`Headers::parse_prefix`] are the receive path of the software NIC: they look at each length once and
//! copy headers, never payload. Neither looks at the ICRC; that is [`crate::icrc`]'s business, and needs to know the
//! addresses.

pub use crate::parse_error::ParseError;

use crate::aeth::Aeth;
use crate::atomic_ack::AtomicAck;
use crate::atomic_eth::AtomicEth;
use crate::bth::Bth;
use crate::deth::Deth;
use crate::icrc::{self, ICRC_BYTES, IcrcScope};
use crate::immediate::Immediate;
use crate::invalidate::Invalidate;
use crate::reth::Reth;
use crate::{Opcode, Psn, Syndrome, Truncated};
use crate::{aeth, atomic_ack, atomic_eth, bth, deth, immediate, invalidate, reth};
use core::fmt;

/// The most bytes that headers can have: an atomic request's.
pub const MAX_HEADER_BYTES: usize = bth::HEADER_BYTES + atomic_eth::HEADER_BYTES;

/// All headers of a packet. Which of the optional ones are there is decided by the opcode: [`Headers::emit`] insists on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Headers {
    /// In every packet.
    pub bth: bth::Header,
    /// In datagrams.
    pub deth: Option<deth::Header>,
    /// In READ requests and the first packet of a WRITE.
    pub reth: Option<reth::Header>,
    /// In atomic requests.
    pub atomic: Option<atomic_eth::Header>,
    /// In acknowledgements and READ responses but the middle ones.
    pub aeth: Option<aeth::Header>,
    /// In atomic acknowledgements: the value before the operation.
    pub atomic_ack: Option<atomic_ack::Header>,
    /// Four bytes for the receiver's completion.
    pub immediate: Option<u32>,
    /// The key that the receiver is to make invalid.
    pub invalidate: Option<u32>,
}

/// Why headers or a packet could not be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EmitError {
    /// The buffer is too short.
    BufferTooSmall {
        /// Bytes to be written.
        needed_bytes: usize,
        /// Bytes there are.
        available_bytes: usize,
    },
    /// An optional header is there that the opcode does not have, or is not there although the opcode has it.
    HeaderMismatch {
        /// The packet's opcode.
        opcode: Opcode,
        /// The header's name.
        header: &'static str,
        /// Whether the opcode has the header.
        expected: bool,
    },
}

impl fmt::Display for EmitError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            EmitError::BufferTooSmall { needed_bytes, available_bytes } => {
                write!(formatter, "{needed_bytes} bytes are to be written, and the buffer has {available_bytes}")
            }
            EmitError::HeaderMismatch { opcode, header, expected: true } => {
                write!(formatter, "{opcode} needs the header {header}, which is missing")
            }
            EmitError::HeaderMismatch { opcode, header, expected: false } => {
                write!(formatter, "{opcode} does not allow the header {header}; leave it out")
            }
        }
    }
}

impl core::error::Error for EmitError {}

impl Headers {
    /// Headers with nothing but a BTH, every field that is not named at the value it has in an ordinary packet. What else
    /// the opcode needs is the caller's to add.
    #[inline]
    pub const fn new(opcode: Opcode, destination_qp: u32, psn: Psn) -> Headers {
        Headers {
            bth: bth::Header::new(opcode, destination_qp, psn),
            deth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            immediate: None,
            invalidate: None,
        }
    }

    /// Bytes of all headers, by the opcode.
    #[inline]
    pub const fn byte_count(&self) -> usize {
        self.bth.opcode.header_bytes()
    }

    /// Takes the headers from the front of a datagram, and says how many bytes they have. What follows them is not looked
    /// at and need not be there.
    #[inline]
    pub fn parse_prefix(datagram: &[u8]) -> Result<(Headers, usize), ParseError> {
        let bth = bth::Header::parse(&Bth::new_checked(datagram)?)?;
        if bth.version != 0 {
            return Err(ParseError::UnsupportedVersion { version: bth.version });
        }
        let opcode = bth.opcode;
        let header_bytes = opcode.header_bytes();
        let Some(mut rest) = datagram.get(bth::HEADER_BYTES..header_bytes) else {
            return Err(truncated("headers", header_bytes, datagram));
        };
        let mut headers = Headers {
            bth,
            deth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            immediate: None,
            invalidate: None,
        };
        if opcode.has_deth() {
            headers.deth = Some(deth::Header::parse(&Deth::new_checked(rest)?));
            rest = &rest[deth::HEADER_BYTES..];
        }
        if opcode.has_reth() {
            headers.reth = Some(reth::Header::parse(&Reth::new_checked(rest)?));
            rest = &rest[reth::HEADER_BYTES..];
        }
        if opcode.has_atomic_eth() {
            headers.atomic = Some(atomic_eth::Header::parse(&AtomicEth::new_checked(rest)?));
            rest = &rest[atomic_eth::HEADER_BYTES..];
        }
        if opcode.has_aeth() {
            headers.aeth = Some(aeth::Header::parse(&Aeth::new_checked(rest)?));
            rest = &rest[aeth::HEADER_BYTES..];
        }
        if opcode.has_atomic_ack() {
            headers.atomic_ack = Some(atomic_ack::Header::parse(&AtomicAck::new_checked(rest)?));
            rest = &rest[atomic_ack::HEADER_BYTES..];
        }
        if opcode.has_immediate() {
            headers.immediate = Some(immediate::Header::parse(&Immediate::new_checked(rest)?).data);
            rest = &rest[immediate::HEADER_BYTES..];
        }
        if opcode.has_invalidate() {
            headers.invalidate = Some(invalidate::Header::parse(&Invalidate::new_checked(rest)?).remote_key);
        }
        Ok((headers, header_bytes))
    }

    /// Writes the headers to the front of a buffer, and says how many bytes they have.
    ///
    /// Numbers that are too wide for their field lose their upper bits. Nothing is written on an error.
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let opcode = self.bth.opcode;
        self.check_against_opcode()?;
        let header_bytes = opcode.header_bytes();
        let available_bytes = buffer.len();
        let too_small = EmitError::BufferTooSmall { needed_bytes: header_bytes, available_bytes };
        let Some(mut rest) = buffer.get_mut(..header_bytes) else {
            return Err(too_small);
        };
        // The opcode's headers fit, by the check above, so none of the views below is refused.
        let too_small = |_| too_small;
        self.bth.emit(&mut Bth::new_checked(&mut *rest).map_err(too_small)?);
        rest = &mut rest[bth::HEADER_BYTES..];
        if let Some(deth) = &self.deth {
            deth.emit(&mut Deth::new_checked(&mut *rest).map_err(too_small)?);
            rest = &mut rest[deth::HEADER_BYTES..];
        }
        if let Some(reth) = &self.reth {
            reth.emit(&mut Reth::new_checked(&mut *rest).map_err(too_small)?);
            rest = &mut rest[reth::HEADER_BYTES..];
        }
        if let Some(atomic) = &self.atomic {
            atomic.emit(&mut AtomicEth::new_checked(&mut *rest).map_err(too_small)?);
            rest = &mut rest[atomic_eth::HEADER_BYTES..];
        }
        if let Some(aeth) = &self.aeth {
            aeth.emit(&mut Aeth::new_checked(&mut *rest).map_err(too_small)?);
            rest = &mut rest[aeth::HEADER_BYTES..];
        }
        if let Some(atomic_ack) = &self.atomic_ack {
            atomic_ack.emit(&mut AtomicAck::new_checked(&mut *rest).map_err(too_small)?);
            rest = &mut rest[atomic_ack::HEADER_BYTES..];
        }
        if let Some(data) = self.immediate {
            immediate::Header { data }.emit(&mut Immediate::new_checked(&mut *rest).map_err(too_small)?);
            rest = &mut rest[immediate::HEADER_BYTES..];
        }
        if let Some(remote_key) = self.invalidate {
            invalidate::Header { remote_key }.emit(&mut Invalidate::new_checked(&mut *rest).map_err(too_small)?);
        }
        debug_assert!(
            self.bth.version & 0xf != 0
                || Headers::parse_prefix(buffer) == Ok((self.without_surplus_bits(), header_bytes)),
            "what was written reads differently: {self:?}"
        );
        Ok(header_bytes)
    }

    #[inline]
    fn check_against_opcode(&self) -> Result<(), EmitError> {
        let opcode = self.bth.opcode;
        let check = |given: bool, expected: bool, header| {
            if given == expected { Ok(()) } else { Err(EmitError::HeaderMismatch { opcode, header, expected }) }
        };
        check(self.deth.is_some(), opcode.has_deth(), "DETH")?;
        check(self.reth.is_some(), opcode.has_reth(), "RETH")?;
        check(self.atomic.is_some(), opcode.has_atomic_eth(), "AtomicETH")?;
        check(self.aeth.is_some(), opcode.has_aeth(), "AETH")?;
        check(self.atomic_ack.is_some(), opcode.has_atomic_ack(), "AtomicAckETH")?;
        check(self.immediate.is_some(), opcode.has_immediate(), "ImmDt")?;
        check(self.invalidate.is_some(), opcode.has_invalidate(), "IETH")
    }

    /// The same headers with the bits gone that do not fit into their fields.
    fn without_surplus_bits(&self) -> Headers {
        const MASK_24: u32 = 0xff_ffff;
        let mut headers = *self;
        headers.bth.destination_qp &= MASK_24;
        headers.bth.pad_count &= 0x3;
        headers.bth.version &= 0xf;
        headers.bth.reserved_congestion &= 0x3f;
        headers.bth.reserved_ack_request &= 0x7f;
        if let Some(deth) = &mut headers.deth {
            deth.source_qp &= MASK_24;
        }
        if let Some(aeth) = &mut headers.aeth {
            aeth.message_sequence_number &= MASK_24;
            aeth.syndrome = Syndrome::from_byte(aeth.syndrome.byte());
        }
        headers
    }
}

/// A packet, its payload still in the buffer that it came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// All headers.
    pub headers: Headers,
    /// The message's bytes, without the pad.
    pub payload: &'a [u8],
    /// The ICRC as it came, unchecked: see [`crate::icrc`].
    pub icrc: u32,
}

impl<'a> Packet<'a> {
    /// Takes a datagram apart.
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        let (headers, header_bytes) = Headers::parse_prefix(datagram)?;
        let pad_bytes = usize::from(headers.bth.pad_count);
        let tail = datagram[header_bytes..].split_last_chunk::<ICRC_BYTES>();
        let Some((payload, icrc)) =
            tail.and_then(|(padded, icrc)| Some((padded.get(..padded.len().checked_sub(pad_bytes)?)?, icrc)))
        else {
            return Err(truncated("headers, pad and ICRC", header_bytes + pad_bytes + ICRC_BYTES, datagram));
        };
        Ok(Packet { headers, payload, icrc: u32::from_le_bytes(*icrc) })
    }

    /// Bytes of the datagram.
    #[inline]
    pub const fn byte_count(&self) -> usize {
        let pad_bytes = (self.headers.bth.pad_count & 0x3) as usize;
        self.headers.byte_count() + self.payload.len() + pad_bytes + ICRC_BYTES
    }

    /// Writes the packet as it is: the pad that the BTH announces, as zeros, and the ICRC that is in `self`.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let (body, _) = self.emit_body(buffer)?;
        buffer[body..][..ICRC_BYTES].copy_from_slice(&self.icrc.to_le_bytes());
        Ok(body + ICRC_BYTES)
    }

    /// Writes all but the ICRC, for which there is room; says how many bytes were written, and how many there will be.
    #[inline]
    fn emit_body(&self, buffer: &mut [u8]) -> Result<(usize, usize), EmitError> {
        let needed_bytes = self.byte_count();
        if buffer.len() < needed_bytes {
            return Err(EmitError::BufferTooSmall { needed_bytes, available_bytes: buffer.len() });
        }
        let header_bytes = self.headers.emit(buffer)?;
        let (payload, rest) = buffer[header_bytes..].split_at_mut(self.payload.len());
        payload.copy_from_slice(self.payload);
        rest[..usize::from(self.headers.bth.pad_count & 0x3)].fill(0);
        Ok((needed_bytes - ICRC_BYTES, needed_bytes))
    }
}

/// Writes a datagram from headers and payload, with the right pad (in the BTH as well) and the right ICRC.
#[inline]
pub fn write_datagram(
    headers: &Headers,
    payload: &[u8],
    scope: &IcrcScope,
    buffer: &mut [u8],
) -> Result<usize, EmitError> {
    let mut packet = Packet { headers: *headers, payload, icrc: 0 };
    packet.headers.bth.pad_count = pad_count(payload.len());
    let (_, datagram_bytes) = packet.emit_body(buffer)?;
    icrc::write(scope, &mut buffer[..datagram_bytes]);
    Ok(datagram_bytes)
}

/// How many bytes make a payload a multiple of four, 0 to 3.
#[inline]
pub const fn pad_count(payload_bytes: usize) -> u8 {
    (payload_bytes.wrapping_neg() & 0x3) as u8
}

/// Bytes of a datagram with headers and payload of these sizes: pad and ICRC are added.
#[inline]
pub const fn datagram_bytes(header_bytes: usize, payload_bytes: usize) -> usize {
    header_bytes + payload_bytes + pad_count(payload_bytes) as usize + ICRC_BYTES
}

#[cold]
fn truncated(header: &'static str, expected_bytes: usize, datagram: &[u8]) -> ParseError {
    ParseError::Truncated(Truncated { header, expected_bytes, found_bytes: datagram.len() })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    /// RC WRITE only with immediate, five bytes of payload.
    const DATAGRAM: [u8; 44] = [
        0x0b, 0x70, 0xff, 0xff, 0x00, 0x00, 0x00, 0x12, 0x80, 0x00, 0x00, 0x2a, // BTH
        0x00, 0x00, 0x7f, 0x00, 0x00, 0x00, 0x10, 0x00, // address
        0x00, 0x00, 0x01, 0x02, 0x00, 0x00, 0x00, 0x05, // key, length
        0xde, 0xad, 0xbe, 0xef, // immediate
        b'h', b'e', b'l', b'l', b'o', 0x00, 0x00, 0x00, // payload, pad
        0x78, 0x56, 0x34, 0x12, // ICRC
    ];

    fn packet() -> Packet<'static> {
        let mut headers = Headers::new(Opcode::RcWriteOnlyWithImmediate, 0x12, Psn::new(42));
        headers.bth.pad_count = 3;
        headers.bth.ack_request = true;
        headers.reth = Some(reth::Header { virtual_address: 0x7f00_0000_1000, remote_key: 0x102, dma_length: 5 });
        headers.immediate = Some(0xdead_beef);
        Packet { headers, payload: b"hello", icrc: 0x1234_5678 }
    }

    #[test]
    fn parse() {
        assert_eq!(Packet::parse(&DATAGRAM), Ok(packet()));
        assert_eq!(Headers::parse_prefix(&DATAGRAM), Ok((packet().headers, 32)));
        assert_eq!(Headers::parse_prefix(&DATAGRAM[..32]), Ok((packet().headers, 32)));
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 46];
        assert_eq!(packet().emit(&mut buffer), Ok(44));
        assert_eq!(buffer[..44], DATAGRAM);
        assert_eq!(buffer[44..], [0xa5; 2], "nothing is written past the packet");
    }

    #[test]
    fn every_shorter_datagram_is_refused_with_the_length_it_should_have() {
        for length in 0..DATAGRAM.len() {
            let error = Packet::parse(&DATAGRAM[..length]);
            // A packet does not say how long it is: 39 bytes and more are headers, three bytes of pad and an ICRC.
            let expected_bytes = match length {
                0..12 => 12,
                12..32 => 32,
                32..39 => 39,
                _ => {
                    assert!(error.is_ok());
                    continue;
                }
            };
            match error {
                Err(ParseError::Truncated(error)) => {
                    assert_eq!((error.expected_bytes, error.found_bytes), (expected_bytes, length));
                }
                other => panic!("{length} bytes gave {other:?}"),
            }
        }
    }

    #[test]
    fn other_versions_are_refused() {
        let mut datagram = DATAGRAM;
        datagram[1] |= 0x2;
        assert_eq!(Packet::parse(&datagram), Err(ParseError::UnsupportedVersion { version: 2 }));
    }

    #[test]
    fn headers_must_fit_the_opcode() {
        let mut headers = packet().headers;
        headers.immediate = None;
        let opcode = Opcode::RcWriteOnlyWithImmediate;
        let error = headers.emit(&mut [0; 64]).unwrap_err();
        assert_eq!(error, EmitError::HeaderMismatch { opcode, header: "ImmDt", expected: true });
        assert_eq!(error.to_string(), "RC WRITE only with immediate needs the header ImmDt, which is missing");
        headers.bth.opcode = Opcode::RcWriteLast;
        let error = headers.emit(&mut [0; 64]).unwrap_err();
        assert_eq!(error, EmitError::HeaderMismatch { opcode: Opcode::RcWriteLast, header: "RETH", expected: false });
    }

    #[test]
    fn a_short_buffer_is_left_alone() {
        let mut buffer = [0xa5; 43];
        let error = packet().emit(&mut buffer).unwrap_err();
        assert_eq!(error, EmitError::BufferTooSmall { needed_bytes: 44, available_bytes: 43 });
        assert_eq!(buffer, [0xa5; 43]);
    }

    #[test]
    fn sizes() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(pad_count), [0, 3, 2, 1, 0, 3]);
        assert_eq!(datagram_bytes(32, 5), 44);
        let longest = Opcode::ALL.iter().map(|opcode| opcode.header_bytes()).max();
        assert_eq!(longest, Some(MAX_HEADER_BYTES));
    }
}
