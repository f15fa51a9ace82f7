//! What becomes of READs and atomics when their queue pair changes its state or goes: flushed, drained, forgotten; and
//! the memory that they were to fill is left alone from then on (IBTA 10.3.1, 10.3.1.5, 10.3.1.7, 11.2.4.4).

use longhaul_verbs::{
    AsyncEvent, AsyncEventKind, Capabilities, CompletionStatus, EventSource, QueuePairAttributes, QueuePairState,
    SendFlags, SendOperation,
};

use super::Test;
use super::atomics::{self, WORD_BYTES, Words, atomic};
use super::context::Context;
use super::drain::drain_to_the_end;
use super::failure::{Failure, Outcome, equal, status, status_among};
use super::flush::all_flushed;
use super::memory::{Memory, pattern};
use super::pair::{Pair, Setup};
use super::read::{check_read, needs, read_message, readable, reading, setup};
use super::state_table::name;
use super::transfer::send_with_flags;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = vec![
        reading("flush/reads", flush_reads),
        atomic("flush/atomics", flush_atomics),
        reading("flush/reads-under-way", flush_under_way),
        reading("flush/unsignaled-reads", flush_unsignaled),
        reading("flush/nothing-read-later", nothing_read_later),
        reading("reset/forgets-reads", reset_forgets),
        reading("reset/of-the-owner-while-read", reset_of_the_owner),
        reading("reset/reads-again-after-it", reads_again),
        reading("destroy/memory-is-quiet", destroy_is_quiet),
        reading("destroy/owner-while-read", destroy_owner),
        reading("receiver-not-ready/read-behind-a-send", behind_a_send),
        reading("receiver-not-ready/read-before-a-send", before_a_send),
        Test::new("rc/drain/waits-for-reads", needs() | Capabilities::SEND_QUEUE_DRAIN, drain_waits),
        Test::new("rc/drain/reads-posted-later-wait", needs() | Capabilities::SEND_QUEUE_DRAIN, drained_posts_wait),
        Test::new("rc/drain/answers-reads", needs() | Capabilities::SEND_QUEUE_DRAIN, drained_answers),
    ];
    for state in QueuePairState::ALL {
        let own = match state {
            // RC does not know it.
            QueuePairState::SendQueueError => continue,
            QueuePairState::SendQueueDrained => Capabilities::SEND_QUEUE_DRAIN,
            _ => Capabilities::empty(),
        };
        let test = format!("rc/destroy/reader-in-{}", name(state));
        tests.push(Test::new(test, needs() | own, move |context| destroy_in(context, state)));
        if state != QueuePairState::Reset {
            let test = format!("rc/reset/reader-in-{}", name(state));
            tests.push(Test::new(test, needs() | own, move |context| reset_in(context, state)));
        }
    }
    tests
}

/// READs that are never answered, because the peer is not ready yet.
struct Unanswered {
    pair: Pair,
    remote: Memory,
    local: Memory,
}

const READS: usize = 6;
const READ_BYTES: usize = 3000;

fn unanswered(context: &mut Context<'_>) -> Outcome<Unanswered> {
    let pair = Pair::unconnected(context, &setup().unhurried())?;
    pair.advance(0, QueuePairState::ReadyToSend)?;
    let [reader, owner] = &pair.ends;
    let remote = readable(owner, &pattern(9, READ_BYTES))?;
    let local = Memory::target(&reader.domain, READS * READ_BYTES)?;
    for index in 0..READS {
        let entry = [local.entry(index * READ_BYTES..(index + 1) * READ_BYTES)];
        reader.send(index as u64, SendOperation::Read(remote.remote(0)), &entry)?;
    }
    context.no_completion("reader of a peer that is not ready", &reader.send_queue)?;
    Ok(Unanswered { pair, remote, local })
}

