//! Bandwidth: messages one after another, as many at a time as the queues and the peer take.
//!
//! RC says itself when a message has arrived. UC and UD do not, and drop what the receiver has no room for, so here the
//! receiver reports how far it is, in the immediate of an empty SEND: credit. Credit is cumulative, so that a lost one
//! does not matter; when everything in the window is lost, the sender goes on after a while as if it had come, and what
//! has arrived is counted by the receiver. Nothing of it can hang.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use longhaul_verbs::{CompletionOperation, ReceiveRequest, SendFlags, SendOperation, SendRequest, WorkCompletion};
use serde::{Deserialize, Serialize};

use crate::answers::{self, Answers};
use crate::arrivals::Arrivals;
use crate::connection::{Group, Slots};
use crate::error::PerfError;
use crate::operation::Operation;
use crate::pacer::Pacer;
use crate::patience::Patience;
use crate::pattern::Pattern;
use crate::peak::Peak;
use crate::processor;

/// Messages of UC and UD that may be in flight, in bytes: well below what a socket buffer holds.
const WINDOW_BYTES: usize = 3 << 20;
/// After silence for this long: is the other end still there?
const SILENCE: Duration = Duration::from_millis(20);
/// A receiver that has had nothing new for this long gives the credit that it has kept back.
const CREDIT_DELAY: Duration = Duration::from_micros(500);
/// Completions taken with one call.
const POLL_BATCH: usize = 64;
/// Requests posted with one call.
const POST_BATCH: usize = 16;
/// Set in the id of receives.
const RECEIVE: u64 = 1 << 63;

/// When a sender is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Bound {
    /// After this many messages.
    Messages(u64),
    /// After this time.
    Time(Duration),
}

/// One run of messages of one size.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) operation: Operation,
    pub(crate) message_bytes: u32,
    pub(crate) bound: Bound,
    /// Contents are made by the sender and checked by the receiver, from this seed.
    pub(crate) verify_seed: Option<u64>,
}

/// What a sender saw.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) messages: u64,
    /// From the first post to the last completion or credit.
    pub(crate) elapsed: Duration,
    pub(crate) processor: Duration,
    /// The most messages a second over any stretch of a few windows; 0 when there were fewer.
    pub(crate) peak_messages_per_second: f64,
    /// READs and atomics: answers that were checked.
    pub(crate) verified_messages: u64,
    /// The first that was wrong.
    pub(crate) mismatch: Option<String>,
}

/// What a receiver saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Received {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// From the first to the last arrival; the first does not count in `timed_bytes`.
    pub(crate) elapsed: Duration,
    pub(crate) timed_bytes: u64,
    pub(crate) processor: Duration,
    /// The first contents that were wrong.
    pub(crate) mismatch: Option<String>,
    pub(crate) verified_messages: u64,
}

/// The end that sends.
pub(crate) struct Sender {
    group: Group,
    /// Number of the next message; goes on from run to run.
    next: u64,
    /// Requests of each queue pair that have not completed.
    in_queue: Vec<u32>,
    /// Queue pairs with room in their send queue.
    ready: VecDeque<usize>,
    /// Unreliable: everything before this message has arrived or is lost.
    credited: u64,
    /// How long to wait for credit.
    patience: Patience,
    scratch: Vec<u8>,
    /// Compare-and-swap: requests of this run on each queue pair.
    swaps: Vec<u64>,
    /// Holds messages back, on a device that cannot.
    pacer: Option<Pacer>,
    /// READs and atomics whose answers are to be checked.
    answers: Option<Box<Answers>>,
}

impl Sender {
    pub(crate) fn new(group: Group) -> Self {
        let count = group.queue_pairs.len();
        Sender {
            in_queue: vec![0; count],
            ready: (0..count).collect(),
            next: 0,
            credited: 0,
            patience: Patience::default(),
            scratch: Vec::new(),
            swaps: vec![0; count],
            pacer: group.paced_bits_per_second.map(Pacer::new),
            answers: None,
            group,
        }
    }

    pub(crate) fn group(&mut self) -> &mut Group {
        &mut self.group
    }

    /// The number of the next message.
    pub(crate) const fn next_message(&self) -> u64 {
        self.next
    }

    /// To be called once after connecting: receives for credit.
    pub(crate) fn start(&self) -> Result<(), PerfError> {
        if self.group.options.connection.is_reliable() {
            return Ok(());
        }
        for _ in 0..self.group.options.receive_depth {
            self.post_credit_receive()?;
        }
        Ok(())
    }

