//! Completion moderation (`ibv_modify_cq`): an event only after a number of completions, or a time after the first of
//! them.

use longhaul_time::Duration;
use longhaul_verbs::{Capabilities, SendFlags, SendOperation, Transport};

use super::Test;
use super::context::{Context, prefix};
use super::events::{TOKEN, Watched};
use super::failure::{Failure, Outcome, ensure, equal};
use super::memory::Memory;
use super::transfer::send_with_flags;

/// As long as moderation can be.
const LONGEST_US: u16 = u16::MAX;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in Transport::ALL {
        let mut add = |name: &str, function: fn(&mut Context<'_>, Transport) -> Outcome| {
            tests.push(Test::new(
                format!("{}/moderation/{name}", prefix(transport)),
                transport.capability() | Capabilities::COMPLETION_CHANNEL | Capabilities::COMPLETION_MODERATION,
                move |context| function(context, transport),
            ));
        };
        add("count-reached", count_reached);
        add("period-passed", period_passed);
        add("off-again", off_again);
        add("only-when-armed", only_when_armed);
        add("armed-anew", armed_anew);
        add("solicited", solicited);
        add("one-queue-only", one_queue_only);
    }
    tests
}

/// The same as a duration.
const LONGEST: Duration = Duration::from_micros(LONGEST_US as u64);
/// How often to try again what a busy host made too slow to judge.
const ROUNDS: u32 = 5;

/// A watched pair whose messages come quickly after each other.
struct Moderated {
    watched: Watched,
    target: Memory,
}

impl Moderated {
    fn new(context: &mut Context<'_>, transport: Transport, count: u16, period_us: u16) -> Outcome<Self> {
        let watched = Watched::new(context, transport)?;
        let target = Memory::target(&watched.pair.ends[1].domain, 64)?;
        watched.pair.ends[1].receive_queue.moderate(count, period_us)?;
        Ok(Moderated { watched, target })
    }

    fn arm(&self, solicited_only: bool) -> Outcome {
        Ok(self.watched.pair.ends[1].receive_queue.request_notification(solicited_only)?)
    }

    /// Sends messages and takes their completions.
    fn messages(&self, context: &mut Context<'_>, count: usize, flags: SendFlags) -> Outcome {
        let [sender, receiver] = &self.watched.pair.ends;
        for _ in 0..count {
            receiver.receive(1, &[self.target.whole()])?;
            send_with_flags(sender, 2, SendOperation::Send, &[], flags)?;
        }
        context.completions("receiver", &receiver.receive_queue, count).map(drop)
    }

    fn event(&self, context: &mut Context<'_>, what: &str) -> Outcome {
        let channel = &self.watched.channel;
        let got = context.wait_for(|| {
            channel.next_event()?.ok_or_else(|| Failure::new(format!("{what}: expected a completion event, got none")))
        })?;
        equal(what, TOKEN, got)
    }

    fn no_event(&self, what: &str) -> Outcome {
        equal(what, None, self.watched.channel.next_event()?)
    }
}

/// The event comes with the completion that makes the number full, and not before.
fn count_reached(context: &mut Context<'_>, transport: Transport) -> Outcome {
    for _ in 0..ROUNDS {
        let moderated = Moderated::new(context, transport, 4, LONGEST_US)?;
        moderated.arm(false)?;
        let begin = context.now();
        moderated.messages(context, 3, SendFlags::empty())?;
        let early = moderated.no_event("event of three completions of four");
        if context.now() - begin >= LONGEST {
            continue;
        }
        early?;
        moderated.messages(context, 1, SendFlags::empty())?;
        moderated.event(context, "event of four completions")?;
        if context.now() - begin >= LONGEST {
            continue;
        }
        context.rest();
        return moderated.no_event("a second event");
    }
    Err(Failure::new("expected four messages to take less than 65 ms on this host"))
}

/// Too few completions are reported when the time is up.
fn period_passed(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let moderated = Moderated::new(context, transport, 100, 5000)?;
    moderated.arm(false)?;
    let begin = context.now();
    moderated.messages(context, 2, SendFlags::empty())?;
    moderated.event(context, "event after the period")?;
    let elapsed = context.now() - begin;
    let least = Duration::from_millis(5);
    ensure(elapsed >= least, || format!("expected the event after {least:?} or more, got {elapsed:?}"))?;
    context.rest();
    moderated.no_event("a second event")
}

/// Without moderation an event comes at once; one that was held back when it ended is not lost.
fn off_again(context: &mut Context<'_>, transport: Transport) -> Outcome {
    for _ in 0..ROUNDS {
        let moderated = Moderated::new(context, transport, 100, LONGEST_US)?;
        moderated.arm(false)?;
        moderated.messages(context, 1, SendFlags::empty())?;
        moderated.watched.pair.ends[1].receive_queue.moderate(0, 0)?;
        moderated.event(context, "event that was held back")?;
        moderated.arm(false)?;
        let begin = context.now();
        moderated.messages(context, 1, SendFlags::empty())?;
        moderated.event(context, "event without moderation")?;
        if context.now() - begin < LONGEST {
            return Ok(());
        }
    }
    Err(Failure::new("expected an event in less than 65 ms after moderation was switched off"))
}

fn only_when_armed(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let moderated = Moderated::new(context, transport, 2, 1000)?;
    moderated.messages(context, 5, SendFlags::SOLICITED)?;
    context.rest();
    moderated.no_event("event that nobody asked for")
}

/// Each time that it is asked for, one event after this many completions.
fn armed_anew(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let moderated = Moderated::new(context, transport, 3, LONGEST_US)?;
    for round in 0..4 {
        moderated.arm(false)?;
        moderated.messages(context, 3, SendFlags::empty())?;
        moderated
            .event(context, "event of three completions")
            .map_err(|failure| failure.context(format_args!("round {round}")))?;
        // These are not asked for, and count for nothing.
        moderated.messages(context, 2, SendFlags::empty())?;
        context.rest();
        moderated.no_event("a second event")?;
    }
    Ok(())
}

/// Who waits for solicited messages is not woken by others, however many.
fn solicited(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let moderated = Moderated::new(context, transport, 2, 2000)?;
    moderated.arm(true)?;
    moderated.messages(context, 5, SendFlags::empty())?;
    context.rest();
    moderated.no_event("event of unsolicited messages")?;
    moderated.messages(context, 2, SendFlags::SOLICITED)?;
    moderated.event(context, "event of solicited messages")
}

/// Another completion queue of the same channel is not moderated.
fn one_queue_only(context: &mut Context<'_>, transport: Transport) -> Outcome {
    for _ in 0..ROUNDS {
        let moderated = Moderated::new(context, transport, 100, LONGEST_US)?;
        let [other, end] = &moderated.watched.pair.ends;
        let target = Memory::target(&other.domain, 64)?;
        other.receive(1, &[target.whole()])?;
        end.send_queue.request_notification(false)?;
        let begin = context.now();
        end.send(2, SendOperation::Send, &[])?;
        let channel = &moderated.watched.channel;
        let got = context.wait_for(|| {
            channel.next_event()?.ok_or_else(|| Failure::new("expected an event of the other queue, got none"))
        })?;
        equal("token of the other queue", !TOKEN, got)?;
        if context.now() - begin < LONGEST {
            return Ok(());
        }
    }
    Err(Failure::new("expected an event of a queue without moderation in less than 65 ms"))
}
