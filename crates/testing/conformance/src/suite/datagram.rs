//! Unreliable datagrams: who sent one, the header in front of it, the queue key, and what is dropped.

use std::net::IpAddr;

use longhaul_verbs::{
    CompletionFlags, CompletionStatus, PostErrorKind, QueuePairNumber, QueuePairState, SendOperation, SendRequest,
    Transport,
};

use super::Test;
use super::context::Context;
use super::failure::{Failure, Outcome, ensure, equal, refusal, status, status_among};
use super::memory::{Memory, pattern};
use super::pair::{Form, GRH_BYTES, Pair};
use super::transfer::{PACKET_SIZES, move_message, test};

const UD: Transport = Transport::UnreliableDatagram;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for form in Form::SENDS {
        for (case, size) in PACKET_SIZES {
            tests.push(test(UD, &format!("{}/{case}", form.name()), move |context| {
                let pair = Pair::of(context, UD)?;
                let size = size(context.mtu());
                move_message(context, &pair, 0, form, &[size], &[size])?;
                move_message(context, &pair, 1, form, &[size], &[size])
            }));
        }
    }
    tests.push(test(UD, "header/addresses", header_addresses));
    tests.push(test(UD, "header/split-over-entries", header_over_entries));
    tests.push(test(UD, "source/several-senders", several_senders));
    tests.push(test(UD, "destination/several-receivers", several_receivers));
    tests.push(test(UD, "destination/missing-is-refused", destination_missing));
    tests.push(test(UD, "destination/unknown-queue-pair", unknown_queue_pair));
    tests.push(test(UD, "send/longer-than-mtu", longer_than_mtu));
    tests.push(test(UD, "send/no-receive-posted", no_receive_posted));
    tests.push(test(UD, "send/receive-too-small", receive_too_small));
    tests.push(test(UD, "queue-key/wrong-is-dropped", wrong_queue_key));
    tests.push(test(UD, "queue-key/own-when-high-bit-set", controlled_queue_key));
    tests.push(test(UD, "queue-key/changed-by-modify", changed_queue_key));
    tests.push(test(UD, "write/refused", write_refused));
    tests
}

/// The addresses in the 40 bytes before the message: of an IPv6 packet its header, of an IPv4 packet 20 bytes of
/// no meaning and its header (IBTA annex A17, "RoCEv2").
fn header_addresses(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UD)?;
    let [sender, receiver] = &pair.ends;
    let target = Memory::target(&receiver.domain, GRH_BYTES + 10)?;
    receiver.receive(1, &[target.whole()])?;
    sender.send(2, SendOperation::Send, &[])?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    Form::Send.check_received(&received, (sender, receiver), 1, 0, 0)?;
    let has_header = received.flags.contains(CompletionFlags::GLOBAL_ROUTE_HEADER);
    equal("flag GLOBAL_ROUTE_HEADER", true, has_header)?;
    let header = target.bytes(0..GRH_BYTES);
    let (from, to) = (context.gid(0)?, context.gid(1)?);
    match (from.to_ip(), to.to_ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            equal("version in the header", 4, header[20] >> 4)?;
            equal("source address in the header", &from.octets()[..], &header[32..36])?;
            equal("destination address in the header", &to.octets()[..], &header[36..40])
        }
        _ => {
            equal("version in the header", 6, header[0] >> 4)?;
            equal("source address in the header", &from.0[..], &header[8..24])?;
            equal("destination address in the header", &to.0[..], &header[24..40])
        }
    }
}

/// The header takes the first 40 bytes of the receive, however they are cut.
fn header_over_entries(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UD)?;
    let [sender, receiver] = &pair.ends;
    let message = pattern(4, 100);
    let source = Memory::source(&sender.domain, &message)?;
    for cut in [1, 17, GRH_BYTES, GRH_BYTES + 3] {
        let mut target = Memory::target(&receiver.domain, GRH_BYTES + 120)?;
        let entries = [target.entry(0..cut), target.entry(cut..GRH_BYTES + 120)];
        receiver.receive(1, &entries)?;
        sender.send(2, SendOperation::Send, &[source.whole()])?;
        let received = context.completion("receiver", &receiver.receive_queue)?;
        Form::Send.check_received(&received, (sender, receiver), 1, 100, 0)?;
        target.accept(0..GRH_BYTES);
        target.expect(GRH_BYTES, &message);
        target.verify("target memory")?;
        status("sender", &context.completion("sender", &sender.send_queue)?, 2, CompletionStatus::Success)?;
    }
    Ok(())
}

