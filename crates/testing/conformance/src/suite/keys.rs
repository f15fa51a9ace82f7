//! Who may reach memory: keys die with their region, numbers cannot be guessed from one another, and strangers get
//! nowhere.

use std::collections::BTreeSet;

use longhaul_verbs::{
    Access, Capabilities, CompletionStatus, PathAttributes, QueuePairAttributes, QueuePairNumber, QueuePairState,
    SendOperation, Transport,
};

use super::Test;
use super::context::Context;
use super::failure::{Failure, Outcome, ensure, equal, status, status_among};
use super::memory::{Memory, pattern};
use super::pair::{Form, Pair, Setup, create};
use super::transfer::{CONNECTED, NOTHING, move_message, test};

pub(super) fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::new("keys/numbers/regions", NOTHING, region_keys),
        Test::new("keys/numbers/queue-pairs", NOTHING, queue_pair_numbers),
        Test::new("keys/numbers/not-given-out-again-at-once", NOTHING, not_given_out_again),
        test(Transport::ReliableConnection, "keys/foreign-sequence-numbers", foreign_sequence_numbers),
    ];
    for transport in CONNECTED {
        tests.push(test(transport, "keys/revoked-in-flight", move |context| revoked_in_flight(context, transport)));
        tests.push(test(transport, "keys/revoked-receive", move |context| revoked_receive(context, transport)));
        tests.push(test(transport, "keys/foreign-address", move |context| foreign_address(context, transport)));
        tests.push(test(transport, "keys/of-one-region-only", move |context| of_one_region_only(context, transport)));
    }
    let both = Capabilities::RELIABLE_CONNECTION | Capabilities::UNRELIABLE_CONNECTION;
    tests.push(Test::new("keys/foreign-transport", both, foreign_transport));
    tests
}

/// Fails when numbers look as if they were counted up: most steps are the same small one.
fn not_counted_up(what: &str, numbers: &[u32]) -> Outcome {
    let mut steps: Vec<u32> = numbers.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    steps.sort_unstable();
    let longest_run = steps.chunk_by(|a, b| a == b).map(<[u32]>::len).max().unwrap_or(0);
    ensure(longest_run <= steps.len() / 2, || {
        format!("{what}: expected numbers that cannot be guessed from one another, got {numbers:x?}")
    })
}

fn region_keys(context: &mut Context<'_>) -> Outcome {
    let domain = context.device(0).allocate_protection_domain()?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mut regions = Vec::new();
    for _ in 0..24 {
        regions.push(domain.register_zeroed(4096, rights)?);
    }
    let remote: Vec<u32> = regions.iter().map(|region| region.remote_key()).collect();
    let unique: BTreeSet<u32> = remote.iter().copied().collect();
    equal("different remote keys", remote.len(), unique.len())?;
    ensure(!unique.contains(&0), || "expected keys other than 0, got 0".into())?;
    context.tolerate(not_counted_up("remote keys", &remote))
}

fn queue_pair_numbers(context: &mut Context<'_>) -> Outcome {
    let claimed = context.device_attributes(0)?.capabilities;
    let mut numbers = Vec::new();
    let mut made = Vec::new();
    let device = context.device(0).clone();
    let domain = device.allocate_protection_domain()?;
    let queue = device.create_completion_queue(16)?;
    for transport in Transport::ALL {
        if !claimed.contains(transport.capability()) {
            continue;
        }
        for _ in 0..8 {
            let queue_pair = create(&domain, &queue, &queue, &Setup::new(transport))?;
            numbers.push(queue_pair.number().value());
            made.push(queue_pair);
        }
    }
    let unique: BTreeSet<u32> = numbers.iter().copied().collect();
    equal("different queue pair numbers", numbers.len(), unique.len())?;
    for number in &numbers {
        let ordinary = *number >= QueuePairNumber::FIRST_ORDINARY && *number < QueuePairNumber::MULTICAST.value();
        ensure(ordinary, || format!("expected an ordinary queue pair number, got {number:#x}"))?;
    }
    context.tolerate(not_counted_up("queue pair numbers", &numbers))
}

