//! Invalidation: a key is taken back by a request of its own side, or by a SEND of the peer (IBTA 10.6.7.2.4, 11.4.1.1
//! and 9.4.1.1.3). For user programs that is the key of a type 2 window; keys of regions and of type 1 windows stay.

use longhaul_verbs::{
    Access, Capabilities, CompletionOperation, CompletionStatus, PostErrorKind, QueuePairState, RemoteMemory,
    SendFlags, SendOperation, SendRequest, Transport,
};

use super::Test;
use super::attempts::{Attempt, is_let, open_setup, pair_in_domain};
use super::context::{Context, prefix};
use super::events::Watched;
use super::failure::{Failure, Outcome, ensure, equal, refusal, status};
use super::flush::all_flushed;
use super::memory::{Memory, pattern};
use super::pair::{End, Pair};
use super::transfer::{CONNECTED, empty_receives, send_with_flags, test};
use super::windows::{BINDABLE, Bound, Kind, PART, Window, part, window_test};

const RC: Transport = Transport::ReliableConnection;
const INVALIDATE: Capabilities = Capabilities::INVALIDATE;

/// Keys that cannot be invalidated: a key, and memory with what it still opens, if it opens anything.
type Stubborn = (&'static str, Capabilities, fn(&mut Context<'_>, &Pair) -> Outcome<Kept>);

/// A key, and what has to stay alive behind it.
struct Kept {
    key: u32,
    _window: Option<Window>,
    /// What the key still opens, and where.
    memory: Option<(Memory, usize)>,
    _slotted: Option<longhaul_verbs::SlottedRegion>,
}

impl Kept {
    fn nothing(key: u32) -> Self {
        Kept { key, memory: None, _window: None, _slotted: None }
    }
}

const STUBBORN: [Stubborn; 6] = [
    ("unknown-key", Capabilities::empty(), |_, _| Ok(Kept::nothing(0x00ab_cd00))),
    ("region", Capabilities::empty(), |_, pair| {
        let memory = Memory::target(&pair.ends[1].domain, 64)?;
        Ok(Kept { memory: Some((memory, 0)), ..Kept::nothing(0) }.with_region_key())
    }),
    ("window-type-1", Capabilities::WINDOW_TYPE_1, |context, pair| {
        let memory = Memory::new(&pair.ends[1].domain, 512, BINDABLE)?;
        let window = Window::new(&pair.ends[1].domain, Kind::Type1)?;
        let key = window.bind(context, &pair.ends[1], part(&memory, PART, Access::REMOTE_WRITE))?;
        Ok(Kept { memory: Some((memory, PART.start)), _window: Some(window), ..Kept::nothing(key) })
    }),
    ("window-not-bound", Capabilities::empty(), |_, pair| {
        let window = Window::new(&pair.ends[1].domain, Kind::Type2)?;
        Ok(Kept { _window: Some(window), ..Kept::nothing(0) }.with_window_key())
    }),
    ("window-invalidated-before", Capabilities::empty(), |context, pair| {
        let memory = Memory::new(&pair.ends[1].domain, 512, BINDABLE)?;
        let window = Window::new(&pair.ends[1].domain, Kind::Type2)?;
        let key = window.bind(context, &pair.ends[1], part(&memory, PART, Access::REMOTE_WRITE))?;
        window.unbind(context, &pair.ends[1], &memory)?;
        Ok(Kept { _window: Some(window), ..Kept::nothing(key) })
    }),
    ("slotted-region", Capabilities::SLOTTED_REGION, |_, pair| {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let slotted = pair.ends[1].domain.allocate_slotted_region(4, 4096, access)?;
        Ok(Kept { _slotted: Some(slotted.clone()), ..Kept::nothing(slotted.remote_key()) })
    }),
];

impl Kept {
    fn with_region_key(self) -> Self {
        let key = self.memory.as_ref().map_or(0, |(memory, _)| memory.remote_key());
        Kept { key, ..self }
    }

