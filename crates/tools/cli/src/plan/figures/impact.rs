//! Figure 3: how much longer messages take when packets are lost, over size, distance and loss.

use longhaul_charts::{Axis, Guide, LineChart, Scale, Series, Style};
use longhaul_plan::link::{Link, PlanError};

use super::figure::Figure;
use super::points::{Answered, MDS, Point, SR_RTO, answers, answers_with_formula, csv, losses, scheme_name, sizes};
use crate::parallel::in_parallel;
use crate::plan::looks::style_of;

const FORMULA_NOTE: &str = "Grey: the mean by the paper's formulas (§4.2, appendices A and B), which leave out headers and lost acknowledgements; where it cannot be seen it is the same.";
const SCHEMES: [longhaul_plan::scheme::Scheme; 2] = [SR_RTO, MDS];

/// Figure 3a.
pub(super) fn over_sizes() -> Result<Figure, PlanError> {
    let points = |a_doubling: u32| {
        let of = |scheme| {
            sizes(17, 41, a_doubling)
                .into_iter()
                .map(move |message_bytes| Point { message_bytes, ..Point::new(scheme) })
        };
        SCHEMES.into_iter().flat_map(of).collect::<Vec<_>>()
    };
    // The formula takes seconds for terabytes: at powers of two only.
    let all = with_formula(&points(4), &points(4))?;
    let chart = LineChart {
        title: "Slowdown of a message over its size".to_owned(),
        subtitle:
            "400 Gbit/s, 25 ms round trip (3750 km), packet loss 10⁻⁵, chunks of 4 KiB; SR RTO waits 3 round trips"
                .to_owned(),
        x: Axis::new("Message size", Scale::Log2Bytes),
        y: Axis::new("Mean slowdown over a lossless link", Scale::Linear).over(0.9, 2.6),
        series: series(&all, |point| point.message_bytes as f64),
        guides: vec![Guide::upwards(1e5 * 4096.0, "1/P: one chunk lost in a message")],
        notes: vec![FORMULA_NOTE.to_owned()],
    };
    Ok(Figure { title: chart.title.clone(), svg: longhaul_charts::svg(&chart), csv: csv(&all) })
}

/// Figure 3b.
pub(super) fn over_distances() -> Result<Figure, PlanError> {
    let distances: Vec<f64> = (1..=80).map(|step| 75.0 * f64::from(step)).collect();
    let of = |scheme| {
        let point = move |kilometres: &f64| Point {
            round_trip: Link::round_trip_over(*kilometres),
            message_bytes: 8 << 30,
            ..Point::new(scheme)
        };
        distances.iter().map(point).collect::<Vec<_>>()
    };
    let points: Vec<Point> = SCHEMES.into_iter().flat_map(of).collect();
    let all = answers_with_formula(&points)?;
    let chart = LineChart {
        title: "Slowdown of an 8 GiB message over the distance".to_owned(),
        subtitle: "400 Gbit/s, packet loss 10⁻⁵, chunks of 4 KiB; SR RTO waits 3 round trips".to_owned(),
        x: Axis::new("One-way distance [km]", Scale::Linear).over(0.0, 6000.0),
        y: Axis::new("Mean slowdown over a lossless link", Scale::Linear).over(1.0, 1.6),
        series: series(&all, |point| point.round_trip * 150_000.0),
        guides: Vec::new(),
        notes: vec![FORMULA_NOTE.to_owned()],
    };
    Ok(Figure { title: chart.title.clone(), svg: longhaul_charts::svg(&chart), csv: csv(&all) })
}

/// Figure 3c.
pub(super) fn over_losses() -> Result<Figure, PlanError> {
    let of = |scheme| losses(-7, -1, 8).into_iter().map(move |loss| Point { loss, ..Point::new(scheme) });
    let points: Vec<Point> = SCHEMES.into_iter().flat_map(of).collect();
    let all = answers_with_formula(&points)?;
    let least = Point::new(SR_RTO).link().least_seconds(128 << 20);
    let guides = (1..=4).map(|count| {
        let name = if count == 1 { "+1 RTO".to_owned() } else { format!("+{count} RTOs") };
        Guide::across(1.0 + f64::from(count) * 0.075 / least, name)
    });
    let chart = LineChart {
        title: "Slowdown of a 128 MiB message over the loss of packets".to_owned(),
        subtitle: "400 Gbit/s, 25 ms round trip (3750 km), chunks of 4 KiB; SR RTO waits 3 round trips".to_owned(),
        x: Axis::new("Share of packets lost", Scale::Log10),
        y: Axis::new("Mean slowdown over a lossless link", Scale::Log10).over(0.95, 20.0),
        series: series(&all, |point| point.loss),
        guides: guides.collect(),
        notes: vec![FORMULA_NOTE.to_owned()],
    };
    Ok(Figure { title: chart.title.clone(), svg: longhaul_charts::svg(&chart), csv: csv(&all) })
}

/// The model's answers for all points, with those of the formula where it is asked.
fn with_formula(points: &[Point], formula_points: &[Point]) -> Result<Vec<Answered>, PlanError> {
    let formulas = in_parallel(formula_points, |point| (*point, point.formula()));
    let mut all = answers(points)?;
    for answered in &mut all {
        answered.formula = formulas.iter().find(|(point, _)| *point == answered.point).and_then(|found| found.1);
    }
    Ok(all)
}

/// The mean of each scheme, and below it the formula's.
fn series(all: &[Answered], x: impl Fn(&Point) -> f64) -> Vec<Series> {
    let own = |scheme| all.iter().filter(move |answered| answered.point.scheme == scheme);
    let formula = SCHEMES.into_iter().enumerate().map(|(index, scheme)| {
        let points = own(scheme).filter_map(|answered| Some((x(&answered.point), answered.formula?)));
        let style = if index == 0 { Style::faint() } else { Style::faint().dotted() };
        Series::new(format!("{}, paper's formula", scheme_name(scheme)), style, points.collect())
    });
    let model = SCHEMES.into_iter().map(|scheme| {
        let points = own(scheme).map(|answered| (x(&answered.point), answered.mean_slowdown()));
        Series::new(scheme_name(scheme), style_of(scheme.family()), points.collect())
    });
    model.chain(formula).collect()
}
