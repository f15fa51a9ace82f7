//! Fencing: a request with a fence begins when all READs and atomics before it on the queue pair are done
//! (IBTA 10.8.3.3, table 79). Without one it may begin earlier, and completes all the same.

use longhaul_verbs::{Access, CompletionOperation, CompletionStatus, QueuePairState, SendFlags, SendOperation};

use super::Test;
use super::atomics::{WORD_BYTES, Words, check_atomic, word_at};
use super::context::Context;
use super::failure::{Outcome, equal, status};
use super::memory::{Memory, pattern};
use super::pair::{Form, Pair, Setup};
use super::read::{check_read, needs, readable, reading, setup};
use super::transfer::{empty_receives, send_with_flags, test};

const FENCED: SendFlags = SendFlags::SIGNALED.union(SendFlags::FENCE);

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for form in Form::ALL {
        tests.push(reading(&format!("fence/{}-carries-what-was-read", form.name()), move |context| {
            carries_what_was_read(context, form)
        }));
    }
    tests.push(reading("fence/write-does-not-overtake-read", write_does_not_overtake));
    tests.push(reading("fence/copies-in-a-row", copies_in_a_row));
    tests.push(reading("fence/waits-for-all-reads", waits_for_all));
    tests.push(reading("fence/without-it-all-completes-too", without_it));
    tests.push(reading("fence/fenced-read", fenced_read));
    tests.push(reading("fence/flushed-behind-a-read", flushed));
    let both = needs() | super::atomics::needs();
    tests.push(Test::new("rc/fence/send-carries-what-an-atomic-found", both, carries_what_was_found));
    tests.push(Test::new("rc/fence/fenced-atomics", both, fenced_atomics));
    tests.push(test(longhaul_verbs::Transport::ReliableConnection, "fence/nothing-outstanding", nothing_outstanding));
    tests
}

/// A READ into memory, and a fenced message from the same memory: it carries what was read, in every size.
fn carries_what_was_read(context: &mut Context<'_>, form: Form) -> Outcome {
    let mtu = context.mtu();
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    for size in [1, mtu, 7 * mtu + 3] {
        let remote = readable(owner, &pattern(size as u64 + 1, size))?;
        let between = Memory::target(&reader.domain, size)?;
        let mut target = Memory::target(&owner.domain, size)?;
        if form.consumes_receive() {
            owner.receive(1, if form.is_write() { vec![] } else { vec![target.whole()] }.as_slice())?;
        }
        let entry = [between.whole()];
        let batch = [
            reader.request(2, SendOperation::Read(remote.remote(0)), &entry),
            reader.request(3, form.operation(target.remote(0), 9), &entry).with_flags(FENCED),
        ];
        reader.queue_pair.post_send(&batch)?;
        let done = context.completions("reader", &reader.send_queue, 2)?;
        check_read(context, &done[0], reader, 2, size)?;
        form.check_sent(&done[1], reader, 3)?;
        if form.consumes_receive() {
            let received = context.completion("receiver", &owner.receive_queue)?;
            form.check_received(&received, (reader, owner), 1, size, 9)?;
        }
        target.expect(0, &remote.bytes(0..size));
        context.settle("target of the fenced message", &target)?;
    }
    Ok(())
}

/// A READ and then a fenced WRITE to where it reads from: the READ gets the old bytes.
fn write_does_not_overtake(context: &mut Context<'_>) -> Outcome {
    const ROUNDS: u64 = 12;
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let size = 5 * context.mtu() + 1;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mut remote = Memory::new(&owner.domain, size, rights)?;
    let source = Memory::source(&reader.domain, &pattern(33, size + ROUNDS as usize))?;
    let mut local = Memory::target(&reader.domain, size * ROUNDS as usize)?;
    let mut before = remote.bytes(0..size);
    for round in 0..ROUNDS {
        let start = round as usize;
        let entry = [local.entry(start * size..(start + 1) * size)];
        reader.send(2 * round, SendOperation::Read(remote.remote(0)), &entry)?;
        let new = [source.entry(start..start + size)];
        send_with_flags(reader, 2 * round + 1, SendOperation::Write(remote.remote(0)), &new, FENCED)?;
        local.expect(start * size, &before);
        before = source.bytes(start..start + size);
    }
    for (id, done) in (0..).zip(context.completions("reader", &reader.send_queue, 2 * ROUNDS as usize)?) {
        match id % 2 {
            0 => check_read(context, &done, reader, id, size)?,
            _ => Form::Write.check_sent(&done, reader, id)?,
        }
    }
    local.verify("memory read into")?;
    remote.expect(0, &before);
    context.settle("memory written to", &remote)
}

