//! What has arrived of bounded messages, over the deadline: the model as lines, the protocol as points.

use longhaul_charts::{Axis, Guide, LineChart, Plot, Scale, Series, Style, side_by_side};
use longhaul_scheme_testing::validation::arrived::ArrivedPoint;
use longhaul_time::Duration;

use super::arrived::ArrivedCompared;

/// Points of a model's line.
const STEPS: u32 = 240;

/// An SVG file's text.
pub(super) fn arrived(all: &[ArrivedCompared]) -> String {
    // Those of one link and message, with several losses.
    let mut links: Vec<Vec<&ArrivedCompared>> = Vec::new();
    for compared in all {
        let is_like = |other: &ArrivedPoint| {
            let link = |point: &ArrivedPoint| (point.rate_bits_per_second, point.round_trip, point.message_bytes);
            link(other) == link(&compared.point)
        };
        match links.iter_mut().find(|link| is_like(&link[0].point)) {
            Some(link) => link.push(compared),
            None => links.push(vec![compared]),
        }
    }
    // Few deadlines make no picture.
    let charts: Vec<LineChart> = links.iter().filter(|link| link.len() >= 4).map(|link| chart(link)).collect();
    let plots: Vec<&dyn Plot> = charts.iter().map(|chart| chart as &dyn Plot).collect();
    side_by_side(
        "Arrived by the deadline, everything sent once",
        "lines: the model; markers: the protocol (be); deadlines count from when the sender begins",
        &plots,
    )
}

fn chart(link: &[&ArrivedCompared]) -> LineChart {
    let first = &link[0].point;
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let longest = link.iter().map(|compared| compared.point.deadline).max().unwrap_or_default();
    let mut series = Vec::new();
    let mut kinds: Vec<&ArrivedPoint> = Vec::new();
    for compared in link {
        let is_like = |kind: &&ArrivedPoint| {
            kind.loss == compared.point.loss && kind.burst_packets == compared.point.burst_packets
        };
        if !kinds.iter().any(is_like) {
            kinds.push(&compared.point);
        }
    }
    for (index, kind) in kinds.iter().enumerate() {
        let own = || {
            link.iter().filter(|compared| {
                compared.point.loss == kind.loss && compared.point.burst_packets == kind.burst_packets
            })
        };
        let bursts = kind.burst_packets.map_or(String::new(), |packets| format!(" in bursts of {packets}"));
        let name = format!("{} % lost{bursts}", kind.loss * 100.0);
        let at = |step: u32| ArrivedPoint { deadline: longest * step / STEPS, ..**kind };
        let line = (1..=STEPS).map(at).filter_map(|point| Some((millis(point.deadline), point.model().ok()?.mean)));
        let style = Style::numbered(index);
        series.push(Series::new(format!("{name}: model"), style.without_marker(), percent(line)));
        for (what, style, of) in [
            ("virtual time", style, (|compared| compared.virtual_time) as fn(&ArrivedCompared) -> Option<_>),
            ("sockets", Style::numbered(index + kinds.len()), |compared| compared.sockets),
        ] {
            let points = own().filter_map(|compared| Some((millis(compared.point.deadline), of(compared)?.mean)));
            let points = percent(points);
            if !points.is_empty() {
                series.push(Series::new(format!("{name}: {what}"), style.without_line(), points));
            }
        }
    }
    let rate = first.rate_bits_per_second as f64 / 1e9;
    LineChart {
        title: format!("{} KiB, {rate} Gbit/s, round trip {} ms", first.message_bytes >> 10, millis(first.round_trip)),
        subtitle: String::new(),
        x: Axis::new("Deadline, ms", Scale::Linear).over(0.0, millis(longest)),
        y: Axis::new("Arrived, % of the message", Scale::Linear).over(0.0, 100.0).every(20.0),
        series,
        guides: vec![Guide::upwards(millis(first.round_trip) / 2.0, "RTT/2")],
        notes: Vec::new(),
    }
}

fn percent(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    points.map(|(at, share)| (at, share * 100.0)).collect()
}
