//! What the packets between two hosts look like: a restored packet needs an Ethernet header, and there is none in a sum. Anybody can
//! send packets in the name of these hosts. So once the other gateway has been heard, a restored packet looks like its last repair
//! packet, which had the link header of the packets that it protects.
//!
//! Pairs of which a repair packet was accepted are real. Any other may have been invented: it makes room for a real one at once, and
//! such pairs together take half of the table from real ones that are silent, at most.

use std::collections::{BTreeMap, BTreeSet};
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
    /// Slots of pairs of which no repair packet was accepted.
    unaccepted: BTreeSet<usize>,
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

/// Where a pair is, or would be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// It has this slot.
    Known(usize),
    /// It takes this slot from another pair.
    TakesOver(usize),
    /// The table is not full.
    New,
}

impl Pairs {
    /// Memory of a pair: its slot, and its entries in trees that may be half empty.
    pub(crate) const PAIR_BYTES: usize = size_of::<Slot>() + 2 * size_of::<(Pair, usize)>() + 2 * size_of::<usize>();

    pub(crate) fn memory_bytes(&self) -> usize {
        let spare = (self.slots.capacity() - self.slots.len()) * size_of::<Slot>();
        self.slots.len() * Pairs::PAIR_BYTES + spare
    }

    pub(crate) fn new(pairs_max: usize, idle: Duration) -> Pairs {
        let (index, slots, unaccepted) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        Pairs { index, slots, unaccepted, pairs_max, idle, last: None, hand: 0 }
    }

    /// A packet of this pair has passed. `false` if there is no room to remember it.
    pub(crate) fn note(&mut self, pair: Pair, header: LinkHeader, now: Instant) -> bool {
        let place = match self.find(&pair) {
            Some(id) => Some(Place::Known(id)),
            None => self.room(now, self.unaccepted.len() < self.pairs_max / 2),
        };
        let id = place.map(|place| self.enter(place, pair, header, now));
        if let Some(id) = id {
            self.slots[id].seen = header;
        }
        id.is_some()
    }

    /// Where the pair of a repair packet is, or would be if that is accepted. Until the next change of the table.
    pub(crate) fn place(&mut self, pair: &Pair, now: Instant) -> Option<Place> {
        if let Some(id) = self.find(pair) {
            return Some(Place::Known(id));
        }
        match self.unaccepted.first() {
            Some(&id) if self.slots.len() >= self.pairs_max => Some(Place::TakesOver(id)),
            _ => self.room(now, true),
        }
    }

    /// A repair packet of the pair was the other gateway's.
    pub(crate) fn accept(&mut self, place: Place, pair: Pair, header: LinkHeader, now: Instant) {
        let id = self.enter(place, pair, header, now);
        self.slots[id].accepted = Some(header);
        self.unaccepted.remove(&id);
    }

    /// The header for packets of this pair that have none.
    pub(crate) fn header(&self, pair: &Pair) -> Option<&LinkHeader> {
        let slot = &self.slots[self.find(pair)?];
        Some(slot.accepted.as_ref().unwrap_or(&slot.seen))
    }

    fn find(&self, pair: &Pair) -> Option<usize> {
        self.last.filter(|&id| self.slots[id].pair == *pair).or_else(|| self.index.get(pair).copied())
    }

    /// The slot of a pair that is here now.
    fn enter(&mut self, place: Place, pair: Pair, header: LinkHeader, now: Instant) -> usize {
        let slot = Slot { pair, seen_at: now, seen: header, accepted: None };
        let id = match place {
            Place::Known(id) => {
                self.slots[id].seen_at = now;
                self.last = Some(id);
                return id;
            }
            Place::TakesOver(id) => {
                let old = std::mem::replace(&mut self.slots[id], slot);
                self.index.remove(&old.pair);
                id
            }
            Place::New => {
                if self.slots.len() == self.slots.capacity() {
                    // Not beyond the bound.
                    let more = self.slots.len().max(4).min(self.pairs_max - self.slots.len());
                    self.slots.reserve_exact(more);
                }
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.index.insert(pair, id);
        self.unaccepted.insert(id);
        self.last = Some(id);
        id
    }

    /// Pairs that are remembered.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Room for another pair: a new slot, or that of a pair that was silent, which may be a real one or not.
    fn room(&mut self, now: Instant, takes_accepted: bool) -> Option<Place> {
        if self.slots.len() < self.pairs_max {
            return Some(Place::New);
        }
        let steps = EVICTION_STEPS.min(self.slots.len());
        let mut candidates = (0..steps).map(|step| (self.hand + step) % self.slots.len());
        let may_go = |slot: &Slot| takes_accepted || slot.accepted.is_none();
        let id = candidates.find(|&id| {
            let slot = &self.slots[id];
            may_go(slot) && now.saturating_since(slot.seen_at) >= self.idle
        });
        self.hand = id.map_or(self.hand + steps, |id| id + 1) % self.slots.len().max(1);
        id.map(Place::TakesOver)
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
        assert!(pairs.note(pair, header(&[1]), now));
        let place = pairs.place(&pair, now).expect("it is known");
        assert_eq!(pairs.header(&pair), Some(&header(&[1])), "no repair packet was accepted");
        pairs.accept(place, pair, header(&[2]), now);
        assert!(pairs.note(pair, header(&[3]), now));
        assert_eq!(pairs.header(&pair), Some(&header(&[2])));
    }

    #[test]
    fn real_pairs_take_the_place_of_others_at_once_and_keep_half_of_the_table() {
        let frame = crate::samples::frame_between("10.0.0.1:50000", "10.0.0.2:4791", &[0; 40], &[]);
        let header = parse(&frame).expect("a packet").link;
        let pair = |number: u16| {
            let [high, low] = number.to_be_bytes();
            (IpAddr::from([10, 0, high, low]), IpAddr::from([10, 1, 0, 1]))
        };
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let mut pairs = Pairs::new(8, Duration::from_millis(10));
        assert!((0..8).all(|number| pairs.note(pair(number), header, at(0))));
        for number in 100..104 {
            let place = pairs.place(&pair(number), at(1)).expect("another makes room");
            assert!(pairs.header(&pair(number)).is_none(), "not before it is accepted");
            pairs.accept(place, pair(number), header, at(1));
        }
        // They pause for long, and others come in any number.
        for number in 1000..2000_u16 {
            pairs.note(pair(number), header, at(1000 + 20 * u64::from(number)));
        }
        assert!((100..104).all(|number| pairs.header(&pair(number)).is_some()));
        // Eight of them take all; then they make room for each other when they are silent.
        for number in 104..108 {
            let place = pairs.place(&pair(number), at(50_000)).expect("another makes room");
            pairs.accept(place, pair(number), header, at(50_000));
        }
        assert!((100..108).all(|number| pairs.header(&pair(number)).is_some()));
        assert!(matches!(pairs.place(&pair(108), at(50_001)), Some(Place::TakesOver(_))));
        assert!(pairs.note(pair(1), header, at(50_001)), "as long as others have less than half");
        assert_eq!((pairs.len(), pairs.unaccepted.len()), (8, 1));
        assert_eq!(pairs.memory_bytes(), 8 * Pairs::PAIR_BYTES);
    }
}
