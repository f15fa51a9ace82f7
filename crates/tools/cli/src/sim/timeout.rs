//! `longhaul sim timeout`: deadlines of bounded operations, and what each rule loses, on virtual time.

mod plots;

use std::path::PathBuf;

use longhaul_deadline_testing::{Check, Plan, Report, Row, timeouts};
use serde_json::{Value, json};

use crate::pictures;
use crate::stop::{self, Stop};

/// Show what deadlines of bounded operations lose: the rule that learns a loss budget, and the OptiNIC paper's rule
///
/// A group of ranks runs operations whose durations are lognormal, at tails (p99/p50) of 1.12, 1.5 and 3, without and
/// with a rank that is always twice as slow; at 1.5 also on paths that lose packets, and with mixed sizes on a path with
/// a latency. What has not arrived at the deadline is lost; the budget is for that, and what is lost in transit is
/// counted apart. Both rules get the same durations. Exit status 1 if a check fails: a rank that loses more than 1.5
/// times its budget (2 times of operations of a single size, where sizes are mixed), a slow rank that is not named or
/// another that is, losses in transit that make deadlines later, a run that its loss log does not repeat.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Ranks of the group, at least 5; the last one is the slow one
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = longhaul_units::whole_number(Plan::RANKS_MIN..=1024))]
    ranks: usize,

    /// Loss budgets of a rank, separated by commas
    #[arg(long, value_name = "SHARE", value_delimiter = ',', default_value = "1%,5%", value_parser = target)]
    target: Vec<f64>,

    /// Operations that count, after 200 in which the rules learn; of mixed sizes, four times as many
    #[arg(long, value_name = "NUMBER", default_value_t = 2000, value_parser = longhaul_units::whole_number(100_usize..=1_000_000))]
    operations: usize,

    /// Runs of each, each with a seed of its own
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = longhaul_units::whole_number(1_u64..=1000))]
    seeds: u64,

    /// The first seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1001)]
    first_seed: u64,

    /// Write pictures (SVG) into a directory
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

const LEARNING: usize = 200;

fn target(text: &str) -> Result<f64, String> {
    let fits = longhaul_units::share(text).ok().filter(|share| (0.0005..=0.5).contains(share));
    fits.ok_or_else(|| format!("expected a share from 0.05% to 50%, such as 1% or 0.01, got \"{text}\""))
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let Some(seeds_end) = arguments.first_seed.checked_add(arguments.seeds) else {
        let Arguments { first_seed, seeds, .. } = arguments;
        return Err(Stop::Usage(format!(
            "--first-seed {first_seed} with --seeds {seeds}: there are no seeds that large"
        )));
    };
    let plan = Plan {
        ranks: arguments.ranks,
        targets: arguments.target.clone(),
        learning: LEARNING,
        operations: arguments.operations,
        seeds: (arguments.first_seed..seeds_end).collect(),
    };
    plan.check().map_err(Stop::Usage)?;
    arguments.svg.as_deref().map_or(Ok(()), pictures::make)?;
    let report = timeouts(&plan, &mut |step| eprintln!("{step}"));
    if let Some(directory) = &arguments.svg {
        pictures::write(directory, plots::draw(&plan, &report))?;
    }
    let failed = report.checks.iter().filter(|check| !check.passed).count();
    let stop = Stop::checks_failed(failed, report.checks.len());
    stop::tell(arguments.json, || to_json(&plan, &report), || to_table(&plan, &report), stop)
}

fn to_json(plan: &Plan, report: &Report) -> Value {
    let row = |row: &Row| {
        json!({
            "rule": row.rule,
            "tail": row.group.tail,
            "slow_ranks": row.group.slow_ranks,
            "path_loss": row.group.path_loss,
            "mixed_sizes": row.group.mixed_sizes,
            "target": row.target,
            "undelivered_worst_rank": row.undelivered_worst_rank,
            "undelivered": row.undelivered,
            "undelivered_worst_size": row.undelivered_worst_size,
            "undelivered_mean": row.undelivered_mean,
            "lost_in_transit": row.lost_in_transit,
            "cut": row.cut,
            "late_ranks": row.late_ranks,
            "deadline_of_median": row.deadline_of_median,
            "p99_of_waiting": row.p99_of_waiting,
        })
    };
    let check =
        |check: &Check| json!({ "name": check.name, "passed": check.passed, "got": check.got, "bound": check.bound });
    json!({
        "schema": 1,
        "ranks": plan.ranks,
        "learning_operations": plan.learning,
        "operations": plan.operations,
        "seeds": plan.seeds,
        "rows": report.rows.iter().map(row).collect::<Vec<_>>(),
        "checks": report.checks.iter().map(check).collect::<Vec<_>>(),
    })
}

fn to_table(plan: &Plan, report: &Report) -> String {
    let ranks = |ranks: &[usize]| match ranks {
        [] => "none".to_owned(),
        ranks => ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
    };
    let mut table = format!(
        "{} ranks, {} operations after {}, {} seeds\n\n{:<8} {:<6} {:>5} {:>5} {:>7} {:>11} {:>7} {:>7} {:>9} {:>6} {:>9} {:>12}\n",
        plan.ranks,
        plan.operations,
        plan.learning,
        plan.seeds.len(),
        "rule",
        "group",
        "tail",
        "slow",
        "target",
        "worst rank",
        "mean",
        "cut",
        "transit",
        "late",
        "deadline",
        "p99 of whole"
    );
    for row in &report.rows {
        let target = row.target.map_or("-".to_owned(), |target| format!("{:.1} %", target * 100.0));
        let late = if row.rule == "paper" { "-".to_owned() } else { ranks(&row.late_ranks) };
        let kind = match (row.group.path_loss > 0.0, row.group.mixed_sizes) {
            (true, _) => "lossy",
            (_, true) => "mixed",
            _ => "plain",
        };
        table += &format!(
            "{:<8} {:<6} {:>5} {:>5} {target:>7} {:>9.2} % {:>5.2} % {:>5.1} % {:>7.2} % {late:>6} {:>9.2} {:>12.2}\n",
            row.rule,
            kind,
            row.group.tail,
            ranks(&row.group.slow_ranks),
            row.undelivered_worst_rank * 100.0,
            row.undelivered_mean * 100.0,
            row.cut * 100.0,
            row.lost_in_transit * 100.0,
            row.deadline_of_median,
            row.p99_of_waiting,
        );
    }
    table +=
        "\nWorst rank and mean: lost to deadlines. Transit: lost on the path. Deadlines in median durations. Whole:\n";
    table += "waiting for every rank, as reliable operations do. Lossy: the path loses packets. Mixed: sizes from 8 bytes to\n";
    table += "8 MiB, on a path with a latency.\n";
    let failed: Vec<&Check> = report.checks.iter().filter(|check| !check.passed).collect();
    table += &format!("{} of {} checks passed\n", report.checks.len() - failed.len(), report.checks.len());
    for check in failed {
        table += &format!("FAILED  {} {:.4}, got {:.4}\n", check.name, check.bound, check.got);
    }
    table
}
