//! READ, packet by packet: what is asked, what is answered, and what becomes of answers that are lost, late, repeated, or not
//! meant for us. Sequence numbers wrap within the first READ of every test.

use crate::two_ends;

use longhaul_softnic::{Outgoing, Route, TransmitSink};
use longhaul_verbs::{
    CompletionStatus, QueuePairAttributes, QueuePairState, SendFlags, SendOperation, SendRequest, Transport,
};
use longhaul_wire::{Headers, NakCode, Opcode, Psn, Syndrome, aeth, reth};
use two_ends::{
    Datagram, Dice, End, FIRST_PSN, Outbox, Reliability, TIMEOUT_8, at, carry, carry_badly, forge, pair, pair_with,
};

const RC: Transport = Transport::ReliableConnection;
const FIRST: Opcode = Opcode::RcReadResponseFirst;
const MIDDLE: Opcode = Opcode::RcReadResponseMiddle;
const LAST: Opcode = Opcode::RcReadResponseLast;
const ONLY: Opcode = Opcode::RcReadResponseOnly;

/// Bytes that a READ of five packets brings.
const FIVE: usize = 1280;

fn number(offset: u32) -> u32 {
    (FIRST_PSN + offset) & 0xff_ffff
}

fn numbers(packets: &[Datagram]) -> Vec<u32> {
    packets.iter().map(|packet| packet.psn().wrapping_sub(FIRST_PSN) & 0xff_ffff).collect()
}

fn opcodes(packets: &[Datagram]) -> Vec<Opcode> {
    packets.iter().map(Datagram::opcode).collect()
}

/// Two ends of which the second has something to read.
fn library() -> (End, End, Vec<u8>) {
    let (one, two) = pair(RC);
    let bytes: Vec<u8> = (0..8192_u32).map(|index| (index * 7 + index / 251) as u8).collect();
    two.region.copy_in(0, &bytes);
    (one, two, bytes)
}

/// All of these arrive.
fn deliver(packets: &[Datagram], to: &End, micros: u64) {
    for packet in packets {
        to.receive(packet, at(micros));
    }
}

fn forged_response(from: &End, to: &End, opcode: Opcode, psn: u32, payload: &[u8]) -> Datagram {
    let mut headers = Headers::new(opcode, to.queue_pair.number().value(), Psn::new(psn));
    if opcode != MIDDLE {
        let syndrome = Syndrome::Ack { credits: 31 };
        headers.aeth = Some(aeth::Header { syndrome, message_sequence_number: 1 });
    }
    forge(from, to, headers, payload)
}

fn forged_request(from: &End, to: &End, psn: u32, offset: u64, length: u32) -> Datagram {
    let mut headers = Headers::new(Opcode::RcReadRequest, to.queue_pair.number().value(), Psn::new(psn));
    let remote = to.region.remote(offset);
    headers.reth = Some(reth::Header { virtual_address: remote.address, remote_key: remote.key, dma_length: length });
    forge(from, to, headers, &[])
}

#[test]
fn a_read_is_one_request_and_its_responses_take_their_sequence_numbers() {
    let (one, two, bytes) = library();
    one.post_read(1, 0, FIVE, &two);
    one.post_read(2, 2000, 0, &two);
    one.post_read(3, 3000, 256, &two);
    let requests = one.poll(at(0));
    assert_eq!(opcodes(&requests), [Opcode::RcReadRequest; 3]);
    assert_eq!(numbers(&requests), [0, 5, 6], "a READ of nothing has one response all the same");
    assert_eq!(requests[0].packet().headers.reth.unwrap().dma_length, FIVE as u32);
    deliver(&requests, &two, 1);
    let responses = two.poll(at(1));
    assert_eq!(opcodes(&responses), [FIRST, MIDDLE, MIDDLE, MIDDLE, LAST, ONLY, ONLY]);
    assert_eq!(numbers(&responses), [0, 1, 2, 3, 4, 5, 6]);
    deliver(&responses, &one, 2);
    assert_eq!(one.done(), [1, 2, 3]);
    assert_eq!(one.region.to_vec(0..FIVE), bytes[..FIVE]);
    assert_eq!(one.region.to_vec(3000..3256), bytes[3000..3256]);
    assert_eq!(one.region.to_vec(FIVE..3000), vec![0; 3000 - FIVE]);
    assert!(two.completions().is_empty());
    assert!(one.poll(at(2)).is_empty(), "a READ's answer is not acknowledged");
    assert!(one.poll(at(2) + TIMEOUT_8 * 10).is_empty());
}

