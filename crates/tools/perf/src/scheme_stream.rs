//! Messages with a reliability scheme: several in flight at a time, each in memory of its own, each timed from the
//! moment when it is handed over to the moment when it is reported as done.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use longhaul::with_sources;
use longhaul::{Bound as ReceiveBound, Deadline, Fill, Message, MessageReport};
use serde::{Deserialize, Serialize};

use crate::bounded::{BoundedReceived, BoundedSent, Late, Writes};
use crate::error::PerfError;
use crate::histogram::Histogram;
use crate::in_flight::{Ended, InFlight};
use crate::pattern::Pattern;
use crate::peak::Peak;
use crate::processor;
use crate::scheme_end::{SchemeEnd, message_failed};
use crate::stream::{Bound, Received, Run, Sent};

/// Messages in flight by default, in bytes, within a least and a largest number.
const IN_FLIGHT_BYTES: usize = 64 << 20;
const IN_FLIGHT_MIN: usize = 1;
const IN_FLIGHT_MAX: usize = 128;
/// Messages begin at multiples of this.
pub(crate) const ALIGNMENT: usize = 4096;
/// An end looks at least this often at what has ended.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Without a message that ends for this long, nobody receives: longer than a message may be without progress.
const STUCK_AFTER: Duration = Duration::from_secs(150);

/// What schemes count, for all messages of a run together. Each end counts what it can see.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct SchemeTotals {
    /// Sender: data packets, repeats among them.
    pub data_packets_sent: u64,
    /// Sender: data packets that were sent again.
    pub data_packets_repeated: u64,
    /// Sender: packets of parity.
    pub parity_packets_sent: u64,
    /// Receiver: packets that it had already.
    pub duplicate_packets: u64,
    /// Receiver: packets of messages that had ended, so duplicates as well.
    #[serde(default)]
    pub late_packets: u64,
    /// Receiver: chunks of parity that recovered data.
    pub parity_chunks_used: u64,
    /// Receiver: chunks of parity that nothing needed.
    pub parity_chunks_wasted: u64,
    /// Receiver: chunks of data computed from parity.
    pub chunks_recovered: u64,
    /// Messages that fell back to repeats.
    pub fallbacks: u64,
    /// Records of feedback, sent or received.
    pub feedback_records: u64,
    /// Bytes whose checksum was sent, or verified.
    #[serde(default)]
    pub checksummed_bytes: u64,
    /// Sender: what it heard of bounded messages.
    #[serde(default)]
    pub bounded_sent: Option<BoundedSent>,
    /// Receiver: what became of bounded messages.
    #[serde(default)]
    pub bounded_received: Option<BoundedReceived>,
    /// As it was when the last message ended.
    pub round_trip: Option<Duration>,
    /// The longest time for which the end stood still.
    #[serde(default)]
    pub longest_pause: Duration,
}

impl SchemeTotals {
    fn add(&mut self, report: &MessageReport) {
        self.data_packets_sent += report.data_packets_sent;
        self.data_packets_repeated += report.data_packets_repeated;
        self.parity_packets_sent += report.parity_packets_sent;
        self.duplicate_packets += report.duplicate_packets;
        self.parity_chunks_used += report.parity_chunks_used;
        self.parity_chunks_wasted += report.parity_chunks_wasted;
        self.chunks_recovered += report.chunks_recovered;
        self.fallbacks += report.fallbacks;
        self.feedback_records += report.feedback_records;
        self.checksummed_bytes += report.checksummed_bytes;
        self.round_trip = report.round_trip.or(self.round_trip);
    }
}

/// The memory of an end, divided into places for messages of one size.
#[derive(Debug)]
struct Places {
    stride_bytes: usize,
    /// Those without a message, the one that was used least recently first: all of the memory is used, as by a program
    /// with much data, not only what fits a cache.
    free: VecDeque<usize>,
    /// Messages in flight at a time.
    depth: usize,
}

impl Places {
    fn new(end: &SchemeEnd, message_bytes: usize, depth: Option<usize>) -> Self {
        let stride_bytes = message_bytes.next_multiple_of(ALIGNMENT);
        let count = end.memory.len() / stride_bytes;
        assert!(count > 0, "a memory of {} bytes holds a message of {message_bytes}", end.memory.len());
        let default = || (IN_FLIGHT_BYTES / stride_bytes).clamp(IN_FLIGHT_MIN, IN_FLIGHT_MAX);
        let depth = depth.unwrap_or_else(default).clamp(1, count);
        Places { stride_bytes, free: (0..count).collect(), depth }
    }

    fn range(&self, place: usize, bytes: usize) -> std::ops::Range<usize> {
        let start = place * self.stride_bytes;
        start..start + bytes
    }
}

/// When an end has looked at what has ended, to find out for how long it stood still.
struct Looks {
    last: Instant,
    longest_pause: Duration,
}

