//! The acknowledge extended transport header: how a request fared.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+---+---------+-----------------------------------------------+
//! |0| t |  value  |           message sequence number             |
//! +-+---+---------+-----------------------------------------------+
//!    t 00 ACK, value: credits        t 10 reserved
//!      01 RNR NAK, value: timer        11 NAK, value: code
//! ```
//!
//! In acknowledgements, atomic acknowledgements and all READ responses but the middle ones (IBTA 9.3.5). The first byte
//! is the *syndrome* (IBTA 9.7.5). The message sequence number counts
//! the messages that the responder has completed.

use crate::Truncated;
use crate::field::{self, Field, read_u24, write_u24};
use core::time::Duration;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 4;

/// A view of the header over a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth<T> {
    buffer: T,
}

const SYNDROME: usize = 0;
const MESSAGE_SEQUENCE_NUMBER: Field = 1..4;

impl<T: AsRef<[u8]>> Aeth<T> {
    /// A view, when the buffer is long enough for the header.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Aeth<T>, Truncated> {
        field::check_length(buffer.as_ref(), "AETH", HEADER_BYTES)?;
        Ok(Aeth { buffer })
    }

    /// How the request fared.
    #[inline]
    pub fn syndrome(&self) -> Syndrome {
        Syndrome::from_byte(self.buffer.as_ref()[SYNDROME])
    }

    /// How many messages the responder has completed, modulo 2^24.
    #[inline]
    pub fn message_sequence_number(&self) -> u32 {
        read_u24(self.buffer.as_ref(), MESSAGE_SEQUENCE_NUMBER)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Aeth<T> {
    /// Sets the syndrome.
    #[inline]
    pub fn set_syndrome(&mut self, value: Syndrome) {
        self.buffer.as_mut()[SYNDROME] = value.byte();
    }

    /// Sets the message sequence number, of which 24 bits are taken.
    #[inline]
    pub fn set_message_sequence_number(&mut self, value: u32) {
        write_u24(self.buffer.as_mut(), MESSAGE_SEQUENCE_NUMBER, value);
    }
}

/// How a request fared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// Done.
    Ack {
        /// Code of the number of receives that are posted, 0 to 31: [`credit_count`] decodes it.
        credits: u8,
    },
    /// Receiver not ready: nothing is posted; try again.
    RnrNak {
        /// Code of the time to wait first, 0 to 31: [`rnr_timer_duration`] decodes it.
        timer: u8,
    },
    /// Refused, or something is missing before it.
    Nak(NakCode),
    /// A byte that the specification gives no meaning.
    Reserved(u8),
}

/// Why a request was refused (IBTA 9.7.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum NakCode {
    /// A packet before this one is missing: send again from the PSN in this packet.
    PsnSequenceError = 0,
    /// The request makes no sense or does not fit: a length, an operation, an order of packets.
    InvalidRequest = 1,
    /// The key does not allow it.
    RemoteAccessError = 2,
    /// The responder has a problem of its own.
    RemoteOperationalError = 3,
    /// Reliable datagrams only.
    InvalidRdRequest = 4,
}

impl Syndrome {
    /// An acknowledgement by a responder that does not count credits (IBTA 9.7.7.2: code 31).
    pub const ACK_WITHOUT_CREDITS: Syndrome = Syndrome::Ack { credits: 31 };

    /// The meaning of a byte; every byte has one, and gives back the same byte.
    #[inline]
    pub const fn from_byte(byte: u8) -> Syndrome {
        let value = byte & 0x1f;
        match (byte >> 5, value) {
            (0b000, _) => Syndrome::Ack { credits: value },
            (0b001, _) => Syndrome::RnrNak { timer: value },
            (0b011, 0) => Syndrome::Nak(NakCode::PsnSequenceError),
            (0b011, 1) => Syndrome::Nak(NakCode::InvalidRequest),
            (0b011, 2) => Syndrome::Nak(NakCode::RemoteAccessError),
            (0b011, 3) => Syndrome::Nak(NakCode::RemoteOperationalError),
            (0b011, 4) => Syndrome::Nak(NakCode::InvalidRdRequest),
            _ => Syndrome::Reserved(byte),
        }
    }

