//! Every packet of every capture in `tests/captures` is decoded and encoded again to the same bytes, ICRC included.
//!
//! The captures are of Linux Soft-RoCE; their README says how each was taken.

use longhaul_wire::cm::{self, Kind, Message};
use longhaul_wire::icrc::{self, IdentificationTracker, Verdict};
use longhaul_wire::mad;
use longhaul_wire::packet::{self, ParseError};
use longhaul_wire::{Frame, IpHeader, NakCode, Opcode, Packet, Syndrome, UDP_PORT_ROCE, ethernet};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The Ethernet frames of one capture.
struct Capture {
    path: PathBuf,
    frames: Vec<Vec<u8>>,
}

fn captures() -> Vec<Capture> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap" || extension == "pcapng"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "there are no captures in {}", folder.display());
    paths.into_iter().map(|path| Capture { frames: read_frames(&path), path }).collect()
}

fn read_frames(path: &Path) -> Vec<Vec<u8>> {
    let file = std::fs::File::open(path).unwrap();
    let mut frames = Vec::new();
    if path.extension().is_some_and(|extension| extension == "pcap") {
        let mut reader = pcap_file::pcap::PcapReader::new(file).unwrap();
        assert_eq!(reader.header().datalink, pcap_file::DataLink::ETHERNET, "{}", path.display());
        while let Some(packet) = reader.next_packet() {
            frames.push(packet.unwrap().data.into_owned());
        }
    } else {
        let mut reader = pcap_file::pcapng::PcapNgReader::new(file).unwrap();
        while let Some(block) = reader.next_block() {
            if let pcap_file::pcapng::Block::EnhancedPacket(packet) = block.unwrap() {
                frames.push(packet.data.into_owned());
            }
        }
    }
    assert!(!frames.is_empty(), "{} has no packets", path.display());
    frames
}

#[test]
fn every_packet_decodes_and_encodes_to_the_same_bytes() {
    let mut opcodes: BTreeMap<(bool, u8), usize> = BTreeMap::new();
    let mut syndromes = BTreeSet::new();
    let mut packet_count = 0;
    for Capture { path, frames } in captures() {
        for (index, bytes) in frames.iter().enumerate() {
            let place = format!("{}, packet {}", path.display(), index + 1);
            let frame = Frame::parse_ethernet(bytes).unwrap_or_else(|error| panic!("{place}: {error}"));
            assert_eq!(frame.udp.destination_port, UDP_PORT_ROCE, "{place}");
            let packet = Packet::parse(frame.datagram).unwrap_or_else(|error: ParseError| panic!("{place}: {error}"));

            // The datagram, once with the ICRC that came and once with one of our own.
            let mut buffer = [0xa5; 9000];
            let length = packet.emit(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], frame.datagram, "{place}");
            buffer.fill(0xa5);
            let length =
                packet::write_datagram(&packet.headers, packet.payload, &frame.icrc_scope(), &mut buffer).unwrap();
            assert_eq!(&buffer[..length], frame.datagram, "{place}");
            assert!(icrc::verify(&frame.icrc_scope(), frame.datagram), "{place}");

            // What is around it.
            let (_, ip_packet) = ethernet::payload(bytes).unwrap();
            buffer.fill(0xa5);
            let length = frame.emit(&mut buffer).unwrap();
            assert_eq!(buffer[..length], ip_packet[..length], "{place}");
            if let IpHeader::V4(header) = frame.ip {
                assert!(header.checksum_is_right(), "{place}");
            }
            let ethernet = ethernet::Header::parse(&ethernet::Ethernet::new_checked(bytes).unwrap());
            let mut header = [0xa5; 14];
            ethernet.emit(&mut ethernet::Ethernet::new_checked(&mut header).unwrap());
            assert_eq!(header, bytes[..14], "{place}");

            let version_4 = matches!(frame.ip, IpHeader::V4(_));
            *opcodes.entry((version_4, packet.headers.bth.opcode.byte())).or_default() += 1;
            syndromes.extend(packet.headers.aeth.map(|aeth| aeth.syndrome.byte() & 0x7f));
            packet_count += 1;
        }
    }
    println!("{packet_count} packets");

    // rxe sends every opcode but the congestion notification, which it does not have.
    for &opcode in Opcode::ALL.iter().filter(|&&opcode| opcode != Opcode::Cnp) {
        for version_4 in [true, false] {
            assert!(
                opcodes.contains_key(&(version_4, opcode.byte())),
                "no capture over {} has {opcode:?}",
                if version_4 { "IPv4" } else { "IPv6" }
            );
        }
    }
    for syndrome in [
        Syndrome::RnrNak { timer: 26 },
        Syndrome::Nak(NakCode::PsnSequenceError),
        Syndrome::Nak(NakCode::InvalidRequest),
        Syndrome::Nak(NakCode::RemoteAccessError),
        Syndrome::Nak(NakCode::RemoteOperationalError),
    ] {
        assert!(syndromes.contains(&syndrome.byte()), "no capture has {syndrome:?}");
    }
}

