//! What a peer tries with a key, and whether it is let. The first end of a pair tries, the second one owns the memory.

use std::ops::Range;

use longhaul_verbs::{
    Access, Capabilities, CompletionStatus, ProtectionDomain, QueuePairState, RemoteMemory, SendOperation, Transport,
};

use super::context::Context;
use super::failure::{Failure, Outcome, status, status_among};
use super::memory::Memory;
use super::pair::{Pair, Setup, create};

const ID: u64 = 0x7a;
const ADDEND: u64 = 0x0101_0101_0101_0107;

/// What a peer tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Write,
    Read,
    /// A fetch-and-add, of eight bytes.
    Atomic,
}

impl Attempt {
    pub(super) const ALL: [Attempt; 3] = [Attempt::Write, Attempt::Read, Attempt::Atomic];

    /// As it stands in the names of tests.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Attempt::Write => "write",
            Attempt::Read => "read",
            Attempt::Atomic => "atomic",
        }
    }

    /// The right that it needs.
    pub(super) const fn right(self) -> Access {
        match self {
            Attempt::Write => Access::REMOTE_WRITE,
            Attempt::Read => Access::REMOTE_READ,
            Attempt::Atomic => Access::REMOTE_ATOMIC,
        }
    }

    /// What a device must be able to do for it.
    pub(super) const fn needs(self) -> Capabilities {
        match self {
            Attempt::Write => Capabilities::empty(),
            Attempt::Read => Capabilities::READ,
            Attempt::Atomic => Capabilities::ATOMICS,
        }
    }

    /// Whether a transport has the operation.
    pub(super) fn is_on(self, transport: Transport) -> bool {
        match transport {
            Transport::ReliableConnection => true,
            Transport::UnreliableConnection => self == Attempt::Write,
            _ => false,
        }
    }

    fn operation(self, remote: RemoteMemory) -> SendOperation {
        match self {
            Attempt::Write => SendOperation::Write(remote),
            Attempt::Read => SendOperation::Read(remote),
            Attempt::Atomic => SendOperation::FetchAndAdd { remote, add: ADDEND },
        }
    }
}

/// The rights of peers that the device knows.
pub(super) fn every_right(context: &Context<'_>) -> Outcome<Access> {
    let capabilities = context.capabilities()?;
    let known = Attempt::ALL.into_iter().filter(|attempt| capabilities.contains(attempt.needs()));
    Ok(known.fold(Access::empty(), |rights, attempt| rights | attempt.right()))
}

/// A setup whose queue pairs let their peers do everything.
pub(super) fn open_setup(context: &Context<'_>, transport: Transport) -> Outcome<Setup> {
    let mut setup = Setup::new(transport);
    if transport == Transport::ReliableConnection {
        setup.access = every_right(context)?;
    }
    Ok(setup)
}

/// A connected pair whose second end is in this protection domain.
pub(super) fn pair_in_domain(context: &mut Context<'_>, setup: &Setup, domain: &ProtectionDomain) -> Outcome<Pair> {
    let mut pair = Pair::unconnected(context, setup)?;
    let end = &mut pair.ends[1];
    end.domain = domain.clone();
    end.queue_pair = create(&end.domain, &end.send_queue, &end.receive_queue, setup)?;
    pair.meet()?;
    for end in [0, 1] {
        pair.advance(end, QueuePairState::ReadyToSend)?;
    }
    Ok(pair)
}

/// It is let: the bytes in `range` of the memory, and no others, are written or read. Whatever is written differs from
/// what was there.
pub(super) fn is_let(
    context: &mut Context<'_>,
    pair: &Pair,
    attempt: Attempt,
    remote: RemoteMemory,
    memory: &mut Memory,
    range: Range<usize>,
) -> Outcome {
    let circumstances = format!("{} of bytes {range:?}", attempt.name());
    try_and_check(context, pair, attempt, remote, memory, range).map_err(|failure| failure.context(circumstances))
}

fn try_and_check(
    context: &mut Context<'_>,
    pair: &Pair,
    attempt: Attempt,
    remote: RemoteMemory,
    memory: &mut Memory,
    range: Range<usize>,
) -> Outcome {
    let requester = &pair.ends[0];
    let before = memory.bytes(range.clone());
    let message: Vec<u8> = before.iter().map(|byte| !byte).collect();
    let mut local = Memory::target(&requester.domain, range.len())?;
    local.fill(0, &message);
    requester.send(ID, attempt.operation(remote), &[local.whole()])?;
    let done = context.completion("requester", &requester.send_queue)?;
    status("requester", &done, ID, CompletionStatus::Success)?;
    match attempt {
        Attempt::Write => memory.expect(range.start, &message),
        Attempt::Read => local.expect(0, &before),
        Attempt::Atomic => {
            let old = before.as_slice().try_into().map_err(|_| Failure::new("an atomic is of eight bytes"))?;
            let new = u64::from_ne_bytes(old).wrapping_add(ADDEND);
            memory.expect(range.start, &new.to_ne_bytes());
            local.expect(0, &before);
        }
    }
    context.settle("memory behind the key", memory)?;
    local.verify("requester's memory")
}

/// It is refused: nothing is written or read. A reliable connection notifies both ends and fails, an unreliable one
/// notifies nobody.
pub(super) fn is_refused(
    context: &mut Context<'_>,
    pair: &Pair,
    attempt: Attempt,
    remote: RemoteMemory,
    length: usize,
    memory: &Memory,
) -> Outcome {
    is_refused_with(context, pair, attempt, remote, length, memory, &[CompletionStatus::RemoteAccessError])
}

/// The same, where devices differ in what they call it.
pub(super) fn is_refused_with(
    context: &mut Context<'_>,
    pair: &Pair,
    attempt: Attempt,
    remote: RemoteMemory,
    length: usize,
    memory: &Memory,
    allowed: &[CompletionStatus],
) -> Outcome {
    let circumstances = format!("{} of {length} bytes at {:#x}", attempt.name(), remote.address);
    let mut refused = || {
        let [requester, owner] = &pair.ends;
        let mut local = Memory::target(&requester.domain, length)?;
        local.fill(0, &vec![0x3c; length]);
        requester.send(ID, attempt.operation(remote), &[local.whole()])?;
        let done = context.completion("requester", &requester.send_queue)?;
        if pair.setup.transport == Transport::ReliableConnection {
            status_among("requester", &done, ID, allowed)?;
            requester.is_in(QueuePairState::Error)?;
            context.wait_for(|| owner.is_in(QueuePairState::Error))?;
        } else {
            status("requester", &done, ID, CompletionStatus::Success)?;
            owner.is_in(QueuePairState::ReadyToSend)?;
        }
        context.unchanged("memory that the peer may not use", memory)?;
        local.verify("requester's memory")
    };
    refused().map_err(|failure: Failure| failure.context(circumstances))
}
