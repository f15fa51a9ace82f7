//! Shared receive queues (IBTA 10.2.9): many queue pairs take receives from one queue, in the order in which they were
//! posted, and the completion says which of them did. Sizes and limit events are in `shared_receive_limits`.

use std::collections::BTreeSet;

use longhaul_verbs::{
    AsyncEvent, AsyncEventKind, Capabilities, CompletionQueue, CompletionStatus, EventSource, ProtectionDomain,
    QueuePairLimits, QueuePairNumber, QueuePairOptions, QueuePairState, ReceiveRequest, ScatterGatherEntry, SendFlags,
    SendOperation, SharedReceiveQueue, SharedReceiveQueueAttributes, Transport,
};

use super::Test;
use super::context::{Context, prefix};
use super::failure::{Failure, Outcome, ensure, equal, refusal, status};
use super::memory::{Memory, pattern};
use super::pair::{Form, GRH_BYTES, Pair, Setup};
use super::transfer::{CONNECTED, send_with_flags};

const RC: Transport = Transport::ReliableConnection;

/// Room for a datagram's header and a short message.
pub(super) const SHORT_BYTES: usize = GRH_BYTES + 64;

/// A shared receive queue of the second end's device, and memory for its receives.
pub(super) struct Shared {
    pub(super) domain: ProtectionDomain,
    pub(super) queue: SharedReceiveQueue,
    /// Where all its queue pairs' receives complete, so that their order shows.
    pub(super) completions: CompletionQueue,
    pub(super) memory: Memory,
}

impl Shared {
    pub(super) fn new(context: &mut Context<'_>) -> Outcome<Self> {
        Shared::with(context, SharedReceiveQueueAttributes { requests: 64, entries: 2, limit: 0 })
    }

    pub(super) fn with(context: &mut Context<'_>, attributes: SharedReceiveQueueAttributes) -> Outcome<Self> {
        let device = context.device(1);
        let domain = device.allocate_protection_domain()?;
        let queue = domain.create_shared_receive_queue(attributes)?;
        let completions = device.create_completion_queue(1024)?;
        let memory = Memory::target(&domain, SHORT_BYTES)?;
        Ok(Shared { domain, queue, completions, memory })
    }

    /// A connected pair whose second end takes its receives from here.
    pub(super) fn pair(&self, context: &mut Context<'_>, setup: &Setup) -> Outcome<Pair> {
        let mut pair = Pair::unconnected(context, setup)?;
        let end = &mut pair.ends[1];
        end.domain = self.domain.clone();
        end.receive_queue = self.completions.clone();
        let limits = QueuePairLimits { send_requests: 16, inline_bytes: 0, ..QueuePairLimits::default() };
        let shared_receive_queue = Some(self.queue.clone());
        let options = QueuePairOptions { limits, signal_all: false, shared_receive_queue };
        let (sends, receives) = (&end.send_queue, &end.receive_queue);
        end.queue_pair = self.domain.create_queue_pair(setup.transport, sends, receives, &options)?;
        pair.meet()?;
        for end in [0, 1] {
            pair.advance(end, QueuePairState::ReadyToSend)?;
        }
        Ok(pair)
    }

    /// Posts one receive with these entries.
    pub(super) fn receive(&self, id: u64, local: &[ScatterGatherEntry]) -> Outcome {
        Ok(self.queue.post_receive(&[ReceiveRequest { id, local }])?)
    }

    /// Posts receives for short messages of any transport.
    pub(super) fn receives(&self, ids: std::ops::Range<u64>) -> Outcome {
        ids.into_iter().try_for_each(|id| self.receive(id, &[self.memory.whole()]))
    }

