//! Two gateways and what is between them, on virtual time.

use longhaul_forward::{Arrival, Fate, Handler as _, Outbox};
use longhaul_shim::{Config, Fec, Network};
use longhaul_time::Instant;
use longhaul_wire::{Frame, Opcode, icrc, repair};

use crate::frame::parse;
use crate::gateway::{Gateway, GatewayConfig, SITE, WIDE};
use crate::samples::{Sample, frame_between, reference_checksum};

const KEY: [u8; 16] = *b"0123456789abcdef";

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

/// A gateway whose peer is at the other site.
fn gateway(site: u8, change: impl FnOnce(&mut GatewayConfig)) -> Gateway {
    let mut shim = Config::new("xor:8,1".parse().unwrap());
    let networks: [(&str, u8); 2] = match site {
        1 => [("10.2.0.0", 24), ("2001:db8:2::", 48)],
        _ => [("10.1.0.0", 24), ("2001:db8:1::", 48)],
    };
    shim.peers =
        networks.map(|(address, prefix_bits)| Network { address: address.parse().unwrap(), prefix_bits }).to_vec();
    let mut config = GatewayConfig::new(shim);
    change(&mut config);
    Gateway::new(config, u64::from(site)).unwrap()
}

/// What leaves when a frame arrives, and by which port, in order.
fn pass(gateway: &mut Gateway, port: usize, frame: &[u8], now: Instant) -> Vec<(usize, Vec<u8>)> {
    let mut outbox = Outbox::default();
    let mut bytes = frame.to_vec();
    let fate = gateway.handle(port, &mut Arrival { bytes: &mut bytes, at: now }, &mut outbox);
    let mut left: Vec<(usize, Vec<u8>)> = outbox.take_all().into_iter().map(|(port, frame, _)| (port, frame)).collect();
    if let Fate::Forward(port) = fate {
        assert_eq!(bytes, frame, "it is not changed");
        left.push((port, bytes));
    }
    left
}

fn poll(gateway: &mut Gateway, now: Instant) -> Vec<(usize, Vec<u8>)> {
    let mut outbox = Outbox::default();
    while gateway.next_deadline().is_some_and(|due| due <= now) {
        gateway.poll(now, &mut outbox);
    }
    outbox.take_all().into_iter().map(|(port, frame, _)| (port, frame)).collect()
}

fn is_repair(frame: &[u8]) -> bool {
    parse(frame).is_some_and(|parsed| repair::is_repair(parsed.datagram))
}

/// Two gateways that have heard each other, as of the time that is returned.
fn acquainted(change: impl Fn(&mut GatewayConfig)) -> (Gateway, Gateway, u64) {
    let (mut one, mut other) = (gateway(1, &change), gateway(2, &change));
    let data = Sample { source: "10.1.0.9:50000", ..Sample::V4 }.with(Opcode::RcAcknowledge, 1, &[]);
    assert_eq!(pass(&mut one, SITE, &data, at(1)), [(WIDE, data.clone())]);
    let greetings = poll(&mut one, at(2));
    assert!(greetings.len() == 1 && greetings[0].0 == WIDE && is_repair(&greetings[0].1));
    assert_eq!(pass(&mut other, WIDE, &data, at(3)), [(SITE, data)]);
    assert_eq!(pass(&mut other, WIDE, &greetings[0].1, at(4)), []);
    // Nothing goes the other way: it answers as the host that was talked to.
    let answers = poll(&mut other, at(5));
    assert!(answers.len() == 1 && answers[0].0 == WIDE && is_repair(&answers[0].1));
    let back = parse(&answers[0].1).unwrap();
    assert_eq!(back.envelope.source.ip(), "10.2.0.2".parse::<std::net::IpAddr>().unwrap());
    assert_eq!(answers[0].1[..12], [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 2], "to the host's own address");
    assert!(!one.state(at(6)).peer_heard);
    assert_eq!(pass(&mut one, WIDE, &answers[0].1, at(6)), []);
    assert!(one.state(at(7)).peer_heard && other.state(at(7)).peer_heard);
    (one, other, 10)
}