impl Looks {
    fn new() -> Self {
        Looks { last: Instant::now(), longest_pause: Duration::ZERO }
    }

    fn look(&mut self) -> Instant {
        let now = Instant::now();
        self.longest_pause = self.longest_pause.max(now.duration_since(self.last));
        self.last = now;
        now
    }
}

/// What a sender saw.
#[derive(Debug)]
pub(crate) struct SchemeSent {
    pub(crate) sent: Sent,
    pub(crate) totals: SchemeTotals,
    /// From handing a message over to its being reported as done.
    pub(crate) completion: Histogram,
}

/// The end that sends.
pub(crate) struct SchemeSender {
    pub(crate) end: SchemeEnd,
    places: Places,
    message_bytes: usize,
    /// Number of the next message; continues from run to run.
    next: u64,
    in_flight: Writes,
}

impl SchemeSender {
    /// With this many messages in flight at a time; by default 64 MiB of them, but at most 128.
    /// Messages are bounded if receives have a deadline.
    pub(crate) fn new(
        end: SchemeEnd,
        message_bytes: u32,
        depth: Option<u32>,
        receive_deadline: Option<Duration>,
    ) -> Self {
        let message_bytes = message_bytes as usize;
        let places = Places::new(&end, message_bytes, depth.map(|depth| depth as usize));
        SchemeSender { end, places, message_bytes, next: 0, in_flight: Writes::new(receive_deadline) }
    }

    /// Messages in flight at a time.
    pub(crate) const fn depth(&self) -> usize {
        self.places.depth
    }

    /// Where messages have been sent from. Between runs that is everywhere.
    pub(crate) fn free_places(&self) -> Vec<std::ops::Range<usize>> {
        self.places.free.iter().map(|place| self.places.range(*place, self.message_bytes)).collect()
    }

    /// Sends until the bound is reached and everything has arrived.
    pub(crate) fn run(&mut self, run: &Run) -> Result<SchemeSent, PerfError> {
        let used = processor::time_used();
        let begin = Instant::now();
        let (mut looks, mut progress) = (Looks::new(), begin);
        let first = self.next;
        let mut done = 0;
        let (mut totals, mut completion) = (SchemeTotals::default(), Histogram::default());
        let mut peak = Peak::new(self.places.depth as u64);
        let mut taken = Vec::new();
        loop {
            while self.in_flight.len() < self.places.depth {
                let now = Instant::now();
                let is_over = match run.bound {
                    Bound::Messages(count) => self.next - first >= count,
                    Bound::Time(duration) => now.duration_since(begin) >= duration,
                };
                if is_over {
                    break;
                }
                peak.posted(now, self.next);
                self.post(run.verify_seed, now)?;
            }
            if self.in_flight.len() == 0 {
                break;
            }
            self.in_flight.wait(LOOK_EVERY, &mut taken);
            let now = looks.look();
            if now.duration_since(progress) > STUCK_AFTER {
                let seconds = STUCK_AFTER.as_secs();
                let text = format!(
                    "no message has completed for {seconds} s: the other end may have stopped or the network may drop UDP; check it"
                );
                return Err(PerfError::Failed(text));
            }
            if !taken.is_empty() {
                done += taken.len() as u64;
                progress = now;
                peak.done(now, first + done);
            }
            for Ended { result, place, duration, .. } in taken.drain(..) {
                totals.add(&result.map_err(message_failed)?);
                completion.record(duration);
                self.places.free.push_back(place);
            }
        }
        totals.longest_pause = looks.longest_pause;
        totals.bounded_sent = self.in_flight.sent();
        let sent = Sent {
            messages: self.next - first,
            elapsed: progress.duration_since(begin),
            processor: processor::time_used() - used,
            peak_messages_per_second: peak.best,
            ..Sent::default()
        };
        Ok(SchemeSent { sent, totals, completion })
    }

    fn post(&mut self, verify_seed: Option<u64>, posted: Instant) -> Result<(), PerfError> {
        let Some(place) = self.places.free.pop_front() else {
            return Ok(()); // There are at least as many as messages in flight.
        };
        let range = self.places.range(place, self.message_bytes);
        if let Some(seed) = verify_seed {
            let bytes = self.end.memory.write(range.clone());
            let mut bytes = bytes.map_err(|error| PerfError::failed("cannot send a message", with_sources(&error)))?;
            Pattern::new(seed).fill(self.next, &mut bytes);
        }
        let SchemeEnd { connection, memory, choices } = &self.end;
        let choice = choices.get(self.next as usize % choices.len().max(1)).cloned().unwrap_or_default();
        self.in_flight.post(&connection.choose(choice), memory, range, (self.next, place), posted);
        self.next += 1;
        Ok(())
    }
}

/// The end that receives.
pub(crate) struct SchemeReceiver {
    pub(crate) end: SchemeEnd,
    places: Places,
    message_bytes: usize,
    /// Number of the next message that gets a receive.
    next: u64,
    posted: InFlight<Message>,
    deadline: Option<Duration>,
    /// Bounded messages of which nothing came: the sender may never have sent them.
    empty: Vec<u64>,
    late: Late,
}

