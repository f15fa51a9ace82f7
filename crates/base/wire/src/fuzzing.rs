//! What must hold for any bytes at all: the body of the fuzz targets, and of the ordinary tests over their corpus.
//!
//! Hidden from the documentation; not part of the API.

use crate::icrc::{self, IdentificationTracker};
use crate::packet::MAX_HEADER_BYTES;
use crate::{Frame, Headers, IcrcScope, Packet, ethernet};
use core::hint::black_box;

/// Reads the bytes as everything that can come from a network; what reads must write to the same bytes again.
pub fn parse_packet(bytes: &[u8]) {
    black_box(ethernet::payload(bytes)).ok();
    if let Ok(frame) = Frame::parse_ethernet(bytes).or_else(|_| Frame::parse(bytes)) {
        datagram(&frame.icrc_scope(), frame.datagram);
    }
    datagram(&IcrcScope::WITHOUT_ADDRESSES, bytes);
}

fn datagram(scope: &IcrcScope, bytes: &[u8]) {
    let mut tracker = IdentificationTracker::new();
    black_box(tracker.check(scope, bytes));
    black_box(tracker.check(scope, bytes));
    let verified = icrc::verify(scope, bytes);
    match icrc::solve_identification(scope, bytes) {
        Some(identification) => {
            assert!(icrc::verify(&scope.with_identification(identification), bytes));
            assert_eq!(verified, scope.identification() == Some(identification));
        }
        None => assert!(!verified || scope.identification().is_none()),
    }

    let prefix = Headers::parse_prefix(bytes);
    if let Ok((headers, header_bytes)) = prefix {
        let mut buffer = [0xa5; MAX_HEADER_BYTES];
        assert_eq!(headers.emit(&mut buffer), Ok(header_bytes));
        assert_eq!(buffer[..header_bytes], bytes[..header_bytes]);
    }
    if let Ok(packet) = Packet::parse(bytes) {
        assert_eq!(prefix, Ok((packet.headers, packet.headers.byte_count())));
        assert_eq!(packet.byte_count(), bytes.len());
    }
}
