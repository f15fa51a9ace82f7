//! `longhaul sim soak`: random programs over bad links, watched by checkers.

use std::path::PathBuf;
use std::time::Instant;

use indicatif::ProgressBar;

use longhaul_conformance::soak::{Campaign, OPERATIONS_DEFAULT, SoakOptions};

use longhaul_softnic_udp::Lowar;

use super::message_soak;
use crate::stop::{self, Stop};
use crate::{progress, soak_report};

/// Run random verbs programs over links that lose, reorder, duplicate and corrupt packets, and check the results
///
/// Each seed is a separate run: the network, queue pairs and requests follow from the seed alone. The checkers see what
/// a verbs program sees (memory and completions) and compare it with the specification. While the network is bad,
/// nothing may go wrong; after it heals, everything must complete. The exit status is 1 if a rule was broken. A failing
/// seed of --messages is shrunk to a short program. `longhaul conformance --soak` does the same over real sockets.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Number of seeds to run
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = longhaul_units::whole_number(1_u64..))]
    seeds: u64,

    /// First seed; the others follow it
    #[arg(long, value_name = "NUMBER", default_value_t = 1, visible_alias = "seed")]
    first_seed: u64,

    /// Run programs of messages over `sdr` and `reliable` instead of verbs, with an attacker and a lying peer
    #[arg(long, conflicts_with_all = ["operations", "capture"])]
    messages: bool,

    /// With --messages and one seed: run only these items of the program, as a failing seed prints them, such as 1,4-7
    #[arg(long, value_name = "ITEMS", requires = "messages", value_parser = message_soak::parse_only)]
    only: Option<message_soak::Only>,

    /// Steps per program
    #[arg(long, value_name = "NUMBER", default_value_t = OPERATIONS_DEFAULT)]
    operations: u32,

    /// Protect RC and UC with forward error correction below them: lowar:R,C or lowar:mds:R,C, such as lowar:8,2
    #[arg(long, value_name = "CODE", conflicts_with = "messages")]
    fec: Option<Lowar>,

    /// Threads; the result does not depend on it [default: all cores]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// With one seed: write the packets of the run to a pcapng file
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the scenario.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    if arguments.capture.is_some() && arguments.seeds != 1 {
        let seeds = arguments.seeds;
        let text = format!("expected --seeds 1 with --capture, got --seeds {seeds}: a capture holds one run");
        return Err(Stop::Usage(text));
    }
    if arguments.only.is_some() && arguments.seeds != 1 {
        let seeds = arguments.seeds;
        let text = format!("--only needs --seeds 1, got --seeds {seeds}: items belong to the program of one seed");
        return Err(Stop::Usage(text));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.map_or(cores, usize::from).min(arguments.seeds.max(1) as usize);
    if arguments.messages {
        return message_soak::run(message_soak::Options {
            first_seed: arguments.first_seed,
            seeds: arguments.seeds,
            threads,
            only: arguments.only.clone().map(|only| only.0),
            json: arguments.json,
        });
    }
    let campaign = Campaign {
        first_seed: arguments.first_seed,
        seed_count: arguments.seeds,
        options: SoakOptions {
            operations: arguments.operations,
            capture: arguments.capture.clone(),
            fec: arguments.fec.map(|Lowar(code)| code),
            ..SoakOptions::default()
        },
        thread_count: threads,
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
    let summary = outcome.map_err(|error| Stop::Missing(longhaul::with_sources(&error)))?;
    eprint!("{}", soak_report::describe_failures(&summary, |seed| again(seed, arguments.operations, arguments.fec)));
    let elapsed = begin.elapsed();
    let value = || soak_report::to_json(&summary, elapsed);
    let table = || soak_report::to_table(&summary, elapsed, &soak_report::virtual_rows(&summary));
    stop::tell(arguments.json, value, table, soak_report::wrong(summary.failing.len(), summary.seeds))
}

fn progress_bar(seeds: u64) -> ProgressBar {
    progress::bar(seeds, "{bar:30} {pos}/{len} seeds, {per_sec}, {eta} left {msg}")
}

/// The command that shows a seed again.
fn again(seed: u64, operations: u32, fec: Option<Lowar>) -> String {
    let operations = match operations {
        OPERATIONS_DEFAULT => String::new(),
        other => format!(" --operations {other}"),
    };
    let fec = fec.map_or_else(String::new, |code| format!(" --fec {code}"));
    format!("longhaul sim soak --seed {seed} --seeds 1{operations}{fec} --capture soak-{seed}.pcapng")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_shown_again_with_the_same_options() {
        let expected = "longhaul sim soak --seed 42 --seeds 1 --operations 50 --capture soak-42.pcapng";
        assert_eq!(again(42, 50, None), expected);
        assert!(!again(42, OPERATIONS_DEFAULT, None).contains("--operations"));
        assert!(again(42, 50, "lowar:8,2".parse().ok()).contains(" --fec lowar:8,2 "));
    }
}
