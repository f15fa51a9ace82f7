//! Messages of the program on their way out, each in as many parts as it takes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use longhaul_sdr::{Memory, SendStream};
use longhaul_time::Instant;

use crate::agenda::Agenda;
use crate::chunk_set::ChunkSet;
use crate::parity_pool::ParityPool;
use crate::parts::{Cut, Part};
use crate::record::Record;
use crate::report::MessageReport;
use crate::scheme::Outbox;
use crate::sends::{Moment, OpenSend};
use crate::terms::Terms;
use crate::ticket::{MessageError, Promise};

/// That a message was withdrawn is repeated after longer and longer times, up to this many doublings.
const DOUBLINGS_MAX: u32 = 6;

#[derive(Default)]
pub(crate) struct Outgoing {
    /// All that are not over, in the order in which they were sent.
    messages: BTreeMap<u64, OutgoingMessage>,
    next: u64,
    /// Those before have all the numbers that they will ever have.
    opening: u64,
    /// Parts, by number.
    open: BTreeMap<u64, OpenSend>,
    agenda: Agenda,
    /// Parts to look at, whatever the agenda says.
    news: BTreeSet<u64>,
    /// Messages that were given up here, by the number of their first part, until the receiver knows.
    withdrawn: BTreeMap<u64, Withdrawal>,
}

struct OutgoingMessage {
    memory: Memory,
    range: Range<usize>,
    /// `None` when it is over for the program, and only some of its numbers are still to be used.
    promise: Option<Promise<MessageReport>>,
    begun: Instant,
    first_number: u64,
    numbers_used: u64,
    /// Whether the receiver has accepted all parts of it, as far as we know.
    is_accepted: Option<bool>,
    /// A part whose parity has no place yet.
    half_open: Option<SendStream>,
    open_parts: usize,
    failure: Option<MessageError>,
    report: MessageReport,
    /// When its last part was over.
    ended: Instant,
}

struct Withdrawal {
    message_bytes: u64,
    told: Option<Instant>,
    times: u32,
}

impl Outgoing {
    pub(crate) fn add(&mut self, memory: Memory, range: Range<usize>, begun: Instant, promise: Promise<MessageReport>) {
        let message = OutgoingMessage {
            memory,
            range,
            promise: Some(promise),
            begun,
            first_number: 0,
            numbers_used: 0,
            is_accepted: None,
            half_open: None,
            open_parts: 0,
            failure: None,
            report: MessageReport::default(),
            ended: begun,
        };
        self.messages.insert(self.next, message);
        self.next += 1;
    }

    /// Messages that wait for numbers.
    pub(crate) fn waiting(&self) -> usize {
        (self.next - self.opening) as usize
    }

    /// Give parts their places in the message table, as far as there are some. Returns the messages that are over.
    pub(crate) fn open(&mut self, terms: &mut Terms, pool: &mut ParityPool) -> u64 {
        let Some(part_bytes) = terms.part_bytes() else { return 0 };
        let mut over = 0;
        while let Some(message) = self.messages.get_mut(&self.opening) {
            if part_bytes == 0 {
                message.failure = Some(terms.no_room_for_parity());
                over += u64::from(message.tell_program());
            } else {
                let cut = Cut::new(message.range.len() as u64, part_bytes);
                let mut opened = |send: OpenSend| {
                    self.news.insert(send.number);
                    self.open.insert(send.number, send);
                };
                if !message.open_parts(self.opening, cut, terms, pool, &mut opened) {
                    return over;
                }
            }
            if message.promise.is_none() {
                self.messages.remove(&self.opening);
            }
            self.opening += 1;
        }
        over
    }

