//! How many READs and atomics may be outstanding: the requester's limit, the responder's, the device's
//! (IBTA 9.7.6.1.1, 11.2.5.2: initiator depth and responder resources).

use longhaul_verbs::{
    Access, AttributeMask, Capabilities, CompletionStatus, ModifyError, QueuePairAttributes, QueuePairState,
    SendOperation, Transport,
};

use super::Test;
use super::atomics::{WORD_BYTES, Words, atomic, word_at};
use super::context::Context;
use super::drain::drain_to_the_end;
use super::failure::{Failure, Outcome, ensure, equal, refusal, status};
use super::flush::all_flushed;
use super::memory::{Memory, pattern};
use super::pair::{Form, Pair, Setup};
use super::read::{check_read, needs, read_message, readable, reading, setup};
use super::transfer::{move_message, test};

const RC: Transport = Transport::ReliableConnection;

pub(super) fn tests() -> Vec<Test> {
    let drain = Capabilities::SEND_QUEUE_DRAIN;
    vec![
        test(RC, "read-atomic-limits/more-than-the-device-as-requester", |context| {
            more_than_the_device(context, QueuePairState::ReadyToSend)
        }),
        test(RC, "read-atomic-limits/more-than-the-device-as-responder", |context| {
            more_than_the_device(context, QueuePairState::ReadyToReceive)
        }),
        reading("read-atomic-limits/devices-that-read-allow-some", devices_allow_some),
        reading("read-atomic-limits/query-returns-what-was-set", query),
        reading("read-atomic-limits/reads-beyond-the-depth-wait", |context| beyond_the_depth(context, 2)),
        reading("read-atomic-limits/reads-beyond-the-devices-depth-wait", |context| beyond_the_depth(context, u8::MAX)),
        atomic("read-atomic-limits/atomics-beyond-the-depth-wait", atomics_beyond_the_depth),
        reading("read-atomic-limits/others-do-not-wait-for-depth", others_do_not_wait),
        reading("read-atomic-limits/no-depth-fails-reads", no_depth),
        reading("read-atomic-limits/no-depth-leaves-others", no_depth_leaves_others),
        reading("read-atomic-limits/responder-takes-none", |context| responder_takes_none(context, false)),
        atomic("read-atomic-limits/responder-takes-no-atomics", |context| responder_takes_none(context, true)),
        reading("read-atomic-limits/responder-takes-fewer", responder_takes_fewer),
        reading("read-atomic-limits/a-resource-is-free-again-when-its-read-is-done", resources_come_back),
        Test::new("rc/read-atomic-limits/changed-when-drained", needs() | drain, changed_when_drained),
    ]
}

/// What a device says that it can is the most that a queue pair can be given.
fn more_than_the_device(context: &mut Context<'_>, step: QueuePairState) -> Outcome {
    let pair = Pair::unconnected(context, &Setup::new(RC))?;
    let most = context.device_attributes(0)?;
    let attributes = |more: bool| {
        let attributes = pair.attributes(0, step);
        match step {
            QueuePairState::ReadyToSend => {
                let value = most.max_read_atomic.checked_add(more.into());
                QueuePairAttributes { max_read_atomic: value, ..attributes }
            }
            _ => {
                let value = most.max_destination_read_atomic.checked_add(more.into());
                QueuePairAttributes { max_destination_read_atomic: value, ..attributes }
            }
        }
    };
    let (named, too_many) = match step {
        QueuePairState::ReadyToSend => (AttributeMask::MAX_READ_ATOMIC, attributes(true).max_read_atomic),
        _ => (AttributeMask::MAX_DESTINATION_READ_ATOMIC, attributes(true).max_destination_read_atomic),
    };
    if too_many.is_none() {
        return Err(Failure::not_applicable("a number larger than the device's limit"));
    }
    let before = match step {
        QueuePairState::ReadyToSend => QueuePairState::ReadyToReceive,
        _ => QueuePairState::Initialized,
    };
    pair.advance(0, before)?;
    let queue_pair = &pair.ends[0].queue_pair;
    let error = refusal("one more than the device can", queue_pair.modify(&attributes(true)))?;
    let fits = match &error {
        ModifyError::InvalidValue { attribute, .. } => *attribute == named,
        ModifyError::System(_) => true,
        _ => false,
    };
    ensure(fits, || format!("expected InvalidValue of {named:?}, got {error}"))?;
    pair.ends[0].is_in(before)?;
    queue_pair.modify(&attributes(false))?;
    pair.ends[0].is_in(step)
}

