//! How requests of a queue pair end: done, failed or flushed.

use longhaul_verbs::{
    AsyncEventKind, CompletionFlags, CompletionOperation, CompletionStatus, QueuePairNumber, QueuePairState, SendFlags,
    WorkCompletion,
};

use super::QueuePair;
use super::work::{SendKind, SendWork};
use crate::resources::Resources;

impl QueuePair {
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

    /// Move to the error state: everything that was posted is flushed. An answer that is still to be sent (the NAK with
    /// the reason) stays.
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
}
