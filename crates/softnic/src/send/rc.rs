//! Reliable connection, sending half: go-back-N.
//!
//! ```text
//!   send queue:   [ acknowledged in part | sent | being sent | posted | posted ]
//!                        ▲                          ▲
//!                 oldest_unacknowledged        cursor (request, packet) ──▶ sent_end
//! ```
//!
//! Packets leave at the cursor. What comes back ([`rc_completer`](super::rc_completer)) moves `oldest_unacknowledged` and completes
//! requests in order. A sequence error, a receiver that is not ready, an answer that is missing, or silence move the cursor back
//! (IBTA 9.7.5, 9.9.2.3); whatever has to be sent again is read from the program's memory again.
//!
//! A READ takes a sequence number for each packet of its *answer*, and its cursor counts those. It is asked for in parts, none
//! larger than the window allows when it is asked for first, so that answers do not overrun the socket that they come back to. Each part is a request of its
//! own to the peer, and is repeated as such, or from its middle on.

use longhaul_time::Instant;
use longhaul_verbs::{CompletionStatus, QueuePairState, SendFlags};
use longhaul_wire::{Psn, Transport};

use crate::config::Config;
use crate::memory::AccessDenied;
use crate::pace::LossSignal;
use crate::pace::{Allowance, charge_bytes, message_charge_bytes};
use crate::port::TransmitSink;
use crate::queue_pair::{QueuePair, ReliableRequester, SendKind, SendWork, Turn};
use crate::resources::Resources;
use crate::send::packet::{Envelope, send_packet, send_question};

/// Send up to `budget` packets, as far as the window towards the peer allows.
pub(crate) fn transmit<S: TransmitSink + ?Sized>(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    sink: &mut S,
    now: Instant,
    budget: u32,
    allowance: Allowance,
) -> Turn {
    let Some(envelope) = Envelope::connected(queue_pair, &shared.config, Transport::ReliableConnection) else {
        return Turn::Idle;
    };
    let mut room_bytes = allowance.bytes;
    for number in 1..=budget {
        if !sink.has_room() {
            return Turn::More;
        }
        if !is_free_to_send(queue_pair, now) || !start_request(queue_pair, shared) {
            return Turn::Idle;
        }
        if queue_pair.traffic.send_queue[queue_pair.requester.cursor_work as usize].is_local() {
            if queue_pair.carry_out_local(shared) {
                queue_pair.report_drained(shared);
                continue;
            }
            return Turn::Idle;
        }
        let QueuePair { requester, reliable, traffic, pacer, .. } = queue_pair;
        let sender = &mut reliable.requester;
        let work = &traffic.send_queue[requester.cursor_work as usize];
        let packet_count = work.packet_count(envelope.mtu_bytes);
        let psn = work.first_psn.add(requester.cursor_packet);
        let packets =
            match packets_to_send(sender, work, requester.cursor_packet, psn, room_bytes, &shared.config, &envelope) {
                Ok(packets) => packets,
                Err(turn) => return turn,
            };
        let is_last = requester.cursor_packet + packets == packet_count;
        let first_byte = requester.cursor_packet * envelope.mtu_bytes;
        let payload_bytes = (work.length - first_byte).min(packets * envelope.mtu_bytes);
        room_bytes = room_bytes.saturating_sub(message_charge_bytes(payload_bytes, packets));
        let is_question = work.is_answered();
        let end = psn.add(packets);
        let acknowledge = is_question || {
            // Whoever stops sending has asked before: else nothing would come, and nothing would open the window again.
            let in_flight = end.distance_from(sender.oldest_unacknowledged) as u32;
            let is_closing =
                in_flight == shared.config.window_packets_max || room_bytes < charge_bytes(envelope.mtu_bytes);
            let is_pausing = allowance.asks_before_pause
                && (number == budget
                    || pacer.as_ref().is_some_and(|pacer| pacer.blocks_after(now, charge_bytes(payload_bytes))));
            let is_due = (requester.cursor_packet + 1).is_multiple_of(allowance.acknowledge_packets);
            is_last || is_due || is_closing || is_pausing
        };
        let sent = if is_question {
            let index = requester.cursor_packet;
            Ok(send_question(&envelope, work, index, packets, psn, shared, sink))
        } else {
            send_packet(&envelope, work, requester.cursor_packet, psn, acknowledge, shared, sink)
        };
        match sent {
            Ok(wire_bytes) => {
                if let Some(pacer) = pacer {
                    pacer.on_sent(now, wire_bytes);
                }
            }
            Err(AccessDenied) => {
                stall(queue_pair, shared, CompletionStatus::LocalProtectionError);
                return Turn::Idle;
            }
        }
        traffic.counters.sent_packets += 1;
        sender.has_asked_last = acknowledge;
        if psn.distance_from(sender.sent_end) >= 0 {
            if acknowledge && sender.round_trip_probe.is_none() && pacer.is_some() {
                sender.round_trip_probe = Some((psn, now));
            }
        } else {
            traffic.counters.retransmitted_packets += 1;
            shared.counters.retransmitted_pkts += 1;
        }
        if end.distance_from(sender.sent_end) > 0 {
            sender.sent_end = end;
        }
        if is_question {
            sender.note_question(end);
        }
        requester.advance(packets, packet_count);
        if acknowledge {
            if end.distance_from(sender.asked_end) > 0 {
                sender.asked_end = end;
            }
            if sender.acknowledge_deadline == Instant::FAR_FUTURE {
                sender.restart_timer(now, queue_pair.settings.timeout);
            }
        }
    }
    Turn::More
}

