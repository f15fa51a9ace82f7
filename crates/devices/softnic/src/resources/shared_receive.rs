//! Shared receive queues: receives that many queue pairs take from.
//!
//! A queue pair takes a receive when a message begins, and holds it until the message is complete, or has turned out to be
//! none, or the queue pair is reset or destroyed: then it gives the receive back. One in the state ERR flushes it. Which queue pair gets
//! which receive is therefore decided by the order in which messages begin.

use std::collections::VecDeque;

use longhaul_verbs::{
    AsyncEvent, AsyncEventKind, EventSource, ModifyError, PostError, PostErrorKind, ReceiveRequest,
    SharedReceiveQueueAttributes, SharedReceiveQueueChange,
};
use slotmap::{Key, new_key_type};

use crate::queue_pair::{Entries, ReceiveWork};
use crate::resources::Resources;

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
    receives: VecDeque<ReceiveWork>,
    /// `limit` is 0 when no event is wanted, and becomes 0 when it has been raised.
    attributes: SharedReceiveQueueAttributes,
    /// Queue pairs that take from it.
    users: u32,
    /// The program has dropped it; it goes with its last user.
    is_abandoned: bool,
}

impl SharedReceiveQueue {
    pub(crate) fn new(attributes: SharedReceiveQueueAttributes) -> Self {
        SharedReceiveQueue { receives: VecDeque::new(), attributes, users: 0, is_abandoned: false }
    }

