//! Receives that are open: each for a program's message, or a part of one.

use std::ops::Range;

use longhaul_sdr::memory::ReceivedBytes;
use longhaul_sdr::{CompleteError, Memory, Receive, ReceivedMessage};
use longhaul_time::{Duration, Instant};

use crate::arrivals::Arrivals;
use crate::bounded::{Ending, ReceiveBound, byte_count, tidy};
use crate::checksum;
use crate::choice::MessageTerms;
use crate::moment::Moment;
use crate::parts::Part;
use crate::report::MessageReport;
use crate::scheme::{MessageShape, Progress, ReceiveHalf, ReceiveIo};
use crate::terms::Terms;
use crate::ticket::MessageError;

pub(crate) struct OpenReceive {
    /// The program's receive that it is a part of.
    pub(crate) message: u64,
    /// Which part; of a first one the length is known only once the sender has told it.
    pub(crate) index: u64,
    part: Option<Part>,
    /// And what its sender has chosen for its message.
    terms: Option<MessageTerms>,
    data: Receive,
    parity: Option<(Receive, Memory)>,
    /// Once the sender has said what it sends: only the offer, which a stranger cannot write, gives a length. Packets carry it too, but those
    /// are not believed.
    source: Option<(MessageShape, Source)>,
    /// The half has said so, and is not asked again; or nothing is missing.
    is_finished: bool,
    checksum: ExpectedChecksum,
    /// What had arrived when the half was asked last, and when it wants to be.
    seen: Option<[Seen; 2]>,
    half_deadline: Option<Instant>,
    /// When the message began.
    begun: Option<Instant>,
    progress: Progressed,
    /// When the sender was told last how much has arrived.
    told_arrived: Option<Instant>,
    is_asked: bool,
    /// If it is bounded, by its program or by the scheme; and what ended it then.
    bound: Option<ReceiveBound>,
    ending: Ending,
    /// The sender has said that everything has left, or has given the message up.
    is_sender_through: bool,
    /// Bytes that were posted.
    room: u64,
    report: MessageReport,
}

/// Where the bytes of a part come from.
enum Source {
    /// From packets, by the scheme.
    Half(Box<dyn ReceiveHalf>),
    /// From the offer, which has them all.
    Offer(Box<[u8]>),
    /// From packets of a message whose offer has not come: a bounded receive ended before.
    Unheard,
}

/// What the bytes of a part must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedChecksum {
    /// The sender sends none.
    None,
    /// The part's offer, which has it, has not come. Packets of a later part may come before.
    Awaited,
    Is(u64),
}

/// Why a part that has all it needs has failed all the same.
pub(crate) enum PartError {
    Complete(CompleteError),
    Checksum { expected: u64, got: u64 },
}

impl From<CompleteError> for PartError {
    fn from(error: CompleteError) -> Self {
        PartError::Complete(error)
    }
}

/// How much of data or of parity has arrived: packets and duplicates. No chunk becomes whole without a packet more, and on a slow link a chunk may
/// take longer than the sender waits for an answer. It is looked at in every turn, so it must not take longer for long messages.
type Seen = (u32, u32);

/// What became of a receive.
pub(crate) enum Step {
    Waiting,
    Finished,
    Failed(MessageError),
}

/// Filling this much takes 0.1 to 0.2 ms. To wake a thread that does it, and to be woken by it, takes about as long.
pub(crate) const FILLED_AT_ONCE_BYTES_MAX: u64 = 1 << 20;
/// How often in a timeout is looked whether there is progress.
const LOOKS_A_TIMEOUT: u32 = 4;

/// How many packets have arrived, and when there were more of them last.
#[derive(Clone, Copy, Default)]
struct Progressed {
    packets: u64,
    at: Instant,
    /// When that is looked at again.
    look_at: Instant,
}

/// A part that has been received.
pub(crate) struct ReceivedPart {
    pub(crate) bytes: ReceivedBytes,
    /// Places in the part.
    pub(crate) missing: Vec<Range<u64>>,
    pub(crate) ending: Ending,
    /// Bytes of the part, or of the receive if its offer has not come.
    pub(crate) length: u64,
    pub(crate) report: MessageReport,
    /// The memory of its parity.
    pub(crate) parity: Option<Memory>,
}