fn flush_reads(context: &mut Context<'_>) -> Outcome {
    let stage = unanswered(context)?;
    let reader = &stage.pair.ends[0];
    reader.go(QueuePairState::Error)?;
    all_flushed(context, "READs flushed", &reader.send_queue, 0, READS)?;
    context.no_completion("reader, after the flush", &reader.send_queue)?;
    stage.local.verify("memory to be read into")?;
    stage.remote.verify("memory to be read from")
}

fn flush_atomics(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::unconnected(context, &atomics::setup().unhurried())?;
    let [requester, owner] = &pair.ends;
    pair.advance(0, QueuePairState::ReadyToSend)?;
    let words = Words::shared(owner, 1)?;
    let local = Memory::target(&requester.domain, WORD_BYTES)?;
    let remote = words.remote(0);
    for id in 0..6 {
        let operation = match id % 2 {
            0 => SendOperation::FetchAndAdd { remote, add: 1 },
            _ => SendOperation::CompareAndSwap { remote, compare: words.get(0), swap: 1 },
        };
        requester.send(id, operation, &[local.whole()])?;
    }
    context.no_completion("requester of a peer that is not ready", &requester.send_queue)?;
    requester.go(QueuePairState::Error)?;
    all_flushed(context, "atomics flushed", &requester.send_queue, 0, 6)?;
    pair.advance(1, QueuePairState::ReadyToSend)?;
    context.unchanged("memory with the word", &words.memory)?;
    local.verify("memory of the result")
}

/// READs that are being answered: some are done, the others are flushed, in order. What a READ that succeeded has read
/// is right; from the flush on nothing is written.
fn flush_under_way(context: &mut Context<'_>) -> Outcome {
    const COUNT: usize = 16;
    let size = 64 * context.mtu();
    for steps in 0..4 {
        let pair = Pair::new(context, &setup())?;
        let [reader, owner] = &pair.ends;
        let remote = readable(owner, &pattern(10, size))?;
        let mut local = Memory::target(&reader.domain, COUNT * size)?;
        for index in 0..COUNT {
            let entry = [local.entry(index * size..(index + 1) * size)];
            reader.send(index as u64, SendOperation::Read(remote.remote(0)), &entry)?;
        }
        for _ in 0..steps {
            context.progress();
        }
        reader.go(QueuePairState::Error)?;
        let done = context.completions("reader", &reader.send_queue, COUNT)?;
        let good = done.iter().take_while(|done| done.is_success()).count();
        for (index, done) in done.iter().enumerate() {
            let start = index * size;
            if index < good {
                check_read(context, done, reader, index as u64, size)?;
                local.expect(start, &remote.bytes(0..size));
            } else {
                status("READ flushed", done, index as u64, CompletionStatus::FlushedError)?;
                local.accept(start..start + size);
            }
        }
        local.verify("memory read into")?;
        context.unchanged("memory of flushed READs", &local)?;
        owner.is_in(QueuePairState::ReadyToSend)?;
    }
    Ok(())
}

fn flush_unsignaled(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::unconnected(context, &setup().unhurried())?;
    let [reader, owner] = &pair.ends;
    pair.advance(0, QueuePairState::ReadyToSend)?;
    let remote = readable(owner, &[1; 10])?;
    let local = Memory::target(&reader.domain, 10)?;
    for id in 0..5 {
        send_with_flags(reader, id, SendOperation::Read(remote.remote(0)), &[local.whole()], SendFlags::empty())?;
    }
    reader.go(QueuePairState::Error)?;
    all_flushed(context, "unsignalled READs flushed", &reader.send_queue, 0, 5)
}

/// A flushed READ is not carried out later, when the peer has become ready.
fn nothing_read_later(context: &mut Context<'_>) -> Outcome {
    let stage = unanswered(context)?;
    let reader = &stage.pair.ends[0];
    reader.go(QueuePairState::Error)?;
    all_flushed(context, "READs flushed", &reader.send_queue, 0, READS)?;
    stage.pair.advance(1, QueuePairState::ReadyToSend)?;
    context.unchanged("memory to be read into", &stage.local)?;
    context.no_completion("reader, after the flush", &reader.send_queue)
}

