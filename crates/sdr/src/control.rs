//! Control messages: what the ends of a queue pair tell each other beside the data.
//!
//! They travel on a queue pair of their own and may be lost, repeated and reordered like everything else. So a frame never is an
//! event that must arrive: it is state, whole and sent again, and the newest of it wins. Numbers only grow, so that an old frame
//! changes nothing.
//!
//! ```text
//!   version 1 · flags 1 · zero 2 · receiver 4 · sent_at 8 · echo 8 · held 8 · consumed 8 · window 4 · cleared_through 8 · open_from 8 · sends_from 8
//!   records, each: kind 2 · length 2 · bytes
//! ```
//!
//! Numbers are big-endian. A record of a kind that is not known is skipped. Version and receiver have the same place in every version,
//! so that a frame for somebody else is known as that first. The ends compare versions when they connect
//! ([`crate::info::QueuePairInfo::control_version`]); a frame of another version that comes later is counted and ignored.

use longhaul_time::Duration;
use thiserror::Error;

/// The version of frames that this code writes and reads.
pub const VERSION: u8 = 3;
/// Bytes before the records.
pub const HEADER_BYTES: usize = 68;
/// The echo proves that the frame has arrived, but not when: its time is not to be measured with.
pub const HELD_UNKNOWN: u64 = u64::MAX;
/// Bytes of a record before its own.
pub const RECORD_HEADER_BYTES: usize = 4;
/// Bytes of a clear-to-send record with its header.
pub const CLEAR_TO_SEND_BYTES: usize = RECORD_HEADER_BYTES + 32;

const WANTS_ANSWER: u8 = 1;
const KIND_CLEAR_TO_SEND: u16 = 1;
const KIND_SCHEME: u16 = 2;
const KIND_CLEARED_BEYOND: u16 = 3;

/// What every frame says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The sender would like a frame back.
    pub wants_answer: bool,
    /// Whom it is for: the id that the receiver gave when connecting. A frame of an earlier connection has another one.
    pub receiver: u32,
    /// The sender's clock; only it knows what the number means.
    pub sent_at: u64,
    /// The newest `sent_at` that came from the peer; 0 before the first.
    pub echo: u64,
    /// Nanoseconds between its arrival and this frame; [`HELD_UNKNOWN`] when that cannot be said.
    pub held_ns: u64,
    /// Receives that the peer's data has consumed since the beginning.
    pub consumed: u64,
    /// Data packets that may be on their way at a time.
    pub window: u32,
    /// Every clear-to-send of a message with a smaller number has arrived.
    pub cleared_through: u64,
    /// Every message with a smaller number is over at the sender of this frame: nothing that is sent for it counts.
    pub open_from: u64,
    /// The sender of this frame sends nothing more of messages with a smaller number.
    pub sends_from: u64,
}

impl Header {
    /// How long the echoed frame was kept.
    pub fn held(&self) -> Duration {
        Duration::from_nanos(self.held_ns)
    }
}

/// A message may be sent now, to here; or it is over, and need not be sent any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClearToSend {
    /// The message.
    pub number: u64,
    /// Where its first byte goes.
    pub address: u64,
    /// Room.
    pub length: u64,
    /// The key to it.
    pub key: u32,
    /// On which of the internal queue pairs, counted from 0. Follows from the number; sent so that a mistake shows.
    pub generation: u8,
    /// The receiver has completed it early.
    pub is_over: bool,
}

/// The most bytes of [`Record::ClearedBeyond`].
pub const CLEARED_BEYOND_BYTES_MAX: usize = 128;

/// One record of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A message may be sent.
    ClearToSend(ClearToSend),
    /// Bytes of the reliability scheme above.
    Scheme(&'a [u8]),
    /// Clear-to-sends that have arrived although an earlier one has not: bit `i`, the lowest of a byte first, is the message
    /// [`Header::cleared_through`] + `i`.
    ClearedBeyond(&'a [u8]),
}

/// A frame that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Shorter than it says.
    #[error("expected {expected} bytes of a control message, came {came}")]
    Short {
        /// What was needed.
        expected: usize,
        /// What there was.
        came: usize,
    },
    /// A version that this code does not speak.
    #[error("this end speaks version {VERSION} of control messages, the peer version {0}")]
    Version(u8),
    /// A clear-to-send of the wrong size.
    #[error("expected 32 bytes of a clear-to-send, came {0}")]
    ClearToSendLength(usize),
}