    fn with_window_key(self) -> Self {
        let key = self._window.as_ref().map_or(0, |window| window.window.remote_key());
        Kept { key, ..self }
    }

    /// What the key opened before it still does, through another queue pair of the same protection domain.
    fn still_opens(&mut self, context: &mut Context<'_>, pair: &Pair) -> Outcome {
        let key = self.key;
        let Some((memory, at)) = &mut self.memory else {
            return Ok(());
        };
        let other = pair_in_domain(context, &pair.setup, &pair.ends[1].domain)?;
        let (remote, range) = (RemoteMemory { key, ..memory.remote(*at) }, *at..*at + 8);
        is_let(context, &other, Attempt::Write, remote, memory, range)
            .map_err(|failure| failure.context("after an invalidation that had to fail"))
    }
}

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in CONNECTED {
        let mut add = |name: &str, function: fn(&mut Context<'_>, Transport) -> Outcome| {
            let run = move |context: &mut Context<'_>| function(context, transport);
            tests.push(window_test(transport, Kind::Type2, name, INVALIDATE, run));
        };
        add("local-invalidate/key-is-dead", key_is_dead);
        add("local-invalidate/window-can-be-bound-again", window_can_be_bound_again);
        add("local-invalidate/while-a-peer-writes", while_a_peer_writes);
        add("local-invalidate/unsignaled", unsignaled);
        add("local-invalidate/posted-in-error", posted_in_error);
        add("local-invalidate/bound-through-another-queue-pair", bound_through_another_queue_pair);
    }
    for (case, needs, make) in STUBBORN {
        let name = format!("local-invalidate/{case}");
        tests.push(window_test(RC, Kind::Type2, &name, INVALIDATE | needs, move |context| {
            cannot_be_invalidated_here(context, make)
        }));
        let name = format!("send-with-invalidate/{case}");
        tests.push(window_test(RC, Kind::Type2, &name, INVALIDATE | needs, move |context| {
            cannot_be_invalidated_by_a_peer(context, make)
        }));
    }
    let mut reliable = |name: &str, needs: Capabilities, function: fn(&mut Context<'_>) -> Outcome| {
        tests.push(window_test(RC, Kind::Type2, name, INVALIDATE | needs, function));
    };
    let none = Capabilities::empty();
    reliable("local-invalidate/flushed-has-no-effect", none, flushed_has_no_effect);
    reliable("local-invalidate/in-order", none, in_order);
    reliable("send-with-invalidate/key-is-dead", none, dead_by_a_peer);
    reliable("send-with-invalidate/sizes", none, sizes);
    reliable("send-with-invalidate/window-can-be-bound-again", none, bound_again_after_a_peer);
    reliable("send-with-invalidate/region-is-free-again", none, region_is_free_again);
    reliable("send-with-invalidate/waits-for-a-receive", none, waits_for_a_receive);
    reliable("send-with-invalidate/window-of-another-queue-pair", none, window_of_another_queue_pair);
    reliable("send-with-invalidate/solicited", Capabilities::COMPLETION_CHANNEL, solicited);
    for transport in [Transport::UnreliableConnection, Transport::UnreliableDatagram] {
        tests.push(Test::new(
            format!("{}/send-with-invalidate/refused", prefix(transport)),
            transport.capability() | INVALIDATE,
            move |context| send_is_refused(context, transport),
        ));
    }
    tests.push(test(Transport::UnreliableDatagram, "local-invalidate/refused", local_is_refused));
    tests
}

/// Posts a local invalidation and waits for it.
fn invalidate(context: &mut Context<'_>, end: &End, key: u32) -> Outcome {
    end.send(0x1a, SendOperation::LocalInvalidate(key), &[])?;
    let done = context.completion("local invalidation", &end.send_queue)?;
    status("local invalidation", &done, 0x1a, CompletionStatus::Success)?;
    equal("operation", CompletionOperation::LocalInvalidate, done.operation)?;
    equal("queue pair", end.number(), done.queue_pair)
}