    pub(crate) fn attributes(&self) -> SharedReceiveQueueAttributes {
        self.attributes
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

    /// Post receives, in order.
    pub(crate) fn post_shared_receive(
        &mut self,
        key: SharedReceiveQueueKey,
        requests: &[ReceiveRequest<'_>],
    ) -> Result<(), PostError> {
        let Some(queue) = self.shared_receive_queues.get_mut(key) else {
            return Err(PostErrorKind::Gone.at(0));
        };
        let SharedReceiveQueueAttributes { requests: depth, entries: most, .. } = queue.attributes;
        for (index, request) in requests.iter().enumerate() {
            if queue.receives.len() >= depth as usize {
                return Err(PostErrorKind::QueueFull { depth }.at(index));
            }
            if request.local.len() > most as usize {
                return Err(PostErrorKind::TooManyEntries { entries: request.local.len(), most }.at(index));
            }
            queue.receives.push_back(ReceiveWork { id: request.id, entries: Entries::new(request.local) });
        }
        Ok(())
    }

    /// Change a shared queue, all or nothing. A limit that is above what is left has been reached already.
    pub(crate) fn modify_shared_receive_queue(
        &mut self,
        key: SharedReceiveQueueKey,
        change: SharedReceiveQueueChange,
    ) -> Result<(), ModifyError> {
        let most = self.config.work_requests_max;
        let queue = self.shared_receive_queues.get_mut(key).ok_or(ModifyError::Gone)?;
        let requests = change.requests.unwrap_or(queue.attributes.requests);
        let limit = change.limit.unwrap_or(queue.attributes.limit);
        if requests == 0 || requests > most || (requests as usize) < queue.receives.len() {
            return Err(ModifyError::InvalidArgument {
                what: "shared receive requests",
                expected: "at least one, at least as many as are posted, and at most the device's limit",
            });
        }
        if limit > requests {
            return Err(ModifyError::InvalidArgument {
                what: "limit of a shared receive queue",
                expected: "at most as many as it can hold",
            });
        }
        queue.attributes = SharedReceiveQueueAttributes { requests, limit, ..queue.attributes };
        self.report_shared_receive_limit(key);
        Ok(())
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

    /// A queue pair gives back a receive that its message did not use. It is the next one again.
    pub(crate) fn return_shared_receive(&mut self, key: SharedReceiveQueueKey, receive: ReceiveWork) {
        if let Some(queue) = self.shared_receive_queues.get_mut(key) {
            queue.receives.push_front(receive);
        }
    }

    /// The program has dropped a shared queue. Queue pairs keep theirs alive; its events go at once, because another queue may
    /// be given its handle.
    pub(crate) fn abandon_shared_receive_queue(&mut self, key: SharedReceiveQueueKey) {
        let source = EventSource::SharedReceiveQueue(key.handle());
        self.events.retain(|event| event.source != source);
        let Some(queue) = self.shared_receive_queues.get_mut(key) else { return };
        if queue.users > 0 {
            queue.is_abandoned = true;
        } else {
            self.shared_receive_queues.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_verbs::ScatterGatherEntry;

    use super::*;
    use crate::config::Config;

    fn resources(requests: u32, limit: u32) -> (Resources, SharedReceiveQueueKey) {
        let mut resources = Resources::new(Config::new("test", vec!["10.0.0.1".parse().unwrap()], [0; 32]));
        let attributes = SharedReceiveQueueAttributes { requests, entries: 2, limit };
        let key = resources.shared_receive_queues.insert(SharedReceiveQueue::new(attributes));
        (resources, key)
    }

    fn post(resources: &mut Resources, key: SharedReceiveQueueKey, ids: &[u64]) -> Result<(), PostError> {
        let requests: Vec<_> = ids.iter().map(|&id| ReceiveRequest { id, local: &[] }).collect();
        resources.post_shared_receive(key, &requests)
    }

    fn change(requests: Option<u32>, limit: Option<u32>) -> SharedReceiveQueueChange {
        SharedReceiveQueueChange { requests, limit }
    }

    fn limit(resources: &Resources, key: SharedReceiveQueueKey) -> u32 {
        resources.shared_receive_queues[key].attributes().limit
    }

    #[test]
    fn receives_are_taken_in_order_and_bounded() {
        let (mut resources, key) = resources(3, 0);
        assert!(resources.take_shared_receive(key).is_none());
        let error = post(&mut resources, key, &[1, 2, 3, 4]).unwrap_err();
        assert!(matches!(error, PostError { index: 3, kind: PostErrorKind::QueueFull { depth: 3 } }));
        let ids: Vec<_> = std::iter::from_fn(|| resources.take_shared_receive(key)).map(|work| work.id).collect();
        assert_eq!(ids, [1, 2, 3]);
        let entries = [ScatterGatherEntry::default(); 3];
        let requests = [ReceiveRequest { id: 5, local: &entries[..2] }, ReceiveRequest { id: 6, local: &entries }];
        let error = resources.post_shared_receive(key, &requests).unwrap_err();
        assert!(matches!(error, PostError { index: 1, kind: PostErrorKind::TooManyEntries { entries: 3, most: 2 } }));
        assert_eq!(resources.take_shared_receive(key).map(|work| work.id), Some(5));
        assert_eq!(resources.events.len(), 0);
    }

    #[test]
    fn the_limit_is_reported_once() {
        let (mut resources, key) = resources(4, 2);
        // Making it with a limit is not reaching it, nor is posting.
        post(&mut resources, key, &[1]).unwrap();
        post(&mut resources, key, &[2, 3]).unwrap();
        assert!(resources.take_shared_receive(key).is_some());
        assert_eq!((resources.events.len(), limit(&resources, key)), (0, 2), "two are left, not fewer");
        assert!(resources.take_shared_receive(key).is_some());
        let event = AsyncEvent {
            kind: AsyncEventKind::SharedReceiveQueueLimitReached,
            source: EventSource::SharedReceiveQueue(key.handle()),
        };
        assert_eq!((resources.events.pop(), limit(&resources, key)), (Some(event), 0));
        assert!(resources.take_shared_receive(key).is_some());
        assert_eq!(resources.events.pop(), None);
        // Armed again with enough receives, and then with too few.
        post(&mut resources, key, &[4]).unwrap();
        resources.modify_shared_receive_queue(key, change(None, Some(1))).unwrap();
        assert_eq!((resources.events.pop(), limit(&resources, key)), (None, 1));
        resources.modify_shared_receive_queue(key, change(None, Some(2))).unwrap();
        assert_eq!((resources.events.pop(), limit(&resources, key)), (Some(event), 0));
    }

    #[test]
    fn it_is_resized_but_not_below_what_is_posted() {
        let (mut resources, key) = resources(2, 0);
        post(&mut resources, key, &[1, 2]).unwrap();
        resources.modify_shared_receive_queue(key, change(Some(3), Some(2))).unwrap();
        post(&mut resources, key, &[3]).unwrap();
        for bad in [change(Some(2), None), change(Some(0), None), change(Some(u32::MAX), None), change(None, Some(4))] {
            let result = resources.modify_shared_receive_queue(key, bad);
            assert!(matches!(result, Err(ModifyError::InvalidArgument { .. })), "{bad:?}");
        }
        let attributes = SharedReceiveQueueAttributes { requests: 3, entries: 2, limit: 2 };
        assert_eq!(resources.shared_receive_queues[key].attributes(), attributes);
        assert!(post(&mut resources, key, &[4]).is_err());
    }

    #[test]
    fn queue_pairs_keep_it_alive() {
        let (mut resources, key) = resources(2, 0);
        post(&mut resources, key, &[1]).unwrap();
        resources.join_shared_receive_queue(key);
        resources.join_shared_receive_queue(key);
        resources.leave_shared_receive_queue(key);
        resources.abandon_shared_receive_queue(key);
        assert!(resources.take_shared_receive(key).is_some());
        resources.leave_shared_receive_queue(key);
        assert!(resources.shared_receive_queues.is_empty());
        let (mut resources, key) = self::resources(2, 0);
        resources.join_shared_receive_queue(key);
        resources.leave_shared_receive_queue(key);
        assert!(resources.shared_receive_queues.contains_key(key), "the program still has it");
        resources.abandon_shared_receive_queue(key);
        assert!(resources.shared_receive_queues.is_empty());
    }
}
