//! Errors that a device finds on its own side: keys, ranges and rights of local memory
//! (IBTA 9.9.2, 11.6.2).

use longhaul_verbs::{
    Access, CompletionStatus, QueuePairState, ScatterGatherEntry, SendFlags, SendOperation, Transport,
};

use super::Test;
use super::context::Context;
use super::failure::{Outcome, equal, status, status_among};
use super::memory::{Memory, pattern};
use super::pair::{End, Form, Pair};
use super::transfer::{CONNECTED, move_message, send_with_flags, test};

/// A way of naming memory that must not be used, made for one end.
pub(super) type Fault = (&'static str, fn(&mut Context<'_>, &End, usize) -> Outcome<Held>);

/// A bad entry, and what must live as long as it.
pub(super) struct Held {
    pub(super) entry: ScatterGatherEntry,
    pub(super) memory: Option<Memory>,
}

pub(super) const FAULTS: [Fault; 7] = [
    ("unknown-key", |_, end, _| {
        let memory = Memory::target(&end.domain, 300)?;
        let entry = ScatterGatherEntry { local_key: memory.local_key() ^ 0x5a5a_5a00, ..memory.entry(0..200) };
        held(entry, memory)
    }),
    ("before-the-region", |_, end, _| {
        let memory = Memory::target(&end.domain, 300)?;
        let entry = ScatterGatherEntry { address: memory.region_start() - 1, ..memory.entry(0..200) };
        held(entry, memory)
    }),
    ("beyond-the-region", |_, end, _| {
        let memory = Memory::target(&end.domain, 300)?;
        let entry = ScatterGatherEntry { address: memory.region_end() - 199, ..memory.entry(0..200) };
        held(entry, memory)
    }),
    ("wrapping-address", |_, end, _| {
        let memory = Memory::target(&end.domain, 300)?;
        let entry = ScatterGatherEntry { address: u64::MAX - 99, ..memory.entry(0..200) };
        held(entry, memory)
    }),
    ("deregistered", |_, end, _| {
        let memory = Memory::target(&end.domain, 300)?;
        let entry = memory.entry(0..200);
        drop(memory);
        Ok(Held { entry, memory: None })
    }),
    ("other-domain", |context, _, index| {
        let other = context.device(index).allocate_protection_domain()?;
        let memory = Memory::target(&other, 300)?;
        held(memory.entry(0..200), memory)
    }),
    ("second-entry-bad", |_, end, _| {
        // Used behind a good entry by the tests below.
        let memory = Memory::target(&end.domain, 300)?;
        let entry = ScatterGatherEntry { local_key: memory.local_key() ^ 0x5a5a_5a00, ..memory.entry(0..200) };
        held(entry, memory)
    }),
];

fn held(entry: ScatterGatherEntry, memory: Memory) -> Outcome<Held> {
    Ok(Held { entry, memory: Some(memory) })
}

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in Transport::ALL {
        for (case, fault) in FAULTS {
            tests.push(test(transport, &format!("local-protection/send-{case}"), move |context| {
                bad_gather(context, transport, Form::Send, case, fault)
            }));
            tests.push(test(transport, &format!("local-protection/receive-{case}"), move |context| {
                bad_scatter(context, transport, case, fault)
            }));
        }
        tests.push(test(transport, "local-protection/receive-without-local-write", move |context| {
            bad_scatter(context, transport, "", |_, end, _| {
                let memory = Memory::new(&end.domain, 300, Access::empty())?;
                held(memory.entry(0..200), memory)
            })
        }));
        tests.push(test(transport, "local-protection/unsignaled-still-completes", move |context| {
            unsignaled_still_completes(context, transport)
        }));
        tests.push(test(transport, "local-protection/zero-length-entry-needs-no-key", move |context| {
            zero_length_entry(context, transport)
        }));
    }
    for transport in CONNECTED {
        for (case, fault) in FAULTS {
            tests.push(test(transport, &format!("local-protection/write-{case}"), move |context| {
                bad_gather(context, transport, Form::Write, case, fault)
            }));
        }
        tests.push(test(transport, "local-protection/second-packet", move |context| second_packet(context, transport)));
    }
    tests
}

