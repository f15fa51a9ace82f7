//! The IPv4 header, without options.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+---------------+-------------------------------+
//! |   4   |   5   |type of service|         total length          |
//! +-------+-------+---------------+-----+-------------------------+
//! |        identification         |flags|     fragment offset     |
//! +---------------+---------------+-----+-------------------------+
//! | time to live  |   protocol    |        header checksum        |
//! +---------------+---------------+-------------------------------+
//! |                        source address                         |
//! +---------------------------------------------------------------+
//! |                      destination address                      |
//! +---------------------------------------------------------------+
//! ```
//!
//! RFC 791. RoCEv2 packets have no options, are no fragments, and have "don't fragment" set (A17.3.1.1); [`Ipv4::is_plain`] and
//! [`Header::is_fragment`] tell. ICRC covers everything but type of service, time to live and checksum.

use crate::field::{self, Field, read_u16, read_u32, write_u16, write_u32};
use crate::{Ecn, Truncated};
use core::net::Ipv4Addr;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 20;

/// "Don't fragment", in the word of flags and fragment offset.
pub const DONT_FRAGMENT: u16 = 0x4000;

/// "More fragments" and the offset: not zero in a fragment.
const FRAGMENT: u16 = 0x3fff;

/// Version 4, five words of header.
pub(crate) const VERSION_AND_LENGTH_OF_PLAIN_HEADER: u8 = 0x45;

/// A view of the header over a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4<T> {
    buffer: T,
}

const VERSION_AND_LENGTH: usize = 0;
const TYPE_OF_SERVICE: usize = 1;
const TOTAL_LENGTH: Field = 2..4;
const IDENTIFICATION: Field = 4..6;
const FLAGS_FRAGMENT: Field = 6..8;
const TIME_TO_LIVE: usize = 8;
const PROTOCOL: usize = 9;
const CHECKSUM: Field = 10..12;
const SOURCE: Field = 12..16;
const DESTINATION: Field = 16..20;

impl<T: AsRef<[u8]>> Ipv4<T> {
    /// A view, when the buffer is long enough for the header. Whether it holds one is [`Ipv4::is_plain`].
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Ipv4<T>, Truncated> {
        field::check_length(buffer.as_ref(), "IPv4 header", HEADER_BYTES)?;
        Ok(Ipv4 { buffer })
    }

    /// Version and header length, as one byte.
    #[inline]
    pub fn version_and_length(&self) -> u8 {
        self.buffer.as_ref()[VERSION_AND_LENGTH]
    }

    /// Whether this is version 4 without options.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.version_and_length() == VERSION_AND_LENGTH_OF_PLAIN_HEADER
    }

    /// DSCP and ECN.
    #[inline]
    pub fn type_of_service(&self) -> u8 {
        self.buffer.as_ref()[TYPE_OF_SERVICE]
    }

    /// Bytes of header and payload.
    #[inline]
    pub fn total_length(&self) -> u16 {
        read_u16(self.buffer.as_ref(), TOTAL_LENGTH)
    }

    /// Distinguishes fragments of different packets; covered by the ICRC even where nothing is ever fragmented.
    #[inline]
    pub fn identification(&self) -> u16 {
        read_u16(self.buffer.as_ref(), IDENTIFICATION)
    }

    /// Three flags and the fragment offset.
    #[inline]
    pub fn flags_fragment(&self) -> u16 {
        read_u16(self.buffer.as_ref(), FLAGS_FRAGMENT)
    }

    /// How many routers the packet may still pass.
    #[inline]
    pub fn time_to_live(&self) -> u8 {
        self.buffer.as_ref()[TIME_TO_LIVE]
    }

    /// What the payload is.
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.buffer.as_ref()[PROTOCOL]
    }

    /// The checksum as it is in the header.
    #[inline]
    pub fn checksum(&self) -> u16 {
        read_u16(self.buffer.as_ref(), CHECKSUM)
    }

    /// The sender.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(read_u32(self.buffer.as_ref(), SOURCE))
    }

    /// The receiver.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(read_u32(self.buffer.as_ref(), DESTINATION))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv4<T> {
    /// Sets version 4 and a length without options.
    #[inline]
    pub fn set_plain(&mut self) {
        self.buffer.as_mut()[VERSION_AND_LENGTH] = VERSION_AND_LENGTH_OF_PLAIN_HEADER;
    }

    /// Sets DSCP and ECN.
    #[inline]
    pub fn set_type_of_service(&mut self, value: u8) {
        self.buffer.as_mut()[TYPE_OF_SERVICE] = value;
    }

    /// Sets the number of bytes of header and payload.
    #[inline]
    pub fn set_total_length(&mut self, value: u16) {
        write_u16(self.buffer.as_mut(), TOTAL_LENGTH, value);
    }

    /// Sets the identification.
    #[inline]
    pub fn set_identification(&mut self, value: u16) {
        write_u16(self.buffer.as_mut(), IDENTIFICATION, value);
    }

    /// Sets flags and fragment offset.
    #[inline]
    pub fn set_flags_fragment(&mut self, value: u16) {
        write_u16(self.buffer.as_mut(), FLAGS_FRAGMENT, value);
    }

    /// Sets the number of routers the packet may pass.
    #[inline]
    pub fn set_time_to_live(&mut self, value: u8) {
        self.buffer.as_mut()[TIME_TO_LIVE] = value;
    }

    /// Sets what the payload is.
    #[inline]
    pub fn set_protocol(&mut self, value: u8) {
        self.buffer.as_mut()[PROTOCOL] = value;
    }

    /// Sets the checksum as it is to be in the header.
    #[inline]
    pub fn set_checksum(&mut self, value: u16) {
        write_u16(self.buffer.as_mut(), CHECKSUM, value);
    }

    /// Sets the sender.
    #[inline]
    pub fn set_source(&mut self, value: Ipv4Addr) {
        write_u32(self.buffer.as_mut(), SOURCE, value.to_bits());
    }

    /// Sets the receiver.
    #[inline]
    pub fn set_destination(&mut self, value: Ipv4Addr) {
        write_u32(self.buffer.as_mut(), DESTINATION, value.to_bits());
    }
}

