//! What is lost is restored, byte for byte and in order; what cannot be is handed on as it is.

use crate::ends;

use ends::{
    Flow, MTU, SOURCE, acknowledgement, assert_same, at, config, decode, encode, envelope, header, is_repair, poll,
    psn, with,
};
use longhaul_shim::{Config, Packet, Shim};
use longhaul_wire::{Position, Transport, icrc};
use proptest::prelude::*;

fn pair(code: &str) -> (Shim, Shim) {
    with(config(code))
}

/// Without the data packets at these places.
fn without(packets: &[Packet], lost: &[usize]) -> Vec<Packet> {
    let mut place = 0;
    let mut is_there = |packet: &&Packet| {
        let is_lost = !is_repair(packet) && lost.contains(&place);
        place += usize::from(!is_repair(packet));
        !is_lost
    };
    packets.iter().filter(|packet| is_there(packet)).cloned().collect()
}

#[test]
fn what_is_sent_passes_as_it_is_and_repair_packets_follow_each_block() {
    let (mut sender, mut receiver) = pair("xor:4,2");
    let mut flow = Flow::writes(7, 0xff_fffe);
    let message = flow.message(6);
    let sent = encode(&mut sender, &message, at(0));
    let kinds: Vec<_> =
        sent.iter().map(|packet| header(packet).map(|header| (header.base_psn.value(), header.count))).collect();
    let (first, second) = (Some((0xff_fffe, 4)), Some((2, 2)));
    assert_eq!(kinds, [Some((0xff_fffe, 4)), None, None, None, None, first, first, None, None, second, second]);
    let heads: Vec<_> = sent
        .iter()
        .filter_map(header)
        .map(|header| (header.is_announcement, header.has_first, header.has_last))
        .collect();
    let expected =
        [(true, false, false), (false, true, false), (false, true, false), (false, false, true), (false, false, true)];
    assert_eq!(heads, expected);
    let data: Vec<Packet> = sent.iter().filter(|packet| !is_repair(packet)).cloned().collect();
    assert_same(&data, &message);
    let received = decode(&mut receiver, &sent, at(10));
    assert_same(&received, &message);
    assert_eq!(receiver.decoder().held_packets(), 0);
    let deadline = receiver.next_deadline().unwrap();
    assert!(poll(&mut receiver, deadline).incoming.is_empty());
    assert_eq!(receiver.next_deadline(), None, "nothing waits");
}

#[test]
fn short_messages_are_sent_twice() {
    for code in ["xor:8,3", "mds:8,3"] {
        let (mut sender, mut receiver) = pair(code);
        let mut flow = Flow::writes(7, 9);
        for packets in 1..=3 {
            let message = flow.message(packets);
            let sent = encode(&mut sender, &message, at(0));
            let repairs: Vec<Packet> = sent.iter().filter(|packet| is_repair(packet)).cloned().collect();
            let announcements = usize::from(packets == 1);
            assert_eq!(repairs.len(), packets as usize + announcements, "{code}");
            // All of the message is lost.
            assert_same(&decode(&mut receiver, &repairs, at(0)), &message);
        }
    }
}

#[test]
fn packets_wait_behind_a_missing_one_and_follow_it() {
    let (mut sender, mut receiver) = pair("xor:4,1");
    let message = Flow::writes(7, 100).message(8);
    let sent = without(&encode(&mut sender, &message, at(0)), &[1]);
    // The announcement, packets 0, 2 and 3.
    let received = decode(&mut receiver, &sent[..4], at(0));
    assert_same(&received, &message[..1]);
    assert_eq!(receiver.decoder().held_packets(), 2);
    let received = decode(&mut receiver, &sent[4..5], at(1));
    assert_same(&received, &message[1..4]);
    assert_same(&decode(&mut receiver, &sent[5..], at(1)), &message[4..]);
    assert_eq!((receiver.decoder().counters().restored, receiver.decoder().held_packets()), (1, 0));
    assert_eq!(receiver.next_deadline().map(|_| poll(&mut receiver, at(100_000)).incoming.len()), Some(0));
}

