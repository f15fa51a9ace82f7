//! The control frame of Longhaul: what the ends of a message connection report to each other, next to the data.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+-------------+-+-------------------------------+
//! |    version    |      0      |A|               0               |
//! +---------------+-------------+-+-------------------------------+
//! |                           receiver                            |
//! +---------------------------------------------------------------+
//! |                          sent_at (8)                          |
//! |                           echo (8)                            |
//! |                           held (8)                            |
//! |                         consumed (8)                          |
//! +---------------------------------------------------------------+
//! |                            window                             |
//! +---------------------------------------------------------------+
//! |                      cleared_through (8)                      |
//! |                         open_from (8)                         |
//! |                        sends_from (8)                         |
//! +-------------------------------+-------------------------------+
//! |         record: kind          |            length             |
//! +-------------------------------+-------------------------------+
//! |                    contents, then more records                |
//! ```
//!
//! The payload of a UC SEND. A frame may be lost, repeated and reordered like everything else, so it never is an event that
//! must arrive: it is state, whole and sent again, and the newest of it wins. Numbers only grow, so that an old frame changes
//! nothing. A is set when the sender would like a frame back.
//!
//! A record of a kind that is not known is skipped. Version and receiver have the same place in every version, so that a
//! frame for somebody else is recognized first. The ends compare versions when they connect
//! ([`crate::info::QueuePairInfo::control_version`]).

mod clear_to_send;
mod credit;
mod data_arrivals;
mod frame_error;

use core::time::Duration;

pub use clear_to_send::ClearToSend;
pub use credit::{CreditAnnouncement, CreditGrant};
pub use data_arrivals::DataArrivals;
pub use frame_error::{FrameError, VERSION};

use crate::Truncated;
use crate::field::{self, Field, read_u16, read_u32, read_u64, write_u16, write_u32, write_u64};

/// Bytes before the records.
pub const HEADER_BYTES: usize = 68;
/// The echo proves that the frame has arrived, but not when: its time is not to be measured with.
pub const HELD_UNKNOWN: u64 = u64::MAX;
/// Bytes of a record before its contents.
pub const RECORD_HEADER_BYTES: usize = 4;
/// The most bytes of [`Record::ClearedBeyond`].
pub const CLEARED_BEYOND_BYTES_MAX: usize = 128;

/// A view of a frame over a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlFrame<T> {
    buffer: T,
}

const VERSION_AT: usize = 0;
const FLAGS: usize = 1;
const ZERO: Field = 2..4;
const RECEIVER: Field = 4..8;
const SENT_AT: Field = 8..16;
const ECHO: Field = 16..24;
const HELD: Field = 24..32;
const CONSUMED: Field = 32..40;
const WINDOW: Field = 40..44;
const CLEARED_THROUGH: Field = 44..52;
const OPEN_FROM: Field = 52..60;
const SENDS_FROM: Field = 60..68;

const WANTS_ANSWER: u8 = 1;

/// Whom a frame is for, whatever its version; `None` when it is too short to say.
#[inline]
pub fn receiver_of(bytes: &[u8]) -> Option<u32> {
    (bytes.len() >= RECEIVER.end).then(|| read_u32(bytes, RECEIVER))
}

