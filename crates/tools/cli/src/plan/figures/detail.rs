//! Figure 10: one column and one row of figure 9, what a loss costs selective repeat, and how much parity is enough.

use longhaul_charts::{Axis, Guide, LineChart, Scale, Series, Style};
use longhaul_plan::link::PlanError;
use longhaul_plan::scheme::Scheme;
use longhaul_scheme::CodeKind;

use super::figure::Figure;
use super::points::{
    Answered, MDS, Point, ROUND_TRIP, SR_NACK, SR_RTO, XOR, answers, answers_with_formula, coded, csv, losses,
    scheme_name, sizes,
};
use crate::plan::looks::style_of;

const LINK: &str = "400 Gbit/s, 25 ms (3750 km), chunks of 4 KiB";
const SCHEMES: [Scheme; 4] = [SR_RTO, SR_NACK, XOR, MDS];
const SCHEMES_OVER_SIZES: [Scheme; 3] = [SR_RTO, SR_NACK, MDS];

/// Figure 10a.
pub(super) fn over_sizes() -> Result<Figure, PlanError> {
    let of =
        |scheme| sizes(17, 41, 4).into_iter().map(move |message_bytes| Point { message_bytes, ..Point::new(scheme) });
    let all = answers(&SCHEMES_OVER_SIZES.into_iter().flat_map(of).collect::<Vec<_>>())?;
    let chart = LineChart {
        title: "Slowdown over message size: mean and tail".to_owned(),
        subtitle: format!("{LINK}, packet loss 10⁻⁵; lines: mean, dashes: p99.9"),
        x: Axis::new("Message size", Scale::Log2Bytes),
        // A logarithm spreads what lies close above 1, where most of the lines are most of the time.
        y: Axis::new("Slowdown over a lossless link", Scale::Log10).over(0.96, 4.6),
        series: mean_and_tail(&all, &SCHEMES_OVER_SIZES, |point| point.message_bytes as f64),
        guides: vec![
            Guide::upwards(1e5 * 4096.0, "1/P chunks: one lost on average"),
            Guide::upwards(1.25e9, "bandwidth × round trip"),
        ],
        notes: Vec::new(),
    };
    Ok(Figure { title: chart.title.clone(), svg: longhaul_charts::svg(&chart), csv: csv(&all) })
}

/// Figure 10b.
pub(super) fn over_losses() -> Result<Figure, PlanError> {
    let of = |scheme| losses(-8, -1, 16).into_iter().map(move |loss| Point { loss, ..Point::new(scheme) });
    let all = answers_with_formula(&SCHEMES.into_iter().flat_map(of).collect::<Vec<_>>())?;
    let chart = LineChart {
        title: "Slowdown of a 128 MiB message over loss: mean and tail".to_owned(),
        subtitle: format!("{LINK}; lines: mean, dashes: p99.9"),
        x: Axis::new("Share of packets lost", Scale::Log10),
        y: Axis::new("Slowdown over a lossless link", Scale::Log10).over(0.95, 25.0),
        series: mean_and_tail(&all, &SCHEMES, |point| point.loss),
        guides: Vec::new(),
        notes: Vec::new(),
    };
    Ok(Figure { title: chart.title.clone(), svg: longhaul_charts::svg(&chart), csv: csv(&all) })
}

/// Figure 10c: a chart for each variant, because one line in two of both lies on another.
pub(super) fn penalties() -> Result<Figure, PlanError> {
    let of = |scheme| losses(-7, -1, 20).into_iter().map(move |loss| Point { loss, ..Point::new(scheme) });
    let all = answers(&[SR_RTO, SR_NACK].into_iter().flat_map(of).collect::<Vec<_>>())?;
    let title = "What losses cost selective repeat: whole round trips";
    let timeouts = penalty(&all, SR_RTO, "3 round trips each time a chunk is lost", 3.0, 22.5);
    let nacks = penalty(&all, SR_NACK, "about 1 round trip each time", 1.0, 7.5);
    Ok(Figure {
        title: title.to_owned(),
        svg: longhaul_charts::side_by_side(
            title,
            &format!("128 MiB message; {LINK}; the vertical scales differ"),
            &[&timeouts, &nacks],
        ),
        csv: csv(&all),
    })
}

