//! What the comparisons said: as a table, and as JSON.

use longhaul_plan::distribution::Summary;
use longhaul_scheme_testing::{
    validation::sockets::SocketsComparison,
    validation::twin::TwinComparison,
    validation::{MeanComparison, P999_RANKS, SOCKETS_BOUND, TWIN_BOUND, VIRTUAL_BOUND},
};
use serde_json::{Map, Value, json};

use super::arrived::{self, ArrivedCompared};
use super::work::{Compared, Results, Work};

pub(super) fn to_json(results: &Results, work: &Work, seconds: f64) -> Value {
    let [twin, virtual_time, sockets] = results.worst();
    let arrived_worst: Map<String, Value> =
        arrived::worst(&results.arrived).into_iter().map(|(what, _, worst)| (what.to_owned(), worst.into())).collect();
    json!({
        "schema": 1,
        "points": results.points.iter().map(point_to_json).collect::<Vec<_>>(),
        "worst": { "twin": twin, "virtual": virtual_time, "sockets": sockets },
        "worst_p999_rank": results.worst_p999_rank(),
        "arrived": {
            "points": results.arrived.iter().map(ArrivedCompared::to_json).collect::<Vec<_>>(),
            "worst": arrived_worst,
            "bounds": arrived::bounds_json(),
        },
        "bounds": {
            "twin": TWIN_BOUND,
            "virtual": VIRTUAL_BOUND,
            "sockets": SOCKETS_BOUND,
            "p999_rank": P999_RANKS,
        },
        "failures": results.failures(),
        "passed": results.failures().is_empty(),
        "samples": work.samples,
        "seed": work.seed,
        "seconds": seconds,
    })
}

fn point_to_json(compared: &Compared) -> Value {
    let Compared { point, model, twin, virtual_time, sockets } = compared;
    json!({
        "scheme": point.scheme.to_string(),
        "rate_bits_per_second": point.rate_bits_per_second,
        "rtt_seconds": point.round_trip.as_secs_f64(),
        "loss": point.loss,
        "burst_packets": point.burst_packets,
        "size_bytes": point.message_bytes,
        "chunk_bytes": point.chunk_bytes,
        "sites": point.sites,
        "model": summary_to_json(&model.summary()),
        "twin": twin.as_ref().map(twin_to_json),
        "virtual": virtual_time.as_ref().map(mean_to_json),
        "sockets": sockets.as_ref().map(sockets_to_json),
    })
}

fn summary_to_json(summary: &Summary) -> Map<String, Value> {
    let Summary { mean, p50, p99, p999 } = summary;
    [("mean_ms", mean), ("p50_ms", p50), ("p99_ms", p99), ("p999_ms", p999)]
        .map(|(key, seconds)| (key.to_owned(), (seconds * 1e3).into()))
        .into_iter()
        .collect()
}

fn twin_to_json(twin: &TwinComparison) -> Value {
    let mut object = summary_to_json(&twin.summary);
    object.extend([
        ("samples".to_owned(), twin.mean.samples.into()),
        ("deviation".to_owned(), twin.mean.deviation.into()),
        ("p999_rank".to_owned(), twin.p999_rank.into()),
        ("p999_passed".to_owned(), twin.p999_passed.into()),
        ("passed".to_owned(), twin.passed().into()),
    ]);
    object.into()
}

fn mean_to_json(comparison: &MeanComparison) -> Value {
    json!({
        "mean_ms": comparison.mean_seconds * 1e3,
        "samples": comparison.samples,
        "standard_error": comparison.standard_error,
        "deviation": comparison.deviation,
        "passed": comparison.passed,
    })
}

fn sockets_to_json(sockets: &SocketsComparison) -> Value {
    let mut value = mean_to_json(&sockets.mean);
    value["lossless"] = json!({
        "mean_ms": sockets.lossless.mean_seconds * 1e3,
        "samples": sockets.lossless.samples,
        "deviation": sockets.lossless.deviation,
        "noise": sockets.noise,
    });
    value["attempts"] = sockets.attempts.into();
    value
}

pub(super) fn to_table(results: &Results, work: &Work, seconds: f64) -> String {
    let mut table = String::new();
    if !results.points.is_empty() {
        table += &points_table(results, work);
        table.push('\n');
    }
    table += &arrived::to_table(&results.arrived);
    for failure in results.failures() {
        table += &format!("FAILED {failure}\n");
    }
    table += &format!("{} points in {seconds:.0} s\n", results.points.len() + results.arrived.len());
    table
}

fn points_table(results: &Results, work: &Work) -> String {
    let mut table = format!(
        "{:<68} {:>10} {:>10}  {:>8} {:>7}  {:>15}  {:>15} {:>6}\n",
        "times in ms; what the model is more by", "mean", "p99.9", "twin", "p99.9 is", "virtual", "sockets", "noise"
    );
    for Compared { point, model, twin, virtual_time, sockets } in &results.points {
        let model = model.summary();
        let percent = |deviation: f64| format!("{:+.2} %", deviation * 100.0);
        let measured = |comparison: &MeanComparison| {
            format!(
                "{:+.1} ± {:.1} %{}",
                comparison.deviation * 100.0,
                comparison.standard_error * 100.0,
                mark(comparison.passed)
            )
        };
        let twin_mean = twin.map(|twin| percent(twin.mean.deviation) + mark(twin.mean.passed));
        let rank = twin.map(|twin| format!("p{:.2}{}", twin.p999_rank * 100.0, mark(twin.p999_passed != Some(false))));
        let row = format!(
            "{:<68} {:>10.3} {:>10.3}  {:>8} {:>8}  {:>15}  {:>15} {:>6}",
            point.to_string(),
            model.mean * 1e3,
            model.p999 * 1e3,
            twin_mean.unwrap_or_default(),
            rank.unwrap_or_default(),
            virtual_time.as_ref().map(measured).unwrap_or_default(),
            sockets.map(|sockets| measured(&sockets.mean)).unwrap_or_default(),
            sockets.map(|sockets| format!("{:.1} %", sockets.noise * 100.0)).unwrap_or_default(),
        );
        table += row.trim_end();
        table.push('\n');
    }
    table.push('\n');
    let bounds = [("twin", TWIN_BOUND), ("virtual time", VIRTUAL_BOUND), ("sockets", SOCKETS_BOUND)];
    for ((name, bound), worst) in bounds.into_iter().zip(results.worst()) {
        if let Some(worst) = worst {
            table += &format!("worst mean, {name}: {:.2} % (bound {:.0} %)\n", worst * 100.0, bound * 100.0);
        }
    }
    if let Some(rank) = results.worst_p999_rank() {
        let [low, high] = P999_RANKS.map(|rank| rank * 100.0);
        let is_judged = match work.samples >= longhaul_scheme_testing::validation::SAMPLES_FOR_P999 {
            true => String::new(),
            false => format!("; not judged with {} samples", work.samples),
        };
        table += &format!("worst p99.9: the twin's p{:.3} (bounds {low:.2} and {high:.2}{is_judged})\n", rank * 100.0);
    }
    table
}

/// Where a bound is broken.
fn mark(passed: bool) -> &'static str {
    if passed { "" } else { " !" }
}
