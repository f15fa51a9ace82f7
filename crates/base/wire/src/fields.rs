//! Versioned fields: the form of everything that two ends exchange while connecting.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-----------------------------------------------+---------------+
//! |                     magic                     |    version    |
//! +-------------------------------+---------------+---------------+
//! |              tag              |            length             |
//! +-------------------------------+-------------------------------+
//! |                     value, then more fields                   |
//! ```
//!
//! A field that is not known is skipped, so that later versions can say more; one that is missing is an error that names it.

use core::fmt;
use core::iter::FusedIterator;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Truncated;
use crate::field::read_u16;
use crate::immediate_layout::LayoutError;

/// Bytes of a field before its value.
pub const FIELD_HEADER_BYTES: usize = 4;

/// How a kind of bytes begins and ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// Three letters.
    pub magic: &'static str,
    /// The version that this code writes and reads.
    pub version: u8,
    /// Longer ones are not read.
    pub bytes_max: usize,
    /// Zeros may follow, as in a place of fixed size. (No field has tag 0.)
    pub may_be_padded: bool,
}

/// A field's number and what errors call it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag(pub u16, pub &'static str);

/// A view of fields over bytes. All of them are whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
    may_be_padded: bool,
}

impl<'a> Fields<'a> {
    /// A view, when the bytes begin as they must and no field is cut off.
    pub fn new_checked(form: &Form, bytes: &'a [u8]) -> Result<Fields<'a>, FieldError> {
        let &Form { magic, version, bytes_max, may_be_padded } = form;
        if bytes.len() > bytes_max {
            return Err(FieldError::TooLong { bytes: bytes.len(), most: bytes_max });
        }
        let rest = match bytes.split_first_chunk::<4>() {
            Some(([begin @ .., theirs], rest)) if begin == magic.as_bytes() => match *theirs {
                theirs if theirs == version => rest,
                theirs => return Err(FieldError::Version { ours: version, theirs }),
            },
            _ => return Err(FieldError::Magic { expected: magic, found: Beginning::of(bytes) }),
        };
        let fields = Fields { rest, may_be_padded };
        let mut all = fields;
        all.by_ref().for_each(drop);
        if all.is_at_end() { Ok(fields) } else { Err(FieldError::CutOff) }
    }

    fn is_at_end(&self) -> bool {
        self.rest.is_empty() || self.may_be_padded && self.rest.iter().all(|byte| *byte == 0)
    }

    /// Those with a tag.
    pub fn all(self, tag: Tag) -> impl Iterator<Item = Field<'a>> {
        self.filter(move |(number, _)| *number == tag.0).map(move |(_, value)| Field { name: tag.1, value })
    }

    /// The one with a tag, if it is there.
    pub fn find(self, tag: Tag) -> Result<Option<Field<'a>>, FieldError> {
        let mut with_tag = self.all(tag);
        let found = with_tag.next();
        if with_tag.next().is_some() { Err(FieldError::Twice(tag.1)) } else { Ok(found) }
    }

    /// The one with a tag.
    pub fn need(self, tag: Tag) -> Result<Field<'a>, FieldError> {
        self.find(tag)?.ok_or(FieldError::Missing(tag.1))
    }

    /// The last one with a tag, which counts where a format does not say that there is but one.
    pub fn last_of(self, tag: Tag) -> Option<Field<'a>> {
        self.all(tag).last()
    }
}

/// Tags and values.
impl<'a> Iterator for Fields<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        if self.is_at_end() {
            return None;
        }
        let (header, after) = self.rest.split_at_checked(FIELD_HEADER_BYTES)?;
        let (value, rest) = after.split_at_checked(read_u16(header, 2..4).into())?;
        self.rest = rest;
        Some((read_u16(header, 0..2), value))
    }
}

impl FusedIterator for Fields<'_> {}

/// The value of a field, with its name for errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field<'a> {
    name: &'static str,
    /// Its bytes.
    pub value: &'a [u8],
}

impl<'a> Field<'a> {
    /// An error about it.
    pub fn wrong(&self, problem: FieldProblem) -> FieldError {
        FieldError::Value { field: self.name, problem }
    }

    /// The value, when it has this many bytes.
    pub fn array<const LENGTH: usize>(&self) -> Result<[u8; LENGTH], FieldError> {
        let problem = FieldProblem::Length { expected: LENGTH, found: self.value.len() };
        self.value.try_into().map_err(|_| self.wrong(problem))
    }

    /// The value as a number of one byte.
    pub fn u8(&self) -> Result<u8, FieldError> {
        self.array().map(u8::from_be_bytes)
    }

