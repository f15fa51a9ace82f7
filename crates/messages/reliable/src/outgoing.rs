//! Outgoing messages of the program, each in as many parts as it takes.

mod not_opened;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use longhaul_sdr::{BackOff, Memory, PeerReceive, RegisterError, SendError, SendStream};
use longhaul_time::Instant;
use longhaul_wire::record::Record;

use crate::agenda::Agenda;
use crate::attributes::Attributes;
use crate::bounded::{Delivery, Sent, tidy};
use crate::checksum;
use crate::choice::MessageTerms;
use crate::chunk_set::ChunkSet;
use crate::moment::Moment;
use crate::parity_pool::ParityPool;
use crate::parts::{Cut, Part};
use crate::report::{ConnectionCounters, MessageReport};
use crate::scheme::Outbox;
use crate::sends::{CARRIED_MESSAGES_MAX, OpenSend};
use crate::terms::Terms;
use crate::ticket::{MessageError, Promise};

use not_opened::NotOpened;

#[derive(Default)]
pub(crate) struct Outgoing {
    /// Parts, by number. In boxes, as messages are: a map keeps room for eleven, and thousands of connections have none. Dropped before
    /// `messages`: jobs give the memory back before the program hears that its message is over.
    open: BTreeMap<u64, Box<OpenSend>>,
    /// All that are not over, in the order in which they were sent.
    messages: BTreeMap<u64, Box<OutgoingMessage>>,
    next: u64,
    /// Those before have all the numbers that they will ever have.
    opening: u64,
    agenda: Agenda,
    /// When bounded messages end that wait for a number, by their own.
    waiting_deadlines: Agenda,
    /// Parts that travel in their offers.
    carried_count: usize,
    /// Parts to look at, whatever the agenda says.
    news: BTreeSet<u64>,
    /// Messages that were given up here, by the number of their first part, until the receiver knows.
    withdrawn: BTreeMap<u64, Withdrawal>,
    /// The part that was done last, and when.
    done: Option<(u64, Instant)>,
    /// Of parts that have ended.
    counters: ConnectionCounters,
}

struct OutgoingMessage {
    /// `None` when it has ended for the program, which may use the memory for something else.
    memory: Option<Memory>,
    range: Range<usize>,
    /// What its sender has chosen.
    terms: MessageTerms,
    /// `None` when it has ended for the program, and only some of its numbers are still to be used.
    promise: Option<Promise<Sent>>,
    begun: Instant,
    /// When it ends at the latest, if it is bounded.
    deadline: Option<Instant>,
    first_number: u64,
    numbers_used: u64,
    /// Whether the receiver has accepted all parts of it, as far as we know.
    is_accepted: Option<bool>,
    /// A part whose parity has no place yet.
    half_open: Option<SendStream>,
    open_parts: usize,
    failure: Option<MessageError>,
    /// What the receiver ended it without, and whether that is coarse.
    missing: (Vec<Range<u64>>, bool),
    /// It has ended a part that it did not call done: one of no bytes, perhaps, of which it never heard.
    is_unheard: bool,
    report: MessageReport,
    /// When its last part was over.
    ended: Instant,
}

/// A message that was given up, which the receiver has to hear.
struct Withdrawal {
    message_bytes: u64,
    back_off: BackOff,
    /// What the receiver had done for it.
    receive: PeerReceive,
}

impl Outgoing {
    pub(crate) fn add(
        &mut self,
        memory: Memory,
        range: Range<usize>,
        terms: MessageTerms,
        begun: Instant,
        deadline: Option<Instant>,
        promise: Promise<Sent>,
    ) {
        self.waiting_deadlines.set(self.next, deadline);
        let message = OutgoingMessage {
            memory: Some(memory),
            range,
            terms,
            promise: Some(promise),
            begun,
            deadline,
            first_number: 0,
            numbers_used: 0,
            is_accepted: None,
            half_open: None,
            open_parts: 0,
            failure: None,
            missing: Default::default(),
            is_unheard: false,
            report: MessageReport::default(),
            ended: begun,
        };
        self.messages.insert(self.next, Box::new(message));
        self.next += 1;
    }

