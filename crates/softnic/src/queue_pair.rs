//! A queue pair: its queues, its state, and its two halves.
//!
//! The halves are in files of their own, one per transport and half: `rc_requester`, `rc_responder`, `uc_requester`,
//! `uc_responder`, `ud_requester`, `ud_responder`. What the transports share is in `requester` (a packet from a request)
//! and `responder` (a packet into memory).

use std::collections::VecDeque;

use longhaul_time::Instant;
use longhaul_verbs::{
    Access, AsyncEventKind, AttributeMask, CompletionFlags, CompletionOperation, CompletionStatus, Mtu, PathAttributes,
    QueuePairLimits, QueuePairNumber, QueuePairState, SendFlags, Transport, WorkCompletion,
};

use crate::completion::CompletionQueueKey;
use crate::counters::QueuePairCounters;
use crate::memory::{Accessor, DomainId};
use crate::pacing::Pacer;
use crate::peer::{PeerShare, charge_bytes};
use crate::port::Route;
use crate::rc_requester::ReliableRequester;
use crate::requester::Requester;
use crate::resources::Resources;
use crate::responder::Responder;
use crate::timer::Scheduled;
use crate::work::{ReceiveWork, SendWork};

/// What a queue pair was made with and does not change.
pub(crate) struct Identity {
    pub(crate) number: u32,
    pub(crate) transport: Transport,
    pub(crate) domain: DomainId,
    pub(crate) send_completions: CompletionQueueKey,
    pub(crate) receive_completions: CompletionQueueKey,
    pub(crate) limits: QueuePairLimits,
    pub(crate) signal_all: bool,
}

impl Identity {
    /// As whom it uses keys.
    pub(crate) fn accessor(&self) -> Accessor {
        Accessor { domain: self.domain, queue_pair: self.number }
    }
}

/// What `modify` has set.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Which of these were ever set.
    pub(crate) given: AttributeMask,
    pub(crate) access: Access,
    pub(crate) queue_key: u32,
    pub(crate) path: Option<PathAttributes>,
    pub(crate) mtu: Mtu,
    pub(crate) destination_queue_pair: u32,
    pub(crate) receive_psn: u32,
    pub(crate) send_psn: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) receiver_not_ready_retry: u8,
    pub(crate) min_receiver_not_ready_timer: u8,
    pub(crate) max_read_atomic: u8,
    pub(crate) max_destination_read_atomic: u8,
    pub(crate) send_queue_drained_event: bool,
    pub(crate) rate_limit_kilobits_per_second: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            given: AttributeMask::empty(),
            access: Access::empty(),
            queue_key: 0,
            path: None,
            mtu: Mtu::Bytes1024,
            destination_queue_pair: 0,
            receive_psn: 0,
            send_psn: 0,
            timeout: 0,
            retry_count: 0,
            receiver_not_ready_retry: 0,
            min_receiver_not_ready_timer: 0,
            max_read_atomic: 0,
            max_destination_read_atomic: 0,
            send_queue_drained_event: false,
            rate_limit_kilobits_per_second: 0,
        }
    }
}

