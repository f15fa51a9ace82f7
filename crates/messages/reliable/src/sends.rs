//! Messages that are being sent: each a program's, or a part of one.

use std::sync::Arc;

use longhaul_sdr::memory::ReadGuard;
use longhaul_sdr::{BackOff, Memory, SendStatus};
use longhaul_time::{Duration, Instant};
use longhaul_wire::record::{Offer, Record, Refusal};

use crate::attributes::Attributes;
use crate::bounded::byte_count;
use crate::checksum::SendChecksum;
use crate::choice::MessageTerms;
use crate::ended::Gathering;
use crate::moment::Moment;
use crate::parts::Part;
use crate::report::MessageReport;
use crate::scheme::{MessageShape, Outbox, SendHalf, SendIo};
use crate::terms::Terms;
use crate::ticket::MessageError;

/// Only the offer has a message's length, so it is sent twice before an answer can have arrived: right away, and once
/// all bytes have been sent. A lost one would otherwise cost a round trip.
const OFFERED_UNASKED: u32 = 2;
/// Apart by this part of a round trip at least, and by this time: well before a scheme's shortest time-out, because without an offer the receiver
/// acknowledges nothing.
const OFFERS_A_ROUND_TRIP: u32 = 32;
const OFFERS_APART_MIN: Duration = Duration::from_micros(250);
/// While bytes are still to be sent and the receiver has been heard, there are only this many in the time after which a message without progress
/// fails: many messages that wait for a slow link would otherwise fill it with offers.
const OFFERS_A_TIMEOUT: u32 = 8;
/// But never further apart than this.
const OFFERS_APART_MAX: Duration = Duration::from_secs(1);
/// A best-effort sender says so often that everything has left, each time with the offer; then only when it asks.
const THROUGH_TOLD: u32 = 3;
/// The longest message that travels in its offer, if there is room in a control message. It arrives in one packet instead of
/// two, and its receiver needs no data packet, which is what a short message's latency consists of; but control messages
/// wait for no window, so it is to be short.
const CARRIED_BYTES_MAX: usize = 256;
/// Messages that travel in their offers at a time: the peer has receives for 256 control messages, and nothing else bounds
/// how many are in flight. Others go by the scheme, which has a window.
pub(crate) const CARRIED_MESSAGES_MAX: usize = 64;

/// What became of one.
pub(crate) struct EndedSend {
    pub(crate) was_carried: bool,
    /// Where it belongs to.
    pub(crate) message: u64,
    pub(crate) outcome: Result<(), MessageError>,
    /// What the receiver ended it without, and whether that is coarse.
    pub(crate) missing: (Vec<std::ops::Range<u64>>, bool),
    /// The receiver has called it done, and has not merely ended it.
    pub(crate) is_done: bool,
    /// Where the part begins in its message.
    pub(crate) offset: u64,
    /// It was the receiver that told.
    pub(crate) is_peers: bool,
    pub(crate) ended: Instant,
    pub(crate) report: MessageReport,
    /// The memory of its parity.
    pub(crate) parity: Option<Memory>,
}