/// A key that was just revoked must not come back with the next region: a peer may still use it.
fn not_given_out_again(context: &mut Context<'_>) -> Outcome {
    let domain = context.device(0).allocate_protection_domain()?;
    let mut last = None;
    let mut repeated = 0;
    for _ in 0..16 {
        let region = domain.register_zeroed(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        repeated += usize::from(last == Some(region.remote_key()));
        last = Some(region.remote_key());
    }
    context.tolerate(equal("keys given out twice in a row", 0, repeated))
}

/// A region is deregistered while a long WRITE into it is in flight. When that returns, nothing changes any more.
fn revoked_in_flight(context: &mut Context<'_>, transport: Transport) -> Outcome {
    for steps in [0, 1, 2, 4] {
        let pair = Pair::of(context, transport)?;
        let [sender, receiver] = &pair.ends;
        let size = 1 << 20;
        let source = Memory::source(&sender.domain, &pattern(1, size))?;
        let target = Memory::target(&receiver.domain, size)?;
        sender.send(1, SendOperation::Write(target.remote(0)), &[source.whole()])?;
        for _ in 0..steps {
            context.progress();
        }
        // From here on the bytes are ours: if the device wrote there, it would be a fault of memory safety.
        let bytes = target.into_bytes()?;
        let copy = bytes.clone();
        let sent = context.completion("sender", &sender.send_queue)?;
        let allowed = match transport {
            Transport::ReliableConnection => &[CompletionStatus::Success, CompletionStatus::RemoteAccessError][..],
            _ => &[CompletionStatus::Success][..],
        };
        status_among("sender", &sent, 1, allowed)?;
        context.rest();
        equal("memory unchanged after its key was revoked", true, bytes == copy)?;
        if transport == Transport::ReliableConnection && sent.is_success() {
            let arrived = bytes.windows(size).any(|window| window == source.bytes(0..size));
            equal("bytes of a WRITE that succeeded before its key was revoked", true, arrived)?;
        }
    }
    Ok(())
}

/// A posted receive does not keep its memory alive: a message for it then fails.
fn revoked_receive(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &pattern(2, 500))?;
    let target = Memory::target(&receiver.domain, 500)?;
    receiver.receive(1, &[target.whole()])?;
    let bytes = target.into_bytes()?;
    let copy = bytes.clone();
    sender.send(2, SendOperation::Send, &[source.whole()])?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    equal("success of a receive into revoked memory", false, received.is_success())?;
    context.rest();
    equal("memory unchanged after its key was revoked", true, bytes == copy)
}

/// A connected queue pair takes packets from its peer's address only (IBTA 9.6.1).
/// Here its peer is said to be at its own address, and the packets come from elsewhere.
fn foreign_address(context: &mut Context<'_>, transport: Transport) -> Outcome {
    if context.gid(0)? == context.gid(1)? {
        return Err(Failure::not_applicable("two addresses"));
    }
    let pair = Pair::unconnected(context, &Setup::hasty(transport))?;
    let [sender, receiver] = &pair.ends;
    pair.advance(0, QueuePairState::ReadyToSend)?;
    pair.advance(1, QueuePairState::Initialized)?;
    let elsewhere = PathAttributes { destination: context.gid(1)?, ..pair.path(1) };
    receiver
        .queue_pair
        .modify(&QueuePairAttributes { path: Some(elsewhere), ..pair.attributes(1, QueuePairState::ReadyToReceive) })?;
    receiver.queue_pair.modify(&pair.attributes(1, QueuePairState::ReadyToSend))?;
    let source = Memory::source(&sender.domain, &pattern(3, 100))?;
    let target = Memory::target(&receiver.domain, 100)?;
    receiver.receive(1, &[])?;
    let operation = SendOperation::WriteWithImmediate(target.remote(0), 1);
    sender.send(2, operation, &[source.whole()])?;
    let sent = context.completion("stranger", &sender.send_queue)?;
    let expected = match transport {
        Transport::ReliableConnection => CompletionStatus::RetryExceededError,
        _ => CompletionStatus::Success,
    };
    status("stranger", &sent, 2, expected)?;
    context.no_completion("receiver of a stranger's message", &receiver.receive_queue)?;
    target.verify("memory that a stranger wrote to")?;
    receiver.is_in(QueuePairState::ReadyToSend)
}

