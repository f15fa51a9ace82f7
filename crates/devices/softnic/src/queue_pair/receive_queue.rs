//! Receives of one queue pair, in the order in which they were posted.
//!
//! A receive for WRITEs with immediate needs no memory of its own. Programs that count packets by them post thousands, all alike, on each queue
//! pair: a run of them takes as much room as one.

use std::collections::VecDeque;

use super::work::ReceiveWork;

#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    runs: VecDeque<Run>,
    len: usize,
}

/// Receives that differ in nothing.
#[derive(Debug)]
struct Run {
    work: ReceiveWork,
    count: u32,
}

impl ReceiveQueue {
    pub(crate) const fn new() -> Self {
        ReceiveQueue { runs: VecDeque::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn front(&self) -> Option<&ReceiveWork> {
        self.runs.front().map(|run| &run.work)
    }

    pub(crate) fn push_back(&mut self, work: ReceiveWork) {
        self.len += 1;
        match self.runs.back_mut() {
            Some(last) if last.work.id == work.id && last.work.has_no_memory() && work.has_no_memory() => {
                last.count += 1;
            }
            _ => self.runs.push_back(Run { work, count: 1 }),
        }
    }

    pub(crate) fn pop_front(&mut self) -> Option<ReceiveWork> {
        let first = self.runs.front_mut()?;
        self.len -= 1;
        if first.count > 1 {
            first.count -= 1;
            // Without memory: a copy allocates nothing.
            return Some(first.work.clone());
        }
        self.runs.pop_front().map(|run| run.work)
    }
}

#[cfg(test)]
mod tests {
    use longhaul_verbs::ScatterGatherEntry;

    use super::*;
    use crate::queue_pair::Entries;

    #[test]
    fn the_order_is_kept_and_only_what_is_alike_shares_its_place() {
        let memory = [ScatterGatherEntry { address: 4096, length: 64, local_key: 7 }];
        let posted: [(u64, &[ScatterGatherEntry]); 9] =
            [(1, &[]), (1, &[]), (1, &[]), (2, &[]), (1, &[]), (1, &memory), (1, &memory), (1, &[]), (1, &[])];
        let mut queue = ReceiveQueue::new();
        for (id, entries) in posted {
            queue.push_back(ReceiveWork { id, entries: Entries::new(entries) });
        }
        assert_eq!((queue.len(), queue.runs.len()), (9, 6));
        for (left, (id, entries)) in (0..9).rev().zip(posted) {
            assert_eq!(queue.front().map(|work| work.id), Some(id));
            let work = queue.pop_front().expect("it was posted");
            assert_eq!((work.id, work.entries.list().len(), queue.len()), (id, entries.len(), left));
        }
        assert!(queue.is_empty() && queue.pop_front().is_none());
    }

    #[test]
    fn thousands_without_memory_take_the_room_of_one() {
        let mut queue = ReceiveQueue::new();
        (0..4096).for_each(|_| queue.push_back(ReceiveWork { id: 0, entries: Entries::new(&[]) }));
        // As SDR does: one is used, one is posted.
        for _ in 0..10_000 {
            assert!(queue.pop_front().is_some());
            queue.push_back(ReceiveWork { id: 0, entries: Entries::new(&[]) });
        }
        assert_eq!((queue.len(), queue.runs.len()), (4096, 1));
    }
}