/// How the bytes of a part leave.
enum Way {
    Undecided,
    /// By the scheme's half.
    Scheme,
    /// In the offer. The bytes are kept from being written to, as those of packets are.
    Offer(ReadGuard<'static>),
}

pub(crate) struct OpenSend {
    pub(crate) number: u64,
    /// The program's message that it is a part of.
    pub(crate) message: u64,
    part: Part,
    shape: MessageShape,
    terms: MessageTerms,
    outbox: Outbox,
    half: Box<dyn SendHalf>,
    way: Way,
    /// If there is to be one. Nothing is sent or offered before it is known.
    checksum: Option<SendChecksum>,
    report: MessageReport,
    /// When it ends at the latest, if it is bounded: then nothing else limits its time.
    deadline: Option<Instant>,
    /// What the receiver has told of its ending, and what was missing then.
    gathering: Gathering,
    missing: (Vec<std::ops::Range<u64>>, bool),
    /// How often the receiver was told that everything has left, and when.
    through: (u32, Option<Instant>),
    /// When the program sent the message.
    begun: Instant,
    /// Packets that the receiver has, as it has said, and when it said that there were more, or could begin to.
    arrived: u64,
    progressed: Instant,
    cleared: Option<Instant>,
    /// The receiver has all that it needs, and computes the rest.
    is_computed: bool,
    /// When the receiver told something of it last.
    heard: Option<Instant>,
    /// Of offers: the receiver answers each, but progress is what counts.
    back_off: BackOff,
    /// How it ended; the rest of it only has to leave the device.
    outcome: Option<Result<(), MessageError>>,
    is_peers: bool,
    is_done: bool,
    /// When the last record came that settled it.
    ended: Instant,
}

impl OpenSend {
    pub(crate) fn new(
        message: u64,
        part: Part,
        terms: MessageTerms,
        outbox: Outbox,
        half: Box<dyn SendHalf>,
        has_checksum: bool,
        begun: Instant,
    ) -> Self {
        let shape = terms.shape_of(part.bytes());
        OpenSend {
            number: outbox.data.number(),
            message,
            part,
            shape,
            terms,
            outbox,
            half,
            way: Way::Undecided,
            checksum: has_checksum.then(SendChecksum::new),
            report: MessageReport { message_bytes: shape.message_bytes, ..Default::default() },
            deadline: None,
            gathering: Gathering::default(),
            missing: Default::default(),
            through: (0, None),
            begun,
            arrived: 0,
            progressed: begun,
            cleared: None,
            is_computed: false,
            heard: None,
            back_off: BackOff::default(),
            outcome: None,
            is_peers: false,
            is_done: false,
            ended: begun,
        }
    }

    /// It ends by a deadline, if there is one.
    pub(crate) fn with_deadline(self, deadline: Option<Instant>) -> Self {
        OpenSend { deadline, ..self }
    }

    /// Do what is due, and compute at most `checksum_bytes` bytes of its checksum. Returns whether it has ended, and
    /// its memory is free.
    pub(crate) fn poll(
        &mut self,
        moment: &Moment,
        terms: &Terms,
        checksum_bytes: &mut usize,
        may_be_carried: bool,
    ) -> bool {
        let now = moment.now;
        if self.outcome.is_some() {
            return self.has_left();
        }
        if self.cleared.is_none() {
            if self.outbox.data.is_cleared() {
                (self.cleared, self.progressed) = (Some(now), now);
            } else {
                // The peer's program may take its time, as long as the peer is there.
                self.progressed = moment.heard.map_or(self.progressed, |heard| heard.max(self.progressed));
            }
        }
        if let Some(checksum) = &mut self.checksum
            && checksum.advance(&self.outbox.memory, &self.outbox.range, checksum_bytes, moment)
        {
            self.report.checksummed_bytes = self.shape.message_bytes;
        }
        if self.may_send() {
            self.send_and_offer(moment, terms, may_be_carried);
        }
        let failure = self.outbox.failure.take().map(|error| MessageError::Send(error.into()));
        let failure = failure.or_else(|| match self.outbox.data.status() {
            SendStatus::TooLong { room } if self.part.index == 0 => {
                Some(MessageError::TooLong { bytes: self.part.cut.whole_bytes(), room })
            }
            SendStatus::TooLong { .. } => Some(MessageError::TooLongForPeer(self.part.cut.whole_bytes())),
            _ => None,
        });
        let Attributes { message_timeout: timeout, message_deadline, .. } = terms.attributes;
        let progressed = self.progressed;
        #[cfg(feature = "mutations")]
        let progressed = match terms.attributes.mutation {
            Some(crate::attributes::Mutation::ProgressIgnored) => self.begun,
            _ => progressed,
        };
        let failure = failure.or_else(|| match message_deadline {
            _ if self.deadline.is_some() => {
                self.deadline.filter(|at| *at <= now).map(|at| MessageError::Deadline(at.saturating_since(self.begun)))
            }
            Some(deadline) if self.begun + deadline <= now => Some(MessageError::Deadline(deadline)),
            _ if progressed + timeout <= now => Some(match self.checksum.as_ref().and_then(SendChecksum::obstacle) {
                Some(error) => MessageError::Send(Arc::new(error.clone().into())),
                None => MessageError::TimedOut(timeout),
            }),
            _ => None,
        });
        match failure {
            Some(error) => {
                self.give_up(error, moment);
                self.has_left()
            }
            None => false,
        }
    }

