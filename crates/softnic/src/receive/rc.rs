//! Reliable connection, receiving half: in order, exactly once, acknowledged.
//!
//! Packets are carried out only in sequence. What came before is acknowledged again, what comes too early is answered
//! once by a sequence error (IBTA 9.7.5.1). Answers are not sent at once but when the device is polled next, so that
//! one acknowledgement serves all packets that arrived together. READs and atomics are in [`rc_responses`](super::rc_responses).

use longhaul_verbs::{AsyncEventKind, CompletionStatus, QueuePairState};
use longhaul_wire::{Headers, NakCode, Opcode, Operation, Psn, Syndrome, aeth};

use super::rc_responses::{self, refuse};
use crate::memory::Payload;
use crate::port::{OutgoingPayload, TransmitSink};
use crate::queue_pair::{ACKNOWLEDGE, QueuePair};
use crate::receive::message::{Executed, Refusal, execute};
use crate::resources::Resources;
use crate::send::packet::emit;

/// A request packet from the peer.
pub(crate) fn handle_request(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    headers: &Headers,
    payload: Payload<'_>,
) {
    let psn = headers.bth.psn;
    let ahead = psn.distance_from(queue_pair.responder.expected_psn);
    let is_question =
        matches!(headers.bth.opcode.operation(), Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd);
    let responder = &mut queue_pair.reliable.responder;
    if ahead < 0 {
        shared.counters.duplicate_request += 1;
        if is_question {
            rc_responses::repeat(queue_pair, shared, headers);
        } else if matches!(responder.answer, None | Some(Syndrome::Ack { .. })) {
            // A negative answer that waits is about something later, and stays.
            responder.answer = Some(ACKNOWLEDGE);
        }
        return;
    }
    if ahead > 0 {
        shared.counters.out_of_seq_request += 1;
        let is_highest = |highest| psn.distance_from(highest) > 0;
        if responder.dropped_early.is_none_or(is_highest) {
            responder.dropped_early = Some(psn);
        }
        if !responder.is_negative_sent {
            responder.is_negative_sent = true;
            responder.answer = Some(Syndrome::Nak(NakCode::PsnSequenceError));
            shared.counters.send_seq_err += 1;
        }
        return;
    }
    responder.is_negative_sent = false;
    let has_unsent_gap = matches!(responder.answer, Some(Syndrome::Nak(NakCode::PsnSequenceError)));
    let done = if is_question {
        rc_responses::accept(queue_pair, shared, headers, payload)
    } else {
        execute(queue_pair, shared, headers, payload).map(|executed| {
            queue_pair.responder.expected_psn = psn.next();
            if executed == Executed::MessageEnded {
                queue_pair.reliable.responder.count_message();
            }
        })
    };
    match done {
        // Its completion found no room, and the connection is over: the peer must not take it for done.
        Ok(()) if queue_pair.state == QueuePairState::Error => {
            queue_pair.reliable.responder.answer_psn = Some(psn);
            refuse(queue_pair, shared, NakCode::RemoteOperationalError, None);
        }
        Ok(()) => {
            let expected_psn = queue_pair.responder.expected_psn;
            let responder = &mut queue_pair.reliable.responder;
            let still_missing = |highest: &Psn| highest.distance_from(expected_psn) >= 0;
            responder.dropped_early = responder.dropped_early.filter(still_missing);
            if has_unsent_gap && responder.dropped_early.is_some() {
                // The packet that was missing came with the next batch, but what was dropped behind it is still missing. The
                // sequence error that waits will name the packet that is expected now, and acknowledge this one.
                responder.is_negative_sent = true;
            } else if is_question {
                // Its answer acknowledges it, and everything before.
                responder.answer = None;
            } else if headers.bth.ack_request || responder.answer.is_some() {
                responder.answer = Some(ACKNOWLEDGE);
            }
        }
        Err(refusal) => handle_refusal(queue_pair, shared, refusal),
    }
}

fn handle_refusal(queue_pair: &mut QueuePair, shared: &mut Resources, refusal: Refusal) {
    match refusal {
        Refusal::NotReady => {
            let timer = queue_pair.settings.min_receiver_not_ready_timer;
            queue_pair.reliable.responder.answer = Some(Syndrome::RnrNak { timer });
            queue_pair.reliable.responder.is_negative_sent = true;
            shared.counters.send_rnr_err += 1;
        }
        Refusal::InvalidRequest => {
            refuse(queue_pair, shared, NakCode::InvalidRequest, Some(AsyncEventKind::QueuePairRequestError));
            queue_pair.enter_error(shared);
        }
        Refusal::RemoteAccess => {
            shared.counters.resp_remote_access_errors += 1;
            refuse(queue_pair, shared, NakCode::RemoteAccessError, Some(AsyncEventKind::QueuePairAccessError));
            queue_pair.enter_error(shared);
        }
        Refusal::Invalidation => {
            refuse(queue_pair, shared, NakCode::RemoteAccessError, None);
            queue_pair.fail_receive(shared, CompletionStatus::RemoteInvalidRequestError);
        }
        Refusal::LocalProtection => {
            refuse(queue_pair, shared, NakCode::RemoteOperationalError, None);
            queue_pair.fail_receive(shared, CompletionStatus::LocalProtectionError);
        }
        Refusal::LocalLength => {
            refuse(queue_pair, shared, NakCode::InvalidRequest, None);
            queue_pair.fail_receive(shared, CompletionStatus::LocalLengthError);
        }
    }
}

/// Send the acknowledgement that waits, if there is one.
pub(crate) fn send_answer<S: TransmitSink + ?Sized>(queue_pair: &mut QueuePair, shared: &mut Resources, sink: &mut S) {
    let route = queue_pair.route(&shared.config);
    let (Some(syndrome), Some(route)) = (queue_pair.reliable.responder.answer, route) else {
        return;
    };
    let expected_psn = queue_pair.responder.expected_psn;
    let responder = &mut queue_pair.reliable.responder;
    responder.answer = None;
    // A positive answer is about the last packet carried out, a negative one about the packet that is expected.
    let psn = responder.answer_psn.take().unwrap_or(match syndrome {
        Syndrome::Ack { .. } => expected_psn.back(1),
        _ => expected_psn,
    });
    let message_sequence_number = responder.message_sequence_number;
    let mut headers = Headers::new(Opcode::RcAcknowledge, queue_pair.settings.destination_queue_pair, psn);
    headers.aeth = Some(aeth::Header { syndrome, message_sequence_number });
    emit(&route, &mut headers, OutgoingPayload::Device(&[]), shared, sink);
    queue_pair.traffic.counters.sent_packets += 1;
    if matches!(syndrome, Syndrome::Ack { .. }) {
        shared.counters.sent_acks += 1;
    }
}