#[test]
fn a_lost_request_is_repeated_after_the_time_out() {
    let (one, two, bytes) = library();
    one.post_read(1, 0, FIVE, &two);
    let lost = one.poll(at(0));
    assert_eq!(one.next_deadline(), Some(at(0) + TIMEOUT_8));
    let again = one.poll(at(0) + TIMEOUT_8);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].bytes, lost[0].bytes);
    deliver(&again, &two, 2000);
    deliver(&two.poll(at(2000)), &one, 2001);
    assert_eq!(one.done(), [1]);
    assert_eq!(one.region.to_vec(0..FIVE), bytes[..FIVE]);
}

#[test]
fn an_unanswered_read_is_given_up_after_the_retry_count() {
    let (one, two, _) = library();
    one.post_read(1, 0, FIVE, &two);
    one.post_read(2, 0, FIVE, &two);
    let mut requests = 0;
    let end = carry((&one, &two), at(0), |packet| {
        requests += usize::from(packet.opcode() == Opcode::RcReadRequest);
        false
    });
    assert_eq!(requests, 2 * (1 + 3));
    assert_eq!(end, at(0) + TIMEOUT_8 * 4);
    let statuses: Vec<_> = one.completions().iter().map(|done| done.status).collect();
    assert_eq!(statuses, [CompletionStatus::RetryExceededError, CompletionStatus::FlushedError]);
}

/// One response of five is lost; the requester asks for what is missing, from there to the end.
#[test]
fn what_is_asked_again_begins_with_the_response_that_was_lost() {
    for lost in 0..5 {
        let (one, two, bytes) = library();
        one.post_read(1, 0, FIVE, &two);
        deliver(&one.poll(at(0)), &two, 1);
        let mut responses = two.poll(at(1));
        responses.remove(lost);
        deliver(&responses, &one, 2);
        assert!(one.completions().is_empty(), "{lost}");
        let again = match lost {
            // Nothing came after the last one, so only silence shows it.
            4 => one.poll(at(2) + TIMEOUT_8),
            _ => one.poll(at(2)),
        };
        assert_eq!(again.len(), 1, "{lost}");
        assert_eq!(numbers(&again), [lost as u32]);
        let headers = again[0].packet().headers;
        let asked = headers.reth.unwrap();
        assert_eq!(asked.dma_length, (FIVE - 256 * lost) as u32);
        assert_eq!(asked.virtual_address, two.region.remote(256 * lost as u64).address);
        deliver(&again, &two, 3000);
        let rest = two.poll(at(3000));
        assert_eq!(numbers(&rest), (lost as u32..5).collect::<Vec<_>>());
        assert_eq!(rest[0].opcode(), if lost == 4 { ONLY } else { FIRST });
        deliver(&rest, &one, 3001);
        assert_eq!(one.done(), [1]);
        assert_eq!(one.region.to_vec(0..FIVE), bytes[..FIVE]);
    }
}

#[test]
fn responses_that_come_twice_or_in_another_order_do_no_harm() {
    for order in [[0, 0, 1, 1, 2, 2, 3, 3, 4, 4], [0, 1, 2, 0, 1, 2, 3, 4, 3, 4], [1, 0, 3, 2, 4, 4, 3, 2, 1, 0]] {
        let (one, two, bytes) = library();
        one.post_read(1, 0, FIVE, &two);
        deliver(&one.poll(at(0)), &two, 1);
        let responses = two.poll(at(1));
        for index in order {
            one.receive(&responses[index], at(2));
        }
        carry((&one, &two), at(2), |_| true);
        assert_eq!(one.done(), [1], "{order:?}");
        assert_eq!(one.region.to_vec(0..FIVE), bytes[..FIVE]);
        assert_eq!(one.queue_pair.state(), QueuePairState::ReadyToSend);
    }
}

