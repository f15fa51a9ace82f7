//! A race as a table, as JSON and as comma-separated values.

use longhaul_units::bytes_text;
use longhaul_wan::race::{
    Check, Completion, LATE_BY_HOST_SHARE_MAX, LATE_SHARE_MAX, P99_MESSAGES_MIN, Path, Point, Report, Row, Share,
    ShareRow, System, Task, Verdict, What,
};
use serde_json::{Value, json};

use super::rate_text;

pub(super) fn millis(path: &Path) -> f64 {
    path.round_trip.as_nanos() as f64 / 1e6
}

fn queue_millis(path: &Path) -> f64 {
    path.queue().as_nanos() as f64 / 1e6
}

/// `1e-3`, or with bursts of 8 `1e-3 (8)`.
pub(super) fn loss_text(path: &Path) -> String {
    match (path.loss, path.burst) {
        (loss, _) if loss <= 0.0 => "0".to_owned(),
        (loss, 0 | 1) => format!("{loss:e}"),
        (loss, burst) => format!("{loss:e} ({burst})"),
    }
}

fn link_text(path: &Path) -> String {
    let [round_trip, queue] = [millis(path), queue_millis(path)];
    format!("{round_trip} ms, queue {queue} ms, loss {}, MTU {}", loss_text(path), path.mtu)
}

/// What is run, in a line.
pub(super) fn describe(task: &Task) -> String {
    match task {
        Task::Row(Point { kind, system, connections, path, message_bytes, what }) => {
            let seconds = what.time().as_secs_f64();
            let what = match what {
                What::Bulk { .. } => format!("{} for {seconds} s, {connections} connections", kind.name()),
                What::Completion { count, .. } => {
                    let size = bytes_text(*message_bytes as u64);
                    format!("{count} messages of {size}, for up to {seconds} s")
                }
            };
            format!("{system}: {what}, {}", link_text(path))
        }
        Task::Share(Share { ours, peer, path, time }) => {
            format!("{ours} next to {peer} for {} s, {}", time.as_secs_f64(), link_text(path))
        }
    }
}

fn row_to_json(row: &Row) -> Value {
    let Point { kind, connections, path, message_bytes, what, .. } = row.point;
    let times = |times: Completion| json!({ "p50": times.p50, "p99": times.p99, "longest": times.longest });
    json!({
        "system": row.name,
        "kind": kind.name(),
        "seconds": what.time().as_secs_f64(),
        "connections": connections,
        "rtt_ms": millis(&path),
        "queue_ms": queue_millis(&path),
        "loss": path.loss,
        "burst": path.burst,
        "message_bytes": message_bytes,
        "mtu": path.mtu,
        "goodput_mbit_per_second": row.goodput.map(|goodput| goodput / 1e6),
        "goodput_of_link": row.goodput_of_link(),
        "completion_ms": row.completion.map(times),
        "messages": row.completion.map(|times| times.messages),
        "late_frames": row.lateness.late,
        "late_frames_by_host": row.lateness.late_by_host,
        "valid": row.lateness.is_valid(),
    })
}

fn share_to_json(row: &ShareRow) -> Value {
    let [ours, theirs] = row.of_fair_share();
    let Share { ours: system, peer, path, time } = row.share;
    json!({
        "system": system.name(),
        "peer": peer.name(),
        "seconds": time.as_secs_f64(),
        "rtt_ms": millis(&path),
        "queue_ms": queue_millis(&path),
        "mtu": path.mtu,
        "ours": ours,
        "theirs": theirs,
        "late_frames": row.lateness.late,
        "late_frames_by_host": row.lateness.late_by_host,
        "valid": row.lateness.is_valid(),
    })
}

fn check_to_json(check: &Check) -> Value {
    let compared = if check.is_least { "at least" } else { "at most" };
    json!({
        "name": check.name,
        "good": check.is_good,
        "measured": check.measured,
        "bar": check.bar,
        "compared": compared,
    })
}

