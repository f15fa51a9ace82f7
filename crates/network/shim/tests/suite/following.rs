//! A flow is followed through what networks, senders and liars do to it: nothing is delivered twice, nothing waits too long, and
//! protection goes on with the next block.

use crate::ends;

use ends::{
    Flow, acknowledgement, assert_protected, assert_same, at, config, decode, encode, header, is_repair, lie, poll,
    psn, split, unreliable, with,
};
use longhaul_shim::{Config, Network, Packet, Shim};
use longhaul_wire::repair::{self, Header};
use longhaul_wire::{Operation, Position, Psn, icrc};

fn pair(code: &str) -> (Shim, Shim) {
    with(config(code))
}

#[test]
fn repair_packets_of_an_earlier_code_are_computed_with_that_code() {
    let (mut sender, mut receiver) = pair("xor:255,3");
    let mut flow = Flow::writes(7, 100);
    let mut sent = encode(&mut sender, &flow.message(255), at(0));
    // The first packet and the sum that it is in are lost.
    sent.retain(|packet| match header(packet) {
        Some(header) => header.is_announcement || header.index > 0,
        None => psn(packet) != 100,
    });
    assert!(decode(&mut receiver, &sent, at(0)).is_empty());
    sender.encoder_mut().set_code("mds:230,25".parse().unwrap()).unwrap();
    let next = encode(&mut sender, &flow.message(2), at(0));
    decode(&mut receiver, &next, at(0));
    let received = poll(&mut receiver, at(100_000)).incoming;
    assert_eq!(received.len(), 256);
    assert_protected(&mut sender, &mut receiver, &mut flow, 200_000);
}

#[test]
fn packets_far_ahead_are_not_kept() {
    let (mut sender, mut receiver) = pair("xor:4,1");
    let mut flow = Flow::writes(7, 100);
    decode(&mut receiver, &encode(&mut sender, &flow.message(4), at(0)), at(0));
    // A forger who does not know the PSN: without the shim, it would be dropped by the transport.
    let forged = Flow { seed: 99, ..Flow::writes(7, 0) }.packet(104 + 5000, Position::Only, 64);
    assert_same(&decode(&mut receiver, std::slice::from_ref(&forged), at(1)), &[forged]);
    assert_eq!(receiver.decoder().held_packets(), 0);
    assert_protected(&mut sender, &mut receiver, &mut flow, 2);
}

#[test]
fn a_forged_packet_does_not_wait_to_take_the_place_of_the_real_one() {
    for ahead in [30, 60, 90] {
        let (mut sender, mut receiver) = pair("xor:16,1");
        let mut flow = Flow::writes(7, 100);
        decode(&mut receiver, &encode(&mut sender, &flow.message(4), at(0)), at(0));
        let forged = Flow { seed: 99, ..Flow::writes(7, 0) }.packet(104 + ahead, Position::Middle, 64);
        assert_same(&decode(&mut receiver, std::slice::from_ref(&forged), at(1)), &[forged]);
        let message = flow.message(200);
        let mut sent = encode(&mut sender, &message, at(2));
        sent.retain(|packet| is_repair(packet) || psn(packet) != 110);
        assert_same(&decode(&mut receiver, &sent, at(2)), &message);
        assert_eq!(receiver.decoder().counters().late, 0);
    }
}

#[test]
fn after_a_burst_beyond_repair_packets_pass_and_the_next_block_is_repaired() {
    // Short enough to wait for, and too long for that.
    for lost in [18, 19, 30, 70] {
        let (mut sender, mut receiver) = pair("xor:16,1");
        let mut flow = Flow::writes(7, 100);
        let message = flow.message(400);
        let sent = encode(&mut sender, &message, at(0));
        let burst = 120..120 + lost;
        let first = sent.iter().position(|packet| !is_repair(packet) && psn(packet) == burst.start).unwrap();
        let last = sent.iter().position(|packet| !is_repair(packet) && psn(packet) == burst.end - 1).unwrap();
        let behind: Vec<Packet> =
            sent[last + 1..].iter().filter(|packet| is_repair(packet) || psn(packet) != 250).cloned().collect();
        let mut received = decode(&mut receiver, &sent[..first], at(0));
        received.extend(decode(&mut receiver, &behind[..8], at(1)));
        received.extend(poll(&mut receiver, at(200)).incoming);
        received.extend(decode(&mut receiver, &behind[8..], at(200)));
        let expected: Vec<Packet> = message.iter().filter(|packet| !burst.contains(&psn(packet))).cloned().collect();
        assert_same(&received, &expected);
        assert_eq!(receiver.decoder().held_packets(), 0);
    }
}

