//! Messages arrive whole, unchanged, once, in order, and nowhere else: every form on every transport, in all sizes
//! around the packet boundary, and many of them after each other.

use longhaul_verbs::{Capabilities, CompletionStatus, ReceiveRequest, SendFlags, SendOperation, Transport};

use super::Test;
use super::context::{Context, prefix};
use super::failure::{Outcome, equal, status};
use super::memory::{Memory, pattern};
use super::pair::{End, Form, Pair, Setup};

pub(super) const CONNECTED: [Transport; 2] = [Transport::ReliableConnection, Transport::UnreliableConnection];

/// A case's name and how its size follows from the MTU.
pub(super) type Size = (&'static str, fn(usize) -> usize);

/// Sizes that fit one packet.
pub(super) const PACKET_SIZES: [Size; 4] =
    [("no-bytes", |_| 0), ("one-byte", |_| 1), ("mtu-minus-one", |mtu| mtu - 1), ("mtu", |mtu| mtu)];

/// Sizes that take several.
pub(super) const MESSAGE_SIZES: [Size; 4] = [
    ("mtu-plus-one", |mtu| mtu + 1),
    ("three-mtu-plus-seven", |mtu| 3 * mtu + 7),
    ("64-kib", |_| 64 << 10),
    ("1-mib", |_| 1 << 20),
];

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in CONNECTED {
        for form in Form::ALL {
            for (case, size) in PACKET_SIZES.into_iter().chain(MESSAGE_SIZES) {
                tests.push(test(transport, &format!("{}/{case}", form.name()), move |context| {
                    both_directions(context, transport, form, size(context.mtu()))
                }));
            }
        }
        tests
            .push(test(transport, "mixed/every-form-in-order", move |context| every_form_in_order(context, transport)));
        tests.push(test(transport, "mixed/many-connections", move |context| many_connections(context, transport)));
        tests.push(test(transport, "mixed/both-directions-at-once", move |context| {
            both_directions_at_once(context, transport)
        }));
        tests.push(test(transport, "sequence-numbers/wrap-in-a-message", move |context| {
            sequence_numbers_wrap(context, transport)
        }));
        tests.push(test(transport, "write/last-byte-of-region", move |context| write_to_the_edges(context, transport)));
    }
    for transport in Transport::ALL {
        tests.push(test(transport, "send/many-in-order", move |context| many_in_order(context, transport)));
        tests.push(test(transport, "immediate/values", move |context| immediate_values(context, transport)));
        tests.push(test(transport, "send/into-longer-receive", move |context| into_longer_receive(context, transport)));
    }
    tests
}

