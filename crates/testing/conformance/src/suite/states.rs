//! What a queue pair does in each of its states: what it takes, what it receives, what it forgets.

use longhaul_verbs::{
    Access, Capabilities, CompletionStatus, QueuePairAttributes, QueuePairState, SendOperation, Transport,
};

use super::Test;
use super::context::{Context, prefix};
use super::failure::{Failure, Outcome, equal, refusal, status};
use super::memory::{Memory, pattern};
use super::pair::{Form, Pair, Setup};
use super::state_table::{fail_a_send, name, pair_in};
use super::transfer::{CONNECTED, move_message, test};

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in Transport::ALL {
        for state in QueuePairState::ALL {
            let needs = match state {
                QueuePairState::SendQueueError if transport == Transport::ReliableConnection => continue,
                QueuePairState::SendQueueDrained => transport.capability() | Capabilities::SEND_QUEUE_DRAIN,
                _ => transport.capability(),
            };
            let test_name = format!("{}/posting/{}", prefix(transport), name(state));
            tests.push(Test::new(test_name, needs, move |context| posting(context, transport, state)));
        }
        tests.push(test(transport, "states/query-returns-what-was-set", move |context| query(context, transport)));
        tests.push(test(transport, "states/receives-posted-early", move |context| {
            receives_posted_early(context, transport)
        }));
        tests.push(test(transport, "states/ready-to-receive-receives", move |context| {
            ready_to_receive_receives(context, transport)
        }));
        tests
            .push(test(transport, "reset/forgets-receives", move |context| reset_forgets_receives(context, transport)));
        tests.push(test(transport, "reset/reuse", move |context| reuse_after_reset(context, transport)));
        tests.push(test(transport, "reset/after-error", move |context| reuse_after_error(context, transport)));
        let needs = transport.capability() | Capabilities::SEND_QUEUE_DRAIN;
        let test_name = format!("{}/states/drained-sends-nothing-new", prefix(transport));
        tests.push(Test::new(test_name, needs, move |context| drained(context, transport)));
    }
    for transport in [Transport::UnreliableConnection, Transport::UnreliableDatagram] {
        tests.push(test(transport, "states/send-queue-error-recovers", move |context| {
            send_queue_error_recovers(context, transport)
        }));
    }
    for transport in CONNECTED {
        tests.push(test(transport, "states/rights-changed-by-modify", move |context| {
            rights_changed(context, transport)
        }));
    }
    for transport in Transport::ALL {
        tests.push(test(transport, "states/initialized-drops", move |context| {
            not_ready_drops(context, transport, QueuePairState::Initialized)
        }));
        tests.push(test(transport, "states/reset-drops", move |context| {
            not_ready_drops(context, transport, QueuePairState::Reset)
        }));
    }
    tests.push(test(Transport::ReliableConnection, "reset/forgets-sends", reset_forgets_sends));
    tests
}

/// Which queues take requests (IBTA 10.3.1.1 to 10.3.1.7).
fn posting(context: &mut Context<'_>, transport: Transport, state: QueuePairState) -> Outcome {
    let pair = pair_in(context, transport, state)?;
    let end = &pair.ends[0];
    let posted = end.receive(1, &[]);
    match state.takes_receives() {
        true => posted.map_err(|failure| failure.context("receive"))?,
        // Providers of libibverbs often leave this check out.
        false => context.tolerate(refusal("a receive", posted).map(drop))?,
    }
    let target = Memory::target(&pair.ends[1].domain, 100)?;
    pair.ends[1].receive(2, &[target.whole()])?;
    let posted = end.send(3, SendOperation::Send, &[]);
    match state.takes_sends() {
        true => posted.map_err(|failure| failure.context("send"))?,
        false => context.tolerate(refusal("a send", posted).map(drop))?,
    }
    if !state.takes_sends() {
        return context.no_completion("receiver of a refused send", &pair.ends[1].receive_queue);
    }
    let expected = match state {
        QueuePairState::ReadyToSend => CompletionStatus::Success,
        QueuePairState::SendQueueDrained => {
            context.no_completion("sender in SQD", &end.send_queue)?;
            return context.no_completion("receiver from SQD", &pair.ends[1].receive_queue);
        }
        _ => CompletionStatus::FlushedError,
    };
    let sent = context.completion("sender", &end.send_queue)?;
    status("sender", &sent, 3, expected)?;
    if state == QueuePairState::Error {
        let flushed = context.completion("receiver", &end.receive_queue)?;
        status("receiver", &flushed, 1, CompletionStatus::FlushedError)?;
    }
    if expected != CompletionStatus::Success {
        context.no_completion("receiver of a flushed send", &pair.ends[1].receive_queue)?;
    }
    Ok(())
}

