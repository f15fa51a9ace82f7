//! Messages with a reliability scheme: several in flight at a time, each in memory of its own, each timed from the moment when it is
//! handed over to the moment when it is reported as done.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use longhaul_reliable::{MessageReport, ReceiveTicket, SendTicket};
use serde::{Deserialize, Serialize};

use super::control;
use super::histogram::Histogram;
use super::pattern::Pattern;
use super::peak::Peak;
use super::processor;
use super::scheme_end::SchemeEnd;
use super::stream::{Bound, Received, Run, Sent};
use crate::message::with_sources;
use crate::stop::Stop;

/// Messages in flight by default, in bytes, within a least and a largest number.
const IN_FLIGHT_BYTES: usize = 64 << 20;
const IN_FLIGHT_MIN: usize = 1;
const IN_FLIGHT_MAX: usize = 128;
/// Messages begin at multiples of this.
pub(crate) const ALIGNMENT: usize = 4096;
/// How often to check whether the other end is still there.
const GONE_AFTER: Duration = Duration::from_millis(200);
/// How much longer than silence the peer may take while it gives signs but no message is done: schemes time out before.
const STUCK_AFTER: Duration = Duration::from_secs(90);

/// What schemes count, for all messages of a run together. Each end counts what it can see.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SchemeTotals {
    pub(crate) data_packets_sent: u64,
    pub(crate) data_packets_repeated: u64,
    pub(crate) parity_packets_sent: u64,
    pub(crate) duplicate_packets: u64,
    /// Receiver: packets of messages that had ended, so duplicates as well.
    #[serde(default)]
    pub(crate) late_packets: u64,
    pub(crate) parity_chunks_used: u64,
    pub(crate) parity_chunks_wasted: u64,
    pub(crate) chunks_recovered: u64,
    pub(crate) fallbacks: u64,
    pub(crate) feedback_records: u64,
    /// Bytes whose checksum was sent, or verified.
    #[serde(default)]
    pub(crate) checksummed_bytes: u64,
    /// As it was when the last message ended.
    pub(crate) round_trip: Option<Duration>,
    /// The longest time for which the end stood still.
    #[serde(default)]
    pub(crate) longest_pause: Duration,
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
    /// Those without a message, the one that was used least recently first: all of the memory is used, as by a program with
    /// much data, not only what fits a cache.
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

/// A message that was handed over and is not done.
struct InFlight {
    ticket: SendTicket,
    posted: Instant,
    place: usize,
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
    in_flight: VecDeque<InFlight>,
}

impl SchemeSender {
    /// With this many messages in flight at a time; by default 64 MiB of them, but at most 128.
    pub(crate) fn new(end: SchemeEnd, message_bytes: u32, depth: Option<u32>) -> Self {
        let message_bytes = message_bytes as usize;
        let places = Places::new(&end, message_bytes, depth.map(|depth| depth as usize));
        SchemeSender { end, places, message_bytes, next: 0, in_flight: VecDeque::new() }
    }

    /// Messages in flight at a time.
    pub(crate) const fn depth(&self) -> usize {
        self.places.depth
    }

    /// Where messages have been sent from. Between runs that is everywhere.
    pub(crate) fn free_places(&self) -> Vec<std::ops::Range<usize>> {
        self.places.free.iter().map(|place| self.places.range(*place, self.message_bytes)).collect()
    }

