//! What the packets between two hosts look like: a restored packet needs an Ethernet header, and there is none in a sum. Anybody can
//! send packets in the name of these hosts. So once the other gateway has been heard, a restored packet looks like its last repair
//! packet of their traffic class, which had the link header of the packets that it protects.
//!
//! Pairs of which a repair packet was accepted are real. Any other may have been invented: it makes room for a real one at once, and
//! such pairs together take half of the table from real ones that are silent, at most.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use longhaul_datagram::Envelope;
use longhaul_time::{Duration, Instant};

use crate::frame::LinkHeader;

/// Traffic classes of a pair whose headers are remembered.
const CLASSES: usize = 4;
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
    /// Of the packets that were seen last.
    seen: Headers,
    /// Of the last repair packets that were accepted.
    accepted: Option<Headers>,
}

/// Link headers of packets between two hosts. Queue pairs of different traffic classes have different tags, and so different
/// priorities.
#[derive(Debug)]
struct Headers {
    newest: LinkHeader,
    by_class: [Option<(TrafficClass, LinkHeader)>; CLASSES],
    /// Makes room for another class.
    oldest: usize,
}

/// The traffic class of an IP header, without the bits that routers change when they are congested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrafficClass(u8);

impl TrafficClass {
    pub(crate) fn of(envelope: &Envelope) -> TrafficClass {
        TrafficClass(envelope.traffic_class >> 2)
    }
}

impl Headers {
    fn new(class: TrafficClass, header: LinkHeader) -> Headers {
        let mut by_class = [None; CLASSES];
        by_class[0] = Some((class, header));
        Headers { newest: header, by_class, oldest: 0 }
    }

    fn note(&mut self, class: TrafficClass, header: LinkHeader) {
        self.newest = header;
        let known = self.by_class.iter().position(|entry| entry.is_none_or(|(other, _)| other == class));
        let place = known.unwrap_or_else(|| {
            let place = self.oldest;
            self.oldest = (place + 1) % CLASSES;
            place
        });
        self.by_class[place] = Some((class, header));
    }

