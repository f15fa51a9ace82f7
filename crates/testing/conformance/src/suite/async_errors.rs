//! Asynchronous events of queue pairs that fail (IBTA 11.6.3.2): whose completions were lost, or whose peer asked for
//! what it may not.

use longhaul_verbs::{
    Access, AsyncEvent, AsyncEventKind, Capabilities, CompletionQueue, EventSource, QueuePairLimits, QueuePairNumber,
    QueuePairState, RemoteMemory, SendOperation, Transport,
};

use super::Test;
use super::attempts::{Attempt, every_right, is_refused, open_setup};
use super::context::Context;
use super::failure::{Failure, Outcome, equal};
use super::memory::Memory;
use super::pair::{End, Form, Pair, Setup, create};
use super::slotted::{NUMBERS, new_slotted};
use super::transfer::{empty_receives, move_message, test};
use super::windows::{Bound, Kind, window_test};

const RC: Transport = Transport::ReliableConnection;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = vec![
        test(RC, "async-events/fatal-when-a-receive-is-lost", |context| lost(context, RC, Side::Receiver)),
        test(RC, "async-events/fatal-when-a-send-is-lost", |context| lost(context, RC, Side::Sender)),
        test(RC, "async-events/overrun-is-not-fatal-for-others", not_fatal_for_others),
        Test::new("rc/async-events/request-error-of-an-atomic", RC.capability() | Capabilities::ATOMICS, unaligned),
        Test::new(
            "rc/async-events/access-error-of-a-slot",
            RC.capability() | Capabilities::SLOTTED_REGION,
            beyond_the_last_slot,
        ),
    ];
    for attempt in Attempt::ALL {
        tests.push(Test::new(
            format!("rc/async-events/access-error-of-{}", attempt.name()),
            RC.capability() | attempt.needs(),
            move |context| wrong_key(context, attempt),
        ));
    }
    for transport in [Transport::UnreliableConnection, Transport::UnreliableDatagram] {
        tests.push(test(transport, "async-events/overrun-is-not-fatal", move |context| {
            lost(context, transport, Side::Receiver)
        }));
    }
    for kind in Kind::ALL {
        let none = Capabilities::empty();
        tests.push(window_test(RC, kind, "async-events/access-error", none, move |context| dead_window(context, kind)));
        tests.push(window_test(RC, kind, "async-events/none-in-peace", none, move |context| peace(context, kind)));
    }
    tests
}

fn of_queue_pair(kind: AsyncEventKind, number: QueuePairNumber) -> impl Fn(&AsyncEvent) -> bool {
    move |event| event.kind == kind && event.source == EventSource::QueuePair(number)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Sender,
    Receiver,
}

/// Queue pairs whose completion queues have little room.
fn cramped(transport: Transport) -> Setup {
    Setup {
        completion_entries: 4,
        limits: QueuePairLimits { send_requests: 64, receive_requests: 64, ..Default::default() },
        ..Setup::new(transport)
    }
}

/// Takes everything out of a completion queue, with or without overrun.
fn empty(queue: &CompletionQueue) {
    while !matches!(queue.poll_one(), Ok(None)) {}
}

/// As many messages as make the completion queue of one side overrun.
fn overrun(context: &mut Context<'_>, pair: &Pair, side: Side) -> Outcome {
    let [sender, receiver] = &pair.ends;
    let (full, other) = match side {
        Side::Sender => (&sender.send_queue, &receiver.receive_queue),
        Side::Receiver => (&receiver.receive_queue, &sender.send_queue),
    };
    let room = full.capacity();
    if room >= 60 {
        return Err(Failure::not_applicable("a completion queue with less than 60 entries"));
    }
    let target = Memory::target(&receiver.domain, 64)?;
    for id in 0..=u64::from(room) {
        receiver.receive(id, &[target.whole()])?;
        sender.send(id, SendOperation::Send, &[])?;
        context.progress();
        empty(other);
    }
    context.rest();
    Ok(())
}

/// A reliable connection whose completion was lost cannot be trusted any more: it fails, and says so. The others go on,
/// as after any loss. (Soft-RoCE reports only the completion queue.)
fn lost(context: &mut Context<'_>, transport: Transport, side: Side) -> Outcome {
    let pair = Pair::new(context, &cramped(transport))?;
    overrun(context, &pair, side)?;
    let end = side as usize;
    let number = pair.ends[end].number();
    let fatal = of_queue_pair(AsyncEventKind::QueuePairFatal, number);
    if transport == RC {
        let failed = context.event("queue pair fatal", end, fatal).map(drop);
        let failed = failed.and_then(|()| pair.ends[end].is_in(QueuePairState::Error));
        return context.tolerate(failed);
    }
    context.no_event("queue pair fatal", end, fatal)?;
    pair.ends[1].is_in(QueuePairState::ReadyToSend)?;
    for end in &pair.ends {
        empty(&end.send_queue);
        empty(&end.receive_queue);
    }
    move_message(context, &pair, 0, Form::Send, &[50], &[50])
}

