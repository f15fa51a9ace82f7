//! Devices on real sockets with a bad network in between, in process, and captures of what passes.

use crate::udp_ends;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use longhaul_impair::{EcnMarking, Loss, Profile, Reordering};
use longhaul_softnic_udp::{Impair, OpenError, UdpConfig, UdpDevice};
use longhaul_verbs::{CompletionStatus, Mtu, Transport};
use longhaul_wire::{Frame, icrc};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use udp_ends::{End, device, device_with, pair_on, pattern};

const MIB: usize = 1 << 20;
/// 4.096 µs · 2^18: a second, for networks that are slow but lose nothing.
const TIMEOUT_SLOW: u8 = 18;
/// 4.096 µs · 2^15: 134 ms, for networks that lose much; seven of them are more than a busy machine keeps a thread waiting.
const TIMEOUT_FAST: u8 = 15;
/// Nothing is ever sent again, so nothing else wakes anybody.
const TIMEOUT_NEVER: u8 = 0;
const RETRIES_MOST: u8 = 7;

fn impaired(profile: Profile) -> UdpConfig {
    let mut config = UdpConfig::default();
    config.impair = Some(Impair { profile, seed: 7 });
    config
}

/// A file of this test run alone.
fn capture_path(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("udp_impaired");
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(format!("{name}-{}.pcapng", std::process::id()))
}

fn captured(path: &Path) -> UdpConfig {
    let mut config = UdpConfig::default();
    config.capture = Some(path.to_owned());
    config
}

/// Reliable ends on two devices.
fn ends(one: &UdpDevice, two: &UdpDevice, region_bytes: usize, timeout: u8) -> (End, End) {
    let reliable = Transport::ReliableConnection;
    let (one, two) = (End::new(one, reliable, region_bytes), End::new(two, reliable, region_bytes));
    one.connect_with(&two, Mtu::Bytes1024, timeout, RETRIES_MOST);
    two.connect_with(&one, Mtu::Bytes1024, timeout, RETRIES_MOST);
    (one, two)
}

/// A packet of a capture.
struct Captured {
    is_sent: bool,
    since_1970: Duration,
    packet: Vec<u8>,
}

impl Captured {
    fn has_right_icrc(&self) -> bool {
        let frame = self.frame();
        icrc::verify(&frame.icrc_scope(), frame.datagram)
    }

    fn frame(&self) -> Frame<'_> {
        Frame::parse(&self.packet).expect("an IP packet with UDP")
    }
}

