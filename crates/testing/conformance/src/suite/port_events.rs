//! Ports that go down and come up again: the program is notified, queue pairs stay what they are, and reliable
//! connections carry on if it did not last too long (IBTA 11.6.3.3).

use longhaul_verbs::{
    AsyncEvent, AsyncEventKind, CompletionStatus, EventSource, LinkState, QueuePairState, SendOperation, Transport,
};

use super::Test;
use super::context::Context;
use super::failure::{Failure, Outcome, ensure, equal, status};
use super::memory::{Memory, pattern};
use super::pair::{Form, Pair, Setup};
use super::transfer::{NOTHING, move_message, test};

const RC: Transport = Transport::ReliableConnection;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::new("port/down-and-up", NOTHING, |context| with_link(context, down_and_up)),
        Test::new("port/told-once", NOTHING, |context| with_link(context, told_once)),
        test(RC, "port/short-outage", |context| with_link(context, short_outage)),
        test(RC, "port/outage-in-the-middle-of-a-message", |context| with_link(context, in_the_middle)),
        test(RC, "port/long-outage", |context| with_link(context, long_outage)),
    ];
    for transport in [Transport::UnreliableConnection, Transport::UnreliableDatagram] {
        tests.push(test(transport, "port/messages-are-lost", move |context| {
            with_link(context, |context| messages_are_lost(context, transport))
        }));
    }
    for transport in Transport::ALL {
        tests.push(test(transport, "port/queue-pairs-stay", move |context| {
            with_link(context, |context| queue_pairs_stay(context, transport))
        }));
    }
    tests
}

/// Whatever comes of the test, the link is up when it ends, and what that raises is forgotten.
fn with_link(context: &mut Context<'_>, function: impl Fn(&mut Context<'_>) -> Outcome) -> Outcome {
    let result = function(context);
    context.set_link(1, true);
    context.rest();
    context.forget_events()?;
    result
}

fn set(context: &mut Context<'_>, up: bool) -> Outcome {
    match context.set_link(1, up) {
        true => Ok(()),
        false => Err(Failure::not_applicable("a link that can be taken down")),
    }
}

/// For tests in which messages must not get through: a device need not use its port to talk to itself.
fn between_two_devices(context: &Context<'_>) -> Outcome {
    match context.gid(0)? == context.gid(1)? && context.udp_port(0) == context.udp_port(1) {
        true => Err(Failure::not_applicable("a second device")),
        false => Ok(()),
    }
}

fn of_port(port: u8, kind: AsyncEventKind) -> impl Fn(&AsyncEvent) -> bool {
    move |event| event.kind == kind && event.source == EventSource::Port(port)
}

fn link_state(context: &Context<'_>) -> Outcome<LinkState> {
    Ok(context.port_attributes(1)?.state)
}

fn down_and_up(context: &mut Context<'_>) -> Outcome {
    let port = context.port(1);
    equal("state of the port", LinkState::Active, link_state(context)?)?;
    for _ in 0..3 {
        set(context, false)?;
        context.event("port down", 1, of_port(port, AsyncEventKind::PortError))?;
        let state = link_state(context)?;
        ensure(state != LinkState::Active, || format!("expected the port to be down, got {state:?}"))?;
        context.no_event("port up, while it is down", 1, of_port(port, AsyncEventKind::PortActive))?;
        set(context, true)?;
        context.event("port up", 1, of_port(port, AsyncEventKind::PortActive))?;
        equal("state of the port", LinkState::Active, link_state(context)?)?;
        context.no_event("port down, while it is up", 1, of_port(port, AsyncEventKind::PortError))?;
    }
    Ok(())
}

/// A change is reported, a state is not.
fn told_once(context: &mut Context<'_>) -> Outcome {
    let port = context.port(1);
    set(context, true)?;
    context.no_event("port up, which it was", 1, of_port(port, AsyncEventKind::PortActive))?;
    set(context, false)?;
    set(context, false)?;
    context.event("port down", 1, of_port(port, AsyncEventKind::PortError))?;
    context.no_event("port down, which it was", 1, of_port(port, AsyncEventKind::PortError))
}

