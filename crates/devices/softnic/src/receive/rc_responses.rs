//! Reliable connection, receiving half: READs and atomics, and their answers.
//!
//! ```text
//!   request in sequence ─▶ check (and, an atomic: carry out) ─▶ responses: [ answered | answered | being answered | to be answered ]
//!   repeated request    ─▶ its response, again to be answered ─▶    oldest                                        newest
//! ```
//!
//! The responder remembers as many of the latest READs and atomics as `max_destination_read_atomic` says (IBTA 9.7.7, responder
//! resources); the requester never has more outstanding. A READ is read from memory when its answer is sent, also when it is sent
//! again. An atomic is carried out once, when it arrives; its answer is kept, and a copy of the request gets the same answer.

use longhaul_time::Instant;
use longhaul_verbs::{Access, AsyncEventKind};
use longhaul_wire::{Headers, NakCode, Opcode, Operation, aeth, atomic_ack};

use crate::memory::{AccessDenied, Payload};
use crate::port::{OutgoingPayload, Route, TransmitSink};
use crate::queue_pair::{ACKNOWLEDGE, ATOMIC_BYTES, Answer, QueuePair, Response, Turn};
use crate::receive::message::{Refusal, check_remote_range};
use crate::resources::Resources;
use crate::send::packet::emit;

/// A READ or an atomic in sequence. When it is refused, nothing has changed.
pub(crate) fn accept(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    headers: &Headers,
    payload: Payload<'_>,
) -> Result<(), Refusal> {
    let most = usize::from(queue_pair.settings().max_destination_read_atomic);
    if queue_pair.receiver().is_full(most) || queue_pair.arriving().is_in_message() || payload.len() > 0 {
        return Err(Refusal::InvalidRequest);
    }
    let (packet_count, answer) = match headers.bth.opcode.operation() {
        Operation::ReadRequest => accept_read(queue_pair, shared, headers)?,
        _ => (1, accept_atomic(queue_pair, shared, headers)?),
    };
    let psn = headers.bth.psn;
    queue_pair.responder_mut().expect(psn.add(packet_count));
    queue_pair.receiver_mut().keep(psn, packet_count, answer, most);
    Ok(())
}

fn accept_read(queue_pair: &QueuePair, shared: &mut Resources, headers: &Headers) -> Result<(u32, Answer), Refusal> {
    let reth = check_remote_range(queue_pair, shared, headers, Access::REMOTE_READ)?;
    let (key, address, length) = (reth.remote_key, reth.virtual_address, reth.dma_length);
    shared.counters.rx_read_requests += 1;
    Ok((length.div_ceil(queue_pair.mtu_bytes()).max(1), Answer::Read { address, key, length }))
}

fn accept_atomic(queue_pair: &QueuePair, shared: &mut Resources, headers: &Headers) -> Result<Answer, Refusal> {
    let atomic = headers.atomic.ok_or(Refusal::InvalidRequest)?;
    if !atomic.virtual_address.is_multiple_of(ATOMIC_BYTES) {
        return Err(Refusal::InvalidRequest);
    }
    if !queue_pair.settings().access.contains(Access::REMOTE_ATOMIC) {
        return Err(Refusal::RemoteAccess);
    }
    let original = carry_out(queue_pair, shared, headers).map_err(|_| Refusal::RemoteAccess)?;
    shared.counters.rx_atomic_requests += 1;
    Ok(Answer::Atomic { original })
}

/// Change the word, and say what it was.
fn carry_out(queue_pair: &QueuePair, shared: &Resources, headers: &Headers) -> Result<u64, AccessDenied> {
    let atomic = headers.atomic.ok_or(AccessDenied)?;
    let is_swap = headers.bth.opcode.operation() == Operation::CompareSwap;
    let update = |old: u64| match is_swap {
        true if old == atomic.compare => atomic.swap_or_add,
        true => old,
        false => old.wrapping_add(atomic.swap_or_add),
    };
    let who = queue_pair.identity().accessor();
    shared.memory.remote_atomic(who, atomic.remote_key, atomic.virtual_address, update)
}

/// A READ or an atomic that came before. One that is not remembered any more is dropped: the requester has its answer (IBTA 9.7.5.1.2).
pub(crate) fn repeat(queue_pair: &mut QueuePair, shared: &Resources, headers: &Headers) {
    let mtu_bytes = queue_pair.mtu_bytes();
    #[cfg(not(feature = "mutations"))]
    let _ = shared;
    #[cfg(feature = "mutations")]
    if shared.config.mutation == Some(crate::config::Mutation::AtomicTwice)
        && headers.atomic.is_some()
        && let Ok(original) = carry_out(queue_pair, shared, headers)
    {
        queue_pair.receiver_mut().replace_original(headers.bth.psn, original);
    }
    queue_pair.receiver_mut().repeat(headers.bth.psn, |answer, index| match (answer, headers.reth) {
        (Answer::Atomic { .. }, None) => Some(1),
        (Answer::Read { address, key, length }, Some(reth)) => {
            // What is asked for again is a part of what was asked for, or it is not that request.
            let offset = u64::from(index) * u64::from(mtu_bytes);
            let is_part = reth.remote_key == key
                && reth.virtual_address == address.wrapping_add(offset)
                && offset + u64::from(reth.dma_length) <= u64::from(length);
            is_part.then(|| index + reth.dma_length.div_ceil(mtu_bytes).max(1))
        }
        _ => None,
    });
}

