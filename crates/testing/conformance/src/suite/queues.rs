//! Queues have an end: full queues, too long requests, overrun completion queues.

use longhaul_verbs::{
    AsyncEventKind, CompletionStatus, EventSource, PollError, PostErrorKind, QueuePairLimits, QueuePairState,
    ReceiveRequest, SendOperation, Transport,
};

use super::Test;
use super::context::Context;
use super::failure::{Failure, Outcome, ensure, equal, refusal, status};
use super::memory::{Memory, pattern};
use super::pair::{End, Form, Pair, Setup};
use super::transfer::{move_message, test};

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in Transport::ALL {
        tests.push(test(transport, "queue-full/receive", move |context| receive_full(context, transport)));
        tests.push(test(transport, "queue-full/send", move |context| send_full(context, transport)));
        tests.push(test(transport, "batch/stops-at-the-bad-one", move |context| {
            stops_at_the_bad_one(context, transport)
        }));
        tests.push(test(transport, "inline/too-much", move |context| inline_too_much(context, transport)));
        tests.push(test(transport, "completion-queue/overrun", move |context| overrun(context, transport)));
        tests.push(test(transport, "completion-queue/shared", move |context| shared(context, transport)));
    }
    tests
}

fn small(transport: Transport) -> Setup {
    Setup {
        limits: QueuePairLimits { send_requests: 8, receive_requests: 8, ..Default::default() },
        ..Setup::new(transport)
    }
}

fn limits(end: &End) -> Outcome<QueuePairLimits> {
    end.queue_pair.query()?.limits.ok_or_else(|| Failure::new("query: expected the limits of the queue pair, got none"))
}

/// A batch larger than the receive queue is posted as far as there is room, and the answer says how far.
fn receive_full(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::new(context, &small(transport))?;
    let [sender, receiver] = &pair.ends;
    let depth = limits(receiver)?.receive_requests as usize;
    let target = Memory::target(&receiver.domain, 100)?;
    let local = [target.whole()];
    let batch: Vec<_> = (0..depth as u64 + 3).map(|id| ReceiveRequest { id, local: &local }).collect();
    let error = refusal("more receives than fit", receiver.queue_pair.post_receive(&batch))?;
    equal("index of the first receive that was not posted", depth, error.index)?;
    let fits = matches!(error.kind, PostErrorKind::QueueFull { .. } | PostErrorKind::System(_));
    ensure(fits, || format!("expected QueueFull, got {error}"))?;
    for id in 0..depth as u64 {
        sender.send(id, SendOperation::Send, &[])?;
        let received = context.completion("receiver", &receiver.receive_queue)?;
        status("receiver", &received, id, CompletionStatus::Success)?;
        context.completion("sender", &sender.send_queue)?;
    }
    // There is room again.
    receiver.receive(100, &local)?;
    sender.send(100, SendOperation::Send, &[])?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    status("receiver", &received, 100, CompletionStatus::Success)
}

/// A batch larger than the send queue is posted as far as there is room. Only a reliable connection can be kept from
/// finishing requests meanwhile, by a peer without receives; the others may make room while the batch is posted.
fn send_full(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let reliable = transport == Transport::ReliableConnection;
    let mut setup = small(transport);
    setup.limits.receive_requests = 128;
    let pair = Pair::new(context, &setup)?;
    let [sender, receiver] = &pair.ends;
    let depth = limits(sender)?.send_requests as usize;
    let target = Memory::target(&receiver.domain, 100)?;
    let local = [target.whole()];
    let batch: Vec<_> = (0..depth as u64 + 3).map(|id| sender.request(id, SendOperation::Send, &[])).collect();
    let receives: Vec<_> = (0..batch.len() as u64).map(|id| ReceiveRequest { id, local: &local }).collect();
    if !reliable {
        receiver.queue_pair.post_receive(&receives)?;
    }
    let posted = match sender.queue_pair.post_send(&batch) {
        Ok(()) if reliable => return Err(Failure::new("more sends than fit: expected QueueFull, got success")),
        Ok(()) => batch.len(),
        Err(error) => {
            let fits = matches!(error.kind, PostErrorKind::QueueFull { .. } | PostErrorKind::System(_));
            ensure(fits, || format!("expected QueueFull, got {error}"))?;
            error.index
        }
    };
    ensure(posted == depth || posted > depth && !reliable, || {
        format!("expected {depth} requests to be posted, got {posted}")
    })?;
    if reliable {
        receiver.queue_pair.post_receive(&receives)?;
    }
    for (id, sent) in (0..).zip(context.completions("sender", &sender.send_queue, posted)?) {
        status("sender", &sent, id, CompletionStatus::Success)?;
    }
    context.completions("receiver", &receiver.receive_queue, posted)?;
    // There is room again.
    sender.send(100, SendOperation::Send, &[])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    status("sender", &sent, 100, CompletionStatus::Success)
}

