//! Strangers and strange networks: what they send late, far ahead or with a guessed epoch is executed once at most, and live flows stay
//! protected.

use crate::ends;

use ends::{
    Flow, assert_protected, assert_same, at, config, decode, encode, header, is_repair, lie, poll, psn, unreliable,
    with,
};
use longhaul_shim::{Agreement, Config, ConfigError, Network, Packet, Shim};
use longhaul_wire::repair::Header;
use longhaul_wire::{Position, Psn};

/// How often a packet is among others.
fn times(received: &[Packet], packet: &Packet) -> usize {
    received.iter().filter(|other| *other == packet).count()
}

#[test]
fn uc_executes_once_what_was_restored_and_arrives_much_later() {
    let (mut sender, mut receiver) = with(config("xor:4,1"));
    let message = unreliable(7, 100).message(4);
    let sent = encode(&mut sender, &message, at(0));
    let rest: Vec<Packet> = sent.iter().filter(|packet| is_repair(packet) || psn(packet) != 101).cloned().collect();
    assert_same(&decode(&mut receiver, &rest, at(0)), &message);
    // Later than any packet waits for another.
    poll(&mut receiver, at(50_000));
    assert!(decode(&mut receiver, &message[1..2], at(50_000)).is_empty());
    assert_eq!(receiver.decoder().counters().overtaken, 1);
}

#[test]
fn uc_executes_a_packet_again_if_its_sender_has_gone_back() {
    let (mut sender, mut receiver) = with(config("xor:4,1"));
    let message = unreliable(7, 100).message(4);
    let sent = encode(&mut sender, &message, at(0));
    let rest: Vec<Packet> = sent.iter().filter(|packet| is_repair(packet) || psn(packet) != 101).cloned().collect();
    assert_same(&decode(&mut receiver, &rest, at(0)), &message);
    // The queue pair was reset, and begins with the same PSN and the same message.
    assert_same(&decode(&mut receiver, &encode(&mut sender, &message, at(50_000)), at(50_000)), &message);
}

#[test]
fn uc_executes_once_what_is_far_behind_and_restored_afterwards() {
    let (mut sender, mut receiver) = with(config("xor:4,1"));
    let mut flow = unreliable(7, 100);
    // Of the first message two packets are lost, so that the receiver does not know where the next one begins.
    let mut sent = encode(&mut sender, &flow.message(4), at(0));
    sent.retain(|packet| is_repair(packet) || ![101, 102].contains(&psn(packet)));
    let mut received = decode(&mut receiver, &sent, at(0));
    received.extend(poll(&mut receiver, at(1000)).incoming);
    // Packets from the middle of the next message overtake a hundred others.
    let message = flow.message(120);
    let sent = encode(&mut sender, &message, at(2000));
    let place = |wanted: u32| sent.iter().position(|packet| !is_repair(packet) && psn(packet) == wanted).unwrap();
    let (early, late) = (place(210), place(104));
    received.extend(decode(&mut receiver, &sent[early..=early], at(2000)));
    // The first packet, and then the rest of its block with the repair packet.
    received.extend(decode(&mut receiver, &sent[late..=late], at(2000)));
    let block: Vec<Packet> = sent[late + 1..].iter().take(4).cloned().collect();
    assert!(is_repair(&block[3]));
    received.extend(decode(&mut receiver, &block[1..], at(2000)));
    received.extend(poll(&mut receiver, at(100_000)).incoming);
    assert_eq!(times(&received, &message[0]), 1);
}

#[test]
fn a_guessed_epoch_does_not_move_an_open_flow_far_away() {
    let (mut sender, mut receiver) = with(config("xor:4,1"));
    let mut flow = Flow::reads(7, 100);
    let sent = encode(&mut sender, &flow.message(4), at(0));
    decode(&mut receiver, &sent, at(0));
    let like = sent.iter().filter_map(header).next_back().unwrap();
    // Between two responses any later PSN may be next. The lie has a whole packet in it.
    let invented = Flow { psn: 1_000_000, ..flow.clone() };
    let packet = invented.packet(1_000_000, Position::Only, 64);
    let (mut inventor, _) = with(config("xor:4,1"));
    let repair = encode(&mut inventor, std::slice::from_ref(&packet), at(0)).pop().unwrap();
    let body = &repair.datagram[longhaul_wire::repair::HEADER_BYTES..repair.datagram.len() - 4];
    let guessed = Header { epoch: like.epoch, ..header(&repair).unwrap() };
    assert!(decode(&mut receiver, &[lie(&guessed, body)], at(1)).is_empty(), "a lie reaches the host");
    assert_protected(&mut sender, &mut receiver, &mut flow, 2);
    // What skips as far as most READs do is restored although nothing else agrees.
    let near = Flow { psn: flow.psn + 5000, ..flow.clone() };
    let packet = near.packet(near.psn, Position::Only, 64);
    let sent = encode(&mut sender, std::slice::from_ref(&packet), at(3));
    assert_same(&decode(&mut receiver, &sent[sent.len() - 1..], at(3)), &[packet]);
}