/// A receiver learns from each completion who sent the message.
fn several_senders(context: &mut Context<'_>) -> Outcome {
    let main = Pair::of(context, UD)?;
    let others = [Pair::of(context, UD)?, Pair::of(context, UD)?, Pair::of(context, UD)?];
    let receiver = &main.ends[1];
    let target = Memory::target(&receiver.domain, GRH_BYTES)?;
    for id in 0..6 {
        receiver.receive(id, &[target.whole()])?;
    }
    for id in 0..6 {
        let sender = &others[id as usize % 3].ends[0];
        let handle = sender.domain.create_address_handle(&main.path(0))?;
        let destination = handle.destination(receiver.number(), main.setup.queue_key);
        let request = SendRequest::new(id, SendOperation::SendWithImmediate(id as u32), &[]).to(destination);
        sender.queue_pair.post_send(&[request])?;
        let received = context.completion("receiver", &receiver.receive_queue)?;
        Form::SendWithImmediate.check_received(&received, (sender, receiver), id, 0, id as u32)?;
    }
    Ok(())
}

/// One queue pair sends to many.
fn several_receivers(context: &mut Context<'_>) -> Outcome {
    let main = Pair::of(context, UD)?;
    let others = [Pair::of(context, UD)?, Pair::of(context, UD)?, Pair::of(context, UD)?];
    let sender = &main.ends[0];
    let handle = sender.domain.create_address_handle(&main.path(0))?;
    for (id, other) in (0..).zip(&others) {
        let receiver = &other.ends[1];
        let target = Memory::target(&receiver.domain, GRH_BYTES)?;
        receiver.receive(id, &[target.whole()])?;
        let destination = handle.destination(receiver.number(), main.setup.queue_key);
        let request = SendRequest::new(id, SendOperation::Send, &[]).to(destination);
        sender.queue_pair.post_send(&[request])?;
        let received = context.completion("receiver", &receiver.receive_queue)?;
        Form::Send.check_received(&received, (sender, receiver), id, 0, 0)?;
    }
    for other in &others {
        equal("completions left", None, other.ends[1].receive_queue.poll_one()?)?;
    }
    Ok(())
}

fn destination_missing(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UD)?;
    let sender = &pair.ends[0];
    let request = SendRequest::new(1, SendOperation::Send, &[]);
    let error = refusal("a datagram without destination", sender.queue_pair.post_send(&[request]))?;
    ensure(matches!(error.kind, PostErrorKind::Destination), || {
        format!("expected a refusal for lack of a destination, got {error}")
    })?;
    move_message(context, &pair, 0, Form::Send, &[5], &[5])
}

/// A datagram to nobody is sent all the same.
fn unknown_queue_pair(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UD)?;
    let [sender, receiver] = &pair.ends;
    let gone = Pair::of(context, UD)?;
    let number: QueuePairNumber = gone.ends[1].number();
    gone.ends[1].queue_pair.destroy()?;
    let target = Memory::target(&receiver.domain, GRH_BYTES + 5)?;
    receiver.receive(1, &[target.whole()])?;
    let handle = sender.domain.create_address_handle(&pair.path(0))?;
    let request = SendRequest::new(2, SendOperation::Send, &[]).to(handle.destination(number, pair.setup.queue_key));
    sender.queue_pair.post_send(&[request])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    status("sender", &sent, 2, CompletionStatus::Success)?;
    context.no_completion("receiver of nothing", &receiver.receive_queue)
}

/// A datagram is one packet. A longer one is refused when posted, fails with a length error, or (IBTA C10-93.1.1)
/// is not sent although it completes; nothing arrives in any case.
fn longer_than_mtu(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UD)?;
    let [sender, receiver] = &pair.ends;
    let mtu = context.port_attributes(0)?.active_mtu.byte_count() as usize;
    let source = Memory::source(&sender.domain, &pattern(6, mtu + 1))?;
    let target = Memory::target(&receiver.domain, GRH_BYTES + mtu + 1)?;
    receiver.receive(1, &[target.whole()])?;
    let local = [source.whole()];
    let request = sender.request(2, SendOperation::Send, &local);
    match sender.queue_pair.post_send(&[request]) {
        Err(error) => {
            let fits = matches!(error.kind, PostErrorKind::MessageTooLong { .. } | PostErrorKind::System(_));
            ensure(fits, || format!("expected MessageTooLong, got {error}"))?;
        }
        Ok(()) => {
            let sent = context.completion("sender", &sender.send_queue)?;
            let allowed = [CompletionStatus::LocalLengthError, CompletionStatus::Success];
            status_among("sender", &sent, 2, &allowed)?;
        }
    }
    context.no_completion("receiver of a datagram that is too long", &receiver.receive_queue)?;
    target.verify("target memory")
}

/// Without a receive a datagram is dropped, and nobody but the receiver's counters knows.
fn no_receive_posted(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UD)?;
    let [sender, receiver] = &pair.ends;
    sender.send(1, SendOperation::SendWithImmediate(1), &[])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    status("sender", &sent, 1, CompletionStatus::Success)?;
    context.no_completion("receiver without receive", &receiver.receive_queue)?;
    receiver.is_in(QueuePairState::ReadyToSend)?;
    let target = Memory::target(&receiver.domain, GRH_BYTES)?;
    receiver.receive(2, &[target.whole()])?;
    context.no_completion("receive posted after the drop", &receiver.receive_queue)?;
    sender.send(3, SendOperation::SendWithImmediate(3), &[])?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    Form::SendWithImmediate.check_received(&received, (sender, receiver), 2, 0, 3)
}

