//! Selective repeat: the receiver reports which packets it has, the sender repeats the others. Chunks do not matter to it: what is missing is
//! known by the packet.
//!
//! ```text
//!   sender:    queued ──left──▶ in flight ──acknowledged──▶ done
//!                 ▲                  │
//!                 └── timeout, or reported lost
//!   receiver:  something new ──an eighth of a round trip──▶ acknowledgement, three times unless something new comes; all there ──▶ finished
//! ```
//!
//! A packet that has not been acknowledged within (1 + α) round trips after it left is sent again; while the peer is not heard of at all, or
//! acknowledges nothing new for long, after longer and longer times. With negative acknowledgements, the
//! receiver also reports as soon as later packets show that one is missing, or when nothing comes any more, and the sender then repeats it
//! after about one round trip.

use longhaul_scheme::NamedScheme;
use longhaul_scheme::timers::{
    self, ACKNOWLEDGEMENTS, ALPHA, GAP_REPORTS, REORDERING_PACKETS, SILENCE, TIMEOUT_MIN, TIMEOUT_MIN_WITH_REPORTS,
};
use longhaul_sdr::BackOff;
use longhaul_time::{Duration, Instant};
use longhaul_wire::acknowledgement::Acknowledgement;

use crate::acknowledgement;
use crate::repeater::Repeater;
use crate::scheme::{MessageShape, Progress, ReceiveHalf, ReceiveIo, Scheme, SendHalf, SendIo};

/// How often an acknowledgement is sent when nothing new comes.
const TOLD_TIMES: u32 = 3;
/// How often a receiver reports that nothing arrives any more, before it leaves asking to the sender.
const SILENCES_MAX: u32 = 12;
/// Not before this many packets would have arrived.
const PACKETS_OF_SILENCE: u64 = 2;
/// A timeout that is noticed later than by this part of itself shows that this end stood still. What arrived meanwhile may not have
/// been read yet: the reader has this part of the timeout for it.
const LATE_PART: u32 = 4;

/// Selective repeat.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SelectiveRepeat {
    /// A packet is repeated after (1 + α) round trips.
    pub alpha: f64,
    /// But not before: timers of hosts are not exact, and a repetition for nothing is a waste.
    pub timeout_min: Duration,
    /// Tell gaps at once.
    pub negative: Option<ReorderingAllowance>,
}

/// How far packets may overtake each other before one that is missing is told to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReorderingAllowance {
    /// In packets.
    pub packets: u32,
}

impl Default for SelectiveRepeat {
    /// With timeouts alone, α = 2.
    fn default() -> Self {
        SelectiveRepeat { alpha: ALPHA, timeout_min: TIMEOUT_MIN, negative: None }
    }
}

impl SelectiveRepeat {
    /// With negative acknowledgements.
    pub fn with_negative_acknowledgements() -> Self {
        SelectiveRepeat {
            timeout_min: TIMEOUT_MIN_WITH_REPORTS,
            negative: Some(ReorderingAllowance { packets: REORDERING_PACKETS }),
            ..Default::default()
        }
    }

    fn timeout(&self, round_trip: Duration) -> Duration {
        timers::retransmission(self.alpha, self.timeout_min).after(round_trip)
    }
}

impl Scheme for SelectiveRepeat {
    fn name(&self) -> String {
        let name = match self.negative {
            None => NamedScheme::SelectiveRepeat,
            Some(_) => NamedScheme::NegativeAcknowledgements,
        };
        name.to_string()
    }

    fn sender(&self, shape: &MessageShape) -> Box<dyn SendHalf> {
        let repeater = Repeater::new(shape.packet_count(), shape.packet_bytes, true);
        Box::new(Sender {
            scheme: *self,
            repeater,
            has_begun: false,
            back_off: BackOff::default(),
            deadline: None,
            reading_until: None,
        })
    }

    fn receiver(&self, _: &MessageShape) -> Box<dyn ReceiveHalf> {
        Box::new(Receiver {
            scheme: *self,
            cumulative: 0,
            seen: (0, 0),
            news_at: None,
            told_at: None,
            untold: 0,
            silences: 0,
            gaps_told_below: 0,
            no_gaps_below: 0,
            deadline: None,
        })
    }
}

struct Sender {
    scheme: SelectiveRepeat,
    repeater: Repeater,
    has_begun: bool,
    /// Of rounds of timeouts.
    back_off: BackOff,
    deadline: Option<Instant>,
    /// Until then nothing is taken for lost, because this end stood still.
    reading_until: Option<Instant>,
}