/// A device that claims READ can have one outstanding, on both sides.
fn devices_allow_some(context: &mut Context<'_>) -> Outcome {
    for end in [0, 1] {
        let most = context.device_attributes(end)?;
        ensure(most.max_read_atomic > 0, || "max_read_atomic: expected some, got 0".into())?;
        ensure(most.max_destination_read_atomic > 0, || "max_destination_read_atomic: expected some, got 0".into())?;
    }
    Ok(())
}

fn query(context: &mut Context<'_>) -> Outcome {
    for depth in [1, 2, 4] {
        let pair = Pair::new(context, &Setup { read_atomic: depth, ..setup() })?;
        for end in [0, 1] {
            let got = pair.ends[end].queue_pair.query()?;
            equal("outstanding as requester", Some(pair.read_atomic(end)), got.max_read_atomic)?;
            let taken = pair.read_atomic(1 - end);
            equal("outstanding as responder", Some(taken), got.max_destination_read_atomic)?;
        }
    }
    Ok(())
}

/// Many more READs than may be outstanding: all succeed, in order, whatever their sizes.
fn beyond_the_depth(context: &mut Context<'_>, depth: u8) -> Outcome {
    const COUNT: usize = 100;
    let pair = Pair::new(context, &Setup { read_atomic: depth, ..setup() })?;
    let [reader, owner] = &pair.ends;
    let longest = 3 * context.mtu();
    let remote = readable(owner, &pattern(25, longest + COUNT))?;
    let mut local = Memory::target(&reader.domain, longest * COUNT)?;
    let length = |index: usize| [0, 1, longest, some_length(index, longest)][index % 4];
    for index in 0..COUNT {
        let start = index * longest;
        let entry = [local.entry(start..start + length(index))];
        reader.send(index as u64, SendOperation::Read(remote.remote(index)), &entry)?;
        local.expect(start, &remote.bytes(index..index + length(index)));
    }
    for (index, done) in context.completions("reader", &reader.send_queue, COUNT)?.iter().enumerate() {
        check_read(context, done, reader, index as u64, length(index))?;
    }
    local.verify("memory read into")
}

/// Some length up to `longest` that follows from the index alone.
fn some_length(index: usize, longest: usize) -> usize {
    (index * 7919) % (longest + 1)
}

fn atomics_beyond_the_depth(context: &mut Context<'_>) -> Outcome {
    const COUNT: usize = 100;
    let pair = Pair::new(context, &Setup { read_atomic: 2, ..super::atomics::setup() })?;
    let [requester, owner] = &pair.ends;
    let mut words = Words::shared(owner, 1)?;
    words.set(0, 0);
    let local = Memory::target(&requester.domain, COUNT * WORD_BYTES)?;
    for index in 0..COUNT {
        let entry = [local.entry(index * WORD_BYTES..(index + 1) * WORD_BYTES)];
        requester.send(index as u64, SendOperation::FetchAndAdd { remote: words.remote(0), add: 1 }, &entry)?;
    }
    for (index, done) in context.completions("requester", &requester.send_queue, COUNT)?.iter().enumerate() {
        status("requester", done, index as u64, CompletionStatus::Success)?;
        equal("old value", index as u64, word_at(&local, index * WORD_BYTES))?;
    }
    Ok(())
}

