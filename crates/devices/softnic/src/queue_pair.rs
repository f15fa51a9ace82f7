//! A queue pair: its queues, its state, and its two halves.
//!
//! What the halves do is in `send` and `receive`, one file per transport and half; what they know is here.

mod completing;
mod identity;
mod lazy;
mod receive_queue;
mod reliable_requester;
mod reliable_responder;
mod requester;
mod responder;
mod settings;
mod work;

use std::collections::VecDeque;

use longhaul_congestion::{ControllerName, Flow, PathFacts};
use longhaul_time::Instant;
use longhaul_verbs::{QueuePairAttributes, QueuePairState, Transport};
use longhaul_wire::Psn;

pub(crate) use identity::{Identity, Limits, QueuePairKey};
pub(crate) use lazy::{Lazy, Unused};
pub(crate) use receive_queue::ReceiveQueue;
pub(crate) use reliable_requester::{ReliableRequester, SentPackets, acknowledge_timeout};
pub(crate) use reliable_responder::{ACKNOWLEDGE, Answer, ReliableResponder, Response};
pub(crate) use requester::Requester;
pub(crate) use responder::{Arriving, Message, Responder};
pub(crate) use settings::Settings;
pub(crate) use work::{
    ATOMIC_BYTES, Attached, Destination, Entries, MESSAGE_BYTES_MAX, ReceiveWork, SendKind, SendWork, list_length,
};

use crate::config::Config;
use crate::counters::QueuePairCounters;
use crate::pace::{PACKET_HEADER_BYTES, Pacing, PeerShare, Scheduled, charge_bytes};
use crate::port::Route;
use crate::resources::Resources;

/// A queue pair. A device may have a hundred thousand that do nothing: what only some need, or only while they work, is not in
/// here but behind a pointer.
pub(crate) struct QueuePair {
    identity: Identity,
    settings: Settings,
    requester: Requester,
    responder: Responder,
    /// Its queues, and what is arriving.
    traffic: Lazy<Traffic>,
    /// RC only.
    reliable: Lazy<Reliable>,
    /// None while it may send as fast as it can.
    pacing: Option<Box<Pacing>>,
    state: QueuePairState,
    /// Its pace is made when it sends for the first time.
    wants_pacing: bool,
    /// In the device's list of queue pairs that have something to send, or in its peer's queue.
    is_active: bool,
    /// In the device's list of queue pairs that owe their peer an acknowledgement.
    is_answering: bool,
    /// In the device's list of queue pairs that owe their peer the answers of READs and atomics.
    is_responding: bool,
    /// The last packet that its pace let through was an answer.
    has_responded_last: bool,
}

// One that does nothing takes this much, a place in two tables and the program's handle.
const _: () = assert!(size_of::<QueuePair>() <= 176);

/// What a queue pair has once something was posted or has arrived.
#[derive(Default)]
struct Traffic {
    send_queue: VecDeque<SendWork>,
    /// With a shared receive queue, only the receive that it has taken from there.
    receive_queue: ReceiveQueue,
    arriving: Arriving,
    scheduled: Scheduled,
    counters: QueuePairCounters,
}

impl Unused for Traffic {
    fn unused() -> &'static Self {
        static UNUSED: Traffic = Traffic {
            send_queue: VecDeque::new(),
            receive_queue: ReceiveQueue::new(),
            arriving: Arriving::NONE,
            scheduled: Scheduled::NEVER,
            counters: QueuePairCounters { sent_packets: 0, received_packets: 0, retransmitted_packets: 0 },
        };
        &UNUSED
    }
}

/// What only reliable connections have.
#[derive(Default)]
struct Reliable {
    requester: ReliableRequester,
    responder: ReliableResponder,
    /// Its part in the window towards the peer.
    share: PeerShare,
}

impl Unused for Reliable {
    fn unused() -> &'static Self {
        static UNUSED: Reliable =
            Reliable { requester: ReliableRequester::NEW, responder: ReliableResponder::NEW, share: PeerShare::NONE };
        &UNUSED
    }
}

/// What a sending half works with, each part on its own.
pub(crate) struct Sending<'a> {
    pub(crate) cursor: &'a mut Requester,
    pub(crate) queue: &'a mut VecDeque<SendWork>,
    pub(crate) counters: &'a mut QueuePairCounters,
    pub(crate) pacing: Option<&'a mut Pacing>,
}