#[test]
fn of_two_packets_that_differ_neither_is_handed_on() {
    let (mut sender, mut receiver) = pair("mds:4,2");
    let mut flow = Flow::writes(7, 100);
    decode(&mut receiver, &encode(&mut sender, &flow.message(4), at(0)), at(0));
    let message = flow.message(4);
    let (data, repairs) = split(&encode(&mut sender, &message, at(1)));
    let forged = Flow { seed: 99, ..Flow::writes(7, 0) }.packet(psn(&message[2]), Position::Middle, 64);
    let arrived = [data[0].clone(), forged, data[2].clone(), data[3].clone()];
    let mut received = decode(&mut receiver, &arrived, at(1));
    received.extend(decode(&mut receiver, &repairs, at(1)));
    assert_same(&received, &message);
}

#[test]
fn sums_of_silent_flows_are_given_back() {
    let (mut sender, _) = pair("mds:8,4");
    let mut receiver = Shim::new(Config { units_max: 16, ..config("mds:8,4") }, 2).unwrap();
    for queue_pair in [1, 2] {
        let message = Flow::writes(queue_pair, 0).message(8);
        // The sender ends these blocks after a while, but that does not arrive.
        decode(&mut receiver, &encode(&mut sender, &message[..2], at(0)), at(0));
    }
    poll(&mut receiver, at(10_000));
    assert_protected(&mut sender, &mut receiver, &mut Flow::writes(3, 0), 10_000);
    assert_eq!(receiver.decoder().counters().no_unit, 0);
}

#[test]
fn an_original_that_arrives_after_it_was_restored_is_dropped_on_uc() {
    let (mut sender, mut receiver) = pair("mds:4,2");
    let mut flow = unreliable(7, 100);
    let message = flow.message(4);
    let mut sent = encode(&mut sender, &message, at(0));
    let place = sent.iter().position(|packet| !is_repair(packet) && psn(packet) == 101).unwrap();
    let late = sent.remove(place);
    sent.push(late);
    assert_same(&decode(&mut receiver, &sent, at(0)), &message);
}

#[test]
fn one_packet_far_ahead_does_not_end_protection() {
    for is_early in [true, false] {
        let (mut sender, mut receiver) = pair("xor:4,1");
        let mut flow = Flow::writes(7, 100);
        let stray = Flow { seed: 99, ..Flow::writes(7, 0) }.packet(90_000, Position::Only, 64);
        let first = encode(&mut sender, &flow.message(4), at(0));
        let (announcement, rest) = first.split_at(1);
        decode(&mut receiver, announcement, at(0));
        if is_early {
            decode(&mut receiver, std::slice::from_ref(&stray), at(0));
        }
        decode(&mut receiver, rest, at(0));
        // A block that cannot be repaired.
        let lost: Vec<Packet> =
            encode(&mut sender, &flow.message(4), at(0)).into_iter().filter(|packet| psn(packet) % 4 > 1).collect();
        decode(&mut receiver, &lost, at(0));
        poll(&mut receiver, at(20_000));
        if !is_early {
            decode(&mut receiver, &[stray], at(20_000));
        }
        decode(&mut receiver, &encode(&mut sender, &flow.message(4), at(20_000)), at(20_000));
        assert_protected(&mut sender, &mut receiver, &mut flow, 20_001);
    }
}

