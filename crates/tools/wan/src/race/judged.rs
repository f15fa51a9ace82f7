//! Which rows checks use, and why they cannot use one.

use std::time::Duration;

use super::plan::{COMPLETION_TIME, Kind, Point, Task, What};
use super::report::{Lateness, P99_MESSAGES_MIN, Report, Row, ShareRow};
use super::system::System;

/// Rows that are shorter say little: of defaults and of shares, and of bulk.
const DEFAULTS_TIME_MIN: Duration = Duration::from_secs(60);
const BULK_TIME_MIN: Duration = Duration::from_secs(30);
/// Where rows are judged.
const NEAR: Duration = Duration::from_millis(25);
const FAR: Duration = Duration::from_millis(100);
const FAR_LOSS: f64 = 1e-3;
const MESSAGE_LOSSES: [f64; 2] = [1e-3, 1e-2];
/// A link that can carry this many times the messages that are needed leaves no excuse for too few.
const ROOM_FOR_MESSAGES: f64 = 1.5;

/// Raw goodput, of that of TCP bbr and QUIC, by MTU.
pub(super) const OVER_OTHERS_MIN: [(u16, f64); 2] = [(1500, 0.95), (4200, 1.0)];
/// p99 of erasure coding, of the best p99 of others, by bytes of a message.
pub(super) const OVER_BEST_MAX: [(usize, f64); 2] = [(64 << 10, 0.5), (1 << 20, 0.9)];
/// Those others.
pub(super) const MESSAGE_RIVALS: [System; 3] = [System::TcpBbr, System::Quic, System::SelectiveRepeat];

/// Something that was to be judged, and could not be.
#[derive(Clone, Debug)]
pub struct Skipped {
    /// What was to run.
    pub task: Task,
    /// Why.
    pub why: String,
}

/// What a check needs of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Time(Duration),
    Messages,
}

/// Whether checks can use a row.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Use {
    /// No check asks for it.
    Unasked,
    /// Not for long enough: somebody wanted it so.
    Short(String),
    /// The link was late.
    Invalid(String),
    /// It had its time, and carried too few messages.
    Slow(String),
    Good,
}

/// Whether losses come one by one, at this share.
pub(super) fn loses(point: &Point, loss: f64) -> bool {
    point.path.burst <= 1 && point.path.loss == loss
}

/// A scheme of Longhaul alone on a clean link.
pub(super) fn is_default(point: &Point) -> bool {
    let is_alone = point.system.is_longhaul() && point.connections == 1;
    // Bulk rows of a minute show the same.
    let is_long = point.kind == Kind::Defaults || point.what.time() >= DEFAULTS_TIME_MIN;
    is_alone && is_long && is_bulk(point) && point.path.round_trip == NEAR && loses(point, 0.0)
}

/// A long link that loses packets.
pub(super) fn is_far_and_lossy(point: &Point) -> bool {
    let is_there = point.path.round_trip == FAR && loses(point, FAR_LOSS) && point.connections == 1 && is_bulk(point);
    let is_compared = matches!(point.system, System::TcpCubic | System::TcpBbr | System::Quic);
    is_there
        && (is_compared || point.system.is_longhaul())
        && OVER_OTHERS_MIN.iter().any(|(mtu, _)| *mtu == point.path.mtu)
}

/// Messages of a coded scheme, and what they are compared with.
pub(super) fn is_message(point: &Point) -> bool {
    let is_there = point.path.round_trip == NEAR && matches!(point.what, What::Completion { .. });
    let is_lossy = MESSAGE_LOSSES.iter().any(|loss| loses(point, *loss));
    let is_compared = match point.system {
        System::Erasure => is_lossy || loses(point, 0.0),
        system => is_lossy && MESSAGE_RIVALS.contains(&system),
    };
    is_there && is_compared && OVER_BEST_MAX.iter().any(|(bytes, _)| *bytes == point.message_bytes)
}

