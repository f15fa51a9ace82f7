//! Unreliable datagram, sending half: one packet per message, to whomever the request names.

use longhaul_time::Instant;
use longhaul_verbs::{CompletionStatus, QueuePairState};
use longhaul_wire::{Transport, deth};

use crate::memory::AccessDenied;
use crate::port::TransmitSink;
use crate::queue_pair::{QueuePair, Sending, Turn};
use crate::resources::Resources;
use crate::send::packet::{Envelope, send_packet};

const CONTROLLED_QUEUE_KEY: u32 = 1 << 31;

/// Send up to `budget` packets.
pub(crate) fn transmit<S: TransmitSink + ?Sized>(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    sink: &mut S,
    now: Instant,
    budget: u32,
) -> Turn {
    let number = queue_pair.identity().number;
    for _ in 0..budget {
        if !sink.has_room() {
            return Turn::More;
        }
        if !queue_pair.has_room() || queue_pair.state() != QueuePairState::ReadyToSend {
            return Turn::Idle;
        }
        let (own_queue_key, domain) = (queue_pair.settings().queue_key, queue_pair.identity().domain);
        let Sending { cursor, queue, counters, mut pacing } = queue_pair.sending();
        let Some(work) = queue.front() else {
            return Turn::Idle;
        };
        if work.is_local() {
            if queue_pair.carry_out_local(shared) {
                continue;
            }
            return Turn::Idle;
        }
        // Posting lets no datagram through without one.
        let Some(destination) = work.destination.as_deref() else {
            return Turn::Idle;
        };
        // A queue key with its highest bit set stands for the sender's own (IBTA 10.2.5, controlled queue keys).
        let queue_key = match destination.queue_key {
            asked if asked & CONTROLLED_QUEUE_KEY != 0 => own_queue_key,
            asked => asked,
        };
        let envelope = Envelope {
            route: destination.route,
            transport: Transport::UnreliableDatagram,
            destination_queue_pair: destination.queue_pair,
            // Posting has checked that the message fits into one packet of the port's MTU.
            mtu_bytes: shared.config.mtu.byte_count(),
            domain,
            datagram: Some(deth::Header::new(queue_key, number)),
        };
        match send_packet(&envelope, work, 0, cursor.next_psn(), false, shared, sink) {
            Ok(wire_bytes) => {
                let is_local = shared.config.is_local(envelope.route.destination);
                if let Some(pacing) = pacing.as_mut().filter(|pacing| !(pacing.spares_local && is_local)) {
                    pacing.note_unacknowledged(now, wire_bytes);
                }
            }
            Err(AccessDenied) => {
                queue_pair.fail_send(shared, CompletionStatus::LocalProtectionError);
                return Turn::Idle;
            }
        }
        counters.sent_packets += 1;
        cursor.take_psns(1);
        queue_pair.complete_send(shared);
    }
    Turn::More
}