impl OpenReceive {
    /// A receive that was posted: for a first part, or for one of a message that has begun.
    pub(crate) fn new(
        message: u64,
        begun_as: Option<(Part, MessageTerms)>,
        data: Receive,
        parity: Option<(Receive, Memory)>,
        checksum: ExpectedChecksum,
        begun: Option<Instant>,
        now: Instant,
    ) -> Self {
        let (part, terms) = begun_as.unzip();
        OpenReceive {
            message,
            index: part.map_or(0, |part| part.index),
            part,
            terms,
            data,
            parity,
            source: None,
            is_finished: false,
            checksum,
            seen: None,
            half_deadline: None,
            begun,
            progress: Progressed { packets: 0, at: now, look_at: now },
            told_arrived: None,
            is_asked: false,
            bound: None,
            ending: Ending::Quiet,
            is_sender_through: false,
            room: 0,
            report: MessageReport::default(),
        }
    }

    /// It has this many bytes, and is bounded if there is a bound.
    pub(crate) fn with_bound(self, bound: Option<ReceiveBound>, room: u64) -> Self {
        OpenReceive { bound, room, ..self }
    }

    /// Whether it ends in time, with what has arrived.
    pub(crate) fn is_bounded(&self) -> bool {
        self.bound.is_some()
    }

    /// Whether it ends by itself when its sender sends nothing more: by its deadline, or because the scheme sees that nothing comes.
    pub(crate) fn ends_by_itself(&self) -> bool {
        self.own_deadline().is_some() || self.bound.is_some() && self.part.is_some()
    }

    /// Bytes of the part, or as many as were posted while the sender has not told.
    pub(crate) fn length(&self) -> u64 {
        self.part.map_or(self.room, |part| part.bytes())
    }

