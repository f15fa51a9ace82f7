//! Which completions come, in which order, and what they say.

use longhaul_verbs::CompletionStatus::*;
use longhaul_verbs::Transport::{ReliableConnection as RC, UnreliableConnection as UC, UnreliableDatagram as UD};
use longhaul_verbs::{CompletionFlags, CompletionOperation, QueuePairNumber, QueuePairState, WorkCompletion};

use super::*;

#[test]
fn a_completion_twice() {
    let mut bench = bench(UC);
    bench.judge.posted_send(A, send(1, 300));
    bench.sent(1, CompletionOperation::Send);
    bench.sent(1, CompletionOperation::Send);
    bench.assert_broken(Rule::ExactlyOnce);
}

#[test]
fn completions_out_of_order() {
    let mut bench = bench(UC);
    bench.judge.posted_send(A, send(1, 300));
    bench.judge.posted_send(A, send(2, 300));
    bench.sent(2, CompletionOperation::Send);
    bench.assert_broken(Rule::Order);
}

#[test]
fn a_completion_in_the_wrong_queue() {
    let mut bench = bench(UC);
    bench.judge.posted_send(A, send(1, 300));
    bench.observe(Observation {
        end: A,
        completion_queue: 1,
        completion: WorkCompletion { id: 1, ..Default::default() },
        state: QueuePairState::ReadyToSend,
        peer_state: QueuePairState::ReadyToSend,
    });
    bench.assert_broken(Rule::Order);
}

#[test]
fn a_failure_without_a_reason() {
    for status in [
        RemoteAccessError,
        RemoteInvalidRequestError,
        RemoteOperationError,
        RetryExceededError,
        LocalProtectionError,
        GeneralError,
        ReceiverNotReadyRetryExceededError,
    ] {
        let mut bench = bench(RC);
        bench.receive(0, 512);
        bench.judge.posted_send(A, send(1, 300));
        bench.failed(A, 1, status, QueuePairState::Error);
        bench.assert_broken(Rule::Status);
    }
}

#[test]
fn failures_with_a_reason() {
    let lossy = NetworkFacts { loses: true, ..Default::default() };
    let mut lost = bench_on(RC, lossy);
    lost.judge.posted_send(A, send(1, 300));
    lost.wait(7 * TIMEOUT);
    lost.failed(A, 1, RetryExceededError, QueuePairState::Error);
    lost.assert_clean();

    let mut not_ready = bench(RC);
    not_ready.judge.posted_send(A, send(1, 300));
    not_ready.receive(0, 512);
    not_ready.wait(6 * NOT_READY_DELAY);
    not_ready.failed(A, 1, ReceiverNotReadyRetryExceededError, QueuePairState::Error);
    not_ready.assert_clean();

    let mut too_long = bench(RC);
    too_long.receive(0, 200);
    too_long.judge.posted_send(A, send(1, 300));
    too_long.failed(B, RECEIVE, LocalLengthError, QueuePairState::Error);
    too_long.failed(A, 1, RemoteInvalidRequestError, QueuePairState::Error);
    too_long.assert_clean();
}

#[test]
fn success_of_a_mistake() {
    let mut bench = bench(RC);
    let wrong = SendFacts { target: None, mistake: Some(Mistake::RemoteAccess), ..write(1, 700, 0) };
    bench.judge.posted_send(A, wrong);
    bench.sent(1, CompletionOperation::Write);
    bench.assert_broken(Rule::Status);
}

#[test]
fn a_flush_without_a_reason() {
    let mut sends = bench(RC);
    sends.judge.posted_send(A, send(1, 300));
    sends.failed(A, 1, FlushedError, QueuePairState::Error);
    sends.assert_broken(Rule::Flush);

    let mut receives = bench(UD);
    receives.receive(0, 512);
    receives.failed(B, RECEIVE, FlushedError, QueuePairState::Error);
    receives.assert_broken(Rule::Flush);
}

#[test]
fn a_flush_in_the_wrong_state() {
    let mut bench = bench(RC);
    bench.judge.posted_send(A, send(1, 300));
    bench.judge.moved_to_error(A);
    bench.failed(A, 1, FlushedError, QueuePairState::ReadyToSend);
    bench.assert_broken(Rule::Flush);
}

#[test]
fn success_after_a_failure() {
    let mut bench = bench(UC);
    let wrong = SendFacts { mistake: Some(Mistake::LocalKey), ..send(1, 300) };
    bench.judge.posted_send(A, wrong);
    bench.judge.posted_send(A, send(2, 300));
    bench.failed(A, 1, LocalProtectionError, QueuePairState::SendQueueError);
    bench.assert_clean();
    bench.sent(2, CompletionOperation::Send);
    bench.assert_broken(Rule::Flush);
}