/// RESET forgets READs without completions (IBTA 10.3.1.1), and the connection can be made anew.
fn reset_forgets(context: &mut Context<'_>) -> Outcome {
    let stage = unanswered(context)?;
    let reader = &stage.pair.ends[0];
    reader.go(QueuePairState::Reset)?;
    context.no_completion("queue pair in RESET", &reader.send_queue)?;
    stage.pair.reconnect()?;
    read_message(context, &stage.pair, 0, &[5000])?;
    context.no_completion("reader, of forgotten READs", &reader.send_queue)?;
    stage.local.verify("memory of forgotten READs")
}

/// The owner is reset while it answers: the reader goes without an answer, and gives up.
fn reset_of_the_owner(context: &mut Context<'_>) -> Outcome {
    owner_goes(context, |pair| pair.ends[1].go(QueuePairState::Reset))
}

fn destroy_owner(context: &mut Context<'_>) -> Outcome {
    owner_goes(context, |pair| Ok(pair.ends[1].queue_pair.destroy()?))
}

fn owner_goes(context: &mut Context<'_>, go: fn(&Pair) -> Outcome) -> Outcome {
    const COUNT: usize = 12;
    let pair = Pair::new(context, &super::read::hasty_setup())?;
    let [reader, owner] = &pair.ends;
    let size = 40 * context.mtu();
    let remote = readable(owner, &pattern(11, size))?;
    let mut local = Memory::target(&reader.domain, COUNT * size)?;
    for index in 0..COUNT {
        let entry = [local.entry(index * size..(index + 1) * size)];
        reader.send(index as u64, SendOperation::Read(remote.remote(0)), &entry)?;
    }
    go(&pair)?;
    let done = context.completions("reader", &reader.send_queue, COUNT)?;
    let good = done.iter().take_while(|done| done.is_success()).count();
    for (index, done) in done.iter().enumerate() {
        let start = index * size;
        match index.cmp(&good) {
            std::cmp::Ordering::Less => {
                check_read(context, done, reader, index as u64, size)?;
                local.expect(start, &remote.bytes(0..size));
                continue;
            }
            std::cmp::Ordering::Equal => status("reader", done, index as u64, CompletionStatus::RetryExceededError)?,
            std::cmp::Ordering::Greater => status("reader", done, index as u64, CompletionStatus::FlushedError)?,
        }
        local.accept(start..start + size);
    }
    local.verify("memory read into")?;
    remote.verify("memory read from")
}

fn reads_again(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    for round in 0..4 {
        for from in [0, 1] {
            read_message(context, &pair, from, &[4000])?;
        }
        if round % 2 == 0 {
            for end in &pair.ends {
                end.go(QueuePairState::Error)?;
            }
        }
        pair.reconnect()?;
    }
    Ok(())
}

/// When destroying has returned, nothing is written any more, whatever was in flight.
fn destroy_is_quiet(context: &mut Context<'_>) -> Outcome {
    const COUNT: usize = 16;
    let size = 64 * context.mtu();
    for steps in 0..4 {
        let pair = Pair::new(context, &setup())?;
        let [reader, owner] = &pair.ends;
        let remote = readable(owner, &pattern(12, size))?;
        let mut local = Memory::target(&reader.domain, COUNT * size)?;
        for index in 0..COUNT {
            let entry = [local.entry(index * size..(index + 1) * size)];
            reader.send(index as u64, SendOperation::Read(remote.remote(0)), &entry)?;
        }
        for _ in 0..steps {
            context.progress();
        }
        reader.queue_pair.destroy()?;
        local.accept(0..COUNT * size);
        context.unchanged("memory of a destroyed queue pair's READs", &local)?;
        // What was done before is still in the completion queue; nothing is added.
        while let Some(done) = reader.send_queue.poll_one()? {
            equal("success of what was done before", true, done.is_success())?;
        }
        owner.is_in(QueuePairState::ReadyToSend)?;
    }
    Ok(())
}

