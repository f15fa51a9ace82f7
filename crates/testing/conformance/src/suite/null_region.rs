//! The null region: a local key whose memory takes everything and keeps nothing, and reads as zeros
//! (`ibv_alloc_null_mr`). With it a program skips parts of a message, at either end.

use longhaul_verbs::{
    Access, Capabilities, CompletionStatus, NullRegion, QueuePairState, ScatterGatherEntry, SendOperation, Transport,
};

use super::Test;
use super::attempts::open_setup;
use super::context::{Context, prefix};
use super::failure::{Failure, Outcome, equal, status};
use super::memory::{Memory, pattern};
use super::pair::{Form, Pair};

const RC: Transport = Transport::ReliableConnection;
const NULL_REGION: Capabilities = Capabilities::NULL_REGION;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in Transport::ALL {
        let mut add = |name: &str, function: fn(&mut Context<'_>, Transport) -> Outcome| {
            tests.push(Test::new(
                format!("{}/null-region/{name}", prefix(transport)),
                transport.capability() | NULL_REGION,
                move |context| function(context, transport),
            ));
        };
        add("receive-into-nothing", receive_into_nothing);
        add("receive-skips-a-part", receive_skips_a_part);
        add("send-of-zeros", send_of_zeros);
        add("any-address", any_address);
        add("deregistered", deregistered);
    }
    let mut reliable = |name: &str, needs: Capabilities, function: fn(&mut Context<'_>) -> Outcome| {
        tests.push(Test::new(format!("rc/null-region/{name}"), RC.capability() | NULL_REGION | needs, function));
    };
    reliable("write-of-zeros", Capabilities::empty(), write_of_zeros);
    reliable("read-into-nothing", Capabilities::READ, read_into_nothing);
    reliable("atomic-into-nothing", Capabilities::ATOMICS, atomic_into_nothing);
    reliable("other-domain", Capabilities::empty(), other_domain);
    tests
}

/// The longest message of a transport that tests here use.
fn message_bytes(context: &Context<'_>, transport: Transport) -> usize {
    match transport {
        Transport::UnreliableDatagram => context.mtu(),
        _ => 3 * context.mtu() + 7,
    }
}

fn both_succeed(context: &mut Context<'_>, pair: &Pair, length: usize) -> Outcome {
    let [sender, receiver] = &pair.ends;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    Form::Send.check_received(&received, (sender, receiver), 1, length, 0)?;
    let sent = context.completion("sender", &sender.send_queue)?;
    status("sender", &sent, 2, CompletionStatus::Success)
}

/// The message is taken, counted, and gone.
fn receive_into_nothing(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let null = receiver.domain.allocate_null_region()?;
    let length = message_bytes(context, transport);
    let source = Memory::source(&sender.domain, &pattern(1, length))?;
    for _ in 0..2 {
        receiver.receive(1, &[null.entry((receiver.header_bytes() + length) as u32)])?;
        sender.send(2, SendOperation::Send, &[source.whole()])?;
        both_succeed(context, &pair, length)?;
    }
    // What was written is not read back.
    reads_as_zeros(context, &pair, &null)
}

/// The second end sends from nothing; the first one receives zeros.
fn reads_as_zeros(context: &mut Context<'_>, pair: &Pair, null: &NullRegion) -> Outcome {
    let [other, owner] = &pair.ends;
    let header = other.header_bytes();
    let mut target = Memory::target(&other.domain, header + 200)?;
    other.receive(1, &[target.whole()])?;
    owner.send(2, SendOperation::Send, &[null.entry(200)])?;
    let received = context.completion("receiver of zeros", &other.receive_queue)?;
    status("receiver of zeros", &received, 1, CompletionStatus::Success)?;
    let sent = context.completion("sender of zeros", &owner.send_queue)?;
    status("sender of zeros", &sent, 2, CompletionStatus::Success)?;
    target.accept(0..header);
    target.expect(header, &[0; 200]);
    target.verify("memory that received zeros")
}

/// Only what the other entries cover is kept, at its place.
fn receive_skips_a_part(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let null = receiver.domain.allocate_null_region()?;
    let length = message_bytes(context, transport);
    let (skipped, kept) = (length / 3, 10..10 + length / 3);
    let source = Memory::source(&sender.domain, &pattern(2, length))?;
    let mut target = Memory::target(&receiver.domain, length)?;
    let first = null.entry((receiver.header_bytes() + skipped) as u32);
    let entries = [first, target.entry(kept.clone()), null.entry(length as u32)];
    receiver.receive(1, &entries)?;
    sender.send(2, SendOperation::Send, &[source.whole()])?;
    both_succeed(context, &pair, length)?;
    target.expect(kept.start, &source.bytes(skipped..skipped + kept.len()));
    target.verify("the part that was kept")
}

