//! What an unreliable connection drops: it never notifies the sender, never writes where it must not, and goes on with
//! the next message (IBTA 9.8.2 and 9.9.3).

use longhaul_verbs::{
    Access, CompletionStatus, QueuePairState, RemoteMemory, ScatterGatherEntry, SendOperation, Transport,
};

use super::Test;
use super::context::Context;
use super::errors_remote::FAULTS;
use super::failure::{Outcome, status};
use super::memory::{Memory, pattern};
use super::pair::{Form, Pair, Setup};
use super::transfer::{move_message, test};

const UC: Transport = Transport::UnreliableConnection;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for (case, fault) in FAULTS {
        for form in [Form::Write, Form::WriteWithImmediate] {
            tests.push(test(UC, &format!("dropped/{}-{case}", form.name()), move |context| {
                let pair = Pair::of(context, UC)?;
                let target = Memory::target(&pair.ends[1].domain, 300)?;
                is_dropped(context, &pair, form, fault(&target), &target, 200)
            }));
        }
    }
    tests.push(test(UC, "dropped/region-without-remote-write", without_right_on_region));
    tests.push(test(UC, "dropped/queue-pair-without-remote-write", without_right_on_queue_pair));
    tests.push(test(UC, "dropped/other-domain", other_domain));
    tests.push(test(UC, "dropped/deregistered", deregistered));
    tests.push(test(UC, "dropped/last-packet-beyond-the-region", last_packet_beyond));
    tests.push(test(UC, "dropped/no-receive-posted", no_receive_posted));
    tests.push(test(UC, "dropped/receive-too-small", receive_too_small));
    tests.push(test(UC, "dropped/no-bytes-need-no-key", no_bytes_need_no_key));
    tests.push(test(UC, "dropped/peer-destroyed", peer_destroyed));
    tests.push(test(UC, "dropped/half-a-message", half_a_message));
    tests.push(test(UC, "dropped/while-receiver-was-away", while_away));
    tests
}

/// The sender succeeds, the target is untouched, no receive is used up, and the next message arrives.
fn is_dropped(
    context: &mut Context<'_>,
    pair: &Pair,
    form: Form,
    remote: RemoteMemory,
    target: &Memory,
    length: usize,
) -> Outcome {
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &pattern(3, length))?;
    receiver.receive(1, &[])?;
    sender.send(2, form.operation(remote, 0xdead), &[source.whole()])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    form.check_sent(&sent, sender, 2)?;
    context.no_completion("receiver of a dropped message", &receiver.receive_queue)?;
    target.verify("memory that the peer may not write")?;
    sender.is_in(QueuePairState::ReadyToSend)?;
    receiver.is_in(QueuePairState::ReadyToSend)?;
    // The receive is still there, and the connection is in order.
    sender.send(3, SendOperation::SendWithImmediate(33), &[])?;
    let received = context.completion("receiver of the next message", &receiver.receive_queue)?;
    Form::SendWithImmediate.check_received(&received, (sender, receiver), 1, 0, 33)?;
    context.completion("sender", &sender.send_queue)?;
    Ok(())
}

fn without_right_on_region(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UC)?;
    let target = Memory::new(&pair.ends[1].domain, 300, Access::LOCAL_WRITE)?;
    for form in [Form::Write, Form::WriteWithImmediate] {
        is_dropped(context, &pair, form, target.remote(0), &target, 200)?;
    }
    Ok(())
}

fn without_right_on_queue_pair(context: &mut Context<'_>) -> Outcome {
    let setup = Setup { access: Access::empty(), ..Setup::new(UC) };
    let pair = Pair::new(context, &setup)?;
    let target = Memory::target(&pair.ends[1].domain, 300)?;
    for form in [Form::Write, Form::WriteWithImmediate] {
        is_dropped(context, &pair, form, target.remote(0), &target, 200)?;
    }
    Ok(())
}

fn other_domain(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UC)?;
    let other = context.device(1).allocate_protection_domain()?;
    let target = Memory::target(&other, 300)?;
    is_dropped(context, &pair, Form::WriteWithImmediate, target.remote(0), &target, 200)
}

fn deregistered(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UC)?;
    let gone = Memory::target(&pair.ends[1].domain, 300)?;
    let remote = gone.remote(0);
    drop(gone);
    let bystander = Memory::target(&pair.ends[1].domain, 300)?;
    is_dropped(context, &pair, Form::WriteWithImmediate, remote, &bystander, 200)
}

fn last_packet_beyond(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UC)?;
    let length = 4 * context.mtu();
    let target = Memory::target(&pair.ends[1].domain, length)?;
    let remote = RemoteMemory { address: target.region_end() - length as u64 + 1, ..target.remote(0) };
    for form in [Form::Write, Form::WriteWithImmediate] {
        is_dropped(context, &pair, form, remote, &target, length)?;
    }
    Ok(())
}

/// Without a receive a SEND is dropped whole. A WRITE with immediate may have written its bytes before it is found
/// that there is no receive for its immediate.
fn no_receive_posted(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UC)?;
    let [sender, receiver] = &pair.ends;
    let mtu = context.mtu();
    for (form, size) in [
        (Form::Send, 10),
        (Form::SendWithImmediate, 3 * mtu),
        (Form::WriteWithImmediate, 10),
        (Form::WriteWithImmediate, 3 * mtu),
    ] {
        let source = Memory::source(&sender.domain, &pattern(4, size))?;
        let mut target = Memory::target(&receiver.domain, size)?;
        sender.send(1, form.operation(target.remote(0), 1), &[source.whole()])?;
        let sent = context.completion("sender", &sender.send_queue)?;
        form.check_sent(&sent, sender, 1)?;
        context.no_completion("receiver without receive", &receiver.receive_queue)?;
        if form.is_write() {
            target.accept(0..size);
        }
        target.verify("target memory")?;
        receiver.is_in(QueuePairState::ReadyToSend)?;
        move_message(context, &pair, 0, Form::SendWithImmediate, &[2 * mtu + 1], &[2 * mtu + 1])
            .map_err(|failure| failure.context("next message"))?;
    }
    Ok(())
}