/// Median, mean and tail of one variant, marked at what a loss costs and its multiples.
fn penalty(all: &[Answered], scheme: Scheme, what: &str, step: f64, highest: f64) -> LineChart {
    type Seconds = fn(&Answered) -> f64;
    let style = style_of(scheme.family());
    let lines: [(&str, Style, Seconds); 3] = [
        ("p99.9", style.tail(), |answered| answered.seconds.p999),
        ("p50", style, |answered| answered.seconds.p50),
        ("mean", Style::thin(), |answered| answered.seconds.mean),
    ];
    let series = lines.into_iter().map(|(name, style, seconds)| {
        let own = all.iter().filter(|answered| answered.point.scheme == scheme);
        let points = own.map(|answered| (answered.point.loss, (seconds(answered) - answered.lossless) / ROUND_TRIP));
        Series::new(name, style, points.collect())
    });
    LineChart {
        title: format!("{}: {what}", scheme_name(scheme)),
        subtitle: String::new(),
        x: Axis::new("Share of packets lost", Scale::Log10),
        y: Axis::new("Time beyond that without loss [round trips]", Scale::Linear).over(0.0, highest).every(step),
        series: series.collect(),
        guides: Vec::new(),
        notes: Vec::new(),
    }
}

/// Figure 10d.
pub(super) fn splits() -> Result<Figure, PlanError> {
    let splits = [2, 4, 8, 16, 32].map(|parity| coded(CodeKind::Mds, 32, parity));
    let of = |scheme| losses(-5, -1, 16).into_iter().map(move |loss| Point { loss, ..Point::new(scheme) });
    let all = answers(&splits.into_iter().flat_map(of).collect::<Vec<_>>())?;
    let series = splits.into_iter().enumerate().map(|(index, scheme)| {
        let own = all.iter().filter(|answered| answered.point.scheme == scheme);
        let code = scheme.erasure_code().expect("all are codes");
        let share = 100.0 * code.parity_chunks() as f64 / code.data_chunks() as f64;
        let name = format!("{}, +{share} % bytes", scheme_name(scheme));
        Series::new(
            name,
            Style::numbered(index),
            own.map(|answered| (answered.point.loss, answered.mean_slowdown())).collect(),
        )
    });
    let chart = LineChart {
        title: "How much parity is enough: MDS codes with 32 data chunks".to_owned(),
        subtitle: format!("128 MiB message; {LINK}; mean"),
        x: Axis::new("Share of packets lost", Scale::Log10),
        y: Axis::new("Mean slowdown over a lossless link", Scale::Log10).over(0.97, 6.0),
        series: series.collect(),
        guides: Vec::new(),
        notes: Vec::new(),
    };
    Ok(Figure { title: chart.title.clone(), svg: longhaul_charts::svg(&chart), csv: csv(&all) })
}

/// The mean of each scheme as a line, its 99.9th percentile in dashes.
pub(super) fn mean_and_tail(all: &[Answered], schemes: &[Scheme], x: impl Fn(&Point) -> f64) -> Vec<Series> {
    let of = |scheme: Scheme, name: &str, style: Style, y: fn(&Answered) -> f64| {
        let own = all.iter().filter(|answered| answered.point.scheme == scheme);
        let points = own.map(|answered| (x(&answered.point), y(answered)));
        Series::new(format!("{}{name}", scheme_name(scheme)), style, points.collect())
    };
    let style = |scheme: Scheme| style_of(scheme.family());
    let means = schemes.iter().map(|scheme| of(*scheme, "", style(*scheme), Answered::mean_slowdown));
    let tails = schemes.iter().map(|scheme| of(*scheme, ", p99.9", style(*scheme).tail(), Answered::p999_slowdown));
    means.chain(tails).collect()
}