    /// Credit carries no bytes, but a datagram's receive has room for the route header.
    fn post_credit_receive(&self) -> Result<(), PerfError> {
        let header = [self.group.region.entry(0..self.group.header_bytes())];
        let local = if self.group.header_bytes() > 0 { &header[..] } else { &[] };
        let posted = self.group.queue_pairs[0].post_receive(&[ReceiveRequest { id: RECEIVE, local }]);
        posted.map_err(|error| PerfError::failed("cannot post a receive", error))
    }

    /// To be called before the first message of a run.
    pub(super) fn begin(&mut self, run: &Run) -> Slots {
        let slots = Slots::new(&self.group, run.message_bytes as usize);
        self.swaps.fill(0);
        self.answers = Answers::new(run, &slots, self.group.queue_pairs.len()).map(Box::new);
        slots
    }

    /// To be called after the last one: answers that were checked, and the first that was wrong.
    pub(super) fn end(&mut self) -> (u64, Option<String>) {
        self.answers.take().map_or((0, None), |answers| (answers.checked, answers.mismatch))
    }

    /// A message is done.
    pub(super) fn complete(&mut self, completion: &WorkCompletion) {
        let (index, slot) = ((completion.id >> 32) as usize, completion.id & 0xffff_ffff);
        self.in_queue[index] -= 1;
        if self.in_queue[index] + 1 == self.group.options.send_depth {
            self.ready.push_back(index);
        }
        if let Some(answers) = &mut self.answers {
            answers.check(index, slot);
        }
    }

    /// Sends until the bound is reached and everything is done. `is_peer_gone` is asked now and then.
    pub(crate) fn run(&mut self, run: &Run, is_peer_gone: &dyn Fn() -> bool) -> Result<Sent, PerfError> {
        let reliable = self.group.options.connection.is_reliable();
        let slots = self.begin(run);
        let window = self.window(run, &slots);
        let first = self.next;
        let used = processor::time_used();
        let begin = Instant::now();
        let (mut progress, mut last_sign) = (begin, begin);
        // Unlike `last_sign`, only what comes from the peer counts.
        let mut last_answer = begin;
        let mut completed = 0;
        // When a message was posted that has no credit yet.
        let mut probe: Option<(Instant, u64)> = None;
        let mut peak = Peak::new(window);
        let mut room = [WorkCompletion::default(); POLL_BATCH];
        loop {
            let now = Instant::now();
            let is_over = match run.bound {
                Bound::Messages(count) => self.next - first >= count,
                Bound::Time(duration) => now.duration_since(begin) >= duration,
            };
            let done = if reliable { first + completed } else { self.credited.max(first) };
            let outstanding = self.next - done;
            if is_over && outstanding == 0 && completed == self.next - first {
                break;
            }
            if !is_over && outstanding < window {
                let left = match run.bound {
                    Bound::Messages(count) => count - (self.next - first),
                    Bound::Time(_) => u64::MAX,
                };
                let allowed = self.allowed(now, run);
                if allowed > 0 {
                    peak.posted(now, self.next);
                    probe.get_or_insert((now, self.next));
                    let before = self.next;
                    self.post(run, &slots, (window - outstanding).min(left).min(allowed))?;
                    if let Some(pacer) = &mut self.pacer {
                        pacer.posted(now, (self.next - before) * u64::from(run.message_bytes));
                    }
                }
            }
            let can_post = !is_over && self.next - done < window && !self.ready.is_empty();
            let mut credited = self.credited;
            let taken = self.group.poll(&mut room, !can_post)?;
            for completion in taken {
                if completion.id & RECEIVE == 0 {
                    completed += 1;
                    self.complete(completion);
                } else {
                    // The immediate is the lower half of the number of the first message that has not arrived.
                    let credit = completion.immediate().unwrap_or(0);
                    last_answer = Instant::now();
                    let ahead = credit.wrapping_sub(credited as u32);
                    if u64::from(ahead) <= self.next - credited {
                        credited += u64::from(ahead);
                    }
                    self.post_credit_receive()?;
                }
            }
            if !taken.is_empty() {
                last_sign = Instant::now();
                if reliable {
                    last_answer = last_sign;
                }
                let now_done = if reliable { first + completed } else { credited.max(first) };
                if now_done > done {
                    progress = last_sign;
                    peak.done(progress, now_done);
                }
                if let Some((posted, number)) = probe
                    && now_done > number
                {
                    self.patience.learn(last_sign.duration_since(posted));
                    probe = None;
                }
            } else if now.duration_since(last_sign) > SILENCE {
                if is_peer_gone() {
                    return Err(PerfError::peer_gone());
                }
                // One message of each queue pair may have to pass before the first answer.
                let passing = u64::from(run.message_bytes) * self.group.queue_pairs.len() as u64;
                self.group.check_silence(now.duration_since(last_answer), passing)?;
                // What waits in a send queue is not lost.
                let is_sent = completed == self.next - first;
                if !reliable && is_sent && now.duration_since(last_sign) > self.patience.limit() {
                    credited = self.next; // Lost, whatever it was; the receiver knows what arrived.
                    (last_sign, probe) = (now, None);
                }
            }
            self.credited = credited;
        }
        let (verified_messages, mismatch) = self.end();
        Ok(Sent {
            messages: self.next - first,
            elapsed: progress.duration_since(begin),
            processor: processor::time_used() - used,
            peak_messages_per_second: peak.best,
            verified_messages,
            mismatch,
        })
    }

