//! Sizes of shared receive queues, and the event that says that one runs empty (IBTA 10.2.9.2, 11.2.3, 11.6.3.2).

use longhaul_verbs::{
    AsyncEvent, AsyncEventKind, Capabilities, CompletionStatus, EventSource, PostErrorKind, QueuePairLimits,
    QueuePairOptions, ReceiveRequest, SendOperation, SharedReceiveQueueAttributes, SharedReceiveQueueChange, Transport,
};

use super::Test;
use super::context::Context;
use super::failure::{Failure, Outcome, ensure, equal, refusal, status};
use super::pair::{Pair, Setup};
use super::shared_receive::{Shared, shared_test};

const RC: Transport = Transport::ReliableConnection;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in Transport::ALL {
        let mut add = |name: &str, function: fn(&mut Context<'_>, Transport) -> Outcome| {
            tests.push(shared_test(transport, name, move |context| function(context, transport)));
        };
        add("full", full);
        add("limit/once", limit_once);
        add("other-domain-is-refused", other_domain_is_refused);
    }
    tests.push(shared_test(RC, "limit/of-several-queue-pairs", limit_of_several));
    tests.push(shared_test(RC, "limit/not-below-it", limit_not_reached));
    tests.push(shared_test(RC, "limit/taken-back", limit_taken_back));
    tests.push(shared_test(RC, "limit/above-what-is-there", limit_above_what_is_there));
    tests.push(shared_test(RC, "resize/larger", larger));
    tests.push(shared_test(RC, "resize/not-below-what-waits", not_below_what_waits));
    let mut alone = |name: &str, function: fn(&mut Context<'_>) -> Outcome| {
        tests.push(Test::new(format!("shared-receive/{name}"), Capabilities::SHARED_RECEIVE_QUEUE, function));
    };
    alone("query", query);
    alone("too-many-entries", too_many_entries);
    alone("too-large", too_large);
    alone("limit-beyond-the-queue", limit_beyond_the_queue);
    alone("batch-stops-at-the-bad-one", batch_stops_at_the_bad_one);
    tests
}

fn small() -> SharedReceiveQueueAttributes {
    SharedReceiveQueueAttributes { requests: 8, entries: 1, limit: 0 }
}

fn limit(limit: u32) -> SharedReceiveQueueChange {
    SharedReceiveQueueChange { requests: None, limit: Some(limit) }
}

fn is_limit_of(shared: &Shared) -> impl Fn(&AsyncEvent) -> bool + use<> {
    let source = EventSource::SharedReceiveQueue(shared.queue.handle());
    move |event| event.kind == AsyncEventKind::SharedReceiveQueueLimitReached && event.source == source
}

/// As many receives fit as the queue says; one that is taken makes room for another.
fn full(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let shared = Shared::with(context, small())?;
    let pair = shared.pair(context, &Setup::new(transport))?;
    let depth = u64::from(shared.queue.query()?.requests);
    ensure(depth >= 8, || format!("expected room for 8 receives, got {depth}"))?;
    let local = [shared.memory.whole()];
    let batch: Vec<_> = (0..depth + 3).map(|id| ReceiveRequest { id, local: &local }).collect();
    let error = refusal("more receives than fit", shared.queue.post_receive(&batch))?;
    equal("index of the first receive that was not posted", depth as usize, error.index)?;
    let fits = matches!(error.kind, PostErrorKind::QueueFull { .. } | PostErrorKind::System(_));
    ensure(fits, || format!("expected QueueFull, got {error}"))?;
    shared.message(context, &pair, 0)?;
    shared.receives(depth..depth + 1)?;
    refusal("one receive more", shared.receives(99..100))?;
    for id in 1..=depth {
        shared.message(context, &pair, id)?;
    }
    context.no_completion("receiver, after all messages", &shared.completions)
}

/// The event comes when fewer receives are left than the limit says, once; then the limit is gone until it is set
/// again.
fn limit_once(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let shared = Shared::new(context)?;
    let pair = shared.pair(context, &Setup::new(transport))?;
    let reached = is_limit_of(&shared);
    let mut next = 0;
    for round in 0..3 {
        shared.receives(next..next + 6)?;
        shared.queue.modify(limit(4))?;
        equal("limit by query", 4, shared.queue.query()?.limit)?;
        // 5 and 4 are left: not fewer than 4.
        for id in next..next + 2 {
            shared.message(context, &pair, id)?;
        }
        context.no_event("limit reached too early", 1, &reached)?;
        shared.message(context, &pair, next + 2)?;
        context
            .event("limit reached", 1, &reached)
            .map_err(|failure| failure.context(format_args!("round {round}")))?;
        // Soft-RoCE and mlx5 answer 0 as well.
        equal("limit by query, after the event", 0, shared.queue.query()?.limit)?;
        for id in next + 3..next + 6 {
            shared.message(context, &pair, id)?;
        }
        context.no_event("limit reached twice", 1, &reached)?;
        next += 6;
    }
    Ok(())
}

