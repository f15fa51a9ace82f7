//! What READs and atomics may not reach, at the peer and at home: keys, ranges, rights, alignment. The requester is
//! told, nothing has happened, both queue pairs are in ERR (IBTA 9.7.4.1, 9.7.5.2, 9.9.2, 9.9.3).

use longhaul_verbs::{
    Access, AsyncEventKind, Capabilities, CompletionStatus, EventSource, QueuePairState, RemoteMemory,
    ScatterGatherEntry, SendOperation, Transport,
};

use super::Test;
use super::atomics::{WORD_BYTES, Words};
use super::context::Context;
use super::errors_local::{self, Held};
use super::failure::{Outcome, ensure, equal, status, status_among};
use super::flush::all_flushed;
use super::memory::{Memory, pattern};
use super::pair::{End, Pair, Setup};
use super::read::{hasty_setup, read_message, readable, setup};
use super::transfer::empty_receives;

const RC: Transport = Transport::ReliableConnection;

/// The operations that bring something back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    FetchAndAdd,
    CompareAndSwap,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Read, Kind::FetchAndAdd, Kind::CompareAndSwap];
    const ATOMICS: [Kind; 2] = [Kind::FetchAndAdd, Kind::CompareAndSwap];

    const fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::FetchAndAdd => "fetch-and-add",
            Kind::CompareAndSwap => "compare-and-swap",
        }
    }

    fn needs(self) -> Capabilities {
        let own = if self == Kind::Read { Capabilities::READ } else { Capabilities::ATOMICS };
        RC.capability() | own
    }

    fn right(self) -> Access {
        if self == Kind::Read { Access::REMOTE_READ } else { Access::REMOTE_ATOMIC }
    }

    fn length(self) -> usize {
        if self == Kind::Read { 200 } else { WORD_BYTES }
    }

    fn operation(self, remote: RemoteMemory) -> SendOperation {
        match self {
            Kind::Read => SendOperation::Read(remote),
            Kind::FetchAndAdd => SendOperation::FetchAndAdd { remote, add: 1 },
            Kind::CompareAndSwap => SendOperation::CompareAndSwap { remote, compare: 0, swap: 1 },
        }
    }

    fn setup(self) -> Setup {
        Setup { access: Access::REMOTE_WRITE | self.right(), ..setup() }
    }

    /// Memory of the peer that this operation may use.
    fn shared(self, end: &End) -> Outcome<Words> {
        Words::new(&end.domain, 40, Access::LOCAL_WRITE | self.right())
    }
}

/// How a request names memory of the peer that it must not reach. The address stays aligned.
type Fault = (&'static str, fn(&Words, usize) -> RemoteMemory);

const FAULTS: [Fault; 5] = [
    ("unknown-key", |words, _| RemoteMemory { key: words.memory.remote_key() ^ 0x5a5a_5a00, ..words.remote(0) }),
    ("neighbouring-key", |words, _| RemoteMemory { key: words.memory.remote_key() ^ 1, ..words.remote(0) }),
    ("before-the-region", |words, _| RemoteMemory {
        address: (words.memory.region_start() - 1) & !7,
        ..words.remote(0)
    }),
    ("beyond-the-region", |words, length| RemoteMemory {
        address: (words.memory.region_end() - length as u64 + 1).next_multiple_of(8),
        ..words.remote(0)
    }),
    ("wrapping-address", |words, _| RemoteMemory { address: u64::MAX - 7, ..words.remote(0) }),
];

/// A test of one kind of request.
type Case = fn(&mut Context<'_>, Kind) -> Outcome;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for kind in Kind::ALL {
        let mut add = |name: &str, function: Box<dyn Fn(&mut Context<'_>) -> Outcome>| {
            tests.push(Test::new(format!("rc/{name}"), kind.needs(), function));
        };
        let name = kind.name();
        for (case, fault) in FAULTS {
            let function = move |context: &mut Context<'_>| {
                let pair = Pair::new(context, &kind.setup())?;
                let words = kind.shared(&pair.ends[1])?;
                access_is_refused(context, &pair, kind, fault(&words, kind.length()), &words.memory)
            };
            add(&format!("remote-access/{name}-{case}"), Box::new(function));
        }
        for (case, fault) in errors_local::FAULTS {
            let function = move |context: &mut Context<'_>| bad_scatter(context, kind, case, fault);
            add(&format!("local-protection/{name}-{case}"), Box::new(function));
        }
        let without = move |context: &mut Context<'_>| {
            bad_scatter(context, kind, "", |_, end, _| {
                let memory = Memory::new(&end.domain, 300, Access::empty())?;
                Ok(Held { entry: memory.entry(0..200), memory: Some(memory) })
            })
        };
        add(&format!("local-protection/{name}-without-local-write"), Box::new(without));
        let each: [(&str, Case); 9] = [
            ("remote-access/KIND-region-without-right", without_right_on_region),
            ("remote-access/KIND-queue-pair-without-right", without_right_on_queue_pair),
            ("remote-access/KIND-other-domain", other_domain),
            ("remote-access/KIND-deregistered", deregistered),
            ("remote-access/KIND-right-taken-back", right_taken_back),
            ("async-events/KIND-access-error", access_event),
            ("retry-exceeded/KIND-to-a-peer-in-reset", |context, kind| silence(context, kind, QueuePairState::Reset)),
            ("retry-exceeded/KIND-to-a-peer-in-error", |context, kind| silence(context, kind, QueuePairState::Error)),
            ("retry-exceeded/KIND-to-a-destroyed-peer", destroyed_peer),
        ];
        for (case, function) in each {
            add(&case.replace("KIND", name), Box::new(move |context| function(context, kind)));
        }
    }
    for kind in Kind::ATOMICS {
        let name = format!("rc/remote-invalid/{}-misaligned", kind.name());
        tests.push(Test::new(name, kind.needs(), move |context| misaligned(context, kind)));
    }
    let read = Kind::Read.needs();
    tests.push(Test::new("rc/remote-access/read-last-byte-beyond", read, last_byte_beyond));
    tests.push(Test::new("rc/remote-access/read-while-deregistered", read, deregistered_meanwhile));
    tests.push(Test::new("rc/remote-access/good-reads-before-it-succeed", read, good_before));
    tests.push(Test::new("rc/local-protection/read-beyond-its-first-packet", read, second_packet));
    tests.push(Test::new("rc/errors/other-readers-live-on", read, others_live_on));
    tests
}