    /// Messages that the rate allows now.
    fn allowed(&self, now: Instant, run: &Run) -> u64 {
        self.pacer.as_ref().map_or(u64::MAX, |pacer| pacer.allowed(now, run.message_bytes.into()))
    }

    /// Messages that may be in flight.
    fn window(&self, run: &Run, slots: &Slots) -> u64 {
        let queues = u64::from(self.group.options.send_depth) * self.group.queue_pairs.len() as u64;
        let window = match self.group.options.connection.is_reliable() {
            true => queues,
            false => queues.min((WINDOW_BYTES as u64 / u64::from(run.message_bytes.max(1))).max(2)),
        };
        // A message that may still be sent again must not be overwritten with the contents of another one.
        // Completions are counted, not numbered, and queue pairs overtake each other: several of them need a distance.
        let distance = if self.group.queue_pairs.len() > 1 { 8 } else { 1 };
        let safe = (slots.count() as u64 / distance).max(1);
        if run.verify_seed.is_some() { window.min(safe) } else { window }
    }

    /// Posts up to this many messages, round-robin to the queue pairs that have room.
    pub(super) fn post(&mut self, run: &Run, slots: &Slots, count: u64) -> Result<(), PerfError> {
        let mut left = count.min(POST_BATCH as u64) as usize;
        while left > 0 {
            let Some(index) = self.ready.pop_front() else {
                return Ok(());
            };
            // One queue pair takes a batch; several take turns, message by message.
            let room = (self.group.options.send_depth - self.in_queue[index]) as usize;
            let batch = if self.group.queue_pairs.len() == 1 { left.min(room) } else { 1 };
            self.post_batch(run, slots, index, batch)?;
            left -= batch;
            self.in_queue[index] += batch as u32;
            if self.in_queue[index] < self.group.options.send_depth {
                self.ready.push_back(index);
            }
        }
        Ok(())
    }

    fn post_batch(&mut self, run: &Run, slots: &Slots, index: usize, count: usize) -> Result<(), PerfError> {
        let slot_of = |number: u64| number % slots.count() as u64;
        if let Some(answers) = &mut self.answers {
            (self.next..self.next + count as u64).for_each(|number| answers.expect(slot_of(number)));
        } else if let Some(seed) = run.verify_seed {
            for number in self.next..self.next + count as u64 {
                self.scratch.resize(run.message_bytes as usize, 0);
                Pattern::new(seed).fill(number, &mut self.scratch);
                slots.region().copy_in(slots.offset(number), &self.scratch);
            }
        }
        let first = self.next;
        let entries: [_; POST_BATCH] =
            std::array::from_fn(|at| [slots.entry(first + at as u64, run.message_bytes as usize)]);
        let reliable = self.group.options.connection.is_reliable();
        let atomic = self.group.remote(answers::atomic_offset(run.operation, slots, index));
        let request = |at: usize| {
            let number = first + at as u64;
            let remote = self.group.remote(slots.offset(number));
            // Immediates are the lower half of the message's number.
            let operation = match (run.operation, reliable) {
                (Operation::Write, true) => SendOperation::Write(remote),
                (Operation::Write, false) => SendOperation::WriteWithImmediate(remote, number as u32),
                // Several queue pairs keep no order among them, so the checker of contents needs to know which they
                // are.
                (Operation::Send, true) if run.verify_seed.is_none() => SendOperation::Send,
                (Operation::Send, _) => SendOperation::SendWithImmediate(number as u32),
                (Operation::Read, _) => SendOperation::Read(remote),
                (Operation::FetchAndAdd, _) => SendOperation::FetchAndAdd { remote: atomic, add: 1 },
                (Operation::CompareAndSwap, _) => {
                    let compare = self.swaps[index] + at as u64;
                    SendOperation::CompareAndSwap { remote: atomic, compare, swap: compare + 1 }
                }
            };
            let id = (index as u64) << 32 | slot_of(number);
            self.group.addressed(index, SendRequest::new(id, operation, &entries[at]))
        };
        let requests: [_; POST_BATCH] = std::array::from_fn(request);
        let posted = self.group.queue_pairs[index].post_send(&requests[..count]);
        posted.map_err(|error| PerfError::failed("cannot post a message", error))?;
        self.next += count as u64;
        self.swaps[index] += count as u64;
        Ok(())
    }
}

