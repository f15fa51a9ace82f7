//! Versioned fields, the form of everything that two ends tell each other while connecting.
//!
//! `magic 3 · version 1`, then fields: `tag 2 · length 2 · value`, numbers big-endian. A field that is not known is
//! skipped, so that later versions can say more; one that is missing is an error that names it, and so is one that
//! comes twice.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

/// Bytes that are not what was expected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FieldError {
    /// Something else altogether.
    #[error("expected bytes that begin with \"{expected}\", came {came:02x?}")]
    Magic {
        /// What it begins with.
        expected: &'static str,
        /// What came.
        came: Vec<u8>,
    },
    /// Another version.
    #[error("this end speaks version {ours} of the connection info, the peer version {theirs}; update the older one")]
    Version {
        /// Here.
        ours: u8,
        /// There.
        theirs: u8,
    },
    /// Longer than anything that makes sense.
    #[error("{bytes} bytes of connection info, at most {most} are read")]
    TooLong {
        /// What came.
        bytes: usize,
        /// What is read.
        most: usize,
    },
    /// It is cut off.
    #[error("the connection info ends in the middle of a field")]
    CutOff,
    /// A field is missing.
    #[error("the connection info has no {0}")]
    Missing(&'static str),
    /// A field comes twice.
    #[error("the connection info has the field {0} twice")]
    Twice(&'static str),
    /// A field has the wrong size, or a value that means nothing.
    #[error("field {field} of the connection info: {message}")]
    Value {
        /// Which.
        field: &'static str,
        /// What is wrong.
        message: String,
    },
}

/// Writes fields.
pub(crate) struct FieldWriter {
    bytes: Vec<u8>,
}

impl FieldWriter {
    pub(crate) fn new(magic: [u8; 3], version: u8) -> Self {
        let mut bytes = magic.to_vec();
        bytes.push(version);
        FieldWriter { bytes }
    }

    /// A field; a value beyond 65,535 bytes is cut off (everything here is bounded far below).
    pub(crate) fn push(&mut self, tag: u16, value: &[u8]) {
        let value = &value[..value.len().min(u16::MAX.into())];
        self.bytes.extend(tag.to_be_bytes());
        self.bytes.extend((value.len() as u16).to_be_bytes());
        self.bytes.extend(value);
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

pub(crate) fn address_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// A field that was read.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a> {
    pub(crate) tag: u16,
    pub(crate) value: &'a [u8],
}

/// Whether something may follow the fields.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Padding {
    None,
    /// In a place of fixed size. (No field has tag 0.)
    Zeros,
}

/// The fields of bytes that begin as they should.
pub(crate) fn read<'a>(
    bytes: &'a [u8],
    magic: &'static str,
    version: u8,
    most: usize,
    padding: Padding,
) -> Result<Vec<Field<'a>>, FieldError> {
    if bytes.len() > most {
        return Err(FieldError::TooLong { bytes: bytes.len(), most });
    }
    let wrong = |came: &[u8]| FieldError::Magic { expected: magic, came: came[..came.len().min(4)].to_vec() };
    let Some(([begin @ .., theirs], mut rest)) = bytes.split_first_chunk::<4>() else { return Err(wrong(bytes)) };
    if begin != magic.as_bytes() {
        return Err(wrong(bytes));
    }
    if *theirs != version {
        return Err(FieldError::Version { ours: version, theirs: *theirs });
    }
    let mut fields = Vec::new();
    let is_over = |rest: &[u8]| match padding {
        Padding::None => rest.is_empty(),
        Padding::Zeros => rest.iter().all(|byte| *byte == 0),
    };
    while !is_over(rest) {
        let Some(([tag @ .., high, low], after)) = rest.split_first_chunk::<4>() else {
            return Err(FieldError::CutOff);
        };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let Some((value, after)) = after.split_at_checked(length) else { return Err(FieldError::CutOff) };
        fields.push(Field { tag: u16::from_be_bytes(*tag), value });
        rest = after;
    }
    Ok(fields)
}

