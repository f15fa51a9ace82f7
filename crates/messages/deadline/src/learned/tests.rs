//! The rule, operation by operation.

use super::*;
use crate::factors::{FACTOR_FIRST, GAIN};

const BYTES: u64 = 1_000_000;

fn rule(ranks: usize, target: f64) -> LearnedDeadline {
    let config = DeadlineConfig { ranks, target, ..DeadlineConfig::default() };
    LearnedDeadline::new(config, Duration::from_millis(10), BYTES).expect("possible")
}

/// An operation that would take so long, cut at the deadline.
fn report(rule: &LearnedDeadline, whole: Duration) -> RankReport {
    let deadline = rule.deadline(BYTES);
    let share = (deadline.as_secs_f64() / whole.as_secs_f64()).min(1.0);
    let delivered_bytes = (BYTES as f64 * share) as u64;
    let (elapsed, undelivered_bytes) = (whole.min(deadline), BYTES - delivered_bytes);
    let ended = if undelivered_bytes == 0 { Ended::Whole } else { Ended::Deadline };
    RankReport { started: Duration::ZERO, elapsed, ended, delivered_bytes, undelivered_bytes }
}

#[test]
fn what_the_path_loses_makes_no_deadline_later() {
    // Of two groups with the same durations, one loses 5 % in transit.
    let (mut clean, mut lossy) = (rule(3, 0.01), rule(3, 0.01));
    for operation in 0..2000 {
        let whole = [0, 1, 2].map(|rank| Duration::from_micros(9_000 + (operation * 7 + rank * 5) % 11 * 300));
        let reports = whole.map(|whole| report(&clean, whole));
        clean.observe(BYTES, &reports).expect("three ranks");
        let reports = whole.map(|whole| {
            let report = report(&lossy, whole);
            let delivered_bytes = report.delivered_bytes / 20 * 19;
            let ended = if report.ended == Ended::Whole { Ended::Quiet } else { Ended::Deadline };
            RankReport { ended, delivered_bytes, undelivered_bytes: BYTES - delivered_bytes, ..report }
        });
        lossy.observe(BYTES, &reports).expect("three ranks");
    }
    let ratio = lossy.deadline(BYTES).as_secs_f64() / clean.deadline(BYTES).as_secs_f64();
    assert!((0.98..1.02).contains(&ratio), "{ratio}, {lossy:?}");
    assert!((lossy.path_loss(1) - 0.05).abs() < 1e-3, "{lossy:?}");
    assert_eq!(clean.path_loss(1), 0.0);
}

#[test]
fn a_constant_duration_is_cut_at_its_budget_and_no_sooner() {
    let mut rule = rule(2, 0.02);
    for _ in 0..1000 {
        let reports = [report(&rule, Duration::from_millis(10)), report(&rule, Duration::from_millis(20))];
        rule.observe(BYTES, &reports).expect("two ranks");
    }
    // The slow one's: 98 % of its 20 ms.
    let deadline = rule.deadline(BYTES).as_secs_f64();
    assert!((deadline - 0.0196).abs() < 0.0001, "{deadline}");
    assert_eq!(rule.late_ranks(), [1], "of two, the median is the faster one");
}

#[test]
fn a_slow_rank_gets_its_time_and_is_named() {
    let mut rule = rule(5, 0.01);
    for _ in 0..300 {
        let whole = [10, 10, 10, 20, 10].map(Duration::from_millis);
        let reports = whole.map(|whole| report(&rule, whole));
        rule.observe(BYTES, &reports).expect("five ranks");
    }
    assert!((rule.deadline(BYTES).as_secs_f64() - 0.0198).abs() < 0.0001, "{:?}", rule.deadline(BYTES));
    assert_eq!(rule.late_ranks(), [3]);
}