#[test]
fn many_copies_of_a_late_response_are_one_reason_to_ask_again() {
    let (one, two, _) = library();
    one.post_read(1, 0, FIVE, &two);
    deliver(&one.poll(at(0)), &two, 1);
    let responses = two.poll(at(1));
    for _ in 0..20 {
        deliver(&responses[1..], &one, 2);
    }
    assert_eq!(one.queue_pair.state(), QueuePairState::ReadyToSend, "retries are for losses, not for packets");
    assert_eq!(one.poll(at(2)).len(), 1);
}

/// An acknowledgement of a WRITE behind a READ says that the READ's answer was lost (IBTA 9.7.5.2.8, implied NAK).
#[test]
fn an_acknowledgement_behind_an_unanswered_read_asks_for_it_again_and_completes_nothing() {
    let (one, two, bytes) = library();
    one.post_read(1, 0, FIVE, &two);
    one.region.copy_in(4000, &[9; 10]);
    let entry = [one.region.entry(4000..4010)];
    let write = SendRequest::new(2, SendOperation::Write(two.region.remote(10_000)), &entry);
    one.queue_pair.post_send(&[write]).unwrap();
    deliver(&one.poll(at(0)), &two, 1);
    let answers = two.poll(at(1));
    assert_eq!(numbers(&answers), [0, 1, 2, 3, 4, 5], "the answer to the READ comes before the acknowledgement");
    assert_eq!(answers[5].opcode(), Opcode::RcAcknowledge);
    one.receive(&answers[5], at(2));
    assert!(one.completions().is_empty());
    let again = one.poll(at(2));
    assert_eq!(again[0].opcode(), Opcode::RcReadRequest);
    assert_eq!(numbers(&again[..1]), [0]);
    deliver(&again, &two, 3);
    deliver(&two.poll(at(3)), &one, 4);
    assert_eq!(one.done(), [1, 2]);
    assert_eq!(one.region.to_vec(0..FIVE), bytes[..FIVE]);
    assert_eq!(two.region.to_vec(10_000..10_010), vec![9; 10]);
}

#[test]
fn a_response_acknowledges_the_writes_before_it() {
    let (one, two, _) = library();
    one.post_write(1, 10, &two);
    one.post_write(2, 10, &two);
    one.post_read(3, 100, 10, &two);
    deliver(&one.poll(at(0)), &two, 1);
    let answers = two.poll(at(1));
    let response = answers.iter().find(|answer| answer.opcode() == ONLY).expect("a response");
    one.receive(response, at(2));
    assert_eq!(one.done(), [1, 2, 3]);
}

/// Whatever arrives together, answers leave in the order of the sequence numbers: an acknowledgement that overtook a response
/// would say that the response was lost.
#[test]
fn acknowledgements_do_not_overtake_responses() {
    let (one, two, _) = library();
    for id in 0..4 {
        two.post_receive(100 + id, 10);
    }
    for round in 0..4 {
        one.post_write(4 * round, 300, &two);
        one.post_read(4 * round + 1, 8 * 256, 600, &two);
        one.post_write(4 * round + 2, 10, &two);
        one.post_send(4 * round + 3, 10);
    }
    deliver(&one.poll(at(0)), &two, 1);
    let answers = two.poll(at(1));
    let order = numbers(&answers);
    assert!(order.is_sorted(), "{order:?}");
    deliver(&answers, &one, 2);
    assert_eq!(one.done(), (0..16).collect::<Vec<_>>());
    assert_eq!(one.counters().retransmitted_pkts, 0);
}

