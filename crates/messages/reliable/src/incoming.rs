//! Receives of the program, each in as many parts as its message turns out to have.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use longhaul_scheme::timers::{DONE_REPORTS, DONE_TIMES};
use longhaul_sdr::memory::ReceivedBytes;
use longhaul_sdr::{Memory, Receive, ReceiveError, RegisterError};
use longhaul_time::Instant;
use longhaul_wire::record::{self, Offer, Record, Refusal};

use crate::answers::{Answer, Answers};
use crate::jobs::{JobOf, Task};
use crate::moment::Moment;
use crate::parity_pool::ParityPool;
use crate::parts::{Cut, Part};
use crate::receives::{ExpectedChecksum, OpenReceive, PartError, ReceivedPart, Step};
use crate::report::{ConnectionCounters, MessageReport};
use crate::terms::{self, Terms};
use crate::ticket::{MessageError, Promise, Received};

/// Done messages that are told again without being asked.
const DONES_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct Incoming {
    /// Parts that are complete, and of which something is being computed. Dropped first: jobs give the memory back before the program hears that
    /// its message is over.
    recovering: BTreeMap<u64, Recovering>,
    /// Parts, by number. In boxes, as messages are: a map keeps room for eleven, and thousands of connections have none. Dropped before the
    /// messages, so that the peer's device can write no longer when the program hears that they are over.
    open: BTreeMap<u64, Box<OpenReceive>>,
    /// All that are not over, in the order in which they were posted.
    messages: BTreeMap<u64, Box<IncomingMessage>>,
    next: u64,
    /// Those before have all the numbers that they will ever have.
    opening: u64,
    /// What became of parts that are closed.
    answers: Answers,
    /// The first of the parts that were finished last, and when.
    finished: Option<(u64, Instant)>,
    /// Packets that came more than once, of parts that have ended.
    duplicates: u64,
    dones: VecDeque<DoneToTell>,
}

struct IncomingMessage {
    memory: Memory,
    range: Range<usize>,
    /// A part whose parity has no place yet, and memory for that. Dropped before the program hears that the message is over.
    half_open: Option<Receive>,
    spare: Option<Memory>,
    /// `None` when it has ended for the program, and only some of its numbers are still to be used.
    promise: Option<Promise<Received>>,
    first_number: u64,
    numbers_used: u64,
    /// Once the sender has told its length, and it was accepted.
    cut: Option<Cut>,
    /// The sender sends checksums: no part ends without one.
    has_checksums: bool,
    begun: Instant,
    open_parts: usize,
    /// What has been received, by where it begins in the memory; neighbours are one piece.
    pieces: BTreeMap<usize, ReceivedBytes>,
    parts_done: u64,
    has_failed: bool,
    missing: Vec<Range<u64>>,
    report: MessageReport,
}

