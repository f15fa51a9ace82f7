//! The connection info: what an end must know of the other's queue pairs before they can be connected.
//!
//! ```text
//!   "SDR" · version 1, then fields (see [`crate::fields`]):
//!
//!   1  receiver            4     7  data               1 + 8 each
//!   2  address        16 + 2     8  message_bytes_max           8
//!   3  layout              3     9  first_number                8
//!   4  mtu                 4    10  control_version             1
//!   5  window              4    11  source_ports           2 each
//!   6  control             8    12  grants_credit               1
//!
//!   a queue pair:
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------------------------------------------------------+
//! |                       queue pair number                       |
//! +---------------+-----------------------------------------------+
//! |       0       |         first packet sequence number          |
//! +---------------+-----------------------------------------------+
//! ```

use crate::Truncated;
use crate::field::{self, read_u24, read_u32, write_u32};
use crate::fields::{self, Field, FieldError, FieldProblem, FieldWriter, Fields, Form, Tag};
use crate::immediate_layout::ImmediateLayout;

/// The version that this code writes and reads.
pub const VERSION: u8 = 1;

const FORM: Form = Form { magic: "SDR", version: VERSION, bytes_max: usize::MAX, may_be_padded: false };

const RECEIVER: Tag = Tag(1, "receiver id");
const ADDRESS: Tag = Tag(2, "address");
const LAYOUT: Tag = Tag(3, "division of the immediate");
const MTU: Tag = Tag(4, "MTU");
const WINDOW: Tag = Tag(5, "window");
const CONTROL: Tag = Tag(6, "control queue pair");
const DATA: Tag = Tag(7, "data queue pairs");
const MESSAGE_BYTES_MAX: Tag = Tag(8, "longest message");
const FIRST_NUMBER: Tag = Tag(9, "first number");
const CONTROL_VERSION: Tag = Tag(10, "version of control frames");
const SOURCE_PORTS: Tag = Tag(11, "source ports");
const GRANTS_CREDIT: Tag = Tag(12, "grants credit");

/// How to reach a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePairInfo<'a> {
    /// What control frames to it carry.
    pub receiver: u32,
    /// Its GID.
    pub gid: [u8; 16],
    /// Its UDP port; 4791 on everything but software RNICs that share a host.
    pub udp_port: u16,
    /// How it divides the immediate.
    pub layout: ImmediateLayout,
    /// Payload of a packet that its path carries.
    pub mtu: u32,
    /// Data packets that it has receives for.
    pub window: u32,
    /// The queue pair for control frames.
    pub control: QueuePair,
    /// Generations of internal queue pairs.
    pub generations: u8,
    /// The internal queue pairs ([`QueuePair::parse`]): those of generation 0, one for each channel, then those of generation 1, …
    pub data: &'a [[u8; QUEUE_PAIR_BYTES]],
    /// The longest message that it takes.
    pub message_bytes_max: u64,
    /// The number of the first message in both directions. 0 is not written, and is what a missing field means.
    pub first_number: u64,
    /// The version of control frames that it speaks; 1 where the info does not say, as before there was a second.
    pub control_version: u8,
    /// The UDP ports that packets of its queue pairs come from, big-endian: the control one's, then the data ones'. Nothing at
    /// all where the device does not show them.
    pub source_ports: &'a [[u8; 2]],
    /// It answers announcements with grants ([`crate::control::CreditGrant`]). Not written, and false, where it does not.
    pub grants_credit: bool,
}

/// A queue pair, and the first packet sequence number that it sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueuePair {
    /// Its number.
    pub number: u32,
    /// The packet sequence number, 24 bits.
    pub first_psn: u32,
}

/// Bytes of a queue pair.
pub const QUEUE_PAIR_BYTES: usize = 8;

impl QueuePair {
    /// Reads one.
    pub fn parse(bytes: &[u8; QUEUE_PAIR_BYTES]) -> QueuePair {
        QueuePair { number: read_u32(bytes, 0..4), first_psn: read_u24(bytes, 5..8) }
    }

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; QUEUE_PAIR_BYTES] {
        let mut bytes = [0; QUEUE_PAIR_BYTES];
        write_u32(&mut bytes, 0..4, self.number);
        write_u32(&mut bytes, 4..8, self.first_psn & 0xff_ffff);
        bytes
    }
}

