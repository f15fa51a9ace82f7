//! What happens next.
//!
//! Events come from sources: each direction of each link (its earliest arrival), each node (its deadline), and the
//! schedule of faults, if there is one. A
//! source has at most one entry, whose key can be changed in place, so the queue never grows beyond the network and
//! never holds leftovers of timers that moved. It is a heap of four children a parent: half the levels of a binary
//! one, and the keys of a parent's children lie side by side.

use std::fmt;

use longhaul_time::Instant;

/// When an event happens. Events of the same instant happen in the order in which they were announced.
///
/// Instant and sequence number are one integer, which compares without a branch: which event of several comes first
/// is a coin toss to the processor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EventKey(u128);

impl EventKey {
    #[inline]
    pub(crate) fn new(at: Instant, sequence: u64) -> Self {
        EventKey((u128::from(at.as_nanos()) << 64) | u128::from(sequence))
    }

    #[inline]
    pub(crate) fn at(self) -> Instant {
        Instant::from_nanos((self.0 >> 64) as u64)
    }
}

impl fmt::Debug for EventKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}#{}", self.at(), self.0 as u64)
    }
}

/// What an event comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The direction with this index.
    Lane(usize),
    /// The node with this index.
    Node(usize),
    /// The schedule of faults.
    Faults,
}

const CHILDREN: usize = 4;
const ABSENT: u32 = u32::MAX;

/// Sources in the order of their next events.
#[derive(Default)]
pub(crate) struct EventQueue {
    /// The heap's keys, each with its owner.
    keys: Vec<EventKey>,
    owners: Vec<u32>,
    /// Where each source is in the heap, or `ABSENT`. Sources are numbered as they are added.
    positions: Vec<u32>,
    sources: Vec<Source>,
}

/// A source's number in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceId(u32);

impl EventQueue {
    pub(crate) fn add_source(&mut self, source: Source) -> SourceId {
        let id = u32::try_from(self.sources.len()).expect("fewer than 2^32 nodes and links: they fit in memory");
        self.sources.push(source);
        self.positions.push(ABSENT);
        SourceId(id)
    }

    /// The next event.
    #[inline]
    pub(crate) fn peek(&self) -> Option<(EventKey, Source)> {
        let key = *self.keys.first()?;
        Some((key, self.sources[self.owners[0] as usize]))
    }

    /// Sets a source's next event, whether it had one or not.
    #[inline]
    pub(crate) fn set(&mut self, source: SourceId, key: EventKey) {
        let position = self.positions[source.0 as usize];
        if position == ABSENT {
            self.keys.push(key);
            self.owners.push(source.0);
            self.sift_up(self.keys.len() - 1, key, source.0);
        } else if key < self.keys[position as usize] {
            self.sift_up(position as usize, key, source.0);
        } else {
            self.sift_down(position as usize, key, source.0);
        }
    }

    /// Takes a source out.
    #[inline]
    pub(crate) fn remove(&mut self, source: SourceId) {
        let position = std::mem::replace(&mut self.positions[source.0 as usize], ABSENT);
        if position == ABSENT {
            return;
        }
        let (Some(key), Some(owner)) = (self.keys.pop(), self.owners.pop()) else {
            unreachable!("a source has a position, so the heap is not empty");
        };
        if owner == source.0 {
            return;
        }
        // The last entry takes the free place.
        let position = position as usize;
        if position > 0 && key < self.keys[(position - 1) / CHILDREN] {
            self.sift_up(position, key, owner);
        } else {
            self.sift_down(position, key, owner);
        }
    }

    /// Places an entry at `position` or above.
    #[inline]
    fn sift_up(&mut self, mut position: usize, key: EventKey, owner: u32) {
        while position > 0 {
            let parent = (position - 1) / CHILDREN;
            if self.keys[parent] <= key {
                break;
            }
            self.put(position, self.keys[parent], self.owners[parent]);
            position = parent;
        }
        self.put(position, key, owner);
    }

    /// Places an entry at `position` or below.
    #[inline]
    fn sift_down(&mut self, mut position: usize, key: EventKey, owner: u32) {
        while let Some(child) = self.earliest_child(position) {
            let child_key = self.keys[child];
            if key <= child_key {
                break;
            }
            self.put(position, child_key, self.owners[child]);
            position = child;
        }
        self.put(position, key, owner);
    }

    #[inline]
    fn earliest_child(&self, position: usize) -> Option<usize> {
        let first = position * CHILDREN + 1;
        let rest = self.keys.get(first..)?;
        if let Some([one, two, three, four]) = rest.first_chunk::<CHILDREN>() {
            // Two matches and a final, all without a branch.
            let left = usize::from(two < one);
            let right = 2 + usize::from(four < three);
            return Some(first + if rest[right] < rest[left] { right } else { left });
        }
        (0..rest.len()).min_by_key(|&offset| rest[offset]).map(|offset| first + offset)
    }

    #[inline]
    fn put(&mut self, position: usize, key: EventKey, owner: u32) {
        self.keys[position] = key;
        self.owners[position] = owner;
        self.positions[owner as usize] = position as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    const SOURCE_COUNT: usize = 40;

    #[derive(Clone, Debug)]
    enum Operation {
        Set { source: usize, at: u64 },
        Remove { source: usize },
    }

    fn operations() -> impl Strategy<Value = Vec<Operation>> {
        let one = prop_oneof![
            3 => (0..SOURCE_COUNT, 0u64..50).prop_map(|(source, at)| Operation::Set { source, at }),
            1 => (0..SOURCE_COUNT).prop_map(|source| Operation::Remove { source }),
        ];
        prop::collection::vec(one, 0..400)
    }

    proptest! {
        /// Against a map from source to key, searched for its least.
        #[test]
        fn the_least_key_is_always_first(operations in operations()) {
            let mut queue = EventQueue::default();
            let ids: Vec<SourceId> =
                (0..SOURCE_COUNT).map(|source| queue.add_source(Source::Node(source))).collect();
            let mut model: BTreeMap<usize, EventKey> = BTreeMap::new();
            let least = |model: &BTreeMap<usize, EventKey>| {
                model.iter().map(|(&source, &key)| (key, Source::Node(source))).min_by_key(|(key, _)| *key)
            };
            for (sequence, operation) in operations.into_iter().enumerate() {
                match operation {
                    Operation::Set { source, at } => {
                        let key = EventKey::new(Instant::from_nanos(at), sequence as u64);
                        queue.set(ids[source], key);
                        model.insert(source, key);
                    }
                    Operation::Remove { source } => {
                        queue.remove(ids[source]);
                        model.remove(&source);
                    }
                }
                prop_assert_eq!(queue.peek(), least(&model));
                prop_assert_eq!(queue.keys.len(), model.len());
            }
            while let Some((_, Source::Node(source))) = queue.peek() {
                prop_assert_eq!(queue.peek(), least(&model));
                queue.remove(ids[source]);
                model.remove(&source);
            }
            prop_assert!(model.is_empty());
        }
    }
}
