//! A listener's handle: all that a connecting end must know, in 128 bytes at most, which is what NCCL's bootstrap carries.
//!
//! ```text
//!   "LHH" · version 1, then fields (see [`crate::fields`]):
//!
//!   1  port                2     3  address  4 or 16, each
//!   2  token              16
//! ```
//!
//! Zeros may follow, as in a place of fixed size.

use core::net::IpAddr;

use crate::Truncated;
use crate::fields::{
    self, FIELD_HEADER_BYTES, Field, FieldError, FieldWriter, Fields, Form, Repeatable, Repeated, Tag,
};

/// The version that this code writes and reads.
pub const VERSION: u8 = 1;
/// No handle is longer.
pub const BYTES_MAX: usize = 128;

const FORM: Form = Form { magic: "LHH", version: VERSION, bytes_max: BYTES_MAX, may_be_padded: true };
const PORT: Tag = Tag(1, "port");
const TOKEN: Tag = Tag(2, "token");
const ADDRESS: Tag = Tag(3, "address");

/// All that a connecting end must know of a listener.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Handle<'a> {
    /// Its TCP port.
    pub port: u16,
    /// Random: a peer that has it may connect.
    pub token: [u8; 16],
    /// Where it listens.
    pub addresses: Repeated<'a, IpAddr>,
}

impl Repeatable for IpAddr {
    const TAG: Tag = ADDRESS;

    fn from_field(field: Field<'_>) -> Result<IpAddr, FieldError> {
        field.address()
    }
}

impl<'a> Handle<'a> {
    /// Reads one.
    pub fn parse(bytes: &'a [u8]) -> Result<Handle<'a>, FieldError> {
        let fields = Fields::new_checked(&FORM, bytes)?;
        let addresses = Repeated::parse(fields)?;
        Ok(Handle { port: fields.need(PORT)?.u16()?, token: fields.need(TOKEN)?.array()?, addresses })
    }

    /// Writes it at the beginning of `bytes`; how many they are. Addresses that do not fit a handle are left out.
    pub fn emit(&self, bytes: &mut [u8]) -> Result<usize, Truncated> {
        let mut writer = FieldWriter::new(bytes, &FORM);
        writer.push(PORT, &self.port.to_be_bytes());
        writer.push(TOKEN, &self.token);
        for address in self.addresses.iter() {
            let byte_count = if address.is_ipv4() { 4 } else { 16 };
            if writer.byte_count() + FIELD_HEADER_BYTES + byte_count <= BYTES_MAX {
                writer.push_address(ADDRESS, address);
            }
        }
        writer.finish()
    }

    /// Bytes of it.
    pub fn byte_count(&self) -> usize {
        fields::byte_count(|bytes| self.emit(bytes))
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

    fn addresses() -> [IpAddr; 2] {
        ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().expect("an address"))
    }

    fn handle(addresses: &[IpAddr]) -> Handle<'_> {
        Handle { port: 7471, token: *b"0123456789abcdef", addresses: addresses.into() }
    }

    fn emitted(handle: &Handle<'_>) -> Vec<u8> {
        let mut bytes = vec![0xa5; handle.byte_count()];
        assert_eq!(handle.emit(&mut bytes), Ok(bytes.len()));
        bytes
    }

    #[test]
    fn the_document_is_true() {
        let tags = [(PORT.0, "port"), (TOKEN.0, "token"), (ADDRESS.0, "address")];
        crate::document::check_numbers("Handle", 0, &tags);
    }

    #[test]
    fn golden_bytes() {
        let mut expected = b"LHH\x01".to_vec();
        expected.extend([0, 1, 0, 2, 0x1d, 0x2f]);
        expected.extend([0, 2, 0, 16]);
        expected.extend(b"0123456789abcdef");
        expected.extend([0, 3, 0, 4, 192, 0, 2, 1]);
        expected.extend([0, 3, 0, 16, 0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let addresses = addresses();
        assert_eq!(emitted(&handle(&addresses)), expected);
        assert_eq!(Handle::parse(&expected), Ok(handle(&addresses)));
        expected.resize(BYTES_MAX, 0);
        assert_eq!(Handle::parse(&expected), Ok(handle(&addresses)), "a field of fixed size");
    }

    #[test]
    fn bytes_that_are_missing_or_wrong_are_no_handle() {
        let bytes = emitted(&handle(&addresses()));
        for length in 0..bytes.len() {
            // Without its last field it is whole, and a zero that begins a field may be padding.
            let is_whole = [20, 19].contains(&(bytes.len() - length));
            assert_eq!(Handle::parse(&bytes[..length]).is_ok(), is_whole, "{length} bytes");
        }
        let version = Handle::parse(b"LHH\x02").expect_err("another version").to_string();
        assert!(version.contains("version 1") && version.contains("version 2"), "{version}");
    }

    proptest! {
        #[test]
        fn as_many_addresses_survive_as_fit(addresses in prop::collection::vec(any::<IpAddr>(), 1..12), port: u16, token: [u8; 16]) {
            let handle = Handle { port, token, addresses: addresses[..].into() };
            let bytes = emitted(&handle);
            prop_assert!(bytes.len() <= BYTES_MAX);
            let read = Handle::parse(&bytes).expect("a handle");
            prop_assert_eq!((read.port, read.token), (port, token));
            let kept = read.addresses.iter().count();
            prop_assert!(kept > 0 && (kept < addresses.len() || read == handle));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), place in 0_usize..50, value: u8) {
            let _ = Handle::parse(&bytes);
            let mut changed = emitted(&handle(&addresses()));
            changed[place] = value;
            let _ = Handle::parse(&changed);
        }
    }
}
