//! What the race must show. A check whose rows were not run, or are not valid, is not made.

use std::time::Duration;

use super::plan::{Task, What};
use super::report::{Completion, Report, Row, ShareRow};
use super::system::System;

/// Longhaul's defaults on a clean link of 25 ms with 5 ms of queue, and on a lossy long one: share of the link less parity.
const GOODPUT_MIN: f64 = 0.9;
const CAUSED_LOSS_MAX: f64 = 0.02;
const REPEATS_MAX: f64 = 0.01;
/// Shorter rows say little: of defaults and of shares, of bulk, and messages for a p99.
const DEFAULTS_TIME_MIN: Duration = Duration::from_secs(60);
const BULK_TIME_MIN: Duration = Duration::from_secs(30);
const MESSAGES_MIN: usize = 100;
/// Of a fair share.
const SHARE_MIN: f64 = 1.0 / 3.0;
const SHARE_NEXT_TO_BBR_MIN: f64 = 0.2;
/// At 100 ms and a loss of 1e-3.
const OVER_CUBIC_MIN: f64 = 5.0;
/// Raw goodput, of that of TCP bbr and QUIC, by MTU.
const OVER_OTHERS_MIN: [(u16, f64); 2] = [(1500, 0.95), (4200, 1.0)];
/// p99 of erasure coding, of its own median without loss.
const OVER_LOSSLESS_MAX: f64 = 1.2;
/// And of the best p99 of others, by bytes of a message.
const OVER_BEST_MAX: [(usize, f64); 2] = [(64 << 10, 0.5), (1 << 20, 0.9)];

/// Something that must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What.
    pub name: String,
    /// Whether it does.
    pub is_good: bool,
    /// What was measured.
    pub measured: f64,
    /// What it is compared with.
    pub bar: f64,
    /// Whether it must be at least the bar; otherwise at most.
    pub is_least: bool,
}

impl Check {
    fn least(name: String, measured: f64, bar: f64) -> Self {
        Check { name, is_good: measured >= bar, measured, bar, is_least: true }
    }

    fn most(name: String, measured: f64, bar: f64) -> Self {
        Check { name, is_good: measured <= bar, measured, bar, is_least: false }
    }
}

/// Judges a race.
pub fn checks(report: &Report) -> Vec<Check> {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.lateness.is_valid()).collect();
    let mut checks = defaults(&rows);
    let is_meant = |row: &&ShareRow| row.lateness.is_valid() && row.share.time >= DEFAULTS_TIME_MIN;
    let shares: Vec<&ShareRow> = report.shares.iter().filter(is_meant).collect();
    checks.extend(next_to_others(&shares));
    checks.extend(long_and_lossy(&rows));
    checks.extend(completions(&rows));
    checks.push(Check::most("rows that have failed, without rc".to_owned(), failed(report) as f64, 0.0));
    checks
}

/// Rows that should have had a result. RC gives up after its retries, as hardware does.
fn failed(report: &Report) -> usize {
    let is_rc = |task: &Task| matches!(task, Task::Row(point) if point.system == System::Rc);
    report.unfinished.iter().filter(|one| !one.is_missing && !is_rc(&one.task)).count()
}

fn millis(row: &Row) -> u128 {
    row.point.path.round_trip.as_millis()
}

/// Whether losses come one by one, at this share.
fn loses(row: &Row, loss: f64) -> bool {
    row.point.path.burst <= 1 && row.point.path.loss == loss
}

/// Whether a row has goodput, of at least this time.
fn lasts(row: &Row, least: Duration) -> bool {
    matches!(row.point.what, What::Bulk { time } if time >= least)
}

fn defaults(rows: &[&Row]) -> Vec<Check> {
    let is_meant = |row: &&&Row| {
        let is_alone = row.point.system.is_longhaul() && row.point.connections == 1;
        is_alone && millis(row) == 25 && loses(row, 0.0) && lasts(row, DEFAULTS_TIME_MIN)
    };
    let mut checks = Vec::new();
    for row in rows.iter().filter(is_meant) {
        let (name, bar) = (&row.name, GOODPUT_MIN * row.data_share());
        let goodput = row.goodput_of_link().unwrap_or_default();
        checks.push(Check::least(format!("{name}, 25 ms: share of the link"), goodput, bar));
        checks.push(Check::most(format!("{name}, 25 ms: loss caused"), row.caused_loss, CAUSED_LOSS_MAX));
        // Without counters nothing is known, and that is not good.
        let repeats = row.repeats.unwrap_or(1.0);
        checks.push(Check::most(format!("{name}, 25 ms: share of repeats"), repeats, REPEATS_MAX));
    }
    checks
}