    /// The byte; of credits and timer five bits are taken.
    #[inline]
    pub const fn byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak { timer } => 0x20 | (timer & 0x1f),
            Syndrome::Nak(code) => 0x60 | code as u8,
            Syndrome::Reserved(byte) => byte,
        }
    }
}

/// The number of posted receives that a credit code stands for; `None` for code 31, "not counted" (IBTA 9.7.7.2).
///
/// Each pair of codes doubles: …, 4, 6, 8, 12, 16, 24, … Of `code` five bits are taken.
pub const fn credit_count(code: u8) -> Option<u16> {
    match code & 0x1f {
        31 => None,
        code @ 0..=3 => Some(code as u16),
        code => Some((if code % 2 == 0 { 2 } else { 3 }) << (code / 2 - 1)),
    }
}

/// The time that a requester waits after "receiver not ready" (IBTA 9.7.5.2.8). Of `code` five bits are taken.
///
/// From 10 µs (code 1) to 491.52 ms (code 31); code 0 is the longest, 655.36 ms.
pub const fn rnr_timer_duration(code: u8) -> Duration {
    // In units of 10 µs the table is the one of credits from code 1 on.
    let units = match code & 0x1f {
        0 => 65_536,
        31 => 49_152,
        code => match credit_count(code) {
            Some(units) => units as u64,
            None => 0, // only 31, which is above
        },
    };
    Duration::from_micros(10 * units)
}

/// The header as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// How the request fared.
    pub syndrome: Syndrome,
    /// How many messages the responder has completed, 24 bits.
    pub message_sequence_number: u32,
}

impl Header {
    /// Takes all fields out of a view.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(view: &Aeth<T>) -> Header {
        Header { syndrome: view.syndrome(), message_sequence_number: view.message_sequence_number() }
    }

    /// Puts all fields into a view.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, view: &mut Aeth<T>) {
        view.set_syndrome(self.syndrome);
        view.set_message_sequence_number(self.message_sequence_number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 4] = [0x62, 0x01, 0x02, 0x03];
    const HEADER: Header =
        Header { syndrome: Syndrome::Nak(NakCode::RemoteAccessError), message_sequence_number: 0x01_0203 };

    #[test]
    fn parse() {
        assert_eq!(Header::parse(&Aeth::new_checked(BYTES).unwrap()), HEADER);
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 5];
        HEADER.emit(&mut Aeth::new_checked(&mut buffer[..]).unwrap());
        assert_eq!(buffer[..4], BYTES);
        assert_eq!(buffer[4], 0xa5);
    }

    #[test]
    fn a_short_buffer_has_no_view() {
        assert_eq!(Aeth::new_checked(&BYTES[..3]).unwrap_err().found_bytes, 3);
    }

    #[test]
    fn every_syndrome_byte_keeps_itself() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::from_byte(byte).byte(), byte);
        }
        assert_eq!(Syndrome::from_byte(0x1f), Syndrome::ACK_WITHOUT_CREDITS);
        assert_eq!(Syndrome::from_byte(0x2e), Syndrome::RnrNak { timer: 14 });
        assert_eq!(Syndrome::from_byte(0x45), Syndrome::Reserved(0x45));
        assert_eq!(Syndrome::from_byte(0x65), Syndrome::Reserved(0x65));
        assert_eq!(Syndrome::from_byte(0x80), Syndrome::Reserved(0x80));
    }

    #[test]
    fn rnr_timers_are_those_of_the_specification() {
        // In hundredths of a millisecond.
        let table: [u64; 32] = [
            65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
            4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
        ];
        for (code, units) in (0..).zip(table) {
            assert_eq!(rnr_timer_duration(code), Duration::from_micros(10 * units), "code {code}");
        }
        assert_eq!(rnr_timer_duration(0x21), rnr_timer_duration(1));
    }

    #[test]
    fn credit_codes_are_those_of_the_specification() {
        assert_eq!(credit_count(0), Some(0));
        assert_eq!(credit_count(4), Some(4));
        assert_eq!(credit_count(5), Some(6));
        assert_eq!(credit_count(30), Some(32_768));
        assert_eq!(credit_count(31), None);
    }
}
