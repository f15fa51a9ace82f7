//! Memory windows: keys for parts of regions, with rights of their own (IBTA 10.6.7). What peers reach through them,
//! and what not. How they are bound and how they end is in `windows_binding` and `windows_ending`.

use std::cell::Cell;
use std::ops::Range;

use longhaul_verbs::{
    Access, Capabilities, CompletionOperation, CompletionStatus, MemoryWindow, PostError, ProtectionDomain,
    RemoteMemory, SendFlags, SendOperation, SendRequest, Transport, WindowBinding, WindowRequest, WindowType,
};

use super::Test;
use super::attempts::{Attempt, every_right, is_let, is_refused, is_refused_with, open_setup, pair_in_domain};
use super::context::{Context, prefix};
use super::failure::{Failure, Outcome, ensure, equal, status};
use super::memory::Memory;
use super::pair::{End, Pair};
use super::transfer::CONNECTED;

/// Bytes of the regions behind windows.
pub(super) const REGION_BYTES: usize = 512;
/// The part of a region that a window is usually bound to.
pub(super) const PART: Range<usize> = 104..360;
/// Rights of a region that windows with any rights can be bound to, and that has nothing for peers itself.
pub(super) const BINDABLE: Access = Access::LOCAL_WRITE.union(Access::WINDOW_BIND);

const RC: Transport = Transport::ReliableConnection;

/// Which of the specification's kinds of window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Type1,
    Type2,
}

impl Kind {
    pub(super) const ALL: [Kind; 2] = [Kind::Type1, Kind::Type2];

    const fn name(self) -> &'static str {
        match self {
            Kind::Type1 => "window-type-1",
            Kind::Type2 => "window-type-2",
        }
    }

    const fn window_type(self) -> WindowType {
        match self {
            Kind::Type1 => WindowType::Type1,
            Kind::Type2 => WindowType::Type2,
        }
    }
}

/// A test of windows of one kind over one transport.
pub(super) fn window_test(
    transport: Transport,
    kind: Kind,
    name: &str,
    needs: Capabilities,
    function: impl Fn(&mut Context<'_>) -> Outcome + 'static,
) -> Test {
    let needs = transport.capability() | needs;
    let name = format!("{}/{}/{name}", prefix(transport), kind.name());
    match kind {
        Kind::Type1 => Test::new(name, needs | Capabilities::WINDOW_TYPE_1, function),
        Kind::Type2 => Test::new(name, needs, move |context| {
            let either = Capabilities::WINDOW_TYPE_2A | Capabilities::WINDOW_TYPE_2B;
            if !context.capabilities()?.intersects(either) {
                return Err(Failure::not_applicable("WINDOW_TYPE_2A or WINDOW_TYPE_2B"));
            }
            function(context)
        }),
    }
}

/// A window, and how it is bound.
pub(super) struct Window {
    pub(super) kind: Kind,
    pub(super) window: MemoryWindow,
    /// Type 2: the key of the last binding; the next one's has another lowest byte.
    key: Cell<u32>,
}

impl Window {
    pub(super) fn new(domain: &ProtectionDomain, kind: Kind) -> Outcome<Self> {
        let window = domain.allocate_memory_window(kind.window_type())?;
        let key = Cell::new(window.remote_key());
        Ok(Window { kind, window, key })
    }

    /// Posts a bind; the key that it gives.
    pub(super) fn post_bind(
        &self,
        end: &End,
        id: u64,
        flags: SendFlags,
        binding: WindowBinding<'_>,
    ) -> Result<u32, PostError> {
        if self.kind == Kind::Type1 {
            self.window.bind(&end.queue_pair, id, flags, &binding)?;
            return Ok(self.window.remote_key());
        }
        let last = self.key.get();
        let key = last & !0xff | last.wrapping_add(1) & 0xff;
        end.queue_pair.post_send(&[self.request(id, key, binding).with_flags(flags)])?;
        self.key.set(key);
        Ok(key)
    }

    /// The request that binds a type 2 window under this key.
    pub(super) fn request<'a>(&'a self, id: u64, key: u32, binding: WindowBinding<'a>) -> SendRequest<'a> {
        let window = WindowRequest { window: &**self.window.raw(), binding };
        SendRequest { window: Some(window), ..SendRequest::new(id, SendOperation::BindWindow(key), &[]) }
    }

    /// Binds and waits for it; the key.
    pub(super) fn bind(&self, context: &mut Context<'_>, end: &End, binding: WindowBinding<'_>) -> Outcome<u32> {
        let key = self.post_bind(end, 0xb1, SendFlags::SIGNALED, binding)?;
        let bound = context.completion("bind", &end.send_queue)?;
        status("bind", &bound, 0xb1, CompletionStatus::Success)?;
        equal("operation of a bind", CompletionOperation::BindWindow, bound.operation)?;
        equal("queue pair of a bind", end.number(), bound.queue_pair)?;
        Ok(key)
    }

    /// Takes the key away again: a type 1 window is bound to nothing, a type 2 window is invalidated.
    pub(super) fn unbind(&self, context: &mut Context<'_>, end: &End, memory: &Memory) -> Outcome {
        if self.kind == Kind::Type1 {
            return self.bind(context, end, part(memory, 0..0, Access::empty())).map(drop);
        }
        end.send(0xb2, SendOperation::LocalInvalidate(self.key.get()), &[])?;
        let done = context.completion("local invalidation", &end.send_queue)?;
        status("local invalidation", &done, 0xb2, CompletionStatus::Success)
    }
}

/// What type 2 windows need to be unbound.
pub(super) fn to_unbind(kind: Kind) -> Capabilities {
    match kind {
        Kind::Type1 => Capabilities::empty(),
        Kind::Type2 => Capabilities::INVALIDATE,
    }
}

/// A part of a region, with rights, to bind a window to.
pub(super) fn part(memory: &Memory, range: Range<usize>, access: Access) -> WindowBinding<'_> {
    WindowBinding {
        region: &**memory.region().raw(),
        address: memory.remote(range.start).address,
        length: range.len() as u64,
        access,
    }
}

