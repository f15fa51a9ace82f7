//! Ways of posting: inline, unsignalled, in batches, in bursts; and between two queue pairs of one device.

use longhaul_verbs::{
    Capabilities, CompletionStatus, Gid, PostErrorKind, QueuePairAttributes, QueuePairState, ReceiveRequest, SendFlags,
    SendOperation, SendRequest, Transport, WriteBurst,
};

use super::Test;
use super::context::{Context, prefix};
use super::failure::{Failure, Outcome, ensure, equal, refusal, status};
use super::memory::{Memory, pattern};
use super::pair::{End, Form, Pair, Setup};
use super::transfer::{CONNECTED, empty_receives, send_with_flags, test};

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in Transport::ALL {
        tests.push(test(transport, "inline/send", move |context| inline(context, transport, &Form::SENDS)));
        tests.push(test(transport, "inline/buffer-free-after-post", move |context| {
            inline_buffer_is_free(context, transport)
        }));
        tests.push(test(transport, "signaling/unsignaled-is-silent", move |context| {
            unsignaled_is_silent(context, transport)
        }));
        tests.push(test(transport, "signaling/unsignaled-makes-room", move |context| {
            unsignaled_makes_room(context, transport)
        }));
        tests.push(test(transport, "signaling/signal-all", move |context| signal_all(context, transport)));
        tests.push(test(transport, "batch/in-order", move |context| batch(context, transport)));
        tests.push(test(transport, "batch/empty", move |context| empty_batch(context, transport)));
    }
    for transport in CONNECTED {
        tests.push(test(transport, "inline/write", move |context| {
            inline(context, transport, &[Form::Write, Form::WriteWithImmediate])
        }));
        tests.push(test(transport, "write-burst/whole-strides", move |context| {
            let mtu = context.mtu();
            burst(context, transport, 8 * mtu, mtu)
        }));
        tests.push(test(transport, "write-burst/short-last-stride", move |context| {
            let mtu = context.mtu();
            burst(context, transport, 7 * mtu + 5, mtu)
        }));
        tests.push(test(transport, "write-burst/one-short-stride", move |context| {
            let mtu = context.mtu();
            burst(context, transport, 1, mtu)
        }));
        tests.push(test(transport, "write-burst/stride-below-mtu", move |context| burst(context, transport, 1000, 96)));
        tests.push(test(transport, "write-burst/unsignaled", move |context| unsignaled_burst(context, transport)));
        tests.push(test(transport, "write-burst/inconsistent-is-refused", move |context| {
            inconsistent_burst(context, transport)
        }));
        tests.push(test(transport, "destination/refused-when-connected", move |context| {
            destination_when_connected(context, transport)
        }));
        tests.push(test(transport, "loopback/one-device", move |context| loopback(context, transport)));
    }
    tests.push(Test::new(
        format!("{}/write-burst/wrong-transport", prefix(Transport::UnreliableDatagram)),
        Capabilities::UNRELIABLE_DATAGRAM,
        burst_on_datagrams,
    ));
    tests
}

/// Data given inline arrives like any other (IBTA knows no inline data; libibverbs' `IBV_SEND_INLINE`).
fn inline(context: &mut Context<'_>, transport: Transport, forms: &[Form]) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let most = inline_room(&pair.ends[0])?;
    let [sender, receiver] = &pair.ends;
    for &form in forms {
        for size in [0, 1, most / 2, most] {
            let message = pattern(31 + size as u64, size);
            let header = receiver.header_bytes();
            let mut target = Memory::target(&receiver.domain, header + most)?;
            if form.consumes_receive() {
                receiver.receive(1, &[target.whole()])?;
            }
            let operation = form.operation(target.remote(0), 0x8000_0001);
            sender.queue_pair.post_send_inline(&sender.request(2, operation, &[]), &message)?;
            form.check_sent(&context.completion("sender", &sender.send_queue)?, sender, 2)?;
            if form.consumes_receive() {
                let received = context.completion("receiver", &receiver.receive_queue)?;
                form.check_received(&received, (sender, receiver), 1, size, 0x8000_0001)?;
            }
            target.accept(0..header);
            target.expect(header, &message);
            context.settle("target memory", &target)?;
        }
    }
    Ok(())
}