/// A message longer than its receive never leaves it. Devices drop it and keep the receive, or complete the receive
/// with a length error and go to ERR.
fn receive_too_small(context: &mut Context<'_>) -> Outcome {
    let mtu = context.mtu();
    for (size, room) in [(100, 99), (1, 0), (2 * mtu, mtu + 5)] {
        let pair = Pair::of(context, UC)?;
        let [sender, receiver] = &pair.ends;
        let source = Memory::source(&sender.domain, &pattern(5, size))?;
        let mut target = Memory::target(&receiver.domain, size)?;
        receiver.receive(1, &[target.entry(0..room)])?;
        sender.send(2, SendOperation::Send, &[source.whole()])?;
        let sent = context.completion("sender", &sender.send_queue)?;
        status("sender", &sent, 2, CompletionStatus::Success)?;
        context.rest();
        target.accept(0..room);
        target.verify("memory beyond the receive")?;
        if let Some(received) = receiver.receive_queue.poll_one()? {
            context.failed("receiver", &received, 1, &[CompletionStatus::LocalLengthError])?;
            continue;
        }
        receiver.is_in(QueuePairState::ReadyToSend)?;
        sender.send(3, SendOperation::SendWithImmediate(3), &[])?;
        let received = context.completion("receiver of the next message", &receiver.receive_queue)?;
        Form::SendWithImmediate.check_received(&received, (sender, receiver), 1, 0, 3)?;
    }
    Ok(())
}

fn no_bytes_need_no_key(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UC)?;
    let [sender, receiver] = &pair.ends;
    let nowhere = RemoteMemory { address: 0x10, key: 0 };
    receiver.receive(1, &[])?;
    sender.send(2, SendOperation::WriteWithImmediate(nowhere, 3), &[])?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    Form::WriteWithImmediate.check_received(&received, (sender, receiver), 1, 0, 3)
}

fn peer_destroyed(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UC)?;
    let [sender, receiver] = &pair.ends;
    let target = Memory::target(&receiver.domain, 100)?;
    let source = Memory::source(&sender.domain, &pattern(8, 100))?;
    receiver.queue_pair.destroy()?;
    sender.send(1, SendOperation::Write(target.remote(0)), &[source.whole()])?;
    let sent = context.completion("sender to a destroyed peer", &sender.send_queue)?;
    status("sender to a destroyed peer", &sent, 1, CompletionStatus::Success)?;
    context.unchanged("memory behind a destroyed queue pair", &target)
}

/// The sender fails after the first packet of a message and begins another one: the half message is dropped, its
/// receive is used by the next (IBTA 9.8.2).
fn half_a_message(context: &mut Context<'_>) -> Outcome {
    for form in [Form::Send, Form::Write, Form::WriteWithImmediate] {
        let pair = Pair::of(context, UC)?;
        let [sender, receiver] = &pair.ends;
        let mtu = context.mtu();
        let source = Memory::source(&sender.domain, &pattern(9, mtu))?;
        let nowhere = ScatterGatherEntry { local_key: source.local_key() ^ 0x5a5a_5a00, ..source.whole() };
        let mut target = Memory::target(&receiver.domain, 2 * mtu)?;
        receiver.receive(1, &[target.whole()])?;
        sender.send(2, form.operation(target.remote(0), 0), &[source.whole(), nowhere])?;
        let sent = context.completion("sender", &sender.send_queue)?;
        context.failed("sender", &sent, 2, &[CompletionStatus::LocalProtectionError])?;
        context.no_completion("receiver of half a message", &receiver.receive_queue)?;
        if sender.queue_pair.state() == QueuePairState::Error {
            // Without SQE this connection cannot go on.
            context.tolerate(sender.is_in(QueuePairState::SendQueueError))?;
            continue;
        }
        sender.go(QueuePairState::ReadyToSend)?;
        // What the first packet wrote may stay.
        target.accept(0..mtu);
        sender.send(3, SendOperation::SendWithImmediate(8), &[source.entry(0..50)])?;
        let received = context.completion("receiver of the next message", &receiver.receive_queue)?;
        Form::SendWithImmediate.check_received(&received, (sender, receiver), 1, 50, 8)?;
        target.expect(0, &source.bytes(0..50));
        target.verify("target memory")?;
    }
    Ok(())
}

/// Messages missed are missed: a receiver takes up the sequence with the next message that begins (IBTA 9.8.2).
fn while_away(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::unconnected(context, &Setup::new(UC))?;
    let [sender, receiver] = &pair.ends;
    pair.advance(0, QueuePairState::ReadyToSend)?;
    let size = 3 * context.mtu();
    let source = Memory::source(&sender.domain, &pattern(8, size))?;
    for id in 0..5 {
        sender.send(id, SendOperation::Send, &[source.whole()])?;
        let sent = context.completion("sender", &sender.send_queue)?;
        status("sender", &sent, id, CompletionStatus::Success)?;
    }
    context.rest();
    pair.advance(1, QueuePairState::ReadyToSend)?;
    context.no_completion("receiver", &receiver.receive_queue)?;
    move_message(context, &pair, 0, Form::SendWithImmediate, &[size], &[size])
}