fn next_to_others(shares: &[&ShareRow]) -> Vec<Check> {
    let find = |ours, peer| shares.iter().find(|row| (row.share.ours, row.share.peer) == (ours, peer));
    let mut checks = Vec::new();
    let mut judge = |what: String, measured, bar| checks.push(Check::least(what, measured, bar));
    if let Some(row) = find(System::SelectiveRepeat, System::TcpCubic) {
        let [ours, theirs] = row.of_fair_share();
        judge("sr:nack next to tcp-cubic: ours, of a fair share".to_owned(), ours, SHARE_MIN);
        judge("sr:nack next to tcp-cubic: theirs, of a fair share".to_owned(), theirs, SHARE_MIN);
    }
    if let Some(row) = find(System::SelectiveRepeat, System::TcpBbr) {
        let [ours, theirs] = row.of_fair_share();
        judge("sr:nack next to tcp-bbr: ours, of a fair share".to_owned(), ours, SHARE_NEXT_TO_BBR_MIN);
        judge("sr:nack next to tcp-bbr: theirs, of a fair share".to_owned(), theirs, SHARE_MIN);
        if let Some(other) = find(System::TcpCubic, System::TcpBbr) {
            let [cubic, _] = other.of_fair_share();
            judge("sr:nack next to tcp-bbr: ours, against tcp-cubic in our place".to_owned(), ours, cubic);
        }
    }
    checks
}

fn long_and_lossy(rows: &[&Row]) -> Vec<Check> {
    let mut checks = Vec::new();
    for (mtu, over_others) in OVER_OTHERS_MIN {
        let here = |row: &&&Row| {
            let point = row.point;
            let is_there = point.path.mtu == mtu && millis(row) == 100 && loses(row, 1e-3);
            is_there && point.connections == 1 && lasts(row, BULK_TIME_MIN)
        };
        let goodput = |row: &&Row| row.goodput.unwrap_or_default();
        let here: Vec<&Row> = rows.iter().filter(here).copied().collect();
        let ours = here.iter().filter(|row| row.point.system.is_longhaul());
        let Some(best) = ours.max_by(|one, other| goodput(one).total_cmp(&goodput(other))) else { continue };
        let at = format!("{} at 100 ms, loss 1e-3, MTU {mtu}", best.name);
        let bar = GOODPUT_MIN * best.data_share();
        checks.push(Check::least(format!("{at}: share of the link"), best.goodput_of_link().unwrap_or_default(), bar));
        let others = [(System::TcpCubic, OVER_CUBIC_MIN), (System::TcpBbr, over_others), (System::Quic, over_others)];
        for (system, bar) in others {
            if let Some(other) = here.iter().find(|row| row.point.system == system) {
                let ratio = goodput(best) / goodput(other).max(1.0);
                checks.push(Check::least(format!("{at}: goodput over {system}"), ratio, bar));
            }
        }
    }
    checks
}