    /// Of two bytes.
    pub fn u16(&self) -> Result<u16, FieldError> {
        self.array().map(u16::from_be_bytes)
    }

    /// Of four bytes.
    pub fn u32(&self) -> Result<u32, FieldError> {
        self.array().map(u32::from_be_bytes)
    }

    /// Of eight bytes.
    pub fn u64(&self) -> Result<u64, FieldError> {
        self.array().map(u64::from_be_bytes)
    }

    /// The number, when it is not 0.
    pub fn positive<T: Copy + Into<u64>>(&self, number: T) -> Result<T, FieldError> {
        match number.into() {
            0 => Err(self.wrong(FieldProblem::Range { found: 0, least: 1, most: u64::MAX })),
            _ => Ok(number),
        }
    }

    /// The value as text of at most `most` bytes.
    pub fn text(&self, most: usize) -> Result<&'a str, FieldError> {
        if self.value.len() > most {
            return Err(self.wrong(FieldProblem::TooLong { found: self.value.len(), most }));
        }
        str::from_utf8(self.value).map_err(|_| self.wrong(FieldProblem::NotText))
    }

    /// The value as an address.
    pub fn address(&self) -> Result<IpAddr, FieldError> {
        if let Ok(octets) = <[u8; 4]>::try_from(self.value) {
            return Ok(Ipv4Addr::from(octets).into());
        }
        match <[u8; 16]>::try_from(self.value) {
            Ok(octets) => Ok(Ipv6Addr::from(octets).into()),
            Err(_) => Err(self.wrong(FieldProblem::Address(self.value.len()))),
        }
    }
}

/// Something that may come several times, each in a field of its own.
pub trait Repeatable: Copy + PartialEq + fmt::Debug {
    /// The tag of each.
    const TAG: Tag;

    /// Reads one.
    fn from_field(field: Field<'_>) -> Result<Self, FieldError>;
}

/// Values of which each has a field: in bytes that were read, or in a slice that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Repeated<'a, T> {
    read: Option<Fields<'a>>,
    given: &'a [T],
}

impl<'a, T: Repeatable> Repeated<'a, T> {
    /// Those of the fields, which must all be readable and at least one.
    pub fn parse(fields: Fields<'a>) -> Result<Repeated<'a, T>, FieldError> {
        let mut count = 0;
        for field in fields.all(T::TAG) {
            T::from_field(field)?;
            count += 1;
        }
        if count == 0 { Err(FieldError::Missing(T::TAG.1)) } else { Ok(Repeated { read: Some(fields), given: &[] }) }
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let read = self.read.into_iter().flat_map(|fields| fields.all(T::TAG));
        // They were looked at before.
        read.filter_map(|field| T::from_field(field).ok()).chain(self.given.iter().copied())
    }
}

impl<'a, T> From<&'a [T]> for Repeated<'a, T> {
    fn from(given: &'a [T]) -> Self {
        Repeated { read: None, given }
    }
}

impl<T: Repeatable> PartialEq for Repeated<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// Writes fields into a buffer.
#[derive(Debug)]
pub struct FieldWriter<'a> {
    bytes: &'a mut [u8],
    /// Of what has been pushed, whether it fitted or not.
    byte_count: usize,
}

impl<'a> FieldWriter<'a> {
    /// Without fields.
    pub fn new(bytes: &'a mut [u8], form: &Form) -> Self {
        let mut writer = FieldWriter { bytes, byte_count: 0 };
        writer.put(form.magic.as_bytes());
        writer.put(&[form.version]);
        writer
    }

    fn put(&mut self, part: &[u8]) {
        let end = self.byte_count + part.len();
        if let Some(place) = self.bytes.get_mut(self.byte_count..end) {
            place.copy_from_slice(part);
        }
        self.byte_count = end;
    }

    /// A field; a value beyond 65,535 bytes is cut off (everything here is bounded far below).
    pub fn push(&mut self, tag: Tag, value: &[u8]) {
        self.push_parts(tag, [value, &[]]);
    }

    /// A field whose value is in two places.
    pub fn push_parts(&mut self, tag: Tag, [first, second]: [&[u8]; 2]) {
        let first = &first[..first.len().min(u16::MAX.into())];
        let second = &second[..second.len().min(usize::from(u16::MAX) - first.len())];
        self.put(&tag.0.to_be_bytes());
        self.put(&((first.len() + second.len()) as u16).to_be_bytes());
        self.put(first);
        self.put(second);
    }