    pub(crate) fn count(&self, counters: &mut ConnectionCounters) {
        *counters = self.counters;
        self.open.values().for_each(|send| counters.add(send.report()));
    }

    /// Messages that wait for numbers.
    pub(crate) fn waiting(&self) -> usize {
        (self.next - self.opening) as usize
    }

    /// Give parts their places in the message table, as far as there are some. Returns the messages that are over.
    pub(crate) fn open(&mut self, moment: &Moment, terms: &mut Terms, pool: &mut ParityPool) -> u64 {
        let Some(part_bytes) = terms.part_bytes() else { return 0 };
        let mut over = 0;
        while let Some(message) = self.messages.get_mut(&self.opening) {
            // The receiver has to hear of those that were given up before there are more of them.
            if self.withdrawn.len() >= terms.attributes.waiting_max.max(1) && message.numbers_used == 0 {
                return over;
            }
            let is_unknown = message.numbers_used == 0;
            if part_bytes == 0 {
                message.failure = Some(terms.no_room_for_parity());
                over += u64::from(message.tell_program());
            } else if let Err(error) = message.check_parity(part_bytes, terms) {
                message.failure = Some(error);
                over += u64::from(message.tell_program());
            } else {
                let cut = Cut::new(message.range.len() as u64, part_bytes);
                let has_others = !self.open.is_empty();
                let mut opened = |send: OpenSend| {
                    self.news.insert(send.number);
                    self.open.insert(send.number, Box::new(send));
                };
                let opened = message.open_parts(self.opening, cut, terms, pool, &mut opened);
                if !message.is_unopened() {
                    self.waiting_deadlines.set(self.opening, None);
                }
                // Its time ran out while it waited. It takes its numbers all the same, so that its receive ends with it and those after it
                // get the messages that are meant for them.
                if is_unknown && message.numbers_used > 0 && message.failure.is_some() {
                    let message_bytes = message.range.len() as u64;
                    self.withdrawn.insert(message.first_number, Withdrawal::new(message_bytes));
                }
                match opened {
                    Ok(true) => {}
                    Ok(false) => return over,
                    // The device's limit; others of ours give memory back when they are done.
                    Err(NotOpened::Parity(RegisterError::TooMany { .. })) if has_others => return over,
                    Err(error) => {
                        over += u64::from(self.fail_opening(error.into(), moment));
                        continue;
                    }
                }
            }
            if message.promise.is_none() {
                self.messages.remove(&self.opening);
            }
            self.opening += 1;
        }
        over
    }

    /// The next part of the message that is being opened cannot be. Returns whether the message has ended for the program.
    fn fail_opening(&mut self, error: MessageError, moment: &Moment) -> bool {
        let own = self.opening;
        let Some(message) = self.messages.get_mut(&own) else { return false };
        for send in self.open.values_mut().filter(|send| send.message == own) {
            send.give_up(error.clone(), moment);
            self.news.insert(send.number);
        }
        message.failure = Some(error);
        if message.numbers_used > 0 {
            let message_bytes = message.range.len() as u64;
            self.withdrawn.insert(message.first_number, Withdrawal::new(message_bytes));
        }
        message.open_parts == 0 && message.tell_program()
    }

    /// The first number that the receiver may be asked about.
    pub(crate) fn asks_from(&self) -> Option<u64> {
        let first = |numbers: Option<&u64>| numbers.copied();
        let (open, withdrawn) = (first(self.open.keys().next()), first(self.withdrawn.keys().next()));
        [open, withdrawn].into_iter().flatten().min()
    }

