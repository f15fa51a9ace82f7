//! Atomics, packet by packet: carried out once, however often they are asked for.

use crate::two_ends;

use longhaul_verbs::{CompletionStatus, QueuePairAttributes, QueuePairState, Transport};
use longhaul_wire::{Headers, NakCode, Opcode, Psn, Syndrome, aeth, atomic_ack, atomic_eth, reth};
use two_ends::{
    Datagram, Dice, End, FIRST_PSN, Reliability, TIMEOUT_8, at, carry, carry_badly, forge, pair, pair_with,
};

const RC: Transport = Transport::ReliableConnection;
/// The peer's word, and where results go.
const WORD: usize = 512;

fn number(offset: u32) -> u32 {
    (FIRST_PSN + offset) & 0xff_ffff
}

fn deliver(packets: &[Datagram], to: &End, micros: u64) {
    for packet in packets {
        to.receive(packet, at(micros));
    }
}

fn original(answer: &Datagram) -> u64 {
    assert_eq!(answer.opcode(), Opcode::RcAtomicAcknowledge);
    answer.packet().headers.atomic_ack.unwrap().original
}

fn forged_add(from: &End, to: &End, psn: u32, offset: u64) -> Datagram {
    let mut headers = Headers::new(Opcode::RcFetchAdd, to.queue_pair.number().value(), Psn::new(psn));
    let remote = to.region.remote(offset);
    headers.atomic = Some(atomic_eth::Header {
        virtual_address: remote.address,
        remote_key: remote.key,
        swap_or_add: 1,
        compare: 0,
    });
    forge(from, to, headers, &[])
}

fn forged_answer(from: &End, to: &End, psn: u32, original: u64) -> Datagram {
    let mut headers = Headers::new(Opcode::RcAtomicAcknowledge, to.queue_pair.number().value(), Psn::new(psn));
    let syndrome = Syndrome::Ack { credits: 31 };
    headers.aeth = Some(aeth::Header { syndrome, message_sequence_number: 1 });
    headers.atomic_ack = Some(atomic_ack::Header { original });
    forge(from, to, headers, &[])
}

#[test]
fn an_atomic_is_one_request_and_one_answer() {
    let (one, two) = pair(RC);
    two.set_word(WORD, 40);
    one.post_add(1, 0, WORD, 2, &two);
    one.post_swap(2, 1, WORD, (42, 7), &two);
    one.post_swap(3, 2, WORD, (42, 8), &two);
    let requests = one.poll(at(0));
    let opcodes: Vec<_> = requests.iter().map(Datagram::opcode).collect();
    assert_eq!(opcodes, [Opcode::RcFetchAdd, Opcode::RcCompareSwap, Opcode::RcCompareSwap]);
    deliver(&requests, &two, 1);
    assert_eq!(two.word(WORD), 7);
    let answers = two.poll(at(1));
    assert_eq!(answers.iter().map(original).collect::<Vec<_>>(), [40, 42, 7]);
    assert_eq!(answers.iter().map(Datagram::psn).collect::<Vec<_>>(), [number(0), number(1), number(2)]);
    deliver(&answers, &one, 2);
    assert_eq!(one.done(), [1, 2, 3]);
    assert_eq!([one.word(0), one.word(1), one.word(2)], [40, 42, 7]);
    assert!(one.poll(at(2) + TIMEOUT_8 * 10).is_empty());
}

#[test]
fn a_lost_answer_is_given_again_and_nothing_is_added_twice() {
    let (one, two) = pair(RC);
    two.set_word(WORD, 40);
    one.post_add(1, 0, WORD, 2, &two);
    let request = one.poll(at(0));
    deliver(&request, &two, 1);
    let lost = two.poll(at(1));
    let again = one.poll(at(0) + TIMEOUT_8);
    assert_eq!(again[0].bytes, request[0].bytes);
    // Meanwhile the word has changed: the answer is that of the first time.
    two.set_word(WORD, 1000);
    deliver(&again, &two, 2000);
    assert_eq!(two.word(WORD), 1000);
    let answer = two.poll(at(2000));
    assert_eq!(original(&answer[0]), 40);
    assert_eq!(answer[0].bytes, lost[0].bytes);
    deliver(&answer, &one, 2001);
    assert_eq!(one.done(), [1]);
    assert_eq!(one.word(0), 40);
}

