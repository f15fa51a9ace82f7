//! Every operation of a reliable connection with every error that the specification has for it (IBTA 10.10.3, 11.6.2):
//! one test for each pair, and a reason where there is none. [`cell`] is the table, so that a gap shows.
//!
//! Each test ends alike: the failed request has the status, what is behind it is flushed, the queue pair is in ERR, and
//! nothing that should not have been written has been.

use longhaul_verbs::{
    Access, Capabilities, CompletionStatus, QueuePairState, RemoteMemory, ScatterGatherEntry, SendFlags, SendOperation,
    Transport,
};

use super::Test;
use super::atomics::{WORD_BYTES, Words};
use super::context::Context;
use super::failure::{Outcome, equal, status};
use super::flush::all_flushed;
use super::memory::Memory;
use super::pair::{End, Pair, Setup};
use super::transfer::send_with_flags;

const RC: Transport = Transport::ReliableConnection;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Send,
    SendWithImmediate,
    SendWithInvalidate,
    Write,
    WriteWithImmediate,
    Read,
    CompareAndSwap,
    FetchAndAdd,
}

use Operation as O;

impl Operation {
    pub(super) const ALL: [Operation; 8] = [
        O::Send,
        O::SendWithImmediate,
        O::SendWithInvalidate,
        O::Write,
        O::WriteWithImmediate,
        O::Read,
        O::CompareAndSwap,
        O::FetchAndAdd,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            O::Send => "send",
            O::SendWithImmediate => "send-with-immediate",
            O::SendWithInvalidate => "send-with-invalidate",
            O::Write => "write",
            O::WriteWithImmediate => "write-with-immediate",
            O::Read => "read",
            O::CompareAndSwap => "compare-and-swap",
            O::FetchAndAdd => "fetch-and-add",
        }
    }

    fn needs(self) -> Capabilities {
        RC.capability()
            | match self {
                O::SendWithInvalidate => Capabilities::INVALIDATE,
                O::Read => Capabilities::READ,
                O::CompareAndSwap | O::FetchAndAdd => Capabilities::ATOMICS,
                _ => Capabilities::empty(),
            }
    }

    const fn is_send(self) -> bool {
        matches!(self, O::Send | O::SendWithImmediate | O::SendWithInvalidate)
    }

    const fn is_atomic(self) -> bool {
        matches!(self, O::CompareAndSwap | O::FetchAndAdd)
    }

    const fn consumes_receive(self) -> bool {
        self.is_send() || matches!(self, O::WriteWithImmediate)
    }

    /// The right that the peer must have given for it.
    pub(super) const fn right(self) -> Access {
        match self {
            O::Read => Access::REMOTE_READ,
            O::CompareAndSwap | O::FetchAndAdd => Access::REMOTE_ATOMIC,
            _ => Access::REMOTE_WRITE,
        }
    }

    /// With eight bytes at the peer. A key to be invalidated is one that nobody has.
    pub(super) const fn request(self, remote: RemoteMemory) -> SendOperation {
        match self {
            O::Send => SendOperation::Send,
            O::SendWithImmediate => SendOperation::SendWithImmediate(7),
            O::SendWithInvalidate => SendOperation::SendWithInvalidate(remote.key ^ 0x5a5a_5a00),
            O::Write => SendOperation::Write(remote),
            O::WriteWithImmediate => SendOperation::WriteWithImmediate(remote, 7),
            O::Read => SendOperation::Read(remote),
            O::CompareAndSwap => SendOperation::CompareAndSwap { remote, compare: 1, swap: 2 },
            O::FetchAndAdd => SendOperation::FetchAndAdd { remote, add: 3 },
        }
    }
}

/// How a request can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Error {
    LocalLength,
    LocalProtection,
    RemoteInvalidRequest,
    RemoteAccess,
    RemoteOperation,
    RetryExceeded,
    ReceiverNotReady,
    Flushed,
}

use Error as E;

impl Error {
    pub(super) const ALL: [Error; 8] = [
        E::LocalLength,
        E::LocalProtection,
        E::RemoteInvalidRequest,
        E::RemoteAccess,
        E::RemoteOperation,
        E::RetryExceeded,
        E::ReceiverNotReady,
        E::Flushed,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            E::LocalLength => "local-length",
            E::LocalProtection => "local-protection",
            E::RemoteInvalidRequest => "remote-invalid-request",
            E::RemoteAccess => "remote-access",
            E::RemoteOperation => "remote-operation",
            E::RetryExceeded => "retry-exceeded",
            E::ReceiverNotReady => "receiver-not-ready",
            E::Flushed => "flushed",
        }
    }
}

