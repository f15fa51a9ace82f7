//! The error state flushes everything that is posted, in order, and everything that is posted later
//! (IBTA 10.3.1.7).

use longhaul_verbs::{
    CompletionStatus, QueuePairState, ReceiveRequest, ScatterGatherEntry, SendFlags, SendOperation, Transport,
};

use super::Test;
use super::context::Context;
use super::failure::{Outcome, equal, status, status_among};
use super::memory::Memory;
use super::pair::{End, Pair, Setup};
use super::transfer::{empty_receives, send_with_flags, test};

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in Transport::ALL {
        tests.push(test(transport, "flush/receives", move |context| flush_receives(context, transport)));
        tests.push(test(transport, "flush/posted-in-error", move |context| posted_in_error(context, transport)));
        tests
            .push(test(transport, "flush/after-a-failed-send", move |context| after_a_failed_send(context, transport)));
        tests.push(test(transport, "flush/peer-does-not-notice", move |context| {
            peer_does_not_notice(context, transport)
        }));
        tests.push(test(transport, "flush/destroyed-leaves-nothing", move |context| {
            destroyed_leaves_nothing(context, transport)
        }));
    }
    tests.push(test(Transport::ReliableConnection, "flush/sends", flush_sends));
    tests.push(test(Transport::ReliableConnection, "flush/unsignaled-sends", flush_unsignaled_sends));
    tests.push(test(Transport::ReliableConnection, "flush/nothing-executed-later", nothing_executed_later));
    tests
}

/// Takes `count` completions, all flushed, with ids counting from `first`.
pub(super) fn all_flushed(
    context: &mut Context<'_>,
    what: &str,
    queue: &longhaul_verbs::CompletionQueue,
    first: u64,
    count: usize,
) -> Outcome {
    for (id, flushed) in (first..).zip(context.completions(what, queue, count)?) {
        status(what, &flushed, id, CompletionStatus::FlushedError)?;
    }
    Ok(())
}

fn flush_receives(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let end = &pair.ends[1];
    let target = Memory::target(&end.domain, 100)?;
    for id in 0..10 {
        end.receive(id, &[target.whole()])?;
    }
    context.no_completion("receiver", &end.receive_queue)?;
    end.go(QueuePairState::Error)?;
    let flushed = context.completions("receives flushed", &end.receive_queue, 10)?;
    for (id, flushed) in (0..).zip(flushed) {
        status("receives flushed", &flushed, id, CompletionStatus::FlushedError)?;
        equal("queue pair of a flushed receive", end.number(), flushed.queue_pair)?;
    }
    target.verify("memory of flushed receives")?;
    context.no_completion("receiver, after the flush", &end.receive_queue)
}

/// Sends that wait for the peer's receive are flushed when their queue pair goes to ERR.
fn flush_sends(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, Transport::ReliableConnection)?;
    let sender = &pair.ends[0];
    for id in 0..10 {
        sender.send(id, SendOperation::Send, &[])?;
    }
    context.no_completion("sender to a peer without receives", &sender.send_queue)?;
    sender.go(QueuePairState::Error)?;
    all_flushed(context, "sends flushed", &sender.send_queue, 0, 10)?;
    context.no_completion("sender, after the flush", &sender.send_queue)
}

/// A flushed request makes a completion, signalled or not.
fn flush_unsignaled_sends(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, Transport::ReliableConnection)?;
    let sender = &pair.ends[0];
    for id in 0..5 {
        send_with_flags(sender, id, SendOperation::Send, &[], SendFlags::empty())?;
    }
    sender.go(QueuePairState::Error)?;
    all_flushed(context, "unsignalled sends flushed", &sender.send_queue, 0, 5)
}

fn posted_in_error(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let end = &pair.ends[0];
    end.go(QueuePairState::Error)?;
    for id in 0..5 {
        end.receive(id, &[])?;
        end.send(10 + id, SendOperation::Send, &[])?;
    }
    all_flushed(context, "receives posted in ERR", &end.receive_queue, 0, 5)?;
    all_flushed(context, "sends posted in ERR", &end.send_queue, 10, 5)?;
    let batch: Vec<_> = (20..25).map(|id| ReceiveRequest { id, local: &[] }).collect();
    end.queue_pair.post_receive(&batch)?;
    all_flushed(context, "batch posted in ERR", &end.receive_queue, 20, 5)?;
    end.is_in(QueuePairState::Error)
}

