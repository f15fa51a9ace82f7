//! From a datagram to the queue pair that it is for, and to its transport.

use longhaul_time::Instant;
use longhaul_verbs::{AsyncEventKind, Gid, QueuePairNumber, QueuePairState, Transport as VerbsTransport};
use longhaul_wire::{Headers, Opcode, Operation, Packet, ParseError, Transport};

use super::turns::list_debtor;
use super::{DEFAULT_PARTITION_KEY, Nic};
use crate::config::PayloadMode;
use crate::memory::Payload;
use crate::port::Received;
use crate::queue_pair::{QueuePair, QueuePairKey};
use crate::resources::Resources;
use crate::{receive, send};

impl Nic {
    /// A datagram has arrived, its ICRC checked by the port.
    pub(super) fn handle(&mut self, received: &Received<'_>, now: Instant) {
        let is_elided = match self.shared.config.payload {
            PayloadMode::Carried => false,
            PayloadMode::Elided => true,
            PayloadMode::WritesElided => received.elided_bytes > 0,
        };
        let parsed = match is_elided {
            false => Packet::parse(received.datagram).map(|packet| (packet.headers, Payload::Carried(packet.payload))),
            true => parse_elided(received),
        };
        let Ok((headers, payload)) = parsed else {
            self.shared.counters.rx_malformed += 1;
            return;
        };
        self.accept(&headers, payload, received, now);
    }

    /// A packet with headers that could be read.
    pub(crate) fn accept(&mut self, headers: &Headers, payload: Payload<'_>, received: &Received<'_>, now: Instant) {
        self.shared.now = now;
        self.shared.is_arriving_marked = received.is_congestion_experienced();
        if headers.bth.version != 0 || headers.bth.partition_key & 0x7fff != DEFAULT_PARTITION_KEY & 0x7fff {
            self.shared.counters.rx_malformed += 1;
            return;
        }
        self.shared.counters.rcvd_pkts += 1;
        self.shared.counters.rcvd_bytes += u64::from(payload.len());
        if headers.bth.destination_qp == QueuePairNumber::MULTICAST.value() {
            self.handle_multicast(headers, payload, received);
            return;
        }
        match self.numbers.get(&headers.bth.destination_qp) {
            Some(&key) => self.handle_for(key, headers, payload, received, now),
            None => self.shared.counters.rx_no_queue_pair += 1,
        }
    }

    fn handle_for(
        &mut self,
        key: QueuePairKey,
        headers: &Headers,
        payload: Payload<'_>,
        received: &Received<'_>,
        now: Instant,
    ) {
        let shared = &mut self.shared;
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else {
            return;
        };
        if !queue_pair.state().receives() {
            shared.counters.rx_no_queue_pair += 1;
            return;
        }
        let opcode = headers.bth.opcode;
        if opcode.transport() == Transport::UnreliableDatagram {
            if queue_pair.identity().transport == VerbsTransport::UnreliableDatagram {
                queue_pair.counters_mut().received_packets += 1;
                receive::ud::handle_datagram(queue_pair, shared, headers, payload, received);
            } else {
                shared.counters.rx_no_queue_pair += 1;
            }
            return;
        }
        // RC and UC take packets from the connected peer only.
        let peer = queue_pair.settings().path().filter(|path| {
            path.destination.to_ip() == received.source
                && shared.config.addresses[usize::from(path.source_gid_index)] == received.destination
        });
        let Some(peer) = peer else {
            shared.counters.rx_wrong_peer += 1;
            return;
        };
        // Where both are known: any other user of the peer's host has another one.
        if ![0, received.source_port].contains(&peer.peer_source_port) && received.source_port != 0 {
            shared.counters.rx_wrong_source_port += 1;
            return;
        }
        queue_pair.counters_mut().received_packets += 1;
        if opcode == Opcode::Cnp {
            shared.counters.rp_cnp_handled += 1;
            if let Some(pacing) = queue_pair.pacing_mut() {
                pacing.note_congestion(now);
            }
            return;
        }
        if shared.is_arriving_marked {
            shared.counters.np_ecn_marked_roce_packets += 1;
            if queue_pair.arriving_mut().may_notify(now, shared.config.congestion_notification_interval) {
                queue_pair.responder_mut().owe_notification();
                // The end that asks controls the answers.
                if opcode.operation() == Operation::ReadResponse
                    && let Some(pacing) = queue_pair.pacing_mut()
                {
                    pacing.note_congestion(now);
                }
            }
        }
        match (queue_pair.identity().transport, opcode.transport(), opcode.operation()) {
            (VerbsTransport::ReliableConnection, Transport::ReliableConnection, Operation::Acknowledge) => {
                if let Some(aeth) = headers.aeth {
                    send::rc_completer::handle_acknowledge(queue_pair, shared, headers.bth.psn, aeth.syndrome, now);
                }
            }
            (VerbsTransport::ReliableConnection, Transport::ReliableConnection, _) if opcode.is_response() => {
                send::rc_completer::handle_response(queue_pair, shared, headers, payload, now);
            }
            (VerbsTransport::ReliableConnection, Transport::ReliableConnection, _) => {
                note_established(queue_pair, shared);
                receive::rc::handle_request(queue_pair, shared, headers, payload);
            }
            (VerbsTransport::UnreliableConnection, Transport::UnreliableConnection, _) => {
                note_established(queue_pair, shared);
                receive::uc::handle_request(queue_pair, shared, headers, payload);
            }
            _ => {
                shared.counters.rx_no_queue_pair += 1;
                return;
            }
        }
        self.last_writer = queue_pair.arriving().is_writing().then_some(key);
        list_debtor(&mut self.answering, &mut self.responding, key, queue_pair);
        if queue_pair.has_request_to_send() {
            self.activate(key);
        }
        self.settle_with_peer(key);
        self.schedule(key, now);
    }

    /// A datagram to a group goes to every member (IBTA 10.5.2).
    fn handle_multicast(&mut self, headers: &Headers, payload: Payload<'_>, received: &Received<'_>) {
        let group = Gid::from_ip(received.destination);
        if !group.is_multicast() || headers.bth.opcode.transport() != Transport::UnreliableDatagram {
            self.shared.counters.rx_malformed += 1;
            return;
        }
        let members = self.memberships.iter().filter(|(member_of, _)| *member_of == group);
        for (_, key) in members {
            if let Some(queue_pair) = self.queue_pairs.get_mut(*key)
                && queue_pair.state().receives()
            {
                queue_pair.counters_mut().received_packets += 1;
                receive::ud::handle_datagram(queue_pair, &mut self.shared, headers, payload, received);
            }
        }
    }
}

/// A packet without payload: its headers, and how many bytes there would be.
fn parse_elided<'a>(received: &Received<'_>) -> Result<(Headers, Payload<'a>), ParseError> {
    let (headers, _) = Headers::parse_prefix(received.datagram)?;
    let length = received.elided_bytes.saturating_sub(headers.bth.pad_count.into());
    Ok((headers, Payload::Elided(length)))
}

fn note_established(queue_pair: &mut QueuePair, shared: &mut Resources) {
    if queue_pair.responder_mut().note_established() && queue_pair.state() == QueuePairState::ReadyToReceive {
        shared.raise_for(AsyncEventKind::CommunicationEstablished, queue_pair.identity().number);
    }
}
