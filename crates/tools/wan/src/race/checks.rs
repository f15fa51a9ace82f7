//! What the race must show. A check whose rows were not run, or cannot be used, is not made; [`Verdict::skipped`] has the
//! rows that were to be judged.

use super::judged::{
    MESSAGE_RIVALS, OVER_BEST_MAX, OVER_OTHERS_MIN, Skipped, is_default, is_far_and_lossy, is_message, is_too_slow,
    is_usable, is_usable_share, loses, skipped,
};
use super::plan::{Point, Task, What};
use super::report::{P99_MESSAGES_MIN, Report, Row, ShareRow};
use super::system::System;

/// Longhaul's defaults on a clean link of 25 ms with 5 ms of queue, and on a lossy long one: share of the link less parity.
const GOODPUT_MIN: f64 = 0.9;
const CAUSED_LOSS_MAX: f64 = 0.02;
const REPEATS_MAX: f64 = 0.01;
/// Of a fair share.
const SHARE_MIN: f64 = 1.0 / 3.0;
const SHARE_NEXT_TO_BBR_MIN: f64 = 0.2;
/// At 100 ms and a loss of 1e-3.
const OVER_CUBIC_MIN: f64 = 5.0;
/// p99 of erasure coding, of its own median without loss.
const OVER_LOSSLESS_MAX: f64 = 1.2;

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

/// What a race has shown.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// What was checked.
    pub checks: Vec<Check>,
    /// What was to be judged, and could not be.
    pub skipped: Vec<Skipped>,
    /// There were rows to judge, and the link was late in all of them.
    pub is_all_invalid: bool,
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
pub fn judge(report: &Report) -> Verdict {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| is_usable(row)).collect();
    let shares: Vec<&ShareRow> = report.shares.iter().filter(|row| is_usable_share(row)).collect();
    let mut checks = defaults(&rows);
    checks.extend(next_to_others(&shares));
    checks.extend(far_and_lossy(&rows));
    checks.extend(completions(&rows));
    checks.extend(report.rows.iter().filter(|row| is_too_slow(row)).map(too_slow));
    checks.push(Check::most("rows that have failed, without rc".to_owned(), failed(report) as f64, 0.0));
    let (skipped, is_all_invalid) = skipped(report);
    Verdict { checks, skipped, is_all_invalid }
}

/// Rows that should have had a result. RC gives up after its retries, as hardware does.
fn failed(report: &Report) -> usize {
    let is_rc = |task: &Task| matches!(task, Task::Row(point) if point.system == System::Rc);
    report.unfinished.iter().filter(|one| !one.is_missing && !is_rc(&one.task)).count()
}

/// A row as its checks name it: no two rows have the same name.
fn name(row: &Row) -> String {
    let Point { kind, path, message_bytes, what, .. } = row.point;
    let (seconds, millis) = (what.time().as_secs_f64(), path.round_trip.as_secs_f64() * 1e3);
    let what = match what {
        What::Bulk { .. } => format!("{} for {seconds} s", kind.name()),
        What::Completion { .. } => format!("messages of {} KiB for up to {seconds} s", message_bytes >> 10),
    };
    let loss = if path.loss > 0.0 { format!("loss {:e}", path.loss) } else { "no loss".to_owned() };
    format!("{}, {what}, {millis} ms, {loss}, MTU {}", row.name, path.mtu)
}

fn defaults(rows: &[&Row]) -> Vec<Check> {
    let mut checks = Vec::new();
    for row in rows.iter().filter(|row| is_default(&row.point)) {
        let (name, bar) = (name(row), GOODPUT_MIN * row.data_share());
        let goodput = row.goodput_of_link().unwrap_or_default();
        checks.push(Check::least(format!("{name}: share of the link"), goodput, bar));
        checks.push(Check::most(format!("{name}: loss caused"), row.caused_loss, CAUSED_LOSS_MAX));
        // Without counters nothing is known, and that is not good.
        let repeats = row.repeats.unwrap_or(1.0);
        checks.push(Check::most(format!("{name}: share of repeats"), repeats, REPEATS_MAX));
    }
    checks
}