fn is_bulk(point: &Point) -> bool {
    matches!(point.what, What::Bulk { .. })
}

fn need(task: &Task) -> Option<Need> {
    match task {
        Task::Share(_) => Some(Need::Time(DEFAULTS_TIME_MIN)),
        Task::Row(point) if is_default(point) => Some(Need::Time(DEFAULTS_TIME_MIN)),
        Task::Row(point) if is_far_and_lossy(point) => Some(Need::Time(BULK_TIME_MIN)),
        Task::Row(point) if is_message(point) => Some(Need::Messages),
        Task::Row(_) => None,
    }
}

/// Whether the link could have carried the messages that are needed, in the time of the row.
fn has_room_for_messages(point: &Point) -> bool {
    let message = 8.0 * point.message_bytes as f64 / point.path.rate.max(1) as f64;
    let one = point.path.round_trip.as_secs_f64() + message;
    point.what.time().as_secs_f64() / one >= ROOM_FOR_MESSAGES * P99_MESSAGES_MIN as f64
}

fn use_of(task: &Task, lateness: Lateness, messages: usize) -> Use {
    let Some(need) = need(task) else { return Use::Unasked };
    let is_few = need == Need::Messages && messages < P99_MESSAGES_MIN;
    let few = || format!("{messages} messages counted; checks need {P99_MESSAGES_MIN}");
    let time = task.time();
    match need {
        Need::Time(least) if time < least => {
            let [time, least] = [time, least].map(|time| time.as_secs_f64());
            return Use::Short(format!("it ran for {time} s; checks need {least} s"));
        }
        Need::Messages if is_few && time < COMPLETION_TIME => return Use::Short(few()),
        _ => {}
    }
    match lateness.why_invalid() {
        Some(why) => Use::Invalid(why),
        None if is_few => Use::Slow(few()),
        None => Use::Good,
    }
}

fn use_of_row(row: &Row) -> Use {
    let messages = row.completion.map_or(0, |completion| completion.messages);
    use_of(&Task::Row(row.point), row.lateness, messages)
}

fn use_of_share(row: &ShareRow) -> Use {
    use_of(&Task::Share(row.share), row.lateness, 0)
}

/// Whether checks use a row.
pub(super) fn is_usable(row: &Row) -> bool {
    use_of_row(row) == Use::Good
}

/// Whether checks use it.
pub(super) fn is_usable_share(row: &ShareRow) -> bool {
    use_of_share(row) == Use::Good
}

/// Whether a coded scheme had its time and a link with room, and still carried too few messages to be judged.
pub(super) fn is_too_slow(row: &Row) -> bool {
    row.point.system == System::Erasure && matches!(use_of_row(row), Use::Slow(_)) && has_room_for_messages(&row.point)
}

/// What was to be judged and could not be, and whether nothing could be because the link was always late.
pub(super) fn skipped(report: &Report) -> (Vec<Skipped>, bool) {
    let rows = report.rows.iter().map(|row| (Task::Row(row.point), use_of_row(row), is_too_slow(row)));
    let shares = report.shares.iter().map(|row| (Task::Share(row.share), use_of_share(row), false));
    let (mut skipped, mut invalid, mut valid) = (Vec::new(), 0, 0);
    for (task, used, is_too_slow) in rows.chain(shares) {
        match used {
            Use::Unasked => {}
            Use::Short(why) => skipped.push(Skipped { task, why }),
            Use::Invalid(why) => {
                invalid += 1;
                skipped.push(Skipped { task, why });
            }
            Use::Slow(why) => {
                valid += 1;
                // A check says so.
                if !is_too_slow {
                    skipped.push(Skipped { task, why });
                }
            }
            Use::Good => valid += 1,
        }
    }
    let unfinished = report.unfinished.iter().filter(|one| need(&one.task).is_some());
    skipped.extend(unfinished.map(|one| Skipped { task: one.task, why: one.why.clone() }));
    (skipped, invalid > 0 && valid == 0)
}
