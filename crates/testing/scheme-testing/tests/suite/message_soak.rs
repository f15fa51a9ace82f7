//! The soak of messages, a few dozen seeds of it: enough happens, and the same every time.

use longhaul_scheme_testing::message_soak::{MessageCampaign, MessageSoakOptions, MessageSummary, run_message_seed};

fn run(first_seed: u64, seed_count: u64, thread_count: usize) -> MessageSummary {
    MessageCampaign { first_seed, seed_count, options: MessageSoakOptions::default(), thread_count }
        .run(|_| {}, |seed| panic!("seed {seed} does not end"))
}

#[test]
fn enough_happens() {
    let summary = run(1, 60, 2);
    // A soak in which nothing goes wrong tests little, and one in which little arrives tests nothing.
    // Most failures are the refusals of ends that do not agree on a scheme, a thousand messages in such a seed.
    assert!(summary.received > 1000 && summary.received > summary.failed, "{summary:?}");
    assert!(summary.failed > 0 && summary.forged_packets > 100 && summary.held_packets > 100, "{summary:?}");
}

#[test]
fn the_same_seeds_give_the_same_run_whatever_the_threads() {
    let (alone, together) = (run(1000, 8, 1), run(1000, 8, 3));
    assert_eq!((alone.trace_hash, alone.packets), (together.trace_hash, together.packets));
    assert_ne!(alone.trace_hash, run(1001, 8, 2).trace_hash);
}

#[test]
fn a_program_can_be_cut_down_to_some_of_its_items() {
    let whole = run_message_seed(1, &MessageSoakOptions::default());
    let few = run_message_seed(1, &MessageSoakOptions { only: Some(vec![0, 1, 2]), ..Default::default() });
    let none = run_message_seed(1, &MessageSoakOptions { only: Some(Vec::new()), ..Default::default() });
    assert!(few.messages < whole.messages && few.messages > none.messages, "{few:?}");
    assert!(none.violations.is_empty(), "{none:?}");
}

/// Programs that once showed a mistake, cut down to what shows it.
#[test]
fn what_was_found_stays_mended() {
    let found: [(u64, Vec<usize>); 9] = [
        // A receive that waits for the sender's table entry asked as rarely as a send that waits for a receive.
        (18080, vec![2, 26, 27]),
        // A withdrawal was repeated up to a second after the path worked again.
        (12929, (14..=16).chain(19..=29).chain(53..=55).collect()),
        // So was an offer, and everything was sent again and again meanwhile.
        (12760, (29..=32).chain(34..=45).chain([52, 54]).collect()),
        // Packets were sent again each millisecond to a peer that had not been heard of for seconds.
        (12760, (27..=28).chain(37..=50).chain([52, 54]).collect()),
        (2204, (10..=21).chain([25, 48]).collect()),
        // A question that was answered with "not yet" was asked again only when it would have been lost.
        (1882, vec![19, 20, 36, 40]),
        // What was asked for while it was in flight was sent again.
        (7948, [2].into_iter().chain(6..=9).chain(33..=35).chain(37..=41).collect()),
        // Packets were acknowledged when their chunk was whole, which on a slow link was later than the sender waited.
        (100_765, (19..=28).collect()),
        // Nine packets of which the first came last: one arrival was taken for a duplicate, and missing for good.
        (101_242, (3..=8).chain([18]).chain(32..=40).chain([55, 56, 59, 66]).collect()),
    ];
    for (seed, only) in found {
        let report = run_message_seed(seed, &MessageSoakOptions { only: Some(only), ..Default::default() });
        assert!(report.violations.is_empty(), "seed {seed}: {:?}", report.violations);
    }
}