/// The one field with a tag, if it is there.
pub(crate) fn find<'a>(fields: &[Field<'a>], tag: u16, name: &'static str) -> Result<Option<Named<'a>>, FieldError> {
    let mut with_tag = fields.iter().filter(|field| field.tag == tag);
    let found = with_tag.next().map(|field| Named { name, value: field.value });
    match with_tag.next() {
        Some(_) => Err(FieldError::Twice(name)),
        None => Ok(found),
    }
}

/// The one field with a tag.
pub(crate) fn need<'a>(fields: &[Field<'a>], tag: u16, name: &'static str) -> Result<Named<'a>, FieldError> {
    find(fields, tag, name)?.ok_or(FieldError::Missing(name))
}

/// A field with its name for errors.
#[derive(Clone, Copy)]
pub(crate) struct Named<'a> {
    pub(crate) name: &'static str,
    pub(crate) value: &'a [u8],
}

impl<'a> Named<'a> {
    pub(crate) fn wrong(&self, message: impl Into<String>) -> FieldError {
        FieldError::Value { field: self.name, message: message.into() }
    }

    pub(crate) fn array<const LENGTH: usize>(&self) -> Result<[u8; LENGTH], FieldError> {
        let came = self.value.len();
        self.value.try_into().map_err(|_| self.wrong(format!("expected {LENGTH} bytes, came {came}")))
    }

    pub(crate) fn u16(&self) -> Result<u16, FieldError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&self) -> Result<u32, FieldError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&self) -> Result<u64, FieldError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn text(&self, most: usize) -> Result<&'a str, FieldError> {
        if self.value.len() > most {
            return Err(self.wrong(format!("{} bytes, expected at most {most}", self.value.len())));
        }
        std::str::from_utf8(self.value).map_err(|_| self.wrong("expected text"))
    }

    pub(crate) fn address(&self) -> Result<IpAddr, FieldError> {
        if let Ok(octets) = <[u8; 4]>::try_from(self.value) {
            return Ok(Ipv4Addr::from(octets).into());
        }
        match <[u8; 16]>::try_from(self.value) {
            Ok(octets) => Ok(Ipv6Addr::from(octets).into()),
            Err(_) => Err(self.wrong(format!("expected an address of 4 or 16 bytes, came {}", self.value.len()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_tags() {
        let mut writer = FieldWriter::new(*b"ABC", 7);
        writer.push(1, &[1, 2]);
        writer.push(0x1234, b"later");
        writer.push(2, &address_bytes("192.0.2.1".parse().expect("an address")));
        let bytes = writer.finish();
        assert_eq!(bytes[..10], *b"ABC\x07\x00\x01\x00\x02\x01\x02");
        let fields = read(&bytes, "ABC", 7, 100, Padding::None).expect("fields");
        assert_eq!(need(&fields, 1, "one").and_then(|field| field.u16()), Ok(0x0102));
        assert_eq!(need(&fields, 2, "two").and_then(|field| field.address()), Ok("192.0.2.1".parse().expect("one")));
        assert_eq!(need(&fields, 3, "three").err(), Some(FieldError::Missing("three")));
        assert!(find(&fields, 3, "three").is_ok_and(|field| field.is_none()));
    }

    #[test]
    fn what_cannot_be_read() {
        let refusal = |bytes: &[u8]| {
            read(bytes, "ABC", 7, 20, Padding::None).map(|_| ()).expect_err("it is not right").to_string()
        };
        assert_eq!(refusal(b"GET /"), "expected bytes that begin with \"ABC\", came [47, 45, 54, 20]");
        assert_eq!(refusal(b"AB"), "expected bytes that begin with \"ABC\", came [41, 42]");
        assert!(refusal(b"ABC\x08").contains("version 7 of the connection info, the peer version 8"));
        assert!(refusal(b"ABC\x07\x00").contains("middle of a field"));
        assert!(refusal(b"ABC\x07\x00\x01\x00\x02\x01").contains("middle of a field"));
        assert!(refusal(&[0; 21]).contains("at most 20"));
        let fields = [Field { tag: 1, value: &[] }, Field { tag: 1, value: &[] }];
        assert_eq!(find(&fields, 1, "one").err(), Some(FieldError::Twice("one")));
    }
}