/// The requester is notified, nothing changes anywhere, both queue pairs are in ERR, and everything else posted is
/// flushed.
fn access_is_refused(
    context: &mut Context<'_>,
    pair: &Pair,
    kind: Kind,
    remote: RemoteMemory,
    target: &Memory,
) -> Outcome {
    refused_with(context, pair, kind, remote, target, &[CompletionStatus::RemoteAccessError])
}

fn refused_with(
    context: &mut Context<'_>,
    pair: &Pair,
    kind: Kind,
    remote: RemoteMemory,
    target: &Memory,
    allowed: &[CompletionStatus],
) -> Outcome {
    let [requester, owner] = &pair.ends;
    let local = Memory::target(&requester.domain, kind.length())?;
    empty_receives(owner, 3)?;
    empty_receives(requester, 2)?;
    requester.send(1, kind.operation(remote), &[local.whole()])?;
    requester.send(2, SendOperation::Send, &[])?;
    requester.send(3, kind.operation(remote), &[local.whole()])?;
    let done = context.completions("requester", &requester.send_queue, 3)?;
    status_among("requester", &done[0], 1, allowed)?;
    equal("queue pair of the failed request", requester.number(), done[0].queue_pair)?;
    status("request behind the failed one", &done[1], 2, CompletionStatus::FlushedError)?;
    status("request behind the failed one", &done[2], 3, CompletionStatus::FlushedError)?;
    requester.is_in(QueuePairState::Error)?;
    all_flushed(context, "requester's receives", &requester.receive_queue, 0, 2)?;
    context.wait_for(|| owner.is_in(QueuePairState::Error))?;
    all_flushed(context, "owner's receives", &owner.receive_queue, 0, 3)?;
    context.unchanged("memory that the peer may not use", target)?;
    local.verify("memory for what should come back")
}

fn without_right_on_region(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let capabilities = context.capabilities()?;
    let mut rights = vec![Access::LOCAL_WRITE, all, Access::empty()];
    // Neither of the two other rights stands for this one.
    if kind != Kind::Read && capabilities.contains(Capabilities::READ) {
        rights.push(all | Access::REMOTE_READ);
    }
    if kind == Kind::Read && capabilities.contains(Capabilities::ATOMICS) {
        rights.push(all | Access::REMOTE_ATOMIC);
    }
    for rights in rights {
        let pair = Pair::new(context, &kind.setup())?;
        let words = Words::new(&pair.ends[1].domain, 40, rights)?;
        access_is_refused(context, &pair, kind, words.remote(0), &words.memory)
            .map_err(|failure| failure.context(format_args!("{rights:?}")))?;
    }
    Ok(())
}