/// Systems that were run, with an MTU each.
fn payload_shares(report: &Report) -> Vec<(System, u16, f64)> {
    let rows = report.rows.iter().map(|row| (row.point.system, row.point.path.mtu));
    let shares = report.shares.iter().flat_map(|row| {
        let mtu = row.share.path.mtu;
        [(row.share.ours, mtu), (row.share.peer, mtu)]
    });
    let mut used: Vec<(System, u16)> = rows.chain(shares).collect();
    used.sort_unstable();
    used.dedup();
    used.into_iter().map(|(system, mtu)| (system, mtu, system.payload_share(mtu.into()))).collect()
}

/// Why the rate is what it is.
fn rate_note(rate: u64) -> String {
    format!(
        "{} in both directions, chosen with --rate; by default 200 Mbit/s, at which the bars are stated and a link with \
         both its ends on two processors keeps its times",
        rate_text(rate)
    )
}

pub(super) fn to_json(report: &Report, verdict: &Verdict, rate: u64) -> Value {
    let unfinished: Vec<Value> = report
        .unfinished
        .iter()
        .map(|one| json!({ "row": describe(&one.task), "missing": one.is_missing, "why": one.why }))
        .collect();
    let skipped = verdict.skipped.iter().map(|one| json!({ "row": describe(&one.task), "why": one.why }));
    let invalid: Vec<usize> =
        report.rows.iter().enumerate().filter(|(_, row)| !row.lateness.is_valid()).map(|(index, _)| index).collect();
    let payload = payload_shares(report)
        .into_iter()
        .map(|(system, mtu, share)| json!({ "system": system.name(), "mtu": mtu, "share": share }));
    json!({
        "schema": 1,
        "rate_mbit_per_second": rate as f64 / 1e6,
        "rate": rate_note(rate),
        "bbr": report.bbr_version,
        "seconds": report.elapsed.as_secs_f64(),
        "rows": report.rows.iter().map(row_to_json).collect::<Vec<_>>(),
        "shares": report.shares.iter().map(share_to_json).collect::<Vec<_>>(),
        "checks": verdict.checks.iter().map(check_to_json).collect::<Vec<_>>(),
        "skipped": skipped.collect::<Vec<_>>(),
        "unfinished": unfinished,
        "invalid_rows": invalid,
        "payload_shares": payload.collect::<Vec<_>>(),
        "options": report.options.iter().map(|one| json!({ "system": one.system.name(), "options": one.options })).collect::<Vec<_>>(),
    })
}

pub(super) fn to_csv(report: &Report) -> String {
    let mut text = String::from(
        "system,connections,rtt_ms,loss,burst,message_bytes,mtu,goodput_mbit_per_second,goodput_of_link,completion_p50_ms,\
         completion_p99_ms,late_frames,late_frames_by_host,valid,loss_caused,kind,seconds,messages,completion_longest_ms\n",
    );
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.4}"));
    for row in &report.rows {
        let Point { kind, connections, path, message_bytes, what, .. } = row.point;
        let times = row.completion;
        text += &format!(
            // A code has a comma in its name.
            "\"{}\",{connections},{},{},{},{message_bytes},{},{},{},{},{},{},{},{},{:.6},{},{},{},{}\n",
            row.name,
            millis(&path),
            path.loss,
            path.burst,
            path.mtu,
            number(row.goodput.map(|goodput| goodput / 1e6)),
            number(row.goodput_of_link()),
            number(times.map(|times| times.p50)),
            number(times.and_then(|times| times.p99)),
            row.lateness.late,
            row.lateness.late_by_host,
            row.lateness.is_valid(),
            row.caused_loss,
            kind.name(),
            what.time().as_secs_f64(),
            times.map_or_else(String::new, |times| times.messages.to_string()),
            number(times.map(|times| times.longest)),
        );
    }
    text
}