/// Healthy operations until the deadline is as it would be if rank 0 had never been away for `silent` operations.
fn operations_to_recover(config: DeadlineConfig, silent: usize) -> usize {
    let new = || LearnedDeadline::new(config, Duration::from_millis(10), BYTES).expect("possible");
    let (mut healthy, mut rule) = (new(), new());
    let whole = |operation: u64, rank: u64| Duration::from_micros(9_000 + (operation * 7 + rank * 5) % 11 * 300);
    let observe = |rule: &mut LearnedDeadline, operation: u64, is_silent: bool| {
        let reports = [0, 1, 2].map(|rank| match (rank, is_silent) {
            (0, true) => {
                let (elapsed, ended) = (rule.deadline(BYTES), Ended::Deadline);
                RankReport { started: Duration::ZERO, elapsed, ended, delivered_bytes: 0, undelivered_bytes: BYTES }
            }
            _ => report(rule, whole(operation, rank)),
        });
        rule.observe(BYTES, &reports).expect("three ranks");
    };
    for operation in 0..3000 {
        observe(&mut healthy, operation, false);
        observe(&mut rule, operation, false);
    }
    for operation in 0..silent as u64 {
        observe(&mut rule, operation, true);
    }
    assert_eq!(rule.ranks_over_budget(), Vec::from_iter((silent > 340).then_some(0)), "{rule:?}");
    (0..)
        .find(|&operation| {
            observe(&mut rule, operation, false);
            rule.deadline(BYTES).as_secs_f64() < 1.1 * healthy.deadline(BYTES).as_secs_f64()
        })
        .expect("some time") as usize
}

#[test]
fn a_rank_that_was_silent_for_long_is_forgotten_within_a_few_hundred_operations() {
    let config = DeadlineConfig { ranks: 3, ..DeadlineConfig::default() };
    for silent in [20, 350, 5000] {
        let operations = operations_to_recover(config, silent);
        assert!(operations < 350, "{operations} after {silent}");
    }
    // Where the deadline is at its ceiling, silence changes nothing more.
    let config = DeadlineConfig { ceiling: Duration::from_millis(25), ..config };
    let mut rule = LearnedDeadline::new(config, Duration::from_millis(10), BYTES).expect("possible");
    for _ in 0..1000 {
        let (elapsed, ended) = (rule.deadline(BYTES), Ended::Deadline);
        let silent =
            RankReport { started: Duration::ZERO, elapsed, ended, delivered_bytes: 0, undelivered_bytes: BYTES };
        let healthy = report(&rule, Duration::from_millis(10));
        rule.observe(BYTES, &[silent, healthy, healthy]).expect("three ranks");
    }
    assert_eq!(rule.ranks_over_budget(), [0]);
    assert!(rule.factor(BYTES) < 3.0, "{rule:?}");
    for _ in 0..50 {
        let healthy = report(&rule, Duration::from_millis(10));
        rule.observe(BYTES, &[healthy; 3]).expect("three ranks");
    }
    assert_eq!(rule.ranks_over_budget(), [] as [usize; 0]);
}

#[test]
fn the_guarantee_holds_for_any_durations_while_factors_move_in_proportion() {
    // Durations that do their worst: each just above the deadline, or far above it, or short.
    let mut rule = rule(3, 0.01);
    let (first, mut lost) = (rule.factor(BYTES), 0.0);
    const OPERATIONS: usize = 5000;
    let mut word = 1_u64;
    for _ in 0..OPERATIONS {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let share = (word >> 33) % 100;
        let whole = match share {
            0..=4 => rule.deadline(BYTES) * 2,
            5..=30 => rule.deadline(BYTES) * 101 / 100,
            _ => Duration::from_millis(9),
        };
        let healthy = report(&rule, Duration::from_millis(10));
        let reports = [report(&rule, whole), healthy, healthy];
        lost += reports[0].undelivered_share();
        rule.observe(BYTES, &reports).expect("three ranks");
    }
    let bound = 0.01 * (1.0 + (rule.factor(BYTES) - first) / (GAIN * OPERATIONS as f64));
    let mean = lost / OPERATIONS as f64;
    assert!(mean <= 1.000_001 * bound && mean > 0.9 * bound, "{mean}, {bound}, {rule:?}");
}

#[test]
fn the_root_of_a_broadcast_is_neither_silent_nor_late() {
    let (mut without, mut with) = (rule(3, 0.01), rule(4, 0.01));
    for operation in 0..500 {
        let whole = [0, 1, 2].map(|rank| Duration::from_micros(9_000 + (operation * 7 + rank * 5) % 11 * 300));
        let [a, b, c] = whole.map(|whole| report(&with, whole));
        let root = RankReport { delivered_bytes: 0, undelivered_bytes: 0, ..a };
        with.observe(BYTES, &[a, root, b, c]).expect("four ranks");
        without.observe(BYTES, &[a, b, c]).expect("three ranks");
    }
    assert_eq!(with.deadline(BYTES), without.deadline(BYTES));
    assert_eq!(with.factors_of(BYTES).expect("seen").of(1), FACTOR_FIRST);
    assert_eq!(with.late_ranks(), [] as [usize; 0]);
}

