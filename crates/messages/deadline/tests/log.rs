//! The loss log: written, read and replayed.

use std::time::Duration;

use longhaul_deadline::{
    DeadlineConfig, DeadlineRule, Ended, LearnedDeadline, LossLog, LossLogError, LossRecord, PaperDeadline, RankLoss,
};
use proptest::prelude::*;

const BYTES: u64 = 1 << 20;

fn rank() -> impl Strategy<Value = RankLoss> {
    (0..1_u64 << 40, proptest::collection::vec((1..100_u64, 1..100_u64), 0..20)).prop_map(|(nanoseconds, gaps)| {
        let mut at = 0;
        let missing = gaps.into_iter().map(|(gap, length)| {
            let start = at + gap;
            at = start + length;
            start..at
        });
        let missing: Vec<_> = missing.collect();
        let bytes = missing.last().map_or(BYTES, |range| range.end + nanoseconds % 3);
        let ended = match (missing.is_empty(), nanoseconds % 2) {
            (true, 0) => Ended::Whole,
            (_, 0) => Ended::Quiet,
            _ => Ended::Deadline,
        };
        let started = Duration::from_nanos(nanoseconds / 7);
        RankLoss { started, elapsed: Duration::from_nanos(nanoseconds), bytes, ended, missing }
    })
}