/// A WRITE behind READs that wait for a place completes after them, in order.
fn others_do_not_wait(context: &mut Context<'_>) -> Outcome {
    const COUNT: usize = 12;
    let pair = Pair::new(context, &Setup { read_atomic: 1, ..setup() })?;
    let [reader, owner] = &pair.ends;
    let size = 4 * context.mtu();
    let remote = readable(owner, &pattern(26, size))?;
    let local = Memory::target(&reader.domain, size)?;
    let source = Memory::source(&reader.domain, &pattern(27, size))?;
    let mut target = Memory::target(&owner.domain, size)?;
    for index in 0..COUNT as u64 {
        reader.send(2 * index, SendOperation::Read(remote.remote(0)), &[local.whole()])?;
        reader.send(2 * index + 1, SendOperation::Write(target.remote(0)), &[source.whole()])?;
    }
    for (id, done) in (0..).zip(context.completions("reader", &reader.send_queue, 2 * COUNT)?) {
        match id % 2 {
            0 => check_read(context, &done, reader, id, size)?,
            _ => Form::Write.check_sent(&done, reader, id)?,
        }
    }
    target.expect(0, &source.bytes(0..size));
    context.settle("memory written to", &target)
}

/// A queue pair that may have none outstanding can never begin a READ. RNICs fail it; Soft-RoCE lets it wait for ever.
fn no_depth(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &Setup { read_atomic: 0, destination_read_atomic: Some(1), ..setup() })?;
    let [reader, owner] = &pair.ends;
    let remote = readable(owner, &[3; 100])?;
    let local = Memory::target(&reader.domain, 100)?;
    let request = [local.whole()];
    let posted = reader.queue_pair.post_send(&[reader.request(1, SendOperation::Read(remote.remote(0)), &request)]);
    if posted.is_err() {
        return reader.is_in(QueuePairState::ReadyToSend);
    }
    reader.send(2, SendOperation::Send, &[])?;
    let outcome = context.completions("READ that may never begin", &reader.send_queue, 2).and_then(|done| {
        status("READ that may never begin", &done[0], 1, CompletionStatus::LocalQueuePairError)?;
        status("request behind it", &done[1], 2, CompletionStatus::FlushedError)?;
        reader.is_in(QueuePairState::Error)
    });
    context.tolerate(outcome)?;
    local.verify("memory to be read into")
}

fn no_depth_leaves_others(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &Setup { read_atomic: 0, destination_read_atomic: Some(1), ..setup() })?;
    for form in Form::ALL {
        move_message(context, &pair, 0, form, &[3000], &[3000])?;
    }
    Ok(())
}

/// A responder without resources refuses every READ and atomic as an invalid request (IBTA 9.7.4.1.4).
fn responder_takes_none(context: &mut Context<'_>, is_atomic: bool) -> Outcome {
    let access = match is_atomic {
        true => Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        false => setup().access,
    };
    let pair = Pair::new(context, &Setup { access, read_atomic: 1, destination_read_atomic: Some(0), ..setup() })?;
    let [reader, owner] = &pair.ends;
    let rights = if is_atomic { Access::REMOTE_ATOMIC } else { Access::REMOTE_READ };
    let words = Words::new(&owner.domain, 1, Access::LOCAL_WRITE | rights)?;
    let local = Memory::target(&reader.domain, WORD_BYTES)?;
    let remote = words.remote(0);
    let operation = match is_atomic {
        true => SendOperation::FetchAndAdd { remote, add: 1 },
        false => SendOperation::Read(remote),
    };
    reader.send(1, operation, &[local.whole()])?;
    reader.send(2, SendOperation::Send, &[])?;
    let done = context.completion("requester", &reader.send_queue)?;
    context.failed("requester", &done, 1, &[CompletionStatus::RemoteInvalidRequestError])?;
    all_flushed(context, "request behind it", &reader.send_queue, 2, 1)?;
    reader.is_in(QueuePairState::Error)?;
    context.wait_for(|| owner.is_in(QueuePairState::Error))?;
    context.unchanged("memory of the peer", &words.memory)?;
    local.verify("memory to be read into")
}

