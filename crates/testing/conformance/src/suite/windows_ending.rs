//! How memory windows end: bound anew, bound to nothing, deallocated, with their queue pair (IBTA 10.6.7.2). A key that
//! is dead opens nothing from the moment at which its owner knows it.

use longhaul_verbs::{
    Access, Capabilities, CompletionStatus, DestroyError, RemoteMemory, SendFlags, SendOperation, Transport,
};

use super::Test;
use super::attempts::{Attempt, is_let, is_refused, open_setup, pair_in_domain};
use super::context::Context;
use super::failure::{Failure, Outcome, ensure, equal, refusal, status_among};
use super::memory::{Memory, pattern};
use super::pair::Pair;
use super::transfer::CONNECTED;
use super::windows::{BINDABLE, Bound, Kind, PART, Window, part, to_unbind, window_test};

const RC: Transport = Transport::ReliableConnection;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in CONNECTED {
        for kind in Kind::ALL {
            let mut add =
                |name: &str, needs: Capabilities, function: fn(&mut Context<'_>, Transport, Kind) -> Outcome| {
                    let run = move |context: &mut Context<'_>| function(context, transport, kind);
                    tests.push(window_test(transport, kind, name, needs, run));
                };
            let none = Capabilities::empty();
            add("end/bound-anew", to_unbind(kind), bound_anew);
            add("end/bound-to-nothing", to_unbind(kind), bound_to_nothing);
            add("end/many-times", to_unbind(kind), many_times);
            add("end/deallocated", none, deallocated);
            add("end/deallocated-while-a-peer-writes", none, deallocated_while_a_peer_writes);
            add("end/region-in-use", to_unbind(kind), region_in_use);
            add("end/region-free-after-deallocation", none, region_free_after_deallocation);
            add("end/queue-pair-destroyed", none, queue_pair_destroyed);
        }
        let name = "end/free-after-its-queue-pair";
        tests.push(window_test(transport, Kind::Type2, name, Capabilities::empty(), move |context| {
            free_after_its_queue_pair(context, transport)
        }));
        let name = "end/bound-to-no-bytes";
        tests.push(window_test(transport, Kind::Type2, name, Capabilities::empty(), move |context| {
            bound_to_no_bytes(context, transport)
        }));
        let name = "end/bound-anew-while-bound";
        tests.push(window_test(transport, Kind::Type2, name, Capabilities::empty(), move |context| {
            bound_anew_while_bound(context, transport)
        }));
    }
    tests.push(window_test(RC, Kind::Type1, "end/bound-anew-by-another-queue-pair", Capabilities::empty(), by_another));
    tests
}

/// Binding a window to another part makes the old key worthless, for the new part as for the old one.
fn bound_anew(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let elsewhere = 400..500;
    for old_key_at in [PART.start, elsewhere.start] {
        let mut bound = Bound::new(context, transport, kind)?;
        bound.takes_writes(context)?;
        let owner = &bound.pair.ends[1];
        if kind == Kind::Type2 {
            bound.window.unbind(context, owner, &bound.memory)?;
        }
        let binding = part(&bound.memory, elsewhere.clone(), Access::REMOTE_WRITE);
        let key = bound.window.bind(context, owner, binding)?;
        ensure(key != bound.key, || format!("expected another key after another bind, got {key:#x} again"))?;
        let remote = RemoteMemory { key, ..bound.memory.remote(elsewhere.start) };
        is_let(context, &bound.pair, Attempt::Write, remote, &mut bound.memory, elsewhere.clone())?;
        is_refused(context, &bound.pair, Attempt::Write, bound.at(old_key_at), 8, &bound.memory)?;
    }
    Ok(())
}

/// The old part is not reached through the new key either; a type 1 window may be bound anew by any queue pair of its
/// domain.
fn by_another(context: &mut Context<'_>) -> Outcome {
    let mut bound = Bound::new(context, RC, Kind::Type1)?;
    let other = pair_in_domain(context, &bound.pair.setup, &bound.pair.ends[1].domain)?;
    let binding = part(&bound.memory, 400..500, Access::REMOTE_WRITE);
    let key = bound.window.bind(context, &other.ends[1], binding)?;
    let remote = RemoteMemory { key, ..bound.memory.remote(400) };
    is_let(context, &bound.pair, Attempt::Write, remote, &mut bound.memory, 400..500)?;
    let old_part = RemoteMemory { key, ..bound.memory.remote(PART.start) };
    is_refused(context, &bound.pair, Attempt::Write, old_part, 8, &bound.memory)?;
    bound.refuses_writes(context, &other)
}