#[test]
fn what_cannot_be_repaired_is_handed_on_as_it_is_and_followed_again_from_the_retransmission_on() {
    let (mut sender, mut receiver) = pair("xor:4,1");
    let mut flow = Flow::writes(7, 100);
    let message = flow.message(8);
    let sent = without(&encode(&mut sender, &message, at(0)), &[1, 2]);
    let received = decode(&mut receiver, &sent, at(0));
    assert_same(&received, &message[..1]);
    let deadline = receiver.next_deadline().unwrap();
    assert!(deadline <= at(200), "all repair packets of the block are there: {deadline:?}");
    let rest = poll(&mut receiver, deadline).incoming;
    assert_same(&rest, &message[3..]);
    assert_eq!(receiver.decoder().counters().given_up, 1);
    // More of the old attempt passes at once.
    let more = flow.message(4);
    assert_same(&decode(&mut receiver, &encode(&mut sender, &more, at(300)), at(300)), &more);
    // Go-back-N: the same PSNs again, the first of which is lost.
    let again = encode(&mut sender, &[&message[1..], &more].concat(), at(50_000));
    let received = decode(&mut receiver, &without(&again, &[0, 5]), at(50_000));
    assert_same(&received, &[&message[1..], &more].concat());
    assert_eq!(sender.encoder().counters().rewinds, 1);
}

#[test]
fn the_end_of_a_block_is_restored_with_nothing_behind_it_and_idle_flows_are_flushed() {
    let (mut sender, mut receiver) = pair("mds:8,2");
    let message = Flow::writes(7, 100).message(8);
    // Only five packets are sent, and then nothing for a while.
    let mut sent = encode(&mut sender, &message[..5], at(0));
    assert_eq!(sender.next_deadline(), Some(at(200)));
    assert!(poll(&mut sender, at(199)).outgoing.is_empty());
    sent.extend(poll(&mut sender, at(200)).outgoing);
    assert_eq!(sent.iter().filter_map(header).map(|header| header.count).collect::<Vec<_>>(), [8, 5, 5]);
    assert_same(&decode(&mut receiver, &without(&sent, &[3, 4]), at(1)), &message[..5]);
    // The rest of the message is a block of its own.
    let rest = encode(&mut sender, &message[5..], at(1000));
    assert_same(&decode(&mut receiver, &without(&rest, &[0, 2]), at(1000)), &message[5..]);
    assert_eq!(sender.encoder().counters().flushed_blocks, 1);
}

#[test]
fn a_block_never_grows_older_than_its_bound() {
    let (mut sender, _) = pair("xor:64,1");
    let message = Flow::writes(7, 100).message(64);
    let mut repairs = 0;
    for (index, packet) in message[..40].iter().enumerate() {
        let now = at(100 * index as u64);
        repairs += poll(&mut sender, now).outgoing.len();
        encode(&mut sender, std::slice::from_ref(packet), now);
    }
    assert_eq!((repairs, sender.encoder().counters().flushed_blocks), (1, 1), "2 ms");
}

#[test]
fn no_free_unit_means_unprotected_and_counted() {
    let (mut sender, mut receiver) = with(Config { units_max: 2, ..config("mds:4,2") });
    let (mut one, mut other) = (Flow::writes(1, 0), Flow::writes(2, 0));
    let (first, second) = (one.message(8), other.message(8));
    let mut sent = encode(&mut sender, &first[..2], at(0));
    sent.extend(encode(&mut sender, &second, at(0)));
    sent.extend(encode(&mut sender, &first[2..], at(0)));
    assert_eq!(sender.encoder().counters().no_unit, 8, "{:?}", sender.encoder().counters());
    assert_eq!(
        sent.iter()
            .filter_map(header)
            .filter(|header| header.subject.queue_pair == 2 && !header.is_announcement)
            .count(),
        0
    );
    assert_eq!(decode(&mut receiver, &sent, at(0)).len(), 16);
    // Units come back.
    let third = other.message(4);
    assert_eq!(encode(&mut sender, &third, at(10)).iter().filter(|packet| is_repair(packet)).count(), 2);
}