/// A third queue pair, at the peer's address, connected to a queue pair that is not connected to it. Packets carry no
/// sender's number: what gives the stranger away is the sequence. The true connection must not suffer.
fn foreign_sequence_numbers(context: &mut Context<'_>) -> Outcome {
    let transport = Transport::ReliableConnection;
    let pair = Pair::of(context, transport)?;
    move_message(context, &pair, 0, Form::Write, &[3000], &[])?;
    for distance in [0x10_0000_u32, 0xf0_0000] {
        let stranger = Pair::unconnected(context, &Setup::hasty(transport))?;
        let [end, _] = &stranger.ends;
        stranger.advance(0, QueuePairState::Initialized)?;
        end.queue_pair.modify(&QueuePairAttributes {
            destination_queue_pair: Some(pair.ends[1].number()),
            ..stranger.attributes(0, QueuePairState::ReadyToReceive)
        })?;
        let first = pair.setup.first_psn[0].wrapping_add(distance) & 0xff_ffff;
        end.queue_pair.modify(&QueuePairAttributes {
            send_psn: Some(first),
            ..stranger.attributes(0, QueuePairState::ReadyToSend)
        })?;
        let source = Memory::source(&end.domain, &pattern(4, 100))?;
        let target = Memory::target(&pair.ends[1].domain, 100)?;
        pair.ends[1].receive(1, &[])?;
        let operation = SendOperation::WriteWithImmediate(target.remote(0), 1);
        end.send(2, operation, &[source.whole()])?;
        let sent = context.completion("stranger", &end.send_queue)?;
        equal("success of a stranger", false, sent.is_success())?;
        context.no_completion("receiver of a stranger's message", &pair.ends[1].receive_queue)?;
        target.verify("memory that a stranger wrote to")?;
        // The true peer uses up the receive.
        pair.ends[0].send(3, SendOperation::SendWithImmediate(7), &[])?;
        let received = context.completion("receiver", &pair.ends[1].receive_queue)?;
        let ends = (&pair.ends[0], &pair.ends[1]);
        Form::SendWithImmediate.check_received(&received, ends, 1, 0, 7)?;
        let sent = context.completion("true peer", &pair.ends[0].send_queue)?;
        status("true peer", &sent, 3, CompletionStatus::Success)?;
    }
    Ok(())
}

/// Packets of one transport are nothing to a queue pair of another (IBTA 9.6.1).
fn foreign_transport(context: &mut Context<'_>) -> Outcome {
    let victims = Pair::of(context, Transport::ReliableConnection)?;
    let stranger = Pair::unconnected(context, &Setup::new(Transport::UnreliableConnection))?;
    let [end, _] = &stranger.ends;
    stranger.advance(0, QueuePairState::Initialized)?;
    end.queue_pair.modify(&QueuePairAttributes {
        destination_queue_pair: Some(victims.ends[1].number()),
        ..stranger.attributes(0, QueuePairState::ReadyToReceive)
    })?;
    // The very sequence number that the victim expects.
    end.queue_pair.modify(&stranger.attributes(0, QueuePairState::ReadyToSend))?;
    let source = Memory::source(&end.domain, &pattern(5, 100))?;
    let target = Memory::target(&victims.ends[1].domain, 100)?;
    victims.ends[1].receive(1, &[])?;
    let operation = SendOperation::WriteWithImmediate(target.remote(0), 1);
    end.send(2, operation, &[source.whole()])?;
    let sent = context.completion("stranger", &end.send_queue)?;
    status("stranger", &sent, 2, CompletionStatus::Success)?;
    context.no_completion("receiver of another transport's message", &victims.ends[1].receive_queue)?;
    target.verify("memory that a stranger wrote to")?;
    victims.ends[1].is_in(QueuePairState::ReadyToSend)
}

/// Two regions side by side: the key of one does not reach into the other.
fn of_one_region_only(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &pattern(6, 100))?;
    let (ours, theirs) = (Memory::target(&receiver.domain, 4096)?, Memory::target(&receiver.domain, 4096)?);
    let crossed = longhaul_verbs::RemoteMemory { key: ours.remote_key(), ..theirs.remote(0) };
    sender.send(1, SendOperation::Write(crossed), &[source.whole()])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    let expected = match transport {
        Transport::ReliableConnection => CompletionStatus::RemoteAccessError,
        _ => CompletionStatus::Success,
    };
    status("sender", &sent, 1, expected)?;
    context.unchanged("the region of the key", &ours)?;
    theirs.verify("the region of the address")
}
