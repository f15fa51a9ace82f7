//! Is the model of completion times (`longhaul-plan`) true? Compared, point by point, with three things that know
//! nothing of its formulas:
//!
//! | | what it is | the model's mean is within | and its 99.9th percentile |
//! |---|---|---|---|
//! | [`twin`] | the same protocols played through with dice | 5 % | between the twin's 99.85th and 99.95th |
//! | [`virtual_time`] | the protocol code itself, on a simulated link | 10 % | |
//! | [`sockets`] | the protocol code on UDP sockets, through the impaired port | 15 % | |
//!
//! What has arrived of a bounded message by its deadline is compared with bounded receives ([`arrived`]).
//!
//! A [`Point`] is a link, a message and a scheme; [`points`] are those that are compared. Everything but the sockets
//! comes from a seed and gives the same figures every time. `docs/VALIDATION.md` has the figures, and says why the
//! protocol and the model differ where they do.

pub mod arrived;
mod points;
pub mod sockets;
pub mod twin;
pub mod virtual_time;

use longhaul_plan::distribution::Distribution;
use longhaul_plan::link::{Link, Loss, PlanError};
use longhaul_plan::model::Case;
use longhaul_plan::ring::DRAWS;
use longhaul_plan::scheme::Scheme;
use longhaul_time::Duration;

pub use points::points;

/// How far the model's mean may be from the twin's, as a share of that.
pub const TWIN_BOUND: f64 = 0.05;
/// The same for the protocol on virtual time.
pub const VIRTUAL_BOUND: f64 = 0.10;
/// The same for the protocol on sockets.
pub const SOCKETS_BOUND: f64 = 0.15;
/// Between these shares of the twin's samples lies the model's 99.9th percentile.
pub const P999_RANKS: [f64; 2] = [0.9985, 0.9995];
/// Fewer samples say too little about one in a thousand for that: then it is not judged.
pub const SAMPLES_FOR_P999: usize = 100_000;
/// Messages that all take the same time take it but for rounding.
const TIES: f64 = 1e-6;

/// A message over a link with a scheme, and what the model is compared with there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// How it is brought over.
    pub scheme: Scheme,
    /// The link's rate.
    pub rate_bits_per_second: u64,
    /// There and back.
    pub round_trip: Duration,
    /// Share of packets lost, in each direction.
    pub loss: f64,
    /// In bursts of this many packets in the mean; each on its own if not given.
    pub burst_packets: Option<f64>,
    /// Bytes of the message; of the buffer, in a ring.
    pub message_bytes: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// A ring all-reduce of this many sites instead of one message.
    pub sites: Option<u32>,
    /// Whether the protocol is run on virtual time.
    pub is_on_virtual_time: bool,
    /// Whether the protocol is run on sockets.
    pub is_on_sockets: bool,
}

impl Point {
    /// As the model has it. Packets have 4 KiB, and rates are those of IP packets: so count the simulated link and the
    /// impaired port.
    pub fn case(&self) -> Case {
        let loss = match self.burst_packets {
            Some(packets) => Loss::bursts(self.loss, packets),
            None => Loss::Independent(self.loss),
        };
        let link = Link::new(self.rate_bits_per_second as f64, self.round_trip.as_secs_f64(), loss);
        Case { link, message_bytes: self.message_bytes, chunk_bytes: self.chunk_bytes, scheme: self.scheme }
    }

    /// What the model says.
    pub fn model(&self) -> Result<Distribution, PlanError> {
        match self.sites {
            None => Ok(self.case().completion()?.distribution),
            Some(sites) => self.case().ring(sites, DRAWS, 1),
        }
    }
}

impl std::fmt::Display for Point {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rate = self.rate_bits_per_second as f64 / 1e9;
        let millis = self.round_trip.as_secs_f64() * 1e3;
        write!(formatter, "{} {} in {}", self.scheme, bytes(self.message_bytes), bytes(self.chunk_bytes.into()))?;
        write!(formatter, ", {rate} Gbit/s, {millis} ms, {:e}", self.loss)?;
        if let Some(packets) = self.burst_packets {
            write!(formatter, " in bursts of {packets}")?;
        }
        match self.sites {
            Some(sites) => write!(formatter, ", ring of {sites}"),
            None => Ok(()),
        }
    }
}

