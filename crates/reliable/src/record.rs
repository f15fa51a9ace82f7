//! What the ends of a connection tell each other about messages, inside sdr's control messages.
//!
//! ```text
//!   kind 1 · message 8 · then:
//!     offer:    length 8 · chunk bytes 4 · parity bytes 8 · scheme's name
//!     feedback: bytes of the scheme
//!     done:     nothing
//!     refused:  reason 1 · scheme's name
//! ```
//!
//! Numbers are big-endian; a name is UTF-8 to the end of the record. A message is named by the number of its data. Records of a kind that is not
//! known are skipped.

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
    Refused(Refusal, &'a str),
}

/// What a message is, and how it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer<'a> {
    /// Bytes of the message.
    pub length: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Bytes of its parity.
    pub parity_bytes: u64,
    /// The scheme, as it calls itself.
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
}

const KIND_OFFER: u8 = 1;
const KIND_FEEDBACK: u8 = 2;
const KIND_DONE: u8 = 3;
const KIND_REFUSED: u8 = 4;

/// Bytes before those of the kind.
pub const HEADER_BYTES: usize = 9;

impl Record<'_> {
    /// The record as bytes.
    pub fn encode(&self, message: u64) -> Vec<u8> {
        let kind = match self {
            Record::Offer(_) => KIND_OFFER,
            Record::Feedback(_) => KIND_FEEDBACK,
            Record::Done => KIND_DONE,
            Record::Refused(..) => KIND_REFUSED,
        };
        let mut bytes = vec![kind];
        bytes.extend(message.to_be_bytes());
        match self {
            Record::Offer(offer) => {
                bytes.extend(offer.length.to_be_bytes());
                bytes.extend(offer.chunk_bytes.to_be_bytes());
                bytes.extend(offer.parity_bytes.to_be_bytes());
                bytes.extend(offer.scheme.as_bytes());
            }
            Record::Feedback(feedback) => bytes.extend(*feedback),
            Record::Done => {}
            Record::Refused(reason, scheme) => {
                bytes.push(*reason as u8);
                bytes.extend(scheme.as_bytes());
            }
        }
        bytes
    }
}

/// Which message a record is about, and what it says; `None` when it cannot be read or is of another kind.
pub fn decode(bytes: &[u8]) -> Option<(u64, Record<'_>)> {
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    let message = u64_at(header, 1)?;
    let record = match header[0] {
        KIND_OFFER => Record::Offer(Offer {
            length: u64_at(rest, 0)?,
            chunk_bytes: u32::from_be_bytes(rest.get(8..12)?.try_into().ok()?),
            parity_bytes: u64_at(rest, 12)?,
            scheme: str::from_utf8(rest.get(20..)?).ok()?,
        }),
        KIND_FEEDBACK => Record::Feedback(rest),
        KIND_DONE => Record::Done,
        KIND_REFUSED => {
            let (reason, scheme) = rest.split_first()?;
            let reasons = [Refusal::OtherScheme, Refusal::TimedOut, Refusal::TooLong, Refusal::Failed];
            let reason = reasons.into_iter().find(|known| *known as u8 == *reason)?;
            Record::Refused(reason, str::from_utf8(scheme).ok()?)
        }
        _ => return None,
    };
    Some((message, record))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OFFER: Offer<'_> = Offer { length: 0x0102, chunk_bytes: 4096, parity_bytes: 7, scheme: "sr" };

    #[test]
    fn golden_bytes() {
        let offer =
            [1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 7, b's', b'r'];
        assert_eq!(Record::Offer(OFFER).encode(9), offer);
        assert_eq!(Record::Feedback(&[0xaa, 0xbb]).encode(1), [2, 0, 0, 0, 0, 0, 0, 0, 1, 0xaa, 0xbb]);
        assert_eq!(Record::Done.encode(2), [3, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(Record::Refused(Refusal::TimedOut, "x").encode(3), [4, 0, 0, 0, 0, 0, 0, 0, 3, 2, b'x']);
    }

    #[test]
    fn what_is_written_is_read() {
        let refused = Record::Refused(Refusal::OtherScheme, "ec:mds:32,8");
        for record in [Record::Offer(OFFER), Record::Feedback(&[]), Record::Feedback(&[1, 2]), Record::Done, refused] {
            assert_eq!(decode(&record.encode(u64::MAX - 1)), Some((u64::MAX - 1, record)));
        }
    }

    #[test]
    fn what_cannot_be_read_is_nothing() {
        assert_eq!(decode(&[]), None);
        assert_eq!(decode(&[3, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(decode(&Record::Offer(OFFER).encode(1)[..28]), None);
        assert_eq!(decode(&[9, 0, 0, 0, 0, 0, 0, 0, 1]), None, "of another kind");
        assert_eq!(decode(&[4, 0, 0, 0, 0, 0, 0, 0, 1, 99]), None, "for another reason");
        assert_eq!(decode(&[4, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0xff]), None, "not UTF-8");
    }

    proptest! {
        #[test]
        fn noise_is_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&bytes);
        }
    }
}