impl Sender {
    /// Whether this end was away when the deadline passed, and has not had the time yet to read what arrived. Once for each timeout: an
    /// end that is always late repeats, too.
    fn stood_still(&mut self, now: Instant, timeout: Duration) -> bool {
        let reading = timeout / LATE_PART;
        match self.reading_until {
            Some(until) if now < until => true,
            Some(_) => {
                self.reading_until = None;
                false
            }
            None if self.deadline.is_some_and(|deadline| deadline + reading <= now) => {
                self.reading_until = Some(now + reading);
                true
            }
            None => false,
        }
    }

    fn repeat(&mut self, runs: Vec<std::ops::Range<u32>>, io: &mut SendIo<'_>) {
        if !runs.is_empty() {
            io.report().fallbacks += 1;
        }
        self.repeater.send(runs, io);
    }
}

impl SendHalf for Sender {
    fn poll(&mut self, io: &mut SendIo<'_>) {
        if !self.has_begun {
            self.has_begun = true;
            let all = 0..io.shape().packet_count();
            self.repeater.send(vec![all], io);
        }
        let (now, round_trip) = (io.now(), io.round_trip());
        self.repeater.on_left(io.left_data_bytes(), now, round_trip);
        if let Some(heard) = io.peer_heard() {
            self.back_off.on_heard(heard);
        }
        let timeout = self.scheme.timeout(round_trip).max(round_trip + io.variation());
        if self.stood_still(now, timeout) {
            self.deadline = self.reading_until;
            return;
        }
        let back_off = self.back_off;
        let runs = self.repeater.expire(now, |left| timeout_of(back_off, left, timeout));
        // What left in one round of timeouts is waited for before the next round counts.
        if !runs.is_empty() && self.back_off.due_at(timeout) <= now {
            self.back_off.on_repeated(now);
        }
        self.repeat(runs, io);
        self.deadline = self.repeater.next_deadline(|left| timeout_of(self.back_off, left, timeout));
    }