/// Brings a reader whose READs are not answered into a state; where it cannot have READs, it has none.
fn reader_in(context: &mut Context<'_>, state: QueuePairState) -> Outcome<(Pair, Option<Unanswered>)> {
    if (state as u8) < QueuePairState::ReadyToSend as u8 {
        let pair = Pair::unconnected(context, &setup())?;
        pair.advance(0, state)?;
        return Ok((pair, None));
    }
    let stage = unanswered(context)?;
    let reader = &stage.pair.ends[0];
    match state {
        QueuePairState::Error => reader.go(state)?,
        QueuePairState::SendQueueDrained => {
            // READs are in flight for as long as nobody answers, so it stays in transition.
            reader.queue_pair.modify(&QueuePairAttributes::to_state(state))?;
        }
        _ => {}
    }
    let pair = Pair::unconnected(context, &setup())?;
    Ok((pair, Some(stage)))
}

fn destroy_in(context: &mut Context<'_>, state: QueuePairState) -> Outcome {
    let (pair, stage) = reader_in(context, state)?;
    let pair = stage.as_ref().map_or(&pair, |stage| &stage.pair);
    let reader = &pair.ends[0];
    reader.queue_pair.destroy()?;
    if let Some(stage) = &stage {
        // The peer becomes ready too late.
        stage.pair.advance(1, QueuePairState::ReadyToSend)?;
        context.unchanged("memory to be read into", &stage.local)?;
        stage.remote.verify("memory to be read from")?;
    }
    context.rest();
    let mut count = 0;
    while let Some(done) = reader.send_queue.poll_one()? {
        status("READ of the destroyed queue pair", &done, count, CompletionStatus::FlushedError)?;
        count += 1;
    }
    let expected = if state == QueuePairState::Error { READS as u64 } else { 0 };
    equal("READs flushed", true, count == expected || (count == 0 && state == QueuePairState::Error))
}

fn reset_in(context: &mut Context<'_>, state: QueuePairState) -> Outcome {
    let (pair, stage) = reader_in(context, state)?;
    let pair = stage.as_ref().map_or(&pair, |stage| &stage.pair);
    let reader = &pair.ends[0];
    reader.go(QueuePairState::Reset)?;
    context.rest();
    // What ERR has flushed may stay in the completion queue or be taken away with the rest.
    while let Some(done) = reader.send_queue.poll_one()? {
        status_among("READ", &done, done.id, &[CompletionStatus::FlushedError])?;
        equal("state that flushes", QueuePairState::Error, state)?;
    }
    pair.reconnect()?;
    read_message(context, pair, 0, &[5000])?;
    match &stage {
        Some(stage) => stage.local.verify("memory of forgotten READs"),
        None => Ok(()),
    }
}

/// A SEND that waits for a receive holds up the READ behind it, and takes it along when it is given up.
fn behind_a_send(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &Setup { receiver_not_ready_retry: 1, ..setup() })?;
    let [reader, owner] = &pair.ends;
    let remote = readable(owner, &pattern(13, 2000))?;
    let local = Memory::target(&reader.domain, 2000)?;
    reader.send(1, SendOperation::Send, &[])?;
    reader.send(2, SendOperation::Read(remote.remote(0)), &[local.whole()])?;
    let done = context.completions("reader", &reader.send_queue, 2)?;
    status("SEND", &done[0], 1, CompletionStatus::ReceiverNotReadyRetryExceededError)?;
    status("READ behind it", &done[1], 2, CompletionStatus::FlushedError)?;
    context.unchanged("memory to be read into", &local)?;

    // With a receive that comes late both are done, in order.
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let remote = readable(owner, &pattern(13, 2000))?;
    let mut local = Memory::target(&reader.domain, 2000)?;
    reader.send(1, SendOperation::Send, &[])?;
    reader.send(2, SendOperation::Read(remote.remote(0)), &[local.whole()])?;
    context.no_completion("reader behind a SEND that waits", &reader.send_queue)?;
    owner.receive(3, &[])?;
    let done = context.completions("reader", &reader.send_queue, 2)?;
    status("SEND", &done[0], 1, CompletionStatus::Success)?;
    check_read(context, &done[1], reader, 2, 2000)?;
    local.expect(0, &remote.bytes(0..2000));
    local.verify("memory read into")
}

