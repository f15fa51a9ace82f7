//! What a link can do on this machine, both ends on it:
//!
//! ```text
//!   sender ─ UDP or TCP ─▶ [left] ═ veth ═ link ═ veth ═ [right] ─▶ receiver
//! ```
//!
//! Everything that is compared is measured in turns, and medians are taken: on a shared machine one run says little. Its
//! host may take the processor away; a witness notices that, and delays of frames that met such a stall are set
//! aside, with the share of them in the report.

mod bare;
mod paced;
mod report;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use longhaul_impair::{Loss, Profile};
use longhaul_link::namespaces::{Namespaces, Side};
use longhaul_link::{DirectionOptions, LinkOptions, Ports, RunningLink};

use self::paced::Paced;
use crate::clock;
use crate::witness::{self, Witness};

pub(crate) use self::bare::Bare;
pub(crate) use self::paced::percentiles;
pub use self::report::{CheckError, LossRow, PacedRow, Percentiles, Report, Row};

/// How long frames are delayed while the error is measured.
const DELAY: Duration = Duration::from_millis(10);
/// Runs of which the median is taken.
const ROUNDS: usize = 3;
/// A run with more of its frames set aside than this is repeated, and says nothing if all are.
pub const SET_ASIDE_MAX: f64 = 0.2;
const TRIES_MAX: usize = 4;
/// What is lost when loss is measured.
const LOSS: f64 = 0.01;
/// Standard deviations of the binomial distribution: one run in 2,000 is outside by chance.
const DEVIATIONS: f64 = 3.5;
/// Where the link and its witness run; the ends run anywhere.
const LINK_PROCESSOR: usize = 1;
/// Delays are measured to a few microseconds: already this matters.
const STALL_MIN: Duration = Duration::from_micros(50);

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Length of each measurement.
    pub duration: Duration,
}

/// Rates at which an error of delay is measured, and which the link must carry: bits a second, by MTU.
pub const RATES: [(usize, f64); 2] = [(1500, 1e9), (4200, 2e9)];