/// The specification's class for this is a matter of reading: Soft-RoCE calls the request invalid.
fn without_right_on_queue_pair(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let pair = Pair::new(context, &Setup { access: Access::REMOTE_WRITE, ..setup() })?;
    let words = kind.shared(&pair.ends[1])?;
    let allowed = [CompletionStatus::RemoteAccessError, CompletionStatus::RemoteInvalidRequestError];
    refused_with(context, &pair, kind, words.remote(0), &words.memory, &allowed)
}

fn other_domain(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let pair = Pair::new(context, &kind.setup())?;
    let other = context.device(1).allocate_protection_domain()?;
    let words = Words::new(&other, 40, Access::LOCAL_WRITE | kind.right())?;
    access_is_refused(context, &pair, kind, words.remote(0), &words.memory)
}

fn deregistered(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let pair = Pair::new(context, &kind.setup())?;
    let gone = kind.shared(&pair.ends[1])?;
    let remote = gone.remote(0);
    let before = gone.memory.bytes(0..200);
    let after = gone.memory.into_bytes()?;
    let bystander = kind.shared(&pair.ends[1])?;
    access_is_refused(context, &pair, kind, remote, &bystander.memory)?;
    equal("bytes taken back", true, after.windows(200).any(|window| window == before))
}

/// What the peer may do can be changed in RTS (IBTA 11.2.5.2).
fn right_taken_back(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let pair = Pair::new(context, &kind.setup())?;
    let [requester, owner] = &pair.ends;
    let words = kind.shared(owner)?;
    let local = Memory::target(&requester.domain, kind.length())?;
    requester.send(9, kind.operation(words.remote(0)), &[local.whole()])?;
    let done = context.completion("requester", &requester.send_queue)?;
    status("requester, with the right", &done, 9, CompletionStatus::Success)?;
    owner.queue_pair.modify(&longhaul_verbs::QueuePairAttributes {
        access: Some(Access::REMOTE_WRITE),
        ..longhaul_verbs::QueuePairAttributes::to_state(QueuePairState::ReadyToSend)
    })?;
    let mut words = words;
    words.memory.accept(0..words.memory.len());
    let allowed = [CompletionStatus::RemoteAccessError, CompletionStatus::RemoteInvalidRequestError];
    refused_with(context, &pair, kind, words.remote(0), &words.memory, &allowed)
}

/// The owner's program is notified that its peer tried what it may not. (Soft-RoCE does not do this.)
fn access_event(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let pair = Pair::new(context, &kind.setup())?;
    let [requester, owner] = &pair.ends;
    let local = Memory::target(&requester.domain, kind.length())?;
    let nowhere = RemoteMemory { address: 0x10, key: 0 };
    requester.send(1, kind.operation(nowhere), &[local.whole()])?;
    let done = context.completion("requester", &requester.send_queue)?;
    status("requester", &done, 1, CompletionStatus::RemoteAccessError)?;
    let number = owner.number();
    let event = context.event("access error", 1, |event| {
        let kinds = [AsyncEventKind::QueuePairAccessError, AsyncEventKind::QueuePairRequestError];
        kinds.contains(&event.kind) && event.source == EventSource::QueuePair(number)
    });
    let kind = event.and_then(|event| equal("kind", AsyncEventKind::QueuePairAccessError, event.kind));
    context.tolerate(kind)
}

/// An address that is not a multiple of eight is an invalid request (IBTA 9.4.5). Soft-RoCE's library refuses it when
/// it is posted.
fn misaligned(context: &mut Context<'_>, kind: Kind) -> Outcome {
    for offset in [1, 2, 4, 7] {
        let pair = Pair::new(context, &kind.setup())?;
        let words = kind.shared(&pair.ends[1])?;
        let remote = RemoteMemory { address: words.remote(0).address + offset, ..words.remote(0) };
        let local = Memory::target(&pair.ends[0].domain, WORD_BYTES)?;
        let entry = [local.whole()];
        let requester = &pair.ends[0];
        if let Err(error) = requester.queue_pair.post_send(&[requester.request(9, kind.operation(remote), &entry)]) {
            let departure = ensure(false, || format!("misaligned: expected RemoteInvalidRequestError, got {error}"));
            context.tolerate(departure)?;
            continue;
        }
        let done = context.completion("requester", &requester.send_queue)?;
        context.failed("requester", &done, 9, &[CompletionStatus::RemoteInvalidRequestError])?;
        requester.is_in(QueuePairState::Error)?;
        context.wait_for(|| pair.ends[1].is_in(QueuePairState::Error))?;
        let number = pair.ends[1].number();
        let event = context.event("invalid request", 1, |event| {
            event.kind == AsyncEventKind::QueuePairRequestError && event.source == EventSource::QueuePair(number)
        });
        context.tolerate(event.map(drop))?;
        context.unchanged("memory with the word", &words.memory)?;
        local.verify("memory for the result")?;
    }
    Ok(())
}

