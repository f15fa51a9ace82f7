//! What the ends of a connection tell each other about messages, inside sdr's control messages.
//!
//! ```text
//!   kind 1 · message 8 · then:
//!     offer:     length 8 · offset 8 · part bytes 8 · chunk bytes 4 · parity bytes 8 · scheme's name
//!     feedback:  bytes of the scheme
//!     done:      nothing
//!     refused:   reason 1 · was accepted 1 · scheme's name
//!     accepted:  nothing
//!     withdrawn: length 8
//!     arrived:   packets 8
//!     offer with a checksum: length 8 · offset 8 · part bytes 8 · chunk bytes 4 · parity bytes 8 · checksum 8 · scheme's name
//! ```
//!
//! Numbers are big-endian; a name is UTF-8 to the end of the record. The message of a record is one of `sdr`, named by the number of its data: a
//! program's message, or a part of one. Records of a kind that is not known are skipped.

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// The sender tells what it is sending, and would like to hear how far that has come.
    Offer(Offer<'a>),
    /// The receiver's half of the scheme tells the sender's.
    Feedback(&'a [u8]),
    /// The receiver has all that it needs.
    Done,
    /// The receiver has given the message up.
    Refused(Refused<'a>),
    /// Answers the offer of a first part: the receiver will have room for all others, and their numbers are theirs.
    Accepted,
    /// The sender has given the message, named by its first part, up. It had so many bytes.
    Withdrawn(u64),
    /// So many packets of the part, data and parity, have arrived.
    Arrived(u64),
}

/// What a message is, and how it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// The scheme, as it calls itself.
    pub scheme: &'a str,
}

/// That a message was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused<'a> {
    /// Why.
    pub reason: Refusal,
    /// Whether the numbers of the message's other parts are used up: it had been accepted before. Otherwise they are the next messages'.
    pub was_accepted: bool,
    /// The receiver's scheme, as it calls itself.
    pub scheme: &'a str,
}

/// Why a message was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    const ALL: [Refusal; 6] = [
        Refusal::OtherScheme,
        Refusal::TimedOut,
        Refusal::TooLong,
        Refusal::Failed,
        Refusal::Withdrawn,
        Refusal::Checksum,
    ];
}

const KIND_OFFER: u8 = 1;
const KIND_FEEDBACK: u8 = 2;
const KIND_DONE: u8 = 3;
const KIND_REFUSED: u8 = 4;
const KIND_ACCEPTED: u8 = 5;
const KIND_WITHDRAWN: u8 = 6;
const KIND_ARRIVED: u8 = 7;
const KIND_OFFER_WITH_CHECKSUM: u8 = 8;

/// Bytes before those of the kind.
pub const HEADER_BYTES: usize = 9;

impl Record<'_> {
    /// The record as bytes.
    pub fn encode(&self, message: u64) -> Vec<u8> {
        let kind = match self {
            Record::Offer(Offer { checksum: None, .. }) => KIND_OFFER,
            Record::Offer(Offer { checksum: Some(_), .. }) => KIND_OFFER_WITH_CHECKSUM,
            Record::Feedback(_) => KIND_FEEDBACK,
            Record::Done => KIND_DONE,
            Record::Refused(_) => KIND_REFUSED,
            Record::Accepted => KIND_ACCEPTED,
            Record::Withdrawn(_) => KIND_WITHDRAWN,
            Record::Arrived(_) => KIND_ARRIVED,
        };
        let mut bytes = vec![kind];
        bytes.extend(message.to_be_bytes());
        match self {
            Record::Offer(offer) => {
                bytes.extend(offer.length.to_be_bytes());
                bytes.extend(offer.offset.to_be_bytes());
                bytes.extend(offer.part_bytes.to_be_bytes());
                bytes.extend(offer.chunk_bytes.to_be_bytes());
                bytes.extend(offer.parity_bytes.to_be_bytes());
                bytes.extend(offer.checksum.into_iter().flat_map(u64::to_be_bytes));
                bytes.extend(offer.scheme.as_bytes());
            }
            Record::Feedback(feedback) => bytes.extend(*feedback),
            Record::Done | Record::Accepted => {}
            Record::Refused(refused) => {
                bytes.extend([refused.reason as u8, u8::from(refused.was_accepted)]);
                bytes.extend(refused.scheme.as_bytes());
            }
            Record::Withdrawn(number) | Record::Arrived(number) => bytes.extend(number.to_be_bytes()),
        }
        bytes
    }
}

/// Which message a record is about, and what it says; `None` when it cannot be read or is of another kind.
pub fn decode(bytes: &[u8]) -> Option<(u64, Record<'_>)> {
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    let message = u64_at(header, 1)?;
    let record = match header[0] {
        KIND_OFFER => Record::Offer(decode_offer(rest, None, 36)?),
        KIND_OFFER_WITH_CHECKSUM => Record::Offer(decode_offer(rest, Some(u64_at(rest, 36)?), 44)?),
        KIND_FEEDBACK => Record::Feedback(rest),
        KIND_DONE => Record::Done,
        KIND_REFUSED => {
            let ([reason, was_accepted], scheme) = rest.split_first_chunk()?;
            let reason = Refusal::ALL.into_iter().find(|known| *known as u8 == *reason)?;
            let scheme = str::from_utf8(scheme).ok()?;
            Record::Refused(Refused { reason, was_accepted: *was_accepted != 0, scheme })
        }
        KIND_ACCEPTED => Record::Accepted,
        KIND_WITHDRAWN => Record::Withdrawn(u64_at(rest, 0)?),
        KIND_ARRIVED => Record::Arrived(u64_at(rest, 0)?),
        _ => return None,
    };
    Some((message, record))
}

