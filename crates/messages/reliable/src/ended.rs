//! How a receiver reports which packets were missing when it ended a part, and how a sender gathers that.
//!
//! It is state, as everything that the ends tell each other: as many records as it takes, told again when the sender asks, and gathered in
//! any order. It is bounded at both ends: the ranges of a part are limited, and those of all parts that a sender may still ask about; ranges
//! beyond that are joined across the smallest gaps, which says too much is missing and never too little.

use std::collections::BTreeMap;
use std::ops::Range;

use longhaul_time::{Duration, Instant};
use longhaul_wire::record::{self, ENDED_HEADER_BYTES, Ended, RANGE_BYTES, Record};

use crate::bounded::{Ending, tidy};
use crate::scheme::MessageShape;
use crate::terms::Terms;

/// Ranges of a part that are kept and told.
pub(crate) const RANGES_MAX: usize = 16_384;
/// A part that ends when many others have ended, and their senders have not asked, has room for this many.
pub(crate) const RANGES_MIN: usize = 16;
/// Ranges of all parts that have ended, as far as those have more than [`RANGES_MIN`].
pub(crate) const RANGES_OF_ALL_MAX: usize = 65_536;

/// A part that the receiver has ended with packets missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndedPart {
    ending: record::Ending,
    is_coarse: bool,
    /// Whether the numbers of the message's other parts are used up.
    was_accepted: bool,
    length: u64,
    /// When its sender had all of the last answer.
    answered: Option<Instant>,
    /// The first packet of each, and the one after its last.
    ranges: Box<[(u32, u32)]>,
}

impl EndedPart {
    /// Of a part with this length, or a receive of that, with these bytes missing.
    pub(crate) fn new(
        ending: Ending,
        length: u64,
        missing: &[Range<u64>],
        packet_bytes: u32,
        ranges_max: usize,
    ) -> Self {
        let ending = match ending {
            Ending::Quiet => record::Ending::Quiet,
            Ending::Whole | Ending::Deadline => record::Ending::Deadline,
        };
        let packets = |bytes: &Range<u64>| {
            let packet_bytes = u64::from(packet_bytes);
            ((bytes.start / packet_bytes) as u32, bytes.end.div_ceil(packet_bytes) as u32)
        };
        let mut ranges: Vec<_> = missing.iter().map(packets).collect();
        let is_coarse = ranges.len() > ranges_max;
        if is_coarse {
            join_across_small_gaps(&mut ranges, ranges_max);
        }
        EndedPart { ending, is_coarse, was_accepted: false, length, answered: None, ranges: ranges.into() }
    }

    /// It is a part of a message that was accepted, and has its numbers.
    pub(crate) fn of_accepted(self, was_accepted: bool) -> Self {
        EndedPart { was_accepted, ..self }
    }

    /// Whether a sender that asks now is to be answered: an answer that is still in flight is enough.
    pub(crate) fn is_to_answer(&self, now: Instant, round_trip: Duration) -> bool {
        self.answered.is_none_or(|at| at + round_trip / 2 <= now)
    }

    pub(crate) fn on_answered(&mut self, now: Instant) {
        self.answered = Some(now);
    }

    pub(crate) fn range_count(&self) -> usize {
        self.ranges.len()
    }

    /// Tell the sender as much as one record holds, from this range on. Returns the first range that is left.
    pub(crate) fn tell(&self, number: u64, first: usize, terms: &Terms) -> Option<usize> {
        let ranges_max = (terms.queue_pair.scheme_bytes_max() - ENDED_HEADER_BYTES) / RANGE_BYTES;
        let end = self.ranges.len().min(first + ranges_max.max(1));
        let some = &self.ranges[first..end];
        let mut bytes = Vec::with_capacity(some.len() * RANGE_BYTES);
        some.iter().for_each(|(first, end)| bytes.extend(record::range_bytes(*first, end - first)));
        let count = self.ranges.len() as u32;
        let (coarse, accepted) = (self.is_coarse, self.was_accepted);
        let ended = Ended::new(self.ending, coarse, accepted, self.length, count, first as u32, &bytes);
        terms.tell(number, &Record::Ended(ended));
        (end < self.ranges.len()).then_some(end)
    }
}