#[test]
fn copies_of_a_request_are_carried_out_once() {
    let (one, two) = pair(RC);
    one.post_add(1, 0, WORD, 5, &two);
    let request = one.poll(at(0));
    for micros in 1..6 {
        deliver(&request, &two, micros);
        for answer in two.poll(at(micros)) {
            assert_eq!(original(&answer), 0);
            one.receive(&answer, at(micros));
        }
    }
    assert_eq!(two.word(WORD), 5);
    assert_eq!(one.done(), [1], "copies of the answer complete nothing");
    assert_eq!(one.word(0), 0);
}

#[test]
fn a_swap_that_succeeded_has_succeeded_also_when_it_is_asked_again() {
    let (one, two) = pair(RC);
    two.set_word(WORD, 3);
    one.post_swap(1, 0, WORD, (3, 9), &two);
    let request = one.poll(at(0));
    deliver(&request, &two, 1);
    two.poll(at(1)); // lost
    deliver(&one.poll(at(0) + TIMEOUT_8), &two, 2000);
    deliver(&two.poll(at(2000)), &one, 2001);
    assert_eq!(one.done(), [1]);
    assert_eq!(one.word(0), 3, "and not 9, which would say that somebody else was faster");
    assert_eq!(two.word(WORD), 9);
}

/// The responder remembers as many as it was told; of an older one it knows nothing, neither to carry it out nor to answer.
#[test]
fn a_copy_older_than_what_is_remembered_is_dropped() {
    let (one, two) = pair(RC);
    one.post_add(0, 0, WORD, 1, &two);
    let oldest = one.poll(at(0));
    deliver(&oldest, &two, 1);
    deliver(&two.poll(at(1)), &one, 2);
    for id in 1..=4 {
        one.post_add(id, id as usize, WORD, 1, &two);
        let request = one.poll(at(10 * id));
        deliver(&request, &two, 10 * id + 1);
        deliver(&two.poll(at(10 * id + 1)), &one, 10 * id + 2);
    }
    assert_eq!(one.done(), [0, 1, 2, 3, 4]);
    deliver(&oldest, &two, 100);
    assert!(two.poll(at(100)).is_empty());
    assert_eq!(two.word(WORD), 5);
    assert_eq!(two.queue_pair.state(), QueuePairState::ReadyToSend);
}

/// All that can be outstanding can be asked for again, in any order, also behind a READ.
#[test]
fn every_outstanding_one_is_remembered() {
    let (one, two) = pair(RC);
    two.set_word(WORD, 100);
    one.post_add(0, 0, WORD, 1, &two);
    one.post_read(1, 2048, 600, &two);
    one.post_add(2, 2, WORD, 1, &two);
    one.post_swap(3, 3, WORD, (102, 50), &two);
    let requests = one.poll(at(0));
    assert_eq!(requests.len(), 4);
    deliver(&requests, &two, 1);
    assert_eq!(two.poll(at(1)).len(), 6); // all lost
    two.set_word(WORD, 0);
    for index in [3, 0, 2] {
        two.receive(&requests[index], at(2));
        let answers = two.poll(at(2));
        assert_eq!(answers.len(), 1);
        assert_eq!(original(&answers[0]), [100, 0, 101, 102][index]);
    }
    assert_eq!(two.word(WORD), 0);
    carry((&one, &two), at(3), |_| true);
    assert_eq!(one.done(), [0, 1, 2, 3]);
    assert_eq!([one.word(0), one.word(2), one.word(3)], [100, 101, 102]);
    assert_eq!(two.word(WORD), 0);
}

/// The number of an atomic in a request of another kind is somebody else's, or nonsense.
#[test]
fn a_copy_of_another_kind_is_dropped() {
    let (one, two) = pair(RC);
    one.post_add(1, 0, WORD, 1, &two);
    one.post_read(2, 2048, 256, &two);
    deliver(&one.poll(at(0)), &two, 1);
    two.poll(at(1));
    let remote = two.region.remote(0);
    let mut headers = Headers::new(Opcode::RcReadRequest, two.queue_pair.number().value(), Psn::new(number(0)));
    headers.reth = Some(reth::Header { virtual_address: remote.address, remote_key: remote.key, dma_length: 8 });
    two.receive(&forge(&one, &two, headers, &[]), at(2));
    two.receive(&forged_add(&one, &two, number(1), 8 * WORD as u64), at(2));
    assert!(two.poll(at(2)).is_empty());
    assert_eq!(two.word(WORD), 1);
    assert_eq!(two.queue_pair.state(), QueuePairState::ReadyToSend);
}