    /// Whether its checksum, if there is to be one, is known.
    fn may_send(&self) -> bool {
        self.checksum.as_ref().is_none_or(|checksum| checksum.value().is_some())
    }

    /// Whether it travels in its offer.
    pub(crate) fn is_carried(&self) -> bool {
        matches!(self.way, Way::Offer(_))
    }

    fn send_and_offer(&mut self, moment: &Moment, terms: &Terms, may_be_carried: bool) {
        if matches!(self.way, Way::Undecided) {
            let carried = may_be_carried.then(|| self.carried(moment, terms)).flatten();
            self.way = carried.map_or(Way::Scheme, Way::Offer);
        }
        if matches!(self.way, Way::Scheme) {
            self.drive_half(moment, |half, io| half.poll(io));
        }
        // Without an offer the receiver cannot say that it has everything.
        if let Some(heard) = moment.heard {
            self.back_off.on_heard(heard);
        }
        if self.offer_at(moment, terms.attributes.message_timeout).is_some_and(|due| due <= moment.now) {
            match &self.way {
                Way::Offer(bytes) => {
                    terms.tell_contents(self.number, &Record::Offer(self.offer(Some(bytes))), moment.now);
                    self.report.data_packets_sent += 1;
                    // The second copy is the offer's, which every message has.
                    self.report.data_packets_repeated += u64::from(self.report.offers >= OFFERED_UNASKED.into());
                }
                Way::Scheme | Way::Undecided => {
                    terms.tell(self.number, &Record::Offer(self.offer(None)));
                }
            }
            match self.report.offers < OFFERED_UNASKED.into() {
                true => self.back_off.on_said(moment.now),
                false => self.back_off.on_repeated(moment.now),
            }
            self.report.offers += 1;
            if self.through.1.is_some() {
                terms.tell(self.number, &Record::Sent);
            }
        }
        if self.terms.is_best_effort() && self.through_at(moment).is_some_and(|due| due <= moment.now) {
            terms.tell(self.number, &Record::Offer(self.offer(None)));
            terms.tell(self.number, &Record::Sent);
            self.through = (self.through.0 + 1, Some(moment.now));
            self.report.offers += 1;
        }
    }

    /// When a best-effort receiver is to be told, without having asked, that everything has left.
    fn through_at(&self, moment: &Moment) -> Option<Instant> {
        let Outbox { data, parity, .. } = &self.outbox;
        let (told, at) = self.through;
        let may_be_due = told < THROUGH_TOLD && matches!(self.way, Way::Scheme) && self.cleared.is_some();
        let has_left = || {
            let parity_left = parity.as_ref().map_or(0, |(stream, _)| stream.left_bytes());
            data.left_bytes() >= self.shape.message_bytes && parity_left >= self.shape.parity_bytes
        };
        if !may_be_due || !has_left() {
            return None;
        }
        let pause = (moment.round_trip / OFFERS_A_ROUND_TRIP).max(OFFERS_APART_MIN);
        Some(at.map_or(moment.now, |at| at + pause))
    }

    fn offer<'a>(&'a self, contents: Option<&'a [u8]>) -> Offer<'a> {
        Offer {
            length: self.part.cut.whole_bytes(),
            offset: self.part.offset(),
            part_bytes: self.part.cut.part_bytes(),
            chunk_bytes: self.shape.chunk_bytes,
            parity_bytes: self.shape.parity_bytes,
            checksum: self.checksum.as_ref().and_then(SendChecksum::value),
            scheme: self.terms.name(),
            contents,
        }
    }

