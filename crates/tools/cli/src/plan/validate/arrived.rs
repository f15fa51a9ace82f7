//! What has arrived of bounded messages by their deadlines.

use indicatif::ProgressBar;
use longhaul_plan::bounded::Arrived;
use longhaul_scheme_testing::validation::arrived::{
    ARRIVED_P99_MIN, ARRIVED_SOCKETS_BOUND, ARRIVED_VIRTUAL_BOUND, ArrivedComparison, ArrivedPoint, SOCKETS_MESSAGES,
    arrived_points, on_sockets, on_virtual_time,
};
use serde_json::{Value, json};

use super::work::{LINKS_AT_ONCE, SOCKETS_WEIGHT, Work};
use crate::parallel::on_threads;

/// What a point on virtual time counts for on the progress bar: about milliseconds.
const VIRTUAL_WEIGHT: u64 = 500;
/// The first of the addresses that links on sockets have: others have those below.
const FIRST_NUMBER: usize = 100;

/// A point, and what each comparison there said.
pub(super) struct ArrivedCompared {
    pub(super) point: ArrivedPoint,
    pub(super) model: Arrived,
    pub(super) virtual_time: Option<ArrivedComparison>,
    pub(super) sockets: Option<ArrivedComparison>,
}

fn socket_points() -> usize {
    arrived_points().iter().filter(|point| point.is_on_sockets).count()
}

pub(super) fn weight(work: &Work) -> u64 {
    let on_sockets = SOCKETS_WEIGHT * (socket_points() * SOCKETS_MESSAGES) as u64;
    VIRTUAL_WEIGHT * arrived_points().len() as u64 * u64::from(work.with_virtual_time)
        + on_sockets * u64::from(work.with_sockets)
}

pub(super) fn compare(work: &Work, bar: &ProgressBar) -> Result<Vec<ArrivedCompared>, String> {
    if !(work.with_virtual_time || work.with_sockets) {
        return Ok(Vec::new());
    }
    bar.set_message("bounded messages");
    let numbered: Vec<(usize, ArrivedPoint)> = arrived_points().into_iter().enumerate().collect();
    let virtual_time = on_threads(work.threads, &numbered, |(_, point)| {
        let compared = work.with_virtual_time.then(|| on_virtual_time(point, work.seed)).transpose();
        bar.inc(VIRTUAL_WEIGHT * u64::from(work.with_virtual_time));
        compared.map_err(|error| format!("{point}, on virtual time: {error}"))
    });
    let sockets = on_threads(LINKS_AT_ONCE, &numbered, |(index, point)| {
        let is_there = work.with_sockets && point.is_on_sockets;
        let number = (FIRST_NUMBER + index % (127 - FIRST_NUMBER)) as u8;
        let compared = is_there.then(|| on_sockets(point, work.seed, number, || bar.inc(SOCKETS_WEIGHT))).transpose();
        compared.map_err(|error| format!("{point}, on sockets: {error}"))
    });
    let mut all = Vec::new();
    for (((_, point), virtual_time), sockets) in numbered.into_iter().zip(virtual_time).zip(sockets) {
        let model = point.model().map_err(|error| format!("{point}: {error}"))?;
        all.push(ArrivedCompared { point, model, virtual_time: virtual_time?, sockets: sockets? });
    }
    Ok(all)
}

/// The largest difference from virtual time, and from sockets, with the bounds.
pub(super) fn worst(all: &[ArrivedCompared]) -> [(&'static str, f64, Option<f64>); 2] {
    let worst = |of: fn(&ArrivedCompared) -> Option<ArrivedComparison>| {
        let judged = all.iter().filter_map(of).filter(|compared| compared.passed.is_some());
        judged.map(|compared| compared.difference.abs()).reduce(f64::max)
    };
    [
        ("virtual", ARRIVED_VIRTUAL_BOUND, worst(|compared| compared.virtual_time)),
        ("sockets", ARRIVED_SOCKETS_BOUND, worst(|compared| compared.sockets)),
    ]
}

impl ArrivedCompared {
    /// Every bound that is broken, in words.
    pub(super) fn failures(&self) -> Vec<String> {
        let with = [
            ("virtual time", ARRIVED_VIRTUAL_BOUND, self.virtual_time),
            ("sockets", ARRIVED_SOCKETS_BOUND, self.sockets),
        ];
        let failed = with.into_iter().filter_map(|(what, bound, compared)| {
            let compared = compared.filter(|compared| compared.passed == Some(false))?;
            let ArrivedComparison { mean, difference, at_least_p99, .. } = compared;
            Some(format!(
                "{}: {:.1} % have arrived on {what}, and {:+.1} points more in the model; the bound is {:.0} points; {:.1} % of the \
                 messages have what 99 % should",
                self.point,
                mean * 100.0,
                difference * 100.0,
                bound * 100.0,
                at_least_p99 * 100.0
            ))
        });
        failed.collect()
    }

    pub(super) fn to_json(&self) -> Value {
        let ArrivedCompared { point, model, virtual_time, sockets } = self;
        let compared = |compared: &ArrivedComparison| {
            json!({
                "mean": compared.mean,
                "standard_error": compared.standard_error,
                "samples": compared.samples,
                "difference": compared.difference,
                "at_least_p99": compared.at_least_p99,
                "passed": compared.passed,
            })
        };
        json!({
            "rate_bits_per_second": point.rate_bits_per_second,
            "rtt_seconds": point.round_trip.as_secs_f64(),
            "loss": point.loss,
            "burst_packets": point.burst_packets,
            "size_bytes": point.message_bytes,
            "deadline_seconds": point.deadline.as_secs_f64(),
            "model": { "mean": model.mean, "p50": model.p50, "p99": model.p99 },
            "virtual": virtual_time.as_ref().map(compared),
            "sockets": sockets.as_ref().map(compared),
        })
    }
}

pub(super) fn bounds_json() -> Value {
    json!({ "virtual": ARRIVED_VIRTUAL_BOUND, "sockets": ARRIVED_SOCKETS_BOUND, "p99": ARRIVED_P99_MIN })
}

pub(super) fn to_table(all: &[ArrivedCompared]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut table = format!(
        "{:<68} {:>10} {:>10}  {:>15} {:>7}  {:>15}\n",
        "% arrived by the deadline; points that the model is more by", "mean", "p99", "virtual", "p99 is", "sockets"
    );
    for ArrivedCompared { point, model, virtual_time, sockets } in all {
        let measured = |compared: &ArrivedComparison| {
            let mark = if compared.passed == Some(false) { " !" } else { "" };
            format!("{:+.2} ± {:.2}{mark}", compared.difference * 100.0, compared.standard_error * 100.0)
        };
        let row = format!(
            "{:<68} {:>10.2} {:>10.2}  {:>15} {:>7}  {:>15}",
            point.to_string(),
            model.mean * 100.0,
            model.p99 * 100.0,
            virtual_time.as_ref().map(measured).unwrap_or_default(),
            virtual_time.map(|compared| format!("p{:.1}", compared.at_least_p99 * 100.0)).unwrap_or_default(),
            sockets.as_ref().map(measured).unwrap_or_default(),
        );
        table += row.trim_end();
        table.push('\n');
    }
    table.push('\n');
    for (what, bound, worst) in worst(all) {
        if let Some(worst) = worst {
            table +=
                &format!("worst share arrived, {what}: {:.2} points (bound {:.0})\n", worst * 100.0, bound * 100.0);
        }
    }
    table
}
