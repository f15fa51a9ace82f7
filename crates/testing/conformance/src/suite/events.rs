//! Events: of completion queues (IBTA 11.4.2.2) and of the device
//! (IBTA 11.6.3).

use longhaul_verbs::{
    AsyncEventKind, Capabilities, CompletionChannel, CompletionStatus, EventSource, QueuePairAttributes,
    QueuePairState, RemoteMemory, SendFlags, SendOperation, Transport,
};

use super::Test;
use super::context::{Context, prefix};
use super::failure::{Failure, Outcome, equal, status};
use super::memory::Memory;
use super::pair::{Form, Pair, Setup, create};
use super::transfer::{empty_receives, send_with_flags, test};

pub(super) const TOKEN: u64 = 0x0123_4567_89ab_cdef;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in Transport::ALL {
        let mut channel = |name: &str, function: fn(&mut Context<'_>, Transport) -> Outcome| {
            tests.push(Test::new(
                format!("{}/completion-events/{name}", prefix(transport)),
                transport.capability() | Capabilities::COMPLETION_CHANNEL,
                move |context| function(context, transport),
            ));
        };
        channel("one-for-each-request", one_for_each_request);
        channel("none-unless-requested", none_unless_requested);
        channel("solicited-only", solicited_only);
        channel("not-for-completions-before", not_for_completions_before);
        channel("error-counts-as-solicited", error_counts_as_solicited);
        channel("more-than-solicited-stays", more_than_solicited_stays);
        channel("solicited-in-last-packet", solicited_in_last_packet);
        channel("failed-receive-counts-as-solicited", failed_receive);
        channel("sender-side", sender_side);
        channel("several-queues-on-one-channel", several_queues);
    }
    tests.push(test(Transport::ReliableConnection, "async-events/access-error", access_error));
    tests.push(test(Transport::ReliableConnection, "async-events/none-in-peace", none_in_peace));
    tests.push(test(
        Transport::ReliableConnection,
        "async-events/communication-established",
        communication_established,
    ));
    tests.push(Test::new(
        "rc/async-events/send-queue-drained",
        Capabilities::RELIABLE_CONNECTION | Capabilities::SEND_QUEUE_DRAIN,
        send_queue_drained,
    ));
    tests
}

/// A pair whose second end has completion queues on a channel.
pub(super) struct Watched {
    pub(super) pair: Pair,
    pub(super) channel: CompletionChannel,
}

impl Watched {
    pub(super) fn new(context: &mut Context<'_>, transport: Transport) -> Outcome<Self> {
        let setup = Setup::new(transport);
        let mut pair = Pair::unconnected(context, &setup)?;
        let device = context.device(1);
        let channel = device.create_completion_channel()?;
        let end = &mut pair.ends[1];
        end.send_queue = device.create_completion_queue_on(256, &channel, !TOKEN)?;
        end.receive_queue = device.create_completion_queue_on(256, &channel, TOKEN)?;
        end.queue_pair = create(&end.domain, &end.send_queue, &end.receive_queue, &setup)?;
        pair.meet()?;
        for end in [0, 1] {
            pair.advance(end, QueuePairState::ReadyToSend)?;
        }
        Ok(Watched { pair, channel })
    }

    /// Sends a message without bytes from the first end and waits until it is done.
    pub(super) fn message(&self, context: &mut Context<'_>, flags: SendFlags) -> Outcome {
        let [sender, receiver] = &self.pair.ends;
        let target = Memory::target(&receiver.domain, 64)?;
        receiver.receive(1, &[target.whole()])?;
        send_with_flags(sender, 2, SendOperation::Send, &[], flags | SendFlags::SIGNALED)?;
        let sent = context.completion("sender", &sender.send_queue)?;
        status("sender", &sent, 2, CompletionStatus::Success)?;
        // The completion stays in the queue; what matters here is the event.
        context.rest();
        Ok(())
    }

    pub(super) fn take_completions(&self, expected: usize) -> Outcome {
        let mut count = 0;
        while let Some(completion) = self.pair.ends[1].receive_queue.poll_one()? {
            status("receiver", &completion, 1, CompletionStatus::Success)?;
            count += 1;
        }
        equal("completions of the receiver", expected, count)
    }

    fn event(&self, context: &mut Context<'_>, what: &str) -> Outcome {
        let got = context.wait_for(|| {
            self.channel
                .next_event()?
                .ok_or_else(|| Failure::new(format!("{what}: expected a completion event, got none")))
        })?;
        equal(what, TOKEN, got)
    }

    fn no_event(&self, context: &mut Context<'_>, what: &str) -> Outcome {
        context.rest();
        equal(what, None, self.channel.next_event()?)
    }
}