    /// Sends until the bound is reached and everything has arrived. `is_peer_gone` is asked now and then.
    pub(crate) fn run(&mut self, run: &Run, is_peer_gone: &dyn Fn() -> bool) -> Result<SchemeSent, Stop> {
        let used = processor::time_used();
        let begin = Instant::now();
        let (mut progress, mut last_look, mut over_before) = (begin, begin, self.end.connection.over_count());
        let (mut last_frame, mut frames) = (begin, self.end.frames_received());
        let first = self.next;
        let mut done = 0;
        let (mut totals, mut completion) = (SchemeTotals::default(), Histogram::default());
        let mut peak = Peak::new(self.places.depth as u64);
        self.end.take_longest_pause();
        loop {
            let now = Instant::now();
            let sent = self.next - first;
            let is_over = match run.bound {
                Bound::Messages(count) => sent >= count,
                Bound::Time(duration) => now.duration_since(begin) >= duration,
            };
            if is_over && self.in_flight.is_empty() {
                break;
            }
            if !is_over && self.in_flight.len() < self.places.depth && self.may_post(now) {
                peak.posted(now, self.next);
                self.post(run.verify_seed, now)?;
                if let Some(pacer) = &mut self.end.pacer {
                    pacer.posted(now, self.message_bytes as u64);
                }
            }
            self.end.poll()?;
            let over = self.end.connection.over_count();
            if over != over_before {
                done += self.take_finished(over - over_before, &mut totals, &mut completion)?;
                over_before = over;
                progress = Instant::now();
                last_look = progress;
                peak.done(progress, first + done);
            } else if now.duration_since(last_look) > GONE_AFTER {
                last_look = now;
                if is_peer_gone() {
                    return Err(control::gone());
                }
                let frames_now = self.end.frames_received();
                if frames_now != frames {
                    (last_frame, frames) = (now, frames_now);
                }
                self.check_silence(now, last_frame.max(progress), progress)?;
            }
        }
        totals.longest_pause = self.end.take_longest_pause();
        let sent = Sent {
            messages: self.next - first,
            elapsed: progress.duration_since(begin),
            processor: processor::time_used() - used,
            peak_messages_per_second: peak.best,
            ..Sent::default()
        };
        Ok(SchemeSent { sent, totals, completion })
    }

    /// An error if the peer has given no sign for too long, or many signs and never that a message is done.
    fn check_silence(&self, now: Instant, last_sign: Instant, progress: Instant) -> Result<(), Stop> {
        // The peer's reports do not wait for a whole message.
        self.end.check_silence(now.duration_since(last_sign), 0)?;
        let stuck = now.duration_since(progress);
        if stuck > STUCK_AFTER.saturating_add(self.end.silence_limit(self.message_bytes as u64)) {
            let count = self.in_flight.len();
            let seconds = stuck.as_secs();
            let text =
                format!("none of the {count} messages in flight was done within {seconds} s (firewall or loss?)");
            return Err(Stop::Failed(text));
        }
        Ok(())
    }

    fn may_post(&self, now: Instant) -> bool {
        self.end.pacer.as_ref().is_none_or(|pacer| pacer.allowed(now, self.message_bytes as u64) > 0)
    }

    fn post(&mut self, verify_seed: Option<u64>, posted: Instant) -> Result<(), Stop> {
        let cannot = |error: &dyn std::error::Error| Stop::failed("cannot send a message", with_sources(error));
        let Some(place) = self.places.free.pop_front() else {
            return Ok(()); // There are at least as many as messages in flight.
        };
        let range = self.places.range(place, self.message_bytes);
        if let Some(seed) = verify_seed {
            let mut bytes = self.end.memory.write(range.clone()).map_err(|error| cannot(&error))?;
            Pattern::new(seed).fill(self.next, &mut bytes);
        }
        let now = self.end.now();
        let ticket = self.end.connection.send(&self.end.memory, range, now).map_err(|error| cannot(&error))?;
        self.in_flight.push_back(InFlight { ticket, posted, place });
        self.next += 1;
        Ok(())
    }

    /// Takes up to this many messages that have ended, in whatever order they did; says how many there were.
    fn take_finished(
        &mut self,
        count: u64,
        totals: &mut SchemeTotals,
        completion: &mut Histogram,
    ) -> Result<u64, Stop> {
        let now = Instant::now();
        let (mut taken, mut at) = (0, 0);
        while taken < count && at < self.in_flight.len() {
            let Some(outcome) = self.in_flight[at].ticket.take() else {
                at += 1;
                continue;
            };
            let report = outcome.map_err(|error| Stop::failed("a message has failed", with_sources(&error)))?;
            totals.add(&report);
            taken += 1;
            if let Some(message) = self.in_flight.remove(at) {
                completion.record(now.duration_since(message.posted));
                self.places.free.push_back(message.place);
            }
        }
        Ok(taken)
    }
}

/// A receive that was posted.
struct Posted {
    ticket: ReceiveTicket,
    /// The message that it is for.
    number: u64,
    place: usize,
}

/// The end that receives.
pub(crate) struct SchemeReceiver {
    pub(crate) end: SchemeEnd,
    places: Places,
    message_bytes: usize,
    /// Number of the next message that gets a receive.
    next: u64,
    posted: VecDeque<Posted>,
}