/// A part that is being recovered.
struct Recovering {
    message: u64,
    index: u64,
    /// Of data and of parity, whether they have arrived or not.
    packets: u64,
    task: Task<Result<ReceivedPart, PartError>>,
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
            has_checksums: false,
            begun: Instant::ZERO,
            half_open: None,
            spare: None,
            open_parts: 0,
            pieces: BTreeMap::new(),
            parts_done: 0,
            has_failed: false,
            missing: Vec::new(),
            report: MessageReport::default(),
        };
        self.messages.insert(self.next, Box::new(message));
        self.next += 1;
    }

    pub(crate) fn count(&self, counters: &mut ConnectionCounters) {
        counters.duplicate_packets =
            self.duplicates + self.open.values().map(|receive| receive.duplicates()).sum::<u64>();
    }

    /// Receives that wait for numbers.
    pub(crate) fn waiting(&self) -> usize {
        (self.next - self.opening) as usize
    }

    /// Give parts their places in the message table, as far as there are some. Returns the messages that are over.
    pub(crate) fn open(&mut self, now: Instant, terms: &mut Terms, pool: &mut ParityPool) -> u64 {
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
                    let opened = match message.has_failed {
                        true => message.use_number(terms),
                        false => {
                            // What others of this connection hold comes back.
                            let has_others = !self.open.is_empty() || !self.recovering.is_empty();
                            let opened = message.open_part(self.opening, part_bytes, terms, pool, has_others, now);
                            opened.map(|receive| {
                                self.open.insert(receive.number(), Box::new(receive));
                            })
                        }
                    };
                    match opened {
                        Ok(()) => {}
                        Err(NotOpened::Waits) => return over,
                        Err(NotOpened::Failed(error)) => {
                            over += 1;
                            self.fail_opening(error, terms);
                            break;
                        }
                    }
                }
            }
            let Some(message) = self.messages.get(&self.opening) else { break };
            if message.promise.is_none() {
                self.messages.remove(&self.opening);
            }
            self.opening += 1;
        }
        over
    }

    /// The sender announces what it sends. Returns how many messages have ended.
    pub(crate) fn on_offer(&mut self, number: u64, offer: &Offer<'_>, moment: &Moment, terms: &mut Terms) -> u64 {
        let Some(part_bytes) = terms.part_bytes() else { return 0 };
        let Some(receive) = self.open.get_mut(&number) else {
            match self.recovering.get(&number) {
                // All that it needs has arrived: the sender gives it the time to compute.
                Some(recovering) => terms.tell(number, &Record::Arrived(recovering.packets)),
                None => self.answer(number, terms),
            }
            return 0;
        };
        let Some(message) = self.messages.get_mut(&receive.message) else { return 0 };
        match message.check_offer(offer, receive.index, part_bytes, terms) {
            Ok(part) => {
                message.begin(part.cut, offer.checksum.is_some(), moment);
                receive.begin(part, offer.checksum, moment.now);
                let contents = offer.contents;
                #[cfg(feature = "mutations")]
                let contents = contents
                    .filter(|_| terms.attributes.mutation != Some(crate::attributes::Mutation::ContentsIgnored));
                match contents {
                    Some(contents) if part.cut.count() == 1 => receive.take_contents(contents, terms),
                    _ => receive.ask(terms),
                }
                if part.index == 0 && part.cut.count() > 1 {
                    terms.tell(number, &Record::Accepted);
                }
                0
            }
            Err((reason, error)) => self.fail_part(number, reason, error, terms),
        }
    }

    /// The receive that is being opened cannot be. If it has no number yet, the peer's message goes to the next receive; otherwise the
    /// message that it was for is refused.
    fn fail_opening(&mut self, error: MessageError, terms: &Terms) {
        let own = self.opening;
        match self.messages.get_mut(&own) {
            Some(message) if message.numbers_used == 0 => {
                message.has_failed = true;
                message.promise.take().into_iter().for_each(|promise| promise.keep(Err(error.clone())));
            }
            Some(_) => self.fail_message(own, Refusal::Failed, error, terms),
            None => {}
        }
    }

    /// The sender has given a message up. Returns the messages that are over.
    pub(crate) fn on_withdrawn(&mut self, number: u64, message_bytes: u64, terms: &Terms) -> u64 {
        let is_it = |message: &IncomingMessage| message.numbers_used > 0 && message.first_number == number;
        let mut under_way = self.messages.range(..=self.opening);
        let Some((&own, message)) = under_way.find(|(_, message)| is_it(message) && message.promise.is_some()) else {
            match self.answers.of(number) {
                Some(_) => self.answer(number, terms),
                // It ended so long ago that what became of it is forgotten. Its sender has given it up, and only has to hear that.
                None if number < terms.queue_pair.peer_sends_from() => terms.refuse(number, Refusal::Withdrawn, true),
                None => {}
            }
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
        match self.answers.of(number) {
            #[cfg(feature = "mutations")]
            Some(_) if terms.attributes.mutation == Some(crate::attributes::Mutation::RefusalsAreDone) => {
                terms.tell(number, &Record::Done);
            }
            Some(Answer::Refused { reason, was_accepted }) => terms.refuse(number, reason, was_accepted),
            Some(Answer::Done) => terms.tell(number, &Record::Done),
            #[cfg(feature = "mutations")]
            None if terms.attributes.mutation == Some(crate::attributes::Mutation::DoneForUnknown) => {
                terms.tell(number, &Record::Done);
            }
            None => {}
        }
    }

    /// Do what is due. Returns the parts and the messages that are over.
    pub(crate) fn poll(&mut self, moment: &Moment, terms: &mut Terms, pool: &mut ParityPool) -> (usize, u64) {
        let known_below = terms.queue_pair.peer_sends_from();
        if self.answers.forget_below(known_below) {
            // Their sender knows that they are done.
            self.dones.retain(|done| done.number >= known_below);
        }
        let feedback_bytes_max = terms.queue_pair.scheme_bytes_max() - record::HEADER_BYTES;
        let mut feedback = Vec::new();
        let mut steps = Vec::new();
        let mut ahead = Instant::ZERO;
        for (number, receive) in &mut self.open {
            let finished = self.finished.filter(|(finished, _)| finished < number).map_or(ahead, |(_, at)| at);
            ahead = ahead.max(receive.progressed(ahead.max(finished), moment.now, terms));
            #[cfg(feature = "mutations")]
            if let (Some(part), Some(message)) = (receive.announced(terms), self.messages.get_mut(&receive.message)) {
                message.begin(part.cut, false, moment);
                receive.begin(part, None, moment.now);
            }
            let was_asked = receive.is_asked();
            let step = receive.poll(moment, terms, &mut feedback, feedback_bytes_max);
            if (was_asked || !feedback.is_empty())
                && let Some(packets) = receive.arrived_to_tell(was_asked, moment)
            {
                terms.tell(*number, &Record::Arrived(packets));
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
                Step::Failed(error) => self.fail_part(number, Refusal::TimedOut, error, terms),
            };
        }
        self.tell_dones(moment, terms);
        (parts, messages)
    }

    /// A part has all it needs. Returns the messages that are over.
    fn end_part(&mut self, number: u64, moment: &Moment, terms: &Terms, pool: &mut ParityPool) -> u64 {
        let Some(receive) = self.open.get(&number) else { return 0 };
        let (own, index) = (receive.message, receive.index);
        match self.open.remove(&number).and_then(|receive| receive.complete(moment)) {
            None => 0,
            Some(Err(error)) => self.fail_completed(number, own, index, error.into(), terms),
            Some(Ok(completed)) => {
                self.duplicates += completed.duplicates();
                let (bytes, packets) = (completed.bytes_to_compute(), completed.packet_count());
                let recover = move |is_wanted: &dyn Fn() -> bool| completed.recover(is_wanted);
                let task = terms.jobs.start(JobOf::Receive(number), bytes, recover);
                self.recovering.insert(number, Recovering { message: own, index, packets, task });
                self.on_recovered(number, moment, terms, pool)
            }
        }
    }

    /// What was missing of a part may have been computed. Returns the messages that are over.
    pub(crate) fn on_recovered(&mut self, number: u64, moment: &Moment, terms: &Terms, pool: &mut ParityPool) -> u64 {
        let Some(recovering) = self.recovering.get_mut(&number) else { return 0 };
        let (own, index) = (recovering.message, recovering.index);
        let Some(recovered) = recovering.task.take() else { return 0 };
        self.recovering.remove(&number);
        let received = match recovered {
            Ok(received) => received,
            Err(error) => return self.fail_completed(number, own, index, error, terms),
        };
        self.answers.finish(number);
        self.finished = match self.finished {
            Some((first, at)) if at == moment.now => Some((first.min(number), at)),
            _ => Some((number, moment.now)),
        };
        if self.dones.len() == DONES_MAX {
            self.dones.pop_front();
        }
        self.dones.push_back(DoneToTell { number, at: moment.now, times: DONE_TIMES });
        let Some(message) = self.messages.get_mut(&own) else { return 0 };
        let is_over = message.take_part(index, received, moment, pool);
        if message.promise.is_none() && own < self.opening {
            self.messages.remove(&own);
        }
        u64::from(is_over)
    }

    /// A part that had all it needs has failed all the same. Returns the messages that are over.
    fn fail_completed(&mut self, number: u64, own: u64, index: u64, error: PartError, terms: &Terms) -> u64 {
        let (reason, error) = match error {
            PartError::Complete(error) => (Refusal::Failed, MessageError::Complete(Arc::new(error))),
            PartError::Checksum { expected, got } => {
                let cut = self.messages.get(&own).and_then(|message| message.cut);
                let range = cut.map_or(0..0, |cut| cut.part(index).range());
                (Refusal::Checksum, MessageError::Checksum { range, expected, got })
            }
        };
        self.fail_message(own, reason, error, terms);
        self.answer(number, terms);
        1
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
        let failed = self.open.values().filter(|receive| receive.message == own);
        self.duplicates += failed.map(|receive| receive.duplicates()).sum::<u64>();
        // The keys go before the program hears of it: it may use the memory again then.
        self.open.retain(|_, receive| receive.message != own);
        self.recovering.retain(|_, recovering| recovering.message != own);
        (message.half_open, message.spare, message.has_failed) = (None, None, true);
        message.pieces.clear();
        if let Some(promise) = message.promise.take() {
            promise.keep(Err(error));
        }
        let first = message.first_number;
        self.answers.refuse(first..first + numbers, reason, was_accepted);
        if own < self.opening {
            self.messages.remove(&own);
        }
    }

    fn tell_dones(&mut self, moment: &Moment, terms: &Terms) {
        let pause = DONE_REPORTS.after(moment.round_trip);
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
        self.recovering.clear();
        self.open.clear();
        self.opening = self.next;
        for mut message in std::mem::take(&mut self.messages).into_values() {
            message.half_open = None;
            message.promise.take().into_iter().for_each(|promise| promise.keep(Err(error.clone())));
        }
    }
}

