//! `longhaul sim soak --messages`: random programs of messages over `sdr` and `reliable`.

use std::time::{Duration, Instant};

use longhaul_scheme_testing::message_soak::{
    MessageCampaign, MessageSeedReport, MessageSoakOptions, MessageSummary, SEED_TIME_MAX, item_count, shrink,
};
use serde_json::{Value, json};

use crate::stop::{self, Stop};
use crate::{counting_allocator, exit, progress, soak_report};

/// Failing seeds whose programs are shrunk and printed; of the others only the seed.
const SHRUNK_SEEDS_MAX: usize = 3;
/// Programs that are tried for each of them.
const SHRINK_RUNS_MAX: u32 = 200;

/// What `longhaul sim soak` was asked for, as far as it concerns messages.
pub(crate) struct Options {
    pub(crate) first_seed: u64,
    pub(crate) seeds: u64,
    pub(crate) threads: usize,
    pub(crate) only: Option<Vec<usize>>,
    pub(crate) json: bool,
}

/// Runs the scenario.
pub(crate) fn run(options: Options) -> Result<(), Stop> {
    check_only(options.first_seed, options.only.as_deref().unwrap_or_default())?;
    let campaign = MessageCampaign {
        first_seed: options.first_seed,
        seed_count: options.seeds,
        options: MessageSoakOptions {
            only: options.only,
            bytes_in_use: Some(counting_allocator::bytes_in_use),
            ..Default::default()
        },
        thread_count: options.threads,
    };
    let begin = Instant::now();
    let bar = progress::bar(options.seeds, "{bar:30} {pos}/{len} seeds, {per_sec}, {eta} left {msg}");
    let progress = |report: &MessageSeedReport| {
        bar.inc(1);
        if !report.violations.is_empty() {
            bar.set_message(format!("seed {} fails", report.seed));
        }
    };
    let summary = campaign.run(progress, |seed| end_stuck(seed, options.json));
    bar.finish_and_clear();
    let elapsed = begin.elapsed();
    eprint!("{}", describe_failures(&summary, &campaign.options));
    let wrong = soak_report::wrong(summary.failing.len(), summary.seeds);
    stop::tell(options.json, || to_json(&summary, elapsed), || to_table(&summary, elapsed), wrong)
}

/// A run of items that are not there would find nothing wrong, whatever the program does.
fn check_only(seed: u64, only: &[usize]) -> Result<(), Stop> {
    let items = item_count(seed);
    match only.iter().find(|item| **item >= items) {
        None => Ok(()),
        Some(item) => Err(Stop::Usage(format!(
            "--only: there is no item {item}: those of seed {seed} are 0 to {}; another seed or another version printed it",
            items.saturating_sub(1)
        ))),
    }
}

/// A seed does not end, and cannot be ended: say which, and stop.
fn end_stuck(seed: u64, json: bool) {
    let limit = SEED_TIME_MAX.as_secs();
    let error = format!("seed {seed} has not ended within {limit} s; again: {}", again(seed, None));
    eprintln!("{error}");
    if json {
        println!("{}", json!({"schema": 1, "failing_seeds": [seed], "error": error}));
    }
    std::process::exit(exit::FAILED.into());
}

fn describe_failures(summary: &MessageSummary, options: &MessageSoakOptions) -> String {
    let mut text = String::new();
    for report in summary.failing.iter().take(SHRUNK_SEEDS_MAX) {
        text += &format!("seed {}: {} violations\n", report.seed, report.violations.len());
        for violation in &report.violations {
            text += &format!("  {violation}\n");
        }
        text += &match shrink(report.seed, options, SHRINK_RUNS_MAX) {
            Some(shrunk) => format!(
                "  shrunk to {} of {} items in {} runs: {}\n{}  again: {}\n",
                shrunk.only.len(),
                report.items,
                shrunk.runs,
                shrunk.report.violations[0],
                shrunk.items.iter().map(|item| format!("    {item}\n")).collect::<String>(),
                again(report.seed, Some(&shrunk.only))
            ),
            None => format!("  again: {}\n", again(report.seed, options.only.as_deref())),
        };
    }
    let others: Vec<String> = summary.failing.iter().skip(SHRUNK_SEEDS_MAX).map(describe_briefly).collect();
    text + &others.concat()
}

fn describe_briefly(report: &MessageSeedReport) -> String {
    format!("seed {}: {}\n  again: {}\n", report.seed, report.violations[0], again(report.seed, None))
}

/// The command that shows a seed again, or some items of its program.
fn again(seed: u64, only: Option<&[usize]>) -> String {
    let only = only.map_or_else(String::new, |only| format!(" --only {}", to_ranges(only)));
    format!("longhaul sim soak --messages --seed {seed} --seeds 1{only}")
}