/// Measures. The process must have one thread only. `progress` hears what is done next.
pub fn check(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report, CheckError> {
    let steal = witness::steal();
    let (mut rows, mut loss, mut has_priority) = (Vec::new(), None, false);
    for (mtu, bits_per_second) in RATES {
        let namespaces = Namespaces::make(mtu)?;
        let ground = Ground { namespaces, mtu, duration: options.duration };
        progress(&format!("MTU {mtu}: frames a second, with the link and with a bare forwarder"));
        let capacity = ground.capacity()?;
        progress(&format!("MTU {mtu}: TCP without delay"));
        let tcp_bits_per_second = ground.tcp()?;
        progress(&format!("MTU {mtu}: delay at {} Gbit/s", bits_per_second / 1e9));
        let (paced, priority) = ground.paced(bits_per_second)?;
        has_priority = priority;
        if loss.is_none() {
            progress("loss");
            loss = Some(ground.loss()?);
        }
        rows.push(Row { mtu, tcp_bits_per_second, paced, ..capacity });
        ground.namespaces.remove()?;
    }
    let loss = loss.ok_or(CheckError::Nothing)?;
    Ok(Report { rows, loss, has_priority, steal_share: steal.so_far() })
}

/// Where it is measured.
struct Ground {
    namespaces: Namespaces,
    mtu: usize,
    duration: Duration,
}

impl Ground {
    fn start(&self, profile: &Profile) -> Result<RunningLink, CheckError> {
        let direction = |profile: &Profile| DirectionOptions {
            profile: Arc::new(profile.clone()),
            // Another one in each run: what is judged by its distribution must vary.
            seed: clock::now().as_nanos() as u64,
            kept_bytes_max: 256 << 20,
        };
        let link = RunningLink::start(&LinkOptions {
            ports: Ports::Interfaces(Side::BOTH.map(|side| side.name().to_owned())),
            towards_second: direction(profile),
            towards_first: direction(profile),
            capture: None,
            processor: Some(LINK_PROCESSOR),
        })?;
        Ok(link)
    }

    /// Frames a second, with the link and with a bare forwarder, interleaved.
    fn capacity(&self) -> Result<Row, CheckError> {
        let impaired = Profile::default()
            .with_propagation_delay(DELAY)
            .with_loss(Loss::Independent { probability: 1e-3 })
            .with_duplication(1e-3);
        let (mut with_link, mut bare, mut ratios, mut per_core) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let flood = paced::flood(&self.namespaces, self.mtu)?;
            let forwarder = bare::Bare::start(LINK_PROCESSOR)?;
            let without = flood.frames_per_second(self.duration, || forwarder.sent())?;
            forwarder.end()?;
            let link = self.start(&impaired)?;
            let before = link.counters()?;
            let with = flood.frames_per_second(self.duration, || Ok(link.counters()?.forwarded.sent))?;
            let after = link.counters()?;
            let used = after.processor_time.saturating_sub(before.processor_time).as_secs_f64();
            per_core.push((after.forwarded.sent - before.forwarded.sent) as f64 / used.max(1e-9));
            link.end()?;
            flood.end()?;
            with_link.push(with);
            bare.push(without);
            ratios.push(with / without.max(1.0));
        }
        Ok(Row {
            mtu: self.mtu,
            frames_per_second: median(with_link),
            bare_frames_per_second: median(bare),
            over_bare_forwarder: median(ratios),
            frames_per_second_per_core: median(per_core),
            tcp_bits_per_second: 0.0,
            paced: PacedRow::default(),
        })
    }

    fn tcp(&self) -> Result<f64, CheckError> {
        let mut rates = Vec::new();
        for _ in 0..ROUNDS {
            let link = self.start(&Profile::default())?;
            rates.push(stream::bits_per_second(&self.namespaces, self.duration)?);
            link.end()?;
        }
        Ok(median(rates))
    }

    /// The error of delay at a rate; of the run with the least that was set aside, if all have too much of it.
    fn paced(&self, bits_per_second: f64) -> Result<(PacedRow, bool), CheckError> {
        let mut best: Option<(PacedRow, bool)> = None;
        for _ in 0..TRIES_MAX {
            let link = self.start(&Profile::default().with_propagation_delay(DELAY))?;
            let has_priority = link.has_priority();
            let witness = Witness::start(LINK_PROCESSOR, STALL_MIN);
            let steal = witness::steal_of(LINK_PROCESSOR);
            let paced = Paced::send(&self.namespaces, self.mtu, bits_per_second, self.duration)?;
            let steal_share = steal.so_far();
            let stalls = witness.end();
            let counters = link.counters()?;
            link.end()?;
            let mut row = paced.row(bits_per_second, DELAY, &stalls)?;
            row.ring_full_frames = counters.arrived[0].no_room;
            row.late_frames = counters.forwarded.late;
            row.refused_frames = counters.forwarded.refused;
            row.steal_share = steal_share;
            let share = row.set_aside_share;
            if best.as_ref().is_none_or(|(best, _)| share < best.set_aside_share) {
                best = Some((row, has_priority));
            }
            if share <= SET_ASIDE_MAX {
                break;
            }
        }
        best.ok_or(CheckError::Nothing)
    }

    fn loss(&self) -> Result<LossRow, CheckError> {
        let link = self.start(&Profile::default().with_loss(Loss::Independent { probability: LOSS }))?;
        let paced = Paced::send(&self.namespaces, self.mtu, 2e8, self.duration)?;
        let counted_frames = link.counters()?.link.towards_second.impaired.lost;
        link.end()?;
        let (frames, lost_frames) = (paced.sent(), paced.missing());
        let is_within_interval = is_within_interval(frames, lost_frames, LOSS);
        Ok(LossRow { set: LOSS, frames, lost_frames, counted_frames, is_within_interval })
    }
}

/// Whether losing this many of that many frames, each with this probability, is no surprise.
fn is_within_interval(frames: u64, lost: u64, probability: f64) -> bool {
    let (mean, count) = (frames as f64 * probability, frames as f64);
    let deviation = (count * probability * (1.0 - probability)).sqrt();
    frames > 0 && (lost as f64 - mean).abs() <= DEVIATIONS * deviation + 0.5
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_judged_by_its_distribution() {
        assert!(is_within_interval(100_000, 1_000, 0.01));
        assert!(is_within_interval(100_000, 1_100, 0.01), "three deviations");
        assert!(!is_within_interval(100_000, 1_120, 0.01) && !is_within_interval(100_000, 880, 0.01));
        assert!(!is_within_interval(0, 0, 0.01), "nothing shows nothing");
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
