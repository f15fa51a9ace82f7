//! Bandwidth of messages with a reliability scheme: one after another, several at a time, each in memory of its own.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use longhaul_reliable::{MessageReport, ReceiveTicket, SendTicket};
use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use super::peak::Peak;
use super::processor;
use super::scheme_end::SchemeEnd;
use super::stream::{Bound, Received, Run, Sent};
use crate::message::with_sources;
use crate::stop::Stop;

/// Messages under way at a time, in bytes, but at least and at most so many.
const UNDER_WAY_BYTES: usize = 64 << 20;
const UNDER_WAY_MIN: usize = 1;
const UNDER_WAY_MAX: usize = 128;
/// Messages begin at multiples of this.
const ALIGNMENT: usize = 4096;
/// How often it is looked whether the other end is still there.
const GONE_AFTER: Duration = Duration::from_millis(200);

/// What schemes count, of all messages of a run together. Each end counts what it can see.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SchemeTotals {
    pub(crate) data_packets_sent: u64,
    pub(crate) data_packets_repeated: u64,
    pub(crate) parity_packets_sent: u64,
    pub(crate) duplicate_packets: u64,
    pub(crate) parity_chunks_used: u64,
    pub(crate) parity_chunks_wasted: u64,
    pub(crate) chunks_recovered: u64,
    pub(crate) fallbacks: u64,
    pub(crate) feedback_records: u64,
    /// When the last message was over.
    pub(crate) round_trip: Option<Duration>,
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
        self.round_trip = report.round_trip.or(self.round_trip);
    }
}

/// The memory of an end, divided into places for messages of one size.
#[derive(Clone, Copy, Debug)]
struct Places {
    stride_bytes: usize,
    count: usize,
    /// Messages under way at a time.
    under_way: usize,
}

impl Places {
    fn new(end: &SchemeEnd, message_bytes: usize) -> Self {
        let stride_bytes = message_bytes.next_multiple_of(ALIGNMENT);
        let count = end.memory.len() / stride_bytes;
        assert!(count > 0, "a memory of {} bytes holds a message of {message_bytes}", end.memory.len());
        let under_way = (UNDER_WAY_BYTES / stride_bytes).clamp(UNDER_WAY_MIN, UNDER_WAY_MAX).min(count);
        Places { stride_bytes, count, under_way }
    }

    fn range(&self, number: u64, bytes: usize) -> std::ops::Range<usize> {
        let start = (number % self.count as u64) as usize * self.stride_bytes;
        start..start + bytes
    }
}

/// The end that sends.
pub(crate) struct SchemeSender {
    pub(crate) end: SchemeEnd,
    places: Places,
    message_bytes: usize,
    /// Number of the next message; goes on from run to run.
    next: u64,
    under_way: VecDeque<SendTicket>,
}

impl SchemeSender {
    pub(crate) fn new(end: SchemeEnd, message_bytes: u32) -> Self {
        let message_bytes = message_bytes as usize;
        let places = Places::new(&end, message_bytes);
        SchemeSender { end, places, message_bytes, next: 0, under_way: VecDeque::new() }
    }

    /// Sends until the bound is reached and everything has arrived. `is_peer_gone` is asked now and then.
    pub(crate) fn run(&mut self, run: &Run, is_peer_gone: &dyn Fn() -> bool) -> Result<(Sent, SchemeTotals), Stop> {
        let used = processor::time_used();
        let begin = Instant::now();
        let (mut progress, mut last_look, mut over_before) = (begin, begin, self.end.connection.over_count());
        let first = self.next;
        let mut done = 0;
        let mut totals = SchemeTotals::default();
        let mut peak = Peak::new(self.places.under_way as u64);
        loop {
            let now = Instant::now();
            let sent = self.next - first;
            let is_over = match run.bound {
                Bound::Messages(count) => sent >= count,
                Bound::Time(duration) => now.duration_since(begin) >= duration,
            };
            if is_over && self.under_way.is_empty() {
                break;
            }
            if !is_over && self.under_way.len() < self.places.under_way && self.may_post(now) {
                peak.posted(now, self.next);
                self.post(run.verify_seed)?;
                if let Some(pacer) = &mut self.end.pacer {
                    pacer.posted(now, self.message_bytes as u64);
                }
            }
            self.end.poll()?;
            let over = self.end.connection.over_count();
            if over != over_before {
                over_before = over;
                let gone = self.take_finished(&mut totals)?;
                if gone > 0 {
                    done += gone;
                    progress = Instant::now();
                    last_look = progress;
                    peak.done(progress, first + done);
                }
            } else if now.duration_since(last_look) > GONE_AFTER {
                last_look = now;
                if is_peer_gone() {
                    return Err(Stop::Failed("the other end is gone".to_owned()));
                }
            }
        }
        let sent = Sent {
            messages: self.next - first,
            elapsed: progress.duration_since(begin),
            processor: processor::time_used() - used,
            peak_messages_per_second: peak.best,
            ..Sent::default()
        };
        Ok((sent, totals))
    }

