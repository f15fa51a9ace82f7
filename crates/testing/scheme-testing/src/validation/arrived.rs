//! What the model says has arrived of a bounded message by its deadline, compared with bounded receives: on virtual time,
//! and on sockets through the impaired port. Everything is sent once (`be`).
//!
//! The model's deadline counts from when the sender begins, and is taken at the receiver. So receives end at an instant:
//! the sender's begin and the deadline. A deadline that counts from the posting is the model's, and how much earlier the
//! receive was posted than the sender began.

mod on_sockets;
mod on_virtual_time;

use longhaul_impair::Profile;
use longhaul_plan::bounded::{Arrived, arrived_by};
use longhaul_plan::link::{Link, Loss as PlanLoss, PlanError};
use longhaul_time::Duration;

pub use on_sockets::{MESSAGES as SOCKETS_MESSAGES, on_sockets};
pub use on_virtual_time::on_virtual_time;

/// How far the model's mean share may be from that of the protocol on virtual time, as a share of the message.
pub const ARRIVED_VIRTUAL_BOUND: f64 = 0.02;
/// The same on sockets.
pub const ARRIVED_SOCKETS_BOUND: f64 = 0.05;
/// Of messages, on virtual time, this share at least has the share that the model says 99 of 100 have. A message of a
/// few thousand packets that arrive late by one has one less.
pub const ARRIVED_P99_MIN: f64 = 0.97;
/// A message that is late by this many packets is as the model has it.
const P99_SLACK_PACKETS: f64 = 2.0;

/// A bounded message over a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArrivedPoint {
    /// The link's rate.
    pub rate_bits_per_second: u64,
    /// There and back.
    pub round_trip: Duration,
    /// Share of packets lost.
    pub loss: f64,
    /// In bursts of this many packets in the mean; each on its own if not given.
    pub burst_packets: Option<f64>,
    /// Bytes of the message.
    pub message_bytes: u64,
    /// From when the sender begins.
    pub deadline: Duration,
    /// Whether it is also compared on sockets.
    pub is_on_sockets: bool,
}

/// What was measured at a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArrivedComparison {
    /// Share of the message that had arrived, in the mean.
    pub mean: f64,
    /// Its standard error.
    pub standard_error: f64,
    /// Messages.
    pub samples: usize,
    /// How much more the model says, as a share of the message.
    pub difference: f64,
    /// Share of messages that had what the model says 99 of 100 have.
    pub at_least_p99: f64,
    /// Whether it is within the bounds. Bursts are not judged: they may take the clear-to-send, and the sender begins
    /// later than the model has it.
    pub passed: Option<bool>,
}

impl ArrivedPoint {
    /// What the model says.
    pub fn model(&self) -> Result<Arrived, PlanError> {
        let loss = match self.burst_packets {
            Some(packets) => PlanLoss::bursts(self.loss, packets),
            None => PlanLoss::Independent(self.loss),
        };
        let link = Link::new(self.rate_bits_per_second as f64, self.round_trip.as_secs_f64(), loss);
        arrived_by(&link, self.message_bytes, self.deadline.as_secs_f64())
    }

    fn profile(&self) -> Profile {
        crate::completion::link(self.round_trip, self.rate_bits_per_second, self.loss, self.burst_packets)
    }

    /// Until everything has left.
    fn sending(&self) -> Duration {
        let bits = 8 * u128::from(self.message_bytes) * 1_000_000_000;
        Duration::from_nanos((bits / u128::from(self.rate_bits_per_second.max(1))) as u64)
    }

    /// Until everything is over: sent, arrived, or the deadline, and then the report.
    fn lasts(&self) -> Duration {
        self.deadline.max(self.sending() * 2) + self.round_trip * 8
    }
}

impl std::fmt::Display for ArrivedPoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rate = self.rate_bits_per_second as f64 / 1e9;
        let [round_trip, deadline] = [self.round_trip, self.deadline].map(|time| time.as_secs_f64() * 1e3);
        let bytes = super::bytes(self.message_bytes);
        write!(formatter, "{bytes} by {deadline} ms, {rate} Gbit/s, {round_trip} ms, {:e}", self.loss)?;
        match self.burst_packets {
            Some(packets) => write!(formatter, " in bursts of {packets}"),
            None => Ok(()),
        }
    }
}

impl ArrivedComparison {
    /// The model's with shares that were measured; of p99 only if there is a bound.
    fn of(point: &ArrivedPoint, shares: &[f64], bound: f64, p99_min: f64) -> Result<Self, PlanError> {
        let model = point.model()?;
        let count = shares.len().max(1) as f64;
        let mean = shares.iter().sum::<f64>() / count;
        let variance = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        let packet = 4096.0 / point.message_bytes as f64;
        let p99 = model.p99 - P99_SLACK_PACKETS * packet;
        let at_least_p99 = shares.iter().filter(|share| **share >= p99).count() as f64 / count;
        let difference = model.mean - mean;
        let is_judged = point.burst_packets.is_none();
        Ok(ArrivedComparison {
            mean,
            standard_error: (variance / count).sqrt(),
            samples: shares.len(),
            difference,
            at_least_p99,
            passed: is_judged.then_some(difference.abs() <= bound && at_least_p99 >= p99_min),
        })
    }
}

