//! What must be true of bounded messages. It knows what the program asked for, and nothing of the implementation.

use std::ops::Range;

use longhaul_reliable::{Delivery, Ending, Fill, MessageError, Received, Sent};
use longhaul_time::{Duration, Instant};

use super::plan::{PACKET, Plan, byte_of};
use super::{BoundedSeedReport, STALE};

/// How late an end may be whose program runs.
const LATE_MAX: Duration = Duration::from_micros(1);

pub(crate) struct Judge {
    plan: Plan,
    report: BoundedSeedReport,
    /// Packets that were there when their receives ended, and receives of which the offer may not have been heard.
    packets_there: u64,
    unheard: u64,
}

impl Judge {
    pub(crate) fn new(plan: &Plan) -> Self {
        let report = BoundedSeedReport::default();
        Judge { plan: plan.clone(), report, packets_there: 0, unheard: 0 }
    }

    pub(crate) fn is_content(&self) -> bool {
        self.report.violations.is_empty()
    }

    pub(crate) fn finish(mut self, seed: u64) -> BoundedSeedReport {
        self.report.seed = seed;
        self.report
    }

    pub(crate) fn must(&mut self, is_true: bool, otherwise: impl FnOnce() -> String) {
        if !is_true {
            self.report.violations.push(otherwise());
        }
    }

    /// When a half had to end, and by when it must have.
    fn due(&self, index: usize, half: usize, posted: Instant, runs_since: Instant) -> (Instant, Instant) {
        let message = &self.plan.messages[index];
        let due = match message.is_absolute[half] {
            true => Instant::ZERO + message.at[half] + message.deadline[half],
            false => posted + message.deadline[half],
        };
        // An end that stood still, or whose deadline was over before it was posted, ends when it runs.
        (due, due.max(posted).max(runs_since) + LATE_MAX)
    }

    /// A receive has ended.
    pub(crate) fn received(&mut self, index: usize, received: &Received, posted: Instant, now: Instant, runs: Instant) {
        let (due, latest) = self.due(index, 1, posted, runs);
        let ending = received.ending();
        self.must(now <= latest, || format!("receive {index} ended {ending:?} at {now:?}, due at {due:?}"));
        if runs <= due && posted <= due {
            self.report.latest = self.report.latest.max(now.saturating_since(due));
        }
        let is_early = ending == Ending::Deadline && now < due;
        self.must(!is_early, || format!("receive {index} ended by its deadline at {now:?}, due at {due:?}"));
        let may_be_quiet = self.plan.messages[index].scheme.starts_with("be");
        self.must(ending != Ending::Quiet || may_be_quiet, || {
            format!("receive {index} with a reliable scheme is quiet")
        });
        self.report.messages += 1;
        self.report.ended[ending as usize] += 1;
        self.report.missing_bytes += received.report().missing_bytes;
        let packets = |ranges: &[Range<u64>]| {
            ranges.iter().map(|range| (range.end - range.start).div_ceil(PACKET as u64)).sum::<u64>()
        };
        let there = (received.bytes().len() as u64).div_ceil(PACKET as u64) - packets(received.missing());
        // A message that travels in its offer has no packet.
        let is_carried = received.bytes().len() <= PACKET && ending == Ending::Whole;
        self.packets_there += if is_carried { 0 } else { there };
        self.unheard += u64::from(ending == Ending::Deadline || is_carried);
        self.contents(index, received, "when it ended");
    }

    /// A receive that is not bounded has ended.
    pub(crate) fn plain(&mut self, index: usize, outcome: &Result<Received, MessageError>) {
        match outcome {
            Ok(received) => {
                let is_whole = received.missing().is_empty() && received.ending() == Ending::Whole;
                self.must(is_whole, || format!("plain receive {index} got a message with holes"));
                self.report.plain[0] += 1;
                self.contents(index, received, "when it ended");
            }
            Err(MessageError::Incomplete { missing }) => {
                let message = &self.plan.messages[index];
                let may_miss = message.scheme.starts_with("be") && !missing.is_empty();
                self.must(may_miss, || format!("plain receive {index} has failed with {missing:?} missing"));
                self.report.plain[1] += 1;
            }
            // Its sender has given up.
            Err(MessageError::Withdrawn) => self.report.plain[2] += 1,
            Err(error) => self.failed(index, error, "plain receive"),
        }
    }

    /// A plain receive has failed because of what is missing, and its send has ended.
    pub(crate) fn both_incomplete(&mut self, index: usize, missing: &[Range<u64>], sent: &Sent) {
        let is_same = match &sent.delivery {
            Delivery::Unknown => true,
            Delivery::Partial { missing: heard, .. } => heard == missing,
            Delivery::Whole => false,
        };
        self.must(is_same, || format!("send {index} heard {:?}, and {missing:?} is missing", sent.delivery));
    }

