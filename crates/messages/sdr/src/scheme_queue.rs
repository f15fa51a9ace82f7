//! What the schemes of two ends send each other: records to be sent, and records received.

use std::collections::VecDeque;

/// Memory for what waits: enough for all frames that can arrive before anybody looks. A peer with hundreds of messages in flight says several
/// things about each at once, and what is dropped here is said again only when somebody's patience is over.
const BYTES_MAX: usize = 512 * 1024;

/// What a record takes: an empty one takes memory, too.
fn cost(record: &Vec<u8>) -> usize {
    size_of_val(record) + record.len()
}

/// Records of a scheme, in order. There is room for a certain number of bytes.
#[derive(Debug, Default)]
pub(crate) struct SchemeQueue {
    records: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl SchemeQueue {
    /// Add a record, unless there is no room for it. Returns whether there was.
    pub(crate) fn push(&mut self, record: Vec<u8>) -> bool {
        if self.bytes + cost(&record) > BYTES_MAX {
            return false;
        }
        self.bytes += cost(&record);
        self.records.push_back(record);
        true
    }

    /// Add a record, in place of the oldest ones if there is no room. Returns how many were dropped.
    pub(crate) fn push_newest(&mut self, record: Vec<u8>) -> u64 {
        let mut dropped = 0;
        while self.bytes + cost(&record) > BYTES_MAX && self.pop().is_some() {
            dropped += 1;
        }
        self.bytes += cost(&record);
        self.records.push_back(record);
        dropped
    }

    pub(crate) fn pop(&mut self) -> Option<Vec<u8>> {
        let record = self.records.pop_front()?;
        self.bytes -= cost(&record);
        Some(record)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.records.iter().map(Vec::as_slice)
    }

    /// Forget the first ones.
    pub(crate) fn drop_first(&mut self, count: usize) {
        self.bytes -= self.records.drain(..count).map(|record| cost(&record)).sum::<usize>();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_records_of_hundreds_of_messages_have_room_and_long_ones_are_bounded() {
        let mut queue = SchemeQueue::default();
        assert!((0..10_000).all(|_| queue.push(vec![1; 9])));
        assert_eq!(queue.iter().count(), 10_000);
        queue.drop_first(9_999);
        assert_eq!((queue.pop(), queue.pop(), queue.bytes), (Some(vec![1; 9]), None, 0));
        let taken = (0..1000).filter(|_| queue.push(vec![2; 1000])).count();
        assert_eq!(taken, BYTES_MAX / 1024);
        assert_eq!(queue.push_newest(vec![3; 1500]), 2, "two that are older had to go");
        assert!(queue.bytes <= BYTES_MAX && !queue.is_empty());
        assert_eq!(queue.iter().last(), Some(&[3; 1500][..]));
        let mut queue = SchemeQueue::default();
        let taken = (0..1_000_000).filter(|_| queue.push(Vec::new())).count();
        assert!(taken < 30_000, "{taken} empty records");
    }
}