    pub(crate) fn on_record(&mut self, number: u64, record: &Record<'_>, moment: &Moment) {
        if let Some(message) = self.messages.get_mut(&self.opening)
            && (message.numbers_used > 0 && message.first_number == number)
        {
            let is_accepted = match record {
                // There is no feedback on a long message that was not accepted.
                Record::Accepted | Record::Feedback(_) | Record::Done => Some(true),
                // One that was never heard of, or ended before, has no more numbers than its first part's.
                Record::Ended(ended) => Some(ended.was_accepted),
                Record::Refused(refused) => Some(refused.was_accepted),
                Record::Offer(_) | Record::Withdrawn(_) | Record::Arrived(_) | Record::Sent => None,
            };
            // The first answer counts: numbers that were taken because of it cannot be given back.
            message.is_accepted = message.is_accepted.or(is_accepted);
        }
        if matches!(record, Record::Refused(_) | Record::Done | Record::Ended(_)) {
            self.withdrawn.remove(&number);
        }
        if let Some(send) = self.open.get_mut(&number) {
            send.on_record(record, moment);
            self.news.insert(number);
        }
    }

    /// Something has happened to a message of `sdr`.
    pub(crate) fn on_news(&mut self, number: u64) {
        // The number may be that of parity, which is the next after its data's.
        let part = self.open.range(..=number).next_back().map(|(part, _)| *part);
        self.news.extend(part.filter(|part| number - part <= 1));
    }

    /// Do what is due. Returns the parts and the messages that are over.
    pub(crate) fn poll(&mut self, moment: &Moment, terms: &Terms, pool: &mut ParityPool) -> (usize, u64) {
        let mut due = std::mem::take(&mut self.news);
        due.extend(self.agenda.due(moment.now));
        let mut ended = Vec::new();
        let mut checksum_bytes = checksum::BYTES_A_POLL;
        for number in due {
            self.look_ahead(number, moment, terms);
            let Some(send) = self.open.get_mut(&number) else { continue };
            let was_carried = send.is_carried();
            let is_over = send.poll(moment, terms, &mut checksum_bytes, self.carried_count < CARRIED_MESSAGES_MAX);
            self.carried_count += usize::from(send.is_carried() && !was_carried);
            self.agenda.set(number, send.next_deadline(moment, terms).filter(|_| !is_over));
            ended.extend(is_over.then_some(number));
        }
        let messages = ended.iter().filter(|number| self.end_part(**number, moment, pool)).count();
        for (number, withdrawal) in &mut self.withdrawn {
            // What it was told before it had a receive for it, it could make nothing of; and when that receive is over, it has an answer.
            let receive = terms.queue_pair.peer_receive_of(*number);
            if receive > withdrawal.receive {
                *withdrawal = Withdrawal { receive, ..Withdrawal::new(withdrawal.message_bytes) };
            }
            // A peer with a receive for it has an answer.
            if receive > PeerReceive::NotPosted
                && let Some(heard) = moment.heard
            {
                withdrawal.back_off.on_heard(heard);
            }
            if withdrawal.back_off.due_at(moment.patience) <= moment.now {
                withdrawal.back_off.on_due_said(moment.now);
                #[cfg(feature = "mutations")]
                if terms.attributes.mutation == Some(crate::attributes::Mutation::WithdrawalsUntold) {
                    continue;
                }
                terms.tell(*number, &Record::Withdrawn(withdrawal.message_bytes));
            }
        }
        (ended.len(), messages as u64 + self.expire_waiting(moment, terms))
    }

    /// When a part's time seems to be up: it may be queued behind others that progress.
    fn look_ahead(&mut self, number: u64, moment: &Moment, terms: &Terms) {
        let is_late = |send: &OpenSend| send.progressed() + terms.attributes.message_timeout <= moment.now;
        if !self.open.get(&number).is_some_and(|send| is_late(send)) {
            return;
        }
        let before = self.open.range(..number).map(|(_, send)| send.progressed());
        let done = self.done.filter(|(done, _)| *done < number).map(|(_, at)| at);
        if let (Some(at), Some(send)) = (before.chain(done).max(), self.open.get_mut(&number)) {
            send.on_progress_ahead(at);
        }
    }

