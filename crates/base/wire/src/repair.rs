//! Repair packets: forward error correction below an unmodified transport (LoWAR's repair header, and what it lacks).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+-----------------------------------------------+
//! | opcode (0x1f) |        destination queue pair number          |
//! +---------------+-----------------------------------------------+
//! |     type      |                   base PSN                    |
//! +---------------+-+-+-+-+-+-+-+-+-------------------------------+
//! |  version (1)  |0 0|T|C|M|L|F|R|             epoch             |
//! +---------------+-+-+-+-+-+-+-+-+---------------+---------------+
//! | block packets | repair packets|     count     |     index     |
//! +---------------+---------------+---------------+---------------+
//! |          last length          |               0               |
//! +-------------------------------+-------------------------------+
//! |                            digest                             |
//! +---------------------------------------------------------------+
//! ```
//!
//! A datagram at RoCEv2's UDP port, with an opcode that RoCEv2 does not use: these headers, then what the type says, then the ICRC.
//! R: the packets are responses (READ responses have PSNs of their own); F, L: the first and the last packet of the block begin
//! and end a message; M: the code is MDS, not XOR; C: a copy of one acknowledgement; T: eight bytes of a keyed tag come before the ICRC.
//!
//! The ICRC covers all of it, the fifth byte too, which is masked in the BTH.
//!
//! - A **repair** packet ([`Kind::Repair`]) holds one sum of the packets of a block, in their [coded form](CODED_PREFIX_BYTES).
//! - An **announcement** ([`Kind::Announcement`]) says which PSN the next block begins at, and with which code. Nobody needs it to decode.
//! - A **report** ([`Kind::Report`], [`Report`]) goes the other way: what the receiver has seen of loss.
//!
//! # The digest
//!
//! CRCs are linear. The sum of three packets of one length with right ICRCs has a right ICRC: if a packet was repeated with other
//! bytes (a READ of memory that has changed), and the old repair packet is combined with the new packet, then the wrong packet that
//! comes out passes every check of its own. So each repair packet carries the sum of [`digest_of`] over all packets of its block,
//! which is not linear, and a restored packet counts only if the block has that digest.

use core::fmt;

use crate::field::{Field, read_u16, read_u24, read_u32, write_u16, write_u24, write_u32};
use crate::{Psn, Truncated};

/// The opcode: RC's transport bits and an operation that RC does not have.
pub const OPCODE: u8 = 0x1f;
/// The version of the format.
pub const VERSION: u8 = 1;
/// Bytes of the headers of a repair packet and of an announcement.
pub const HEADER_BYTES: usize = 24;
/// Bytes of the headers of a report.
pub const REPORT_BYTES: usize = 40;
/// Bytes of the keyed tag, when there is one.
pub const TAG_BYTES: usize = 8;
/// Lengths of bursts that a report counts: 1, 2, 3–4, 5–8, 9–16, 17–32, 33–64, and more.
pub const BURST_CLASSES: usize = 8;

/// Bytes before the datagram in a packet's coded form: its length (2, from BTH to ICRC), the flags and fragment offset of its IPv4
/// header (2, or 0), its UDP source port (2), and zeros (2). The datagram follows with the masked byte of the BTH as 0, and with the ICRC
/// that it would have with identification 0 and "don't fragment". Zeros follow up to the length of the sum.
pub const CODED_PREFIX_BYTES: usize = 8;

const QUEUE_PAIR: Field = 1..4;
const TYPE: usize = 4;
const BASE_PSN: Field = 5..8;
const VERSION_AT: usize = 8;
const FLAGS: usize = 9;
const EPOCH: Field = 10..12;
const BLOCK_PACKETS: usize = 12;
const REPAIR_PACKETS: usize = 13;
const COUNT: usize = 14;
const INDEX: usize = 15;
const LAST_LENGTH: Field = 16..18;
const ZERO: Field = 18..20;
const DIGEST: Field = 20..24;

const RECEIVED: Field = 12..16;
const LOST: Field = 16..20;
const RESTORED: Field = 20..24;
const BURSTS: usize = 24;

