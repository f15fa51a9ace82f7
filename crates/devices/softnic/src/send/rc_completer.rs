//! Reliable connection, sending half: what comes back.
//!
//! Acknowledgements complete SENDs and WRITEs. A READ or an atomic is complete when its answer is in place, and nothing behind it
//! completes before: an acknowledgement, or an answer, of something later says that an answer was lost, and it is asked for again
//! (IBTA 9.7.5.2.8, implied NAK).

use longhaul_time::Instant;
use longhaul_verbs::{CompletionStatus, QueuePairState};
use longhaul_wire::aeth::rnr_timer_duration;
use longhaul_wire::{Headers, NakCode, Operation, Psn, Syndrome};

use crate::memory::{AccessDenied, Payload};
use crate::pace::charge_bytes;
use crate::queue_pair::{QueuePair, SendKind, Sending};
use crate::resources::Resources;
use crate::send::rc::{go_back, retry};

/// A retry count of 7 for a receiver that is not ready means for ever (IBTA 9.9.2.4.1).
const RETRY_FOR_EVER: u8 = 7;

/// An acknowledgement has arrived, positive or negative.
pub(crate) fn handle_acknowledge(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    psn: Psn,
    syndrome: Syndrome,
    now: Instant,
) {
    // Only numbers that were sent and not acknowledged yet mean anything. (A repeated acknowledgement is the common case.)
    queue_pair.share_mut().note_heard(now);
    let sender = queue_pair.sender();
    // A sequence error about the packet that is to be sent next is the answer to somebody's who is not the peer, or long out of
    // date, but it may have taken the place of the acknowledgement of all that was sent.
    let is_about_next = psn == sender.sent_end() && matches!(syndrome, Syndrome::Nak(NakCode::PsnSequenceError));
    let is_unsent = psn.distance_from(sender.sent_end()) >= 0 && !is_about_next;
    if psn.distance_from(sender.oldest_unacknowledged()) < 0 || is_unsent {
        return;
    }
    // A negative answer acknowledges everything before the packet that it is about (IBTA 9.7.5.2.8).
    let acknowledged_end = match syndrome {
        Syndrome::Ack { .. } => psn.next(),
        _ => psn,
    };
    let is_answer_lost = !acknowledge(queue_pair, shared, acknowledged_end, now);
    if !queue_pair.state().takes_sends() || queue_pair.state() == QueuePairState::Error {
        return;
    }
    if is_answer_lost {
        handle_lost_answer(queue_pair, shared, now);
        return;
    }
    if is_about_next {
        return;
    }
    match syndrome {
        Syndrome::Ack { .. } => {}
        // While the receiver is given its time nothing is sent, so whatever it says about gaps is old.
        Syndrome::RnrNak { .. } | Syndrome::Nak(NakCode::PsnSequenceError)
            if queue_pair.sender().is_waiting_for_receiver() => {}
        Syndrome::RnrNak { timer } => {
            shared.counters.rcvd_rnr_err += 1;
            let allowed = queue_pair.settings().receiver_not_ready_retry;
            #[cfg(feature = "mutations")]
            let allowed = match crate::send::rc::gives_up_at_once(shared) {
                true if allowed != RETRY_FOR_EVER => 0,
                _ => allowed,
            };
            let allowed = (allowed != RETRY_FOR_EVER).then_some(allowed);
            if !queue_pair.sender_mut().wait_for_receiver(now + rnr_timer_duration(timer), allowed) {
                shared.counters.retry_rnr_exceeded_err += 1;
                queue_pair.fail_send(shared, CompletionStatus::ReceiverNotReadyRetryExceededError);
                return;
            }
            let (Sending { pacing, .. }, sender) = queue_pair.sending_reliably();
            if let Some(pacing) = pacing {
                pacing.note_went_back(now, 0, sender.sent_end());
            }
            go_back(queue_pair);
        }
        Syndrome::Nak(NakCode::PsnSequenceError) => {
            shared.counters.rcvd_seq_err += 1;
            handle_loss(queue_pair, shared, psn, now);
        }
        Syndrome::Nak(NakCode::InvalidRequest) => {
            queue_pair.fail_send(shared, CompletionStatus::RemoteInvalidRequestError);
        }
        Syndrome::Nak(NakCode::RemoteAccessError) => {
            queue_pair.fail_send(shared, CompletionStatus::RemoteAccessError);
        }
        Syndrome::Nak(NakCode::RemoteOperationalError) => {
            queue_pair.fail_send(shared, CompletionStatus::RemoteOperationError);
        }
        _ => queue_pair.fail_send(shared, CompletionStatus::BadResponseError),
    }
}

