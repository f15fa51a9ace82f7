//! Errors of a reliable connection that the peer finds, or that the peer's silence means: access, length, receiver
//! not ready, retries exceeded (IBTA 9.7.5.2, 9.9.2, 9.9.3, 11.6.2).

use longhaul_time::Duration;
use longhaul_verbs::{
    Access, CompletionStatus, QueuePairAttributes, QueuePairNumber, QueuePairState, RemoteMemory, SendOperation,
    Transport,
};

use super::Test;
use super::context::Context;
use super::failure::{Outcome, ensure, equal, status, status_among};
use super::flush::all_flushed;
use super::memory::{Memory, pattern};
use super::pair::{Form, HASTY_RETRIES, HASTY_TIMEOUT, NOT_READY_PAUSE, Pair, Setup, acknowledge_timeout};
use super::transfer::{empty_receives, move_message, test};

const RC: Transport = Transport::ReliableConnection;

/// How a WRITE of 200 bytes names memory that it must not reach. Given 300 good bytes at the peer.
pub(super) type Fault = (&'static str, fn(&Memory) -> RemoteMemory);

pub(super) const FAULTS: [Fault; 5] = [
    ("unknown-key", |memory| RemoteMemory { key: memory.remote_key() ^ 0x5a5a_5a00, ..memory.remote(0) }),
    ("neighbouring-key", |memory| RemoteMemory { key: memory.remote_key() ^ 1, ..memory.remote(0) }),
    ("before-the-region", |memory| RemoteMemory { address: memory.region_start() - 1, ..memory.remote(0) }),
    ("beyond-the-region", |memory| RemoteMemory { address: memory.region_end() - 199, ..memory.remote(0) }),
    ("wrapping-address", |memory| RemoteMemory { address: u64::MAX - 99, ..memory.remote(0) }),
];

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for (case, fault) in FAULTS {
        for form in [Form::Write, Form::WriteWithImmediate] {
            tests.push(test(RC, &format!("remote-access/{}-{case}", form.name()), move |context| {
                let pair = Pair::of(context, RC)?;
                let target = Memory::target(&pair.ends[1].domain, 300)?;
                access_is_refused(context, &pair, form, fault(&target), &target, 200)
            }));
        }
    }
    tests.push(test(RC, "remote-access/region-without-remote-write", without_right_on_region));
    tests.push(test(RC, "remote-access/queue-pair-without-remote-write", without_right_on_queue_pair));
    tests.push(test(RC, "remote-access/other-domain", other_domain));
    tests.push(test(RC, "remote-access/deregistered", deregistered));
    tests.push(test(RC, "remote-access/last-packet-beyond-the-region", last_packet_beyond));
    tests.push(test(RC, "remote-access/no-bytes-need-no-key", no_bytes_need_no_key));
    tests.push(test(RC, "length/receive-one-byte-too-small", |context| receive_too_small(context, 100, 99)));
    tests.push(test(RC, "length/receive-without-memory", |context| receive_too_small(context, 1, 0)));
    tests.push(test(RC, "length/second-packet-does-not-fit", |context| {
        let mtu = context.mtu();
        receive_too_small(context, 2 * mtu, mtu + 5)
    }));
    tests.push(test(RC, "receiver-not-ready/retries-exceeded-at-once", |context| receiver_not_ready(context, 0)));
    tests.push(test(RC, "receiver-not-ready/retries-exceeded", |context| receiver_not_ready(context, 2)));
    tests.push(test(RC, "receiver-not-ready/recovers", receiver_becomes_ready));
    tests.push(test(RC, "receiver-not-ready/write-needs-no-receive", write_needs_no_receive));
    tests.push(test(RC, "retry-exceeded/peer-never-existed", peer_never_existed));
    tests.push(test(RC, "retry-exceeded/peer-destroyed", peer_destroyed));
    tests.push(test(RC, "retry-exceeded/peer-in-error", peer_in_error));
    tests.push(test(RC, "retry-exceeded/later-requests-are-flushed", later_requests_are_flushed));
    tests.push(test(RC, "errors/other-connections-live-on", other_connections_live_on));
    tests
}

/// The sender is notified, nothing is written, both queue pairs are in ERR, and everything else posted is flushed.
pub(super) fn access_is_refused(
    context: &mut Context<'_>,
    pair: &Pair,
    form: Form,
    remote: RemoteMemory,
    target: &Memory,
    length: usize,
) -> Outcome {
    refused_with(context, pair, form, remote, target, length, &[CompletionStatus::RemoteAccessError])
}