fn query(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::unconnected(context, &Setup::new(transport))?;
    let queue_pair = &pair.ends[0].queue_pair;
    equal("state of a new queue pair", Some(QueuePairState::Reset), queue_pair.query()?.state)?;
    pair.advance(0, QueuePairState::ReadyToSend)?;
    let got = queue_pair.query()?;
    equal("state", Some(QueuePairState::ReadyToSend), got.state)?;
    equal("port", Some(pair.path(0).port), got.port)?;
    equal("partition key index", Some(0), got.partition_key_index)?;
    let to_receive = pair.attributes(0, QueuePairState::ReadyToReceive);
    let to_send = pair.attributes(0, QueuePairState::ReadyToSend);
    equal("send PSN", to_send.send_psn, got.send_psn)?;
    if transport == Transport::UnreliableDatagram {
        return equal("queue key", Some(pair.setup.queue_key), got.queue_key);
    }
    equal("access", Some(pair.setup.access), got.access)?;
    equal("path MTU", to_receive.path_mtu, got.path_mtu)?;
    let peer = to_receive.destination_queue_pair;
    equal("destination queue pair", peer, got.destination_queue_pair)?;
    equal("receive PSN", to_receive.receive_psn, got.receive_psn)?;
    let (Some(set), Some(path)) = (to_receive.path, got.path) else {
        return Err(Failure::new("query: expected the path, got none"));
    };
    equal("destination", set.destination, path.destination)?;
    equal("row of the source GID", set.source_gid_index, path.source_gid_index)?;
    equal("hop limit", set.hop_limit, path.hop_limit)?;
    if transport == Transport::ReliableConnection {
        equal("timeout", to_send.timeout, got.timeout)?;
        equal("retry count", to_send.retry_count, got.retry_count)?;
        let retry = to_send.receiver_not_ready_retry;
        equal("receiver not ready retry", retry, got.receiver_not_ready_retry)?;
        let timer = to_receive.min_receiver_not_ready_timer;
        equal("receiver not ready timer", timer, got.min_receiver_not_ready_timer)?;
    }
    Ok(())
}

/// A receive posted in INIT is there when the first message comes.
fn receives_posted_early(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::unconnected(context, &Setup::new(transport))?;
    let [sender, receiver] = &pair.ends;
    pair.advance(1, QueuePairState::Initialized)?;
    let header = receiver.header_bytes();
    let mut target = Memory::target(&receiver.domain, header + 10)?;
    receiver.receive(1, &[target.whole()])?;
    context.no_completion("receiver in INIT", &receiver.receive_queue)?;
    pair.advance(1, QueuePairState::ReadyToSend)?;
    pair.advance(0, QueuePairState::ReadyToSend)?;
    let source = Memory::source(&sender.domain, &pattern(1, 10))?;
    sender.send(2, SendOperation::Send, &[source.whole()])?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    Form::Send.check_received(&received, (sender, receiver), 1, 10, 0)?;
    target.accept(0..header);
    target.expect(header, &source.bytes(0..10));
    target.verify("target memory")
}

fn ready_to_receive_receives(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::unconnected(context, &Setup::new(transport))?;
    pair.advance(1, QueuePairState::ReadyToReceive)?;
    pair.advance(0, QueuePairState::ReadyToSend)?;
    for form in Form::SENDS {
        move_message(context, &pair, 0, form, &[100], &[100])?;
    }
    pair.ends[1].is_in(QueuePairState::ReadyToReceive)?;
    pair.advance(1, QueuePairState::ReadyToSend)?;
    move_message(context, &pair, 1, Form::Send, &[100], &[100])
}

/// RESET forgets what is posted, without completions (IBTA 10.3.1.1).
fn reset_forgets_receives(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let receiver = &pair.ends[1];
    let target = Memory::target(&receiver.domain, 100)?;
    for id in 0..4 {
        receiver.receive(id, &[target.whole()])?;
    }
    receiver.go(QueuePairState::Reset)?;
    context.no_completion("queue pair in RESET", &receiver.receive_queue)?;
    pair.reconnect()?;
    // The next message takes a receive posted now, not one of those before.
    move_message(context, &pair, 0, Form::Send, &[50], &[50])?;
    target.verify("memory of forgotten receives")
}

/// A send that waits for the peer's receive is forgotten too.
fn reset_forgets_sends(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, Transport::ReliableConnection)?;
    let sender = &pair.ends[0];
    for id in 0..4 {
        sender.send(id, SendOperation::Send, &[])?;
    }
    context.no_completion("sender to a peer without receives", &sender.send_queue)?;
    sender.go(QueuePairState::Reset)?;
    context.no_completion("queue pair in RESET", &sender.send_queue)?;
    pair.reconnect()?;
    move_message(context, &pair, 0, Form::Send, &[50], &[50])?;
    context.no_completion("sender, of forgotten requests", &sender.send_queue)
}