    /// The sender sends nothing more of it.
    pub(crate) fn on_sender_through(&mut self) {
        if !std::mem::replace(&mut self.is_sender_through, true) && !self.is_finished {
            // The half has to look at that.
            self.seen = None;
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.data.number()
    }

    /// What is received here is known now, with the checksum that the offer has. Returns the memory for parity that does not come.
    pub(crate) fn begin(
        &mut self,
        part: Part,
        terms: MessageTerms,
        checksum: Option<u64>,
        now: Instant,
    ) -> Option<Memory> {
        self.part.get_or_insert(part);
        if terms.is_best_effort() {
            self.bound.get_or_insert_with(ReceiveBound::best_effort);
        }
        let unused = if terms.has_parity() { None } else { self.parity.take() };
        self.terms.get_or_insert(terms);
        if let Some(checksum) = checksum {
            self.checksum = ExpectedChecksum::Is(checksum);
        }
        self.begin_clock(now);
        // Its receive ends here.
        unused.map(|(_, memory)| memory)
    }

    /// The offer has brought all bytes.
    pub(crate) fn take_contents(&mut self, contents: &[u8]) {
        let Some(terms) = &self.terms else { return };
        self.source = Some((terms.shape_of(contents.len() as u64), Source::Offer(contents.into())));
        (self.is_finished, self.half_deadline) = (true, None);
    }

    /// What the packets say of the message, for a receiver that makes the mistake to believe them.
    #[cfg(feature = "mutations")]
    pub(crate) fn announced(&self, terms: &Terms) -> Option<Part> {
        let is_believed = terms.attributes.mutation == Some(crate::attributes::Mutation::OfferLengthIgnored);
        let length = self.data.user_immediate().filter(|length| *length > 0 && is_believed && self.part.is_none())?;
        let part_bytes = terms.queue_pair.message_bytes_max()?;
        let room = u64::from(self.data.bitmap().packet_count()) * u64::from(terms.packet_bytes());
        let is_possible = u64::from(length) <= part_bytes.min(room);
        is_possible.then(|| crate::parts::Cut::new(length.into(), part_bytes).part(0))
    }

    fn begin_clock(&mut self, now: Instant) {
        if self.begun.is_none() {
            self.begun = Some(now);
            self.progress = Progressed { packets: 0, at: now, look_at: now };
        }
    }

    /// Packets that came more than once.
    pub(crate) fn duplicates(&self) -> u64 {
        let parity = self.parity.as_ref().map_or(0, |(receive, _)| receive.bitmap().duplicates());
        u64::from(self.data.bitmap().duplicates()) + u64::from(parity)
    }

    /// Memory for its parity, if it has some.
    pub(crate) fn parity_memory_bytes(&self) -> Option<u64> {
        self.parity.as_ref().map(|(_, memory)| memory.len() as u64)
    }

    /// Packets of data and of parity that have arrived.
    fn packets(&self) -> u64 {
        let parity = self.parity.as_ref().map_or(0, |(receive, _)| receive.bitmap().arrived_packets());
        u64::from(self.data.bitmap().arrived_packets()) + u64::from(parity)
    }

    /// When there was progress last; `ahead`: of those before it. That counts as well, because the rest of it may wait behind them (its parity
    /// may be there before its data).
    pub(crate) fn progressed(&mut self, ahead: Instant, now: Instant, terms: &Terms) -> Instant {
        // Its first packets may come before its offer.
        if self.begun.is_none() && self.data.bitmap().whole_chunks() > 0 {
            self.begin_clock(now);
        }
        if self.begun.is_some() && self.progress.look_at <= now {
            let packets = self.packets();
            if packets > self.progress.packets {
                (self.progress.packets, self.progress.at) = (packets, now);
            }
            self.progress.look_at = now + terms.attributes.message_timeout / LOOKS_A_TIMEOUT;
        }
        self.progress.at = self.progress.at.max(ahead);
        self.progress.at
    }

    /// How many packets have arrived, if the sender is to be told.
    pub(crate) fn arrived_to_tell(&mut self, was_asked: bool, moment: &Moment) -> Option<u64> {
        let is_due = self.told_arrived.is_none_or(|told| told + moment.round_trip / 2 <= moment.now);
        if !was_asked && !is_due {
            return None;
        }
        self.told_arrived = Some(moment.now);
        Some(self.packets())
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// The sender wants to know how far it is.
    pub(crate) fn ask(&mut self) {
        self.is_asked = true;
        self.make_half();
    }

    fn make_half(&mut self) {
        if let (Some(part), Some(terms), None) = (self.part, &self.terms, &self.source) {
            let shape = terms.shape_of(part.bytes());
            self.source = Some((shape, Source::Half(terms.agreed.scheme.receiver(&shape))));
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
        // Nobody waits for a later part before it is in flight: the sender may be busy with others.
        if self.source.is_none() && (self.index == 0 || self.data.bitmap().whole_chunks() > 0) {
            self.make_half();
        }
        if self.is_finished {
            self.is_asked = false;
        } else if let Some((shape, Source::Half(half))) = &mut self.source {
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
                    is_sender_through: self.is_sender_through,
                    feedback,
                    feedback_bytes_max,
                    report: &mut self.report,
                };
                self.is_finished = half.poll(&mut io) == Progress::Finished;
                (self.seen, self.half_deadline) = (seen, half.next_deadline().filter(|_| !self.is_finished));
            }
        }
        if self.is_finished && self.checksum != ExpectedChecksum::Awaited {
            return Step::Finished;
        }
        if let Some(deadline) = self.own_deadline() {
            return match deadline <= moment.now {
                true => self.end_at_deadline(),
                false => Step::Waiting,
            };
        }
        let Some(begun) = self.begun else { return Step::Waiting };
        let timeout = terms.attributes.message_timeout;
        let error = match terms.attributes.message_deadline {
            Some(deadline) if begun + deadline <= moment.now => MessageError::Deadline(deadline),
            _ if self.progress.at + timeout <= moment.now => MessageError::TimedOut(timeout),
            _ => return Step::Waiting,
        };
        match self.bound.is_some() && self.part.is_some() {
            true => {
                self.make_half();
                self.end_at_deadline()
            }
            false => Step::Failed(error),
        }
    }

    /// When the last progress was of one that has ended by its deadline, or by the connection's time-outs.
    pub(crate) fn quiet_since(&self) -> Option<Instant> {
        (self.ending == Ending::Deadline).then_some(self.progress.at)
    }

    /// When its program wants it to end at the latest.
    fn own_deadline(&self) -> Option<Instant> {
        let bound = self.bound.as_ref()?;
        #[cfg(feature = "mutations")]
        if let (Some(crate::attributes::Mutation::DeadlineFromFirstPacket), Some(at)) = (bound.mutation, bound.deadline)
        {
            return self.begun.map(|begun| begun + at.saturating_since(bound.posted));
        }
        bound.deadline
    }

    fn end_at_deadline(&mut self) -> Step {
        (self.is_finished, self.ending) = (true, Ending::Deadline);
        Step::Finished
    }

    pub(crate) fn next_deadline(&self, terms: &Terms) -> Option<Instant> {
        let deadline = self.own_deadline();
        let timeout = self.begun.map(|begun| {
            let look_at = self.progress.look_at.min(self.progress.at + terms.attributes.message_timeout);
            terms.attributes.message_deadline.map_or(look_at, |deadline| look_at.min(begun + deadline))
        });
        match &self.source {
            Some(_) if self.is_asked => Some(Instant::ZERO),
            // It has not been looked at yet.
            Some(_) if self.seen.is_none() => Some(Instant::ZERO),
            // Its own deadline takes the place of the connection's time-outs.
            _ => Instant::earlier_of(self.half_deadline, deadline.or(timeout)),
        }
    }

    /// End it: from here on no packet changes its bytes. `None` when it has not begun, and is not bounded.
    pub(crate) fn complete(self, moment: &Moment, terms: &Terms) -> Option<Result<CompletedPart, CompleteError>> {
        let OpenReceive { data, parity, source, checksum, bound, ending, room, mut report, .. } = self;
        let unheard = || bound.is_some().then(|| (terms.shape_of_unheard(room), Source::Unheard));
        let (shape, source) = source.or_else(unheard)?;
        let completed = data.complete().and_then(|data| match parity {
            None => Ok((data, None)),
            Some((receive, memory)) => Ok((data, Some((receive.complete()?, memory)))),
        });
        let (data, parity) = match completed {
            Ok(completed) => completed,
            Err(error) => return Some(Err(error)),
        };
        let parity_duplicates = parity.as_ref().map_or(0, |(message, _)| message.bitmap().duplicates());
        report.duplicate_packets = u64::from(data.bitmap().duplicates()) + u64::from(parity_duplicates);
        report.round_trip = Some(moment.round_trip);
        let deadline = bound.as_ref().and_then(|bound| bound.deadline);
        report.late = deadline.map_or(Duration::ZERO, |deadline| moment.now.saturating_since(deadline));
        Some(Ok(CompletedPart { shape, source, data, parity, checksum, bound, ending, report }))
    }
}

/// A part that no packet changes any more, and some of which may have to be computed. It owns all that this needs, so that any thread can do it.
pub(crate) struct CompletedPart {
    shape: MessageShape,
    source: Source,
    data: ReceivedMessage,
    parity: Option<(ReceivedMessage, Memory)>,
    checksum: ExpectedChecksum,
    bound: Option<ReceiveBound>,
    ending: Ending,
    report: MessageReport,
}

impl CompletedPart {
    pub(crate) fn duplicates(&self) -> u64 {
        self.report.duplicate_packets
    }

