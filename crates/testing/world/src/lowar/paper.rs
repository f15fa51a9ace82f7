//! The points of the paper's figures 9 to 12, and some beyond it.

use longhaul_impair::Loss;
use longhaul_time::Duration;

use super::point::{Figure, Point, Row};
use super::scheme::Scheme;

/// The transition probability of figure 11, for each packet.
const BURST_STARTS: f64 = 1e-4;
/// One run of a full link is no longer, so that several threads have something to do.
const RUN_SECONDS: f64 = 4.0;
/// The same of a link that is mostly idle.
const IDLE_RUN_SECONDS: f64 = 60.0;

/// What does not count of a code that follows the link, and of those next to it: it must see some losses first.
const ADAPTIVE_SETTLES: Duration = Duration::from_millis(200);
/// What counts.
const ADAPTIVE_SECONDS: f64 = 0.8;
/// The same where a few blocks that cannot be repaired decide, each worth a round trip: five in a second, so that a row of
/// this length has a standard error of 1 %, and the best of four such rows is little better than their mean.
const ADAPTIVE_SECONDS_AT_HIGH_LOSS: f64 = 100.0;

/// Which points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All of them: minutes.
    Paper,
    /// Those that need little time for figures that are sharp: half a minute. (RC at 1e-4 on one connection is not among them: a few losses
    /// in a second, each worth a round trip, need tens of seconds.)
    Quick,
}

impl Point {
    fn connections(self, connections: usize) -> Point {
        Point { connections, ..self }
    }

    fn messages(self, message_bytes: usize, depth: usize) -> Point {
        Point { message_bytes, depth: Some(depth), ..self }
    }

    /// How long, in runs of a length that suits the load.
    fn seconds(self, seconds: f64) -> Point {
        let longest = if self.depth.is_some() { IDLE_RUN_SECONDS } else { RUN_SECONDS };
        Point { lasts: Duration::from_secs_f64(seconds), runs: (seconds / longest).ceil() as u32, ..self }
    }
}

/// Losses that each packet meets on its own.
pub fn independent(probability: f64) -> Loss {
    if probability == 0.0 { Loss::None } else { Loss::Independent { probability } }
}

fn scheme(name: &str) -> Scheme {
    name.parse().expect("a name of ours")
}

