//! What became of parts that are closed, for as long as their sender may ask.
//!
//! A sender asks about a part until it has an answer, and only an end that remembers can give a true one. So nothing is forgotten by count:
//! a part's outcome is kept until the sender says that it will not ask about that number again ([`longhaul_sdr::QueuePair::peer_sends_from`]).
//! That bounds the table too, because `sdr` posts no receive that is further ahead of that number than its message table allows. A number
//! that is not in here gets no answer, and never success.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_wire::record::Refusal;

use crate::ended::{EndedPart, RANGES_MAX, RANGES_MIN, RANGES_OF_ALL_MAX};

#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Numbers of the parts that were finished.
    done: BTreeSet<u64>,
    /// Parts that ended with packets missing, and their ranges together.
    ended: BTreeMap<u64, EndedPart>,
    range_count: usize,
    /// Messages that were given up, by their first number.
    refused: BTreeMap<u64, Refused>,
    /// Every number below has been forgotten.
    forgotten_below: u64,
}

#[derive(Debug)]
struct Refused {
    /// After its last number.
    end: u64,
    reason: Refusal,
    was_accepted: bool,
}

/// What a sender that asks is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    /// [`Answers::ended_mut`] has what is missing.
    Ended,
    Refused {
        reason: Refusal,
        was_accepted: bool,
    },
}

impl Answers {
    /// A part was finished.
    pub(crate) fn finish(&mut self, number: u64) {
        self.done.insert(number);
    }

    /// Ranges that a part that ends now may have.
    pub(crate) fn ranges_max(&self) -> usize {
        RANGES_OF_ALL_MAX.saturating_sub(self.range_count).clamp(RANGES_MIN, RANGES_MAX)
    }

    /// A part has ended with packets missing.
    pub(crate) fn end(&mut self, number: u64, ended: EndedPart) {
        self.range_count += ended.range_count();
        self.ended.insert(number, ended);
    }

    /// A part that has ended so, if that is what its sender is told.
    pub(crate) fn ended_mut(&mut self, number: u64) -> Option<&mut EndedPart> {
        matches!(self.of(number)?, Answer::Ended).then_some(())?;
        self.ended.get_mut(&number)
    }

    /// A message with these numbers was given up, whatever became of some of its parts before.
    pub(crate) fn refuse(&mut self, numbers: std::ops::Range<u64>, reason: Refusal, was_accepted: bool) {
        self.refused.insert(numbers.start, Refused { end: numbers.end, reason, was_accepted });
    }

    /// What became of a number; `None` for one that is open, or was not posted, or that its sender has said not to ask about.
    pub(crate) fn of(&self, number: u64) -> Option<Answer> {
        let refused = self.refused.range(..=number).next_back().map(|(_, refused)| refused);
        if let Some(&Refused { reason, was_accepted, .. }) = refused.filter(|refused| number < refused.end) {
            return Some(Answer::Refused { reason, was_accepted });
        }
        let ended = self.ended.contains_key(&number).then_some(Answer::Ended);
        ended.or_else(|| self.done.contains(&number).then_some(Answer::Done))
    }

    /// The sender asks about no number below. Returns whether that is news.
    pub(crate) fn forget_below(&mut self, number: u64) -> bool {
        if number <= self.forgotten_below {
            return false;
        }
        self.forgotten_below = number;
        self.done = self.done.split_off(&number);
        self.ended = self.ended.split_off(&number);
        self.range_count = self.ended.values().map(EndedPart::range_count).sum();
        self.refused.retain(|_, refused| refused.end > number);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounded::Ending;

    #[test]
    fn nothing_is_forgotten_before_the_sender_says_so_and_then_all_of_it() {
        let mut answers = Answers::default();
        let refused = Answer::Refused { reason: Refusal::TimedOut, was_accepted: false };
        for number in 0..5000 {
            match number % 2 {
                0 => answers.refuse(number..number + 1, Refusal::TimedOut, false),
                _ => answers.finish(number),
            }
        }
        for number in 0..5000 {
            let expected = if number % 2 == 0 { refused.clone() } else { Answer::Done };
            assert_eq!(answers.of(number), Some(expected));
        }
        assert_eq!(answers.of(5000), None, "it was not posted");
        assert!(answers.forget_below(4990));
        assert_eq!((answers.done.len(), answers.refused.len()), (5, 5));
        assert_eq!((answers.of(4989), answers.of(4990)), (None, Some(refused)));
        assert!(!answers.forget_below(10));
        assert_eq!(answers.of(4991), Some(Answer::Done), "an old number changes nothing");
    }

    #[test]
    fn ranges_of_parts_that_nobody_asks_about_are_bounded() {
        let missing: Vec<_> = (0..20_000_u64).map(|index| 200 * index..200 * index + 100).collect();
        let mut answers = Answers::default();
        for number in 0..1000 {
            let ended = EndedPart::new(Ending::Deadline, 4_000_000, &missing, 100, answers.ranges_max());
            answers.end(number, ended);
        }
        assert!(answers.range_count <= RANGES_OF_ALL_MAX + 1000 * RANGES_MIN, "{} ranges", answers.range_count);
        assert!(answers.ended_mut(999).is_some());
        answers.forget_below(999);
        assert!(answers.range_count <= RANGES_MIN);
    }

    #[test]
    fn a_message_that_was_given_up_was_not_done_in_any_part() {
        let mut answers = Answers::default();
        answers.finish(7);
        answers.end(8, EndedPart::new(Ending::Deadline, 100, &[], 100, 1));
        answers.refuse(7..11, Refusal::Failed, true);
        for number in 7..11 {
            assert_eq!(answers.of(number), Some(Answer::Refused { reason: Refusal::Failed, was_accepted: true }));
        }
        assert!(answers.ended_mut(8).is_none());
        assert_eq!((answers.of(6), answers.of(11)), (None, None));
        answers.forget_below(9);
        assert!(answers.of(10).is_some(), "the sender may ask about its last part");
        answers.forget_below(11);
        assert_eq!(answers.of(10), None);
    }
}