    /// Messages that wait for a number while the peer is not heard of, or past their deadline. Returns how many have failed.
    pub(crate) fn expire_waiting(&mut self, moment: &Moment, terms: &Terms) -> u64 {
        let mut expired = 0;
        for own in self.waiting_deadlines.due(moment.now).collect::<Vec<_>>() {
            self.waiting_deadlines.set(own, None);
            if let Some(message) = self.messages.get_mut(&own).filter(|message| message.is_unopened()) {
                let error = MessageError::Deadline(moment.now.saturating_since(message.begun));
                expired += u64::from(message.fail_unopened(error, moment.now, terms, &mut self.withdrawn));
            }
        }
        for message in self.messages.range_mut(self.opening..).map(|(_, message)| message) {
            if !message.is_unopened() || message.promise.is_none() || message.deadline.is_some() {
                continue;
            }
            let (at, error) = message.waits_until(terms);
            if at > moment.now {
                break;
            }
            expired += u64::from(message.fail_unopened(error, moment.now, terms, &mut self.withdrawn));
        }
        expired
    }

    /// A part is over. Returns whether its message is.
    fn end_part(&mut self, number: u64, moment: &Moment, pool: &mut ParityPool) -> bool {
        let Some(ended) = self.open.remove(&number).map(|send| send.finish()) else { return false };
        self.carried_count -= usize::from(ended.was_carried);
        ended.parity.into_iter().for_each(|memory| pool.put_back(memory));
        let Some(message) = self.messages.get_mut(&ended.message) else { return false };
        message.open_parts -= 1;
        message.report.add_part(&ended.report);
        self.counters.add(&ended.report);
        message.ended = message.ended.max(ended.ended);
        message
            .missing
            .0
            .extend(ended.missing.0.into_iter().map(|range| range.start + ended.offset..range.end + ended.offset));
        message.missing.1 |= ended.missing.1;
        message.is_unheard |= !ended.is_done;
        let others = self.open.range_mut(message.first_number..).map(|(_, send)| send);
        let others = others.take_while(|send| send.message == ended.message);
        match ended.outcome {
            Ok(()) => self.done = Some((number, moment.now)),
            Err(error) if message.failure.is_none() => {
                for send in others {
                    send.give_up(error.clone(), moment);
                    self.news.insert(send.number);
                }
                if !ended.is_peers {
                    let message_bytes = message.range.len() as u64;
                    self.withdrawn.insert(message.first_number, Withdrawal::new(message_bytes));
                }
                message.failure = Some(error);
            }
            Err(_) => {}
        }
        let has_all_numbers = ended.message < self.opening;
        if message.open_parts > 0 || !has_all_numbers && message.failure.is_none() {
            return false;
        }
        let is_over = message.tell_program();
        if has_all_numbers {
            self.messages.remove(&ended.message);
        }
        is_over
    }

    pub(crate) fn next_deadline(&self, moment: &Moment, terms: &Terms) -> Option<Instant> {
        if !self.news.is_empty() {
            return Some(moment.now);
        }
        let mut waiting = self.messages.range(self.opening..).map(|(_, message)| message);
        let waiting =
            waiting.find(|message| message.is_unopened() && message.promise.is_some() && message.deadline.is_none());
        let waiting = waiting.map(|message| message.waits_until(terms).0);
        let waiting = Instant::earlier_of(waiting, self.waiting_deadlines.next());
        let own = Instant::earlier_of(waiting, self.agenda.next());
        Instant::earlier_of(
            own,
            self.withdrawn.values().map(|withdrawal| withdrawal.back_off.due_at(moment.patience)).min(),
        )
    }

    /// Everything has failed.
    pub(crate) fn fail(&mut self, error: &MessageError) {
        self.open.clear();
        self.carried_count = 0;
        self.agenda.clear();
        self.waiting_deadlines.clear();
        self.news.clear();
        self.withdrawn.clear();
        self.opening = self.next;
        let messages = std::mem::take(&mut self.messages).into_values();
        messages.filter_map(|message| message.promise).for_each(|promise| promise.keep(Err(error.clone())));
    }
}