impl<'a> QueuePairInfo<'a> {
    /// Reads one.
    pub fn parse(bytes: &'a [u8]) -> Result<QueuePairInfo<'a>, FieldError> {
        let fields = Fields::new_checked(&FORM, bytes)?;
        let need = |tag: Tag| fields.last_of(tag).ok_or(FieldError::Missing(tag.1));
        let address: [u8; 18] = need(ADDRESS)?.array()?;
        let (gid, port) = address.split_first_chunk().expect("18 bytes are more than 16");
        let (generations, data) = data_queue_pairs(&need(DATA)?)?;
        let layout = need(LAYOUT)?;
        let [message, packet, user] = layout.array()?;
        Ok(QueuePairInfo {
            receiver: need(RECEIVER)?.u32()?,
            gid: *gid,
            udp_port: field::read_u16(port, 0..2),
            layout: ImmediateLayout::new(message, packet, user)
                .map_err(|error| layout.wrong(FieldProblem::Layout(error)))?,
            mtu: need(MTU)?.u32()?,
            window: need(WINDOW)?.u32()?,
            control: QueuePair::parse(&need(CONTROL)?.array()?),
            generations,
            data,
            message_bytes_max: need(MESSAGE_BYTES_MAX)?.u64()?,
            first_number: fields.last_of(FIRST_NUMBER).map_or(Ok(0), |field| field.u64())?,
            control_version: fields.last_of(CONTROL_VERSION).map_or(Ok(1), |field| field.u8())?,
            source_ports: fields.last_of(SOURCE_PORTS).map_or(Ok(&[][..]), |field| ports(&field, 1 + data.len()))?,
            grants_credit: fields.last_of(GRANTS_CREDIT).map_or(Ok(0), |field| field.u8())? != 0,
        })
    }

    /// Writes it at the beginning of `bytes`; how many they are.
    pub fn emit(&self, bytes: &mut [u8]) -> Result<usize, Truncated> {
        let mut writer = FieldWriter::new(bytes, &FORM);
        writer.push(RECEIVER, &self.receiver.to_be_bytes());
        writer.push_parts(ADDRESS, [&self.gid, &self.udp_port.to_be_bytes()]);
        writer.push(LAYOUT, &<[u8; 3]>::from(self.layout.bits()));
        writer.push(MTU, &self.mtu.to_be_bytes());
        writer.push(WINDOW, &self.window.to_be_bytes());
        writer.push(CONTROL, &self.control.to_bytes());
        writer.push_parts(DATA, [&[self.generations], self.data.as_flattened()]);
        writer.push(MESSAGE_BYTES_MAX, &self.message_bytes_max.to_be_bytes());
        writer.push(CONTROL_VERSION, &[self.control_version]);
        if self.first_number != 0 {
            writer.push(FIRST_NUMBER, &self.first_number.to_be_bytes());
        }
        if !self.source_ports.is_empty() {
            writer.push(SOURCE_PORTS, self.source_ports.as_flattened());
        }
        if self.grants_credit {
            writer.push(GRANTS_CREDIT, &[1]);
        }
        writer.finish()
    }

    /// Bytes of it.
    pub fn byte_count(&self) -> usize {
        fields::byte_count(|bytes| self.emit(bytes))
    }
}

fn data_queue_pairs<'a>(field: &Field<'a>) -> Result<(u8, &'a [[u8; QUEUE_PAIR_BYTES]]), FieldError> {
    let (generations, rest) = field.value.split_first().unwrap_or((&0, &[]));
    let (pairs, cut_off) = rest.as_chunks();
    let is_even = *generations > 0 && pairs.len().is_multiple_of((*generations).into());
    if !is_even || pairs.is_empty() || !cut_off.is_empty() {
        return Err(field.wrong(FieldProblem::QueuePairs { bytes: rest.len(), generations: *generations }));
    }
    Ok((*generations, pairs))
}

