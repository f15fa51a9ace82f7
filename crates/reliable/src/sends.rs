//! Messages that are being sent.

use longhaul_sdr::{Memory, QueuePair, SendStatus};
use longhaul_time::{Duration, Instant};

use crate::attributes::Attributes;
use crate::record::{Offer, Record, Refusal};
use crate::report::MessageReport;
use crate::scheme::{MessageShape, Outbox, SendHalf, SendIo};
use crate::ticket::{MessageError, Promise};

/// An offer that is not answered is repeated after longer and longer times, up to this many doublings.
const DOUBLINGS_MAX: u32 = 4;
/// Timers of hosts are not exact.
const PATIENCE_MIN: Duration = Duration::from_millis(1);

/// What a connection knows of the way to the peer, for one round of polling.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) now: Instant,
    pub(crate) round_trip: Duration,
    /// After this long an answer should have come.
    pub(crate) patience: Duration,
}

impl Moment {
    pub(crate) fn new(queue_pair: &QueuePair, now: Instant) -> Self {
        let measured = queue_pair.round_trip_time();
        let guess = queue_pair.attributes().round_trip_guess;
        let round_trip = measured.smoothed.unwrap_or(guess);
        let patience = (measured.patience(guess) + round_trip / 4).max(PATIENCE_MIN);
        Moment { now, round_trip, patience }
    }
}

pub(crate) struct OpenSend {
    pub(crate) number: u64,
    shape: MessageShape,
    outbox: Outbox,
    half: Box<dyn SendHalf>,
    promise: Promise<MessageReport>,
    report: MessageReport,
    begun: Instant,
    cleared: Option<Instant>,
    offered: Option<Instant>,
    /// When the receiver told something of it last.
    heard: Option<Instant>,
    /// Since it did.
    unanswered: u32,
    /// How it ended; the rest of it only has to leave the device.
    outcome: Option<Result<(), MessageError>>,
    /// When the last record came that settled it.
    ended: Instant,
}

impl OpenSend {
    pub(crate) fn new(
        shape: MessageShape,
        outbox: Outbox,
        half: Box<dyn SendHalf>,
        promise: Promise<MessageReport>,
        begun: Instant,
    ) -> Self {
        OpenSend {
            number: outbox.data.number(),
            shape,
            outbox,
            half,
            promise,
            report: MessageReport { message_bytes: shape.message_bytes, ..Default::default() },
            begun,
            cleared: None,
            offered: None,
            heard: None,
            unanswered: 0,
            outcome: None,
            ended: begun,
        }
    }

    /// Do what is due. Returns whether it is over, and its memory free.
    pub(crate) fn poll(
        &mut self,
        moment: &Moment,
        queue_pair: &QueuePair,
        scheme: &str,
        attributes: &Attributes,
    ) -> bool {
        let now = moment.now;
        if self.outcome.is_some() {
            return self.has_left();
        }
        if self.cleared.is_none() && self.outbox.data.is_cleared() {
            self.cleared = Some(now);
        }
        let mut io = SendIo {
            now,
            round_trip: moment.round_trip,
            shape: &self.shape,
            outbox: &mut self.outbox,
            report: &mut self.report,
        };
        self.half.poll(&mut io);
        if self.offer_at(moment).is_some_and(|due| due <= now) {
            let MessageShape { message_bytes, chunk_bytes, parity_bytes, .. } = self.shape;
            let offer = Offer { length: message_bytes, chunk_bytes, parity_bytes, scheme };
            queue_pair.send_to_peer(Record::Offer(offer).encode(self.number));
            self.unanswered += u32::from(self.offered.is_some());
            self.offered = Some(now);
            self.report.offers += 1;
        }
        let failure = self.outbox.failure.take().map(|error| MessageError::Send(error.into()));
        let failure = failure.or_else(|| match self.outbox.data.status() {
            SendStatus::TooLong { room } => Some(MessageError::TooLong { bytes: self.shape.message_bytes, room }),
            _ => None,
        });
        let timeout = attributes.message_timeout;
        let failure = failure.or_else(|| {
            let is_late = self.cleared.is_some_and(|cleared| cleared + timeout <= now);
            is_late.then_some(MessageError::TimedOut(timeout))
        });
        match failure {
            Some(error) => {
                self.settle(Err(error), moment);
                self.has_left()
            }
            None => false,
        }
    }

    /// When it is to be offered again.
    fn offer_at(&self, moment: &Moment) -> Option<Instant> {
        self.cleared?;
        let Some(offered) = self.offered else { return Some(moment.now) };
        let since = self.heard.map_or(offered, |heard| heard.max(offered));
        Some(since + moment.patience * (1 << self.unanswered.min(DOUBLINGS_MAX)))
    }

    pub(crate) fn on_record(&mut self, record: &Record<'_>, moment: &Moment, scheme: &str) {
        if self.outcome.is_some() {
            return;
        }
        (self.heard, self.unanswered) = (Some(moment.now), 0);
        match record {
            Record::Feedback(bytes) => {
                self.report.feedback_records += 1;
                let mut io = SendIo {
                    now: moment.now,
                    round_trip: moment.round_trip,
                    shape: &self.shape,
                    outbox: &mut self.outbox,
                    report: &mut self.report,
                };
                self.half.on_feedback(bytes, &mut io);
            }
            Record::Done => self.settle(Ok(()), moment),
            Record::Refused(reason, theirs) => {
                let error = match reason {
                    Refusal::OtherScheme => {
                        MessageError::OtherScheme { ours: scheme.to_owned(), theirs: (*theirs).to_owned() }
                    }
                    Refusal::TimedOut => MessageError::PeerTimedOut,
                    Refusal::TooLong => MessageError::TooLongForPeer(self.shape.message_bytes),
                    Refusal::Failed => MessageError::PeerFailed,
                };
                self.settle(Err(error), moment);
            }
            Record::Offer(_) => {}
        }
    }

    fn settle(&mut self, outcome: Result<(), MessageError>, moment: &Moment) {
        self.report.round_trip = Some(moment.round_trip);
        (self.outcome, self.ended) = (Some(outcome), moment.now);
        self.outbox.data.abandon();
        if let Some((parity, _)) = &self.outbox.parity {
            parity.abandon();
        }
    }

    /// Whether nothing of it is on its way out of the device.
    fn has_left(&self) -> bool {
        let has_left = |status| !matches!(status, SendStatus::Sending | SendStatus::Waiting);
        let parity = self.outbox.parity.as_ref();
        has_left(self.outbox.data.status()) && parity.is_none_or(|(stream, _)| has_left(stream.status()))
    }

    pub(crate) fn next_deadline(&self, moment: &Moment, attributes: &Attributes) -> Option<Instant> {
        if self.outcome.is_some() {
            return None;
        }
        let timeout = self.cleared.map(|cleared| cleared + attributes.message_timeout);
        let own = Instant::earlier_of(self.half.next_deadline(), self.offer_at(moment));
        Instant::earlier_of(own, timeout)
    }

    /// Tell the program. Returns the memory of its parity.
    pub(crate) fn finish(self) -> Option<Memory> {
        let mut report = self.report;
        report.duration = self.ended - self.begun;
        self.promise.keep(self.outcome.unwrap_or(Err(MessageError::Closed)).map(|()| report));
        self.outbox.parity.map(|(_, memory)| memory)
    }

    /// Tell the program that it has failed, whatever it was doing.
    pub(crate) fn fail(self, error: MessageError) {
        self.promise.keep(Err(error));
    }
}