/// More outstanding than the responder has resources for: an invalid request. Soft-RoCE answers them all the same, with
/// its resources used over again, and any device may have answered the first before the second comes.
fn responder_takes_fewer(context: &mut Context<'_>) -> Outcome {
    const COUNT: usize = 16;
    let most = context.device_attributes(0)?.max_read_atomic;
    if most < 4 {
        return Err(Failure::not_applicable("four READs outstanding"));
    }
    let pair = Pair::new(context, &Setup { read_atomic: u8::MAX, destination_read_atomic: Some(1), ..setup() })?;
    let [reader, owner] = &pair.ends;
    let size = 64 * context.mtu();
    let remote = readable(owner, &pattern(28, size))?;
    let mut local = Memory::target(&reader.domain, size * COUNT)?;
    let entries: Vec<_> = (0..COUNT).map(|index| [local.entry(index * size..(index + 1) * size)]).collect();
    let requests: Vec<_> = (0..)
        .zip(&entries)
        .map(|(id, entry)| reader.request(id, SendOperation::Read(remote.remote(0)), entry))
        .collect();
    reader.queue_pair.post_send(&requests)?;
    let done = context.completions("reader", &reader.send_queue, COUNT)?;
    let good = done.iter().take_while(|done| done.is_success()).count();
    for (index, done) in done.iter().enumerate() {
        let expected = match index.cmp(&good) {
            std::cmp::Ordering::Less => CompletionStatus::Success,
            std::cmp::Ordering::Equal => CompletionStatus::RemoteInvalidRequestError,
            std::cmp::Ordering::Greater => CompletionStatus::FlushedError,
        };
        status("reader", done, index as u64, expected)?;
        let start = index * size;
        match expected {
            CompletionStatus::Success => local.expect(start, &remote.bytes(0..size)),
            // What of a READ that failed has arrived is open.
            _ => local.accept(start..start + size),
        }
    }
    local.verify("memory read into")?;
    let refused = ensure(good < COUNT, || {
        format!("more READs outstanding than taken: expected RemoteInvalidRequestError, got {COUNT} successes")
    });
    context.tolerate(refused)
}

/// One after the other needs one resource only, however many there are.
fn resources_come_back(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &Setup { read_atomic: 1, ..setup() })?;
    let size = 2 * context.mtu() + 1;
    for _ in 0..40 {
        read_message(context, &pair, 0, &[size])?;
    }
    Ok(())
}

/// The depth can be changed while the send queue is drained, and only then (IBTA table 91).
fn changed_when_drained(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &Setup { read_atomic: 1, destination_read_atomic: Some(1), ..setup() })?;
    let most = context.device_attributes(0)?.max_read_atomic.min(4);
    let reader = &pair.ends[0];
    let change = |state| QueuePairAttributes { max_read_atomic: Some(most), ..QueuePairAttributes::to_state(state) };
    refusal("another depth in RTS", reader.queue_pair.modify(&change(QueuePairState::ReadyToSend)))?;
    for end in [0, 1] {
        let queue_pair = &pair.ends[end].queue_pair;
        drain_to_the_end(context, &pair, end)?;
        queue_pair.modify(&QueuePairAttributes {
            max_destination_read_atomic: Some(most),
            ..change(QueuePairState::SendQueueDrained)
        })?;
        equal("outstanding as requester", Some(most), queue_pair.query()?.max_read_atomic)?;
        equal("outstanding as responder", Some(most), queue_pair.query()?.max_destination_read_atomic)?;
    }
    for end in [0, 1] {
        pair.ends[end].go(QueuePairState::ReadyToSend)?;
    }
    let owner = &pair.ends[1];
    let remote = readable(owner, &pattern(29, 5000))?;
    let local = Memory::target(&reader.domain, 5000)?;
    for id in 0..20 {
        reader.send(id, SendOperation::Read(remote.remote(0)), &[local.whole()])?;
    }
    for (id, done) in (0..).zip(context.completions("reader", &reader.send_queue, 20)?) {
        check_read(context, &done, reader, id, 5000)?;
    }
    Ok(())
}