fn one_for_each_request(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let watched = Watched::new(context, transport)?;
    for _ in 0..3 {
        watched.pair.ends[1].receive_queue.request_notification(false)?;
        watched.no_event(context, "event before a completion")?;
        watched.message(context, SendFlags::empty())?;
        watched.message(context, SendFlags::empty())?;
        watched.event(context, "event of the first completion")?;
        watched.no_event(context, "event of the second completion")?;
        watched.take_completions(2)?;
    }
    Ok(())
}

fn none_unless_requested(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let watched = Watched::new(context, transport)?;
    watched.message(context, SendFlags::SOLICITED)?;
    watched.no_event(context, "event that nobody asked for")?;
    watched.take_completions(1)
}

fn solicited_only(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let watched = Watched::new(context, transport)?;
    watched.pair.ends[1].receive_queue.request_notification(true)?;
    watched.message(context, SendFlags::empty())?;
    watched.no_event(context, "event of an unsolicited completion")?;
    watched.message(context, SendFlags::SOLICITED)?;
    watched.event(context, "event of a solicited completion")?;
    watched.take_completions(2)?;
    // Asking for any completion includes the solicited ones.
    watched.pair.ends[1].receive_queue.request_notification(false)?;
    watched.message(context, SendFlags::SOLICITED)?;
    watched.event(context, "event of any completion")
}

/// A request is for the next completion; what is in the queue already raises no event.
fn not_for_completions_before(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let watched = Watched::new(context, transport)?;
    watched.message(context, SendFlags::SOLICITED)?;
    watched.pair.ends[1].receive_queue.request_notification(false)?;
    watched.no_event(context, "event of an older completion")?;
    watched.message(context, SendFlags::empty())?;
    watched.event(context, "event of the next completion")?;
    watched.take_completions(2)
}

/// A completion with an error counts as solicited.
fn error_counts_as_solicited(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let watched = Watched::new(context, transport)?;
    let end = &watched.pair.ends[1];
    empty_receives(end, 1)?;
    end.receive_queue.request_notification(true)?;
    watched.no_event(context, "event before the flush")?;
    end.go(QueuePairState::Error)?;
    watched.event(context, "event of a flushed receive")
}

/// Asking for solicited completions only does not take back having asked for any.
fn more_than_solicited_stays(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let watched = Watched::new(context, transport)?;
    watched.pair.ends[1].receive_queue.request_notification(false)?;
    watched.pair.ends[1].receive_queue.request_notification(true)?;
    watched.message(context, SendFlags::empty())?;
    watched.event(context, "event of any completion")
}

/// A message is solicited as a whole, and raises one event however many packets it has.
fn solicited_in_last_packet(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let watched = Watched::new(context, transport)?;
    let [sender, receiver] = &watched.pair.ends;
    let size = match transport {
        Transport::UnreliableDatagram => context.mtu(),
        _ => 3 * context.mtu(),
    };
    let source = Memory::source(&sender.domain, &vec![1; size])?;
    let target = Memory::target(&receiver.domain, receiver.header_bytes() + size)?;
    let forms: &[Form] = match transport {
        Transport::UnreliableDatagram => &[Form::Send],
        _ => &[Form::Send, Form::WriteWithImmediate],
    };
    for form in forms {
        receiver.receive_queue.request_notification(true)?;
        for (flags, has_event) in [(SendFlags::SIGNALED, false), (SendFlags::SIGNALED | SendFlags::SOLICITED, true)] {
            receiver.receive(1, &[target.whole()])?;
            send_with_flags(sender, 2, form.operation(target.remote(0), 0), &[source.whole()], flags)?;
            context.completion("receiver", &receiver.receive_queue)?;
            match has_event {
                true => watched.event(context, "event of a solicited message")?,
                false => watched.no_event(context, "event of an unsolicited message")?,
            }
        }
        watched.no_event(context, "second event of one message")?;
    }
    Ok(())
}

/// Not only flushed receives: one that a message made fail, too.
fn failed_receive(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let watched = Watched::new(context, transport)?;
    let [sender, receiver] = &watched.pair.ends;
    let nowhere = longhaul_verbs::ScatterGatherEntry { address: 0x1000, length: 1000, local_key: 0 };
    receiver.receive(1, &[nowhere])?;
    receiver.receive_queue.request_notification(true)?;
    let source = Memory::source(&sender.domain, &[1; 10])?;
    sender.send(2, SendOperation::Send, &[source.whole()])?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    equal("success of a receive without memory", false, received.is_success())?;
    watched.event(context, "event of a failed receive")
}

