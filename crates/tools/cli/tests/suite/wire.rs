//! The dissector of docs/wireshark reads what we send: every packet of a real capture, and every kind of record and
//! message of the handshake.
//!
//! Without `tshark` the tests say so and pass, except where `CI=true` promises that it is there.

use crate::perf_server;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use longhaul::{Accepting, Connecting, DeviceName, Endpoint, HandshakeError, Meeting, Options, SOFTNIC, Towards};
use longhaul_reliable::record::{Offer, Record as Message, Refusal, Refused};
use longhaul_reliable::record_bytes;
use longhaul_sdr::control::{
    ClearToSend, CreditAnnouncement, CreditGrant, DataArrivals, FrameWriter, HEADER_BYTES, Header, Record,
};
use longhaul_softnic_udp::{UdpConfig, UdpPortChoice};
use perf_server::Server;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/wireshark/longhaul.lua");

/// A folder of the test's own.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("wire-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

/// What a program of Wireshark's prints; `None` where it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program}: {errors}");
            assert!(!errors.contains("Lua"), "{program}: {errors}");
            Some(output)
        }
        Err(error) => {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{program} cannot be run ({error}): install it");
            println!("SKIPPED: {program} cannot be run ({error}); apt-get install tshark");
            None
        }
    }
}

/// The lines that tshark prints about a capture, with our dissector.
fn dissected(capture: &Path, arguments: &[&str]) -> Option<Vec<String>> {
    let (script, capture) = (format!("lua_script:{SCRIPT}"), capture.display().to_string());
    let output = run("tshark", &[&["-X", &script, "-r", &capture][..], arguments].concat())?;
    let text = String::from_utf8(output.stdout).expect("text");
    Some(text.lines().map(str::to_owned).collect())
}

/// A capture of packets with these payloads, made by text2pcap from a hexadecimal dump.
fn capture(folder: &Path, name: &str, ports: &[&str], payloads: &[Vec<u8>]) -> Option<PathBuf> {
    let (dump, capture) = (folder.join(format!("{name}.txt")), folder.join(format!("{name}.pcap")));
    let mut text = String::new();
    for payload in payloads {
        text += "000000";
        payload.iter().for_each(|byte| text += &format!(" {byte:02x}"));
        text += "\n";
    }
    std::fs::write(&dump, text).expect("the dump can be written");
    let (from, to) = (dump.display().to_string(), capture.display().to_string());
    run("text2pcap", &[ports, &[&from, &to]].concat())?;
    Some(capture)
}

