//! The soak of bounded messages: some hundred seeds of it, and deliberate mistakes that it finds.
//! `LONGHAUL_BOUNDED_SEEDS=2000` runs more seeds, `LONGHAUL_BOUNDED_FIRST_SEED` begins elsewhere.

use std::time::Duration;

use longhaul_reliable::{Attributes, Mutation};
use longhaul_scheme_testing::bounded_soak::{run_bounded_seed, run_bounded_seed_with};

#[test]
fn bounded_messages_end_on_time_and_say_what_is_missing() {
    let first: u64 = std::env::var("LONGHAUL_BOUNDED_FIRST_SEED").map_or(0, |seed| seed.parse().expect("a number"));
    let seeds: u64 = std::env::var("LONGHAUL_BOUNDED_SEEDS").map_or(400, |seeds| seeds.parse().expect("a number"));
    let (mut messages, mut ended, mut known, mut unknown, mut missing) = (0, [0; 3], 0, 0, 0);
    let mut plain = [0; 3];
    let mut latest = Duration::ZERO;
    for seed in first..first + seeds {
        let report = run_bounded_seed(seed);
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
        messages += report.messages;
        (0..3).for_each(|ending| ended[ending] += report.ended[ending]);
        (0..3).for_each(|ending| plain[ending] += report.plain[ending]);
        (known, unknown, missing) = (known + report.known, unknown + report.unknown, missing + report.missing_bytes);
        latest = latest.max(report.latest);
    }
    println!("{messages} messages, ended {ended:?}, senders knew {known} and not {unknown}, {missing} bytes missing");
    println!("latest {latest:?}; plain receives {plain:?}");
    assert!(plain.iter().all(|count| *count * 500 > messages), "{plain:?}");
    // A soak in which nothing is missing tests little, and one in which all is tests nothing.
    assert!(ended.iter().all(|count| *count * 20 > messages), "{ended:?} of {messages}");
    assert!(known > unknown && unknown * 50 > known && missing > messages * 100, "{known}, {unknown}, {missing}");
}

fn find(mutation: Mutation) {
    for seed in 0..100 {
        let mut attributes = Attributes::default();
        attributes.mutation = Some(mutation);
        let found = run_bounded_seed_with(seed, attributes).violations;
        if let Some(violation) = found.first() {
            println!("seed {seed}: {violation}");
            assert!(run_bounded_seed(seed).violations.is_empty());
            return;
        }
    }
    panic!("{mutation:?} is not found");
}

#[test]
fn missing_bytes_that_are_not_filled_are_found() {
    find(Mutation::MissingUnfilled);
}

#[test]
fn ranges_that_are_off_by_a_packet_are_found() {
    find(Mutation::RangesOffByOne);
}

#[test]
fn a_deadline_from_the_wrong_start_is_found() {
    find(Mutation::DeadlineFromFirstPacket);
}
