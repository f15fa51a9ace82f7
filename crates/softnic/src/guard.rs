//! The device in the hands of whoever drives it.

use std::ops::Deref;
use std::sync::MutexGuard;

use longhaul_time::Instant;
use longhaul_verbs::QueuePairNumber;

use crate::completion::{CompletionQueue, CompletionQueueKey};
use crate::memory::Piece;
use crate::nic::Nic;
use crate::pacing::RateController;
use crate::port::{Received, TransmitSink};

/// A [`Nic`] that nobody else touches while this exists; verbs calls wait.
///
/// It hands out no `&mut Nic`: with one, safe code could put another `Nic` in its place, and the memory regions registered with
/// the first would be freed while it still knows their addresses.
pub struct NicGuard<'a> {
    nic: MutexGuard<'a, Nic>,
}

impl<'a> NicGuard<'a> {
    pub(crate) fn new(nic: MutexGuard<'a, Nic>) -> Self {
        NicGuard { nic }
    }

    /// A datagram has arrived, its ICRC checked by the port.
    pub fn handle(&mut self, received: &Received<'_>, now: Instant) {
        self.nic.handle(received, now);
    }

    /// A packet has arrived whose payload lies in registered memory already.
    pub(crate) fn handle_in_place(&mut self, received: &Received<'_>, payload: Piece, now: Instant) {
        self.nic.handle_in_place(received, payload, now);
    }

    /// Hand the port what is to be sent now. Stops when the port has no room; then [`Nic::has_output`] says `true`.
    pub fn poll<S: TransmitSink + ?Sized>(&mut self, now: Instant, sink: &mut S) {
        self.nic.poll(now, sink);
    }

    /// The same right after a post, requests first.
    pub(crate) fn poll_after_post<S: TransmitSink + ?Sized>(&mut self, now: Instant, sink: &mut S, answers: bool) {
        self.nic.poll_after_post(now, sink, answers);
    }

    /// The port has dropped a packet because its ICRC was wrong.
    pub fn count_icrc_error(&mut self) {
        self.nic.shared.counters.rx_icrc_encapsulated += 1;
    }

    /// The port has dropped a packet because it was malformed.
    pub fn count_malformed(&mut self) {
        self.nic.shared.counters.rx_malformed += 1;
    }

    pub(crate) fn completion_queue(&mut self, key: CompletionQueueKey) -> Option<&mut CompletionQueue> {
        self.nic.shared.completion_queues.get_mut(key)
    }

    /// Put a queue pair's rate under the control of `controller`. Takes the place of its rate limit. `false` when there is no
    /// such queue pair.
    pub fn set_rate_controller(&mut self, number: QueuePairNumber, controller: Box<dyn RateController>) -> bool {
        self.nic.set_rate_controller(number, controller)
    }
}

impl Deref for NicGuard<'_> {
    type Target = Nic;
    fn deref(&self) -> &Nic {
        &self.nic
    }
}
