//! What must hold for any bytes at all: the body of the fuzz targets, and of the ordinary tests over their corpus.
//!
//! Hidden from the documentation; not part of the API.

use crate::cm::{Message, ip_header};
use crate::icrc::{self, IdentificationTracker};
use crate::packet::MAX_HEADER_BYTES;
use crate::{Frame, Headers, IcrcScope, Packet, ethernet, repair};
use core::hint::black_box;

/// Reads the bytes as everything that can come from a network; what reads must write to the same bytes again.
pub fn parse_packet(bytes: &[u8]) {
    black_box(ethernet::payload(bytes)).ok();
    if let Ok(frame) = Frame::parse_ethernet(bytes).or_else(|_| Frame::parse(bytes)) {
        datagram(&frame.icrc_scope(), frame.datagram);
    }
    datagram(&IcrcScope::WITHOUT_ADDRESSES, bytes);
    repair_packet(bytes);
}

/// Reads the bytes as a packet between two shims; its headers must write to the same bytes again, but for those that are not read.
pub fn repair_packet(bytes: &[u8]) {
    let Ok(parsed) = repair::Datagram::parse(bytes) else { return };
    let mut buffer = [0xa5; repair::REPORT_BYTES];
    let header_bytes = match parsed {
        repair::Datagram::Block(header, body) => {
            assert!(repair::HEADER_BYTES + body.len() + icrc::ICRC_BYTES <= bytes.len());
            header.emit(&mut buffer);
            repair::HEADER_BYTES
        }
        repair::Datagram::Report(report) => {
            report.emit(&mut buffer);
            repair::REPORT_BYTES
        }
    };
    let mut whole = [0; repair::REPORT_BYTES + 32];
    let has_body = matches!(parsed, repair::Datagram::Block(header, _) if !header.is_announcement);
    let tail = icrc::ICRC_BYTES + if is_tagged(&parsed) { repair::TAG_BYTES } else { 0 };
    let body_bytes = if has_body { repair::CODED_PREFIX_BYTES + 1 } else { 0 };
    whole[..header_bytes].copy_from_slice(&buffer[..header_bytes]);
    let whole = &whole[..header_bytes + body_bytes + tail];
    match (parsed, repair::Datagram::parse(whole)) {
        (repair::Datagram::Block(header, _), Ok(repair::Datagram::Block(read, _))) => assert_eq!(header, read),
        (repair::Datagram::Report(report), Ok(repair::Datagram::Report(read))) => assert_eq!(report, read),
        (_, other) => panic!("what was written reads differently: {other:?}"),
    }
}

fn is_tagged(datagram: &repair::Datagram<'_>) -> bool {
    match datagram {
        repair::Datagram::Block(header, _) => header.has_tag,
        repair::Datagram::Report(report) => report.has_tag,
    }
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

/// Reads the bytes as a management datagram; a message must read the same after it was written.
pub fn connection_management(bytes: &[u8]) {
    if let Some(header) = ip_header::Header::parse(bytes) {
        assert_eq!(ip_header::Header::parse(&header.emit()), Some(header));
    }
    if let Ok((message, transaction)) = Message::parse(bytes) {
        assert_eq!(Message::parse(&message.emit(transaction)), Ok((message, transaction)));
    }
}
