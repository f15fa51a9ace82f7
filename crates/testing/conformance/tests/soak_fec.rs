//! The soak with forward error correction in the ports: as clean as without it, and mistakes of the shim are found.
//!
//! `LONGHAUL_SOAK_SEEDS` has more than a few dozen seeds of it.

use std::ops::RangeInclusive;

use longhaul_conformance::checker::Rule;
use longhaul_conformance::soak::{Campaign, SeedReport, SoakOptions, Summary, run_seed};
use longhaul_shim::Mutation;

fn options(code: &str) -> SoakOptions {
    SoakOptions { operations: 150, fec: Some(code.parse().unwrap()), ..SoakOptions::default() }
}

fn run(code: &str, lies: bool, first_seed: u64, seed_count: u64) -> Summary {
    let options = SoakOptions { lies, ..options(code) };
    let campaign = Campaign { first_seed, seed_count, options, thread_count: 2, time_limit: None };
    let summary = campaign.run(|_| {}).expect("nothing is written");
    for report in &summary.failing {
        for violation in report.violations.kept() {
            eprintln!("{code} seed {}: {violation}", report.seed);
        }
    }
    summary
}

#[test]
fn protected_programs_are_clean() {
    let seeds = std::env::var("LONGHAUL_SOAK_SEEDS").map_or(32, |seeds| seeds.parse().expect("a number"));
    let mut failing = 0;
    for (part, code) in ["xor:8,2", "mds:8,2", "xor:32,1", "mds:64,8"].into_iter().enumerate() {
        let summary = run(code, false, 1 + part as u64 * seeds / 4, seeds / 4);
        let (seeds, wrong) = (summary.seeds, summary.wrong_blocks);
        println!(
            "{code}: {seeds} seeds, {} packets, {} restored, {wrong} wrong blocks",
            summary.packets, summary.restored
        );
        failing += summary.failing.len();
        assert!(summary.restored > 0, "{code}: nothing was restored");
    }
    assert_eq!(failing, 0, "seeds with violations");
}

#[test]
fn lies_are_not_believed() {
    let summary = run("mds:8,2", true, 1, 16);
    assert_eq!(summary.failing.len(), 0, "seeds with violations");
    assert!(summary.wrong_blocks > 0 && summary.restored > 0, "{summary:?}");
}

/// Runs seeds until a mistake is found.
fn hunt(options: &SoakOptions, mut seeds: RangeInclusive<u64>, is_found: impl Fn(&SeedReport) -> bool) {
    let seed = seeds.find(|&seed| is_found(&run_seed(seed, options).expect("nothing is written")));
    println!("seed {seed:?}");
    assert!(seed.is_some(), "these seeds did not show the mistake");
}

#[test]
fn handing_on_what_has_a_wrong_icrc_is_found() {
    let options =
        SoakOptions { lies: true, configure_shim: |shim| shim.mutated(Mutation::SkipIcrc), ..options("mds:8,2") };
    hunt(&options, 1..=32, |report| {
        report.violations.kept().iter().any(|violation| violation.rule == Rule::Protection)
    });
}

/// One seed in some hundreds has a block of which packets of two attempts are at hand: the hunt begins near one.
#[test]
fn a_repair_packet_of_another_attempt_is_found() {
    let other_epoch = |shim: longhaul_softnic::ShimLayer| shim.mutated(Mutation::IgnoreEpoch);
    let options = SoakOptions { configure_shim: other_epoch, ..options("mds:8,2") };
    let is_right = |seed| {
        let report = run_seed(seed, &self::options("mds:8,2")).expect("nothing is written");
        report.violations.kept().is_empty()
    };
    hunt(&options, 530..=550, |report| !report.violations.kept().is_empty() && is_right(report.seed));
}

#[test]
fn blocks_across_messages_are_found() {
    let across = |shim: longhaul_softnic::ShimLayer| shim.mutated(Mutation::BlocksAcrossMessages);
    let options = SoakOptions { configure_shim: across, ..options("xor:8,2") };
    // What is restored is not where the header says that the message is, which does not happen in the same run without the mistake.
    let is_right = |seed| run_seed(seed, &self::options("xor:8,2")).expect("nothing is written").wrong_blocks == 0;
    hunt(&options, 1..=32, |report| report.wrong_blocks > 0 && is_right(report.seed));
}