fn is_free_to_send(queue_pair: &QueuePair, now: Instant) -> bool {
    let sender = &queue_pair.reliable.requester;
    !sender.is_waiting_for_receiver() && sender.stall.is_none() && queue_pair.blocked_until(now).is_none()
}

/// Whether the request at the cursor may be worked on now. It gets its sequence numbers when that is so for the first time.
fn start_request(queue_pair: &mut QueuePair, shared: &mut Resources) -> bool {
    let mtu_bytes = queue_pair.mtu_bytes();
    let QueuePair { requester, reliable, traffic, settings, .. } = queue_pair;
    let sender = &mut reliable.requester;
    let Some(work) = traffic.send_queue.get_mut(requester.cursor_work as usize) else {
        return false;
    };
    if !work.is_started && queue_pair.state != QueuePairState::ReadyToSend {
        return false;
    }
    if work.is_local() {
        // Everything before it has completed, so that what is flushed has had no effect.
        return requester.cursor_work == 0;
    }
    // Behind its first packet only its own questions are outstanding.
    if work.flags.contains(SendFlags::FENCE) && requester.cursor_packet == 0 && sender.questions_sent > 0 {
        return false;
    }
    if work.is_answered() {
        if settings.max_read_atomic == 0 && !work.is_started {
            stall(queue_pair, shared, CompletionStatus::LocalQueuePairError);
            return false;
        }
        if sender.questions_sent >= usize::from(settings.max_read_atomic.max(1)) {
            return false;
        }
    }
    if !work.is_started {
        let packet_count = work.packet_count(mtu_bytes);
        work.is_started = true;
        work.first_psn = requester.next_psn;
        requester.next_psn = requester.next_psn.add(packet_count);
        work.first_charge_bytes = sender.next_charge_bytes;
        sender.next_charge_bytes += message_charge_bytes(work.length, packet_count);
    }
    true
}