/// A pair whose second end has bound a window to a part of a region.
pub(super) struct Bound {
    // In the order in which they go. First the window: a region that windows are bound to cannot go, and a queue pair
    // through which they were bound need not.
    pub(super) window: Window,
    pub(super) memory: Memory,
    pub(super) pair: Pair,
    pub(super) key: u32,
}

impl Bound {
    /// With everything allowed that the device knows.
    pub(super) fn new(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome<Self> {
        let rights = every_right(context)?;
        Bound::with(context, transport, kind, rights, BINDABLE)
    }

    pub(super) fn with(
        context: &mut Context<'_>,
        transport: Transport,
        kind: Kind,
        rights: Access,
        region_rights: Access,
    ) -> Outcome<Self> {
        let setup = open_setup(context, transport)?;
        let pair = Pair::new(context, &setup)?;
        let memory = Memory::new(&pair.ends[1].domain, REGION_BYTES, region_rights)?;
        let window = Window::new(&pair.ends[1].domain, kind)?;
        let key = window.bind(context, &pair.ends[1], part(&memory, PART, rights))?;
        Ok(Bound { pair, memory, window, key })
    }

    /// A place in the region, by the window's key.
    pub(super) fn at(&self, offset: usize) -> RemoteMemory {
        RemoteMemory { key: self.key, ..self.memory.remote(offset) }
    }

    /// The peer's WRITE through the window succeeds.
    pub(super) fn takes_writes(&mut self, context: &mut Context<'_>) -> Outcome {
        let remote = self.at(PART.start);
        is_let(context, &self.pair, Attempt::Write, remote, &mut self.memory, PART)
    }

    /// It is refused through this pair.
    pub(super) fn refuses_writes(&self, context: &mut Context<'_>, through: &Pair) -> Outcome {
        is_refused(context, through, Attempt::Write, self.at(PART.start), PART.len(), &self.memory)
    }
}

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    let none = Capabilities::empty();
    for transport in CONNECTED {
        for kind in Kind::ALL {
            for attempt in Attempt::ALL.into_iter().filter(|attempt| attempt.is_on(transport)) {
                let name = format!("rights/{}", attempt.name());
                tests.push(window_test(transport, kind, &name, attempt.needs(), move |context| {
                    rights(context, transport, kind, attempt)
                }));
                let name = format!("rights/queue-pair-without-{}", attempt.name());
                tests.push(window_test(transport, kind, &name, attempt.needs(), move |context| {
                    queue_pair_without_right(context, transport, kind, attempt)
                }));
            }
            let mut add = |name: &str, function: fn(&mut Context<'_>, Transport, Kind) -> Outcome| {
                tests.push(window_test(transport, kind, name, none, move |context| function(context, transport, kind)));
            };
            add("reach/whole-part-and-no-more", whole_part_and_no_more);
            add("reach/last-packet-beyond", last_packet_beyond);
            add("reach/region-key-has-its-own-rights", region_key_has_its_own_rights);
            add("reach/not-bound", not_bound);
            add("reach/neighbouring-keys", neighbouring_keys);
            add("reach/other-queue-pair", other_queue_pair);
            add("reach/other-domain", other_domain);
            add("reach/two-windows-on-one-region", two_windows_on_one_region);
            add("reach/not-for-local-use", not_for_local_use);
        }
    }
    for kind in Kind::ALL {
        tests.push(window_test(RC, kind, "reach/zero-based-region", Capabilities::ZERO_BASED, move |context| {
            zero_based_region(context, kind)
        }));
    }
    tests
}