fn refused_with(
    context: &mut Context<'_>,
    pair: &Pair,
    form: Form,
    remote: RemoteMemory,
    target: &Memory,
    length: usize,
    allowed: &[CompletionStatus],
) -> Outcome {
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &pattern(9, length))?;
    empty_receives(receiver, 3)?;
    empty_receives(sender, 2)?;
    sender.send(1, form.operation(remote, 0), &[source.whole()])?;
    sender.send(2, SendOperation::Send, &[])?;
    let sent = context.completions("sender", &sender.send_queue, 2)?;
    status_among("sender", &sent[0], 1, allowed)?;
    equal("queue pair of the failed request", sender.number(), sent[0].queue_pair)?;
    status("request behind the failed one", &sent[1], 2, CompletionStatus::FlushedError)?;
    sender.is_in(QueuePairState::Error)?;
    all_flushed(context, "sender's receives", &sender.receive_queue, 0, 2)?;
    context.wait_for(|| receiver.is_in(QueuePairState::Error))?;
    // A WRITE with immediate may use up a receive for its failure.
    let received = context.completions("receiver", &receiver.receive_queue, 3)?;
    for (id, completion) in (0..).zip(received) {
        let own = [CompletionStatus::FlushedError, CompletionStatus::RemoteAccessError];
        let among = if id == 0 && form.consumes_receive() { &own[..] } else { &own[..1] };
        status_among("receiver", &completion, id, among)?;
    }
    context.unchanged("memory that the peer may not write", target)
}

fn without_right_on_region(context: &mut Context<'_>) -> Outcome {
    for rights in [Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::REMOTE_READ, Access::empty()] {
        let pair = Pair::of(context, RC)?;
        let target = Memory::new(&pair.ends[1].domain, 300, rights)?;
        access_is_refused(context, &pair, Form::Write, target.remote(0), &target, 200)
            .map_err(|failure| failure.context(format_args!("{rights:?}")))?;
    }
    Ok(())
}

/// The queue pair's own rights come before the region's. The specification's class for this is a matter of reading:
/// Soft-RoCE calls the request invalid, others call it an access error.
fn without_right_on_queue_pair(context: &mut Context<'_>) -> Outcome {
    let setup = Setup { access: Access::empty(), ..Setup::new(RC) };
    let pair = Pair::new(context, &setup)?;
    let target = Memory::target(&pair.ends[1].domain, 300)?;
    let allowed = [CompletionStatus::RemoteAccessError, CompletionStatus::RemoteInvalidRequestError];
    refused_with(context, &pair, Form::Write, target.remote(0), &target, 200, &allowed)
}

/// A key counts only within its protection domain (IBTA 10.2.3).
fn other_domain(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, RC)?;
    let other = context.device(1).allocate_protection_domain()?;
    let target = Memory::target(&other, 300)?;
    access_is_refused(context, &pair, Form::Write, target.remote(0), &target, 200)
}

fn deregistered(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, RC)?;
    let gone = Memory::target(&pair.ends[1].domain, 300)?;
    let remote = gone.remote(0);
    let before = gone.bytes(0..300);
    let after = gone.into_bytes()?;
    let bystander = Memory::target(&pair.ends[1].domain, 300)?;
    access_is_refused(context, &pair, Form::Write, remote, &bystander, 200)?;
    equal("bytes taken back", true, after.windows(300).any(|window| window == before))
}

/// The length in the first packet's header counts: a message that would leave the region with its last byte is
/// refused before its first byte is written (IBTA 9.7.4.1).
fn last_packet_beyond(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, RC)?;
    let mtu = context.mtu();
    let length = 4 * mtu;
    let target = Memory::target(&pair.ends[1].domain, length)?;
    let remote = RemoteMemory { address: target.region_end() - length as u64 + 1, ..target.remote(0) };
    access_is_refused(context, &pair, Form::Write, remote, &target, length)
}

/// A WRITE of no bytes checks neither key nor address (IBTA 9.7.4.1). Soft-RoCE does not either.
fn no_bytes_need_no_key(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, RC)?;
    let [sender, receiver] = &pair.ends;
    let nowhere = RemoteMemory { address: 0x10, key: 0 };
    for form in [Form::Write, Form::WriteWithImmediate] {
        if form.consumes_receive() {
            receiver.receive(1, &[])?;
        }
        sender.send(2, form.operation(nowhere, 3), &[])?;
        let sent = context.completion("sender", &sender.send_queue)?;
        form.check_sent(&sent, sender, 2)?;
        if form.consumes_receive() {
            let received = context.completion("receiver", &receiver.receive_queue)?;
            form.check_received(&received, (sender, receiver), 1, 0, 3)?;
        }
    }
    move_message(context, &pair, 0, Form::Write, &[100], &[])
}