#[test]
fn a_full_reordering_buffer_hands_on() {
    let (mut sender, mut receiver) = with(Config { held_packets_max: 4, ..config("xor:16,1") });
    let message = Flow::writes(7, 100).message(16);
    let sent = without(&encode(&mut sender, &message, at(0)), &[1]);
    let received = decode(&mut receiver, &sent, at(0));
    assert_same(&received, &[&message[..1], &message[2..]].concat());
    assert_eq!((receiver.decoder().counters().no_room, receiver.decoder().held_packets()), (1, 0));
}

#[test]
fn packets_of_one_queue_pair_do_not_hold_up_those_of_others() {
    let (mut sender, mut receiver) = pair("xor:4,1");
    let (mut one, mut other) = (Flow::writes(1, 5), Flow::writes(2, 5));
    // The same PSNs, in both spaces, and another queue pair, packet by packet.
    let mut reads = Flow::reads(1, 5);
    let messages = [one.message(8), other.message(8), reads.message(8)];
    let mut sent = Vec::new();
    for index in 0..8 {
        for message in &messages {
            sent.extend(encode(&mut sender, &message[index..=index], at(0)));
        }
    }
    // Each flow loses one packet of each block: the second and the seventh.
    let lost = [3, 4, 5, 18, 19, 20];
    let received = decode(&mut receiver, &without(&sent, &lost), at(0));
    for message in &messages {
        let of_flow: Vec<Packet> = received.iter().filter(|packet| message.contains(packet)).cloned().collect();
        assert_same(&of_flow, message);
    }
    assert_eq!((received.len(), receiver.decoder().counters().restored), (24, 6));
}

#[test]
fn acknowledgements_stay_behind_the_responses_before_them() {
    let (mut sender, mut receiver) = pair("xor:4,1");
    let mut reads = Flow::reads(7, 100);
    let response = reads.message(4);
    let mut packets = response.clone();
    packets.push(acknowledgement(7, 110));
    let sent = without(&encode(&mut sender, &packets, at(0)), &[3]);
    // The acknowledgement overtakes the repair packet.
    let (repair, rest): (Vec<Packet>, Vec<Packet>) =
        sent.into_iter().partition(|packet| header(packet).is_some_and(|header| !header.is_announcement));
    assert_same(&decode(&mut receiver, &rest, at(0)), &response[..3]);
    assert_same(&decode(&mut receiver, &repair, at(0)), &packets[3..]);
    // The next response has a later PSN, because writes were acknowledged in between.
    reads.psn = 120;
    let next = reads.message(2);
    assert_same(&decode(&mut receiver, &encode(&mut sender, &next, at(1)), at(1)), &next);
}

#[test]
fn lost_acknowledgements_come_from_their_copies_once() {
    let (mut sender, mut receiver) = with(Config { copies_acknowledgements: true, ..config("xor:4,1") });
    let packets = [acknowledgement(7, 110), acknowledgement(7, 111), acknowledgement(7, 112)];
    let sent = encode(&mut sender, &packets, at(0));
    assert_eq!(sent.len(), 6);
    assert_same(&decode(&mut receiver, &without(&sent, &[1]), at(0)), &packets);
    assert_eq!(receiver.decoder().counters().restored_acknowledgements, 1);
}

