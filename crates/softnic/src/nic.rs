//! The device as a driven object.
//!
//! A [`Nic`] has no thread, no clock and no socket. Whoever drives it calls, in this order and as often as there is
//! reason to:
//!
//! - [`NicGuard::handle`](crate::NicGuard::handle) for each datagram that arrived,
//! - [`NicGuard::poll`](crate::NicGuard::poll) after arrivals, after verbs calls, when [`Nic::next_deadline`] has come, and when the port has room
//!   again after it had none; it hands the port what is to be sent,
//! - [`Nic::next_deadline`] to know when to come back.
//!
//! Verbs calls come in through [`Device`](crate::Device), which holds the `Nic` behind a lock; what they do is in
//! `post` and `modify`.

use std::collections::VecDeque;

use longhaul_time::Instant;
use longhaul_verbs::{
    AsyncEventKind, Gid, LinkState, PathAttributes, QueuePairNumber, QueuePairState, Transport as VerbsTransport,
};
use longhaul_wire::{Ecn, Headers, Opcode, Operation, Packet, ParseError, Transport, cnp};
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use slotmap::{Key, SlotMap, new_key_type};

use crate::config::{Config, PayloadMode};
use crate::counters::{Counters, QueuePairCounters};
use crate::memory::{Payload, RandomNumberMap};
use crate::pacing::{Pacer, RateController};
use crate::peer::Peers;
use crate::port::{OutgoingPayload, Received, Route, TransmitSink};
use crate::queue_pair::{Identity, QueuePair, Turn};
use crate::resources::Resources;
use crate::timer::Timers;
use crate::{
    modify, rc_completer, rc_requester, rc_responder, rc_responses, requester, uc_requester, uc_responder,
    ud_requester, ud_responder,
};

new_key_type! {
    /// A queue pair of one device.
    pub(crate) struct QueuePairKey;
}

/// A queue pair of another partition is not ours (IBTA 10.9.3); RoCE has only the default one.
const DEFAULT_PARTITION_KEY: u16 = 0xffff;

/// A software RNIC, driven from outside.
pub struct Nic {
    pub(crate) shared: Resources,
    /// Boxed, so that the table's spare room costs little.
    pub(crate) queue_pairs: SlotMap<QueuePairKey, Box<QueuePair>>,
    /// Which queue pair has a number. Numbers are drawn at random.
    pub(crate) numbers: RandomNumberMap<QueuePairKey>,
    /// Which queue pairs are members of which multicast groups.
    pub(crate) memberships: Vec<(Gid, QueuePairKey)>,
    pub(crate) random: ChaCha12Rng,
    pub(crate) next_domain: u32,
    pub(crate) serial: u64,
    /// Queue pairs that owe their peer an answer. They come before all that is in `active`: the peer's timer runs.
    answering: VecDeque<QueuePairKey>,
    /// Queue pairs that owe their peer the answers of READs and atomics, in turn.
    responding: VecDeque<QueuePairKey>,
    /// Queue pairs that have something to send, in turn.
    pub(crate) active: VecDeque<QueuePairKey>,
    /// Who it has reliable connections to, and how much is in flight towards them.
    pub(crate) peers: Peers,
    /// The queue pair whose packet arrived last, if it was of a WRITE that goes on, or that others are likely to follow.
    pub(crate) last_writer: Option<QueuePairKey>,
    /// Deadlines of queue pairs, by slotmap's number for their key.
    timers: Timers<u64>,
    /// Whether a verbs call has made work since the last poll.
    pub(crate) has_news: bool,
    /// Whether there ever was a datagram queue pair.
    takes_datagrams: bool,
}