fn bytes(count: u64) -> String {
    match count {
        count if count >= 1 << 30 => format!("{} GiB", count >> 30),
        count if count >= 1 << 20 => format!("{} MiB", count >> 20),
        count if count >= 1 << 10 => format!("{} KiB", count >> 10),
        count => format!("{count} bytes"),
    }
}

/// What a comparison of means says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanComparison {
    /// Of what was measured.
    pub mean_seconds: f64,
    /// How many messages were.
    pub samples: usize,
    /// How far the mean may be off by chance: its standard error, as a share of it.
    pub standard_error: f64,
    /// How much larger the model's mean is, as a share of what was measured.
    pub deviation: f64,
    /// Whether it is within the bound.
    pub passed: bool,
}

impl MeanComparison {
    /// The model's mean with messages that were measured, in seconds.
    pub fn of(model_mean: f64, samples: &[f64], bound: f64) -> Self {
        let count = samples.len().max(1) as f64;
        let mean = samples.iter().sum::<f64>() / count;
        let variance = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        let deviation = model_mean / mean - 1.0;
        MeanComparison {
            mean_seconds: mean,
            samples: samples.len(),
            standard_error: (variance / count).sqrt() / mean,
            deviation,
            // What is not a number is within no bound.
            passed: deviation.abs() <= bound,
        }
    }
}

/// Messages to measure so that their mean is this certain, as a share of it: as many as the twin's spread says.
fn samples_for(point: &Point, standard_error: f64, seed: u64) -> Result<usize, PlanError> {
    const LOOKED_AT: usize = 4096;
    const RANGE: [usize; 2] = [30, 3000];
    let taken = point.case().samples(LOOKED_AT, seed)?;
    let spread = MeanComparison::of(1.0, &taken, 0.0).standard_error * (LOOKED_AT as f64).sqrt();
    Ok(((spread / standard_error).powi(2).ceil() as usize).clamp(RANGE[0], RANGE[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_enough_points_of_each_kind() {
        let points = points();
        let on_virtual_time = points.iter().filter(|point| point.is_on_virtual_time);
        let on_sockets: Vec<&Point> = points.iter().filter(|point| point.is_on_sockets).collect();
        assert!(points.len() >= 24 && on_virtual_time.clone().count() >= 16 && on_sockets.len() >= 8);
        assert!(on_sockets.iter().all(|point| point.rate_bits_per_second <= 1_000_000_000));
        for name in ["sr:rto", "sr:nack", "ec:mds:32,8", "ec:xor:32,8"] {
            let of = |point: &&Point| point.scheme.to_string() == name;
            assert!(on_virtual_time.clone().any(|point| of(&point)), "{name}");
            assert!(on_sockets.iter().any(of), "{name}");
        }
        assert!(on_virtual_time.clone().any(|point| point.scheme == Scheme::GoBackN));
        assert!(on_virtual_time.clone().any(|point| point.burst_packets.is_some()));
        let mut names: Vec<String> = points.iter().map(Point::to_string).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), points.len(), "no point is there twice");
    }

    #[test]
    fn means_are_compared() {
        let comparison = MeanComparison::of(1.09, &[0.9, 1.0, 1.1], 0.1);
        assert!((comparison.deviation - 0.09).abs() < 1e-12 && comparison.passed);
        assert!((comparison.standard_error - 0.1 / 3.0_f64.sqrt()).abs() < 1e-12, "{comparison:?}");
        assert!(!MeanComparison::of(1.11, &[0.9, 1.0, 1.1], 0.1).passed);
        assert!(!MeanComparison::of(0.89, &[0.9, 1.0, 1.1], 0.1).passed);
        assert!(!MeanComparison::of(f64::NAN, &[1.0], 0.1).passed);
    }
}