#[test]
fn a_failed_send_of_uc_does_not_flush_receives() {
    let mut bench = bench(UC);
    let wrong = SendFacts { mistake: Some(Mistake::LocalKey), ..send(1, 300) };
    bench.judge.posted_send(A, wrong);
    let receive =
        PostedReceive { id: RECEIVE, pieces: Vec::new(), null_bytes: 0, is_broken: false, posting: 0, index: 0 };
    bench.judge.posted_receive(A, receive);
    bench.failed(A, 1, LocalProtectionError, QueuePairState::SendQueueError);
    bench.failed(A, RECEIVE, FlushedError, QueuePairState::Error);
    bench.assert_broken(Rule::Flush);
}

#[test]
fn receives_out_of_order_and_twice() {
    let mut bench = bench(RC);
    bench.receive(0, 512);
    bench.receive(1, 512);
    let facts = send(1, 300);
    bench.judge.posted_send(A, facts);
    bench.place(BUFFERS, 1024, 0, 300);
    let completion = bench.received(1, 0, facts);
    bench.deliver(completion);
    bench.assert_broken(Rule::Order);
}

#[test]
fn a_completion_that_does_not_fit_its_message() {
    let facts = SendFacts { has_immediate: true, ..send(1, 300) };
    let changes: [fn(&mut WorkCompletion); 4] = [
        |completion| completion.byte_count -= 1,
        |completion| completion.immediate_or_key ^= 1,
        |completion| completion.operation = CompletionOperation::ReceiveWriteWithImmediate,
        |completion| completion.flags |= CompletionFlags::GLOBAL_ROUTE_HEADER,
    ];
    for change in changes {
        let mut bench = bench(RC);
        bench.receive(0, 512);
        bench.judge.posted_send(A, facts);
        bench.place(BUFFERS, 0, 0, 300);
        let mut completion = bench.received(0, 0, facts);
        change(&mut completion);
        bench.deliver(completion);
        bench.assert_broken(Rule::Receive);
    }
}

#[test]
fn a_delivery_with_wrong_or_missing_bytes() {
    for transport in [RC, UC, UD] {
        let header = if transport == UD { 40 } else { 0 };
        let facts = SendFacts { has_immediate: true, ..send(1, 200) };
        let mut bench = bench(transport);
        bench.receive(0, 512);
        bench.judge.posted_send(A, facts);
        bench.place(BUFFERS, header, 0, 199);
        let completion = bench.received(0, 0, facts);
        bench.deliver(completion);
        bench.assert_broken(Rule::Receive);
    }
}

#[test]
fn a_delivery_of_nothing_that_was_sent() {
    for transport in [RC, UC, UD] {
        let mut bench = bench(transport);
        bench.receive(0, 512);
        let facts = send(1, 200);
        let completion = bench.received(0, 0, facts);
        bench.deliver(completion);
        bench.assert_broken(Rule::Receive);
    }
}

#[test]
fn a_duplicate_where_the_network_makes_none() {
    for (duplicates, transport) in [(false, UC), (false, UD), (true, UC), (true, UD)] {
        let network = NetworkFacts { duplicates, ..Default::default() };
        let mut bench = bench_on(transport, network);
        let facts = send(1, 200);
        bench.judge.posted_send(A, facts);
        let header = if transport == UD { 40 } else { 0 };
        for slot in 0..2 {
            bench.receive(slot, 512);
            bench.place(BUFFERS, 1024 * slot + header, 0, 200);
            let completion = bench.received(slot, 0, facts);
            bench.deliver(completion);
        }
        match duplicates {
            true => bench.assert_clean(),
            false => bench.assert_broken(Rule::Receive),
        }
    }
}

#[test]
fn a_datagram_from_somebody_else_or_with_the_wrong_key() {
    let mut impostor = bench(UD);
    let facts = send(1, 200);
    impostor.judge.posted_send(A, facts);
    impostor.receive(0, 512);
    impostor.place(BUFFERS, 40, 0, 200);
    let mut completion = impostor.received(0, 0, facts);
    completion.source_queue_pair = QueuePairNumber::new(999);
    impostor.deliver(completion);
    impostor.assert_broken(Rule::Receive);

    let mut wrong_key = bench(UD);
    let facts = SendFacts { mistake: Some(Mistake::QueueKey), ..facts };
    wrong_key.judge.posted_send(A, facts);
    wrong_key.receive(0, 512);
    wrong_key.place(BUFFERS, 40, 0, 200);
    let completion = wrong_key.received(0, 0, facts);
    wrong_key.deliver(completion);
    wrong_key.assert_broken(Rule::Receive);
}

#[test]
fn unreliable_messages_swapped_on_a_network_that_keeps_order() {
    let mut bench = bench(UC);
    for message in 0..2 {
        bench.judge.posted_send(A, send(message, 200));
        bench.receive(message as usize, 512);
    }
    for (slot, message) in [(0, 1), (1, 0)] {
        bench.place(BUFFERS, 1024 * slot, message, 200);
        let completion = bench.received(slot, message, send(0, 200));
        bench.deliver(completion);
    }
    bench.assert_broken(Rule::Order);
}