impl Nic {
    /// A device without any objects. `serial` tells it from every other device of the process. Panics when the configuration
    /// makes no sense.
    pub(crate) fn new(config: Config, serial: u64) -> Self {
        assert!(!config.addresses.is_empty(), "a device needs an address");
        let window = config.window_packets_max;
        assert!((1..1 << 23).contains(&window), "a window of {window} packets: expected 1 to 2^23 - 1");
        assert!(config.turn_packets > 0, "a turn of no packets would never send anything");
        assert!(config.read_packets_max > 0, "a READ is asked for in parts of at least one packet");
        for (what, most) in [("entries", config.scatter_gather_entries_max), ("inline bytes", config.inline_bytes_max)]
        {
            assert!(u16::try_from(most).is_ok(), "{most} {what} in a request: expected at most {}", u16::MAX);
        }
        Nic {
            random: ChaCha12Rng::from_seed(config.random_seed),
            peers: Peers::new(&config),
            shared: Resources::new(config),
            queue_pairs: SlotMap::with_key(),
            numbers: RandomNumberMap::default(),
            memberships: Vec::new(),
            next_domain: 1,
            serial,
            answering: VecDeque::new(),
            responding: VecDeque::new(),
            active: VecDeque::new(),
            last_writer: None,
            timers: Timers::new(),
            has_news: false,
            takes_datagrams: false,
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// What it has counted.
    pub fn counters(&self) -> Counters {
        self.shared.counters
    }

    /// What a queue pair has counted.
    pub fn queue_pair_counters(&self, number: QueuePairNumber) -> Option<QueuePairCounters> {
        let key = self.numbers.get(&number.value())?;
        self.queue_pairs.get(*key).map(|queue_pair| queue_pair.traffic.counters)
    }

    /// Put a queue pair's rate under the control of `controller`. Takes the place of its rate limit.
    pub(crate) fn set_rate_controller(&mut self, number: QueuePairNumber, controller: Box<dyn RateController>) -> bool {
        let Some(&key) = self.numbers.get(&number.value()) else { return false };
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else { return false };
        queue_pair.pacer = Some(Box::new(Pacer::new(controller, self.shared.config.pacing_burst)));
        queue_pair.wants_pacer = false;
        self.resume(key);
        true
    }

    /// A datagram has arrived, its ICRC checked by the port.
    pub(crate) fn handle(&mut self, received: &Received<'_>, now: Instant) {
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
        if !queue_pair.state.receives() {
            shared.counters.rx_no_queue_pair += 1;
            return;
        }
        let opcode = headers.bth.opcode;
        if opcode.transport() == Transport::UnreliableDatagram {
            if queue_pair.identity.transport == VerbsTransport::UnreliableDatagram {
                queue_pair.traffic.counters.received_packets += 1;
                ud_responder::handle_datagram(queue_pair, shared, headers, payload, received);
            } else {
                shared.counters.rx_no_queue_pair += 1;
            }
            return;
        }
        // RC and UC take packets from the connected peer only.
        let peer = queue_pair.settings.path().filter(|path| {
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
        queue_pair.traffic.counters.received_packets += 1;
        if opcode == Opcode::Cnp {
            shared.counters.rp_cnp_handled += 1;
            queue_pair.report_to_controller(|controller| controller.on_congestion(now));
            return;
        }
        if received.is_congestion_experienced() {
            shared.counters.np_ecn_marked_roce_packets += 1;
            let arriving = &mut queue_pair.traffic.arriving;
            if arriving.next_notification <= now {
                arriving.next_notification = now + shared.config.congestion_notification_interval;
                queue_pair.responder.notify_congestion = true;
            }
        }
        match (queue_pair.identity.transport, opcode.transport(), opcode.operation()) {
            (VerbsTransport::ReliableConnection, Transport::ReliableConnection, Operation::Acknowledge) => {
                if let Some(aeth) = headers.aeth {
                    rc_completer::handle_acknowledge(queue_pair, shared, headers.bth.psn, aeth.syndrome, now);
                }
            }
            (VerbsTransport::ReliableConnection, Transport::ReliableConnection, _) if opcode.is_response() => {
                rc_completer::handle_response(queue_pair, shared, headers, payload, now);
            }
            (VerbsTransport::ReliableConnection, Transport::ReliableConnection, _) => {
                note_established(queue_pair, shared);
                rc_responder::handle_request(queue_pair, shared, headers, payload);
            }
            (VerbsTransport::UnreliableConnection, Transport::UnreliableConnection, _) => {
                note_established(queue_pair, shared);
                uc_responder::handle_request(queue_pair, shared, headers, payload);
            }
            _ => {
                shared.counters.rx_no_queue_pair += 1;
                return;
            }
        }
        self.last_writer = queue_pair.traffic.arriving.is_writing().then_some(key);
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
                && queue_pair.state.receives()
            {
                queue_pair.traffic.counters.received_packets += 1;
                ud_responder::handle_datagram(queue_pair, &mut self.shared, headers, payload, received);
            }
        }
    }

    /// Hand the port what is to be sent now. Stops when the port has no room; then [`Nic::has_output`] says `true`.
    pub(crate) fn poll<S: TransmitSink + ?Sized>(&mut self, now: Instant, sink: &mut S) {
        self.has_news = false;
        self.handle_deadlines(now);
        self.send_answers(sink);
        self.send_requests(now, sink);
        // Acknowledgements that had to wait for the answers of READs.
        self.send_answers(sink);
        sink.flush();
    }

    /// The same right after a post: the program may be answering what it has just received, and its peer waits for that
    /// rather than for the acknowledgement, which can be left for later.
    pub(crate) fn poll_after_post<S: TransmitSink + ?Sized>(&mut self, now: Instant, sink: &mut S, answers: bool) {
        self.has_news = false;
        self.handle_deadlines(now);
        self.send_requests(now, sink);
        // In a call of its own: one with two datagrams takes longer.
        sink.flush();
        if answers {
            self.send_answers(sink);
            sink.flush();
        }
    }

    /// Whether anything has to be done now: something to send, or a deadline that has come.
    pub fn has_due_work(&self, now: Instant) -> bool {
        self.has_output() || self.has_news || self.next_deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Give queue pairs with answers to READs, and those with requests, their turns, as far as the port has room.
    fn send_requests<S: TransmitSink + ?Sized>(&mut self, now: Instant, sink: &mut S) {
        while sink.has_room() {
            let has_responded = self.send_responses(now, sink);
            let Some(key) = self.active.pop_front() else {
                if has_responded {
                    continue;
                }
                break;
            };
            let budget = self.shared.config.turn_packets;
            let (shared, queue_pair) = (&mut self.shared, self.queue_pairs.get_mut(key));
            // Destroyed while it waited for its turn.
            let Some(queue_pair) = queue_pair else { continue };
            // Not if its pace holds it up: then the answers have still had the last packet.
            queue_pair.has_responded_last &= queue_pair.blocked_until(now).is_some();
            modify::make_pacer(queue_pair, &shared.config);
            let turn = match queue_pair.state {
                QueuePairState::ReadyToSend | QueuePairState::SendQueueDrained => match queue_pair.identity.transport {
                    VerbsTransport::ReliableConnection => match self.peers.admit(key, queue_pair, &shared.config) {
                        Some(allowance) => rc_requester::transmit(queue_pair, shared, sink, now, budget, allowance),
                        None => {
                            self.schedule(key, now);
                            continue;
                        }
                    },
                    VerbsTransport::UnreliableConnection => {
                        uc_requester::transmit(queue_pair, shared, sink, now, budget)
                    }
                    _ => ud_requester::transmit(queue_pair, shared, sink, now, budget),
                },
                _ => Turn::Idle,
            };
            match turn {
                Turn::More => self.active.push_back(key),
                Turn::Idle => {
                    queue_pair.is_active = false;
                    if let Some(reliable) = queue_pair.reliable.used_mut() {
                        reliable.share.step_out();
                    }
                }
                Turn::NoRoomAtPeer => self.peers.wait(key, &mut queue_pair.reliable.share),
            }
            self.settle_with_peer(key);
            self.schedule(key, now);
        }
        #[cfg(debug_assertions)]
        self.check_peers();
    }

    /// Give the next queue pair with answers to READs its turn; `false` when there is none.
    fn send_responses<S: TransmitSink + ?Sized>(&mut self, now: Instant, sink: &mut S) -> bool {
        let Some(key) = self.responding.pop_front() else { return false };
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else { return true };
        if queue_pair.lets_requests_first(now) {
            self.responding.push_back(key);
            return true;
        }
        modify::make_pacer(queue_pair, &self.shared.config);
        let budget = self.shared.config.turn_packets;
        let turn = rc_responses::send_responses(queue_pair, &mut self.shared, sink, now, budget);
        queue_pair.is_responding = turn == Turn::More;
        if queue_pair.is_responding {
            self.responding.push_back(key);
        } else {
            // Not among those with answers to READs again: its pace holds it up, and this call would never end.
            list_answering(&mut self.answering, key, queue_pair);
        }
        self.settle_with_peer(key);
        self.schedule(key, now);
        true
    }

    /// Send what queue pairs owe their peers, as far as the port has room.
    fn send_answers<S: TransmitSink + ?Sized>(&mut self, sink: &mut S) {
        while sink.has_room() {
            let Some(&key) = self.answering.front() else { break };
            if let Some(queue_pair) = self.queue_pairs.get_mut(key) {
                if queue_pair.owes_acknowledgement() {
                    rc_responder::send_answer(queue_pair, &mut self.shared, sink);
                    if queue_pair.responder.notify_congestion {
                        // One packet for each look at the port's room.
                        continue;
                    }
                } else {
                    send_congestion_notification(queue_pair, &mut self.shared, sink);
                }
                queue_pair.is_answering = false;
            }
            self.answering.pop_front();
        }
    }

    /// Whether something waits that could be sent if the port had room.
    pub fn has_output(&self) -> bool {
        !self.active.is_empty() || !self.answering.is_empty() || !self.responding.is_empty()
    }

    /// Whether there ever was a queue pair that takes datagrams: only those want to know the hop limit.
    pub fn takes_datagrams(&self) -> bool {
        self.takes_datagrams
    }

    /// Completions so far, taken or not.
    #[inline]
    pub fn completion_count(&self) -> u64 {
        self.shared.completion_count
    }

    /// Whether the port's link is up.
    pub fn link_state(&self) -> LinkState {
        self.shared.link_state
    }

    /// Whether a verbs call has made work since the last poll.
    pub fn has_news(&self) -> bool {
        self.has_news
    }

    /// When to poll next, if nothing happens before. It may turn out that there is nothing to do then.
    pub fn next_deadline(&self) -> Option<Instant> {
        Instant::earlier_of(self.timers.next(), self.shared.moderation_deadline())
    }

    fn handle_deadlines(&mut self, now: Instant) {
        self.shared.now = now;
        self.shared.handle_moderation(now);
        while let Some(number) = self.timers.next_due(now) {
            let key = QueuePairKey::from(slotmap::KeyData::from_ffi(number));
            // Its entry goes with a queue pair (`remove_queue_pair`), so there is one.
            let Some(queue_pair) = self.queue_pairs.get_mut(key) else { return };
            self.timers.cancel(number, &mut queue_pair.traffic.scheduled);
            rc_requester::handle_deadline(queue_pair, &mut self.shared, now);
            // Its pace may have held back answers.
            list_debtor(&mut self.answering, &mut self.responding, key, queue_pair);
            self.settle_with_peer(key);
            self.probe_silent_peer(key, now);
            self.activate(key);
            self.schedule(key, now);
        }
    }

    /// What held up a queue pair is different now: give it its turns.
    pub(crate) fn resume(&mut self, key: QueuePairKey) {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else { return };
        list_debtor(&mut self.answering, &mut self.responding, key, queue_pair);
        // One without requests would only take the memory of those that work.
        if queue_pair.has_request_to_send() {
            self.activate(key);
        }
        self.has_news = true;
    }

    /// Give a queue pair a turn.
    pub(crate) fn activate(&mut self, key: QueuePairKey) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(key)
            && !queue_pair.is_active
        {
            queue_pair.is_active = true;
            self.active.push_back(key);
        }
    }

    fn schedule(&mut self, key: QueuePairKey, now: Instant) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(key) {
            Nic::limit_patience(queue_pair, now);
            let deadline = queue_pair.deadline(now);
            if deadline != Instant::FAR_FUTURE {
                self.timers.schedule(key.data().as_ffi(), deadline, &mut queue_pair.traffic.scheduled);
            }
        }
    }

    /// Add a queue pair under a number that nobody can guess.
    pub(crate) fn insert_queue_pair(&mut self, identity: impl FnOnce(u32) -> Identity) -> (QueuePairKey, u32) {
        let number = loop {
            let number = self.random.next_u32() & 0xff_ffff;
            let is_ordinary = number >= QueuePairNumber::FIRST_ORDINARY && number != QueuePairNumber::MULTICAST.value();
            if is_ordinary && !self.numbers.contains_key(&number) {
                break number;
            }
        };
        let identity = identity(number);
        self.takes_datagrams |= identity.transport == VerbsTransport::UnreliableDatagram;
        let key = self.queue_pairs.insert(Box::new(QueuePair::new(identity)));
        self.numbers.insert(number, key);
        (key, number)
    }

    /// Forget a queue pair. `false` when it is gone already.
    pub(crate) fn remove_queue_pair(&mut self, key: QueuePairKey) -> bool {
        self.leave_peer(key);
        let Some(mut queue_pair) = self.queue_pairs.remove(key) else {
            return false;
        };
        if let Some(traffic) = queue_pair.traffic.used_mut() {
            self.timers.cancel(key.data().as_ffi(), &mut traffic.scheduled);
        }
        self.shared.memory.forget_queue_pair(queue_pair.identity.number);
        self.numbers.remove(&queue_pair.identity.number);
        if queue_pair.identity.transport == VerbsTransport::UnreliableDatagram {
            self.memberships.retain(|(_, member)| *member != key);
        }
        // Its places in the lists are passed over when they come up. Should that take long, they are swept out, so rarely
        // that it costs nothing.
        for list in [&mut self.active, &mut self.answering, &mut self.responding] {
            if list.len() > 2 * self.queue_pairs.len() + 64 {
                list.retain(|waiting| self.queue_pairs.contains_key(*waiting));
            }
        }
        for queue in [queue_pair.identity.send_completions, queue_pair.identity.receive_completions] {
            self.shared.leave_completion_queue(queue);
        }
        queue_pair.return_receive(&mut self.shared);
        if let Some(queue) = queue_pair.identity.shared_receive {
            self.shared.leave_shared_receive_queue(queue);
        }
        true
    }
}

/// The way along a path, for the packets of a queue pair. The path's source address must be one of the device's.
pub(crate) fn route(config: &Config, queue_pair: u32, path: &PathAttributes) -> Route {
    let ecn = if config.ecn_capable { Ecn::Capable0 } else { Ecn::NotCapable };
    Route {
        source: config.addresses[usize::from(path.source_gid_index)],
        destination: path.destination.to_ip(),
        // From the dynamic range, different for different queue pairs, so that routers with equal-cost paths spread them.
        source_port: 0xc000 | (queue_pair.wrapping_mul(0x9e37_79b9) >> 18) as u16,
        destination_port: path.udp_port,
        traffic_class: ecn.apply_to(path.traffic_class),
        hop_limit: path.hop_limit,
    }
}

/// A packet without payload: its headers, and how many bytes there would be.
fn parse_elided<'a>(received: &Received<'_>) -> Result<(Headers, Payload<'a>), ParseError> {
    let (headers, _) = Headers::parse_prefix(received.datagram)?;
    let length = received.elided_bytes.saturating_sub(headers.bth.pad_count.into());
    Ok((headers, Payload::Elided(length)))
}

/// Enter a queue pair in the lists of those that owe their peer something.
fn list_debtor(
    answering: &mut VecDeque<QueuePairKey>,
    responding: &mut VecDeque<QueuePairKey>,
    key: QueuePairKey,
    queue_pair: &mut QueuePair,
) {
    list_answering(answering, key, queue_pair);
    if queue_pair.reliable.responder.has_unsent_responses && !queue_pair.is_responding {
        queue_pair.is_responding = true;
        responding.push_back(key);
    }
}

fn list_answering(answering: &mut VecDeque<QueuePairKey>, key: QueuePairKey, queue_pair: &mut QueuePair) {
    if queue_pair.owes_answer() && !queue_pair.is_answering {
        queue_pair.is_answering = true;
        answering.push_back(key);
    }
}

fn note_established(queue_pair: &mut QueuePair, shared: &mut Resources) {
    if !queue_pair.responder.is_established {
        queue_pair.responder.is_established = true;
        if queue_pair.state == QueuePairState::ReadyToReceive {
            shared.raise_for(AsyncEventKind::CommunicationEstablished, queue_pair.identity.number);
        }
    }
}

/// Tell the peer that its packets met congestion (A17.9.3).
fn send_congestion_notification<S: TransmitSink + ?Sized>(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    sink: &mut S,
) {
    let Some(route) = queue_pair.route(&shared.config) else { return };
    if !std::mem::take(&mut queue_pair.responder.notify_congestion) {
        return;
    }
    let mut headers = cnp::headers(queue_pair.settings.destination_queue_pair, DEFAULT_PARTITION_KEY);
    requester::emit(&route, &mut headers, OutgoingPayload::Device(&[0; cnp::PAYLOAD_BYTES]), shared, sink);
    shared.counters.np_cnp_sent += 1;
}
