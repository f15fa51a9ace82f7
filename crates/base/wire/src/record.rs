//! Records of the reliability layer: what the ends of a connection report to each other about messages, inside scheme records
//! ([`crate::control::Record::Scheme`]) of control frames.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+
//! |     kind      |
//! +---------------+-----------------------------------------------+
//! |                          message (8)                          |
//! +---------------------------------------------------------------+
//!
//! then, of an offer (the checksum and the contents only in the kinds that have them):
//! +---------------------------------------------------------------+
//! |                          length (8)                           |
//! |                          offset (8)                           |
//! |                        part bytes (8)                         |
//! |                          chunk bytes                          |
//! |                       parity bytes (8)                        |
//! |                         checksum (8)                          |
//! |         scheme's name, to the contents or the end …           |
//! |             contents: the last `length` bytes …               |
//! +---------------------------------------------------------------+
//!
//! of a refusal:                          of a withdrawal or an arrival:
//! +---------------+---------------+      +------------------------+
//! |    reason     | was accepted  |      |    length, packets (8) |
//! +---------------+---------------+      +------------------------+
//! |  receiver's scheme, to the end …
//! +-------------------------------
//!
//! of an ending:
//! +---------------+---------------+---------------+
//! |    reason     |   is coarse   | was accepted  |
//! +---------------+---------------+---------------+---------------+
//! |                          length (8)                           |
//! |                          range count                          |
//! |                          first range                          |
//! |  ranges to the end: each a first packet (4), packets (4) …    |
//! +---------------------------------------------------------------+
//! ```
//!
//! The others have nothing after the message, or, of feedback, bytes of the scheme ([`crate::acknowledgement`]). The message is
//! one of `sdr`, named by the number of its data: a program's message, or a part of one. Names are UTF-8. A record of a kind
//! that is not known is skipped.

use crate::Truncated;
use crate::field::{self, Field, read_u32, read_u64, write_u32, write_u64};

/// Bytes before those of the kind.
pub const HEADER_BYTES: usize = 9;

const KIND: usize = 0;
const MESSAGE: Field = 1..9;
// Of an offer, after the header.
const LENGTH: Field = 0..8;
const OFFSET: Field = 8..16;
const PART_BYTES: Field = 16..24;
const CHUNK_BYTES: Field = 24..28;
const PARITY_BYTES: Field = 28..36;
const CHECKSUM: Field = 36..44;
// Of a refusal, after the header.
const REASON: usize = 0;
const WAS_ACCEPTED: usize = 1;
const REFUSED_SCHEME: usize = 2;
// Of a withdrawal or an arrival, after the header.
const NUMBER: Field = 0..8;
// Of an ending, after the header.
const ENDING: usize = 0;
const IS_COARSE: usize = 1;
const ENDED_WAS_ACCEPTED: usize = 2;
const ENDED_LENGTH: Field = 3..11;
const RANGE_COUNT: Field = 11..15;
const FIRST_RANGE: Field = 15..19;
/// Bytes of an ending before its ranges, after the record's header.
const ENDED_BYTES: usize = 19;
/// Bytes of a range: its first packet, and how many.
pub const RANGE_BYTES: usize = 8;
/// Bytes of an ending without ranges.
pub const ENDED_HEADER_BYTES: usize = HEADER_BYTES + ENDED_BYTES;

const KIND_OFFER: u8 = 1;
const KIND_FEEDBACK: u8 = 2;
const KIND_DONE: u8 = 3;
const KIND_REFUSED: u8 = 4;
const KIND_ACCEPTED: u8 = 5;
const KIND_WITHDRAWN: u8 = 6;
const KIND_ARRIVED: u8 = 7;
const KIND_OFFER_WITH_CHECKSUM: u8 = 8;
const KIND_OFFER_WITH_CONTENTS: u8 = 9;
const KIND_OFFER_WITH_BOTH: u8 = 10;
const KIND_SENT: u8 = 11;
const KIND_ENDED: u8 = 12;