    fn may_post(&self, now: Instant) -> bool {
        self.end.pacer.as_ref().is_none_or(|pacer| pacer.allowed(now, self.message_bytes as u64) > 0)
    }

    fn post(&mut self, verify_seed: Option<u64>) -> Result<(), Stop> {
        let cannot = |error: &dyn std::error::Error| Stop::failed("cannot send a message", with_sources(error));
        let range = self.places.range(self.next, self.message_bytes);
        if let Some(seed) = verify_seed {
            let mut bytes = self.end.memory.write(range.clone()).map_err(|error| cannot(&error))?;
            Pattern::new(seed).fill(self.next, &mut bytes);
        }
        let now = self.end.now();
        let ticket = self.end.connection.send(&self.end.memory, range, now).map_err(|error| cannot(&error))?;
        self.under_way.push_back(ticket);
        self.next += 1;
        Ok(())
    }

    /// Messages that are over; places are used again in order, so one that waits for an earlier one is not.
    fn take_finished(&mut self, totals: &mut SchemeTotals) -> Result<u64, Stop> {
        let mut count = 0;
        while let Some(outcome) = self.under_way.front().and_then(SendTicket::take) {
            let report = outcome.map_err(|error| Stop::failed("a message has failed", with_sources(&error)))?;
            totals.add(&report);
            self.under_way.pop_front();
            count += 1;
        }
        Ok(count)
    }
}

/// The end that receives.
pub(crate) struct SchemeReceiver {
    pub(crate) end: SchemeEnd,
    places: Places,
    message_bytes: usize,
    /// Number of the next message that gets a receive.
    next: u64,
    posted: VecDeque<(u64, ReceiveTicket)>,
}

impl SchemeReceiver {
    pub(crate) fn new(end: SchemeEnd, message_bytes: u32) -> Self {
        let message_bytes = message_bytes as usize;
        let places = Places::new(&end, message_bytes);
        SchemeReceiver { end, places, message_bytes, next: 0, posted: VecDeque::new() }
    }

    /// To be called once after connecting: posts receives.
    pub(crate) fn start(&mut self) -> Result<(), Stop> {
        (0..self.places.under_way).try_for_each(|_| self.post())
    }

    fn post(&mut self) -> Result<(), Stop> {
        let range = self.places.range(self.next, self.message_bytes);
        let ticket = self.end.connection.post_receive(&self.end.memory, range);
        let ticket = ticket.map_err(|error| Stop::failed("cannot post a receive", with_sources(&error)))?;
        self.posted.push_back((self.next, ticket));
        self.next += 1;
        Ok(())
    }

    /// Receives until told to stop, which is when the sender has been told of everything.
    pub(crate) fn run(&mut self, run: &Run, is_stopped: &dyn Fn() -> bool) -> Result<(Received, SchemeTotals), Stop> {
        let mut received = Received::default();
        let mut totals = SchemeTotals::default();
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
            over_before = Some(over);
            let before = received.messages;
            self.take_finished(run, first.is_some(), &mut received, &mut totals)?;
            if received.messages > before {
                last = Instant::now();
                if first.is_none() {
                    (first, used) = (Some(last), processor::time_used());
                }
            }
        }
        received.elapsed = first.map_or(Duration::ZERO, |first| last.duration_since(first));
        received.processor = processor::time_used() - used;
        Ok((received, totals))
    }

    /// Takes messages that are complete, as far as all before them are, and posts their receives again.
    fn take_finished(
        &mut self,
        run: &Run,
        is_timed: bool,
        received: &mut Received,
        totals: &mut SchemeTotals,
    ) -> Result<(), Stop> {
        let mut finished = 0;
        for (number, ticket) in &self.posted {
            // Places are used again in order.
            let Some(outcome) = ticket.take() else { break };
            let message = outcome.map_err(|error| Stop::failed("a message has failed", with_sources(&error)))?;
            finished += 1;
            received.messages += 1;
            received.bytes += message.bytes().len() as u64;
            if is_timed {
                received.timed_bytes += message.bytes().len() as u64;
            }
            totals.add(message.report());
            if let Some(seed) = run.verify_seed {
                received.verified_messages += 1;
                if let Err(mismatch) = Pattern::new(seed).check(*number, message.bytes())
                    && received.mismatch.is_none()
                {
                    received.mismatch = Some(mismatch.to_string());
                }
            }
        }
        self.posted.drain(..finished);
        (0..finished).try_for_each(|_| self.post())
    }
}
