//! Repair packets, byte by byte.

extern crate std;

use std::vec::Vec;

use super::*;
use crate::document::{check_layout, check_numbers, table};

fn header() -> Header {
    Header {
        subject: Subject { queue_pair: 0x12_3456, is_responses: true },
        is_announcement: false,
        base_psn: Psn::new(0xff_fffe),
        epoch: 0x0102,
        is_mds: true,
        block_packets: 32,
        repair_packets: 8,
        count: 7,
        index: 6,
        has_first: true,
        has_last: true,
        last_length: 0x0344,
        is_copy: false,
        has_tag: false,
        digest: 0xdead_beef,
    }
}

fn report() -> Report {
    Report {
        subject: Subject { queue_pair: 9, is_responses: false },
        next_psn: Psn::new(77),
        epoch: 3,
        has_tag: true,
        received: 1_000_000,
        lost: 1000,
        restored: 998,
        bursts: [1, 2, 3, 4, 5, 6, 7, 8],
    }
}

/// The datagram of a header, with a body and zeros for tag and ICRC.
fn datagram(header: &Header, body: &[u8]) -> Vec<u8> {
    let mut bytes = std::vec![0xa5; HEADER_BYTES];
    header.emit(&mut bytes);
    bytes.extend_from_slice(body);
    bytes.resize(bytes.len() + 4 + if header.has_tag { TAG_BYTES } else { 0 }, 0);
    bytes
}

