//! Selective repeat: the receiver tells which chunks it has, the sender repeats the others.
//!
//! ```text
//!   sender:    queued ──left──▶ on its way ──acknowledged──▶ over
//!                 ▲                  │
//!                 └── timeout, or told lost
//!   receiver:  something new ──an eighth of a round trip──▶ acknowledgement, three times unless something new comes; all there ──▶ finished
//! ```
//!
//! A chunk that has not been acknowledged within (1 + α) round trips after it left is sent again. With negative acknowledgements, the
//! receiver also tells as soon as later chunks show that one is missing, or when nothing comes any more, and the sender then repeats it after
//! about one round trip.

use longhaul_time::{Duration, Instant};

use crate::acknowledgement::{self, Acknowledgement};
use crate::repeater::Repeater;
use crate::scheme::{MessageShape, Progress, ReceiveHalf, ReceiveIo, Scheme, SendHalf, SendIo};

/// An acknowledgement is sent this often in a round trip, at most.
const ACKNOWLEDGEMENTS_A_ROUND_TRIP: u32 = 8;
/// Gaps that show within this part of a round trip are told together.
const GAPS_A_ROUND_TRIP: u32 = 32;
/// How often an acknowledgement is sent when nothing new comes.
const TOLD_TIMES: u32 = 3;
/// How often a receiver tells that nothing comes any more, before it leaves asking to the sender.
const SILENCES_MAX: u32 = 12;
/// Shorter times between acknowledgements cost more than they bring.
const PERIOD_MIN: Duration = Duration::from_micros(50);

/// Selective repeat.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SelectiveRepeat {
    /// A chunk is repeated after (1 + α) round trips.
    pub alpha: f64,
    /// But not before: timers of hosts are not exact, and a repetition for nothing is a waste.
    pub timeout_min: Duration,
    /// Tell gaps at once.
    pub negative: Option<ReorderingAllowance>,
}

/// How far packets may overtake each other before one that is missing is told to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReorderingAllowance {
    /// In chunks.
    pub chunks: u32,
}

impl Default for SelectiveRepeat {
    /// With timeouts alone, α = 2.
    fn default() -> Self {
        SelectiveRepeat { alpha: 2.0, timeout_min: Duration::from_millis(1), negative: None }
    }
}

impl SelectiveRepeat {
    /// With negative acknowledgements.
    pub fn with_negative_acknowledgements() -> Self {
        SelectiveRepeat { negative: Some(ReorderingAllowance { chunks: 64 }), ..Default::default() }
    }

    fn timeout(&self, round_trip: Duration) -> Duration {
        round_trip.mul_f64(1.0 + self.alpha).max(self.timeout_min)
    }
}

impl Scheme for SelectiveRepeat {
    fn name(&self) -> String {
        match self.negative {
            None => "sr:rto".to_owned(),
            Some(_) => "sr:nack".to_owned(),
        }
    }

    fn sender(&self, shape: &MessageShape) -> Box<dyn SendHalf> {
        let repeater = Repeater::new(shape.chunk_count(), shape.chunk_bytes, true);
        Box::new(Sender { scheme: *self, repeater, has_begun: false, deadline: None })
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
            deadline: None,
        })
    }
}

struct Sender {
    scheme: SelectiveRepeat,
    repeater: Repeater,
    has_begun: bool,
    deadline: Option<Instant>,
}

impl Sender {
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
            let all = 0..io.shape().chunk_count();
            self.repeater.send(vec![all], io);
        }
        let (now, round_trip) = (io.now(), io.round_trip());
        self.repeater.on_left(io.left_data_bytes(), now, round_trip);
        let timeout = self.scheme.timeout(round_trip);
        let runs = self.repeater.expire(now, timeout);
        self.repeat(runs, io);
        self.deadline = self.repeater.next_deadline(timeout);
    }

    fn on_feedback(&mut self, bytes: &[u8], io: &mut SendIo<'_>) {
        let Some(acknowledgement) = Acknowledgement::decode(bytes) else { return };
        let runs = self.repeater.on_acknowledgement(&acknowledgement, io.now(), io.round_trip());
        self.repeat(runs, io);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

struct Receiver {
    scheme: SelectiveRepeat,
    /// Every chunk below is there.
    cumulative: u32,
    /// Whole chunks and duplicates, when something came last.
    seen: (u32, u32),
    news_at: Option<Instant>,
    told_at: Option<Instant>,
    /// How often it is still to be told.
    untold: u32,
    silences: u32,
    /// Gaps below have been told.
    gaps_told_below: u32,
    deadline: Option<Instant>,
}

impl ReceiveHalf for Receiver {
    fn poll(&mut self, io: &mut ReceiveIo<'_>) -> Progress {
        let arrived = io.data();
        match arrived.first_missing(self.cumulative) {
            Some(first) => self.cumulative = first,
            None => return Progress::Finished,
        }
        let now = io.now();
        let seen = (arrived.whole_count(), arrived.duplicates());
        if seen != self.seen || self.news_at.is_none() {
            (self.seen, self.news_at) = (seen, Some(now));
            (self.untold, self.silences) = (TOLD_TIMES, 0);
        }
        let period = (io.round_trip() / ACKNOWLEDGEMENTS_A_ROUND_TRIP).max(PERIOD_MIN);
        let gap_period = (io.round_trip() / GAPS_A_ROUND_TRIP).max(PERIOD_MIN);
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
        let silence = self.scheme.negative.and(self.silence_at(io.round_trip()));
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
        let end = arrived.last_whole().map_or(0, |last| last + 1).max(lost_below);
        let records = acknowledgement::encode(self.cumulative, lost_below, end, io.feedback_bytes_max(), |index| {
            arrived.word(index)
        });
        records.into_iter().for_each(|record| io.send_feedback(record));
        self.told_at = Some(io.now());
        self.untold = self.untold.saturating_sub(1);
        self.gaps_told_below = self.gaps_told_below.max(lost_below);
    }

    /// When nothing has come for so long that nothing more is on its way.
    fn silence_at(&self, round_trip: Duration) -> Option<Instant> {
        let pause = (round_trip / 4).max(PERIOD_MIN);
        (self.silences < SILENCES_MAX).then(|| self.news_at.map(|news| news + pause * (self.silences + 1)))?
    }

    /// Below this, what has not come will not come.
    fn lost_below(&mut self, io: &ReceiveIo<'_>) -> u32 {
        let Some(allowance) = self.scheme.negative else { return 0 };
        if self.silence_at(io.round_trip()).is_some_and(|silence| silence <= io.now()) {
            self.silences += 1;
            self.untold = self.untold.max(1);
            self.gaps_told_below = 0;
            return io.shape().chunk_count();
        }
        io.data().last_whole().map_or(0, |last| last.saturating_sub(allowance.chunks))
    }

    fn has_new_gaps(&self, io: &ReceiveIo<'_>, lost_below: u32) -> bool {
        lost_below > self.gaps_told_below
            && io.data().first_missing(self.gaps_told_below).is_some_and(|first| first < lost_below)
    }
}