    /// A message without bytes takes this receive; so the order shows.
    pub(super) fn message(&self, context: &mut Context<'_>, pair: &Pair, expected: u64) -> Outcome {
        let [sender, receiver] = &pair.ends;
        let immediate = 0xab00 + expected as u32;
        sender.send(expected, SendOperation::SendWithImmediate(immediate), &[])?;
        let received = context.completion("receiver", &self.completions)?;
        Form::SendWithImmediate.check_received(&received, (sender, receiver), expected, 0, immediate)?;
        let sent = context.completion("sender", &sender.send_queue)?;
        status("sender", &sent, expected, CompletionStatus::Success)
    }
}

/// A test of shared receive queues over one transport.
pub(super) fn shared_test(
    transport: Transport,
    name: &str,
    function: impl Fn(&mut Context<'_>) -> Outcome + 'static,
) -> Test {
    let needs = transport.capability() | Capabilities::SHARED_RECEIVE_QUEUE;
    Test::new(format!("{}/shared-receive/{name}", prefix(transport)), needs, function)
}

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in Transport::ALL {
        let mut add = |name: &str, function: fn(&mut Context<'_>, Transport) -> Outcome| {
            tests.push(shared_test(transport, name, move |context| function(context, transport)));
        };
        add("messages", messages);
        add("taken-in-order-of-posting", taken_in_order);
        add("own-receives-are-refused", own_receives_are_refused);
        add("error-leaves-the-queue", error_leaves_the_queue);
        add("reset-leaves-the-queue", reset_leaves_the_queue);
        add("destruction-leaves-the-queue", destruction_leaves_the_queue);
        add("last-request-reached", last_request_reached);
        add("outlives-its-owner", outlives_its_owner);
        add("error-in-the-middle-of-a-message", error_in_the_middle);
        add("solicited", solicited);
    }
    for transport in CONNECTED {
        tests.push(shared_test(transport, "plain-writes-take-none", move |context| {
            plain_writes_take_none(context, transport)
        }));
    }
    for transport in [Transport::UnreliableConnection, Transport::UnreliableDatagram] {
        tests.push(shared_test(transport, "empty-queue-drops", move |context| empty_queue_drops(context, transport)));
    }
    tests.push(shared_test(RC, "empty-queue-makes-the-sender-wait", empty_queue_makes_the_sender_wait));
    tests.push(shared_test(RC, "empty-queue-exhausts-retries", empty_queue_exhausts_retries));
    tests.push(shared_test(RC, "bad-receive-fails-one-connection", bad_receive_fails_one_connection));
    tests.push(shared_test(RC, "many-queue-pairs-at-once", many_queue_pairs_at_once));
    tests.push(Test::new(
        "shared-receive/all-transports-on-one-queue",
        Capabilities::SHARED_RECEIVE_QUEUE,
        all_transports_on_one_queue,
    ));
    tests
}

/// Every form that takes a receive, over several entries, with bytes.
fn messages(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let shared = Shared::new(context)?;
    let pair = shared.pair(context, &Setup::new(transport))?;
    let [sender, receiver] = &pair.ends;
    let datagram = transport == Transport::UnreliableDatagram;
    let mtu = context.mtu();
    let lengths = if datagram { [0, 1, mtu] } else { [0, mtu + 1, 3 * mtu + 7] };
    let header = receiver.header_bytes();
    for form in Form::ALL.into_iter().filter(|form| form.consumes_receive() && !(datagram && form.is_write())) {
        for length in lengths {
            let source = Memory::source(&sender.domain, &pattern(length as u64 + 2, length))?;
            let mut target = Memory::target(&shared.domain, header + length + 10)?;
            let cut = header + length / 2;
            shared.receive(1, &[target.entry(0..cut), target.entry(cut..header + length + 10)])?;
            sender.send(2, form.operation(target.remote(0), 0x77), &[source.whole()])?;
            let received = context.completion("receiver", &shared.completions)?;
            form.check_received(&received, (sender, receiver), 1, length, 0x77)?;
            let sent = context.completion("sender", &sender.send_queue)?;
            form.check_sent(&sent, sender, 2)?;
            if header > 0 {
                target.accept(0..header);
            }
            target.expect(header, &source.bytes(0..length));
            target.verify("target memory").map_err(|failure| failure.context(form.name()))?;
        }
    }
    Ok(())
}