#[test]
fn what_a_reset_forgets_is_not_heard_of_again() {
    let mut bench = bench(RC);
    bench.judge.posted_send(A, send(1, 300));
    bench.receive(0, 512);
    bench.judge.reset(&[A, B], &bench.memory);
    bench.assert_clean();
    bench.sent(1, CompletionOperation::Send);
    bench.assert_broken(Rule::ExactlyOnce);
}

#[test]
fn a_peer_that_refuses_and_goes_on() {
    let mut bench = bench(RC);
    let wrong = SendFacts { target: None, mistake: Some(Mistake::RemoteAccess), ..write(1, 700, 0) };
    bench.judge.posted_send(A, wrong);
    bench.observe(Observation {
        end: A,
        completion_queue: 0,
        completion: WorkCompletion { id: 1, status: RemoteAccessError, ..Default::default() },
        state: QueuePairState::Error,
        peer_state: QueuePairState::ReadyToSend,
    });
    bench.assert_broken(Rule::Status);
}

/// A burst of three writes with immediate; only its last is signalled.
fn burst_of_three(bench: &mut Bench) {
    for index in 0..3 {
        let facts = SendFacts { has_immediate: true, is_signaled: index == 2, ..write(1, 200, 256 * index) };
        bench.judge.posted_send(A, facts);
    }
}

#[test]
fn a_burst_that_fails_without_a_reason() {
    for transport in [RC, UC] {
        for status in [LocalProtectionError, RetryExceededError, RemoteAccessError, GeneralError] {
            let mut bench = bench(transport);
            (0..3).for_each(|slot| bench.receive(slot, 512));
            burst_of_three(&mut bench);
            bench.failed(A, 1, status, QueuePairState::Error);
            bench.assert_broken(Rule::Status);
        }
    }
}

#[test]
fn a_burst_that_is_flushed_without_a_reason_or_in_the_wrong_state() {
    let mut no_reason = bench(RC);
    burst_of_three(&mut no_reason);
    no_reason.failed(A, 1, FlushedError, QueuePairState::Error);
    no_reason.assert_broken(Rule::Flush);

    let mut wrong_state = bench(RC);
    burst_of_three(&mut wrong_state);
    wrong_state.judge.moved_to_error(A);
    wrong_state.failed(A, 1, FlushedError, QueuePairState::ReadyToSend);
    wrong_state.assert_broken(Rule::Flush);
}

#[test]
fn a_burst_that_fails_with_a_reason() {
    // The last two of three have no receive in time.
    let mut bench = bench(RC);
    bench.receive(0, 512);
    burst_of_three(&mut bench);
    bench.wait(6 * NOT_READY_DELAY);
    bench.failed(A, 1, ReceiverNotReadyRetryExceededError, QueuePairState::Error);
    bench.failed(A, 1, FlushedError, QueuePairState::Error);
    bench.assert_clean();
}

#[test]
fn a_burst_that_is_refused_by_a_peer_that_goes_on() {
    let mut bench = bench(RC);
    burst_of_three(&mut bench);
    let bytes = bench.memory.0[TARGETS.0].clone();
    bench.judge.revoked(TARGETS, &bytes);
    bench.observe(Observation {
        end: A,
        completion_queue: 0,
        completion: WorkCompletion { id: 1, status: RemoteAccessError, ..Default::default() },
        state: QueuePairState::Error,
        peer_state: QueuePairState::ReadyToSend,
    });
    bench.assert_broken(Rule::Status);
}

#[test]
fn giving_up_too_soon() {
    let lossy = NetworkFacts { loses: true, ..Default::default() };
    let cases = [
        (lossy, RetryExceededError, 7 * TIMEOUT),
        (NetworkFacts { is_slow: true, ..lossy }, RetryExceededError, 3 * TIMEOUT),
        (NetworkFacts::default(), ReceiverNotReadyRetryExceededError, 6 * NOT_READY_DELAY),
    ];
    for (network, status, patience) in cases {
        for (is_patient, posted) in [(true, Duration::ZERO), (false, Duration::from_nanos(1))] {
            let mut bench = bench_on(RC, network);
            bench.wait(posted);
            bench.judge.posted_send(A, send(1, 300));
            bench.wait(patience);
            bench.failed(A, 1, status, QueuePairState::Error);
            match is_patient {
                true => bench.assert_clean(),
                false => bench.assert_broken(Rule::Status),
            }
        }
    }
}

#[test]
fn a_datagram_without_its_route_header() {
    let mut bench = bench(UD);
    let facts = send(1, 200);
    bench.judge.posted_send(A, facts);
    bench.receive(0, 512);
    bench.place(BUFFERS, 40, 0, 200);
    let completion = bench.received(0, 0, facts);
    bench.deliver_as_is(completion);
    bench.assert_broken(Rule::Receive);
}