/// What a queue pair wants after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Another turn: there is more to send.
    More,
    /// Nothing until something happens: a post, an acknowledgement, a deadline.
    Idle,
    /// Another turn when there is room in the window towards the peer.
    NoRoomAtPeer,
}

impl QueuePair {
    pub(crate) fn new(identity: Identity) -> Self {
        QueuePair {
            identity,
            settings: Settings::default(),
            requester: Requester::default(),
            responder: Responder::default(),
            traffic: Lazy::default(),
            reliable: Lazy::default(),
            pacing: None,
            state: QueuePairState::Reset,
            wants_pacing: false,
            is_active: false,
            is_answering: false,
            is_responding: false,
            has_responded_last: false,
        }
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    #[inline]
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    #[inline]
    pub(crate) fn state(&self) -> QueuePairState {
        self.state
    }

    /// Move to a state other than [`QueuePairState::Error`], for which there is [`QueuePair::enter_error`].
    pub(crate) fn set_state(&mut self, state: QueuePairState) {
        self.state = state;
    }

    /// Take over what `modify` sets in the transition to a state.
    pub(crate) fn configure(&mut self, attributes: &QueuePairAttributes, to: QueuePairState) {
        self.settings.apply(attributes, self.state, to);
    }

    /// Packets are expected from this number on.
    pub(crate) fn start_receiving(&mut self, first: Psn) {
        self.responder.start(first);
        if self.is_reliable() {
            self.reliable.responder = ReliableResponder::default();
        }
    }

    /// Packets are sent from this number on.
    pub(crate) fn start_sending(&mut self, first: Psn) {
        self.requester.start(first);
        if self.is_reliable() {
            self.reliable.requester.start(first);
        }
    }

    /// The number of the next packet that no request has been given yet.
    pub(crate) fn next_psn(&self) -> Psn {
        self.requester.next_psn()
    }

    // --- what its sending half has ----------------------------------------------------------------------------------

    pub(crate) fn send_queue(&self) -> &VecDeque<SendWork> {
        &self.traffic.send_queue
    }

    pub(crate) fn post_send(&mut self, work: SendWork) {
        self.traffic.send_queue.push_back(work);
    }

    /// The request at the cursor.
    #[inline]
    pub(crate) fn work_at_cursor(&self) -> Option<&SendWork> {
        self.traffic.send_queue.get(self.requester.work())
    }

    pub(crate) fn is_cursor_at_front(&self) -> bool {
        self.requester.work() == 0
    }

    /// What a sending half works with.
    #[inline]
    pub(crate) fn sending(&mut self) -> Sending<'_> {
        let traffic = &mut *self.traffic;
        Sending {
            cursor: &mut self.requester,
            queue: &mut traffic.send_queue,
            counters: &mut traffic.counters,
            pacing: self.pacing.as_deref_mut(),
        }
    }

    /// RC: the same, with what go-back-N knows.
    #[inline]
    pub(crate) fn sending_reliably(&mut self) -> (Sending<'_>, &mut ReliableRequester) {
        let traffic = &mut *self.traffic;
        let sending = Sending {
            cursor: &mut self.requester,
            queue: &mut traffic.send_queue,
            counters: &mut traffic.counters,
            pacing: self.pacing.as_deref_mut(),
        };
        (sending, &mut self.reliable.requester)
    }

    /// RC: what go-back-N knows.
    #[inline]
    pub(crate) fn sender(&self) -> &ReliableRequester {
        &self.reliable.requester
    }

    #[inline]
    pub(crate) fn sender_mut(&mut self) -> &mut ReliableRequester {
        &mut self.reliable.requester
    }

    /// RC: its part in the window towards the peer.
    #[inline]
    pub(crate) fn share(&self) -> &PeerShare {
        &self.reliable.share
    }

    #[inline]
    pub(crate) fn share_mut(&mut self) -> &mut PeerShare {
        &mut self.reliable.share
    }

    /// The same, if it has ever been changed.
    #[inline]
    pub(crate) fn share_if_used(&mut self) -> Option<&mut PeerShare> {
        self.reliable.used_mut().map(|reliable| &mut reliable.share)
    }

    pub(crate) fn reliable_if_used(&mut self) -> Option<(&mut ReliableRequester, &mut PeerShare)> {
        self.reliable.used_mut().map(|reliable| (&mut reliable.requester, &mut reliable.share))
    }

    // --- what its receiving half has --------------------------------------------------------------------------------