pub(super) fn to_table(report: &Report, verdict: &Verdict, rate: u64) -> String {
    let mut text = format!(
        "{:<15} {:>5} {:>7} {:>12} {:>9} {:>5} {:>8} {:>8} {:>9} {:>9} {:>5} {:>7} {:>8} {:>6} {:>8}\n",
        "system",
        "conns",
        "rtt ms",
        "loss",
        "message",
        "MTU",
        "Mbit/s",
        "of link",
        "p50 ms",
        "p99 ms",
        "msgs",
        "caused",
        "repeats",
        "late",
        "by host"
    );
    let number =
        |value: Option<f64>, decimals: usize| value.map_or("-".to_owned(), |value| format!("{value:.decimals$}"));
    let percent = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{:.2}%", 100.0 * value));
    for row in &report.rows {
        let Point { connections, path, message_bytes, .. } = row.point;
        text += &format!(
            "{:<15} {connections:>5} {:>7} {:>12} {:>9} {:>5} {:>8} {:>8} {:>9} {:>9} {:>5} {:>7} {:>8} {:>6} {:>8}{}\n",
            row.name,
            millis(&path),
            loss_text(&path),
            bytes_text(message_bytes as u64),
            path.mtu,
            number(row.goodput.map(|goodput| goodput / 1e6), 1),
            number(row.goodput_of_link(), 3),
            number(row.completion.map(|times| times.p50), 2),
            number(row.completion.and_then(|times| times.p99), 2),
            row.completion.map_or("-".to_owned(), |times| times.messages.to_string()),
            percent(Some(row.caused_loss)),
            percent(row.repeats),
            row.lateness.late,
            row.lateness.late_by_host,
            if row.lateness.is_valid() { "" } else { "  INVALID" },
        );
    }
    for row in &report.shares {
        let [ours, theirs] = row.of_fair_share();
        let [our_rate, their_rate] = row.goodputs.map(|goodput| goodput / 1e6);
        let (us, peer) = (row.share.ours, row.share.peer);
        let invalid = if row.lateness.is_valid() { "" } else { "  INVALID" };
        text += &format!(
            "{us} next to {peer}: {our_rate:.1} and {their_rate:.1} Mbit/s, {ours:.2} and {theirs:.2} of a fair share{invalid}\n"
        );
    }
    for one in &report.unfinished {
        let why = if one.is_missing { "missing" } else { "FAILED" };
        text += &format!("{why}: {}: {}\n", describe(&one.task), one.why);
    }
    text += &format!("\nlink: {}\n", rate_note(rate));
    text += &format!(
        "queue: 5 ms, or a fifth of the round trip if that is longer, and at least 4 full frames; msgs: messages that count, \
         p99 of {P99_MESSAGES_MIN} at least; late: frames that left more than 1 ms late, by host: those \
         of them that were due while the host had taken the link's processor away (more than {} % of others, or {} % of \
         those, and the row is run again)\nbbr: {}\n",
        100.0 * LATE_SHARE_MAX,
        100.0 * LATE_BY_HOST_SHARE_MAX,
        report.bbr_version.as_deref().unwrap_or("this kernel has none")
    );
    text += "payload of a full packet, of its bytes on the link:";
    for (system, mtu, share) in payload_shares(report) {
        text += &format!(" {system} {share:.3} (MTU {mtu})");
    }
    text += "\n";
    for one in &report.options {
        text += &format!("{}: {}\n", one.system, one.options);
    }
    text += "\n";
    for check in &verdict.checks {
        let compared = if check.is_least { "at least" } else { "at most" };
        let verdict = if check.is_good { "good" } else { "FAILED" };
        text += &format!("{verdict:<7} {:>9.4}, {compared} {:.4}: {}\n", check.measured, check.bar, check.name);
    }
    for one in &verdict.skipped {
        text += &format!("{:<7} {}: {}\n", "skipped", describe(&one.task), one.why);
    }
    text
}