/// The specification wants a type 2 window to be invalidated before it is bound again, and Soft-RoCE insists on it;
/// RNICs bind it anew at once. In both cases no more than one key is good.
fn bound_anew_while_bound(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut bound = Bound::new(context, transport, Kind::Type2)?;
    let owner = &bound.pair.ends[1];
    let binding = part(&bound.memory, 400..500, Access::REMOTE_WRITE);
    let key = bound.window.post_bind(owner, 1, SendFlags::SIGNALED, binding)?;
    let done = context.completion("bind of a bound window", &owner.send_queue)?;
    let either = [CompletionStatus::Success, CompletionStatus::WindowBindError];
    status_among("bind of a bound window", &done, 1, &either)?;
    if done.is_success() {
        let remote = RemoteMemory { key, ..bound.memory.remote(400) };
        is_let(context, &bound.pair, Attempt::Write, remote, &mut bound.memory, 400..500)?;
        return is_refused(context, &bound.pair, Attempt::Write, bound.at(PART.start), 8, &bound.memory);
    }
    let other = pair_in_domain(context, &bound.pair.setup, &owner.domain)?;
    let remote = RemoteMemory { key, ..bound.memory.remote(400) };
    is_refused(context, &other, Attempt::Write, remote, 8, &bound.memory)
}

/// A bind of no bytes unbinds a type 2 window, or fails, as the specification has it (o10-37.2.40) and Soft-RoCE does.
/// In both cases its new key opens nothing, and in the first its old one neither.
fn bound_to_no_bytes(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let bound = Bound::new(context, transport, Kind::Type2)?;
    let owner = &bound.pair.ends[1];
    let binding = part(&bound.memory, PART.start..PART.start, Access::REMOTE_WRITE);
    let key = bound.window.post_bind(owner, 1, SendFlags::SIGNALED, binding)?;
    let done = context.completion("bind to no bytes", &owner.send_queue)?;
    let either = [CompletionStatus::Success, CompletionStatus::WindowBindError];
    status_among("bind to no bytes", &done, 1, &either)?;
    if done.is_success() {
        bound.refuses_writes(context, &bound.pair)?;
        // Nothing is bound to the region any more.
        return Ok(bound.memory.region().raw().deregister()?);
    }
    let other = pair_in_domain(context, &bound.pair.setup, &owner.domain)?;
    let remote = RemoteMemory { key, ..bound.memory.remote(PART.start) };
    is_refused(context, &other, Attempt::Write, remote, 8, &bound.memory)
}

fn bound_to_nothing(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let mut bound = Bound::new(context, transport, kind)?;
    bound.takes_writes(context)?;
    bound.window.unbind(context, &bound.pair.ends[1], &bound.memory)?;
    bound.refuses_writes(context, &bound.pair)
}

/// Every key of a window that is bound again and again is good while it is the last one. Only a type 1 window's old
/// keys can be tried without end; on a reliable connection the first refusal is the last.
fn many_times(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let mut bound = Bound::new(context, transport, kind)?;
    let mut old_keys = Vec::new();
    for round in 0..20 {
        bound.takes_writes(context).map_err(|failure| failure.context(format_args!("round {round}")))?;
        ensure(!old_keys.contains(&bound.key), || format!("expected a key not used before, got {:#x}", bound.key))?;
        old_keys.push(bound.key);
        let owner = &bound.pair.ends[1];
        if kind == Kind::Type2 {
            bound.window.unbind(context, owner, &bound.memory)?;
        }
        let binding = part(&bound.memory, PART, Access::REMOTE_WRITE);
        bound.key = bound.window.bind(context, owner, binding)?;
    }
    for old in old_keys {
        let remote = RemoteMemory { key: old, ..bound.memory.remote(PART.start) };
        is_refused(context, &bound.pair, Attempt::Write, remote, 8, &bound.memory)?;
        if transport == RC {
            return Ok(());
        }
    }
    bound.takes_writes(context)
}

fn deallocated(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let mut bound = Bound::new(context, transport, kind)?;
    bound.takes_writes(context)?;
    bound.window.window.deallocate()?;
    let error = refusal("a second deallocation", bound.window.window.deallocate())?;
    let fits = matches!(error, DestroyError::Gone | DestroyError::System(_));
    ensure(fits, || format!("second deallocation: expected Gone, got {error}"))?;
    bound.refuses_writes(context, &bound.pair)
}

