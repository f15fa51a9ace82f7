//! Binding memory windows (IBTA 10.6.7.2 and 11.4.1.1): a request of the send queue, in order with the others, that
//! fails when region, rights or range do not fit.

use std::ops::Range;

use longhaul_verbs::{
    Access, Capabilities, CompletionStatus, QueuePairState, SendFlags, SendOperation, Transport, WindowBinding,
};

use super::Test;
use super::attempts::{Attempt, is_let, is_refused, open_setup, pair_in_domain};
use super::context::{Context, prefix};
use super::failure::{Failure, Outcome, equal, refusal, status};
use super::flush::all_flushed;
use super::memory::Memory;
use super::pair::{End, Pair};
use super::transfer::{CONNECTED, empty_receives};
use super::windows::{BINDABLE, Bound, Kind, PART, REGION_BYTES, Window, part, window_test};

const RC: Transport = Transport::ReliableConnection;
const UD: Transport = Transport::UnreliableDatagram;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    let none = Capabilities::empty();
    for kind in Kind::ALL {
        for transport in CONNECTED {
            let mut add = |name: &str, function: fn(&mut Context<'_>, Transport, Kind) -> Outcome| {
                tests.push(window_test(transport, kind, name, none, move |context| function(context, transport, kind)));
            };
            add("bind/region-without-right-to-bind", region_without_right_to_bind);
            add("bind/remote-write-without-local-write", remote_write_without_local_write);
            add("bind/beyond-the-region", beyond_the_region);
            add("bind/region-of-another-domain", region_of_another_domain);
            add("bind/window-of-another-domain", window_of_another_domain);
            add("bind/region-deregistered", region_deregistered);
            add("bind/window-deallocated", window_deallocated);
            add("bind/unsignaled", unsignaled);
            add("bind/posted-in-error", posted_in_error);
            add("bind/other-kind-is-refused", other_kind_is_refused);
        }
        let mut reliable = |name: &str, function: fn(&mut Context<'_>, Kind) -> Outcome| {
            tests.push(window_test(RC, kind, name, none, move |context| function(context, kind)));
        };
        reliable("bind/in-order-with-sends", in_order_with_sends);
        reliable("bind/flushed-has-no-effect", flushed_has_no_effect);
        reliable("bind/window-deallocated-while-it-waits", window_deallocated_while_it_waits);
        reliable("bind/region-deregistered-while-it-waits", region_deregistered_while_it_waits);
        let name = "bind/refused";
        tests.push(window_test(UD, kind, name, none, move |context| refused_on_datagrams(context, kind)));
    }
    for kind in Kind::ALL {
        tests.push(window_test(RC, kind, "bind/null-region", Capabilities::NULL_REGION, move |context| {
            null_region(context, kind)
        }));
        tests.push(window_test(RC, kind, "bind/zero-based-window", Capabilities::ZERO_BASED, move |context| {
            zero_based_window(context, kind)
        }));
    }
    tests.push(window_test(RC, Kind::Type2, "bind/key-of-the-programs-choice", none, key_of_the_programs_choice));
    tests.push(Test::new(
        format!("{}/window-type-2/bind/atomic-rights-without-local-write", prefix(RC)),
        RC.capability() | Capabilities::ATOMICS | Capabilities::WINDOW_TYPE_2B,
        atomic_rights_without_local_write,
    ));
    tests
}

/// The bind is refused when it is posted, and the queue pair goes on; or it fails as a request, and the queue pair with
/// it.
fn bind_fails(context: &mut Context<'_>, end: &End, window: &Window, binding: WindowBinding<'_>) -> Outcome {
    match window.post_bind(end, 1, SendFlags::SIGNALED, binding) {
        Err(_) => end.is_in(QueuePairState::ReadyToSend),
        Ok(_) => failed(context, end, 1),
    }
}

/// Request `id` is a bind that failed: it stops the queue as every local error does.
fn failed(context: &mut Context<'_>, end: &End, id: u64) -> Outcome {
    let bound = context.completion("bind that cannot be", &end.send_queue)?;
    context.failed("bind that cannot be", &bound, id, &[CompletionStatus::WindowBindError])?;
    let expected = match end.queue_pair.transport() {
        Transport::ReliableConnection => QueuePairState::Error,
        _ => QueuePairState::SendQueueError,
    };
    let stopped = end.is_in(expected);
    // Devices have been seen that move an unreliable queue pair to ERR.
    match end.queue_pair.state() {
        QueuePairState::Error => context.tolerate(stopped)?,
        _ => stopped?,
    }
    end.send(id + 1, SendOperation::Send, &[])?;
    all_flushed(context, "request behind a failed bind", &end.send_queue, id + 1, 1)
}

