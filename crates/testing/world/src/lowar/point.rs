//! A point of a figure: a link and a scheme, measured in several runs with a seed each.

use longhaul_impair::Loss;
use longhaul_time::Duration;

use super::scenario::{Outcome, Scenario};
use super::scheme::Scheme;

/// Of the paper's link.
pub(super) const BITS_PER_SECOND: u64 = 10_000_000_000;

/// Where a point belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Figure {
    /// To no figure.
    None,
    /// Goodput of 1 and 16 connections.
    Figure9,
    /// Completion times of 1 MiB, one message at a time.
    Figure10,
    /// Bursts of one length, and geometric ones.
    Figure11,
    /// Small messages, 128 of them posted.
    Figure12,
    /// To none of the paper's: codes and losses beyond it.
    Beyond,
    /// To none of the paper's: codes that follow the link, next to fixed ones of their family.
    Adaptive,
}

impl Figure {
    /// The number, if it is one of the paper's.
    pub fn number(self) -> Option<u8> {
        match self {
            Figure::None | Figure::Beyond | Figure::Adaptive => None,
            Figure::Figure9 => Some(9),
            Figure::Figure10 => Some(10),
            Figure::Figure11 => Some(11),
            Figure::Figure12 => Some(12),
        }
    }
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Point {
    /// Where it belongs.
    pub figure: Figure,
    /// Of the link.
    pub round_trip: Duration,
    /// Of the link.
    pub bits_per_second: u64,
    /// In both directions.
    pub loss: Loss,
    /// Queue pairs that send.
    pub connections: usize,
    /// Of each WRITE.
    pub message_bytes: usize,
    /// WRITEs of each connection that are posted at once; `None` keeps the link full.
    pub depth: Option<usize>,
    /// What protects them.
    pub scheme: Scheme,
    /// Virtual time that does not count, after the first two round trips: for a code that follows the link, to find it.
    pub settles: Duration,
    /// Virtual time that counts, all runs together.
    pub lasts: Duration,
    /// Runs that share it, each with its seed.
    pub runs: u32,
}

impl Point {
    /// One run of a full link of the paper's, MTU 1024; the rest is for changes.
    pub fn new(figure: Figure, round_trip: Duration, loss: Loss, scheme: Scheme) -> Point {
        Point {
            figure,
            round_trip,
            bits_per_second: BITS_PER_SECOND,
            loss,
            connections: 1,
            message_bytes: 1 << 20,
            depth: None,
            scheme,
            settles: Duration::ZERO,
            lasts: Duration::from_secs(1),
            runs: 1,
        }
    }

    /// Its runs. Schemes on the same link have the same seeds.
    pub fn scenarios(&self, seed: u64) -> Vec<Scenario> {
        let run = |index: u32| Scenario {
            round_trip: self.round_trip,
            bits_per_second: self.bits_per_second,
            loss: self.loss.clone(),
            connections: self.connections,
            message_bytes: self.message_bytes,
            depth: self.depth,
            code: self.scheme.fec(),
            later: Vec::new(),
            settles: self.settles,
            lasts: self.lasts / self.runs.max(1),
            seed: seed.wrapping_mul(1000).wrapping_add(u64::from(index)),
        };
        (0..self.runs.max(1)).map(run).collect()
    }

    /// Packets of a burst; 1 where each packet is lost on its own.
    pub fn burst_packets(&self) -> f64 {
        match &self.loss {
            Loss::FixedBursts { burst_packets, .. } => f64::from(*burst_packets),
            Loss::GilbertElliott { p_bad_to_good, .. } => 1.0 / p_bad_to_good,
            _ => 1.0,
        }
    }

    /// Whether two points have all but the scheme in common.
    pub(super) fn is_same_but_scheme(&self, other: &Point) -> bool {
        self.is_same_but_scheme_and_loss(other) && self.loss == other.loss
    }

