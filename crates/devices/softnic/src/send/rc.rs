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
use crate::pace::{Allowance, charge_bytes, message_charge_bytes};
use crate::port::TransmitSink;
use crate::queue_pair::{QueuePair, ReliableRequester, SendKind, SendWork, Sending, SentPackets, Turn};
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
    let (timeout, max_read_atomic) = (queue_pair.settings().timeout, queue_pair.settings().max_read_atomic);
    let mut room_bytes = allowance.bytes;
    let acknowledge_packets = match queue_pair.pacing_mut() {
        Some(pacing) => pacing.acknowledge_packets().min(allowance.acknowledge_packets.into()) as u32,
        None => allowance.acknowledge_packets,
    };
    for number in 1..=budget {
        if !sink.has_room() {
            return Turn::More;
        }
        if !is_free_to_send(queue_pair) || !start_request(queue_pair, shared) {
            return Turn::Idle;
        }
        if queue_pair.work_at_cursor().is_some_and(SendWork::is_local) {
            if queue_pair.carry_out_local(shared) {
                queue_pair.report_drained(shared);
                continue;
            }
            return Turn::Idle;
        }
        let (Sending { cursor, queue, counters, mut pacing }, sender) = queue_pair.sending_reliably();
        let work = &queue[cursor.work()];
        let packet_count = work.packet_count(envelope.mtu_bytes);
        let psn = work.first_psn.add(cursor.packet());
        let window_packets = pacing.as_ref().map_or(u64::MAX, |pacing| pacing.window_room_packets());
        let question_packets = pacing.as_ref().map_or(u64::MAX, |pacing| pacing.question_packets_max(max_read_atomic));
        let room = Room { bytes: room_bytes, question_packets };
        let packets = match packets_to_send(sender, work, cursor.packet(), psn, room, &shared.config, &envelope) {
            Ok(packets) => packets,
            Err(turn) => return turn,
        };
        let is_last = cursor.packet() + packets == packet_count;
        let first_byte = cursor.packet() * envelope.mtu_bytes;
        let payload_bytes = (work.length - first_byte).min(packets * envelope.mtu_bytes);
        room_bytes = room_bytes.saturating_sub(message_charge_bytes(payload_bytes, packets));
        let is_question = work.is_answered();
        let end = psn.add(packets);
        let acknowledge = is_question || {
            // A queue pair that stops sending has requested an acknowledgement before: otherwise none would come, and
            // nothing would open the window again.
            let in_flight = sender.in_flight_before(end);
            let is_closing = in_flight == shared.config.window_packets_max
                || room_bytes < charge_bytes(envelope.mtu_bytes)
                || window_packets <= 1;
            let is_pausing = allowance.asks_before_pause
                && (number == budget || pacing.as_ref().is_some_and(|pacing| pacing.is_full_after_next()));
            let is_due = (cursor.packet() + 1).is_multiple_of(acknowledge_packets);
            is_last || is_due || is_closing || is_pausing
        };
        let sent = if is_question {
            Ok(send_question(&envelope, work, cursor.packet(), packets, psn, shared, sink))
        } else {
            send_packet(&envelope, work, cursor.packet(), psn, acknowledge, shared, sink)
        };
        match sent {
            Ok(wire_bytes) => {
                if let Some(pacing) = &mut pacing {
                    match is_question {
                        true => pacing.note_asked(psn, packets, payload_bytes, wire_bytes),
                        false => pacing.note_sent(psn, packets, wire_bytes),
                    }
                }
            }
            Err(AccessDenied) => {
                stall(queue_pair, shared, CompletionStatus::LocalProtectionError);
                return Turn::Idle;
            }
        }
        cursor.advance(packets, packet_count);
        counters.sent_packets += 1;
        let sent = SentPackets { first: psn, end, asks: acknowledge, is_question };
        if !sender.note_sent(&sent, now, timeout) {
            counters.retransmitted_packets += 1;
            shared.counters.retransmitted_pkts += 1;
        }
    }
    Turn::More
}

/// What may be sent now.
#[derive(Clone, Copy)]
struct Room {
    /// Of the window towards the peer.
    bytes: u64,
    /// What congestion control lets one READ ask for.
    question_packets: u64,
}

fn is_free_to_send(queue_pair: &QueuePair) -> bool {
    let sender = queue_pair.sender();
    !sender.is_waiting_for_receiver() && sender.stall().is_none() && queue_pair.has_room()
}

