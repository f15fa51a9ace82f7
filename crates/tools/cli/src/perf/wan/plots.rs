//! A race as pictures.

use longhaul_charts::{Bar, BarChart, Colour, Style, svg};
use longhaul_units::bytes_text;
use longhaul_wan::race::{Report, Row, System};

use super::output::{loss_text, millis};

/// Above the bars of rows that are not valid.
const INVALID_MARK: &str = "*";

/// Names of files, and what they show.
pub(super) fn draw(report: &Report) -> Vec<(String, String)> {
    let mut pictures = Vec::new();
    let link = |row: &Row| (row.point.path.mtu, row.point.path.round_trip);
    let mut links: Vec<_> = report.rows.iter().map(link).collect();
    links.sort_unstable();
    links.dedup();
    for (mtu, round_trip) in links {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| link(row) == (mtu, round_trip)).collect();
        let Some(millis) = rows.first().map(|row| millis(&row.point.path)) else { continue };
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
    let (mut groups, mut notes): (Vec<(String, Vec<Bar>)>, _) = (Vec::new(), Vec::new());
    for row in rows {
        let Some((name, height)) = value(row) else { continue };
        let kind = systems.iter().position(|system| *system == row.point.system).unwrap_or_default();
        let is_valid = row.lateness.is_valid();
        if !is_valid && notes.is_empty() {
            notes.push(format!("{INVALID_MARK} not valid: too many frames were late"));
        }
        let mark = if is_valid { "" } else { INVALID_MARK };
        let bar = Bar { kind, height, above: format!("{height:.decimals$}{mark}") };
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, bars)) => bars.push(bar),
            None => groups.push((name, vec![bar])),
        }
    }
    let kinds = systems.iter().map(|system| (system.to_string(), colour(*system)));
    BarChart {
        title: String::new(),
        subtitle: String::new(),
        x_title: String::new(),
        y_title: String::new(),
        groups,
        kinds: kinds.collect(),
        guide: None,
        notes,
    }
}

/// A system has the same color in every picture, whichever others are in it. There are seven colors: `quic:bbr` has that of `quic`,
/// which it is on every path with loss.
fn colour(system: System) -> Colour {
    let shown = if system == System::QuicBbr { System::Quic } else { system };
    let number = System::DEFAULT.iter().position(|default| *default == shown);
    Style::numbered(number.unwrap_or(System::DEFAULT.len())).colour
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use longhaul_wan::race::{Kind, Lateness, Path, Point, What};

    use super::*;

    fn row(micros: u64, late: u64) -> Row {
        let path = Path { round_trip: Duration::from_micros(micros), loss: 0.0, burst: 1, mtu: 1500, rate: 1_000_000 };
        let what = What::Bulk { time: Duration::from_secs(1) };
        let (kind, system) = (Kind::Bulk, System::TcpCubic);
        Row {
            point: Point { kind, system, connections: 1, path, message_bytes: 1, what },
            name: system.to_string(),
            goodput: Some(77e6),
            completion: None,
            caused_loss: 0.0,
            repeats: None,
            lateness: Lateness { frames: 100, late, ..Lateness::default() },
        }
    }

    #[test]
    fn a_system_has_one_color_whichever_others_are_shown() {
        let alone = Row { point: Point { system: System::Rc, ..row(500, 0).point }, ..row(500, 0) };
        let colour = |rows: &[&Row]| chart(rows, |row| Some((String::new(), row.goodput?)), 0).kinds.pop();
        assert_eq!(colour(&[&alone]), colour(&[&row(500, 0), &alone]));
    }

    #[test]
    fn rows_of_different_links_are_not_mixed_and_late_ones_are_marked() {
        let rows = vec![row(500, 0), row(25_000, 0), row(25_900, 50)];
        let pictures = draw(&Report { rows, ..Report::default() });
        let names: Vec<&str> = pictures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["goodput-0.5ms-mtu1500", "goodput-25ms-mtu1500", "goodput-25.9ms-mtu1500"]);
        let is_marked = |picture: &str| picture.contains("77*") && picture.contains("* not valid");
        assert_eq!([0, 1, 2].map(|index| is_marked(&pictures[index].1)), [false, false, true]);
    }
}