fn limit_of_several(context: &mut Context<'_>) -> Outcome {
    let shared = Shared::new(context)?;
    let other = Shared::new(context)?;
    let setup = Setup::new(RC);
    let pairs = [shared.pair(context, &setup)?, shared.pair(context, &setup)?, shared.pair(context, &setup)?];
    shared.receives(0..3)?;
    other.receives(0..3)?;
    other.queue.modify(limit(2))?;
    shared.queue.modify(limit(1))?;
    let reached = is_limit_of(&shared);
    for (id, pair) in (0..).zip(&pairs) {
        context.no_event("limit reached too early", 1, &reached)?;
        shared.message(context, pair, id)?;
    }
    context.event("limit reached", 1, &reached)?;
    // What happens on one queue is nothing to another.
    context.no_event("limit of a queue that nobody uses", 1, is_limit_of(&other))?;
    equal("its limit", 2, other.queue.query()?.limit)
}

/// Posting enough in time keeps the event away.
fn limit_not_reached(context: &mut Context<'_>) -> Outcome {
    let shared = Shared::new(context)?;
    let pair = shared.pair(context, &Setup::new(RC))?;
    shared.receives(0..4)?;
    shared.queue.modify(limit(3))?;
    for id in 0..10 {
        shared.message(context, &pair, id)?;
        shared.receives(id + 4..id + 5)?;
    }
    context.no_event("limit that was never reached", 1, is_limit_of(&shared))?;
    equal("limit by query", 3, shared.queue.query()?.limit)
}

fn limit_taken_back(context: &mut Context<'_>) -> Outcome {
    let shared = Shared::new(context)?;
    let pair = shared.pair(context, &Setup::new(RC))?;
    shared.receives(0..3)?;
    shared.queue.modify(limit(2))?;
    shared.queue.modify(limit(0))?;
    for id in 0..3 {
        shared.message(context, &pair, id)?;
    }
    context.no_event("limit that was taken back", 1, is_limit_of(&shared))
}

/// A limit that is above what waits is reached at once, or with the next message: once in any case.
fn limit_above_what_is_there(context: &mut Context<'_>) -> Outcome {
    let shared = Shared::new(context)?;
    let pair = shared.pair(context, &Setup::new(RC))?;
    shared.receives(0..3)?;
    shared.queue.modify(limit(10))?;
    let reached = is_limit_of(&shared);
    shared.message(context, &pair, 0)?;
    context.event("limit reached", 1, &reached)?;
    shared.message(context, &pair, 1)?;
    context.no_event("limit reached twice", 1, &reached)
}

/// A queue pair takes receives of its own protection domain: its messages go into that domain's memory. (The kernel's
/// drivers leave this open.)
fn other_domain_is_refused(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let shared = Shared::new(context)?;
    let other = context.device(1).allocate_protection_domain()?;
    let limits = QueuePairLimits { inline_bytes: 0, ..QueuePairLimits::default() };
    let options = QueuePairOptions { limits, shared_receive_queue: Some(shared.queue.clone()), ..Default::default() };
    let made = other.create_queue_pair(transport, &shared.completions, &shared.completions, &options);
    let refused = refusal("a queue pair of another protection domain", made).map(drop);
    context.tolerate(refused)
}

/// A queue can be made larger while receives wait in it. (Some devices cannot.)
fn larger(context: &mut Context<'_>) -> Outcome {
    let shared = Shared::with(context, small())?;
    let pair = shared.pair(context, &Setup::new(RC))?;
    shared.receives(0..4)?;
    shared.message(context, &pair, 0)?;
    let resized = shared.queue.modify(SharedReceiveQueueChange { requests: Some(100), limit: None });
    if let Err(error) = resized {
        return context.tolerate(Err(error.into()));
    }
    let depth = u64::from(shared.queue.query()?.requests);
    ensure(depth >= 100, || format!("expected room for 100 receives, got {depth}"))?;
    shared.receives(4..depth + 1)?;
    refusal("one receive more", shared.receives(999..1000))?;
    for id in 1..=depth {
        shared.message(context, &pair, id)?;
    }
    Ok(())
}