#[test]
fn a_sequence_error_does_not_overtake_responses() {
    let (one, two, bytes) = library();
    one.post_read(1, 0, FIVE, &two);
    one.post_write(2, 512, &two);
    let packets = one.poll(at(0));
    // The first packet of the WRITE is lost.
    two.receive(&packets[0], at(1));
    two.receive(&packets[2], at(1));
    let answers = two.poll(at(1));
    assert_eq!(numbers(&answers), [0, 1, 2, 3, 4, 5]);
    assert_eq!(answers[5].packet().headers.aeth.unwrap().syndrome, Syndrome::Nak(NakCode::PsnSequenceError));
    deliver(&answers, &one, 2);
    assert_eq!(one.done(), [1]);
    assert_eq!(one.region.to_vec(0..512), bytes[..512]);
    assert_eq!(numbers(&one.poll(at(2))), [5, 6], "the WRITE again, and not the READ");
}

/// A repeated READ is read from memory again, from wherever it is asked.
#[test]
fn a_repeated_request_is_answered_from_memory_as_it_is_now() {
    let (one, two, _) = library();
    one.post_read(1, 0, FIVE, &two);
    let requests = one.poll(at(0));
    deliver(&requests, &two, 1);
    two.poll(at(1)); // lost
    two.region.copy_in(0, &[0x55; FIVE]);
    deliver(&requests, &two, 2);
    let again = two.poll(at(2));
    assert_eq!(opcodes(&again), [FIRST, MIDDLE, MIDDLE, MIDDLE, LAST]);
    assert!(again.iter().all(|response| response.packet().payload.iter().all(|&byte| byte == 0x55)));
    // From the middle on, as somebody asks who has the first two packets.
    two.receive(&forged_request(&one, &two, number(2), 512, 768), at(3));
    let rest = two.poll(at(3));
    assert_eq!(opcodes(&rest), [FIRST, MIDDLE, LAST]);
    assert_eq!(numbers(&rest), [2, 3, 4]);
    assert_eq!(two.counters().duplicate_request, 2);
    assert_eq!(two.queue_pair.state(), QueuePairState::ReadyToSend);
}

/// A repeated request must be a part of what was asked: other memory, or more of it, is not given out.
#[test]
fn a_repeated_request_for_something_else_is_dropped() {
    let (one, two, _) = library();
    one.post_read(1, 1000, FIVE, &two);
    deliver(&one.poll(at(0)), &two, 1);
    two.poll(at(1));
    for (psn, offset, length) in [(0, 0, 1280), (0, 1000, 1281), (2, 1000, 768), (2, 1512, 1280), (4, 1000, 256)] {
        two.receive(&forged_request(&one, &two, number(psn), offset, length), at(2));
        assert!(two.poll(at(2)).is_empty(), "{psn} {offset} {length}");
    }
    assert_eq!(two.queue_pair.state(), QueuePairState::ReadyToSend);
}

/// The region went between the answer and its repetition. Most likely the network has kept a copy of a request whose answer has
/// long arrived: the connection goes on.
#[test]
fn a_repeated_request_for_memory_that_is_gone_is_dropped() {
    let (one, two, _) = library();
    let other = two.domain.register(vec![3; 600], longhaul_verbs::Access::REMOTE_READ).unwrap();
    let entry = [one.region.entry(0..600)];
    one.queue_pair.post_send(&[SendRequest::new(1, SendOperation::Read(other.remote(0)), &entry)]).unwrap();
    let requests = one.poll(at(0));
    deliver(&requests, &two, 1);
    two.poll(at(1)); // lost
    drop(other);
    deliver(&requests, &two, 2);
    assert!(two.poll(at(2)).is_empty());
    assert_eq!(two.device.verbs().next_event().unwrap(), None);
    // Another region's READ, behind it, is answered.
    one.post_read(2, 0, 100, &two);
    deliver(&one.poll(at(3)), &two, 3);
    assert_eq!(two.poll(at(3)).len(), 1);
}

