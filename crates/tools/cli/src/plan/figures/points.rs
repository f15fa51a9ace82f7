//! Points of figures: what the model says of a message over a link with a scheme, what the paper's formula says of the
//! same, and rows of CSV.

use longhaul_plan::distribution::Summary;
use longhaul_plan::link::{Link, Loss, PlanError};
use longhaul_plan::model::Case;
use longhaul_plan::scheme::Scheme;
use longhaul_scheme::{Code, CodeKind, NamedScheme};
use longhaul_scheme_testing::completion::{CompletionOptions, formula};
use longhaul_time::Duration;

use crate::parallel::in_parallel;

/// The paper's link.
pub(super) const RATE: f64 = 400e9;
pub(super) const ROUND_TRIP: f64 = 0.025;
/// Chunks are packets: where the paper writes of packets' loss and of chunks' loss as one thing, that is what it means.
pub(super) const CHUNK_BYTES: u32 = 4096;
/// The loss that the paper takes where it varies something else.
pub(super) const LOSS: f64 = 1e-5;
/// The message that the paper takes where it varies something else.
pub(super) const MESSAGE_BYTES: u64 = 128 << 20;

pub(super) const SR_RTO: Scheme = Scheme::Reliable(NamedScheme::SelectiveRepeat);
pub(super) const SR_NACK: Scheme = Scheme::Reliable(NamedScheme::NegativeAcknowledgements);
pub(super) const MDS: Scheme = coded(CodeKind::Mds, 32, 8);
pub(super) const XOR: Scheme = coded(CodeKind::Xor, 32, 8);

/// Erasure coding with a code that there is.
pub(super) const fn coded(kind: CodeKind, data: usize, parity: usize) -> Scheme {
    match Code::new(kind, data, parity) {
        Ok(code) => Scheme::Reliable(NamedScheme::Erasure(code)),
        Err(_) => panic!("there is no such code"),
    }
}

/// As the paper names them.
pub(super) fn scheme_name(scheme: Scheme) -> String {
    match scheme {
        SR_RTO => "SR RTO".to_owned(),
        SR_NACK => "SR NACK".to_owned(),
        Scheme::Reliable(NamedScheme::Erasure(code)) => {
            let kind = code.kind().to_string().to_uppercase();
            format!("{kind} EC({},{})", code.data_chunks(), code.parity_chunks())
        }
        other => other.to_string(),
    }
}

/// A message over a link with a scheme.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) rate: f64,
    pub(super) round_trip: f64,
    pub(super) loss: f64,
    pub(super) message_bytes: u64,
    pub(super) scheme: Scheme,
}

impl Point {
    /// The paper's link, loss and message.
    pub(super) fn new(scheme: Scheme) -> Self {
        Point { rate: RATE, round_trip: ROUND_TRIP, loss: LOSS, message_bytes: MESSAGE_BYTES, scheme }
    }

    pub(super) fn link(&self) -> Link {
        Link::new(self.rate, self.round_trip, Loss::Independent(self.loss))
    }

    pub(super) fn case(&self) -> Case {
        Case { link: self.link(), message_bytes: self.message_bytes, chunk_bytes: CHUNK_BYTES, scheme: self.scheme }
    }

    /// What the paper's own formula gives for the mean slowdown.
    pub(super) fn formula(&self) -> Option<f64> {
        formula::mean_slowdown(&CompletionOptions {
            rate_bits_per_second: self.rate as u64,
            round_trip: Duration::from_nanos((self.round_trip * 1e9).round() as u64),
            loss: self.loss,
            burst_packets: None,
            message_bytes: self.message_bytes as usize,
            chunk_bytes: CHUNK_BYTES,
            scheme: self.scheme.to_string().parse().ok()?,
            seed: 1,
        })
    }

    pub(super) fn answered(&self) -> Result<Answered, PlanError> {
        let completion = self.case().completion()?;
        Ok(Answered {
            point: *self,
            seconds: completion.distribution.summary(),
            lossless: completion.lossless_seconds,
            least: self.link().least_seconds(self.message_bytes),
            formula: None,
        })
    }
}

