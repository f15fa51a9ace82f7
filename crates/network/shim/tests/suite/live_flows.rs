//! A flow that is alive stays protected: through pauses, lies, invented flows, and acknowledgements that come early. And what the
//! decoder does for it delays nothing in vain and delivers nothing twice.

use crate::ends;

use ends::{
    Flow, acknowledgement, assert_protected, assert_same, at, config, decode, encode, header, is_repair, lie, poll,
    psn, unreliable, with,
};
use longhaul_shim::{Config, Packet};
use longhaul_wire::Psn;
use longhaul_wire::repair::{Header, Subject};

/// What is sent without the data packet with this PSN.
fn without(sent: Vec<Packet>, lost: u32) -> Vec<Packet> {
    sent.into_iter().filter(|packet| is_repair(packet) || psn(packet) != lost).collect()
}

/// An announcement and a repair packet of the block that it announces, as somebody invents them.
fn invented(queue_pair: u32, base_psn: u32, epoch: u16, like: &Header) -> [Packet; 2] {
    let subject = Subject { queue_pair, is_responses: false };
    let (has_last, last_length) = (false, 0);
    let header = Header { subject, base_psn: Psn::new(base_psn), epoch, has_last, last_length, index: 0, ..*like };
    [lie(&Header { is_announcement: true, ..header }, &[]), lie(&header, &[0x5a; 300])]
}

/// The last header of what was sent.
fn last_header(sent: &[Packet]) -> Header {
    sent.iter().filter_map(header).next_back().unwrap()
}

#[test]
fn a_block_after_a_pause_inside_a_message_is_repaired() {
    for loses_repair in [false, true] {
        let (mut sender, mut receiver) = with(config("xor:4,1"));
        let message = Flow::writes(7, 100).message(10);
        // The sender ends a block of two packets when it pauses, which the receiver may not hear of.
        let mut sent = encode(&mut sender, &message[..6], at(0));
        let flushed = poll(&mut sender, at(2000)).outgoing;
        assert_eq!(header(&flushed[0]).unwrap().count, 2);
        if !loses_repair {
            sent.extend(flushed);
        }
        assert_same(&decode(&mut receiver, &sent, at(0)), &message[..6]);
        poll(&mut receiver, at(5000));
        let mut received = Vec::new();
        for packet in &message[6..] {
            for packet in without(encode(&mut sender, std::slice::from_ref(packet), at(50_000)), 107) {
                received.extend(poll(&mut receiver, at(50_000)).incoming);
                received.extend(decode(&mut receiver, &[packet], at(50_000)));
            }
        }
        assert_same(&received, &message[6..]);
    }
}

#[test]
fn an_invented_announcement_and_its_repair_packet_do_not_move_a_live_flow() {
    let (mut sender, mut receiver) = with(config("xor:4,1"));
    let mut flow = Flow::writes(7, 100);
    let first = encode(&mut sender, &flow.message(4), at(0));
    decode(&mut receiver, &first, at(0));
    let like = last_header(&first);
    let message = flow.message(4);
    let sent = without(encode(&mut sender, &message, at(10)), 105);
    // In the middle of a block, while a packet is waited for.
    let mut received = decode(&mut receiver, &sent[..2], at(10));
    for (base_psn, ahead) in [(9000, 20), (9000, 30_000), (0x80_0000, 1), (50, 2)] {
        let lies = invented(7, base_psn, like.epoch.wrapping_add(ahead), &like);
        assert!(decode(&mut receiver, &lies, at(11)).is_empty());
    }
    received.extend(decode(&mut receiver, &sent[2..], at(12)));
    assert_same(&received, &message);
    assert_protected(&mut sender, &mut receiver, &mut flow, 13);
}

