//! Receives that are open: each for a program's message, or a part of one.

use std::ops::Range;

use longhaul_sdr::memory::ReceivedBytes;
use longhaul_sdr::{CompleteError, Memory, Receive};
use longhaul_time::{Duration, Instant};

use crate::arrivals::Arrivals;
use crate::parts::Part;
use crate::report::MessageReport;
use crate::scheme::{MessageShape, Progress, ReceiveHalf, ReceiveIo};
use crate::sends::Moment;
use crate::terms::Terms;

pub(crate) struct OpenReceive {
    /// The program's receive that it is a part of.
    pub(crate) message: u64,
    /// Which part; of a first one the length is known only once the sender has told it.
    pub(crate) index: u64,
    part: Option<Part>,
    data: Receive,
    parity: Option<(Receive, Memory)>,
    /// Once something is on its way.
    half: Option<(MessageShape, Box<dyn ReceiveHalf>)>,
    /// What had arrived when the half was asked last, and when it wants to be.
    seen: Option<[Seen; 2]>,
    half_deadline: Option<Instant>,
    /// When the message began, or another part of it was done; its time counts from there.
    pub(crate) since: Option<Instant>,
    is_asked: bool,
    report: MessageReport,
}

/// How much of data or of parity has arrived: chunks, whether the last one, which need not be a whole one, is there, and duplicates.
type Seen = (u32, bool, u32);

/// What became of a receive.
pub(crate) enum Step {
    Waiting,
    /// Its packets tell the length of the message.
    Announced(u64),
    Finished,
    TimedOut(Duration),
}

/// A part that has been received.
pub(crate) struct ReceivedPart {
    pub(crate) bytes: ReceivedBytes,
    /// Places in the part.
    pub(crate) missing: Vec<Range<u64>>,
    pub(crate) report: MessageReport,
    /// The memory of its parity.
    pub(crate) parity: Option<Memory>,
}

impl OpenReceive {
    /// A receive that was posted: for a first part, or for one of a message that has begun.
    pub(crate) fn new(
        message: u64,
        part: Option<Part>,
        data: Receive,
        parity: Option<(Receive, Memory)>,
        since: Option<Instant>,
    ) -> Self {
        OpenReceive {
            message,
            index: part.map_or(0, |part| part.index),
            part,
            data,
            parity,
            half: None,
            seen: None,
            half_deadline: None,
            since,
            is_asked: false,
            report: MessageReport::default(),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.data.number()
    }

    /// What is received here is known now.
    pub(crate) fn begin(&mut self, part: Part, now: Instant) {
        self.part.get_or_insert(part);
        self.since.get_or_insert(now);
    }

    /// The sender wants to know how far it is.
    pub(crate) fn ask(&mut self, terms: &Terms) {
        self.is_asked = true;
        self.make_half(terms);
    }

    fn make_half(&mut self, terms: &Terms) {
        if let (Some(part), None) = (self.part, &self.half) {
            let shape = terms.shape_of(part.bytes());
            self.half = Some((shape, terms.scheme.receiver(&shape)));
        }
    }

    /// Do what is due; feedback goes into `feedback`.
    pub(crate) fn poll(
        &mut self,
        moment: &Moment,
        terms: &Terms,
        feedback: &mut Vec<Vec<u8>>,
        feedback_bytes_max: usize,
    ) -> Step {
        // Every packet of a message in one part carries a piece of the length, so that a lost offer delays nothing.
        if self.part.is_none()
            && let Some(length) = self.data.user_immediate().filter(|length| *length > 0)
        {
            return Step::Announced(length.into());
        }
        // Nobody waits for a later part before it is on its way: the sender may be busy with others.
        if self.half.is_none() && (self.index == 0 || self.data.bitmap().whole_chunks() > 0) {
            self.make_half(terms);
        }
        if let Some((shape, half)) = &mut self.half {
            let data = shape.arrivals(self.data.bitmap(), shape.message_bytes);
            let parity = self.parity.as_ref();
            let parity = parity.map(|(receive, _)| shape.arrivals(receive.bitmap(), shape.parity_bytes));
            let seen = Some([seen(data), parity.map_or_else(Seen::default, seen)]);
            let is_due = self.half_deadline.is_some_and(|at| at <= moment.now);
            if self.is_asked || self.seen != seen || is_due {
                let mut io = ReceiveIo {
                    now: moment.now,
                    round_trip: moment.round_trip,
                    shape,
                    data,
                    parity,
                    is_asked: std::mem::take(&mut self.is_asked),
                    feedback,
                    feedback_bytes_max,
                    report: &mut self.report,
                };
                if half.poll(&mut io) == Progress::Finished {
                    return Step::Finished;
                }
                (self.seen, self.half_deadline) = (seen, half.next_deadline());
            }
        }
        let timeout = terms.attributes.message_timeout;
        match self.since {
            Some(since) if since + timeout <= moment.now => Step::TimedOut(timeout),
            _ => Step::Waiting,
        }
    }

    pub(crate) fn next_deadline(&self, terms: &Terms) -> Option<Instant> {
        let timeout = self.since.map(|since| since + terms.attributes.message_timeout);
        match &self.half {
            Some(_) if self.is_asked => Some(Instant::ZERO),
            // It has not been asked yet.
            Some(_) if self.seen.is_none() => Some(Instant::ZERO),
            _ => Instant::earlier_of(self.half_deadline, timeout),
        }
    }

    /// Complete it, and compute what is missing. `None` when it has not begun.
    pub(crate) fn finish(self, moment: &Moment) -> Option<Result<ReceivedPart, CompleteError>> {
        let OpenReceive { data, parity, half, mut report, .. } = self;
        let (shape, mut half) = half?;
        let completed = data.complete().and_then(|data| match parity {
            None => Ok((data, None)),
            Some((receive, memory)) => Ok((data, Some((receive.complete()?, memory)))),
        });
        let (mut data, parity) = match completed {
            Ok(completed) => completed,
            Err(error) => return Some(Err(error)),
        };
        let bitmap = data.shared_bitmap();
        let arrived = shape.arrivals(&bitmap, shape.message_bytes);
        report.duplicate_packets = bitmap.duplicates().into();
        let parity_view = parity.as_ref().map(|(message, _)| {
            let bytes = &message.bytes()[..shape.parity_bytes as usize];
            report.duplicate_packets += u64::from(message.bitmap().duplicates());
            (bytes, shape.arrivals(message.bitmap(), shape.parity_bytes))
        });
        let bytes = &mut data.bytes_mut()[..shape.message_bytes as usize];
        let missing = half.recover(bytes, arrived, parity_view, &mut report);
        let missing = missing.into_iter().map(|chunks| shape.bytes_of(chunks)).collect();
        report.message_bytes = shape.message_bytes;
        report.round_trip = Some(moment.round_trip);
        let parity = parity.map(|(_, memory)| memory);
        Some(Ok(ReceivedPart { bytes: data.into_bytes(), missing, report, parity }))
    }
}

fn seen(arrivals: Arrivals<'_>) -> Seen {
    let last = arrivals.chunk_count().checked_sub(1);
    (arrivals.whole_count(), last.is_some_and(|last| arrivals.is_whole(last)), arrivals.duplicates())
}
