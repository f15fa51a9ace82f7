//! The soak over UDP sockets, on real time: a few seconds of it are clean, and a device that is wrong is found.

use std::time::Duration;

use longhaul_conformance::soak::{Campaign, SoakOptions, SoakPort, Summary};
use longhaul_softnic::{Config, Mutation};

/// Programs wait most of the time, for datagrams and time-outs: more of them than there are cores.
const THREADS: usize = 6;

fn run(time_limit: Duration, configure: fn(&mut Config)) -> Summary {
    let campaign = Campaign {
        first_seed: 1,
        seed_count: 1000,
        options: SoakOptions { operations: 200, port: SoakPort::Udp(Vec::new()), configure, ..SoakOptions::default() },
        thread_count: THREADS,
        time_limit: Some(time_limit),
    };
    campaign.run(|_| {}).expect("loopback addresses")
}

#[test]
fn a_few_seconds_are_clean() {
    let summary = run(Duration::from_secs(8), |_| {});
    for report in &summary.failing {
        for violation in report.violations.kept() {
            eprintln!("seed {}: {violation}", report.seed);
        }
    }
    assert_eq!(summary.violations, 0);
    println!("{} seeds, {} packets, {:?}, {:?}", summary.seeds, summary.packets, summary.tally, summary.troubles);
    // A soak in which nothing goes wrong tests little, and one in which little succeeds tests nothing.
    let (tally, troubles) = (summary.tally, summary.troubles);
    assert!(tally.succeeded > 5 * (tally.flushed + tally.refused), "{tally:?}");
    assert!(tally.received > 0 && tally.reconnections > 0, "{tally:?}");
    assert!(troubles.lost > 0 && troubles.duplicated > 0, "{troubles:?}");
    assert!(troubles.reordered > 0 && troubles.corrupted > 0, "{troubles:?}");
}

/// Runs with a mistake in the device until some seed shows it. Not every run need do so: nothing here repeats to the
/// byte.
fn hunt(configure: fn(&mut Config)) {
    for round in 1..=10 {
        let summary = run(Duration::from_secs(2), configure);
        println!("round {round}: {} of {} seeds fail", summary.failing.len(), summary.seeds);
        if !summary.failing.is_empty() {
            return;
        }
    }
    panic!("the mistake was not found");
}

#[test]
fn acknowledging_before_placement_is_found() {
    hunt(|config| config.mutation = Some(Mutation::AcknowledgeBeforePlacement));
}

#[test]
fn accepting_an_invalidated_key_is_found() {
    hunt(|config| config.mutation = Some(Mutation::AcceptInvalidatedKey));
}