#[test]
fn a_flow_that_lies_have_moved_in_a_pause_is_protected_again_although_they_go_on() {
    let (mut sender, mut receiver) = with(config("xor:4,1"));
    let mut flow = Flow::writes(7, 100);
    let sent = encode(&mut sender, &flow.message(4), at(0));
    decode(&mut receiver, &sent, at(0));
    let like = sent.iter().filter_map(header).next_back().unwrap();
    // Its epoch is a little later than the true one, so that the true headers look old.
    let moved = Header { epoch: like.epoch.wrapping_add(10), base_psn: Psn::new(9000), has_last: false, ..like };
    let moved = Header { last_length: 0, ..moved };
    let lies = [lie(&Header { is_announcement: true, index: 0, ..moved }, &[]), lie(&moved, &[0x5a; 300])];
    decode(&mut receiver, &lies, at(50_000));
    for round in 0..4 {
        let now = at(50_001 + round);
        decode(&mut receiver, &encode(&mut sender, &flow.message(4), now), now);
        decode(&mut receiver, &lies, now);
    }
    assert_protected(&mut sender, &mut receiver, &mut flow, 50_010);
}

#[test]
fn packets_of_uc_with_a_wrong_icrc_take_no_place_in_the_table() {
    let (mut sender, mut receiver) = with(Config { flows_max: 2, ..config("xor:4,1") });
    for queue_pair in 1000..1010 {
        let mut packet = unreliable(queue_pair, 5).message(1).swap_remove(0);
        packet.datagram[20] ^= 1;
        assert_eq!(decode(&mut receiver, std::slice::from_ref(&packet), at(0)).len(), 1);
    }
    assert_protected(&mut sender, &mut receiver, &mut unreliable(7, 100), 1);
    assert_eq!(receiver.decoder().counters().no_flow, 0);
}

#[test]
fn acknowledgements_that_wait_cost_little_when_packets_pass() {
    let (mut sender, mut receiver) = with(Config { held_packets_max: 1 << 16, ..config("xor:4,1") });
    let message = Flow::reads(7, 100).message(20_000);
    decode(&mut receiver, &encode(&mut sender, &message[..4], at(0)), at(0));
    let waiting: Vec<Packet> = (0..20_000).map(|_| ends::acknowledgement(7, 30_000)).collect();
    assert!(decode(&mut receiver, &waiting, at(1)).is_empty());
    // In one go over all that wait for each packet, this would be 400 million steps.
    let begin = std::time::Instant::now();
    assert_eq!(decode(&mut receiver, &message[4..], at(2)).len(), 20_000 - 4 + waiting.len());
    assert!(begin.elapsed() < std::time::Duration::from_millis(1500), "{:?}", begin.elapsed());
}

#[test]
fn as_many_queue_pairs_are_protected_as_flows_can_be_followed() {
    let config = Config { flows_max: 4, peers: Vec::<Network>::new(), ..config("xor:4,1") };
    let code = config.code;
    let mut shim = Shim::new(config, 1).unwrap();
    let agreement = |number| Agreement { peer: [10, 0, 0, 2].into(), ours: number, theirs: number, code };
    for number in [1, 2, 2, 1] {
        assert_eq!(shim.agree(&agreement(number)), Ok(()));
    }
    let refused = ConfigError::Agreements { flows_max: 4 };
    assert!(refused.to_string().starts_with("2 queue pairs are protected already"), "{refused}");
    assert_eq!(shim.agree(&agreement(3)), Err(refused));
    shim.disagree(&agreement(1));
    assert_eq!(shim.agree(&agreement(3)), Ok(()));
}