/// Numbers as they are given on the command line: `1,4-7`.
fn to_ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let name = |run: &[usize]| match run {
        [] => String::new(),
        [only] => only.to_string(),
        [first, .., last] => format!("{first}-{last}"),
    };
    match numbers {
        [] => "none".to_owned(),
        _ => runs.map(name).collect::<Vec<_>>().join(","),
    }
}

/// Items of a program, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Only(pub(crate) Vec<usize>);

/// Reads `1,4-7`.
pub(crate) fn parse_only(text: &str) -> Result<Only, String> {
    if text == "none" {
        return Ok(Only(Vec::new()));
    }
    let number = |text: &str| text.parse::<usize>().map_err(|_| format!("{text:?} is not the number of an item"));
    let mut only = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if last < first || last > 1 << 20 {
            return Err(format!("{part:?} is not a range of items; use for example 1,4-7"));
        }
        only.extend(first..=last);
    }
    Ok(Only(only))
}

fn to_json(summary: &MessageSummary, elapsed: Duration) -> Value {
    let failing_seeds: Vec<u64> = summary.failing.iter().map(|report| report.seed).collect();
    json!({
        "schema": 1,
        "seeds": summary.seeds,
        "messages": summary.messages,
        "packets": summary.packets,
        "forged_packets": summary.forged_packets,
        "held_packets": summary.held_packets,
        "memory_bytes_max": summary.memory_bytes_max,
        "violations": summary.violations,
        "failing_seeds": failing_seeds,
        "trace_hash": format!("{:016x}", summary.trace_hash),
        "seconds": elapsed.as_secs_f64(),
    })
}

fn to_table(summary: &MessageSummary, elapsed: Duration) -> String {
    let rows = [
        ("seeds", summary.seeds.to_string()),
        ("messages", summary.messages.to_string()),
        ("  received", summary.received.to_string()),
        ("  halves that failed, as they may", summary.failed.to_string()),
        ("packets", summary.packets.to_string()),
        ("  forged", summary.forged_packets.to_string()),
        ("  held back", summary.held_packets.to_string()),
        ("most memory of one seed, MiB", format!("{:.1}", summary.memory_bytes_max as f64 / f64::from(1 << 20))),
        ("trace hash", format!("{:016x}", summary.trace_hash)),
        ("violations", summary.violations.to_string()),
        ("failing seeds", summary.failing.len().to_string()),
        ("seconds", format!("{:.1}", elapsed.as_secs_f64())),
    ];
    rows.iter().map(|(name, value)| format!("{name:<34} {value:>16}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_written_as_they_are_read() {
        for (numbers, text) in [(vec![], "none"), (vec![3], "3"), (vec![0, 1, 2, 7, 9, 10], "0-2,7,9-10")] {
            assert_eq!(to_ranges(&numbers), text);
            assert_eq!(parse_only(text), Ok(Only(numbers)));
        }
        assert!(parse_only("7-3").is_err() && parse_only("a").is_err() && parse_only("").is_err());
    }

    #[test]
    fn items_that_a_program_does_not_have_are_refused() {
        let items = item_count(1);
        assert!(check_only(1, &[]).is_ok() && check_only(1, &[0, items - 1]).is_ok());
        let stop = check_only(1, &[0, items]).expect_err("there is no such item");
        assert!(matches!(&stop, Stop::Usage(text) if text.contains(&format!("no item {items}"))), "{stop}");
    }

    #[test]
    fn a_failing_seed_says_how_to_see_it_again() {
        assert_eq!(again(9, None), "longhaul sim soak --messages --seed 9 --seeds 1");
        assert_eq!(again(9, Some(&[1, 2, 5])), "longhaul sim soak --messages --seed 9 --seeds 1 --only 1-2,5");
    }

    #[test]
    fn the_json_has_the_documented_form() {
        let campaign = MessageCampaign { first_seed: 1, seed_count: 1, options: Default::default(), thread_count: 1 };
        let value =
            to_json(&campaign.run(|_| {}, |seed| panic!("seed {seed} does not end")), Duration::from_millis(1500));
        let mut keys: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
        keys.sort_unstable();
        let expected = [
            "failing_seeds",
            "forged_packets",
            "held_packets",
            "memory_bytes_max",
            "messages",
            "packets",
            "schema",
            "seconds",
            "seeds",
            "trace_hash",
            "violations",
        ];
        assert_eq!(keys, expected);
        assert_eq!(value["trace_hash"].as_str().map(str::len), Some(16));
    }
}