/// Inline bytes that the queue pair takes.
fn inline_room(end: &End) -> Outcome<usize> {
    let limits = end.queue_pair.query()?.limits;
    let most = limits.map_or(0, |limits| limits.inline_bytes.min(64)) as usize;
    match most {
        0 => Err(Failure::not_applicable("inline data")),
        most => Ok(most),
    }
}

/// The bytes are taken while posting: changing them afterwards changes nothing.
fn inline_buffer_is_free(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let most = inline_room(sender)?;
    let header = receiver.header_bytes();
    let mut target = Memory::target(&receiver.domain, 8 * (header + most))?;
    let mut buffer = vec![0; most];
    for index in 0..8 {
        let start = index * (header + most);
        receiver.receive(index as u64, &[target.entry(start..start + header + most)])?;
    }
    for index in 0..8_u8 {
        buffer.fill(index);
        sender.queue_pair.post_send_inline(&sender.request(index.into(), SendOperation::Send, &[]), &buffer)?;
    }
    buffer.fill(0xee);
    for (index, received) in context.completions("receiver", &receiver.receive_queue, 8)?.iter().enumerate() {
        status("receiver", received, index as u64, CompletionStatus::Success)?;
        let start = index * (header + most);
        target.accept(start..start + header);
        target.expect(start + header, &vec![index as u8; most]);
    }
    target.verify("target memory")
}

/// An unsignalled request that succeeds makes no completion (IBTA 10.8.6).
fn unsignaled_is_silent(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let target = Memory::target(&receiver.domain, 256)?;
    for id in 0..8 {
        receiver.receive(id, &[target.whole()])?;
    }
    for id in 0..7 {
        send_with_flags(sender, id, SendOperation::Send, &[], SendFlags::empty())?;
    }
    context.completions("receiver", &receiver.receive_queue, 7)?;
    context.no_completion("sender of unsignalled requests", &sender.send_queue)?;
    sender.send(7, SendOperation::Send, &[])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    status("sender", &sent, 7, CompletionStatus::Success)?;
    context.no_completion("sender, after the signalled one", &sender.send_queue)
}

/// The completion of a signalled request frees the places of the unsignalled ones before it: many times the queue's
/// depth goes through.
fn unsignaled_makes_room(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let setup = Setup {
        limits: longhaul_verbs::QueuePairLimits { send_requests: 16, ..Default::default() },
        ..Setup::new(transport)
    };
    let pair = Pair::new(context, &setup)?;
    let [sender, receiver] = &pair.ends;
    let target = Memory::target(&receiver.domain, 64)?;
    for round in 0..12 {
        for id in 0..16 {
            receiver.receive(id, &[target.whole()])?;
        }
        for id in 0..16 {
            let flags = if id == 15 { SendFlags::SIGNALED } else { SendFlags::empty() };
            send_with_flags(sender, id, SendOperation::Send, &[], flags)
                .map_err(|failure| failure.context(format_args!("round {round}, request {id}")))?;
        }
        let sent = context.completion("sender", &sender.send_queue)?;
        status("sender", &sent, 15, CompletionStatus::Success)?;
        context.completions("receiver", &receiver.receive_queue, 16)?;
    }
    Ok(())
}

/// A queue pair made to signal all completes every request, whatever its flags.
fn signal_all(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let setup = Setup { signal_all: true, ..Setup::new(transport) };
    let pair = Pair::new(context, &setup)?;
    let [sender, receiver] = &pair.ends;
    let target = Memory::target(&receiver.domain, 64)?;
    for id in 0..6 {
        receiver.receive(id, &[target.whole()])?;
    }
    for id in 0..6 {
        let flags = if id % 2 == 0 { SendFlags::empty() } else { SendFlags::SIGNALED };
        send_with_flags(sender, id, SendOperation::Send, &[], flags)?;
    }
    for (id, sent) in (0..).zip(context.completions("sender", &sender.send_queue, 6)?) {
        status("sender", &sent, id, CompletionStatus::Success)?;
    }
    Ok(())
}