/// Whether the request at the cursor may be worked on now. It gets its sequence numbers when that is so for the first time.
fn start_request(queue_pair: &mut QueuePair, shared: &mut Resources) -> bool {
    let mtu_bytes = queue_pair.mtu_bytes();
    let (state, max_read_atomic) = (queue_pair.state(), queue_pair.settings().max_read_atomic);
    let (Sending { cursor, queue, .. }, sender) = queue_pair.sending_reliably();
    let Some(work) = queue.get_mut(cursor.work()) else {
        return false;
    };
    if !work.is_started && state != QueuePairState::ReadyToSend {
        return false;
    }
    if work.is_local() {
        // Everything before it has completed, so that what is flushed has had no effect.
        return cursor.work() == 0;
    }
    // Behind its first packet only its own questions are outstanding.
    if work.flags.contains(SendFlags::FENCE) && cursor.packet() == 0 && sender.questions_sent() > 0 {
        return false;
    }
    if work.is_answered() {
        if max_read_atomic == 0 && !work.is_started {
            stall(queue_pair, shared, CompletionStatus::LocalQueuePairError);
            return false;
        }
        if sender.questions_sent() >= usize::from(max_read_atomic.max(1)) {
            return false;
        }
    }
    if !work.is_started {
        let packet_count = work.packet_count(mtu_bytes);
        work.is_started = true;
        work.first_psn = cursor.take_psns(packet_count);
        work.first_charge_bytes = sender.take_charge(message_charge_bytes(work.length, packet_count));
    }
    true
}

/// How many packets the next step is about: one, or as many as are asked for of a READ. An error is what to do when there is no room.
fn packets_to_send(
    sender: &ReliableRequester,
    work: &SendWork,
    cursor_packet: u32,
    psn: Psn,
    room: Room,
    config: &Config,
    envelope: &Envelope,
) -> Result<u32, Turn> {
    let in_flight = sender.in_flight_before(psn);
    if in_flight >= config.window_packets_max {
        return Err(Turn::Idle);
    }
    let left = work.packet_count(envelope.mtu_bytes) - cursor_packet;
    let next_bytes = (work.length - cursor_packet * envelope.mtu_bytes).min(envelope.mtu_bytes);
    let has_room_for_one = room.bytes >= charge_bytes(next_bytes);
    if !matches!(work.kind, SendKind::Read(_)) {
        return if has_room_for_one { Ok(1) } else { Err(Turn::NoRoomAtPeer) };
    }
    if !has_room_for_one {
        return Err(Turn::NoRoomAtPeer);
    }
    // What was asked for before is repeated as it was, also when the window has become narrower than that: a queue pair
    // that gets a turn with room for a packet must send one, or it would get a turn again at once, forever.
    if let Some(end) = sender.question_end(psn) {
        return Ok(end.distance_from(psn) as u32);
    }
    let fitting =
        (room.bytes / charge_bytes(envelope.mtu_bytes)).min(room.question_packets).clamp(1, u32::MAX.into()) as u32;
    Ok(left.min(config.window_packets_max - in_flight).min(fitting).min(config.read_packets_max))
}

/// The request at the cursor cannot be sent. It fails as soon as it is the first.
fn stall(queue_pair: &mut QueuePair, shared: &mut Resources, status: CompletionStatus) {
    if queue_pair.is_cursor_at_front() {
        queue_pair.fail_send(shared, status);
    } else {
        queue_pair.sender_mut().set_stall(status);
    }
}

/// A deadline may have come.
pub(crate) fn handle_deadline(queue_pair: &mut QueuePair, shared: &mut Resources, now: Instant) {
    let Some((sender, share)) = queue_pair.reliable_if_used() else { return };
    if sender.handle_deadline(now) {
        share.note_loss();
        shared.counters.local_ack_timeout_err += 1;
        let (Sending { pacing, .. }, sender) = queue_pair.sending_reliably();
        if let Some(pacing) = pacing {
            pacing.note_timeout(now, sender.sent_end());
        }
        retry(queue_pair, shared);
    }
}

/// Send again from the oldest packet that was not acknowledged, unless that was tried often enough.
pub(crate) fn retry(queue_pair: &mut QueuePair, shared: &mut Resources) {
    let allowed = queue_pair.settings().retry_count;
    #[cfg(feature = "mutations")]
    let allowed = if gives_up_at_once(shared) { 0 } else { allowed };
    if !queue_pair.sender_mut().retry(allowed) {
        shared.counters.retry_exceeded_err += 1;
        queue_pair.fail_send(shared, CompletionStatus::RetryExceededError);
        return;
    }
    go_back(queue_pair);
}

#[cfg(feature = "mutations")]
pub(crate) fn gives_up_at_once(shared: &Resources) -> bool {
    shared.config.mutation == Some(crate::config::Mutation::GivesUpAtOnce)
}

/// Move the cursor to the oldest packet that was not acknowledged, which is in the request at the front.
pub(crate) fn go_back(queue_pair: &mut QueuePair) {
    let (Sending { cursor, queue, .. }, sender) = queue_pair.sending_reliably();
    sender.go_back();
    cursor.go_back(match queue.front() {
        Some(work) if work.is_started => sender.acknowledged_packets(work.first_psn),
        _ => 0,
    });
}
