//! Messages with a scheme that end by a deadline: what was missing of them, and what ended them.

use std::time::{Duration, Instant};

use longhaul::{Chosen, Deadline, Delivery, Ending, Memory, Message, MessageReport, Sent};
use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::in_flight::{Ended, InFlight};

/// The sender of a message gives it this many times the receiver's deadline, and at least this long: it hears of the ending
/// after that.
const SENDER_DEADLINES: u32 = 4;
const SENDER_DEADLINE_MIN: Duration = Duration::from_millis(500);

/// What became of bounded messages, as their receiver saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BoundedReceived {
    /// Bytes that were missing.
    pub missing_bytes: u64,
    /// Ranges that they were in.
    pub missing_ranges: u64,
    /// Messages of which nothing was missing.
    pub whole: u64,
    /// Messages that ended because all had been sent and nothing came any more.
    pub quiet: u64,
    /// Messages that ended by their deadline.
    pub deadline: u64,
    /// How long after it their receivers had them, if there were any.
    pub late: Option<Lateness>,
    /// The part of that until they ended: what came later changed nothing.
    pub ended_late: Option<Lateness>,
    /// The rest: what could be computed was, what was missing was filled, and the program was woken.
    pub after_end: Option<Lateness>,
}

/// How late messages were, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lateness {
    /// Half of them were no later.
    pub p50: f64,
    /// 99 of 100 were no later.
    pub p99: f64,
    /// The latest.
    pub max: f64,
}

/// How late messages were that ended by their deadline.
#[derive(Debug, Default)]
pub(crate) struct Late {
    there: Histogram,
    ended: Histogram,
    after_end: Histogram,
}

impl Late {
    /// A message was there this long after it was posted.
    pub(crate) fn add(&mut self, message: &Message, deadline: Duration, there: Duration) {
        if message.ending() == Ending::Deadline {
            let (there, ended) = (there.saturating_sub(deadline), message.report().late);
            self.there.record(there);
            self.ended.record(ended);
            self.after_end.record(there.saturating_sub(ended));
        }
    }

    /// Add it to what became of them.
    pub(crate) fn tell(&self, received: &mut BoundedReceived) {
        let of = |times: &Histogram| {
            let at = |percent| times.percentile(percent);
            (times.count() > 0).then(|| Lateness { p50: at(50.0), p99: at(99.0), max: times.longest() })
        };
        (received.late, received.ended_late, received.after_end) =
            (of(&self.there), of(&self.ended), of(&self.after_end));
    }
}

impl BoundedReceived {
    pub(crate) fn add(&mut self, message: &Message) {
        let bytes = message.missing().iter().map(|range| range.end - range.start);
        self.missing_bytes += bytes.sum::<u64>();
        self.missing_ranges += message.missing().len() as u64;
        *match message.ending() {
            Ending::Whole => &mut self.whole,
            Ending::Quiet => &mut self.quiet,
            Ending::Deadline => &mut self.deadline,
        } += 1;
    }

    /// Leave out a message of which nothing came, and which had this many bytes.
    pub(crate) fn leave_out(&mut self, bytes: u64) {
        self.missing_bytes -= bytes;
        self.missing_ranges -= 1;
        self.deadline -= 1;
    }
}

/// The same, as far as their sender heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundedSent {
    /// Bytes that were missing, of messages of which the sender knows.
    pub missing_bytes: u64,
    /// Ranges that they were in.
    pub missing_ranges: u64,
    /// Messages of which nothing was missing.
    pub whole: u64,
    /// Messages of which something was.
    pub partial: u64,
    /// Messages of which the sender heard nothing by its own deadline.
    pub unknown: u64,
}

impl BoundedSent {
    fn add(&mut self, delivery: &Delivery) {
        match delivery {
            Delivery::Whole => self.whole += 1,
            Delivery::Unknown => self.unknown += 1,
            Delivery::Partial { missing, .. } => {
                self.partial += 1;
                self.missing_bytes += missing.iter().map(|range| range.end - range.start).sum::<u64>();
                self.missing_ranges += missing.len() as u64;
            }
        }
    }
}

/// Writes in flight, bounded or not.
pub(crate) enum Writes {
    Reliable(InFlight<MessageReport>),
    Bounded { writes: InFlight<Sent>, deadline: Duration, sent: BoundedSent, taken: Vec<Ended<Sent>> },
}

impl Writes {
    /// Bounded, if receives have a deadline.
    pub(crate) fn new(receive_deadline: Option<Duration>) -> Self {
        match receive_deadline {
            None => Writes::Reliable(InFlight::default()),
            Some(deadline) => Writes::Bounded {
                writes: InFlight::default(),
                deadline: (deadline * SENDER_DEADLINES).max(SENDER_DEADLINE_MIN),
                sent: BoundedSent::default(),
                taken: Vec::new(),
            },
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Writes::Reliable(writes) => writes.len(),
            Writes::Bounded { writes, .. } => writes.len(),
        }
    }

    pub(crate) fn post(
        &mut self,
        connection: &Chosen<'_>,
        memory: &Memory,
        range: std::ops::Range<usize>,
        which: (u64, usize),
        posted: Instant,
    ) {
        match self {
            Writes::Reliable(writes) => writes.add(connection.write_from(memory, range), which, posted),
            Writes::Bounded { writes, deadline, .. } => {
                let write = connection.write_bounded_from(memory, range, Deadline::After(*deadline));
                writes.add(write, which, posted);
            }
        }
    }

    /// As [`InFlight::wait`].
    pub(crate) fn wait(&mut self, patience: Duration, taken: &mut Vec<Ended<MessageReport>>) {
        match self {
            Writes::Reliable(writes) => writes.wait(patience, taken),
            Writes::Bounded { writes, sent, taken: ended, .. } => {
                writes.wait(patience, ended);
                taken.extend(ended.drain(..).map(|ended| {
                    ended.map(|outcome| {
                        sent.add(&outcome.delivery);
                        outcome.report
                    })
                }));
            }
        }
    }

    /// What was heard of bounded ones so far.
    pub(crate) fn sent(&self) -> Option<BoundedSent> {
        match self {
            Writes::Reliable(_) => None,
            Writes::Bounded { sent, .. } => Some(*sent),
        }
    }
}