/// What the window allows, its peer may do, and nothing else, whatever the region allows to those who have its own key.
fn rights(context: &mut Context<'_>, transport: Transport, kind: Kind, attempt: Attempt) -> Outcome {
    let every = every_right(context)?;
    for region_rights in [BINDABLE, BINDABLE | every] {
        for bits in 0..8 {
            let chosen = Attempt::ALL.into_iter().enumerate().filter(|(index, _)| bits & 1 << index != 0);
            let rights = chosen.fold(Access::empty(), |rights, (_, attempt)| rights | attempt.right()) & every;
            let mut bound = Bound::with(context, transport, kind, rights, region_rights)?;
            let at = bound.memory.aligned(PART.start);
            let (remote, range) = (bound.at(at), at..at + 8);
            let result = match rights.contains(attempt.right()) {
                true => is_let(context, &bound.pair, attempt, remote, &mut bound.memory, range),
                false => is_refused(context, &bound.pair, attempt, remote, 8, &bound.memory),
            };
            result.map_err(|failure| failure.context(format_args!("window {rights:?}, region {region_rights:?}")))?;
        }
    }
    Ok(())
}

/// A queue pair's own rights come first.
fn queue_pair_without_right(context: &mut Context<'_>, transport: Transport, kind: Kind, attempt: Attempt) -> Outcome {
    let mut setup = open_setup(context, transport)?;
    setup.access -= attempt.right();
    let pair = Pair::new(context, &setup)?;
    let memory = Memory::new(&pair.ends[1].domain, REGION_BYTES, BINDABLE)?;
    let window = Window::new(&pair.ends[1].domain, kind)?;
    let rights = every_right(context)?;
    let key = window.bind(context, &pair.ends[1], part(&memory, PART, rights))?;
    let at = memory.aligned(PART.start);
    let remote = RemoteMemory { key, ..memory.remote(at) };
    let allowed = [CompletionStatus::RemoteAccessError, CompletionStatus::RemoteInvalidRequestError];
    is_refused_with(context, &pair, attempt, remote, 8, &memory, &allowed)
}

/// The first and the last byte are inside, their neighbours are not, although the region has them.
fn whole_part_and_no_more(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let mut bound = Bound::new(context, transport, kind)?;
    bound.takes_writes(context)?;
    for at in [PART.start, PART.end - 1] {
        let remote = bound.at(at);
        is_let(context, &bound.pair, Attempt::Write, remote, &mut bound.memory, at..at + 1)?;
    }
    let outside = [
        (PART.start - 1, 1),
        (PART.start - 1, 2),
        (PART.end, 1),
        (PART.end - 1, 2),
        (PART.start, PART.len() + 1),
        (PART.start - 1, PART.len() + 1),
        (0, REGION_BYTES),
    ];
    for (at, length) in outside {
        let bound = Bound::new(context, transport, kind)?;
        is_refused(context, &bound.pair, Attempt::Write, bound.at(at), length, &bound.memory)?;
    }
    let bound = Bound::new(context, transport, kind)?;
    let wrapping = RemoteMemory { address: u64::MAX - 3, key: bound.key };
    is_refused(context, &bound.pair, Attempt::Write, wrapping, 8, &bound.memory)
}

/// The length in the first packet's header counts (IBTA 9.7.4.1).
fn last_packet_beyond(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let length = 4 * context.mtu();
    for excess in [0, 1] {
        let setup = open_setup(context, transport)?;
        let pair = Pair::new(context, &setup)?;
        let mut memory = Memory::new(&pair.ends[1].domain, length + 64, BINDABLE)?;
        let window = Window::new(&pair.ends[1].domain, kind)?;
        let binding = part(&memory, 8..8 + length - excess, Access::REMOTE_WRITE);
        let key = window.bind(context, &pair.ends[1], binding)?;
        let remote = RemoteMemory { key, ..memory.remote(8) };
        match excess {
            0 => is_let(context, &pair, Attempt::Write, remote, &mut memory, 8..8 + length)?,
            _ => is_refused(context, &pair, Attempt::Write, remote, length, &memory)?,
        }
    }
    Ok(())
}

/// A window gives rights that its region keeps from the holders of the region's own key.
fn region_key_has_its_own_rights(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let mut bound = Bound::new(context, transport, kind)?;
    bound.takes_writes(context)?;
    let by_region = bound.memory.remote(PART.start);
    is_refused(context, &bound.pair, Attempt::Write, by_region, 8, &bound.memory)
}

