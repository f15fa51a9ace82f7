//! Reliable connection, sending half: go-back-N.
//!
//! ```text
//!   send queue:   [ acknowledged in part | sent | being sent | posted | posted ]
//!                        ▲                          ▲
//!                 oldest_unacknowledged        cursor (request, packet) ──▶ sent_end
//! ```
//!
//! Packets leave at the cursor. An acknowledgement moves `oldest_unacknowledged` and completes requests in order. A
//! sequence error, a receiver that is not ready, or silence move the cursor back (IBTA 9.7.5, 9.9.2.3); whatever has to
//! be sent again is read from the program's memory again.

use std::time::Duration;

use longhaul_time::Instant;
use longhaul_verbs::{CompletionStatus, QueuePairState};
use longhaul_wire::aeth::rnr_timer_duration;
use longhaul_wire::{NakCode, Psn, Syndrome, Transport};

use crate::memory::AccessDenied;
use crate::pacing::LossSignal;
use crate::peer::{Allowance, charge_bytes, message_charge_bytes};
use crate::port::TransmitSink;
use crate::queue_pair::{QueuePair, Turn};
use crate::requester::{Envelope, send_packet};
use crate::resources::Resources;

/// A retry count of 7 for a receiver that is not ready means for ever (IBTA 9.9.2.4.1).
const RETRY_FOR_EVER: u8 = 7;

/// What go-back-N needs to know beyond the cursor.
pub(crate) struct ReliableRequester {
    oldest_unacknowledged: Psn,
    /// What all requests that were ever started took of the window towards the peer.
    pub(crate) next_charge_bytes: u64,
    /// One beyond the highest sequence number that was ever sent.
    sent_end: Psn,
    /// One beyond the highest that asked for an acknowledgement. Only those can be waited for.
    asked_end: Psn,
    /// The last packet that was sent asked for an acknowledgement.
    pub(crate) has_asked_last: bool,
    /// A sequence error for this packet has been acted on. Copies of it say nothing new: a peer names a gap once.
    went_back_to: Option<Psn>,
    /// Time-outs and sequence errors since the last progress.
    retries: u8,
    /// Times that the receiver was not ready since the last progress.
    not_ready_retries: u8,
    /// The request at the cursor cannot be sent for a local reason; it fails once those before it are done.
    is_stalled: bool,
    /// Silence until then is a time-out.
    acknowledge_deadline: Instant,
    /// The receiver is not ready; nothing is sent until then.
    not_ready_until: Instant,
    /// A packet whose round trip is being measured. Dropped when anything is sent twice (Karn's rule).
    round_trip_probe: Option<(Psn, Instant)>,
}

impl Default for ReliableRequester {
    fn default() -> Self {
        ReliableRequester {
            oldest_unacknowledged: Psn::default(),
            next_charge_bytes: 0,
            sent_end: Psn::default(),
            asked_end: Psn::default(),
            has_asked_last: false,
            went_back_to: None,
            retries: 0,
            not_ready_retries: 0,
            is_stalled: false,
            acknowledge_deadline: Instant::FAR_FUTURE,
            not_ready_until: Instant::FAR_FUTURE,
            round_trip_probe: None,
        }
    }
}

impl ReliableRequester {
    /// Begin at this sequence number.
    pub(crate) fn start(&mut self, first: Psn) {
        *self =
            ReliableRequester { oldest_unacknowledged: first, sent_end: first, asked_end: first, ..Default::default() };
    }

    /// Nothing is in flight any more.
    pub(crate) fn stop(&mut self) {
        self.went_back_to = None;
        self.acknowledge_deadline = Instant::FAR_FUTURE;
        self.not_ready_until = Instant::FAR_FUTURE;
        self.round_trip_probe = None;
        self.is_stalled = false;
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.acknowledge_deadline.min(self.not_ready_until)
    }

    /// Packets that have arrived of the request that begins at `first` and is at the front of the send queue.
    pub(crate) fn acknowledged_packets(&self, first: Psn) -> u32 {
        self.oldest_unacknowledged.distance_from(first).max(0) as u32
    }

    fn has_asked(&self) -> bool {
        self.asked_end.distance_from(self.oldest_unacknowledged) > 0
    }