#[test]
fn an_invented_announcement_of_the_place_where_a_live_flow_is_changes_nothing() {
    for base_psn in 104..108 {
        let (mut sender, mut receiver) = with(config("xor:4,1"));
        let mut flow = Flow::writes(7, 100);
        let first = encode(&mut sender, &flow.message(4), at(0));
        decode(&mut receiver, &first, at(0));
        let like = last_header(&first);
        let [announcement, _] = invented(7, base_psn, like.epoch.wrapping_add(20), &like);
        decode(&mut receiver, &[announcement], at(1));
        assert_protected(&mut sender, &mut receiver, &mut flow, 2);
    }
}

#[test]
fn a_silent_flow_that_goes_on_elsewhere_is_believed_even_if_its_packet_is_lost() {
    let (mut sender, mut receiver) = with(config("xor:4,1"));
    let mut flow = Flow::writes(7, 100);
    let first = flow.message(1);
    decode(&mut receiver, &encode(&mut sender, &first, at(0)), at(0));
    let tail = flow.message(1);
    // The last packet and its repair packet are lost. After the transport's timeout it comes again, and is lost again.
    encode(&mut sender, &tail, at(1));
    let again = without(encode(&mut sender, &tail, at(60_000)), 101);
    assert_same(&decode(&mut receiver, &again, at(60_000)), &tail);
}

#[test]
fn invented_flows_leave_units_to_a_proven_one() {
    let (mut sender, mut receiver) = with(Config { units_max: 32, ..config("mds:8,4") });
    let mut flow = Flow::writes(7, 100);
    decode(&mut receiver, &encode(&mut sender, &flow.message(4), at(0)), at(0));
    let (mut inventor, _) = with(config("mds:8,4"));
    for queue_pair in 1000..1100 {
        // Announced, and with packets of a block that never ends.
        let packets = Flow::writes(queue_pair, 0).message(8);
        decode(&mut receiver, &encode(&mut inventor, &packets[..3], at(1)), at(1));
    }
    assert!(receiver.decoder().counters().no_unit > 0, "the invented flows want all units");
    assert_protected(&mut sender, &mut receiver, &mut flow, 2);
}

#[test]
fn invented_flows_leave_room_for_waiting_packets_to_a_proven_one() {
    let (mut sender, mut receiver) = with(Config { held_packets_max: 64, ..config("mds:8,4") });
    let mut flow = Flow::writes(7, 100);
    decode(&mut receiver, &encode(&mut sender, &flow.message(4), at(0)), at(0));
    let (mut inventor, _) = with(config("mds:8,4"));
    for queue_pair in 1000..1100 {
        let packets = Flow::writes(queue_pair, 0).message(8);
        decode(&mut receiver, &without(encode(&mut inventor, &packets[..7], at(1)), 1), at(1));
    }
    assert!(receiver.decoder().counters().no_room > 0, "the invented flows want all room");
    assert_protected(&mut sender, &mut receiver, &mut flow, 2);
}

#[test]
fn invented_flows_leave_a_part_of_the_table_to_proven_ones() {
    let (mut sender, mut receiver) = with(Config { flows_max: 16, ..config("mds:8,4") });
    let mut flows: Vec<Flow> = (1..=8).map(|queue_pair| Flow::writes(queue_pair, 100)).collect();
    for flow in &mut flows {
        decode(&mut receiver, &encode(&mut sender, &flow.message(4), at(0)), at(0));
    }
    let like = last_header(&encode(&mut sender, &Flow::writes(99, 0).message(4), at(0)));
    // The proven flows are idle for longer than they may be when others want their place.
    for round in 0..100 {
        let queue_pair = 1000 + round as u32;
        let now = at(2_000_000 + 6000 * round);
        poll(&mut receiver, now);
        decode(&mut receiver, &invented(queue_pair, 5, 77, &like), now);
    }
    for flow in &mut flows {
        assert_protected(&mut sender, &mut receiver, flow, 2_600_000);
    }
    // And a new flow still finds its place.
    assert_protected(&mut sender, &mut receiver, &mut Flow::writes(50, 0), 2_700_000);
    assert_eq!(receiver.decoder().counters().no_flow, 0);
}

