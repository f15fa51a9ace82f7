//! Receives of the program, each in as many parts as its message turns out to have.

mod message;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use longhaul_scheme::timers::{DONE_REPORTS, DONE_TIMES};
use longhaul_sdr::memory::ReceivedBytes;
use longhaul_sdr::{Memory, Receive};
use longhaul_time::Instant;
use longhaul_wire::record::{self, Offer, Record, Refusal};

use crate::agenda::Agenda;
use crate::answers::{Answer, Answers};
use crate::bounded::{Ending, ReceiveBound};
use crate::choice::MessageTerms;
use crate::ended::EndedPart;
use crate::jobs::{JobOf, Task};
use crate::long_answers::LongAnswers;
use crate::moment::Moment;
use crate::parity_pool::ParityPool;
use crate::parts::Cut;
use crate::receives::{OpenReceive, PartError, ReceivedPart, Step};
use crate::report::{ConnectionCounters, MessageReport};
use crate::terms::Terms;
use crate::ticket::{MessageError, Promise, Received};

use message::{Filling, NotOpened, parity_left};

/// Done messages that are told again without being asked.
const DONES_MAX: usize = 1024;
/// A part with more missing ranges than this is told once without being asked, and not several times: that takes several frames.
const RANGES_TOLD_UNASKED_MAX: usize = 256;

#[derive(Default)]
pub(crate) struct Incoming {
    /// Parts that are complete, and of which something is being computed. Dropped first: jobs give the memory back before the program hears that
    /// its message is over.
    recovering: BTreeMap<u64, Recovering>,
    /// Receives that ended before they had a number, and whose memory is being filled, by their own.
    filling: BTreeMap<u64, Filling>,
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
    long_answers: LongAnswers,
    /// The first of the parts that were finished last, and when.
    finished: Option<(u64, Instant)>,
    /// Packets that came more than once, of parts that have ended.
    duplicates: u64,
    dones: VecDeque<DoneToTell>,
    /// When bounded messages end that may be waiting for a number, by their own.
    waiting_deadlines: Agenda,
    /// When missing bytes of a part were filled at once last.
    filled_at: Instant,
}

/// What a program has asked for.
pub(crate) enum Wanted {
    /// All of a message, or an error.
    Whole,
    /// What its scheme leaves of it.
    Partial,
    /// What is there in time; posted now.
    Bounded(ReceiveBound, Instant),
}

struct IncomingMessage {
    /// `None` when it has ended for the program, which may use the memory for something else.
    memory: Option<Memory>,
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
    /// And what its sender has chosen.
    terms: Option<MessageTerms>,
    /// The sender sends checksums: no part ends without one.
    has_checksums: bool,
    begun: Instant,
    /// Its program looks at what is missing.
    may_miss: bool,
    /// If its program has bounded it, until its part is open.
    bound: Option<ReceiveBound>,
    /// When its program has bounded it, and when it ended before it had all its numbers, what its sender is told.
    posted: Option<Instant>,
    ended_early: Option<EndedPart>,
    open_parts: usize,
    /// What has been received, by where it begins in the memory; neighbours are one piece.
    pieces: BTreeMap<usize, ReceivedBytes>,
    parts_done: u64,
    has_failed: bool,
    /// A part of it has ended because nothing came any more, and this was the last that did: the others do not wait for it anew.
    quiet_since: Option<Instant>,
    missing: Vec<Range<u64>>,
    ending: Ending,
    report: MessageReport,
}

/// A part that is being recovered.
struct Recovering {
    message: u64,
    index: u64,
    /// Of data and of parity, whether they have arrived or not.
    packets: u64,
    is_bounded: bool,
    /// Memory for its parity.
    parity_bytes: Option<u64>,
    /// If nothing came any more when it ended: the last progress.
    quiet_since: Option<Instant>,
    task: Task<Result<ReceivedPart, PartError>>,
}

/// A part that is done, and of which the sender may not know.
struct DoneToTell {
    number: u64,
    at: Instant,
    times: u32,
}

