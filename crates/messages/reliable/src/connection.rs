//! A connection: messages in both directions, each brought over by a scheme that its sender chooses.

use std::ops::Range;
use std::sync::Arc;

use longhaul_sdr::memory::BorrowError;
use longhaul_sdr::{Memory, QueuePair, QueuePairError, Saying};
use longhaul_time::Instant;
use longhaul_wire::record::Record;
use thiserror::Error;

use crate::attributes::Attributes;
use crate::bounded::{Bound, Deadline, ReceiveBound};
use crate::choice::{Choice, ChoiceError};
use crate::incoming::{Incoming, Wanted};
use crate::jobs::{JobOf, Jobs, Workers};
use crate::moment::Moment;
use crate::outgoing::Outgoing;
use crate::parity_pool::ParityPool;
use crate::report::ConnectionCounters;
use crate::scheme::Scheme;
use crate::terms::Terms;
use crate::ticket::{self, BoundedSendTicket, MessageError, ReceiveTicket, SendTicket};

/// Why a connection takes no message.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// Too many are waiting.
    #[error("{0} messages are waiting already; wait for some of them, or allow more")]
    TooManyWaiting(usize),
    /// The bytes are in use, or not there.
    #[error(transparent)]
    Borrow(#[from] BorrowError),
    /// The memory is another's.
    #[error("the memory was registered with another connection or device; register it with this one")]
    ForeignMemory,
    /// Bounded messages have one part.
    #[error(
        "a bounded message of {bytes} bytes is too long: it takes one part, of at most {most} bytes; send several messages"
    )]
    TooLongToBound {
        /// What was given.
        bytes: u64,
        /// What fits.
        most: u64,
    },
    /// What was chosen for the message is not possible.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// It has failed.
    #[error("the connection has failed")]
    Failed(#[source] Arc<QueuePairError>),
}

/// A connection. It is driven: its owner polls the context's channels and the connection.
pub struct Connection {
    terms: Terms,
    outgoing: Outgoing,
    incoming: Incoming,
    pool: ParityPool,
    over_count: u64,
    failure: Option<Arc<QueuePairError>>,
}

impl Connection {
    /// A connection over a queue pair that is connected, or will be. The peer must have the same scheme.
    /// [`Connection::with_others`] adds more.
    pub fn new(queue_pair: QueuePair, scheme: Arc<dyn Scheme>, attributes: Attributes) -> Self {
        Connection {
            terms: Terms::new(queue_pair, scheme, attributes),
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            pool: ParityPool::default(),
            over_count: 0,
            failure: None,
        }
    }

    /// Messages may have these schemes as well, if their sender chooses one of them. The peer must have the same ones, in any order. Call this
    /// before the first message.
    pub fn with_others(mut self, others: impl IntoIterator<Item = Arc<dyn Scheme>>) -> Self {
        self.terms.agree(others);
        self
    }

    /// Have `workers` encode and decode, which otherwise happens in [`Connection::poll`]. `wake` is called on their threads when the connection
    /// must be polled because of it; it must not poll itself. Call this before the first message.
    pub fn set_workers(&mut self, workers: Arc<dyn Workers>, wake: impl Fn() + Send + Sync + 'static) {
        self.terms.jobs = Jobs::new(workers, Box::new(wake));
    }

    /// Whether workers have ended something that the connection has waited for, and has not looked at since.
    pub fn has_ended_work(&self) -> bool {
        self.terms.jobs.has_ended()
    }