fn ports<'a>(field: &Field<'a>, count: usize) -> Result<&'a [[u8; 2]], FieldError> {
    match field.value.as_chunks() {
        (ports, []) if ports.len() == count => Ok(ports),
        _ => Err(field.wrong(FieldProblem::Length { expected: 2 * count, found: field.value.len() })),
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;
    use std::vec;
    use std::vec::Vec;

    use super::*;

    const INFO: QueuePairInfo<'_> = QueuePairInfo {
        receiver: 0x0102_0304,
        gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1],
        udp_port: 4791,
        layout: ImmediateLayout::PAPER,
        mtu: 4096,
        window: 1000,
        control: QueuePair { number: 5, first_psn: 6 },
        generations: 2,
        data: &[[0, 0, 0, 7, 0, 0, 0, 8], [0, 0, 0, 9, 0, 0, 0, 10]],
        message_bytes_max: 0x0400_0000,
        first_number: 0,
        control_version: 2,
        source_ports: &[[0xc0, 1], [0, 0], [0xc0, 3]],
        grants_credit: false,
    };

    fn emitted(info: &QueuePairInfo<'_>) -> Vec<u8> {
        let mut bytes = vec![0xa5; info.byte_count()];
        assert_eq!(info.emit(&mut bytes), Ok(bytes.len()));
        bytes
    }

    #[test]
    fn the_document_is_true() {
        let tags = [
            (RECEIVER.0, "receiver"),
            (ADDRESS.0, "address"),
            (LAYOUT.0, "layout"),
            (MTU.0, "mtu"),
            (WINDOW.0, "window"),
            (CONTROL.0, "control"),
            (DATA.0, "data"),
            (MESSAGE_BYTES_MAX.0, "message_bytes_max"),
            (FIRST_NUMBER.0, "first_number"),
            (CONTROL_VERSION.0, "control_version"),
            (SOURCE_PORTS.0, "source_ports"),
            (GRANTS_CREDIT.0, "grants_credit"),
        ];
        crate::document::check_numbers("Connection info", 0, &tags);
    }

    #[test]
    fn golden_bytes() {
        let mut expected = b"SDR\x01".to_vec();
        expected.extend([0, 1, 0, 4, 1, 2, 3, 4]);
        expected.extend([0, 2, 0, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1, 0x12, 0xb7]);
        expected.extend([0, 3, 0, 3, 10, 18, 4]);
        expected.extend([0, 4, 0, 4, 0, 0, 0x10, 0]);
        expected.extend([0, 5, 0, 4, 0, 0, 3, 0xe8]);
        expected.extend([0, 6, 0, 8, 0, 0, 0, 5, 0, 0, 0, 6]);
        expected.extend([0, 7, 0, 17, 2, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 10]);
        expected.extend([0, 8, 0, 8, 0, 0, 0, 0, 4, 0, 0, 0]);
        // What an end does not say: the version of control messages, as long as there was one, and source ports that it does not know.
        let silent = QueuePairInfo { control_version: 1, source_ports: &[], ..INFO };
        assert_eq!(QueuePairInfo::parse(&expected), Ok(silent));
        expected.extend([0, 10, 0, 1, 2]);
        let portless = QueuePairInfo { source_ports: &[], ..INFO };
        assert_eq!(emitted(&portless), expected);
        expected.extend([0, 11, 0, 6, 0xc0, 1, 0, 0, 0xc0, 3]);
        assert_eq!(emitted(&INFO), expected);
        assert_eq!(QueuePairInfo::parse(&expected), Ok(INFO));
        let granter = QueuePairInfo { grants_credit: true, ..INFO };
        assert_eq!(emitted(&granter), [&expected[..], &[0, 12, 0, 1, 1]].concat());
        assert_eq!(QueuePairInfo::parse(&emitted(&granter)), Ok(granter));
        let late = QueuePairInfo { first_number: 0x0102_0304_0506_0708, ..INFO };
        let first_number = [0, 9, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];
        expected.splice(expected.len() - 10..expected.len() - 10, first_number);
        assert_eq!(emitted(&late), expected);
        assert_eq!(QueuePairInfo::parse(&expected), Ok(late));
    }

    #[test]
    fn fields_of_later_versions_are_skipped() {
        let mut bytes = emitted(&INFO);
        bytes.extend([0x12, 0x34, 0, 2, 1, 2]);
        assert_eq!(QueuePairInfo::parse(&bytes), Ok(INFO));
    }

    #[test]
    fn what_cannot_be_read() {
        let bytes = emitted(&INFO);
        let refusal = |bytes: &[u8]| QueuePairInfo::parse(bytes).expect_err("it is not right").to_string();
        assert!(refusal(b"HTTP/1.1").contains("begin with \"SDR\""));
        assert!(refusal(b"SD").contains("begin with \"SDR\""));
        assert_eq!(
            refusal(b"SDR\x02"),
            "this end speaks version 1 of the connection info, the peer version 2; update the older one"
        );
        assert_eq!(refusal(b"SDR\x01"), "the connection info has no address");
        assert_eq!(refusal(&bytes[..bytes.len() - 1]), "the connection info ends in the middle of a field");
        let fewer = QueuePairInfo { source_ports: &[[0, 1], [0, 2]], ..INFO };
        assert_eq!(refusal(&emitted(&fewer)), "field source ports of the connection info: expected 6 bytes, got 4");
        let mut wrong = bytes.clone();
        wrong[16 + 18 + 4] = 11;
        let sum = "expected fields that have 32 bits together, got 11 + 18 + 4";
        assert!(refusal(&wrong).ends_with(sum), "{}", refusal(&wrong));
        // No byte of it can be cut off or changed into something that panics.
        for length in 0..bytes.len() {
            let _ = QueuePairInfo::parse(&bytes[..length]);
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[length] = value;
                let _ = QueuePairInfo::parse(&changed);
            }
        }
    }
}
