//! What is in memory, and when.

use longhaul_verbs::CompletionStatus::*;
use longhaul_verbs::Transport::{ReliableConnection as RC, UnreliableConnection as UC, UnreliableDatagram as UD};
use longhaul_verbs::{CompletionOperation, QueuePairState};

use super::*;

#[test]
fn a_right_program_is_not_accused() {
    let mut bench = bench(RC);
    bench.judge.posted_send(A, write(1, 700, 0));
    bench.judge.posted_send(A, send(2, 300));
    bench.receive(0, 512);
    bench.place(TARGETS, 0, 0, 700);
    bench.place(BUFFERS, 0, 1, 300);
    let completion = bench.received(0, 1, send(2, 300));
    bench.deliver(completion);
    bench.sent(1, CompletionOperation::Write);
    bench.sent(2, CompletionOperation::Send);
    bench.refill(0, 512);
    bench.check();
    bench.assert_clean();
    assert_eq!(bench.judge.owed_sends(A), 0);
}

#[test]
fn success_before_placement() {
    let mut bench = bench(RC);
    bench.judge.posted_send(A, write(1, 700, 0));
    bench.place(TARGETS, 0, 0, 512);
    bench.sent(1, CompletionOperation::Write);
    bench.assert_broken(Rule::Placement);
}

#[test]
fn success_of_an_unsignaled_write_is_implied_before_placement() {
    let mut bench = bench(RC);
    let unsignaled = SendFacts { is_signaled: false, ..write(1, 700, 0) };
    bench.judge.posted_send(A, unsignaled);
    bench.judge.posted_send(A, write(2, 0, 1024));
    bench.sent(2, CompletionOperation::Write);
    bench.assert_broken(Rule::Placement);
}

#[test]
fn a_receive_completes_before_the_write_that_was_posted_earlier() {
    let mut bench = bench(RC);
    bench.judge.posted_send(A, write(1, 700, 0));
    bench.judge.posted_send(A, send(2, 300));
    bench.receive(0, 512);
    bench.place(BUFFERS, 0, 1, 300);
    let completion = bench.received(0, 1, send(2, 300));
    bench.deliver(completion);
    bench.assert_broken(Rule::Placement);
}

#[test]
fn success_of_a_send_before_its_receive() {
    let mut bench = bench(RC);
    bench.judge.posted_send(A, send(1, 300));
    bench.receive(0, 512);
    bench.sent(1, CompletionOperation::Send);
    bench.assert_broken(Rule::Placement);
}

#[test]
fn bytes_where_nobody_writes() {
    let mut bench = bench(RC);
    bench.judge.posted_send(A, write(1, 700, 0));
    bench.place(TARGETS, 2048, 0, 64);
    bench.check();
    bench.assert_broken(Rule::Memory);
}

#[test]
fn bytes_of_a_refused_write() {
    let mut bench = bench(RC);
    let wrong = SendFacts { target: None, mistake: Some(Mistake::RemoteAccess), ..write(1, 700, 0) };
    bench.judge.posted_send(A, wrong);
    bench.failed(A, 1, RemoteAccessError, QueuePairState::Error);
    bench.assert_clean();
    bench.place(TARGETS, 0, 0, 64);
    bench.check();
    bench.assert_broken(Rule::Memory);
}

#[test]
fn old_bytes_over_newer_ones() {
    let mut bench = bench(RC);
    for message in 0..2 {
        bench.judge.posted_send(A, write(u64::from(message), 700, 0));
        bench.place(TARGETS, 0, message, 700);
        bench.sent(u64::from(message), CompletionOperation::Write);
    }
    bench.check();
    bench.assert_clean();
    bench.place(TARGETS, 0, 0, 256);
    bench.check();
    bench.assert_broken(Rule::Memory);
}

#[test]
fn a_receive_buffer_changes_after_its_completion() {
    let mut bench = bench(RC);
    bench.judge.posted_send(A, send(1, 300));
    bench.receive(0, 512);
    bench.place(BUFFERS, 0, 0, 300);
    let completion = bench.received(0, 0, send(1, 300));
    bench.deliver(completion);
    bench.refill(0, 512);
    bench.check();
    bench.assert_clean();
    bench.place(BUFFERS, 0, 0, 256);
    bench.check();
    bench.assert_broken(Rule::Memory);
}

#[test]
fn a_message_in_the_wrong_receive() {
    let mut bench = bench(RC);
    bench.judge.posted_send(A, send(1, 300));
    bench.receive(0, 512);
    bench.receive(1, 512);
    bench.place(BUFFERS, 0, 0, 256);
    bench.check();
    bench.assert_clean();
    bench.place(BUFFERS, 1024, 0, 256);
    bench.check();
    bench.assert_broken(Rule::Memory);
}