impl<T: AsRef<[u8]>> ControlFrame<T> {
    /// A view, when the buffer holds a header of our version.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<ControlFrame<T>, FrameError> {
        match buffer.as_ref() {
            [version, ..] if *version != VERSION => Err(FrameError::Version(*version)),
            bytes if bytes.len() < HEADER_BYTES => {
                Err(FrameError::Short { expected: HEADER_BYTES, found: bytes.len() })
            }
            _ => Ok(ControlFrame { buffer }),
        }
    }

    /// Whether the sender would like a frame back.
    #[inline]
    pub fn wants_answer(&self) -> bool {
        self.buffer.as_ref()[FLAGS] & WANTS_ANSWER != 0
    }

    /// Whom it is for: the id that the receiver gave when connecting.
    #[inline]
    pub fn receiver(&self) -> u32 {
        read_u32(self.buffer.as_ref(), RECEIVER)
    }

    /// The sender's clock; only it knows what the number means.
    #[inline]
    pub fn sent_at(&self) -> u64 {
        read_u64(self.buffer.as_ref(), SENT_AT)
    }

    /// The newest `sent_at` from the peer; 0 before the first.
    #[inline]
    pub fn echo(&self) -> u64 {
        read_u64(self.buffer.as_ref(), ECHO)
    }

    /// Nanoseconds between its arrival and this frame; [`HELD_UNKNOWN`] when that is not known.
    #[inline]
    pub fn held_ns(&self) -> u64 {
        read_u64(self.buffer.as_ref(), HELD)
    }

    /// Receives that the peer's data has consumed since the beginning.
    #[inline]
    pub fn consumed(&self) -> u64 {
        read_u64(self.buffer.as_ref(), CONSUMED)
    }

    /// Data packets that the peer may have in flight.
    #[inline]
    pub fn window(&self) -> u32 {
        read_u32(self.buffer.as_ref(), WINDOW)
    }

    /// Every clear-to-send of a message with a smaller number has arrived.
    #[inline]
    pub fn cleared_through(&self) -> u64 {
        read_u64(self.buffer.as_ref(), CLEARED_THROUGH)
    }

    /// Every message with a smaller number has ended at the sender of this frame: nothing that is sent for it counts.
    #[inline]
    pub fn open_from(&self) -> u64 {
        read_u64(self.buffer.as_ref(), OPEN_FROM)
    }

    /// The sender of this frame sends nothing more of messages with a smaller number.
    #[inline]
    pub fn sends_from(&self) -> u64 {
        read_u64(self.buffer.as_ref(), SENDS_FROM)
    }

    /// The records. After one that is cut off there are no more.
    pub fn records(&self) -> Records<'_> {
        Records { rest: &self.buffer.as_ref()[HEADER_BYTES..] }
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> ControlFrame<T> {
    /// Sets the version to ours, and what is always 0.
    #[inline]
    pub fn set_version(&mut self) {
        self.buffer.as_mut()[VERSION_AT] = VERSION;
        write_u16(self.buffer.as_mut(), ZERO, 0);
    }

    /// Sets whether the sender would like a frame back.
    #[inline]
    pub fn set_wants_answer(&mut self, value: bool) {
        self.buffer.as_mut()[FLAGS] = if value { WANTS_ANSWER } else { 0 };
    }

    /// Sets whom it is for.
    #[inline]
    pub fn set_receiver(&mut self, value: u32) {
        write_u32(self.buffer.as_mut(), RECEIVER, value);
    }

    /// Sets the sender's clock.
    #[inline]
    pub fn set_sent_at(&mut self, value: u64) {
        write_u64(self.buffer.as_mut(), SENT_AT, value);
    }

    /// Sets the echo.
    #[inline]
    pub fn set_echo(&mut self, value: u64) {
        write_u64(self.buffer.as_mut(), ECHO, value);
    }

    /// Sets how long the echoed frame was kept.
    #[inline]
    pub fn set_held_ns(&mut self, value: u64) {
        write_u64(self.buffer.as_mut(), HELD, value);
    }

    /// Sets the receives consumed.
    #[inline]
    pub fn set_consumed(&mut self, value: u64) {
        write_u64(self.buffer.as_mut(), CONSUMED, value);
    }

    /// Sets the window.
    #[inline]
    pub fn set_window(&mut self, value: u32) {
        write_u32(self.buffer.as_mut(), WINDOW, value);
    }

    /// Sets below which every clear-to-send has arrived.
    #[inline]
    pub fn set_cleared_through(&mut self, value: u64) {
        write_u64(self.buffer.as_mut(), CLEARED_THROUGH, value);
    }

    /// Sets below which every message has ended.
    #[inline]
    pub fn set_open_from(&mut self, value: u64) {
        write_u64(self.buffer.as_mut(), OPEN_FROM, value);
    }

    /// Sets below which nothing more is sent.
    #[inline]
    pub fn set_sends_from(&mut self, value: u64) {
        write_u64(self.buffer.as_mut(), SENDS_FROM, value);
    }
}

/// The header as a value: what every frame says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Whether the sender would like a frame back.
    pub wants_answer: bool,
    /// Whom it is for: the id that the receiver gave when connecting.
    pub receiver: u32,
    /// The sender's clock; only it knows what the number means.
    pub sent_at: u64,
    /// The newest `sent_at` from the peer; 0 before the first.
    pub echo: u64,
    /// Nanoseconds between its arrival and this frame; [`HELD_UNKNOWN`] when that is not known.
    pub held_ns: u64,
    /// Receives that the peer's data has consumed since the beginning.
    pub consumed: u64,
    /// Data packets that the peer may have in flight.
    pub window: u32,
    /// Every clear-to-send of a message with a smaller number has arrived.
    pub cleared_through: u64,
    /// Every message with a smaller number has ended at the sender of this frame: nothing that is sent for it counts.
    pub open_from: u64,
    /// The sender of this frame sends nothing more of messages with a smaller number.
    pub sends_from: u64,
}