/// Of two queue pairs with one completion queue, the one that lost nothing has nothing to fear.
fn not_fatal_for_others(context: &mut Context<'_>) -> Outcome {
    let failing = Pair::new(context, &cramped(RC))?;
    let mut living = Pair::unconnected(context, &cramped(RC))?;
    let end: &mut End = &mut living.ends[1];
    end.receive_queue = failing.ends[1].receive_queue.clone();
    end.queue_pair = create(&end.domain, &end.send_queue, &end.receive_queue, &living.setup)?;
    living.meet()?;
    for end in [0, 1] {
        living.advance(end, QueuePairState::ReadyToSend)?;
    }
    overrun(context, &failing, Side::Receiver)?;
    living.ends[1].is_in(QueuePairState::ReadyToSend)?;
    empty(&failing.ends[1].receive_queue);
    // What a failed queue pair flushes comes into the same queue, so that only writes can be distinguished.
    move_message(context, &living, 0, Form::Write, &[500], &[])
}

/// The responder's program is notified of what its peer tried. (Soft-RoCE does not do this.)
fn is_told(context: &mut Context<'_>, pair: &Pair, kind: AsyncEventKind) -> Outcome {
    let event = context.event("error of the peer", 1, of_queue_pair(kind, pair.ends[1].number())).map(drop);
    context.tolerate(event)
}

fn wrong_key(context: &mut Context<'_>, attempt: Attempt) -> Outcome {
    let setup = open_setup(context, RC)?;
    let pair = Pair::new(context, &setup)?;
    let memory = Memory::new(&pair.ends[1].domain, 64, Access::LOCAL_WRITE | every_right(context)?)?;
    let at = memory.aligned(0);
    let wrong = RemoteMemory { key: memory.remote_key() ^ 0x00ff_ff00, ..memory.remote(at) };
    is_refused(context, &pair, attempt, wrong, 8, &memory)?;
    is_told(context, &pair, AsyncEventKind::QueuePairAccessError)
}

/// An atomic that is not aligned is not a valid request (IBTA 9.4.5).
fn unaligned(context: &mut Context<'_>) -> Outcome {
    let setup = open_setup(context, RC)?;
    let pair = Pair::new(context, &setup)?;
    let memory = Memory::new(&pair.ends[1].domain, 64, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    let local = Memory::target(&pair.ends[0].domain, 8)?;
    let remote = memory.remote(memory.aligned(0) + 4);
    pair.ends[0].send(1, SendOperation::FetchAndAdd { remote, add: 1 }, &[local.whole()])?;
    let done = context.completion("requester", &pair.ends[0].send_queue)?;
    equal("success of an atomic that is not aligned", false, done.is_success())?;
    memory.verify("memory of an atomic that was refused")?;
    is_told(context, &pair, AsyncEventKind::QueuePairRequestError)
}

fn dead_window(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let bound = Bound::new(context, RC, kind)?;
    bound.window.window.deallocate()?;
    bound.refuses_writes(context, &bound.pair)?;
    is_told(context, &bound.pair, AsyncEventKind::QueuePairAccessError)
}

fn beyond_the_last_slot(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, RC)?;
    let slotted = new_slotted(&pair.ends[1].domain, Access::REMOTE_WRITE)?;
    let bystander = Memory::target(&pair.ends[1].domain, 64)?;
    let remote = slotted.remote(NUMBERS, 0);
    is_refused(context, &pair, Attempt::Write, remote, 8, &bystander)?;
    is_told(context, &pair, AsyncEventKind::QueuePairAccessError)
}

/// Binding, using and freeing windows raises no event.
fn peace(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let mut bound = Bound::new(context, RC, kind)?;
    bound.takes_writes(context)?;
    empty_receives(&bound.pair.ends[1], 1)?;
    bound.pair.ends[0].send(1, SendOperation::Send, &[])?;
    context.completion("receiver", &bound.pair.ends[1].receive_queue)?;
    bound.window.window.deallocate()?;
    for end in [0, 1] {
        context.no_event("event in peace", end, |event| event.kind != AsyncEventKind::CommunicationEstablished)?;
    }
    Ok(())
}