/// The packets in a capture, once there are as many of some kind as there must be. Even after a device has been dropped that
/// may take a moment: its background thread may be the last to hold it.
fn read_capture(path: &Path, count_expected: u64, is_counted: impl Fn(&Captured) -> bool) -> Vec<Captured> {
    let started = Instant::now();
    loop {
        let packets = parse_capture(&std::fs::read(path).unwrap()).unwrap_or_default();
        let count = packets.iter().filter(|packet| is_counted(packet)).count() as u64;
        if count >= count_expected {
            return packets;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{count} packets of {count_expected} are in the capture");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// `None` when the file ends within a packet.
fn parse_capture(bytes: &[u8]) -> Option<Vec<Captured>> {
    let mut reader = PcapNgReader::new(bytes).ok()?;
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.ok()? {
            assert_eq!(packet.original_len as usize, packet.data.len());
            packets.push(Captured {
                is_sent: packet.options.contains(&EnhancedPacketOption::Flags(0b10)),
                since_1970: packet.timestamp,
                packet: packet.data.into_owned(),
            });
        }
    }
    Some(packets)
}

#[test]
fn loss_repetition_reordering_and_bit_errors_are_survived_both_ways() {
    let path = capture_path("bad");
    let mut profile = Profile::default()
        .with_loss(Loss::Independent { probability: 0.01 })
        .with_duplication(0.01)
        .with_corruption(0.01, 1);
    profile.reordering = Reordering { probability: 0.01, extra_delay: Duration::from_micros(300) };
    let mut config = impaired(profile);
    config.capture = Some(path.clone());
    let (one, two) = ends(&device_with("127.0.0.1", config), &device("127.0.0.2"), 2 * MIB, TIMEOUT_FAST);
    let bytes = pattern(1, MIB);
    one.region.copy_in(0, &bytes);
    // The upper half is for what the other end sends.
    let back = pattern(2, MIB);
    two.region.copy_in(MIB, &back);
    one.post_write(1, MIB, &two);
    two.post_write_from(2, MIB..2 * MIB, &one, MIB as u64);
    for end in [&one, &two] {
        let completion = end.wait_for(Duration::from_secs(60)).expect("a completion within a minute");
        assert_eq!(completion.status, CompletionStatus::Success);
    }
    assert!(two.region.to_vec(0..MIB) == bytes, "contents differ");
    assert!(one.region.to_vec(MIB..2 * MIB) == back, "contents differ in the other direction");
    for end in [&one, &two] {
        // Each sends at least 1024 packets, of which about 10 are lost and 10 damaged.
        assert!(end.counter("retransmitted_pkts") > 0);
        assert!(end.counter("rx_icrc_encapsulated") > 0);
        assert!(end.counter("duplicate_request") > 0);
    }

    // What arrives damaged is in the capture too: as many as were counted, and what came since.
    let damaged = one.counter("rx_icrc_encapsulated");
    drop((one, two));
    let packets = read_capture(&path, damaged, |packet| !packet.is_sent && !packet.has_right_icrc());
    let is_damaged_before_the_socket = packets.iter().any(|packet| packet.is_sent && !packet.has_right_icrc());
    assert!(is_damaged_before_the_socket);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn delay_is_kept_both_ways() {
    let delay = Duration::from_millis(15);
    let profile = Profile::default().with_propagation_delay(delay);
    let (one, two) = ends(&device_with("127.0.0.1", impaired(profile)), &device("127.0.0.2"), 4096, TIMEOUT_SLOW);
    for _ in 0..3 {
        two.post_receive(1, 16);
        let start = Instant::now();
        one.post_send(2, 16);
        assert_eq!(two.wait().status, CompletionStatus::Success);
        assert!(start.elapsed() >= delay, "arrived after {:?}", start.elapsed());
        assert_eq!(one.wait().status, CompletionStatus::Success);
        assert!(start.elapsed() >= 2 * delay, "acknowledged after {:?}", start.elapsed());
    }
}

#[test]
fn an_end_that_sleeps_hears_of_what_was_delayed() {
    let profile = Profile::default().with_propagation_delay(Duration::from_millis(5));
    let (one, two) = ends(&device_with("127.0.0.1", impaired(profile)), &device("127.0.0.2"), 4096, TIMEOUT_NEVER);
    let bytes = pattern(3, 4096);
    two.region.copy_in(0, &bytes);
    // The impaired end never polls: only its background thread knows of the datagrams that wait.
    two.post_write(1, 4096, &one);
    assert_eq!(two.wait().status, CompletionStatus::Success);
    assert!(one.region.to_vec(0..4096) == bytes, "contents differ");
}

#[test]
fn rate_is_a_limit() {
    const RATE: u64 = 40_000_000;
    let profile = Profile::default().with_rate_bits_per_second(RATE);
    let (one, two) = ends(&device_with("127.0.0.1", impaired(profile)), &device("127.0.0.2"), MIB, TIMEOUT_SLOW);
    one.region.copy_in(0, &pattern(4, MIB));
    let start = Instant::now();
    one.post_write(1, MIB, &two);
    assert_eq!(one.wait().status, CompletionStatus::Success);
    // Headers are left out, so this is a little less than what it must take.
    let least = Duration::from_nanos(MIB as u64 * 8 * 1_000_000_000 / RATE);
    assert!(start.elapsed() >= least, "{:?} for what takes at least {least:?}", start.elapsed());
    assert!(two.region.to_vec(0..MIB) == pattern(4, MIB), "contents differ");
}

#[test]
fn marks_of_congestion_reach_both_ends() {
    let profile =
        Profile::default().with_rate_bits_per_second(1_000_000_000).with_ecn(EcnMarking::Step { threshold_bytes: 0 });
    for (first, second) in [("127.0.0.1", "127.0.0.2"), ("::1", "::1")] {
        let (one, two) = ends(&device_with(first, impaired(profile.clone())), &device(second), MIB, TIMEOUT_SLOW);
        one.post_write(1, MIB, &two);
        assert_eq!(one.wait().status, CompletionStatus::Success);
        two.post_write(2, MIB, &one);
        assert_eq!(two.wait().status, CompletionStatus::Success);
        // The kernel carried the marks to one end; to the other they were set on arrival.
        assert!(two.counter("np_ecn_marked_roce_packets") > 0, "{first}");
        assert!(one.counter("np_ecn_marked_roce_packets") > 0, "{first}");
    }
}

#[test]
fn a_closing_device_loses_nothing_that_was_under_way() {
    let profile = Profile::default().with_propagation_delay(Duration::from_secs(5));
    let (one, two) = ends(&device_with("127.0.0.1", impaired(profile)), &device("127.0.0.2"), 4096, TIMEOUT_SLOW);
    two.post_receive(1, 16);
    one.post_send(2, 16);
    // Posting sends, into five seconds of delay.
    drop(one);
    assert_eq!(two.wait_for(Duration::from_secs(4)).expect("the message").status, CompletionStatus::Success);
}

#[test]
fn a_profile_that_makes_no_sense_is_refused() {
    let mut config = impaired(Profile::default().with_duplication(1.5));
    config.udp_port = longhaul_softnic_udp::UdpPortChoice::Free;
    let device = longhaul_softnic::Config::new("softnic", vec!["127.0.0.1".parse().unwrap()], [0; 32]);
    assert!(matches!(UdpDevice::open(device.clone(), config), Err(OpenError::Impair(_))));
    let mut config = captured(Path::new("/nowhere/at/all.pcapng"));
    config.udp_port = longhaul_softnic_udp::UdpPortChoice::Free;
    match UdpDevice::open(device, config) {
        Err(error @ OpenError::Capture { .. }) => assert!(error.to_string().contains("/nowhere/at/all.pcapng")),
        other => panic!("expected an error about the capture, got {:?}", other.map(|_| "a device").err()),
    }
}

#[test]
fn a_capture_holds_every_packet_with_its_identification_and_icrc() {
    for (first, second, name) in [("127.0.0.1", "127.0.0.2", "v4"), ("::1", "::1", "v6")] {
        let path = capture_path(name);
        let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let one_device = device_with(first, captured(&path));
        let has_offload = !one_device.warnings().iter().any(|warning| warning.problem.contains("UDP_SEGMENT"));
        let (one, two) = pair_on(&one_device, &device(second), Transport::ReliableConnection, MIB);
        let bytes = pattern(5, MIB);
        one.region.copy_in(0, &bytes);
        one.post_write(1, MIB, &two);
        assert_eq!(one.wait().status, CompletionStatus::Success);
        // Odd lengths, which are padded, both ways.
        for (from, to) in [(&one, &two), (&two, &one)] {
            to.post_receive(2, 4096);
            from.post_send(3, 4095);
            assert_eq!(to.wait().status, CompletionStatus::Success);
            assert_eq!(from.wait().status, CompletionStatus::Success);
        }
        let sent = one.counter("sent_pkts");
        let received = one.counter("rcvd_pkts");
        let ports = [one.device.udp_port(), two.device.udp_port()];
        // While the device is open the file is a moment behind, and nobody has to do anything for it to follow.
        read_capture(&path, sent, |packet| packet.is_sent);
        drop((one, two, one_device));

        let packets = read_capture(&path, sent, |packet| packet.is_sent);
        let after = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        for packet in &packets {
            assert!(packet.has_right_icrc());
            // The two clocks may drift apart by a little.
            let slack = Duration::from_secs(1);
            assert!(packet.since_1970 + slack >= before && packet.since_1970 <= after + slack);
            let (own, peer) = match packet.is_sent {
                true => (packet.frame().source(), packet.frame().destination()),
                false => (packet.frame().destination(), packet.frame().source()),
            };
            assert_eq!((own.ip().to_string(), peer.ip().to_string()), (first.to_owned(), second.to_owned()));
            let to = packet.frame().destination().port();
            assert_eq!(to, ports[usize::from(packet.is_sent)]);
        }
        assert!(packets.iter().filter(|packet| !packet.is_sent).count() as u64 >= received);
        assert!(packets.is_sorted_by_key(|packet| packet.since_1970));
        let last_identification =
            packets.iter().filter_map(|packet| packet.frame().icrc_scope().identification()).max();
        if has_offload && name == "v4" {
            assert!(last_identification > Some(0), "batches count");
        }
        check_with_tshark(&path, ports, &packets);
        std::fs::remove_file(path).unwrap();
    }
}

fn check_with_tshark(path: &Path, ports: [u16; 2], packets: &[Captured]) {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(path).args(["--disable-protocol", "rpcordma", "--disable-protocol", "lnet"]);
    for port in ports {
        command.args(["-d", &format!("udp.port=={port},infiniband")]);
    }
    command.args(["-T", "fields", "-E", "separator=|"]);
    for field in ["_ws.malformed", "infiniband.bth.opcode", "infiniband.invariant.crc"] {
        command.args(["-e", field]);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "tshark cannot be run ({error}): install it");
            println!("SKIPPED: tshark cannot be run ({error}); apt-get install tshark");
            return;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), packets.len());
    for (line, packet) in text.lines().zip(packets) {
        let fields: Vec<&str> = line.split('|').collect();
        let [malformed, opcode, icrc] = fields[..] else { panic!("{line}") };
        let datagram = packet.frame().datagram;
        assert_eq!((malformed, opcode), ("", &*datagram[0].to_string()), "{line}");
        let expected: String = datagram[datagram.len() - 4..].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(icrc.trim_start_matches("0x"), expected, "{line}");
    }
}
