//! The comparisons, one after the other: first what needs all cores, then what needs time to pass undisturbed.

use indicatif::ProgressBar;
use longhaul_plan::distribution::Distribution;
use longhaul_scheme_testing::{
    validation::sockets::SocketsComparison,
    validation::twin::TwinComparison,
    validation::virtual_time::ProtocolError,
    validation::{MeanComparison, Point, points, sockets, twin, virtual_time},
};

use super::arrived::{self, ArrivedCompared};
use crate::parallel::on_threads;

/// Links on sockets at the same time: mostly they wait.
pub(super) const LINKS_AT_ONCE: usize = 3;
/// What a point on the twin and a message of the protocol count for, on the progress bar: about milliseconds.
const TWIN_WEIGHT: u64 = 250;
const VIRTUAL_WEIGHT: u64 = 8;
pub(super) const SOCKETS_WEIGHT: u64 = 80;

/// Noise on sockets that is worth reporting next to a broken bound.
const NOISE_TOLD: f64 = 0.02;

/// What is to be compared, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) samples: usize,
    pub(super) seed: u64,
    pub(super) threads: usize,
    pub(super) with_twin: bool,
    pub(super) with_virtual_time: bool,
    pub(super) with_sockets: bool,
    /// Only bounded messages are compared.
    pub(super) is_only_arrived: bool,
}

/// A point, and what each comparison there said.
pub(super) struct Compared {
    pub(super) point: Point,
    pub(super) model: Distribution,
    pub(super) twin: Option<TwinComparison>,
    pub(super) virtual_time: Option<MeanComparison>,
    pub(super) sockets: Option<SocketsComparison>,
}

/// All of them.
pub(super) struct Results {
    pub(super) points: Vec<Compared>,
    pub(super) arrived: Vec<ArrivedCompared>,
}

impl Work {
    pub(super) fn run(&self, bar: &ProgressBar) -> Result<Results, String> {
        let mut all = Vec::new();
        for point in points().into_iter().filter(|_| !self.is_only_arrived) {
            let model = point.model().map_err(|error| format!("{point}: {error}"))?;
            all.push(Compared { point, model, twin: None, virtual_time: None, sockets: None });
        }
        let on_virtual_time = |point: &Point| self.with_virtual_time && point.is_on_virtual_time;
        let on_sockets = |point: &Point| self.with_sockets && point.is_on_sockets;
        bar.set_length(self.weight(&all, on_virtual_time, on_sockets)? + arrived::weight(self));
        for compared in &mut all {
            let (point, mean) = (compared.point, compared.model.mean());
            if self.with_twin {
                bar.set_message(format!("twin: {point}"));
                let comparison = twin::compare(&point, &compared.model, self.samples, self.seed, self.threads);
                compared.twin = Some(comparison.map_err(|error| format!("{point}: {error}"))?);
                bar.inc(TWIN_WEIGHT);
            }
            if on_virtual_time(&point) {
                bar.set_message(format!("virtual time: {point}"));
                let comparison =
                    virtual_time::compare(&point, mean, self.seed, self.threads, || bar.inc(VIRTUAL_WEIGHT));
                compared.virtual_time = Some(comparison.map_err(|error| format!("{point}, on virtual time: {error}"))?);
            }
        }
        let places: Vec<usize> = (0..all.len()).filter(|place| on_sockets(&all[*place].point)).collect();
        bar.set_message(format!("sockets: {} links", places.len()));
        for (place, comparison) in places.iter().zip(self.on_sockets(&all, &places, bar)) {
            let point = all[*place].point;
            all[*place].sockets = Some(comparison.map_err(|error| format!("{point}, on sockets: {error}"))?);
        }
        Ok(Results { points: all, arrived: arrived::compare(self, bar)? })
    }

