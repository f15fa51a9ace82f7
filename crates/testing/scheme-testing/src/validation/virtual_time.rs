//! The model and the protocol code on virtual time: the same messages as `longhaul sim completion` sends.

use thiserror::Error;

use longhaul_plan::link::PlanError;

use super::{MeanComparison, Point, VIRTUAL_BOUND, samples_for};
use crate::completion::{CompletionOptions, Sampling};
use crate::end_to_end::CaseError;

/// How certain the protocol's mean is to be, as a share of it.
const STANDARD_ERROR: f64 = 0.02;
/// When it turns out to be less certain than this, more messages are sent.
const STANDARD_ERROR_MAX: f64 = 0.025;
const SAMPLES_MAX: u32 = 5000;

/// Why there is no comparison.
#[derive(Debug, Error)]
pub enum ProtocolError {
    /// The model knows no such case.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The protocol knows no such scheme.
    #[error("{0}")]
    Scheme(String),
    /// Messages did not arrive.
    #[error(transparent)]
    Case(#[from] CaseError),
}

/// Send the messages of a point, and compare. `progress` is called after each.
pub fn compare(
    point: &Point,
    model_mean: f64,
    seed: u64,
    thread_count: usize,
    progress: impl Fn() + Sync,
) -> Result<MeanComparison, ProtocolError> {
    Ok(MeanComparison::of(model_mean, &measure(point, seed, thread_count, progress)?, VIRTUAL_BOUND))
}

/// How many messages a comparison sends, at first; the first of each link does not count.
pub fn sample_count(point: &Point, seed: u64) -> Result<usize, PlanError> {
    let counted = samples_for(point, STANDARD_ERROR, seed)? as u32;
    let links = counted.div_ceil(Sampling::BATCH_SAMPLES - 1);
    Ok((links * Sampling::BATCH_SAMPLES) as usize)
}

/// What messages take, in seconds.
fn measure(
    point: &Point,
    seed: u64,
    thread_count: usize,
    progress: impl Fn() + Sync,
) -> Result<Vec<f64>, ProtocolError> {
    let options = CompletionOptions {
        rate_bits_per_second: point.rate_bits_per_second,
        round_trip: point.round_trip,
        loss: point.loss,
        burst_packets: point.burst_packets,
        message_bytes: point.message_bytes as usize,
        chunk_bytes: point.chunk_bytes,
        scheme: point.scheme.to_string().parse().map_err(ProtocolError::Scheme)?,
        seed,
    };
    let mut sampling = Sampling { options, sample_count: sample_count(point, seed)? as u32, thread_count };
    let run = |sampling: &Sampling| -> Result<Vec<f64>, CaseError> {
        // The first message over each link also brings over what the ends have to know of each other, with timers that
        // have measured nothing yet.
        let links = sampling.run(&progress)?;
        let counted = links.chunks(Sampling::BATCH_SAMPLES as usize).flat_map(|messages| &messages[1..]);
        Ok(counted.map(|sample| sample.duration.as_secs_f64()).collect())
    };
    let taken = run(&sampling)?;
    let standard_error = MeanComparison::of(1.0, &taken, 0.0).standard_error;
    if standard_error <= STANDARD_ERROR_MAX {
        return Ok(taken);
    }
    // The protocol's spread is wider than the twin's. The same seed, so these are the same messages and more.
    let times = (standard_error / STANDARD_ERROR).powi(2);
    sampling.sample_count = ((taken.len() as f64 * times).ceil() as u32).min(SAMPLES_MAX);
    Ok(run(&sampling)?)
}

#[cfg(test)]
mod tests {
    use super::super::points::{Run, Way};
    use super::*;

    fn point(scheme: &str) -> Point {
        Way::new(10.0, 10_000, Run::Virtual).with(scheme, 1 << 20, 4, 1e-2)
    }

    /// The model agrees with the protocol that it is of, and with no other: timeouts are not negative acknowledgements,
    /// and these know of overtaking.
    #[test]
    fn each_scheme_is_told_from_the_other() {
        let mean = |point: &Point| point.model().expect("a case").mean();
        let [timeouts, negative] = ["sr:rto", "sr:nack"].map(point);
        for (one, other) in [(&timeouts, &negative), (&negative, &timeouts)] {
            let right = compare(one, mean(one), 1, 2, || ()).expect("it is measured");
            assert!(right.passed && right.standard_error < 1.5 * STANDARD_ERROR, "{one}: {right:?}");
            let wrong = compare(one, mean(other), 1, 2, || ()).expect("it is measured");
            assert!(!wrong.passed, "{one} with the model of {other}: {wrong:?}");
        }
        assert!(matches!(compare(&point("lowar:32,1"), 1.0, 1, 2, || ()), Err(ProtocolError::Scheme(_))));
    }
}
