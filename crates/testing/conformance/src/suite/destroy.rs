//! Queue pairs are destroyed in any state, with anything in flight (IBTA 11.2.5.4): what they had is forgotten, memory
//! is left alone from then on, and nobody else notices.

use longhaul_verbs::{
    Access, Capabilities, CompletionStatus, DestroyError, ModifyError, PostErrorKind, QueryError, QueuePairState,
    RemoteMemory, SendOperation, Transport,
};

use super::Test;
use super::attempts::open_setup;
use super::context::{Context, prefix};
use super::failure::{Outcome, ensure, equal, refusal, status};
use super::memory::{Memory, pattern};
use super::pair::{Form, Pair, Setup, create};
use super::state_table::{name, pair_in};
use super::transfer::{empty_receives, move_message, test};

const RC: Transport = Transport::ReliableConnection;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in Transport::ALL {
        for state in QueuePairState::ALL {
            let needs = match state {
                QueuePairState::SendQueueError if transport == RC => continue,
                QueuePairState::SendQueueDrained => transport.capability() | Capabilities::SEND_QUEUE_DRAIN,
                _ => transport.capability(),
            };
            let test_name = format!("{}/destroy/in-{}", prefix(transport), name(state));
            tests.push(Test::new(test_name, needs, move |context| in_state(context, transport, state)));
        }
        let mut add = |name: &str, function: fn(&mut Context<'_>, Transport) -> Outcome| {
            tests.push(test(transport, name, move |context| function(context, transport)));
        };
        add("destroy/is-gone", is_gone);
        add("destroy/others-on-the-same-completion-queue", others_on_the_same_completion_queue);
        add("destroy/while-a-message-arrives", while_a_message_arrives);
        add("destroy/while-a-message-leaves", while_a_message_leaves);
        add("destroy/by-letting-go", by_letting_go);
        add("destroy/many-times", many_times);
    }
    tests.push(test(RC, "destroy/with-sends-that-wait", with_sends_that_wait));
    let needs = RC.capability() | Capabilities::READ;
    tests.push(Test::new("rc/destroy/reader", needs, reader));
    tests.push(Test::new("rc/destroy/owner-of-what-is-read", needs, owner_of_what_is_read));
    tests
}

/// In every state, with receives where the state takes them. The peer is as it was.
fn in_state(context: &mut Context<'_>, transport: Transport, state: QueuePairState) -> Outcome {
    let pair = pair_in(context, transport, state)?;
    let [end, peer] = &pair.ends;
    if state.takes_receives() && state != QueuePairState::Error {
        empty_receives(end, 3)?;
    }
    end.queue_pair.destroy()?;
    context.rest();
    // Completions from before may be there or not; requests that were waiting make none.
    while let Some(completion) = end.receive_queue.poll_one()? {
        equal("success of a completion after destruction", false, completion.is_success())?;
        equal("state in which a request was flushed", QueuePairState::Error, state)?;
    }
    peer.is_in(QueuePairState::ReadyToSend)
}

/// Every call on it says so from now on.
fn is_gone(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let end = &pair.ends[0];
    end.queue_pair.destroy()?;
    let error = refusal("a second destruction", end.queue_pair.destroy())?;
    let fits = matches!(error, DestroyError::Gone | DestroyError::System(_));
    ensure(fits, || format!("second destruction: expected Gone, got {error}"))?;
    let error = refusal("a query", end.queue_pair.query())?;
    let fits = matches!(error, QueryError::Gone | QueryError::System(_));
    ensure(fits, || format!("query: expected Gone, got {error}"))?;
    let error = refusal("a modification", end.queue_pair.modify(&pair.attributes(0, QueuePairState::Error)))?;
    let fits = matches!(error, ModifyError::Gone | ModifyError::System(_));
    ensure(fits, || format!("modification: expected Gone, got {error}"))?;
    let request = end.request(1, SendOperation::Send, &[]);
    let receive = longhaul_verbs::ReceiveRequest { id: 1, local: &[] };
    for posted in [end.queue_pair.post_send(&[request]), end.queue_pair.post_receive(&[receive])] {
        let error = refusal("a request", posted)?;
        let fits = matches!(error.kind, PostErrorKind::Gone | PostErrorKind::System(_));
        ensure(fits, || format!("request: expected Gone, got {error}"))?;
    }
    context.no_completion("destroyed queue pair", &end.send_queue)
}

/// A second pair whose second end completes into the first one's completion queues.
fn pair_beside(context: &mut Context<'_>, first: &Pair) -> Outcome<Pair> {
    let mut pair = Pair::unconnected(context, &first.setup)?;
    let end = &mut pair.ends[1];
    end.send_queue = first.ends[1].send_queue.clone();
    end.receive_queue = first.ends[1].receive_queue.clone();
    end.queue_pair = create(&end.domain, &end.send_queue, &end.receive_queue, &first.setup)?;
    pair.meet()?;
    for end in [0, 1] {
        pair.advance(end, QueuePairState::ReadyToSend)?;
    }
    Ok(pair)
}