/// All points, those of one link and message one after the other: from before the first packet has arrived to after the
/// last.
pub fn arrived_points() -> Vec<ArrivedPoint> {
    let point = |(gigabits, round_trip_ms, message_kib): (f64, u64, u64), loss, burst_packets, is_on_sockets| {
        move |deadline_us: &u64| ArrivedPoint {
            rate_bits_per_second: (gigabits * 1e9) as u64,
            round_trip: Duration::from_millis(round_trip_ms),
            loss,
            burst_packets,
            message_bytes: message_kib << 10,
            deadline: Duration::from_micros(*deadline_us),
            is_on_sockets,
        }
    };
    let far = (50.0, 25, 16 << 10);
    let slow = (1.0, 10, 4 << 10);
    let sockets = (0.2, 40, 1 << 10);
    let deadlines = [6_000, 10_000, 15_000, 20_000, 25_000, 30_000, 35_000, 38_000, 40_000, 45_000, 60_000];
    [
        deadlines.iter().map(point(slow, 0.01, None, false)).collect::<Vec<_>>(),
        deadlines.iter().map(point(slow, 0.1, None, false)).collect(),
        deadlines.iter().map(point(slow, 0.1, Some(8.0), false)).collect(),
        [13_000, 14_000, 15_000, 20_000].iter().map(point(far, 0.001, None, false)).collect(),
        [30_000, 45_000, 60_000, 80_000].iter().map(point(sockets, 0.05, None, true)).collect(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(deadline_ms: u64) -> ArrivedPoint {
        let all = arrived_points();
        let first = all.iter().find(|point| point.loss == 0.1 && point.burst_packets.is_none()).expect("it is there");
        ArrivedPoint { deadline: Duration::from_millis(deadline_ms), message_bytes: 1 << 20, ..*first }
    }

    #[test]
    fn the_model_agrees_with_virtual_time_and_half_a_round_trip_does_not() {
        for deadline_ms in [9, 30] {
            let compared = on_virtual_time(&point(deadline_ms), 1).expect("it is measured");
            assert_eq!(compared.passed, Some(true), "{compared:?}");
        }
        // As if deadlines counted from when receives are posted, half a round trip before the sender hears of them.
        let early = ArrivedPoint { deadline: Duration::from_micros(9_000 - 5_000), ..point(9) };
        let shares = on_virtual_time::measure(&point(9), 1).expect("it is measured");
        let wrong = ArrivedComparison::of(&early, &shares, ARRIVED_VIRTUAL_BOUND, ARRIVED_P99_MIN).expect("a link");
        assert_eq!(wrong.passed, Some(false), "{wrong:?}");
        // And as if less were lost.
        let lossless = ArrivedPoint { loss: 0.05, ..point(30) };
        let shares = on_virtual_time::measure(&point(30), 1).expect("it is measured");
        let wrong = ArrivedComparison::of(&lossless, &shares, ARRIVED_VIRTUAL_BOUND, ARRIVED_P99_MIN).expect("a link");
        assert!(wrong.passed == Some(false) && wrong.at_least_p99 < 0.5, "{wrong:?}");
    }

    /// A slow link, more time than the message takes, and a wide bound: the machine may be busy.
    #[test]
    fn what_arrives_on_sockets_is_about_what_the_model_says() {
        let point = arrived_points().into_iter().rfind(|point| point.is_on_sockets).expect("it is there");
        let compared = on_sockets(&point, 1, 122, || ()).expect("it is measured");
        assert!((0.8..0.98).contains(&compared.mean) && compared.samples == 12, "{point}: {compared:?}");
    }

    /// Bursts also take the clear-to-send, and what repeats it, now and then: such a message begins late, or never, and
    /// nearly nothing of it arrives. The others are as the model has them.
    #[test]
    fn in_bursts_few_messages_begin_late_and_the_others_are_as_the_model_has_them() {
        let points = arrived_points();
        let point = points.iter().find(|point| point.burst_packets.is_some() && point.deadline.as_millis() == 40);
        let point = point.expect("it is there");
        let (shares, model) = (on_virtual_time::measure(point, 1).expect("it is measured"), point.model());
        let mean = model.expect("a link").mean;
        let begun: Vec<f64> = shares.iter().copied().filter(|share| *share > mean / 2.0).collect();
        let mean_of_begun = begun.iter().sum::<f64>() / begun.len() as f64;
        assert!(begun.len() >= 80 && (mean_of_begun - mean).abs() < 0.02, "{mean_of_begun} and {mean}: {shares:?}");
        assert_eq!(on_virtual_time(point, 1).expect("it is measured").passed, None);
    }

    #[test]
    fn points_cover_what_is_before_the_first_packet_and_after_the_last() {
        let points = arrived_points();
        let models: Vec<Arrived> = points.iter().map(|point| point.model().expect("a link")).collect();
        assert!(models.iter().any(|model| model.mean < 0.1) && models.iter().any(|model| model.mean > 0.98));
        assert!(points.iter().filter(|point| point.is_on_sockets).count() >= 3);
        assert!(points.iter().any(|point| point.burst_packets.is_some()));
    }
}