/// One record, with names and feedback where they lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// The sender says what it is sending, and would like to hear how far that has come.
    Offer(Offer<'a>),
    /// The receiver's half of the scheme reports to the sender's.
    Feedback(&'a [u8]),
    /// The receiver has all that it needs.
    Done,
    /// The receiver has given the message up.
    Refused(Refused<'a>),
    /// Answers the offer of a first part: the receiver will have room for all others, and their numbers are theirs.
    Accepted,
    /// The sender has given up the message, named by its first part. It had this many bytes.
    Withdrawn(u64),
    /// This many packets of the part, data and parity, have arrived.
    Arrived(u64),
    /// Everything of the part has left the sender, which sends nothing of it again: what does not arrive soon is missing.
    Sent,
    /// The receiver has ended the part, with packets missing. As many of these as it takes to name them all.
    Ended(Ended<'a>),
}

/// Which packets were missing when the receiver ended a part: some of the ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended<'a> {
    /// What ended it.
    pub ending: Ending,
    /// Some packets that have arrived are within the ranges, because there were too many of these.
    pub is_coarse: bool,
    /// Whether the message had been accepted before, so that the numbers of its other parts are used up. Otherwise they are the next messages'.
    pub was_accepted: bool,
    /// Bytes that the receiver took the part to have: its own room, if it never heard the offer.
    pub length: u64,
    /// Ranges in all records together.
    pub range_count: u32,
    /// Which one is the first of this record.
    pub first_range: u32,
    ranges: &'a [u8],
}

/// What ended a part of which something was missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Ending {
    /// Everything had been sent, and nothing had arrived for a while.
    Quiet = 1,
    /// The receiver's deadline.
    Deadline = 2,
}

/// What a message is, and how it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer<'a> {
    /// Bytes of the program's message.
    pub length: u64,
    /// Where in it this part begins: 0 if it has but one.
    pub offset: u64,
    /// Bytes of each part but the last, if it has several.
    pub part_bytes: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Bytes of the part's parity.
    pub parity_bytes: u64,
    /// The checksum of the part's bytes, if the sender sends checksums. Such an offer is a kind of its own.
    pub checksum: Option<u64>,
    /// The scheme's name.
    pub scheme: &'a str,
    /// The whole message, if it is short enough to travel in its offer: `length` bytes. Such an offer is a kind of its own.
    pub contents: Option<&'a [u8]>,
}

/// That a message was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused<'a> {
    /// Why.
    pub reason: Refusal,
    /// Whether the numbers of the message's other parts are used up: it had been accepted before. Otherwise they are the next
    /// messages'.
    pub was_accepted: bool,
    /// The receiver's scheme.
    pub scheme: &'a str,
}

/// Why a message was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Refusal {
    /// The receiver has another scheme, or other parameters.
    OtherScheme = 1,
    /// It took too long.
    TimedOut = 2,
    /// It is longer than the receive.
    TooLong = 3,
    /// The receiver's device failed it.
    Failed = 4,
    /// The sender has given it up.
    Withdrawn = 5,
    /// The bytes that arrived do not have the checksum of the offer.
    Checksum = 6,
}

impl Refusal {
    /// All of them, in the order of their numbers.
    pub const ALL: [Refusal; 6] = [
        Refusal::OtherScheme,
        Refusal::TimedOut,
        Refusal::TooLong,
        Refusal::Failed,
        Refusal::Withdrawn,
        Refusal::Checksum,
    ];
}

impl Ending {
    /// All of them, in the order of their numbers.
    pub const ALL: [Ending; 2] = [Ending::Quiet, Ending::Deadline];
}

impl<'a> Record<'a> {
    /// Which message a record is about, and what it says; `None` when it cannot be read or is of another kind.
    pub fn parse(bytes: &'a [u8]) -> Option<(u64, Record<'a>)> {
        let (header, contents) = bytes.split_at_checked(HEADER_BYTES)?;
        let number = || contents.get(NUMBER).map(|bytes| read_u64(bytes, NUMBER));
        let record = match header[KIND] {
            KIND_OFFER => Record::Offer(Offer::parse(contents, false, false)?),
            KIND_OFFER_WITH_CHECKSUM => Record::Offer(Offer::parse(contents, true, false)?),
            KIND_OFFER_WITH_CONTENTS => Record::Offer(Offer::parse(contents, false, true)?),
            KIND_OFFER_WITH_BOTH => Record::Offer(Offer::parse(contents, true, true)?),
            KIND_FEEDBACK => Record::Feedback(contents),
            KIND_DONE => Record::Done,
            KIND_REFUSED => Record::Refused(Refused::parse(contents)?),
            KIND_ACCEPTED => Record::Accepted,
            KIND_WITHDRAWN => Record::Withdrawn(number()?),
            KIND_ARRIVED => Record::Arrived(number()?),
            KIND_SENT => Record::Sent,
            KIND_ENDED => Record::Ended(Ended::parse(contents)?),
            _ => return None,
        };
        Some((read_u64(header, MESSAGE), record))
    }