/// The end that receives.
pub(crate) struct Receiver {
    group: Group,
    /// The number that the next receive's slot follows from.
    next_slot: u64,
    /// Unreliable: the first message that has neither arrived nor been overtaken.
    expected: u64,
    credit_given: u64,
    credits_in_queue: u32,
    /// Unreliable: what has arrived.
    arrivals: Arrivals,
    is_posted: bool,
    scratch: Vec<u8>,
}

impl Receiver {
    pub(crate) fn new(group: Group) -> Self {
        Receiver {
            group,
            next_slot: 0,
            expected: 0,
            credit_given: 0,
            credits_in_queue: 0,
            arrivals: Arrivals::new(),
            is_posted: false,
            scratch: Vec::new(),
        }
    }

    pub(crate) fn group(&mut self) -> &mut Group {
        &mut self.group
    }

    /// Whether messages make completions here.
    fn is_told(&self, run: &Run) -> bool {
        run.operation == Operation::Send || !self.group.options.connection.is_reliable()
    }

    /// Posts the receives, once, for messages of at most this size. To be called before the peer sends.
    pub(crate) fn start(&mut self, run: &Run, message_bytes_max: usize) -> Result<(), PerfError> {
        if self.is_posted || !self.is_told(run) {
            return Ok(());
        }
        self.is_posted = true;
        let slots = Slots::new(&self.group, message_bytes_max);
        let mut depth = self.group.options.receive_depth as usize;
        if run.verify_seed.is_some() {
            depth = depth.min(slots.count() / self.group.queue_pairs.len()).max(1);
        }
        for index in 0..self.group.queue_pairs.len() {
            for _ in 0..depth {
                let slot = self.next_slot;
                self.next_slot += 1;
                self.post_receive(run, &slots, message_bytes_max, index, slot % slots.count() as u64)?;
            }
        }
        Ok(())
    }

    fn post_receive(
        &self,
        run: &Run,
        slots: &Slots,
        byte_count: usize,
        index: usize,
        slot: u64,
    ) -> Result<(), PerfError> {
        let entry = [slots.entry(slot, byte_count + self.group.header_bytes())];
        let local = if run.operation == Operation::Send { &entry[..] } else { &[] };
        let id = RECEIVE | (index as u64) << 32 | slot;
        let posted = self.group.queue_pairs[index].post_receive(&[ReceiveRequest { id, local }]);
        posted.map_err(|error| PerfError::failed("cannot post a receive", error))
    }

