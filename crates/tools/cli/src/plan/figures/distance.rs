//! Figure 12: how distance and bandwidth bring out what losses cost.

use longhaul_charts::{Axis, LineChart, Scale};
use longhaul_plan::link::{Link, PlanError};
use longhaul_plan::scheme::Scheme;

use super::detail::mean_and_tail;
use super::figure::Figure;
use super::points::{MDS, Point, SR_NACK, SR_RTO, answers, csv};

const SCHEMES: [Scheme; 3] = [SR_RTO, SR_NACK, MDS];
/// In Gbit/s.
const RATES: [f64; 15] =
    [25.0, 35.0, 50.0, 70.0, 100.0, 140.0, 200.0, 280.0, 400.0, 560.0, 800.0, 1130.0, 1600.0, 2260.0, 3200.0];

pub(super) fn figure() -> Result<Figure, PlanError> {
    let distances: Vec<f64> = (1..=40).map(|step| 150.0 * f64::from(step)).collect();
    let over_distance = |scheme| {
        let point =
            move |kilometres: &f64| Point { round_trip: Link::round_trip_over(*kilometres), ..Point::new(scheme) };
        distances.iter().map(point).collect::<Vec<_>>()
    };
    let over_rate = |scheme| RATES.map(|gigabits| Point { rate: gigabits * 1e9, ..Point::new(scheme) });
    let left = answers(&SCHEMES.into_iter().flat_map(over_distance).collect::<Vec<_>>())?;
    let right = answers(&SCHEMES.into_iter().flat_map(over_rate).collect::<Vec<_>>())?;
    let y = || Axis::new("Slowdown over a lossless link", Scale::Linear).over(1.0, 4.0);
    let distance = LineChart {
        title: "Over the distance, at 400 Gbit/s".to_owned(),
        subtitle: String::new(),
        x: Axis::new("One-way distance [km]", Scale::Linear).over(0.0, 6000.0),
        y: y(),
        series: mean_and_tail(&left, &SCHEMES, |point| point.round_trip * 150_000.0),
        guides: Vec::new(),
        notes: Vec::new(),
    };
    let rate = LineChart {
        title: "Over the bandwidth, at 3750 km (25 ms)".to_owned(),
        subtitle: String::new(),
        x: Axis::new("Bandwidth [Gbit/s]", Scale::Log10).over(25.0, 3200.0),
        y: y(),
        series: mean_and_tail(&right, &SCHEMES, |point| point.rate / 1e9),
        guides: Vec::new(),
        notes: Vec::new(),
    };
    let title = "What distance and bandwidth do to a 128 MiB message";
    let subtitle = "Packet loss 10⁻⁵, chunks of 4 KiB; lines: mean, dashes: 99.9th percentile";
    let all = [left, right].concat();
    Ok(Figure {
        title: title.to_owned(),
        svg: longhaul_charts::side_by_side(title, subtitle, &[&distance, &rate]),
        csv: csv(&all),
    })
}