    /// Writes the record of a message at the beginning of `bytes`; how many they are.
    pub fn emit(&self, message: u64, bytes: &mut [u8]) -> Result<usize, Truncated> {
        let byte_count = self.byte_count();
        field::check_length(bytes, "a record", byte_count)?;
        let (header, contents) = bytes[..byte_count].split_at_mut(HEADER_BYTES);
        header[KIND] = self.kind();
        write_u64(header, MESSAGE, message);
        match self {
            Record::Offer(offer) => offer.emit(contents),
            Record::Feedback(feedback) => contents.copy_from_slice(feedback),
            Record::Done | Record::Accepted | Record::Sent => {}
            Record::Ended(ended) => ended.emit(contents),
            Record::Refused(refused) => {
                contents[REASON] = refused.reason as u8;
                contents[WAS_ACCEPTED] = refused.was_accepted.into();
                contents[REFUSED_SCHEME..].copy_from_slice(refused.scheme.as_bytes());
            }
            Record::Withdrawn(number) | Record::Arrived(number) => write_u64(contents, NUMBER, *number),
        }
        Ok(byte_count)
    }

    /// Bytes of the record.
    pub fn byte_count(&self) -> usize {
        HEADER_BYTES
            + match self {
                Record::Offer(offer) => offer.contents_at() + offer.contents.map_or(0, <[u8]>::len),
                Record::Feedback(feedback) => feedback.len(),
                Record::Done | Record::Accepted | Record::Sent => 0,
                Record::Ended(ended) => ENDED_BYTES + ended.ranges.len(),
                Record::Refused(refused) => REFUSED_SCHEME + refused.scheme.len(),
                Record::Withdrawn(_) | Record::Arrived(_) => NUMBER.end,
            }
    }

    fn kind(&self) -> u8 {
        match self {
            Record::Offer(Offer { checksum: None, contents: None, .. }) => KIND_OFFER,
            Record::Offer(Offer { checksum: Some(_), contents: None, .. }) => KIND_OFFER_WITH_CHECKSUM,
            Record::Offer(Offer { checksum: None, contents: Some(_), .. }) => KIND_OFFER_WITH_CONTENTS,
            Record::Offer(Offer { checksum: Some(_), contents: Some(_), .. }) => KIND_OFFER_WITH_BOTH,
            Record::Feedback(_) => KIND_FEEDBACK,
            Record::Done => KIND_DONE,
            Record::Refused(_) => KIND_REFUSED,
            Record::Accepted => KIND_ACCEPTED,
            Record::Withdrawn(_) => KIND_WITHDRAWN,
            Record::Arrived(_) => KIND_ARRIVED,
            Record::Sent => KIND_SENT,
            Record::Ended(_) => KIND_ENDED,
        }
    }
}

impl<'a> Offer<'a> {
    fn scheme_at(has_checksum: bool) -> usize {
        if has_checksum { CHECKSUM.end } else { CHECKSUM.start }
    }

    fn contents_at(&self) -> usize {
        Offer::scheme_at(self.checksum.is_some()) + self.scheme.len()
    }

    fn parse(bytes: &'a [u8], has_checksum: bool, has_contents: bool) -> Option<Offer<'a>> {
        let names = bytes.get(Offer::scheme_at(has_checksum)..)?;
        let length = read_u64(bytes, LENGTH);
        let contents_bytes = if has_contents { usize::try_from(length).ok()? } else { 0 };
        let (scheme, contents) = names.split_at_checked(names.len().checked_sub(contents_bytes)?)?;
        Some(Offer {
            length,
            offset: read_u64(bytes, OFFSET),
            part_bytes: read_u64(bytes, PART_BYTES),
            chunk_bytes: read_u32(bytes, CHUNK_BYTES),
            parity_bytes: read_u64(bytes, PARITY_BYTES),
            checksum: has_checksum.then(|| read_u64(bytes, CHECKSUM)),
            scheme: str::from_utf8(scheme).ok()?,
            contents: has_contents.then_some(contents),
        })
    }

    fn emit(&self, bytes: &mut [u8]) {
        write_u64(bytes, LENGTH, self.length);
        write_u64(bytes, OFFSET, self.offset);
        write_u64(bytes, PART_BYTES, self.part_bytes);
        write_u32(bytes, CHUNK_BYTES, self.chunk_bytes);
        write_u64(bytes, PARITY_BYTES, self.parity_bytes);
        if let Some(checksum) = self.checksum {
            write_u64(bytes, CHECKSUM, checksum);
        }
        let contents_at = self.contents_at();
        bytes[Offer::scheme_at(self.checksum.is_some())..contents_at].copy_from_slice(self.scheme.as_bytes());
        bytes[contents_at..].copy_from_slice(self.contents.unwrap_or_default());
    }
}

impl<'a> Refused<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Refused<'a>> {
        let scheme = str::from_utf8(bytes.get(REFUSED_SCHEME..)?).ok()?;
        let reason = Refusal::ALL.into_iter().find(|known| *known as u8 == bytes[REASON])?;
        Some(Refused { reason, was_accepted: bytes[WAS_ACCEPTED] != 0, scheme })
    }
}