    #[inline]
    pub(crate) fn responder(&self) -> &Responder {
        &self.responder
    }

    #[inline]
    pub(crate) fn responder_mut(&mut self) -> &mut Responder {
        &mut self.responder
    }

    #[inline]
    pub(crate) fn arriving(&self) -> &Arriving {
        &self.traffic.arriving
    }

    #[inline]
    pub(crate) fn arriving_mut(&mut self) -> &mut Arriving {
        &mut self.traffic.arriving
    }

    /// RC: what the receiving half knows beyond that.
    #[inline]
    pub(crate) fn receiver(&self) -> &ReliableResponder {
        &self.reliable.responder
    }

    #[inline]
    pub(crate) fn receiver_mut(&mut self) -> &mut ReliableResponder {
        &mut self.reliable.responder
    }

    pub(crate) fn receives_posted(&self) -> usize {
        self.traffic.receive_queue.len()
    }

    pub(crate) fn post_receive(&mut self, work: ReceiveWork) {
        self.traffic.receive_queue.push_back(work);
    }

    /// The receive that the next message uses; see [`QueuePair::has_receive`].
    #[inline]
    pub(crate) fn next_receive(&self) -> Option<&ReceiveWork> {
        self.traffic.receive_queue.front()
    }

    // --- what the device knows about it -----------------------------------------------------------------------------

    pub(crate) fn counters(&self) -> QueuePairCounters {
        self.traffic.counters
    }

    #[inline]
    pub(crate) fn counters_mut(&mut self) -> &mut QueuePairCounters {
        &mut self.traffic.counters
    }

    /// Its entry among the device's timers.
    #[inline]
    pub(crate) fn scheduled_mut(&mut self) -> &mut Scheduled {
        &mut self.traffic.scheduled
    }

    pub(crate) fn scheduled_if_used(&mut self) -> Option<&mut Scheduled> {
        self.traffic.used_mut().map(|traffic| &mut traffic.scheduled)
    }

    /// It is to be in the list of those that have something to send. `false` when it is there already.
    #[inline]
    pub(crate) fn join_active(&mut self) -> bool {
        !std::mem::replace(&mut self.is_active, true)
    }

    #[inline]
    pub(crate) fn leave_active(&mut self) {
        self.is_active = false;
    }

    /// If it owes an acknowledgement or a notification, it is to be in the list of those. `false` when it is there already, or
    /// owes none.
    #[inline]
    pub(crate) fn join_answering(&mut self) -> bool {
        self.owes_answer() && !std::mem::replace(&mut self.is_answering, true)
    }

    #[inline]
    pub(crate) fn leave_answering(&mut self) {
        self.is_answering = false;
    }

    /// The same for answers to READs and atomics.
    #[inline]
    pub(crate) fn join_responding(&mut self) -> bool {
        self.reliable.responder.has_unsent_responses() && !std::mem::replace(&mut self.is_responding, true)
    }

    #[inline]
    pub(crate) fn leave_responding(&mut self) {
        self.is_responding = false;
    }

    // --- its pace ---------------------------------------------------------------------------------------------------

    pub(crate) fn is_paced(&self) -> bool {
        self.pacing.is_some()
    }

    #[inline]
    pub(crate) fn pacing_mut(&mut self) -> Option<&mut Pacing> {
        self.pacing.as_deref_mut()
    }

    /// Its pace is made anew when it sends next.
    pub(crate) fn renew_pacing(&mut self) {
        self.pacing = None;
        self.wants_pacing = true;
    }