/// READs before the SEND that waits are done, whatever becomes of it.
fn before_a_send(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &Setup { receiver_not_ready_retry: 1, ..setup() })?;
    let [reader, owner] = &pair.ends;
    let remote = readable(owner, &pattern(14, 4 * 2000))?;
    let mut local = Memory::target(&reader.domain, 4 * 2000)?;
    for index in 0..4 {
        let entry = [local.entry(index * 2000..(index + 1) * 2000)];
        reader.send(index as u64, SendOperation::Read(remote.remote(index * 2000)), &entry)?;
    }
    reader.send(4, SendOperation::Send, &[])?;
    let done = context.completions("reader", &reader.send_queue, 5)?;
    for (id, done) in (0..).zip(&done[..4]) {
        check_read(context, done, reader, id, 2000)?;
    }
    status("SEND", &done[4], 4, CompletionStatus::ReceiverNotReadyRetryExceededError)?;
    local.expect(0, &remote.bytes(0..4 * 2000));
    local.verify("memory read into")
}

/// Draining ends when the READs in flight have been answered, and not before (IBTA 10.3.1.5).
fn drain_waits(context: &mut Context<'_>) -> Outcome {
    let Unanswered { pair, remote, mut local } = unanswered(context)?;
    let reader = &pair.ends[0];
    reader.queue_pair.modify(&QueuePairAttributes {
        send_queue_drained_event: Some(true),
        ..QueuePairAttributes::to_state(QueuePairState::SendQueueDrained)
    })?;
    let number = reader.number();
    let drained = move |event: &AsyncEvent| {
        event.kind == AsyncEventKind::SendQueueDrained && event.source == EventSource::QueuePair(number)
    };
    context.no_event("drained too early", 0, drained)?;
    pair.advance(1, QueuePairState::ReadyToSend)?;
    context.event("drained", 0, drained)?;
    // Those that had begun are done; the others wait for RTS.
    let mut count = 0;
    while let Some(done) = reader.send_queue.poll_one()? {
        check_read(context, &done, reader, count, READ_BYTES)?;
        count += 1;
    }
    if count == 0 {
        return Err(Failure::new("READs done when the queue is drained: expected some, got none"));
    }
    context.no_completion("reader in SQD", &reader.send_queue)?;
    reader.go(QueuePairState::ReadyToSend)?;
    for done in context.completions("reader, back in RTS", &reader.send_queue, READS - count as usize)? {
        check_read(context, &done, reader, count, READ_BYTES)?;
        count += 1;
    }
    for index in 0..READS {
        local.expect(index * READ_BYTES, &remote.bytes(0..READ_BYTES));
    }
    local.verify("memory read into")
}

fn drained_posts_wait(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    drain_to_the_end(context, &pair, 0)?;
    let remote = readable(owner, &pattern(15, 3000))?;
    let mut local = Memory::target(&reader.domain, 3000)?;
    reader.send(1, SendOperation::Read(remote.remote(0)), &[local.whole()])?;
    context.no_completion("reader in SQD", &reader.send_queue)?;
    local.verify("memory to be read into")?;
    reader.go(QueuePairState::ReadyToSend)?;
    let done = context.completion("reader, back in RTS", &reader.send_queue)?;
    check_read(context, &done, reader, 1, 3000)?;
    local.expect(0, &remote.bytes(0..3000));
    local.verify("memory read into")
}

/// A drained queue pair still answers its peer's READs.
fn drained_answers(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    drain_to_the_end(context, &pair, 1)?;
    let size = 5 * context.mtu() + 1;
    read_message(context, &pair, 0, &[size])
}
