//! A queue pair: its queues, its state, and its two halves.
//!
//! What the halves do is in `send` and `receive`, one file per transport and half; what they know is here.

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

use longhaul_time::Instant;
use longhaul_verbs::{
    AsyncEventKind, CompletionFlags, CompletionOperation, CompletionStatus, QueuePairNumber, QueuePairState, SendFlags,
    Transport, WorkCompletion,
};

pub(crate) use identity::{Identity, Limits, QueuePairKey};
pub(crate) use lazy::{Lazy, Unused};
pub(crate) use receive_queue::ReceiveQueue;
pub(crate) use reliable_requester::{ReliableRequester, acknowledge_timeout};
pub(crate) use reliable_responder::{ACKNOWLEDGE, Answer, ReliableResponder, Response};
pub(crate) use requester::Requester;
pub(crate) use responder::{Arriving, Message, Responder};
pub(crate) use settings::Settings;
pub(crate) use work::{
    ATOMIC_BYTES, Attached, Destination, Entries, MESSAGE_BYTES_MAX, ReceiveWork, SendKind, SendWork, list_length,
};

use crate::config::Config;
use crate::counters::QueuePairCounters;
use crate::pace::{FixedRate, HalvingRate, Pacer, PeerShare, RateController, Scheduled, charge_bytes};
use crate::port::Route;
use crate::resources::Resources;

/// A queue pair. A device may have a hundred thousand that do nothing: what only some need, or only while they work, is not in
/// here but behind a pointer.
pub(crate) struct QueuePair {
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// Its queues, and what is arriving.
    pub(crate) traffic: Lazy<Traffic>,
    /// RC only.
    pub(crate) reliable: Lazy<Reliable>,
    /// None while it may send as fast as it can.
    pub(crate) pacer: Option<Box<Pacer>>,
    pub(crate) state: QueuePairState,
    /// A pacer is made when it sends for the first time.
    pub(crate) wants_pacer: bool,
    /// In the device's list of queue pairs that have something to send, or in its peer's queue.
    pub(crate) is_active: bool,
    /// In the device's list of queue pairs that owe their peer an acknowledgement.
    pub(crate) is_answering: bool,
    /// In the device's list of queue pairs that owe their peer the answers of READs and atomics.
    pub(crate) is_responding: bool,
    /// The last packet that its pace let through was an answer.
    pub(crate) has_responded_last: bool,
}

// One that does nothing takes this much, a place in two tables and the program's handle.
const _: () = assert!(size_of::<QueuePair>() <= 176);

