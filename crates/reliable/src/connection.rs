//! A connection: messages in both directions, each brought over by the connection's scheme.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use longhaul_sdr::memory::BorrowError;
use longhaul_sdr::{Memory, QueuePair, QueuePairError, Receive, SendStream};
use longhaul_time::Instant;
use thiserror::Error;

use crate::attributes::Attributes;
use crate::chunk_set::ChunkSet;
use crate::parity_pool::ParityPool;
use crate::receives::{OpenReceive, Step};
use crate::record::{self, Record, Refusal};
use crate::report::MessageReport;
use crate::scheme::{MessageShape, Outbox, Scheme};
use crate::sends::{Moment, OpenSend};
use crate::ticket::{self, MessageError, Promise, ReceiveTicket, Received, SendTicket};

/// That a message is done is told so often, this part of a round trip apart, without being asked.
const DONE_TIMES: u32 = 3;
const DONES_A_ROUND_TRIP: u32 = 32;
/// Messages that were given up and are remembered, so that their senders can be told again.
const REFUSED_MAX: usize = 1024;
/// Done messages that are told again without being asked.
const DONES_MAX: usize = 1024;

/// Why a connection cannot be made, or takes no message.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// Longer than the queue pair was made for.
    #[error("a message of {bytes} bytes; this connection was made for at most {most}")]
    TooLong {
        /// What came.
        bytes: u64,
        /// What fits.
        most: u64,
    },
    /// Too many are waiting.
    #[error("{0} messages are waiting already; wait for some of them, or allow more")]
    TooManyWaiting(usize),
    /// The bytes are in use, or not there.
    #[error(transparent)]
    Borrow(#[from] BorrowError),
    /// It has failed.
    #[error("the connection has failed")]
    Failed(#[source] Arc<QueuePairError>),
}

/// A connection. It is driven: whoever has it polls the context's channels and this.
pub struct Connection {
    queue_pair: QueuePair,
    scheme: Arc<dyn Scheme>,
    scheme_name: String,
    attributes: Attributes,
    /// Of every message, but for its length.
    template: MessageShape,
    has_parity: bool,
    message_bytes_max: u64,
    waiting_sends: VecDeque<WaitingSend>,
    waiting_receives: VecDeque<WaitingReceive>,
    sends: BTreeMap<u64, OpenSend>,
    receives: BTreeMap<u64, OpenReceive>,
    /// Messages below have had their receive.
    next_receive: u64,
    refused: BTreeMap<u64, Refusal>,
    dones: VecDeque<DoneToTell>,
    pool: ParityPool,
    over_count: u64,
    failure: Option<Arc<QueuePairError>>,
}

/// A send that has no place in the message table yet.
struct WaitingSend {
    memory: Memory,
    range: Range<usize>,
    promise: Promise<MessageReport>,
    begun: Instant,
    data: Option<SendStream>,
}

/// A receive that has none.
struct WaitingReceive {
    memory: Memory,
    range: Range<usize>,
    promise: Promise<Received>,
    data: Option<Receive>,
    parity: Option<Memory>,
}

/// A message that is done, and of which the sender may not know.
struct DoneToTell {
    number: u64,
    at: Instant,
    times: u32,
}

impl Connection {
    /// A connection over a queue pair that is connected, or will be. The peer must have the same scheme.
    pub fn new(queue_pair: QueuePair, scheme: Arc<dyn Scheme>, attributes: Attributes) -> Self {
        let own = queue_pair.attributes();
        let template = MessageShape {
            message_bytes: 0,
            parity_bytes: 0,
            chunk_bytes: own.chunk_bytes,
            packet_bytes: own.mtu.byte_count(),
            rate_bits_per_second: own.rate_bits_per_second,
        };
        let most = own.message_bytes_max.min(u32::MAX.into());
        let fits = |bytes: u64| scheme.parity_bytes(bytes, template.chunk_bytes) <= own.message_bytes_max;
        let message_bytes_max = longest(most, fits);
        Connection {
            has_parity: scheme.parity_bytes(u64::from(template.chunk_bytes), template.chunk_bytes) > 0,
            scheme_name: scheme.name(),
            scheme,
            attributes,
            template,
            message_bytes_max,
            waiting_sends: VecDeque::new(),
            waiting_receives: VecDeque::new(),
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            next_receive: 0,
            refused: BTreeMap::new(),
            dones: VecDeque::new(),
            pool: ParityPool::default(),
            over_count: 0,
            failure: None,
            queue_pair,
        }
    }

    /// The queue pair below.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// The longest message.
    pub fn message_bytes_max(&self) -> u64 {
        self.message_bytes_max
    }

    /// Messages of both directions that are over, so that whoever drives it can see whether it is worth looking at tickets.
    pub fn over_count(&self) -> u64 {
        self.over_count
    }

    /// Send bytes as one message. They must not be changed until it is over.
    pub fn send(&mut self, memory: &Memory, range: Range<usize>, now: Instant) -> Result<SendTicket, ConnectionError> {
        self.check(&range, self.waiting_sends.len())?;
        drop(memory.read(range.clone())?);
        let (promise, ticket) = ticket::send_ticket();
        self.waiting_sends.push_back(WaitingSend { memory: memory.clone(), range, promise, begun: now, data: None });
        Ok(ticket)
    }

    /// Receive the peer's next message here. Messages take their receives in order; one may be shorter than its receive.
    pub fn post_receive(&mut self, memory: &Memory, range: Range<usize>) -> Result<ReceiveTicket, ConnectionError> {
        self.check(&range, self.waiting_receives.len())?;
        drop(memory.write(range.clone())?);
        let (promise, ticket) = ticket::receive_ticket();
        let waiting = WaitingReceive { memory: memory.clone(), range, promise, data: None, parity: None };
        self.waiting_receives.push_back(waiting);
        self.open_receives();
        Ok(ticket)
    }

    fn check(&self, range: &Range<usize>, waiting: usize) -> Result<(), ConnectionError> {
        let (bytes, most) = (range.len() as u64, self.message_bytes_max);
        if let Some(failure) = &self.failure {
            return Err(ConnectionError::Failed(failure.clone()));
        }
        if bytes > most {
            return Err(ConnectionError::TooLong { bytes, most });
        }
        if waiting >= self.attributes.waiting_max {
            return Err(ConnectionError::TooManyWaiting(waiting));
        }
        Ok(())
    }

    /// Carry out what is due. What has arrived must have been put into bitmaps before ([`longhaul_sdr::Context::poll`]). After an
    /// error all messages have failed, and there will be no others.
    pub fn poll(&mut self, now: Instant) -> Result<(), Arc<QueuePairError>> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let result = self.poll_all(now);
        result.map_err(|error| {
            let error = Arc::new(error);
            self.failure = Some(error.clone());
            let failed = || MessageError::Connection(error.clone());
            std::mem::take(&mut self.sends).into_values().for_each(|send| send.fail(failed()));
            std::mem::take(&mut self.receives).into_values().for_each(|receive| receive.fail(failed()));
            self.waiting_sends.drain(..).for_each(|waiting| waiting.promise.keep(Err(failed())));
            self.waiting_receives.drain(..).for_each(|waiting| waiting.promise.keep(Err(failed())));
            error
        })
    }

    fn poll_all(&mut self, now: Instant) -> Result<(), QueuePairError> {
        match self.queue_pair.poll(now) {
            // Messages may be posted before; they wait.
            Err(QueuePairError::NotConnected) => return Ok(()),
            result => result?,
        }
        let moment = Moment::new(&self.queue_pair, now);
        while let Some(bytes) = self.queue_pair.take_from_peer() {
            if let Some((number, record)) = record::decode(&bytes) {
                self.handle(number, &record, &moment);
            }
        }
        self.open_receives();
        self.open_sends();
        self.poll_receives(&moment);
        self.poll_sends(&moment);
        self.tell_dones(&moment);
        // What was queued just now goes out at once.
        self.queue_pair.poll(now)
    }

    /// When [`Connection::poll`] must be called if nothing completes before.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let moment = Moment::new(&self.queue_pair, now);
        let sends = self.sends.values().filter_map(|send| send.next_deadline(&moment, &self.attributes)).min();
        let receives = self.receives.values().filter_map(|receive| receive.next_deadline(&self.attributes)).min();
        let dones = self.dones.iter().map(|done| done.at).min();
        let own = Instant::earlier_of(Instant::earlier_of(sends, receives), dones);
        Instant::earlier_of(own, self.queue_pair.next_deadline())
    }

    fn handle(&mut self, number: u64, record: &Record<'_>, moment: &Moment) {
        let Record::Offer(offer) = record else {
            if let Some(send) = self.sends.get_mut(&number) {
                send.on_record(record, moment, &self.scheme_name);
            }
            return;
        };
        if let Some(receive) = self.receives.get_mut(&number) {
            let step = receive.on_offer(offer, moment, &self.template, &*self.scheme);
            self.follow(number, step, moment);
        } else if let Some(refusal) = self.refused.get(&number) {
            self.queue_pair.send_to_peer(Record::Refused(*refusal, &self.own_name()).encode(number));
        } else if number < self.next_receive {
            self.queue_pair.send_to_peer(Record::Done.encode(number));
        }
    }

    fn own_name(&self) -> String {
        format!("{} with chunks of {} bytes", self.scheme_name, self.template.chunk_bytes)
    }

    /// Act on what became of a receive.
    fn follow(&mut self, number: u64, step: Step, moment: &Moment) {
        let refusal = match step {
            Step::Waiting => return,
            Step::Finished => {
                let Some(receive) = self.receives.remove(&number) else { return };
                let (parity, refusal) = receive.finish(moment);
                parity.into_iter().for_each(|memory| self.pool.put_back(memory));
                refusal
            }
            Step::Failed(refusal, error) => {
                let Some(receive) = self.receives.remove(&number) else { return };
                receive.fail(error);
                Some(refusal)
            }
        };
        self.over_count += 1;
        match refusal {
            Some(refusal) => {
                self.refused.insert(number, refusal);
                if self.refused.len() > REFUSED_MAX {
                    self.refused.pop_first();
                }
                self.queue_pair.send_to_peer(Record::Refused(refusal, &self.own_name()).encode(number));
            }
            None => {
                if self.dones.len() == DONES_MAX {
                    self.dones.pop_front();
                }
                self.dones.push_back(DoneToTell { number, at: moment.now, times: DONE_TIMES });
            }
        }
    }

    fn tell_dones(&mut self, moment: &Moment) {
        let pause = moment.round_trip / DONES_A_ROUND_TRIP;
        for done in self.dones.iter_mut().filter(|done| done.at <= moment.now) {
            self.queue_pair.send_to_peer(Record::Done.encode(done.number));
            (done.times, done.at) = (done.times - 1, moment.now + pause);
        }
        self.dones.retain(|done| done.times > 0);
    }

    fn poll_receives(&mut self, moment: &Moment) {
        let mut feedback = Vec::new();
        let mut steps = Vec::new();
        let feedback_bytes_max = self.queue_pair.scheme_bytes_max() - record::HEADER_BYTES;
        for (number, receive) in &mut self.receives {
            let scheme = &*self.scheme;
            let step =
                receive.poll(moment, &self.template, scheme, &self.attributes, &mut feedback, feedback_bytes_max);
            feedback.drain(..).for_each(|bytes| self.queue_pair.send_to_peer(Record::Feedback(&bytes).encode(*number)));
            if !matches!(step, Step::Waiting) {
                steps.push((*number, step));
            }
        }
        steps.into_iter().for_each(|(number, step)| self.follow(number, step, moment));
    }

    fn poll_sends(&mut self, moment: &Moment) {
        let mut over = Vec::new();
        for (number, send) in &mut self.sends {
            if send.poll(moment, &self.queue_pair, &self.scheme_name, &self.attributes) {
                over.push(*number);
            }
        }
        self.over_count += over.len() as u64;
        for number in over {
            let parity = self.sends.remove(&number).and_then(OpenSend::finish);
            parity.into_iter().for_each(|memory| self.pool.put_back(memory));
        }
    }

    /// Give sends their places in the message table, as far as there are some.
    fn open_sends(&mut self) {
        while let Some(mut waiting) = self.waiting_sends.pop_front() {
            let length = waiting.range.len() as u64;
            let shape = self.shape_of(length);
            // Only a full table keeps a stream from being started.
            let start = |immediate| self.queue_pair.start_stream(immediate).ok();
            if waiting.data.is_none() {
                waiting.data = start(Some(length as u32));
            }
            let Some(data) = waiting.data else {
                self.waiting_sends.push_front(WaitingSend { data: None, ..waiting });
                return;
            };
            let parity = match self.has_parity {
                true => {
                    let memory = self.pool.take(self.queue_pair.context(), shape.parity_bytes as usize);
                    let Some(parity) = memory.and_then(|memory| Some((start(None)?, memory))) else {
                        self.waiting_sends.push_front(WaitingSend { data: Some(data), ..waiting });
                        return;
                    };
                    Some(parity)
                }
                false => None,
            };
            let own = self.queue_pair.attributes();
            let depth = u64::from(own.send_depth) * u64::from(own.packets_per_write);
            let outbox = Outbox {
                data,
                memory: waiting.memory,
                range: waiting.range,
                parity,
                queued_data_bytes: 0,
                queued_parity_bytes: 0,
                sent_once: ChunkSet::new(shape.chunk_count()),
                backlog_bytes_max: 2 * depth * u64::from(shape.packet_bytes),
                failure: None,
            };
            let half = self.scheme.sender(&shape);
            let send = OpenSend::new(shape, outbox, half, waiting.promise, waiting.begun);
            self.sends.insert(send.number, send);
        }
    }

    fn shape_of(&self, length: u64) -> MessageShape {
        let parity_bytes = self.scheme.parity_bytes(length, self.template.chunk_bytes);
        MessageShape { message_bytes: length, parity_bytes, ..self.template }
    }

    /// Give receives their places in the message table, as far as there are some.
    fn open_receives(&mut self) {
        while let Some(mut waiting) = self.waiting_receives.pop_front() {
            let capacity = waiting.range.len() as u64;
            if waiting.data.is_none() {
                match self.queue_pair.post_receive(&waiting.memory, waiting.range.clone()) {
                    Ok(receive) => waiting.data = Some(receive),
                    // The table is full, its memory is in use after all, or the device has no key: that may pass.
                    Err(_) => {
                        self.waiting_receives.push_front(waiting);
                        return;
                    }
                }
            }
            let mut parity = None;
            if self.has_parity {
                let bytes = self.shape_of(capacity).parity_bytes as usize;
                let context = self.queue_pair.context();
                let memory = waiting.parity.take().or_else(|| self.pool.take(context, bytes));
                let receive = memory.as_ref().map(|memory| self.queue_pair.post_receive(memory, 0..bytes));
                match (memory, receive) {
                    (Some(memory), Some(Ok(receive))) => parity = Some((receive, memory)),
                    (memory, _) => {
                        waiting.parity = memory;
                        self.waiting_receives.push_front(waiting);
                        return;
                    }
                }
            }
            let Some(data) = waiting.data else { return };
            let receive = OpenReceive::new(data, capacity, parity, waiting.promise);
            self.next_receive = receive.number + 1;
            self.receives.insert(receive.number, receive);
        }
    }
}

/// The largest number up to `most` for which `fits` holds, which does for small ones if at all.
fn longest(most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        match fits(middle) {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::longest;

    #[test]
    fn the_longest_that_fits() {
        assert_eq!(longest(100, |_| true), 100);
        assert_eq!(longest(100, |bytes| bytes <= 37), 37);
        assert_eq!(longest(100, |bytes| bytes == 0), 0);
    }
}
