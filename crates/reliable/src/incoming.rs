//! Receives of the program, each in as many parts as its message turns out to have.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use longhaul_sdr::memory::ReceivedBytes;
use longhaul_sdr::{Memory, Receive};
use longhaul_time::Instant;

use crate::parity_pool::ParityPool;
use crate::parts::{Cut, Part};
use crate::receives::{OpenReceive, ReceivedPart, Step};
use crate::record::{self, Offer, Record, Refusal};
use crate::report::MessageReport;
use crate::sends::Moment;
use crate::terms::{self, Terms};
use crate::ticket::{MessageError, Promise, Received};

/// That a message is done is told so often, this part of a round trip apart, without being asked.
const DONE_TIMES: u32 = 3;
const DONES_A_ROUND_TRIP: u32 = 32;
/// Messages that were given up and are remembered, so that their senders can be told again.
const REFUSED_MAX: usize = 1024;
/// Done messages that are told again without being asked.
const DONES_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct Incoming {
    /// All that are not over, in the order in which they were posted.
    messages: BTreeMap<u64, IncomingMessage>,
    next: u64,
    /// Those before have all the numbers that they will ever have.
    opening: u64,
    /// Parts, by number.
    open: BTreeMap<u64, OpenReceive>,
    /// Numbers below have had their receive.
    next_receive: u64,
    /// By the number of the first part.
    refused: BTreeMap<u64, RefusedMessage>,
    dones: VecDeque<DoneToTell>,
}

struct IncomingMessage {
    memory: Memory,
    range: Range<usize>,
    /// `None` when it is over for the program, and only some of its numbers are still to be used.
    promise: Option<Promise<Received>>,
    first_number: u64,
    numbers_used: u64,
    /// Once the sender has told its length, and it was accepted.
    cut: Option<Cut>,
    begun: Instant,
    /// A part whose parity has no place yet, and memory for that.
    half_open: Option<Receive>,
    spare: Option<Memory>,
    open_parts: usize,
    /// What has been received, by where it begins in the memory; neighbours are one piece.
    pieces: BTreeMap<usize, ReceivedBytes>,
    parts_done: u64,
    has_failed: bool,
    missing: Vec<Range<u64>>,
    report: MessageReport,
    /// When a part of it was done last.
    progressed: Option<Instant>,
}

/// A message that was given up.
struct RefusedMessage {
    /// After its last number.
    end: u64,
    reason: Refusal,
    was_accepted: bool,
}

/// A part that is done, and of which the sender may not know.
struct DoneToTell {
    number: u64,
    at: Instant,
    times: u32,
}

impl Incoming {
    pub(crate) fn add(&mut self, memory: Memory, range: Range<usize>, promise: Promise<Received>) {
        let message = IncomingMessage {
            memory,
            range,
            promise: Some(promise),
            first_number: 0,
            numbers_used: 0,
            cut: None,
            begun: Instant::ZERO,
            half_open: None,
            spare: None,
            open_parts: 0,
            pieces: BTreeMap::new(),
            parts_done: 0,
            has_failed: false,
            missing: Vec::new(),
            report: MessageReport::default(),
            progressed: None,
        };
        self.messages.insert(self.next, message);
        self.next += 1;
    }

    /// Receives that wait for numbers.
    pub(crate) fn waiting(&self) -> usize {
        (self.next - self.opening) as usize
    }

    /// Give parts their places in the message table, as far as there are some. Returns the messages that are over.
    pub(crate) fn open(&mut self, terms: &mut Terms, pool: &mut ParityPool) -> u64 {
        let Some(part_bytes) = terms.part_bytes() else { return 0 };
        let mut over = 0;
        while let Some(message) = self.messages.get_mut(&self.opening) {
            if part_bytes == 0 {
                let promise = message.promise.take();
                over += u64::from(promise.is_some());
                promise.into_iter().for_each(|promise| promise.keep(Err(terms.no_room_for_parity())));
            } else {
                loop {
                    let Some(count) = message.part_count(part_bytes, terms) else { return over };
                    if message.numbers_used == count * terms.numbers_a_part() {
                        break;
                    }
                    let number = match message.has_failed {
                        true => message.use_number(terms),
                        false => message.open_part(self.opening, part_bytes, terms, pool, &mut self.open),
                    };
                    let Some(number) = number else { return over };
                    self.next_receive = number + 1;
                }
            }
            if message.promise.is_none() {
                self.messages.remove(&self.opening);
            }
            self.opening += 1;
        }
        over
    }