fn round_trip(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// The points, in the order of the figures.
pub fn points(selection: Selection) -> Vec<Point> {
    let mut points = Vec::new();
    match selection {
        Selection::Paper => {
            for (milliseconds, connections) in [(40, 1), (80, 1), (40, 16), (80, 16)] {
                figure_9(milliseconds, connections, &mut points);
            }
            for (loss, rc_seconds, lowar_seconds) in
                [(0.0, 4.0, 4.0), (1e-5, 240.0, 60.0), (1e-4, 120.0, 60.0), (5e-4, 180.0, 120.0), (1e-3, 60.0, 60.0)]
            {
                let point = |name, seconds| {
                    let point = Point::new(Figure::Figure10, round_trip(40), independent(loss), scheme(name));
                    point.messages(1 << 20, 1).seconds(seconds)
                };
                points.extend([point("rc", rc_seconds), point("lowar:32,1", lowar_seconds)]);
            }
            for loss_in_burst in [0.3, 0.7] {
                for (burst_packets, seconds) in [(2, 0.8), (4, 0.8), (6, 0.8), (8, 0.8), (10, 3.0), (12, 7.0)] {
                    figure_11(fixed(burst_packets, loss_in_burst), 2.5, seconds, &mut points);
                }
                let geometric = Loss::GilbertElliott {
                    p_good_to_bad: BURST_STARTS,
                    p_bad_to_good: 1.0 / 8.0,
                    loss_good: 0.0,
                    loss_bad: loss_in_burst,
                };
                figure_11(geometric, 2.5, 5.0, &mut points);
            }
            figure_12(&[1, 4, 16, 64], &mut points);
            beyond(&mut points);
            adaptive(&mut points);
        }
        Selection::Quick => {
            let figure_9 = |loss, name| Point::new(Figure::Figure9, round_trip(40), independent(loss), scheme(name));
            points.extend([
                figure_9(0.0, "rc").seconds(0.2),
                figure_9(0.0, "lowar:32,1").seconds(0.2),
                figure_9(1e-4, "lowar:32,1").seconds(2.0),
                figure_9(1e-3, "rc").connections(16).seconds(3.0),
                figure_9(1e-3, "lowar:32,1").connections(16).seconds(1.5),
                figure_9(1e-3, "lowar:8,1").connections(16).seconds(1.5),
            ]);
            points.push(Point::new(Figure::Figure11, round_trip(40), fixed(8, 0.7), scheme("lowar:64,8")).seconds(1.0));
            figure_12(&[1, 4], &mut points);
            points.push(
                Point::new(Figure::Beyond, round_trip(40), independent(1e-2), scheme("lowar:mds:64,8")).seconds(1.5),
            );
        }
    }
    points
}

fn fixed(burst_packets: u32, loss_in_burst: f64) -> Loss {
    Loss::FixedBursts { p_start: BURST_STARTS, burst_packets, loss_in_burst }
}

/// One connection repeats whole bandwidth-delay products, a few in a second: its rows need many seconds.
fn figure_9(milliseconds: u64, connections: usize, points: &mut Vec<Point>) {
    let times = |seconds: f64| seconds * milliseconds as f64 / 40.0;
    let rows = match connections {
        1 => [(0.0, 0.3, 0.3), (1e-5, 12.0, 1.0), (1e-4, 24.0, 2.0), (1e-3, 16.0, 6.0)],
        // Messages of 16 connections complete many at a time: a few at the end of a short run are percents of it.
        _ => [(0.0, 2.0, 2.0), (1e-5, 1.5, 1.0), (1e-4, 2.0, 1.0), (1e-3, 2.0, 1.0)],
    };
    for (loss, rc, lowar) in rows {
        let point = |name, seconds| {
            let point = Point::new(Figure::Figure9, round_trip(milliseconds), independent(loss), scheme(name));
            point.connections(connections).seconds(seconds)
        };
        points.extend([point("rc", times(rc)), point("lowar:32,1", times(lowar))]);
        if loss == 1e-3 {
            points.push(point("lowar:8,1", times(lowar / 2.0).max(1.5)));
        }
    }
}

fn figure_11(loss: Loss, rc: f64, lowar: f64, points: &mut Vec<Point>) {
    let point =
        |name, seconds| Point::new(Figure::Figure11, round_trip(40), loss.clone(), scheme(name)).seconds(seconds);
    points.extend([point("rc", rc), point("lowar:64,8", lowar)]);
}

fn figure_12(kibibytes: &[usize], points: &mut Vec<Point>) {
    for size in kibibytes {
        let point = |loss, name, seconds| {
            let point = Point::new(Figure::Figure12, round_trip(40), independent(loss), scheme(name));
            point.messages(size << 10, 128).seconds(seconds)
        };
        // A shorter message loses fewer times in a second, and each time less.
        let lossy = if *size == 64 { 60.0 } else { 20.0 };
        points.extend([point(0.0, "rc", 1.0), point(1e-3, "rc", lossy), point(1e-3, "lowar:8,2", 20.0)]);
    }
}

fn beyond(points: &mut Vec<Point>) {
    for (loss, name, seconds) in [
        (1e-3, "lowar:6,1", 4.0),
        (1e-3, "lowar:mds:128,5", 1.5),
        (1e-2, "rc", 8.0),
        (1e-2, "lowar:32,1", 2.0),
        (1e-2, "lowar:mds:64,8", 2.0),
    ] {
        points.push(Point::new(Figure::Beyond, round_trip(40), independent(loss), scheme(name)).seconds(seconds));
    }
}

/// Codes that follow the link next to fixed ones of their family: those near the best one at each loss.
fn adaptive(points: &mut Vec<Point>) {
    let mut next_to = |milliseconds, loss: Loss, names: &[&str]| {
        points.extend(names.iter().map(|name| {
            let point = Point::new(Figure::Adaptive, round_trip(milliseconds), loss.clone(), scheme(name));
            let is_xor_at_high_loss = names[0] == "auto:xor" && loss.mean_loss() >= 1e-3;
            let seconds = if is_xor_at_high_loss { ADAPTIVE_SECONDS_AT_HIGH_LOSS } else { ADAPTIVE_SECONDS };
            Point { settles: ADAPTIVE_SETTLES, ..point.seconds(seconds) }
        }));
    };
    for milliseconds in [40, 80] {
        for (loss, names) in [
            (0.0, &["auto", "auto:xor", "auto:mds"][..]),
            (1e-5, &["auto:xor", "lowar:255,1", "lowar:128,1", "lowar:64,1"]),
            (1e-5, &["auto:mds", "lowar:mds:254,1", "lowar:mds:253,2", "lowar:mds:128,1"]),
            (1e-4, &["auto:xor", "lowar:128,1", "lowar:64,1", "lowar:48,1", "lowar:32,1"]),
            (1e-4, &["auto:mds", "lowar:mds:253,2", "lowar:mds:128,2", "lowar:mds:252,3"]),
            (1e-3, &["auto:xor", "lowar:8,1", "lowar:7,1", "lowar:6,1", "lowar:5,1"]),
            (1e-3, &["auto:mds", "lowar:mds:128,5", "lowar:mds:192,4", "lowar:mds:251,4", "lowar:mds:128,3"]),
            (1e-2, &["auto:mds", "lowar:mds:64,8", "lowar:mds:64,6", "lowar:mds:128,8", "lowar:mds:243,12"]),
        ] {
            next_to(milliseconds, independent(loss), names);
        }
    }
    next_to(40, Loss::bursts(1e-3, 4.0), &["auto:mds", "lowar:mds:128,16", "lowar:mds:192,24", "lowar:mds:128,8"]);
}

/// What the paper's text says about a row, and where. Its figures are pictures: only what is in words is here.
pub fn says(row: &Row) -> Option<&'static str> {
    let Point { figure, loss, connections, scheme, .. } = &row.point;
    let (milliseconds, scheme) = (row.point.round_trip.as_millis(), scheme.to_string());
    let mean_loss = loss.mean_loss();
    match (figure, scheme.as_str()) {
        (Figure::Figure9, "lowar:32,1") => match (milliseconds, connections) {
            (40, 1) if mean_loss == 1e-5 => Some("increases by 2.05 times, so 3.05 times rc"),
            (40, 1) if mean_loss == 1e-4 => Some("increases by 5.01 times, so 6.01 times rc"),
            (80, 1) if mean_loss == 1e-5 => Some("11.55 times rc"),
            (80, 1) if mean_loss == 1e-4 => Some("19.07 times rc"),
            (40, 16) if mean_loss == 1e-4 => Some("1.28 times rc"),
            (80, 16) if mean_loss == 1e-4 => Some("1.50 times rc"),
            (_, 16) if mean_loss == 1e-3 => Some("keeps 87.29 % of its goodput"),
            _ => None,
        },
        (Figure::Figure10, "rc") if mean_loss == 1e-4 => Some("mean 12 % above LoWAR's"),
        (Figure::Figure10, "rc") if mean_loss == 5e-4 => Some("mean 97 % above LoWAR's"),
        (Figure::Figure10, "rc") if mean_loss > 0.0 => Some("a significant tail"),
        (Figure::Figure10, _) if mean_loss > 5e-4 => Some("a long tail only above 0.1 %"),
        (Figure::Figure11, "lowar:64,8") if row.point.burst_packets() <= 8.0 => Some("about 8 Gbit/s"),
        (Figure::Figure11, "lowar:64,8") => Some("still resists"),
        (Figure::Figure12, "lowar:8,2") => Some("nearly as without loss"),
        _ => None,
    }
}