impl SchemeReceiver {
    /// With this many receives posted ahead; by default as many as the sender has messages in flight.
    pub(crate) fn new(end: SchemeEnd, message_bytes: u32, depth: Option<u32>) -> Self {
        let message_bytes = message_bytes as usize;
        let places = Places::new(&end, message_bytes, depth.map(|depth| depth as usize));
        SchemeReceiver { end, places, message_bytes, next: 0, posted: VecDeque::new() }
    }

    /// To be called once after connecting: posts receives.
    pub(crate) fn start(&mut self) -> Result<(), Stop> {
        (0..self.places.depth).try_for_each(|_| self.post())
    }

    fn post(&mut self) -> Result<(), Stop> {
        let Some(place) = self.places.free.pop_front() else {
            return Ok(()); // There are at least as many as receives.
        };
        let range = self.places.range(place, self.message_bytes);
        let ticket = self.end.connection.post_receive(&self.end.memory, range);
        let ticket = ticket.map_err(|error| Stop::failed("cannot post a receive", with_sources(&error)))?;
        self.posted.push_back(Posted { ticket, number: self.next, place });
        self.next += 1;
        Ok(())
    }

    /// Serves the connection, without a message, until `is_stopped` or for this long.
    pub(crate) fn idle(&mut self, patience: Duration, is_stopped: &dyn Fn() -> bool) -> Result<(), Stop> {
        let begin = Instant::now();
        while !is_stopped() && begin.elapsed() < patience {
            self.end.poll()?;
        }
        Ok(())
    }

    /// Receives until told to stop, which is when the sender knows that everything has arrived.
    pub(crate) fn run(&mut self, run: &Run, is_stopped: &dyn Fn() -> bool) -> Result<(Received, SchemeTotals), Stop> {
        let mut received = Received::default();
        let mut totals = SchemeTotals::default();
        let late_before = self.end.late_packets();
        let mut used = processor::time_used();
        let (mut first, mut last) = (None, Instant::now());
        let mut over_before = None;
        loop {
            let is_last_look = is_stopped();
            self.end.poll()?;
            let over = self.end.connection.over_count();
            if over_before == Some(over) {
                if is_last_look {
                    break;
                }
                continue;
            }
            // The first time, some may have ended before.
            let count = over_before.map_or(u64::MAX, |before| over - before);
            over_before = Some(over);
            let before = received.messages;
            self.take_finished(count, run, first.is_some(), &mut received, &mut totals)?;
            if received.messages > before {
                last = Instant::now();
                if first.is_none() {
                    self.end.take_longest_pause();
                    (first, used) = (Some(last), processor::time_used());
                }
            }
        }
        received.elapsed = first.map_or(Duration::ZERO, |first| last.duration_since(first));
        received.processor = processor::time_used() - used;
        totals.longest_pause = self.end.take_longest_pause();
        totals.late_packets = self.end.late_packets() - late_before;
        Ok((received, totals))
    }

    /// Takes up to this many messages that are complete, in whatever order they are, and posts as many receives.
    fn take_finished(
        &mut self,
        count: u64,
        run: &Run,
        is_timed: bool,
        received: &mut Received,
        totals: &mut SchemeTotals,
    ) -> Result<(), Stop> {
        let (mut taken, mut at) = (0, 0);
        while taken < count && at < self.posted.len() {
            let Some(outcome) = self.posted[at].ticket.take() else {
                at += 1;
                continue;
            };
            let message = outcome.map_err(|error| Stop::failed("a message has failed", with_sources(&error)))?;
            taken += 1;
            received.messages += 1;
            received.bytes += message.bytes().len() as u64;
            if is_timed {
                received.timed_bytes += message.bytes().len() as u64;
            }
            totals.add(message.report());
            if let Some(seed) = run.verify_seed {
                received.verified_messages += 1;
                if let Err(mismatch) = Pattern::new(seed).check(self.posted[at].number, message.bytes())
                    && received.mismatch.is_none()
                {
                    received.mismatch = Some(mismatch.to_string());
                }
            }
            drop(message);
            if let Some(posted) = self.posted.remove(at) {
                self.places.free.push_back(posted.place);
            }
        }
        (0..taken).try_for_each(|_| self.post())
    }
}