/// A window that has never been bound opens nothing, at whatever address.
fn not_bound(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    for address_in_region in [true, false] {
        let setup = open_setup(context, transport)?;
        let pair = Pair::new(context, &setup)?;
        let memory = Memory::new(&pair.ends[1].domain, REGION_BYTES, BINDABLE)?;
        let window = Window::new(&pair.ends[1].domain, kind)?;
        let address = if address_in_region { memory.remote(0).address } else { 0 };
        let remote = RemoteMemory { address, key: window.window.remote_key() };
        is_refused(context, &pair, Attempt::Write, remote, 8, &memory)?;
    }
    Ok(())
}

/// Every bit of the key counts; of a type 2 window's, the lowest byte is what the program chose.
fn neighbouring_keys(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    for flipped in [1, 0x80, 0x100, 0x8000_0000_u32] {
        let bound = Bound::new(context, transport, kind)?;
        let remote = RemoteMemory { key: bound.key ^ flipped, ..bound.at(PART.start) };
        is_refused(context, &bound.pair, Attempt::Write, remote, 8, &bound.memory)
            .map_err(|failure| failure.context(format_args!("key with bits {flipped:#x} flipped")))?;
    }
    Ok(())
}

/// A type 1 window is its protection domain's, a type 2 window is the queue pair's that bound it (IBTA 10.6.7.2).
fn other_queue_pair(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let mut bound = Bound::new(context, transport, kind)?;
    let other = pair_in_domain(context, &bound.pair.setup, &bound.pair.ends[1].domain)?;
    match kind {
        Kind::Type1 => {
            let remote = bound.at(PART.start);
            is_let(context, &other, Attempt::Write, remote, &mut bound.memory, PART)?;
        }
        Kind::Type2 => bound.refuses_writes(context, &other)?,
    }
    // Its own queue pair has noticed nothing.
    bound.takes_writes(context)
}

fn other_domain(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let mut bound = Bound::new(context, transport, kind)?;
    let other = Pair::new(context, &bound.pair.setup)?;
    bound.refuses_writes(context, &other)?;
    bound.takes_writes(context)
}

/// Windows on one region know nothing of each other, also where they overlap.
fn two_windows_on_one_region(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let mut bound = Bound::new(context, transport, kind)?;
    let owner = &bound.pair.ends[1];
    let second = Window::new(&owner.domain, kind)?;
    let overlapping = PART.end - 16..PART.end + 100;
    let key = second.bind(context, owner, part(&bound.memory, overlapping.clone(), Access::REMOTE_WRITE))?;
    ensure(key != bound.key, || format!("expected two keys for two windows, got {key:#x} twice"))?;
    let remote = RemoteMemory { key, ..bound.memory.remote(overlapping.start) };
    is_let(context, &bound.pair, Attempt::Write, remote, &mut bound.memory, overlapping.clone())?;
    bound.takes_writes(context)?;
    // The second reaches where the first does not, and not the other way round.
    is_refused(context, &bound.pair, Attempt::Write, bound.at(overlapping.start), 100, &bound.memory)
}

/// A window's key is for peers; no work request of this side can use it.
fn not_for_local_use(context: &mut Context<'_>, transport: Transport, kind: Kind) -> Outcome {
    let bound = Bound::new(context, transport, kind)?;
    let [peer, owner] = &bound.pair.ends;
    let mut local = bound.memory.entry(PART);
    local.local_key = bound.key;
    peer.receive(1, &[])?;
    owner.send(2, SendOperation::Send, &[local])?;
    let sent = context.completion("sender from a window", &owner.send_queue)?;
    context.failed("sender from a window", &sent, 2, &[CompletionStatus::LocalProtectionError])
}

/// In a zero-based region the window's addresses count from the region's beginning. (Soft-RoCE and mlx5 bind no windows
/// there.)
fn zero_based_region(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let setup = open_setup(context, RC)?;
    let pair = Pair::new(context, &setup)?;
    let mut memory = Memory::new(&pair.ends[1].domain, REGION_BYTES, BINDABLE | Access::ZERO_BASED)?;
    let window = Window::new(&pair.ends[1].domain, kind)?;
    let bound = window.bind(context, &pair.ends[1], part(&memory, PART, Access::REMOTE_WRITE));
    let key = match bound {
        Ok(key) => key,
        Err(failure) => return context.tolerate(Err(failure)),
    };
    let remote = RemoteMemory { key, ..memory.remote(PART.start) };
    is_let(context, &pair, Attempt::Write, remote, &mut memory, PART)?;
    let before = RemoteMemory { address: remote.address - 1, key };
    is_refused(context, &pair, Attempt::Write, before, 8, &memory)
}