/// Completions of others, from before and later, are all there.
fn others_on_the_same_completion_queue(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let doomed = Pair::of(context, transport)?;
    let living = pair_beside(context, &doomed)?;
    let room = Memory::target(&doomed.ends[1].domain, 100)?;
    let target = Memory::target(&living.ends[1].domain, 100)?;
    let message = |pair: &Pair, id: u64, target: &Memory| -> Outcome {
        pair.ends[1].receive(id, &[target.whole()])?;
        pair.ends[0].send(id, SendOperation::SendWithImmediate(id as u32), &[])
    };
    for id in 0..4 {
        message(&doomed, id, &room)?;
        message(&living, 10 + id, &target)?;
    }
    context.rest();
    for id in 4..8 {
        doomed.ends[1].receive(id, &[room.whole()])?;
    }
    doomed.ends[1].queue_pair.destroy()?;
    for id in 4..8 {
        message(&living, 10 + id, &target)?;
    }
    context.rest();
    let (mut of_living, mut of_doomed) = (10, 0);
    while let Some(completion) = living.ends[1].receive_queue.poll_one()? {
        // What the doomed one had completed before may have gone with it, or may not.
        let (next, ends) = match completion.queue_pair == living.ends[1].number() {
            true => (&mut of_living, &living.ends),
            false => (&mut of_doomed, &doomed.ends),
        };
        let immediate = *next as u32;
        Form::SendWithImmediate.check_received(&completion, (&ends[0], &ends[1]), *next, 0, immediate)?;
        *next += 1;
    }
    equal("completions of the living queue pair, counted from 10", 18, of_living)?;
    ensure(of_doomed == 0 || of_doomed == 4, || {
        format!("expected all completions of the destroyed queue pair or none, got {of_doomed}")
    })?;
    for (id, sent) in (10..).zip(context.completions("sender", &living.ends[0].send_queue, 8)?) {
        status("sender", &sent, id, CompletionStatus::Success)?;
    }
    Ok(())
}

fn long_message(context: &Context<'_>, transport: Transport) -> usize {
    match transport {
        Transport::UnreliableDatagram => context.mtu(),
        _ => 1 << 20,
    }
}

/// When destruction returns, the device writes no byte any more for this queue pair.
fn while_a_message_arrives(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let forms: &[Form] = match transport {
        Transport::UnreliableDatagram => &[Form::Send],
        _ => &[Form::Send, Form::Write],
    };
    for &form in forms {
        for steps in [0, 1, 3] {
            let pair = Pair::new(context, &Setup::hasty(transport))?;
            let [sender, receiver] = &pair.ends;
            let length = long_message(context, transport);
            let source = Memory::source(&sender.domain, &pattern(7, length))?;
            let mut target = Memory::target(&receiver.domain, receiver.header_bytes() + length)?;
            receiver.receive(1, &[target.whole()])?;
            sender.send(2, form.operation(target.remote(0), 0), &[source.whole()])?;
            for _ in 0..steps {
                context.progress();
            }
            receiver.queue_pair.destroy()?;
            target.accept(0..target.len());
            context.unchanged("memory of a destroyed queue pair", &target)?;
            let sent = context.completion("sender", &sender.send_queue)?;
            let is_known = sent.is_success() || transport == RC && sent.status == CompletionStatus::RetryExceededError;
            ensure(is_known, || format!("sender to a destroyed peer: got {:?}", sent.status))?;
        }
    }
    Ok(())
}

/// Nothing of the message is sent any more: what the program writes into its buffer afterwards reaches nobody. The peer
/// waits, and takes the next message of another queue pair in its place.
fn while_a_message_leaves(context: &mut Context<'_>, transport: Transport) -> Outcome {
    for steps in [0, 1, 3] {
        let pair = Pair::new(context, &Setup::new(transport))?;
        let [sender, receiver] = &pair.ends;
        let length = long_message(context, transport);
        let mut source = Memory::source(&sender.domain, &vec![0x11; length])?;
        let mut target = Memory::target(&receiver.domain, receiver.header_bytes() + length)?;
        target.fill(0, &vec![0x22; target.len()]);
        receiver.receive(1, &[target.whole()])?;
        sender.send(2, SendOperation::Send, &[source.whole()])?;
        for _ in 0..steps {
            context.progress();
        }
        sender.queue_pair.destroy()?;
        source.fill(0, &vec![0x33; length]);
        context.rest();
        // Read when it was sent, or not sent at all. Single bytes may come from elsewhere: an unfinished receive is
        // nobody's yet.
        let got = target.bytes(receiver.header_bytes()..target.len());
        let is_late = got.windows(16).any(|bytes| bytes == [0x33; 16]);
        equal("bytes sent after destruction", false, is_late)?;
        receiver.is_in(QueuePairState::ReadyToSend)?;
        target.accept(0..target.len());
        target.verify("memory around the message")?;
    }
    Ok(())
}