#[test]
fn a_peer_that_has_stopped_repairing_is_not_waited_for() {
    // One packet in twenty is lost, at a low and at a high rate.
    for spacing_micros in [400, 1] {
        let (mut sender, mut receiver) = with(config("xor:4,1"));
        let mut flow = Flow::writes(7, 100);
        decode(&mut receiver, &encode(&mut sender, &flow.message(4), at(0)), at(0));
        let message = flow.message(2000);
        let mut now = 10;
        for packet in message.iter().enumerate().filter(|(place, _)| place % 20 != 7).map(|(_, packet)| packet) {
            now += spacing_micros;
            poll(&mut receiver, at(now));
            let received = decode(&mut receiver, std::slice::from_ref(packet), at(now));
            assert!(psn(packet) < 600 || received.len() == 1, "PSN {} waits", psn(packet));
        }
        assert_eq!(receiver.decoder().held_packets(), 0);
        // It begins again.
        assert_protected(&mut sender, &mut receiver, &mut flow, now + 1);
    }
}

#[test]
fn the_block_after_a_short_one_that_was_restored_is_repaired() {
    for code in ["xor:8,1", "mds:8,2"] {
        let (mut sender, mut receiver) = with(config(code));
        let message = Flow::writes(7, 100).message(40);
        let mut sent = encode(&mut sender, &message[..3], at(0));
        sent.extend(poll(&mut sender, at(2000)).outgoing);
        assert_eq!(last_header(&sent).count, 3);
        assert_same(&decode(&mut receiver, &without(sent, 101), at(2000)), &message[..3]);
        let next = encode(&mut sender, &message[3..11], at(2300));
        assert_eq!(last_header(&next).base_psn, Psn::new(103));
        assert_same(&decode(&mut receiver, &without(next, 105), at(2300)), &message[3..11]);
    }
}

#[test]
fn an_acknowledgement_that_has_waited_long_enough_leaves_the_block_alone() {
    for arrived in [2, 5] {
        let (mut sender, mut receiver) = with(config("xor:8,1"));
        let message = Flow::reads(7, 100).message(16);
        decode(&mut receiver, &encode(&mut sender, &message[..8], at(0)), at(0));
        // It has overtaken the rest of the response.
        let early = acknowledgement(7, 116);
        assert!(decode(&mut receiver, std::slice::from_ref(&early), at(100)).is_empty());
        let sent = encode(&mut sender, &message[8..], at(4000));
        let mut received = decode(&mut receiver, &without(sent[..arrived].to_vec(), 110), at(4000));
        let late = poll(&mut receiver, at(5100)).incoming;
        assert_same(&late, std::slice::from_ref(&early));
        // Others do not wait for the same packet again.
        assert_same(&decode(&mut receiver, std::slice::from_ref(&early), at(5101)), &[early]);
        received.extend(decode(&mut receiver, &without(sent[arrived..].to_vec(), 110), at(5200)));
        assert_same(&received, &message[8..]);
    }
}

#[test]
fn blocks_that_are_cut_short_are_repaired_from_fewer_sums() {
    for (code, count, sums) in [("xor:8,4", 4, 2), ("xor:8,4", 2, 1), ("mds:8,4", 4, 2), ("mds:8,4", 7, 4)] {
        for lost in 0..count {
            let (mut sender, mut receiver) = with(config(code));
            let message = Flow::writes(7, 100).message(40);
            let mut sent = encode(&mut sender, &message[..count], at(0));
            sent.extend(poll(&mut sender, at(2000)).outgoing);
            let repairs = sent.iter().filter_map(header).filter(|header| !header.is_announcement).count();
            assert_eq!(repairs, sums, "{code} with {count} packets");
            let sent = without(sent, 100 + lost as u32);
            assert_same(&decode(&mut receiver, &sent, at(2000)), &message[..count]);
        }
    }
}