/// Writes a frame into a buffer.
#[derive(Debug)]
pub struct FrameWriter<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl<'a> FrameWriter<'a> {
    /// A frame without records. Panics when the buffer does not hold a header.
    pub fn new(bytes: &'a mut [u8], header: &Header) -> Self {
        let mut writer = FrameWriter { bytes, length: 0 };
        writer.put(&[VERSION, if header.wants_answer { WANTS_ANSWER } else { 0 }, 0, 0]);
        writer.put(&header.receiver.to_be_bytes());
        for number in [header.sent_at, header.echo, header.held_ns, header.consumed] {
            writer.put(&number.to_be_bytes());
        }
        writer.put(&header.window.to_be_bytes());
        writer.put(&header.cleared_through.to_be_bytes());
        writer.put(&header.open_from.to_be_bytes());
        writer.put(&header.sends_from.to_be_bytes());
        debug_assert_eq!(writer.length, HEADER_BYTES);
        writer
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Bytes that a record could still have.
    pub fn room(&self) -> usize {
        (self.bytes.len() - self.length).saturating_sub(RECORD_HEADER_BYTES)
    }

    /// Adds a record, if it fits.
    pub fn push(&mut self, record: &Record<'_>) -> bool {
        match record {
            Record::ClearToSend(clear) => {
                let mut bytes = [0; CLEAR_TO_SEND_BYTES - RECORD_HEADER_BYTES];
                bytes[..8].copy_from_slice(&clear.number.to_be_bytes());
                bytes[8..16].copy_from_slice(&clear.address.to_be_bytes());
                bytes[16..24].copy_from_slice(&clear.length.to_be_bytes());
                bytes[24..28].copy_from_slice(&clear.key.to_be_bytes());
                bytes[28] = clear.generation;
                bytes[29] = clear.is_over.into();
                self.push_bytes(KIND_CLEAR_TO_SEND, &bytes)
            }
            Record::Scheme(bytes) => self.push_bytes(KIND_SCHEME, bytes),
            Record::ClearedBeyond(bits) => self.push_bytes(KIND_CLEARED_BEYOND, bits),
        }
    }

    fn push_bytes(&mut self, kind: u16, bytes: &[u8]) -> bool {
        let Ok(length) = u16::try_from(bytes.len()) else { return false };
        if bytes.len() > self.room() || self.bytes.len() - self.length < RECORD_HEADER_BYTES {
            return false;
        }
        self.put(&kind.to_be_bytes());
        self.put(&length.to_be_bytes());
        self.put(bytes);
        true
    }

    /// Bytes of the frame.
    pub fn finish(self) -> usize {
        self.length
    }
}

/// Whom a frame is for, whatever its version; `None` when it is too short to say.
pub fn receiver_of(bytes: &[u8]) -> Option<u32> {
    bytes.get(4..8).map(|bytes| u32_at(bytes, 0))
}

/// Reads a frame.
#[derive(Clone, Copy, Debug)]
pub struct FrameReader<'a> {
    /// What it says first.
    pub header: Header,
    records: &'a [u8],
}