#[test]
fn protection_goes_on_after_a_long_read() {
    for lost in [0, 1] {
        let (mut sender, mut receiver) = pair("mds:4,2");
        let mut flow = Flow::writes(7, 100);
        let mut packets = flow.message(3);
        packets.push(Flow { operation: Operation::ReadRequest, ..flow.clone() }.packet(103, Position::Only, 0));
        assert_same(&decode(&mut receiver, &encode(&mut sender, &packets, at(0)), at(0)), &packets);
        // The response has a million packets.
        flow.psn = 103 + 1_000_000;
        let message = flow.message(4);
        let mut sent = encode(&mut sender, &message, at(1));
        sent.retain(|packet| is_repair(packet) || psn(packet) > psn(&message[lost]));
        assert_same(&decode(&mut receiver, &sent, at(1)), &message);
    }
}

#[test]
fn a_stray_packet_does_not_move_a_flow_that_may_skip_psns() {
    for far in [20_000, 5_000_000] {
        let (mut sender, mut receiver) = pair("mds:4,2");
        let mut flow = Flow::writes(7, 100);
        let read = |flow: &Flow| Flow { operation: Operation::ReadRequest, ..flow.clone() };
        let mut packets = flow.message(3);
        packets.push(read(&flow).packet(103, Position::Only, 0));
        decode(&mut receiver, &encode(&mut sender, &packets, at(0)), at(0));
        let stray = Flow { seed: 99, ..Flow::writes(7, 0) }.packet(104 + far, Position::Only, 64);
        assert_same(&decode(&mut receiver, std::slice::from_ref(&stray), at(1)), &[stray]);
        flow.psn = 103 + 300;
        assert_protected(&mut sender, &mut receiver, &mut flow, 2);
        // Nor does it need the announcement that follows a long READ, if two packets arrive.
        let mut packets = vec![read(&flow).packet(flow.psn, Position::Only, 0)];
        flow.psn += 1_000_000;
        packets.extend(flow.message(4));
        let sent = encode(&mut sender, &packets, at(3));
        let sent: Vec<Packet> =
            sent.into_iter().filter(|packet| header(packet).is_none_or(|header| !header.is_announcement)).collect();
        assert_same(&decode(&mut receiver, &sent, at(3)), &packets);
        assert_protected(&mut sender, &mut receiver, &mut flow, 4);
    }
}

#[test]
fn a_jump_ahead_is_announced_and_begins_an_epoch() {
    let (mut sender, mut receiver) = pair("xor:4,1");
    let mut flow = Flow::writes(7, 100);
    let first = encode(&mut sender, &flow.message(4), at(0));
    decode(&mut receiver, &first, at(0));
    flow.psn = 5000;
    let message = flow.message(4);
    let mut sent = encode(&mut sender, &message, at(1));
    let announcement = header(&sent[0]).unwrap();
    assert!(announcement.is_announcement && announcement.base_psn == Psn::new(5000));
    assert_ne!(announcement.epoch, header(&first[0]).unwrap().epoch);
    sent.retain(|packet| is_repair(packet) || psn(packet) != 5000);
    assert_same(&decode(&mut receiver, &sent, at(1)), &message);
    // Responses skip requests that were acknowledged: that is no jump.
    let mut reads = Flow::reads(7, 100);
    encode(&mut sender, &reads.message(2), at(2));
    reads.psn = 150;
    assert!(
        encode(&mut sender, &reads.message(2), at(2)).iter().filter_map(header).all(|header| !header.is_announcement)
    );
}

#[test]
fn where_a_response_begins_is_not_assumed() {
    let (mut sender, mut receiver) = pair("xor:4,1");
    let mut reads = Flow::reads(7, 100);
    let sent = encode(&mut sender, &reads.message(4), at(0));
    // The announcement is lost.
    decode(&mut receiver, &sent[1..], at(0));
    reads.psn = 150;
    let next = reads.message(4);
    assert_same(&decode(&mut receiver, &encode(&mut sender, &next, at(1)), at(1)), &next);
    reads.psn = 190;
    assert_protected(&mut sender, &mut receiver, &mut reads, 2);
}