/// The key that a failed bind would have given opens nothing, through no queue pair.
fn opens_nothing(context: &mut Context<'_>, pair: &Pair, window: &Window, memory: &Memory) -> Outcome {
    let other = pair_in_domain(context, &pair.setup, &pair.ends[1].domain)?;
    let remote = longhaul_verbs::RemoteMemory { key: window.window.remote_key(), ..memory.remote(PART.start) };
    is_refused(context, &other, Attempt::Write, remote, 8, memory)
}

/// Binding this part of a region with these rights fails.
fn cannot_bind(
    context: &mut Context<'_>,
    (transport, kind): (Transport, Kind),
    region_rights: Access,
    range: Range<usize>,
    rights: Access,
) -> Outcome {
    let setup = open_setup(context, transport)?;
    let pair = Pair::new(context, &setup)?;
    let memory = Memory::new(&pair.ends[1].domain, REGION_BYTES, region_rights)?;
    let window = Window::new(&pair.ends[1].domain, kind)?;
    bind_fails(context, &pair.ends[1], &window, part(&memory, range, rights))?;
    opens_nothing(context, &pair, &window, &memory)
}

fn region_without_right_to_bind(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let region_rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    cannot_bind(context, (transport, kind), region_rights, PART, Access::REMOTE_WRITE)
}

/// A window cannot give a right to write that its region's owner does not have (IBTA C10-74). Reading needs no right of
/// the owner.
fn remote_write_without_local_write(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    cannot_bind(context, (transport, kind), Access::WINDOW_BIND, PART, Access::REMOTE_WRITE)?;
    if !context.capabilities()?.contains(Capabilities::READ) || transport != RC {
        return Ok(());
    }
    let mut bound = Bound::with(context, transport, kind, Access::REMOTE_READ, Access::WINDOW_BIND)?;
    let remote = bound.at(PART.start);
    is_let(context, &bound.pair, Attempt::Read, remote, &mut bound.memory, PART)
}

fn atomic_rights_without_local_write(context: &mut Context<'_>) -> Outcome {
    cannot_bind(context, (RC, Kind::Type2), Access::WINDOW_BIND, PART, Access::REMOTE_ATOMIC)
}

/// The whole part must lie in the region (IBTA C10-75).
fn beyond_the_region(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let setup = open_setup(context, transport)?;
    for case in 0..5 {
        let pair = Pair::new(context, &setup)?;
        let memory = Memory::new(&pair.ends[1].domain, REGION_BYTES, BINDABLE)?;
        let window = Window::new(&pair.ends[1].domain, kind)?;
        let (start, end) = (memory.region_start(), memory.region_end());
        let (what, address, length) = match case {
            0 => ("begins before it", start - 1, 16),
            1 => ("ends behind it", end - 15, 16),
            2 => ("is longer than it", start, end - start + 1),
            3 => ("is elsewhere", end + 4096, 16),
            _ => ("wraps around", start, u64::MAX),
        };
        let binding = WindowBinding { address, length, ..part(&memory, PART, Access::REMOTE_WRITE) };
        bind_fails(context, &pair.ends[1], &window, binding)
            .and_then(|()| opens_nothing(context, &pair, &window, &memory))
            .map_err(|failure| failure.context(format_args!("a part that {what}")))?;
    }
    Ok(())
}

fn region_of_another_domain(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let setup = open_setup(context, transport)?;
    let pair = Pair::new(context, &setup)?;
    let other = context.device(1).allocate_protection_domain()?;
    let memory = Memory::new(&other, REGION_BYTES, BINDABLE)?;
    let window = Window::new(&pair.ends[1].domain, kind)?;
    bind_fails(context, &pair.ends[1], &window, part(&memory, PART, Access::REMOTE_WRITE))?;
    opens_nothing(context, &pair, &window, &memory)
}