/// A receive without room for header and message is never overrun. Devices complete it with a length error or drop
/// the datagram.
fn receive_too_small(context: &mut Context<'_>) -> Outcome {
    for room in [GRH_BYTES + 99, GRH_BYTES, GRH_BYTES - 1, 0] {
        let pair = Pair::of(context, UD)?;
        let [sender, receiver] = &pair.ends;
        let source = Memory::source(&sender.domain, &pattern(8, 100))?;
        let mut target = Memory::target(&receiver.domain, GRH_BYTES + 200)?;
        receiver.receive(1, &[target.entry(0..room)])?;
        sender.send(2, SendOperation::Send, &[source.whole()])?;
        let sent = context.completion("sender", &sender.send_queue)?;
        status("sender", &sent, 2, CompletionStatus::Success)?;
        context.rest();
        if let Some(received) = receiver.receive_queue.poll_one()? {
            context.failed("receiver", &received, 1, &[CompletionStatus::LocalLengthError])?;
        }
        target.accept(0..room);
        target.verify("memory beyond the receive")?;
    }
    Ok(())
}

/// A datagram with another queue key than the receiver's is dropped (IBTA 9.6.1).
fn wrong_queue_key(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UD)?;
    let [sender, receiver] = &pair.ends;
    let target = Memory::target(&receiver.domain, GRH_BYTES + 10)?;
    let source = Memory::source(&sender.domain, &[0x55; 10])?;
    receiver.receive(1, &[target.whole()])?;
    let handle = sender.domain.create_address_handle(&pair.path(0))?;
    let local = [source.whole()];
    for wrong in [pair.setup.queue_key ^ 1, 0, 0x7fff_ffff] {
        let destination = handle.destination(receiver.number(), wrong);
        sender.queue_pair.post_send(&[SendRequest::new(2, SendOperation::Send, &local).to(destination)])?;
        let sent = context.completion("sender", &sender.send_queue)?;
        status("sender", &sent, 2, CompletionStatus::Success)?;
        context.no_completion("receiver of a wrong queue key", &receiver.receive_queue)?;
        target.verify("target memory")?;
    }
    sender.send(3, SendOperation::Send, &local)?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    Form::Send.check_received(&received, (sender, receiver), 1, 10, 0)
}

/// A request's queue key with its highest bit set stands for the sender's own (IBTA C10-15).
fn controlled_queue_key(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UD)?;
    let [sender, receiver] = &pair.ends;
    let target = Memory::target(&receiver.domain, GRH_BYTES)?;
    receiver.receive(1, &[target.whole()])?;
    let handle = sender.domain.create_address_handle(&pair.path(0))?;
    let destination = handle.destination(receiver.number(), 0x8000_0000);
    sender.queue_pair.post_send(&[SendRequest::new(2, SendOperation::Send, &[]).to(destination)])?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    Form::Send.check_received(&received, (sender, receiver), 1, 0, 0)
}

/// The queue key can be changed in RTS.
fn changed_queue_key(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UD)?;
    let [sender, receiver] = &pair.ends;
    let target = Memory::target(&receiver.domain, GRH_BYTES)?;
    receiver.receive(1, &[target.whole()])?;
    receiver.queue_pair.modify(&longhaul_verbs::QueuePairAttributes {
        queue_key: Some(0x0bad_cafe),
        ..longhaul_verbs::QueuePairAttributes::to_state(QueuePairState::ReadyToSend)
    })?;
    sender.send(2, SendOperation::Send, &[])?;
    context.no_completion("receiver of the old queue key", &receiver.receive_queue)?;
    let handle = sender.domain.create_address_handle(&pair.path(0))?;
    let destination = handle.destination(receiver.number(), 0x0bad_cafe);
    sender.queue_pair.post_send(&[SendRequest::new(3, SendOperation::Send, &[]).to(destination)])?;
    let received = context.completion("receiver", &receiver.receive_queue)?;
    Form::Send.check_received(&received, (sender, receiver), 1, 0, 0)
}

/// Datagrams are sent, never written (IBTA 9.8.3).
fn write_refused(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::of(context, UD)?;
    let [sender, receiver] = &pair.ends;
    let source = Memory::source(&sender.domain, &[1; 4])?;
    let target = Memory::target(&receiver.domain, 4)?;
    for form in [Form::Write, Form::WriteWithImmediate] {
        let local = [source.whole()];
        let request = sender.request(1, form.operation(target.remote(0), 0), &local);
        let error = refusal(form.name(), sender.queue_pair.post_send(&[request]))?;
        let fits = matches!(error.kind, PostErrorKind::WrongTransport { .. } | PostErrorKind::System(_));
        ensure(fits, || format!("{}: expected WrongTransport, got {error}", form.name()))?;
    }
    context.unchanged("target memory", &target)?;
    if sender.queue_pair.state() != QueuePairState::ReadyToSend {
        return Err(Failure::new("expected the queue pair to stay usable after a refused request"));
    }
    move_message(context, &pair, 0, Form::Send, &[4], &[4])
}