#[test]
fn a_flow_leaves_room_for_others() {
    let (mut sender, _) = pair("xor:16,1");
    let mut receiver = Shim::new(Config { held_packets_max: 24, ..config("xor:16,1") }, 2).unwrap();
    let mut greedy = Flow::writes(1, 100);
    let (data, repairs) = split(&encode(&mut sender, &greedy.message(200), at(0)));
    decode(&mut receiver, &[&repairs[..1], &data[1..11], &data[12..23]].concat(), at(0));
    assert!(receiver.decoder().held_packets() < 20, "{}", receiver.decoder().held_packets());
    assert_protected(&mut sender, &mut receiver, &mut Flow::writes(2, 100), 0);
}

#[test]
fn a_lie_about_the_epoch_does_not_shut_out_the_sender() {
    let (mut sender, mut receiver) = pair("xor:4,1");
    let mut flow = Flow::writes(7, 100);
    let first = encode(&mut sender, &flow.message(4), at(0));
    decode(&mut receiver, &first, at(0));
    let true_header = first.iter().filter_map(header).next_back().unwrap();
    for base_psn in [Psn::new(104), Psn::new(9000)] {
        for is_announcement in [true, false] {
            let epoch = true_header.epoch.wrapping_add(20);
            let lying = Header { epoch, base_psn, is_announcement, has_last: false, last_length: 0, ..true_header };
            let sum: &[u8] = if is_announcement { &[] } else { &[0x5a; 300] };
            decode(&mut receiver, &[lie(&lying, sum)], at(1));
        }
    }
    // One block may pass without protection, but no more.
    decode(&mut receiver, &encode(&mut sender, &flow.message(4), at(20_000)), at(20_000));
    assert_protected(&mut sender, &mut receiver, &mut flow, 20_001);
}

#[test]
fn a_lie_about_another_place_does_not_end_the_wait_for_a_repair() {
    let (mut sender, mut receiver) = pair("xor:4,1");
    let mut flow = Flow::writes(7, 100);
    let first = encode(&mut sender, &flow.message(4), at(0));
    decode(&mut receiver, &first, at(0));
    let true_header = first.iter().filter_map(header).next_back().unwrap();
    let message = flow.message(4);
    let sent = encode(&mut sender, &message, at(1));
    let mut received = decode(&mut receiver, &[sent[0].clone(), sent[2].clone()], at(1));
    let lying = Header { base_psn: Psn::new(104 + 2000), ..true_header };
    decode(&mut receiver, &[lie(&lying, &[0x5a; 300])], at(1));
    received.extend(poll(&mut receiver, at(150)).incoming);
    received.extend(decode(&mut receiver, &sent[3..], at(160)));
    assert_same(&received, &message);
}

#[test]
fn a_lie_about_the_current_block_costs_no_more_than_that_block() {
    let (mut sender, mut receiver) = pair("xor:4,1");
    let mut flow = Flow::writes(7, 100);
    let first = encode(&mut sender, &flow.message(4), at(0));
    decode(&mut receiver, &first, at(0));
    let true_header = first.iter().filter_map(header).next_back().unwrap();
    decode(&mut receiver, &[lie(&Header { base_psn: Psn::new(104), ..true_header }, &[0x5a; 300])], at(1));
    poll(&mut receiver, at(10_000));
    decode(&mut receiver, &encode(&mut sender, &flow.message(4), at(10_000)), at(10_000));
    assert_protected(&mut sender, &mut receiver, &mut flow, 10_001);
}

#[test]
fn opcodes_that_we_do_not_speak_take_their_psn() {
    // FLUSH and ATOMIC WRITE.
    for opcode in [0x1c, 0x1d] {
        let (mut sender, mut receiver) = pair("xor:4,1");
        let mut flow = Flow::writes(7, 100);
        let mut packets = flow.message(4);
        let mut other = flow.packet(104, Position::Only, 8);
        other.datagram[0] = opcode;
        icrc::write(&other.envelope.icrc_scope, &mut other.datagram);
        packets.push(other);
        flow.psn = 105;
        packets.extend(flow.message(4));
        let sent = encode(&mut sender, &packets, at(0));
        assert_eq!(sent.iter().filter_map(header).filter(|header| header.is_announcement).count(), 1);
        assert_same(&decode(&mut receiver, &sent, at(0)), &packets);
        assert_protected(&mut sender, &mut receiver, &mut flow, 1);
    }
}

