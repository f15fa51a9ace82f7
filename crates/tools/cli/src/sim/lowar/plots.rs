//! The paper's figures, with our measurements.

use longhaul_charts::{Axis, Guide, LineChart, Scale, Series, Style, side_by_side, svg};
use longhaul_impair::Loss;
use longhaul_world::lowar::{Figure, Row};

use super::Report;

/// Colors are the same in every picture.
const SCHEMES: [&str; 5] = ["rc", "lowar:32,1", "lowar:8,1", "lowar:64,8", "lowar:8,2"];

/// Names of files, and what they show.
pub(super) fn draw(report: &Report) -> Vec<(String, String)> {
    let mut pictures = Vec::new();
    let of = |figure| report.rows.iter().filter(|row| row.point.figure == figure).collect::<Vec<&Row>>();
    let figure_9: Vec<LineChart> =
        [(40, 1), (40, 16), (80, 1), (80, 16)].map(|link| goodput(&of(Figure::Figure9), link)).into();
    let subtitle = "10 Gbit/s, MTU 1024, WRITEs of 1 MiB, random loss; LoWAR's figure 9";
    for (index, pair) in figure_9.chunks(2).enumerate() {
        let charts: Vec<&dyn longhaul_charts::Plot> =
            pair.iter().map(|chart| chart as &dyn longhaul_charts::Plot).collect();
        let name = ["lowar-figure-9-40ms", "lowar-figure-9-80ms"][index];
        pictures.push((name.to_owned(), side_by_side("Goodput over loss", subtitle, &charts)));
    }
    let rows = of(Figure::Figure10);
    let charts = [
        times("Mean", &rows, |row| row.measured.mean_ms()),
        times("99th percentile", &rows, |row| row.measured.p99_ms()),
    ];
    let subtitle = "one message at a time, round trip 40 ms; LoWAR's figure 10";
    pictures.push((
        "lowar-figure-10".to_owned(),
        side_by_side("Completion time of 1 MiB", subtitle, &[&charts[0], &charts[1]]),
    ));
    let rows = of(Figure::Figure11);
    let charts = [0.3, 0.7].map(|share| bursts(&rows, share));
    let subtitle = "one connection, 40 ms, a burst begins at one packet of 10,000; LoWAR's figure 11";
    pictures.push((
        "lowar-figure-11".to_owned(),
        side_by_side("Goodput over the length of bursts", subtitle, &[&charts[0], &charts[1]]),
    ));
    pictures.push(("lowar-figure-12".to_owned(), svg(&small(&of(Figure::Figure12)))));
    pictures.push(("lowar-figure-13".to_owned(), svg(&recovery(report))));
    pictures
}

/// A line for each scheme that is among the rows.
fn series(rows: &[&Row], at: impl Fn(&Row) -> Option<(f64, f64)>) -> Vec<Series> {
    let line = |(index, name): (usize, &&str)| {
        let points: Vec<(f64, f64)> =
            rows.iter().filter(|row| row.point.scheme.to_string() == **name).filter_map(|row| at(row)).collect();
        (!points.is_empty()).then(|| Series::new(*name, Style::numbered(index), points))
    };
    SCHEMES.iter().enumerate().filter_map(line).collect()
}

fn chart(title: String, subtitle: &str, x: Axis, y: Axis, series: Vec<Series>) -> LineChart {
    LineChart { title, subtitle: subtitle.to_owned(), x, y, series, guides: Vec::new(), notes: Vec::new() }
}

fn gigabits() -> Axis {
    Axis::new("Goodput, Gbit/s", Scale::Linear).over(0.0, 10.0)
}

fn goodput(rows: &[&Row], (milliseconds, connections): (u128, usize)) -> LineChart {
    let rows: Vec<&Row> = rows
        .iter()
        .copied()
        .filter(|row| row.point.round_trip.as_millis() == milliseconds && row.point.connections == connections)
        .collect();
    let at = |row: &Row| {
        let loss = row.point.loss.mean_loss();
        (loss > 0.0).then(|| (loss, row.gigabits()))
    };
    let title = match connections {
        1 => format!("{milliseconds} ms, one connection"),
        _ => format!("{milliseconds} ms, {connections} connections"),
    };
    let x = Axis::new("Share of packets lost", Scale::Log10).over(1e-5, 1e-3);
    chart(title, "", x, gigabits(), series(&rows, at))
}

fn times(title: &str, rows: &[&Row], time: impl Fn(&Row) -> Option<f64>) -> LineChart {
    let at = |row: &Row| {
        let loss = row.point.loss.mean_loss();
        Some((loss, time(row)?)).filter(|_| loss > 0.0)
    };
    let x = Axis::new("Share of packets lost", Scale::Log10).over(1e-5, 1e-3);
    let most = rows.iter().filter_map(|row| time(row)).fold(0.0, f64::max);
    let y = Axis::new("Completion time, ms", Scale::Linear).over(0.0, (most / 40.0).ceil() * 40.0);
    chart(title.to_owned(), "", x, y, series(rows, at))
}

fn bursts(rows: &[&Row], share: f64) -> LineChart {
    let at = |row: &Row| match row.point.loss {
        Loss::FixedBursts { burst_packets, loss_in_burst, .. } if loss_in_burst == share => {
            Some((f64::from(burst_packets), row.gigabits()))
        }
        _ => None,
    };
    let x = Axis::new("Packets of each burst", Scale::Linear).over(2.0, 12.0).every(2.0);
    chart(format!("{share} of a burst's packets lost"), "", x, gigabits(), series(rows, at))
}

fn small(rows: &[&Row]) -> LineChart {
    let at = |row: &Row| {
        let share = row.of_lossless.filter(|_| row.point.loss.mean_loss() > 0.0)?;
        Some((row.point.message_bytes as f64, share))
    };
    let subtitle = "128 messages posted, round trip 40 ms, one packet in 1,000 lost; LoWAR's figure 12";
    let x = Axis::new("Message", Scale::Log2Bytes);
    let y = Axis::new("Goodput, share of that without loss", Scale::Linear).over(0.0, 1.1);
    LineChart {
        guides: vec![Guide::across(1.0, "without loss")],
        ..chart("Small messages".to_owned(), subtitle, x, y, series(rows, at))
    }
}

fn recovery(report: &Report) -> LineChart {
    let one = |repair_packets| {
        report.recoveries.iter().filter(move |recovery| {
            let code = recovery.point.scheme.code();
            recovery.point.lost_packets == 1 && code.is_some_and(|code| code.repair_packets() == repair_packets)
        })
    };
    let block = |recovery: &longhaul_world::lowar::Recovery| {
        recovery.point.scheme.code().map(|code| f64::from(code.block_packets()))
    };
    let line = |value: fn(&longhaul_world::lowar::Recovery) -> Option<f64>| {
        one(1).filter_map(|recovery| Some((block(recovery)?, value(recovery)?))).collect::<Vec<_>>()
    };
    let series = vec![
        Series::new("mean", Style::numbered(0), line(|recovery| recovery.mean_us())),
        Series::new("longest", Style::numbered(1), line(|recovery| recovery.most_us())),
    ];
    let subtitle = "one repair packet for each block, 10 Gbit/s, MTU 1024; LoWAR's figure 13";
    let x = Axis::new("Packets of a block, r", Scale::Log2).over(8.0, 128.0);
    let y = Axis::new("Delay of a lost packet, µs", Scale::Linear);
    chart("How long a repair takes".to_owned(), subtitle, x, y, series)
}