/// The peer's memory is copied from place to place by READs and fenced WRITEs through one small buffer.
fn copies_in_a_row(context: &mut Context<'_>) -> Outcome {
    const PLACES: usize = 16;
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let size = 2 * context.mtu() + 11;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mut remote = Memory::new(&owner.domain, size * PLACES, rights)?;
    let message = pattern(44, size);
    remote.fill(0, &message);
    let between = Memory::target(&reader.domain, size)?;
    for place in 1..PLACES {
        let id = 2 * place as u64;
        let from = SendOperation::Read(remote.remote((place - 1) * size));
        // A READ sees the WRITEs before it, but must not fill the buffer while the WRITE before still reads it: on one
        // queue pair the WRITE has been acknowledged, or will be read again, so wait for its completion.
        reader.send(id, from, &[between.whole()])?;
        send_with_flags(reader, id + 1, SendOperation::Write(remote.remote(place * size)), &[between.whole()], FENCED)?;
        let done = context.completions("reader", &reader.send_queue, 2)?;
        check_read(context, &done[0], reader, id, size)?;
        Form::Write.check_sent(&done[1], reader, id + 1)?;
        remote.expect(place * size, &message);
    }
    context.settle("memory copied in", &remote)
}

/// Not only the READ just before it: a fence waits for all of them.
fn waits_for_all(context: &mut Context<'_>) -> Outcome {
    const COUNT: usize = 12;
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let size = 3 * context.mtu() + 1;
    let remote = readable(owner, &pattern(55, size * COUNT))?;
    let between = Memory::target(&reader.domain, size * COUNT)?;
    let mut target = Memory::target(&owner.domain, size * COUNT)?;
    owner.receive(1, &[target.whole()])?;
    for index in 0..COUNT {
        let entry = [between.entry(index * size..(index + 1) * size)];
        reader.send(index as u64, SendOperation::Read(remote.remote(index * size)), &entry)?;
    }
    send_with_flags(reader, COUNT as u64, SendOperation::Send, &[between.whole()], FENCED)?;
    for (id, done) in (0..).zip(context.completions("reader", &reader.send_queue, COUNT + 1)?) {
        status("reader", &done, id, CompletionStatus::Success)?;
    }
    let received = context.completion("receiver", &owner.receive_queue)?;
    Form::Send.check_received(&received, (reader, owner), 1, size * COUNT, 0)?;
    target.expect(0, &remote.bytes(0..size * COUNT));
    target.verify("target of the fenced SEND")
}

/// Without a fence a SEND may leave before the READ is answered; both complete, in their order.
fn without_it(context: &mut Context<'_>) -> Outcome {
    const ROUNDS: u64 = 20;
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let size = 4 * context.mtu();
    let remote = readable(owner, &pattern(66, size))?;
    let mut local = Memory::target(&reader.domain, size)?;
    empty_receives(owner, ROUNDS)?;
    for round in 0..ROUNDS {
        reader.send(2 * round, SendOperation::Read(remote.remote(0)), &[local.whole()])?;
        reader.send(2 * round + 1, SendOperation::SendWithImmediate(round as u32), &[])?;
    }
    for (id, done) in (0..).zip(context.completions("reader", &reader.send_queue, 2 * ROUNDS as usize)?) {
        match id % 2 {
            0 => check_read(context, &done, reader, id, size)?,
            _ => Form::SendWithImmediate.check_sent(&done, reader, id)?,
        }
    }
    for (id, received) in (0..).zip(context.completions("receiver", &owner.receive_queue, ROUNDS as usize)?) {
        Form::SendWithImmediate.check_received(&received, (reader, owner), id, 0, id as u32)?;
    }
    local.expect(0, &remote.bytes(0..size));
    local.verify("memory read into")
}

/// READs may be fenced, too: into one place, the last wins.
fn fenced_read(context: &mut Context<'_>) -> Outcome {
    const COUNT: usize = 20;
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let size = 2 * context.mtu() + 3;
    let remote = readable(owner, &pattern(77, size + COUNT))?;
    let mut local = Memory::target(&reader.domain, size)?;
    for index in 0..COUNT {
        send_with_flags(reader, index as u64, SendOperation::Read(remote.remote(index)), &[local.whole()], FENCED)?;
    }
    for (id, done) in (0..).zip(context.completions("reader", &reader.send_queue, COUNT)?) {
        check_read(context, &done, reader, id, size)?;
    }
    local.expect(0, &remote.bytes(COUNT - 1..COUNT - 1 + size));
    local.verify("memory read into")
}