impl Header {
    /// Takes all fields out of a view.
    #[inline]
    pub fn parse<T: AsRef<[u8]>>(view: &ControlFrame<T>) -> Header {
        Header {
            wants_answer: view.wants_answer(),
            receiver: view.receiver(),
            sent_at: view.sent_at(),
            echo: view.echo(),
            held_ns: view.held_ns(),
            consumed: view.consumed(),
            window: view.window(),
            cleared_through: view.cleared_through(),
            open_from: view.open_from(),
            sends_from: view.sends_from(),
        }
    }

    /// Puts all fields into a view, and our version with them.
    #[inline]
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, view: &mut ControlFrame<T>) {
        view.set_version();
        view.set_wants_answer(self.wants_answer);
        view.set_receiver(self.receiver);
        view.set_sent_at(self.sent_at);
        view.set_echo(self.echo);
        view.set_held_ns(self.held_ns);
        view.set_consumed(self.consumed);
        view.set_window(self.window);
        view.set_cleared_through(self.cleared_through);
        view.set_open_from(self.open_from);
        view.set_sends_from(self.sends_from);
    }

    /// How long the echoed frame was kept.
    pub fn held(&self) -> Duration {
        Duration::from_nanos(self.held_ns)
    }
}

/// One record of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// A message may be sent.
    ClearToSend(ClearToSend),
    /// Bytes of the reliability scheme above: see [`crate::record`].
    Scheme(&'a [u8]),
    /// Clear-to-sends that have arrived although an earlier one has not: bit `i`, the lowest of a byte first, is the message
    /// [`Header::cleared_through`] + `i`.
    ClearedBeyond(&'a [u8]),
    /// What has arrived of the peer's data.
    DataArrivals(DataArrivals),
    /// What the sender of data wants credit for.
    CreditAnnouncement(CreditAnnouncement),
    /// What it has been granted.
    CreditGrant(CreditGrant),
}

const KIND: Field = 0..2;
const LENGTH: Field = 2..4;
const KIND_CLEAR_TO_SEND: u16 = 1;
const KIND_SCHEME: u16 = 2;
const KIND_CLEARED_BEYOND: u16 = 3;
const KIND_DATA_ARRIVALS: u16 = 4;
const KIND_CREDIT_ANNOUNCEMENT: u16 = 5;
const KIND_CREDIT_GRANT: u16 = 6;

/// The records of a frame, one by one.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, FrameError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let (kind, contents) = match split_record(self.rest) {
                Ok(record) => record,
                Err(error) => {
                    self.rest = &[];
                    return Some(Err(error));
                }
            };
            self.rest = &self.rest[RECORD_HEADER_BYTES + contents.len()..];
            match kind {
                KIND_CLEAR_TO_SEND => return Some(ClearToSend::parse(contents).map(Record::ClearToSend)),
                KIND_SCHEME => return Some(Ok(Record::Scheme(contents))),
                KIND_CLEARED_BEYOND => return Some(Ok(Record::ClearedBeyond(contents))),
                KIND_DATA_ARRIVALS => return Some(DataArrivals::parse(contents).map(Record::DataArrivals)),
                KIND_CREDIT_ANNOUNCEMENT => {
                    return Some(CreditAnnouncement::parse(contents).map(Record::CreditAnnouncement));
                }
                KIND_CREDIT_GRANT => return Some(CreditGrant::parse(contents).map(Record::CreditGrant)),
                _ => {}
            }
        }
        None
    }
}

fn split_record(rest: &[u8]) -> Result<(u16, &[u8]), FrameError> {
    let short = |expected| FrameError::Short { expected, found: rest.len() };
    if rest.len() < RECORD_HEADER_BYTES {
        return Err(short(RECORD_HEADER_BYTES));
    }
    let end = RECORD_HEADER_BYTES + usize::from(read_u16(rest, LENGTH));
    let contents = rest.get(RECORD_HEADER_BYTES..end).ok_or(short(end))?;
    Ok((read_u16(rest, KIND), contents))
}

/// Writes a frame into a buffer: a header, then as many records as fit.
#[derive(Debug)]
pub struct FrameWriter<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl<'a> FrameWriter<'a> {
    /// A frame without records, when the buffer holds a header.
    pub fn new(bytes: &'a mut [u8], header: &Header) -> Result<Self, Truncated> {
        field::check_length(bytes, "a control frame", HEADER_BYTES)?;
        header.emit(&mut ControlFrame { buffer: &mut bytes[..HEADER_BYTES] });
        Ok(FrameWriter { bytes, length: HEADER_BYTES })
    }

    /// Bytes that the contents of one more record could have.
    pub fn room(&self) -> usize {
        (self.bytes.len() - self.length).saturating_sub(RECORD_HEADER_BYTES)
    }