    /// The queue pair below.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.terms.queue_pair
    }

    /// The longest message that is sent in one part; longer ones are cut. `None` until the queue pair is connected.
    pub fn part_bytes(&mut self) -> Option<u64> {
        self.terms.part_bytes()
    }

    /// How many messages of both directions have ended, so that its driver can see whether it is worth looking at
    /// tickets.
    pub fn over_count(&self) -> u64 {
        self.over_count
    }

    /// What happened so far: packets sent and repeated by this end, and duplicates that came to it.
    pub fn counters(&self) -> ConnectionCounters {
        let mut counters = ConnectionCounters::default();
        self.outgoing.count(&mut counters);
        self.incoming.count(&mut counters);
        counters
    }

    /// Visit all that has been counted here and below, by name.
    pub fn visit_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let counters = self.counters();
        visit("reliable.messages_over", self.over_count);
        visit("reliable.data_packets_sent", counters.data_packets_sent);
        visit("reliable.data_packets_repeated", counters.data_packets_repeated);
        visit("reliable.parity_packets_sent", counters.parity_packets_sent);
        visit("reliable.duplicate_packets", counters.duplicate_packets);
        self.queue_pair().visit_counters(visit);
    }

    /// Send bytes as one message, of any length. They must not be changed until it has ended.
    pub fn send(&mut self, memory: &Memory, range: Range<usize>, now: Instant) -> Result<SendTicket, ConnectionError> {
        self.send_chosen(memory, range, &Choice::default(), now)
    }

    /// The same with a scheme and chunks of its own.
    pub fn send_chosen(
        &mut self,
        memory: &Memory,
        range: Range<usize>,
        choice: &Choice,
        now: Instant,
    ) -> Result<SendTicket, ConnectionError> {
        let terms = self.terms.chosen(choice)?;
        self.check(memory, self.outgoing.waiting())?;
        drop(memory.read(range.clone())?);
        let (promise, ticket) = ticket::send_ticket();
        self.outgoing.add(memory.clone(), range, terms, now, None, promise);
        Ok(ticket)
    }

    /// Send bytes as one message that ends by a deadline, whatever has arrived then. With [`crate::BestEffort`] everything is sent once; with other
    /// schemes what is lost is repeated until the deadline. The ticket says what was missing, if the receiver has told it in time. A receive
    /// that is not bounded fails when its sender gives up.
    pub fn send_bounded(
        &mut self,
        memory: &Memory,
        range: Range<usize>,
        deadline: Deadline,
        now: Instant,
    ) -> Result<BoundedSendTicket, ConnectionError> {
        self.send_bounded_chosen(memory, range, deadline, &Choice::default(), now)
    }

    /// The same with a scheme and chunks of its own.
    pub fn send_bounded_chosen(
        &mut self,
        memory: &Memory,
        range: Range<usize>,
        deadline: Deadline,
        choice: &Choice,
        now: Instant,
    ) -> Result<BoundedSendTicket, ConnectionError> {
        let terms = self.terms.chosen(choice)?;
        self.check(memory, self.outgoing.waiting())?;
        self.check_one_part(&range)?;
        drop(memory.read(range.clone())?);
        let (promise, ticket) = ticket::bounded_send_ticket();
        self.outgoing.add(memory.clone(), range, terms, now, Some(deadline.of_posting(now)), promise);
        Ok(ticket)
    }

    /// Receive the peer's next message here, all of it: one that ends with bytes missing, because its sender has chosen [`crate::BestEffort`], fails with
    /// [`MessageError::Incomplete`], which names them. Messages take their receives in order; one may be shorter than its receive. A receive that is
    /// longer than [`Connection::part_bytes`] holds up those that follow, until the sender has told how long its message is.
    pub fn post_receive(&mut self, memory: &Memory, range: Range<usize>) -> Result<ReceiveTicket, ConnectionError> {
        self.receive(memory, range, Wanted::Whole)
    }

    /// The same for a program that looks at [`Received::missing`](crate::Received::missing): whatever its scheme leaves of the message, which may be a
    /// long one. It has no deadline of its own.
    pub fn post_receive_partial(
        &mut self,
        memory: &Memory,
        range: Range<usize>,
    ) -> Result<ReceiveTicket, ConnectionError> {
        self.receive(memory, range, Wanted::Partial)
    }

    fn receive(
        &mut self,
        memory: &Memory,
        range: Range<usize>,
        wanted: Wanted,
    ) -> Result<ReceiveTicket, ConnectionError> {
        self.check(memory, self.incoming.waiting())?;
        drop(memory.write(range.clone())?);
        let (promise, ticket) = ticket::receive_ticket();
        self.incoming.add(memory.clone(), range, wanted, promise);
        // A first part's clock begins with its message, so the time of posting does not matter.
        self.over_count += self.incoming.open(Instant::ZERO, &mut self.terms, &mut self.pool);
        self.trim_pool();
        Ok(ticket)
    }

    /// Receive the peer's next message here, and end by a deadline, also when nothing of it was ever heard: with what has arrived, what can be
    /// computed of the rest, and the ranges that are missing, which are filled. With [`crate::BestEffort`] it ends as soon as everything was sent
    /// and nothing comes any more. A message that comes when its receive has ended is over for its sender, too; the next one goes to the next
    /// receive.
    ///
    /// While nothing is heard of the sender's offer, the message is taken to be as long as the receive.
    pub fn receive_bounded(
        &mut self,
        memory: &Memory,
        range: Range<usize>,
        bound: Bound,
        now: Instant,
    ) -> Result<ReceiveTicket, ConnectionError> {
        self.check(memory, self.incoming.waiting())?;
        self.check_one_part(&range)?;
        drop(memory.write(range.clone())?);
        let bound = ReceiveBound::new(bound, memory, range.clone(), now)?;
        let (promise, ticket) = ticket::receive_ticket();
        self.incoming.add(memory.clone(), range, Wanted::Bounded(bound, now), promise);
        self.over_count += self.incoming.open(now, &mut self.terms, &mut self.pool);
        self.trim_pool();
        Ok(ticket)
    }

    fn check_one_part(&mut self, range: &Range<usize>) -> Result<(), ConnectionError> {
        let bytes = range.len() as u64;
        match self.terms.part_bytes() {
            Some(most) if bytes > most => Err(ConnectionError::TooLongToBound { bytes, most }),
            _ => Ok(()),
        }
    }

    fn check(&self, memory: &Memory, waiting: usize) -> Result<(), ConnectionError> {
        if let Some(failure) = &self.failure {
            return Err(ConnectionError::Failed(failure.clone()));
        }
        if !self.terms.queue_pair.can_use(memory) {
            return Err(ConnectionError::ForeignMemory);
        }
        if waiting >= self.terms.attributes.waiting_max {
            return Err(ConnectionError::TooManyWaiting(waiting));
        }
        Ok(())
    }

    /// Carry out what is due. What has arrived must have been put into bitmaps before ([`longhaul_sdr::Context::poll`]). After an
    /// error all messages have failed, and there will be no others.
    pub fn poll(&mut self, now: Instant) -> Result<(), Arc<QueuePairError>> {
        self.poll_saying(now, Saying::All)
    }

    /// The same, but some of what the peer has to know may wait.
    pub fn poll_saying(&mut self, now: Instant, saying: Saying) -> Result<(), Arc<QueuePairError>> {
        self.unless_failed(|connection| connection.poll_all(now, saying))
    }

    /// Begin what was posted just now, without looking at what the device has: a poll that does only what a program that has posted a message waits for.
    pub fn advance(&mut self, now: Instant, saying: Saying) -> Result<(), Arc<QueuePairError>> {
        self.unless_failed(|connection| connection.advance_all(now, saying))
    }

    /// Tell the peer what it has to know.
    pub fn say(&mut self, now: Instant, saying: Saying) -> Result<(), Arc<QueuePairError>> {
        self.unless_failed(|connection| unless_connecting(connection.terms.queue_pair.advance(now, saying)))
    }

    fn unless_failed(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), QueuePairError>,
    ) -> Result<(), Arc<QueuePairError>> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        work(self).map_err(|error| {
            let error = Arc::new(error);
            self.failure = Some(error.clone());
            let failed = MessageError::Connection(error.clone());
            self.outgoing.fail(&failed);
            self.incoming.fail(&failed);
            error
        })
    }

    fn poll_all(&mut self, now: Instant, saying: Saying) -> Result<(), QueuePairError> {
        match self.terms.queue_pair.poll_saying(now, saying) {
            Err(QueuePairError::NotConnected) => {
                let moment = Moment::new(&self.terms, now);
                // What ended while it waited for the peer is being filled.
                self.take_ended_work(&moment);
                self.over_count += self.incoming.expire_waiting(now, &self.terms);
                self.over_count += self.outgoing.expire_waiting(&moment, &self.terms);
                return Ok(());
            }
            result => result?,
        }
        self.terms.listen(now);
        self.advance_all(now, saying)
    }

    fn advance_all(&mut self, now: Instant, saying: Saying) -> Result<(), QueuePairError> {
        let Connection { terms, outgoing, incoming, pool, over_count, .. } = self;
        let moment = Moment::new(terms, now);
        while let Some(bytes) = terms.queue_pair.take_from_peer() {
            match Record::parse(&bytes) {
                Some((number, Record::Offer(offer))) => {
                    *over_count += incoming.on_offer(number, &offer, &moment, terms, pool);
                }
                Some((number, Record::Withdrawn(length))) => {
                    *over_count += incoming.on_withdrawn(number, length, &moment, terms)
                }
                Some((number, Record::Sent)) => incoming.on_sender_through(number),
                Some((number, record)) => outgoing.on_record(number, &record, &moment),
                None => {}
            }
        }
        terms.queue_pair.take_send_news().into_iter().for_each(|number| outgoing.on_news(number));
        self.take_ended_work(&moment);
        let Connection { terms, outgoing, incoming, pool, over_count, .. } = self;
        loop {
            *over_count += incoming.open(now, terms, pool) + outgoing.open(&moment, terms, pool);
            let received = incoming.poll(&moment, terms, pool);
            let sent = outgoing.poll(&moment, terms, pool);
            *over_count += received.1 + sent.1;
            // Whatever waits may have a place now, also after a receive that has expired while it waited: it needs numbers only, and
            // those behind it may need less than it did.
            let has_more =
                (received.0 > 0 || received.1 > 0) && incoming.waiting() > 0 || sent.0 > 0 && outgoing.waiting() > 0;
            if !has_more {
                break;
            }
        }
        terms.queue_pair.set_asks_from(outgoing.asks_from());
        self.trim_pool();
        // What was queued just now goes out at once.
        unless_connecting(self.terms.queue_pair.advance(now, saying))
    }

    /// What is kept for parity counts, too.
    fn trim_pool(&mut self) {
        if !self.pool.is_empty() {
            self.pool.trim(self.terms.attributes.parity_bytes_max.saturating_sub(self.incoming.parity_bytes()));
        }
    }

    /// Go on with what workers have ended.
    fn take_ended_work(&mut self, moment: &Moment) {
        let Connection { terms, outgoing, incoming, pool, over_count, .. } = self;
        for ended in terms.jobs.take_ended() {
            *over_count += match ended {
                JobOf::Send(number) => {
                    outgoing.on_news(number);
                    0
                }
                JobOf::Receive(number) => incoming.on_recovered(number, moment, terms, pool),
                JobOf::Expired(own) => incoming.on_filled(own),
            };
        }
    }

    /// When [`Connection::poll`] must be called if nothing completes before.
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        // What came while the last poll was carried out.
        if self.terms.queue_pair.has_news() || self.has_ended_work() {
            return Some(now);
        }
        let moment = Moment::new(&self.terms, now);
        let sends = self.outgoing.next_deadline(&moment, &self.terms);
        let own = Instant::earlier_of(sends, self.incoming.next_deadline(&self.terms));
        Instant::earlier_of(own, self.terms.queue_pair.next_deadline())
    }
}

/// Messages may be posted before the queue pair is connected; they wait.
fn unless_connecting(result: Result<(), QueuePairError>) -> Result<(), QueuePairError> {
    match result {
        Err(QueuePairError::NotConnected) => Ok(()),
        result => result,
    }
}