fn key_is_dead(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut bound = Bound::new(context, transport, Kind::Type2)?;
    bound.takes_writes(context)?;
    invalidate(context, &bound.pair.ends[1], bound.key)?;
    bound.refuses_writes(context, &bound.pair)?;
    // Nothing is bound to the region any more.
    Ok(bound.memory.region().raw().deregister()?)
}

fn window_can_be_bound_again(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut bound = Bound::new(context, transport, Kind::Type2)?;
    for _ in 0..5 {
        invalidate(context, &bound.pair.ends[1], bound.key)?;
        let binding = part(&bound.memory, PART, Access::REMOTE_WRITE);
        bound.key = bound.window.bind(context, &bound.pair.ends[1], binding)?;
        bound.takes_writes(context)?;
    }
    Ok(())
}

/// When the completion is there, no byte is still being written to memory, in the middle of a message too.
fn while_a_peer_writes(context: &mut Context<'_>, transport: Transport) -> Outcome {
    const LENGTH: usize = 1 << 20;
    for steps in [0, 1, 3] {
        let setup = open_setup(context, transport)?;
        let pair = Pair::new(context, &setup)?;
        let [peer, owner] = &pair.ends;
        let mut memory = Memory::new(&owner.domain, LENGTH, BINDABLE)?;
        let window = Window::new(&owner.domain, Kind::Type2)?;
        let key = window.bind(context, owner, part(&memory, 0..LENGTH, Access::REMOTE_WRITE))?;
        let source = Memory::source(&peer.domain, &pattern(4, LENGTH))?;
        let remote = RemoteMemory { key, ..memory.remote(0) };
        peer.send(1, SendOperation::Write(remote), &[source.whole()])?;
        for _ in 0..steps {
            context.progress();
        }
        owner.send(2, SendOperation::LocalInvalidate(key), &[])?;
        let done = context.completion("local invalidation", &owner.send_queue)?;
        memory.accept(0..LENGTH);
        // A WRITE refused meanwhile takes a reliable queue pair to ERR, and its requests with it.
        if done.status != CompletionStatus::FlushedError {
            status("local invalidation", &done, 2, CompletionStatus::Success)?;
        }
        context.unchanged("memory behind an invalidated key", &memory)?;
    }
    Ok(())
}

fn unsignaled(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let bound = Bound::new(context, transport, Kind::Type2)?;
    let owner = &bound.pair.ends[1];
    send_with_flags(owner, 1, SendOperation::LocalInvalidate(bound.key), &[], SendFlags::empty())?;
    context.no_completion("unsignalled local invalidation", &owner.send_queue)?;
    bound.refuses_writes(context, &bound.pair)
}

fn posted_in_error(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let bound = Bound::new(context, transport, Kind::Type2)?;
    let owner = &bound.pair.ends[1];
    owner.go(QueuePairState::Error)?;
    owner.send(1, SendOperation::LocalInvalidate(bound.key), &[])?;
    all_flushed(context, "local invalidation posted in ERR", &owner.send_queue, 1, 1)
}

/// A window belongs to the queue pair that bound it; the specification lets others of its domain invalidate it or not.
/// If one has, the key is dead; if not, it lives.
fn bound_through_another_queue_pair(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut bound = Bound::new(context, transport, Kind::Type2)?;
    let other = pair_in_domain(context, &bound.pair.setup, &bound.pair.ends[1].domain)?;
    other.ends[1].send(1, SendOperation::LocalInvalidate(bound.key), &[])?;
    let done = context.completion("local invalidation", &other.ends[1].send_queue)?;
    if done.is_success() {
        return bound.refuses_writes(context, &bound.pair);
    }
    context.tolerate(status("local invalidation", &done, 1, CompletionStatus::WindowBindError))?;
    bound.takes_writes(context)
}