    /// Receives until the order to stop.
    pub(crate) fn run(
        &mut self,
        run: &Run,
        message_bytes_max: usize,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Received, PerfError> {
        let mut received = Received::default();
        let used = processor::time_used();
        if !self.is_told(run) {
            // One-sided: the device does it all. Polling makes it do so on this thread, which is faster than waking its
            // own; a group that sleeps leaves it to the device.
            let mut room = [WorkCompletion::default(); POLL_BATCH];
            while !is_stopped() {
                self.group.poll(&mut room, true)?;
            }
            received.processor = processor::time_used() - used;
            return Ok(received);
        }
        self.start(run, message_bytes_max)?;
        let receive_slots = Slots::new(&self.group, message_bytes_max);
        let write_slots = Slots::new(&self.group, run.message_bytes as usize);
        let gives_credit = !self.group.options.connection.is_reliable();
        let credit_every = Self::credit_every(run);
        let mut first = None;
        let mut last = Instant::now();
        let mut room = [WorkCompletion::default(); POLL_BATCH];
        let mut used = used;
        loop {
            // Read before looking: what arrives between a look and the order to stop would be left behind.
            let is_last_look = is_stopped();
            // With credit to give it wakes up in time.
            let may_sleep = !gives_credit || self.expected == self.credit_given;
            let taken = self.group.poll(&mut room, may_sleep && !is_last_look)?;
            if taken.is_empty() {
                if is_last_look {
                    break;
                }
                if !may_sleep && last.elapsed() > CREDIT_DELAY {
                    self.give_credit()?;
                }
                continue;
            }
            last = Instant::now();
            for completion in taken {
                if completion.id & RECEIVE == 0 {
                    self.credits_in_queue -= 1;
                    continue;
                }
                let byte_count = match completion.operation {
                    CompletionOperation::Receive => completion.byte_count as usize - self.group.header_bytes(),
                    _ => run.message_bytes as usize,
                };
                let number = match completion.immediate() {
                    Some(immediate) => self.number_of(immediate),
                    None => self.expected,
                };
                let slot = completion.id & 0xffff_ffff;
                let index = (completion.id >> 32 & 0x7fff_ffff) as usize;
                if gives_credit && !self.arrivals.is_new(number) {
                    self.post_receive(run, &receive_slots, message_bytes_max, index, slot)?;
                    continue; // A network that delivers twice has not delivered more.
                }
                if first.is_some() {
                    received.timed_bytes += byte_count as u64;
                }
                received.messages += 1;
                received.bytes += byte_count as u64;
                if let Some(seed) = run.verify_seed {
                    let offset = match run.operation {
                        Operation::Send => receive_slots.offset(slot) + self.group.header_bytes(),
                        _ => write_slots.offset(number),
                    };
                    self.verify(seed, number, offset, byte_count, &mut received);
                }
                self.expected = self.expected.max(number + 1);
                self.post_receive(run, &receive_slots, message_bytes_max, index, slot)?;
            }
            if first.is_none() {
                (first, used) = (Some(last), processor::time_used());
            }
            if gives_credit && self.expected - self.credit_given >= credit_every {
                self.give_credit()?;
            }
        }
        received.elapsed = first.map_or(Duration::ZERO, |first| last.duration_since(first));
        received.processor = processor::time_used() - used;
        Ok(received)
    }

    /// The message whose number ends with these 32 bits, near the expected one.
    fn number_of(&self, immediate: u32) -> u64 {
        let ahead = immediate.wrapping_sub(self.expected as u32) as i32;
        self.expected.saturating_add_signed(i64::from(ahead))
    }

    fn verify(&mut self, seed: u64, number: u64, offset: usize, byte_count: usize, received: &mut Received) {
        self.scratch.resize(byte_count, 0);
        self.group.region.copy_out(offset, &mut self.scratch);
        received.verified_messages += 1;
        if let Err(error) = Pattern::new(seed).check(number, &self.scratch)
            && received.mismatch.is_none()
        {
            received.mismatch = Some(error.to_string());
        }
    }

    /// One-sided writes: what must lie in memory after messages `first..first + count`.
    pub(crate) fn verify_memory(&mut self, run: &Run, first: u64, count: u64, received: &mut Received) {
        let Some(seed) = run.verify_seed else {
            return;
        };
        let slots = Slots::new(&self.group, run.message_bytes as usize);
        let still_there = count.min(slots.count() as u64);
        // Both are the client's words.
        let end = first.saturating_add(count);
        for number in end - still_there..end {
            self.verify(seed, number, slots.offset(number), run.message_bytes as usize, received);
        }
    }

    /// Messages after which credit is due: a fraction of the sender's window.
    fn credit_every(run: &Run) -> u64 {
        (WINDOW_BYTES as u64 / u64::from(run.message_bytes.max(1)) / 4).clamp(1, 32)
    }

    fn give_credit(&mut self) -> Result<(), PerfError> {
        if self.credits_in_queue >= self.group.options.send_depth {
            return Ok(()); // The next one says it too.
        }
        let operation = SendOperation::SendWithImmediate(self.expected as u32);
        let request = SendRequest::new(0, operation, &[]).with_flags(SendFlags::SIGNALED);
        let request = self.group.addressed(0, request);
        let posted = self.group.queue_pairs[0].post_send(&[request]);
        posted.map_err(|error| PerfError::failed("cannot post credit", error))?;
        self.credits_in_queue += 1;
        self.credit_given = self.expected;
        Ok(())
    }
}