/// A request that gathers from memory it may not use fails, stops the send queue, and delivers nothing.
fn bad_gather(
    context: &mut Context<'_>,
    transport: Transport,
    form: Form,
    case: &str,
    fault: fn(&mut Context<'_>, &End, usize) -> Outcome<Held>,
) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let target = Memory::target(&receiver.domain, 1000)?;
    receiver.receive(1, &[target.whole()])?;
    let good = Memory::source(&sender.domain, &pattern(1, 50))?;
    let bad = fault(context, sender, 0)?;
    let entries = match case {
        "second-entry-bad" => vec![good.whole(), bad.entry],
        _ => vec![bad.entry],
    };
    sender.send(2, form.operation(target.remote(0), 0), &entries)?;
    let sent = context.completion("sender", &sender.send_queue)?;
    context.failed("sender", &sent, 2, &[CompletionStatus::LocalProtectionError])?;
    equal("queue pair of the failed request", sender.number(), sent.queue_pair)?;
    let expected = match transport {
        Transport::ReliableConnection => QueuePairState::Error,
        _ => QueuePairState::SendQueueError,
    };
    match sender.queue_pair.state() {
        QueuePairState::Error => context.tolerate(sender.is_in(expected))?,
        _ => sender.is_in(expected)?,
    }
    context.no_completion("receiver", &receiver.receive_queue)?;
    target.verify("target memory")?;
    sender.send(3, SendOperation::Send, &[])?;
    let sent = context.completion("sender, after the error", &sender.send_queue)?;
    status("sender, after the error", &sent, 3, CompletionStatus::FlushedError)?;
    pair.reconnect()?;
    move_message(context, &pair, 0, Form::Send, &[20], &[20])
}

/// A receive into memory that may not be written fails when a message comes for it. With RC the sender is notified of
/// an operation error at its peer; the others do not report it.
fn bad_scatter(
    context: &mut Context<'_>,
    transport: Transport,
    case: &str,
    fault: fn(&mut Context<'_>, &End, usize) -> Outcome<Held>,
) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let good = Memory::target(&receiver.domain, 50)?;
    let bad = fault(context, receiver, 1)?;
    let entries = match case {
        "second-entry-bad" => vec![good.whole(), bad.entry],
        _ => vec![bad.entry],
    };
    receiver.receive(1, &entries)?;
    receiver.receive(2, &[])?;
    // As long as the bad entry: devices look only at the bytes that they use.
    let source = Memory::source(&sender.domain, &pattern(2, 200 - receiver.header_bytes()))?;
    sender.send(3, SendOperation::Send, &[source.whole()])?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    // Soft-RoCE reports the third.
    let allowed = [
        CompletionStatus::LocalProtectionError,
        CompletionStatus::LocalAccessError,
        CompletionStatus::LocalQueuePairError,
    ];
    status_among("receiver", &received, 1, &allowed)?;
    let flushed = context.completion("receiver's next receive", &receiver.receive_queue)?;
    status("receiver's next receive", &flushed, 2, CompletionStatus::FlushedError)?;
    receiver.is_in(QueuePairState::Error)?;
    let sent = context.completion("sender", &sender.send_queue)?;
    let expected = match transport {
        Transport::ReliableConnection => CompletionStatus::RemoteOperationError,
        _ => CompletionStatus::Success,
    };
    status("sender", &sent, 3, expected)?;
    // Whose first bytes may be written is open when only the last may not.
    match &bad.memory {
        Some(memory) if case != "beyond-the-region" => memory.verify("memory that may not be written"),
        _ => Ok(()),
    }
}

fn unsignaled_still_completes(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let sender = &pair.ends[0];
    let nowhere = [ScatterGatherEntry { address: 0x1000, length: 16, local_key: 0 }];
    send_with_flags(sender, 5, SendOperation::Send, &nowhere, SendFlags::empty())?;
    let sent = context.completion("sender", &sender.send_queue)?;
    context.failed("sender", &sent, 5, &[CompletionStatus::LocalProtectionError])
}

/// An entry without bytes is skipped, whatever its key and address.
fn zero_length_entry(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let nothing = ScatterGatherEntry { address: 0x1000, length: 0, local_key: 0 };
    let header = receiver.header_bytes();
    let mut target = Memory::target(&receiver.domain, header + 10)?;
    receiver.receive(1, &[nothing, target.whole()])?;
    let source = Memory::source(&sender.domain, &pattern(3, 10))?;
    sender.send(2, SendOperation::Send, &[source.whole(), nothing])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    status("sender", &sent, 2, CompletionStatus::Success)?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    Form::Send.check_received(&received, (sender, receiver), 1, 10, 0)?;
    target.accept(0..header);
    target.expect(header, &source.bytes(0..10));
    target.verify("target memory")
}

/// The fault shows only when the second packet is built; no completion at the receiver may come of the first.
fn second_packet(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let mtu = context.mtu();
    let target = Memory::target(&receiver.domain, 3 * mtu)?;
    receiver.receive(1, &[target.whole()])?;
    let source = Memory::source(&sender.domain, &pattern(4, mtu))?;
    let beyond = ScatterGatherEntry { local_key: source.local_key() ^ 0x5a5a_5a00, ..source.whole() };
    sender.send(2, SendOperation::Send, &[source.whole(), beyond])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    context.failed("sender", &sent, 2, &[CompletionStatus::LocalProtectionError])?;
    context.no_completion("receiver of half a message", &receiver.receive_queue)
}