impl<'a> FrameReader<'a> {
    /// Reads the header; the records come one by one.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        match bytes.first() {
            Some(&version) if version != VERSION => return Err(FrameError::Version(version)),
            _ if bytes.len() < HEADER_BYTES => {
                return Err(FrameError::Short { expected: HEADER_BYTES, came: bytes.len() });
            }
            _ => {}
        }
        let header = Header {
            wants_answer: bytes[1] & WANTS_ANSWER != 0,
            receiver: u32_at(bytes, 4),
            sent_at: u64_at(bytes, 8),
            echo: u64_at(bytes, 16),
            held_ns: u64_at(bytes, 24),
            consumed: u64_at(bytes, 32),
            window: u32_at(bytes, 40),
            cleared_through: u64_at(bytes, 44),
            open_from: u64_at(bytes, 52),
            sends_from: u64_at(bytes, 60),
        };
        Ok(FrameReader { header, records: &bytes[HEADER_BYTES..] })
    }

    /// The records. After an error there is nothing more.
    pub fn records(self) -> impl Iterator<Item = Result<Record<'a>, FrameError>> {
        let mut rest = self.records;
        std::iter::from_fn(move || {
            while !rest.is_empty() {
                let read = next_record(rest);
                let Ok((kind, bytes)) = read else {
                    rest = &[];
                    return read.err().map(Err);
                };
                rest = &rest[RECORD_HEADER_BYTES + bytes.len()..];
                match kind {
                    KIND_CLEAR_TO_SEND => return Some(clear_to_send(bytes).map(Record::ClearToSend)),
                    KIND_SCHEME => return Some(Ok(Record::Scheme(bytes))),
                    KIND_CLEARED_BEYOND => return Some(Ok(Record::ClearedBeyond(bytes))),
                    _ => {}
                }
            }
            None
        })
    }
}

fn next_record(rest: &[u8]) -> Result<(u16, &[u8]), FrameError> {
    let short = |expected| FrameError::Short { expected, came: rest.len() };
    let header = rest.get(..RECORD_HEADER_BYTES).ok_or(short(RECORD_HEADER_BYTES))?;
    let end = RECORD_HEADER_BYTES + usize::from(u16::from_be_bytes([header[2], header[3]]));
    let bytes = rest.get(RECORD_HEADER_BYTES..end).ok_or(short(end))?;
    Ok((u16::from_be_bytes([header[0], header[1]]), bytes))
}

fn clear_to_send(bytes: &[u8]) -> Result<ClearToSend, FrameError> {
    if bytes.len() != CLEAR_TO_SEND_BYTES - RECORD_HEADER_BYTES {
        return Err(FrameError::ClearToSendLength(bytes.len()));
    }
    Ok(ClearToSend {
        number: u64_at(bytes, 0),
        address: u64_at(bytes, 8),
        length: u64_at(bytes, 16),
        key: u32_at(bytes, 24),
        generation: bytes[28],
        is_over: bytes[29] & 1 != 0,
    })
}

