//! `longhaul sim soak`: random programs over bad links, watched by checkers.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use longhaul_testbed::soak::{Campaign, OPERATIONS_DEFAULT, SeedReport, SoakOptions, Summary};
use serde_json::{Value, json};

use crate::exit;

/// Random programs of verbs operations over links that lose, reorder, duplicate and corrupt, watched by checkers
///
/// Every seed is a run of its own: a network, queue pairs and requests that follow from the seed alone. The checkers see
/// what a verbs program sees (memory and completions) and hold it against the specification. First the network is bad
/// and nothing wrong may happen; then it is healed and everything must get done. Exit status 1 when a rule was broken.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How many seeds to run
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    seeds: u64,

    /// The first seed; the others follow it
    #[arg(long, value_name = "NUMBER", default_value_t = 1, visible_alias = "seed")]
    first_seed: u64,

    /// Steps of each program
    #[arg(long, value_name = "NUMBER", default_value_t = OPERATIONS_DEFAULT)]
    operations: u32,

    /// Threads; the result does not depend on it [default: all cores]
    #[arg(long, value_name = "NUMBER")]
    threads: Option<usize>,

    /// Write the packets of the run as pcapng; one seed only
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Failing seeds whose violations are printed; of the others only the number.
const PRINTED_SEEDS_MAX: usize = 10;

/// Runs the scenario.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    if arguments.capture.is_some() && arguments.seeds != 1 {
        eprintln!("expected --seeds 1 with --capture, came --seeds {}: a capture holds one run", arguments.seeds);
        return ExitCode::from(exit::USAGE);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let campaign = Campaign {
        first_seed: arguments.first_seed,
        seed_count: arguments.seeds,
        options: SoakOptions {
            operations: arguments.operations,
            capture: arguments.capture.clone(),
            ..SoakOptions::default()
        },
        thread_count: arguments.threads.unwrap_or(cores).min(arguments.seeds.max(1) as usize),
    };
    let begin = Instant::now();
    let bar = progress_bar(arguments.seeds);
    let outcome = campaign.run(|report| {
        bar.inc(1);
        if !report.violations.is_empty() {
            bar.set_message(format!("seed {} fails", report.seed));
        }
    });
    bar.finish_and_clear();
    let summary = match outcome {
        Ok(summary) => summary,
        Err(error) => {
            eprintln!("the capture could not be written: {error}; is the file's folder there and writable?");
            return ExitCode::from(exit::MISSING);
        }
    };
    for report in summary.failing.iter().take(PRINTED_SEEDS_MAX) {
        eprint!("{}", describe_failure(report, arguments.operations));
    }
    if summary.failing.len() > PRINTED_SEEDS_MAX {
        eprintln!("… and {} more failing seeds", summary.failing.len() - PRINTED_SEEDS_MAX);
    }
    match arguments.json {
        true => println!("{}", to_json(&summary, begin.elapsed())),
        false => print!("{}", to_table(&summary, begin.elapsed())),
    }
    match summary.violations {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(exit::FAILED),
    }
}

fn progress_bar(seeds: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(seeds), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} seeds, {per_sec}, {eta} left {msg}");
    bar.set_style(style.expect("the template is right"));
    bar
}

/// What was wrong with a seed, and how to see it again.
fn describe_failure(report: &SeedReport, operations: u32) -> String {
    let seed = report.seed;
    let mut text = format!("seed {seed}: {} violations\n", report.violations.count());
    for violation in report.violations.kept() {
        text += &format!("  {violation}\n");
    }
    let operations = match operations {
        OPERATIONS_DEFAULT => String::new(),
        other => format!(" --operations {other}"),
    };
    text += &format!("  again: longhaul sim soak --seed {seed} --seeds 1{operations} --capture soak-{seed}.pcapng\n");
    text
}

fn to_json(summary: &Summary, elapsed: Duration) -> Value {
    let failing_seeds: Vec<u64> = summary.failing.iter().map(|report| report.seed).collect();
    json!({
        "schema": 1,
        "seeds": summary.seeds,
        "operations": summary.messages,
        "packets": summary.packets,
        "violations": summary.violations,
        "trace_hash": format!("{:016x}", summary.trace_hash),
        "failing_seeds": failing_seeds,
        "seconds": elapsed.as_secs_f64(),
    })
}

fn to_table(summary: &Summary, elapsed: Duration) -> String {
    let tally = &summary.tally;
    let seconds = elapsed.as_secs_f64();
    let rows = [
        ("seeds", summary.seeds.to_string()),
        ("requests posted", summary.messages.to_string()),
        ("  succeeded", tally.succeeded.to_string()),
        ("  refused, as they should be", tally.refused.to_string()),
        ("  retries exceeded", tally.retries_exceeded.to_string()),
        ("  flushed or forgotten", tally.flushed.to_string()),
        ("messages received", tally.received.to_string()),
        ("keys revoked", tally.revocations.to_string()),
        ("connections made anew", tally.reconnections.to_string()),
        ("packets", summary.packets.to_string()),
        ("trace hash", format!("{:016x}", summary.trace_hash)),
        ("violations", summary.violations.to_string()),
        ("failing seeds", summary.failing.len().to_string()),
        ("seconds", format!("{seconds:.1}")),
    ];
    rows.iter().map(|(name, value)| format!("{name:<30} {value:>16}\n")).collect()
}

#[cfg(test)]
mod tests {
    use longhaul_testbed::checker::{Rule, Violation, Violations};
    use longhaul_testbed::soak::Tally;

    use super::*;

    #[test]
    fn a_failing_seed_says_how_to_see_it_again() {
        let mut violations = Violations::default();
        violations.add(Violation {
            rule: Rule::Memory,
            at: Default::default(),
            subject: "region 3".to_owned(),
            expected: "no change".to_owned(),
            came: "bytes of message 9".to_owned(),
        });
        let report =
            SeedReport { seed: 42, messages: 1, packets: 1, trace_hash: 0, tally: Tally::default(), violations };
        let text = describe_failure(&report, 50);
        assert!(text.contains("expected no change, came bytes of message 9"), "{text}");
        assert!(
            text.contains("longhaul sim soak --seed 42 --seeds 1 --operations 50 --capture soak-42.pcapng"),
            "{text}"
        );
    }

    #[test]
    fn the_json_has_the_documented_form() {
        let campaign = Campaign {
            first_seed: 7,
            seed_count: 1,
            options: SoakOptions { operations: 5, ..SoakOptions::default() },
            thread_count: 1,
        };
        let summary = campaign.run(|_| {}).expect("nothing is written");
        let value = to_json(&summary, Duration::from_millis(1500));
        let object = value.as_object().expect("an object");
        let mut keys: Vec<&str> = object.keys().map(String::as_str).collect();
        keys.sort_unstable();
        let expected =
            ["failing_seeds", "operations", "packets", "schema", "seconds", "seeds", "trace_hash", "violations"];
        assert_eq!(keys, expected);
        assert_eq!(value["schema"], 1);
        assert_eq!(value["trace_hash"].as_str().map(str::len), Some(16));
        assert!(to_table(&summary, Duration::from_secs(1)).contains("violations"));
    }
}