    /// The sender tells what it sends. Returns the messages that are over.
    pub(crate) fn on_offer(&mut self, number: u64, offer: &Offer<'_>, moment: &Moment, terms: &mut Terms) -> u64 {
        let Some(part_bytes) = terms.part_bytes() else { return 0 };
        let Some(receive) = self.open.get_mut(&number) else {
            self.answer(number, terms);
            return 0;
        };
        let Some(message) = self.messages.get_mut(&receive.message) else { return 0 };
        match message.check_offer(offer, receive.index, part_bytes, terms) {
            Ok(part) => {
                message.begin(part.cut, moment);
                receive.begin(part, moment.now);
                receive.ask(terms);
                if part.index == 0 && part.cut.count() > 1 {
                    terms.tell(number, &Record::Accepted);
                }
                0
            }
            Err((reason, error)) => self.fail_part(number, reason, error, terms),
        }
    }

    /// The sender has given a message up. Returns the messages that are over.
    pub(crate) fn on_withdrawn(&mut self, number: u64, message_bytes: u64, terms: &Terms) -> u64 {
        let is_it = |message: &IncomingMessage| message.numbers_used > 0 && message.first_number == number;
        let mut under_way = self.messages.range(..=self.opening);
        let Some((&own, message)) = under_way.find(|(_, message)| is_it(message) && message.promise.is_some()) else {
            self.answer(number, terms);
            return 0;
        };
        let room = message.range.len() as u64;
        let error = match message_bytes > room {
            true => MessageError::TooLong { bytes: message_bytes, room },
            false => MessageError::Withdrawn,
        };
        self.fail_message(own, Refusal::Withdrawn, error, terms);
        self.answer(number, terms);
        1
    }

    /// Tell again what became of a message, or a part of one, that is not open.
    fn answer(&self, number: u64, terms: &Terms) {
        let refused = self.refused.range(..=number).next_back().map(|(_, refused)| refused);
        match refused.filter(|refused| number < refused.end) {
            Some(refused) => terms.refuse(number, refused.reason, refused.was_accepted),
            None if number < self.next_receive => terms.tell(number, &Record::Done),
            None => {}
        }
    }

    /// Do what is due. Returns the parts and the messages that are over.
    pub(crate) fn poll(&mut self, moment: &Moment, terms: &mut Terms, pool: &mut ParityPool) -> (usize, u64) {
        let feedback_bytes_max = terms.queue_pair.scheme_bytes_max() - record::HEADER_BYTES;
        let mut feedback = Vec::new();
        let mut steps = Vec::new();
        for (number, receive) in &mut self.open {
            let mut step = receive.poll(moment, terms, &mut feedback, feedback_bytes_max);
            if let Step::Announced(length) = step
                && let Some(message) = self.messages.get_mut(&receive.message)
                && let Some(part) = message.announced(length, terms)
            {
                message.begin(part.cut, moment);
                receive.begin(part, moment.now);
                step = receive.poll(moment, terms, &mut feedback, feedback_bytes_max);
            }
            feedback.drain(..).for_each(|bytes| terms.tell(*number, &Record::Feedback(&bytes)));
            if !matches!(step, Step::Waiting) {
                steps.push((*number, step));
            }
        }
        let (parts, mut messages) = (steps.len(), 0);
        for (number, step) in steps {
            messages += match step {
                Step::Waiting => 0,
                Step::Finished => self.end_part(number, moment, terms, pool),
                Step::Announced(bytes) => {
                    let message = self.open.get(&number).and_then(|receive| self.messages.get(&receive.message));
                    let room = message.map_or(0, |message| message.range.len() as u64);
                    self.fail_part(number, Refusal::TooLong, MessageError::TooLong { bytes, room }, terms)
                }
                Step::TimedOut(timeout) => {
                    self.fail_part(number, Refusal::TimedOut, MessageError::TimedOut(timeout), terms)
                }
            };
        }
        self.tell_dones(moment, terms);
        (parts, messages)
    }

    /// A part has all it needs. Returns the messages that are over.
    fn end_part(&mut self, number: u64, moment: &Moment, terms: &Terms, pool: &mut ParityPool) -> u64 {
        let Some(receive) = self.open.get(&number) else { return 0 };
        let (own, index) = (receive.message, receive.index);
        let received = match self.open.remove(&number).and_then(|receive| receive.finish(moment)) {
            Some(Ok(received)) => received,
            Some(Err(error)) => {
                let error = MessageError::Complete(Arc::new(error));
                self.fail_message(own, Refusal::Failed, error, terms);
                self.answer(number, terms);
                return 1;
            }
            None => return 0,
        };
        if self.dones.len() == DONES_MAX {
            self.dones.pop_front();
        }
        self.dones.push_back(DoneToTell { number, at: moment.now, times: DONE_TIMES });
        let Some(message) = self.messages.get_mut(&own) else { return 0 };
        let is_over = message.take_part(index, received, moment, pool);
        let others = self.open.range_mut(message.first_number..).map(|(_, receive)| receive);
        let others = others.take_while(|receive| receive.message == own);
        others.for_each(|receive| receive.since = Some(moment.now));
        if message.promise.is_none() && own < self.opening {
            self.messages.remove(&own);
        }
        u64::from(is_over)
    }