/// What cannot be invalidated stays as it is, and the request fails.
fn cannot_be_invalidated_here(
    context: &mut Context<'_>,
    make: fn(&mut Context<'_>, &Pair) -> Outcome<Kept>,
) -> Outcome {
    let setup = open_setup(context, RC)?;
    let pair = Pair::new(context, &setup)?;
    let mut kept = make(context, &pair)?;
    let owner = &pair.ends[1];
    owner.send(1, SendOperation::LocalInvalidate(kept.key), &[])?;
    owner.send(2, SendOperation::Send, &[])?;
    let done = context.completions("local invalidation that cannot be", &owner.send_queue, 2)?;
    equal("success of a local invalidation that cannot be", false, done[0].is_success())?;
    // Soft-RoCE calls it an error of the queue pair.
    context.tolerate(status("local invalidation", &done[0], 1, CompletionStatus::WindowBindError))?;
    status("request behind it", &done[1], 2, CompletionStatus::FlushedError)?;
    owner.is_in(QueuePairState::Error)?;
    kept.still_opens(context, &pair)
}

/// The same when a peer asks for it: both ends are notified.
fn cannot_be_invalidated_by_a_peer(
    context: &mut Context<'_>,
    make: fn(&mut Context<'_>, &Pair) -> Outcome<Kept>,
) -> Outcome {
    let setup = open_setup(context, RC)?;
    let pair = Pair::new(context, &setup)?;
    let mut kept = make(context, &pair)?;
    refused_by_the_owner(context, &pair, kept.key)?;
    kept.still_opens(context, &pair)
}

fn refused_by_the_owner(context: &mut Context<'_>, pair: &Pair, key: u32) -> Outcome {
    let [peer, owner] = &pair.ends;
    empty_receives(owner, 2)?;
    peer.send(1, SendOperation::SendWithInvalidate(key), &[])?;
    peer.send(2, SendOperation::Send, &[])?;
    let received = context.completions("receiver", &owner.receive_queue, 2)?;
    equal("success of a receive with an invalidation that cannot be", false, received[0].is_success())?;
    context.tolerate(status("receiver", &received[0], 0, CompletionStatus::RemoteInvalidRequestError))?;
    status("receiver's next receive", &received[1], 1, CompletionStatus::FlushedError)?;
    owner.is_in(QueuePairState::Error)?;
    let sent = context.completions("sender", &peer.send_queue, 2)?;
    context.tolerate(status("sender", &sent[0], 1, CompletionStatus::RemoteAccessError))?;
    status("sender's next request", &sent[1], 2, CompletionStatus::FlushedError)
}

/// A local invalidation that was flushed has not been carried out.
fn flushed_has_no_effect(context: &mut Context<'_>) -> Outcome {
    let bound = Bound::new(context, RC, Kind::Type2)?;
    let owner = &bound.pair.ends[1];
    // It waits behind a SEND that waits for a receive.
    owner.send(1, SendOperation::Send, &[])?;
    owner.send(2, SendOperation::LocalInvalidate(bound.key), &[])?;
    context.no_completion("local invalidation behind a send that waits", &owner.send_queue)?;
    let mut bound = bound;
    bound.takes_writes(context).map_err(|failure| failure.context("before the invalidation has had its turn"))?;
    let owner = &bound.pair.ends[1];
    owner.go(QueuePairState::Error)?;
    all_flushed(context, "send and local invalidation", &owner.send_queue, 1, 2)?;
    // The window is bound still, so that its region is in use.
    let in_use = refusal("deregistering a region with a window", bound.memory.region().raw().deregister());
    context.tolerate(in_use.map(drop))
}

/// Requests before it are done, those behind it find the key dead.
fn in_order(context: &mut Context<'_>) -> Outcome {
    let bound = Bound::new(context, RC, Kind::Type2)?;
    let [peer, owner] = &bound.pair.ends;
    empty_receives(peer, 2)?;
    let batch = [
        owner.request(1, SendOperation::Send, &[]),
        owner.request(2, SendOperation::LocalInvalidate(bound.key), &[]),
        owner.request(3, SendOperation::Send, &[]),
    ];
    owner.queue_pair.post_send(&batch)?;
    let operations = [CompletionOperation::Send, CompletionOperation::LocalInvalidate, CompletionOperation::Send];
    let done = context.completions("owner", &owner.send_queue, 3)?;
    for (id, (completion, operation)) in (1..).zip(done.iter().zip(operations)) {
        status("owner", completion, id, CompletionStatus::Success)?;
        equal("operation", operation, completion.operation)?;
    }
    context.completions("peer", &peer.receive_queue, 2)?;
    bound.refuses_writes(context, &bound.pair)
}

/// The receiver learns from its completion which key is dead.
fn message_with_invalidation(context: &mut Context<'_>, bound: &Bound, length: usize, flags: SendFlags) -> Outcome {
    let [peer, owner] = &bound.pair.ends;
    let source = Memory::source(&peer.domain, &pattern(length as u64, length))?;
    let mut target = Memory::target(&owner.domain, length + 1)?;
    owner.receive(1, &[target.whole()])?;
    let operation = SendOperation::SendWithInvalidate(bound.key);
    send_with_flags(peer, 2, operation, &[source.whole()], flags | SendFlags::SIGNALED)?;
    let received = context.completion("receiver", &owner.receive_queue)?;
    status("receiver", &received, 1, CompletionStatus::Success)?;
    equal("operation at the receiver", CompletionOperation::Receive, received.operation)?;
    equal("byte count", length as u32, received.byte_count)?;
    equal("invalidated key", Some(bound.key), received.invalidated_key())?;
    equal("immediate", None, received.immediate())?;
    let sent = context.completion("sender", &peer.send_queue)?;
    status("sender", &sent, 2, CompletionStatus::Success)?;
    equal("operation at the sender", CompletionOperation::Send, sent.operation)?;
    target.expect(0, &source.bytes(0..length));
    target.verify("memory received into")
}

fn dead_by_a_peer(context: &mut Context<'_>) -> Outcome {
    let mut bound = Bound::new(context, RC, Kind::Type2)?;
    bound.takes_writes(context)?;
    message_with_invalidation(context, &bound, 100, SendFlags::empty())?;
    bound.refuses_writes(context, &bound.pair)
}

fn sizes(context: &mut Context<'_>) -> Outcome {
    let mtu = context.mtu();
    let mut bound = Bound::new(context, RC, Kind::Type2)?;
    for length in [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 7, 64 << 10] {
        message_with_invalidation(context, &bound, length, SendFlags::empty())
            .map_err(|failure| failure.context(format_args!("{length} bytes")))?;
        let binding = part(&bound.memory, PART, Access::REMOTE_WRITE);
        bound.key = bound.window.bind(context, &bound.pair.ends[1], binding)?;
    }
    bound.takes_writes(context)
}

fn bound_again_after_a_peer(context: &mut Context<'_>) -> Outcome {
    let mut bound = Bound::new(context, RC, Kind::Type2)?;
    let old = bound.key;
    for _ in 0..5 {
        bound.takes_writes(context)?;
        message_with_invalidation(context, &bound, 10, SendFlags::empty())?;
        let binding = part(&bound.memory, PART, Access::REMOTE_WRITE);
        bound.key = bound.window.bind(context, &bound.pair.ends[1], binding)?;
    }
    bound.takes_writes(context)?;
    bound.key = old;
    bound.refuses_writes(context, &bound.pair)
}

fn region_is_free_again(context: &mut Context<'_>) -> Outcome {
    let bound = Bound::new(context, RC, Kind::Type2)?;
    message_with_invalidation(context, &bound, 10, SendFlags::empty())?;
    bound.memory.region().raw().deregister()?;
    bound.refuses_writes(context, &bound.pair)
}

/// Without a receive the message is not taken, and the key lives.
fn waits_for_a_receive(context: &mut Context<'_>) -> Outcome {
    let bound = Bound::new(context, RC, Kind::Type2)?;
    let [peer, owner] = &bound.pair.ends;
    peer.send(1, SendOperation::SendWithInvalidate(bound.key), &[])?;
    context.no_completion("sender to a peer without receives", &peer.send_queue)?;
    let in_use = refusal("deregistering a region with a window", bound.memory.region().raw().deregister());
    context.tolerate(in_use.map(drop))?;
    empty_receives(owner, 1)?;
    let received = context.completion("receiver", &owner.receive_queue)?;
    status("receiver", &received, 0, CompletionStatus::Success)?;
    equal("invalidated key", Some(bound.key), received.invalidated_key())?;
    let sent = context.completion("sender", &peer.send_queue)?;
    status("sender", &sent, 1, CompletionStatus::Success)?;
    bound.refuses_writes(context, &bound.pair)
}

/// A peer reaches windows of its own connection only. (Soft-RoCE does not look at the queue pair here.)
fn window_of_another_queue_pair(context: &mut Context<'_>) -> Outcome {
    let mut bound = Bound::new(context, RC, Kind::Type2)?;
    let other = pair_in_domain(context, &bound.pair.setup, &bound.pair.ends[1].domain)?;
    let refused = refused_by_the_owner(context, &other, bound.key);
    if refused.is_err() {
        return context.tolerate(refused);
    }
    bound.takes_writes(context)
}

/// It is a SEND: with the flag it wakes a program that waits for solicited messages.
fn solicited(context: &mut Context<'_>) -> Outcome {
    let Watched { pair, channel } = Watched::new(context, RC)?;
    let memory = Memory::new(&pair.ends[1].domain, 512, BINDABLE)?;
    let window = Window::new(&pair.ends[1].domain, Kind::Type2)?;
    for (flags, has_event) in [(SendFlags::empty(), false), (SendFlags::SOLICITED, true)] {
        let owner = &pair.ends[1];
        let key = window.bind(context, owner, part(&memory, PART, Access::REMOTE_WRITE))?;
        owner.receive_queue.request_notification(true)?;
        owner.receive(1, &[])?;
        let operation = SendOperation::SendWithInvalidate(key);
        send_with_flags(&pair.ends[0], 2, operation, &[], flags | SendFlags::SIGNALED)?;
        let received = context.completion("receiver", &owner.receive_queue)?;
        equal("invalidated key", Some(key), received.invalidated_key())?;
        context.rest();
        equal("event of the message", has_event, channel.next_event()?.is_some())?;
    }
    Ok(())
}

/// The opcode exists on reliable connections only.
fn send_is_refused(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let target = Memory::target(&receiver.domain, 64)?;
    receiver.receive(1, &[target.whole()])?;
    let request = sender.request(2, SendOperation::SendWithInvalidate(target.remote_key()), &[]);
    let error = refusal("SEND with invalidate", sender.queue_pair.post_send(&[request]))?;
    let fits = matches!(
        error.kind,
        PostErrorKind::WrongTransport { .. } | PostErrorKind::NotSupported(_) | PostErrorKind::System(_)
    );
    ensure(fits, || format!("expected WrongTransport, got {error}"))?;
    context.no_completion("receiver of nothing", &receiver.receive_queue)?;
    sender.is_in(QueuePairState::ReadyToSend)
}

fn local_is_refused(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, Transport::UnreliableDatagram)?;
    let end = &pair.ends[0];
    let request = SendRequest::new(1, SendOperation::LocalInvalidate(1), &[]);
    let error = refusal("local invalidation", end.queue_pair.post_send(&[request]))?;
    let fits = matches!(
        error.kind,
        PostErrorKind::WrongTransport { .. } | PostErrorKind::NotSupported(_) | PostErrorKind::System(_)
    );
    ensure(fits, || format!("expected WrongTransport, got {error}"))?;
    match end.queue_pair.state() {
        QueuePairState::ReadyToSend => Ok(()),
        state => Err(Failure::new(format!("expected the queue pair to stay usable, got {state:?}"))),
    }
}