#[test]
fn a_late_copy_leaves_room_for_new_ones() {
    let (one, two) = pair(RC);
    for id in 0..4 {
        one.post_add(id, id as usize, WORD, 1, &two);
    }
    let first = one.poll(at(0));
    deliver(&first, &two, 1);
    deliver(&two.poll(at(1)), &one, 2);
    assert_eq!(one.done(), [0, 1, 2, 3]);
    one.post_add(4, 4, WORD, 1, &two);
    let next = one.poll(at(3));
    two.receive(&first[0], at(4));
    two.receive(&next[0], at(4));
    deliver(&two.poll(at(4)), &one, 5);
    assert_eq!(one.done(), [4]);
    assert_eq!((one.word(4), two.word(WORD)), (4, 5));
}

#[test]
fn an_atomic_that_comes_too_early_is_not_carried_out() {
    let (one, two) = pair(RC);
    one.post_write(1, 10, &two);
    one.post_add(2, 100, WORD, 1, &two);
    let packets = one.poll(at(0));
    two.receive(&packets[1], at(1));
    assert_eq!(two.word(WORD), 0);
    let answers = two.poll(at(1));
    assert_eq!(answers[0].packet().headers.aeth.unwrap().syndrome, Syndrome::Nak(NakCode::PsnSequenceError));
    deliver(&answers, &one, 2);
    carry((&one, &two), at(2), |_| true);
    assert_eq!(one.done(), [1, 2]);
    assert_eq!(two.word(WORD), 1);
}

#[test]
fn an_atomic_behind_a_send_that_waits_is_not_carried_out() {
    let (one, two) = pair(RC);
    one.post_send(1, 10);
    one.post_add(2, 100, WORD, 1, &two);
    deliver(&one.poll(at(0)), &two, 1);
    assert_eq!(two.word(WORD), 0);
    deliver(&two.poll(at(1)), &one, 2);
    two.post_receive(5, 10);
    carry((&one, &two), at(2), |_| true);
    assert_eq!(one.done(), [1, 2]);
    assert_eq!(two.word(WORD), 1);
}

/// An acknowledgement of what is behind an atomic says that its answer was lost.
#[test]
fn an_acknowledgement_behind_an_unanswered_atomic_completes_nothing() {
    let (one, two) = pair(RC);
    two.set_word(WORD, 11);
    one.post_add(1, 100, WORD, 1, &two);
    one.post_write(2, 10, &two);
    deliver(&one.poll(at(0)), &two, 1);
    let answers = two.poll(at(1));
    assert_eq!(answers.len(), 2);
    one.receive(&answers[1], at(2));
    assert!(one.completions().is_empty());
    deliver(&one.poll(at(2)), &two, 3);
    deliver(&two.poll(at(3)), &one, 4);
    assert_eq!(one.done(), [1, 2]);
    assert_eq!((one.word(100), two.word(WORD)), (11, 12));
}

#[test]
fn an_address_that_is_not_aligned_is_an_invalid_request() {
    for offset in 1..8 {
        let (one, two) = pair(RC);
        two.receive(&forged_add(&one, &two, number(0), 8 * WORD as u64 + offset), at(1));
        let answers = two.poll(at(1));
        assert_eq!(answers[0].packet().headers.aeth.unwrap().syndrome, Syndrome::Nak(NakCode::InvalidRequest));
        assert_eq!(two.queue_pair.state(), QueuePairState::Error);
        assert_eq!(two.region.to_vec(0..8192), vec![0; 8192]);
    }
}