    /// A field with an address of 4 or 16 bytes.
    pub fn push_address(&mut self, tag: Tag, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.push(tag, &address.octets()),
            IpAddr::V6(address) => self.push(tag, &address.octets()),
        }
    }

    /// Bytes so far.
    pub fn byte_count(&self) -> usize {
        self.byte_count
    }

    /// Bytes of all, when they fitted.
    pub fn finish(self) -> Result<usize, Truncated> {
        crate::field::check_length(self.bytes, "the connection info", self.byte_count)?;
        Ok(self.byte_count)
    }
}

/// The bytes that `emit` would write, by a try without room.
pub(crate) fn byte_count(emit: impl FnOnce(&mut [u8]) -> Result<usize, Truncated>) -> usize {
    emit(&mut []).unwrap_or_else(|truncated| truncated.expected_bytes)
}

/// Bytes that are not what was expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FieldError {
    /// Something else altogether.
    Magic {
        /// What it begins with.
        expected: &'static str,
        /// What it began with instead.
        found: Beginning,
    },
    /// Another version.
    Version {
        /// Here.
        ours: u8,
        /// There.
        theirs: u8,
    },
    /// Longer than anything that makes sense.
    TooLong {
        /// What came.
        bytes: usize,
        /// What is read.
        most: usize,
    },
    /// It is cut off.
    CutOff,
    /// A field is missing.
    Missing(&'static str),
    /// A field comes twice.
    Twice(&'static str),
    /// A field has the wrong size, or a value that means nothing.
    Value {
        /// Which.
        field: &'static str,
        /// What is wrong.
        problem: FieldProblem,
    },
}

/// What is wrong with a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FieldProblem {
    /// Another size.
    Length {
        /// Bytes that it has.
        expected: usize,
        /// Bytes that came.
        found: usize,
    },
    /// Too many bytes.
    TooLong {
        /// What came.
        found: usize,
        /// What is read.
        most: usize,
    },
    /// Not UTF-8.
    NotText,
    /// Not `lh:` and hexadecimal digits.
    NotHexadecimal,
    /// No address has this many bytes.
    Address(usize),
    /// Not the message that is expected now.
    Kind(u8),
    /// It comes too often.
    Count {
        /// How often.
        found: usize,
        /// The most.
        most: usize,
    },
    /// A number out of range.
    Range {
        /// What came.
        found: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// There is no such path MTU.
    Mtu(u32),
    /// The immediate cannot be divided like that.
    Layout(LayoutError),
    /// Not the same number of queue pairs in each generation.
    QueuePairs {
        /// Bytes of queue pairs.
        bytes: usize,
        /// Generations.
        generations: u8,
    },
}

/// The first bytes of something, at most four.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Beginning {
    bytes: [u8; 4],
    byte_count: usize,
}

impl Beginning {
    fn of(all: &[u8]) -> Beginning {
        let mut bytes = [0; 4];
        let byte_count = all.len().min(bytes.len());
        bytes[..byte_count].copy_from_slice(&all[..byte_count]);
        Beginning { bytes, byte_count }
    }
}

impl fmt::Debug for Beginning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.bytes[..self.byte_count], formatter)
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldError::Magic { expected, found } => {
                write!(formatter, "expected bytes that begin with \"{expected}\", got {found:02x?}")
            }
            FieldError::Version { ours, theirs } => write!(
                formatter,
                "this end speaks version {ours} of the connection info, the peer version {theirs}; update the older one"
            ),
            FieldError::TooLong { bytes, most } => {
                write!(formatter, "{bytes} bytes of connection info, at most {most} are read")
            }
            FieldError::CutOff => formatter.write_str("the connection info ends in the middle of a field"),
            FieldError::Missing(field) => write!(formatter, "the connection info has no {field}"),
            FieldError::Twice(field) => write!(formatter, "the connection info has the field {field} twice"),
            FieldError::Value { field, problem } => {
                write!(formatter, "field {field} of the connection info: {problem}")
            }
        }
    }
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldProblem::Length { expected, found } => write!(formatter, "expected {expected} bytes, got {found}"),
            FieldProblem::TooLong { found, most } => write!(formatter, "expected at most {most} bytes, got {found}"),
            FieldProblem::NotText => formatter.write_str("expected text"),
            FieldProblem::NotHexadecimal => formatter.write_str("expected lh: and hexadecimal digits"),
            FieldProblem::Address(found) => write!(formatter, "expected an address of 4 or 16 bytes, got {found}"),
            FieldProblem::Kind(found) => write!(formatter, "message {found} is not expected now"),
            FieldProblem::Count { found, most } => write!(formatter, "expected at most {most} of them, got {found}"),
            FieldProblem::Range { found, least, most: u64::MAX } => {
                write!(formatter, "expected at least {least}, got {found}")
            }
            FieldProblem::Range { found, least: 0, most } => write!(formatter, "expected at most {most}, got {found}"),
            FieldProblem::Range { found, least, most } => write!(formatter, "expected {least} to {most}, got {found}"),
            FieldProblem::Mtu(bytes) => write!(formatter, "there is no path MTU of {bytes}"),
            FieldProblem::Layout(error) => error.fmt(formatter),
            FieldProblem::QueuePairs { bytes, generations } => write!(
                formatter,
                "{bytes} bytes are not the same number of queue pairs in each of {generations} generations"
            ),
        }
    }
}