type Run = fn(&mut Context<'_>, Operation) -> Outcome;

/// A test, or why there can be none.
pub(super) enum Cell {
    Tested(Run),
    Never(#[cfg_attr(not(test), expect(dead_code, reason = "for the reader of the table"))] &'static str),
}

/// The known exceptions for an operation and an error.
pub(super) fn cell(operation: Operation, error: Error) -> Cell {
    match (operation, error) {
        (_, E::LocalLength) => Cell::Tested(local_length),
        (_, E::LocalProtection) => Cell::Tested(local_protection),
        (O::Send | O::SendWithImmediate | O::SendWithInvalidate, E::RemoteInvalidRequest) => {
            Cell::Tested(receive_too_small)
        }
        (O::Write | O::WriteWithImmediate, E::RemoteInvalidRequest) => {
            Cell::Never("only packets that no device sends are invalid; the software RNIC is tested with such packets")
        }
        (_, E::RemoteInvalidRequest) => Cell::Tested(no_resources),
        (O::Send | O::SendWithImmediate, E::RemoteAccess) => Cell::Never("a SEND names no memory of the peer"),
        (O::SendWithInvalidate, E::RemoteAccess) => Cell::Tested(key_that_cannot_be_invalidated),
        (_, E::RemoteAccess) => Cell::Tested(unknown_key),
        (_, E::RemoteOperation) if operation.is_send() => Cell::Tested(bad_receive),
        (_, E::RemoteOperation) => Cell::Never("the peer uses no memory of a receive for it"),
        (_, E::RetryExceeded) => Cell::Tested(silence),
        (_, E::ReceiverNotReady) if operation.consumes_receive() => Cell::Tested(receiver_not_ready),
        (_, E::ReceiverNotReady) => Cell::Never("it needs no receive"),
        (_, E::Flushed) => Cell::Tested(flushed),
    }
}

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for operation in Operation::ALL {
        for error in Error::ALL {
            if let Cell::Tested(run) = cell(operation, error) {
                let name = format!("rc/error-completions/{}-{}", operation.name(), error.name());
                tests.push(Test::new(name, operation.needs(), move |context| run(context, operation)));
            }
        }
        let name = format!("rc/error-completions/{}-unsignaled-fails-loudly", operation.name());
        tests.push(Test::new(name, operation.needs(), move |context| unsignaled(context, operation)));
    }
    tests
}

/// Two ends, eight bytes at the peer that the operation may use, and eight at home.
struct Stage {
    pair: Pair,
    words: Words,
    local: Memory,
}

impl Stage {
    fn setup(operation: Operation) -> Setup {
        Setup { access: Access::REMOTE_WRITE | operation.right(), ..Setup::new(RC) }
    }

    fn with(context: &mut Context<'_>, operation: Operation, pair: Pair) -> Outcome<Self> {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | operation.right();
        let mut words = Words::new(&pair.ends[1].domain, 1, rights)?;
        words.set(0, 0x1122_3344_5566_7788);
        let local = Memory::target(&pair.ends[0].domain, WORD_BYTES)?;
        context.forget_events()?;
        Ok(Stage { pair, words, local })
    }

    fn new(context: &mut Context<'_>, operation: Operation) -> Outcome<Self> {
        let pair = Pair::new(context, &Stage::setup(operation))?;
        Stage::with(context, operation, pair)
    }

    fn requester(&self) -> &End {
        &self.pair.ends[0]
    }

    fn owner(&self) -> &End {
        &self.pair.ends[1]
    }

    /// Posts the operation and a SEND behind it.
    fn post(&self, operation: SendOperation, local: &[ScatterGatherEntry]) -> Outcome {
        self.requester().send(1, operation, local)?;
        self.requester().send(2, SendOperation::Send, &[])
    }

    /// The operation has failed with one of these, the request behind it is flushed, and nothing was written.
    fn has_failed(&self, context: &mut Context<'_>, expected: &[CompletionStatus]) -> Outcome {
        let requester = self.requester();
        let done = context.completions("requester", &requester.send_queue, 2)?;
        context.failed("requester", &done[0], 1, expected)?;
        equal("queue pair of the failed request", requester.number(), done[0].queue_pair)?;
        status("request behind the failed one", &done[1], 2, CompletionStatus::FlushedError)?;
        requester.is_in(QueuePairState::Error)?;
        context.unchanged("memory of the peer", &self.words.memory)?;
        self.local.verify("local memory")?;
        context.no_completion("requester, after the flush", &requester.send_queue)
    }
}

/// More bytes than a message can have, or another number than an atomic has. A device may refuse it when it is posted:
/// then the queue pair goes on.
fn local_length(context: &mut Context<'_>, operation: Operation) -> Outcome {
    let stage = Stage::new(context, operation)?;
    let requester = stage.requester();
    let most = context.device_attributes(0)?.max_message_bytes;
    // Nothing is read or written: the length is looked at first.
    let piece = u32::try_from(most).unwrap_or(1 << 31);
    let entry = |length| ScatterGatherEntry { length, ..stage.local.whole() };
    let entries = match operation.is_atomic() {
        true => vec![entry(WORD_BYTES as u32 - 1)],
        false => vec![entry(piece), entry(piece)],
    };
    let request = requester.request(1, operation.request(stage.words.remote(0)), &entries);
    if requester.queue_pair.post_send(&[request]).is_ok() {
        requester.send(2, SendOperation::Send, &[])?;
        // Devices that look at the memory first find that the entries are longer than it is.
        return stage
            .has_failed(context, &[CompletionStatus::LocalLengthError, CompletionStatus::LocalProtectionError]);
    }
    requester.is_in(QueuePairState::ReadyToSend)?;
    context.no_completion("requester of a refused request", &requester.send_queue)?;
    context.unchanged("memory of the peer", &stage.words.memory)?;
    stage.local.verify("local memory")?;
    super::transfer::move_message(context, &stage.pair, 0, super::pair::Form::Send, &[10], &[10])
}

fn local_protection(context: &mut Context<'_>, operation: Operation) -> Outcome {
    let mut stage = Stage::new(context, operation)?;
    stage.owner().receive(1, &[])?;
    let bad = ScatterGatherEntry { local_key: stage.local.local_key() ^ 0x5a5a_5a00, ..stage.local.whole() };
    stage.post(operation.request(stage.words.remote(0)), &[bad])?;
    if operation.is_atomic() {
        // A device may look for where the result goes when it comes.
        context.rest();
        stage.words.memory.accept(0..stage.words.memory.len());
    }
    stage.has_failed(context, &[CompletionStatus::LocalProtectionError])
}

/// A message longer than its receive.
fn receive_too_small(context: &mut Context<'_>, operation: Operation) -> Outcome {
    let stage = Stage::new(context, operation)?;
    let room = Memory::target(&stage.owner().domain, WORD_BYTES - 1)?;
    stage.owner().receive(1, &[room.whole()])?;
    stage.post(operation.request(stage.words.remote(0)), &[stage.local.whole()])?;
    stage.has_failed(context, &[CompletionStatus::RemoteInvalidRequestError])
}

/// A peer that takes no READs and atomics.
fn no_resources(context: &mut Context<'_>, operation: Operation) -> Outcome {
    let setup = Setup { destination_read_atomic: Some(0), ..Stage::setup(operation) };
    let pair = Pair::new(context, &setup)?;
    let stage = Stage::with(context, operation, pair)?;
    stage.post(operation.request(stage.words.remote(0)), &[stage.local.whole()])?;
    stage.has_failed(context, &[CompletionStatus::RemoteInvalidRequestError])
}

fn unknown_key(context: &mut Context<'_>, operation: Operation) -> Outcome {
    let stage = Stage::new(context, operation)?;
    stage.owner().receive(1, &[])?;
    let remote = stage.words.remote(0);
    let nowhere = RemoteMemory { key: remote.key ^ 0x5a5a_5a00, ..remote };
    stage.post(operation.request(nowhere), &[stage.local.whole()])?;
    stage.has_failed(context, &[CompletionStatus::RemoteAccessError])
}

/// Devices do not agree on what a key that cannot be invalidated is: a matter of access or an invalid request.
fn key_that_cannot_be_invalidated(context: &mut Context<'_>, operation: Operation) -> Outcome {
    let stage = Stage::new(context, operation)?;
    let room = Memory::target(&stage.owner().domain, WORD_BYTES)?;
    stage.owner().receive(1, &[room.whole()])?;
    stage.post(operation.request(stage.words.remote(0)), &[stage.local.whole()])?;
    let allowed = [
        CompletionStatus::RemoteAccessError,
        CompletionStatus::RemoteInvalidRequestError,
        CompletionStatus::RemoteOperationError,
    ];
    stage.has_failed(context, &allowed)
}

/// The peer's receive names memory that is not there.
fn bad_receive(context: &mut Context<'_>, operation: Operation) -> Outcome {
    let stage = Stage::new(context, operation)?;
    let nowhere = ScatterGatherEntry { address: 0x1000, length: 64, local_key: 0 };
    stage.owner().receive(1, &[nowhere])?;
    stage.post(operation.request(stage.words.remote(0)), &[stage.local.whole()])?;
    stage.has_failed(context, &[CompletionStatus::RemoteOperationError])
}

/// A peer that is not ready to receive anything.
fn silence(context: &mut Context<'_>, operation: Operation) -> Outcome {
    let setup = Setup { access: Stage::setup(operation).access, ..Setup::hasty(RC) };
    let pair = Pair::unconnected(context, &setup)?;
    pair.advance(0, QueuePairState::ReadyToSend)?;
    let stage = Stage::with(context, operation, pair)?;
    stage.post(operation.request(stage.words.remote(0)), &[stage.local.whole()])?;
    stage.has_failed(context, &[CompletionStatus::RetryExceededError])
}

fn receiver_not_ready(context: &mut Context<'_>, operation: Operation) -> Outcome {
    let setup = Setup { receiver_not_ready_retry: 1, ..Stage::setup(operation) };
    let pair = Pair::new(context, &setup)?;
    let mut stage = Stage::with(context, operation, pair)?;
    if operation == O::WriteWithImmediate {
        // Its bytes may be written before it is found that there is no receive for the immediate.
        stage.local = Memory::target(&stage.requester().domain, 0)?;
    }
    stage.post(operation.request(stage.words.remote(0)), &[stage.local.whole()])?;
    stage.has_failed(context, &[CompletionStatus::ReceiverNotReadyRetryExceededError])?;
    stage.owner().is_in(QueuePairState::ReadyToSend)
}

/// Flushed when posted before ERR and not answered, when posted in ERR, and without effect in either case.
fn flushed(context: &mut Context<'_>, operation: Operation) -> Outcome {
    let pair = Pair::unconnected(context, &Stage::setup(operation).unhurried())?;
    pair.advance(0, QueuePairState::ReadyToSend)?;
    let stage = Stage::with(context, operation, pair)?;
    let requester = stage.requester();
    let request = operation.request(stage.words.remote(0));
    for id in 0..3 {
        requester.send(id, request, &[stage.local.whole()])?;
    }
    context.no_completion("requester of a peer that is not ready", &requester.send_queue)?;
    requester.go(QueuePairState::Error)?;
    all_flushed(context, "posted before ERR", &requester.send_queue, 0, 3)?;
    send_with_flags(requester, 3, request, &[stage.local.whole()], SendFlags::empty())?;
    requester.send(4, request, &[stage.local.whole()])?;
    all_flushed(context, "posted in ERR", &requester.send_queue, 3, 2)?;
    stage.pair.advance(1, QueuePairState::ReadyToSend)?;
    stage.owner().receive(9, &[])?;
    context.unchanged("memory of the peer", &stage.words.memory)?;
    stage.local.verify("local memory")?;
    context.no_completion("peer", &stage.owner().receive_queue)?;
    context.no_completion("requester, after the flush", &requester.send_queue)
}

/// A failure makes a completion, signalled or not.
fn unsignaled(context: &mut Context<'_>, operation: Operation) -> Outcome {
    let stage = Stage::new(context, operation)?;
    let bad = ScatterGatherEntry { local_key: stage.local.local_key() ^ 0x5a5a_5a00, ..stage.local.whole() };
    let request = operation.request(stage.words.remote(0));
    send_with_flags(stage.requester(), 1, request, &[bad], SendFlags::empty())?;
    let done = context.completion("requester", &stage.requester().send_queue)?;
    context.failed("requester", &done, 1, &[CompletionStatus::LocalProtectionError])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole table: a change of it is a change of what is promised.
    #[test]
    fn the_table_of_operations_and_errors() {
        let mut lines = String::new();
        for operation in Operation::ALL {
            for error in Error::ALL {
                let what = match cell(operation, error) {
                    Cell::Tested(_) => "tested".to_owned(),
                    Cell::Never(reason) => format!("never: {reason}"),
                };
                lines += &format!("{:22} {:24} {what}\n", operation.name(), error.name());
            }
        }
        insta::assert_snapshot!(lines);
    }

    #[test]
    fn every_tested_cell_is_in_the_registry() {
        let names: Vec<String> = super::super::registry().iter().map(|test| test.name().to_owned()).collect();
        let mut count = 0;
        for operation in Operation::ALL {
            for error in Error::ALL {
                let name = format!("rc/error-completions/{}-{}", operation.name(), error.name());
                let expected = matches!(cell(operation, error), Cell::Tested(_));
                assert_eq!(names.contains(&name), expected, "{name}");
                count += usize::from(expected);
            }
        }
        assert!(count > 40, "{count}");
    }
}
