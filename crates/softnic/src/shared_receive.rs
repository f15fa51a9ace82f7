//! Shared receive queues: receives that many queue pairs take from.
//!
//! A queue pair takes a receive when a message begins, and holds it until the message is complete. Which queue pair gets
//! which receive is therefore decided by the order in which messages begin.

use std::collections::VecDeque;

use longhaul_verbs::{AsyncEvent, AsyncEventKind, EventSource, SharedReceiveQueueAttributes};
use slotmap::{Key, new_key_type};

use crate::memory::DomainId;
use crate::resources::Resources;
use crate::work::ReceiveWork;

new_key_type! {
    /// A shared receive queue of one device.
    pub(crate) struct SharedReceiveQueueKey;
}

impl SharedReceiveQueueKey {
    /// The number that names it in events.
    pub(crate) fn handle(self) -> u32 {
        // The lower half of slotmap's number is the slot, unique among living queues.
        self.data().as_ffi() as u32
    }
}

/// A shared receive queue.
pub(crate) struct SharedReceiveQueue {
    pub(crate) domain: DomainId,
    receives: VecDeque<ReceiveWork>,
    /// `limit` is 0 when no event is wanted, and becomes 0 when it has been raised.
    attributes: SharedReceiveQueueAttributes,
    /// Queue pairs that take from it.
    users: u32,
    /// The program has dropped it; it goes with its last user.
    is_abandoned: bool,
}

impl SharedReceiveQueue {
    pub(crate) fn new(domain: DomainId, attributes: SharedReceiveQueueAttributes) -> Self {
        SharedReceiveQueue { domain, receives: VecDeque::new(), attributes, users: 0, is_abandoned: false }
    }

    pub(crate) fn attributes(&self) -> SharedReceiveQueueAttributes {
        self.attributes
    }

    /// `false` when it is full.
    pub(crate) fn post(&mut self, work: ReceiveWork) -> bool {
        let has_room = self.receives.len() < self.attributes.requests as usize;
        if has_room {
            self.receives.push_back(work);
        }
        has_room
    }

    /// Whether fewer receives are left than the program wants to be told of. Says so once.
    fn take_limit_reached(&mut self) -> bool {
        let is_reached = self.receives.len() < self.attributes.limit as usize;
        if is_reached {
            self.attributes.limit = 0;
        }
        is_reached
    }
}

impl Resources {
    /// The next receive of a shared queue.
    pub(crate) fn take_shared_receive(&mut self, key: SharedReceiveQueueKey) -> Option<ReceiveWork> {
        let queue = self.shared_receive_queues.get_mut(key)?;
        let work = queue.receives.pop_front()?;
        self.report_shared_receive_limit(key);
        Some(work)
    }

    /// Whether a shared queue has a receive.
    pub(crate) fn has_shared_receive(&self, key: SharedReceiveQueueKey) -> bool {
        self.shared_receive_queues.get(key).is_some_and(|queue| !queue.receives.is_empty())
    }

    /// Raise the event when too few receives are left.
    fn report_shared_receive_limit(&mut self, key: SharedReceiveQueueKey) {
        if self.shared_receive_queues.get_mut(key).is_some_and(SharedReceiveQueue::take_limit_reached) {
            let source = EventSource::SharedReceiveQueue(key.handle());
            self.raise(AsyncEvent { kind: AsyncEventKind::SharedReceiveQueueLimitReached, source });
        }
    }

    /// A queue pair begins to take from a shared queue.
    pub(crate) fn join_shared_receive_queue(&mut self, key: SharedReceiveQueueKey) {
        if let Some(queue) = self.shared_receive_queues.get_mut(key) {
            queue.users += 1;
        }
    }

    /// A queue pair has stopped taking from a shared queue; the last one takes an abandoned queue with it.
    pub(crate) fn leave_shared_receive_queue(&mut self, key: SharedReceiveQueueKey) {
        if let Some(queue) = self.shared_receive_queues.get_mut(key) {
            queue.users -= 1;
            if queue.users == 0 && queue.is_abandoned {
                self.shared_receive_queues.remove(key);
            }
        }
    }

    /// The program has dropped a shared queue. Queue pairs keep theirs alive.
    pub(crate) fn abandon_shared_receive_queue(&mut self, key: SharedReceiveQueueKey) {
        let Some(queue) = self.shared_receive_queues.get_mut(key) else { return };
        if queue.users > 0 {
            queue.is_abandoned = true;
        } else {
            self.shared_receive_queues.remove(key);
        }
    }
}