/// A test that needs its transport and nothing else.
pub(super) fn test(transport: Transport, name: &str, function: impl Fn(&mut Context<'_>) -> Outcome + 'static) -> Test {
    Test::new(format!("{}/{name}", prefix(transport)), transport.capability(), function)
}

fn both_directions(context: &mut Context<'_>, transport: Transport, form: Form, size: usize) -> Outcome {
    let pair = Pair::of(context, transport)?;
    for from in [0, 1] {
        move_message(context, &pair, from, form, &[size], &[size])
            .map_err(|failure| failure.context(format_args!("from end {from}")))?;
    }
    Ok(())
}

/// Bytes between the pieces of a message in memory.
pub(super) const GAP_BYTES: usize = 3;

/// Moves one message, gathered from pieces of these lengths and, with SEND, scattered into those, and checks both
/// completions and every byte of both memories.
pub(super) fn move_message(
    context: &mut Context<'_>,
    pair: &Pair,
    from: usize,
    form: Form,
    gather: &[usize],
    scatter: &[usize],
) -> Outcome {
    let (sender, receiver) = (&pair.ends[from], &pair.ends[1 - from]);
    let size: usize = gather.iter().sum();
    let message = pattern(size as u64 + 7 * from as u64 + 1, size);
    let immediate = 0xfeed_0000 | size as u32 & 0xffff;
    let header = receiver.header_bytes();

    let mut source = Memory::new(&sender.domain, size + GAP_BYTES * gather.len(), longhaul_verbs::Access::empty())?;
    let mut gathered = Vec::new();
    let (mut offset, mut taken) = (0, 0);
    for &length in gather {
        source.fill(offset, &message[taken..taken + length]);
        gathered.push(source.entry(offset..offset + length));
        offset += length + GAP_BYTES;
        taken += length;
    }

    // A receive that a WRITE with immediate consumes needs no memory.
    let scatter = if form.is_write() { &[] } else { scatter };
    let room = header + scatter.iter().sum::<usize>().max(size) + GAP_BYTES * scatter.len().max(1);
    let mut target = Memory::target(&receiver.domain, room)?;
    let mut scattered = Vec::new();
    if form.is_write() {
        target.expect(0, &message);
    } else {
        let (mut offset, mut left) = (0, &message[..]);
        for (index, &length) in scatter.iter().enumerate() {
            let skipped = if index == 0 { header } else { 0 };
            scattered.push(target.entry(offset..offset + skipped + length));
            let (piece, rest) = left.split_at(length.min(left.len()));
            target.expect(offset + skipped, piece);
            left = rest;
            offset += skipped + length + GAP_BYTES;
        }
    }

    if form.consumes_receive() {
        receiver.receive(70, &scattered)?;
    }
    sender.send(71, form.operation(target.remote(0), immediate), &gathered)?;
    let sent = context.completion("sender", &sender.send_queue)?;
    form.check_sent(&sent, sender, 71)?;
    if form.consumes_receive() {
        let received = context.completion("receiver", &receiver.receive_queue)?;
        form.check_received(&received, (sender, receiver), 70, size, immediate)?;
    }
    if header > 0 {
        target.accept(0..header);
    }
    context.settle("target memory", &target)?;
    source.verify("source memory")?;
    equal("completions left", None, sender.send_queue.poll_one()?)?;
    equal("completions left", None, receiver.receive_queue.poll_one()?)
}

/// Several hundred messages of changing size, posted as fast as the queues allow.
fn many_in_order(context: &mut Context<'_>, transport: Transport) -> Outcome {
    const ROUNDS: u64 = 6;
    const ROUND: u64 = 64;
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let longest = match transport {
        Transport::UnreliableDatagram => context.mtu(),
        _ => 3 * context.mtu(),
    };
    let header = receiver.header_bytes();
    let slot = header + longest;
    let source = Memory::source(&sender.domain, &pattern(5, longest + ROUND as usize))?;
    let mut target = Memory::target(&receiver.domain, slot * ROUND as usize)?;
    for round in 0..ROUNDS {
        let length = |index: u64| ((round * ROUND + index) as usize * 7919) % (longest + 1);
        for index in 0..ROUND {
            let start = index as usize * slot;
            receiver.receive(round * ROUND + index, &[target.entry(start..start + slot)])?;
        }
        for index in 0..ROUND {
            let number = round * ROUND + index;
            let start = index as usize;
            let entry = [source.entry(start..start + length(index))];
            sender.send(1000 + number, SendOperation::SendWithImmediate(number as u32), &entry)?;
        }
        let sent = context.completions("sender", &sender.send_queue, ROUND as usize)?;
        let received = context.completions("receiver", &receiver.receive_queue, ROUND as usize)?;
        for (index, (sent, received)) in (0..ROUND).zip(sent.iter().zip(&received)) {
            let number = round * ROUND + index;
            let form = Form::SendWithImmediate;
            form.check_sent(sent, sender, 1000 + number)?;
            form.check_received(received, (sender, receiver), number, length(index), number as u32)?;
            let (start, from) = (index as usize * slot, index as usize);
            target.accept(start..start + header);
            target.expect(start + header, &source.bytes(from..from + length(index)));
        }
        target.verify("target memory")?;
    }
    Ok(())
}

/// WRITE, SEND, WRITE with immediate, SEND with immediate, over and over, all in flight at once. When a receive
/// completes, everything sent before it on the queue pair has been placed (IBTA 9.5).
fn every_form_in_order(context: &mut Context<'_>, transport: Transport) -> Outcome {
    const COUNT: usize = 48;
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let slot = 2 * context.mtu() + 1;
    let source = Memory::source(&sender.domain, &pattern(9, slot * COUNT))?;
    let mut target = Memory::target(&receiver.domain, slot * COUNT)?;
    let form = |index: usize| [Form::Write, Form::Send, Form::WriteWithImmediate, Form::SendWithImmediate][index % 4];
    let place = |index: usize| index * slot..index * slot + slot - index % 5;
    for index in (0..COUNT).filter(|&index| form(index).consumes_receive()) {
        let entry = [target.entry(place(index))];
        receiver.receive(index as u64, if form(index).is_write() { &[] } else { &entry })?;
    }
    for index in 0..COUNT {
        let operation = form(index).operation(target.remote(place(index).start), index as u32);
        sender.send(index as u64, operation, &[source.entry(place(index))])?;
    }
    for index in 0..COUNT {
        target.expect(place(index).start, &source.bytes(place(index)));
        if !form(index).consumes_receive() {
            continue;
        }
        let received = context.completion("receiver", &receiver.receive_queue)?;
        form(index).check_received(&received, (sender, receiver), index as u64, place(index).len(), index as u32)?;
        for earlier in index.saturating_sub(1)..=index {
            let (expected, got) = (source.bytes(place(earlier)), target.bytes(place(earlier)));
            equal("message placed when a later receive completes", true, expected == got)?;
        }
    }
    for (index, sent) in context.completions("sender", &sender.send_queue, COUNT)?.iter().enumerate() {
        form(index).check_sent(sent, sender, index as u64)?;
    }
    context.settle("target memory", &target)
}

fn both_directions_at_once(context: &mut Context<'_>, transport: Transport) -> Outcome {
    const COUNT: usize = 32;
    let pair = Pair::of(context, transport)?;
    let slot = 2 * context.mtu() + 13;
    let mut sources = Vec::new();
    let mut targets = Vec::new();
    for (end, seed) in pair.ends.iter().zip([21, 22]) {
        sources.push(Memory::source(&end.domain, &pattern(seed, slot * COUNT))?);
        let target = Memory::target(&end.domain, slot * COUNT)?;
        for index in 0..COUNT {
            end.receive(index as u64, &[target.entry(index * slot..(index + 1) * slot)])?;
        }
        targets.push(target);
    }
    for index in 0..COUNT {
        for (end, source) in pair.ends.iter().zip(&sources) {
            let entry = [source.entry(index * slot..(index + 1) * slot)];
            end.send(index as u64, SendOperation::Send, &entry)?;
        }
    }
    for (index, end) in pair.ends.iter().enumerate() {
        for queue in [&end.send_queue, &end.receive_queue] {
            for (id, completion) in (0..).zip(context.completions("either end", queue, COUNT)?) {
                status("either end", &completion, id, CompletionStatus::Success)?;
            }
        }
        targets[index].expect(0, &sources[1 - index].bytes(0..slot * COUNT));
        targets[index].verify("target memory")?;
    }
    Ok(())
}

/// Sequence numbers are 24 bits and wrap to zero (IBTA 9.7.2).
fn sequence_numbers_wrap(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let setup = Setup { first_psn: [0xff_fffd, 0xff_ffff], ..Setup::new(transport) };
    let pair = Pair::new(context, &setup)?;
    let size = 9 * context.mtu() + 1;
    for form in Form::ALL {
        for from in [0, 1] {
            move_message(context, &pair, from, form, &[size], &[size])?;
        }
    }
    Ok(())
}

/// The first and the last byte of a region may be written.
fn write_to_the_edges(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &[0xab; 2])?;
    let length = 2 * context.mtu();
    let region = receiver
        .domain
        .register_zeroed(length, longhaul_verbs::Access::LOCAL_WRITE | longhaul_verbs::Access::REMOTE_WRITE)?;
    for (id, offset) in [(1, 0), (2, length as u64 - 1)] {
        sender.send(id, SendOperation::Write(region.remote(offset)), &[source.entry(0..1)])?;
        let sent = context.completion("sender", &sender.send_queue)?;
        Form::Write.check_sent(&sent, sender, id)?;
    }
    let mut expected = vec![0; length];
    expected[0] = 0xab;
    expected[length - 1] = 0xab;
    context.wait_for(|| equal("whole region as written", true, region.to_vec(0..length) == expected))
}

