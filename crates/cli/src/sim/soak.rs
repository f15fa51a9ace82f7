//! `longhaul sim soak`: random programs over bad links, watched by checkers.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use indicatif::ProgressBar;
use longhaul_testbed::soak::{Campaign, OPERATIONS_DEFAULT, SoakOptions};

use crate::{exit, message, progress, soak_report};

/// Random programs of verbs operations over links that lose, reorder, duplicate and corrupt, watched by checkers
///
/// Every seed is a run of its own: a network, queue pairs and requests that follow from the seed alone. The checkers see
/// what a verbs program sees (memory and completions) and hold it against the specification. First the network is bad
/// and nothing wrong may happen; then it is healed and everything must get done. Exit status 1 when a rule was broken.
/// (`longhaul conformance --soak` does the same over real sockets.)
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How many seeds to run
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
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
        time_limit: None,
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
            eprintln!("{}", message::with_sources(&error));
            return ExitCode::from(exit::MISSING);
        }
    };
    eprint!("{}", soak_report::describe_failures(&summary, |seed| again(seed, arguments.operations)));
    match arguments.json {
        true => println!("{}", soak_report::to_json(&summary, begin.elapsed())),
        false => {
            let rows = soak_report::virtual_rows(&summary);
            print!("{}", soak_report::to_table(&summary, begin.elapsed(), &rows));
        }
    }
    match summary.violations {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(exit::FAILED),
    }
}

fn progress_bar(seeds: u64) -> ProgressBar {
    progress::bar(seeds, "{bar:30} {pos}/{len} seeds, {per_sec}, {eta} left {msg}")
}

/// The command that shows a seed again.
fn again(seed: u64, operations: u32) -> String {
    let operations = match operations {
        OPERATIONS_DEFAULT => String::new(),
        other => format!(" --operations {other}"),
    };
    format!("longhaul sim soak --seed {seed} --seeds 1{operations} --capture soak-{seed}.pcapng")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_shown_again_with_the_same_options() {
        let expected = "longhaul sim soak --seed 42 --seeds 1 --operations 50 --capture soak-42.pcapng";
        assert_eq!(again(42, 50), expected);
        assert!(!again(42, OPERATIONS_DEFAULT).contains("--operations"));
    }
}