#[test]
fn a_copy_counts_for_one_acknowledgement_and_not_for_an_equal_one() {
    let (mut sender, mut receiver) = with(Config { copies_acknowledgements: true, ..config("xor:4,1") });
    let nak = acknowledgement(7, 110);
    let first = encode(&mut sender, std::slice::from_ref(&nak), at(0));
    assert_eq!(decode(&mut receiver, &first, at(0)).len(), 1);
    assert_eq!(decode(&mut receiver, &encode(&mut sender, std::slice::from_ref(&nak), at(9)), at(9)).len(), 1);
    // The same again, and now the original is lost.
    let again = encode(&mut sender, std::slice::from_ref(&nak), at(1000));
    assert_same(&decode(&mut receiver, &again[1..], at(1000)), &[nak]);
}

#[test]
fn slow_flows_are_not_doubled() {
    let codes = ["xor:32,1", "xor:32,8", "mds:32,8"];
    for (code, (gap_micros, share)) in
        codes.into_iter().flat_map(|code| [(200, 0.15), (400, 0.3), (1000, 0.6)].map(|case| (code, case)))
    {
        // A full block's share comes on top.
        let share = if code == "xor:32,1" { share } else { share + 0.25 };
        let (mut sender, _) = pair(code);
        let message = Flow::writes(7, 100).message(400);
        let mut repairs = 0;
        for (index, packet) in message.iter().enumerate() {
            let now = at(gap_micros * index as u64);
            repairs += poll(&mut sender, now).outgoing.len();
            repairs += encode(&mut sender, std::slice::from_ref(packet), now).len() - 1;
        }
        assert!((repairs as f64) < share * 400.0, "{code}: {repairs} repair packets, one packet each {gap_micros} µs");
    }
}

#[test]
fn no_packet_waits_longer_than_the_timeout() {
    let (mut sender, mut receiver) = pair("xor:16,1");
    let message = Flow::writes(7, 100).message(16);
    let (data, repairs) = split(&encode(&mut sender, &message, at(0)));
    decode(&mut receiver, &[repairs[0].clone(), data[0].clone()], at(0));
    decode(&mut receiver, &data[10..11], at(0));
    decode(&mut receiver, &[data[7].clone(), data[2].clone()], at(4000));
    let arrived = [&data[1..2], &data[3..6]].concat();
    assert_same(&decode(&mut receiver, &arrived, at(4500)), &message[1..6]);
    assert_eq!(receiver.next_deadline(), Some(at(5000)));
    assert_same(&poll(&mut receiver, at(5000)).incoming, &[message[7].clone(), message[10].clone()]);
}

#[test]
fn an_epoch_whose_announcement_is_overtaken_is_followed_from_where_it_is() {
    let (mut sender, mut receiver) = pair("xor:4,1");
    let mut flow = Flow::writes(7, 100);
    let message = flow.message(8);
    decode(&mut receiver, &encode(&mut sender, &message, at(0)), at(0));
    // Go-back-N from the first packet on; the announcement arrives behind two packets.
    let mut again = encode(&mut sender, &message, at(1000));
    again[..3].rotate_left(1);
    assert_same(&decode(&mut receiver, &again, at(1000)), &message);
    assert_protected(&mut sender, &mut receiver, &mut flow, 1001);
}

#[test]
fn codes_with_too_many_sums_are_refused() {
    let (mut sender, _) = with(Config { flow_units_max: 33, ..config("mds:40,33") });
    let (_, mut receiver) = pair("mds:40,8");
    let sent = encode(&mut sender, &Flow::writes(7, 100).message(40), at(0));
    assert_eq!(decode(&mut receiver, &sent, at(0)).len(), 40);
    let counters = receiver.decoder().counters();
    assert_eq!((counters.refused, counters.received), (34, 0), "no flow was made");
}