    pub(crate) fn on_record(&mut self, number: u64, record: &Record<'_>, moment: &Moment, terms: &Terms) {
        if let Some(message) = self.messages.get_mut(&self.opening)
            && (message.numbers_used > 0 && message.first_number == number)
        {
            match record {
                // There is no feedback on a long message that was not accepted.
                Record::Accepted | Record::Feedback(_) | Record::Done => message.is_accepted = Some(true),
                Record::Refused(refused) => message.is_accepted = Some(refused.was_accepted),
                Record::Offer(_) | Record::Withdrawn(_) => {}
            }
        }
        if matches!(record, Record::Refused(_) | Record::Done) {
            self.withdrawn.remove(&number);
        }
        if let Some(send) = self.open.get_mut(&number) {
            send.on_record(record, moment, &terms.scheme_name);
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
        for number in due {
            let Some(send) = self.open.get_mut(&number) else { continue };
            let is_over = send.poll(moment, terms);
            self.agenda.set(number, send.next_deadline(moment, &terms.attributes).filter(|_| !is_over));
            ended.extend(is_over.then_some(number));
        }
        let messages = ended.iter().filter(|number| self.end_part(**number, moment, pool)).count();
        for (number, withdrawal) in &mut self.withdrawn {
            if withdrawal.due(moment) <= moment.now {
                terms.tell(*number, &Record::Withdrawn(withdrawal.message_bytes));
                (withdrawal.told, withdrawal.times) = (Some(moment.now), withdrawal.times + 1);
            }
        }
        (ended.len(), messages as u64)
    }

    /// A part is over. Returns whether its message is.
    fn end_part(&mut self, number: u64, moment: &Moment, pool: &mut ParityPool) -> bool {
        let Some(ended) = self.open.remove(&number).map(OpenSend::finish) else { return false };
        ended.parity.into_iter().for_each(|memory| pool.put_back(memory));
        let Some(message) = self.messages.get_mut(&ended.message) else { return false };
        message.open_parts -= 1;
        message.report.add_part(&ended.report);
        message.ended = message.ended.max(ended.ended);
        let others = self.open.range_mut(message.first_number..).map(|(_, send)| send);
        let others = others.take_while(|send| send.message == ended.message);
        match ended.outcome {
            Ok(()) => others.for_each(|send| send.since = moment.now),
            Err(error) if message.failure.is_none() => {
                for send in others {
                    send.give_up(error.clone(), moment);
                    self.news.insert(send.number);
                }
                if !ended.is_peers {
                    let message_bytes = message.range.len() as u64;
                    self.withdrawn.insert(message.first_number, Withdrawal { message_bytes, told: None, times: 0 });
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

    pub(crate) fn next_deadline(&self, moment: &Moment) -> Option<Instant> {
        if !self.news.is_empty() {
            return Some(moment.now);
        }
        Instant::earlier_of(self.agenda.next(), self.withdrawn.values().map(|withdrawal| withdrawal.due(moment)).min())
    }

    /// Everything has failed.
    pub(crate) fn fail(&mut self, error: &MessageError) {
        self.open.clear();
        self.agenda.clear();
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
    ) -> bool {
        let numbers_a_part = terms.numbers_a_part();
        loop {
            let index = self.numbers_used / numbers_a_part;
            if index > 0 && self.numbers_used.is_multiple_of(numbers_a_part) {
                let count = match self.is_accepted {
                    _ if cut.count() == 1 => 1,
                    Some(true) => cut.count(),
                    Some(false) => 1,
                    None => return false,
                };
                if index == count {
                    return true;
                }
            }
            let has_place = match &self.failure {
                // Nothing more is sent of it, but its numbers are its own.
                Some(_) => {
                    self.half_open = None;
                    self.start_stream(None, terms).is_some()
                }
                None => {
                    self.open_parts < terms.attributes.parts_open_max.max(1) && {
                        self.open_part(own, cut.part(index), terms, pool).map(&mut *opened).is_some()
                    }
                }
            };
            if !has_place {
                return false;
            }
        }
    }

    fn start_stream(&mut self, immediate: Option<u32>, terms: &Terms) -> Option<SendStream> {
        // Only a full table keeps a stream from being started.
        let stream = terms.queue_pair.start_stream(immediate).ok()?;
        if self.numbers_used == 0 {
            self.first_number = stream.number();
        }
        self.numbers_used += 1;
        Some(stream)
    }

    fn open_part(&mut self, own: u64, part: Part, terms: &Terms, pool: &mut ParityPool) -> Option<OpenSend> {
        let shape = terms.shape_of(part.bytes());
        // Packets of a message in one part tell its length; that of a long one comes with the offer alone.
        let length = (part.cut.count() == 1).then_some(part.bytes() as u32);
        let data = match self.half_open.take() {
            Some(data) => data,
            None => self.start_stream(length, terms)?,
        };
        let parity = match terms.has_parity {
            true => {
                let memory = pool.take(terms.queue_pair.context(), shape.parity_bytes as usize);
                let stream = memory.as_ref().and_then(|_| self.start_stream(None, terms));
                let (Some(stream), Some(memory)) = (stream, memory.clone()) else {
                    memory.into_iter().for_each(|memory| pool.put_back(memory));
                    self.half_open = Some(data);
                    return None;
                };
                Some((stream, memory))
            }
            false => None,
        };
        let attributes = terms.queue_pair.attributes();
        let depth = u64::from(attributes.send_depth) * u64::from(attributes.packets_per_write);
        let start = self.range.start + part.offset() as usize;
        let outbox = Outbox {
            data,
            memory: self.memory.clone(),
            range: start..start + part.bytes() as usize,
            parity,
            queued_data_bytes: 0,
            queued_parity_bytes: 0,
            sent_once: ChunkSet::new(shape.chunk_count()),
            backlog_bytes_max: 2 * depth * u64::from(shape.packet_bytes),
            failure: None,
        };
        self.open_parts += 1;
        Some(OpenSend::new(own, part, shape, outbox, terms.scheme.sender(&shape), self.ended))
    }

    /// Tell the program how it ended, if it does not know.
    fn tell_program(&mut self) -> bool {
        let Some(promise) = self.promise.take() else { return false };
        let report = MessageReport { duration: self.ended - self.begun, ..self.report };
        promise.keep(self.failure.clone().map_or(Ok(report), Err));
        true
    }
}

impl Withdrawal {
    fn due(&self, moment: &Moment) -> Instant {
        self.told.map_or(moment.now, |told| told + moment.patience * (1 << self.times.min(DOUBLINGS_MAX)))
    }
}