/// A queue pair binds windows of its own protection domain (IBTA C10-72), but for type 2A, whose windows are their
/// queue pair's.
fn window_of_another_domain(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let setup = open_setup(context, transport)?;
    let pair = Pair::new(context, &setup)?;
    let other = context.device(1).allocate_protection_domain()?;
    let memory = Memory::new(&pair.ends[1].domain, REGION_BYTES, BINDABLE)?;
    let window = Window::new(&other, kind)?;
    if kind == Kind::Type2 && context.device_attributes(1)?.capabilities.contains(Capabilities::WINDOW_TYPE_2A) {
        return Ok(());
    }
    bind_fails(context, &pair.ends[1], &window, part(&memory, PART, Access::REMOTE_WRITE))?;
    opens_nothing(context, &pair, &window, &memory)
}

/// The null region is for local use, and has nothing that a window could open.
fn null_region(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let setup = open_setup(context, RC)?;
    let pair = Pair::new(context, &setup)?;
    let null = pair.ends[1].domain.allocate_null_region()?;
    let memory = Memory::new(&pair.ends[1].domain, REGION_BYTES, BINDABLE)?;
    let window = Window::new(&pair.ends[1].domain, kind)?;
    let binding = WindowBinding { region: &**null.raw(), ..part(&memory, PART, Access::REMOTE_WRITE) };
    bind_fails(context, &pair.ends[1], &window, binding)?;
    opens_nothing(context, &pair, &window, &memory)
}

/// Through a zero-based window peers count from its first byte. Only type 2 has them (IBTA o10-36.2.2).
fn zero_based_window(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let setup = open_setup(context, RC)?;
    let pair = Pair::new(context, &setup)?;
    let mut memory = Memory::new(&pair.ends[1].domain, REGION_BYTES, BINDABLE)?;
    let window = Window::new(&pair.ends[1].domain, kind)?;
    let binding = part(&memory, PART, Access::REMOTE_WRITE | Access::ZERO_BASED);
    if kind == Kind::Type1 {
        bind_fails(context, &pair.ends[1], &window, binding)?;
        return opens_nothing(context, &pair, &window, &memory);
    }
    let key = match window.bind(context, &pair.ends[1], binding) {
        Ok(key) => key,
        // Not every device has them.
        Err(failure) => return context.tolerate(Err(failure)),
    };
    let at = |address| longhaul_verbs::RemoteMemory { address, key };
    is_let(context, &pair, Attempt::Write, at(0), &mut memory, PART)?;
    is_let(context, &pair, Attempt::Write, at(255), &mut memory, PART.end - 1..PART.end)?;
    is_refused(context, &pair, Attempt::Write, at(255), 2, &memory)
}

fn region_deregistered(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let setup = open_setup(context, transport)?;
    let pair = Pair::new(context, &setup)?;
    let memory = Memory::new(&pair.ends[1].domain, REGION_BYTES, BINDABLE)?;
    let window = Window::new(&pair.ends[1].domain, kind)?;
    memory.region().raw().deregister()?;
    bind_fails(context, &pair.ends[1], &window, part(&memory, PART, Access::REMOTE_WRITE))?;
    opens_nothing(context, &pair, &window, &memory)
}

fn window_deallocated(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let setup = open_setup(context, transport)?;
    let pair = Pair::new(context, &setup)?;
    let memory = Memory::new(&pair.ends[1].domain, REGION_BYTES, BINDABLE)?;
    let window = Window::new(&pair.ends[1].domain, kind)?;
    window.window.deallocate()?;
    bind_fails(context, &pair.ends[1], &window, part(&memory, PART, Access::REMOTE_WRITE))?;
    opens_nothing(context, &pair, &window, &memory)
}

/// As every request, a bind makes a completion on success only when it is asked for one.
fn unsignaled(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let setup = open_setup(context, transport)?;
    let pair = Pair::new(context, &setup)?;
    let owner = &pair.ends[1];
    let mut memory = Memory::new(&owner.domain, REGION_BYTES, BINDABLE)?;
    let window = Window::new(&owner.domain, kind)?;
    let binding = part(&memory, PART, Access::REMOTE_WRITE);
    let key = window.post_bind(owner, 1, SendFlags::empty(), binding)?;
    context.no_completion("unsignalled bind", &owner.send_queue)?;
    let remote = longhaul_verbs::RemoteMemory { key, ..memory.remote(PART.start) };
    is_let(context, &pair, Attempt::Write, remote, &mut memory, PART)
}