/// Why a part could not be opened.
enum NotOpened {
    /// That passes.
    Waits,
    Failed(MessageError),
}

impl NotOpened {
    fn of(error: ReceiveError, has_others: bool) -> Self {
        match error {
            ReceiveError::TableFull(_) => NotOpened::Waits,
            // The device's limit; others of ours give keys back when they are done.
            ReceiveError::Register(RegisterError::TooMany { .. }) if has_others => NotOpened::Waits,
            error => NotOpened::Failed(MessageError::Receive(Arc::new(error))),
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
    fn use_number(&mut self, terms: &Terms) -> Result<(), NotOpened> {
        // Nothing needs neither memory nor a key: only the table can be full.
        terms.queue_pair.post_receive(&self.memory, 0..0).map_err(|_| NotOpened::Waits)?;
        self.numbers_used += 1;
        Ok(())
    }

    /// Post the next part; `has_others`: this connection holds memory that it gives back.
    fn open_part(
        &mut self,
        own: u64,
        part_bytes: u64,
        terms: &Terms,
        pool: &mut ParityPool,
        has_others: bool,
        now: Instant,
    ) -> Result<OpenReceive, NotOpened> {
        if self.open_parts >= terms.attributes.parts_open_max.max(1) {
            return Err(NotOpened::Waits);
        }
        let part = self.cut.map(|cut| cut.part(self.numbers_used / terms.numbers_a_part()));
        let offset = part.map_or(0, |part| part.offset()) as usize;
        let room = part.map_or(part_bytes.min(self.range.len() as u64), |part| part.bytes());
        let data = match self.half_open.take() {
            Some(data) => data,
            None => {
                let start = self.range.start + offset;
                let data = terms.queue_pair.post_receive(&self.memory, start..start + room as usize);
                let data = data.map_err(|error| NotOpened::of(error, has_others))?;
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
            let spare = self.spare.take().map_or_else(|| pool.take(terms.queue_pair.context(), bytes), Ok);
            let posted = spare.map_err(ReceiveError::from).and_then(|memory| {
                let posted = terms.queue_pair.post_receive(&memory, 0..bytes);
                if posted.is_err() {
                    self.spare = Some(memory.clone());
                }
                Ok((posted?, memory))
            });
            match posted {
                Ok(posted) => parity = Some(posted),
                Err(error) => {
                    self.half_open = Some(data);
                    return Err(NotOpened::of(error, has_others));
                }
            }
            self.numbers_used += 1;
        }
        self.open_parts += 1;
        // A first part has nothing before its offer; of a later one packets may come first.
        let checksum = if self.has_checksums { ExpectedChecksum::Awaited } else { ExpectedChecksum::None };
        Ok(OpenReceive::new(own, part, data, parity, checksum, part.map(|_| self.begun), now))
    }

    /// The part that an offer is about, or why the message is refused.
    fn check_offer(
        &self,
        offer: &Offer<'_>,
        index: u64,
        part_bytes: u64,
        terms: &Terms,
    ) -> Result<Part, (Refusal, MessageError)> {
        let other = |ours, theirs| Err((Refusal::OtherScheme, MessageError::OtherScheme { ours, theirs }));
        if !terms.are_those_of(offer) {
            return other(terms.describe(), terms::describe(offer.scheme, offer.chunk_bytes));
        }
        let (bytes, room) = (offer.length, self.range.len() as u64);
        if bytes > room {
            return Err((Refusal::TooLong, MessageError::TooLong { bytes, room }));
        }
        // Connected ends agree on parts; a peer that does not must not write where it should not.
        let part = self.cut.unwrap_or(Cut::new(bytes, part_bytes)).part(index);
        let is_cut_alike = offer.part_bytes == part_bytes || part.cut.count() == 1 && bytes <= offer.part_bytes;
        if !is_cut_alike || bytes != part.cut.whole_bytes() || offer.offset != part.offset() {
            let ours = terms.describe();
            let part_of = |cut_at: u64, offset: u64, bytes: u64| {
                format!("{ours}, messages cut at {cut_at} bytes, a part at {offset} of {bytes} bytes")
            };
            let ours = part_of(part_bytes, part.offset(), part.cut.whole_bytes());
            return other(ours, part_of(offer.part_bytes, offer.offset, bytes));
        }
        // A peer of another version may lay its parity out otherwise.
        let parity_bytes = terms.shape_of(part.bytes()).parity_bytes;
        if offer.parity_bytes != parity_bytes {
            let ours = terms.describe();
            let with_parity = |bytes: u64| format!("{ours}, with {bytes} bytes of parity");
            return other(with_parity(parity_bytes), with_parity(offer.parity_bytes));
        }
        Ok(part)
    }

    fn begin(&mut self, cut: Cut, has_checksums: bool, moment: &Moment) {
        if self.cut.is_none() {
            (self.cut, self.has_checksums, self.begun) = (Some(cut), has_checksums, moment.now);
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