#[test]
fn a_datagram_half_there() {
    let mut bench = bench(UD);
    bench.judge.posted_send(A, send(1, 200));
    bench.receive(0, 512);
    bench.place(BUFFERS, 40, 0, 100);
    bench.check();
    bench.assert_broken(Rule::Memory);
}

#[test]
fn an_unreliable_message_given_up_may_lie_in_the_next_receive_only() {
    let mut bench = bench(UC);
    bench.judge.posted_send(A, send(1, 500));
    bench.judge.posted_send(A, send(2, 100));
    bench.receive(0, 512);
    bench.receive(1, 512);
    bench.place(BUFFERS, 0, 0, 256);
    bench.check();
    // The next message takes the same receive; the rest of the first one stays.
    bench.place(BUFFERS, 0, 1, 100);
    let completion = bench.received(0, 1, send(2, 100));
    bench.deliver(completion);
    bench.refill(0, 512);
    bench.check();
    bench.assert_clean();
    // Bytes of a message that was never sent.
    bench.place(BUFFERS, 1024, 7, 64);
    bench.check();
    bench.assert_broken(Rule::Memory);
}

#[test]
fn a_byte_of_an_older_message_completes_the_last_word_of_a_newer_one() {
    const LENGTH: usize = 103;
    let byte_after = |message| message_bytes(message, LENGTH + 1)[LENGTH];
    let older = 0;
    let newer = (1..).find(|&newer| byte_after(newer) == byte_after(older)).expect("one in 128");
    // Message `intruder` was never sent.
    for (intruder, is_right) in [(older, true), (newer + 1, false)] {
        let mut bench = bench(UC);
        bench.judge.posted_send(A, send(1, 500));
        for number in 1..=newer {
            bench.judge.posted_send(A, send(1 + u64::from(number), LENGTH));
        }
        bench.receive(0, 512);
        bench.place(BUFFERS, 0, older, 256);
        bench.memory.0[BUFFERS.0][LENGTH + 1..256].copy_from_slice(&message_bytes(intruder, 256)[LENGTH + 1..]);
        bench.place(BUFFERS, 0, newer, LENGTH);
        let completion = bench.received(0, newer, send(1 + u64::from(newer), LENGTH));
        bench.deliver(completion);
        match is_right {
            true => bench.assert_clean(),
            false => bench.assert_broken(Rule::Memory),
        }
    }
}

#[test]
fn a_write_through_a_revoked_key() {
    let mut bench = bench(RC);
    bench.judge.posted_send(A, write(1, 700, 0));
    bench.place(TARGETS, 0, 0, 256);
    let last = bench.memory.0[TARGETS.0].clone();
    bench.judge.revoked(TARGETS, &last);
    // The same memory, registered again.
    let mut bytes = vec![0; 8192];
    fill_untouched(9, &mut bytes);
    let again = bench.judge.register(bytes.clone());
    bench.memory.0.push(bytes);
    bench.check();
    bench.assert_clean();
    bench.place(again, 256, 0, 256);
    bench.check();
    bench.assert_broken(Rule::Memory);
}

#[test]
fn success_of_a_write_whose_key_was_revoked_too_early() {
    let mut bench = bench(RC);
    bench.judge.posted_send(A, write(1, 700, 0));
    bench.judge.posted_send(A, write(2, 100, 1024));
    bench.place(TARGETS, 0, 0, 700);
    let last = bench.memory.0[TARGETS.0].clone();
    bench.judge.revoked(TARGETS, &last);
    bench.sent(1, CompletionOperation::Write);
    bench.assert_clean();
    bench.sent(2, CompletionOperation::Write);
    bench.assert_broken(Rule::RevokedKey);
}

#[test]
fn a_failure_of_a_revoked_write_is_explained() {
    let mut bench = bench(RC);
    bench.judge.posted_send(A, write(1, 700, 0));
    let last = bench.memory.0[TARGETS.0].clone();
    bench.judge.revoked(TARGETS, &last);
    bench.failed(A, 1, RemoteAccessError, QueuePairState::Error);
    bench.assert_clean();
}

#[test]
fn an_unreliable_write_that_must_be_there_by_now() {
    let mut bench = bench(UC);
    bench.judge.posted_send(A, write(1, 700, 0));
    bench.place(TARGETS, 0, 0, 700);
    bench.judge.must_be_placed(0, "nothing loses it", &bench.memory);
    bench.assert_clean();
    bench.judge.posted_send(A, write(2, 700, 1024));
    bench.place(TARGETS, 1024, 1, PACKET);
    bench.check();
    bench.assert_clean();
    bench.judge.must_be_placed(1, "nothing loses it", &bench.memory);
    bench.assert_broken(Rule::Placement);
}