#[test]
fn more_than_the_resources_are_refused_and_not_carried_out() {
    let reliability = Reliability { read_atomic: 8, destination_read_atomic: 4, ..Default::default() };
    let (one, two) = pair_with(RC, reliability, |_| ());
    for id in 0..8 {
        one.post_add(id, id as usize, WORD, 1, &two);
    }
    deliver(&one.poll(at(0)), &two, 1);
    assert_eq!(two.word(WORD), 4);
    deliver(&two.poll(at(1)), &one, 2);
    let statuses: Vec<_> = one.completions().iter().map(|done| done.status).collect();
    assert_eq!(statuses[..4], [CompletionStatus::Success; 4]);
    assert_eq!(statuses[4], CompletionStatus::RemoteInvalidRequestError);
    assert_eq!(statuses[5..], [CompletionStatus::FlushedError; 3]);
}

#[test]
fn answers_that_nobody_asked_for_are_ignored() {
    let (one, two) = pair(RC);
    two.set_word(WORD, 77);
    one.receive(&forged_answer(&two, &one, number(0), 0xbad), at(0));
    one.post_add(1, 0, WORD, 1, &two);
    let request = one.poll(at(1));
    for psn in [number(1), number(5), number(0x80_0000), number(0xff_ffff)] {
        one.receive(&forged_answer(&two, &one, psn, 0xbad), at(2));
    }
    assert!(one.completions().is_empty());
    assert_eq!(one.word(0), 0);
    deliver(&request, &two, 3);
    deliver(&two.poll(at(3)), &one, 4);
    assert_eq!(one.done(), [1]);
    assert_eq!(one.word(0), 77);
}

#[test]
fn answers_after_a_reset_or_a_flush_are_ignored() {
    for state in [QueuePairState::Reset, QueuePairState::Error] {
        let (one, two) = pair(RC);
        two.set_word(WORD, 77);
        one.post_add(1, 0, WORD, 1, &two);
        deliver(&one.poll(at(0)), &two, 1);
        let answers = two.poll(at(1));
        one.queue_pair.modify(&QueuePairAttributes::to_state(state)).unwrap();
        one.completions();
        deliver(&answers, &one, 2);
        assert!(one.completions().is_empty());
        assert_eq!(one.word(0), 0);
    }
}

/// An answer of another kind than the question is a bad response, or dropped; it completes nothing.
#[test]
fn an_atomic_is_not_answered_by_a_plain_acknowledgement() {
    let (one, two) = pair(RC);
    two.set_word(WORD, 77);
    one.post_add(1, 0, WORD, 1, &two);
    let request = one.poll(at(0));
    let mut headers = Headers::new(Opcode::RcAcknowledge, one.queue_pair.number().value(), Psn::new(number(0)));
    headers.aeth = Some(aeth::Header { syndrome: Syndrome::Ack { credits: 31 }, message_sequence_number: 1 });
    one.receive(&forge(&two, &one, headers, &[]), at(1));
    assert!(one.completions().is_empty());
    deliver(&request, &two, 2);
    deliver(&two.poll(at(2)), &one, 3);
    assert_eq!(one.done(), [1]);
    assert_eq!(one.word(0), 77);
}

/// Additions from both sides over a wire that loses, repeats and reorders: each counts once, and every old value is seen once.
#[test]
fn sums_are_right_whatever_the_wire_does() {
    for rarity in [60, 25, 15] {
        let reliability = Reliability { retry_count: 7, ..Default::default() };
        let (one, two) = pair_with(RC, reliability, |_| ());
        let mut wire = Dice(rarity);
        let mut now = at(0);
        for round in 0..40_u64 {
            for index in 0..6 {
                one.post_add(10 * round + index, index as usize, WORD, 1, &two);
                two.post_add(10 * round + index, index as usize, WORD + 1, 3, &one);
            }
            now = carry_badly((&one, &two), now, |_| wire.fate(rarity));
            let expected: Vec<_> = (10 * round..10 * round + 6).collect();
            assert_eq!(one.done(), expected, "1 of {rarity}, round {round}");
            assert_eq!(two.done(), expected, "1 of {rarity}, round {round}");
            for index in 0..6 {
                assert_eq!(one.word(index as usize), 6 * round + index, "1 of {rarity}, round {round}");
                assert_eq!(two.word(index as usize), 3 * (6 * round + index), "1 of {rarity}, round {round}");
            }
        }
        assert_eq!(two.word(WORD), 240);
        assert_eq!(one.word(WORD + 1), 720);
    }
}