impl<'a> Ended<'a> {
    /// The record with these ranges, as [`range_bytes`] makes them.
    pub fn new(
        ending: Ending,
        is_coarse: bool,
        was_accepted: bool,
        length: u64,
        range_count: u32,
        first_range: u32,
        ranges: &'a [u8],
    ) -> Self {
        debug_assert!(ranges.len().is_multiple_of(RANGE_BYTES));
        Ended { ending, is_coarse, was_accepted, length, range_count, first_range, ranges }
    }

    /// Its ranges: packets from the first of each up to, and without, the other. Nothing in them has been checked.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = (u32, u32)> + use<'a> {
        self.ranges.chunks_exact(RANGE_BYTES).map(|range| {
            let (first, count) = (read_u32(range, 0..4), read_u32(range, 4..8));
            (first, first.saturating_add(count))
        })
    }

    fn parse(bytes: &'a [u8]) -> Option<Ended<'a>> {
        let (head, ranges) = bytes.split_at_checked(ENDED_BYTES)?;
        Some(Ended {
            ending: Ending::ALL.into_iter().find(|known| *known as u8 == head[ENDING])?,
            is_coarse: head[IS_COARSE] != 0,
            was_accepted: head[ENDED_WAS_ACCEPTED] != 0,
            length: read_u64(head, ENDED_LENGTH),
            range_count: read_u32(head, RANGE_COUNT),
            first_range: read_u32(head, FIRST_RANGE),
            ranges: &ranges[..ranges.len() / RANGE_BYTES * RANGE_BYTES],
        })
    }

    fn emit(&self, bytes: &mut [u8]) {
        let (head, ranges) = bytes.split_at_mut(ENDED_BYTES);
        head[ENDING] = self.ending as u8;
        head[IS_COARSE] = self.is_coarse.into();
        head[ENDED_WAS_ACCEPTED] = self.was_accepted.into();
        write_u64(head, ENDED_LENGTH, self.length);
        write_u32(head, RANGE_COUNT, self.range_count);
        write_u32(head, FIRST_RANGE, self.first_range);
        ranges.copy_from_slice(self.ranges);
    }
}