    /// The bytes of a message that is to travel in its offer. Only one whose receive is known: while it is not, packets that
    /// wait for it are what makes `sdr` ask the peer.
    fn carried(&self, moment: &Moment, terms: &Terms) -> Option<ReadGuard<'static>> {
        let Outbox { memory, range, .. } = &self.outbox;
        let is_short = (1..=CARRIED_BYTES_MAX).contains(&range.len()) && self.part.cut.count() == 1;
        // One that is too long for its receive fails here, by the scheme's way.
        let has_room = || self.outbox.data.cleared_bytes().is_some_and(|room| range.len() as u64 <= room);
        if !is_short || !has_room() || terms.queue_pair.rate_free_at() > moment.now {
            return None;
        }
        // The program may be writing to them; the scheme's half reports that.
        let bytes = memory.read_owned(range.clone()).ok()?;
        terms.fits(&Record::Offer(self.offer(Some(&bytes)))).then_some(bytes)
    }

    /// Let the scheme's half do something with the part.
    fn drive_half(&mut self, moment: &Moment, act: impl FnOnce(&mut dyn SendHalf, &mut SendIo<'_>)) {
        let mut io = SendIo {
            now: moment.now,
            round_trip: moment.round_trip,
            variation: moment.variation,
            heard: moment.heard,
            shape: &self.shape,
            outbox: &mut self.outbox,
            report: &mut self.report,
        };
        act(&mut *self.half, &mut io);
    }

    /// When it is to be offered again.
    fn offer_at(&self, moment: &Moment, timeout: Duration) -> Option<Instant> {
        let due = self.offer_due_at(moment, timeout)?;
        // An offer with contents is data, for which the rate holds.
        Some(if self.is_carried() { due.max(moment.rate_free_at) } else { due })
    }

    fn offer_due_at(&self, moment: &Moment, timeout: Duration) -> Option<Instant> {
        self.cleared?;
        let Some(offered) = self.back_off.last() else { return self.is_worth_offering().then_some(moment.now) };
        let since = self.heard.map_or(offered, |heard| heard.max(offered));
        if self.heard.is_none() && self.report.offers < OFFERED_UNASKED.into() && self.has_sent_all() {
            return Some(offered + (moment.round_trip / OFFERS_A_ROUND_TRIP).max(OFFERS_APART_MIN));
        }
        let wait = self.back_off.wait(moment.patience);
        if self.is_computed {
            // It takes as long as it takes, and every answer says that it goes on.
            return Some(since + wait.min(timeout / OFFERS_A_TIMEOUT));
        }
        // A receiver that knows of it has little to tell before the rest has left: only that bytes come, for the time-out's sake.
        let is_over = self.outbox.data.status() == SendStatus::Over;
        let is_sending = self.heard.is_some() && !is_over && !self.has_sent_all();
        Some(since + if is_sending { wait.max((timeout / OFFERS_A_TIMEOUT).min(OFFERS_APART_MAX)) } else { wait })
    }

    /// The receiver knows a part's length when it knows the whole one. It is to look for a later part only when that is
    /// in flight, which is after all others that are cleared; or when the receiver has completed it, and we have not
    /// heard of that.
    fn is_worth_offering(&self) -> bool {
        let is_on_its_way = || self.outbox.data.left_bytes() > 0;
        self.part.index == 0 || is_on_its_way() || self.outbox.data.status() == SendStatus::Over
    }

    /// Whether everything that the half has queued has left the device.
    fn has_sent_all(&self) -> bool {
        let Outbox { data, queued_data_bytes, .. } = &self.outbox;
        data.left_bytes() >= *queued_data_bytes
    }

    pub(crate) fn report(&self) -> &MessageReport {
        &self.report
    }

    /// When there was progress last.
    pub(crate) fn progressed(&self) -> Instant {
        self.progressed
    }

    /// Those that are sent before this one made progress. That counts, because the rest of it may wait behind them.
    pub(crate) fn on_progress_ahead(&mut self, at: Instant) {
        self.progressed = self.progressed.max(at);
    }

    pub(crate) fn on_record(&mut self, record: &Record<'_>, moment: &Moment) {
        if self.outcome.is_some() {
            return;
        }
        self.heard = Some(moment.now);
        self.back_off.on_heard(moment.now);
        match record {
            // Of a peer that was sent nothing yet there is none, unless it lies.
            Record::Feedback(bytes) if matches!(self.way, Way::Scheme) => {
                self.report.feedback_records += 1;
                self.drive_half(moment, |half, io| half.on_feedback(bytes, io));
            }
            Record::Done => {
                (self.is_peers, self.is_done) = (true, true);
                self.settle(Ok(()), moment);
            }
            Record::Ended(ended) => {
                if let Some(missing) = self.gathering.take(ended, &self.shape) {
                    self.report.missing_bytes = byte_count(&missing.0);
                    (self.is_peers, self.missing) = (true, missing);
                    self.settle(Ok(()), moment);
                }
            }
            Record::Refused(refused) => {
                let error = match refused.reason {
                    Refusal::OtherScheme => MessageError::OtherScheme {
                        ours: self.terms.name().to_owned(),
                        theirs: refused.scheme.to_owned(),
                    },
                    Refusal::TimedOut => MessageError::PeerTimedOut,
                    Refusal::TooLong => MessageError::TooLongForPeer(self.part.cut.whole_bytes()),
                    Refusal::Failed => MessageError::PeerFailed,
                    Refusal::Withdrawn => MessageError::Withdrawn,
                    Refusal::Checksum => MessageError::PeerChecksum,
                };
                self.is_peers = true;
                self.settle(Err(error), moment);
            }
            // No more than there are: a peer that lies gains some time, not all of it.
            Record::Arrived(packets) if *packets <= self.shape.packets_with_parity() && *packets > self.arrived => {
                (self.arrived, self.progressed) = (*packets, moment.now);
                self.back_off.on_news();
            }
            // It has all that it needs, and computes what has not arrived, behind other messages perhaps. (A peer that lies
            // keeps the message open, as one does that posts no receive.)
            Record::Arrived(packets) if *packets == self.shape.packets_with_parity() => {
                (self.progressed, self.is_computed) = (moment.now, true);
            }
            Record::Accepted
            | Record::Offer(_)
            | Record::Withdrawn(_)
            | Record::Arrived(_)
            | Record::Feedback(_)
            | Record::Sent => {}
        }
    }

    /// It has failed, unless it has ended already.
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

    /// Whether all of it that was queued has left the device.
    fn has_left(&self) -> bool {
        let has_left = |status| !matches!(status, SendStatus::Sending | SendStatus::Waiting);
        let parity = self.outbox.parity.as_ref();
        has_left(self.outbox.data.status()) && parity.is_none_or(|(stream, _)| has_left(stream.status()))
    }

    pub(crate) fn next_deadline(&self, moment: &Moment, terms: &Terms) -> Option<Instant> {
        if self.outcome.is_some() {
            return None;
        }
        let attributes = &terms.attributes;
        let timeout = self.progressed + attributes.message_timeout;
        let timeout = attributes.message_deadline.map_or(timeout, |deadline| timeout.min(self.begun + deadline));
        let timeout = self.deadline.unwrap_or(timeout);
        let checksum = self.checksum.as_ref().and_then(|checksum| checksum.continues_at(moment.now));
        let own = checksum.or_else(|| {
            let half = if matches!(self.way, Way::Scheme) { self.half.next_deadline() } else { None };
            let told = self.terms.is_best_effort().then(|| self.through_at(moment)).flatten();
            Instant::earlier_of(told, Instant::earlier_of(half, self.offer_at(moment, attributes.message_timeout)))
        });
        Instant::earlier_of(own, Some(timeout))
    }

    pub(crate) fn finish(self) -> EndedSend {
        EndedSend {
            was_carried: self.is_carried(),
            message: self.message,
            missing: self.missing,
            is_done: self.is_done,
            offset: self.part.offset(),
            outcome: self.outcome.unwrap_or(Err(MessageError::Closed)),
            is_peers: self.is_peers,
            ended: self.ended,
            report: self.report,
            parity: self.outbox.parity.map(|(_, memory)| memory),
        }
    }
}