/// A queue pair.
pub(crate) struct QueuePair {
    pub(crate) identity: Identity,
    pub(crate) state: QueuePairState,
    pub(crate) settings: Settings,
    /// RC, UC: the way to the peer, once it is known.
    pub(crate) route: Option<Route>,
    pub(crate) send_queue: VecDeque<SendWork>,
    pub(crate) receive_queue: VecDeque<ReceiveWork>,
    pub(crate) requester: Requester,
    pub(crate) reliable: ReliableRequester,
    pub(crate) responder: Responder,
    pub(crate) pacer: Pacer,
    /// RC: its part in the window towards the peer.
    pub(crate) share: PeerShare,
    /// In the device's list of queue pairs that have something to send, or in its peer's queue.
    pub(crate) is_active: bool,
    /// In the device's list of queue pairs that owe their peer an answer.
    pub(crate) is_answering: bool,
    pub(crate) scheduled: Scheduled,
    pub(crate) counters: QueuePairCounters,
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
            state: QueuePairState::Reset,
            settings: Settings::default(),
            route: None,
            send_queue: VecDeque::new(),
            receive_queue: VecDeque::new(),
            requester: Requester::default(),
            reliable: ReliableRequester::default(),
            responder: Responder::default(),
            pacer: Pacer::default(),
            share: PeerShare::default(),
            is_active: false,
            is_answering: false,
            scheduled: Scheduled::default(),
            counters: QueuePairCounters::default(),
        }
    }

    pub(crate) fn mtu_bytes(&self) -> u32 {
        self.settings.mtu.byte_count()
    }

    /// Whether the peer waits for something: an acknowledgement, or a notification that its packets met congestion.
    pub(crate) fn owes_answer(&self) -> bool {
        self.responder.answer.is_some() || self.responder.notify_congestion
    }

    /// Whether there is a request at the cursor. (Most packets that arrive on an unreliable connection ask for nothing, and
    /// then the device need not be polled.)
    pub(crate) fn has_request_to_send(&self) -> bool {
        self.send_queue.len() > self.requester.cursor_work
    }

    /// When it wants to be looked at again, if nothing happens before.
    pub(crate) fn deadline(&self, now: Instant) -> Instant {
        let pacing = match self.pacer.blocked_until(now) {
            Some(later) if self.has_request_to_send() => later,
            _ => Instant::FAR_FUTURE,
        };
        self.reliable.deadline().min(pacing).min(self.share.deadline())
    }

    /// RC: what is in flight, as the window towards the peer counts it: from the oldest packet that was not acknowledged to the
    /// cursor.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        let Some(oldest) = self.send_queue.front().filter(|work| work.is_started) else {
            return 0;
        };
        let packet_bytes = charge_bytes(self.mtu_bytes());
        let acknowledged_packets = self.reliable.acknowledged_packets(oldest.first_psn);
        let from = oldest.first_charge_bytes + u64::from(acknowledged_packets) * packet_bytes;
        let to = match self.send_queue.get(self.requester.cursor_work) {
            Some(work) if work.is_started => {
                work.first_charge_bytes + u64::from(self.requester.cursor_packet) * packet_bytes
            }
            _ => self.reliable.next_charge_bytes,
        };
        debug_assert!(from <= to, "the cursor is never among what was acknowledged");
        to.saturating_sub(from)
    }

    /// Take the send request at the front of the queue and complete it, if anybody wants to know.
    pub(crate) fn complete_send(&mut self, shared: &mut Resources) {
        let Some(work) = self.send_queue.pop_front() else {
            return;
        };
        if work.flags.contains(SendFlags::SIGNALED) || self.identity.signal_all {
            let completion = WorkCompletion {
                id: work.id,
                status: CompletionStatus::Success,
                operation: work.completion_operation(),
                queue_pair: QueuePairNumber::new(self.identity.number),
                ..Default::default()
            };
            shared.complete(self.identity.send_completions, completion, false);
        }
    }

    /// Take the receive at the front of the queue and complete it.
    pub(crate) fn complete_receive(&mut self, shared: &mut Resources, completion: WorkCompletion, solicited: bool) {
        let Some(work) = self.receive_queue.pop_front() else {
            return;
        };
        let queue_pair = QueuePairNumber::new(self.identity.number);
        let completion = WorkCompletion { id: work.id, queue_pair, ..completion };
        shared.complete(self.identity.receive_completions, completion, solicited);
    }

    /// Complete the send at the front in error. What that means for the rest is up to the transport: everything is
    /// flushed and the connection is over (RC), or only the send queue stops (UC, UD).
    pub(crate) fn fail_send(&mut self, shared: &mut Resources, status: CompletionStatus) {
        if let Some(work) = self.send_queue.pop_front() {
            let (into, number) = (self.identity.send_completions, self.identity.number);
            shared.complete_in_error(into, number, work.id, work.completion_operation(), status);
        }
        if self.identity.transport == Transport::ReliableConnection {
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
        self.state = QueuePairState::Error;
        self.responder.abandon_message();
        self.flush_sends(shared);
        self.flush_receives(shared);
    }

    /// Complete every posted send as flushed.
    pub(crate) fn flush_sends(&mut self, shared: &mut Resources) {
        let (into, number) = (self.identity.send_completions, self.identity.number);
        for work in self.send_queue.drain(..) {
            let operation = work.completion_operation();
            shared.complete_in_error(into, number, work.id, operation, CompletionStatus::FlushedError);
        }
        self.requester.rewind();
        self.reliable.stop();
    }

    /// Complete every posted receive as flushed.
    pub(crate) fn flush_receives(&mut self, shared: &mut Resources) {
        let (into, number) = (self.identity.receive_completions, self.identity.number);
        for work in self.receive_queue.drain(..) {
            let operation = CompletionOperation::Receive;
            shared.complete_in_error(into, number, work.id, operation, CompletionStatus::FlushedError);
        }
    }

    /// In SQD, an event when everything that was started is done.
    pub(crate) fn report_drained(&mut self, shared: &mut Resources) {
        let is_drained = self.send_queue.front().is_none_or(|work| !work.is_started);
        if self.state == QueuePairState::SendQueueDrained && is_drained && self.settings.send_queue_drained_event {
            self.settings.send_queue_drained_event = false;
            shared.raise_for(AsyncEventKind::SendQueueDrained, self.identity.number);
        }
    }

    /// Back to how it was made, but for its part in the peer's window ([`Nic::leave_peer`](crate::Nic)). Nothing completes.
    pub(crate) fn reset(&mut self) {
        self.state = QueuePairState::Reset;
        self.settings = Settings::default();
        self.route = None;
        self.send_queue = VecDeque::new();
        self.receive_queue = VecDeque::new();
        self.requester = Requester::default();
        self.reliable = ReliableRequester::default();
        self.responder = Responder::default();
        self.pacer = Pacer::default();
    }
}