/// How many packets the next step is about: one, or as many as are asked for of a READ. An error is what to do when there is no room.
fn packets_to_send(
    sender: &ReliableRequester,
    work: &SendWork,
    cursor_packet: u32,
    psn: Psn,
    room_bytes: u64,
    config: &Config,
    envelope: &Envelope,
) -> Result<u32, Turn> {
    let in_flight = psn.distance_from(sender.oldest_unacknowledged) as u32;
    if in_flight >= config.window_packets_max {
        return Err(Turn::Idle);
    }
    let left = work.packet_count(envelope.mtu_bytes) - cursor_packet;
    let next_bytes = (work.length - cursor_packet * envelope.mtu_bytes).min(envelope.mtu_bytes);
    let has_room_for_one = room_bytes >= charge_bytes(next_bytes);
    if !matches!(work.kind, SendKind::Read(_)) {
        return if has_room_for_one { Ok(1) } else { Err(Turn::NoRoomAtPeer) };
    }
    if !has_room_for_one {
        return Err(Turn::NoRoomAtPeer);
    }
    // What was asked for before is repeated as it was, also when the window has become narrower than that: whoever is called up
    // with room for a packet must send one, or would be called up again at once, for ever.
    if let Some(end) = sender.question_end(psn) {
        return Ok(end.distance_from(psn) as u32);
    }
    let fitting = (room_bytes / charge_bytes(envelope.mtu_bytes)).clamp(1, u32::MAX.into()) as u32;
    Ok(left.min(config.window_packets_max - in_flight).min(fitting).min(config.read_packets_max))
}

/// The request at the cursor cannot be sent. It fails as soon as it is the first.
fn stall(queue_pair: &mut QueuePair, shared: &mut Resources, status: CompletionStatus) {
    if queue_pair.requester.cursor_work == 0 {
        queue_pair.fail_send(shared, status);
    } else {
        queue_pair.reliable.requester.stall = Some(status);
    }
}

/// A deadline may have come.
pub(crate) fn handle_deadline(queue_pair: &mut QueuePair, shared: &mut Resources, now: Instant) {
    let Some(reliable) = queue_pair.reliable.used_mut() else { return };
    let sender = &mut reliable.requester;
    if sender.not_ready_until <= now {
        sender.not_ready_until = Instant::FAR_FUTURE;
    }
    if sender.acknowledge_deadline <= now {
        sender.acknowledge_deadline = Instant::FAR_FUTURE;
        sender.went_back_to = None;
        reliable.share.note_loss();
        shared.counters.local_ack_timeout_err += 1;
        queue_pair.report_to_controller(|controller| controller.on_loss(now, LossSignal::Timeout));
        retry(queue_pair, shared);
    }
}

/// Send again from the oldest packet that was not acknowledged, unless that was tried often enough. The time-out begins when
/// something has really been sent: until then silence says nothing about the peer.
pub(crate) fn retry(queue_pair: &mut QueuePair, shared: &mut Resources) {
    let allowed = queue_pair.settings.retry_count;
    #[cfg(feature = "mutations")]
    let allowed = if gives_up_at_once(shared) { 0 } else { allowed };
    if queue_pair.reliable.requester.retries >= allowed {
        shared.counters.retry_exceeded_err += 1;
        queue_pair.fail_send(shared, CompletionStatus::RetryExceededError);
        return;
    }
    queue_pair.reliable.requester.retries += 1;
    go_back(queue_pair);
    queue_pair.reliable.requester.acknowledge_deadline = Instant::FAR_FUTURE;
}

#[cfg(feature = "mutations")]
pub(crate) fn gives_up_at_once(shared: &Resources) -> bool {
    shared.config.mutation == Some(crate::config::Mutation::GivesUpAtOnce)
}

/// Move the cursor to the oldest packet that was not acknowledged, which is in the request at the front.
pub(crate) fn go_back(queue_pair: &mut QueuePair) {
    let QueuePair { requester, reliable, traffic, .. } = queue_pair;
    let sender = &mut reliable.requester;
    sender.round_trip_probe = None;
    sender.stall = None;
    sender.questions_sent = 0;
    requester.cursor_work = 0;
    requester.cursor_packet = match traffic.send_queue.front() {
        Some(work) if work.is_started => sender.acknowledged_packets(work.first_psn),
        _ => 0,
    };
}
