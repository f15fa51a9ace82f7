//! Receives that several queue pairs take from.

use longhaul_verbs::CompletionStatus::*;
use longhaul_verbs::QueuePairState;
use longhaul_verbs::Transport::ReliableConnection as RC;

use super::*;

/// A bench whose B takes from a shared queue, as does D; A sends to B, C to D.
fn shared() -> (Bench, SharedQueueNumber) {
    let mut bench = bench(RC);
    let queue = bench.judge.add_shared_queue();
    for number in 2..4 {
        bench.judge.add_end(EndFacts {
            queue_pair: QueuePairNumber::new(100 + number),
            ..bench.judge.ends[number as usize - 2].facts
        });
    }
    for end in [B, D] {
        bench.judge.ends[end.0].facts.shared_queue = Some(queue);
    }
    bench.judge.connect(C, D);
    (bench, queue)
}

const C: EndNumber = EndNumber(2);
const D: EndNumber = EndNumber(3);

fn post(bench: &mut Bench, queue: SharedQueueNumber, slot: usize) {
    let pieces = vec![Piece { place: Place { region: BUFFERS, offset: 1024 * slot }, length: 512 }];
    let id = RECEIVE + slot as u64;
    let receive = PostedReceive { id, pieces, null_bytes: 0, is_broken: false, posting: 0, index: 0 };
    bench.judge.posted_shared_receive(queue, receive);
}

fn deliver_at(bench: &mut Bench, end: EndNumber, slot: usize, message: MessageNumber, facts: SendFacts) {
    let completion = bench.received(slot, message, facts);
    bench.observe(Observation {
        end,
        completion_queue: 1,
        completion,
        state: QueuePairState::ReadyToSend,
        peer_state: QueuePairState::ReadyToSend,
    });
}

#[test]
fn any_queue_pair_takes_any_receive_once() {
    let (mut bench, queue) = shared();
    post(&mut bench, queue, 0);
    post(&mut bench, queue, 1);
    let (first, second) = (send(1, 300), SendFacts { to: D, ..send(1, 300) });
    bench.judge.posted_send(A, first);
    bench.judge.posted_send(C, second);
    bench.place(BUFFERS, 1024, 0, PACKET);
    bench.check();
    bench.place(BUFFERS, 0, 1, 300);
    deliver_at(&mut bench, D, 0, 1, second);
    bench.place(BUFFERS, 1024, 0, 300);
    deliver_at(&mut bench, B, 1, 0, first);
    bench.refill(0, 512);
    bench.refill(1024, 512);
    bench.check();
    bench.assert_clean();
    deliver_at(&mut bench, B, 1, 0, first);
    bench.assert_broken(Rule::ExactlyOnce);
}

#[test]
fn messages_of_a_connection_stay_in_order() {
    let (mut bench, queue) = shared();
    post(&mut bench, queue, 0);
    for id in 1..3 {
        bench.judge.posted_send(A, send(id, 300));
    }
    bench.place(BUFFERS, 0, 1, 300);
    deliver_at(&mut bench, B, 0, 1, send(2, 300));
    bench.assert_broken(Rule::Receive);
}

#[test]
fn bytes_that_no_queue_pair_is_to_receive() {
    let (mut bench, queue) = shared();
    post(&mut bench, queue, 0);
    for id in 1..3 {
        bench.judge.posted_send(A, send(id, 300));
    }
    bench.place(BUFFERS, 0, 1, 300);
    bench.check();
    bench.assert_broken(Rule::Memory);
}

#[test]
fn a_receive_that_was_held_when_its_queue_pair_failed() {
    let (mut bench, queue) = shared();
    post(&mut bench, queue, 0);
    post(&mut bench, queue, 1);
    bench.judge.posted_send(A, send(1, 300));
    bench.place(BUFFERS, 0, 0, PACKET);
    bench.judge.moved_to_error(B);
    bench.failed(B, RECEIVE, FlushedError, QueuePairState::Error);
    bench.refill(0, 512);
    bench.check();
    bench.assert_clean();
    bench.judge.posted_send(A, send(2, 300));
    deliver_at(&mut bench, B, 1, 0, send(1, 300));
    bench.assert_broken(Rule::Flush);
}

#[test]
fn limit_events() {
    let (mut bench, queue) = shared();
    for slot in 0..5 {
        post(&mut bench, queue, slot);
    }
    bench.judge.wants_limit_event(queue, 4);
    bench.judge.check_limit_event(queue);
    // Two queue pairs may hold one each.
    bench.judge.limit_event(queue);
    bench.assert_clean();
    bench.judge.limit_event(queue);
    bench.assert_broken(Rule::Event);

    let (mut early, queue) = shared();
    (0..5).for_each(|slot| post(&mut early, queue, slot));
    early.judge.wants_limit_event(queue, 3);
    early.judge.limit_event(queue);
    early.assert_broken(Rule::Event);

    let (mut missing, queue) = shared();
    post(&mut missing, queue, 0);
    missing.judge.wants_limit_event(queue, 2);
    missing.judge.check_limit_event(queue);
    missing.assert_broken(Rule::Event);
}