    fn on_feedback(&mut self, bytes: &[u8], io: &mut SendIo<'_>) {
        let Some(acknowledgement) = Acknowledgement::parse(bytes) else { return };
        let runs = self.repeater.on_acknowledgement(&acknowledgement, io.now(), io.round_trip(), io.variation());
        if self.repeater.take_news() {
            self.back_off.on_news();
        }
        self.repeat(runs, io);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

/// Of what left at a time. Only what was repeated in vain is waited for longer: what left before the last round of timeouts is due as it
/// always was.
fn timeout_of(back_off: BackOff, left: Instant, timeout: Duration) -> Duration {
    match back_off.last() {
        Some(round) if left >= round => back_off.wait(timeout),
        _ => timeout,
    }
}

struct Receiver {
    scheme: SelectiveRepeat,
    /// Every packet below is there.
    cumulative: u32,
    /// Packets and duplicates, when something came last.
    seen: (u32, u32),
    news_at: Option<Instant>,
    told_at: Option<Instant>,
    /// How often it is still to be told.
    untold: u32,
    silences: u32,
    /// Gaps below have been told.
    gaps_told_below: u32,
    /// Between that and here there are none, so nobody has to look again.
    no_gaps_below: u32,
    deadline: Option<Instant>,
}

impl ReceiveHalf for Receiver {
    fn poll(&mut self, io: &mut ReceiveIo<'_>) -> Progress {
        let arrived = io.data();
        match arrived.first_missing_packet(self.cumulative) {
            Some(first) => self.cumulative = first,
            None => return Progress::Finished,
        }
        let now = io.now();
        // By the packet: on a slow link a chunk may take longer than the sender waits.
        let seen = (arrived.arrived_packets(), arrived.duplicates());
        if seen != self.seen || self.news_at.is_none() {
            (self.seen, self.news_at) = (seen, Some(now));
            (self.untold, self.silences) = (TOLD_TIMES, 0);
        }
        let period = ACKNOWLEDGEMENTS.after(io.round_trip());
        let gap_period = GAP_REPORTS.after(io.round_trip());
        let lost_below = self.lost_below(io);
        let has_new_gaps = self.has_new_gaps(io, lost_below);
        let due =
            |has_news: bool, period, told: Option<Instant>| has_news.then(|| told.map_or(now, |told| told + period));
        let tell_at = |receiver: &Receiver, has_new_gaps| {
            let again = due(receiver.untold > 0, period, receiver.told_at);
            Instant::earlier_of(again, due(has_new_gaps, gap_period, receiver.told_at))
        };
        let mut next = tell_at(self, has_new_gaps);
        if io.is_asked() || next.is_some_and(|at| at <= now) {
            self.tell(io, lost_below);
            next = tell_at(self, false);
        }
        let silence = self.scheme.negative.and(self.silence_at(io));
        self.deadline = Instant::earlier_of(next, silence);
        Progress::Waiting
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

impl Receiver {
    fn tell(&mut self, io: &mut ReceiveIo<'_>, lost_below: u32) {
        let arrived = io.data();
        let end = arrived.last_packet().map_or(0, |last| last + 1).max(lost_below);
        let records = acknowledgement::encode(self.cumulative, lost_below, end, io.feedback_bytes_max(), |index| {
            arrived.packet_word(index)
        });
        records.into_iter().for_each(|record| io.send_feedback(record));
        self.told_at = Some(io.now());
        self.untold = self.untold.saturating_sub(1);
        self.gaps_told_below = self.gaps_told_below.max(lost_below);
    }

    /// When nothing has come for so long that nothing more can be in flight.
    fn silence_at(&self, io: &ReceiveIo<'_>) -> Option<Instant> {
        // On a slow link the next packet may take longer than a round trip.
        let next = io.shape().injection_time(PACKETS_OF_SILENCE * u64::from(io.shape().packet_bytes));
        let pause = SILENCE.after(io.round_trip()).max(next);
        (self.silences < SILENCES_MAX).then(|| self.news_at.map(|news| news + pause * (self.silences + 1)))?
    }

    /// Below this, what has not come will not come.
    fn lost_below(&mut self, io: &ReceiveIo<'_>) -> u32 {
        let Some(allowance) = self.scheme.negative else { return 0 };
        if self.silence_at(io).is_some_and(|silence| silence <= io.now()) {
            self.silences += 1;
            self.untold = self.untold.max(1);
            self.gaps_told_below = 0;
            return io.shape().packet_count();
        }
        io.data().last_packet().map_or(0, |last| last.saturating_sub(allowance.packets))
    }

    fn has_new_gaps(&mut self, io: &ReceiveIo<'_>, lost_below: u32) -> bool {
        let from = self.gaps_told_below.max(self.no_gaps_below);
        if lost_below <= from {
            return false;
        }
        let has_gaps = io.data().first_missing_packet(from).is_some_and(|first| first < lost_below);
        if !has_gaps {
            self.no_gaps_below = lost_below;
        }
        has_gaps
    }
}

#[cfg(test)]
mod tests {
    use longhaul_sdr::MessageBitmap;

    use super::*;
    use crate::report::MessageReport;

    const SHAPE: MessageShape = MessageShape {
        message_bytes: 200 * 4096,
        parity_bytes: 0,
        chunk_bytes: 4096,
        packet_bytes: 4096,
        rate_bits_per_second: None,
    };
    const ROUND_TRIP: Duration = Duration::from_millis(32);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// What is told when a half is polled: for each record the cumulative number and where what is lost ends.
    fn poll(
        half: &mut dyn ReceiveHalf,
        bitmap: &MessageBitmap,
        millis: u64,
        is_asked: bool,
    ) -> (Progress, Vec<(u32, u32)>) {
        let (mut feedback, mut report) = (Vec::new(), MessageReport::default());
        let mut io = ReceiveIo {
            now: at(millis),
            round_trip: ROUND_TRIP,
            shape: &SHAPE,
            data: SHAPE.arrivals(bitmap, SHAPE.message_bytes),
            parity: None,
            is_asked,
            is_sender_through: false,
            feedback: &mut feedback,
            feedback_bytes_max: 500,
            report: &mut report,
        };
        let progress = half.poll(&mut io);
        let told = feedback.iter().filter_map(|bytes| Acknowledgement::parse(bytes));
        (progress, told.map(|told| (told.header.cumulative, told.header.lost_below)).collect())
    }

    fn arrive(bitmap: &MessageBitmap, chunks: std::ops::Range<u32>) {
        chunks.for_each(|chunk| {
            bitmap.record(chunk);
        });
    }

    #[test]
    fn what_has_arrived_is_told_an_eighth_of_a_round_trip_apart_and_three_times() {
        let mut half = SelectiveRepeat::default().receiver(&SHAPE);
        let bitmap = MessageBitmap::new(200, 1);
        arrive(&bitmap, 0..10);
        arrive(&bitmap, 11..20);
        assert_eq!(poll(&mut *half, &bitmap, 0, false).1, [(10, 0)]);
        assert_eq!(half.next_deadline(), Some(at(4)));
        arrive(&bitmap, 20..30);
        assert_eq!(poll(&mut *half, &bitmap, 1, false).1, []);
        assert_eq!(poll(&mut *half, &bitmap, 2, true).1, [(10, 0)], "asked");
        for millis in [6, 10] {
            assert_eq!(half.next_deadline(), Some(at(millis)));
            assert_eq!(poll(&mut *half, &bitmap, millis, false).1, [(10, 0)]);
        }
        assert_eq!(half.next_deadline(), None);
        assert_eq!(poll(&mut *half, &bitmap, 50, false).1, []);
        // A duplicate is news: the sender repeats what it has not heard to be there.
        bitmap.record(3);
        assert_eq!(poll(&mut *half, &bitmap, 51, false).1, [(10, 0)]);
        arrive(&bitmap, 0..200);
        assert_eq!(poll(&mut *half, &bitmap, 52, false), (Progress::Finished, vec![]));
    }

    #[test]
    fn packets_of_a_chunk_that_is_not_whole_are_told_too() {
        let shape = MessageShape { chunk_bytes: 4 * 4096, ..SHAPE };
        let mut half = SelectiveRepeat::default().receiver(&shape);
        let bitmap = MessageBitmap::new(200, 4);
        let told = |half: &mut dyn ReceiveHalf, millis| {
            let (mut feedback, mut report) = (Vec::new(), MessageReport::default());
            let mut io = ReceiveIo {
                now: at(millis),
                round_trip: ROUND_TRIP,
                shape: &shape,
                data: shape.arrivals(&bitmap, shape.message_bytes),
                parity: None,
                is_asked: false,
                is_sender_through: false,
                feedback: &mut feedback,
                feedback_bytes_max: 500,
                report: &mut report,
            };
            assert_eq!(half.poll(&mut io), Progress::Waiting);
            feedback
                .iter()
                .filter_map(|bytes| Acknowledgement::parse(bytes))
                .map(|told| told.header.cumulative)
                .collect()
        };
        let cumulative: [Vec<u32>; 3] = [0, 1, 2].map(|pair| {
            arrive(&bitmap, 2 * pair..2 * pair + 2);
            told(&mut *half, 100 * u64::from(pair))
        });
        assert_eq!(cumulative, [[2], [4], [6]]);
    }

    #[test]
    fn only_what_was_repeated_in_vain_is_waited_for_longer() {
        let timeout = Duration::from_millis(90);
        let mut back_off = BackOff::default();
        assert_eq!(timeout_of(back_off, at(0), timeout), timeout);
        // Of packets that left from 0 to 10 ms the first is due.
        back_off.on_repeated(at(90));
        assert_eq!(timeout_of(back_off, at(10), timeout), timeout, "the last of them");
        assert_eq!(timeout_of(back_off, at(91), timeout), 2 * timeout, "the first, sent again");
        back_off.on_heard(at(122));
        assert_eq!(timeout_of(back_off, at(91), timeout), timeout);
    }

    #[test]
    fn an_end_that_stood_still_reads_before_it_takes_anything_for_lost() {
        let timeout = Duration::from_millis(20);
        let mut sender = Sender {
            scheme: SelectiveRepeat::with_negative_acknowledgements(),
            repeater: Repeater::new(1, 1, true),
            has_begun: true,
            back_off: BackOff::default(),
            deadline: Some(at(20)),
            reading_until: None,
        };
        assert!(!sender.stood_still(at(20), timeout), "in time");
        assert!(!sender.stood_still(at(24), timeout), "a little late");
        assert!(sender.stood_still(at(50), timeout), "30 ms late");
        assert!(sender.stood_still(at(54), timeout), "still reading");
        assert!(!sender.stood_still(at(80), timeout), "late again, but it had its time");
    }

    #[test]
    fn gaps_are_told_when_they_show_and_the_rest_when_nothing_comes() {
        let mut half = SelectiveRepeat::with_negative_acknowledgements().receiver(&SHAPE);
        let bitmap = MessageBitmap::new(200, 1);
        arrive(&bitmap, 0..5);
        arrive(&bitmap, 6..40);
        // Chunk 5 may have been overtaken.
        assert_eq!(poll(&mut *half, &bitmap, 0, false).1, [(5, 0)]);
        arrive(&bitmap, 40..100);
        assert_eq!(poll(&mut *half, &bitmap, 1, false).1, [(5, 35)]);
        arrive(&bitmap, 100..120);
        assert_eq!(poll(&mut *half, &bitmap, 2, false).1, [], "there is no new gap");
        assert_eq!(poll(&mut *half, &bitmap, 5, false).1, [(5, 55)]);
        assert_eq!(poll(&mut *half, &bitmap, 9, false).1, [(5, 55)]);
        assert_eq!(half.next_deadline(), Some(at(10)));
        assert_eq!(poll(&mut *half, &bitmap, 10, false).1, [(5, 200)], "a quarter of a round trip after chunk 119");
        assert_eq!(half.next_deadline(), Some(at(18)));
    }
}