#[test]
fn half_of_a_group_that_is_silent_is_named() {
    for silent_ranks in [2, 3] {
        let mut rule = rule(4, 0.01);
        for _ in 0..100 {
            let (elapsed, ended) = (rule.deadline(BYTES), Ended::Deadline);
            let silent =
                RankReport { started: Duration::ZERO, elapsed, ended, delivered_bytes: 0, undelivered_bytes: BYTES };
            let mut reports = [report(&rule, Duration::from_millis(10)); 4];
            reports[4 - silent_ranks..].fill(silent);
            rule.observe(BYTES, &reports).expect("four ranks");
        }
        assert_eq!(rule.late_ranks(), Vec::from_iter(4 - silent_ranks..4));
    }
}

/// What a path with a latency delivers of an operation until its deadline: all ranks alike, but for noise.
fn over_latency(rule: &mut LearnedDeadline, bytes: u64, latency: f64, noise: u64) -> [f64; 3] {
    let deadline = rule.deadline(bytes);
    let cut = deadline.as_nanos() as f64;
    let reports = [0, 1, 2].map(|rank| {
        let slower = 1.0 + ((noise * 7 + rank * 5) % 11) as f64 / 100.0;
        let (first, last) = (latency * slower, (latency + bytes as f64) * slower);
        let delivered_bytes = (bytes as f64 * ((cut - first) / (last - first)).clamp(0.0, 1.0)) as u64;
        let ended = if delivered_bytes == bytes { Ended::Whole } else { Ended::Deadline };
        let elapsed = Duration::from_nanos(last.min(cut) as u64);
        RankReport {
            started: Duration::ZERO,
            elapsed,
            ended,
            delivered_bytes,
            undelivered_bytes: bytes - delivered_bytes,
        }
    });
    rule.observe(bytes, &reports).expect("three ranks");
    reports.map(|report| report.undelivered_share())
}

#[test]
fn small_messages_on_a_long_path_arrive() {
    // 25 ms, and a nanosecond a byte. The warm-up was of 8 MiB, or wrong: nothing would arrive.
    for warmup in [Duration::from_micros(33_400), Duration::from_micros(10)] {
        let config = DeadlineConfig { ranks: 3, ..DeadlineConfig::default() };
        let mut rule = LearnedDeadline::new(config, warmup, 8 << 20).expect("possible");
        let lost: Vec<[f64; 3]> = (0..1100).map(|noise| over_latency(&mut rule, 1024, 25e6, noise)).collect();
        let whole = lost.iter().position(|lost| *lost != [1.0; 3]).expect("something arrives");
        assert!(whole < 20, "{whole}");
        for rank in 0..3 {
            let mean = lost[100..].iter().map(|lost| lost[rank]).sum::<f64>() / 1000.0;
            assert!(mean < 0.015, "{rank}: {mean}");
        }
        let deadline = rule.deadline(1024).as_secs_f64();
        assert!((0.025..0.032).contains(&deadline), "{deadline}");
    }
}

#[test]
fn a_small_operation_among_large_ones_changes_nothing_for_them() {
    let config = DeadlineConfig { ranks: 3, ..DeadlineConfig::default() };
    let new = || LearnedDeadline::new(config, Duration::from_micros(33_400), 8 << 20).expect("possible");
    let (mut alone, mut mixed) = (new(), new());
    for noise in 0..1000 {
        over_latency(&mut alone, 8 << 20, 25e6, noise);
        over_latency(&mut mixed, 8 << 20, 25e6, noise);
        if noise % 10 == 0 {
            over_latency(&mut mixed, 8, 25e6, noise);
        }
        assert_eq!(alone.deadline(8 << 20), mixed.deadline(8 << 20));
    }
    assert!((0.025..0.032).contains(&mixed.deadline(8).as_secs_f64()), "{mixed:?}");
}