/// A fenced request that waits behind a READ which is never answered is flushed with it, and has had no effect.
fn flushed(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::unconnected(context, &setup().unhurried())?;
    let [reader, owner] = &pair.ends;
    pair.advance(0, QueuePairState::ReadyToSend)?;
    let remote = readable(owner, &[1; 50])?;
    let local = Memory::target(&reader.domain, 50)?;
    let target = Memory::target(&owner.domain, 50)?;
    reader.send(0, SendOperation::Read(remote.remote(0)), &[local.whole()])?;
    send_with_flags(reader, 1, SendOperation::Write(target.remote(0)), &[local.whole()], FENCED)?;
    context.no_completion("reader of a peer that is not ready", &reader.send_queue)?;
    reader.go(QueuePairState::Error)?;
    super::flush::all_flushed(context, "reader", &reader.send_queue, 0, 2)?;
    pair.advance(1, QueuePairState::ReadyToSend)?;
    context.unchanged("memory of the peer", &target)?;
    local.verify("memory to be read into")
}

/// The result of an atomic in a fenced SEND.
fn carries_what_was_found(context: &mut Context<'_>) -> Outcome {
    const ROUNDS: u64 = 10;
    let pair = Pair::new(context, &super::atomics::setup())?;
    let [requester, owner] = &pair.ends;
    let mut words = Words::shared(owner, 1)?;
    words.set(0, 500);
    let between = Memory::target(&requester.domain, WORD_BYTES * ROUNDS as usize)?;
    let mut target = Memory::target(&owner.domain, WORD_BYTES * ROUNDS as usize)?;
    for round in 0..ROUNDS {
        let range = round as usize * WORD_BYTES..(round as usize + 1) * WORD_BYTES;
        owner.receive(round, &[target.entry(range.clone())])?;
        let entry = [between.entry(range.clone())];
        requester.send(2 * round, SendOperation::FetchAndAdd { remote: words.remote(0), add: 3 }, &entry)?;
        send_with_flags(requester, 2 * round + 1, SendOperation::Send, &entry, FENCED)?;
        target.expect(range.start, &(500 + 3 * round).to_ne_bytes());
    }
    for (id, done) in (0..).zip(context.completions("requester", &requester.send_queue, 2 * ROUNDS as usize)?) {
        match id % 2 {
            0 => check_atomic(context, &done, requester, id, CompletionOperation::FetchAndAdd)?,
            _ => Form::Send.check_sent(&done, requester, id)?,
        }
    }
    for (id, received) in (0..).zip(context.completions("receiver", &owner.receive_queue, ROUNDS as usize)?) {
        Form::Send.check_received(&received, (requester, owner), id, WORD_BYTES, 0)?;
    }
    target.verify("target of the fenced SENDs")
}

/// READs and atomics that wait for each other by fences: the READ sees what the atomic did.
fn fenced_atomics(context: &mut Context<'_>) -> Outcome {
    const ROUNDS: u64 = 10;
    let setup = Setup { access: setup().access | Access::REMOTE_ATOMIC, ..setup() };
    let pair = Pair::new(context, &setup)?;
    let [requester, owner] = &pair.ends;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC | Access::REMOTE_READ;
    let mut words = Words::new(&owner.domain, 1, rights)?;
    words.set(0, 0);
    let local = Memory::target(&requester.domain, 2 * WORD_BYTES * ROUNDS as usize)?;
    let remote = words.remote(0);
    for round in 0..ROUNDS {
        let start = 2 * WORD_BYTES * round as usize;
        let old = [local.entry(start..start + WORD_BYTES)];
        let read = [local.entry(start + WORD_BYTES..start + 2 * WORD_BYTES)];
        let swap = SendOperation::CompareAndSwap { remote, compare: round, swap: round + 1 };
        send_with_flags(requester, 2 * round, swap, &old, FENCED)?;
        send_with_flags(requester, 2 * round + 1, SendOperation::Read(remote), &read, FENCED)?;
    }
    for (id, done) in (0..).zip(context.completions("requester", &requester.send_queue, 2 * ROUNDS as usize)?) {
        status("requester", &done, id, CompletionStatus::Success)?;
        equal("value found or read", id.div_ceil(2), word_at(&local, id as usize * WORD_BYTES))?;
    }
    words.expect(0, ROUNDS);
    words.memory.verify("memory with the word")
}

/// With nothing to wait for, a fence is no more than a flag.
fn nothing_outstanding(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, longhaul_verbs::Transport::ReliableConnection)?;
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &pattern(88, 3000))?;
    let mut target = Memory::target(&receiver.domain, 3000)?;
    for id in 0..10 {
        receiver.receive(id, &[target.whole()])?;
        send_with_flags(sender, id, SendOperation::Send, &[source.whole()], FENCED)?;
    }
    for (id, done) in (0..).zip(context.completions("sender", &sender.send_queue, 10)?) {
        Form::Send.check_sent(&done, sender, id)?;
    }
    for (id, received) in (0..).zip(context.completions("receiver", &receiver.receive_queue, 10)?) {
        Form::Send.check_received(&received, (sender, receiver), id, 3000, 0)?;
    }
    target.expect(0, &source.bytes(0..3000));
    target.verify("target memory")
}