/// The length in the request counts: a READ that would leave the region with its last byte brings nothing.
fn last_byte_beyond(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let length = 4 * context.mtu();
    let remote = readable(owner, &pattern(1, length))?;
    let local = Memory::target(&reader.domain, length)?;
    let from = RemoteMemory { address: remote.region_end() - length as u64 + 1, ..remote.remote(0) };
    reader.send(1, SendOperation::Read(from), &[local.whole()])?;
    let done = context.completion("reader", &reader.send_queue)?;
    status("reader", &done, 1, CompletionStatus::RemoteAccessError)?;
    reader.is_in(QueuePairState::Error)?;
    context.unchanged("memory to be read into", &local)
}

/// A region may go while it is being read: the READ has been answered, or is refused. What was read before is right.
fn deregistered_meanwhile(context: &mut Context<'_>) -> Outcome {
    const COUNT: usize = 8;
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let size = 100 * context.mtu();
    let bytes = pattern(2, size);
    let remote = readable(owner, &bytes)?;
    let mut local = Memory::target(&reader.domain, COUNT * size)?;
    for index in 0..COUNT {
        let entry = [local.entry(index * size..(index + 1) * size)];
        reader.send(index as u64, SendOperation::Read(remote.remote(0)), &entry)?;
    }
    drop(remote);
    let done = context.completions("reader", &reader.send_queue, COUNT)?;
    let good = done.iter().take_while(|done| done.is_success()).count();
    for (index, done) in done.iter().enumerate() {
        let start = index * size;
        if index < good {
            local.expect(start, &bytes);
            continue;
        }
        let allowed = [CompletionStatus::RemoteAccessError, CompletionStatus::RemoteOperationError];
        let allowed = if index == good { &allowed[..] } else { &[CompletionStatus::FlushedError] };
        status_among("reader", done, index as u64, allowed)?;
        local.accept(start..start + size);
    }
    local.verify("memory read into")
}

/// A refused READ does not take back those before it.
fn good_before(context: &mut Context<'_>) -> Outcome {
    const GOOD: usize = 6;
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let size = 3 * context.mtu();
    let remote = readable(owner, &pattern(3, size))?;
    let mut local = Memory::target(&reader.domain, size * (GOOD + 1))?;
    for index in 0..=GOOD {
        let entry = [local.entry(index * size..(index + 1) * size)];
        let from = match index {
            GOOD => RemoteMemory { key: remote.remote_key() ^ 0x5a5a_5a00, ..remote.remote(0) },
            _ => remote.remote(0),
        };
        reader.send(index as u64, SendOperation::Read(from), &entry)?;
    }
    let done = context.completions("reader", &reader.send_queue, GOOD + 1)?;
    for (index, done) in done.iter().enumerate() {
        if index < GOOD {
            status("READ before the bad one", done, index as u64, CompletionStatus::Success)?;
            local.expect(index * size, &remote.bytes(0..size));
        } else {
            status("bad READ", done, index as u64, CompletionStatus::RemoteAccessError)?;
        }
    }
    local.verify("memory read into")
}