    /// Adds a record, if it fits.
    pub fn push(&mut self, record: &Record<'_>) -> bool {
        match record {
            Record::ClearToSend(clear) => self.push_contents(KIND_CLEAR_TO_SEND, &clear.contents()),
            Record::Scheme(bytes) => self.push_contents(KIND_SCHEME, bytes),
            Record::ClearedBeyond(bits) => self.push_contents(KIND_CLEARED_BEYOND, bits),
            Record::DataArrivals(arrivals) => self.push_contents(KIND_DATA_ARRIVALS, &arrivals.contents()),
            Record::CreditAnnouncement(wants) => self.push_contents(KIND_CREDIT_ANNOUNCEMENT, &wants.contents()),
            Record::CreditGrant(grant) => self.push_contents(KIND_CREDIT_GRANT, &grant.contents()),
        }
    }

    fn push_contents(&mut self, kind: u16, contents: &[u8]) -> bool {
        let free = &mut self.bytes[self.length..];
        let end = RECORD_HEADER_BYTES + contents.len();
        let (Ok(length), true) = (u16::try_from(contents.len()), end <= free.len()) else { return false };
        write_u16(free, KIND, kind);
        write_u16(free, LENGTH, length);
        free[RECORD_HEADER_BYTES..end].copy_from_slice(contents);
        self.length += end;
        true
    }

    /// Bytes of the frame.
    pub fn finish(self) -> usize {
        self.length
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;
    use std::vec;
    use std::vec::Vec;

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
        let mut writer = FrameWriter::new(&mut bytes, &HEADER).expect("room for a header");
        assert!(records.iter().all(|record| writer.push(record)));
        let length = writer.finish();
        bytes.truncate(length);
        bytes
    }

    fn records(bytes: &[u8]) -> Result<Vec<Record<'_>>, FrameError> {
        let frame = ControlFrame::new_checked(bytes)?;
        let records = Records { rest: &frame.buffer[HEADER_BYTES..] };
        records.collect()
    }

    #[test]
    fn golden_bytes() {
        let mut expected = vec![4, 1, 0, 0, 1, 2, 3, 4];
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
        assert_eq!(ControlFrame::new_checked(&bytes).map(|frame| Header::parse(&frame)), Ok(HEADER));
        assert_eq!(records(&bytes), Ok(pushed.to_vec()));
    }

    #[test]
    fn the_document_is_true() {
        use crate::document::{check_layout, check_numbers};
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
        let arrivals = Record::DataArrivals(DataArrivals { immediate: 0, generation: 0, held_ns: 0, marked: 0 });
        let wants = CreditAnnouncement { wanted: 0, received: 0, uncredited: 0, lost: 0 };
        let grant = CreditGrant { granted: 0, recent: 0 };
        let names = [
            (Record::ClearToSend(CLEAR), "clear-to-send"),
            (Record::Scheme(&[]), "scheme"),
            (Record::ClearedBeyond(&[]), "cleared-beyond"),
            (arrivals, "data-arrivals"),
            (Record::CreditAnnouncement(wants), "credit-announcement"),
            (Record::CreditGrant(grant), "credit-grant"),
        ]
        .map(|(record, name)| {
            let bytes = frame(&[record]);
            (u16::from_be_bytes([bytes[HEADER_BYTES], bytes[HEADER_BYTES + 1]]), name)
        });
        check_numbers("Control frame", 1, &names);
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
        assert_eq!(records(&bytes[..67]), Err(FrameError::Short { expected: 68, found: 67 }));
        assert_eq!(records(&bytes[..76]), Err(FrameError::Short { expected: 36, found: 8 }));
        bytes[0] = 1;
        let refused = records(&bytes).expect_err("another version");
        assert_eq!(refused.to_string(), "this end speaks version 4 of control messages, the peer version 1");
        assert_eq!((receiver_of(&bytes), receiver_of(&bytes[..7])), (Some(0x0102_0304), None));
        bytes[0] = VERSION;
        bytes.truncate(HEADER_BYTES);
        bytes.extend([0, 1, 0, 1, 7]);
        assert_eq!(records(&bytes), Err(FrameError::ClearToSendLength(1)));
        assert_eq!(records(&[]), Err(FrameError::Short { expected: 68, found: 0 }));
    }

    #[test]
    fn a_record_that_does_not_fit_is_left_out() {
        let mut bytes = [0; HEADER_BYTES + RECORD_HEADER_BYTES + 3];
        let mut writer = FrameWriter::new(&mut bytes, &HEADER).expect("room for a header");
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
