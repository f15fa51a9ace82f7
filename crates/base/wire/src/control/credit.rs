//! The credit records: a sender announces what it wants to send, and the receiver grants credit for it.
//!
//! ```text
//!   announcement                                 grant
//! +-------------------------------------------+ +-------------------------------------------+
//! |                wanted (8)                 | |                granted (8)                |
//! |               received (8)                | |                recent (8)                 |
//! |              uncredited (8)               | +-------------------------------------------+
//! |                 lost (8)                  |
//! +-------------------------------------------+
//! ```
//!
//! Both are state, sent again and again: a grant counts from the beginning of the connection, so that a later one makes
//! up for one that was lost, and a repetition adds nothing.

use super::frame_error::{CREDIT_ANNOUNCEMENT_BYTES, CREDIT_GRANT_BYTES, FrameError};
use crate::field::{Field, read_u64, write_u64};

/// What the sender of data wants credit for. Bytes on the wire, headers included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreditAnnouncement {
    /// What it has to send and no credit for.
    pub wanted: u64,
    /// [`CreditGrant::granted`] of the newest grant that has arrived; 0 before the first.
    pub received: u64,
    /// What it has sent without credit since the beginning, and may still send.
    pub uncredited: u64,
    /// What it presumes lost since the beginning.
    pub lost: u64,
}

/// What the receiver of data has granted. Bytes on the wire, headers included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreditGrant {
    /// Since the beginning.
    pub granted: u64,
    /// Of that, the newest bytes, which have not expired: a sender that has missed more than these gets only these.
    pub recent: u64,
}

const WANTED: Field = 0..8;
const RECEIVED: Field = 8..16;
const UNCREDITED: Field = 16..24;
const LOST: Field = 24..32;
const GRANTED: Field = 0..8;
const RECENT: Field = 8..16;

impl CreditAnnouncement {
    /// Reads the contents of a record.
    pub(super) fn parse(bytes: &[u8]) -> Result<CreditAnnouncement, FrameError> {
        if bytes.len() != CREDIT_ANNOUNCEMENT_BYTES {
            return Err(FrameError::CreditAnnouncementLength(bytes.len()));
        }
        Ok(CreditAnnouncement {
            wanted: read_u64(bytes, WANTED),
            received: read_u64(bytes, RECEIVED),
            uncredited: read_u64(bytes, UNCREDITED),
            lost: read_u64(bytes, LOST),
        })
    }

    /// The contents of a record.
    pub(super) fn contents(&self) -> [u8; CREDIT_ANNOUNCEMENT_BYTES] {
        let mut bytes = [0; CREDIT_ANNOUNCEMENT_BYTES];
        write_u64(&mut bytes, WANTED, self.wanted);
        write_u64(&mut bytes, RECEIVED, self.received);
        write_u64(&mut bytes, UNCREDITED, self.uncredited);
        write_u64(&mut bytes, LOST, self.lost);
        bytes
    }
}

impl CreditGrant {
    /// Reads the contents of a record.
    pub(super) fn parse(bytes: &[u8]) -> Result<CreditGrant, FrameError> {
        if bytes.len() != CREDIT_GRANT_BYTES {
            return Err(FrameError::CreditGrantLength(bytes.len()));
        }
        Ok(CreditGrant { granted: read_u64(bytes, GRANTED), recent: read_u64(bytes, RECENT) })
    }

    /// The contents of a record.
    pub(super) fn contents(&self) -> [u8; CREDIT_GRANT_BYTES] {
        let mut bytes = [0; CREDIT_GRANT_BYTES];
        write_u64(&mut bytes, GRANTED, self.granted);
        write_u64(&mut bytes, RECENT, self.recent);
        bytes
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    const ANNOUNCEMENT: CreditAnnouncement = CreditAnnouncement { wanted: 1, received: 2, uncredited: 3, lost: 4 };
    const GRANT: CreditGrant = CreditGrant { granted: 5, recent: 6 };

    #[test]
    fn golden_bytes() {
        let bytes: Vec<u8> = [1_u64, 2, 3, 4].iter().flat_map(|number| number.to_be_bytes()).collect();
        assert_eq!(ANNOUNCEMENT.contents()[..], bytes);
        assert_eq!(CreditAnnouncement::parse(&bytes), Ok(ANNOUNCEMENT));
        assert_eq!(CreditAnnouncement::parse(&bytes[1..]), Err(FrameError::CreditAnnouncementLength(31)));
        let bytes: Vec<u8> = [5_u64, 6].iter().flat_map(|number| number.to_be_bytes()).collect();
        assert_eq!(GRANT.contents()[..], bytes);
        assert_eq!(CreditGrant::parse(&bytes), Ok(GRANT));
        assert_eq!(CreditGrant::parse(&bytes[1..]), Err(FrameError::CreditGrantLength(15)));
    }

    #[test]
    fn the_document_is_true() {
        let [wanted, received, uncredited, lost] = &[1_u64, 2, 3, 4].map(u64::to_be_bytes);
        let expected: [(&str, &[u8]); 4] =
            [("wanted", wanted), ("received", received), ("uncredited", uncredited), ("lost", lost)];
        crate::document::check_layout("Credit announcement", 0, &ANNOUNCEMENT.contents(), &expected);
        let [granted, recent] = &[5_u64, 6].map(u64::to_be_bytes);
        let expected: [(&str, &[u8]); 2] = [("granted", granted), ("recent", recent)];
        crate::document::check_layout("Credit grant", 0, &GRANT.contents(), &expected);
    }
}