/// The message that comes first takes the receive posted first.
fn taken_in_order(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let shared = Shared::new(context)?;
    let setup = Setup::new(transport);
    let pairs = [shared.pair(context, &setup)?, shared.pair(context, &setup)?, shared.pair(context, &setup)?];
    shared.receives(0..20)?;
    for (id, who) in (0..20).zip([0, 1, 2, 2, 1, 0, 0].into_iter().cycle()) {
        shared.message(context, &pairs[who], id)?;
    }
    // Posted in one call, in the order of the call.
    let local = [shared.memory.whole()];
    let batch: Vec<_> = (30..40).map(|id| ReceiveRequest { id, local: &local }).collect();
    shared.queue.post_receive(&batch)?;
    for id in 30..40 {
        shared.message(context, &pairs[id as usize % 3], id)?;
    }
    Ok(())
}

/// Such a queue pair has no receive queue of its own. (Providers of libibverbs may leave this check out.)
fn own_receives_are_refused(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let shared = Shared::new(context)?;
    let pair = shared.pair(context, &Setup::new(transport))?;
    let posted = pair.ends[1].receive(1, &[shared.memory.whole()]);
    context.tolerate(refusal("a receive of its own", posted).map(drop))?;
    shared.receives(5..6)?;
    shared.message(context, &pair, 5)
}

/// A queue pair that fails takes nothing along: the others find every receive (IBTA 10.2.9.3).
fn error_leaves_the_queue(context: &mut Context<'_>, transport: Transport) -> Outcome {
    leaves_the_queue(context, transport, |pair| pair.ends[1].go(QueuePairState::Error))
}

fn reset_leaves_the_queue(context: &mut Context<'_>, transport: Transport) -> Outcome {
    leaves_the_queue(context, transport, |pair| pair.ends[1].go(QueuePairState::Reset))
}

fn destruction_leaves_the_queue(context: &mut Context<'_>, transport: Transport) -> Outcome {
    leaves_the_queue(context, transport, |pair| Ok(pair.ends[1].queue_pair.destroy()?))
}

fn leaves_the_queue(context: &mut Context<'_>, transport: Transport, leave: fn(&Pair) -> Outcome) -> Outcome {
    let shared = Shared::new(context)?;
    let setup = Setup::new(transport);
    let (leaving, staying) = (shared.pair(context, &setup)?, shared.pair(context, &setup)?);
    shared.receives(0..6)?;
    shared.message(context, &leaving, 0)?;
    shared.message(context, &staying, 1)?;
    leave(&leaving)?;
    context.no_completion("receives of a queue pair that left", &shared.completions)?;
    for id in 2..6 {
        shared.message(context, &staying, id)?;
    }
    shared.receives(6..7)?;
    shared.message(context, &staying, 6)
}

fn is_last_request_of(number: QueuePairNumber) -> impl Fn(&AsyncEvent) -> bool {
    move |event| event.kind == AsyncEventKind::LastWorkRequestReached && event.source == EventSource::QueuePair(number)
}

/// A queue pair in ERR says when it takes no receive any more, once; then its program may destroy it (IBTA 11.6.3.2).
fn last_request_reached(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let shared = Shared::new(context)?;
    let setup = Setup::new(transport);
    let (failing, other) = (shared.pair(context, &setup)?, shared.pair(context, &setup)?);
    let alone = Pair::of(context, transport)?;
    shared.receives(0..3)?;
    shared.message(context, &failing, 0)?;
    let numbers = [failing.ends[1].number(), other.ends[1].number(), alone.ends[1].number()];
    let any = |event: &AsyncEvent| event.kind == AsyncEventKind::LastWorkRequestReached;
    context.no_event("last request before the error", 1, any)?;
    failing.ends[1].go(QueuePairState::Error)?;
    let event = context.event("last request reached", 1, is_last_request_of(numbers[0])).map(drop);
    if event.is_err() {
        // Soft-RoCE does not do this for every transport.
        return context.tolerate(event);
    }
    context.no_event("a second event", 1, any)?;
    // Not without a shared queue, and not in the step to RESET.
    alone.ends[1].go(QueuePairState::Error)?;
    other.ends[1].go(QueuePairState::Reset)?;
    context.no_event("last request of others", 1, any)
}