/// A batch is its requests, in order.
fn batch(context: &mut Context<'_>, transport: Transport) -> Outcome {
    const COUNT: usize = 24;
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let header = receiver.header_bytes();
    let slot = header + 100;
    let source = Memory::source(&sender.domain, &pattern(41, 100 * COUNT))?;
    let mut target = Memory::target(&receiver.domain, slot * COUNT)?;
    let places: Vec<_> = (0..COUNT).map(|index| [target.entry(index * slot..(index + 1) * slot)]).collect();
    let receives: Vec<_> = (0..).zip(&places).map(|(id, local)| ReceiveRequest { id, local }).collect();
    receiver.queue_pair.post_receive(&receives)?;
    let pieces: Vec<_> = (0..COUNT).map(|index| [source.entry(index * 100..(index + 1) * 100)]).collect();
    let sends: Vec<SendRequest<'_>> = (0..)
        .zip(&pieces)
        .map(|(id, local)| sender.request(id, SendOperation::SendWithImmediate(id as u32), local))
        .collect();
    sender.queue_pair.post_send(&sends)?;
    for (id, sent) in (0..).zip(context.completions("sender", &sender.send_queue, COUNT)?) {
        Form::SendWithImmediate.check_sent(&sent, sender, id)?;
    }
    for (id, received) in (0..).zip(context.completions("receiver", &receiver.receive_queue, COUNT)?) {
        Form::SendWithImmediate.check_received(&received, (sender, receiver), id, 100, id as u32)?;
        let start = id as usize * slot;
        target.accept(start..start + header);
        target.expect(start + header, &source.bytes(id as usize * 100..(id as usize + 1) * 100));
    }
    target.verify("target memory")
}

fn empty_batch(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    pair.ends[0].queue_pair.post_send(&[])?;
    pair.ends[1].queue_pair.post_receive(&[])?;
    context.no_completion("sender of nothing", &pair.ends[0].send_queue)
}

/// A burst is its single requests: each stride at its place, each with its immediate, one completion at the sender.
fn burst(context: &mut Context<'_>, transport: Transport, length: usize, stride: usize) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &pattern(51, length))?;
    let mut target = Memory::target(&receiver.domain, length + 100)?;
    let count = length.div_ceil(stride);
    let immediates: Vec<u32> = (0..count as u32).map(|index| 0xa000_0000 + index * 3).collect();
    empty_receives(receiver, count as u64)?;
    let remote = target.remote(50);
    sender.queue_pair.post_write_burst(&WriteBurst {
        id: 9,
        local: source.whole(),
        remote,
        stride: stride as u32,
        immediates: &immediates,
        flags: SendFlags::SIGNALED,
    })?;
    let received = context.completions("receiver", &receiver.receive_queue, count)?;
    for (index, received) in received.iter().enumerate() {
        let bytes = stride.min(length - index * stride);
        let ends = (sender, receiver);
        Form::WriteWithImmediate.check_received(received, ends, index as u64, bytes, immediates[index])?;
    }
    let sent = context.completion("sender", &sender.send_queue)?;
    Form::WriteWithImmediate.check_sent(&sent, sender, 9)?;
    context.no_completion("sender, after the burst's one completion", &sender.send_queue)?;
    target.expect(50, &source.bytes(0..length));
    context.settle("target memory", &target)
}

fn unsignaled_burst(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &pattern(52, 1000))?;
    let target = Memory::target(&receiver.domain, 1000)?;
    empty_receives(receiver, 4)?;
    sender.queue_pair.post_write_burst(&WriteBurst {
        id: 9,
        local: source.whole(),
        remote: target.remote(0),
        stride: 256,
        immediates: &[1, 2, 3, 4],
        flags: SendFlags::empty(),
    })?;
    context.completions("receiver", &receiver.receive_queue, 4)?;
    context.no_completion("sender of an unsignalled burst", &sender.send_queue)
}