    /// What is there is the message's own, and what is missing is what the program wanted.
    pub(crate) fn contents(&mut self, index: usize, received: &Received, when: &str) {
        let message = self.plan.messages[index].clone();
        let (bytes, missing) = (received.bytes(), received.missing());
        let fill = match message.fill {
            Fill::Zero => 0,
            Fill::Value(value) => value,
            Fill::Stale => STALE,
        };
        let is_tidy = missing.windows(2).all(|pair| pair[0].end < pair[1].start)
            && missing.iter().all(|range| range.start < range.end && range.end <= bytes.len() as u64);
        self.must(is_tidy, || format!("receive {index}: ranges {missing:?} of {} bytes", bytes.len()));
        // It has its message's length, or its own while nobody has told that.
        let is_length = bytes.len() == message.bytes || bytes.len() == message.room;
        self.must(is_length, || format!("receive {index} has {} bytes", bytes.len()));
        let is_whole = received.ending() == Ending::Whole;
        self.must(!is_whole || missing.is_empty() && bytes.len() == message.bytes, || {
            format!("receive {index} is whole with {} bytes, {missing:?} missing", bytes.len())
        });
        if !self.is_content() {
            return;
        }
        let mut from = 0;
        let mut wrong = None;
        for range in missing.iter().chain([&(bytes.len() as u64..bytes.len() as u64)]) {
            let (start, end) = (range.start as usize, range.end as usize);
            let there = (from..start).find(|place| *place >= message.bytes || bytes[*place] != byte_of(index, *place));
            let filled = (start..end).find(|place| bytes[*place] != fill);
            wrong = wrong.or(there).or(filled);
            from = end;
        }
        self.must(wrong.is_none(), || {
            format!("receive {index}, {when}: byte {wrong:?} is wrong, with {missing:?} missing")
        });
    }

    /// A send has ended.
    pub(crate) fn sent(&mut self, index: usize, sent: &Sent, posted: Instant, now: Instant, runs: Instant) {
        let (due, latest) = self.due(index, 0, posted, runs);
        self.must(now <= latest + self.plan.leaving_max(), || format!("send {index} ended at {now:?}, due at {due:?}"));
        let is_unknown = sent.delivery == Delivery::Unknown;
        self.must(!is_unknown || now >= due, || format!("send {index} gave up at {now:?}, due at {due:?}"));
        match is_unknown {
            true => self.report.unknown += 1,
            false => self.report.known += 1,
        }
        if let Delivery::Partial { is_coarse, .. } = sent.delivery {
            self.must(!is_coarse, || format!("send {index}: so few ranges are told exactly"));
        }
    }

    /// Both ends of a message have ended: they agree.
    pub(crate) fn both(&mut self, index: usize, received: &Received, sent: &Sent) {
        let message = &self.plan.messages[index];
        let bytes = message.bytes as u64;
        // What the receiver took for the message's end need not be.
        let mut expected: Vec<Range<u64>> =
            received.missing().iter().map(|range| range.start..range.end.min(bytes)).collect();
        expected.retain(|range| !range.is_empty());
        if (received.bytes().len() as u64) < bytes {
            let beyond = received.bytes().len() as u64..bytes;
            match expected.last_mut().filter(|last| last.end == beyond.start) {
                Some(last) => last.end = beyond.end,
                None => expected.push(beyond),
            }
        }
        match &sent.delivery {
            Delivery::Unknown => {}
            Delivery::Whole => {
                self.must(expected.is_empty(), || format!("message {index} is whole, and {expected:?} is missing"));
            }
            Delivery::Partial { missing, .. } => {
                let is_same = *missing == expected;
                self.must(is_same, || format!("send {index} heard that {missing:?} is missing, and {expected:?} is"));
            }
        }
    }

    /// A half has failed.
    pub(crate) fn failed(&mut self, index: usize, error: &MessageError, half: &str) {
        let message = self.plan.messages[index].clone();
        let is_too_long = message.bytes > message.room;
        self.must(is_too_long, || format!("{half} {index} of {} bytes has failed: {error}", message.bytes));
    }

    /// What the receiver's device has counted in the end.
    pub(crate) fn arrived(&mut self, arrived: u64, late: u64) {
        if !self.plan.is_exact() || self.plan.messages.iter().any(|message| message.bytes > message.room) {
            return;
        }
        let there = self.packets_there;
        let (least, most) = (there, there + late + self.unheard);
        self.must((least..=most).contains(&arrived), || {
            format!("{arrived} packets have arrived, {late} of them late, and {there} are there")
        });
    }
}