fn next_to_others(shares: &[&ShareRow]) -> Vec<Check> {
    let find = |ours, peer| shares.iter().find(|row| (row.share.ours, row.share.peer) == (ours, peer));
    let name = |row: &ShareRow| {
        let (share, seconds) = (row.share, row.share.time.as_secs_f64());
        format!("{} next to {} for {seconds} s, MTU {}", share.ours, share.peer, share.path.mtu)
    };
    let mut checks = Vec::new();
    let mut judge = |what: String, measured, bar| checks.push(Check::least(what, measured, bar));
    if let Some(row) = find(System::SelectiveRepeat, System::TcpCubic) {
        let ([ours, theirs], name) = (row.of_fair_share(), name(row));
        judge(format!("{name}: ours, of a fair share"), ours, SHARE_MIN);
        judge(format!("{name}: theirs, of a fair share"), theirs, SHARE_MIN);
    }
    if let Some(row) = find(System::SelectiveRepeat, System::TcpBbr) {
        let ([ours, theirs], name) = (row.of_fair_share(), name(row));
        judge(format!("{name}: ours, of a fair share"), ours, SHARE_NEXT_TO_BBR_MIN);
        judge(format!("{name}: theirs, of a fair share"), theirs, SHARE_MIN);
        if let Some(other) = find(System::TcpCubic, System::TcpBbr) {
            let [cubic, _] = other.of_fair_share();
            judge(format!("{name}: ours, against tcp-cubic in our place"), ours, cubic);
        }
    }
    checks
}

fn far_and_lossy(rows: &[&Row]) -> Vec<Check> {
    let mut checks = Vec::new();
    for (mtu, over_others) in OVER_OTHERS_MIN {
        let goodput = |row: &&Row| row.goodput.unwrap_or_default();
        let is_here = |row: &&&Row| is_far_and_lossy(&row.point) && row.point.path.mtu == mtu;
        let here: Vec<&Row> = rows.iter().filter(is_here).copied().collect();
        let ours = here.iter().filter(|row| row.point.system.is_longhaul());
        let Some(best) = ours.max_by(|one, other| goodput(one).total_cmp(&goodput(other))) else { continue };
        let (name, bar) = (name(best), GOODPUT_MIN * best.data_share());
        let share = best.goodput_of_link().unwrap_or_default();
        checks.push(Check::least(format!("{name}: share of the link"), share, bar));
        let others = [(System::TcpCubic, OVER_CUBIC_MIN), (System::TcpBbr, over_others), (System::Quic, over_others)];
        for (system, bar) in others {
            if let Some(other) = here.iter().find(|row| row.point.system == system) {
                let ratio = goodput(best) / goodput(other).max(1.0);
                checks.push(Check::least(format!("{name}: goodput over {system}"), ratio, bar));
            }
        }
    }
    checks
}

fn completions(rows: &[&Row]) -> Vec<Check> {
    let rows: Vec<&Row> = rows.iter().filter(|row| is_message(&row.point)).copied().collect();
    let mut checks = Vec::new();
    for row in rows.iter().filter(|row| row.point.system == System::Erasure && row.point.path.loss > 0.0) {
        let point = row.point;
        let Some(p99) = row.completion.and_then(|times| times.p99) else { continue };
        let bar = OVER_BEST_MAX.into_iter().find(|(bytes, _)| *bytes == point.message_bytes);
        let Some((_, over_best)) = bar else { continue };
        let is_alike =
            |other: &&&Row| (other.point.message_bytes, other.point.path.mtu) == (point.message_bytes, point.path.mtu);
        let alike: Vec<&Row> = rows.iter().filter(is_alike).copied().collect();
        let name = name(row);
        let lossless = alike.iter().find(|other| other.point.system == System::Erasure && loses(&other.point, 0.0));
        if let Some(lossless) = lossless.and_then(|other| other.completion) {
            let ratio = p99 / lossless.p50.max(1e-9);
            checks.push(Check::most(format!("{name}: p99 over its lossless median"), ratio, OVER_LOSSLESS_MAX));
        }
        let is_rival =
            |other: &&&Row| MESSAGE_RIVALS.contains(&other.point.system) && loses(&other.point, point.path.loss);
        let rivals =
            alike.iter().filter(is_rival).filter_map(|other| Some((other.point.system, other.completion?.p99?)));
        let rivals: Vec<(System, f64)> = rivals.collect();
        if let Some(best) = rivals.iter().map(|(_, p99)| *p99).min_by(f64::total_cmp) {
            let names: Vec<&str> = rivals.iter().map(|(system, _)| system.name()).collect();
            let ratio = p99 / best.max(1e-9);
            checks.push(Check::most(format!("{name}: p99 over the best of {}", names.join(", ")), ratio, over_best));
        }
    }
    checks
}