    fn restart_timer(&mut self, now: Instant, encoded_timeout: u8) {
        self.acknowledge_deadline = match acknowledge_timeout(encoded_timeout) {
            Some(timeout) => now + timeout,
            None => Instant::FAR_FUTURE,
        };
    }

    fn is_waiting_for_receiver(&self) -> bool {
        self.not_ready_until != Instant::FAR_FUTURE
    }
}

/// 4.096 µs · 2^n (IBTA 9.7.6.1.3); 0 is never.
pub(crate) fn acknowledge_timeout(encoded: u8) -> Option<Duration> {
    (encoded > 0).then(|| Duration::from_nanos(4096 << encoded.min(31)))
}

/// Send up to `budget` packets, as far as the window towards the peer allows.
pub(crate) fn transmit<S: TransmitSink + ?Sized>(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    sink: &mut S,
    now: Instant,
    budget: u32,
    allowance: Allowance,
) -> Turn {
    let mtu_bytes = queue_pair.mtu_bytes();
    let window = shared.config.window_packets_max;
    let interval = allowance.acknowledge_packets;
    let mut room_bytes = allowance.bytes;
    let Some(envelope) = Envelope::connected(queue_pair, Transport::ReliableConnection) else { return Turn::Idle };
    for number in 1..=budget {
        if !sink.has_room() {
            return Turn::More;
        }
        let QueuePair { requester, reliable, send_queue, pacer, .. } = queue_pair;
        if reliable.is_waiting_for_receiver() || reliable.is_stalled || pacer.blocked_until(now).is_some() {
            return Turn::Idle;
        }
        let Some(work) = send_queue.get_mut(requester.cursor_work) else {
            return Turn::Idle;
        };
        if !work.is_started {
            if queue_pair.state != QueuePairState::ReadyToSend {
                return Turn::Idle;
            }
            work.is_started = true;
            work.first_psn = requester.next_psn;
            requester.next_psn = requester.next_psn.add(work.packet_count(mtu_bytes));
            work.first_charge_bytes = reliable.next_charge_bytes;
            reliable.next_charge_bytes += message_charge_bytes(work.length, work.packet_count(mtu_bytes));
        }
        let packet_count = work.packet_count(mtu_bytes);
        let psn = work.first_psn.add(requester.cursor_packet);
        let in_flight = psn.distance_from(reliable.oldest_unacknowledged) as u32;
        if in_flight >= window {
            return Turn::Idle;
        }
        let is_last = requester.cursor_packet + 1 == packet_count;
        let payload_bytes = if is_last { work.length - requester.cursor_packet * mtu_bytes } else { mtu_bytes };
        let Some(room_left_bytes) = room_bytes.checked_sub(charge_bytes(payload_bytes)) else {
            return Turn::NoRoomAtPeer;
        };
        room_bytes = room_left_bytes;
        // Whoever stops sending has asked before: else nothing would come, and nothing would open the window again.
        let is_closing = in_flight + 1 == window || room_bytes < charge_bytes(mtu_bytes);
        let is_pausing =
            allowance.asks_before_pause && (number == budget || pacer.blocks_after(now, charge_bytes(payload_bytes)));
        let is_due = (requester.cursor_packet + 1).is_multiple_of(interval);
        let acknowledge = is_last || is_due || is_closing || is_pausing;
        match send_packet(&envelope, work, requester.cursor_packet, psn, acknowledge, shared, sink) {
            Ok(wire_bytes) => pacer.on_sent(now, wire_bytes),
            Err(AccessDenied) if requester.cursor_work == 0 => {
                queue_pair.fail_send(shared, CompletionStatus::LocalProtectionError);
                return Turn::Idle;
            }
            Err(AccessDenied) => {
                reliable.is_stalled = true;
                return Turn::Idle;
            }
        }
        queue_pair.counters.sent_packets += 1;
        reliable.has_asked_last = acknowledge;
        if psn == reliable.sent_end {
            reliable.sent_end = psn.next();
            if acknowledge && reliable.round_trip_probe.is_none() && pacer.has_controller() {
                reliable.round_trip_probe = Some((psn, now));
            }
        } else {
            queue_pair.counters.retransmitted_packets += 1;
            shared.counters.retransmitted_pkts += 1;
        }
        requester.advance(packet_count);
        if acknowledge {
            if psn.distance_from(reliable.asked_end) >= 0 {
                reliable.asked_end = psn.next();
            }
            if reliable.acknowledge_deadline == Instant::FAR_FUTURE {
                reliable.restart_timer(now, queue_pair.settings.timeout);
            }
        }
    }
    Turn::More
}