fn completions(rows: &[&Row]) -> Vec<Check> {
    let is_meant = |row: &&&Row| row.point.system == System::Erasure && millis(row) == 25 && row.completion.is_some();
    let mut checks = Vec::new();
    for row in rows.iter().filter(is_meant) {
        let point = row.point;
        let Some(Completion { p99: Some(p99), messages: MESSAGES_MIN.., .. }) = row.completion else { continue };
        let Some((_, over_best)) = OVER_BEST_MAX.into_iter().find(|(bytes, _)| *bytes == point.message_bytes) else {
            continue;
        };
        if !(loses(row, 1e-3) || loses(row, 1e-2)) {
            continue;
        }
        let is_alike = |other: &&&Row| {
            (other.point.message_bytes, other.point.path.mtu, millis(other))
                == (point.message_bytes, point.path.mtu, millis(row))
                && other.completion.is_some()
        };
        let alike: Vec<&Row> = rows.iter().filter(is_alike).copied().collect();
        let at = format!(
            "{} of {} KiB at 25 ms, loss {:e}, MTU {}",
            row.name,
            point.message_bytes >> 10,
            point.path.loss,
            point.path.mtu
        );
        let lossless = alike.iter().find(|other| other.point.system == System::Erasure && loses(other, 0.0));
        if let Some(lossless) = lossless.and_then(|other| other.completion) {
            let ratio = p99 / lossless.p50.max(1e-9);
            checks.push(Check::most(format!("{at}: p99 over its lossless median"), ratio, OVER_LOSSLESS_MAX));
        }
        let others = [System::TcpBbr, System::Quic, System::SelectiveRepeat];
        let is_other = |other: &&&Row| others.contains(&other.point.system) && loses(other, point.path.loss);
        let best = alike.iter().filter(is_other).filter_map(|other| other.completion?.p99).min_by(f64::total_cmp);
        if let Some(best) = best {
            let ratio = p99 / best.max(1e-9);
            checks.push(Check::most(format!("{at}: p99 over the best of tcp-bbr, quic, sr:nack"), ratio, over_best));
        }
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Path, Point, Share};
    use super::super::report::{Lateness, Unfinished};
    use super::*;

    fn path(millis: u64, loss: f64, mtu: u16) -> Path {
        Path { round_trip: Duration::from_millis(millis), loss, burst: 1, mtu, rate: 200_000_000 }
    }

    fn row(system: System, name: &str, path: Path, seconds: u64, goodput: f64) -> Row {
        let what = What::Bulk { time: Duration::from_secs(seconds) };
        Row {
            point: Point { system, connections: 1, path, message_bytes: 1 << 20, what },
            name: name.to_owned(),
            goodput: Some(goodput * 1e6),
            completion: None,
            caused_loss: 0.001,
            repeats: Some(0.001),
            lateness: Lateness { frames: 1000, ..Lateness::default() },
        }
    }

    fn message(system: System, name: &str, loss: f64, bytes: usize, [p50, p99]: [f64; 2]) -> Row {
        let what = What::Completion { count: 100, time: Duration::from_secs(1) };
        let mut row = row(system, name, path(25, loss, 1500), 1, 0.0);
        row.point.message_bytes = bytes;
        row.point.what = what;
        Row { goodput: None, completion: Some(Completion { messages: 100, p50, p99: Some(p99) }), ..row }
    }

    /// Names of checks that were made, without what stands before the colon, and whether they are good.
    fn judged(report: &Report) -> Vec<(String, bool)> {
        let checks = checks(report);
        let rest = |check: &Check| check.name.split(": ").last().unwrap_or_default().to_owned();
        checks.iter().map(|check| (rest(check), check.is_good)).collect()
    }

    fn of(rows: Vec<Row>) -> Report {
        Report { rows, ..Report::default() }
    }

    const NO_FAILURES: &str = "rows that have failed, without rc";

    #[test]
    fn defaults_are_judged_after_a_minute() {
        let sr = |seconds, goodput| row(System::SelectiveRepeat, "sr:nack", path(25, 0.0, 1500), seconds, goodput);
        let good =
            [("share of the link", true), ("loss caused", true), ("share of repeats", true), (NO_FAILURES, true)];
        let expected = good.map(|(name, is_good)| (name.to_owned(), is_good));
        assert_eq!(judged(&of(vec![sr(60, 170.0)])), expected);
        assert_eq!(judged(&of(vec![sr(30, 170.0)])).len(), 1, "too short");
        assert!(!judged(&of(vec![sr(60, 150.0)]))[0].1, "0.81 of the link");
        let mut bad = sr(60, 170.0);
        (bad.caused_loss, bad.repeats) = (0.03, Some(0.02));
        assert!(judged(&of(vec![bad.clone()]))[1..3].iter().all(|(_, is_good)| !is_good));
        bad.lateness.late = 2;
        assert_eq!(judged(&of(vec![bad])).len(), 1, "a row that is not valid says nothing");
        let coded = row(System::Erasure, "ec:mds:32,8", path(25, 0.0, 1500), 60, 140.0);
        assert!(judged(&of(vec![coded]))[0].1, "0.75 of the link, a fifth is parity");
    }

    #[test]
    fn nobody_starves_nobody() {
        let share = |ours, peer, goodputs: [f64; 2]| ShareRow {
            share: Share { ours, peer, path: path(25, 0.0, 1500), time: Duration::from_secs(60) },
            goodputs: goodputs.map(|goodput| goodput * 1e6),
            lateness: Lateness::default(),
        };
        let report = |cubic, bbr, in_our_place| {
            let shares = vec![
                share(System::SelectiveRepeat, System::TcpCubic, cubic),
                share(System::SelectiveRepeat, System::TcpBbr, bbr),
                share(System::TcpCubic, System::TcpBbr, in_our_place),
            ];
            Report { shares, ..Report::default() }
        };
        let goods = |report| judged(&report).into_iter().map(|(_, is_good)| is_good).collect::<Vec<_>>();
        assert_eq!(goods(report([90.0, 80.0], [30.0, 150.0], [20.0, 160.0])), [true; 6]);
        let bad = goods(report([150.0, 20.0], [15.0, 20.0], [40.0, 140.0]));
        assert_eq!(bad, [true, false, false, false, false, true]);
    }

    #[test]
    fn the_best_scheme_is_compared_with_the_others() {
        let at = path(100, 1e-3, 1500);
        let rows = |ours: f64, theirs: f64| {
            of(vec![
                row(System::SelectiveRepeat, "sr:nack", at, 30, ours),
                row(System::Erasure, "ec:mds:32,2", at, 30, ours - 10.0),
                row(System::TcpCubic, "tcp-cubic", at, 30, 10.0),
                row(System::TcpBbr, "tcp-bbr", at, 30, theirs),
                row(System::Quic, "quic:bbr", at, 30, theirs),
            ])
        };
        let goods = |report: &Report| judged(report).into_iter().map(|(_, is_good)| is_good).collect::<Vec<_>>();
        assert_eq!(goods(&rows(170.0, 175.0)), [true; 5]);
        assert_eq!(goods(&rows(45.0, 175.0)), [false, false, false, false, true]);
        let mut short = rows(45.0, 175.0);
        short.rows.iter_mut().for_each(|row| row.point.what = What::Bulk { time: Duration::from_secs(10) });
        assert_eq!(goods(&short), [true], "too short");
        let wide = path(100, 1e-3, 4200);
        let report = of(vec![
            row(System::SelectiveRepeat, "sr:nack", wide, 30, 180.0),
            row(System::TcpBbr, "tcp-bbr", wide, 30, 181.0),
        ]);
        assert_eq!(goods(&report), [true, false, true], "with long packets headers are no excuse");
    }

    #[test]
    fn coded_messages_are_compared_with_their_own_and_with_others() {
        let report = |coded: f64, bytes| {
            of(vec![
                message(System::Erasure, "ec:mds:32,2", 0.0, bytes, [15.0, 16.0]),
                message(System::Erasure, "ec:mds:32,4", 1e-2, bytes, [15.0, coded]),
                message(System::TcpBbr, "tcp-bbr", 1e-2, bytes, [40.0, 90.0]),
                message(System::Quic, "quic:bbr", 1e-2, bytes, [15.0, 40.0]),
                message(System::SelectiveRepeat, "sr:nack", 0.0, bytes, [15.0, 16.0]),
            ])
        };
        let goods = |report: &Report| judged(report).into_iter().map(|(_, is_good)| is_good).collect::<Vec<_>>();
        assert_eq!(goods(&report(17.0, 64 << 10)), [true; 3]);
        assert_eq!(goods(&report(30.0, 64 << 10)), [false, false, true]);
        assert_eq!(goods(&report(30.0, 1 << 20)), [false, true, true], "long messages have another bar");
        let mut few = report(30.0, 64 << 10);
        few.rows[1].completion = Some(Completion { messages: 99, p50: 15.0, p99: Some(30.0) });
        assert_eq!(goods(&few), [true], "too few");
    }

    #[test]
    fn a_row_that_has_failed_is_not_forgotten() {
        let failed = |system, is_missing| {
            let task = Task::Row(row(system, "", path(25, 0.0, 1500), 1, 0.0).point);
            Report { unfinished: vec![Unfinished { task, is_missing, why: String::new() }], ..Report::default() }
        };
        assert!(!judged(&failed(System::SelectiveRepeat, false))[0].1);
        assert!(judged(&failed(System::Rc, false))[0].1 && judged(&failed(System::TcpBbr, true))[0].1);
    }
}
