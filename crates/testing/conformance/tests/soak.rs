//! The soak, a few dozen seeds of it: clean, and the same every time.

use longhaul_conformance::soak::{Campaign, SoakOptions, Summary};

fn run(first_seed: u64, seed_count: u64, thread_count: usize) -> Summary {
    let campaign = Campaign {
        first_seed,
        seed_count,
        options: SoakOptions { operations: 150, ..SoakOptions::default() },
        thread_count,
        time_limit: None,
    };
    campaign.run(|_| {}).expect("nothing is written")
}

#[test]
fn a_few_dozen_seeds_are_clean() {
    let summary = run(1, 48, 2);
    for report in &summary.failing {
        for violation in report.violations.kept() {
            eprintln!("seed {}: {violation}", report.seed);
        }
    }
    assert_eq!(summary.violations, 0);
    assert_eq!(summary.seeds, 48);
    // A soak in which nothing goes wrong tests little, and one in which little succeeds tests nothing.
    let tally = summary.tally;
    assert!(tally.succeeded > 5 * (tally.flushed + tally.refused), "{tally:?}");
    assert!(tally.refused > 0 && tally.flushed > 0 && tally.revocations > 0, "{tally:?}");
    assert!(tally.reconnections > 0 && tally.received > 0, "{tally:?}");
    for operation in [
        "bind_window_type_1",
        "bind_window_type_2",
        "compare_and_swap",
        "fenced",
        "fetch_and_add",
        "local_invalidate",
        "null_region_read",
        "null_region_receive",
        "read",
        "read_after_write",
        "send_with_invalidate",
        "shared_receive",
        "unbind_slot",
        "write_burst",
        "write_through_window",
        "write_to_slot",
        "write_to_unbound_slot",
    ] {
        assert!(tally.operations.contains_key(operation), "no {operation}: {tally:?}");
    }
    for fault in ["link_down", "one_way_cut", "path_lost", "pause", "restart"] {
        assert!(tally.faults.contains_key(fault), "no {fault}: {tally:?}");
    }
}

#[test]
fn the_same_seeds_give_the_same_run_whatever_the_threads() {
    let alone = run(1000, 12, 1);
    let together = run(1000, 12, 3);
    assert_eq!(alone.trace_hash, together.trace_hash);
    assert_eq!(alone.packets, together.packets);
    assert_eq!(alone.tally, together.tally);
    let others = run(1001, 12, 2);
    assert_ne!(alone.trace_hash, others.trace_hash);
}