fn inconsistent_burst(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &pattern(53, 1000))?;
    let target = Memory::target(&receiver.domain, 1000)?;
    empty_receives(receiver, 8)?;
    let good = WriteBurst {
        id: 9,
        local: source.whole(),
        remote: target.remote(0),
        stride: 256,
        immediates: &[1, 2, 3, 4],
        flags: SendFlags::SIGNALED,
    };
    let bad = [
        ("too few immediates", WriteBurst { immediates: &[1, 2, 3], ..good }),
        ("too many immediates", WriteBurst { immediates: &[1, 2, 3, 4, 5], ..good }),
        ("no stride", WriteBurst { stride: 0, ..good }),
        ("inline", WriteBurst { flags: SendFlags::SIGNALED | SendFlags::INLINE, ..good }),
    ];
    for (what, burst) in bad {
        let error = refusal(what, sender.queue_pair.post_write_burst(&burst))?;
        let fits = matches!(error.kind, PostErrorKind::InconsistentBurst | PostErrorKind::InlineFlag);
        ensure(fits, || format!("{what}: expected InconsistentBurst, got {error}"))?;
    }
    context.no_completion("sender of refused bursts", &sender.send_queue)?;
    context.no_completion("receiver of refused bursts", &receiver.receive_queue)?;
    target.verify("target memory")
}

fn burst_on_datagrams(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, Transport::UnreliableDatagram)?;
    let source = Memory::source(&pair.ends[0].domain, &pattern(54, 10))?;
    let burst = WriteBurst {
        id: 1,
        local: source.whole(),
        remote: source.remote(0),
        stride: 10,
        immediates: &[1],
        flags: SendFlags::SIGNALED,
    };
    refusal("a burst of WRITEs on UD", pair.ends[0].queue_pair.post_write_burst(&burst)).map(drop)
}

/// Where a connected queue pair sends to has been said: a destination in a request is a mistake. (libibverbs does not
/// see it.)
fn destination_when_connected(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let sender = &pair.ends[0];
    let handle = sender.domain.create_address_handle(&pair.path(0))?;
    let request = SendRequest::new(1, SendOperation::Write(longhaul_verbs::RemoteMemory::default()), &[]);
    let posted = sender.queue_pair.post_send(&[request.to(handle.destination(pair.ends[1].number(), 1))]);
    context.tolerate(refusal("a destination on a connected queue pair", posted).map(drop))
}

/// Two queue pairs of one device, connected through its own address.
fn loopback(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let setup = Setup::new(transport);
    let pairs = [Pair::unconnected(context, &setup)?, Pair::unconnected(context, &setup)?];
    let ends = [&pairs[0].ends[0], &pairs[1].ends[0]];
    let own: Gid = context.gid(0)?;
    for (end, pair) in pairs.iter().enumerate() {
        let queue_pair = &ends[end].queue_pair;
        queue_pair.modify(&pair.attributes(0, QueuePairState::Initialized))?;
        let mut attributes = pair.attributes(0, QueuePairState::ReadyToReceive);
        let udp_port = context.udp_port(0);
        attributes.path =
            attributes.path.map(|path| longhaul_verbs::PathAttributes { destination: own, udp_port, ..path });
        queue_pair.modify(&QueuePairAttributes {
            destination_queue_pair: Some(ends[1 - end].number()),
            receive_psn: Some(setup.first_psn[0]),
            ..attributes
        })?;
        queue_pair.modify(&pair.attributes(0, QueuePairState::ReadyToSend))?;
    }
    let size = 3 * context.mtu() + 1;
    let source = Memory::source(&ends[0].domain, &pattern(61, size))?;
    let mut target = Memory::target(&ends[1].domain, size)?;
    ends[1].receive(1, &[])?;
    let operation = SendOperation::WriteWithImmediate(target.remote(0), 77);
    ends[0].send(2, operation, &[source.whole()])?;
    let sent = context.completion("sender", &ends[0].send_queue)?;
    Form::WriteWithImmediate.check_sent(&sent, ends[0], 2)?;
    let received = context.completion("receiver", &ends[1].receive_queue)?;
    Form::WriteWithImmediate.check_received(&received, (ends[0], ends[1]), 1, size, 77)?;
    target.expect(0, &source.bytes(0..size));
    target.verify("target memory")?;
    equal("completions left", None, ends[0].receive_queue.poll_one()?)
}
