//! Mistakes that are planted are found: each of these tests passes on the shim as it is, and fails on the mutated one.

use crate::ends;

use std::panic::{AssertUnwindSafe, catch_unwind};

use ends::{Flow, at, config, decode, encode, header, is_repair, poll, psn};
use longhaul_shim::{Mutation, Packet, Shim};
use longhaul_wire::{icrc, repair};

/// Two shims, both with the same mistake or none.
fn pair(code: &str, mutation: Option<Mutation>) -> (Shim, Shim) {
    let shim = |seed| {
        let shim = Shim::new(config(code), seed).unwrap();
        match mutation {
            Some(mutation) => shim.mutated(mutation),
            None => shim,
        }
    };
    (shim(1), shim(2))
}

/// A READ of memory that changes is repeated from its second packet on, and that packet has other bytes now. The first attempt's repair
/// packet arrives late, when packets of the second attempt are in the same block. No packet may come out that nobody has sent.
fn attempts_are_not_mixed(mutation: Option<Mutation>) {
    let (mut sender, mut receiver) = pair("xor:4,1", mutation);
    let first = Flow::reads(7, 100).message(4);
    let changed = Flow { seed: 99, ..Flow::reads(7, 100) }.message(4).swap_remove(1);
    let second = [changed, first[2].clone(), first[3].clone()];
    let mut attempt = encode(&mut sender, &first, at(0));
    let late = attempt.pop().expect("the repair packet");
    assert!(is_repair(&late));
    // Of the first attempt, one packet arrives; of the second, all but the third, and no repair packet.
    let arrived: Vec<Packet> = attempt.into_iter().filter(|packet| is_repair(packet) || psn(packet) == 100).collect();
    let mut received = decode(&mut receiver, &arrived, at(0));
    let arrives = |packet: &Packet| header(packet).map_or(psn(packet) != 102, |header| header.is_announcement);
    let repeated: Vec<Packet> = encode(&mut sender, &second, at(1)).into_iter().filter(arrives).collect();
    received.extend(decode(&mut receiver, &repeated, at(1)));
    received.extend(decode(&mut receiver, &[late], at(2)));
    received.extend(poll(&mut receiver, at(100_000)).incoming);
    for packet in &received {
        assert!(icrc::verify(&packet.envelope.icrc_scope, &packet.datagram), "the ICRC does not show it");
    }
    let was_sent = |packet: &Packet| first.contains(packet) || second.contains(packet);
    assert!(received.iter().all(was_sent), "a packet that was never sent");
}

/// A repair packet with a wrong sum and a right ICRC of its own. What it gives must not go on.
fn lies_are_not_believed(mutation: Option<Mutation>) {
    let (mut sender, mut receiver) = pair("xor:4,1", mutation);
    let message = Flow::writes(7, 100).message(4);
    let mut sent = encode(&mut sender, &message, at(0));
    let repair = sent.last_mut().expect("the repair packet");
    assert!(is_repair(repair));
    repair.datagram[repair::HEADER_BYTES + repair::CODED_PREFIX_BYTES + 50] ^= 1;
    icrc::write(&repair.envelope.icrc_scope, &mut repair.datagram);
    sent.retain(|packet| is_repair(packet) || psn(packet) != 102);
    let mut received = decode(&mut receiver, &sent, at(0));
    received.extend(poll(&mut receiver, at(100_000)).incoming);
    assert!(received.iter().all(|packet| message.contains(packet)), "a packet that was never sent");
    assert_eq!(receiver.decoder().counters().wrong_blocks, 1);
}

/// Each repair packet is about packets of one message.
fn blocks_end_with_their_message(mutation: Option<Mutation>) {
    let (mut sender, _) = pair("xor:8,2", mutation);
    let mut flow = Flow::writes(7, 100);
    let mut message_of = Vec::new();
    let mut sent = Vec::new();
    for (message, packets) in [3, 1, 12, 8, 2].into_iter().enumerate() {
        message_of.extend((0..packets).map(|_| message));
        sent.extend(encode(&mut sender, &flow.message(packets), at(0)));
    }
    sent.extend(poll(&mut sender, at(10_000)).outgoing);
    let blocks: Vec<_> = sent.iter().filter_map(header).filter(|header| !header.is_announcement).collect();
    assert!(blocks.len() >= 10);
    for block in blocks {
        let first = block.base_psn.value() as usize - 100;
        let messages = &message_of[first..first + usize::from(block.count)];
        assert!(messages.iter().all(|message| *message == messages[0]), "a block across messages: {block:?}");
    }
}

/// The test finds the mistake, and nothing without it.
fn finds(test: fn(Option<Mutation>), mutation: Mutation) {
    test(None);
    let result = catch_unwind(AssertUnwindSafe(|| test(Some(mutation))));
    assert!(result.is_err(), "{mutation:?} was not found");
}

#[test]
fn a_wrong_epoch_is_found() {
    finds(attempts_are_not_mixed, Mutation::IgnoreEpoch);
}

#[test]
fn an_icrc_that_is_not_verified_is_found() {
    finds(lies_are_not_believed, Mutation::SkipIcrc);
}

#[test]
fn a_block_across_messages_is_found() {
    finds(blocks_end_with_their_message, Mutation::BlocksAcrossMessages);
}