    fn get(&self, class: TrafficClass) -> &LinkHeader {
        let same = self.by_class.iter().flatten().find(|(other, _)| *other == class);
        same.map_or(&self.newest, |(_, header)| header)
    }
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
    pub(crate) fn note(&mut self, pair: Pair, class: TrafficClass, header: LinkHeader, now: Instant) -> bool {
        let place = match self.find(&pair) {
            Some(id) => Some(Place::Known(id)),
            None => self.room(now, self.unaccepted.len() < self.pairs_max / 2),
        };
        let id = place.map(|place| self.enter(place, pair, class, header, now));
        if let Some(id) = id {
            self.slots[id].seen.note(class, header);
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
    pub(crate) fn accept(&mut self, place: Place, pair: Pair, class: TrafficClass, header: LinkHeader, now: Instant) {
        let id = self.enter(place, pair, class, header, now);
        match &mut self.slots[id].accepted {
            Some(accepted) => accepted.note(class, header),
            accepted => *accepted = Some(Headers::new(class, header)),
        }
        self.unaccepted.remove(&id);
    }

    /// The header for packets of this pair that have none: that of their traffic class, or the newest if there is none.
    pub(crate) fn header(&self, pair: &Pair, class: TrafficClass) -> Option<&LinkHeader> {
        let slot = &self.slots[self.find(pair)?];
        Some(slot.accepted.as_ref().unwrap_or(&slot.seen).get(class))
    }

    fn find(&self, pair: &Pair) -> Option<usize> {
        self.last.filter(|&id| self.slots[id].pair == *pair).or_else(|| self.index.get(pair).copied())
    }

    /// The slot of a pair that is here now.
    fn enter(&mut self, place: Place, pair: Pair, class: TrafficClass, header: LinkHeader, now: Instant) -> usize {
        let slot = Slot { pair, seen_at: now, seen: Headers::new(class, header), accepted: None };
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

    const CLASS: TrafficClass = TrafficClass(0);

    #[test]
    fn silent_pairs_make_room_and_others_do_not() {
        let frame = crate::samples::frame_between("10.0.0.1:50000", "10.0.0.2:4791", &[0; 40], &[]);
        let header = parse(&frame).expect("a packet").link;
        let pair = |last: u8| (IpAddr::from([10, 0, 0, last]), IpAddr::from([10, 0, 1, 1]));
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let mut pairs = Pairs::new(2, Duration::from_millis(10));
        assert!(pairs.note(pair(1), CLASS, header, at(0)) && pairs.note(pair(2), CLASS, header, at(5)));
        assert!(!pairs.note(pair(3), CLASS, header, at(9)), "nobody was silent for long enough");
        assert!(pairs.note(pair(3), CLASS, header, at(10)));
        assert!(
            pairs.header(&pair(1), CLASS).is_none()
                && pairs.header(&pair(2), CLASS).is_some()
                && pairs.header(&pair(3), CLASS).is_some()
        );
        assert!(pairs.note(pair(2), CLASS, header, at(14)) && !pairs.note(pair(1), CLASS, header, at(15)));
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
        assert!(pairs.note(pair, CLASS, header(&[1]), now));
        let place = pairs.place(&pair, now).expect("it is known");
        assert_eq!(pairs.header(&pair, CLASS), Some(&header(&[1])), "no repair packet was accepted");
        pairs.accept(place, pair, CLASS, header(&[2]), now);
        assert!(pairs.note(pair, CLASS, header(&[3]), now));
        assert_eq!(pairs.header(&pair, CLASS), Some(&header(&[2])));
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
        assert!((0..8).all(|number| pairs.note(pair(number), CLASS, header, at(0))));
        for number in 100..104 {
            let place = pairs.place(&pair(number), at(1)).expect("another makes room");
            assert!(pairs.header(&pair(number), CLASS).is_none(), "not before it is accepted");
            pairs.accept(place, pair(number), CLASS, header, at(1));
        }
        // They pause for long, and others come in any number.
        for number in 1000..2000_u16 {
            pairs.note(pair(number), CLASS, header, at(1000 + 20 * u64::from(number)));
        }
        assert!((100..104).all(|number| pairs.header(&pair(number), CLASS).is_some()));
        // Eight of them take all; then they make room for each other when they are silent.
        for number in 104..108 {
            let place = pairs.place(&pair(number), at(50_000)).expect("another makes room");
            pairs.accept(place, pair(number), CLASS, header, at(50_000));
        }
        assert!((100..108).all(|number| pairs.header(&pair(number), CLASS).is_some()));
        assert!(matches!(pairs.place(&pair(108), at(50_001)), Some(Place::TakesOver(_))));
        assert!(pairs.note(pair(1), CLASS, header, at(50_001)), "as long as others have less than half");
        assert_eq!((pairs.len(), pairs.unaccepted.len()), (8, 1));
        assert_eq!(pairs.memory_bytes(), 8 * Pairs::PAIR_BYTES);
    }

    #[test]
    fn each_traffic_class_has_its_header_and_others_the_newest() {
        let frame = |tag: u16| crate::samples::frame_between("10.0.0.1:50000", "10.0.0.2:4791", &[0; 40], &[tag]);
        let header = |tag: u16| parse(&frame(tag)).expect("RoCEv2").link;
        let mut headers = Headers::new(TrafficClass(1), header(1));
        headers.note(TrafficClass(2), header(2));
        headers.note(TrafficClass(1), header(11));
        let of = |headers: &Headers, class: u8| *headers.get(TrafficClass(class));
        assert_eq!([of(&headers, 1), of(&headers, 2), of(&headers, 9)], [header(11), header(2), header(11)]);
        (3..6).for_each(|class| headers.note(TrafficClass(class), header(class.into())));
        assert_eq!(
            [of(&headers, 1), of(&headers, 2), of(&headers, 5)],
            [header(5), header(2), header(5)],
            "one made room"
        );
    }
}
