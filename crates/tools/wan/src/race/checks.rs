//! What the race must show. A check whose rows were not run, or are not valid, is not made.

use std::time::Duration;

use super::plan::What;
use super::report::{Report, Row, ShareRow};
use super::system::System;

/// Longhaul's defaults on a clean link of 25 ms with 5 ms of queue, and on a lossy long one: share of the link less parity.
const GOODPUT_MIN: f64 = 0.9;
const CAUSED_LOSS_MAX: f64 = 0.02;
const REPEATS_MAX: f64 = 0.01;
/// These rows are long enough to be judged by.
const DEFAULTS_TIME_MIN: Duration = Duration::from_secs(60);
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
    let shares: Vec<&ShareRow> = report.shares.iter().filter(|share| share.lateness.is_valid()).collect();
    checks.extend(next_to_others(&shares));
    checks.extend(long_and_lossy(&rows));
    checks.extend(completions(&rows));
    let failed = report.unfinished.iter().filter(|unfinished| !unfinished.is_missing).count();
    checks.push(Check::most("rows that have failed".to_owned(), failed as f64, 0.0));
    checks
}

fn millis(row: &Row) -> u128 {
    row.point.path.round_trip.as_millis()
}

/// Whether losses come one by one, at this share.
fn loses(row: &Row, loss: f64) -> bool {
    row.point.path.burst <= 1 && row.point.path.loss == loss
}

fn defaults(rows: &[&Row]) -> Vec<Check> {
    let is_meant = |row: &&&Row| {
        let is_long = matches!(row.point.what, What::Bulk { time } if time >= DEFAULTS_TIME_MIN);
        row.point.system.is_longhaul() && row.point.connections == 1 && millis(row) == 25 && loses(row, 0.0) && is_long
    };
    let mut checks = Vec::new();
    for row in rows.iter().filter(is_meant) {
        let (name, bar) = (&row.name, GOODPUT_MIN * row.data_share());
        let goodput = row.goodput_of_link().unwrap_or_default();
        checks.push(Check::least(format!("{name}, 25 ms: share of the link"), goodput, bar));
        checks.push(Check::most(format!("{name}, 25 ms: loss caused"), row.caused_loss, CAUSED_LOSS_MAX));
        let repeats = row.repeats.unwrap_or_default();
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
            point.connections == 1 && point.path.mtu == mtu && millis(row) == 100 && loses(row, 1e-3)
        };
        let goodput = |row: &&Row| row.goodput.unwrap_or_default();
        let here: Vec<&Row> = rows.iter().filter(here).filter(|row| row.goodput.is_some()).copied().collect();
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
        let Some(p99) = row.completion.and_then(|completion| completion.p99) else { continue };
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