    pub(super) fn is_same_but_scheme_and_loss(&self, other: &Point) -> bool {
        let of = |point: &Point| {
            (point.figure, point.round_trip, point.bits_per_second, point.connections, point.message_bytes, point.depth)
        };
        of(self) == of(other)
    }
}

/// What all runs of a point have shown together.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Payload of completed WRITEs, over the time that counts; the mean of all runs.
    pub goodput_bits_per_second: f64,
    /// Repair packets for each packet that was protected.
    pub repair_share: f64,
    /// Times that no acknowledgement came in time.
    pub timeouts: u64,
    /// From post to completion, in order.
    pub completion_times: Vec<Duration>,
}

impl Measured {
    /// Of the runs of one point.
    pub fn of(outcomes: &[Outcome]) -> Measured {
        let goodput: f64 = outcomes.iter().map(|outcome| outcome.goodput_bits_per_second).sum();
        let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
        let protected = sum(|outcome| outcome.protected_packets);
        let mut completion_times: Vec<Duration> =
            outcomes.iter().flat_map(|outcome| outcome.completion_times.iter().copied()).collect();
        completion_times.sort_unstable();
        Measured {
            goodput_bits_per_second: goodput / outcomes.len().max(1) as f64,
            repair_share: sum(|outcome| outcome.repair_packets) as f64 / protected.max(1) as f64,
            timeouts: sum(|outcome| outcome.timeouts),
            completion_times,
        }
    }

    /// The mean time of a message in milliseconds, if any completed.
    pub fn mean_ms(&self) -> Option<f64> {
        let sum: f64 = self.completion_times.iter().map(|time| time.as_secs_f64()).sum();
        (!self.completion_times.is_empty()).then(|| sum / self.completion_times.len() as f64 * 1e3)
    }

    /// The time in milliseconds that 99 of 100 messages do not exceed.
    pub fn p99_ms(&self) -> Option<f64> {
        let rank = (self.completion_times.len() * 99).div_ceil(100);
        self.completion_times.get(rank.checked_sub(1)?).map(|time| time.as_secs_f64() * 1e3)
    }

    /// Of messages that took longer than this.
    pub fn share_above(&self, limit: Duration) -> f64 {
        let above = self.completion_times.iter().filter(|time| **time > limit).count();
        above as f64 / self.completion_times.len().max(1) as f64
    }
}

/// A point and what it has shown.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured.
    pub point: Point,
    /// What it has shown.
    pub measured: Measured,
    /// Goodput over that of plain RC on the same link.
    pub over_rc: Option<f64>,
    /// Goodput over that of plain RC on the same link without loss.
    pub of_lossless: Option<f64>,
}

impl Row {
    /// Points with what they have shown, next to RC's.
    pub fn all(measured: Vec<(Point, Measured)>) -> Vec<Row> {
        let goodput = |is_wanted: &dyn Fn(&Point) -> bool| {
            let found = measured.iter().find(|(other, _)| other.scheme == Scheme::Rc && is_wanted(other));
            found.map(|(_, measured)| measured.goodput_bits_per_second).filter(|goodput| *goodput > 0.0)
        };
        let references: Vec<_> = measured
            .iter()
            .map(|(point, own)| {
                let over = |reference: f64| own.goodput_bits_per_second / reference;
                let is_lossless =
                    |other: &Point| other.loss.mean_loss() == 0.0 && point.is_same_but_scheme_and_loss(other);
                let rc = goodput(&|other| point.is_same_but_scheme(other)).map(over);
                (rc, goodput(&is_lossless).map(over))
            })
            .collect();
        let row = |((point, measured), (over_rc, of_lossless))| Row { point, measured, over_rc, of_lossless };
        measured.into_iter().zip(references).map(row).collect()
    }

    /// In Gbit/s.
    pub fn gigabits(&self) -> f64 {
        self.measured.goodput_bits_per_second / 1e9
    }
}