fn decode_offer(bytes: &[u8], checksum: Option<u64>, scheme_at: usize) -> Option<Offer<'_>> {
    Some(Offer {
        length: u64_at(bytes, 0)?,
        offset: u64_at(bytes, 8)?,
        part_bytes: u64_at(bytes, 16)?,
        chunk_bytes: u32::from_be_bytes(bytes.get(24..28)?.try_into().ok()?),
        parity_bytes: u64_at(bytes, 28)?,
        checksum,
        scheme: str::from_utf8(bytes.get(scheme_at..)?).ok()?,
    })
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OFFER: Offer<'_> = Offer {
        length: 0x0102,
        offset: 0x0100,
        part_bytes: 0x80,
        chunk_bytes: 4096,
        parity_bytes: 7,
        checksum: None,
        scheme: "sr",
    };
    const OFFER_WITH_CHECKSUM: Offer<'_> = Offer { checksum: Some(0x0102_0304_0506_0708), ..OFFER };
    const REFUSED: Refused<'_> = Refused { reason: Refusal::TimedOut, was_accepted: true, scheme: "x" };

    #[test]
    fn the_document_is_true() {
        use longhaul_wire::document::{check_layout, check_numbers};
        let offer = Offer {
            length: 1,
            offset: 2,
            part_bytes: 3,
            chunk_bytes: 4,
            parity_bytes: 5,
            checksum: Some(6),
            scheme: "sr:rto",
        };
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
        ];
        let kinds = records.map(|(name, record)| (u16::from(record.encode(9)[0]), name));
        check_numbers("Kinds of records", 0, &kinds);
        let message = 9_u64.to_be_bytes();
        let header: [(&str, &[u8]); 2] = [("kind", &[KIND_DONE]), ("message", &message)];
        check_layout("Records of the reliability layer", 0, &Record::Done.encode(9), &header);
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
        check_layout("Offer", 0, &Record::Offer(offer).encode(9)[HEADER_BYTES..], &fields);
        let fields: [(&str, &[u8]); 3] =
            [("reason", &[Refusal::TooLong as u8]), ("was_accepted", &[1]), ("scheme", b"sr:nack")];
        check_layout("Refused", 0, &Record::Refused(refused).encode(9)[HEADER_BYTES..], &fields);
        let names = ["other-scheme", "timed-out", "too-long", "failed", "withdrawn", "checksum"];
        let reasons: Vec<_> = Refusal::ALL.into_iter().map(|reason| reason as u16).zip(names).collect();
        check_numbers("Reasons", 0, &reasons);
    }

    #[test]
    fn golden_bytes() {
        let mut offer = vec![1, 0, 0, 0, 0, 0, 0, 0, 9];
        offer.extend([0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x80]);
        offer.extend([0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 7, b's', b'r']);
        assert_eq!(Record::Offer(OFFER).encode(9), offer);
        offer[0] = 8;
        offer.splice(45..45, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Record::Offer(OFFER_WITH_CHECKSUM).encode(9), offer);
        assert_eq!(Record::Feedback(&[0xaa, 0xbb]).encode(1), [2, 0, 0, 0, 0, 0, 0, 0, 1, 0xaa, 0xbb]);
        assert_eq!(Record::Done.encode(2), [3, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(Record::Refused(REFUSED).encode(3), [4, 0, 0, 0, 0, 0, 0, 0, 3, 2, 1, b'x']);
        assert_eq!(Record::Accepted.encode(4), [5, 0, 0, 0, 0, 0, 0, 0, 4]);
        assert_eq!(Record::Withdrawn(3).encode(5), [6, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(Record::Arrived(3).encode(5), [7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 3]);
    }

    #[test]
    fn what_is_written_is_read() {
        let feedback = [Record::Feedback(&[]), Record::Feedback(&[1, 2])];
        let refused = Refusal::ALL.map(|reason| Record::Refused(Refused { reason, was_accepted: false, ..REFUSED }));
        let others = [
            Record::Offer(OFFER),
            Record::Offer(OFFER_WITH_CHECKSUM),
            Record::Done,
            Record::Refused(REFUSED),
            Record::Accepted,
        ];
        for record in
            feedback.into_iter().chain(refused).chain(others).chain([Record::Withdrawn(u64::MAX), Record::Arrived(7)])
        {
            assert_eq!(decode(&record.encode(u64::MAX - 1)), Some((u64::MAX - 1, record)));
        }
    }

    #[test]
    fn what_cannot_be_read_is_nothing() {
        assert_eq!(decode(&[]), None);
        assert_eq!(decode(&[3, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(decode(&Record::Offer(OFFER).encode(1)[..44]), None);
        assert_eq!(decode(&Record::Offer(OFFER_WITH_CHECKSUM).encode(1)[..52]), None, "half a checksum");
        assert_eq!(decode(&[9, 0, 0, 0, 0, 0, 0, 0, 1]), None, "of another kind");
        assert_eq!(decode(&[4, 0, 0, 0, 0, 0, 0, 0, 1, 99, 0]), None, "for another reason");
        assert_eq!(decode(&[4, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0xff]), None, "not UTF-8");
        assert_eq!(decode(&[6, 0, 0, 0, 0, 0, 0, 0, 1, 0]), None, "cut off");
    }

    proptest! {
        #[test]
        fn noise_is_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&bytes);
        }
    }
}