/// When deallocation returns, no byte is still being written to memory, in the middle of a message too.
fn deallocated_while_a_peer_writes(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    const LENGTH: usize = 1 << 20;
    for steps in [0, 1, 3] {
        let setup = open_setup(context, transport)?;
        let pair = Pair::new(context, &setup)?;
        let [peer, owner] = &pair.ends;
        let mut memory = Memory::new(&owner.domain, LENGTH, BINDABLE)?;
        let window = Window::new(&owner.domain, kind)?;
        let key = window.bind(context, owner, part(&memory, 0..LENGTH, Access::REMOTE_WRITE))?;
        let source = Memory::source(&peer.domain, &pattern(3, LENGTH))?;
        let remote = RemoteMemory { key, ..memory.remote(0) };
        peer.send(1, SendOperation::Write(remote), &[source.whole()])?;
        for _ in 0..steps {
            context.progress();
        }
        window.window.deallocate()?;
        memory.accept(0..LENGTH);
        let sent = context.completion("peer", &peer.send_queue)?;
        let allowed = [CompletionStatus::Success, CompletionStatus::RemoteAccessError];
        status_among("peer", &sent, 1, &allowed)?;
        if transport == RC && sent.is_success() {
            equal("memory after a WRITE that succeeded", true, memory.bytes(0..LENGTH) == source.bytes(0..LENGTH))?;
        }
        context.unchanged("memory behind a deallocated window", &memory)?;
    }
    Ok(())
}

/// A region cannot go while a window is bound to it (IBTA 10.6.7.2.6). (libibverbs' providers leave this to the kernel,
/// and some kernels let it go.)
fn region_in_use(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let mut bound = Bound::new(context, transport, kind)?;
    let kept = match bound.memory.region().raw().deregister() {
        Err(DestroyError::InUse { users }) => equal("users of a region with one window", 1, users),
        Err(DestroyError::System(_)) => Ok(()),
        other => Err(Failure::new(format!("deregistering a region with a window: expected InUse, got {other:?}"))),
    };
    if kept.is_err() {
        return context.tolerate(kept);
    }
    bound.takes_writes(context)?;
    bound.window.unbind(context, &bound.pair.ends[1], &bound.memory)?;
    bound.memory.region().raw().deregister()?;
    bound.refuses_writes(context, &bound.pair)
}

fn region_free_after_deallocation(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let bound = Bound::new(context, transport, kind)?;
    bound.window.window.deallocate()?;
    bound.memory.region().raw().deregister()?;
    let other = pair_in_domain(context, &bound.pair.setup, &bound.pair.ends[1].domain)?;
    bound.refuses_writes(context, &other)
}

/// A type 1 window outlives the queue pair that bound it, a type 2 window is unusable from then on. Both can be
/// deallocated.
fn queue_pair_destroyed(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let mut bound = Bound::new(context, transport, kind)?;
    bound.takes_writes(context)?;
    let other = pair_in_domain(context, &bound.pair.setup, &bound.pair.ends[1].domain)?;
    bound.pair.ends[1].queue_pair.destroy()?;
    match kind {
        Kind::Type1 => {
            let remote = bound.at(PART.start);
            is_let(context, &other, Attempt::Write, remote, &mut bound.memory, PART)?;
        }
        Kind::Type2 => bound.refuses_writes(context, &other)?,
    }
    bound.window.window.deallocate()?;
    Ok(bound.memory.region().raw().deregister()?)
}

/// With its queue pair a type 2 window has lost what it was bound to: the region may go, and the window may be bound
/// anew.
fn free_after_its_queue_pair(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut bound = Bound::new(context, transport, Kind::Type2)?;
    bound.takes_writes(context)?;
    bound.pair.ends[1].queue_pair.destroy()?;
    let is_free = bound.memory.region().raw().deregister().map_err(Failure::from);
    if is_free.is_err() {
        return context.tolerate(is_free);
    }
    let other = pair_in_domain(context, &bound.pair.setup, &bound.pair.ends[1].domain)?;
    let mut memory = Memory::new(&other.ends[1].domain, PART.end, BINDABLE)?;
    let key = bound.window.bind(context, &other.ends[1], part(&memory, PART, Access::REMOTE_WRITE))?;
    let remote = RemoteMemory { key, ..memory.remote(PART.start) };
    is_let(context, &other, Attempt::Write, remote, &mut memory, PART)?;
    bound.window.window.deallocate()?;
    Ok(())
}