/// A packet of a READ's answer, or an atomic's, has arrived.
pub(crate) fn handle_response(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    headers: &Headers,
    payload: Payload<'_>,
    now: Instant,
) {
    queue_pair.share_mut().note_heard(now);
    let psn = headers.bth.psn;
    let sender = queue_pair.sender();
    if psn.distance_from(sender.oldest_unacknowledged()) < 0 || psn.distance_from(sender.sent_end()) >= 0 {
        return;
    }
    // An answer acknowledges everything before it.
    let is_answer_lost = !acknowledge(queue_pair, shared, psn, now);
    if !queue_pair.state().takes_sends() || queue_pair.state() == QueuePairState::Error {
        return;
    }
    if is_answer_lost {
        handle_lost_answer(queue_pair, shared, now);
        return;
    }
    match place_response(queue_pair, shared, headers, payload) {
        Ok(()) => advance(queue_pair, shared, psn.next(), now),
        Err(status) => queue_pair.fail_send(shared, status),
    }
}

/// Put an answer where its request, the first in the queue, wants it.
fn place_response(
    queue_pair: &QueuePair,
    shared: &Resources,
    headers: &Headers,
    payload: Payload<'_>,
) -> Result<(), CompletionStatus> {
    let Some(work) = queue_pair.send_queue().front().filter(|work| work.is_started) else {
        return Err(CompletionStatus::BadResponseError);
    };
    let domain = queue_pair.identity().domain;
    let denied = |AccessDenied| CompletionStatus::LocalProtectionError;
    match (&work.kind, headers.bth.opcode.operation()) {
        (SendKind::Read(_), Operation::ReadResponse) => {
            let mtu_bytes = queue_pair.mtu_bytes();
            let segment = work.segment(headers.bth.psn.distance_from(work.first_psn) as u32, mtu_bytes);
            if payload.len() != segment.length {
                return Err(CompletionStatus::BadResponseError);
            }
            shared.memory.scatter(domain, work.entries.list(), segment.offset.into(), payload).map_err(denied)
        }
        (SendKind::CompareAndSwap { .. } | SendKind::FetchAndAdd { .. }, Operation::AtomicAcknowledge) => {
            let answer = headers.atomic_ack.ok_or(CompletionStatus::BadResponseError)?;
            let bytes = answer.original.to_ne_bytes();
            shared.memory.scatter(domain, work.entries.list(), 0, Payload::Carried(&bytes)).map_err(denied)
        }
        _ => Err(CompletionStatus::BadResponseError),
    }
}

/// The answer that is due next was lost: something later came.
fn handle_lost_answer(queue_pair: &mut QueuePair, shared: &mut Resources, now: Instant) {
    let sender = queue_pair.sender();
    let missing = sender.oldest_unacknowledged();
    if !sender.is_waiting_for_receiver() && !sender.went_back_to(missing) {
        shared.counters.implied_nak_seq_err += 1;
        handle_loss(queue_pair, shared, missing, now);
    }
}