/// A message longer than its receive: a length error there, an invalid request at the sender (IBTA 9.9.3).
fn receive_too_small(context: &mut Context<'_>, length: usize, room: usize) -> Outcome {
    let pair = Pair::of(context, RC)?;
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &pattern(5, length))?;
    let mut target = Memory::target(&receiver.domain, length)?;
    receiver.receive(1, &[target.entry(0..room)])?;
    receiver.receive(2, &[target.whole()])?;
    sender.send(3, SendOperation::Send, &[source.whole()])?;
    let received = context.completions("receiver", &receiver.receive_queue, 2)?;
    context.failed("receiver", &received[0], 1, &[CompletionStatus::LocalLengthError])?;
    status("receiver's next receive", &received[1], 2, CompletionStatus::FlushedError)?;
    let sent = context.completion("sender", &sender.send_queue)?;
    context.failed("sender", &sent, 3, &[CompletionStatus::RemoteInvalidRequestError])?;
    sender.is_in(QueuePairState::Error)?;
    receiver.is_in(QueuePairState::Error)?;
    target.accept(0..room);
    target.verify("memory beyond the receive")
}

fn receiver_not_ready(context: &mut Context<'_>, retries: u8) -> Outcome {
    for form in [Form::Send, Form::WriteWithImmediate] {
        let setup = Setup { receiver_not_ready_retry: retries, ..Setup::new(RC) };
        let pair = Pair::new(context, &setup)?;
        let [sender, receiver] = &pair.ends;
        let target = Memory::target(&receiver.domain, 10)?;
        let begin = context.now();
        sender.send(1, form.operation(target.remote(0), 0), &[])?;
        sender.send(2, SendOperation::Send, &[])?;
        let sent = context.completions("sender", &sender.send_queue, 2)?;
        // The receiver asked for a pause before each new try.
        tried_for(context.now() - begin, u32::from(retries) * NOT_READY_PAUSE)?;
        let expected = CompletionStatus::ReceiverNotReadyRetryExceededError;
        status("sender", &sent[0], 1, expected)?;
        status("request behind the failed one", &sent[1], 2, CompletionStatus::FlushedError)?;
        sender.is_in(QueuePairState::Error)?;
        // The receiver did nothing wrong, and waits.
        receiver.is_in(QueuePairState::ReadyToSend)?;
        receiver.receive(3, &[])?;
        context.no_completion("receiver", &receiver.receive_queue)?;
    }
    Ok(())
}

/// With 7 retries, which is for ever, a late receive is in time; messages behind the waiting one keep their order.
fn receiver_becomes_ready(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, RC)?;
    let [sender, receiver] = &pair.ends;
    let size = 3 * context.mtu() + 1;
    let source = Memory::source(&sender.domain, &pattern(6, 4 * size))?;
    let mut target = Memory::target(&receiver.domain, 4 * size)?;
    for index in 0..4 {
        let entry = [source.entry(index * size..(index + 1) * size)];
        sender.send(index as u64, SendOperation::SendWithImmediate(index as u32), &entry)?;
    }
    context.no_completion("sender to a peer without receives", &sender.send_queue)?;
    for index in 0..4 {
        receiver.receive(index as u64, &[target.entry(index * size..(index + 1) * size)])?;
        let received = context.completion("receiver", &receiver.receive_queue)?;
        let form = Form::SendWithImmediate;
        form.check_received(&received, (sender, receiver), index as u64, size, index as u32)?;
        let sent = context.completion("sender", &sender.send_queue)?;
        form.check_sent(&sent, sender, index as u64)?;
        target.expect(index * size, &source.bytes(index * size..(index + 1) * size));
        target.verify("target memory")?;
    }
    Ok(())
}

fn write_needs_no_receive(context: &mut Context<'_>) -> Outcome {
    let setup = Setup { receiver_not_ready_retry: 0, ..Setup::new(RC) };
    let pair = Pair::new(context, &setup)?;
    move_message(context, &pair, 0, Form::Write, &[5000], &[])
}

