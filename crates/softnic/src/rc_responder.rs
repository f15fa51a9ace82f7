//! Reliable connection, receiving half: in order, exactly once, acknowledged.
//!
//! Packets are carried out only in sequence. What came before is acknowledged again, what comes too early is answered
//! once by a sequence error (IBTA 9.7.5.1). Answers are not sent at once but when the device is polled next, so that
//! one acknowledgement serves all packets that arrived together.

use longhaul_verbs::{AsyncEventKind, CompletionStatus};
use longhaul_wire::packet::MAX_HEADER_BYTES;
use longhaul_wire::{Headers, NakCode, Opcode, Psn, Syndrome, aeth};

use crate::memory::Payload;
use crate::port::{Outgoing, TransmitSink};
use crate::queue_pair::QueuePair;
use crate::resources::Resources;
use crate::responder::{Executed, Refusal, execute};

/// "No end-to-end credits": the sender is held back by receiver-not-ready answers alone (IBTA 9.7.7.2).
const NO_CREDIT_LIMIT: u8 = 31;

const ACKNOWLEDGE: Syndrome = Syndrome::Ack { credits: NO_CREDIT_LIMIT };

/// A request packet from the peer.
pub(crate) fn handle_request(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    headers: &Headers,
    payload: Payload<'_>,
) {
    let responder = &mut queue_pair.responder;
    let ahead = headers.bth.psn.distance_from(responder.expected_psn);
    if ahead < 0 {
        shared.counters.duplicate_request += 1;
        // A negative answer that waits is about something later, and stays.
        if matches!(responder.answer, None | Some(Syndrome::Ack { .. })) {
            responder.answer = Some(ACKNOWLEDGE);
        }
        return;
    }
    if ahead > 0 {
        shared.counters.out_of_seq_request += 1;
        let is_highest = |highest| headers.bth.psn.distance_from(highest) > 0;
        if responder.dropped_early.is_none_or(is_highest) {
            responder.dropped_early = Some(headers.bth.psn);
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
    match execute(queue_pair, shared, headers, payload) {
        Ok(executed) => {
            let responder = &mut queue_pair.responder;
            responder.expected_psn = responder.expected_psn.next();
            if executed == Executed::MessageEnded {
                responder.message_sequence_number = (responder.message_sequence_number + 1) & 0xff_ffff;
            }
            let still_missing = |highest: &Psn| highest.distance_from(responder.expected_psn) >= 0;
            responder.dropped_early = responder.dropped_early.filter(still_missing);
            if has_unsent_gap && responder.dropped_early.is_some() {
                // The packet that was missing came with the next batch, but what was dropped behind it is still missing. The
                // sequence error that waits will name the packet that is expected now, and acknowledge this one.
                responder.is_negative_sent = true;
            } else if headers.bth.ack_request || responder.answer.is_some() {
                responder.answer = Some(ACKNOWLEDGE);
            }
        }
        Err(Refusal::NotReady) => {
            let timer = queue_pair.settings.min_receiver_not_ready_timer;
            queue_pair.responder.answer = Some(Syndrome::RnrNak { timer });
            queue_pair.responder.is_negative_sent = true;
            shared.counters.send_rnr_err += 1;
        }
        Err(Refusal::InvalidRequest) => {
            refuse(queue_pair, shared, NakCode::InvalidRequest, Some(AsyncEventKind::QueuePairRequestError));
            queue_pair.enter_error(shared);
        }
        Err(Refusal::RemoteAccess) => {
            shared.counters.resp_remote_access_errors += 1;
            refuse(queue_pair, shared, NakCode::RemoteAccessError, Some(AsyncEventKind::QueuePairAccessError));
            queue_pair.enter_error(shared);
        }
        Err(Refusal::LocalProtection) => {
            refuse(queue_pair, shared, NakCode::RemoteOperationalError, None);
            queue_pair.fail_receive(shared, CompletionStatus::LocalProtectionError);
        }
        Err(Refusal::LocalLength) => {
            refuse(queue_pair, shared, NakCode::InvalidRequest, None);
            queue_pair.fail_receive(shared, CompletionStatus::LocalLengthError);
        }
    }
}

fn refuse(queue_pair: &mut QueuePair, shared: &mut Resources, code: NakCode, event: Option<AsyncEventKind>) {
    queue_pair.responder.answer = Some(Syndrome::Nak(code));
    if let Some(kind) = event {
        shared.raise_for(kind, queue_pair.identity.number);
    }
}

/// Send the answer that waits, if there is one.
pub(crate) fn send_answer<S: TransmitSink + ?Sized>(queue_pair: &mut QueuePair, shared: &mut Resources, sink: &mut S) {
    let (Some(syndrome), Some(route)) = (queue_pair.responder.answer, queue_pair.route) else {
        return;
    };
    let responder = &mut queue_pair.responder;
    // A positive answer is about the last packet carried out, a negative one about the packet that is expected.
    let psn = match syndrome {
        Syndrome::Ack { .. } => responder.expected_psn.back(1),
        _ => responder.expected_psn,
    };
    let mut headers = Headers::new(Opcode::RcAcknowledge, queue_pair.settings.destination_queue_pair, psn);
    headers.aeth = Some(aeth::Header { syndrome, message_sequence_number: responder.message_sequence_number });
    send_headers(&headers, &[], &route, shared, sink);
    queue_pair.counters.sent_packets += 1;
    if matches!(syndrome, Syndrome::Ack { .. }) {
        shared.counters.sent_acks += 1;
    }
    responder.answer = None;
}

/// Send a packet of the device's own making.
pub(crate) fn send_headers<S: TransmitSink + ?Sized>(
    headers: &Headers,
    payload: &[u8],
    route: &crate::port::Route,
    shared: &mut Resources,
    sink: &mut S,
) {
    let mut buffer = [0; MAX_HEADER_BYTES];
    headers.emit(&mut buffer).expect("the buffer takes the longest headers");
    sink.transmit(route, &Outgoing::of_device(&buffer[..headers.byte_count()], payload));
    shared.counters.sent_pkts += 1;
}
