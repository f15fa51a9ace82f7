//! A report as a table and as JSON.

use longhaul_impair::Loss;
use longhaul_units::bytes_text;
use longhaul_world::lowar::{Check, Recovery, Row, paper};
use serde_json::{Value, json};

use super::Report;

pub(super) fn to_json(report: &Report) -> Value {
    json!({
        "schema": 1,
        "seed": report.seed,
        "rows": report.rows.iter().map(row_to_json).collect::<Vec<_>>(),
        "recovery": report.recoveries.iter().map(recovery_to_json).collect::<Vec<_>>(),
        "checks": report.checks.iter().map(check_to_json).collect::<Vec<_>>(),
        "seconds": report.seconds,
    })
}

fn row_to_json(row: &Row) -> Value {
    let (point, measured) = (&row.point, &row.measured);
    json!({
        "figure": point.figure.number(),
        "rtt_ms": point.round_trip.as_secs_f64() * 1e3,
        "loss": point.loss.mean_loss(),
        "burst": point.burst_packets(),
        "loss_model": loss_model(&point.loss),
        "loss_in_burst": loss_in_burst(&point.loss),
        "connections": point.connections,
        "message_bytes": point.message_bytes,
        "depth": point.depth,
        "scheme": point.scheme.to_string(),
        "goodput_gbit_per_second": row.gigabits(),
        "over_rc": row.over_rc,
        "of_lossless": row.of_lossless,
        "repair_share": measured.repair_share,
        "timeouts": measured.timeouts,
        "messages": measured.completion_times.len(),
        "simulated_seconds": point.lasts.as_secs_f64(),
        "fct_ms": { "mean": measured.mean_ms(), "p99": measured.p99_ms() },
        "paper": paper::says(row),
    })
}

fn recovery_to_json(recovery: &Recovery) -> Value {
    json!({
        "figure": 13,
        "scheme": recovery.point.scheme.to_string(),
        "lost_in_a_row": recovery.point.lost_packets,
        "packet_us": recovery.packet_time.as_secs_f64() * 1e6,
        "message_us": recovery.message_time.as_secs_f64() * 1e6,
        "recovery_us": { "mean": recovery.mean_us(), "most": recovery.most_us() },
        "recoveries": recovery.latencies.len(),
        "not_restored": recovery.repeated,
    })
}

fn check_to_json(check: &Check) -> Value {
    json!({ "name": check.name, "passed": check.passed, "got": check.got, "bound": check.bound.to_string() })
}

fn loss_model(loss: &Loss) -> &'static str {
    match loss {
        Loss::FixedBursts { .. } => "fixed bursts",
        Loss::GilbertElliott { .. } => "geometric bursts",
        Loss::None => "none",
        _ => "independent",
    }
}

fn loss_in_burst(loss: &Loss) -> Option<f64> {
    match loss {
        Loss::FixedBursts { loss_in_burst, .. } => Some(*loss_in_burst),
        Loss::GilbertElliott { loss_bad, .. } => Some(*loss_bad),
        _ => None,
    }
}

fn text(value: Option<f64>, decimals: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.decimals$}"))
}

pub(super) fn to_table(report: &Report) -> String {
    let is_paper = !report.checks.is_empty();
    let mut table = format!(
        "{:<6} {:>5} {:>8} {:>10} {:>5} {:>7}  {:<15} {:>8} {:>7} {:>7} {:>8} {:>9} {:>9}",
        "figure",
        "ms",
        "loss",
        "burst",
        "conn.",
        "message",
        "scheme",
        "Gbit/s",
        "over rc",
        "repair",
        "timeouts",
        "mean ms",
        "p99 ms"
    );
    table += if is_paper { "  the paper says\n" } else { "\n" };
    let mut before = None;
    for row in &report.rows {
        let (point, measured) = (&row.point, &row.measured);
        if before.is_some_and(|before| before != point.figure) {
            table.push('\n');
        }
        before = Some(point.figure);
        let burst = match loss_in_burst(&point.loss) {
            Some(_) if matches!(point.loss, Loss::FixedBursts { .. }) => format!("{:.0}", point.burst_packets()),
            Some(_) => format!("mean {:.0}", point.burst_packets()),
            None => "-".to_owned(),
        };
        let burst = match loss_in_burst(&point.loss) {
            Some(share) if share < 1.0 => format!("{burst} × {share}"),
            _ => burst,
        };
        let line = format!(
            "{:<6} {:>5} {:>8} {burst:>10} {:>5} {:>7}  {:<15} {:>8.3} {:>7} {:>7.4} {:>8} {:>9} {:>9}  {}",
            point.figure.number().map_or("-".to_owned(), |number| number.to_string()),
            point.round_trip.as_secs_f64() * 1e3,
            format!("{:.1e}", point.loss.mean_loss()),
            point.connections,
            bytes_text(point.message_bytes as u64),
            point.scheme.to_string(),
            row.gigabits(),
            text(row.over_rc, 3),
            measured.repair_share,
            measured.timeouts,
            text(measured.mean_ms(), 2),
            text(measured.p99_ms(), 2),
            paper::says(row).filter(|_| is_paper).unwrap_or_default(),
        );
        table += line.trim_end();
        table.push('\n');
    }
    if !report.recoveries.is_empty() {
        table += "\nfigure 13: messages of 1 MiB at 10 Gbit/s, one after the other\n";
        table += &format!(
            "{:<15} {:>4} {:>10} {:>13} {:>13}\n",
            "scheme", "lost", "message µs", "recovery µs", "at most µs"
        );
    }
    for recovery in &report.recoveries {
        table += &format!(
            "{:<15} {:>4} {:>10.1} {:>13} {:>13}\n",
            recovery.point.scheme.to_string(),
            recovery.point.lost_packets,
            recovery.message_time.as_secs_f64() * 1e6,
            text(recovery.mean_us(), 1),
            text(recovery.most_us(), 1),
        );
    }
    if is_paper {
        table.push('\n');
    }
    for check in &report.checks {
        let verdict = if check.passed { "good" } else { "FAILED" };
        table += &format!("{verdict:<7} {:>9.4}, {}: {}\n", check.got, check.bound, check.name);
    }
    table
}