/// An acknowledgement has arrived, positive or negative.
pub(crate) fn handle_acknowledge(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    psn: Psn,
    syndrome: Syndrome,
    now: Instant,
) {
    // Only numbers that were sent and not acknowledged yet mean anything. (A repeated acknowledgement is the common case.)
    queue_pair.share.note_heard(now);
    let reliable = &queue_pair.reliable;
    // A sequence error about the packet that is to be sent next is the answer to somebody's who is not the peer, or long out of
    // date, but it may have taken the place of the acknowledgement of all that was sent.
    let is_about_next = psn == reliable.sent_end && matches!(syndrome, Syndrome::Nak(NakCode::PsnSequenceError));
    let is_unsent = psn.distance_from(reliable.sent_end) >= 0 && !is_about_next;
    if psn.distance_from(reliable.oldest_unacknowledged) < 0 || is_unsent {
        return;
    }
    // A negative answer acknowledges everything before the packet that it is about (IBTA 9.7.5.2.8).
    let acknowledged_end = match syndrome {
        Syndrome::Ack { .. } => psn.next(),
        _ => psn,
    };
    advance_acknowledged(queue_pair, shared, acknowledged_end, now);
    if is_about_next || !queue_pair.state.takes_sends() || queue_pair.state == QueuePairState::Error {
        return;
    }
    match syndrome {
        Syndrome::Ack { .. } => {}
        // While the receiver is given its time nothing is sent, so whatever it says about gaps is old.
        Syndrome::RnrNak { .. } | Syndrome::Nak(NakCode::PsnSequenceError)
            if queue_pair.reliable.is_waiting_for_receiver() => {}
        Syndrome::RnrNak { timer } => {
            shared.counters.rcvd_rnr_err += 1;
            let allowed = queue_pair.settings.receiver_not_ready_retry;
            #[cfg(feature = "mutations")]
            let allowed = if gives_up_at_once(shared) && allowed != RETRY_FOR_EVER { 0 } else { allowed };
            if allowed != RETRY_FOR_EVER && queue_pair.reliable.not_ready_retries >= allowed {
                shared.counters.retry_rnr_exceeded_err += 1;
                queue_pair.fail_send(shared, CompletionStatus::ReceiverNotReadyRetryExceededError);
                return;
            }
            queue_pair.reliable.not_ready_retries = queue_pair.reliable.not_ready_retries.saturating_add(1);
            go_back(queue_pair);
            queue_pair.reliable.not_ready_until = now + rnr_timer_duration(timer);
            queue_pair.reliable.acknowledge_deadline = Instant::FAR_FUTURE;
        }
        Syndrome::Nak(NakCode::PsnSequenceError) => {
            shared.counters.rcvd_seq_err += 1;
            if queue_pair.reliable.went_back_to == Some(psn) {
                return;
            }
            queue_pair.pacer.report(|controller| controller.on_loss(now, LossSignal::SequenceError));
            queue_pair.share.note_loss();
            retry(queue_pair, shared);
            queue_pair.reliable.went_back_to = Some(psn);
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

/// Everything before `end` has arrived: complete what is done and move the cursor out of it.
fn advance_acknowledged(queue_pair: &mut QueuePair, shared: &mut Resources, end: Psn, now: Instant) {
    let mtu_bytes = queue_pair.mtu_bytes();
    let reliable = &mut queue_pair.reliable;
    let packets = end.distance_from(reliable.oldest_unacknowledged);
    if packets <= 0 {
        return;
    }
    reliable.oldest_unacknowledged = end;
    reliable.retries = 0;
    reliable.not_ready_retries = 0;
    reliable.went_back_to = None;
    let round_trip = match reliable.round_trip_probe {
        Some((probe, sent)) if probe.distance_from(end) < 0 => {
            reliable.round_trip_probe = None;
            Some(now - sent)
        }
        _ => None,
    };
    let bytes = packets as u64 * u64::from(mtu_bytes);
    queue_pair.pacer.report(|controller| controller.on_acknowledged(now, bytes, round_trip));
    queue_pair.share.note_acknowledged(packets as u64 * charge_bytes(mtu_bytes));

    while let Some(work) = queue_pair.send_queue.front() {
        if !work.is_started || work.last_psn(mtu_bytes).distance_from(end) >= 0 {
            break;
        }
        queue_pair.complete_send(shared);
        match queue_pair.requester.cursor_work {
            // The cursor had gone back into a request that turns out to have arrived.
            0 => queue_pair.requester.cursor_packet = 0,
            _ => queue_pair.requester.cursor_work -= 1,
        }
    }
    // The same for the packets of a request that has arrived in part.
    if queue_pair.requester.cursor_work == 0
        && let Some(work) = queue_pair.send_queue.front()
        && work.is_started
    {
        let arrived = queue_pair.reliable.acknowledged_packets(work.first_psn);
        queue_pair.requester.cursor_packet = queue_pair.requester.cursor_packet.max(arrived);
    }
    let timeout = queue_pair.settings.timeout;
    queue_pair.reliable.not_ready_until = Instant::FAR_FUTURE;
    if queue_pair.reliable.has_asked() {
        queue_pair.reliable.restart_timer(now, timeout);
    } else {
        queue_pair.reliable.acknowledge_deadline = Instant::FAR_FUTURE;
    }
    if queue_pair.reliable.is_stalled && queue_pair.requester.cursor_work == 0 {
        queue_pair.fail_send(shared, CompletionStatus::LocalProtectionError);
    } else {
        queue_pair.report_drained(shared);
    }
}

/// A deadline may have come.
pub(crate) fn handle_deadline(queue_pair: &mut QueuePair, shared: &mut Resources, now: Instant) {
    if queue_pair.reliable.not_ready_until <= now {
        queue_pair.reliable.not_ready_until = Instant::FAR_FUTURE;
    }
    if queue_pair.reliable.acknowledge_deadline <= now {
        queue_pair.reliable.acknowledge_deadline = Instant::FAR_FUTURE;
        shared.counters.local_ack_timeout_err += 1;
        queue_pair.pacer.report(|controller| controller.on_loss(now, LossSignal::Timeout));
        queue_pair.share.note_loss();
        queue_pair.reliable.went_back_to = None;
        retry(queue_pair, shared);
    }
}

/// Send again from the oldest packet that was not acknowledged, unless that was tried often enough. The time-out begins when
/// something has really been sent: until then silence says nothing about the peer.
fn retry(queue_pair: &mut QueuePair, shared: &mut Resources) {
    let allowed = queue_pair.settings.retry_count;
    #[cfg(feature = "mutations")]
    let allowed = if gives_up_at_once(shared) { 0 } else { allowed };
    if queue_pair.reliable.retries >= allowed {
        shared.counters.retry_exceeded_err += 1;
        queue_pair.fail_send(shared, CompletionStatus::RetryExceededError);
        return;
    }
    queue_pair.reliable.retries += 1;
    go_back(queue_pair);
    queue_pair.reliable.acknowledge_deadline = Instant::FAR_FUTURE;
}

#[cfg(feature = "mutations")]
fn gives_up_at_once(shared: &Resources) -> bool {
    shared.config.mutation == Some(crate::config::Mutation::GivesUpAtOnce)
}

/// Move the cursor to the oldest packet that was not acknowledged, which is in the request at the front.
fn go_back(queue_pair: &mut QueuePair) {
    queue_pair.reliable.round_trip_probe = None;
    queue_pair.reliable.is_stalled = false;
    queue_pair.requester.cursor_work = 0;
    queue_pair.requester.cursor_packet = match queue_pair.send_queue.front() {
        Some(work) if work.is_started => queue_pair.reliable.acknowledged_packets(work.first_psn),
        _ => 0,
    };
}