/// A range of packets as an ending has it: `count` from `first` on.
pub fn range_bytes(first: u32, count: u32) -> [u8; RANGE_BYTES] {
    let mut bytes = [0; RANGE_BYTES];
    write_u32(&mut bytes, 0..4, first);
    write_u32(&mut bytes, 4..8, count);
    bytes
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn emitted(record: &Record<'_>, message: u64) -> Vec<u8> {
        let mut bytes = vec![0xa5; record.byte_count()];
        assert_eq!(record.emit(message, &mut bytes), Ok(bytes.len()));
        bytes
    }

    const OFFER: Offer<'_> = Offer {
        length: 0x0102,
        offset: 0x0100,
        part_bytes: 0x80,
        chunk_bytes: 4096,
        parity_bytes: 7,
        checksum: None,
        scheme: "sr",
        contents: None,
    };
    const OFFER_WITH_CHECKSUM: Offer<'_> = Offer { checksum: Some(0x0102_0304_0506_0708), ..OFFER };
    const OFFER_WITH_CONTENTS: Offer<'_> = Offer { length: 3, offset: 0, contents: Some(b"abc"), ..OFFER };
    const OFFER_WITH_BOTH: Offer<'_> = Offer { checksum: Some(5), ..OFFER_WITH_CONTENTS };
    const REFUSED: Refused<'_> = Refused { reason: Refusal::TimedOut, was_accepted: true, scheme: "x" };

    const ENDED: Ended<'_> = Ended {
        ending: Ending::Deadline,
        is_coarse: true,
        was_accepted: true,
        length: 0x0102,
        range_count: 9,
        first_range: 7,
        ranges: &[0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 2],
    };

    #[test]
    fn the_document_is_true() {
        use crate::document::{check_layout, check_numbers};
        let offer = Offer {
            length: 1,
            offset: 2,
            part_bytes: 3,
            chunk_bytes: 4,
            parity_bytes: 5,
            checksum: Some(6),
            scheme: "sr:rto",
            contents: None,
        };
        let contents = Some(&b"!"[..]);
        let refused = Refused { reason: Refusal::TooLong, was_accepted: true, scheme: "sr:nack" };
        let records = [
            ("offer", Record::Offer(Offer { checksum: None, ..offer })),
            ("feedback", Record::Feedback(&[])),
            ("done", Record::Done),
            ("refused", Record::Refused(refused)),
            ("accepted", Record::Accepted),
            ("withdrawn", Record::Withdrawn(7)),
            ("arrived", Record::Arrived(8)),
            ("offer-with-checksum", Record::Offer(offer)),
            ("offer-with-contents", Record::Offer(Offer { checksum: None, contents, ..offer })),
            ("offer-with-both", Record::Offer(Offer { contents, ..offer })),
            ("sent", Record::Sent),
            ("ended", Record::Ended(ENDED)),
        ];
        let kinds = records.map(|(name, record)| (u16::from(emitted(&record, 9)[0]), name));
        check_numbers("Kinds of records", 0, &kinds);
        let message = 9_u64.to_be_bytes();
        let header: [(&str, &[u8]); 2] = [("kind", &[KIND_DONE]), ("message", &message)];
        check_layout("Records of the reliability layer", 0, &emitted(&Record::Done, 9), &header);
        let [length, offset, part_bytes, parity_bytes, checksum] = &[1_u64, 2, 3, 5, 6].map(u64::to_be_bytes);
        let fields: [(&str, &[u8]); 7] = [
            ("length", length),
            ("offset", offset),
            ("part_bytes", part_bytes),
            ("chunk_bytes", &[0, 0, 0, 4]),
            ("parity_bytes", parity_bytes),
            ("checksum", checksum),
            ("scheme", b"sr:rto"),
        ];
        check_layout("Offer", 0, &emitted(&Record::Offer(offer), 9)[HEADER_BYTES..], &fields);
        let fields: [(&str, &[u8]); 3] =
            [("reason", &[Refusal::TooLong as u8]), ("was_accepted", &[1]), ("scheme", b"sr:nack")];
        check_layout("Refused", 0, &emitted(&Record::Refused(refused), 9)[HEADER_BYTES..], &fields);
        let length = 0x0102_u64.to_be_bytes();
        let fields: [(&str, &[u8]); 7] = [
            ("reason", &[2]),
            ("is_coarse", &[1]),
            ("was_accepted", &[1]),
            ("length", &length),
            ("range_count", &[0, 0, 0, 9]),
            ("first_range", &[0, 0, 0, 7]),
            ("ranges", ENDED.ranges),
        ];
        check_layout("Ended", 0, &emitted(&Record::Ended(ENDED), 9)[HEADER_BYTES..], &fields);
        check_numbers("Endings", 0, &[(1, "quiet"), (2, "deadline")]);
        let names = ["other-scheme", "timed-out", "too-long", "failed", "withdrawn", "checksum"];
        let reasons: Vec<_> = Refusal::ALL.into_iter().map(|reason| reason as u16).zip(names).collect();
        check_numbers("Reasons", 0, &reasons);
    }

    #[test]
    fn golden_bytes() {
        let mut offer = vec![1, 0, 0, 0, 0, 0, 0, 0, 9];
        offer.extend([0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x80]);
        offer.extend([0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 7, b's', b'r']);
        assert_eq!(emitted(&Record::Offer(OFFER), 9), offer);
        offer[0] = 8;
        offer.splice(45..45, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(emitted(&Record::Offer(OFFER_WITH_CHECKSUM), 9), offer);
        let mut offer = vec![9, 0, 0, 0, 0, 0, 0, 0, 9];
        offer.extend([0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80]);
        offer.extend([0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 7, b's', b'r', b'a', b'b', b'c']);
        assert_eq!(emitted(&Record::Offer(OFFER_WITH_CONTENTS), 9), offer);
        offer[0] = 10;
        offer.splice(45..45, [0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(emitted(&Record::Offer(OFFER_WITH_BOTH), 9), offer);
        assert_eq!(emitted(&Record::Feedback(&[0xaa, 0xbb]), 1), [2, 0, 0, 0, 0, 0, 0, 0, 1, 0xaa, 0xbb]);
        assert_eq!(emitted(&Record::Done, 2), [3, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(emitted(&Record::Refused(REFUSED), 3), [4, 0, 0, 0, 0, 0, 0, 0, 3, 2, 1, b'x']);
        assert_eq!(emitted(&Record::Accepted, 4), [5, 0, 0, 0, 0, 0, 0, 0, 4]);
        assert_eq!(emitted(&Record::Withdrawn(3), 5), [6, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(emitted(&Record::Arrived(3), 5), [7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(emitted(&Record::Sent, 6), [11, 0, 0, 0, 0, 0, 0, 0, 6]);
        let mut ended = vec![12, 0, 0, 0, 0, 0, 0, 0, 7, 2, 1, 1, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 9, 0, 0, 0, 7];
        ended.extend([range_bytes(3, 1), range_bytes(256, 2)].concat());
        assert_eq!(emitted(&Record::Ended(ENDED), 7), ended);
        assert!(ENDED.ranges().eq([(3, 4), (256, 258)]));
    }

    #[test]
    fn what_is_written_is_read() {
        let feedback = [Record::Feedback(&[]), Record::Feedback(&[1, 2])];
        let refused = Refusal::ALL.map(|reason| Record::Refused(Refused { reason, was_accepted: false, ..REFUSED }));
        let others = [
            Record::Offer(OFFER),
            Record::Offer(OFFER_WITH_CHECKSUM),
            Record::Offer(OFFER_WITH_CONTENTS),
            Record::Offer(OFFER_WITH_BOTH),
            Record::Done,
            Record::Refused(REFUSED),
            Record::Accepted,
            Record::Sent,
            Record::Ended(ENDED),
            Record::Ended(Ended { ending: Ending::Quiet, is_coarse: false, was_accepted: false, ranges: &[], ..ENDED }),
        ];
        for record in
            feedback.into_iter().chain(refused).chain(others).chain([Record::Withdrawn(u64::MAX), Record::Arrived(7)])
        {
            assert_eq!(Record::parse(&emitted(&record, u64::MAX - 1)), Some((u64::MAX - 1, record)));
        }
    }

    #[test]
    fn what_cannot_be_read_is_nothing() {
        assert_eq!(Record::parse(&[]), None);
        assert!(Record::Done.emit(1, &mut [0; HEADER_BYTES - 1]).is_err(), "no room");
        assert_eq!(Record::parse(&[3, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(Record::parse(&emitted(&Record::Offer(OFFER), 1)[..44]), None);
        assert_eq!(Record::parse(&emitted(&Record::Offer(OFFER_WITH_CHECKSUM), 1)[..52]), None, "half a checksum");
        let mut longer = emitted(&Record::Offer(OFFER_WITH_CONTENTS), 1);
        longer[HEADER_BYTES + 7] = 6;
        assert_eq!(Record::parse(&longer), None, "less than its length says");
        longer[HEADER_BYTES] = 0xff;
        assert_eq!(Record::parse(&longer), None, "much less");
        assert_eq!(Record::parse(&[13, 0, 0, 0, 0, 0, 0, 0, 1]), None, "of another kind");
        let ended = emitted(&Record::Ended(ENDED), 1);
        assert_eq!(Record::parse(&ended[..ENDED_HEADER_BYTES - 1]), None, "half an ending");
        let (_, cut) = Record::parse(&ended[..ended.len() - 1]).expect("half a range is left out");
        assert_eq!(cut, Record::Ended(Ended { ranges: &ENDED.ranges[..RANGE_BYTES], ..ENDED }));
        assert_eq!(Record::parse(&[4, 0, 0, 0, 0, 0, 0, 0, 1, 99, 0]), None, "for another reason");
        assert_eq!(Record::parse(&[4, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0xff]), None, "not UTF-8");
        assert_eq!(Record::parse(&[6, 0, 0, 0, 0, 0, 0, 0, 1, 0]), None, "cut off");
    }

    proptest! {
        #[test]
        fn noise_is_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Record::parse(&bytes);
        }
    }
}