/// Sends messages through both gateways. `is_lost` says which frames between them are, by their number. Returns the frames
/// that were sent, and those that have arrived.
fn exchange(
    sample: &Sample,
    count: u32,
    is_lost: impl Fn(usize, bool) -> bool,
    change: impl Fn(&mut GatewayConfig),
) -> (Vec<Vec<u8>>, Vec<Vec<u8>>, [Gateway; 2]) {
    let (mut one, mut other, begun) = acquainted(change);
    let (mut sent, mut arrived, mut number) = (Vec::new(), Vec::new(), 0);
    for index in 0..count {
        let now = at(begun + 10 * u64::from(index));
        let frame = sample.frame(index, 16);
        let mut between = poll(&mut one, now);
        let passed = pass(&mut one, SITE, &frame, now);
        assert_eq!(passed.iter().filter(|(_, out)| *out == frame).count(), 1, "byte for byte, once");
        between.extend(passed);
        sent.push(frame);
        for (port, frame) in between {
            assert_eq!(port, WIDE);
            number += 1;
            if !is_lost(number, is_repair(&frame)) {
                arrived.extend(pass(&mut other, WIDE, &frame, now));
            }
        }
        arrived.extend(poll(&mut other, now));
    }
    // What waits is handed on in the end.
    arrived.extend(poll(&mut other, at(begun + 10 * u64::from(count) + 20_000)));
    let arrived = arrived.into_iter().filter(|(port, _)| *port == SITE).map(|(_, frame)| frame).collect();
    (sent, arrived, [one, other])
}

/// The same but for what a restored packet may have otherwise: identification 0, its IPv4 checksum and the ICRC that goes with it.
fn assert_restored(restored: &[u8], sent: &[u8]) {
    let (restored_packet, sent_packet) = (parse(restored).expect("RoCEv2"), parse(sent).expect("RoCEv2"));
    assert!(restored_packet.is_intact);
    assert!(icrc::verify(&restored_packet.envelope.icrc_scope, restored_packet.datagram));
    let body = |datagram: &[u8]| datagram[..datagram.len() - 4].to_vec();
    assert_eq!(body(restored_packet.datagram), body(sent_packet.datagram));
    assert_eq!(restored_packet.link, sent_packet.link);
    assert_eq!(restored_packet.envelope.hop_limit, sent_packet.envelope.hop_limit);
    assert_eq!(restored_packet.envelope.source, sent_packet.envelope.source);
    if restored != sent {
        assert_eq!(restored_packet.envelope.identification, Some(0));
    }
    let udp = Frame::parse_ethernet(restored).unwrap().udp;
    let expected = match Frame::parse_ethernet(sent).unwrap().udp.checksum {
        0 => 0,
        _ => reference_checksum(
            restored_packet.envelope.source,
            restored_packet.envelope.destination,
            restored_packet.datagram,
        ),
    };
    assert_eq!(udp.checksum, expected);
}

fn samples() -> [Sample; 5] {
    [
        Sample::V4,
        Sample { tags: &[0x6007], ..Sample::V4 },
        Sample { has_udp_checksum: true, ..Sample::V4 },
        Sample::V6,
        Sample { tags: &[0x0005, 0x2006], ..Sample::V6 },
    ]
}

#[test]
fn without_loss_hosts_get_what_was_sent_byte_for_byte() {
    for sample in samples() {
        let (sent, arrived, gateways) = exchange(&sample, 160, |_, _| false, |_| ());
        assert_eq!(arrived, sent);
        let state = gateways[0].state(at(10_000));
        assert!(state.sent.repairs >= 20 && state.frames.without_peer == 1, "{state:?}");
        assert_eq!(gateways[1].state(at(10_000)).frames.not_built, 0);
    }
}

#[test]
fn lost_packets_are_restored_in_their_place() {
    for sample in samples() {
        for key in [None, Some(KEY)] {
            let lose = |number: usize, is_repair: bool| !is_repair && number % 13 == 5;
            let (sent, arrived, gateways) = exchange(&sample, 320, lose, |config| config.shim.key = key);
            assert_eq!(arrived.len(), sent.len());
            arrived.iter().zip(&sent).for_each(|(arrived, sent)| assert_restored(arrived, sent));
            let state = gateways[1].state(at(100_000));
            assert!(state.received.restored > 15 && state.received.given_up == 0, "{state:?}");
            assert!(state.frames.waited_nanos > 0 && state.waiting_packets == 0);
            assert_eq!(state.frames.not_built, 0);
        }
    }
}