    /// Memory for its parity, if it has some.
    pub(crate) fn parity_memory_bytes(&self) -> Option<u64> {
        self.parity.as_ref().map(|(_, memory)| memory.len() as u64)
    }

    /// Packets of data and of parity, whether they have arrived or not.
    pub(crate) fn packet_count(&self) -> u64 {
        self.shape.packets_with_parity()
    }

    /// Whether missing bytes only have to be filled, and that takes no longer than to wake somebody who does it.
    pub(crate) fn is_soon_filled(&self) -> bool {
        if matches!(self.source, Source::Offer(_)) || self.parity.is_some() {
            return false;
        }
        // Of the message: packets beyond it, within the receive, may have come from a peer that lies.
        let arrived = self.shape.arrivals(self.data.bitmap(), self.shape.message_bytes);
        let missing: u64 = arrived.missing_packets().map(|run| u64::from(run.end - run.start)).sum();
        let bytes = missing * u64::from(self.shape.packet_bytes);
        (1..=FILLED_AT_ONCE_BYTES_MAX).contains(&bytes)
    }

    /// Bytes to go through, if anything has to be computed.
    pub(crate) fn bytes_to_compute(&self) -> usize {
        if let Source::Offer(_) = self.source {
            return 0;
        }
        let is_whole = self.shape.arrivals(self.data.bitmap(), self.shape.message_bytes).is_complete();
        let has_checksum = matches!(self.checksum, ExpectedChecksum::Is(_));
        if is_whole && !has_checksum { 0 } else { self.shape.message_bytes as usize }
    }