impl OutgoingMessage {
    /// Open as many parts as there are places for. Returns whether the message has all the numbers that it will ever have.
    fn open_parts(
        &mut self,
        own: u64,
        cut: Cut,
        terms: &Terms,
        pool: &mut ParityPool,
        opened: &mut impl FnMut(OpenSend),
    ) -> Result<bool, NotOpened> {
        let numbers_a_part = terms.numbers_a_part();
        loop {
            let index = self.numbers_used / numbers_a_part;
            if index > 0 && self.numbers_used.is_multiple_of(numbers_a_part) {
                let count = match self.is_accepted {
                    _ if cut.count() == 1 => 1,
                    Some(true) => cut.count(),
                    Some(false) => 1,
                    None => return Ok(false),
                };
                if index >= count {
                    if count < cut.count() {
                        // The receiver ended it without these, unless it refused it.
                        let rest = cut.part(count).offset()..cut.whole_bytes();
                        self.report.missing_bytes += rest.end - rest.start;
                        self.missing.0.push(rest);
                    }
                    return Ok(true);
                }
            }
            let has_place = match &self.failure {
                // Nothing more is sent of it, but its numbers are its own.
                Some(_) => {
                    self.half_open = None;
                    // Its program has heard an error already, and the numbers are used as soon as they can be.
                    matches!(self.start_stream(None, terms), Ok(Some(_)))
                }
                None => {
                    self.open_parts < terms.attributes.parts_open_max.max(1) && {
                        self.open_part(own, cut.part(index), terms, pool)?.map(&mut *opened).is_some()
                    }
                }
            };
            if !has_place {
                return Ok(false);
            }
        }
    }

    /// Whether it still waits for the numbers of its first part: for both, or for that of the parity.
    fn is_unopened(&self) -> bool {
        self.numbers_used == 0 || self.half_open.is_some() && self.numbers_used == 1
    }

    /// It has failed before it had the numbers of its first part. Returns whether it has ended now for the program.
    fn fail_unopened(
        &mut self,
        error: MessageError,
        now: Instant,
        terms: &Terms,
        withdrawn: &mut BTreeMap<u64, Withdrawal>,
    ) -> bool {
        // It would have failed with this as soon as its turn had come, which is no matter of time.
        let checked = terms.known_part_bytes().map_or(Ok(()), |part_bytes| self.check_parity(part_bytes, terms));
        (self.failure, self.ended) = (Some(checked.err().unwrap_or(error)), now);
        if self.half_open.take().is_some() {
            // The receiver may have a receive for it already.
            withdrawn.insert(self.first_number, Withdrawal::new(self.range.len() as u64));
        }
        self.tell_program()
    }

    /// Whether its parity fits, in whole parts and in the last one. What has numbers already was looked at. One that does not fit uses no number,
    /// also when it has failed before its turn came: which receives its successors find must not depend on time.
    fn check_parity(&self, part_bytes: u64, terms: &Terms) -> Result<(), MessageError> {
        if self.numbers_used > 0 || part_bytes == 0 {
            return Ok(());
        }
        let cut = Cut::new(self.range.len() as u64, part_bytes);
        terms.check_parity(&self.terms, [cut.part(0).bytes(), cut.part(cut.count() - 1).bytes()])
    }

    /// Until when it may wait for its first number, and what it fails with then. Later messages may wait longer.
    fn waits_until(&self, terms: &Terms) -> (Instant, MessageError) {
        let Attributes { message_timeout, message_deadline, .. } = terms.attributes;
        let silent = terms.heard.map_or(self.begun, |heard| heard.max(self.begun)) + message_timeout;
        match message_deadline.map(|deadline| (self.begun + deadline, deadline)) {
            Some((at, deadline)) if at < silent => (at, MessageError::Deadline(deadline)),
            _ => (silent, MessageError::TimedOut(message_timeout)),
        }
    }