/// A queue cannot be made smaller than what waits in it; whether or not it can otherwise, nothing is lost.
fn not_below_what_waits(context: &mut Context<'_>) -> Outcome {
    let shared = Shared::with(context, SharedReceiveQueueAttributes { requests: 64, ..small() })?;
    let pair = shared.pair(context, &Setup::new(RC))?;
    shared.receives(0..40)?;
    let resize = |requests| shared.queue.modify(SharedReceiveQueueChange { requests: Some(requests), limit: None });
    // A device may give more than it is asked for: then that is not below what waits.
    let least = match resize(39) {
        Ok(()) => 40,
        Err(_) => 64,
    };
    let depth = shared.queue.query()?.requests;
    ensure(depth >= least, || format!("expected room for {least} at least, got {depth}"))?;
    let smaller = resize(40).map_err(Failure::from);
    context.tolerate(smaller)?;
    for id in 0..40 {
        shared.message(context, &pair, id)?;
    }
    shared.receives(40..41)?;
    shared.message(context, &pair, 40)
}

fn query(context: &mut Context<'_>) -> Outcome {
    let asked = SharedReceiveQueueAttributes { requests: 20, entries: 3, limit: 0 };
    let shared = Shared::with(context, asked)?;
    let got = shared.queue.query()?;
    let enough = got.requests >= 20 && got.entries >= 3;
    ensure(enough, || format!("expected at least {asked:?}, got {got:?}"))?;
    equal("limit of a new queue", 0, got.limit)?;
    let second = Shared::with(context, asked)?;
    ensure(shared.queue.handle() != second.queue.handle(), || "expected two queues to have two handles".to_owned())
}

fn too_many_entries(context: &mut Context<'_>) -> Outcome {
    let shared = Shared::with(context, small())?;
    let most = shared.queue.query()?.entries as usize;
    let local = vec![shared.memory.entry(0..1); most + 1];
    shared.receive(0, &local[..most])?;
    let batch = [ReceiveRequest { id: 1, local: &local }];
    let error = refusal("a receive with too many entries", shared.queue.post_receive(&batch))?;
    let fits = matches!(error.kind, PostErrorKind::TooManyEntries { .. } | PostErrorKind::System(_));
    ensure(fits, || format!("expected TooManyEntries, got {error}"))
}

/// More than the device has is an answer, not a surprise.
fn too_large(context: &mut Context<'_>) -> Outcome {
    let domain = context.device(1).allocate_protection_domain()?;
    for wrong in [
        SharedReceiveQueueAttributes { requests: u32::MAX, ..small() },
        SharedReceiveQueueAttributes { entries: u32::MAX, ..small() },
    ] {
        refusal("a queue beyond all limits", domain.create_shared_receive_queue(wrong))?;
    }
    Ok(())
}

/// A limit that can never be undercut by a full queue is a mistake.
fn limit_beyond_the_queue(context: &mut Context<'_>) -> Outcome {
    let shared = Shared::with(context, small())?;
    let depth = shared.queue.query()?.requests;
    let set = shared.queue.modify(limit(depth + 1000));
    context.tolerate(refusal("a limit beyond the queue's size", set).map(drop))?;
    equal("limit after a refusal", 0, shared.queue.query()?.limit)
}

fn batch_stops_at_the_bad_one(context: &mut Context<'_>) -> Outcome {
    let shared = Shared::with(context, small())?;
    let most = shared.queue.query()?.entries as usize;
    let (good, bad) = (vec![shared.memory.whole()], vec![shared.memory.entry(0..1); most + 1]);
    let batch = [
        ReceiveRequest { id: 0, local: &good },
        ReceiveRequest { id: 1, local: &good },
        ReceiveRequest { id: 2, local: &bad },
        ReceiveRequest { id: 3, local: &good },
    ];
    let error = refusal("a batch with a bad receive", shared.queue.post_receive(&batch))?;
    equal("index of the bad receive", 2, error.index)?;
    let capabilities = context.capabilities()?;
    let transport = Transport::ALL.into_iter().find(|transport| capabilities.contains(transport.capability()));
    let Some(transport) = transport else {
        return Ok(());
    };
    let setup = Setup { receiver_not_ready_retry: 1, ..Setup::new(transport) };
    let pair: Pair = shared.pair(context, &setup)?;
    for id in 0..2 {
        shared.message(context, &pair, id)?;
    }
    pair.ends[0].send(5, SendOperation::Send, &[])?;
    context.no_completion("receiver, after the receives that were posted", &shared.completions)?;
    let sent = context.completion("sender", &pair.ends[0].send_queue)?;
    let expected = match transport {
        Transport::ReliableConnection => CompletionStatus::ReceiverNotReadyRetryExceededError,
        _ => CompletionStatus::Success,
    };
    status("sender", &sent, 5, expected)
}
