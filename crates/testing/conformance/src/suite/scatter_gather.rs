//! One message from several pieces of memory and into several, with boundaries everywhere.

use longhaul_verbs::{CompletionStatus, PostErrorKind, QueuePairLimits, SendOperation, Transport};

use super::Test;
use super::context::Context;
use super::failure::{Failure, Outcome, ensure, equal, refusal, status};
use super::memory::{Memory, pattern};
use super::pair::{Form, Pair, Setup};
use super::transfer::{move_message, test};

/// A case: its name, and the lengths of pieces (of at most this many bytes in total) given the MTU.
type Case = (&'static str, fn(usize) -> Vec<usize>);

/// Cases that fit one packet.
const PACKET_CASES: [Case; 6] = [
    ("two-uneven-pieces", |mtu| vec![1, mtu - 1]),
    ("odd-boundaries", |_| vec![3, 5, 7, 11]),
    ("zero-length-pieces", |_| vec![0, 9, 0, 0, 30, 0]),
    ("only-zero-length-pieces", |_| vec![0, 0, 0]),
    ("no-pieces", |_| vec![]),
    ("single-bytes", |_| vec![1; 8]),
];

/// Cases that take several.
const MESSAGE_CASES: [Case; 3] = [
    ("across-packets", |mtu| vec![mtu - 1, mtu + 1, 1, 2 * mtu + 3]),
    ("pieces-smaller-than-packets", |mtu| vec![mtu / 3 + 1; 8]),
    ("whole-packets", |mtu| vec![mtu, 0, mtu, mtu]),
];

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in Transport::ALL {
        let (forms, cases): (&[Form], Vec<Case>) = match transport {
            Transport::UnreliableDatagram => (&Form::SENDS, PACKET_CASES.to_vec()),
            _ => (&Form::ALL, PACKET_CASES.into_iter().chain(MESSAGE_CASES).collect()),
        };
        for (case, lengths) in cases {
            tests.push(test(transport, &format!("gather/{case}"), move |context| {
                gather(context, transport, forms, &lengths(context.mtu()))
            }));
            tests.push(test(transport, &format!("scatter/{case}"), move |context| {
                scatter(context, transport, &lengths(context.mtu()))
            }));
        }
        tests.push(test(transport, "scatter-gather/both-ends", move |context| both_ends(context, transport)));
        tests.push(test(transport, "scatter-gather/most-entries", move |context| most_entries(context, transport)));
        tests.push(test(transport, "scatter-gather/several-regions", move |context| {
            several_regions(context, transport)
        }));
        tests.push(test(transport, "scatter-gather/too-many-entries", move |context| {
            too_many_entries(context, transport)
        }));
    }
    tests
}

fn pair_with_entries(context: &mut Context<'_>, transport: Transport, entries: u32) -> Outcome<Pair> {
    let most = context
        .device_attributes(0)?
        .max_scatter_gather_entries
        .min(context.device_attributes(1)?.max_scatter_gather_entries);
    if most < entries {
        return Err(Failure::not_applicable(format!("{entries} scatter-gather entries")));
    }
    let setup = Setup {
        limits: QueuePairLimits { send_entries: entries, receive_entries: entries, ..Default::default() },
        ..Setup::new(transport)
    };
    Pair::new(context, &setup)
}

fn gather(context: &mut Context<'_>, transport: Transport, forms: &[Form], pieces: &[usize]) -> Outcome {
    let pair = pair_with_entries(context, transport, 8)?;
    let size = pieces.iter().sum();
    for &form in forms {
        move_message(context, &pair, 0, form, pieces, &[size])
            .map_err(|failure| failure.context(format_args!("{}", form.name())))?;
    }
    Ok(())
}

fn scatter(context: &mut Context<'_>, transport: Transport, pieces: &[usize]) -> Outcome {
    // A datagram's receive needs an entry for its header.
    let pieces = match (transport, pieces) {
        (Transport::UnreliableDatagram, []) => &[0],
        _ => pieces,
    };
    let pair = pair_with_entries(context, transport, 8)?;
    let size: usize = pieces.iter().sum();
    for form in Form::SENDS {
        move_message(context, &pair, 0, form, &[size], pieces)?;
        // One byte less than there is room for, and half of it.
        move_message(context, &pair, 0, form, &[size.saturating_sub(1)], pieces)?;
        move_message(context, &pair, 0, form, &[size / 2], pieces)?;
    }
    Ok(())
}

