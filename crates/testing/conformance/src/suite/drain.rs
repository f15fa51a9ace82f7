//! Draining and flushing with every operation that a send queue takes (IBTA 10.3.1.5, 10.3.1.7): what a program waits
//! for before it lets go of memory.

use longhaul_verbs::{
    Access, AsyncEvent, AsyncEventKind, Capabilities, CompletionOperation, CompletionStatus, EventSource,
    QueuePairAttributes, QueuePairState, RemoteMemory, SendFlags, SendOperation, Transport,
};

use super::Test;
use super::attempts::{Attempt, is_refused, open_setup, pair_in_domain};
use super::context::Context;
use super::failure::{Outcome, equal, status};
use super::flush::all_flushed;
use super::memory::{Memory, pattern};
use super::pair::Pair;
use super::transfer::{empty_receives, test};
use super::windows::{BINDABLE, Kind, PART, REGION_BYTES, Window, part, window_test};

const RC: Transport = Transport::ReliableConnection;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in Transport::ALL {
        tests.push(test(transport, "drain/marker-comes-last", move |context| marker_comes_last(context, transport)));
        tests.push(test(transport, "drain/under-way", move |context| in_progress(context, transport)));
    }
    let all = Capabilities::READ | Capabilities::ATOMICS | Capabilities::INVALIDATE;
    tests.push(window_test(RC, Kind::Type2, "flush/every-operation", all, every_operation_is_flushed));
    let drained = Capabilities::SEND_QUEUE_DRAIN;
    tests.push(window_test(RC, Kind::Type2, "drain/bind-and-invalidate-wait", all | drained, bind_and_invalidate_wait));
    tests.push(Test::new(
        "rc/drain/reads-and-atomics-finish",
        RC.capability() | drained | Capabilities::READ | Capabilities::ATOMICS,
        reads_and_atomics_finish,
    ));
    tests
}

/// How programs drain: to ERR, then a request more in each queue; when that is flushed, all is.
fn marker_comes_last(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let end = &pair.ends[0];
    empty_receives(end, 20)?;
    // On a reliable connection these wait for the peer's receives; elsewhere they are done.
    for id in 0..20 {
        end.send(id, SendOperation::Send, &[])?;
    }
    end.go(QueuePairState::Error)?;
    end.receive(1000, &[])?;
    end.send(1000, SendOperation::Send, &[])?;
    all_flushed(context, "receives", &end.receive_queue, 0, 20)?;
    all_flushed(context, "the last receive", &end.receive_queue, 1000, 1)?;
    let sent = context.completions("sends", &end.send_queue, 21)?;
    for (id, completion) in (0..20).zip(&sent) {
        let expected = match completion.is_success() && transport != RC {
            true => CompletionStatus::Success,
            false => CompletionStatus::FlushedError,
        };
        status("sends", completion, id, expected)?;
    }
    status("the last send", &sent[20], 1000, CompletionStatus::FlushedError)?;
    context.no_completion("receives, after the last", &end.receive_queue)?;
    context.no_completion("sends, after the last", &end.send_queue)
}