/// The header as a value: version 4, no options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// DSCP and ECN.
    pub type_of_service: u8,
    /// Bytes of header and payload.
    pub total_length: u16,
    /// Distinguishes fragments of different packets; covered by the ICRC even where nothing is ever fragmented.
    pub identification: u16,
    /// Three flags and the fragment offset; [`DONT_FRAGMENT`] in an ordinary packet.
    pub flags_fragment: u16,
    /// How many routers the packet may still pass.
    pub time_to_live: u8,
    /// What the payload is.
    pub protocol: u8,
    /// The checksum as it is in the header, right or wrong.
    pub checksum: u16,
    /// The sender.
    pub source: Ipv4Addr,
    /// The receiver.
    pub destination: Ipv4Addr,
}

impl Header {
    /// Takes all fields out of a view.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(view: &Ipv4<T>) -> Header {
        Header {
            type_of_service: view.type_of_service(),
            total_length: view.total_length(),
            identification: view.identification(),
            flags_fragment: view.flags_fragment(),
            time_to_live: view.time_to_live(),
            protocol: view.protocol(),
            checksum: view.checksum(),
            source: view.source(),
            destination: view.destination(),
        }
    }

    /// Puts all fields into a view.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, view: &mut Ipv4<T>) {
        view.set_plain();
        view.set_type_of_service(self.type_of_service);
        view.set_total_length(self.total_length);
        view.set_identification(self.identification);
        view.set_flags_fragment(self.flags_fragment);
        view.set_time_to_live(self.time_to_live);
        view.set_protocol(self.protocol);
        view.set_checksum(self.checksum);
        view.set_source(self.source);
        view.set_destination(self.destination);
    }

    /// Whether routers must drop the packet rather than fragment it.
    #[inline]
    pub const fn dont_fragment(&self) -> bool {
        self.flags_fragment & DONT_FRAGMENT != 0
    }

    /// Whether this is a piece of a packet.
    #[inline]
    pub const fn is_fragment(&self) -> bool {
        self.flags_fragment & FRAGMENT != 0
    }

    /// The congestion mark.
    #[inline]
    pub const fn ecn(&self) -> Ecn {
        Ecn::from_bits(self.type_of_service)
    }

    /// The checksum that the other fields require (RFC 1071).
    pub fn computed_checksum(&self) -> u16 {
        let [source_high, source_low] = halves(self.source);
        let [destination_high, destination_low] = halves(self.destination);
        let words = [
            u16::from_be_bytes([VERSION_AND_LENGTH_OF_PLAIN_HEADER, self.type_of_service]),
            self.total_length,
            self.identification,
            self.flags_fragment,
            u16::from_be_bytes([self.time_to_live, self.protocol]),
            source_high,
            source_low,
            destination_high,
            destination_low,
        ];
        let sum: u32 = words.iter().map(|&word| u32::from(word)).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        !(sum as u16)
    }

    /// Whether the checksum is right.
    pub fn checksum_is_right(&self) -> bool {
        self.checksum == self.computed_checksum()
    }
}

fn halves(address: Ipv4Addr) -> [u16; 2] {
    let [a, b, c, d] = address.octets();
    [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Wikipedia's article on the checksum.
    const BYTES: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, // up to the checksum
        0xc0, 0xa8, 0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];
    const HEADER: Header = Header {
        type_of_service: 0,
        total_length: 0x73,
        identification: 0,
        flags_fragment: DONT_FRAGMENT,
        time_to_live: 64,
        protocol: 17,
        checksum: 0xb861,
        source: Ipv4Addr::new(192, 168, 0, 1),
        destination: Ipv4Addr::new(192, 168, 0, 199),
    };

    #[test]
    fn parse() {
        let view = Ipv4::new_checked(BYTES).unwrap();
        assert!(view.is_plain());
        assert_eq!(Header::parse(&view), HEADER);
    }

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 21];
        HEADER.emit(&mut Ipv4::new_checked(&mut buffer[..]).unwrap());
        assert_eq!(buffer[..20], BYTES);
        assert_eq!(buffer[20], 0xa5);
    }

    #[test]
    fn checksum() {
        assert!(HEADER.checksum_is_right());
        let wrong = Header { time_to_live: 63, ..HEADER };
        assert!(!wrong.checksum_is_right());
        assert_eq!(wrong.computed_checksum(), 0xb961);
    }

    #[test]
    fn flags() {
        assert!(HEADER.dont_fragment() && !HEADER.is_fragment());
        assert!(Header { flags_fragment: 0x2000, ..HEADER }.is_fragment());
        assert!(Header { flags_fragment: 0x0001, ..HEADER }.is_fragment());
    }

    #[test]
    fn a_short_buffer_has_no_view() {
        assert_eq!(Ipv4::new_checked(&BYTES[..19]).unwrap_err().found_bytes, 19);
    }
}
