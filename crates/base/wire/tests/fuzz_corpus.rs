//! Runs the body of the fuzz target over its corpus, without a fuzzer.

use longhaul_wire::cm::{Kind, Message};
use longhaul_wire::{Frame, Opcode, Packet, fuzzing};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/parse_packet")
}

#[test]
fn parse_packet_holds_on_its_corpus() {
    let folder = corpus();
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut file_count = 0;
    for entry in entries {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        fuzzing::parse_packet(&bytes);
        // And cut off anywhere.
        (0..bytes.len().min(120)).for_each(|length| fuzzing::parse_packet(&bytes[..length]));
        file_count += 1;
    }
    assert!(file_count >= 50, "{} has {file_count} files", folder.display());
}

#[test]
fn connection_management_holds_on_its_corpus() {
    let folder = connection_management_corpus();
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut file_count = 0;
    for entry in entries {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        fuzzing::connection_management(&bytes);
        // With any bit the other way, which reaches every field that has fewer bits than its bytes.
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            fuzzing::connection_management(&changed);
        }
        file_count += 1;
    }
    assert!(file_count >= 10, "{} has {file_count} files", folder.display());
}

fn connection_management_corpus() -> PathBuf {
    corpus().with_file_name("connection_management")
}

/// Writes the seeds of connection management: what Linux sent, and one message of every other kind.
///
///     cargo test -p longhaul-wire --test fuzz_corpus -- --ignored
#[test]
#[ignore = "writes to fuzz/corpus"]
fn write_connection_management_seeds() {
    let folder = connection_management_corpus();
    std::fs::create_dir_all(&folder).unwrap();
    let path = format!("{}/tests/captures/rdma-cm-v4.pcap", env!("CARGO_MANIFEST_DIR"));
    let mut reader = pcap_file::pcap::PcapReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut seeds: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    while let Some(captured) = reader.next_packet() {
        let bytes = captured.unwrap().data.into_owned();
        let packet = Packet::parse(Frame::parse_ethernet(&bytes).unwrap().datagram).unwrap();
        if let Ok((message, _)) = Message::parse(packet.payload) {
            seeds.insert(format!("linux-{:?}", message.kind()).to_lowercase(), packet.payload.to_vec());
        }
    }
    let request = seeds["linux-request"].clone();
    for (kind, name) in Kind::ALL {
        let mut bytes = request.clone();
        bytes[16..18].copy_from_slice(&(kind as u16).to_be_bytes());
        seeds.insert(format!("as-{}", name.to_lowercase()), bytes);
    }
    seeds.insert("bad-kind".into(), {
        let mut bytes = request.clone();
        bytes[17] = 0x1f;
        bytes
    });
    seeds.insert("bad-short".into(), request[..255].to_vec());
    seeds.insert("ip-header".into(), request[24 + 140..24 + 176].to_vec());
    for (name, bytes) in seeds {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

/// Writes the seeds: the smallest captured packet of every opcode, and packets that are wrong in one thing each.
///
///     cargo test -p longhaul-wire --test fuzz_corpus -- --ignored
#[test]
#[ignore = "writes to fuzz/corpus"]
fn write_seeds() {
    let seeds = smallest_of_every_opcode();
    let acknowledgement = &seeds["rc-acknowledge-v4"];
    let with = |changes: &[(usize, u8)]| {
        let mut bytes = acknowledgement.clone();
        changes.iter().for_each(|&(at, value)| bytes[at] = value);
        bytes
    };
    // Offsets: IPv4 at 14, UDP at 34, BTH at 42.
    let mut wrong = vec![
        ("bad-empty", Vec::new()),
        ("bad-icrc", with(&[(58, 0)])),
        ("bad-identification", with(&[(18, 0), (19, 0)])),
        ("bad-ip-version", with(&[(14, 0x55)])),
        ("bad-ip-options", with(&[(14, 0x46)])),
        ("bad-ip-fragment", with(&[(20, 0x20)])),
        ("bad-ip-length-zero", with(&[(16, 0), (17, 0)])),
        ("bad-ip-length-long", with(&[(16, 0xff), (17, 0xff)])),
        ("bad-ip-length-before-udp", with(&[(17, 27)])),
        ("bad-ip-protocol", with(&[(23, 6)])),
        ("bad-udp-length-zero", with(&[(38, 0), (39, 0)])),
        ("bad-udp-length-short", with(&[(39, 27)])),
        ("bad-opcode-reserved", with(&[(42, 0x15)])),
        ("bad-opcode-reliable-datagram", with(&[(42, 0x44)])),
        ("bad-opcode-atomic-in-acknowledgement", with(&[(42, 0x13)])),
        ("bad-version", with(&[(43, 0x01)])),
        ("bad-pad-without-payload", with(&[(43, 0x30)])),
        ("bad-ether-type", with(&[(12, 0x08), (13, 0x06)])),
        ("reserved-bits", with(&[(46, 0xff), (50, 0xff)])),
        ("reserved-syndrome", with(&[(54, 0xff)])),
    ];
    let tags = [0x88, 0xa8, 0x00, 0x01, 0x81, 0x00, 0x00, 0x02];
    wrong.push(("tagged", [&acknowledgement[..12], &tags, &acknowledgement[12..]].concat()));
    wrong.push(("bad-three-tags", [&acknowledgement[..12], &tags, &tags[4..], &acknowledgement[12..]].concat()));
    wrong.push(("bad-tag-cut-off", [&acknowledgement[..12], &tags[..6]].concat()));
    wrong.push(("padded-by-ethernet", [&acknowledgement[..], &[0; 10]].concat()));
    wrong.push(("datagram-only", acknowledgement[42..].to_vec()));
    wrong.push(("bad-bth-only", acknowledgement[42..54].to_vec()));
    wrong.push(("bad-icrc-only", acknowledgement[58..].to_vec()));
    wrong.push(("cnp", [&[0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0x11, 0, 0, 0, 0][..], &[0; 20]].concat()));
    let repair = |kind: u8, flags: u8, rest: &[u8]| {
        let mut bytes = vec![0x1f, 0, 0, 0x11, kind, 0, 0, 9, 1, flags, 0, 3];
        bytes.extend_from_slice(rest);
        bytes
    };
    let counts = [8, 2, 3, 1, 0, 24, 0, 0, 1, 2, 3, 4];
    wrong.push(("repair", repair(1, 0x06, &[&counts[..], &[0x5a; 32]].concat())));
    wrong.push(("repair-mds-with-tag", repair(1, 0x2c, &[&counts[..], &[0x5a; 40]].concat())));
    wrong.push(("repair-announcement", repair(2, 0, &[8, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4])));
    wrong.push(("repair-report", repair(3, 0, &[7; 32])));
    wrong.push((
        "bad-repair-index",
        repair(1, 0x06, &[&[8, 2, 3, 2, 0, 24, 0, 0, 1, 2, 3, 4][..], &[0x5a; 32]].concat()),
    ));
    wrong.push(("bad-repair-short", repair(1, 0x06, &counts[..11])));
    wrong.push(("bad-ipv6-without-payload", [&[0x60, 0, 0, 0, 0, 0, 17, 64][..], &[0; 32]].concat()));

    std::fs::create_dir_all(corpus()).unwrap();
    for (name, bytes) in seeds.into_iter().chain(wrong.into_iter().map(|(name, bytes)| (name.into(), bytes))) {
        std::fs::write(corpus().join(name), bytes).unwrap();
    }
}

fn smallest_of_every_opcode() -> BTreeMap<String, Vec<u8>> {
    let mut seeds: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for version in ["v4", "v6"] {
        for transport in ["rc", "uc", "ud"] {
            let path = format!("{}/tests/captures/{transport}-all-{version}.pcap", env!("CARGO_MANIFEST_DIR"));
            let mut reader = pcap_file::pcap::PcapReader::new(std::fs::File::open(path).unwrap()).unwrap();
            while let Some(captured) = reader.next_packet() {
                let bytes = captured.unwrap().data.into_owned();
                let packet = Packet::parse(Frame::parse_ethernet(&bytes).unwrap().datagram).unwrap();
                let name = format!("{}-{version}", with_hyphens(packet.headers.bth.opcode));
                let seed = seeds.entry(name).or_insert_with(|| bytes.clone());
                if bytes.len() < seed.len() {
                    *seed = bytes;
                }
            }
        }
    }
    seeds
}

/// `RcSendOnly` as `rc-send-only`.
fn with_hyphens(opcode: Opcode) -> String {
    let mut name = String::new();
    for letter in format!("{opcode:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.extend(letter.to_lowercase());
    }
    name
}
