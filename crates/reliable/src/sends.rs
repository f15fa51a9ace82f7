//! Messages that are being sent: each a program's, or a part of one.

use longhaul_sdr::{Memory, QueuePair, SendStatus};
use longhaul_time::{Duration, Instant};

use crate::attributes::Attributes;
use crate::parts::Part;
use crate::record::{Offer, Record, Refusal};
use crate::report::MessageReport;
use crate::scheme::{MessageShape, Outbox, SendHalf, SendIo};
use crate::terms::Terms;
use crate::ticket::MessageError;

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

/// What became of one.
pub(crate) struct EndedSend {
    /// Where it belongs to.
    pub(crate) message: u64,
    pub(crate) outcome: Result<(), MessageError>,
    /// It was the receiver that told.
    pub(crate) is_peers: bool,
    pub(crate) ended: Instant,
    pub(crate) report: MessageReport,
    /// The memory of its parity.
    pub(crate) parity: Option<Memory>,
}

pub(crate) struct OpenSend {
    pub(crate) number: u64,
    /// The program's message that it is a part of.
    pub(crate) message: u64,
    part: Part,
    shape: MessageShape,
    outbox: Outbox,
    half: Box<dyn SendHalf>,
    report: MessageReport,
    /// When another part of the message was done last; the time for this one does not begin before.
    pub(crate) since: Instant,
    cleared: Option<Instant>,
    offered: Option<Instant>,
    /// When the receiver told something of it last.
    heard: Option<Instant>,
    /// Since it did.
    unanswered: u32,
    /// How it ended; the rest of it only has to leave the device.
    outcome: Option<Result<(), MessageError>>,
    is_peers: bool,
    /// When the last record came that settled it.
    ended: Instant,
}

impl OpenSend {
    pub(crate) fn new(
        message: u64,
        part: Part,
        shape: MessageShape,
        outbox: Outbox,
        half: Box<dyn SendHalf>,
        since: Instant,
    ) -> Self {
        OpenSend {
            number: outbox.data.number(),
            message,
            part,
            shape,
            outbox,
            half,
            report: MessageReport { message_bytes: shape.message_bytes, ..Default::default() },
            since,
            cleared: None,
            offered: None,
            heard: None,
            unanswered: 0,
            outcome: None,
            is_peers: false,
            ended: since,
        }
    }

    /// Do what is due. Returns whether it is over, and its memory free.
    pub(crate) fn poll(&mut self, moment: &Moment, terms: &Terms) -> bool {
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
            let MessageShape { chunk_bytes, parity_bytes, .. } = self.shape;
            terms.tell(
                self.number,
                &Record::Offer(Offer {
                    length: self.part.cut.whole_bytes(),
                    offset: self.part.offset(),
                    part_bytes: self.part.cut.part_bytes(),
                    chunk_bytes,
                    parity_bytes,
                    scheme: &terms.scheme_name,
                }),
            );
            self.unanswered += u32::from(self.offered.is_some());
            self.offered = Some(now);
            self.report.offers += 1;
        }
        let failure = self.outbox.failure.take().map(|error| MessageError::Send(error.into()));
        let failure = failure.or_else(|| match self.outbox.data.status() {
            SendStatus::TooLong { room } if self.part.index == 0 => {
                Some(MessageError::TooLong { bytes: self.part.cut.whole_bytes(), room })
            }
            SendStatus::TooLong { .. } => Some(MessageError::TooLongForPeer(self.part.cut.whole_bytes())),
            _ => None,
        });
        let timeout = terms.attributes.message_timeout;
        let failure = failure.or_else(|| {
            let is_late = self.time_out_at(timeout).is_some_and(|at| at <= now);
            is_late.then_some(MessageError::TimedOut(timeout))
        });
        match failure {
            Some(error) => {
                self.give_up(error, moment);
                self.has_left()
            }
            None => false,
        }
    }

    /// When it is to be offered again.
    fn offer_at(&self, moment: &Moment) -> Option<Instant> {
        self.cleared?;
        let Some(offered) = self.offered else { return self.is_worth_offering().then_some(moment.now) };
        let since = self.heard.map_or(offered, |heard| heard.max(offered));
        Some(since + moment.patience * (1 << self.unanswered.min(DOUBLINGS_MAX)))
    }

    /// The receiver knows a part's length when it knows the whole one. It is to look for a later part only when that is on its way, which
    /// is after all others that are cleared; or when the receiver has completed it, and we have not heard of that.
    fn is_worth_offering(&self) -> bool {
        let is_on_its_way = || self.outbox.data.left_bytes() > 0;
        self.part.index == 0 || is_on_its_way() || self.outbox.data.status() == SendStatus::Over
    }

    fn time_out_at(&self, timeout: Duration) -> Option<Instant> {
        self.cleared.map(|cleared| cleared.max(self.since) + timeout)
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
            Record::Done => {
                self.is_peers = true;
                self.settle(Ok(()), moment);
            }
            Record::Refused(refused) => {
                let error = match refused.reason {
                    Refusal::OtherScheme => {
                        MessageError::OtherScheme { ours: scheme.to_owned(), theirs: refused.scheme.to_owned() }
                    }
                    Refusal::TimedOut => MessageError::PeerTimedOut,
                    Refusal::TooLong => MessageError::TooLongForPeer(self.part.cut.whole_bytes()),
                    Refusal::Failed => MessageError::PeerFailed,
                    Refusal::Withdrawn => MessageError::Withdrawn,
                };
                self.is_peers = true;
                self.settle(Err(error), moment);
            }
            Record::Accepted | Record::Offer(_) | Record::Withdrawn(_) => {}
        }
    }

    /// It has failed, unless it is over already.
    pub(crate) fn give_up(&mut self, error: MessageError, moment: &Moment) {
        if self.outcome.is_none() {
            self.settle(Err(error), moment);
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
        let timeout = self.time_out_at(attributes.message_timeout);
        let own = Instant::earlier_of(self.half.next_deadline(), self.offer_at(moment));
        Instant::earlier_of(own, timeout)
    }

    pub(crate) fn finish(self) -> EndedSend {
        EndedSend {
            message: self.message,
            outcome: self.outcome.unwrap_or(Err(MessageError::Closed)),
            is_peers: self.is_peers,
            ended: self.ended,
            report: self.report,
            parity: self.outbox.parity.map(|(_, memory)| memory),
        }
    }
}
