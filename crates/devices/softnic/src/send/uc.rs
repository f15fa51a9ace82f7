//! Unreliable connection, sending half: a message is done when its last packet has left.

use longhaul_time::Instant;
use longhaul_verbs::{CompletionStatus, QueuePairState};
use longhaul_wire::Transport;

use crate::port::TransmitSink;
use crate::queue_pair::{QueuePair, Sending, Turn};
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
        if !queue_pair.has_room() {
            return Turn::Idle;
        }
        let state = queue_pair.state();
        let Sending { cursor, queue, counters, .. } = queue_pair.sending();
        let Some(work) = queue.front_mut() else {
            return Turn::Idle;
        };
        if !work.is_started {
            if state != QueuePairState::ReadyToSend {
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
        let sent = send_packet(&envelope, work, cursor.packet(), cursor.next_psn(), false, shared, sink);
        let Ok(wire_bytes) = sent else {
            queue_pair.fail_send(shared, CompletionStatus::LocalProtectionError);
            return Turn::Idle;
        };
        cursor.take_psns(1);
        cursor.advance(1, work.packet_count(mtu_bytes));
        let is_whole = cursor.packet() == 0;
        counters.sent_packets += 1;
        queue_pair.pace(now, wire_bytes);
        if is_whole {
            queue_pair.sending().cursor.rewind();
            queue_pair.complete_send(shared);
            queue_pair.report_drained(shared);
        }
    }
    Turn::More
}