impl Incoming {
    /// A receive is posted.
    pub(crate) fn add(&mut self, memory: Memory, range: Range<usize>, wanted: Wanted, promise: Promise<Received>) {
        let may_miss = !matches!(wanted, Wanted::Whole);
        let (bound, posted) = match wanted {
            Wanted::Bounded(bound, posted) => (Some(bound), Some(posted)),
            Wanted::Whole | Wanted::Partial => (None, None),
        };
        self.waiting_deadlines.set(self.next, bound.as_ref().and_then(|bound| bound.deadline));
        let message = IncomingMessage {
            memory: Some(memory),
            range,
            promise: Some(promise),
            first_number: 0,
            numbers_used: 0,
            cut: None,
            terms: None,
            has_checksums: false,
            begun: Instant::ZERO,
            may_miss,
            bound,
            posted,
            ended_early: None,
            half_open: None,
            spare: None,
            open_parts: 0,
            pieces: BTreeMap::new(),
            parts_done: 0,
            has_failed: false,
            quiet_since: None,
            missing: Vec::new(),
            ending: Ending::Whole,
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
        'messages: while let Some(message) = self.messages.get_mut(&self.opening) {
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
                            let needed = message.parity_needed(part_bytes, terms);
                            let Some(parity_left) = parity_left(&self.open, &self.recovering, needed, terms) else {
                                return over;
                            };
                            // What others of this connection hold comes back.
                            let has_others = !self.open.is_empty() || !self.recovering.is_empty();
                            let own = self.opening;
                            let opened = message.open_part(own, part_bytes, terms, pool, parity_left, has_others, now);
                            opened.map(|receive| {
                                self.open.insert(receive.number(), Box::new(receive));
                            })
                        }
                    };
                    match opened {
                        Ok(()) => {}
                        // Its sender is gone, and nothing of it is open that could make room for the rest.
                        Err(NotOpened::Waits) if message.is_abandoned() => {
                            over += 1;
                            let error = MessageError::TimedOut(terms.attributes.message_timeout);
                            self.fail_message(self.opening, Refusal::TimedOut, error, terms);
                            continue 'messages;
                        }
                        Err(NotOpened::Waits) => return over,
                        Err(NotOpened::Failed(error)) => {
                            over += 1;
                            let has_numbers = message.numbers_used > 0;
                            self.fail_opening(error, terms);
                            match has_numbers {
                                // Its sender uses all of them.
                                true => continue 'messages,
                                false => break,
                            }
                        }
                    }
                }
            }
            let Some(message) = self.messages.get_mut(&self.opening) else { break };
            if let Some(ended) = message.ended_early.take() {
                self.answers.end(message.first_number, ended);
            }
            if message.promise.is_none() {
                self.messages.remove(&self.opening);
            }
            self.waiting_deadlines.set(self.opening, None);
            self.opening += 1;
        }
        over
    }

    /// The sender has said that everything of a part has left.
    pub(crate) fn on_sender_through(&mut self, number: u64) {
        if let Some(receive) = self.open.get_mut(&number) {
            receive.on_sender_through();
        }
    }

    /// The sender announces what it sends. Returns how many messages have ended.
    pub(crate) fn on_offer(
        &mut self,
        number: u64,
        offer: &Offer<'_>,
        moment: &Moment,
        terms: &mut Terms,
        pool: &mut ParityPool,
    ) -> u64 {
        let Some(part_bytes) = terms.part_bytes() else { return 0 };
        let Some(receive) = self.open.get_mut(&number) else {
            match self.recovering.get(&number) {
                // All that it needs has arrived: the sender gives it the time to compute.
                Some(recovering) => terms.tell(number, &Record::Arrived(recovering.packets)),
                None => self.answer_asked(number, moment, terms),
            }
            return 0;
        };
        let Some(message) = self.messages.get_mut(&receive.message) else { return 0 };
        match message.check_offer(offer, receive.index, part_bytes, terms) {
            Ok((part, offered)) => {
                message.begin(part.cut, &offered, offer.checksum.is_some(), moment);
                // Parity that does not come needs no memory any more.
                receive
                    .begin(part, offered, offer.checksum, moment.now)
                    .into_iter()
                    .for_each(|memory| pool.put_back(memory));
                let contents = offer.contents;
                #[cfg(feature = "mutations")]
                let contents = contents
                    .filter(|_| terms.attributes.mutation != Some(crate::attributes::Mutation::ContentsIgnored));
                match contents {
                    Some(contents) if part.cut.count() == 1 => receive.take_contents(contents),
                    _ => receive.ask(),
                }
                if part.index == 0 && part.cut.count() > 1 {
                    terms.tell(number, &Record::Accepted);
                }
                0
            }
            Err((reason, error)) => self.fail_part(number, reason, error, moment, terms),
        }
    }

    /// The receive that is being opened cannot be. If it has no number yet, the peer's message goes to the next receive; otherwise the
    /// message that it was for is refused.
    fn fail_opening(&mut self, error: MessageError, terms: &Terms) {
        let own = self.opening;
        match self.messages.get_mut(&own) {
            Some(message) if message.numbers_used == 0 => {
                (message.memory, message.has_failed) = (None, true);
                message.promise.take().into_iter().for_each(|promise| promise.keep(Err(error.clone())));
            }
            Some(_) => self.fail_message(own, Refusal::Failed, error, terms),
            None => {}
        }
    }

    /// The sender has given a message up. Returns the messages that are over.
    pub(crate) fn on_withdrawn(&mut self, number: u64, message_bytes: u64, moment: &Moment, terms: &Terms) -> u64 {
        // What is bounded ends by itself, with what has arrived.
        if self.recovering.get(&number).is_some_and(|recovering| recovering.is_bounded) {
            return 0;
        }
        if let Some(receive) = self.open.get_mut(&number)
            && receive.ends_by_itself()
            && message_bytes <= receive.length()
        {
            receive.on_sender_through();
            return 0;
        }
        let is_it = |message: &IncomingMessage| message.numbers_used > 0 && message.first_number == number;
        let mut under_way = self.messages.range(..=self.opening);
        let Some((&own, message)) = under_way.find(|(_, message)| is_it(message) && message.promise.is_some()) else {
            match self.answers.of(number) {
                Some(_) => self.answer_asked(number, moment, terms),
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
        self.answer(number, moment, terms);
        1
    }

    /// A sender has asked. It asks again if it needs the answer again.
    fn answer_asked(&mut self, number: u64, moment: &Moment, terms: &Terms) {
        if self.answers.ended_mut(number).is_none_or(|ended| ended.is_to_answer(moment.now, moment.round_trip)) {
            self.answer(number, moment, terms);
        }
    }

    /// Tell again what became of a message, or a part of one, that is not open.
    fn answer(&mut self, number: u64, moment: &Moment, terms: &Terms) {
        match self.answers.of(number) {
            #[cfg(feature = "mutations")]
            Some(_) if terms.attributes.mutation == Some(crate::attributes::Mutation::RefusalsAreDone) => {
                terms.tell(number, &Record::Done);
            }
            Some(Answer::Refused { reason, was_accepted }) => terms.refuse(number, reason, was_accepted),
            Some(Answer::Ended) => self.long_answers.begin(number, &mut self.answers, moment, terms),
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
            if let (Some(part), Some(message)) = (receive.announced(terms), self.messages.get_mut(&receive.message))
                && let Some(announced) = terms.default_terms()
            {
                message.begin(part.cut, &announced, false, moment);
                receive.begin(part, announced, None, moment.now);
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
                Step::Failed(error) => self.fail_part(number, Refusal::TimedOut, error, moment, terms),
            };
        }
        self.long_answers.poll(&mut self.answers, moment, terms);
        self.tell_dones(moment, terms);
        messages += self.expire_waiting(moment.now, terms);
        (parts, messages)
    }

    /// A part has all it needs. Returns the messages that are over.
    fn end_part(&mut self, number: u64, moment: &Moment, terms: &Terms, pool: &mut ParityPool) -> u64 {
        let Some(receive) = self.open.get(&number) else { return 0 };
        let (own, index, is_bounded) = (receive.message, receive.index, receive.is_bounded());
        let quiet_since = receive.quiet_since();
        if let Some(message) = self.messages.get_mut(&own) {
            message.quiet_since = message.quiet_since.max(quiet_since);
        }
        if let Some(message) = self.messages.get_mut(&own)
            && message.cut.is_none()
        {
            // Its offer has not come: it is as long as its receive, in one part.
            let bytes = receive.length();
            message.cut = Some(Cut::new(bytes, bytes.max(1)));
            message.begun = message.posted.unwrap_or(moment.now);
        }
        match self.open.remove(&number).and_then(|receive| receive.complete(moment, terms)) {
            None => 0,
            Some(Err(error)) => self.fail_completed(number, own, index, error.into(), moment, terms),
            Some(Ok(completed)) => {
                self.duplicates += completed.duplicates();
                let packets = completed.packet_count();
                // Only one at a time: others that end now do so now, and not when this is done.
                let is_at_once = self.filled_at != moment.now && completed.is_soon_filled();
                let bytes = if is_at_once { 0 } else { completed.bytes_to_compute() };
                let parity_bytes = completed.parity_memory_bytes();
                self.filled_at = if is_at_once { moment.now } else { self.filled_at };
                let recover = move |is_wanted: &dyn Fn() -> bool| completed.recover(is_wanted);
                let task = terms.jobs.start(JobOf::Receive(number), bytes, recover);
                let recovering =
                    Recovering { message: own, index, packets, is_bounded, parity_bytes, quiet_since, task };
                self.recovering.insert(number, recovering);
                self.on_recovered(number, moment, terms, pool)
            }
        }
    }

    /// What was missing of a part may have been computed. Returns the messages that are over.
    pub(crate) fn on_recovered(&mut self, number: u64, moment: &Moment, terms: &Terms, pool: &mut ParityPool) -> u64 {
        let Some(recovering) = self.recovering.get_mut(&number) else { return 0 };
        let (own, index, quiet_since) = (recovering.message, recovering.index, recovering.quiet_since);
        let Some(recovered) = recovering.task.take() else { return 0 };
        self.recovering.remove(&number);
        let received = match recovered {
            Ok(received) => received,
            Err(error) => return self.fail_completed(number, own, index, error, moment, terms),
        };
        let mut times = DONE_TIMES;
        match received.ending {
            Ending::Whole => self.answers.finish(number),
            ending => {
                let ranges_max = self.answers.ranges_max();
                let packet_bytes = terms.packet_bytes();
                let ended = EndedPart::new(ending, received.length, &received.missing, packet_bytes, ranges_max);
                let cut = self.messages.get(&own).and_then(|message| message.cut);
                let ended = ended.of_accepted(cut.is_some_and(|cut| cut.count() > 1));
                if ended.range_count() > RANGES_TOLD_UNASKED_MAX {
                    times = 1;
                }
                self.answers.end(number, ended);
            }
        }
        // That time was up is no progress.
        let progressed = quiet_since.unwrap_or(moment.now);
        self.finished = match self.finished {
            Some((first, at)) if at == progressed => Some((first.min(number), at)),
            Some((first, at)) if at > progressed => Some((first, at)),
            _ => Some((number, progressed)),
        };
        if self.dones.len() == DONES_MAX {
            self.dones.pop_front();
        }
        self.dones.push_back(DoneToTell { number, at: moment.now, times });
        let Some(message) = self.messages.get_mut(&own) else { return 0 };
        let is_over = message.take_part(index, received, moment, pool);
        if message.promise.is_none() && own < self.opening {
            self.messages.remove(&own);
        }
        u64::from(is_over)
    }

    /// A part that had all it needs has failed all the same. Returns the messages that are over.
    fn fail_completed(
        &mut self,
        number: u64,
        own: u64,
        index: u64,
        error: PartError,
        moment: &Moment,
        terms: &Terms,
    ) -> u64 {
        let (reason, error) = match error {
            PartError::Complete(error) => (Refusal::Failed, MessageError::Complete(Arc::new(error))),
            PartError::Checksum { expected, got } => {
                let cut = self.messages.get(&own).and_then(|message| message.cut);
                let range = cut.map_or(0..0, |cut| cut.part(index).range());
                (Refusal::Checksum, MessageError::Checksum { range, expected, got })
            }
        };
        self.fail_message(own, reason, error, terms);
        self.answer(number, moment, terms);
        1
    }

    /// A part has failed, and so its message. Returns the messages that are over.
    fn fail_part(&mut self, number: u64, reason: Refusal, error: MessageError, moment: &Moment, terms: &Terms) -> u64 {
        // Another part may have failed just before.
        let Some(own) = self.open.get(&number).map(|receive| receive.message) else { return 0 };
        self.fail_message(own, reason, error, terms);
        self.answer(number, moment, terms);
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
        (message.half_open, message.spare, message.memory, message.has_failed) = (None, None, None, true);
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
            match self.answers.of(done.number) {
                Some(Answer::Ended) => self.long_answers.begin(done.number, &mut self.answers, moment, terms),
                _ => terms.tell(done.number, &Record::Done),
            }
            (done.times, done.at) = (done.times - 1, moment.now + pause);
        }
        self.dones.retain(|done| done.times > 0);
    }

    pub(crate) fn next_deadline(&self, terms: &Terms) -> Option<Instant> {
        let parts = self.open.values().filter_map(|receive| receive.next_deadline(terms)).min();
        let told = Instant::earlier_of(self.waiting_deadlines.next(), self.dones.iter().map(|done| done.at).min());
        Instant::earlier_of(Instant::earlier_of(parts, told), self.long_answers.next_deadline())
    }

    /// Everything has failed.
    pub(crate) fn fail(&mut self, error: &MessageError) {
        self.recovering.clear();
        self.fail_filling(error);
        self.open.clear();
        self.long_answers.clear();
        self.waiting_deadlines.clear();
        self.opening = self.next;
        for mut message in std::mem::take(&mut self.messages).into_values() {
            // Before its program hears of it, which may use the memory again at once.
            (message.half_open, message.memory) = (None, None);
            message.pieces.clear();
            message.promise.take().into_iter().for_each(|promise| promise.keep(Err(error.clone())));
        }
    }
}