/// A pair whose first end is connected to a queue pair number that nobody has.
fn connected_to_nobody(context: &mut Context<'_>) -> Outcome<Pair> {
    let gone = Pair::unconnected(context, &Setup::hasty(RC))?;
    let number: QueuePairNumber = gone.ends[1].number();
    gone.ends[1].queue_pair.destroy()?;
    let pair = Pair::unconnected(context, &Setup::hasty(RC))?;
    pair.advance(0, QueuePairState::Initialized)?;
    let queue_pair = &pair.ends[0].queue_pair;
    queue_pair.modify(&QueuePairAttributes {
        destination_queue_pair: Some(number),
        ..pair.attributes(0, QueuePairState::ReadyToReceive)
    })?;
    queue_pair.modify(&pair.attributes(0, QueuePairState::ReadyToSend))?;
    Ok(pair)
}

/// A request that was given up must not have been given up early.
fn tried_for(elapsed: Duration, least: Duration) -> Outcome {
    ensure(elapsed >= least, || format!("retries: expected {least:?} or more before giving up, got {elapsed:?}"))
}

fn peer_never_existed(context: &mut Context<'_>) -> Outcome {
    for form in [Form::Send, Form::Write] {
        let pair = connected_to_nobody(context)?;
        let sender = &pair.ends[0];
        let source = Memory::source(&sender.domain, &pattern(7, 3000))?;
        let nowhere = RemoteMemory { address: 0x1000, key: 5 };
        let begin = context.now();
        sender.send(1, form.operation(nowhere, 0), &[source.whole()])?;
        let sent = context.completion("sender to nobody", &sender.send_queue)?;
        status("sender to nobody", &sent, 1, CompletionStatus::RetryExceededError)?;
        // Each try is given its time-out, the first and the repeated ones (IBTA 9.7.6.1.3).
        let tries = 1 + u32::from(HASTY_RETRIES);
        tried_for(context.now() - begin, tries * acknowledge_timeout(HASTY_TIMEOUT))?;
        sender.is_in(QueuePairState::Error)?;
    }
    Ok(())
}

fn later_requests_are_flushed(context: &mut Context<'_>) -> Outcome {
    let pair = connected_to_nobody(context)?;
    let sender = &pair.ends[0];
    empty_receives(sender, 3)?;
    for id in 0..6 {
        sender.send(id, SendOperation::Send, &[])?;
    }
    let sent = context.completion("sender to nobody", &sender.send_queue)?;
    status("sender to nobody", &sent, 0, CompletionStatus::RetryExceededError)?;
    all_flushed(context, "requests behind the failed one", &sender.send_queue, 1, 5)?;
    all_flushed(context, "receives of the failed queue pair", &sender.receive_queue, 0, 3)?;
    context.no_completion("sender, after the flush", &sender.send_queue)
}

fn peer_destroyed(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &Setup::resigned(RC))?;
    let [sender, receiver] = &pair.ends;
    move_message(context, &pair, 0, Form::Write, &[100], &[])?;
    let target = Memory::target(&receiver.domain, 100)?;
    let source = Memory::source(&sender.domain, &pattern(8, 100))?;
    receiver.queue_pair.destroy()?;
    sender.send(1, SendOperation::Write(target.remote(0)), &[source.whole()])?;
    let sent = context.completion("sender to a destroyed peer", &sender.send_queue)?;
    status("sender to a destroyed peer", &sent, 1, CompletionStatus::RetryExceededError)?;
    target.verify("memory behind a destroyed queue pair")
}

/// A queue pair in ERR answers nothing (IBTA 10.3.1.7).
fn peer_in_error(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &Setup::hasty(RC))?;
    let [sender, receiver] = &pair.ends;
    let target = Memory::target(&receiver.domain, 100)?;
    let source = Memory::source(&sender.domain, &pattern(8, 100))?;
    receiver.go(QueuePairState::Error)?;
    sender.send(1, SendOperation::Write(target.remote(0)), &[source.whole()])?;
    let sent = context.completion("sender to a peer in ERR", &sender.send_queue)?;
    status("sender to a peer in ERR", &sent, 1, CompletionStatus::RetryExceededError)?;
    target.verify("memory behind a queue pair in ERR")
}

/// An error is the matter of one queue pair.
fn other_connections_live_on(context: &mut Context<'_>) -> Outcome {
    let (failing, living) = (Pair::of(context, RC)?, Pair::of(context, RC)?);
    let target = Memory::target(&failing.ends[1].domain, 300)?;
    let nowhere = RemoteMemory { address: 0x10, key: 0 };
    access_is_refused(context, &failing, Form::Write, nowhere, &target, 200)?;
    for end in &living.ends {
        end.is_in(QueuePairState::ReadyToSend)?;
    }
    for from in [0, 1] {
        move_message(context, &living, from, Form::WriteWithImmediate, &[5000], &[])?;
    }
    Ok(())
}
