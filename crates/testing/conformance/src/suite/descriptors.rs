//! Events with file descriptors: a program sleeps until there is something, and polls nothing meanwhile. The device has
//! to do its work without it.

use std::os::fd::BorrowedFd;

use longhaul_time::Duration;
use longhaul_verbs::{
    AsyncEventKind, Capabilities, CompletionStatus, EventSource, RemoteMemory, SendOperation, Transport,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Test;
use super::context::{Context, prefix};
use super::events::Watched;
use super::failure::{Failure, Outcome, ensure, equal, status};
use super::memory::{Memory, pattern};
use super::pair::Pair;

/// How long to sleep for what must come.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in Transport::ALL {
        let mut channel = |name: &str, function: fn(&mut Context<'_>, Transport) -> Outcome| {
            tests.push(Test::new(
                format!("{}/event-descriptors/{name}", prefix(transport)),
                transport.capability() | Capabilities::COMPLETION_CHANNEL | Capabilities::EVENT_DESCRIPTORS,
                move |context| function(context, transport),
            ));
        };
        channel("sleep-until-a-completion", sleep_until_a_completion);
        channel("readable-until-taken", readable_until_taken);
        channel("sleep-and-answer", sleep_and_answer);
    }
    tests.push(Test::new(
        "rc/event-descriptors/asynchronous-event",
        Capabilities::RELIABLE_CONNECTION | Capabilities::EVENT_DESCRIPTORS,
        asynchronous_event,
    ));
    tests
}

/// Sleeps until the descriptor is readable, or time is up; whether it is.
fn sleep(descriptor: BorrowedFd<'_>, longest: Duration) -> Outcome<bool> {
    let timeout = PollTimeout::try_from(longest).map_err(|error| Failure::new(error.to_string()))?;
    let mut waits = [PollFd::new(descriptor, PollFlags::POLLIN)];
    poll(&mut waits, timeout).map_err(|error| Failure::new(format!("sleeping on a descriptor: {error}")))?;
    Ok(waits[0].any() == Some(true))
}

fn descriptor<'a>(watched: &'a Watched) -> Outcome<BorrowedFd<'a>> {
    watched.channel.descriptor().ok_or_else(|| Failure::new("expected a descriptor of the channel, got none"))
}

/// Sleeps until the next event of the watched receive queue, takes it and the one completion behind it.
fn wake_and_take(watched: &Watched, what: &str) -> Outcome {
    let is_readable = sleep(descriptor(watched)?, LONGEST_SLEEP)?;
    ensure(is_readable, || format!("{what}: expected to be woken, got {LONGEST_SLEEP:?} of sleep"))?;
    ensure(watched.channel.next_event()?.is_some(), || format!("{what}: expected an event, got none"))?;
    let completion = watched.pair.ends[1].receive_queue.poll_one()?;
    let completion = completion.ok_or_else(|| Failure::new(format!("{what}: expected a completion, got none")))?;
    status(what, &completion, 1, CompletionStatus::Success)
}

fn sleep_until_a_completion(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let watched = Watched::new(context, transport)?;
    let [sender, receiver] = &watched.pair.ends;
    let size = match transport {
        Transport::UnreliableDatagram => 100,
        _ => 5 * context.mtu() + 1,
    };
    let source = Memory::source(&sender.domain, &pattern(1, size))?;
    let target = Memory::target(&receiver.domain, receiver.header_bytes() + size)?;
    for _ in 0..50 {
        receiver.receive(1, &[target.whole()])?;
        receiver.receive_queue.request_notification(false)?;
        sender.send(2, SendOperation::Send, &[source.whole()])?;
        wake_and_take(&watched, "receiver")?;
        let sent = context.completion("sender", &sender.send_queue)?;
        status("sender", &sent, 2, CompletionStatus::Success)?;
    }
    Ok(())
}

/// Not readable before the event, readable as long as it waits, not readable when it is taken.
fn readable_until_taken(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let watched = Watched::new(context, transport)?;
    let is_readable = |what: &str, expected: bool| -> Outcome {
        equal(what, expected, sleep(descriptor(&watched)?, Duration::ZERO)?)
    };
    for _ in 0..2 {
        watched.pair.ends[1].receive_queue.request_notification(false)?;
        context.rest();
        is_readable("descriptor before an event", false)?;
        watched.message(context, longhaul_verbs::SendFlags::empty())?;
        is_readable("descriptor with an event", true)?;
        is_readable("descriptor with an event, asked again", true)?;
        ensure(watched.channel.next_event()?.is_some(), || "expected an event, got none".into())?;
        is_readable("descriptor when its event is taken", false)?;
        watched.take_completions(1)?;
    }
    Ok(())
}

/// The usual loop of programs that sleep: ask for an event, look once more, sleep. No wake-up may be lost, whenever the
/// message comes.
fn sleep_and_answer(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let watched = Watched::new(context, transport)?;
    let [sender, receiver] = &watched.pair.ends;
    let target = Memory::target(&receiver.domain, 64)?;
    for round in 0..200 {
        receiver.receive(1, &[target.whole()])?;
        // The message is in flight already when the event is asked for, more or less far.
        sender.send(2, SendOperation::Send, &[])?;
        for _ in 0..50 * (round % 8) {
            std::hint::spin_loop();
        }
        receiver.receive_queue.request_notification(false)?;
        match receiver.receive_queue.poll_one()? {
            Some(completion) => status("receiver", &completion, 1, CompletionStatus::Success)?,
            None => wake_and_take(&watched, "receiver that looked before it slept")?,
        }
        let sent = context.completion("sender", &sender.send_queue)?;
        status("sender", &sent, 2, CompletionStatus::Success)?;
        // The event of a completion that was found by looking.
        while watched.channel.next_event()?.is_some() {}
    }
    Ok(())
}

fn asynchronous_event(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, Transport::ReliableConnection)?;
    let [sender, receiver] = &pair.ends;
    let device = context.device(1).clone();
    let number = receiver.number();
    let descriptor = || device.event_descriptor().ok_or_else(|| Failure::new("expected a descriptor, got none"));
    equal("descriptor without events", false, sleep(descriptor()?, Duration::ZERO)?)?;
    let source = Memory::source(&sender.domain, &[1; 10])?;
    sender.send(1, SendOperation::Write(RemoteMemory { address: 0x10, key: 0 }), &[source.whole()])?;
    loop {
        let is_readable = sleep(descriptor()?, LONGEST_SLEEP)?;
        ensure(is_readable, || format!("expected to be woken by an access error, got {LONGEST_SLEEP:?} of sleep"))?;
        let event = device.next_event()?.ok_or_else(|| Failure::new("expected an event, got none"))?;
        if event.kind == AsyncEventKind::QueuePairAccessError && event.source == EventSource::QueuePair(number) {
            break;
        }
    }
    while device.next_event()?.is_some() {}
    equal("descriptor when all events are taken", false, sleep(descriptor()?, Duration::ZERO)?)
}
