//! Do the checkers find a device that is wrong? Each mistake is put into the device, and some seed must show it.

use longhaul_conformance::{
    checker::{Rule, Violation},
    soak::{SoakOptions, run_seed},
};
use longhaul_softnic::Mutation;

/// Seeds until the mistake is found, and what was found.
fn hunt(configure: fn(&mut longhaul_softnic::Config), seeds_max: u64) -> (u64, Vec<Violation>) {
    hunt_for(configure, seeds_max, |_| true)
}

/// The same until something particular is found.
fn hunt_for(
    configure: fn(&mut longhaul_softnic::Config),
    seeds_max: u64,
    is_wanted: impl Fn(&Violation) -> bool,
) -> (u64, Vec<Violation>) {
    let options = SoakOptions { operations: 200, configure, ..SoakOptions::default() };
    for seed in 1..=seeds_max {
        let report = run_seed(seed, &options).expect("nothing is written");
        let found: Vec<_> = report.violations.kept().iter().filter(|violation| is_wanted(violation)).cloned().collect();
        if !found.is_empty() {
            return (seed, found);
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

#[test]
fn failing_bursts_are_found() {
    let configure = |config: &mut longhaul_softnic::Config| {
        config.mutation = Some(Mutation::FailsBursts);
    };
    let (seed, violations) = hunt(configure, 4);
    println!("seed {seed}: {}", violations[0]);
    assert_eq!(violations[0].rule, Rule::Status, "{}", violations[0]);
}

#[test]
fn dropping_what_has_no_immediate_is_found() {
    let configure = |config: &mut longhaul_softnic::Config| {
        config.mutation = Some(Mutation::DropsWithoutImmediate);
    };
    // A datagram or a send is not delivered; a plain write is not placed.
    for rule in [Rule::Progress, Rule::Placement] {
        let (seed, violations) = hunt_for(configure, 16, |violation| violation.rule == rule);
        println!("seed {seed}: {}", violations[0]);
    }
}

#[test]
fn giving_up_at_once_is_found() {
    let configure = |config: &mut longhaul_softnic::Config| {
        config.mutation = Some(Mutation::GivesUpAtOnce);
    };
    // Both of its counts: of silence, and of a receiver that is not ready.
    for status in ["before RetryExceededError", "before ReceiverNotReadyRetryExceededError"] {
        let (seed, violations) = hunt_for(configure, 32, |violation| violation.expected.contains(status));
        println!("seed {seed}: {}", violations[0]);
        assert_eq!(violations[0].rule, Rule::Status, "{}", violations[0]);
    }
}

#[test]
fn reading_from_the_wrong_epoch_is_found() {
    let configure = |config: &mut longhaul_softnic::Config| {
        config.mutation = Some(Mutation::ReadFromWrongEpoch);
    };
    let (seed, violations) = hunt(configure, 64);
    println!("seed {seed}: {}", violations[0]);
    assert_eq!(violations[0].rule, Rule::Read, "{}", violations[0]);
}

#[test]
fn an_atomic_that_happens_twice_is_found() {
    let configure = |config: &mut longhaul_softnic::Config| {
        config.mutation = Some(Mutation::AtomicTwice);
    };
    let (seed, violations) = hunt(configure, 64);
    println!("seed {seed}: {}", violations[0]);
    assert_eq!(violations[0].rule, Rule::Atomic, "{}", violations[0]);
}

#[test]
fn completions_out_of_order_are_found() {
    let configure = |config: &mut longhaul_softnic::Config| {
        config.mutation = Some(Mutation::CompletionOutOfOrder);
    };
    // Seen as a completion that was not asked for, too, when the second one is not signalled.
    let (seed, violations) = hunt_for(configure, 32, |violation| violation.rule == Rule::Order);
    println!("seed {seed}: {}", violations[0]);
}

#[test]
fn a_window_that_works_after_its_rebind_is_found() {
    let configure = |config: &mut longhaul_softnic::Config| {
        config.mutation = Some(Mutation::WindowAfterRebind);
    };
    let (seed, violations) = hunt(configure, 64);
    println!("seed {seed}: {}", violations[0]);
    // Seen in memory that was used for something else, or in a success that cannot be.
    assert!(matches!(violations[0].rule, Rule::Memory | Rule::RevokedKey | Rule::Status), "{}", violations[0]);
}

#[test]
fn a_flush_that_loses_a_request_is_found() {
    let configure = |config: &mut longhaul_softnic::Config| {
        config.mutation = Some(Mutation::FlushLosesRequest);
    };
    let (seed, violations) = hunt(configure, 32);
    println!("seed {seed}: {}", violations[0]);
    assert!(matches!(violations[0].rule, Rule::Progress | Rule::Flush | Rule::Order), "{}", violations[0]);
}
