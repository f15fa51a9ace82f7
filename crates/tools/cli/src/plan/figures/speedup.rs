//! Figure 9: how many times faster erasure coding is than selective repeat with timeouts, over size and loss.

use longhaul_charts::{HeatMap, Ramp, bytes, power_of_ten};
use longhaul_plan::link::PlanError;

use super::figure::Figure;
use super::points::{Answered, MDS, Point, SR_RTO, answers, losses, number};

/// Powers of two of the sizes in the table; every second one is in the picture.
const SIZES: std::ops::RangeInclusive<u32> = 15..=35;
const LOSSES: (i32, i32) = (-8, -1);

/// Blue: selective repeat is faster; red: erasure coding is. The ends are as blue and as red whatever their values.
pub(super) const RAMP: Ramp = Ramp { first: 0.8, middle: 1.0, last: 12.0 };
pub(super) const RAMP_TICKS: [f64; 6] = [0.8, 1.0, 2.0, 4.0, 8.0, 12.0];

pub(super) fn figure() -> Result<Figure, PlanError> {
    let losses = losses(LOSSES.0, LOSSES.1, 1);
    let cells: Vec<(u32, f64)> = SIZES.flat_map(|exponent| losses.iter().map(move |loss| (exponent, *loss))).collect();
    let of = |scheme| {
        let point = move |(exponent, loss): &(u32, f64)| Point {
            message_bytes: 1 << exponent,
            loss: *loss,
            ..Point::new(scheme)
        };
        answers(&cells.iter().map(point).collect::<Vec<_>>())
    };
    let (slow, fast) = (of(SR_RTO)?, of(MDS)?);
    let map = |title: &str, speedup: &dyn Fn(&Answered, &Answered) -> f64| {
        let shown = || SIZES.rev().step_by(2).collect::<Vec<_>>().into_iter().rev();
        let row = |exponent: u32| {
            let pairs = slow.iter().zip(&fast).filter(|pair| pair.0.point.message_bytes == 1 << exponent);
            pairs.map(|(slow, fast)| Some(speedup(slow, fast))).collect::<Vec<_>>()
        };
        HeatMap {
            title: title.to_owned(),
            subtitle: String::new(),
            x_title: "Share of packets lost".to_owned(),
            y_title: "Message size".to_owned(),
            x_labels: (LOSSES.0..=LOSSES.1).map(power_of_ten).collect(),
            y_labels: shown().map(|exponent| bytes(f64::from(exponent).exp2())).collect(),
            rows: shown().map(row).collect(),
            value_title: "Times faster than SR RTO".to_owned(),
            ramp: RAMP,
            ramp_ticks: RAMP_TICKS.to_vec(),
            notes: Vec::new(),
        }
    };
    let mean = map("Mean", &|slow, fast| slow.seconds.mean / fast.seconds.mean);
    let tail = map("99.9th percentile", &|slow, fast| slow.seconds.p999 / fast.seconds.p999);
    let title = "How many times faster MDS EC(32,8) is than SR RTO (3 RTT)";
    let subtitle = "400 Gbit/s, 25 ms round trip (3750 km), chunks of 4 KiB; red: erasure coding is faster, blue: selective repeat is";
    Ok(Figure {
        title: title.to_owned(),
        svg: longhaul_charts::side_by_side(title, subtitle, &[&mean, &tail]),
        csv: csv(&slow, &fast),
    })
}

fn csv(slow: &[Answered], fast: &[Answered]) -> String {
    let mut text = "message_bytes,loss,sr_rto_mean_ms,ec_mds_32_8_mean_ms,speedup_mean,sr_rto_p999_ms,ec_mds_32_8_p999_ms,speedup_p999\n".to_owned();
    for (slow, fast) in slow.iter().zip(fast) {
        let (one, other) = (slow.seconds, fast.seconds);
        let numbers = [
            one.mean * 1e3,
            other.mean * 1e3,
            one.mean / other.mean,
            one.p999 * 1e3,
            other.p999 * 1e3,
            one.p999 / other.p999,
        ];
        text += &format!("{},{:e},{}\n", slow.point.message_bytes, slow.point.loss, numbers.map(number).join(","));
    }
    text
}