    /// Compute what is missing, and verify the checksum.
    pub(crate) fn recover(self, is_wanted: &dyn Fn() -> bool) -> Result<ReceivedPart, PartError> {
        let CompletedPart { shape, source, mut data, parity, checksum: expected, bound, ending, mut report } = self;
        let bitmap = data.shared_bitmap();
        let arrived = shape.arrivals(&bitmap, shape.message_bytes);
        let parity_view = parity.as_ref().map(|(message, _)| {
            let bytes = &message.bytes()[..shape.parity_bytes as usize];
            (bytes, shape.arrivals(message.bitmap(), shape.parity_bytes))
        });
        let bytes = &mut data.bytes_mut()[..shape.message_bytes as usize];
        let is_heard = !matches!(source, Source::Unheard);
        let missing = match source {
            Source::Unheard => missing_of_unheard(arrived),
            Source::Half(mut half) => half.recover(bytes, arrived, parity_view, &mut report, is_wanted),
            Source::Offer(contents) => {
                bytes.copy_from_slice(&contents);
                Vec::new()
            }
        };
        let mut missing = tidy(missing.into_iter().map(|packets| shape.bytes_of_packets(packets)).collect());
        if expected == ExpectedChecksum::Awaited && missing.is_empty() {
            // Its offer, which has the checksum, never came: nobody knows whether these bytes are right, so the part is not whole, and neither end
            // must take it for that. Its last packet stands for it, as with a message that was never heard of.
            let end = shape.packet_count();
            missing.push(shape.bytes_of_packets(end.saturating_sub(1)..end));
        }
        #[cfg(feature = "mutations")]
        let missing = mutated(missing, bound.as_ref(), u64::from(shape.packet_bytes));
        // Memory is used for one message after another, and devices that receive in place write before they know: what has not
        // arrived must not show the program what is somebody else's.
        bound.unwrap_or_else(ReceiveBound::best_effort).fill(bytes, &missing);
        let ending = if missing.is_empty() && is_heard { Ending::Whole } else { ending };
        report.missing_bytes = byte_count(&missing);
        // The checksum is of all bytes: a part with some of them missing has nothing to compare.
        if let (ExpectedChecksum::Is(expected), true) = (expected, missing.is_empty()) {
            let got = checksum::checksum_while(bytes, is_wanted);
            if got != expected {
                return Err(PartError::Checksum { expected, got });
            }
            report.checksummed_bytes = shape.message_bytes;
        }
        report.message_bytes = shape.message_bytes;
        let parity = parity.map(|(_, memory)| memory);
        let length = shape.message_bytes;
        Ok(ReceivedPart { bytes: data.into_bytes(), missing, ending, length, report, parity })
    }
}

/// Packets that are missing of a message whose offer has not come. The last one that has arrived counts as missing: the message may be shorter
/// than its receive and end within that packet, and what lies behind it there is not the message's.
fn missing_of_unheard(arrived: Arrivals<'_>) -> Vec<Range<u32>> {
    // Found in what is reported, and not looked for again: packets may still be noted while this goes on.
    let mut missing: Vec<_> = arrived.missing_packets().collect();
    let end = match missing.last() {
        Some(run) if run.end == arrived.packet_count() => run.start,
        _ => arrived.packet_count(),
    };
    missing.extend(end.checked_sub(1).map(|last| last..end));
    missing
}

/// What a receiver with a mistake takes for missing.
#[cfg(feature = "mutations")]
fn mutated(mut missing: Vec<Range<u64>>, bound: Option<&ReceiveBound>, packet_bytes: u64) -> Vec<Range<u64>> {
    let is_off = bound.is_some_and(|bound| bound.mutation == Some(crate::attributes::Mutation::RangesOffByOne));
    if let (Some(first), true) = (missing.first_mut(), is_off) {
        first.start = first.end.min(first.start + packet_bytes);
    }
    missing.retain(|range| !range.is_empty());
    missing
}

fn seen(arrivals: Arrivals<'_>) -> Seen {
    (arrivals.arrived_packets(), arrivals.duplicates())
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod threads {
    use longhaul_sdr::MessageBitmap;

    use super::tests::tidy_packets;
    use super::*;

    /// Whatever is noted while it is looked for: what is not missing lies before a packet that is.
    #[test]
    fn packets_that_come_meanwhile_are_not_behind_the_end() {
        for _ in 0..200 {
            let bitmap = MessageBitmap::new(4096, 64);
            std::thread::scope(|scope| {
                scope.spawn(|| bitmap.record_run(0, 4096));
                for _ in 0..20 {
                    let missing = tidy_packets(missing_of_unheard(Arrivals::new(&bitmap, 4096, 64)));
                    assert_eq!(missing.last().map(|run| run.1), Some(4096), "{missing:?}");
                }
            });
        }
    }
}