/// The caller has checked the length.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: Header = Header {
        wants_answer: true,
        receiver: 0x0102_0304,
        sent_at: 5,
        echo: 6,
        held_ns: 7,
        consumed: 8,
        window: 9,
        cleared_through: 10,
        open_from: 4,
        sends_from: 2,
    };
    const CLEAR: ClearToSend =
        ClearToSend { number: 11, address: 12, length: 13, key: 14, generation: 3, is_over: true };

    fn frame(records: &[Record<'_>]) -> Vec<u8> {
        let mut bytes = vec![0; 1024];
        let mut writer = FrameWriter::new(&mut bytes, &HEADER);
        assert!(records.iter().all(|record| writer.push(record)));
        let length = writer.finish();
        bytes.truncate(length);
        bytes
    }

    fn records(bytes: &[u8]) -> Result<Vec<Record<'_>>, FrameError> {
        FrameReader::parse(bytes)?.records().collect()
    }

    #[test]
    fn golden_bytes() {
        let mut expected = vec![3, 1, 0, 0, 1, 2, 3, 4];
        for number in [5_u64, 6, 7, 8] {
            expected.extend(number.to_be_bytes());
        }
        expected.extend(9_u32.to_be_bytes());
        expected.extend(10_u64.to_be_bytes());
        expected.extend(4_u64.to_be_bytes());
        expected.extend(2_u64.to_be_bytes());
        expected.extend([0, 1, 0, 32]);
        for number in [11_u64, 12, 13] {
            expected.extend(number.to_be_bytes());
        }
        expected.extend([0, 0, 0, 14, 3, 1, 0, 0]);
        expected.extend([0, 2, 0, 2, 0xaa, 0xbb]);
        expected.extend([0, 3, 0, 1, 0x06]);
        let pushed = [Record::ClearToSend(CLEAR), Record::Scheme(&[0xaa, 0xbb]), Record::ClearedBeyond(&[0x06])];
        let bytes = frame(&pushed);
        assert_eq!(bytes, expected);
        assert_eq!(FrameReader::parse(&bytes).map(|frame| frame.header), Ok(HEADER));
        assert_eq!(records(&bytes), Ok(pushed.to_vec()));
    }

    #[test]
    fn the_document_is_true() {
        use longhaul_wire::document::{check_layout, check_numbers};
        let bytes = frame(&[]);
        let numbers = [5_u64, 6, 7, 8, 10, 4, 2].map(u64::to_be_bytes);
        let [sent_at, echo, held, consumed, cleared_through, open_from, sends_from] = &numbers;
        let expected: [(&str, &[u8]); 12] = [
            ("version", &[VERSION]),
            ("flags", &[WANTS_ANSWER]),
            ("zero", &[0, 0]),
            ("receiver", &[1, 2, 3, 4]),
            ("sent_at", sent_at),
            ("echo", echo),
            ("held", held),
            ("consumed", consumed),
            ("window", &[0, 0, 0, 9]),
            ("cleared_through", cleared_through),
            ("open_from", open_from),
            ("sends_from", sends_from),
        ];
        check_layout("Control frame", 0, &bytes, &expected);
        let records = [Record::ClearToSend(CLEAR), Record::Scheme(&[]), Record::ClearedBeyond(&[])]
            .map(|record| frame(&[record]));
        let kinds = records.each_ref().map(|bytes| u16::from_be_bytes([bytes[HEADER_BYTES], bytes[HEADER_BYTES + 1]]));
        let [clear, scheme, beyond] = kinds;
        check_numbers("Control frame", 1, &[(clear, "clear-to-send"), (scheme, "scheme"), (beyond, "cleared-beyond")]);
        let [number, address, length] = &[11_u64, 12, 13].map(u64::to_be_bytes);
        let expected: [(&str, &[u8]); 7] = [
            ("number", number),
            ("address", address),
            ("length", length),
            ("key", &[0, 0, 0, 14]),
            ("generation", &[3]),
            ("is_over", &[1]),
            ("zero", &[0, 0]),
        ];
        check_layout("Clear to send", 0, &records[0][HEADER_BYTES + RECORD_HEADER_BYTES..], &expected);
    }

    #[test]
    fn records_of_other_kinds_are_skipped() {
        let mut bytes = frame(&[]);
        bytes.extend([0x7f, 0xff, 0, 3, 1, 2, 3]);
        bytes.extend([0, 2, 0, 1, 9]);
        assert_eq!(records(&bytes), Ok(vec![Record::Scheme(&[9])]));
    }

    #[test]
    fn what_cannot_be_read() {
        let mut bytes = frame(&[Record::ClearToSend(CLEAR)]);
        assert_eq!(records(&bytes[..67]), Err(FrameError::Short { expected: 68, came: 67 }));
        assert_eq!(records(&bytes[..76]), Err(FrameError::Short { expected: 36, came: 8 }));
        bytes[0] = 1;
        let refused = records(&bytes).expect_err("another version");
        assert_eq!(refused.to_string(), "this end speaks version 3 of control messages, the peer version 1");
        assert_eq!((receiver_of(&bytes), receiver_of(&bytes[..7])), (Some(0x0102_0304), None));
        bytes[0] = VERSION;
        bytes.truncate(HEADER_BYTES);
        bytes.extend([0, 1, 0, 1, 7]);
        assert_eq!(records(&bytes), Err(FrameError::ClearToSendLength(1)));
        assert_eq!(records(&[]), Err(FrameError::Short { expected: 68, came: 0 }));
    }

    #[test]
    fn a_record_that_does_not_fit_is_left_out() {
        let mut bytes = [0; HEADER_BYTES + RECORD_HEADER_BYTES + 3];
        let mut writer = FrameWriter::new(&mut bytes, &HEADER);
        assert_eq!(writer.room(), 3);
        assert!(!writer.push(&Record::Scheme(&[0; 4])));
        assert!(writer.push(&Record::Scheme(&[0; 3])));
        assert!(!writer.push(&Record::Scheme(&[])));
    }

    proptest! {
        #[test]
        fn noise_is_read_without_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            let _ = records(&bytes);
        }
    }
}