#[test]
fn identifications_are_solved_and_predicted() {
    let mut counts = [0; 3];
    for Capture { path, frames } in captures() {
        let mut trackers: BTreeMap<(IpAddr, IpAddr), (IdentificationTracker, usize)> = BTreeMap::new();
        for (index, bytes) in frames.iter().enumerate() {
            let place = format!("{}, packet {}", path.display(), index + 1);
            let frame = Frame::parse_ethernet(bytes).unwrap();
            // What a socket knows.
            let scope = frame.icrc_scope().with_identification(0);
            let identification = frame.icrc_scope().identification();
            assert_eq!(icrc::solve_identification(&scope, frame.datagram), identification, "{place}");

            let (tracker, packet_count) = trackers.entry((frame.ip.source(), frame.ip.destination())).or_default();
            *packet_count += 1;
            match tracker.check(&scope, frame.datagram) {
                Verdict::Exact => counts[0] += 1,
                Verdict::Predicted => counts[1] += 1,
                Verdict::Solved => {
                    // The first packet of each direction, about which nothing is known.
                    assert_eq!((identification.is_some(), *packet_count), (true, 1), "{place}");
                    counts[2] += 1;
                }
                Verdict::Bad => panic!("{place}"),
            }
        }
    }
    let [exact, predicted, solved] = counts;
    println!("{exact} exact, {predicted} predicted, {solved} solved");
}

#[test]
fn what_linux_says_to_connect_is_written_with_the_same_bytes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures/rdma-cm-v4.pcap");
    let mut kinds = Vec::new();
    for bytes in read_frames(&path) {
        let frame = Frame::parse_ethernet(&bytes).unwrap();
        let packet = Packet::parse(frame.datagram).unwrap();
        let Some(deth) = packet.headers.deth else { continue };
        assert_eq!(packet.headers.bth.destination_qp, mad::QUEUE_PAIR_GENERAL);
        assert_eq!((deth.queue_key, deth.source_qp), (mad::QUEUE_KEY_GENERAL, mad::QUEUE_PAIR_GENERAL));
        let (message, transaction) = Message::parse(packet.payload).unwrap();
        assert_eq!(message.emit(transaction), packet.payload, "{message:?}");
        if let Message::Request(request) = message {
            let header = cm::ip_header::Header::parse(request.private_data.bytes()).unwrap();
            assert_eq!(header.source, frame.ip.source());
            assert_eq!(header.destination, frame.ip.destination());
            assert_eq!(cm::ip_header::port_of(request.service), Some((cm::ip_header::PROTOCOL_TCP, 7174)));
        }
        kinds.push(message.kind());
    }
    assert_eq!(kinds, [Kind::Request, Kind::Reply, Kind::Ready, Kind::Disconnect, Kind::DisconnectReply]);
}