#[test]
fn flows_that_nobody_sends_packets_of_make_room_soon() {
    let (mut sender, _) = pair("xor:4,1");
    let mut receiver = Shim::new(Config { flows_max: 2, ..config("xor:4,1") }, 2).unwrap();
    let mut flow = Flow::writes(7, 100);
    let first = encode(&mut sender, &flow.message(4), at(0));
    decode(&mut receiver, &first, at(0));
    let true_header = first.iter().filter_map(header).next_back().unwrap();
    let invented = Header { subject: repair::Subject { queue_pair: 9, is_responses: false }, ..true_header };
    decode(&mut receiver, &[lie(&invented, &[0x5a; 300])], at(0));
    assert_protected(&mut sender, &mut receiver, &mut Flow::writes(8, 0), 5000);
    // But those that had packets stay.
    assert_protected(&mut sender, &mut receiver, &mut flow, 5000);
}

#[test]
fn identifications_that_sockets_do_not_report_are_found() {
    for identification in [0, 1, 77] {
        let (mut sender, mut receiver) = pair("mds:4,2");
        let mut flow = Flow { envelope: ends::envelope(ends::SOURCE, identification), ..Flow::writes(7, 100) };
        let message = flow.message(4);
        let mut sent = encode(&mut sender, &message, at(0));
        sent.retain(|packet| is_repair(packet) || psn(packet).is_multiple_of(2));
        for packet in &mut sent {
            packet.envelope.identification = None;
            packet.envelope.icrc_scope = packet.envelope.icrc_scope.with_identification(0);
        }
        let received = decode(&mut receiver, &sent, at(0));
        assert_eq!(received.iter().map(psn).collect::<Vec<_>>(), [100, 101, 102, 103]);
        assert_eq!((receiver.decoder().counters().restored, receiver.decoder().counters().icrc_errors), (2, 0));
        // What is restored has identification 0, what has arrived is as it was.
        let changed =
            Flow { envelope: ends::envelope(ends::SOURCE, 0), ..flow.clone() }.packet(101, Position::Middle, ends::MTU);
        assert_eq!(received[1].datagram, changed.datagram);
        assert_eq!(received[2].datagram, message[2].datagram);
    }
}

#[test]
fn only_peers_are_sent_repair_packets() {
    let elsewhere = Network { address: [192, 0, 2, 0].into(), prefix_bits: 24 };
    let here = Network { address: [10, 0, 0, 2].into(), prefix_bits: 32 };
    for (peers, repairs) in [(vec![elsewhere], 0), (vec![elsewhere, here], 2)] {
        let (mut sender, _) = with(Config { peers, copies_acknowledgements: true, ..config("xor:4,1") });
        let mut packets = Flow::writes(7, 100).message(4);
        let sent = encode(&mut sender, &packets, at(0));
        assert_eq!(sent.len(), 4 + repairs);
        packets = vec![acknowledgement(7, 100)];
        assert_eq!(encode(&mut sender, &packets, at(0)).len(), 1 + repairs / 2);
    }
}

#[test]
fn a_packet_before_the_block_that_a_header_told_of_is_handed_on() {
    let (mut sender, mut receiver) = pair("xor:4,1");
    let mut reads = Flow::reads(7, 100);
    let first = encode(&mut sender, &reads.message(4), at(0));
    decode(&mut receiver, &first, at(0));
    let true_header = first.iter().filter_map(header).next_back().unwrap();
    decode(&mut receiver, &[lie(&Header { base_psn: Psn::new(110), ..true_header }, &[0x5a; 300])], at(1));
    let middle = reads.packet(106, Position::Middle, 64);
    assert_same(&decode(&mut receiver, std::slice::from_ref(&middle), at(1)), &[middle]);
}

#[test]
fn what_finds_no_room_keeps_its_place() {
    let (mut sender, _) = pair("xor:16,1");
    let mut receiver = Shim::new(Config { held_packets_max: 8, ..config("xor:16,1") }, 2).unwrap();
    let mut flow = Flow::writes(7, 100);
    let message = flow.message(16);
    let (data, repairs) = split(&encode(&mut sender, &message, at(0)));
    let arrived = [&repairs[..1], &data[..1], &data[9..10], &data[5..6], &data[3..4]].concat();
    let received = decode(&mut receiver, &arrived, at(0));
    assert_same(&received, &[0, 3, 5, 9].map(|place: usize| message[place].clone()));
    assert_same(&decode(&mut receiver, &data[10..], at(0)), &message[10..]);
}