    /// `None` while no number is free.
    fn start_stream(&mut self, immediate: Option<u32>, terms: &Terms) -> Result<Option<SendStream>, SendError> {
        let stream = match terms.queue_pair.start_stream(immediate) {
            Ok(stream) => stream,
            Err(SendError::TableFull(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        if self.numbers_used == 0 {
            self.first_number = stream.number();
        }
        self.numbers_used += 1;
        Ok(Some(stream))
    }

    fn open_part(
        &mut self,
        own: u64,
        part: Part,
        terms: &Terms,
        pool: &mut ParityPool,
    ) -> Result<Option<OpenSend>, NotOpened> {
        let shape = self.terms.shape_of(part.bytes());
        // First, because a message without it must not take a number.
        let memory = match self.terms.has_parity() {
            true => Some(
                pool.take(terms.queue_pair.context(), shape.parity_bytes as usize, u64::MAX)
                    .map_err(NotOpened::Parity)?,
            ),
            false => None,
        };
        // It is there until the message has ended, after which no part is opened.
        let Some(message_memory) = self.memory.clone() else { return Ok(None) };
        // Packets of a message in one part tell its length; that of a long one comes with the offer alone.
        let length = (part.cut.count() == 1).then_some(part.bytes() as u32);
        let data = match self.half_open.take() {
            Some(data) => data,
            None => match self.start_stream(length, terms) {
                Ok(Some(data)) => data,
                other => {
                    memory.into_iter().for_each(|memory| pool.put_back(memory));
                    return other.map(|_| None).map_err(NotOpened::Stream);
                }
            },
        };
        let parity = match memory {
            Some(memory) => match self.start_stream(None, terms) {
                Ok(Some(stream)) => Some((stream, memory)),
                other => {
                    pool.put_back(memory);
                    self.half_open = Some(data);
                    return other.map(|_| None).map_err(NotOpened::Stream);
                }
            },
            // The number of its parity is used for nothing.
            None if terms.numbers_a_part() > 1 => match self.start_stream(None, terms) {
                Ok(Some(_)) => None,
                other => {
                    self.half_open = Some(data);
                    return other.map(|_| None).map_err(NotOpened::Stream);
                }
            },
            None => None,
        };
        let attributes = terms.queue_pair.attributes();
        let depth = u64::from(attributes.send_depth) * u64::from(attributes.packets_per_write);
        let start = self.range.start + part.offset() as usize;
        let outbox = Outbox {
            data,
            memory: message_memory,
            range: start..start + part.bytes() as usize,
            parity,
            queued_data_bytes: 0,
            queued_parity_bytes: 0,
            sent_once: ChunkSet::new(shape.packet_count()),
            backlog_bytes_max: 2 * depth * u64::from(shape.packet_bytes),
            failure: None,
            jobs: terms.jobs.clone(),
        };
        self.open_parts += 1;
        let half = self.terms.agreed.scheme.sender(&shape);
        let (message_terms, has_checksum) = (self.terms.clone(), terms.attributes.checksum);
        let send = OpenSend::new(own, part, message_terms, outbox, half, has_checksum, self.begun);
        Ok(Some(send.with_deadline(self.deadline)))
    }

    /// Tell the program how it ended, if it does not know.
    fn tell_program(&mut self) -> bool {
        let Some(promise) = self.promise.take() else { return false };
        self.memory = None;
        let report = MessageReport { duration: self.ended - self.begun, ..self.report };
        let delivery = match &self.failure {
            // It ended by its own deadline, which its program wanted; the receiver will hear that nothing more comes.
            Some(MessageError::Deadline(_)) if self.deadline.is_some() => Ok(Delivery::Unknown),
            Some(error) => Err(error.clone()),
            None if self.missing.0.is_empty() && !self.is_unheard => Ok(Delivery::Whole),
            None => {
                let (missing, is_coarse) = std::mem::take(&mut self.missing);
                Ok(Delivery::Partial { missing: tidy(missing), is_coarse })
            }
        };
        promise.keep(delivery.map(|delivery| Sent { report, delivery }));
        true
    }
}

impl Withdrawal {
    fn new(message_bytes: u64) -> Self {
        Withdrawal { message_bytes, back_off: BackOff::default(), receive: PeerReceive::NotPosted }
    }
}