#[test]
fn packets_that_waited_go_on_with_their_own_link_header() {
    // One flow whose packets have tags of two priorities in turns, with and without a UDP checksum.
    for base in [Sample::V4, Sample::V6] {
        let (mut one, mut other, begun) = acquainted(|_| ());
        let one_sample = Sample { tags: &[0x6007], has_udp_checksum: true, ..base };
        let other_sample = Sample { tags: &[0x2007], flow_label: base.flow_label / 2, ..base };
        // Anybody can send in the name of a host, and the last frame before a block is handed on is such a one.
        let mut forged = Sample { tags: &[0x0fff], ..base }.with(Opcode::RcSendOnly, 9, &[1; 64]);
        forged[..12].copy_from_slice(&[0xee; 12]);
        forged[14 + 4 + if base.flow_label == 0 { 20 } else { 40 } + 8 + 7] ^= 0x40;
        let (mut sent, mut arrived, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..160 {
            let now = at(begun + 10 * u64::from(index));
            let frame = if index % 2 == 0 { one_sample.frame(index, 16) } else { other_sample.frame(index, 16) };
            sent.push(frame.clone());
            for (_, frame) in [poll(&mut one, now), pass(&mut one, SITE, &frame, now)].concat() {
                // From the second message on, the third packet of each block.
                if index > 16 && index % 8 == 2 && !is_repair(&frame) {
                    lost.push(frame);
                    continue;
                }
                if is_repair(&frame) {
                    assert_eq!(pass(&mut other, WIDE, &forged, now), [(SITE, forged.clone())]);
                }
                arrived.extend(pass(&mut other, WIDE, &frame, now).into_iter().map(|(_, frame)| frame));
            }
        }
        arrived.extend(poll(&mut other, at(100_000)).into_iter().map(|(_, frame)| frame));
        arrived.retain(|frame| parse(frame).is_some_and(|parsed| !is_repair(frame) && parsed.datagram.len() > 100));
        let state = other.state(at(100_000));
        assert!(state.received.restored > 10 && state.received.restored == lost.len() as u64, "{state:?}");
        let restored: Vec<&Vec<u8>> = arrived.iter().filter(|frame| !sent.contains(frame)).collect();
        assert_eq!(arrived.len(), sent.len(), "each once");
        assert!(restored.len() <= lost.len(), "only restored packets differ: {} {}", restored.len(), lost.len());
        for frame in restored {
            let prefix = &frame[..16];
            assert!(sent.iter().any(|sent| sent[..16] == *prefix), "no forged address or tag: {prefix:02x?}");
        }
    }
}

#[test]
fn what_cannot_be_restored_is_left_to_the_hosts() {
    // Three packets of one block, and its repair packet. (The first is an announcement.)
    let lose =
        |number: usize, is_repair: bool| if is_repair { (2..14).contains(&number) } else { (4..7).contains(&number) };
    let (sent, arrived, gateways) = exchange(&Sample::V4, 64, lose, |_| ());
    assert_eq!(arrived.len(), sent.len() - 3);
    assert!(arrived.iter().all(|frame| sent.contains(frame)), "the others come through unchanged");
    assert!(gateways[1].state(at(100_000)).received.given_up > 0);
}

#[test]
fn without_another_gateway_everything_passes_and_no_repair_packet_is_sent() {
    let mut lonely = gateway(1, |_| ());
    let mut greetings = 0;
    for index in 0..10_000 {
        let now = at(1000 * u64::from(index));
        let frame = Sample::V4.frame(index, 16);
        assert_eq!(pass(&mut lonely, SITE, &frame, now), [(WIDE, frame)]);
        greetings += poll(&mut lonely, now).len();
    }
    assert!((5..=41).contains(&greetings), "{greetings} in ten seconds");
    assert_eq!(lonely.state(at(0)).sent.repairs, 0);
    // It was there, and is not any more.
    let (mut one, _, begun) = acquainted(|_| ());
    let silent = begun + 5_000_000;
    let repairs = |gateway: &mut Gateway, begun: u64| {
        let frames = (0..64).flat_map(|index| pass(gateway, SITE, &Sample::V4.frame(index, 16), at(begun)));
        frames.filter(|(_, frame)| is_repair(frame)).count()
    };
    assert!(repairs(&mut one, begun) > 7);
    assert_eq!(repairs(&mut one, silent), 0);
}

#[test]
fn a_peer_that_never_greets_gets_repair_packets_if_configured() {
    let mut one = gateway(1, |config| config.waits_for_peer = false);
    let frames = (0..64).flat_map(|index| pass(&mut one, SITE, &Sample::V4.frame(index, 16), at(1)));
    assert!(frames.filter(|(_, frame)| is_repair(frame)).count() > 7);
}

#[test]
fn a_code_follows_what_the_other_gateway_reports() {
    let auto: Fec = "auto:mds".parse().unwrap();
    let (mut one, mut other, begun) = acquainted(|config| {
        let Config { code, auto, reports_every, .. } = Config::of(&auto);
        config.shim = Config { code, auto, reports_every, ..config.shim.clone() };
    });
    // Nothing but reports goes back, as with UC.
    let mut share_at_end = |lost_of: usize, first: u32| {
        let mut number = 0;
        for index in first..first + 40_000 {
            let now = at(begun + 10 * u64::from(index));
            let mut between = poll(&mut one, now);
            between.extend(pass(&mut one, SITE, &Sample::V4.frame(index, 1000), now));
            let mut back = poll(&mut other, now);
            for (_, frame) in between {
                number += 1;
                if number % lost_of != 0 {
                    back.extend(pass(&mut other, WIDE, &frame, now));
                }
            }
            for (_, frame) in back.iter().filter(|(port, _)| *port == WIDE) {
                assert_eq!(pass(&mut one, WIDE, frame, now), [], "a report ends here");
            }
        }
        let paths = one.paths();
        let [path] = &paths[..] else { panic!("{paths:?}") };
        (f64::from(path.code.repair_packets()) / f64::from(path.code.block_packets()), path.clone())
    };
    let (lossy, path) = share_at_end(50, 0);
    assert!((0.015..0.025).contains(&path.loss) && lossy > 0.04, "{lossy} {path:?}");
    let (clean, path) = share_at_end(usize::MAX, 40_000);
    assert!(clean < 0.011 && path.changes.len() >= 2, "{clean} {path:?}");
}

#[test]
fn everything_else_is_forwarded_untouched() {
    let roce = Sample::V4.frame(0, 16);
    let mut fragment = roce.clone();
    fragment[14 + 6] = 0x20;
    let mut options = roce.clone();
    options[14] = 0x46;
    let mut arp = roce.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut reserved = roce.clone();
    (reserved[14 + 6], reserved[14 + 10]) = (reserved[14 + 6] | 0x80, reserved[14 + 10].wrapping_sub(0x80));
    let mut wrong_checksum = roce.clone();
    wrong_checksum[14 + 10] ^= 1;
    let other_port = frame_between("10.1.0.1:4791", "10.2.0.2:4790", &[0x1f; 60], &[]);
    let stranger = Sample { destination: "10.9.0.2:4791", source: "10.9.0.1:50000", ..Sample::V4 }.frame(0, 16);
    let cut: Vec<Vec<u8>> = (0..roce.len()).step_by(7).map(|length| roce[..length].to_vec()).collect();
    let others = [fragment, options, arp, reserved, wrong_checksum, other_port, stranger, vec![0xff; 60]];
    let (mut one, _, _) = acquainted(|_| ());
    for frame in others.iter().chain(&cut) {
        for port in [SITE, WIDE] {
            assert_eq!(pass(&mut one, port, frame, at(100)), [(1 - port, frame.clone())]);
        }
    }
    // Padding stays where it is.
    let padded = [&Sample::V4.with(Opcode::RcAcknowledge, 3, &[])[..], &[0; 6]].concat();
    assert_eq!(pass(&mut one, SITE, &padded, at(100)), [(WIDE, padded.clone())]);
}

/// Repair packets of a gateway at site 1.
fn repair_packets(key: Option<[u8; 16]>) -> Vec<Vec<u8>> {
    let mut sender = gateway(1, |config| (config.waits_for_peer, config.shim.key) = (false, key));
    let frames = (0..64).flat_map(|index| pass(&mut sender, SITE, &Sample::V4.frame(index, 16), at(1)));
    frames.map(|(_, frame)| frame).filter(|frame| is_repair(frame)).collect()
}

#[test]
fn repair_packets_reach_no_host_and_come_from_no_host() {
    let repairs = repair_packets(None);
    assert!(repairs.len() > 7);
    for frame in &repairs {
        // From a host of site 1: the other gateway would believe it.
        let mut one = gateway(1, |_| ());
        assert_eq!(pass(&mut one, SITE, frame, at(1)), []);
        assert_eq!(one.state(at(1)).frames.site_repairs, 1);
        // With the reserved bit, and the checksum that goes with it.
        let mut reserved = frame.clone();
        (reserved[14 + 6], reserved[14 + 10]) = (reserved[14 + 6] | 0x80, reserved[14 + 10].wrapping_sub(0x80));
        assert_eq!([pass(&mut one, SITE, &reserved, at(1)), pass(&mut one, WIDE, &reserved, at(1))], [[], []]);
        // From a network that is not the peer's, with any damage, or without the tag.
        let mut elsewhere = gateway(2, |config| config.shim.peers.truncate(0));
        assert_eq!(pass(&mut elsewhere, WIDE, frame, at(1)), []);
        assert_eq!(elsewhere.state(at(1)).received.repairs, 0);
        let mut keyed = gateway(2, |config| config.shim.key = Some(KEY));
        assert_eq!(pass(&mut keyed, WIDE, frame, at(1)), []);
        let state = keyed.state(at(1));
        assert!(state.received.repairs == 0 && state.received.refused == 1 && !state.peer_heard, "{state:?}");
        for damaged_at in (14 + 20 + 8 + 1..frame.len()).step_by(5) {
            let mut damaged = frame.clone();
            damaged[damaged_at] ^= 0x40;
            let mut other = gateway(2, |_| ());
            assert_eq!(pass(&mut other, WIDE, &damaged, at(1)), []);
            assert!(!other.state(at(1)).peer_heard);
        }
    }
}

#[test]
fn strangers_cost_no_more_than_the_bounds() {
    let mut one = gateway(2, |config| {
        (config.pairs_max, config.shim.flows_max, config.shim.held_packets_max) = (8, 16, 32);
    });
    let mut passed = 0;
    for number in 0..20_000_u32 {
        let source = format!("10.1.0.{}:50000", number % 250);
        let sample = Sample { source: Box::leak(source.into_boxed_str()), ..Sample::V4 };
        // With gaps everywhere, as if much were lost.
        let frame = sample.frame(number.wrapping_mul(7) & 0xff_ffff, 16);
        passed += pass(&mut one, WIDE, &frame, at(u64::from(number))).len();
        passed += poll(&mut one, at(u64::from(number))).iter().filter(|(port, _)| *port == SITE).count();
    }
    passed += poll(&mut one, at(1_000_000)).iter().filter(|(port, _)| *port == SITE).count();
    assert_eq!(passed, 20_000, "nothing of it is kept");
    let state = one.state(at(20_000));
    assert!(state.pairs[WIDE] == 8 && state.flows[1] <= 16 && state.memory_bytes < 1 << 20, "{state:?}");
    assert!(state.memory_bytes <= state.memory_bytes_max, "{state:?}");
}

#[test]
fn small_packets_of_strangers_do_not_take_the_place_of_real_hosts() {
    let change = |config: &mut GatewayConfig| (config.pairs_max, config.shim.key) = (16, Some(KEY));
    let (mut one, mut other) = (gateway(1, change), gateway(2, change));
    let flood = |other: &mut Gateway, from: u64, until: u64| {
        for micros in (from..until).step_by(1000) {
            // No right ICRC is needed.
            let source = format!("10.1.0.{}:50000", 20 + micros / 1000 % 200);
            let frame = frame_between(&source, "10.2.0.2:4791", &[4; 28], &[]);
            assert_eq!(pass(other, WIDE, &frame, at(micros)), [(SITE, frame)]);
            // Nor does a repair packet without the right tag.
            let forged = Sample { source: Box::leak(source.into_boxed_str()), ..Sample::V4 };
            let mut sender = gateway(1, |config| config.waits_for_peer = false);
            let sent = pass(&mut sender, SITE, &forged.frame(0, 1), at(micros));
            for (_, frame) in sent.into_iter().filter(|(_, frame)| is_repair(frame)) {
                assert_eq!(pass(other, WIDE, &frame, at(micros)), []);
            }
        }
    };
    flood(&mut other, 0, 300_000);
    // The first greeting is heard.
    let data = Sample::V4.with(Opcode::RcAcknowledge, 1, &[]);
    pass(&mut one, SITE, &data, at(300_000));
    let greetings = poll(&mut one, at(300_001));
    assert_eq!(greetings.len(), 1);
    assert_eq!(pass(&mut other, WIDE, &greetings[0].1, at(300_002)), []);
    assert!(other.state(at(300_003)).peer_heard, "{:?}", other.state(at(300_003)));
    // The hosts pause for longer than silent pairs are kept, and are protected at once when they go on.
    flood(&mut other, 301_000, 4_000_000);
    let mut one = gateway(1, |config| (config.waits_for_peer, config.shim.key) = (false, Some(KEY)));
    let (mut arrived, mut lost) = (0, 0);
    for index in 0..64 {
        for (_, frame) in pass(&mut one, SITE, &Sample::V4.frame(index, 16), at(4_000_000 + u64::from(index))) {
            let is_lost = index % 8 == 3 && !is_repair(&frame);
            lost += usize::from(is_lost);
            if !is_lost {
                arrived += pass(&mut other, WIDE, &frame, at(4_000_000 + u64::from(index))).len();
            }
        }
    }
    let state = other.state(at(4_000_100));
    assert_eq!((lost, arrived, state.received.restored), (8, 64, 8), "{state:?}");
    assert_eq!((state.pairs[WIDE], state.frames.not_built), (16, 0));
}

#[test]
fn a_gateway_that_takes_over_leaves_earlier_frames_to_the_bridge() {
    let mut one = gateway(1, |_| ());
    one.begin_at(at(50));
    let frame = Sample::V4.frame(0, 16);
    assert_eq!(pass(&mut one, SITE, &frame, at(49)), []);
    assert_eq!(pass(&mut one, SITE, &frame, at(50)), [(WIDE, frame)]);
}

#[test]
fn a_gateway_that_ends_hands_on_what_waits() {
    let (mut one, mut other, begun) = acquainted(|_| ());
    for index in 0..12 {
        for (_, frame) in pass(&mut one, SITE, &Sample::V4.frame(index, 16), at(begun)) {
            if index != 10 {
                pass(&mut other, WIDE, &frame, at(begun));
            }
        }
    }
    assert_eq!(other.state(at(begun)).waiting_packets, 1);
    other.close();
    let left = poll(&mut other, at(begun));
    assert!(left.iter().any(|(port, frame)| *port == SITE && *frame == Sample::V4.frame(11, 16)), "{left:?}");
    // Nothing waits any more.
    let late = Sample::V4.frame(13, 16);
    assert_eq!(pass(&mut other, WIDE, &late, at(begun)), [(SITE, late)]);
    repair_packets(None).iter().for_each(|frame| assert_eq!(pass(&mut other, WIDE, frame, at(begun)), []));
    assert_eq!(other.state(at(begun)).waiting_packets, 0);
}

#[test]
fn after_a_long_sleep_what_has_arrived_comes_first() {
    let (mut one, mut other, begun) = acquainted(|_| ());
    let frames: Vec<Vec<u8>> = (0..8)
        .flat_map(|index| pass(&mut one, SITE, &Sample::V4.frame(index, 16), at(begun)))
        .map(|(_, frame)| frame)
        .collect();
    let (last, first) = frames.split_last().unwrap();
    assert!(is_repair(last));
    for frame in first.iter().filter(|frame| **frame != Sample::V4.frame(3, 16)) {
        pass(&mut other, WIDE, frame, at(begun));
    }
    // The processor was away for a second, and the repair packet lies in the ring.
    let mut outbox = Outbox::default();
    other.poll(at(begun + 1_000_000), &mut outbox);
    assert_eq!(other.state(at(begun)).received.given_up, 0);
    let left = pass(&mut other, WIDE, last, at(begun + 20));
    assert_eq!(left.len(), 5, "the missing one and four that waited");
    assert_eq!(other.state(at(begun)).received.restored, 1);
}

#[test]
fn damaged_frames_are_forwarded_or_dropped_and_what_leaves_is_bounded() {
    let repairs = repair_packets(None);
    let good: Vec<Vec<u8>> = samples().iter().map(|sample| sample.frame(0, 16)).chain(repairs).collect();
    let mut one = gateway(2, |_| ());
    // SplitMix64.
    let mut state = 7_u64;
    let mut random = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) as usize
    };
    let (mut entered, mut left) = ([0, 0], [0, 0]);
    for step in 0..50_000_u64 {
        let mut frame = good[random() % good.len()].clone();
        frame.truncate(if random() % 4 == 0 { random() % (frame.len() + 1) } else { frame.len() });
        for _ in 0..random() % 4 {
            let length = frame.len().max(1);
            if let Some(byte) = frame.get_mut(random() % length) {
                *byte ^= 1 << (random() % 8);
            }
        }
        let port = random() % 2;
        entered[port] += 1;
        let out = [poll(&mut one, at(step * 20)), pass(&mut one, port, &frame, at(step * 20))].concat();
        for (to, frame) in out {
            assert!(to == WIDE || !is_repair(&frame), "{frame:02x?}");
            left[1 - to] += usize::from(!is_repair(&frame));
        }
    }
    left[WIDE] += poll(&mut one, at(10_000_000)).iter().filter(|(to, _)| *to == SITE).count();
    assert!(left[SITE] <= entered[SITE] && left[SITE] > entered[SITE] / 4, "{left:?} of {entered:?}");
    assert!(left[WIDE] <= entered[WIDE] + one.state(at(0)).received.restored as usize, "{left:?} of {entered:?}");
    assert_eq!(one.state(at(0)).frames.not_built, 0);
}

