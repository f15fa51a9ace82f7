//! The verbs conformance suite on the software RNIC, on virtual time: one test a group, so that a failure shows where.

use longhaul_conformance::{self as conformance, GROUPS, Report, VirtualTime};
use longhaul_verbs::Mtu;

/// Runs a group in several worlds: other seeds (keys, numbers), both address families, other MTUs, both ends on one
/// device, other kinds of windows.
fn run(name: &str) {
    let group = GROUPS.iter().find(|group| group.name == name).expect("a group of the suite");
    let worlds = [
        VirtualTime::new(1),
        VirtualTime::new(2).with_ipv6(),
        VirtualTime::new(3).with_mtu(Mtu::Bytes256),
        VirtualTime::new(4).with_mtu(Mtu::Bytes4096),
        VirtualTime::new(5).with_one_device(),
        VirtualTime::with_type_2a_windows(6),
    ];
    for (index, mut world) in worlds.into_iter().enumerate() {
        let tests = (group.tests)();
        assert!(!tests.is_empty());
        let report: Report = conformance::run(&mut world, &tests, |_, _| ());
        for skipped in &report.skipped {
            println!("world {index}: {} skipped: no {}", skipped.test, skipped.message);
        }
        report.assert_good();
    }
}

macro_rules! groups {
    ($($group:ident),* $(,)?) => {
        $(#[test]
        fn $group() {
            run(stringify!($group));
        })*

        #[test]
        fn every_group_is_here() {
            let here = [$(stringify!($group)),*];
            let names: Vec<&str> = GROUPS.iter().map(|group| group.name).collect();
            assert_eq!(here.to_vec(), names);
        }
    };
}

groups! {
    queries,
    capabilities,
    transfer,
    transfer_forms,
    scatter_gather,
    read,
    atomics,
    fence,
    read_atomic_limits,
    datagram,
    multicast,
    queues,
    state_table,
    states,
    flush,
    read_states,
    error_completions,
    errors_local,
    errors_remote,
    errors_read,
    errors_unreliable,
    keys,
    events,
    descriptors,
    moderation,
    async_errors,
    port_events,
    destroy,
    drain,
    shared_receive,
    shared_receive_limits,
    null_region,
    slotted,
    slotted_binding,
    windows,
    windows_binding,
    windows_ending,
    invalidate,
}
