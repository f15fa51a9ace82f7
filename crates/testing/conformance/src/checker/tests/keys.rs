//! Windows and slots whose keys stop working.

use longhaul_verbs::CompletionStatus::*;
use longhaul_verbs::Transport::ReliableConnection as RC;
use longhaul_verbs::{CompletionFlags, CompletionOperation, QueuePairState, WorkCompletion};

use super::*;

/// A writes through a window of B's.
fn through(key: KeyNumber, id: u64) -> SendFacts {
    SendFacts { through: Some(key), ..write(id, 700, 0) }
}

/// B ends the window.
fn invalidation(key: KeyNumber, id: u64) -> SendFacts {
    SendFacts { kind: Kind::LocalInvalidate, to: A, length: 0, ends_key: Some(key), ..send(id, 0) }
}

fn ended(bench: &mut Bench, id: u64, operation: CompletionOperation) {
    bench.observe(Observation {
        end: B,
        completion_queue: 0,
        completion: WorkCompletion { id, operation, ..Default::default() },
        state: QueuePairState::ReadyToSend,
        peer_state: QueuePairState::ReadyToSend,
    });
}

#[test]
fn nothing_is_written_through_a_window_after_its_end() {
    let mut bench = bench(RC);
    let key = bench.judge.add_key(KeyUse::Window, 0x100);
    let message = bench.judge.posted_send(A, through(key, 1));
    bench.judge.posted_send(B, invalidation(key, 2));
    bench.place(TARGETS, 0, message, PACKET);
    ended(&mut bench, 2, CompletionOperation::LocalInvalidate);
    bench.check();
    bench.assert_clean();
    bench.place(TARGETS, 0, message, 2 * PACKET);
    bench.check();
    bench.assert_broken(Rule::Memory);
}

#[test]
fn a_write_through_a_window_that_has_ended_may_be_refused() {
    let mut bench = bench(RC);
    let key = bench.judge.add_key(KeyUse::Window, 0x100);
    bench.judge.posted_send(A, through(key, 1));
    bench.judge.posted_send(B, invalidation(key, 2));
    // It has been carried out, though its completion is still missing.
    bench.failed(A, 1, RemoteAccessError, QueuePairState::Error);
    bench.assert_clean();
}

#[test]
fn a_write_through_a_window_is_refused_without_a_reason() {
    let mut bench = bench(RC);
    let key = bench.judge.add_key(KeyUse::Window, 0x100);
    bench.judge.posted_send(A, through(key, 1));
    bench.failed(A, 1, RemoteAccessError, QueuePairState::Error);
    bench.assert_broken(Rule::Status);
}

#[test]
fn success_through_a_window_that_ended_too_early() {
    for arrived in [700, 2 * PACKET] {
        let mut bench = bench(RC);
        let key = bench.judge.add_key(KeyUse::Window, 0x100);
        let message = bench.judge.posted_send(A, through(key, 1));
        bench.place(TARGETS, 0, message, arrived);
        bench.judge.key_died(key, &bench.memory);
        bench.sent(1, CompletionOperation::Write);
        let rules: Vec<Rule> = bench.judge.violations().kept().iter().map(|violation| violation.rule).collect();
        assert_eq!(rules, if arrived == 700 { vec![] } else { vec![Rule::RevokedKey] });
    }
}

#[test]
fn a_send_that_invalidates_says_which_key() {
    for value in [0x100, 0x101] {
        let mut bench = bench(RC);
        let key = bench.judge.add_key(KeyUse::Window, 0x100);
        let facts = SendFacts { ends_key: Some(key), ..send(1, 300) };
        let message = bench.judge.posted_send(A, facts);
        bench.receive(0, 512);
        bench.place(BUFFERS, 0, message, 300);
        let completion = bench.received(0, message, facts);
        let flags = CompletionFlags::INVALIDATED;
        bench.deliver(WorkCompletion { flags, immediate_or_key: value, ..completion });
        assert_eq!(bench.judge.violations().is_empty(), value == 0x100);
    }
}

#[test]
fn a_slot_that_was_unbound_takes_the_rest_and_keeps_nothing() {
    let mut bench = bench(RC);
    let key = bench.judge.add_key(KeyUse::Slot, 0x100);
    let message = bench.judge.posted_send(A, through(key, 1));
    bench.place(TARGETS, 0, message, PACKET);
    bench.judge.key_died(key, &bench.memory);
    bench.sent(1, CompletionOperation::Write);
    bench.check();
    bench.assert_clean();
    bench.place(TARGETS, 0, message, 2 * PACKET);
    bench.check();
    bench.assert_broken(Rule::Memory);

    let mut refused = bench_on(RC, NetworkFacts::default());
    let key = refused.judge.add_key(KeyUse::Slot, 0x100);
    refused.judge.posted_send(A, through(key, 1));
    refused.judge.key_died(key, &refused.memory);
    refused.failed(A, 1, RemoteAccessError, QueuePairState::Error);
    refused.assert_broken(Rule::Status);
}

#[test]
fn the_end_of_a_receive_falls_into_a_null_region() {
    let mut bench = bench(RC);
    let facts = send(1, 300);
    let message = bench.judge.posted_send(A, facts);
    let piece = Piece { place: Place { region: BUFFERS, offset: 0 }, length: 100 };
    let receive =
        PostedReceive { id: RECEIVE, pieces: vec![piece], null_bytes: 400, is_broken: false, posting: 0, index: 0 };
    bench.judge.posted_receive(B, receive);
    bench.place(BUFFERS, 0, message, 100);
    let completion = bench.received(0, message, facts);
    bench.deliver(completion);
    bench.refill(0, 100);
    bench.check();
    bench.assert_clean();
    bench.place(BUFFERS, 0, message, 300);
    bench.check();
    bench.assert_broken(Rule::Memory);
}