impl core::error::Error for FieldError {}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::{String, ToString};

    use super::*;

    const FORM: Form = Form { magic: "ABC", version: 7, bytes_max: 40, may_be_padded: false };
    const ONE: Tag = Tag(1, "one");
    const TWO: Tag = Tag(2, "two");
    const THREE: Tag = Tag(3, "three");

    #[test]
    fn fields_are_found_by_their_tags() {
        let mut buffer = [0xa5; 40];
        let mut writer = FieldWriter::new(&mut buffer, &FORM);
        writer.push_parts(ONE, [&[1], &[2]]);
        writer.push(Tag(0x1234, "later"), b"later");
        writer.push_address(TWO, "192.0.2.1".parse().expect("an address"));
        assert_eq!(writer.finish(), Ok(27));
        assert_eq!(buffer[..10], *b"ABC\x07\x00\x01\x00\x02\x01\x02");
        assert_eq!(buffer[27], 0xa5);
        let fields = Fields::new_checked(&FORM, &buffer[..27]).expect("fields");
        assert_eq!(fields.need(ONE).and_then(|field| field.u16()), Ok(0x0102));
        assert_eq!(fields.need(TWO).and_then(|field| field.address()), Ok("192.0.2.1".parse().expect("one")));
        assert_eq!(fields.need(THREE), Err(FieldError::Missing("three")));
        assert_eq!(fields.find(THREE), Ok(None));
    }

    #[test]
    fn what_does_not_fit_says_how_much_it_needs() {
        let emit = |bytes: &mut [u8]| {
            let mut writer = FieldWriter::new(bytes, &FORM);
            writer.push(ONE, &[1, 2, 3]);
            writer.finish()
        };
        assert_eq!(byte_count(emit), 11);
        assert_eq!(emit(&mut [0; 10]).map_err(|error| error.expected_bytes), Err(11));
    }

    #[test]
    fn what_cannot_be_read() {
        let refusal = |bytes: &[u8]| Fields::new_checked(&FORM, bytes).expect_err("it is not right").to_string();
        assert_eq!(refusal(b"GET /"), "expected bytes that begin with \"ABC\", got [47, 45, 54, 20]");
        assert_eq!(refusal(b"AB"), "expected bytes that begin with \"ABC\", got [41, 42]");
        assert!(refusal(b"ABC\x08").contains("version 7 of the connection info, the peer version 8"));
        assert!(refusal(b"ABC\x07\x00").contains("middle of a field"));
        assert!(refusal(b"ABC\x07\x00\x01\x00\x02\x01").contains("middle of a field"));
        assert!(refusal(&[0; 41]).contains("at most 40"));
        let twice = Fields::new_checked(&FORM, b"ABC\x07\x00\x01\x00\x00\x00\x01\x00\x01\x05").expect("fields");
        assert_eq!(twice.find(ONE), Err(FieldError::Twice("one")));
        assert_eq!(twice.last_of(ONE).map(|field| field.u8()), Some(Ok(5)));
        let padded = Form { may_be_padded: true, ..FORM };
        assert!(
            Fields::new_checked(&padded, b"ABC\x07\x00\x00\x00\x00\x00")
                .is_ok_and(|mut fields| fields.next().is_none())
        );
    }

    #[test]
    fn problems_in_words() {
        let said = |problem: FieldProblem| problem.to_string();
        let range = |least, most| said(FieldProblem::Range { found: 7, least, most });
        let all: [String; 3] = [range(9, u64::MAX), range(0, 5), range(9, 12)];
        assert_eq!(all, ["expected at least 9, got 7", "expected at most 5, got 7", "expected 9 to 12, got 7"]);
        let field = Field { name: "one", value: &[0, 0] };
        assert_eq!(field.u32(), Err(field.wrong(FieldProblem::Length { expected: 4, found: 2 })));
        assert!(field.positive(0_u16).is_err() && field.positive(1_u16).is_ok() && field.text(1).is_err());
    }
}