/// The program lets go of the queue; its queue pairs keep it.
fn outlives_its_owner(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let shared = Shared::new(context)?;
    let pair = shared.pair(context, &Setup::new(transport))?;
    shared.receives(0..3)?;
    let Shared { domain, queue, completions, memory } = shared;
    drop((domain, queue));
    let [sender, receiver] = &pair.ends;
    for id in 0..3 {
        sender.send(id, SendOperation::SendWithImmediate(9), &[])?;
        let received = context.completion("receiver", &completions)?;
        Form::SendWithImmediate.check_received(&received, (sender, receiver), id, 0, 9)?;
    }
    drop(memory);
    Ok(())
}

/// A message in progress holds one receive. Whatever becomes of it, the queue loses no other.
fn error_in_the_middle(context: &mut Context<'_>, transport: Transport) -> Outcome {
    for steps in [0, 1, 2, 4] {
        let shared = Shared::new(context)?;
        let setup = Setup::new(transport);
        let (failing, staying) = (shared.pair(context, &setup)?, shared.pair(context, &setup)?);
        let length = if transport == Transport::UnreliableDatagram { context.mtu() } else { 1 << 20 };
        let large = Memory::target(&shared.domain, GRH_BYTES + length)?;
        for id in 0..4 {
            shared.receive(id, &[large.whole()])?;
        }
        let source = Memory::source(&failing.ends[0].domain, &pattern(5, length))?;
        failing.ends[0].send(9, SendOperation::Send, &[source.whole()])?;
        for _ in 0..steps {
            context.progress();
        }
        failing.ends[1].go(QueuePairState::Error)?;
        context.rest();
        let mut taken = 0;
        while let Some(completion) = shared.completions.poll_one()? {
            equal("queue pair of the receive", failing.ends[1].number(), completion.queue_pair)?;
            let success = completion.is_success() || completion.status == CompletionStatus::FlushedError;
            ensure(success, || format!("expected success or a flush, got {completion:?}"))?;
            equal("id of the receive", taken, completion.id)?;
            taken += 1;
        }
        ensure(taken <= 1, || format!("expected at most one receive to be used, got {taken}"))?;
        for id in taken..4 {
            shared.message(context, &staying, id).map_err(|failure| failure.context(format_args!("{steps} steps")))?;
        }
    }
    Ok(())
}

/// Solicited messages wake who waits for them, through whichever queue pair they come.
fn solicited(context: &mut Context<'_>, transport: Transport) -> Outcome {
    if !context.capabilities()?.contains(Capabilities::COMPLETION_CHANNEL) {
        return Err(Failure::not_applicable("COMPLETION_CHANNEL"));
    }
    let mut shared = Shared::new(context)?;
    let channel = context.device(1).create_completion_channel()?;
    shared.completions = context.device(1).create_completion_queue_on(64, &channel, 5)?;
    let setup = Setup::new(transport);
    let pairs = [shared.pair(context, &setup)?, shared.pair(context, &setup)?];
    shared.receives(0..4)?;
    for (id, pair) in (0..).zip(&pairs) {
        shared.completions.request_notification(true)?;
        for (id, flags, events) in [(2 * id, SendFlags::empty(), 0), (2 * id + 1, SendFlags::SOLICITED, 1)] {
            send_with_flags(&pair.ends[0], id, SendOperation::Send, &[], flags)?;
            let received = context.completion("receiver", &shared.completions)?;
            status("receiver", &received, id, CompletionStatus::Success)?;
            context.rest();
            let mut count = 0;
            while channel.next_event()?.is_some() {
                count += 1;
            }
            equal("completion events", events, count)?;
        }
    }
    Ok(())
}