/// Requests that waited for the peer leave no completion.
fn with_sends_that_wait(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, RC)?;
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &pattern(8, 5000))?;
    for id in 0..10 {
        sender.send(id, SendOperation::Send, &[source.whole()])?;
    }
    context.no_completion("sender to a peer without receives", &sender.send_queue)?;
    sender.queue_pair.destroy()?;
    // Their memory is free.
    source.into_bytes()?;
    // What was in flight arrives, and still finds no receive.
    context.no_completion("receiver without receives", &receiver.receive_queue)?;
    let target = Memory::target(&receiver.domain, 5000)?;
    for id in 0..10 {
        receiver.receive(id, &[target.whole()])?;
    }
    context.no_completion("destroyed sender", &sender.send_queue)?;
    context.no_completion("receiver of nothing", &receiver.receive_queue)?;
    target.verify("target memory")
}

/// The last reference is the queue pair's end, as well.
fn by_letting_go(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::new(context, &Setup::resigned(transport))?;
    move_message(context, &pair, 0, Form::Send, &[100], &[100])?;
    let Pair { ends: [sender, receiver], .. } = pair;
    let target = Memory::target(&receiver.domain, receiver.header_bytes() + 100)?;
    receiver.receive(1, &[target.whole()])?;
    let receive_queue = receiver.receive_queue.clone();
    drop(receiver);
    sender.send(2, SendOperation::Send, &[])?;
    let sent = context.completion("sender to nobody", &sender.send_queue)?;
    let expected = match transport {
        Transport::ReliableConnection => CompletionStatus::RetryExceededError,
        _ => CompletionStatus::Success,
    };
    status("sender to nobody", &sent, 2, expected)?;
    context.no_completion("queue pair that is gone", &receive_queue)?;
    target.verify("memory of a queue pair that is gone")
}

/// Made and destroyed again and again: more often than a device has room for at once, where that is not too often.
fn many_times(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let setup = Setup::new(transport);
    let domain = context.device(0).allocate_protection_domain()?;
    let queue = context.device(0).create_completion_queue(16)?;
    let attributes = Pair::unconnected(context, &setup)?.attributes(0, QueuePairState::Initialized);
    let times = match context.device_attributes(0)?.max_queue_pairs {
        0..1000 => 1000,
        _ => 100,
    };
    for _ in 0..times {
        let queue_pair = create(&domain, &queue, &queue, &setup)?;
        queue_pair.modify(&attributes)?;
        queue_pair.post_receive(&[longhaul_verbs::ReceiveRequest { id: 1, local: &[] }])?;
        queue_pair.destroy()?;
    }
    context.no_completion("destroyed queue pairs", &queue)
}

/// Responses that arrive late are written nowhere.
fn reader(context: &mut Context<'_>) -> Outcome {
    for steps in [0, 1, 3] {
        let setup = open_setup(context, RC)?;
        let pair = Pair::new(context, &setup)?;
        let [reader, owner] = &pair.ends;
        let remote = Memory::new(&owner.domain, 1 << 20, Access::REMOTE_READ)?;
        let mut local = Memory::target(&reader.domain, 1 << 20)?;
        local.fill(0, &vec![0x44; 1 << 20]);
        reader.send(1, SendOperation::Read(remote.remote(0)), &[local.whole()])?;
        for _ in 0..steps {
            context.progress();
        }
        reader.queue_pair.destroy()?;
        local.accept(0..1 << 20);
        context.unchanged("memory of a destroyed reader", &local)?;
        owner.is_in(QueuePairState::ReadyToSend)?;
    }
    Ok(())
}

fn owner_of_what_is_read(context: &mut Context<'_>) -> Outcome {
    let setup = Setup { access: open_setup(context, RC)?.access, ..Setup::hasty(RC) };
    let pair = Pair::new(context, &setup)?;
    let [reader, owner] = &pair.ends;
    let remote = Memory::new(&owner.domain, 1 << 20, Access::REMOTE_READ)?;
    let local = Memory::target(&reader.domain, 1 << 20)?;
    let place: RemoteMemory = remote.remote(0);
    owner.queue_pair.destroy()?;
    reader.send(1, SendOperation::Read(place), &[local.whole()])?;
    reader.send(2, SendOperation::Send, &[])?;
    let done = context.completions("reader", &reader.send_queue, 2)?;
    status("reader", &done[0], 1, CompletionStatus::RetryExceededError)?;
    status("request behind the READ", &done[1], 2, CompletionStatus::FlushedError)?;
    local.verify("memory of a READ that failed")
}