/// Join ranges until there are so few: across the smallest gaps, and of equal ones the first.
fn join_across_small_gaps(ranges: &mut Vec<(u32, u32)>, ranges_max: usize) {
    let joints = ranges.len().saturating_sub(ranges_max.max(1));
    let mut gaps: Vec<u32> = ranges.windows(2).map(|pair| pair[1].0 - pair[0].1).collect();
    gaps.sort_unstable();
    let Some(widest) = joints.checked_sub(1).and_then(|last| gaps.get(last)).copied() else { return };
    let mut of_widest = joints - gaps.partition_point(|gap| *gap < widest);
    ranges.dedup_by(|next, before| {
        let gap = next.0 - before.1;
        let is_joined = gap < widest || gap == widest && of_widest > 0;
        if is_joined {
            of_widest -= usize::from(gap == widest);
            before.1 = next.1;
        }
        is_joined
    });
}

/// What a sender has heard of an ending so far.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    /// What all records of it have in common.
    head: Option<(bool, u64, u32)>,
    /// By number.
    ranges: BTreeMap<u32, (u32, u32)>,
}

impl Gathering {
    /// Take in a record. Returns the missing bytes of the part, and whether they are coarse, when all ranges are there. A record that cannot
    /// be true is as good as lost; so is what came before one that says something else.
    pub(crate) fn take(&mut self, ended: &Ended<'_>, shape: &MessageShape) -> Option<(Vec<Range<u64>>, bool)> {
        let (count, first) = (ended.range_count, ended.first_range);
        // They do not touch each other, and one may lie beyond the message.
        let most = RANGES_MAX.min(shape.packet_count() as usize / 2 + 2);
        let is_possible = count as usize <= most
            && u64::from(first) + ended.ranges().len() as u64 <= u64::from(count)
            && ended.ranges().all(|(first, end)| first < end);
        if !is_possible {
            return None;
        }
        let head = (ended.is_coarse, ended.length, count);
        if self.head != Some(head) {
            (self.head, self.ranges) = (Some(head), BTreeMap::new());
        }
        self.ranges.extend((first..).zip(ended.ranges()));
        if self.ranges.len() < count as usize {
            return None;
        }
        let at = |packet: u32| (u64::from(packet) * u64::from(shape.packet_bytes)).min(shape.message_bytes);
        let ranges = self.ranges.values().map(|(first, end)| at(*first)..at(*end));
        // The receiver may have taken it for shorter, when it has never heard the offer.
        let beyond = ended.length.min(shape.message_bytes)..shape.message_bytes;
        let ranges = ranges.chain([beyond]).filter(|range| !range.is_empty()).collect();
        Some((tidy(ranges), ended.is_coarse))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: MessageShape = MessageShape {
        message_bytes: 1000,
        parity_bytes: 0,
        chunk_bytes: 100,
        packet_bytes: 100,
        rate_bits_per_second: None,
    };

    fn ended(length: u64, count: u32, first: u32, ranges: &[(u32, u32)]) -> (Vec<u8>, u64, u32, u32) {
        let bytes = ranges.iter().flat_map(|(first, end)| record::range_bytes(*first, end - first)).collect();
        (bytes, length, count, first)
    }

    fn take(gathering: &mut Gathering, of: &(Vec<u8>, u64, u32, u32)) -> Option<Vec<Range<u64>>> {
        let ended = Ended::new(record::Ending::Quiet, false, false, of.1, of.2, of.3, &of.0);
        gathering.take(&ended, &SHAPE).map(|(ranges, _)| ranges)
    }

    #[test]
    fn records_are_gathered_in_any_order_and_repeated() {
        let mut gathering = Gathering::default();
        let (one, other) = (ended(1000, 3, 0, &[(0, 1), (3, 5)]), ended(1000, 3, 2, &[(9, 10)]));
        assert_eq!(take(&mut gathering, &other), None);
        assert_eq!(take(&mut gathering, &other), None);
        assert_eq!(take(&mut gathering, &one), Some(vec![0..100, 300..500, 900..1000]));
    }

    #[test]
    fn what_lies_beyond_what_the_receiver_knew_is_missing_and_nothing_beyond_the_message_is() {
        assert_eq!(take(&mut Gathering::default(), &ended(700, 1, 0, &[(1, 2)])), Some(vec![100..200, 700..1000]));
        assert_eq!(
            take(&mut Gathering::default(), &ended(5000, 2, 0, &[(1, 2), (8, 50)])),
            Some(vec![100..200, 800..1000])
        );
        assert_eq!(take(&mut Gathering::default(), &ended(5000, 1, 0, &[(10, 50)])), Some(vec![]));
        assert_eq!(take(&mut Gathering::default(), &ended(0, 0, 0, &[])), Some(std::iter::once(0..1000).collect()));
    }

    #[test]
    fn what_cannot_be_true_is_as_good_as_lost() {
        let mut gathering = Gathering::default();
        assert_eq!(take(&mut gathering, &ended(1000, RANGES_MAX as u32 + 1, 0, &[(0, 1)])), None);
        assert_eq!(take(&mut gathering, &ended(1000, 8, 0, &[(0, 1)])), None, "more than ten packets can have");
        assert_eq!(take(&mut gathering, &ended(1000, 1, 1, &[(0, 1)])), None);
        assert_eq!(take(&mut gathering, &ended(1000, 1, u32::MAX, &[(0, 1)])), None);
        assert_eq!(take(&mut gathering, &ended(1000, 1, 0, &[(1, 1)])), None);
        assert!(gathering.ranges.is_empty());
        // Another ending in place of the one before: nothing is mixed.
        assert_eq!(take(&mut gathering, &ended(1000, 2, 0, &[(0, 1)])), None);
        assert_eq!(take(&mut gathering, &ended(900, 2, 1, &[(5, 6)])), None);
        assert_eq!(gathering.ranges.len(), 1);
    }

    #[test]
    fn questions_that_come_close_together_have_one_answer() {
        let mut part = EndedPart::new(Ending::Quiet, 100, &[], 100, 1);
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let answered = [0, 0, 4, 5, 5, 9, 10].map(|millis| {
            let is_to_answer = part.is_to_answer(at(millis), Duration::from_millis(10));
            is_to_answer.then(|| part.on_answered(at(millis))).is_some()
        });
        assert_eq!(answered, [true, false, false, true, false, false, true]);
    }

    #[test]
    fn too_many_ranges_are_joined_across_the_smallest_gaps() {
        let missing = [0..100, 200..300, 600..700, 800..900, 5000..5050];
        let part = |most| EndedPart::new(Ending::Quiet, 5050, &missing, 100, most);
        assert_eq!(*part(5).ranges, [(0, 1), (2, 3), (6, 7), (8, 9), (50, 51)]);
        assert!(!part(5).is_coarse);
        assert_eq!((&*part(3).ranges, part(3).is_coarse), (&[(0, 3), (6, 9), (50, 51)][..], true));
        assert_eq!(
            *part(4).ranges,
            [(0, 3), (6, 7), (8, 9), (50, 51)],
            "of two gaps that are the smallest one is enough"
        );
        let every_second: Vec<_> = (0..1000_u64).map(|index| 200 * index..200 * index + 100).collect();
        let part = EndedPart::new(Ending::Quiet, 200_000, &every_second, 100, 300);
        assert_eq!(part.range_count(), 300);
        let missing = &missing[..];
        assert_eq!(*EndedPart::new(Ending::Quiet, 5050, missing, 100, 1).ranges, [(0, 51)]);
    }
}