/// In the middle of long messages in both directions: every request ends once, and memory is quiet when the last has
/// ended.
fn in_progress(context: &mut Context<'_>, transport: Transport) -> Outcome {
    for steps in [0, 1, 3] {
        let pair = Pair::of(context, transport)?;
        let length = if transport == Transport::UnreliableDatagram { context.mtu() } else { 256 << 10 };
        let header = pair.ends[0].header_bytes();
        let source = Memory::source(&pair.ends[0].domain, &pattern(1, length))?;
        let back = Memory::source(&pair.ends[1].domain, &pattern(2, length))?;
        let mut target = Memory::target(&pair.ends[0].domain, header + length)?;
        let there = Memory::target(&pair.ends[1].domain, header + length)?;
        for id in 0..4 {
            pair.ends[0].receive(id, &[target.whole()])?;
            pair.ends[1].receive(id, &[there.whole()])?;
        }
        for id in 0..4 {
            pair.ends[0].send(id, SendOperation::Send, &[source.whole()])?;
            pair.ends[1].send(id, SendOperation::Send, &[back.whole()])?;
        }
        for _ in 0..steps {
            context.progress();
        }
        let end = &pair.ends[0];
        end.go(QueuePairState::Error)?;
        end.send(4, SendOperation::Send, &[])?;
        end.receive(4, &[])?;
        for (what, queue) in [("sends", &end.send_queue), ("receives", &end.receive_queue)] {
            let mut has_failed = false;
            for (id, completion) in (0..).zip(context.completions(what, queue, 5)?) {
                has_failed |= !completion.is_success();
                let expected = if has_failed { CompletionStatus::FlushedError } else { CompletionStatus::Success };
                status(what, &completion, id, expected)?;
            }
            equal("success of the last request", true, has_failed)?;
        }
        target.accept(0..header + length);
        context.unchanged("memory of flushed receives", &target)?;
    }
    Ok(())
}

/// A request of each kind, behind a SEND that waits for its receive: all are flushed in order, none has been carried
/// out.
fn every_operation_is_flushed(context: &mut Context<'_>) -> Outcome {
    let setup = open_setup(context, RC)?;
    let pair = Pair::new(context, &setup)?;
    let [owner, end] = &pair.ends;
    let remote = Memory::new(&owner.domain, 64, Access::LOCAL_WRITE | setup.access)?;
    let at = remote.aligned(0);
    let place = remote.remote(at);
    let local = Memory::target(&end.domain, 8)?;
    let memory = Memory::new(&end.domain, REGION_BYTES, BINDABLE)?;
    let (bound, free) = (Window::new(&end.domain, Kind::Type2)?, Window::new(&end.domain, Kind::Type2)?);
    let bound_key = bound.bind(context, end, part(&memory, PART, Access::REMOTE_WRITE))?;
    let entry = [local.whole()];
    let mut id = 0;
    let mut post = |operation, entries| -> Outcome {
        id += 1;
        end.send(id - 1, operation, entries)
    };
    post(SendOperation::Send, &[])?;
    post(SendOperation::Write(place), &entry)?;
    post(SendOperation::Read(place), &entry)?;
    post(SendOperation::FetchAndAdd { remote: place, add: 1 }, &entry)?;
    post(SendOperation::CompareAndSwap { remote: place, compare: 0, swap: 1 }, &entry)?;
    post(SendOperation::LocalInvalidate(bound_key), &[])?;
    post(SendOperation::SendWithImmediate(3), &[])?;
    post(SendOperation::SendWithInvalidate(3), &[])?;
    post(SendOperation::WriteWithImmediate(place, 4), &entry)?;
    let free_key = free.post_bind(end, id, SendFlags::empty(), part(&memory, 400..500, Access::REMOTE_WRITE))?;
    context.no_completion("requests behind a send that waits", &end.send_queue)?;
    end.go(QueuePairState::Error)?;
    all_flushed(context, "every operation", &end.send_queue, 0, id as usize + 1)?;
    // What was in flight when the queue pair failed arrives, and still finds no receive.
    context.no_completion("a send that nobody waits for", &owner.receive_queue)?;
    empty_receives(owner, 3)?;
    context.unchanged("remote memory of flushed requests", &remote)?;
    local.verify("local memory of flushed requests")?;
    context.no_completion("receiver of flushed requests", &owner.receive_queue)?;
    let other = pair_in_domain(context, &setup, &end.domain)?;
    let key = RemoteMemory { key: free_key, ..memory.remote(400) };
    is_refused(context, &other, Attempt::Write, key, 8, &memory)
}

fn drain(end: &super::pair::End) -> Outcome {
    Ok(end.queue_pair.modify(&QueuePairAttributes {
        send_queue_drained_event: Some(true),
        ..QueuePairAttributes::to_state(QueuePairState::SendQueueDrained)
    })?)
}