/// What stands before the bad request is posted and done; what stands behind it is not.
fn stops_at_the_bad_one(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &pattern(1, 10))?;
    let target = Memory::target(&receiver.domain, 100)?;
    for id in 0..5 {
        receiver.receive(id, &[target.whole()])?;
    }
    let too_many = vec![source.entry(0..1); limits(sender)?.send_entries as usize + 1];
    let batch = [
        sender.request(0, SendOperation::Send, &[]),
        sender.request(1, SendOperation::Send, &[]),
        sender.request(2, SendOperation::Send, &too_many),
        sender.request(3, SendOperation::Send, &[]),
    ];
    let error = refusal("a batch with a bad request", sender.queue_pair.post_send(&batch))?;
    equal("index of the bad request", 2, error.index)?;
    for (id, sent) in (0..).zip(context.completions("sender", &sender.send_queue, 2)?) {
        status("sender", &sent, id, CompletionStatus::Success)?;
    }
    context.completions("receiver", &receiver.receive_queue, 2)?;
    context.no_completion("sender, after the bad request", &sender.send_queue)?;
    context.no_completion("receiver, after the bad request", &receiver.receive_queue)?;
    sender.is_in(QueuePairState::ReadyToSend)
}

fn inline_too_much(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let sender = &pair.ends[0];
    let most = limits(sender)?.inline_bytes as usize;
    let request = sender.request(1, SendOperation::Send, &[]);
    let error =
        refusal("more inline data than fits", sender.queue_pair.post_send_inline(&request, &vec![1; most + 1]))?;
    let fits = matches!(error.kind, PostErrorKind::TooMuchInline { .. } | PostErrorKind::System(_));
    ensure(fits, || format!("expected TooMuchInline, got {error}"))?;
    context.no_completion("sender of too much inline data", &sender.send_queue)?;
    move_message(context, &pair, 0, Form::Send, &[10], &[10])
}

/// More completions than a completion queue has room for are not lost in silence (IBTA 11.6.3): polling
/// says so, or an asynchronous event does.
fn overrun(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let setup = Setup {
        completion_entries: 4,
        limits: QueuePairLimits { send_requests: 64, receive_requests: 64, ..Default::default() },
        ..Setup::new(transport)
    };
    let pair = Pair::new(context, &setup)?;
    let [sender, receiver] = &pair.ends;
    let room = receiver.receive_queue.capacity();
    let depth = limits(receiver)?.receive_requests.min(limits(sender)?.send_requests);
    if room >= depth {
        return Err(Failure::not_applicable(format!("a completion queue with less than {depth} entries")));
    }
    let target = Memory::target(&receiver.domain, 100)?;
    for id in 0..=u64::from(room) {
        receiver.receive(id, &[target.whole()])?;
    }
    for id in 0..=u64::from(room) {
        sender.send(id, SendOperation::Send, &[])?;
        // The sender's queue is as small: it is emptied.
        context.progress();
        while sender.send_queue.poll_one()?.is_some() {}
    }
    context.rest();
    let handle = receiver.receive_queue.handle();
    let is_told = context
        .event("overrun", 1, |event| {
            event.kind == AsyncEventKind::CompletionQueueError && event.source == EventSource::CompletionQueue(handle)
        })
        .is_ok();
    let mut taken = 0;
    let result = loop {
        match receiver.receive_queue.poll_one() {
            Ok(Some(_)) => taken += 1,
            Ok(None) => break Ok(()),
            Err(PollError::Overrun) => break Err(()),
            Err(error) => return Err(error.into()),
        }
    };
    ensure(is_told || result.is_err() || taken > room, || {
        format!("expected an overrun to be reported, got {taken} completions of {} and no error", room + 1)
    })
}

/// One completion queue for both queues of both queue pairs of one device.
fn shared(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let setup = Setup::new(transport);
    let pairs = [Pair::new(context, &setup)?, Pair::new(context, &setup)?];
    let shared = context.device(0).create_completion_queue(64)?;
    let domain = context.device(0).allocate_protection_domain()?;
    let first = super::pair::create(&domain, &shared, &shared, &setup)?;
    let second = super::pair::create(&domain, &shared, &shared, &setup)?;
    for (queue_pair, pair) in [(&first, &pairs[0]), (&second, &pairs[1])] {
        for state in [QueuePairState::Initialized, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend] {
            queue_pair.modify(&pair.attributes(0, state))?;
        }
    }
    for id in 0..10 {
        let queue_pair = if id % 2 == 0 { &first } else { &second };
        queue_pair.post_receive(&[ReceiveRequest { id, local: &[] }])?;
    }
    for queue_pair in [&first, &second] {
        // ERR flushes receives: completions without a peer.
        queue_pair.modify(&longhaul_verbs::QueuePairAttributes::to_state(QueuePairState::Error))?;
    }
    let mut counts = [0; 2];
    for completion in context.completions("shared completion queue", &shared, 10)? {
        let expected = if completion.id % 2 == 0 { &first } else { &second };
        equal("queue pair of the completion", expected.number(), completion.queue_pair)?;
        equal("order within a queue", counts[completion.id as usize % 2], completion.id / 2)?;
        counts[completion.id as usize % 2] += 1;
    }
    Ok(())
}
