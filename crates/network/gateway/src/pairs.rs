//! What the packets between two hosts look like: a restored packet needs an Ethernet header, and there is none in a sum. Anybody can
//! send packets in the name of these hosts. So once the other gateway has been heard, a restored packet looks like its last repair
//! packet, which had the link header of the packets that it protects.

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
    /// Of the packet that was seen last.
    seen: LinkHeader,
    /// Of the last repair packet that was accepted.
    accepted: Option<LinkHeader>,
}

impl Pairs {
    pub(crate) fn new(pairs_max: usize, idle: Duration) -> Pairs {
        Pairs { index: BTreeMap::new(), slots: Vec::new(), pairs_max, idle, last: None, hand: 0 }
    }

    /// A packet of this pair has passed. `false` if there is no room to remember it.
    pub(crate) fn note(&mut self, pair: Pair, header: LinkHeader, now: Instant) -> bool {
        let id = self.enter(pair, header, now);
        if let Some(id) = id {
            self.slots[id].seen = header;
        }
        id.is_some()
    }

    /// A repair packet of this pair has arrived, which may be anybody's: the header counts only if there is no other. `false` if there
    /// is no room to remember it.
    pub(crate) fn note_repair(&mut self, pair: Pair, header: LinkHeader, now: Instant) -> bool {
        self.enter(pair, header, now).is_some()
    }

    /// That repair packet was the other gateway's.
    pub(crate) fn accept(&mut self, pair: &Pair, header: LinkHeader) {
        if let Some(id) = self.find(pair) {
            self.slots[id].accepted = Some(header);
        }
    }

    /// The header for packets of this pair that have none.
    pub(crate) fn header(&self, pair: &Pair) -> Option<&LinkHeader> {
        let slot = &self.slots[self.find(pair)?];
        Some(slot.accepted.as_ref().unwrap_or(&slot.seen))
    }

    fn find(&self, pair: &Pair) -> Option<usize> {
        self.last.filter(|&id| self.slots[id].pair == *pair).or_else(|| self.index.get(pair).copied())
    }

    /// The slot of a pair, which is made if there is room.
    fn enter(&mut self, pair: Pair, header: LinkHeader, now: Instant) -> Option<usize> {
        let slot = Slot { pair, seen_at: now, seen: header, accepted: None };
        let id = match self.find(&pair) {
            Some(id) => {
                self.slots[id].seen_at = now;
                id
            }
            None => {
                let id = match self.idle_slot(now) {
                    Some(id) => {
                        let old = std::mem::replace(&mut self.slots[id], slot);
                        self.index.remove(&old.pair);
                        id
                    }
                    None if self.slots.len() < self.pairs_max => {
                        self.slots.push(slot);
                        self.slots.len() - 1
                    }
                    None => return None,
                };
                self.index.insert(pair, id);
                id
            }
        };
        self.last = Some(id);
        Some(id)
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

    #[test]
    fn what_the_other_gateway_shows_counts_more_than_what_anybody_sends() {
        let header = |tags: &[u16]| {
            parse(&crate::samples::frame_between("10.0.0.1:50000", "10.0.0.2:4791", &[0; 40], tags))
                .expect("RoCEv2")
                .link
        };
        let (pair, now) = ((IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])), Instant::ZERO);
        let mut pairs = Pairs::new(2, Duration::from_millis(10));
        assert!(pairs.note(pair, header(&[1]), now) && pairs.note_repair(pair, header(&[2]), now));
        assert_eq!(pairs.header(&pair), Some(&header(&[1])), "the repair packet was not accepted");
        pairs.accept(&pair, header(&[2]));
        assert!(pairs.note(pair, header(&[3]), now));
        assert_eq!(pairs.header(&pair), Some(&header(&[2])));
    }
}
