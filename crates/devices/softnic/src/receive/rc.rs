//! Reliable connection, receiving half: in order, exactly once, acknowledged.
//!
//! Packets are carried out only in sequence. What came before is acknowledged again, what comes too early is answered
//! once by a sequence error (IBTA 9.7.5.1). Answers are not sent at once but when the device is polled next, so that
//! one acknowledgement serves all packets that arrived together. READs and atomics are in [`rc_responses`](super::rc_responses).

use longhaul_verbs::{AsyncEventKind, CompletionStatus, QueuePairState};
use longhaul_wire::{Headers, NakCode, Opcode, Operation, Syndrome, aeth};

use super::rc_responses::{self, refuse};
use crate::memory::Payload;
use crate::port::{OutgoingPayload, TransmitSink};
use crate::queue_pair::QueuePair;
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
    let ahead = psn.distance_from(queue_pair.responder().expected_psn());
    let is_question =
        matches!(headers.bth.opcode.operation(), Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd);
    let receiver = queue_pair.receiver_mut();
    if ahead < 0 {
        shared.counters.duplicate_request += 1;
        if is_question {
            rc_responses::repeat(queue_pair, shared, headers);
        } else {
            receiver.acknowledge_again();
        }
        return;
    }
    if ahead > 0 {
        shared.counters.out_of_seq_request += 1;
        if receiver.drop_early(psn) {
            shared.counters.send_seq_err += 1;
        }
        return;
    }
    let has_unsent_gap = receiver.begin_expected();
    let done = if is_question {
        rc_responses::accept(queue_pair, shared, headers, payload)
    } else {
        execute(queue_pair, shared, headers, payload).map(|executed| {
            queue_pair.responder_mut().expect(psn.next());
            if executed == Executed::MessageEnded {
                queue_pair.receiver_mut().count_message();
            }
        })
    };
    match done {
        // Its completion found no room, and the connection is over: the peer must not take it for done.
        Ok(()) if queue_pair.state() == QueuePairState::Error => {
            queue_pair.receiver_mut().answer_about(psn);
            refuse(queue_pair, shared, NakCode::RemoteOperationalError, None);
        }
        Ok(()) => {
            let next = queue_pair.responder().expected_psn();
            queue_pair.receiver_mut().finish_expected(next, has_unsent_gap, is_question, headers.bth.ack_request);
        }
        Err(refusal) => handle_refusal(queue_pair, shared, refusal),
    }
}

fn handle_refusal(queue_pair: &mut QueuePair, shared: &mut Resources, refusal: Refusal) {
    match refusal {
        Refusal::NotReady => {
            let timer = queue_pair.settings().min_receiver_not_ready_timer;
            queue_pair.receiver_mut().answer_not_ready(timer);
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
    let Some(route) = queue_pair.route(&shared.config) else { return };
    let expected_psn = queue_pair.responder().expected_psn();
    let receiver = queue_pair.receiver_mut();
    let Some((syndrome, psn)) = receiver.take_answer(expected_psn) else { return };
    let message_sequence_number = receiver.message_sequence_number();
    let mut headers = Headers::new(Opcode::RcAcknowledge, queue_pair.settings().destination_queue_pair, psn);
    headers.aeth = Some(aeth::Header { syndrome, message_sequence_number });
    emit(&route, &mut headers, OutgoingPayload::Device(&[]), shared, sink);
    queue_pair.counters_mut().sent_packets += 1;
    if matches!(syndrome, Syndrome::Ack { .. }) {
        shared.counters.sent_acks += 1;
    }
}