/// What a queue pair has once something was posted or has arrived.
#[derive(Default)]
pub(crate) struct Traffic {
    pub(crate) send_queue: VecDeque<SendWork>,
    /// With a shared receive queue, only the receive that it has taken from there.
    pub(crate) receive_queue: ReceiveQueue,
    pub(crate) arriving: Arriving,
    pub(crate) scheduled: Scheduled,
    pub(crate) counters: QueuePairCounters,
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
pub(crate) struct Reliable {
    pub(crate) requester: ReliableRequester,
    pub(crate) responder: ReliableResponder,
    /// Its part in the window towards the peer.
    pub(crate) share: PeerShare,
}

impl Unused for Reliable {
    fn unused() -> &'static Self {
        static UNUSED: Reliable =
            Reliable { requester: ReliableRequester::NEW, responder: ReliableResponder::NEW, share: PeerShare::NONE };
        &UNUSED
    }
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
            pacer: None,
            state: QueuePairState::Reset,
            wants_pacer: false,
            is_active: false,
            is_answering: false,
            is_responding: false,
            has_responded_last: false,
        }
    }

    pub(crate) fn is_reliable(&self) -> bool {
        self.identity.transport == Transport::ReliableConnection
    }

    pub(crate) fn mtu_bytes(&self) -> u32 {
        self.settings.mtu.byte_count()
    }

    /// RC, UC: the way to the peer, once it is known.
    pub(crate) fn route(&self, config: &Config) -> Option<Route> {
        self.settings.path().map(|path| Route::along(config, self.identity.number, path))
    }

    /// Whether the peer waits for something that can be sent now: an acknowledgement, or a notification that its packets met
    /// congestion.
    pub(crate) fn owes_answer(&self) -> bool {
        self.responder.notify_congestion || self.owes_acknowledgement()
    }

    /// Acknowledgements wait for the answers to READs and atomics before them: one that comes first says that those are lost.
    pub(crate) fn owes_acknowledgement(&self) -> bool {
        self.reliable.responder.answer.is_some() && !self.reliable.responder.has_unsent_responses
    }

    /// Whether the peer waits for anything.
    pub(crate) fn owes_anything(&self) -> bool {
        self.owes_answer() || self.reliable.responder.has_unsent_responses
    }

    /// Whether there is a request at the cursor. (Most packets that arrive on an unreliable connection ask for nothing, and
    /// then the device need not be polled.)
    pub(crate) fn has_request_to_send(&self) -> bool {
        self.traffic.send_queue.len() > self.requester.cursor_work as usize
    }

    /// When it wants to be looked at again, if nothing happens before.
    pub(crate) fn deadline(&self, now: Instant) -> Instant {
        let pacing = match self.blocked_until(now) {
            Some(later) if self.has_request_to_send() || self.reliable.responder.has_unsent_responses => later,
            _ => Instant::FAR_FUTURE,
        };
        self.reliable.requester.deadline().min(pacing).min(self.reliable.share.deadline())
    }

    /// Give back the receive that was taken for a message that did not use it.
    pub(crate) fn return_receive(&mut self, shared: &mut Resources) {
        if let Some(queue) = self.identity.shared_receive
            && let Some(receive) = self.traffic.used_mut().and_then(|traffic| traffic.receive_queue.pop_front())
        {
            shared.return_shared_receive(queue, receive);
        }
    }

    /// When its pace lets the next packet leave, if that is not now.
    pub(crate) fn blocked_until(&self, now: Instant) -> Option<Instant> {
        self.pacer.as_ref().and_then(|pacer| pacer.blocked_until(now))
    }

    /// Make what a queue pair is paced with, when it sends for the first time: its own rate limit, or the default, which spares
    /// peers on this host. Only RC hears of losses, and of what arrives again after them.
    pub(crate) fn make_pacer(&mut self, config: &Config) {
        if !std::mem::take(&mut self.wants_pacer) {
            return;
        }
        let own_limit = self.settings.rate_limit_kilobits_per_second;
        if own_limit > 0 {
            let controller = Box::new(FixedRate(u64::from(own_limit) * 1000));
            self.pacer = Some(Box::new(Pacer::new(controller, config.pacing_burst)));
            return;
        }
        let Some(rate) = config.default_rate_bits_per_second else { return };
        if self.settings.path().is_some_and(|path| config.is_local(path.destination.to_ip())) {
            return;
        }
        let controller: Box<dyn RateController> = match self.identity.transport {
            Transport::ReliableConnection => Box::new(HalvingRate::new(rate)),
            _ => Box::new(FixedRate(rate)),
        };
        let mut pacer = Pacer::new(controller, config.pacing_burst);
        // A datagram queue pair has peers here and there.
        pacer.spares_local = true;
        self.pacer = Some(Box::new(pacer));
    }

    /// A packet of so many bytes has left.
    pub(crate) fn pace(&mut self, now: Instant, wire_bytes: u64) {
        if let Some(pacer) = &mut self.pacer {
            pacer.on_sent(now, wire_bytes);
        }
    }

    /// Whether its answers have to let its requests pass: both go at one pace, and take turns.
    pub(crate) fn lets_requests_first(&self, now: Instant) -> bool {
        self.has_responded_last
            && self.is_active
            && self.has_request_to_send()
            && !self.reliable.share.is_waiting()
            && self.blocked_until(now).is_none()
    }

    /// Tell what controls its rate something; nothing happens without such a thing.
    pub(crate) fn report_to_controller(&mut self, report: impl FnOnce(&mut dyn RateController)) {
        if let Some(pacer) = &mut self.pacer {
            pacer.report(report);
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

    /// RC: what is in flight, as the window towards the peer counts it: from the oldest packet that was not acknowledged to the
    /// cursor. What a READ has asked for counts as well: it will come back, but its bytes are on the way between the two.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        let queue = &self.traffic.send_queue;
        let Some(oldest) = queue.front().filter(|work| work.is_started) else {
            return 0;
        };
        let packet_bytes = charge_bytes(self.mtu_bytes());
        let sender = &self.reliable.requester;
        let acknowledged_packets = sender.acknowledged_packets(oldest.first_psn);
        let from = oldest.first_charge_bytes + u64::from(acknowledged_packets) * packet_bytes;
        let to = match queue.get(self.requester.cursor_work as usize) {
            Some(work) if work.is_started => {
                work.first_charge_bytes + u64::from(self.requester.cursor_packet) * packet_bytes
            }
            _ => sender.next_charge_bytes,
        };
        debug_assert!(from <= to, "the cursor is never among what was acknowledged");
        to.saturating_sub(from)
    }

    /// Take the send request at the front of the queue and complete it, if anybody wants to know.
    pub(crate) fn complete_send(&mut self, shared: &mut Resources) {
        let Some(work) = self.traffic.send_queue.pop_front() else {
            return;
        };
        self.report_success(shared, &work);
    }

    /// Tell that a send request has succeeded, if anybody wants to know.
    pub(crate) fn report_success(&mut self, shared: &mut Resources, work: &SendWork) {
        if work.flags.contains(SendFlags::SIGNALED) || self.identity.signal_all {
            let completion = WorkCompletion {
                id: work.id,
                status: CompletionStatus::Success,
                operation: work.completion_operation(),
                byte_count: if work.is_answered() { work.length } else { 0 },
                queue_pair: QueuePairNumber::new(self.identity.number),
                ..Default::default()
            };
            let is_kept = shared.complete(self.identity.send_completions, completion, false);
            self.fail_unless(is_kept, shared);
        }
    }

    /// Take the receive at the front of the queue and complete it.
    pub(crate) fn complete_receive(&mut self, shared: &mut Resources, completion: WorkCompletion, solicited: bool) {
        let Some(work) = self.traffic.receive_queue.pop_front() else {
            return;
        };
        let queue_pair = QueuePairNumber::new(self.identity.number);
        let completion = WorkCompletion { id: work.id, queue_pair, ..completion };
        let is_kept = shared.complete(self.identity.receive_completions, completion, solicited);
        self.fail_unless(is_kept, shared);
    }

    /// A completion that found no room is lost, and with it what a reliable connection promises (IBTA 10.10.2.3, local work queue
    /// catastrophic error). On the unreliable transports programs live with losses.
    fn fail_unless(&mut self, is_kept: bool, shared: &mut Resources) {
        if !is_kept && self.is_reliable() && self.state != QueuePairState::Error {
            shared.raise_for(AsyncEventKind::QueuePairFatal, self.identity.number);
            self.enter_error(shared);
        }
    }

    /// Carry out the request at the front, which concerns this device alone. `false` when it could not be, and the queue
    /// has stopped.
    pub(crate) fn carry_out_local(&mut self, shared: &mut Resources) -> bool {
        let who = self.identity.accessor();
        let done = match self.traffic.send_queue.front().map(|work| &work.kind) {
            Some(SendKind::LocalInvalidate(key)) => shared.memory.invalidate(who, *key),
            Some(SendKind::BindWindow(bind)) => shared.memory.bind_window(who, bind),
            _ => Ok(()),
        };
        match done {
            Ok(()) => self.complete_send(shared),
            Err(_) => self.fail_send(shared, CompletionStatus::WindowBindError),
        }
        done.is_ok()
    }

    /// Complete the send at the front in error. What that means for the rest is up to the transport: everything is
    /// flushed and the connection is over (RC), or only the send queue stops (UC, UD).
    pub(crate) fn fail_send(&mut self, shared: &mut Resources, status: CompletionStatus) {
        if let Some(work) = self.traffic.send_queue.pop_front() {
            let (into, number) = (self.identity.send_completions, self.identity.number);
            shared.complete_in_error(into, number, work.id, work.completion_operation(), status);
        }
        if self.is_reliable() {
            self.enter_error(shared);
        } else {
            self.state = QueuePairState::SendQueueError;
            self.flush_sends(shared);
        }
    }

    /// Complete the receive at the front in error and end the connection.
    pub(crate) fn fail_receive(&mut self, shared: &mut Resources, status: CompletionStatus) {
        let completion = WorkCompletion {
            status,
            operation: CompletionOperation::Receive,
            flags: CompletionFlags::empty(),
            ..Default::default()
        };
        self.complete_receive(shared, completion, false);
        self.enter_error(shared);
    }

    /// Move to the error state: everything that was posted is flushed. An answer that is still to be sent (the NAK that
    /// tells the peer why) stays.
    pub(crate) fn enter_error(&mut self, shared: &mut Resources) {
        let was_in_error = std::mem::replace(&mut self.state, QueuePairState::Error) == QueuePairState::Error;
        if let Some(traffic) = self.traffic.used_mut() {
            traffic.arriving.abandon_message();
        }
        if let Some(reliable) = self.reliable.used_mut() {
            reliable.responder.forget_responses();
        }
        self.flush_sends(shared);
        self.flush_receives(shared);
        if self.identity.shared_receive.is_some() && !was_in_error {
            shared.raise_for(AsyncEventKind::LastWorkRequestReached, self.identity.number);
        }
    }

    /// Complete every posted send as flushed.
    pub(crate) fn flush_sends(&mut self, shared: &mut Resources) {
        let (into, number) = (self.identity.send_completions, self.identity.number);
        if let Some(traffic) = self.traffic.used_mut() {
            #[cfg(feature = "mutations")]
            if shared.config.mutation == Some(crate::config::Mutation::FlushLosesRequest) {
                traffic.send_queue.pop_back();
            }
            for work in traffic.send_queue.drain(..) {
                let operation = work.completion_operation();
                shared.complete_in_error(into, number, work.id, operation, CompletionStatus::FlushedError);
            }
        }
        self.requester.rewind();
        if let Some(reliable) = self.reliable.used_mut() {
            reliable.requester.stop();
        }
    }

    /// Complete every posted receive as flushed.
    pub(crate) fn flush_receives(&mut self, shared: &mut Resources) {
        let (into, number) = (self.identity.receive_completions, self.identity.number);
        let Some(traffic) = self.traffic.used_mut() else { return };
        while let Some(work) = traffic.receive_queue.pop_front() {
            let operation = CompletionOperation::Receive;
            shared.complete_in_error(into, number, work.id, operation, CompletionStatus::FlushedError);
        }
    }

    /// In SQD, an event when everything that was started is done.
    pub(crate) fn report_drained(&mut self, shared: &mut Resources) {
        let is_drained = self.traffic.send_queue.front().is_none_or(|work| !work.is_started);
        if self.state == QueuePairState::SendQueueDrained && is_drained && self.settings.send_queue_drained_event {
            self.settings.send_queue_drained_event = false;
            shared.raise_for(AsyncEventKind::SendQueueDrained, self.identity.number);
        }
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
        self.pacer = None;
        self.wants_pacer = false;
    }
}