const RESPONSES: u8 = 1 << 0;
const HAS_FIRST: u8 = 1 << 1;
const HAS_LAST: u8 = 1 << 2;
const IS_MDS: u8 = 1 << 3;
const IS_COPY: u8 = 1 << 4;
const HAS_TAG: u8 = 1 << 5;

/// What a packet with the opcode is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A sum of packets.
    Repair = 1,
    /// What comes next; no sum.
    Announcement = 2,
    /// What the receiver has seen.
    Report = 3,
}

impl Kind {
    const fn from_byte(byte: u8) -> Option<Kind> {
        match byte {
            1 => Some(Kind::Repair),
            2 => Some(Kind::Announcement),
            3 => Some(Kind::Report),
            _ => None,
        }
    }
}

/// Which packets a header is about: the destination queue pair and which of its two spaces of PSNs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Subject {
    /// The queue pair that the packets are for, 24 bits.
    pub queue_pair: u32,
    /// READ responses, not requests.
    pub is_responses: bool,
}

/// The headers of a repair packet or of an announcement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Whose packets.
    pub subject: Subject,
    /// A repair packet or an announcement.
    pub is_announcement: bool,
    /// The PSN of the block's first packet; of the next block's in an announcement.
    pub base_psn: Psn,
    /// Counts how often the sender went back to a PSN that it had sent before, or skipped some.
    pub epoch: u16,
    /// The code is MDS; otherwise XOR.
    pub is_mds: bool,
    /// `r`: most packets of a block.
    pub block_packets: u8,
    /// `c`: most repair packets of a block.
    pub repair_packets: u8,
    /// Packets in this block, 1 to `block_packets`; in an announcement, as many as the next block has at most.
    pub count: u8,
    /// Which of the sums, from 0; 0 in an announcement.
    pub index: u8,
    /// The block's first packet begins a message.
    pub has_first: bool,
    /// The block's last packet ends a message.
    pub has_last: bool,
    /// Bytes of the block's last packet from BTH to ICRC if it ends a message; otherwise 0.
    pub last_length: u16,
    /// The body is a copy of one acknowledgement, which belongs to no block.
    pub is_copy: bool,
    /// A tag comes before the ICRC.
    pub has_tag: bool,
    /// The sum of [`digest_of`] over the block's packets.
    pub digest: u32,
}

/// What a receiver has seen of one direction since the beginning. Numbers wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// Whose packets.
    pub subject: Subject,
    /// The PSN that is expected next.
    pub next_psn: Psn,
    /// The epoch that the numbers end in.
    pub epoch: u16,
    /// A tag comes before the ICRC.
    pub has_tag: bool,
    /// Packets that have arrived.
    pub received: u32,
    /// Packets that have not, the restored ones among them.
    pub lost: u32,
    /// Packets that were restored.
    pub restored: u32,
    /// Bursts of lost packets by length, in the classes of [`BURST_CLASSES`].
    pub bursts: [u16; BURST_CLASSES],
}

/// A datagram of ours, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Datagram<'a> {
    /// A repair packet or an announcement, with the sum (empty in an announcement).
    Block(Header, &'a [u8]),
    /// A report.
    Report(Report),
}

/// Why a datagram is none of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RepairError {
    /// Shorter than its headers, the tag and the ICRC.
    Truncated(Truncated),
    /// Another opcode: a packet of RoCEv2, perhaps.
    OtherOpcode(u8),
    /// A version that we do not speak.
    Version(u8),
    /// A type that does not exist.
    Type(u8),
    /// Numbers that contradict each other.
    Contradiction(&'static str),
}

impl From<Truncated> for RepairError {
    fn from(error: Truncated) -> RepairError {
        RepairError::Truncated(error)
    }
}

