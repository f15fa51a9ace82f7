//! Why a control frame cannot be read, and what it has to be like.

use core::fmt;

/// The version of frames that this code writes and reads.
pub const VERSION: u8 = 4;
/// Bytes of the contents of each record with a fixed size.
pub(super) const CLEAR_TO_SEND_BYTES: usize = 32;
pub(super) const DATA_ARRIVALS_BYTES: usize = 24;
pub(super) const CREDIT_ANNOUNCEMENT_BYTES: usize = 32;
pub(super) const CREDIT_GRANT_BYTES: usize = 16;

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
                write!(formatter, "expected {} bytes of a clear-to-send, got {found}", CLEAR_TO_SEND_BYTES)
            }
            FrameError::DataArrivalsLength(found) => {
                write!(formatter, "expected {} bytes of data arrivals, got {found}", DATA_ARRIVALS_BYTES)
            }
            FrameError::CreditAnnouncementLength(found) => {
                write!(formatter, "expected {} bytes of a credit announcement, got {found}", CREDIT_ANNOUNCEMENT_BYTES)
            }
            FrameError::CreditGrantLength(found) => {
                write!(formatter, "expected {} bytes of a credit grant, got {found}", CREDIT_GRANT_BYTES)
            }
        }
    }
}

impl core::error::Error for FrameError {}