#[test]
fn a_rank_that_begins_late_is_named_and_not_those_that_wait_for_it() {
    let mut rule = rule(4, 0.01);
    let (mut other, healthy) = (rule.clone(), report(&rule, Duration::from_millis(12)));
    for operation in 0..200 {
        // All others have everything 6 ms later, and the late one is now and then in time.
        let started = Duration::from_millis(if operation % 4 == 0 { 0 } else { 7 });
        let reports = [healthy, RankReport { started, ..healthy }, healthy, healthy];
        rule.observe(BYTES, &reports).expect("four ranks");
        other.observe(BYTES, &[healthy; 4]).expect("four ranks");
    }
    assert_eq!((rule.late_starters(), rule.late_ranks()), (vec![1], vec![]));
    assert_eq!(other.late_starters(), [] as [usize; 0]);
    assert_eq!(rule.deadline(BYTES), other.deadline(BYTES));
}

#[test]
fn a_rank_that_missed_a_report_has_another_digest() {
    let (mut one, mut other) = (rule(3, 0.01), rule(3, 0.01));
    for operation in 0..100 {
        let whole = [0, 1, 2].map(|rank| Duration::from_micros(9_000 + (operation * 7 + rank * 5) % 11 * 300));
        let mut reports = whole.map(|whole| report(&one, whole));
        one.observe(BYTES, &reports).expect("three ranks");
        if operation == 50 {
            reports[2].elapsed += Duration::from_nanos(100);
        }
        other.observe(BYTES, &reports).expect("three ranks");
        assert_eq!(one.digest() == other.digest(), operation < 50, "{operation}");
    }
}

#[test]
fn floor_and_ceiling_hold() {
    let config = DeadlineConfig {
        ranks: 1,
        floor: Duration::from_millis(2),
        ceiling: Duration::from_millis(5),
        ..DeadlineConfig::default()
    };
    let mut rule = LearnedDeadline::new(config, Duration::from_millis(10), BYTES).expect("possible");
    assert_eq!(rule.deadline(BYTES), Duration::from_millis(5));
    assert!(rule.is_at_ceiling(BYTES));
    for _ in 0..100_000 {
        // Silence: nothing is known, and nothing grows without bound.
        let (elapsed, ended) = (Duration::from_millis(5), Ended::Deadline);
        rule.observe(
            BYTES,
            &[RankReport { started: Duration::ZERO, elapsed, ended, delivered_bytes: 0, undelivered_bytes: BYTES }],
        )
        .expect("one rank");
    }
    assert!(rule.factor(BYTES) <= FACTOR.1);
    assert_eq!(rule.deadline(BYTES), Duration::from_millis(5));
    let rule = LearnedDeadline::new(config, Duration::from_millis(1), BYTES).expect("possible");
    assert_eq!(rule.deadline(BYTES), Duration::from_millis(2));
}

#[test]
fn impossible_configurations_and_reports_are_refused() {
    let new = |config| LearnedDeadline::new(config, Duration::from_millis(1), 1);
    let default = DeadlineConfig::default();
    assert_eq!(new(DeadlineConfig { ranks: 0, ..default }), Err(ConfigError::Ranks(0)));
    assert_eq!(new(DeadlineConfig { target: 1.0, ..default }), Err(ConfigError::Target(1.0)));
    let floor = Duration::from_secs(20);
    assert!(matches!(new(DeadlineConfig { floor, ..default }), Err(ConfigError::Bounds { .. })));
    let nothing = |took, bytes| LearnedDeadline::new(default, Duration::from_millis(took), bytes);
    assert!(matches!(nothing(0, 1), Err(ConfigError::Warmup { .. })));
    assert!(matches!(nothing(1, 0), Err(ConfigError::Warmup { .. })));
    let mut rule = rule(2, 0.01);
    let before = rule.clone();
    let more = report(&rule, Duration::from_millis(1));
    let error = rule.observe(BYTES - 1, &[more; 2]).expect_err("more than the operation has");
    assert_eq!(error, ReportError::Bytes { rank: 0, most: BYTES - 1, got: BYTES });
    assert_eq!(rule.observe(BYTES, &[]), Err(ReportError::Ranks { expected: 2, got: 0 }));
    assert_eq!(rule, before);
}