fn plain_writes_take_none(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let shared = Shared::new(context)?;
    let pair = shared.pair(context, &Setup::new(transport))?;
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &pattern(6, 3000))?;
    let mut target = Memory::target(&shared.domain, 3000)?;
    shared.receives(0..2)?;
    sender.send(1, SendOperation::Write(target.remote(0)), &[source.whole()])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    status("sender", &sent, 1, CompletionStatus::Success)?;
    target.expect(0, &source.bytes(0..3000));
    context.settle("target memory", &target)?;
    context.no_completion("receiver of a plain WRITE", &shared.completions)?;
    sender.send(2, SendOperation::WriteWithImmediate(target.remote(0), 4), &[source.whole()])?;
    let received = context.completion("receiver", &shared.completions)?;
    Form::WriteWithImmediate.check_received(&received, (sender, receiver), 0, 3000, 4)?;
    context.completion("sender", &sender.send_queue)?;
    shared.message(context, &pair, 1)
}

/// A message without a receive is lost, and nobody fails.
fn empty_queue_drops(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let shared = Shared::new(context)?;
    let pair = shared.pair(context, &Setup::new(transport))?;
    pair.ends[0].send(1, SendOperation::Send, &[])?;
    let sent = context.completion("sender", &pair.ends[0].send_queue)?;
    status("sender", &sent, 1, CompletionStatus::Success)?;
    context.rest();
    shared.receives(2..3)?;
    context.no_completion("receive posted after the drop", &shared.completions)?;
    pair.ends[1].is_in(QueuePairState::ReadyToSend)?;
    shared.message(context, &pair, 2)
}

/// Two connections wait for receives; each that is posted serves one message, and in the end all have arrived in their
/// order.
fn empty_queue_makes_the_sender_wait(context: &mut Context<'_>) -> Outcome {
    let shared = Shared::new(context)?;
    let setup = Setup::new(RC);
    let pairs = [shared.pair(context, &setup)?, shared.pair(context, &setup)?];
    for id in 0..3 {
        for pair in &pairs {
            pair.ends[0].send(id, SendOperation::SendWithImmediate(id as u32), &[])?;
        }
    }
    context.no_completion("receivers without receives", &shared.completions)?;
    let mut next = [0, 0];
    for id in 0..6 {
        shared.receives(id..id + 1)?;
        let received = context.completion("receiver", &shared.completions)?;
        status("receiver", &received, id, CompletionStatus::Success)?;
        let who = usize::from(received.queue_pair == pairs[1].ends[1].number());
        equal("queue pair", pairs[who].ends[1].number(), received.queue_pair)?;
        equal("immediate", Some(next[who]), received.immediate())?;
        next[who] += 1;
    }
    equal("messages of each connection", [3, 3], next)?;
    for pair in &pairs {
        for (id, sent) in (0..).zip(context.completions("sender", &pair.ends[0].send_queue, 3)?) {
            status("sender", &sent, id, CompletionStatus::Success)?;
        }
    }
    Ok(())
}

fn empty_queue_exhausts_retries(context: &mut Context<'_>) -> Outcome {
    let shared = Shared::new(context)?;
    let setup = Setup { receiver_not_ready_retry: 1, ..Setup::new(RC) };
    let (failing, other) = (shared.pair(context, &setup)?, shared.pair(context, &Setup::new(RC))?);
    failing.ends[0].send(1, SendOperation::Send, &[])?;
    let sent = context.completion("sender", &failing.ends[0].send_queue)?;
    status("sender", &sent, 1, CompletionStatus::ReceiverNotReadyRetryExceededError)?;
    failing.ends[1].is_in(QueuePairState::ReadyToSend)?;
    shared.receives(0..1)?;
    context.no_completion("receive posted too late", &shared.completions)?;
    shared.message(context, &other, 0)
}