/// Send up to `budget` packets of answers.
pub(crate) fn send_responses<S: TransmitSink + ?Sized>(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    sink: &mut S,
    now: Instant,
    budget: u32,
) -> Turn {
    let Some(route) = queue_pair.route(&shared.config) else { return Turn::Idle };
    for _ in 0..budget {
        if !sink.has_room() {
            return Turn::More;
        }
        if !queue_pair.has_room() {
            return Turn::Idle;
        }
        let Some((place, response)) = queue_pair.receiver().next_unsent() else {
            return Turn::Idle;
        };
        match send_response(queue_pair, &response, &route, shared, sink) {
            Ok(wire_bytes) => {
                queue_pair.receiver_mut().note_sent(place);
                queue_pair.counters_mut().sent_packets += 1;
                queue_pair.note_answered(now, wire_bytes);
            }
            // A copy of a request that the network has kept, most likely: the program has its answer and has gone on. To refuse it
            // would end a connection that is well.
            Err(AccessDenied) if response.is_answered() => queue_pair.receiver_mut().skip(place),
            Err(AccessDenied) => {
                // The key was revoked since the request was accepted.
                shared.counters.resp_remote_access_errors += 1;
                let receiver = queue_pair.receiver_mut();
                receiver.clear_responses();
                receiver.answer_about(response.next().1);
                refuse(queue_pair, shared, NakCode::RemoteAccessError, Some(AsyncEventKind::QueuePairAccessError));
                queue_pair.enter_error(shared);
                return Turn::Idle;
            }
        }
    }
    Turn::More
}

/// Send the next packet of an answer.
fn send_response<S: TransmitSink + ?Sized>(
    queue_pair: &QueuePair,
    response: &Response,
    route: &Route,
    shared: &mut Resources,
    sink: &mut S,
) -> Result<u64, AccessDenied> {
    let aeth = aeth::Header { syndrome: ACKNOWLEDGE, message_sequence_number: response.message_sequence_number() };
    let (index, psn) = response.next();
    let to = queue_pair.settings().destination_queue_pair;
    let (address, key, length) = match response.answer() {
        Answer::Atomic { original } => {
            let mut headers = Headers::new(Opcode::RcAtomicAcknowledge, to, psn);
            headers.aeth = Some(aeth);
            headers.atomic_ack = Some(atomic_ack::Header { original });
            return Ok(emit(route, &mut headers, OutgoingPayload::Device(&[]), shared, sink));
        }
        Answer::Read { address, key, length } => (address, key, length),
    };
    let mut headers = Headers::new(Opcode::read_response(response.next_position()), to, psn);
    if headers.bth.opcode.has_aeth() {
        headers.aeth = Some(aeth);
    }
    let mtu_bytes = queue_pair.mtu_bytes();
    let offset = index * mtu_bytes;
    let bytes = (length - offset).min(mtu_bytes);
    if bytes == 0 {
        return Ok(emit(route, &mut headers, OutgoingPayload::Device(&[]), shared, sink));
    }
    let who = queue_pair.identity().accessor();
    let address = address.wrapping_add(offset.into());
    let gathered = shared.memory.remote_read(who, key, address, bytes.into())?;
    #[cfg(feature = "mutations")]
    if shared.config.mutation == Some(crate::config::Mutation::ReadFromWrongEpoch) {
        let mut now = vec![0; bytes as usize];
        gathered.copy_to(&mut now);
        let before = shared.stale_reads.insert((key, address, bytes), now.clone()).unwrap_or(now);
        return Ok(emit(route, &mut headers, OutgoingPayload::Device(&before), shared, sink));
    }
    Ok(emit(route, &mut headers, OutgoingPayload::Registered(&gathered), shared, sink))
}

/// Answer a request with an error, and tell the program if it is to know.
pub(crate) fn refuse(queue_pair: &mut QueuePair, shared: &mut Resources, code: NakCode, event: Option<AsyncEventKind>) {
    queue_pair.receiver_mut().refuse(code);
    if let Some(kind) = event {
        shared.raise_for(kind, queue_pair.identity().number);
    }
}