/// Messages posted while the port was down arrive when it is up again, in order, once.
fn short_outage(context: &mut Context<'_>) -> Outcome {
    between_two_devices(context)?;
    let pair = Pair::of(context, RC)?;
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &pattern(1, 3000))?;
    let target = Memory::target(&receiver.domain, 3000)?;
    set(context, false)?;
    for id in 0..5 {
        receiver.receive(id, &[target.whole()])?;
        sender.send(id, SendOperation::SendWithImmediate(id as u32), &[source.whole()])?;
    }
    context.no_completion("receiver behind a port that is down", &receiver.receive_queue)?;
    equal("completions of the sender", None, sender.send_queue.poll_one()?)?;
    set(context, true)?;
    for id in 0..5 {
        let received = context.completion("receiver", &receiver.receive_queue)?;
        let form = Form::SendWithImmediate;
        form.check_received(&received, (sender, receiver), id, 3000, id as u32)?;
        let sent = context.completion("sender", &sender.send_queue)?;
        form.check_sent(&sent, sender, id)?;
    }
    move_message(context, &pair, 1, Form::Write, &[5000], &[])
}

/// The port goes down again and again while one long message is in flight.
fn in_the_middle(context: &mut Context<'_>) -> Outcome {
    between_two_devices(context)?;
    let pair = Pair::of(context, RC)?;
    let [sender, receiver] = &pair.ends;
    let length = 1 << 20;
    let source = Memory::source(&sender.domain, &pattern(2, length))?;
    let mut target = Memory::target(&receiver.domain, length)?;
    receiver.receive(1, &[])?;
    let operation = SendOperation::WriteWithImmediate(target.remote(0), 6);
    sender.send(2, operation, &[source.whole()])?;
    for _ in 0..3 {
        context.progress();
        set(context, false)?;
        context.progress();
        set(context, true)?;
    }
    let received = context.completion("receiver", &receiver.receive_queue)?;
    Form::WriteWithImmediate.check_received(&received, (sender, receiver), 1, length, 6)?;
    let sent = context.completion("sender", &sender.send_queue)?;
    Form::WriteWithImmediate.check_sent(&sent, sender, 2)?;
    target.expect(0, &source.bytes(0..length));
    target.verify("target memory")
}

/// When the retries are used up before the port is up, the connection has failed; it can be made anew.
fn long_outage(context: &mut Context<'_>) -> Outcome {
    between_two_devices(context)?;
    let pair = Pair::new(context, &Setup::resigned(RC))?;
    let [sender, receiver] = &pair.ends;
    set(context, false)?;
    receiver.receive(1, &[])?;
    sender.send(2, SendOperation::Send, &[])?;
    sender.send(3, SendOperation::Send, &[])?;
    let sent = context.completions("sender", &sender.send_queue, 2)?;
    status("sender", &sent[0], 2, CompletionStatus::RetryExceededError)?;
    status("request behind it", &sent[1], 3, CompletionStatus::FlushedError)?;
    sender.is_in(QueuePairState::Error)?;
    receiver.is_in(QueuePairState::ReadyToSend)?;
    set(context, true)?;
    context.no_completion("receiver, after a send that failed", &receiver.receive_queue)?;
    pair.reconnect()?;
    move_message(context, &pair, 0, Form::Send, &[100], &[100])
}

fn messages_are_lost(context: &mut Context<'_>, transport: Transport) -> Outcome {
    between_two_devices(context)?;
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let target = Memory::target(&receiver.domain, 64)?;
    receiver.receive(1, &[target.whole()])?;
    set(context, false)?;
    for id in 0..5 {
        sender.send(id, SendOperation::SendWithImmediate(1), &[])?;
    }
    for (id, sent) in (0..).zip(context.completions("sender", &sender.send_queue, 5)?) {
        status("sender", &sent, id, CompletionStatus::Success)?;
    }
    context.no_completion("receiver behind a port that is down", &receiver.receive_queue)?;
    set(context, true)?;
    context.no_completion("receiver, with the port up again", &receiver.receive_queue)?;
    sender.send(9, SendOperation::SendWithImmediate(2), &[])?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    Form::SendWithImmediate.check_received(&received, (sender, receiver), 1, 0, 2)
}

/// A port that is down is no error of a queue pair: calls work as before.
fn queue_pairs_stay(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    set(context, false)?;
    context.rest();
    for end in &pair.ends {
        end.is_in(QueuePairState::ReadyToSend)?;
        equal("state by query", Some(QueuePairState::ReadyToSend), end.queue_pair.query()?.state)?;
    }
    // Objects can be made, connected and destroyed meanwhile.
    let other = Pair::of(context, transport)?;
    other.ends[0].queue_pair.destroy()?;
    set(context, true)?;
    move_message(context, &pair, 0, Form::Send, &[100], &[100])?;
    move_message(context, &pair, 1, Form::Send, &[100], &[100])
}