#[test]
fn a_mark_of_congestion_is_carried_over() {
    let (mut sender, mut receiver) = pair("xor:4,1");
    let message = Flow::writes(7, 100).message(8);
    let mut sent = without(&encode(&mut sender, &message, at(0)), &[1, 6]);
    // Packet 0, which is handed on before the loss is seen.
    sent[1].envelope.traffic_class |= 0b11;
    let received = decode(&mut receiver, &sent, at(0));
    let marks: Vec<u8> = received.iter().map(|packet| packet.envelope.traffic_class & 0b11).collect();
    assert_eq!(marks, [3, 3, 2, 2, 2, 2, 2, 2]);
}

#[test]
fn identifications_of_real_nics_and_ipv6() {
    for (source, identification) in [(SOURCE, 4711), ("[2001:db8::1]:50000", 0)] {
        let (mut sender, mut receiver) = pair("mds:4,2");
        let mut flow = Flow { envelope: envelope(source, identification), ..Flow::writes(7, 100) };
        let message = flow.message(4);
        let sent = encode(&mut sender, &message, at(0));
        let received = decode(&mut receiver, &without(&sent, &[1, 3]), at(0));
        flow.envelope = envelope(source, 0);
        let restored = [1, 3].map(|index| {
            flow.packet(100 + index, Position::of(false, index == 3), if index == 3 { MTU - 37 } else { MTU })
        });
        assert_same(&received, &[message[0].clone(), restored[0].clone(), message[2].clone(), restored[1].clone()]);
    }
}

#[test]
fn elided_payload_is_restored_as_a_length() {
    let (mut sender, mut receiver) = pair("mds:4,2");
    let mut message = Flow::writes(7, 100).message(4);
    for packet in &mut message {
        let headers = if psn(packet) == 100 { 28 } else { 12 };
        packet.envelope.elided_bytes = (packet.datagram.len() - headers - 4) as u32;
        packet.datagram.truncate(headers + 4);
        icrc::write(&packet.envelope.icrc_scope, &mut packet.datagram);
    }
    let sent = encode(&mut sender, &message, at(0));
    let repair = sent.iter().rfind(|packet| is_repair(packet)).unwrap();
    assert!(repair.datagram.len() < 100 && repair.envelope.elided_bytes == MTU as u32);
    assert_same(&decode(&mut receiver, &without(&sent, &[0, 3]), at(0)), &message);
}

#[test]
fn a_changed_code_is_announced() {
    let (mut sender, mut receiver) = pair("xor:4,1");
    let mut flow = Flow::writes(7, 100);
    decode(&mut receiver, &encode(&mut sender, &flow.message(4), at(0)), at(0));
    sender.encoder_mut().set_code("mds:8,3".parse().unwrap()).unwrap();
    let message = flow.message(8);
    let sent = encode(&mut sender, &message, at(1));
    assert_same(&decode(&mut receiver, &without(&sent, &[1, 4, 6]), at(1)), &message);
}

/// One block, at most as many losses as the code repairs, in any order within a few packets, with duplicates.
fn check_block(
    code: &str,
    packets: u32,
    first_psn: u32,
    lost: &[usize],
    swaps: &[usize],
    copies: &[usize],
    can_repair: bool,
) {
    let (mut sender, mut receiver) = pair(code);
    let mut flow = Flow::writes(7, first_psn);
    let before = flow.message(3);
    let message = flow.message(packets);
    assert_same(&decode(&mut receiver, &encode(&mut sender, &before, at(0)), at(0)), &before);
    let mut sent = without(&encode(&mut sender, &message, at(1)), lost);
    for &swap in swaps {
        if swap + 1 < sent.len() {
            sent.swap(swap, swap + 1);
        }
    }
    for &copy in copies {
        if copy < sent.len() {
            let packet = sent[copy].clone();
            sent.insert(copy, packet);
        }
    }
    let mut received = decode(&mut receiver, &sent, at(1));
    received.extend(poll(&mut receiver, at(100_000)).incoming);
    let mut seen = std::collections::BTreeSet::new();
    let once: Vec<Packet> = received.iter().filter(|packet| seen.insert(psn(packet))).cloned().collect();
    for packet in &received {
        assert!(message.contains(packet), "a packet that was never sent");
    }
    if can_repair {
        assert_same(&once, &message);
    } else {
        let mut in_order = once.clone();
        in_order.sort_by_key(|packet| psn(packet).wrapping_sub(first_psn) & 0xff_ffff);
        assert!(in_order.len() >= message.len() - lost.len());
    }
}