fn reuse_after_reset(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    for _ in 0..3 {
        for from in [0, 1] {
            move_message(context, &pair, from, Form::Send, &[200], &[200])?;
        }
        pair.reconnect()?;
    }
    Ok(())
}

fn reuse_after_error(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    move_message(context, &pair, 0, Form::Send, &[200], &[200])?;
    for end in &pair.ends {
        end.go(QueuePairState::Error)?;
    }
    context.rest();
    pair.reconnect()?;
    move_message(context, &pair, 0, Form::Send, &[200], &[200])
}

/// In SQD new requests wait; back in RTS they are sent (IBTA 10.3.1.5). Receiving goes on.
fn drained(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = pair_in(context, transport, QueuePairState::SendQueueDrained)?;
    let [sender, receiver] = &pair.ends;
    let target = Memory::target(&receiver.domain, 100)?;
    receiver.receive(1, &[target.whole()])?;
    sender.send(2, SendOperation::SendWithImmediate(5), &[])?;
    context.no_completion("sender in SQD", &sender.send_queue)?;
    move_message(context, &pair, 1, Form::Send, &[30], &[30])?;
    sender.go(QueuePairState::ReadyToSend)?;
    let sent = context.completion("sender, back in RTS", &sender.send_queue)?;
    status("sender, back in RTS", &sent, 2, CompletionStatus::Success)?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    Form::SendWithImmediate.check_received(&received, (sender, receiver), 1, 0, 5)
}

/// A failed send stops the send queue of UC and UD, and only that: receiving goes on, later sends are flushed, and
/// RTS brings it back (IBTA 10.3.1.6).
fn send_queue_error_recovers(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = pair_in(context, transport, QueuePairState::SendQueueError)?;
    let end = &pair.ends[0];
    move_message(context, &pair, 1, Form::Send, &[30], &[30]).map_err(|failure| failure.context("receiving in SQE"))?;
    end.send(4, SendOperation::Send, &[])?;
    let flushed = context.completion("sender in SQE", &end.send_queue)?;
    status("sender in SQE", &flushed, 4, CompletionStatus::FlushedError)?;
    end.go(QueuePairState::ReadyToSend)?;
    move_message(context, &pair, 0, Form::Send, &[30], &[30]).map_err(|failure| failure.context("back in RTS"))?;
    fail_a_send(context, &pair)?;
    end.is_in(QueuePairState::SendQueueError)
}

/// What the peer may do can be changed in RTS (IBTA 11.2.5.2).
fn rights_changed(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    move_message(context, &pair, 0, Form::Write, &[100], &[])?;
    let rights = |access| QueuePairAttributes {
        access: Some(access),
        ..QueuePairAttributes::to_state(QueuePairState::ReadyToSend)
    };
    receiver.queue_pair.modify(&rights(Access::empty()))?;
    equal("access by query", Some(Access::empty()), receiver.queue_pair.query()?.access)?;
    let source = Memory::source(&sender.domain, &[0xaa; 50])?;
    let target = Memory::target(&receiver.domain, 50)?;
    sender.send(1, SendOperation::Write(target.remote(0)), &[source.whole()])?;
    context.unchanged("memory that the peer may not write", &target)?;
    let sent = context.completion("sender", &sender.send_queue)?;
    match transport {
        Transport::ReliableConnection => {
            equal("success of a WRITE without the right", false, sent.is_success())?;
            pair.reconnect()?;
        }
        _ => receiver.queue_pair.modify(&rights(pair.setup.access))?,
    }
    move_message(context, &pair, 0, Form::Write, &[100], &[])
}

/// Before RTR nothing is received (IBTA 10.3.1.1, 10.3.1.2).
fn not_ready_drops(context: &mut Context<'_>, transport: Transport, state: QueuePairState) -> Outcome {
    let pair = Pair::unconnected(context, &Setup::hasty(transport))?;
    let [sender, receiver] = &pair.ends;
    let target = Memory::target(&receiver.domain, receiver.header_bytes() + 50)?;
    if state == QueuePairState::Initialized {
        pair.advance(1, state)?;
        receiver.receive(1, &[target.whole()])?;
    }
    pair.advance(0, QueuePairState::ReadyToSend)?;
    let source = Memory::source(&sender.domain, &[0xaa; 50])?;
    let form = match transport {
        Transport::UnreliableDatagram => Form::SendWithImmediate,
        _ => Form::WriteWithImmediate,
    };
    sender.send(2, form.operation(target.remote(0), 1), &[source.whole()])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    let expected = match transport {
        Transport::ReliableConnection => CompletionStatus::RetryExceededError,
        _ => CompletionStatus::Success,
    };
    status("sender", &sent, 2, expected)?;
    context.no_completion("receiver that is not ready", &receiver.receive_queue)?;
    target.verify("target memory")?;
    receiver.is_in(state)
}