/// A copy of a request that was answered long ago must not take the place of a new one: its answer is nobody's.
#[test]
fn a_late_copy_of_an_answered_request_leaves_room_for_new_ones() {
    let (one, two, bytes) = library();
    for id in 0..4 {
        one.post_read(id, id as usize * 256, 256, &two);
    }
    let first = one.poll(at(0));
    assert_eq!(first.len(), 4);
    deliver(&first, &two, 1);
    deliver(&two.poll(at(1)), &one, 2);
    assert_eq!(one.done(), [0, 1, 2, 3]);
    one.post_read(4, 1024, 256, &two);
    let next = one.poll(at(3));
    // The network had kept a copy of the very first request.
    two.receive(&first[0], at(4));
    two.receive(&next[0], at(4));
    deliver(&two.poll(at(4)), &one, 5);
    assert_eq!(one.done(), [4]);
    assert_eq!(one.region.to_vec(0..1280), bytes[..1280]);
    assert_eq!(two.queue_pair.state(), QueuePairState::ReadyToSend);
}

#[test]
fn more_requests_than_there_are_resources_are_refused_and_those_before_are_answered() {
    let reliability = Reliability { read_atomic: 8, destination_read_atomic: 4, ..Default::default() };
    let (one, two) = pair_with(RC, reliability, |_| ());
    two.region.copy_in(0, &[6; 2048]);
    for id in 0..8 {
        one.post_read(id, 0, FIVE, &two);
    }
    let requests = one.poll(at(0));
    assert_eq!(requests.len(), 8);
    deliver(&requests, &two, 1);
    let answers = two.poll(at(1));
    assert_eq!(answers.len(), 4 * 5 + 1, "what waits to be sent is bounded by the resources");
    let last = answers.last().unwrap();
    assert_eq!(last.packet().headers.aeth.unwrap().syndrome, Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!(last.psn(), number(20));
    assert_eq!(two.queue_pair.state(), QueuePairState::Error);
    deliver(&answers, &one, 2);
    let statuses: Vec<_> = one.completions().iter().map(|done| done.status).collect();
    let mut expected = vec![CompletionStatus::Success; 4];
    expected.push(CompletionStatus::RemoteInvalidRequestError);
    expected.resize(8, CompletionStatus::FlushedError);
    assert_eq!(statuses, expected);
}

#[test]
fn only_as_many_are_outstanding_as_allowed_and_what_follows_keeps_its_place() {
    let reliability = Reliability { read_atomic: 2, ..Default::default() };
    let (one, two) = pair_with(RC, reliability, |_| ());
    for id in 0..4 {
        one.post_read(id, 0, 512, &two);
    }
    one.post_write(4, 10, &two);
    let begun = one.poll(at(0));
    assert_eq!(opcodes(&begun), [Opcode::RcReadRequest; 2]);
    deliver(&begun, &two, 1);
    let responses = two.poll(at(1));
    assert_eq!(responses.len(), 4);
    one.receive(&responses[0], at(2));
    assert!(one.poll(at(2)).is_empty(), "half an answer is none");
    one.receive(&responses[1], at(3));
    assert_eq!(opcodes(&one.poll(at(3))), [Opcode::RcReadRequest]);
    one.receive(&responses[2], at(4));
    one.receive(&responses[3], at(4));
    assert_eq!(opcodes(&one.poll(at(4))), [Opcode::RcReadRequest, Opcode::RcWriteOnly]);
}

#[test]
fn a_fenced_request_leaves_when_the_last_response_is_there() {
    let (one, two, bytes) = library();
    one.post_read(1, 0, 512, &two);
    let entry = [one.region.entry(0..512)];
    let write = SendRequest::new(2, SendOperation::Write(two.region.remote(20_000)), &entry);
    let fenced = write.with_flags(SendFlags::SIGNALED | SendFlags::FENCE);
    one.queue_pair.post_send(&[fenced]).unwrap();
    let request = one.poll(at(0));
    assert_eq!(request.len(), 1);
    deliver(&request, &two, 1);
    let responses = two.poll(at(1));
    one.receive(&responses[0], at(2));
    assert!(one.poll(at(2)).is_empty());
    one.receive(&responses[1], at(3));
    let write = one.poll(at(3));
    assert_eq!(opcodes(&write), [Opcode::RcWriteFirst, Opcode::RcWriteLast]);
    deliver(&write, &two, 4);
    assert_eq!(two.region.to_vec(20_000..20_512), bytes[..512]);
}

#[test]
fn responses_after_a_reset_are_ignored() {
    let (one, two, _) = library();
    one.post_read(1, 0, FIVE, &two);
    deliver(&one.poll(at(0)), &two, 1);
    let responses = two.poll(at(1));
    one.queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::Reset)).unwrap();
    deliver(&responses, &one, 2);
    assert!(one.completions().is_empty());
    assert_eq!(one.region.to_vec(0..FIVE), vec![0; FIVE]);
    assert_eq!(one.queue_pair.state(), QueuePairState::Reset);
}

