//! `longhaul sim scale` in small: everything arrives, a seed decides everything, and a network that loses is noticed.

use longhaul_impair::Loss;
use longhaul_softnic::PayloadMode;
use longhaul_world::scale::{Scale, ScaleFabric, ScaleOptions, ScaleOutcome};

fn small() -> ScaleOptions {
    ScaleOptions { nodes: 40, messages: 6, message_bytes: 10_000, ..ScaleOptions::default() }
}

fn run(options: ScaleOptions) -> ScaleOutcome {
    let mut scale = Scale::new(options);
    scale.connect();
    scale.run(|_| ())
}

/// Every message is sent once; RC's WRITEs complete at one end, everything else at both.
#[track_caller]
fn assert_complete(options: ScaleOptions) -> ScaleOutcome {
    let outcome = run(options.clone());
    assert_eq!(outcome.failures.kept(), [""; 0]);
    assert_eq!(outcome.messages, options.message_count());
    let reliable = (options.nodes * options.queue_pairs_per_node.div_ceil(2)) as u64;
    let writes = u64::from(options.messages.div_ceil(2));
    assert_eq!(outcome.completions, 2 * options.message_count() - reliable * writes);
    outcome
}

#[test]
fn everything_arrives_with_its_contents() {
    assert_complete(ScaleOptions { payload: PayloadMode::Carried, ..small() });
}

#[test]
fn without_contents_the_same_packets_are_sent() {
    let carried = assert_complete(ScaleOptions { payload: PayloadMode::Carried, ..small() });
    let elided = assert_complete(small());
    assert_eq!((carried.packets, carried.virtual_time), (elided.packets, elided.virtual_time));
}

#[test]
fn a_node_without_a_partner_talks_to_itself() {
    assert_complete(ScaleOptions { nodes: 7, payload: PayloadMode::Carried, ..small() });
}

#[test]
fn two_nodes_and_one_queue_pair_are_enough() {
    assert_complete(ScaleOptions { nodes: 2, queue_pairs_per_node: 1, messages: 1, ..small() });
}

#[test]
fn everything_arrives_over_many_switches() {
    for fabric in [ScaleFabric::Clos, ScaleFabric::FatTree] {
        assert_complete(ScaleOptions { fabric, payload: PayloadMode::Carried, ..small() });
    }
}

#[test]
fn the_seed_decides_everything() {
    let first = run(small());
    assert_eq!(first, run(small()));
    assert_ne!(first.trace_hash, run(ScaleOptions { seed: 2, ..small() }).trace_hash);
}

#[test]
fn a_lost_packet_is_a_failure() {
    let mut options = small();
    options.link.loss = Loss::Independent { probability: 0.01 };
    let outcome = run(options.clone());
    assert!(outcome.failures.count() > 0, "UC cannot recover from a loss");
    assert!(outcome.messages < options.message_count());
}
