//! Receives that are open.

use std::sync::Arc;

use longhaul_sdr::{Memory, Receive};
use longhaul_time::Instant;

use crate::attributes::Attributes;
use crate::record::{Offer, Refusal};
use crate::report::MessageReport;
use crate::scheme::{MessageShape, Progress, ReceiveHalf, ReceiveIo, Scheme};
use crate::sends::Moment;
use crate::ticket::{MessageError, Promise, Received};

pub(crate) struct OpenReceive {
    pub(crate) number: u64,
    capacity: u64,
    data: Receive,
    parity: Option<(Receive, Memory)>,
    promise: Promise<Received>,
    /// Once the length is known.
    message: Option<OpenMessage>,
    is_asked: bool,
    report: MessageReport,
}

struct OpenMessage {
    shape: MessageShape,
    half: Box<dyn ReceiveHalf>,
    begun: Instant,
}

/// What became of a receive.
pub(crate) enum Step {
    Waiting,
    Finished,
    Failed(Refusal, MessageError),
}

impl OpenReceive {
    pub(crate) fn new(
        data: Receive,
        capacity: u64,
        parity: Option<(Receive, Memory)>,
        promise: Promise<Received>,
    ) -> Self {
        let number = data.number();
        let report = MessageReport::default();
        OpenReceive { number, capacity, data, parity, promise, message: None, is_asked: false, report }
    }

    /// The sender tells what it sends, and wants to know how far it is.
    pub(crate) fn on_offer(
        &mut self,
        offer: &Offer<'_>,
        moment: &Moment,
        template: &MessageShape,
        scheme: &dyn Scheme,
    ) -> Step {
        self.is_asked = true;
        let ours = format!("{} with chunks of {} bytes", scheme.name(), template.chunk_bytes);
        let theirs = format!("{} with chunks of {} bytes", offer.scheme, offer.chunk_bytes);
        if ours != theirs {
            let error = MessageError::OtherScheme { ours, theirs };
            return Step::Failed(Refusal::OtherScheme, error);
        }
        self.begin(offer.length, moment, template, scheme)
    }

    fn begin(&mut self, length: u64, moment: &Moment, template: &MessageShape, scheme: &dyn Scheme) -> Step {
        if length > self.capacity {
            let error = MessageError::TooLong { bytes: length, room: self.capacity };
            return Step::Failed(Refusal::TooLong, error);
        }
        if self.message.is_none() {
            let parity_bytes = scheme.parity_bytes(length, template.chunk_bytes);
            let shape = MessageShape { message_bytes: length, parity_bytes, ..*template };
            self.message = Some(OpenMessage { half: scheme.receiver(&shape), shape, begun: moment.now });
        }
        Step::Waiting
    }

    /// Do what is due; feedback goes into `feedback`.
    pub(crate) fn poll(
        &mut self,
        moment: &Moment,
        template: &MessageShape,
        scheme: &dyn Scheme,
        attributes: &Attributes,
        feedback: &mut Vec<Vec<u8>>,
        feedback_bytes_max: usize,
    ) -> Step {
        // Every packet carries a part of the length, so that a lost offer delays nothing.
        if self.message.is_none()
            && let Some(length) = self.data.user_immediate().filter(|length| *length > 0)
            && let failed @ Step::Failed(..) = self.begin(length.into(), moment, template, scheme)
        {
            return failed;
        }
        let Some(message) = &mut self.message else { return Step::Waiting };
        let shape = &message.shape;
        let mut io = ReceiveIo {
            now: moment.now,
            round_trip: moment.round_trip,
            shape,
            data: shape.arrivals(self.data.bitmap(), shape.message_bytes),
            parity: self.parity.as_ref().map(|(receive, _)| shape.arrivals(receive.bitmap(), shape.parity_bytes)),
            is_asked: std::mem::take(&mut self.is_asked),
            feedback,
            feedback_bytes_max,
            report: &mut self.report,
        };
        let timeout = attributes.message_timeout;
        match message.half.poll(&mut io) {
            Progress::Finished => Step::Finished,
            Progress::Waiting if message.begun + timeout <= moment.now => {
                Step::Failed(Refusal::TimedOut, MessageError::TimedOut(timeout))
            }
            Progress::Waiting => Step::Waiting,
        }
    }

    pub(crate) fn next_deadline(&self, attributes: &Attributes) -> Option<Instant> {
        let message = self.message.as_ref()?;
        if self.is_asked {
            return Some(Instant::ZERO);
        }
        Instant::earlier_of(message.half.next_deadline(), Some(message.begun + attributes.message_timeout))
    }

    /// Complete it, compute what is missing, and give it to the program. Returns the memory of its parity, and what to tell the sender if the
    /// device did not let go of the bytes.
    pub(crate) fn finish(self, moment: &Moment) -> (Option<Memory>, Option<Refusal>) {
        let OpenReceive { data, parity, promise, message, mut report, .. } = self;
        let Some(OpenMessage { shape, mut half, begun }) = message else { return (None, None) };
        let completed = data.complete().and_then(|data| match parity {
            None => Ok((data, None)),
            Some((receive, memory)) => Ok((data, Some((receive.complete()?, memory)))),
        });
        let (mut data, parity) = match completed {
            Ok(completed) => completed,
            Err(error) => {
                promise.keep(Err(MessageError::Complete(Arc::new(error))));
                return (None, Some(Refusal::Failed));
            }
        };
        let bitmap = data.shared_bitmap();
        let arrived = shape.arrivals(&bitmap, shape.message_bytes);
        let duplicates = |arrivals: u32| u64::from(arrivals);
        report.duplicate_packets = duplicates(bitmap.duplicates());
        let parity_view = parity.as_ref().map(|(message, _)| {
            let bytes = &message.bytes()[..shape.parity_bytes as usize];
            report.duplicate_packets += duplicates(message.bitmap().duplicates());
            (bytes, shape.arrivals(message.bitmap(), shape.parity_bytes))
        });
        let bytes = &mut data.bytes_mut()[..shape.message_bytes as usize];
        let missing = half.recover(bytes, arrived, parity_view, &mut report);
        let missing = missing.into_iter().map(|chunks| shape.bytes_of(chunks)).collect();
        report.message_bytes = shape.message_bytes;
        report.round_trip = Some(moment.round_trip);
        report.duration = moment.now - begun;
        promise.keep(Ok(Received::new(data, shape.message_bytes, missing, report)));
        (parity.map(|(_, memory)| memory), None)
    }

    /// Give it up.
    pub(crate) fn fail(self, error: MessageError) {
        // The keys go before the program hears of it: it may use the memory again then.
        drop((self.data, self.parity));
        self.promise.keep(Err(error));
    }
}