    /// Its requests have a turn.
    #[inline]
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        if let Some(pacing) = &mut self.pacing {
            pacing.begin_turn(now, !self.reliable.requester.has_asked_last());
            // Not if its pace holds it up: then the answers have still had the last packet.
            self.has_responded_last &= !pacing.has_room();
        }
    }

    /// Its requests have had their turn.
    #[inline]
    pub(crate) fn end_turn(&mut self, now: Instant, turn: Turn) {
        if self.pacing.is_none() || !self.is_reliable() {
            return;
        }
        // Questions that may not be asked yet are as many as the window takes, more or less: then it is not starved.
        let has_questions = self.reliable.requester.has_questions() && self.has_request_to_send();
        if let Some(pacing) = &mut self.pacing {
            pacing.end_turn(now, turn != Turn::More && !has_questions);
        }
    }

    /// Its answers to READs and atomics have a turn.
    #[inline]
    pub(crate) fn begin_answers(&mut self, now: Instant) {
        if let Some(pacing) = &mut self.pacing {
            pacing.begin_answers(now);
        }
    }

    /// An answer of this many bytes has left.
    pub(crate) fn note_answered(&mut self, now: Instant, wire_bytes: u64) {
        if let Some(pacing) = &mut self.pacing {
            pacing.note_answered(now, wire_bytes);
            self.has_responded_last = pacing.shares_pace();
        }
    }

    /// Whether its pace lets another packet leave in this turn.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.pacing.as_ref().is_none_or(|pacing| pacing.has_room())
    }

    pub(crate) fn is_reliable(&self) -> bool {
        self.identity.transport == Transport::ReliableConnection
    }

    pub(crate) fn mtu_bytes(&self) -> u32 {
        self.settings.mtu.byte_count()
    }

    /// RC, UC: the path to the peer, once it is known.
    pub(crate) fn route(&self, config: &Config) -> Option<Route> {
        self.settings.path().map(|path| Route::along(config, self.identity.number, path))
    }

    /// Whether the peer waits for something that can be sent now: an acknowledgement, or a notification that its packets met
    /// congestion.
    pub(crate) fn owes_answer(&self) -> bool {
        self.responder.owes_notification() || self.owes_acknowledgement()
    }

    /// Acknowledgements wait for the answers to READs and atomics before them: one that comes first says that those are lost.
    pub(crate) fn owes_acknowledgement(&self) -> bool {
        self.reliable.responder.has_answer() && !self.reliable.responder.has_unsent_responses()
    }

    /// Whether the peer waits for anything.
    pub(crate) fn owes_anything(&self) -> bool {
        self.owes_answer() || self.reliable.responder.has_unsent_responses()
    }

    /// Whether there is a request at the cursor. (Most packets that arrive on an unreliable connection ask for nothing, and
    /// then the device need not be polled.)
    pub(crate) fn has_request_to_send(&self) -> bool {
        self.traffic.send_queue.len() > self.requester.work()
    }

    /// When it wants to be looked at again, if nothing happens before.
    pub(crate) fn deadline(&self, now: Instant) -> Instant {
        let deadline = self.reliable.requester.deadline().min(self.reliable.share.deadline());
        match &self.pacing {
            Some(pacing) => deadline.min(self.pacing_deadline(pacing, now)),
            None => deadline,
        }
    }

    /// When its pace lets it send what it has to send, or wants a turn for itself.
    fn pacing_deadline(&self, pacing: &Pacing, now: Instant) -> Instant {
        let must_ask = !self.reliable.requester.has_asked_last();
        let requests = self.has_request_to_send().then(|| pacing.blocked_until(now, must_ask)).flatten();
        let answers = self.reliable.responder.has_unsent_responses().then(|| pacing.answers_blocked_until(now));
        let deadlines = [requests, answers.flatten(), pacing.next_deadline()];
        deadlines.into_iter().flatten().min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Give back the receive that was taken for a message that did not use it.
    pub(crate) fn return_receive(&mut self, shared: &mut Resources) {
        if let Some(queue) = self.identity.shared_receive
            && let Some(receive) = self.traffic.used_mut().and_then(|traffic| traffic.receive_queue.pop_front())
        {
            shared.return_shared_receive(queue, receive);
        }
    }

    /// Make its pace, when it sends for the first time: what the configuration says, which spares peers on this host, and its
    /// own rate limit.
    pub(crate) fn make_pacing(&mut self, config: &Config) {
        if !std::mem::take(&mut self.wants_pacing) {
            return;
        }
        let is_local = self.settings.path().is_some_and(|path| config.is_local(path.destination.to_ip()));
        let name = match (self.is_reliable(), config.congestion) {
            // Nothing is acknowledged that a controller could find a rate by.
            (false, Some(ControllerName::Fixed(rate))) => Some(ControllerName::Fixed(rate)),
            (false, _) => config.unacknowledged_bits_per_second.map(ControllerName::Fixed),
            (true, name) => name,
        };
        self.pacing = self.pacing_of(name.filter(|_| !is_local), config).map(Box::new);
    }

    /// RC: put it under the control of this controller. `false` when that cannot be.
    pub(crate) fn set_congestion(&mut self, name: ControllerName, config: &Config) -> bool {
        let is_possible = self.is_reliable() && self.settings.path().is_some() && name != ControllerName::Credit;
        if is_possible {
            self.pacing = self.pacing_of(Some(name), config).map(Box::new);
            self.wants_pacing = false;
        }
        is_possible
    }

    fn pacing_of(&self, name: Option<ControllerName>, config: &Config) -> Option<Pacing> {
        let limit_kilobits = Some(self.settings.rate_limit_kilobits_per_second).filter(|limit| *limit > 0);
        let limit = limit_kilobits.map(|kilobits| u64::from(kilobits) * 1000);
        let mtu = if self.identity.transport == Transport::UnreliableDatagram { config.mtu } else { self.settings.mtu };
        let packet_bytes = mtu.byte_count() + PACKET_HEADER_BYTES;
        let line_bits_per_second = config.rate_bits_per_second;
        let seed = self.identity.number.into();
        let facts = PathFacts { packet_bytes, round_trip: None, line_bits_per_second, seed };
        let (flow, is_measured) = match (name, limit) {
            (None, None) => return None,
            // A rate of its own takes the place of the rate of all.
            (None | Some(ControllerName::Fixed(_)), Some(_)) => (Flow::unlimited(&facts), false),
            (Some(name), _) => (Flow::new(name, &facts), !matches!(name, ControllerName::Fixed(_))),
        };
        let mut pacing = Pacing::new(flow.with_rate_max(limit), packet_bytes, is_measured);
        // A limit is for all that it sends, and so is a rate.
        if self.is_reliable() && limit.is_none() && is_measured {
            pacing = pacing.with_answers_at(config.unacknowledged_bits_per_second);
        }
        // A datagram queue pair has peers here and there.
        pacing.spares_local = limit.is_none();
        Some(pacing)
    }

    /// A packet of this many bytes has left that nobody acknowledges.
    #[inline]
    pub(crate) fn pace(&mut self, now: Instant, wire_bytes: u64) {
        if let Some(pacing) = &mut self.pacing {
            pacing.note_unacknowledged(now, wire_bytes);
        }
    }

    /// Whether its answers have to let its requests pass: both go at one pace, and take turns.
    pub(crate) fn lets_requests_first(&self, now: Instant) -> bool {
        self.has_responded_last
            && self.is_active
            && self.has_request_to_send()
            && !self.reliable.share.is_waiting()
            && self.pacing.as_ref().is_some_and(|pacing| pacing.blocked_until(now, false).is_none())
    }

    /// Make sure that there is a receive for the message that is arriving, if there is any to be had.
    pub(crate) fn has_receive(&mut self, shared: &mut Resources) -> bool {
        if self.traffic.receive_queue.is_empty()
            && let Some(receive) = self.identity.shared_receive.and_then(|queue| shared.take_shared_receive(queue))
        {
            self.traffic.receive_queue.push_back(receive);
        }
        !self.traffic.receive_queue.is_empty()
    }

    /// RC: what is in flight, as the window towards the peer counts it: from the oldest packet that was not
    /// acknowledged to the cursor. What a READ has asked for counts as well: it will come back, but its bytes are in
    /// flight between the two.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        let queue = &self.traffic.send_queue;
        let Some(oldest) = queue.front().filter(|work| work.is_started) else {
            return 0;
        };
        let packet_bytes = charge_bytes(self.mtu_bytes());
        let sender = &self.reliable.requester;
        let acknowledged_packets = sender.acknowledged_packets(oldest.first_psn);
        let from = oldest.first_charge_bytes + u64::from(acknowledged_packets) * packet_bytes;
        let to = match queue.get(self.requester.work()) {
            Some(work) if work.is_started => {
                work.first_charge_bytes + u64::from(self.requester.packet()) * packet_bytes
            }
            _ => sender.next_charge_bytes(),
        };
        debug_assert!(from <= to, "the cursor is never among what was acknowledged");
        to.saturating_sub(from)
    }

    /// Back to how it was made, when it has left its peer ([`Nic::leave_peer`](crate::Nic)). Nothing completes.
    pub(crate) fn reset(&mut self) {
        self.state = QueuePairState::Reset;
        self.settings = Settings::default();
        self.requester = Requester::default();
        self.responder = Responder::default();
        if let Some(traffic) = self.traffic.used_mut() {
            // Its entry among the device's timers is still there.
            *traffic = Traffic { scheduled: traffic.scheduled, ..Traffic::default() };
        }
        self.reliable = Lazy::default();
        self.pacing = None;
        self.wants_pacing = false;
    }
}