fn record() -> impl Strategy<Value = LossRecord> {
    (any::<u64>(), any::<u64>(), any::<u64>(), 0..1_u64 << 40, proptest::collection::vec(rank(), 0..6)).prop_map(
        |(step, operation, state, deadline, ranks)| {
            let deadline = Duration::from_nanos(deadline);
            let bytes = ranks.iter().map(|rank| rank.bytes).max().unwrap_or(0);
            LossRecord { step, operation, bytes, deadline, state, ranks }
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read(records in proptest::collection::vec(record(), 0..5)) {
        let log = LossLog { records };
        let text = log.to_text().expect("records that a log can have");
        prop_assert_eq!(text.parse::<LossLog>(), Ok(log));
        // Cut off anywhere but after a line, it is no log.
        for end in (1..text.len()).rev().filter(|end| !text[..*end].ends_with(" end") && !text[..*end].ends_with('\n')) {
            prop_assert!(text[..end].parse::<LossLog>().is_err(), "{}", &text[..end]);
        }
    }

    #[test]
    fn what_would_not_be_read_is_not_written(
        record in record(), number in any::<prop::sample::Index>(), damage in 0..7, by in any::<u64>(),
    ) {
        let mut record = record;
        prop_assume!(!record.ranks.is_empty());
        let number = number.index(record.ranks.len());
        let rank = &mut record.ranks[number];
        match damage {
            0 => rank.elapsed = Duration::from_secs(by),
            1 => rank.bytes = by,
            2 => rank.ended = Ended::Whole,
            3 => rank.missing.reverse(),
            4 => rank.missing.push(by % 100..by % 200),
            5 => record.deadline = Duration::from_secs(by),
            _ => record.bytes = by % 1000,
        }
        if let Ok(line) = record.to_line() {
            prop_assert_eq!(line.parse::<LossRecord>(), Ok(record));
        }
    }

    #[test]
    fn any_text_is_an_error_or_a_log(text in "(step|operation|bytes|[0-9]{1,3}|[-/, \n]|ranks|deadline_ns |state |0123456789abcdef| end){0,40}") {
        if let Ok(log) = text.parse::<LossLog>() {
            prop_assert_eq!(log.to_text().expect("as it was read").parse::<LossLog>(), Ok(log));
        }
    }
}

#[test]
fn the_format_is_fixed_and_errors_say_where() {
    let line = "step 3 operation 0 bytes 1048576 deadline_ns 1520000 state 00000000000000ff ranks \
                70/1520000/1048576/deadline/4096-8192,65536-69632 0/900000/1048576/whole/- end";
    let record: LossRecord = line.parse().expect("a record");
    assert_eq!(record.ranks[0].missing, [4096..8192, 65_536..69_632]);
    assert_eq!(record.ranks[0].report().undelivered_bytes, 8192);
    assert_eq!(record.ranks[1].report().undelivered_share(), 0.0);
    assert_eq!(record.to_line().as_deref(), Ok(line));
    for (from, to, word) in [
        ("4096-8192", "8192-4096", "range 8192-4096"),
        ("65536-69632", "8000-9000", "range 8000-9000"),
        ("69632", "2000000", "beyond the end"),
        ("step", "stop", "expected \"step\""),
        ("1048576/whole/-", "1048576/whole", "expected missing ranges or -"),
        ("whole/-", "late/-", "expected whole, quiet or deadline, got \"late\""),
        (" end", "", "it was cut off"),
        ("bytes 1048576", "bytes 1048575", "1048576 bytes at a rank, of an operation of 1048575"),
        ("00000000000000ff", "ff", "expected a state of 16"),
        ("whole/-", "whole/1-2", "a whole operation without 1-2"),
        ("deadline_ns 1520000", "deadline_ns soon", "expected deadline_ns, got \"soon\""),
    ] {
        let text = format!("{line}\n{}", line.replace(from, to));
        let error = text.parse::<LossLog>().expect_err(to).to_string();
        assert!(error.starts_with("line 2: ") && error.contains(word), "{error}");
    }
}

/// A run of a rule with made-up durations.
fn run(rule: &mut impl DeadlineRule) -> LossLog {
    let mut records = Vec::new();
    for step in 0..200_u64 {
        let deadline = rule.deadline(BYTES);
        let ranks: Vec<RankLoss> = (0..4_u64)
            .map(|rank| {
                let whole = Duration::from_micros(8_000 + (step * 7 + rank * 13) % 17 * 400);
                let arrived = (BYTES as f64 * deadline.as_secs_f64() / whole.as_secs_f64()) as u64;
                let missing = Vec::from_iter((arrived < BYTES).then_some(arrived..BYTES));
                let ended = if missing.is_empty() { Ended::Whole } else { Ended::Deadline };
                RankLoss { started: Duration::ZERO, elapsed: whole.min(deadline), bytes: BYTES, ended, missing }
            })
            .collect();
        let mut record = LossRecord { step, operation: 0, bytes: BYTES, deadline, state: 0, ranks };
        rule.observe(BYTES, &record.reports()).expect("four ranks");
        record.state = rule.digest();
        records.push(record);
    }
    LossLog { records }
}

#[test]
fn a_run_is_replayed_from_its_log() {
    let warmup = Duration::from_millis(10);
    let rule = |target| {
        let config = DeadlineConfig { ranks: 4, target, ..DeadlineConfig::default() };
        LearnedDeadline::new(config, warmup, BYTES).expect("possible")
    };
    let log: LossLog = run(&mut rule(0.01)).to_text().expect("a log").parse().expect("a log");
    assert_eq!(log.replay(&mut rule(0.01)), Ok(()));
    assert!(matches!(log.replay(&mut rule(0.02)), Err(LossLogError::OtherState { step: 0, .. })), "another budget");
    assert!(log.replay(&mut PaperDeadline::new(4, warmup, BYTES)).is_err(), "another rule");
    let mut other = log.clone();
    let half = std::iter::once(0..BYTES / 2);
    other.records[50].ranks.iter_mut().for_each(|rank| rank.missing = half.clone().collect());
    let error = other.replay(&mut rule(0.01)).expect_err("another loss");
    assert!(matches!(error, LossLogError::OtherState { step: 50, .. }), "{error}");
    // The last one, too, which no deadline follows.
    let mut other = log.clone();
    other.records[199].ranks[2].elapsed += Duration::from_nanos(100);
    let error = other.replay(&mut rule(0.01)).expect_err("another duration");
    assert!(matches!(error, LossLogError::OtherState { step: 199, .. }), "{error}");
    let mut fewer = log;
    fewer.records[3].ranks.pop();
    let error = fewer.replay(&mut rule(0.01)).expect_err("a rank is missing").to_string();
    assert_eq!(error, "step 3 operation 0: expected reports of 4 ranks, got 3");
}