    /// A part has failed, and so its message. Returns the messages that are over.
    fn fail_part(&mut self, number: u64, reason: Refusal, error: MessageError, terms: &Terms) -> u64 {
        // Another part may have failed just before.
        let Some(own) = self.open.get(&number).map(|receive| receive.message) else { return 0 };
        self.fail_message(own, reason, error, terms);
        self.answer(number, terms);
        1
    }

    fn fail_message(&mut self, own: u64, reason: Refusal, error: MessageError, terms: &Terms) {
        let Some(message) = self.messages.get_mut(&own) else { return };
        let was_accepted = message.cut.is_some_and(|cut| cut.count() > 1);
        let numbers = message.cut.map_or(1, |cut| cut.count()) * terms.numbers_a_part();
        // The keys go before the program hears of it: it may use the memory again then.
        self.open.retain(|_, receive| receive.message != own);
        (message.half_open, message.spare, message.has_failed) = (None, None, true);
        message.pieces.clear();
        if let Some(promise) = message.promise.take() {
            promise.keep(Err(error));
        }
        let first = message.first_number;
        self.refused.insert(first, RefusedMessage { end: first + numbers, reason, was_accepted });
        if self.refused.len() > REFUSED_MAX {
            self.refused.pop_first();
        }
        if own < self.opening {
            self.messages.remove(&own);
        }
    }

    fn tell_dones(&mut self, moment: &Moment, terms: &Terms) {
        let pause = moment.round_trip / DONES_A_ROUND_TRIP;
        for done in self.dones.iter_mut().filter(|done| done.at <= moment.now) {
            terms.tell(done.number, &Record::Done);
            (done.times, done.at) = (done.times - 1, moment.now + pause);
        }
        self.dones.retain(|done| done.times > 0);
    }

    pub(crate) fn next_deadline(&self, terms: &Terms) -> Option<Instant> {
        let parts = self.open.values().filter_map(|receive| receive.next_deadline(terms)).min();
        Instant::earlier_of(parts, self.dones.iter().map(|done| done.at).min())
    }

    /// Everything has failed.
    pub(crate) fn fail(&mut self, error: &MessageError) {
        self.open.clear();
        self.opening = self.next;
        for mut message in std::mem::take(&mut self.messages).into_values() {
            message.half_open = None;
            message.promise.take().into_iter().for_each(|promise| promise.keep(Err(error.clone())));
        }
    }
}

impl IncomingMessage {
    /// Parts that its message takes, as far as it must be known to open the next; `None` when the sender has to tell first.
    fn part_count(&self, part_bytes: u64, terms: &Terms) -> Option<u64> {
        match self.cut {
            Some(cut) => Some(cut.count()),
            // A longer message than this is refused.
            None if self.has_failed || self.range.len() as u64 <= part_bytes => Some(1),
            None => (self.numbers_used < terms.numbers_a_part()).then_some(1),
        }
    }

    /// Use a number for nothing: the message has failed, and its sender uses that number for it too.
    fn use_number(&mut self, terms: &Terms) -> Option<u64> {
        let nothing = terms.queue_pair.post_receive(&self.memory, 0..0).ok()?;
        self.numbers_used += 1;
        Some(nothing.number())
    }

    /// Post the next part. Returns its number; `None` when there is no place for it or its parity now.
    fn open_part(
        &mut self,
        own: u64,
        part_bytes: u64,
        terms: &Terms,
        pool: &mut ParityPool,
        open: &mut BTreeMap<u64, OpenReceive>,
    ) -> Option<u64> {
        if self.open_parts >= terms.attributes.parts_open_max.max(1) {
            return None;
        }
        let part = self.cut.map(|cut| cut.part(self.numbers_used / terms.numbers_a_part()));
        let offset = part.map_or(0, |part| part.offset()) as usize;
        let room = part.map_or(part_bytes.min(self.range.len() as u64), |part| part.bytes());
        let data = match self.half_open.take() {
            Some(data) => data,
            None => {
                let start = self.range.start + offset;
                // The table is full, its memory is in use after all, or the device has no key: that may pass.
                let data = terms.queue_pair.post_receive(&self.memory, start..start + room as usize).ok()?;
                if self.numbers_used == 0 {
                    self.first_number = data.number();
                }
                self.numbers_used += 1;
                data
            }
        };
        let mut parity = None;
        if terms.has_parity {
            let bytes = terms.shape_of(room).parity_bytes as usize;
            self.spare = self.spare.take().or_else(|| pool.take(terms.queue_pair.context(), bytes));
            let spare = self.spare.as_ref();
            match spare.and_then(|memory| terms.queue_pair.post_receive(memory, 0..bytes).ok()) {
                Some(receive) => parity = self.spare.take().map(|memory| (receive, memory)),
                None => {
                    self.half_open = Some(data);
                    return None;
                }
            }
            self.numbers_used += 1;
        }
        self.open_parts += 1;
        let receive = OpenReceive::new(own, part, data, parity, part.map(|_| self.progressed.unwrap_or(self.begun)));
        let number = receive.number();
        open.insert(number, receive);
        Some(number)
    }