fn posted_in_error(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let setup = open_setup(context, transport)?;
    let pair = Pair::new(context, &setup)?;
    let owner = &pair.ends[1];
    let memory = Memory::new(&owner.domain, REGION_BYTES, BINDABLE)?;
    let window = Window::new(&owner.domain, kind)?;
    owner.go(QueuePairState::Error)?;
    window.post_bind(owner, 1, SendFlags::empty(), part(&memory, PART, Access::REMOTE_WRITE))?;
    all_flushed(context, "bind posted in ERR", &owner.send_queue, 1, 1)?;
    opens_nothing(context, &pair, &window, &memory)?;
    // Nothing is bound to the region, so it can go.
    Ok(memory.region().raw().deregister()?)
}

/// Type 1 windows are bound by a call, type 2 windows by a request.
fn other_kind_is_refused(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let setup = open_setup(context, transport)?;
    let pair = Pair::new(context, &setup)?;
    let owner = &pair.ends[1];
    let memory = Memory::new(&owner.domain, REGION_BYTES, BINDABLE)?;
    let window = Window::new(&owner.domain, kind)?;
    let binding = part(&memory, PART, Access::REMOTE_WRITE);
    match kind {
        Kind::Type2 => {
            let bound = window.window.bind(&owner.queue_pair, 1, SendFlags::SIGNALED, &binding);
            refusal("a type 2 window bound by the call for type 1", bound)?;
        }
        Kind::Type1 => {
            let key = window.window.remote_key();
            if owner.queue_pair.post_send(&[window.request(1, key, binding)]).is_ok() {
                failed(context, owner, 1)?;
            }
        }
    }
    opens_nothing(context, &pair, &window, &memory)
}

/// The usual order: bind, then send the peer the key, both posted together. A peer that has the message may use the
/// key.
fn in_order_with_sends(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let setup = open_setup(context, RC)?;
    let pair = Pair::new(context, &setup)?;
    let [peer, owner] = &pair.ends;
    let mut memory = Memory::new(&owner.domain, REGION_BYTES, BINDABLE)?;
    let window = Window::new(&owner.domain, kind)?;
    let message = Memory::target(&peer.domain, 4)?;
    for round in 0..4 {
        peer.receive(1, &[message.whole()])?;
        let binding = part(&memory, PART, Access::REMOTE_WRITE);
        let key = window.post_bind(owner, 2, SendFlags::empty(), binding)?;
        let request = owner.request(3, SendOperation::Send, &[]);
        owner.queue_pair.post_send_inline(&request, &key.to_be_bytes())?;
        let received = context.completion("peer", &peer.receive_queue)?;
        status("peer", &received, 1, CompletionStatus::Success)?;
        let heard = message.bytes(0..4).try_into().map(u32::from_be_bytes);
        let heard = heard.map_err(|_| Failure::new("a key is of four bytes"))?;
        equal("key that the peer received", key, heard)?;
        let remote = longhaul_verbs::RemoteMemory { key: heard, ..memory.remote(PART.start) };
        is_let(context, &pair, Attempt::Write, remote, &mut memory, PART)
            .map_err(|failure| failure.context(format_args!("round {round}")))?;
        let sent = context.completion("owner", &owner.send_queue)?;
        status("owner", &sent, 3, CompletionStatus::Success)?;
        if kind == Kind::Type2 {
            if !context.capabilities()?.contains(Capabilities::INVALIDATE) {
                return Ok(());
            }
            window.unbind(context, owner, &memory)?;
        }
    }
    Ok(())
}

/// A pair whose second end has a SEND waiting for the first end's receive, and a bind behind it.
struct Waiting {
    window: Window,
    memory: Memory,
    key: u32,
    // Goes last: a window may keep the queue pair through which it was bound.
    pair: Pair,
}