/// A packet, or the answer to one, was lost. Acted on once.
fn handle_loss(queue_pair: &mut QueuePair, shared: &mut Resources, psn: Psn, now: Instant) {
    if queue_pair.sender().went_back_to(psn) {
        return;
    }
    let mtu_bytes = queue_pair.mtu_bytes();
    let (Sending { pacing, .. }, sender) = queue_pair.sending_reliably();
    let is_controlled = pacing.as_ref().is_some_and(|pacing| pacing.heeds_losses());
    if let Some(pacing) = pacing {
        // The peer has discarded all that was sent after it.
        pacing.note_went_back(now, 1, sender.sent_end());
    }
    match is_controlled {
        true => queue_pair.share_mut().note_controlled_loss(charge_bytes(mtu_bytes)),
        false => queue_pair.share_mut().note_loss(),
    }
    retry(queue_pair, shared);
    queue_pair.sender_mut().note_went_back_to(psn);
}

/// Everything before `end` has arrived at the peer. `false` when it has answered something there, and the answer is not here:
/// then only what came before that is done.
fn acknowledge(queue_pair: &mut QueuePair, shared: &mut Resources, end: Psn, now: Instant) -> bool {
    if !queue_pair.sender().has_questions() {
        advance(queue_pair, shared, end, now);
        return true;
    }
    let oldest = queue_pair.sender().oldest_unacknowledged();
    let is_before_end = |psn: Psn| psn.distance_from(end) < 0;
    let mut started =
        queue_pair.send_queue().iter().take_while(|work| work.is_started && is_before_end(work.first_psn));
    let unanswered = started.find(|work| work.is_answered());
    let unanswered =
        unanswered.map(|work| if work.first_psn.distance_from(oldest) > 0 { work.first_psn } else { oldest });
    match unanswered {
        Some(psn) if is_before_end(psn) => {
            advance(queue_pair, shared, psn, now);
            false
        }
        _ => {
            advance(queue_pair, shared, end, now);
            true
        }
    }
}

/// Everything before `end` is done: complete it and move the cursor out of it.
fn advance(queue_pair: &mut QueuePair, shared: &mut Resources, end: Psn, now: Instant) {
    let mtu_bytes = queue_pair.mtu_bytes();
    let Some(packets) = queue_pair.sender_mut().advance(end) else { return };
    if let Some(pacing) = queue_pair.pacing_mut() {
        pacing.note_acknowledged(now, end);
    }
    queue_pair.share_mut().note_acknowledged(u64::from(packets) * charge_bytes(mtu_bytes));

    complete_before(queue_pair, shared, end);
    if queue_pair.state() == QueuePairState::Error {
        return;
    }
    let timeout = queue_pair.settings().timeout;
    let (Sending { cursor, queue, .. }, sender) = queue_pair.sending_reliably();
    // The cursor may have been in what has arrived of the request at the front.
    if let Some(work) = queue.front().filter(|work| work.is_started) {
        cursor.skip_to(sender.acknowledged_packets(work.first_psn));
    }
    sender.settle_timer(now, timeout);
    match sender.stall() {
        Some(status) if cursor.work() == 0 => queue_pair.fail_send(shared, status),
        _ => queue_pair.report_drained(shared),
    }
}

/// Complete the requests whose packets are all before `end`.
fn complete_before(queue_pair: &mut QueuePair, shared: &mut Resources, end: Psn) {
    let mtu_bytes = queue_pair.mtu_bytes();
    #[cfg(feature = "mutations")]
    if shared.config.mutation == Some(crate::config::Mutation::CompletionOutOfOrder)
        && let Some([first, second]) = queue_pair.sending().queue.make_contiguous().first_chunk_mut()
        && second.is_started
        && second.last_psn(mtu_bytes).distance_from(end) < 0
        && first.completion_operation() == second.completion_operation()
        && (first.flags & second.flags).contains(longhaul_verbs::SendFlags::SIGNALED)
    {
        std::mem::swap(&mut first.id, &mut second.id);
    }
    while let Some(work) = queue_pair.send_queue().front() {
        if !work.is_started || work.last_psn(mtu_bytes).distance_from(end) >= 0 {
            break;
        }
        queue_pair.sending().cursor.leave_front();
        queue_pair.complete_send(shared);
    }
}
