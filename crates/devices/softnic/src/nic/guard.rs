//! The device in the hands of its driver.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LockResult, Mutex, MutexGuard};

use longhaul_congestion::ControllerName;
use longhaul_time::Instant;
use longhaul_verbs::{LinkState, QueuePairNumber};

use crate::memory::Piece;
use crate::nic::Nic;
use crate::port::{Received, TransmitSink};
use crate::queue_pair::QueuePairKey;
use crate::resources::{CompletionQueue, CompletionQueueKey};

/// A [`Nic`] that several threads use, one at a time. Its driver may hold it longer than anybody holds the device.
pub struct NicLock {
    nic: Mutex<Nic>,
    /// How many threads wait for it.
    waiting: AtomicU32,
}

impl NicLock {
    pub(crate) fn new(nic: Nic) -> Self {
        NicLock { nic: Mutex::new(nic), waiting: AtomicU32::new(0) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Nic> {
        // A panic while the lock was held is a bug of ours; going on with half a change would hide it.
        self.lock_unless_panicked().expect("no other thread has panicked inside the device")
    }

    /// For destructors, which must not panic a second time: an error when somebody has panicked inside the device.
    pub(crate) fn lock_unless_panicked(&self) -> LockResult<MutexGuard<'_, Nic>> {
        if let Ok(nic) = self.nic.try_lock() {
            return Ok(nic);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let result = self.nic.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// The device, for its driver. Verbs calls wait while it is held.
    pub fn guard(&self) -> NicGuard<'_> {
        NicGuard::new(self.lock())
    }

    /// Whether somebody waits for the lock. Of the past when it is known: good only for being polite.
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

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

    /// What was expected to arrive next has not.
    pub fn expect_nothing(&mut self) {
        self.nic.expect_nothing();
    }

    /// A packet has arrived whose payload lies in registered memory already.
    ///
    /// # Safety
    ///
    /// `payload` is what [`ExpectedPackets::payload`](crate::ExpectedPackets::payload) gave for packets that this device
    /// expected, and the device has stayed locked since.
    #[allow(unsafe_code, reason = "the port promises that the payload is in memory that is still registered")]
    pub unsafe fn handle_in_place(&mut self, received: &Received<'_>, payload: Piece, now: Instant) {
        self.nic.handle_in_place(received, payload, now);
    }

    /// Whether arrivals are left at the port that the device has not seen. While some are, nobody takes silence for a loss:
    /// the acknowledgement may be among them. So a host that was stopped for longer than a time-out does not send
    /// everything again. Bounded in time, so that a flood does not keep time-outs from ever being noticed.
    pub fn note_arrivals_left(&mut self, has_more: bool, now: Instant) {
        self.nic.note_arrivals_left(has_more, now);
    }

    /// Hand the port what is to be sent now. Stops when the port has no room; then [`Nic::has_output`] says `true`.
    pub fn poll<S: TransmitSink + ?Sized>(&mut self, now: Instant, sink: &mut S) {
        self.nic.poll(now, sink);
    }

    /// The same right after a post: requests first, and what is owed to peers only if `answers` says so.
    pub fn poll_after_post<S: TransmitSink + ?Sized>(&mut self, now: Instant, sink: &mut S, answers: bool) {
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

    /// The port's link has come up or gone down: programs are told by an asynchronous event, and by the port's attributes.
    /// Nothing else changes; what cannot be sent is the port's to drop.
    pub fn set_link_state(&mut self, state: LinkState) {
        self.nic.shared.set_link_state(state);
    }

    /// The state of the port's link when the device is opened: not a change, since there was nobody to see it otherwise.
    pub fn begin_with_link_state(&mut self, state: LinkState) {
        self.nic.shared.link_state = state;
    }

    pub(crate) fn completion_queue(&mut self, key: CompletionQueueKey) -> Option<&mut CompletionQueue> {
        self.nic.shared.completion_queues.get_mut(key)
    }

    pub(crate) fn remove_queue_pair(&mut self, key: QueuePairKey) -> bool {
        self.nic.remove_queue_pair(key)
    }

    /// Put a reliable connection under the control of this controller, wherever its peer is. Its rate limit stays a cap.
    /// `false` when there is no such queue pair, it has no peer yet, or the controller needs a receiver that grants credit.
    pub fn set_congestion(&mut self, number: QueuePairNumber, name: ControllerName) -> bool {
        self.nic.set_congestion(number, name)
    }
}

impl Deref for NicGuard<'_> {
    type Target = Nic;
    fn deref(&self) -> &Nic {
        &self.nic
    }
}