impl Waiting {
    fn new(context: &mut Context<'_>, kind: Kind) -> Outcome<Self> {
        let setup = open_setup(context, RC)?;
        let pair = Pair::new(context, &setup)?;
        let owner = &pair.ends[1];
        let memory = Memory::new(&owner.domain, REGION_BYTES, BINDABLE)?;
        let window = Window::new(&owner.domain, kind)?;
        owner.send(1, SendOperation::Send, &[])?;
        let binding = part(&memory, PART, Access::REMOTE_WRITE);
        let key = window.post_bind(owner, 2, SendFlags::SIGNALED, binding)?;
        Ok(Waiting { pair, memory, window, key })
    }

    /// The SEND gets its receive and is done.
    fn go_on(&self, context: &mut Context<'_>) -> Outcome {
        let [peer, owner] = &self.pair.ends;
        empty_receives(peer, 1)?;
        let sent = context.completion("send before the bind", &owner.send_queue)?;
        status("send before the bind", &sent, 1, CompletionStatus::Success)
    }
}

/// A bind that was flushed has not been carried out, and is not later.
fn flushed_has_no_effect(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let waiting = Waiting::new(context, kind)?;
    let owner = &waiting.pair.ends[1];
    context.no_completion("bind behind a send that waits", &owner.send_queue)?;
    owner.go(QueuePairState::Error)?;
    all_flushed(context, "send and bind", &owner.send_queue, 1, 2)?;
    let other = pair_in_domain(context, &waiting.pair.setup, &owner.domain)?;
    let remote = longhaul_verbs::RemoteMemory { key: waiting.key, ..waiting.memory.remote(PART.start) };
    is_refused(context, &other, Attempt::Write, remote, 8, &waiting.memory)?;
    Ok(waiting.memory.region().raw().deregister()?)
}

/// What a waiting bind is about may be gone when its turn comes. (A device may also keep it from going.)
fn window_deallocated_while_it_waits(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let waiting = Waiting::new(context, kind)?;
    if waiting.window.window.deallocate().is_err() {
        return waiting.go_on(context);
    }
    waiting.go_on(context)?;
    failed(context, &waiting.pair.ends[1], 2)?;
    opens_nothing(context, &waiting.pair, &waiting.window, &waiting.memory)
}

fn region_deregistered_while_it_waits(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let waiting = Waiting::new(context, kind)?;
    if waiting.memory.region().raw().deregister().is_err() {
        return waiting.go_on(context);
    }
    waiting.go_on(context)?;
    failed(context, &waiting.pair.ends[1], 2)?;
    opens_nothing(context, &waiting.pair, &waiting.window, &waiting.memory)
}

/// The lowest byte of a type 2 window's key is the program's.
fn key_of_the_programs_choice(context: &mut Context<'_>) -> Outcome {
    for chosen in [0x00, 0x5a, 0xff] {
        let setup = open_setup(context, RC)?;
        let pair = Pair::new(context, &setup)?;
        let owner = &pair.ends[1];
        let mut memory = Memory::new(&owner.domain, REGION_BYTES, BINDABLE)?;
        let window = Window::new(&owner.domain, Kind::Type2)?;
        let key = window.window.remote_key() & !0xff | chosen;
        let binding = part(&memory, PART, Access::REMOTE_WRITE);
        owner.queue_pair.post_send(&[window.request(1, key, binding)])?;
        let bound = context.completion("bind", &owner.send_queue)?;
        status("bind", &bound, 1, CompletionStatus::Success)?;
        let remote = longhaul_verbs::RemoteMemory { key, ..memory.remote(PART.start) };
        is_let(context, &pair, Attempt::Write, remote, &mut memory, PART)?;
        let other = longhaul_verbs::RemoteMemory { key: key ^ 0x11, ..remote };
        is_refused(context, &pair, Attempt::Write, other, 8, &memory)?;
    }
    Ok(())
}

/// Datagrams have no remote memory, and so nothing to bind (IBTA table 112).
fn refused_on_datagrams(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let pair = Pair::of(context, UD)?;
    let owner = &pair.ends[1];
    let memory = Memory::new(&owner.domain, REGION_BYTES, BINDABLE)?;
    let window = Window::new(&owner.domain, kind)?;
    let binding = part(&memory, PART, Access::REMOTE_WRITE);
    refusal("a bind", window.post_bind(owner, 1, SendFlags::SIGNALED, binding))?;
    context.no_completion("refused bind", &owner.send_queue)?;
    owner.is_in(QueuePairState::ReadyToSend)
}