/// A row that is too slow to be judged is not let off for that.
fn too_slow(row: &Row) -> Check {
    let messages = row.completion.map_or(0, |completion| completion.messages);
    let name = name(row);
    Check::least(format!("{name}: messages that arrived"), messages as f64, P99_MESSAGES_MIN as f64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::plan::{Kind, Path, Share};
    use super::super::report::{Completion, Lateness, Unfinished};
    use super::*;

    fn path(millis: u64, loss: f64, mtu: u16) -> Path {
        Path { round_trip: Duration::from_millis(millis), loss, burst: 1, mtu, rate: 200_000_000 }
    }

    fn row(system: System, name: &str, path: Path, seconds: u64, goodput: f64) -> Row {
        let what = What::Bulk { time: Duration::from_secs(seconds) };
        Row {
            point: Point { kind: Kind::Bulk, system, connections: 1, path, message_bytes: 1 << 20, what },
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
        (row.point.kind, row.point.what) = (Kind::Completion, what);
        let completion = Completion { messages: 100, p50, p99: Some(p99), longest: p99 };
        Row { goodput: None, completion: Some(completion), ..row }
    }

    /// Too few messages, in a row of this time.
    fn few(row: &mut Row, seconds: u64) {
        row.completion = Some(Completion { messages: 99, p50: 15.0, p99: None, longest: 30.0 });
        row.point.what = What::Completion { count: 400, time: Duration::from_secs(seconds) };
    }

    fn whys(report: &Report) -> Vec<String> {
        judge(report).skipped.into_iter().map(|one| one.why).collect()
    }

    /// Names of checks that were made, without what stands before the colon, and whether they are good.
    fn judged(report: &Report) -> Vec<(String, bool)> {
        let checks = judge(report).checks;
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
        assert!(whys(&of(vec![sr(30, 170.0)])).is_empty(), "a bulk row of this place is not meant to be judged");
        let mut short = sr(30, 170.0);
        short.point.kind = Kind::Defaults;
        assert_eq!(whys(&of(vec![short])), ["it ran for 30 s; checks need 60 s"]);
        assert!(!judged(&of(vec![sr(60, 150.0)]))[0].1, "0.81 of the link");
        let mut bad = sr(60, 170.0);
        (bad.caused_loss, bad.repeats) = (0.03, Some(0.02));
        assert!(judged(&of(vec![bad.clone()]))[1..3].iter().all(|(_, is_good)| !is_good));
        bad.lateness.late = 2;
        let mut other_place = bad.clone();
        assert_eq!(judged(&of(vec![bad])).len(), 1, "a row that is not valid says nothing");
        other_place.lateness.late = 0;
        other_place.point.path.round_trip = Duration::from_micros(25_900);
        assert_eq!(judged(&of(vec![other_place])).len(), 1, "25.9 ms are not 25 ms");
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
        let mut short = report(30.0, 64 << 10);
        few(&mut short.rows[1], 1);
        assert_eq!(goods(&short), [true], "too few, in a time that somebody has shortened");
        assert_eq!(whys(&short), ["99 messages counted; checks need 100"]);
    }

    #[test]
    fn who_is_too_slow_to_be_judged_is_not_let_off() {
        let bytes = 64 << 10;
        let rows = vec![
            message(System::Erasure, "ec:mds:32,2", 0.0, bytes, [15.0, 16.0]),
            message(System::Erasure, "ec:mds:32,4", 1e-2, bytes, [15.0, 17.0]),
            message(System::TcpBbr, "tcp-bbr", 1e-2, bytes, [40.0, 90.0]),
        ];
        let changed = |index: usize, change: &dyn Fn(&mut Row)| {
            let mut rows = rows.clone();
            few(&mut rows[index], 15);
            change(&mut rows[index]);
            of(rows)
        };
        let slow = ("messages that arrived".to_owned(), false);
        let coded = changed(1, &|_| {});
        assert!(judged(&coded).len() == 2 && judged(&coded)[0] == slow && whys(&coded).is_empty(), "{coded:?}");
        let lossless = judged(&changed(0, &|_| {}));
        let [(compared, true), (_, false), _] = &lossless[..] else { panic!("{lossless:?}") };
        assert_eq!(compared, "p99 over the best of tcp-bbr", "a median of few is no bar");
        let rival = changed(2, &|_| {});
        let [(own, true), (_, true)] = &judged(&rival)[..] else { panic!("{rival:?}") };
        assert!(own.contains("lossless median") && whys(&rival).len() == 1, "nobody is judged by a rival's few");
        let narrow = changed(1, &|row| row.point.path.rate = 2_000_000);
        assert!(judged(&narrow).len() == 1 && whys(&narrow).len() == 1, "this link had no room for more");
    }

    #[test]
    fn rows_of_two_kinds_have_two_names() {
        let at = path(25, 0.0, 1500);
        let mut rows: Vec<Row> = (0..3).map(|_| row(System::SelectiveRepeat, "sr:nack", at, 60, 170.0)).collect();
        rows[1].point.kind = Kind::Defaults;
        rows[2].point.path.mtu = 4200;
        let mut names: Vec<String> = judge(&of(rows)).checks.into_iter().map(|check| check.name).collect();
        assert_eq!(names[0], "sr:nack, bulk for 60 s, 25 ms, no loss, MTU 1500: share of the link");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 3 * 3 + 1);
    }

    #[test]
    fn nothing_but_late_rows_is_no_success() {
        let late = |seconds| {
            let mut late = row(System::SelectiveRepeat, "sr:nack", path(100, 1e-3, 1500), seconds, 170.0);
            late.lateness.late = 20;
            late
        };
        let verdict = judge(&of(vec![late(30), late(30)]));
        assert!(verdict.is_all_invalid && verdict.checks.len() == 1 && verdict.skipped.len() == 2, "{verdict:?}");
        assert_eq!(
            verdict.skipped[0].why,
            "not valid: the link was late with 2.00 % of the frames, the host with 0.00 %"
        );
        let mut good = late(30);
        good.lateness.late = 0;
        assert!(!judge(&of(vec![late(30), good])).is_all_invalid);
        assert!(!judge(&of(vec![late(10)])).is_all_invalid, "that one would not have been judged anyway");
        let mut elsewhere = late(30);
        elsewhere.point.path.round_trip = Duration::from_millis(5);
        let verdict = judge(&of(vec![elsewhere]));
        assert!(!verdict.is_all_invalid && verdict.skipped.is_empty(), "no check asks for it");
    }

    #[test]
    fn a_row_that_has_failed_is_not_forgotten() {
        let failed = |system, is_missing| {
            let task = Task::Row(row(system, "", path(25, 0.0, 1500), 1, 0.0).point);
            Report { unfinished: vec![Unfinished { task, is_missing, why: String::new() }], ..Report::default() }
        };
        assert!(!judged(&failed(System::SelectiveRepeat, false))[0].1);
        let mut far = failed(System::TcpBbr, true);
        far.unfinished[0].task = Task::Row(row(System::TcpBbr, "", path(100, 1e-3, 1500), 30, 0.0).point);
        far.unfinished[0].why = "no bbr".to_owned();
        assert_eq!(whys(&far), ["no bbr"]);
        assert!(judged(&failed(System::Rc, false))[0].1 && judged(&failed(System::TcpBbr, true))[0].1);
    }
}
