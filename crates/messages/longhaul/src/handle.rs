//! A listener's handle: all that a connecting end must know. Its bytes are [`longhaul_wire::handle`]'s; here it has a
//! text, too.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use longhaul_wire::fields::{FieldError, FieldProblem};
use longhaul_wire::handle::{self, Handle};

/// What the text of a handle begins with.
pub(crate) const TEXT_PREFIX: &str = "lh:";

/// All that a connecting end must know of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenHandle {
    addresses: Vec<IpAddr>,
    port: u16,
    token: [u8; 16],
}

impl ListenHandle {
    /// No handle is longer.
    pub const BYTES_MAX: usize = handle::BYTES_MAX;

    pub(crate) fn new(addresses: Vec<IpAddr>, port: u16, token: [u8; 16]) -> Self {
        ListenHandle { addresses, port, token }
    }

    /// The bytes. Addresses that do not fit are left out, the last ones first.
    pub fn to_bytes(&self) -> Vec<u8> {
        let handle = Handle { port: self.port, token: self.token, addresses: self.addresses[..].into() };
        let mut bytes = vec![0; handle.byte_count()];
        handle.emit(&mut bytes).expect("it has the size of the handle");
        bytes
    }

    /// Read them. What follows them may be zeros, as in a field of fixed size.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FieldError> {
        let Handle { port, token, addresses } = Handle::parse(bytes)?;
        Ok(ListenHandle { addresses: addresses.iter().collect(), port, token })
    }

    /// Read the text that [`ListenHandle`] is displayed as.
    pub(crate) fn from_text(text: &str) -> Result<Self, FieldError> {
        let wrong = || FieldError::Value { field: "handle", problem: FieldProblem::NotHexadecimal };
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
/// token: anyone who has it may connect. [`crate::connect`] takes this text in place of an address.
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

    #[test]
    fn text_that_is_no_handle() {
        for text in ["", "lh:", "lh:4", "lh:4c48480", "lh:zz", "4c4848", "lh:\u{fc}\u{fc}"] {
            assert!(ListenHandle::from_text(text).is_err(), "{text}");
        }
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
    }
}