/// What is known of a point.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub(super) point: Point,
    pub(super) seconds: Summary,
    /// With the same scheme, if nothing were lost.
    pub(super) lossless: f64,
    /// The least that a message takes: its bytes, and a round trip.
    pub(super) least: f64,
    /// Mean slowdown by the paper's formula, where it was asked for.
    pub(super) formula: Option<f64>,
}

impl Answered {
    pub(super) fn mean_slowdown(&self) -> f64 {
        self.seconds.mean / self.least
    }

    pub(super) fn p999_slowdown(&self) -> f64 {
        self.seconds.p999 / self.least
    }
}

/// The model's answers, in the order of the points.
pub(super) fn answers(points: &[Point]) -> Result<Vec<Answered>, PlanError> {
    in_parallel(points, Point::answered).into_iter().collect()
}

/// With the formula's value next to the model's.
pub(super) fn answers_with_formula(points: &[Point]) -> Result<Vec<Answered>, PlanError> {
    let both = |point: &Point| point.answered().map(|answered| Answered { formula: point.formula(), ..answered });
    in_parallel(points, both).into_iter().collect()
}

/// Sizes from one power of two to another, this many per doubling, in whole submessages of 32 chunks.
pub(super) fn sizes(first: u32, last: u32, a_doubling: u32) -> Vec<u64> {
    let unit = 32.0 * f64::from(CHUNK_BYTES);
    let size = |step: u32| {
        let exact = f64::from(step).mul_add(1.0 / f64::from(a_doubling), f64::from(first)).exp2();
        ((exact / unit).round() * unit) as u64
    };
    let mut sizes: Vec<u64> = (0..=(last - first) * a_doubling).map(size).collect();
    sizes.dedup();
    sizes
}

/// Losses from one power of ten to another, this many per factor of ten; powers of ten are exact.
pub(super) fn losses(first: i32, last: i32, a_decade: i32) -> Vec<f64> {
    let loss = |step: i32| match step % a_decade {
        0 => format!("1e{}", first + step / a_decade).parse().expect("a number"),
        _ => significant(10.0_f64.powf(f64::from(first) + f64::from(step) / f64::from(a_decade))),
    };
    (0..=(last - first) * a_decade).map(loss).collect()
}

/// With six digits: what is in a file does not depend on the last bits of a logarithm.
pub(super) fn significant(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// A number in CSV.
pub(super) fn number(value: f64) -> String {
    let value = significant(value);
    match value != 0.0 && value.abs() < 1e-3 {
        true => format!("{value:e}"),
        false => format!("{value}"),
    }
}

/// All that is known of some points.
pub(super) fn csv(answers: &[Answered]) -> String {
    let mut text = "rate_gbit_per_second,round_trip_ms,loss,message_bytes,chunk_bytes,scheme,mean_ms,p50_ms,p99_ms,p999_ms,mean_slowdown,\
                    p999_slowdown,paper_formula_mean_slowdown\n"
        .to_owned();
    for answered in answers {
        let Answered { point, seconds, .. } = answered;
        let numbers = [point.rate / 1e9, point.round_trip * 1e3, point.loss].map(number);
        let times = [seconds.mean, seconds.p50, seconds.p99, seconds.p999].map(|seconds| number(seconds * 1e3));
        let slowdowns = [answered.mean_slowdown(), answered.p999_slowdown()].map(number);
        let formula = answered.formula.map(number).unwrap_or_default();
        // The name has a comma.
        let scheme = format!("\"{}\"", point.scheme);
        let sizes = format!("{},{CHUNK_BYTES}", point.message_bytes);
        let row = [numbers.join(","), sizes, scheme, times.join(","), slowdowns.join(","), formula];
        text += &row.join(",");
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_hit_powers() {
        assert_eq!(losses(-3, -1, 2), [1e-3, 0.00316228, 1e-2, 0.0316228, 1e-1]);
        assert_eq!(sizes(17, 19, 2), [131_072, 262_144, 393_216, 524_288]);
        assert_eq!(
            (number(0.0000123456789), number(123.456789), number(0.0)),
            ("1.23457e-5".to_owned(), "123.457".to_owned(), "0".to_owned())
        );
    }
}