    /// The part that an offer is about, or why the message is refused.
    fn check_offer(
        &self,
        offer: &Offer<'_>,
        index: u64,
        part_bytes: u64,
        terms: &Terms,
    ) -> Result<Part, (Refusal, MessageError)> {
        let (ours, theirs) = (terms.describe(), terms::describe(offer.scheme, offer.chunk_bytes));
        let other = |ours, theirs| Err((Refusal::OtherScheme, MessageError::OtherScheme { ours, theirs }));
        if ours != theirs {
            return other(ours, theirs);
        }
        let (bytes, room) = (offer.length, self.range.len() as u64);
        if bytes > room {
            return Err((Refusal::TooLong, MessageError::TooLong { bytes, room }));
        }
        // Connected ends agree on parts; a peer that does not must not write where it should not.
        let part = self.cut.unwrap_or(Cut::new(bytes, part_bytes)).part(index);
        let is_cut_alike = offer.part_bytes == part_bytes || part.cut.count() == 1 && bytes <= offer.part_bytes;
        if !is_cut_alike || bytes != part.cut.whole_bytes() || offer.offset != part.offset() {
            let part_of = |cut_at: u64, offset: u64, bytes: u64| {
                format!("{ours}, messages cut at {cut_at} bytes, a part at {offset} of {bytes} bytes")
            };
            let ours = part_of(part_bytes, part.offset(), part.cut.whole_bytes());
            return other(ours, part_of(offer.part_bytes, offer.offset, bytes));
        }
        Ok(part)
    }

    /// The message is in one part, of so many bytes; `None` when that does not fit.
    fn announced(&self, length: u64, terms: &mut Terms) -> Option<Part> {
        let part_bytes = terms.part_bytes()?;
        (length <= part_bytes.min(self.range.len() as u64)).then(|| Cut::new(length, part_bytes).part(0))
    }

    fn begin(&mut self, cut: Cut, moment: &Moment) {
        if self.cut.is_none() {
            (self.cut, self.begun) = (Some(cut), moment.now);
        }
    }

    /// A part is there. Returns whether the message is, and the program has it.
    fn take_part(&mut self, index: u64, received: ReceivedPart, moment: &Moment, pool: &mut ParityPool) -> bool {
        let Some(cut) = self.cut else { return false };
        received.parity.into_iter().for_each(|memory| pool.put_back(memory));
        let offset = cut.part(index).offset();
        let shifted = received.missing.iter().map(|range| range.start + offset..range.end + offset);
        self.missing.extend(shifted);
        self.report.add_part(&received.report);
        self.open_parts -= 1;
        self.parts_done += 1;
        self.progressed = Some(moment.now);
        self.keep(received.bytes);
        if self.parts_done < cut.count() {
            return false;
        }
        let (Some((_, bytes)), Some(promise)) = (self.pieces.pop_first(), self.promise.take()) else { return false };
        let missing = tidy(std::mem::take(&mut self.missing));
        let report = MessageReport { duration: moment.now - self.begun, ..self.report };
        promise.keep(Ok(Received::new(bytes, cut.whole_bytes(), missing, report)));
        true
    }

    /// Keep what was received, in one piece with its neighbours.
    fn keep(&mut self, mut bytes: ReceivedBytes) {
        const SIDE_BY_SIDE: &str = "parts of a receive lie side by side in its memory";
        let range = bytes.range();
        if let Some(next) = self.pieces.remove(&range.end) {
            bytes = bytes.join(next).map_err(|_| ()).expect(SIDE_BY_SIDE);
        }
        let before = self.pieces.range(..range.start).next_back().map(|(start, before)| (*start, before.range().end));
        if let Some((start, end)) = before
            && end == range.start
            && let Some(before) = self.pieces.remove(&start)
        {
            bytes = before.join(bytes).map_err(|_| ()).expect(SIDE_BY_SIDE);
        }
        self.pieces.insert(bytes.range().start, bytes);
    }
}

/// Ranges in order, neighbours as one.
fn tidy(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, before| {
        let is_next = before.end == next.start;
        if is_next {
            before.end = next.end;
        }
        is_next
    });
    ranges
}