impl fmt::Display for RepairError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RepairError::Truncated(error) => error.fmt(formatter),
            RepairError::OtherOpcode(byte) => write!(formatter, "expected opcode {OPCODE:#04x}, got {byte:#04x}"),
            RepairError::Version(version) => {
                write!(formatter, "expected version {VERSION} of repair packets, got {version}; update the older end")
            }
            RepairError::Type(byte) => write!(formatter, "expected type 1, 2 or 3 of a repair packet, got {byte}"),
            RepairError::Contradiction(what) => {
                write!(formatter, "the header of a repair packet contradicts itself: {what}")
            }
        }
    }
}

impl core::error::Error for RepairError {}

/// Whether a datagram has the opcode, and so must not reach a host.
#[inline]
pub fn is_repair(datagram: &[u8]) -> bool {
    datagram.first() == Some(&OPCODE)
}

/// What a packet adds to the digest of its block: its place in the block and the ICRC of its coded form, mixed. The sum wraps.
#[inline]
pub const fn digest_of(place: u8, icrc: u32) -> u32 {
    let mut mixed = icrc ^ (place as u32 + 1).wrapping_mul(0x9e37_79b1);
    mixed ^= mixed >> 16;
    mixed = mixed.wrapping_mul(0x85eb_ca6b);
    mixed ^= mixed >> 13;
    mixed = mixed.wrapping_mul(0xc2b2_ae35);
    mixed ^ (mixed >> 16)
}

/// The class of a burst's length in a report.
#[inline]
pub const fn burst_class(length: u32) -> usize {
    let class = length.saturating_sub(1).checked_ilog2();
    match class {
        None => 0,
        Some(bits) if (bits as usize) + 1 < BURST_CLASSES => bits as usize + 1,
        Some(_) => BURST_CLASSES - 1,
    }
}

