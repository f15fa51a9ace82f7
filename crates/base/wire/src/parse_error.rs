//! Why bytes are not what they should be.

use core::fmt;

/// A buffer was shorter than the header that a view was to be put over it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Truncated {
    /// The header's name.
    pub header: &'static str,
    /// Bytes the header has.
    pub expected_bytes: usize,
    /// Bytes the buffer has.
    pub found_bytes: usize,
}

impl fmt::Display for Truncated {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Truncated { header, expected_bytes, found_bytes } = self;
        write!(formatter, "{header} needs {expected_bytes} bytes, and there are {found_bytes}")
    }
}

impl core::error::Error for Truncated {}

/// Why bytes are not a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParseError {
    /// There are fewer bytes than the headers, the pad and the ICRC need.
    Truncated(Truncated),
    /// An opcode that we do not speak.
    UnknownOpcode {
        /// Its byte.
        byte: u8,
    },
    /// A transport header version other than 0, the only one there is (IBTA 9.6.1: such packets are dropped).
    UnsupportedVersion {
        /// The version that came.
        version: u8,
    },
}

impl From<Truncated> for ParseError {
    #[inline]
    fn from(error: Truncated) -> ParseError {
        ParseError::Truncated(error)
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::Truncated(error) => error.fmt(formatter),
            ParseError::UnknownOpcode { byte } => {
                write!(formatter, "expected an opcode of RC, UC or UD, or 0x81, and found {byte:#04x}")
            }
            ParseError::UnsupportedVersion { version } => {
                write!(formatter, "expected transport header version 0, and found {version}")
            }
        }
    }
}

impl core::error::Error for ParseError {}