fn send_of_zeros(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let null = sender.domain.allocate_null_region()?;
    let length = message_bytes(context, transport);
    let source = Memory::source(&sender.domain, &pattern(3, 20))?;
    let header = receiver.header_bytes();
    let mut target = Memory::target(&receiver.domain, header + length)?;
    receiver.receive(1, &[target.whole()])?;
    let zeros = length - 20;
    sender.send(2, SendOperation::Send, &[source.entry(0..10), null.entry(zeros as u32), source.entry(10..20)])?;
    both_succeed(context, &pair, length)?;
    target.accept(0..header);
    target.expect(header, &source.bytes(0..10));
    target.expect(header + 10, &vec![0; zeros]);
    target.expect(header + 10 + zeros, &source.bytes(10..20));
    target.verify("memory that received zeros")
}

/// It has no end and no beginning.
fn any_address(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let null = receiver.domain.allocate_null_region()?;
    let source = Memory::source(&sender.domain, &pattern(4, 100))?;
    for address in [0, 1, 0x1234_5678_9abc, 1 << 47] {
        let entry = ScatterGatherEntry { address, ..null.entry(200) };
        receiver.receive(1, &[entry])?;
        sender.send(2, SendOperation::Send, &[source.whole()])?;
        both_succeed(context, &pair, 100).map_err(|failure| failure.context(format_args!("address {address:#x}")))?;
    }
    Ok(())
}

fn write_of_zeros(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, RC)?;
    let [sender, receiver] = &pair.ends;
    let null = sender.domain.allocate_null_region()?;
    let mut target = Memory::target(&receiver.domain, 5000)?;
    sender.send(2, SendOperation::Write(target.remote(100)), &[null.entry(4000)])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    status("sender", &sent, 2, CompletionStatus::Success)?;
    target.expect(100, &[0; 4000]);
    target.verify("memory that zeros were written to")
}

fn read_into_nothing(context: &mut Context<'_>) -> Outcome {
    let setup = open_setup(context, RC)?;
    let pair = Pair::new(context, &setup)?;
    let [reader, owner] = &pair.ends;
    let null = reader.domain.allocate_null_region()?;
    let remote = Memory::new(&owner.domain, 5000, Access::REMOTE_READ)?;
    let mut kept = Memory::target(&reader.domain, 1000)?;
    let entries = [null.entry(2000), kept.whole(), null.entry(2000)];
    reader.send(1, SendOperation::Read(remote.remote(0)), &entries)?;
    let done = context.completion("reader", &reader.send_queue)?;
    status("reader", &done, 1, CompletionStatus::Success)?;
    kept.expect(0, &remote.bytes(2000..3000));
    kept.verify("the part that was kept")
}

/// The atomic is carried out; only its result is not kept.
fn atomic_into_nothing(context: &mut Context<'_>) -> Outcome {
    let setup = open_setup(context, RC)?;
    let pair = Pair::new(context, &setup)?;
    let [requester, owner] = &pair.ends;
    let null = requester.domain.allocate_null_region()?;
    let mut memory = Memory::new(&owner.domain, 64, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    let at = memory.aligned(0);
    memory.fill(at, &5_u64.to_ne_bytes());
    let operation = SendOperation::FetchAndAdd { remote: memory.remote(at), add: 7 };
    requester.send(1, operation, &[null.entry(8)])?;
    let done = context.completion("requester", &requester.send_queue)?;
    status("requester", &done, 1, CompletionStatus::Success)?;
    memory.expect(at, &12_u64.to_ne_bytes());
    memory.verify("memory of an atomic")
}

/// A key counts only within its protection domain. (mlx5 has one null key for the whole device.)
fn other_domain(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, RC)?;
    let other = context.device(0).allocate_protection_domain()?;
    let null = other.allocate_null_region()?;
    pair.ends[1].receive(1, &[])?;
    pair.ends[0].send(2, SendOperation::Send, &[null.entry(0x10)])?;
    let sent = context.completion("sender", &pair.ends[0].send_queue)?;
    context.tolerate(status("sender", &sent, 2, CompletionStatus::LocalProtectionError))
}

/// After deregistration its key is worth nothing, as any other.
fn deregistered(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let sender = &pair.ends[0];
    let null = sender.domain.allocate_null_region()?;
    null.raw().deregister()?;
    sender.send(2, SendOperation::Send, &[null.entry(10)])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    let failed = status("sender", &sent, 2, CompletionStatus::LocalProtectionError);
    if failed.is_err() {
        return context.tolerate(failed);
    }
    match (transport, sender.queue_pair.state()) {
        (Transport::ReliableConnection, QueuePairState::Error) => Ok(()),
        (_, QueuePairState::SendQueueError) if transport != RC => Ok(()),
        (_, state) => {
            let wrong = Failure::new(format!("expected the queue to have stopped, got {state:?}"));
            context.tolerate(Err(wrong)).and_then(|()| equal("state", QueuePairState::Error, state))
        }
    }
}
