//! The model and its stochastic twin.

use longhaul_plan::distribution::{Distribution, Summary};
use longhaul_plan::link::PlanError;

use super::{MeanComparison, P999_RANKS, Point, SAMPLES_FOR_P999, TIES, TWIN_BOUND};

/// What a comparison with the twin says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TwinComparison {
    /// Mean and percentiles of the twin's samples.
    pub summary: Summary,
    /// Of the means.
    pub mean: MeanComparison,
    /// The share of the twin's samples that take no longer than the model's 99.9th percentile. Where many take exactly
    /// as long, all of their shares are as good: the one that is nearest to 0.999.
    pub p999_rank: f64,
    /// Whether that is between the bounds; none with too few samples to say.
    pub p999_passed: Option<bool>,
}

impl TwinComparison {
    /// Whether nothing is wrong.
    pub fn passed(&self) -> bool {
        self.mean.passed && self.p999_passed != Some(false)
    }

    /// The model and sorted samples of the twin.
    pub fn of(model: &Distribution, samples: &[f64]) -> Self {
        let Summary { mean, p999, .. } = model.summary();
        let count = samples.len().max(1) as f64;
        let sooner = samples.partition_point(|sample| *sample < p999 * (1.0 - TIES)) as f64 / count;
        let no_later = samples.partition_point(|sample| *sample <= p999 * (1.0 + TIES)) as f64 / count;
        let p999_rank = 0.999_f64.clamp(sooner, no_later);
        let is_between = (P999_RANKS[0]..=P999_RANKS[1]).contains(&p999_rank);
        TwinComparison {
            summary: Distribution::of_samples(samples.to_vec()).summary(),
            mean: MeanComparison::of(mean, samples, TWIN_BOUND),
            p999_rank,
            p999_passed: (samples.len() >= SAMPLES_FOR_P999).then_some(is_between),
        }
    }
}

/// Play a point through, and compare.
pub fn compare(
    point: &Point,
    model: &Distribution,
    sample_count: usize,
    seed: u64,
    threads: usize,
) -> Result<TwinComparison, PlanError> {
    let samples = match point.sites {
        None => point.case().samples_on(threads, sample_count, seed)?,
        Some(sites) => point.case().ring_samples_on(threads, sites, sample_count, seed)?,
    };
    Ok(TwinComparison::of(model, &samples))
}

#[cfg(test)]
mod tests {
    use super::super::points::{Run, Way};
    use super::*;
    use longhaul_plan::model::Case;

    fn point(scheme: &str) -> Point {
        Way::new(50.0, 25_000, Run::Twin).with(scheme, 16 << 20, 4, 1e-3)
    }

    #[test]
    fn a_model_that_is_right_passes() {
        for scheme in ["sr:rto", "sr:nack", "ec:xor:32,8", "rc"] {
            let point = point(scheme);
            let comparison = compare(&point, &point.model().expect("a case"), SAMPLES_FOR_P999, 1, 2).expect("a case");
            assert!(comparison.passed() && comparison.p999_passed.is_some(), "{scheme}: {comparison:?}");
        }
    }

    /// A model with timeouts of two round trips instead of three, of a twin that has three: both are distinguished from
    /// the round trip, so the model is asked for a shorter one, and moved by what a message without losses takes less
    /// there.
    #[test]
    fn a_wrong_timeout_is_found() {
        let right = point("sr:rto");
        let mut wrong = right.case();
        wrong.link.round_trip_seconds *= 2.0 / 3.0;
        let lossless = |case: &Case| case.completion().expect("a case").lossless_seconds;
        let moved = lossless(&right.case()) - lossless(&wrong);
        let samples = right.case().samples(SAMPLES_FOR_P999, 1).expect("a case");
        let wrong = wrong.samples(SAMPLES_FOR_P999, 2).expect("a case");
        let wrong = Distribution::of_samples(wrong.into_iter().map(|sample| sample + moved).collect());
        let comparison = TwinComparison::of(&wrong, &samples);
        assert!(!comparison.passed() && !comparison.mean.passed, "{comparison:?}");
        assert_eq!(comparison.p999_passed, Some(false));
    }

    /// The mean is right and the tail is not.
    #[test]
    fn a_wrong_tail_is_found() {
        let samples: Vec<f64> = (0..SAMPLES_FOR_P999).map(|index| 1.0 + 1e-6 * index as f64).collect();
        let passed = |model: Vec<f64>| TwinComparison::of(&Distribution::of_samples(model), &samples).p999_passed;
        assert_eq!(passed(samples.clone()), Some(true));
        for shift in [-1e-3, 1e-3] {
            let shifted: Vec<f64> = samples.iter().map(|sample| sample + shift).collect();
            let comparison = TwinComparison::of(&Distribution::of_samples(shifted), &samples);
            assert!(comparison.mean.passed && !comparison.passed(), "{shift}: {comparison:?}");
        }
        // Too few to say.
        let few = TwinComparison::of(&Distribution::of_samples(samples.clone()), &samples[..1000]);
        assert_eq!(few.p999_passed, None);
    }

    /// Where all take the same time, rounding is no error and a chunk's time is.
    #[test]
    fn ties_are_as_good_as_each_other() {
        let samples = vec![0.025; SAMPLES_FOR_P999];
        let passed = |seconds: f64| TwinComparison::of(&Distribution::constant(seconds), &samples).p999_passed;
        assert_eq!(passed(0.025 * (1.0 + 1e-9)), Some(true));
        assert_eq!(passed(0.025 * (1.0 + 1e-5)), Some(false));
        assert_eq!(passed(0.025 * (1.0 - 1e-5)), Some(false));
    }
}