impl<'a> Datagram<'a> {
    /// Takes a datagram apart. Neither the tag nor the ICRC is checked.
    pub fn parse(datagram: &'a [u8]) -> Result<Datagram<'a>, RepairError> {
        let need = |bytes: usize| match datagram.get(..bytes) {
            Some(_) => Ok(()),
            None => Err(Truncated { header: "repair packet", expected_bytes: bytes, found_bytes: datagram.len() }),
        };
        need(HEADER_BYTES)?;
        if !is_repair(datagram) {
            return Err(RepairError::OtherOpcode(datagram[0]));
        }
        if datagram[VERSION_AT] != VERSION {
            return Err(RepairError::Version(datagram[VERSION_AT]));
        }
        let kind = Kind::from_byte(datagram[TYPE]).ok_or(RepairError::Type(datagram[TYPE]))?;
        let flags = datagram[FLAGS];
        if flags >> 6 != 0 {
            return Err(RepairError::Contradiction("flags that version 1 does not have"));
        }
        let has_tag = flags & HAS_TAG != 0;
        let tail = crate::icrc::ICRC_BYTES + if has_tag { TAG_BYTES } else { 0 };
        let subject = Subject { queue_pair: read_u24(datagram, QUEUE_PAIR), is_responses: flags & RESPONSES != 0 };
        let (psn, epoch) = (Psn::new(read_u24(datagram, BASE_PSN)), read_u16(datagram, EPOCH));
        if kind == Kind::Report {
            need(REPORT_BYTES + tail)?;
            return Ok(Datagram::Report(Report {
                subject,
                next_psn: psn,
                epoch,
                has_tag,
                received: read_u32(datagram, RECEIVED),
                lost: read_u32(datagram, LOST),
                restored: read_u32(datagram, RESTORED),
                bursts: core::array::from_fn(|class| read_u16(datagram, BURSTS + 2 * class..BURSTS + 2 * class + 2)),
            }));
        }
        need(HEADER_BYTES + tail)?;
        let header = Header {
            subject,
            is_announcement: kind == Kind::Announcement,
            base_psn: psn,
            epoch,
            is_mds: flags & IS_MDS != 0,
            block_packets: datagram[BLOCK_PACKETS],
            repair_packets: datagram[REPAIR_PACKETS],
            count: datagram[COUNT],
            index: datagram[INDEX],
            has_first: flags & HAS_FIRST != 0,
            has_last: flags & HAS_LAST != 0,
            last_length: read_u16(datagram, LAST_LENGTH),
            is_copy: flags & IS_COPY != 0,
            has_tag,
            digest: read_u32(datagram, DIGEST),
        };
        let body = &datagram[HEADER_BYTES..datagram.len() - tail];
        header.check(body.len()).map_err(RepairError::Contradiction)?;
        Ok(Datagram::Block(header, body))
    }
}

impl Header {
    /// What `self` contradicts itself in, with a body of this many bytes.
    fn check(&self, body_bytes: usize) -> Result<(), &'static str> {
        let (block, repair) = (self.block_packets, self.repair_packets);
        let sums = self.repair_packets.min(self.count);
        let checks = [
            (block > 0 && repair > 0, "a block without packets or without repair packets"),
            (repair <= block || self.is_mds, "more XOR sums than packets"),
            (!self.is_mds || block.checked_add(repair).is_some(), "more than 255 packets with MDS"),
            (self.count > 0 && self.count <= block, "more packets than a block has, or none"),
            (self.is_announcement || self.index < sums, "a sum that the block does not have"),
            (!self.is_announcement || body_bytes == 0 && self.index == 0, "an announcement with a sum"),
            (self.is_announcement || body_bytes > CODED_PREFIX_BYTES, "a repair packet without a sum"),
            (self.has_last || self.last_length == 0, "a last length without a last packet"),
            (!self.is_copy || self.count == 1 && !self.is_announcement, "a copy of more than one packet"),
        ];
        checks.iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, what)| Err(*what))
    }

    /// Writes the headers to the front of a buffer.
    ///
    /// # Panics
    ///
    /// When the buffer has fewer than [`HEADER_BYTES`] bytes.
    pub fn emit(&self, buffer: &mut [u8]) {
        let kind = if self.is_announcement { Kind::Announcement } else { Kind::Repair };
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let flags = flag(self.has_first, HAS_FIRST)
            | flag(self.has_last, HAS_LAST)
            | flag(self.is_mds, IS_MDS)
            | flag(self.is_copy, IS_COPY);
        emit_start(buffer, kind, &self.subject, self.base_psn, self.epoch, flags | flag(self.has_tag, HAS_TAG));
        buffer[BLOCK_PACKETS] = self.block_packets;
        buffer[REPAIR_PACKETS] = self.repair_packets;
        buffer[COUNT] = self.count;
        buffer[INDEX] = self.index;
        write_u16(buffer, LAST_LENGTH, self.last_length);
        write_u16(buffer, ZERO, 0);
        write_u32(buffer, DIGEST, self.digest);
    }
}

impl Report {
    /// Writes the headers to the front of a buffer.
    ///
    /// # Panics
    ///
    /// When the buffer has fewer than [`REPORT_BYTES`] bytes.
    pub fn emit(&self, buffer: &mut [u8]) {
        let flags = if self.has_tag { HAS_TAG } else { 0 };
        emit_start(buffer, Kind::Report, &self.subject, self.next_psn, self.epoch, flags);
        write_u32(buffer, RECEIVED, self.received);
        write_u32(buffer, LOST, self.lost);
        write_u32(buffer, RESTORED, self.restored);
        for (class, &bursts) in self.bursts.iter().enumerate() {
            write_u16(buffer, BURSTS + 2 * class..BURSTS + 2 * class + 2, bursts);
        }
    }
}

fn emit_start(buffer: &mut [u8], kind: Kind, subject: &Subject, psn: Psn, epoch: u16, flags: u8) {
    buffer[0] = OPCODE;
    write_u24(buffer, QUEUE_PAIR, subject.queue_pair);
    buffer[TYPE] = kind as u8;
    write_u24(buffer, BASE_PSN, psn.value());
    buffer[VERSION_AT] = VERSION;
    buffer[FLAGS] = flags | if subject.is_responses { RESPONSES } else { 0 };
    write_u16(buffer, EPOCH, epoch);
}

#[cfg(test)]
#[path = "repair_tests.rs"]
mod tests;