/// Brings an end into SQD, and waits until its send queue has come to rest: before that a device need take no other
/// step.
pub(super) fn drain_to_the_end(context: &mut Context<'_>, pair: &Pair, end: usize) -> Outcome {
    drain(&pair.ends[end])?;
    context.event("drained", end, is_drained(&pair.ends[end]))?;
    pair.ends[end].is_in(QueuePairState::SendQueueDrained)
}

fn is_drained(end: &super::pair::End) -> impl Fn(&AsyncEvent) -> bool + use<> {
    let number = end.number();
    move |event| event.kind == AsyncEventKind::SendQueueDrained && event.source == EventSource::QueuePair(number)
}

/// What has begun is finished, and then it is reported; what comes later waits for RTS. (A device may take more of what
/// was posted before as begun; none takes what was posted in SQD.)
fn reads_and_atomics_finish(context: &mut Context<'_>) -> Outcome {
    let setup = open_setup(context, RC)?;
    let pair = Pair::new(context, &setup)?;
    let [end, owner] = &pair.ends;
    let mut remote = Memory::new(&owner.domain, 64, Access::LOCAL_WRITE | setup.access)?;
    let at = remote.aligned(0);
    remote.fill(at, &10_u64.to_ne_bytes());
    let local = Memory::target(&end.domain, 8)?;
    let entry = [local.whole()];
    end.send(0, SendOperation::FetchAndAdd { remote: remote.remote(at), add: 1 }, &entry)?;
    // Posting has begun it, or a step does.
    context.progress();
    drain(end)?;
    context.event("drained", 0, is_drained(end))?;
    let done = context.completion("atomic", &end.send_queue)?;
    status("atomic", &done, 0, CompletionStatus::Success)?;
    remote.expect(at, &11_u64.to_ne_bytes());
    remote.verify("memory of the atomic")?;
    end.send(1, SendOperation::FetchAndAdd { remote: remote.remote(at), add: 1 }, &entry)?;
    end.send(2, SendOperation::Read(remote.remote(at)), &entry)?;
    context.no_completion("requests posted in SQD", &end.send_queue)?;
    remote.verify("memory of an atomic that waits")?;
    end.go(QueuePairState::ReadyToSend)?;
    let done = context.completions("requests, back in RTS", &end.send_queue, 2)?;
    status("atomic", &done[0], 1, CompletionStatus::Success)?;
    status("READ", &done[1], 2, CompletionStatus::Success)?;
    equal("operation", CompletionOperation::Read, done[1].operation)?;
    equal("value read", 12_u64.to_ne_bytes().to_vec(), local.bytes(0..8))
}

/// Requests that touch no network wait in SQD like the others.
fn bind_and_invalidate_wait(context: &mut Context<'_>) -> Outcome {
    let setup = open_setup(context, RC)?;
    let pair = Pair::new(context, &setup)?;
    let owner = &pair.ends[1];
    let memory = Memory::new(&owner.domain, REGION_BYTES, BINDABLE)?;
    let window = Window::new(&owner.domain, Kind::Type2)?;
    drain(owner)?;
    context.event("drained", 1, is_drained(owner))?;
    let key = window.post_bind(owner, 1, SendFlags::SIGNALED, part(&memory, PART, Access::REMOTE_WRITE))?;
    owner.send(2, SendOperation::LocalInvalidate(key), &[])?;
    context.no_completion("requests posted in SQD", &owner.send_queue)?;
    owner.go(QueuePairState::ReadyToSend)?;
    let done = context.completions("requests, back in RTS", &owner.send_queue, 2)?;
    status("bind", &done[0], 1, CompletionStatus::Success)?;
    status("local invalidation", &done[1], 2, CompletionStatus::Success)?;
    let remote = RemoteMemory { key, ..memory.remote(PART.start) };
    is_refused(context, &pair, Attempt::Write, remote, 8, &memory)
}