fn both_ends(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = pair_with_entries(context, transport, 8)?;
    let mtu = context.mtu();
    let (from, into): (Vec<usize>, Vec<usize>) = match transport {
        Transport::UnreliableDatagram => (vec![1, 64, 0, 63, 7], vec![2, 65, 33, 0, 35]),
        _ => (vec![mtu + 5, 1, 0, 2 * mtu - 1, 3, mtu], vec![1, mtu - 1, 0, mtu + 9, 2 * mtu - 1]),
    };
    for direction in [0, 1] {
        move_message(context, &pair, direction, Form::Send, &from, &into)?;
    }
    Ok(())
}

/// As many entries as the device says that it takes (up to 32, to keep it short).
fn most_entries(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let most = context
        .device_attributes(0)?
        .max_scatter_gather_entries
        .min(context.device_attributes(1)?.max_scatter_gather_entries)
        .min(32);
    let pair = pair_with_entries(context, transport, most)?;
    let pieces: Vec<usize> = (0..most as usize).map(|index| 1 + index % 7).collect();
    move_message(context, &pair, 0, Form::Send, &pieces, &pieces)
}

/// Each entry has its own key.
fn several_regions(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = pair_with_entries(context, transport, 4)?;
    let [sender, receiver] = &pair.ends;
    let message = pattern(3, 90);
    let sources: Vec<Memory> =
        message.chunks(30).map(|chunk| Memory::source(&sender.domain, chunk)).collect::<Outcome<_>>()?;
    let header = receiver.header_bytes();
    let mut targets = Vec::new();
    for length in [header + 1, 44, 45] {
        targets.push(Memory::target(&receiver.domain, length)?);
    }
    receiver.receive(1, &targets.iter().map(Memory::whole).collect::<Vec<_>>())?;
    let entries: Vec<_> = sources.iter().map(Memory::whole).collect();
    sender.send(2, SendOperation::Send, &entries)?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    Form::Send.check_received(&received, (sender, receiver), 1, 90, 0)?;
    let sent = context.completion("sender", &sender.send_queue)?;
    status("sender", &sent, 2, CompletionStatus::Success)?;
    targets[0].accept(0..header);
    targets[0].expect(header, &message[..1]);
    targets[1].expect(0, &message[1..45]);
    targets[2].expect(0, &message[45..]);
    for target in &targets {
        target.verify("target memory")?;
    }
    Ok(())
}

/// One entry more than the queue pair has room for is refused, on both queues.
fn too_many_entries(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = pair_with_entries(context, transport, 2)?;
    let [sender, receiver] = &pair.ends;
    let Some(limits) = sender.queue_pair.query()?.limits else {
        return Err(Failure::new("query: expected the limits of the queue pair, got none"));
    };
    let memory = Memory::target(&sender.domain, 10)?;
    let entries = vec![memory.entry(0..1); limits.send_entries as usize + 1];
    let request = sender.request(1, SendOperation::Send, &entries);
    let error = refusal("a send with too many entries", sender.queue_pair.post_send(&[request]))?;
    equal("index of the refused request", 0, error.index)?;
    let fits = matches!(error.kind, PostErrorKind::TooManyEntries { .. } | PostErrorKind::System(_));
    ensure(fits, || format!("send: expected TooManyEntries, got {error}"))?;

    let entries = vec![memory.entry(0..1); limits.receive_entries as usize + 1];
    let request = longhaul_verbs::ReceiveRequest { id: 1, local: &entries };
    let error = refusal("a receive with too many entries", receiver.queue_pair.post_receive(&[request]))?;
    let fits = matches!(error.kind, PostErrorKind::TooManyEntries { .. } | PostErrorKind::System(_));
    ensure(fits, || format!("receive: expected TooManyEntries, got {error}"))?;
    move_message(context, &pair, 0, Form::Send, &[10], &[10])
}
