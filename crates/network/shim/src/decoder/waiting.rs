//! Packets that wait behind a missing one.

use std::collections::{BTreeMap, VecDeque};

use longhaul_time::Instant;

use super::shared::Shared;
use crate::coded::identity;
use crate::packet::{Checked, Packet};

/// What waits in one flow: data packets by number, and acknowledgements as they came. What is missing takes no memory.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// None is before the next packet to be handed on.
    data: BTreeMap<u64, Box<Held>>,
    /// With the number of the PSN that they acknowledge, the oldest first.
    acknowledgements: VecDeque<(u64, Box<Held>)>,
    /// None of them has a smaller number.
    first_acknowledged: u64,
    /// Packets that count towards the bound.
    count: usize,
    /// When the oldest data packet came; may be too early after one was taken.
    oldest: Option<Instant>,
    has_taken: bool,
}

/// A packet that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) checked: Checked,
    since: Instant,
    /// Restored ones do not count towards the bound: they are handed on at once.
    is_restored: bool,
}

/// What became of a packet that was to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It waits.
    Held,
    /// It waits already.
    Duplicate,
    /// Another one with its PSN waited, and one of them is a lie. Neither waits now.
    Contradiction,
}

impl Waiting {
    /// What [`spare_bytes`](Waiting::spare_bytes) are when few acknowledgements wait; with more, they count with each.
    pub(super) const FEW_BYTES: usize = 4 * size_of::<(u64, Box<Held>)>();

    pub(super) fn is_empty(&self) -> bool {
        self.data.is_empty() && self.acknowledgements.is_empty()
    }

    pub(super) fn has_data(&self) -> bool {
        !self.data.is_empty()
    }

    pub(super) fn has_acknowledgements(&self) -> bool {
        !self.acknowledgements.is_empty()
    }

    /// Packets that count towards the bound.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Bytes of memory that are not counted with the packets: for each acknowledgement that waits, room for four at most.
    pub(super) fn spare_bytes(&self) -> usize {
        self.acknowledgements.capacity() * size_of::<(u64, Box<Held>)>()
    }

    /// The number after that of the last data packet.
    pub(super) fn end(&self) -> Option<u64> {
        self.data.last_key_value().map(|(number, _)| number + 1)
    }

    /// The number of the first data packet.
    pub(super) fn first(&self) -> Option<u64> {
        self.data.first_key_value().map(|(number, _)| *number)
    }

    /// A data packet.
    pub(super) fn get(&self, number: u64) -> Option<&Held> {
        self.data.get(&number).map(|held| &**held)
    }

    /// When the oldest data packet came.
    pub(super) fn oldest(&mut self) -> Option<Instant> {
        if std::mem::take(&mut self.has_taken) {
            self.oldest = self.data.values().map(|held| held.since).min();
        }
        self.oldest
    }

    /// When the oldest acknowledgement came.
    pub(super) fn oldest_acknowledgement(&self) -> Option<Instant> {
        self.acknowledgements.front().map(|(_, held)| held.since)
    }

    /// A data packet waits.
    pub(super) fn hold(&mut self, number: u64, checked: Checked, now: Instant, shared: &mut Shared) -> Outcome {
        if let Some(held) = self.data.get(&number) {
            let is_same =
                identity(&held.checked.packet, &held.checked.scope) == identity(&checked.packet, &checked.scope);
            if is_same {
                return Outcome::Duplicate;
            }
            self.take(number, shared);
            return Outcome::Contradiction;
        }
        self.count_in(&checked.packet, shared);
        self.oldest.get_or_insert(now);
        self.data.insert(number, Box::new(Held { checked, since: now, is_restored: false }));
        Outcome::Held
    }

    /// An acknowledgement waits.
    pub(super) fn hold_acknowledgement(&mut self, number: u64, checked: Checked, now: Instant, shared: &mut Shared) {
        self.count_in(&checked.packet, shared);
        self.first_acknowledged = self.first_acknowledged.min(number);
        self.acknowledgements.push_back((number, Box::new(Held { checked, since: now, is_restored: false })));
    }

    /// A restored packet takes its place.
    pub(super) fn put_restored(&mut self, number: u64, checked: Checked, now: Instant) {
        self.data.insert(number, Box::new(Held { checked, since: now, is_restored: true }));
    }

    /// A data packet does not wait any more.
    pub(super) fn take(&mut self, number: u64, shared: &mut Shared) -> Option<Checked> {
        let held = self.data.remove(&number)?;
        self.has_taken = true;
        self.release(&held, shared);
        Some(held.checked)
    }

    /// Hands on the acknowledgements of PSNs before `next`, or all.
    pub(super) fn hand_on_acknowledgements(&mut self, next: Option<u64>, shared: &mut Shared, out: &mut Vec<Packet>) {
        if next.is_some_and(|next| next <= self.first_acknowledged) {
            return;
        }
        self.first_acknowledged = u64::MAX;
        for _ in 0..self.acknowledgements.len() {
            let Some((number, held)) = self.acknowledgements.pop_front() else { return };
            if next.is_none_or(|next| number < next) {
                self.release(&held, shared);
                out.push(held.checked.packet);
            } else {
                self.first_acknowledged = self.first_acknowledged.min(number);
                self.acknowledgements.push_back((number, held));
            }
        }
        // Memory is that of those that wait, not of those that once did.
        if 4 * self.acknowledgements.len() < self.acknowledgements.capacity() {
            self.acknowledgements.shrink_to(2 * self.acknowledgements.len());
        }
    }

    fn count_in(&mut self, packet: &Packet, shared: &mut Shared) {
        shared.count_held(packet.datagram.len());
        self.count += 1;
    }

    fn release(&mut self, held: &Held, shared: &mut Shared) {
        if !held.is_restored {
            shared.release_held(held.checked.packet.datagram.len());
            self.count -= 1;
        }
    }
}
