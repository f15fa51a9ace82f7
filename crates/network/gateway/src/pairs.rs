//! What the packets between two hosts looked like last: a restored packet needs an Ethernet header, and there is none in a sum.

use std::collections::BTreeMap;
use std::net::IpAddr;

use longhaul_time::{Duration, Instant};

use crate::frame::LinkHeader;

/// How many pairs are looked at to find one that makes room.
const EVICTION_STEPS: usize = 16;

/// Source and destination.
pub(crate) type Pair = (IpAddr, IpAddr);

/// Link headers by pairs of hosts, as many as the configuration allows.
#[derive(Debug)]
pub(crate) struct Pairs {
    index: BTreeMap<Pair, usize>,
    slots: Vec<Slot>,
    pairs_max: usize,
    /// A pair that was silent for this long makes room. Longer than any packet waits in the shim, so that a packet that comes out
    /// finds its header.
    idle: Duration,
    /// The pair that was seen last: packets come in runs.
    last: Option<usize>,
    hand: usize,
}

#[derive(Debug)]
struct Slot {
    pair: Pair,
    seen_at: Instant,
    header: LinkHeader,
}

impl Pairs {
    pub(crate) fn new(pairs_max: usize, idle: Duration) -> Pairs {
        Pairs { index: BTreeMap::new(), slots: Vec::new(), pairs_max, idle, last: None, hand: 0 }
    }

    /// A packet of this pair has passed. `false` if there is no room to remember it.
    pub(crate) fn note(&mut self, pair: Pair, header: LinkHeader, now: Instant) -> bool {
        let known = self.last.filter(|&id| self.slots[id].pair == pair).or_else(|| self.index.get(&pair).copied());
        let slot = Slot { pair, seen_at: now, header };
        let id = match known.or_else(|| self.idle_slot(now)) {
            Some(id) => {
                let old = std::mem::replace(&mut self.slots[id], slot);
                if old.pair != pair {
                    self.index.remove(&old.pair);
                    self.index.insert(pair, id);
                }
                id
            }
            None if self.slots.len() < self.pairs_max => {
                self.slots.push(slot);
                self.index.insert(pair, self.slots.len() - 1);
                self.slots.len() - 1
            }
            None => return false,
        };
        self.last = Some(id);
        true
    }

    pub(crate) fn header(&self, pair: &Pair) -> Option<&LinkHeader> {
        let id = self.last.filter(|&id| self.slots[id].pair == *pair).or_else(|| self.index.get(pair).copied())?;
        Some(&self.slots[id].header)
    }

    /// Pairs that are remembered.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slot of a pair that makes room, if all are taken.
    fn idle_slot(&mut self, now: Instant) -> Option<usize> {
        if self.slots.len() < self.pairs_max {
            return None;
        }
        let steps = EVICTION_STEPS.min(self.slots.len());
        let mut candidates = (0..steps).map(|step| (self.hand + step) % self.slots.len());
        let id = candidates.find(|&id| now.saturating_since(self.slots[id].seen_at) >= self.idle);
        self.hand = id.map_or(self.hand + steps, |id| id + 1) % self.slots.len().max(1);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::parse;

    #[test]
    fn silent_pairs_make_room_and_others_do_not() {
        let frame = crate::samples::frame_between("10.0.0.1:50000", "10.0.0.2:4791", &[0; 40], &[]);
        let header = parse(&frame).expect("a packet").link;
        let pair = |last: u8| (IpAddr::from([10, 0, 0, last]), IpAddr::from([10, 0, 1, 1]));
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let mut pairs = Pairs::new(2, Duration::from_millis(10));
        assert!(pairs.note(pair(1), header, at(0)) && pairs.note(pair(2), header, at(5)));
        assert!(!pairs.note(pair(3), header, at(9)), "nobody was silent for long enough");
        assert!(pairs.note(pair(3), header, at(10)));
        assert!(
            pairs.header(&pair(1)).is_none() && pairs.header(&pair(2)).is_some() && pairs.header(&pair(3)).is_some()
        );
        assert!(pairs.note(pair(2), header, at(14)) && !pairs.note(pair(1), header, at(15)));
        assert_eq!(pairs.len(), 2);
    }
}
