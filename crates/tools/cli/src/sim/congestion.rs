//! `longhaul sim congestion`: what each congestion controller reaches in its own field, on virtual time.

use longhaul_congestion_testing::{Bar, Check, Report, Row, fabric, wide_area};
use serde_json::{Value, json};

use crate::stop::{self, Stop};

/// Show what congestion control reaches on a simulated bottleneck: goodput, fairness, queue, loss
///
/// Flows share one bottleneck, with loss, changes of its rate, flows that join, and traffic that does not react. `wan` is
/// tried at 200 Mbit/s to 10 Gbit/s and 5 to 200 ms; `dcqcn`, `swift` and `credit` at 25 and 100 Gbit/s and 10 to 100 µs.
/// Queue and loss are measured at the bottleneck. Goodput is payload delivered, over the rate times the payload's share
/// of a full packet; repair is ideal. Exit status 1 if a check fails.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Which controllers: those of the wide area, of fabrics, or all
    #[arg(long, value_name = "FIELD", value_enum, default_value_t = Field::All)]
    field: Field,

    /// Runs of each scenario, each with a seed of its own
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = longhaul_units::whole_number(1_u64..=1000))]
    seeds: u64,

    /// The first seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1001)]
    first_seed: u64,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Field {
    All,
    WideArea,
    Fabric,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let last_seed = arguments.first_seed.saturating_add(arguments.seeds);
    let seeds: Vec<u64> = (arguments.first_seed..last_seed).collect();
    let mut progress = |scenario: &str| eprintln!("{scenario}");
    let mut report = Report::default();
    let mut add = |Report { rows, checks }| {
        report.rows.extend(rows);
        report.checks.extend(checks);
    };
    if matches!(arguments.field, Field::All | Field::Fabric) {
        add(fabric(&seeds, &mut progress));
    }
    if matches!(arguments.field, Field::All | Field::WideArea) {
        add(wide_area(&seeds, &mut progress));
    }
    let failed = report.checks.iter().filter(|check| !check.is_good()).count();
    let stop = Stop::checks_failed(failed, report.checks.len());
    stop::tell(arguments.json, || to_json(&report), || to_table(&report), stop)
}

fn to_json(report: &Report) -> Value {
    let row = |row: &Row| {
        json!({
            "controller": row.controller,
            "scenario": row.scenario,
            "flows": row.flows,
            "seed": row.seed,
            "goodput_of_link": row.goodput_of_link,
            "jain": row.jain,
            "queue_ms_p99": row.queue_p99.as_secs_f64() * 1e3,
            "loss_caused": row.loss_caused,
            "converged_ms": row.converged.map(|time| time.as_secs_f64() * 1e3),
        })
    };
    let check = |check: &Check| {
        let (at_least, at_most) = match check.bar {
            Bar::AtLeast(bar) => (Some(bar), None),
            Bar::AtMost(bar) => (None, Some(bar)),
        };
        // JSON has no number for what never happened.
        let measured = Some(check.measured).filter(|measured| measured.is_finite());
        json!({
            "name": check.name, "measured": measured, "at_least": at_least, "at_most": at_most, "passed": check.is_good(),
        })
    };
    json!({
        "schema": 1,
        "rows": report.rows.iter().map(row).collect::<Vec<_>>(),
        "checks": report.checks.iter().map(check).collect::<Vec<_>>(),
    })
}

/// The worst run of each scenario by goodput, and the checks.
fn to_table(report: &Report) -> String {
    let mut table = format!(
        "{:<8} {:<76} {:>5} {:>8} {:>6} {:>10} {:>8} {:>10}\n",
        "", "scenario (its worst run)", "flows", "goodput", "Jain", "queue p99", "loss", "converged"
    );
    for rows in report.rows.chunk_by(|one, other| scenario_of(one) == scenario_of(other)) {
        let Some(worst) = rows.iter().min_by(|one, other| one.goodput_of_link.total_cmp(&other.goodput_of_link)) else {
            continue;
        };
        let converged =
            worst.converged.map_or("never".to_owned(), |time| format!("{:.1} ms", time.as_secs_f64() * 1e3));
        table += &format!(
            "{:<8} {:<76} {:>5} {:>8.3} {:>6.3} {:>7.3} ms {:>7.2}% {converged:>10}\n",
            worst.controller,
            worst.scenario,
            worst.flows,
            worst.goodput_of_link,
            worst.jain,
            worst.queue_p99.as_secs_f64() * 1e3,
            worst.loss_caused * 100.0,
        );
    }
    table += "\n";
    for check in &report.checks {
        let bar = match check.bar {
            Bar::AtLeast(bar) => format!("at least {bar:.4}"),
            Bar::AtMost(bar) => format!("at most {bar:.4}"),
        };
        let verdict = if check.is_good() { "good" } else { "FAILED" };
        table += &format!("{verdict:<7} {:>9.4}, {bar}: {}\n", check.measured, check.name);
    }
    table
}

/// What rows of one scenario have in common: some end with figures of the run.
fn scenario_of(row: &Row) -> (&str, &str) {
    (row.controller, row.scenario.split(": ").next().unwrap_or_default())
}
