//! Why a control frame cannot be read.

use core::fmt;

use super::{VERSION, clear_to_send, credit, data_arrivals};

/// A frame that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// Shorter than it says.
    Short {
        /// Bytes that were needed.
        expected: usize,
        /// Bytes that the buffer has.
        found: usize,
    },
    /// A version that this code does not speak.
    Version(u8),
    /// A clear-to-send of the wrong size.
    ClearToSendLength(usize),
    /// A record of arrivals of the wrong size.
    DataArrivalsLength(usize),
    /// A credit announcement of the wrong size.
    CreditAnnouncementLength(usize),
    /// A credit grant of the wrong size.
    CreditGrantLength(usize),
}

impl fmt::Display for FrameError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Short { expected, found } => {
                write!(formatter, "expected {expected} bytes of a control message, got {found}")
            }
            FrameError::Version(theirs) => {
                write!(formatter, "this end speaks version {VERSION} of control messages, the peer version {theirs}")
            }
            FrameError::ClearToSendLength(found) => {
                write!(formatter, "expected {} bytes of a clear-to-send, got {found}", clear_to_send::CONTENTS_BYTES)
            }
            FrameError::DataArrivalsLength(found) => {
                write!(formatter, "expected {} bytes of data arrivals, got {found}", data_arrivals::CONTENTS_BYTES)
            }
            FrameError::CreditAnnouncementLength(found) => {
                write!(formatter, "expected {} bytes of a credit announcement, got {found}", credit::ANNOUNCEMENT_BYTES)
            }
            FrameError::CreditGrantLength(found) => {
                write!(formatter, "expected {} bytes of a credit grant, got {found}", credit::GRANT_BYTES)
            }
        }
    }
}

impl core::error::Error for FrameError {}