impl SchemeReceiver {
    /// With this many receives posted ahead; by default as many as the sender has messages in flight. With a deadline they are posted when the
    /// run begins, and end that much later.
    pub(crate) fn new(end: SchemeEnd, message_bytes: u32, depth: Option<u32>, deadline: Option<Duration>) -> Self {
        let message_bytes = message_bytes as usize;
        let places = Places::new(&end, message_bytes, depth.map(|depth| depth as usize));
        let (posted, empty, late) = (InFlight::default(), Vec::new(), Late::default());
        let mut receiver = SchemeReceiver { end, places, message_bytes, next: 0, posted, deadline, empty, late };
        if deadline.is_none() {
            receiver.post();
        }
        receiver
    }

    /// Posts receives, as many as there should be.
    fn post(&mut self) {
        while self.posted.len() < self.places.depth
            && let Some(place) = self.places.free.pop_front()
        {
            let range = self.places.range(place, self.message_bytes);
            let SchemeEnd { connection, memory, .. } = &self.end;
            let posted = Instant::now();
            let receive = match self.deadline {
                None => connection.receive_into(memory, range),
                Some(deadline) => {
                    let bound = ReceiveBound { deadline: Deadline::After(deadline), fill: Fill::Zero };
                    connection.receive_bounded_into(memory, range, bound)
                }
            };
            self.posted.add(receive, (self.next, place), posted);
            self.next += 1;
        }
    }

    /// Receives until the order to stop, when the sender knows that everything has arrived.
    pub(crate) fn run(
        &mut self,
        run: &Run,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(Received, SchemeTotals), PerfError> {
        let mut received = Received::default();
        let bounded_received = self.deadline.map(|_| BoundedReceived::default());
        let mut totals = SchemeTotals { bounded_received, ..SchemeTotals::default() };
        self.post();
        let late_before = self.end.late_packets();
        let mut used = processor::time_used();
        let (mut first, mut last) = (None, Instant::now());
        let mut looks = Looks::new();
        let mut taken = Vec::new();
        loop {
            let is_last_look = is_stopped();
            match is_last_look {
                true => self.posted.take_all(&mut taken),
                false => self.posted.wait(LOOK_EVERY, &mut taken),
            }
            let now = looks.look();
            if taken.is_empty() {
                if is_last_look {
                    break;
                }
                continue;
            }
            for ended in taken.drain(..) {
                self.count(ended, run, first.is_some(), &mut received, &mut totals)?;
            }
            self.post();
            last = now;
            if first.is_none() {
                (first, used, looks) = (Some(now), processor::time_used(), Looks::new());
            }
        }
        received.elapsed = first.map_or(Duration::ZERO, |first| last.duration_since(first));
        received.processor = processor::time_used() - used;
        totals.longest_pause = looks.longest_pause;
        totals.bounded_received.iter_mut().for_each(|bounded| self.late.tell(bounded));
        totals.late_packets = self.end.late_packets() - late_before;
        Ok((received, totals))
    }

    /// A message that has come. Its place is free again.
    fn count(
        &mut self,
        ended: Ended<Message>,
        run: &Run,
        is_timed: bool,
        received: &mut Received,
        totals: &mut SchemeTotals,
    ) -> Result<(), PerfError> {
        let message = ended.result.map_err(message_failed)?;
        received.messages += 1;
        received.bytes += message.len() as u64;
        if is_timed {
            received.timed_bytes += message.len() as u64;
        }
        totals.add(message.report());
        if let Some(bounded) = &mut totals.bounded_received {
            bounded.add(&message);
            self.deadline.iter().for_each(|deadline| self.late.add(&message, *deadline, ended.duration));
            if message.report().missing_bytes == self.message_bytes as u64 {
                self.empty.push(ended.number);
            }
        }
        if let Some(seed) = run.verify_seed {
            received.verified_messages += 1;
            if let Err(mismatch) = Pattern::new(seed).check_bounded(ended.number, &message, message.missing())
                && received.mismatch.is_none()
            {
                received.mismatch = Some(mismatch.to_string());
            }
        }
        drop(message);
        self.places.free.push_back(ended.place);
        Ok(())
    }

    /// Leave out receives that ended before the sender stopped, which it has sent nothing for: it sent this many messages in all.
    pub(crate) fn leave_out(&mut self, sent: u64, received: &mut Received, totals: &mut SchemeTotals) {
        let Some(bounded) = &mut totals.bounded_received else { return };
        for _ in self.empty.drain(..).filter(|number| *number >= sent) {
            bounded.leave_out(self.message_bytes as u64);
            received.messages -= 1;
            received.bytes -= self.message_bytes as u64;
            received.verified_messages = received.verified_messages.saturating_sub(1);
        }
    }
}