/// A control frame as a RoCEv2 packet: a SEND of an unreliable connection, without a true ICRC.
fn control_packet(records: &[Record<'_>]) -> Vec<u8> {
    let mut frame = vec![0; 4096];
    let header = Header { receiver: 7, window: 9, ..Header::default() };
    let mut writer = FrameWriter::new(&mut frame, &header).expect("room for a header");
    assert!(records.iter().all(|record| writer.push(record)));
    let length = writer.finish();
    assert!(length >= HEADER_BYTES);
    let padding = length.next_multiple_of(4) - length;
    let mut packet = vec![0x24, (padding as u8) << 4, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0, 0, 0, 2];
    packet.extend(&frame[..length + padding]);
    packet.extend([0; 4]);
    packet
}

#[test]
fn every_packet_of_a_capture_is_read() {
    let folder = folder("capture");
    let file = folder.join("packets.pcapng");
    let server = Server::start(&[]);
    let path = file.display().to_string();
    let bad = ["--impair", "loss=3%", "--capture", &path];
    server.measure(&[&["-n", "100", "-s", "64KiB", "--scheme", "ec:mds:8,2"][..], &bad].concat());
    let Some(lines) = dissected(&file, &["-T", "fields", "-e", "_ws.col.Protocol", "-e", "_ws.col.Info"]) else {
        return;
    };
    assert!(lines.len() > 1000, "{} packets", lines.len());
    let (frames, rest): (Vec<_>, Vec<_>) =
        lines.into_iter().partition(|line| line.starts_with("Longhaul\tControl frame"));
    let (data, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|line| line.starts_with("Longhaul\tData: slot "));
    assert!(others.is_empty(), "{others:?}");
    assert!(data.len() > 1000 && frames.iter().any(|line| line.contains("clear-to-send 0")), "{frames:?}");
    for record in ["offer", "done"] {
        assert!(frames.iter().any(|line| line.contains(record)), "{record}");
    }
    let malformed = dissected(&file, &["-Y", "_ws.malformed || longhaul.cut_off || _ws.lua.error"]);
    assert_eq!(malformed, Some(Vec::new()));
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn every_kind_of_record_is_read() {
    let folder = folder("records");
    let offer = Offer {
        length: 1 << 40,
        offset: 4096,
        part_bytes: 1 << 30,
        chunk_bytes: 8192,
        parity_bytes: 555,
        checksum: None,
        scheme: "ec:mds:32,8",
        contents: None,
    };
    let short = Offer { length: 4, offset: 0, contents: Some(&[0xde, 0xad, 0xbe, 0xef]), scheme: "sr:rto", ..offer };
    let refused = Refused { reason: Refusal::TooLong, was_accepted: true, scheme: "sr:nack" };
    let acknowledgement = [0, 0, 0, 65, 0, 0, 0, 70, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0x81];
    let messages = [
        Message::Offer(offer),
        Message::Offer(Offer { checksum: Some(0xabcd_ef01_2345_6789), ..offer }),
        Message::Offer(short),
        Message::Offer(Offer { checksum: Some(0xabcd), ..short }),
        Message::Feedback(&acknowledgement),
        Message::Feedback(&[1, 2, 3]),
        Message::Done,
        Message::Refused(refused),
        Message::Accepted,
        Message::Withdrawn(77),
        Message::Arrived(88),
    ];
    let encoded = messages.map(|message| record_bytes(1234, &message));
    let clear = ClearToSend { number: 11, address: 12, length: 13, key: 14, generation: 3, is_over: true };
    let arrivals = DataArrivals { immediate: 0xabc, generation: 2, held_ns: 345, marked: 678 };
    let mut records = vec![
        Record::ClearToSend(clear),
        Record::ClearedBeyond(&[0x06]),
        Record::DataArrivals(arrivals),
        Record::CreditAnnouncement(CreditAnnouncement { wanted: 901, received: 902, uncredited: 903, lost: 904 }),
        Record::CreditGrant(CreditGrant { granted: 905, recent: 906 }),
    ];
    records.extend(encoded.iter().map(|bytes| Record::Scheme(bytes)));
    let mut unknown = control_packet(&[]);
    let at = unknown.len() - 4;
    unknown.splice(at..at, [0x7f, 0xff, 0, 4, 1, 2, 3, 4]);
    let mut cut_off = control_packet(&[]);
    cut_off.splice(at..at, [0, 1, 0, 32, 1, 2, 3, 4]);
    // One packet with all of them, one for each, and two that other software might send.
    let mut packets = vec![control_packet(&records)];
    packets.extend(records.iter().map(|record| control_packet(&[*record])));
    packets.extend([unknown, cut_off]);
    // At RoCE's own port, and at one that a second software RNIC of a host might have.
    for (name, ports) in [("roce", "50123,4791"), ("free", "50123,40000")] {
        let Some(file) = capture(&folder, name, &["-4", "192.0.2.1,192.0.2.2", "-u", ports], &packets) else { return };
        let Some(lines) = dissected(&file, &["-O", "longhaul"]) else { return };
        let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
        assert_eq!(count("Longhaul control frame"), packets.len(), "{lines:#?}");
        // Each is in two packets; two records have a kind or a text in common.
        for (text, expected) in [
            ("Kind: clear-to-send (1)", 2),
            ("Kind: cleared-beyond (3)", 2),
            ("Kind: data-arrivals (4)", 2),
            ("Immediate: 0x00000abc", 2),
            ("Held (ns): 345", 2),
            ("Marked packets: 678", 2),
            ("Kind: credit-announcement (5)", 2),
            ("Wanted (bytes): 901", 2),
            ("Credit received (bytes): 902", 2),
            ("Sent without credit (bytes): 903", 2),
            ("Presumed lost (bytes): 904", 2),
            ("Kind: credit-grant (6)", 2),
            ("Granted (bytes): 905", 2),
            ("Granted recently (bytes): 906", 2),
            ("Kind: scheme (2)", 22),
            ("Kind: offer (1)", 2),
            ("Kind: offer-with-checksum (8)", 2),
            ("Kind: offer-with-contents (9)", 2),
            ("Kind: offer-with-both (10)", 2),
            ("Contents: deadbeef", 4),
            ("Scheme: sr:rto", 4),
            ("Checksum: 0x000000000000abcd", 2),
            ("Kind: feedback (2)", 4),
            ("Kind: done (3)", 2),
            ("Kind: refused (4)", 2),
            ("Kind: accepted (5)", 2),
            ("Kind: withdrawn (6)", 2),
            ("Kind: arrived (7)", 2),
            ("Message: 11", 2),
            ("Remote key: 0x0000000e", 2),
            ("Message: 1234", 22),
            ("Length (bytes): 1099511627776", 4),
            ("Bytes of a chunk: 8192", 8),
            ("Bytes of parity: 555", 8),
            ("Checksum: 0xabcdef0123456789", 2),
            ("Scheme: ec:mds:32,8", 4),
            ("Reason: too-long (3)", 2),
            ("Scheme: sr:nack", 2),
            ("Length (bytes): 77", 2),
            ("Packets: 88", 2),
            ("Lost below: 70", 2),
            ("Words: 0000000000000081", 2),
            ("Feedback of the scheme: 010203", 2),
            ("Contents of an unknown kind: 01020304", 1),
            ("(Error/Malformed): It ends in the middle of a field", 1),
        ] {
            assert_eq!(count(text), expected, "{text}: {lines:#?}");
        }
    }
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn every_message_of_the_handshake_is_read() {
    let folder = folder("handshake");
    let address = "127.0.0.1".parse().expect("an address");
    let mut udp = UdpConfig::default();
    udp.udp_port = UdpPortChoice::Free;
    let name: DeviceName = SOFTNIC.parse().expect("a name");
    let towards = Towards { local: address, peer: address, gid_index: None };
    let endpoint = Endpoint::open(&name, towards, udp).expect("the device opens");
    let options = Options::default();
    let meeting = Meeting { addresses: Some((address, address)), token: Some([0xab; 16]) };
    let connecting = Connecting::new(&endpoint, &options, &meeting).expect("a hello");
    let hello = connecting.hello().to_vec();
    let (_accepting, answer) =
        Accepting::on_hello(&endpoint, &options, &meeting, true, &hello).expect("it is accepted");
    let (_connection, info) = connecting.on_answer(&answer).expect("they fit");
    let refused = HandshakeError::WrongToken.to_refusal();
    // What an end says when UDP does not pass (docs/WIRE.md, kind 5 with field 15).
    let report = b"LHC\x01\x00\x01\x00\x01\x05\x00\x0f\x00\x01\x01".to_vec();
    let messages = [hello, answer, info, refused, report];
    let framed = messages.map(|bytes| [&(bytes.len() as u32).to_be_bytes()[..], &bytes].concat());
    let Some(file) = capture(&folder, "tcp", &["-T", "50123,50124"], &framed) else { return };
    let Some(lines) = dissected(&file, &["-T", "fields", "-e", "_ws.col.Info"]) else { return };
    assert_eq!(lines, ["hello", "answer", "info", "refused", "path-report"].map(|kind| format!("Handshake: {kind}")));
    let Some(lines) = dissected(&file, &["-O", "longhaul_handshake"]) else { return };
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    for (text, expected) in [
        ("mtu, number: 4096", 4),
        ("scheme, text: ", 2),
        ("token, bytes: abababab", 1),
        ("receiver, number: ", 2),
        ("control_version, number: 4", 2),
        ("grants_credit, number: 1", 2),
        ("refusal, refusal: wrong-token (3)", 1),
        ("has_heard, number: 1", 1),
        ("unknown field", 0),
        ("It ends in the middle", 0),
    ] {
        assert_eq!(count(text), expected, "{text}: {lines:#?}");
    }
    let _ = std::fs::remove_dir_all(folder);
}
