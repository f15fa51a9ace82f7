//! Do the checkers find a device that is wrong? Each mistake is put into the device, and some seed must show it.

use longhaul_softnic::Mutation;
use longhaul_testbed::checker::{Rule, Violation};
use longhaul_testbed::soak::{SoakOptions, run_seed};

/// Seeds until the mistake is found, and what was found.
fn hunt(configure: fn(&mut longhaul_softnic::Config), seeds_max: u64) -> (u64, Vec<Violation>) {
    let options = SoakOptions { operations: 200, configure, ..SoakOptions::default() };
    for seed in 1..=seeds_max {
        let report = run_seed(seed, &options).expect("nothing is written");
        if !report.violations.is_empty() {
            return (seed, report.violations.kept().to_vec());
        }
    }
    panic!("{seeds_max} seeds did not show the mistake");
}

#[test]
fn acknowledging_before_placement_is_found() {
    let configure = |config: &mut longhaul_softnic::Config| {
        config.mutation = Some(Mutation::AcknowledgeBeforePlacement);
    };
    let (seed, violations) = hunt(configure, 8);
    println!("seed {seed}: {}", violations[0]);
    assert_eq!(violations[0].rule, Rule::Placement, "{}", violations[0]);
}

#[test]
fn accepting_an_invalidated_key_is_found() {
    let configure = |config: &mut longhaul_softnic::Config| {
        config.mutation = Some(Mutation::AcceptInvalidatedKey);
    };
    let (seed, violations) = hunt(configure, 32);
    println!("seed {seed}: {}", violations[0]);
    // Seen in the memory that was used for something else, or in a success that cannot be.
    assert!(
        matches!(violations[0].rule, Rule::Memory | Rule::RevokedKey | Rule::Status | Rule::Receive),
        "{}",
        violations[0]
    );
}
