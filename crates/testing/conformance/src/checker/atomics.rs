//! Judging atomics: what they bring back, and what their words hold.

use super::contents::MessageNumber;
use super::facts::{EndNumber, Response, SendFacts, Word};
use super::judge::Judge;
use super::memory::{Place, ReadMemory};
use super::receive_queue::Piece;
use super::send_queue::Ending;
use super::violation::Rule;
use super::words::{Atomic, History, OPERATIONS_MAX, Unexplained, WordNumber, WordUse, digit};

/// Bytes of a word.
pub(super) const WORD_BYTES: usize = 8;

impl Judge {
    /// Eight aligned bytes of registered memory, holding `initial`, belong to atomics from now on.
    pub fn add_word(&mut self, place: Place, word_use: WordUse, initial: u64) -> WordNumber {
        self.memory.lend(place, WORD_BYTES);
        let history = History::new(word_use, initial);
        self.words.push(Word { place, history, live: Vec::new(), is_retired: false });
        WordNumber(self.words.len() - 1)
    }

    /// What the next fetch-and-add on a word has to add, so that the word shows its history.
    pub fn next_addend(&self, word: WordNumber) -> u64 {
        digit(self.words[word.0].history.operation_count())
    }

    /// Whether a word can take another request.
    pub fn has_room(&self, word: WordNumber) -> bool {
        !self.words[word.0].is_retired && self.words[word.0].history.operation_count() < OPERATIONS_MAX
    }

    /// The last value of a word that is known.
    pub fn latest_value(&self, word: WordNumber) -> u64 {
        self.words[word.0].history.latest()
    }

    /// An atomic was posted; it is the message that [`Judge::next_message`] returned. `on` is `None` for one that must
    /// be refused. The old value comes to `result`, eight bytes.
    pub fn posted_atomic(
        &mut self,
        from: EndNumber,
        facts: SendFacts,
        on: Option<(WordNumber, Atomic)>,
        result: Vec<Piece>,
    ) -> MessageNumber {
        for piece in &result {
            self.memory.lend(piece.place, piece.length);
        }
        let connection = (from.0 as u64) << 32 | self.ends[from.0].reset_count;
        let operation = on.map(|(number, atomic)| {
            let word = &mut self.words[number.0];
            let operation = word.history.posted(atomic, connection);
            word.live.push((from, operation));
            (number, operation)
        });
        self.posted(from, facts, Response::Atomic { operation, result })
    }

    /// An atomic succeeded and has brought the old value.
    pub(super) fn atomic_came(
        &mut self,
        number: MessageNumber,
        operation: Option<(WordNumber, usize)>,
        result: &[Piece],
        memory: &impl ReadMemory,
    ) {
        let mut old = [0; WORD_BYTES];
        let mut position = 0;
        for piece in result {
            let bytes = &mut old[position..position + piece.length];
            memory.read(piece.place, bytes);
            self.memory.give_back(piece.place);
            self.memory.set_known(piece.place, bytes);
            position += piece.length;
        }
        // A request without a word must fail, which has been said where its success was judged.
        if let Some((word, operation)) = operation
            && position == WORD_BYTES
        {
            let explained = self.words[word.0].history.succeeded(operation, u64::from_ne_bytes(old));
            let subject = format!("the value that {} on word {} brought", self.describe(number), word.0);
            self.accuse_unexplained(subject, explained);
        }
    }

    /// An atomic ended without an answer: nothing was brought. Only one that was forgotten before it could answer may
    /// have brought its value silently.
    pub(super) fn atomic_is_lost(
        &mut self,
        number: MessageNumber,
        operation: Option<(WordNumber, usize)>,
        result: &[Piece],
        memory: &impl ReadMemory,
    ) {
        let mut bytes = Vec::new();
        let mut known = Vec::new();
        for piece in result {
            let start = bytes.len();
            bytes.resize(start + piece.length, 0);
            memory.read(piece.place, &mut bytes[start..]);
            known.extend_from_slice(self.memory.known(piece.place, piece.length));
        }
        if bytes == known {
            result.iter().for_each(|piece| self.memory.give_back(piece.place));
            return;
        }
        let message = &self.messages[number as usize];
        let signals = message.facts.is_signaled || self.ends[message.from.0].facts.signals_all;
        if signals || message.ending != Some(Ending::Unknown) || operation.is_none() {
            let subject = format!("the result of {}, which failed", self.describe(number));
            self.accuse(Rule::Memory, subject, "no change", format!("{bytes:02x?}"));
        }
        self.atomic_came(number, operation, result, memory);
    }

    /// These ends were reset: what they have not done by now they never will.
    pub(super) fn settle_words(&mut self, ends: &[EndNumber], memory: &impl ReadMemory) {
        for index in 0..self.words.len() {
            let (over, live): (Vec<_>, Vec<_>) =
                self.words[index].live.iter().copied().partition(|(end, _)| ends.contains(end));
            if over.is_empty() {
                continue;
            }
            self.check_word(WordNumber(index), memory);
            let word = &mut self.words[index];
            word.live = live;
            for (_, operation) in over {
                word.history.cannot_happen_later(operation);
            }
        }
    }

    pub(super) fn check_words(&mut self, memory: &impl ReadMemory) {
        for index in 0..self.words.len() {
            self.check_word(WordNumber(index), memory);
        }
    }

    fn check_word(&mut self, number: WordNumber, memory: &impl ReadMemory) {
        let word = &mut self.words[number.0];
        if word.is_retired {
            return;
        }
        let mut bytes = [0; WORD_BYTES];
        memory.read(word.place, &mut bytes);
        let explained = word.history.holds(u64::from_ne_bytes(bytes));
        self.accuse_unexplained(format!("word {}", number.0), explained);
    }

    /// The memory of some words is about to be used for something else; this is their last value.
    pub(super) fn retire_words(&mut self, region: super::RegionNumber, bytes: &[u8]) {
        for index in 0..self.words.len() {
            let word = &mut self.words[index];
            if word.is_retired || word.place.region != region {
                continue;
            }
            word.is_retired = true;
            let last: [u8; WORD_BYTES] =
                bytes[word.place.offset..][..WORD_BYTES].try_into().expect("a word lies inside its region");
            let explained = word.history.holds(u64::from_ne_bytes(last));
            self.accuse_unexplained(format!("word {index}, whose memory was just deregistered"), explained);
        }
    }

    fn accuse_unexplained(&mut self, subject: String, explained: Result<(), Unexplained>) {
        if let Err((expected, got)) = explained {
            self.accuse(Rule::Atomic, subject, expected, got);
        }
    }
}