/// A message follows a whole one. Its first packets are lost, and its repair packets overtake the one that arrives: what is before that one
/// exists, because their header says so.
#[test]
fn the_lost_beginning_of_a_message_whose_repair_packets_are_early_is_restored() {
    for (code, is_restored) in [("mds:4,3", true), ("xor:4,1", false)] {
        let (mut sender, mut receiver) = pair(code);
        let mut flow = Flow::writes(7, 100);
        decode(&mut receiver, &encode(&mut sender, &flow.message(2), at(0)), at(0));
        let message = flow.message(4);
        let (mut repairs, data): (Vec<_>, Vec<_>) =
            encode(&mut sender, &message, at(1)).into_iter().partition(is_repair);
        repairs.extend(data.into_iter().skip(3));
        let received = decode(&mut receiver, &repairs, at(1));
        if is_restored {
            assert_same(&received, &message);
        }
        let late = poll(&mut receiver, at(100_000)).incoming;
        assert_eq!(late.is_empty(), is_restored);
        assert_eq!(receiver.decoder().counters().wrong_blocks, 0, "{code}: nothing was wrong");
        assert_protected(&mut sender, &mut receiver, &mut flow, 200_000);
    }
}

/// The same, and the packets in between come late, without the first.
#[test]
fn a_block_whose_first_packet_was_skipped_is_not_computed_without_it() {
    let (mut sender, mut receiver) = pair("xor:8,1");
    let mut flow = Flow::writes(7, 100);
    decode(&mut receiver, &encode(&mut sender, &flow.message(2), at(0)), at(0));
    let sent = encode(&mut sender, &flow.message(6), at(1));
    let of = |number: u32| sent.iter().filter(move |packet| !is_repair(packet) && psn(packet) == 102 + number).cloned();
    // The third packet makes the flow skip the first; the fifth is lost.
    let arrived: Vec<Packet> = of(2)
        .chain(of(1))
        .chain(of(3))
        .chain(of(5))
        .chain(sent.iter().filter(|packet| is_repair(packet)).cloned())
        .collect();
    decode(&mut receiver, &arrived, at(1));
    poll(&mut receiver, at(100_000));
    assert_eq!(receiver.decoder().counters().wrong_blocks, 0, "nothing was wrong");
    assert_protected(&mut sender, &mut receiver, &mut flow, 200_000);
}

/// Repair packets overtake their block, and the announcement of a newer code overtakes it too. The block is still computed with the
/// code that it was sent with.
#[test]
fn a_block_that_begins_after_a_newer_code_was_announced_keeps_its_own() {
    for is_behind_read in [false, true] {
        let (mut sender, mut receiver) = pair("xor:4,1");
        let mut flow = Flow::writes(7, 100);
        decode(&mut receiver, &encode(&mut sender, &flow.message(2), at(0)), at(0));
        let read = Flow { operation: Operation::ReadRequest, ..flow.clone() }.packet(flow.psn, Position::Only, 0);
        if is_behind_read {
            encode(&mut sender, std::slice::from_ref(&read), at(1));
            flow.psn += 3;
        }
        let message = flow.message(4);
        let (data, repairs) = split(&encode(&mut sender, &message, at(1)));
        sender.encoder_mut().set_code("mds:8,3".parse().unwrap()).unwrap();
        let (_, newer) = split(&encode(&mut sender, &flow.message(2), at(1)));
        assert!(header(&newer[0]).unwrap().is_announcement);
        decode(&mut receiver, &[&repairs[..], &newer[..1]].concat(), at(1));
        // The second packet is lost. Behind a READ, the third arrives first: where the message begins is known from the header only.
        let (arrived, expected) = match is_behind_read {
            true => (
                [std::slice::from_ref(&read), &data[2..3], &data[..1], &data[3..]].concat(),
                [&[read], &message[..]].concat(),
            ),
            false => ([&data[..1], &data[2..]].concat(), message),
        };
        assert_same(&decode(&mut receiver, &arrived, at(1)), &expected);
        assert_eq!(receiver.decoder().counters().restored, 1);
    }
}