/// The failed request has its own status, those behind it are flushed; RC flushes its receives as well, UC and UD
/// keep them.
fn after_a_failed_send(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let (ours, theirs) = (Memory::target(&sender.domain, 100)?, Memory::target(&receiver.domain, 100)?);
    for id in 0..4 {
        sender.receive(id, &[ours.whole()])?;
        receiver.receive(id, &[theirs.whole()])?;
    }
    let nowhere = [ScatterGatherEntry { address: 0x1000, length: 16, local_key: 0 }];
    let batch = [
        sender.request(0, SendOperation::Send, &[]),
        sender.request(1, SendOperation::Send, &nowhere),
        sender.request(2, SendOperation::Send, &[]),
        sender.request(3, SendOperation::Send, &[]),
    ];
    sender.queue_pair.post_send(&batch)?;
    let sent = context.completions("sender", &sender.send_queue, 4)?;
    // A device may find the bad request before the first one has been acknowledged.
    let first = match transport {
        Transport::ReliableConnection => vec![CompletionStatus::Success, CompletionStatus::FlushedError],
        _ => vec![CompletionStatus::Success],
    };
    status_among("request before the bad one", &sent[0], 0, &first)?;
    context.failed("bad request", &sent[1], 1, &[CompletionStatus::LocalProtectionError])?;
    status("request behind the bad one", &sent[2], 2, CompletionStatus::FlushedError)?;
    status("request behind the bad one", &sent[3], 3, CompletionStatus::FlushedError)?;
    match transport {
        Transport::ReliableConnection => {
            sender.is_in(QueuePairState::Error)?;
            all_flushed(context, "sender's receives", &sender.receive_queue, 0, 4)?;
        }
        _ if sender.queue_pair.state() == QueuePairState::Error => {
            context.tolerate(sender.is_in(QueuePairState::SendQueueError))?;
        }
        _ => {
            sender.is_in(QueuePairState::SendQueueError)?;
            context.no_completion("receives in SQE", &sender.receive_queue)?;
        }
    }
    context.rest();
    let arrived = received(receiver)?;
    equal("messages that arrived, at most one", true, arrived <= 1)
}

/// Takes all completions of the receive queue; their number.
fn received(end: &End) -> Outcome<usize> {
    let mut count = 0;
    while let Some(completion) = end.receive_queue.poll_one()? {
        status("receiver", &completion, count as u64, CompletionStatus::Success)?;
        count += 1;
    }
    Ok(count)
}

/// Going to ERR sends nothing: the peer is as it was.
fn peer_does_not_notice(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [ours, peer] = &pair.ends;
    let target = Memory::target(&peer.domain, 100)?;
    peer.receive(1, &[target.whole()])?;
    ours.go(QueuePairState::Error)?;
    context.no_completion("peer", &peer.receive_queue)?;
    peer.is_in(QueuePairState::ReadyToSend)
}

/// A destroyed queue pair's requests are forgotten, not flushed.
fn destroyed_leaves_nothing(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let end = &pair.ends[1];
    empty_receives(end, 5)?;
    end.queue_pair.destroy()?;
    context.no_completion("destroyed queue pair", &end.receive_queue)
}

/// A flushed send is not executed later, when the peer has become ready.
fn nothing_executed_later(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &Setup::new(Transport::ReliableConnection))?;
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &[0x77; 20])?;
    let target = Memory::target(&receiver.domain, 20)?;
    sender.send(0, SendOperation::Send, &[source.whole()])?;
    context.no_completion("sender to a peer without receives", &sender.send_queue)?;
    sender.go(QueuePairState::Error)?;
    all_flushed(context, "send flushed", &sender.send_queue, 0, 1)?;
    // A try that had left before the flush arrives, and finds no receive either.
    context.rest();
    receiver.receive(1, &[target.whole()])?;
    context.no_completion("receiver of a flushed send", &receiver.receive_queue)?;
    target.verify("target memory")
}