/// An operation that must bring something into memory that may not be written fails at home, and takes its queue pair
/// to ERR. Whether an atomic has been carried out is open: devices may look only when the answer comes.
fn bad_scatter(
    context: &mut Context<'_>,
    kind: Kind,
    case: &str,
    fault: fn(&mut Context<'_>, &End, usize) -> Outcome<Held>,
) -> Outcome {
    let pair = Pair::new(context, &kind.setup())?;
    let [requester, owner] = &pair.ends;
    let mut words = kind.shared(owner)?;
    let bad = fault(context, requester, 0)?;
    let good = Memory::target(&requester.domain, 200)?;
    let half = kind.length() / 2;
    let entries = match case {
        "second-entry-bad" => {
            let second = ScatterGatherEntry { length: half as u32, ..bad.entry };
            vec![good.entry(0..half), second]
        }
        // The last byte stays the bad one.
        "beyond-the-region" => {
            let skipped = u64::from(bad.entry.length) - kind.length() as u64;
            let address = bad.entry.address + skipped;
            vec![ScatterGatherEntry { address, length: kind.length() as u32, ..bad.entry }]
        }
        _ => vec![ScatterGatherEntry { length: kind.length() as u32, ..bad.entry }],
    };
    empty_receives(requester, 2)?;
    requester.send(1, kind.operation(words.remote(0)), &entries)?;
    requester.send(2, SendOperation::Send, &[])?;
    let done = context.completions("requester", &requester.send_queue, 2)?;
    context.failed("requester", &done[0], 1, &[CompletionStatus::LocalProtectionError])?;
    status("request behind the failed one", &done[1], 2, CompletionStatus::FlushedError)?;
    requester.is_in(QueuePairState::Error)?;
    all_flushed(context, "requester's receives", &requester.receive_queue, 0, 2)?;
    context.rest();
    if kind != Kind::Read {
        words.memory.accept(0..words.memory.len());
    }
    words.memory.verify("memory of the peer")?;
    // Whose first bytes may be written is open when only the last may not.
    match &bad.memory {
        Some(memory) if case != "beyond-the-region" => memory.verify("memory that may not be written"),
        _ => Ok(()),
    }
}

/// The entry that is bad comes into play with the second packet of the response only.
fn second_packet(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let mtu = context.mtu();
    let remote = readable(owner, &pattern(4, 2 * mtu))?;
    let local = Memory::target(&reader.domain, mtu)?;
    let bad = ScatterGatherEntry { local_key: local.local_key() ^ 0x5a5a_5a00, ..local.whole() };
    reader.send(1, SendOperation::Read(remote.remote(0)), &[local.whole(), bad])?;
    let done = context.completion("reader", &reader.send_queue)?;
    context.failed("reader", &done, 1, &[CompletionStatus::LocalProtectionError])?;
    reader.is_in(QueuePairState::Error)
}

/// A peer that is not there: the request fails when its retries are used up, everything behind it is flushed.
fn silence(context: &mut Context<'_>, kind: Kind, state: QueuePairState) -> Outcome {
    let setup = Setup { access: Access::REMOTE_WRITE | kind.right(), ..hasty_setup() };
    let pair = Pair::unconnected(context, &setup)?;
    let [requester, owner] = &pair.ends;
    pair.advance(0, QueuePairState::ReadyToSend)?;
    if state == QueuePairState::Error {
        pair.advance(1, QueuePairState::ReadyToSend)?;
        owner.go(state)?;
    }
    let words = kind.shared(owner)?;
    given_up(context, requester, kind, &words)?;
    owner.is_in(state)
}

fn destroyed_peer(context: &mut Context<'_>, kind: Kind) -> Outcome {
    let setup = Setup { access: Access::REMOTE_WRITE | kind.right(), ..hasty_setup() };
    let pair = Pair::new(context, &setup)?;
    let words = kind.shared(&pair.ends[1])?;
    pair.ends[1].queue_pair.destroy()?;
    given_up(context, &pair.ends[0], kind, &words)
}

fn given_up(context: &mut Context<'_>, requester: &End, kind: Kind, words: &Words) -> Outcome {
    let local = Memory::target(&requester.domain, kind.length())?;
    empty_receives(requester, 2)?;
    for id in 0..4 {
        requester.send(id, kind.operation(words.remote(0)), &[local.whole()])?;
    }
    let done = context.completion("requester", &requester.send_queue)?;
    status("requester", &done, 0, CompletionStatus::RetryExceededError)?;
    all_flushed(context, "requests behind the failed one", &requester.send_queue, 1, 3)?;
    all_flushed(context, "requester's receives", &requester.receive_queue, 0, 2)?;
    requester.is_in(QueuePairState::Error)?;
    words.memory.verify("memory of the peer")?;
    local.verify("memory for what should come back")
}

/// An error is the matter of one queue pair.
fn others_live_on(context: &mut Context<'_>) -> Outcome {
    let (failing, living) = (Pair::new(context, &setup())?, Pair::new(context, &setup())?);
    let words = Kind::Read.shared(&failing.ends[1])?;
    let nowhere = RemoteMemory { address: 0x10, key: 0 };
    access_is_refused(context, &failing, Kind::Read, nowhere, &words.memory)?;
    for from in [0, 1] {
        living.ends[from].is_in(QueuePairState::ReadyToSend)?;
        read_message(context, &living, from, &[5000])?;
    }
    Ok(())
}
