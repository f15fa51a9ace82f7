//! Unreliable connection, sending half: a message is done when its last packet has left.

use longhaul_time::Instant;
use longhaul_verbs::{CompletionStatus, QueuePairState};
use longhaul_wire::Transport;

use crate::port::TransmitSink;
use crate::queue_pair::{QueuePair, Turn};
use crate::resources::Resources;
use crate::send::packet::{Envelope, send_packet};

/// Send up to `budget` packets.
pub(crate) fn transmit<S: TransmitSink + ?Sized>(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    sink: &mut S,
    now: Instant,
    budget: u32,
) -> Turn {
    let mtu_bytes = queue_pair.mtu_bytes();
    let Some(envelope) = Envelope::connected(queue_pair, &shared.config, Transport::UnreliableConnection) else {
        return Turn::Idle;
    };
    for _ in 0..budget {
        if !sink.has_room() {
            return Turn::More;
        }
        if queue_pair.blocked_until(now).is_some() {
            return Turn::Idle;
        }
        let QueuePair { requester, traffic, .. } = queue_pair;
        let Some(work) = traffic.send_queue.front_mut() else {
            return Turn::Idle;
        };
        if !work.is_started {
            if queue_pair.state != QueuePairState::ReadyToSend {
                return Turn::Idle;
            }
            if work.is_local() {
                if queue_pair.carry_out_local(shared) {
                    continue;
                }
                return Turn::Idle;
            }
            work.is_started = true;
        }
        let sent = send_packet(&envelope, work, requester.cursor_packet, requester.next_psn, false, shared, sink);
        let Ok(wire_bytes) = sent else {
            queue_pair.fail_send(shared, CompletionStatus::LocalProtectionError);
            return Turn::Idle;
        };
        requester.next_psn = requester.next_psn.next();
        requester.cursor_packet += 1;
        let is_whole = requester.cursor_packet == work.packet_count(mtu_bytes);
        traffic.counters.sent_packets += 1;
        queue_pair.pace(now, wire_bytes);
        if is_whole {
            queue_pair.requester.rewind();
            queue_pair.complete_send(shared);
            queue_pair.report_drained(shared);
        }
    }
    Turn::More
}