#[test]
fn responses_after_the_flush_are_ignored() {
    let (one, two, _) = library();
    one.post_read(1, 0, FIVE, &two);
    deliver(&one.poll(at(0)), &two, 1);
    let responses = two.poll(at(1));
    one.queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::Error)).unwrap();
    assert_eq!(one.completions()[0].status, CompletionStatus::FlushedError);
    deliver(&responses, &one, 2);
    assert!(one.completions().is_empty());
    assert_eq!(one.region.to_vec(0..FIVE), vec![0; FIVE]);
}

/// A queue pair that goes to ERR answers nothing more, also of what it has begun to answer.
#[test]
fn an_owner_in_error_stops_answering() {
    let (one, two, _) = library();
    one.post_read(1, 0, FIVE, &two);
    deliver(&one.poll(at(0)), &two, 1);
    let mut narrow = Narrow { room: 2, sent: Outbox::default() };
    two.device.nic().poll(at(1), &mut narrow);
    assert_eq!(narrow.sent.0.len(), 2);
    two.queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::Error)).unwrap();
    assert!(two.poll(at(2)).is_empty());
}

#[test]
fn responses_that_nobody_asked_for_are_ignored() {
    let (one, two, bytes) = library();
    let ghost = |psn: u32| forged_response(&two, &one, ONLY, psn, &[0xee; 256]);
    // Nothing is outstanding at all.
    one.receive(&ghost(number(0)), at(0));
    one.receive(&ghost(number(0).wrapping_sub(1) & 0xff_ffff), at(0));
    one.post_read(1, 0, 256, &two);
    let request = one.poll(at(1));
    for psn in [number(1), number(2), number(1000), number(0x80_0000), number(0xff_ffff)] {
        one.receive(&ghost(psn), at(2));
    }
    assert!(one.completions().is_empty());
    assert_eq!(one.region.to_vec(0..256), vec![0; 256]);
    assert_eq!(one.queue_pair.state(), QueuePairState::ReadyToSend);
    deliver(&request, &two, 3);
    deliver(&two.poll(at(3)), &one, 4);
    assert_eq!(one.done(), [1]);
    assert_eq!(one.region.to_vec(0..256), bytes[..256]);
}

/// A response that has the number but not the form of what was asked for is a bad response, and writes nothing out of place.
#[test]
fn responses_of_another_form_fail_the_read() {
    let cases: [(Opcode, usize); 5] = [(MIDDLE, 100), (ONLY, 0), (FIRST, 100), (LAST, 300), (ONLY, 4096)];
    for (opcode, length) in cases {
        let (one, two, _) = library();
        one.post_read(1, 0, 512, &two);
        one.poll(at(0));
        one.receive(&forged_response(&two, &one, opcode, number(0), &vec![0xee; length]), at(1));
        assert_eq!(one.region.to_vec(512..8192), vec![0; 8192 - 512], "{opcode:?} {length}");
        let statuses: Vec<_> = one.completions().iter().map(|done| done.status).collect();
        // Dropping it is as good: then the answer is asked for again.
        assert!(statuses.is_empty() || statuses == [CompletionStatus::BadResponseError], "{opcode:?} {statuses:?}");
    }
}