#[test]
fn an_acknowledgement_and_its_copy_are_delivered_once_in_any_order() {
    let (mut sender, mut receiver) = with(Config { copies_acknowledgements: true, ..config("xor:4,1") });
    // The flow must be known before copies are used.
    let first = acknowledgement(7, 109);
    decode(&mut receiver, &encode(&mut sender, &[first], at(0)), at(0));
    for (index, order) in [&[1, 0][..], &[1, 1, 0], &[1, 0, 1], &[0, 1, 1], &[0, 1, 1, 1]].into_iter().enumerate() {
        let now = at(1000 * (1 + index as u64));
        let nak = acknowledgement(7, 110);
        let pair = encode(&mut sender, std::slice::from_ref(&nak), now);
        let arrived: Vec<Packet> = order.iter().map(|&place: &usize| pair[place].clone()).collect();
        assert_same(&decode(&mut receiver, &arrived, now), &[nak]);
    }
}

#[test]
fn copies_are_recognized_behind_many_other_acknowledgements() {
    let (mut sender, mut receiver) = with(Config { copies_acknowledgements: true, ..config("xor:4,1") });
    let acknowledgements: Vec<Packet> = (100..120).map(|psn| acknowledgement(7, psn)).collect();
    let sent = encode(&mut sender, &acknowledgements, at(0));
    decode(&mut receiver, &sent[..2], at(0));
    let (copies, originals): (Vec<Packet>, Vec<Packet>) = sent[2..].iter().cloned().partition(is_repair);
    assert_same(&decode(&mut receiver, &[originals, copies].concat(), at(1)), &acknowledgements[1..]);
}

#[test]
fn uc_executes_once_what_has_passed_far_ahead() {
    // In the middle of a block, and at its end.
    for place in [100, 101, 103] {
        let (mut sender, mut receiver) = with(config("xor:4,1"));
        let mut flow = unreliable(7, 100);
        let mut received = decode(&mut receiver, &encode(&mut sender, &flow.message(4), at(0)), at(0));
        let message = flow.message(120);
        let sent = encode(&mut sender, &message, at(1));
        // One packet is so early that it does not wait. All others come in order.
        let early = message[place].clone();
        received.extend(decode(&mut receiver, std::slice::from_ref(&early), at(1)));
        assert_eq!(receiver.decoder().counters().far_ahead, 1);
        received.extend(decode(&mut receiver, &without(sent, psn(&early)), at(2)));
        received.extend(poll(&mut receiver, at(100_000)).incoming);
        assert_eq!(received.iter().filter(|packet| **packet == early).count(), 1);
        assert_eq!(received.len(), 124);
    }
}

#[test]
fn headers_without_any_data_hold_up_no_acknowledgements() {
    let (mut sender, mut receiver) = with(config("xor:4,1"));
    let sent = encode(&mut sender, &Flow::reads(7, 100).message(4), at(0));
    let like = last_header(&sent);
    // The queue pair only writes, so that nothing but acknowledgements comes back.
    for epoch in 0..10 {
        let subject = Subject { queue_pair: 7, is_responses: true };
        let at_100 = Header { subject, base_psn: Psn::new(100), epoch, has_last: false, last_length: 0, ..like };
        let lies = [
            lie(&Header { is_announcement: true, index: 0, ..at_100 }, &[]),
            lie(&at_100, &[0x5a; 300]),
            lie(&Header { base_psn: Psn::new(96), count: 4, ..at_100 }, &[0x5a; 300]),
        ];
        assert!(decode(&mut receiver, &lies, at(epoch.into())).is_empty());
        let packets: Vec<Packet> = (90..130).map(|psn| acknowledgement(7, psn)).collect();
        assert_same(&decode(&mut receiver, &packets, at(epoch.into())), &packets);
    }
}