/// A message may be shorter than its receive; what it does not fill stays as it was.
fn into_longer_receive(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    for size in [0, 1, context.mtu() / 2] {
        let room = context.mtu() + 3;
        move_message(context, &pair, 0, Form::Send, &[size], &[room])?;
        move_message(context, &pair, 1, Form::Send, &[size], &[0, room / 2, room])?;
    }
    Ok(())
}

/// All 32 bits arrive, in their order.
fn immediate_values(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let target = Memory::target(&receiver.domain, receiver.header_bytes() + 1)?;
    for immediate in [0, 1, 0x8000_0000, 0x0102_0304, 0xffff_fffe, 0xffff_ffff] {
        let forms: &[Form] = match transport {
            Transport::UnreliableDatagram => &[Form::SendWithImmediate],
            _ => &[Form::SendWithImmediate, Form::WriteWithImmediate],
        };
        for form in forms {
            receiver.receive(1, &[target.whole()])?;
            sender.send(2, form.operation(target.remote(0), immediate), &[])?;
            let received = context.completion("receiver", &receiver.receive_queue)?;
            form.check_received(&received, (sender, receiver), 1, 0, immediate)?;
        }
    }
    Ok(())
}

/// Many connections between the same two devices, all busy at once, none mistaken for another.
fn many_connections(context: &mut Context<'_>, transport: Transport) -> Outcome {
    const COUNT: usize = 16;
    let size = 20 * context.mtu() + 11;
    let mut connections = Vec::new();
    for seed in 0..COUNT as u64 {
        let pair = Pair::of(context, transport)?;
        let source = Memory::source(&pair.ends[0].domain, &pattern(100 + seed, size))?;
        let mut target = Memory::target(&pair.ends[1].domain, size)?;
        target.expect(0, &source.bytes(0..size));
        pair.ends[1].receive(seed, &[])?;
        connections.push((pair, source, target));
    }
    for (id, (pair, source, target)) in (0..).zip(&connections) {
        let operation = SendOperation::WriteWithImmediate(target.remote(0), id as u32);
        pair.ends[0].send(id, operation, &[source.whole()])?;
    }
    for (id, (pair, _, target)) in (0..).zip(&connections) {
        let [sender, receiver] = &pair.ends;
        let form = Form::WriteWithImmediate;
        form.check_sent(&context.completion("sender", &sender.send_queue)?, sender, id)?;
        let received = context.completion("receiver", &receiver.receive_queue)?;
        form.check_received(&received, (sender, receiver), id, size, id as u32)?;
        target.verify("target memory")?;
    }
    Ok(())
}

/// Posts a request with these flags instead of a signalled one.
pub(super) fn send_with_flags(
    sender: &End,
    id: u64,
    operation: SendOperation,
    local: &[longhaul_verbs::ScatterGatherEntry],
    flags: SendFlags,
) -> Outcome {
    Ok(sender.queue_pair.post_send(&[sender.request(id, operation, local).with_flags(flags)])?)
}

/// Posts receives without memory.
pub(super) fn empty_receives(receiver: &End, count: u64) -> Outcome {
    for id in 0..count {
        receiver.queue_pair.post_receive(&[ReceiveRequest { id, local: &[] }])?;
    }
    Ok(())
}

/// What a test needs that every device can run.
pub(super) const NOTHING: Capabilities = Capabilities::empty();