#[test]
fn a_read_behind_a_send_waits_for_the_receiver_with_it() {
    let (one, two, bytes) = library();
    one.post_send(1, 10);
    one.post_read(2, 4096, 600, &two);
    deliver(&one.poll(at(0)), &two, 1);
    let answers = two.poll(at(1));
    assert_eq!(answers.len(), 1, "the READ behind the refused SEND is dropped in silence");
    assert_eq!(answers[0].packet().headers.aeth.unwrap().syndrome, Syndrome::RnrNak { timer: 12 });
    deliver(&answers, &one, 2);
    assert!(one.poll(at(3)).is_empty());
    two.post_receive(5, 10);
    carry((&one, &two), at(3), |_| true);
    assert_eq!(one.done(), [1, 2]);
    assert_eq!(one.region.to_vec(4096..4696), bytes[4096..4696]);
}

/// Takes this many packets and no more.
struct Narrow {
    room: usize,
    sent: Outbox,
}

impl TransmitSink for Narrow {
    fn has_room(&self) -> bool {
        self.sent.0.len() < self.room
    }

    fn transmit(&mut self, route: &Route, datagram: &Outgoing<'_>) {
        assert!(self.has_room(), "nothing is sent without room");
        self.sent.transmit(route, datagram);
    }
}

#[test]
fn a_port_without_room_gets_the_rest_later() {
    let (one, two, bytes) = library();
    one.post_read(1, 0, FIVE, &two);
    one.post_write(2, 10, &two);
    deliver(&one.poll(at(0)), &two, 1);
    let mut all = Vec::new();
    while two.device.nic().has_output() {
        let mut narrow = Narrow { room: 2, sent: Outbox::default() };
        two.device.nic().poll(at(1), &mut narrow);
        assert!(!narrow.sent.0.is_empty());
        all.extend(narrow.sent.0);
    }
    assert_eq!(numbers(&all), [0, 1, 2, 3, 4, 5]);
    deliver(&all, &one, 2);
    assert_eq!(one.done(), [1, 2]);
    assert_eq!(one.region.to_vec(10..FIVE), bytes[10..FIVE]);
}

/// READs and SENDs over a wire that loses, repeats and reorders, one packet in 60, in 25, in 15 each.
#[test]
fn all_is_read_whatever_the_wire_does() {
    for rarity in [60, 25, 15] {
        let reliability = Reliability { retry_count: 7, receiver_not_ready_retry: 7, ..Default::default() };
        let (one, two) = pair_with(RC, reliability, |_| ());
        let bytes: Vec<u8> = (0..32_768_u32).map(|index| (index * 13 + index / 255) as u8).collect();
        two.region.copy_in(0, &bytes);
        let mut wire = Dice(rarity);
        let mut now = at(0);
        for round in 0..40_u64 {
            one.region.copy_in(0, &vec![0; 32_768]);
            let place = |index: usize| ((round as usize * 6 + index) * 267) % 30_000;
            for index in 0..6 {
                one.post_read(10 * round + index as u64, place(index), 1 + index * 401, &two);
            }
            two.post_receive(round, 0);
            one.post_send(10 * round + 6, 0);
            now = carry_badly((&one, &two), now, |_| wire.fate(rarity));
            assert_eq!(one.done(), (10 * round..10 * round + 7).collect::<Vec<_>>(), "1 of {rarity}, round {round}");
            assert_eq!(two.done(), [round]);
            for index in 0..6 {
                let range = place(index)..place(index) + 1 + index * 401;
                assert_eq!(one.region.to_vec(range.clone()), bytes[range], "1 of {rarity}, round {round}");
            }
        }
    }
}
