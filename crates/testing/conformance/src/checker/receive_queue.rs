//! Receive queues: the receives that are posted, in order, and the memory they cover; and those that are shared.

use std::collections::{BTreeMap, VecDeque};

use super::memory::Place;

/// One piece of memory of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where.
    pub place: Place,
    /// Bytes.
    pub length: usize,
}

/// A receive that was posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedReceive {
    /// The request's id.
    pub id: u64,
    /// Its memory, in order.
    pub pieces: Vec<Piece>,
    /// Bytes behind that memory that a null region takes.
    pub null_bytes: usize,
    /// One of its keys was deliberately wrong, so it cannot take a message that needs memory.
    pub is_broken: bool,
    /// When it was posted, on a count of all postings.
    pub posting: u64,
    /// How many receives were posted before it since the last reset. Set by `ReceiveQueue::post`.
    pub index: usize,
}

/// What stays known of a receive after it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceiveSummary {
    /// Bytes that fitted.
    pub(super) capacity: usize,
    /// See [`PostedReceive::is_broken`].
    pub(super) is_broken: bool,
    /// See [`PostedReceive::posting`].
    pub(super) posting: u64,
}

impl PostedReceive {
    /// Bytes that fit.
    pub(super) fn capacity(&self) -> usize {
        self.pieces.iter().map(|piece| piece.length).sum::<usize>() + self.null_bytes
    }
}

/// Why a completion cannot be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReceiveFault {
    /// There is no such receive (any more).
    NotPosted,
    /// Another one is older.
    OutOfOrder {
        /// The oldest.
        oldest: u64,
    },
    /// After a failure everything must be flushed.
    AfterFailure,
}

/// The model of a receive queue. Receives complete in the order in which they were posted, each exactly once.
#[derive(Default)]
pub(super) struct ReceiveQueue {
    posted: VecDeque<PostedReceive>,
    /// All since the last reset.
    summaries: Vec<ReceiveSummary>,
    /// Since the last reset: receives taken from the queue by a message.
    completed_count: usize,
    has_flushed: bool,
}

impl ReceiveQueue {
    /// A receive was posted.
    pub(super) fn post(&mut self, receive: PostedReceive) {
        let index = self.summaries.len();
        self.summaries.push(ReceiveSummary {
            capacity: receive.capacity(),
            is_broken: receive.is_broken,
            posting: receive.posting,
        });
        self.posted.push_back(PostedReceive { index, ..receive });
    }

    /// A completion arrived; it must be the oldest receive's.
    pub(super) fn complete(&mut self, id: u64, is_flush: bool) -> Result<PostedReceive, ReceiveFault> {
        let oldest = self.posted.front().ok_or(ReceiveFault::NotPosted)?.id;
        if oldest != id {
            let is_posted = self.posted.iter().any(|receive| receive.id == id);
            return Err(if is_posted { ReceiveFault::OutOfOrder { oldest } } else { ReceiveFault::NotPosted });
        }
        if self.has_flushed && !is_flush {
            return Err(ReceiveFault::AfterFailure);
        }
        let receive = self.posted.pop_front().expect("looked at above");
        if is_flush {
            self.has_flushed = true;
        } else {
            self.completed_count += 1;
        }
        Ok(receive)
    }

    /// The receive that the message with this index (counted since the last reset) takes or took.
    pub(super) fn for_message(&self, index: usize) -> Option<ReceiveSummary> {
        self.summaries.get(index).copied()
    }

    /// All receives since the last reset.
    pub(super) fn summaries(&self) -> &[ReceiveSummary] {
        &self.summaries
    }

    /// Messages taken since the last reset.
    pub(super) fn completed_count(&self) -> usize {
        self.completed_count
    }

    /// Posted and not completed, oldest first.
    pub(super) fn posted(&self) -> impl Iterator<Item = &PostedReceive> {
        self.posted.iter()
    }

    /// How many those are.
    pub(super) fn used(&self) -> usize {
        self.posted.len()
    }

    /// The queue pair was reset: what is left is forgotten.
    pub(super) fn reset(&mut self) -> Vec<PostedReceive> {
        self.completed_count = 0;
        self.summaries.clear();
        self.has_flushed = false;
        self.posted.drain(..).collect()
    }
}

/// A shared receive queue of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedQueueNumber(pub usize);

/// What the judge keeps of a shared receive queue.
#[derive(Default)]
pub(super) struct SharedQueue {
    pub(super) posted: BTreeMap<u64, PostedReceive>,
    /// Queue pairs that were reset may have taken this many with them.
    pub(super) lost_max: usize,
    /// An event is wanted when fewer are left; 0 is never.
    pub(super) limit: usize,
    /// The fewest that were posted since then.
    pub(super) fewest: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(count: u64) -> ReceiveQueue {
        let mut queue = ReceiveQueue::default();
        for id in 0..count {
            queue.post(PostedReceive {
                id,
                pieces: Vec::new(),
                null_bytes: 0,
                is_broken: false,
                posting: id,
                index: 0,
            });
        }
        queue
    }

    #[test]
    fn receives_complete_in_order_and_once() {
        let mut queue = queue(3);
        assert_eq!(queue.complete(1, false), Err(ReceiveFault::OutOfOrder { oldest: 0 }));
        assert_eq!(queue.complete(0, false).unwrap().index, 0);
        assert_eq!(queue.complete(0, false), Err(ReceiveFault::NotPosted));
        assert_eq!(queue.for_message(2).map(|receive| receive.posting), Some(2));
        assert_eq!(queue.for_message(3), None);
    }

    #[test]
    fn a_message_after_a_flush_is_found() {
        let mut queue = queue(3);
        queue.complete(0, true).unwrap();
        assert_eq!(queue.complete(1, false), Err(ReceiveFault::AfterFailure));
    }
}
