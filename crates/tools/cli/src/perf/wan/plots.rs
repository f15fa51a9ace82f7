//! A race as pictures.

use longhaul_charts::{Bar, BarChart, Style, svg};
use longhaul_units::bytes_text;
use longhaul_wan::race::{Report, Row};

use super::output::loss_text;

/// Names of files, and what they show.
pub(super) fn draw(report: &Report) -> Vec<(String, String)> {
    let mut pictures = Vec::new();
    let mut links: Vec<(u16, u64)> =
        report.rows.iter().map(|row| (row.point.path.mtu, row.point.path.round_trip.as_millis() as u64)).collect();
    links.sort_unstable();
    links.dedup();
    for (mtu, millis) in links {
        let here = |row: &&Row| row.point.path.mtu == mtu && row.point.path.round_trip.as_millis() as u64 == millis;
        let rows: Vec<&Row> = report.rows.iter().filter(here).collect();
        let subtitle = format!("round trip {millis} ms, MTU {mtu}");
        let goodput = |row: &&Row| Some((conditions(row), row.goodput? / 1e6));
        let bulk = BarChart {
            title: "Goodput".to_owned(),
            subtitle: subtitle.clone(),
            x_title: "Connections, loss".to_owned(),
            y_title: "Mbit/s".to_owned(),
            ..chart(&rows, goodput, 0)
        };
        let times = |row: &&Row| {
            let size = bytes_text(row.point.message_bytes as u64);
            Some((format!("{size}, {}", loss_text(&row.point.path)), row.completion?.p99?))
        };
        let completion = BarChart {
            title: "Completion time of a message, p99".to_owned(),
            subtitle,
            x_title: "Message, loss".to_owned(),
            y_title: "ms".to_owned(),
            ..chart(&rows, times, 0)
        };
        for (name, chart) in [("goodput", bulk), ("completion", completion)] {
            if !chart.groups.is_empty() {
                pictures.push((format!("{name}-{millis}ms-mtu{mtu}"), svg(&chart)));
            }
        }
    }
    pictures
}

fn conditions(row: &Row) -> String {
    format!("{}, {}", row.point.connections, loss_text(&row.point.path))
}

/// Bars of each system in groups of one name.
fn chart(rows: &[&Row], value: impl Fn(&&Row) -> Option<(String, f64)>, decimals: usize) -> BarChart {
    let mut systems: Vec<_> = rows.iter().map(|row| row.point.system).collect();
    systems.sort_unstable();
    systems.dedup();
    let mut groups: Vec<(String, Vec<Bar>)> = Vec::new();
    for row in rows {
        let Some((name, height)) = value(row) else { continue };
        let kind = systems.iter().position(|system| *system == row.point.system).unwrap_or_default();
        let bar = Bar { kind, height, above: format!("{height:.decimals$}") };
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, bars)) => bars.push(bar),
            None => groups.push((name, vec![bar])),
        }
    }
    let kinds = systems.iter().enumerate().map(|(index, system)| (system.to_string(), Style::numbered(index).colour));
    BarChart {
        title: String::new(),
        subtitle: String::new(),
        x_title: String::new(),
        y_title: String::new(),
        groups,
        kinds: kinds.collect(),
        guide: None,
        notes: Vec::new(),
    }
}