/// A receive that cannot take a message is the misfortune of the connection that took it.
fn bad_receive_fails_one_connection(context: &mut Context<'_>) -> Outcome {
    let shared = Shared::new(context)?;
    let setup = Setup::new(RC);
    let (failing, other) = (shared.pair(context, &setup)?, shared.pair(context, &setup)?);
    let nowhere = ScatterGatherEntry { address: 0x1000, length: 100, local_key: 0 };
    shared.receive(0, &[nowhere])?;
    shared.receives(1..3)?;
    let source = Memory::source(&failing.ends[0].domain, &[1; 10])?;
    failing.ends[0].send(9, SendOperation::Send, &[source.whole()])?;
    let received = context.completion("receiver", &shared.completions)?;
    equal("id of the failed receive", 0, received.id)?;
    equal("success of a receive without memory", false, received.is_success())?;
    equal("queue pair of the failed receive", failing.ends[1].number(), received.queue_pair)?;
    let sent = context.completion("sender", &failing.ends[0].send_queue)?;
    equal("success of the sender", false, sent.is_success())?;
    context.no_completion("receives that nobody took", &shared.completions)?;
    other.ends[1].is_in(QueuePairState::ReadyToSend)?;
    for id in 1..3 {
        shared.message(context, &other, id)?;
    }
    Ok(())
}

/// Twenty connections send as fast as they can: no receive serves two messages, no message two receives.
fn many_queue_pairs_at_once(context: &mut Context<'_>) -> Outcome {
    const PAIRS: usize = 20;
    const MESSAGES: u64 = 8;
    let shared = Shared::new(context)?;
    let setup = Setup::new(RC);
    let mut pairs = Vec::new();
    for _ in 0..PAIRS {
        pairs.push(shared.pair(context, &setup)?);
    }
    for id in 0..MESSAGES {
        for pair in &pairs {
            pair.ends[0].send(id, SendOperation::SendWithImmediate(id as u32), &[])?;
        }
    }
    let mut next = [0; PAIRS];
    let mut posted = 0;
    let total = PAIRS as u64 * MESSAGES;
    // A receive at a time, then more at once: the queue is never empty for long, and often.
    for burst in [1, 2, 5, 20].into_iter().cycle() {
        let batch = posted..(posted + burst).min(total);
        shared.receives(batch.clone())?;
        let count = (batch.end - batch.start) as usize;
        // Queue pairs that take receives at the same time may complete them in another order; each keeps its own
        // messages' order.
        let mut waiting: BTreeSet<u64> = batch.collect();
        for received in context.completions("receivers", &shared.completions, count)? {
            status("receivers", &received, received.id, CompletionStatus::Success)?;
            ensure(waiting.remove(&received.id), || {
                format!("expected one of {waiting:?}, got receive {}", received.id)
            })?;
            let who = pairs.iter().position(|pair| pair.ends[1].number() == received.queue_pair);
            let who = who.ok_or_else(|| Failure::new("expected a queue pair of the shared queue"))?;
            equal("immediate", Some(next[who]), received.immediate())?;
            next[who] += 1;
        }
        posted += count as u64;
        if posted == total {
            break;
        }
    }
    equal("messages of each connection", [MESSAGES as u32; PAIRS], next)?;
    context.no_completion("receivers, after all messages", &shared.completions)
}

/// One queue for queue pairs of all transports that the device has.
fn all_transports_on_one_queue(context: &mut Context<'_>) -> Outcome {
    let capabilities = context.capabilities()?;
    let shared = Shared::new(context)?;
    let mut pairs = Vec::new();
    for transport in Transport::ALL.into_iter().filter(|transport| capabilities.contains(transport.capability())) {
        pairs.push(shared.pair(context, &Setup::new(transport))?);
    }
    shared.receives(0..18)?;
    for id in 0..18 {
        shared.message(context, &pairs[id as usize % pairs.len()], id)?;
    }
    Ok(())
}