proptest! {
    #[test]
    fn mds_repairs_any_losses_up_to_its_number(
        packets in 1_u32..=16,
        first_psn in prop_oneof![Just(0_u32), Just(0xff_fff0), 0..0x100_0000_u32],
        mut lost in prop::collection::vec(0_usize..16, 0..=4),
        swaps in prop::collection::vec(0_usize..20, 0..3),
        copies in prop::collection::vec(0_usize..20, 0..3),
    ) {
        lost.sort_unstable();
        lost.dedup();
        lost.retain(|&place| place < packets as usize);
        let can_repair = lost.len() <= 4.min(packets as usize);
        check_block("mds:16,4", packets, first_psn, &lost, &swaps, &copies, can_repair);
    }

    #[test]
    fn xor_repairs_one_loss_in_each_group(
        packets in 1_u32..=16,
        first_psn in prop_oneof![Just(0xff_fff8_u32), 0..0x100_0000_u32],
        groups in prop::collection::vec(prop::option::of(0_usize..6), 3),
        swaps in prop::collection::vec(0_usize..20, 0..3),
        copies in prop::collection::vec(0_usize..20, 0..3),
    ) {
        let lost = groups.iter().enumerate().filter_map(|(group, row)| row.map(|row| group + 3 * row));
        let lost: Vec<usize> = lost.filter(|&place| place < packets as usize).collect();
        check_block("xor:16,3", packets, first_psn, &lost, &swaps, &copies, true);
    }

    #[test]
    fn any_losses_at_all_never_give_a_wrong_byte(
        code in prop_oneof![Just("xor:8,2"), Just("mds:8,3"), Just("xor:5,5"), Just("mds:1,1")],
        messages in prop::collection::vec(1_u32..20, 1..8),
        losses in prop::collection::vec(any::<u8>(), 400),
        threshold in 0_u8..120,
        rewind in 0_usize..40,
        is_unreliable in any::<bool>(),
    ) {
        let (mut sender, mut receiver) = pair(code);
        let transport = if is_unreliable { Transport::UnreliableConnection } else { Transport::ReliableConnection };
        let mut flow = Flow { transport, ..Flow::writes(7, 0xff_fff0) };
        let mut packets: Vec<Packet> = messages.iter().flat_map(|&count| flow.message(count)).collect();
        // Go-back-N: everything again, with other bytes in every packet, as READs of changed memory have.
        let again = packets.len().saturating_sub(rewind);
        let mut changed = Flow { transport, seed: 99, ..Flow::writes(7, 0xff_fff0) };
        let repeated: Vec<Packet> = messages.iter().flat_map(|&count| changed.message(count)).skip(again).collect();
        packets.extend(repeated);
        let mut losses = losses.iter().cycle();
        let mut received = Vec::new();
        for (index, packet) in packets.iter().enumerate() {
            let now = at(index as u64);
            let sent = encode(&mut sender, std::slice::from_ref(packet), now);
            let arrived: Vec<Packet> = sent.into_iter().filter(|_| losses.next().is_some_and(|&loss| loss >= threshold)).collect();
            received.extend(decode(&mut receiver, &arrived, now));
            received.extend(poll(&mut receiver, now).incoming);
        }
        received.extend(poll(&mut receiver, at(1_000_000)).incoming);
        prop_assert_eq!(receiver.decoder().held_packets(), 0);
        for packet in &received {
            prop_assert!(packets.contains(packet), "a packet that was never sent: {:?}", packet);
        }
    }
}