const BODY: [u8; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

#[test]
fn a_repair_packet_on_literal_bytes() {
    let bytes = datagram(&header(), &BODY);
    let expected = [
        0x1f, 0x12, 0x34, 0x56, 0x01, 0xff, 0xff, 0xfe, // opcode, queue pair, type, base PSN
        0x01, 0x0f, 0x01, 0x02, 32, 8, 7, 6, // version, flags, epoch, r, c, count, index
        0x03, 0x44, 0x00, 0x00, 0xde, 0xad, 0xbe, 0xef, // last length, zero, digest
    ];
    assert_eq!(bytes[..HEADER_BYTES], expected);
    assert_eq!(Datagram::parse(&bytes), Ok(Datagram::Block(header(), &BODY)));
    assert!(is_repair(&bytes) && !is_repair(&[]) && !is_repair(&[0x0a]));
}

#[test]
fn announcements_reports_and_tags() {
    let announcement = Header {
        is_announcement: true,
        index: 0,
        has_first: false,
        has_last: false,
        last_length: 0,
        digest: 0,
        has_tag: true,
        ..header()
    };
    let bytes = datagram(&announcement, &[]);
    assert_eq!(bytes.len(), HEADER_BYTES + TAG_BYTES + 4);
    assert_eq!(Datagram::parse(&bytes), Ok(Datagram::Block(announcement, &[])));
    let mut bytes = std::vec![0xa5; REPORT_BYTES + TAG_BYTES + 4];
    report().emit(&mut bytes);
    assert_eq!(Datagram::parse(&bytes), Ok(Datagram::Report(report())));
    assert!(matches!(Datagram::parse(&bytes[..bytes.len() - 1]), Err(RepairError::Truncated(_))));
}

#[test]
fn the_document_has_every_field() {
    let bytes = datagram(&header(), &[]);
    let heading = "Repair packets";
    check_layout(
        heading,
        0,
        &bytes[..HEADER_BYTES],
        &[
            ("opcode", &[0x1f]),
            ("queue_pair", &[0x12, 0x34, 0x56]),
            ("type", &[1]),
            ("base_psn", &[0xff, 0xff, 0xfe]),
            ("version", &[1]),
            ("flags", &[0x0f]),
            ("epoch", &[1, 2]),
            ("block_packets", &[32]),
            ("repair_packets", &[8]),
            ("count", &[7]),
            ("index", &[6]),
            ("last_length", &[0x03, 0x44]),
            ("zero", &[0, 0]),
            ("digest", &[0xde, 0xad, 0xbe, 0xef]),
        ],
    );
    check_numbers(
        heading,
        1,
        &[
            (Kind::Repair as u16, "repair"),
            (Kind::Announcement as u16, "announcement"),
            (Kind::Report as u16, "report"),
        ],
    );
    let flags = [RESPONSES, HAS_FIRST, HAS_LAST, IS_MDS, IS_COPY, HAS_TAG];
    let names = ["responses", "has_first", "has_last", "is_mds", "is_copy", "has_tag"];
    let mut rows = table::<2>(heading, 2);
    for (flag, name) in flags.iter().zip(names) {
        let [bit, flag_name] = rows.next().unwrap_or_else(|| panic!("\"{heading}\" ends before {name}"));
        assert_eq!((bit.parse(), flag_name), (Ok(flag.trailing_zeros()), name));
    }
    assert_eq!(rows.next(), None);
    let mut bytes = std::vec![0; REPORT_BYTES];
    report().emit(&mut bytes);
    check_layout(
        "Reports",
        0,
        &bytes[12..],
        &[
            ("received", &1_000_000_u32.to_be_bytes()),
            ("lost", &1000_u32.to_be_bytes()),
            ("restored", &998_u32.to_be_bytes()),
            ("bursts", &[0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 8]),
        ],
    );
}

#[test]
fn headers_that_contradict_themselves_are_refused() {
    let refused = |header: Header, body: &[u8]| {
        let error = Datagram::parse(&datagram(&header, body)).unwrap_err();
        assert!(matches!(error, RepairError::Contradiction(_)), "{error}");
    };
    refused(Header { block_packets: 0, ..header() }, &BODY);
    refused(Header { repair_packets: 0, ..header() }, &BODY);
    refused(Header { is_mds: false, repair_packets: 33, ..header() }, &BODY);
    refused(Header { block_packets: 200, repair_packets: 56, ..header() }, &BODY);
    refused(Header { count: 0, ..header() }, &BODY);
    refused(Header { count: 33, ..header() }, &BODY);
    refused(Header { index: 7, ..header() }, &BODY);
    refused(Header { index: 8, count: 32, ..header() }, &BODY);
    refused(Header { is_announcement: true, index: 0, ..header() }, &BODY);
    refused(header(), &BODY[..8]);
    refused(Header { has_last: false, ..header() }, &BODY);
    refused(Header { is_copy: true, ..header() }, &BODY);
    let mut bytes = datagram(&header(), &BODY);
    bytes[FLAGS] |= 0x80;
    assert!(matches!(Datagram::parse(&bytes), Err(RepairError::Contradiction(_))));
    bytes[VERSION_AT] = 2;
    assert_eq!(Datagram::parse(&bytes), Err(RepairError::Version(2)));
    bytes[VERSION_AT] = VERSION;
    bytes[TYPE] = 4;
    assert_eq!(Datagram::parse(&bytes), Err(RepairError::Type(4)));
    bytes[0] = 0x0a;
    assert_eq!(Datagram::parse(&bytes), Err(RepairError::OtherOpcode(0x0a)));
    assert!(matches!(Datagram::parse(&bytes[..23]), Err(RepairError::Truncated(_))));
}

#[test]
fn the_digest_is_part_of_the_format_and_not_linear() {
    // MurmurHash3's finalizer of 1 · 0x9e37_79b1, of 2 · 0x9e37_79b1, and of 1 · 0x9e3779b1 with the lowest bit changed.
    assert_eq!([digest_of(0, 0), digest_of(1, 0), digest_of(0, 1)], [0x11fd_02eb, 0xbb2a_afde, 0xb19f_ea7c]);
    // Three packets whose sum is a fourth: their digests do not add up to it.
    let (a, b, c) = (0x1234_5678, 0x9abc_def0, 0x0f1e_2d3c);
    assert_ne!(digest_of(0, a) ^ digest_of(0, b) ^ digest_of(0, c), digest_of(0, a ^ b ^ c));
}

#[test]
fn classes_of_bursts() {
    let classes = [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, u32::MAX].map(burst_class);
    assert_eq!(classes, [0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]);
    assert_eq!(burst_class(0), 0);
}