#[test]
fn repair_packets_that_are_too_long_here_are_counted_and_no_sign_of_life() {
    let mut one = gateway(1, |config| config.waits_for_peer = false);
    let mut other = gateway(2, |config| config.shim.datagram_bytes_max = 256);
    let sent: Vec<_> = (0..64).flat_map(|index| pass(&mut one, SITE, &Sample::V4.frame(index, 16), at(1))).collect();
    let is_announcement = |frame: &[u8]| frame.len() < 256;
    let long: Vec<_> = sent.iter().filter(|(_, frame)| is_repair(frame) && !is_announcement(frame)).collect();
    assert!(long.len() > 7);
    long.iter().for_each(|(_, frame)| assert_eq!(pass(&mut other, WIDE, frame, at(1)), []));
    let state = other.state(at(1));
    assert_eq!((state.received.too_long, state.received.repairs), (long.len() as u64, 0));
    assert!(!state.peer_heard);
}

#[test]
fn restored_packets_have_the_priority_of_their_own_queue_pair() {
    for base in [Sample::V4, Sample::V6] {
        let (mut one, mut other, begun) = acquainted(|_| ());
        let bulk = Sample { tags: &[0x2007], traffic_class: 0x22, ..base };
        let urgent = Sample { queue_pair: 0x18, tags: &[0xe007], ..base };
        let (mut lost, mut arrived) = (0, Vec::new());
        for index in 0..160 {
            let now = at(begun + 10 * u64::from(index));
            for sample in [&bulk, &urgent] {
                let sent = [poll(&mut one, now), pass(&mut one, SITE, &sample.frame(index, 16), now)].concat();
                for (_, frame) in sent {
                    if index > 16 && index % 8 == 2 && !is_repair(&frame) {
                        lost += 1;
                    } else {
                        arrived.extend(pass(&mut other, WIDE, &frame, now));
                    }
                }
            }
        }
        arrived.extend(poll(&mut other, at(100_000)).into_iter().filter(|(port, _)| *port == SITE));
        let state = other.state(at(100_000));
        assert!(lost > 30 && state.received.restored == lost && arrived.len() == 320, "{lost} {state:?}");
        for (_, frame) in &arrived {
            let is_urgent = parse(frame).is_some_and(|parsed| parsed.datagram[7] == 0x18);
            let tag = if is_urgent { [0xe0, 7] } else { [0x20, 7] };
            assert_eq!(frame[14..16], tag, "{frame:02x?}");
        }
    }
}