    fn weight(
        &self,
        all: &[Compared],
        on_virtual_time: impl Fn(&Point) -> bool,
        on_sockets: impl Fn(&Point) -> bool,
    ) -> Result<u64, String> {
        let mut weight = if self.with_twin { TWIN_WEIGHT * all.len() as u64 } else { 0 };
        for Compared { point, .. } in all {
            let counted = |count: Result<usize, _>, each: u64| match count {
                Ok(count) => Ok(each * count as u64),
                Err(error) => Err(format!("{point}: {error}")),
            };
            if on_virtual_time(point) {
                weight += counted(virtual_time::sample_count(point, self.seed), VIRTUAL_WEIGHT)?;
            }
            if on_sockets(point) {
                weight += counted(sockets::message_count(point, self.seed), SOCKETS_WEIGHT)?;
            }
        }
        Ok(weight.max(1))
    }

    /// A few links at a time, in the order of `places`.
    fn on_sockets(
        &self,
        all: &[Compared],
        places: &[usize],
        bar: &ProgressBar,
    ) -> Vec<Result<SocketsComparison, ProtocolError>> {
        let numbered: Vec<(usize, &Compared)> = places.iter().map(|place| &all[*place]).enumerate().collect();
        on_threads(LINKS_AT_ONCE, &numbered, |(number, Compared { point, model, .. })| {
            // Addresses of its own: 127 pairs are more than there are points on sockets.
            sockets::compare(point, model.mean(), self.seed, *number as u8 % 127, || bar.inc(SOCKETS_WEIGHT))
        })
    }
}

impl Results {
    /// The largest deviation of the mean from the twin, from virtual time, and from sockets; none where nothing was
    /// compared.
    pub(super) fn worst(&self) -> [Option<f64>; 3] {
        let worst = |of: fn(&Compared) -> Option<f64>| self.points.iter().filter_map(of).map(f64::abs).reduce(f64::max);
        [
            worst(|compared| compared.twin.map(|twin| twin.mean.deviation)),
            worst(|compared| compared.virtual_time.map(|comparison| comparison.deviation)),
            worst(|compared| compared.sockets.map(|sockets| sockets.mean.deviation)),
        ]
    }

    /// The rank of the model's 99.9th percentile among the twin's samples that is farthest from 0.999.
    pub(super) fn worst_p999_rank(&self) -> Option<f64> {
        let ranks = self.points.iter().filter_map(|compared| compared.twin.map(|twin| twin.p999_rank));
        ranks.reduce(|one, other| if (other - 0.999).abs() > (one - 0.999).abs() { other } else { one })
    }

    /// Every bound that is broken, in words.
    pub(super) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for Compared { point, twin, virtual_time, sockets, .. } in &self.points {
            let mut mean = |what: &str, bound: f64, comparison: Option<MeanComparison>| {
                if let Some(MeanComparison { deviation, standard_error, .. }) = comparison.filter(|mean| !mean.passed) {
                    failures.push(format!(
                        "{point}: the model's mean is {:+.1} % from {what}, whose standard error is {:.1} %; the bound is {:.0} %",
                        deviation * 100.0,
                        standard_error * 100.0,
                        bound * 100.0,
                    ));
                }
            };
            mean("the twin's", longhaul_scheme_testing::validation::TWIN_BOUND, twin.map(|twin| twin.mean));
            mean("virtual time's", longhaul_scheme_testing::validation::VIRTUAL_BOUND, *virtual_time);
            mean(
                "the sockets'",
                longhaul_scheme_testing::validation::SOCKETS_BOUND,
                sockets.map(|sockets| sockets.mean),
            );
            let noisy = sockets.filter(|sockets| !sockets.mean.passed && sockets.noise > NOISE_TOLD);
            if let Some(noise) = noisy.map(|sockets| sockets.noise) {
                failures.push(format!(
                    "{point}: without loss messages took up to {:.0} % longer than each other on sockets: the machine was busy; try again when it is not",
                    noise * 100.0
                ));
            }
            if let Some(twin) = twin.filter(|twin| twin.p999_passed == Some(false)) {
                failures.push(format!(
                    "{point}: the model's 99.9th percentile is the twin's {:.3}th; the bounds are 99.85 and 99.95",
                    twin.p999_rank * 100.0
                ));
            }
        }
        failures.extend(self.arrived.iter().flat_map(ArrivedCompared::failures));
        failures
    }
}