fn sender_side(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let watched = Watched::new(context, transport)?;
    let [receiver, sender] = &watched.pair.ends;
    let target = Memory::target(&receiver.domain, 64)?;
    receiver.receive(1, &[target.whole()])?;
    sender.send_queue.request_notification(false)?;
    sender.send(2, SendOperation::Send, &[])?;
    let got = context.wait_for(|| {
        watched
            .channel
            .next_event()?
            .ok_or_else(|| Failure::new("expected an event of the send queue's completion queue, got none"))
    })?;
    equal("token of the send queue's completion queue", !TOKEN, got)
}

/// Both completion queues of one channel raise their own events.
fn several_queues(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let watched = Watched::new(context, transport)?;
    let [other, end] = &watched.pair.ends;
    let target = Memory::target(&other.domain, 64)?;
    other.receive(1, &[target.whole()])?;
    end.send_queue.request_notification(false)?;
    end.receive_queue.request_notification(false)?;
    watched.message(context, SendFlags::empty())?;
    end.send(3, SendOperation::Send, &[])?;
    context.rest();
    let mut tokens = Vec::new();
    while let Some(token) = watched.channel.next_event()? {
        tokens.push(token);
    }
    tokens.sort_unstable();
    let mut expected = vec![TOKEN, !TOKEN];
    expected.sort_unstable();
    equal("tokens of the events", expected, tokens)
}

/// The responder's program is notified that a peer tried what it may not. (Soft-RoCE does not do this.)
fn access_error(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, Transport::ReliableConnection)?;
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &[1; 10])?;
    let nowhere = RemoteMemory { address: 0x10, key: 0 };
    sender.send(1, SendOperation::Write(nowhere), &[source.whole()])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    status("sender", &sent, 1, CompletionStatus::RemoteAccessError)?;
    let number = receiver.number();
    let event = context.event("access error", 1, |event| {
        let kind = [AsyncEventKind::QueuePairAccessError, AsyncEventKind::QueuePairRequestError];
        kind.contains(&event.kind) && event.source == EventSource::QueuePair(number)
    });
    let kind = event.and_then(|event| equal("kind", AsyncEventKind::QueuePairAccessError, event.kind));
    context.tolerate(kind)
}

/// Ordinary traffic, resets and moves to ERR raise no error event.
fn none_in_peace(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, Transport::ReliableConnection)?;
    super::transfer::move_message(context, &pair, 0, Form::Send, &[5000], &[5000])?;
    pair.ends[0].go(QueuePairState::Error)?;
    pair.ends[1].go(QueuePairState::Reset)?;
    context.rest();
    for end in [0, 1] {
        let device = context.device(end).clone();
        while let Some(event) = device.next_event()? {
            if event.kind != AsyncEventKind::CommunicationEstablished {
                return Err(Failure::new(format!("expected no asynchronous event, got {event:?}")));
            }
        }
    }
    Ok(())
}

/// The first packet on a queue pair in RTR is announced: its program may then go on to RTS.
fn communication_established(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::unconnected(context, &Setup::new(Transport::ReliableConnection))?;
    let [sender, receiver] = &pair.ends;
    pair.advance(1, QueuePairState::ReadyToReceive)?;
    pair.advance(0, QueuePairState::ReadyToSend)?;
    receiver.receive(1, &[])?;
    sender.send(2, SendOperation::Send, &[])?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    status("receiver", &received, 1, CompletionStatus::Success)?;
    let number = receiver.number();
    let event = context.event("communication established", 1, |event| {
        event.kind == AsyncEventKind::CommunicationEstablished && event.source == EventSource::QueuePair(number)
    });
    context.tolerate(event.map(drop))
}

/// The end of draining is announced where that was asked for (IBTA 10.3.1.5).
fn send_queue_drained(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, Transport::ReliableConnection)?;
    let [sender, receiver] = &pair.ends;
    sender.send(1, SendOperation::Send, &[])?;
    // In flight, and waiting for the peer's receive.
    context.rest();
    sender.queue_pair.modify(&QueuePairAttributes {
        send_queue_drained_event: Some(true),
        ..QueuePairAttributes::to_state(QueuePairState::SendQueueDrained)
    })?;
    let number = sender.number();
    let drained = |event: &longhaul_verbs::AsyncEvent| {
        event.kind == AsyncEventKind::SendQueueDrained && event.source == EventSource::QueuePair(number)
    };
    context.no_event("drained too early", 0, drained)?;
    receiver.receive(2, &[])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    status("sender", &sent, 1, CompletionStatus::Success)?;
    context.event("drained", 0, drained).map(drop)
}
