//! A listener's handle: all that a connecting end must know, in 128 bytes at most, which is what NCCL's bootstrap
//! carries.
//!
//! `"LHH" · version 1` and fields (see `fields`): the TCP port, a random token, and as many of the listener's addresses
//! as fit.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::fields::{self, Field, FieldError, FieldWriter, Named, Padding, address_bytes};

/// What the text of a handle begins with.
pub(crate) const TEXT_PREFIX: &str = "lh:";
/// The version that this code writes and reads.
const VERSION: u8 = 1;
const MAGIC: &str = "LHH";

mod tag {
    pub(super) const PORT: u16 = 1;
    pub(super) const TOKEN: u16 = 2;
    pub(super) const ADDRESS: u16 = 3;
}

/// All that a connecting end must know of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenHandle {
    addresses: Vec<IpAddr>,
    port: u16,
    token: [u8; 16],
}

impl ListenHandle {
    /// No handle is longer.
    pub const BYTES_MAX: usize = 128;

    pub(crate) fn new(addresses: Vec<IpAddr>, port: u16, token: [u8; 16]) -> Self {
        ListenHandle { addresses, port, token }
    }

    /// The bytes. Addresses that do not fit are left out, the last ones first.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new(*b"LHH", VERSION);
        writer.push(tag::PORT, &self.port.to_be_bytes());
        writer.push(tag::TOKEN, &self.token);
        for address in &self.addresses {
            let bytes = address_bytes(*address);
            if writer.len() + 4 + bytes.len() <= Self::BYTES_MAX {
                writer.push(tag::ADDRESS, &bytes);
            }
        }
        writer.finish()
    }

    /// Read them. What follows them may be zeros, as in a field of fixed size.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FieldError> {
        let fields = fields::read(bytes, MAGIC, VERSION, Self::BYTES_MAX, Padding::Zeros)?;
        let address = |field: &Field<'_>| Named { name: "address", value: field.value }.address();
        let addresses = fields.iter().filter(|field| field.tag == tag::ADDRESS).map(address);
        let addresses = addresses.collect::<Result<Vec<_>, FieldError>>()?;
        if addresses.is_empty() {
            return Err(FieldError::Missing("address"));
        }
        Ok(ListenHandle {
            addresses,
            port: fields::need(&fields, tag::PORT, "port")?.u16()?,
            token: fields::need(&fields, tag::TOKEN, "token")?.array()?,
        })
    }

    /// Read the text that [`ListenHandle`] is displayed as.
    pub(crate) fn from_text(text: &str) -> Result<Self, FieldError> {
        let wrong = || FieldError::Value { field: "handle", message: "expected lh: and hexadecimal digits".to_owned() };
        let digits = text.strip_prefix(TEXT_PREFIX).filter(|digits| digits.is_ascii()).ok_or_else(wrong)?;
        let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
        if !rest.is_empty() {
            return Err(wrong());
        }
        let byte = |pair: &[u8; 2]| {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8)
        };
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        Self::from_bytes(&bytes.ok_or_else(wrong)?)
    }

    /// Where the listener listens.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses.iter().map(|address| SocketAddr::new(*address, self.port))
    }

    /// What a hello must carry.
    pub fn token(&self) -> [u8; 16] {
        self.token
    }
}

/// As text, for a command line or a configuration file: `lh:` and its bytes in hexadecimal digits. It contains the
/// token: whoever has it may connect. [`crate::connect`] takes this text in place of an address.
impl fmt::Display for ListenHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(TEXT_PREFIX)?;
        self.to_bytes().iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn handle() -> ListenHandle {
        let addresses = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().expect("an address"));
        ListenHandle::new(addresses.to_vec(), 7471, *b"0123456789abcdef")
    }

    #[test]
    fn the_document_is_true() {
        let tags = [(tag::PORT, "port"), (tag::TOKEN, "token"), (tag::ADDRESS, "address")];
        longhaul_wire::document::check_numbers("Handle", 0, &tags);
    }

    #[test]
    fn golden_bytes() {
        let mut expected = b"LHH\x01".to_vec();
        expected.extend([0, 1, 0, 2, 0x1d, 0x2f]);
        expected.extend([0, 2, 0, 16]);
        expected.extend(b"0123456789abcdef");
        expected.extend([0, 3, 0, 4, 192, 0, 2, 1]);
        expected.extend([0, 3, 0, 16, 0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(handle().to_bytes(), expected);
        assert_eq!(ListenHandle::from_bytes(&expected), Ok(handle()));
        expected.resize(ListenHandle::BYTES_MAX, 0);
        assert_eq!(ListenHandle::from_bytes(&expected), Ok(handle()), "a field of fixed size");
    }

    #[test]
    fn text_that_is_no_handle() {
        for text in ["", "lh:", "lh:4", "lh:4c48480", "lh:zz", "4c4848", "lh:\u{fc}\u{fc}"] {
            assert!(ListenHandle::from_text(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_that_are_missing_or_wrong_are_no_handle() {
        let bytes = handle().to_bytes();
        for length in 0..bytes.len() {
            // Without its last field it is whole, and a zero that begins a field may be padding.
            let is_whole = [20, 19].contains(&(bytes.len() - length));
            assert_eq!(ListenHandle::from_bytes(&bytes[..length]).is_ok(), is_whole, "{length} bytes");
        }
        let version = ListenHandle::from_bytes(b"LHH\x02").expect_err("another version").to_string();
        assert!(version.contains("version 1") && version.contains("version 2"), "{version}");
    }

    proptest! {
        #[test]
        fn handles_survive(addresses in prop::collection::vec(any::<IpAddr>(), 1..12), port: u16, token: [u8; 16], padded: bool) {
            let handle = ListenHandle::new(addresses, port, token);
            let mut bytes = handle.to_bytes();
            prop_assert!(bytes.len() <= ListenHandle::BYTES_MAX);
            if padded {
                bytes.resize(ListenHandle::BYTES_MAX, 0);
            }
            let read = ListenHandle::from_bytes(&bytes).expect("a handle");
            prop_assert!(!read.addresses.is_empty());
            prop_assert_eq!((read.port, read.token), (handle.port, handle.token));
            let from_text = ListenHandle::from_text(&handle.to_string());
            prop_assert_eq!(from_text.as_ref(), Ok(&read));
            let whole = handle.addresses.len() == read.addresses.len();
            prop_assert!(!whole || read == handle);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), place in 0_usize..50, value: u8) {
            let _ = ListenHandle::from_bytes(&bytes);
            let mut changed = handle().to_bytes();
            changed[place] = value;
            let _ = ListenHandle::from_bytes(&changed);
        }
    }
}
