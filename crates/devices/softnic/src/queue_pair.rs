//! A queue pair: its queues, its state, and its two halves.
//!
//! What the halves do is in `send` and `receive`, one file per transport and half; what they know is here.

mod completing;
mod identity;
mod lazy;
mod pace;
mod receive_queue;
mod reliable_requester;
mod reliable_responder;
mod requester;
mod responder;
mod settings;
mod work;

use std::collections::VecDeque;

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
use crate::pace::{Pacing, PeerShare, Scheduled, charge_bytes};
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

    /// Give back the receive that was taken for a message that did not use it.
    pub(crate) fn return_receive(&mut self, shared: &mut Resources) {
        if let Some(queue) = self.identity.shared_receive
            && let Some(receive) = self.traffic.used_mut().and_then(|traffic| traffic.receive_queue.pop_front())
        {
            shared.return_shared_receive(queue, receive);
        }
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
