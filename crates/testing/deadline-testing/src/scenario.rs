//! The rules next to each other: the same durations, what each loses, and how long it waits.

use std::time::Duration;

use longhaul_deadline::{DeadlineConfig, DeadlineRule, LearnedDeadline, LossLog, LossRecord, PaperDeadline, RankLoss};

use crate::stragglers::Stragglers;

/// p99/p50 of durations.
const TAILS: [f64; 3] = [1.12, 1.5, 3.0];
/// What the paper's rule loses in the mean at these tails if no rank is always slow, at least: the closed form for a
/// deadline at the median is 1.9, 6.3 and 14.4 %.
const PAPER_LOSS_MIN: [f64; 3] = [0.015, 0.05, 0.11];
/// What a rank that is twice as slow loses with it, at least.
const PAPER_SLOW_LOSS_MIN: f64 = 0.35;
/// A rank may lose this many times its budget.
const OVER_TARGET_MAX: f64 = 1.5;
/// Bytes of an operation, for each rank.
const BYTES: u64 = 8 << 20;
/// Median duration of an operation.
const MEDIAN_NS: f64 = 1e7;

/// What is run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Ranks of the group, at least 3.
    pub ranks: usize,
    /// Loss budgets.
    pub targets: Vec<f64>,
    /// Operations that do not count: the rules learn.
    pub learning: usize,
    /// Operations that count.
    pub operations: usize,
    /// Runs of each, each with a seed of its own.
    pub seeds: Vec<u64>,
}

/// What a rule did in all runs with one tail and the same slow ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// `learned` or `paper`.
    pub rule: &'static str,
    /// p99/p50 of durations.
    pub tail: f64,
    /// Ranks that are always twice as slow.
    pub slow_ranks: Vec<usize>,
    /// The loss budget; the paper's rule has none.
    pub target: Option<f64>,
    /// Share of bytes that the rank with the largest loss of any run lost.
    pub undelivered_worst_rank: f64,
    /// Share of all bytes.
    pub undelivered_mean: f64,
    /// Share of operations that were cut, of those of all ranks.
    pub cut: f64,
    /// Ranks that the rule names in any run; the paper's rule names none.
    pub late_ranks: Vec<usize>,
    /// Whether every run named the same ranks.
    pub late_ranks_agree: bool,
    /// Mean deadline over the median duration of a rank that is not slow.
    pub deadline_of_median: f64,
    /// 99th percentile of the time until the last rank ends, over that of waiting for everything.
    pub p99_of_waiting: f64,
}

/// What must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// What it is about.
    pub name: String,
    /// Whether it holds.
    pub passed: bool,
    /// What was measured.
    pub got: f64,
    /// What it may be: at most, or at least, as the name says.
    pub bound: f64,
}

/// All rows and checks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// In the order in which they were run.
    pub rows: Vec<Row>,
    /// What must hold.
    pub checks: Vec<Check>,
}

/// What one run adds up to.
#[derive(Default)]
struct Totals {
    /// Of each rank, the sum of shares.
    undelivered: Vec<f64>,
    cut: usize,
    deadlines_ns: f64,
    ends_ns: Vec<f64>,
    whole_ns: Vec<f64>,
}

/// Runs an operation: who has what at the deadline. Bytes arrive evenly.
fn operation(step: usize, deadline: Duration, durations: &[f64]) -> LossRecord {
    let rank = |duration: &f64| {
        let cut = deadline.as_nanos() as f64;
        let arrived = (BYTES as f64 * (cut / duration).min(1.0)) as u64;
        let missing = Vec::from_iter((arrived < BYTES).then_some(arrived..BYTES));
        RankLoss { elapsed: Duration::from_nanos(duration.min(cut) as u64), bytes: BYTES, missing }
    };
    LossRecord { step: step as u64, operation: 0, deadline, ranks: durations.iter().map(rank).collect() }
}

fn run(rule: &mut impl DeadlineRule, stragglers: &mut Stragglers, plan: &Plan) -> (Totals, LossLog) {
    let mut totals = Totals { undelivered: vec![0.0; plan.ranks], ..Totals::default() };
    let mut log = LossLog::default();
    for step in 0..plan.learning + plan.operations {
        let durations = stragglers.next_operation();
        let deadline = rule.deadline(BYTES);
        let record = operation(step, deadline, &durations);
        let reports = record.reports();
        rule.observe(&reports).expect("a report of each rank");
        log.records.push(record);
        if step < plan.learning {
            continue;
        }
        for (sum, report) in totals.undelivered.iter_mut().zip(&reports) {
            *sum += report.undelivered_share();
        }
        totals.cut += reports.iter().filter(|report| report.undelivered_bytes > 0).count();
        let last = durations.iter().copied().fold(0.0, f64::max);
        totals.deadlines_ns += deadline.as_nanos() as f64;
        totals.ends_ns.push(last.min(deadline.as_nanos() as f64));
        totals.whole_ns.push(last);
    }
    (totals, log)
}

fn p99(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() * 99 / 100).copied().unwrap_or(0.0)
}

/// One row out of all runs of a rule.
fn row(
    plan: &Plan,
    (rule, target): (&'static str, Option<f64>),
    (tail, slow_ranks): (f64, &[usize]),
    runs: &[Totals],
    named: &[Vec<usize>],
) -> Row {
    let operations = plan.operations as f64;
    let shares = || runs.iter().flat_map(|run| run.undelivered.iter().map(|sum| sum / operations));
    let count = (runs.len() * plan.ranks) as f64;
    let mut late_ranks = named.concat();
    late_ranks.sort_unstable();
    late_ranks.dedup();
    Row {
        rule,
        tail,
        slow_ranks: slow_ranks.to_vec(),
        target,
        undelivered_worst_rank: shares().fold(0.0, f64::max),
        undelivered_mean: shares().sum::<f64>() / count,
        cut: runs.iter().map(|run| run.cut).sum::<usize>() as f64 / (count * operations),
        late_ranks_agree: named.windows(2).all(|pair| pair[0] == pair[1]),
        late_ranks,
        deadline_of_median: runs.iter().map(|run| run.deadlines_ns).sum::<f64>()
            / (runs.len() as f64 * operations * MEDIAN_NS),
        p99_of_waiting: p99(runs.iter().flat_map(|run| run.ends_ns.iter().copied()))
            / p99(runs.iter().flat_map(|run| run.whole_ns.iter().copied())),
    }
}

/// Runs both rules at all tails, without slow ranks and with one. `step` is called when a row begins.
pub fn timeouts(plan: &Plan, step: &mut dyn FnMut(&str)) -> Report {
    let mut report = Report::default();
    let warmup = Duration::from_nanos(MEDIAN_NS as u64);
    for (tail, paper_loss_min) in TAILS.into_iter().zip(PAPER_LOSS_MIN) {
        for slow in [vec![], vec![plan.ranks - 1]] {
            let name = format!("tail {tail}, {} slow", slow.len());
            step(&name);
            let stragglers = |seed| Stragglers::new(plan.ranks, tail, &slow, MEDIAN_NS, seed);
            for &target in &plan.targets {
                let config = DeadlineConfig { ranks: plan.ranks, target, ..DeadlineConfig::default() };
                let rule = || LearnedDeadline::new(config, warmup, BYTES).expect("a possible configuration");
                let (mut runs, mut named, mut replayed) = (Vec::new(), Vec::new(), 0);
                for &seed in &plan.seeds {
                    let mut learned = rule();
                    let (totals, log) = run(&mut learned, &mut stragglers(seed), plan);
                    named.push(learned.late_ranks());
                    runs.push(totals);
                    replayed += usize::from(log.replay(&mut rule()).is_ok());
                }
                let row = row(plan, ("learned", Some(target)), (tail, &slow), &runs, &named);
                report.checks.extend(learned_checks(&name, target, &row));
                let all = plan.seeds.len() as f64;
                report.checks.push(at_least(
                    format!(
                        "{name}, target {target}: runs with the same deadlines when replayed from their log, at least"
                    ),
                    replayed as f64,
                    all,
                ));
                report.rows.push(row);
            }
            let runs: Vec<Totals> = plan
                .seeds
                .iter()
                .map(|seed| run(&mut PaperDeadline::new(plan.ranks, warmup, BYTES), &mut stragglers(*seed), plan).0)
                .collect();
            let row = row(plan, ("paper", None), (tail, &slow), &runs, &[]);
            report.checks.push(match slow.is_empty() {
                true => at_least(
                    format!("{name}, the paper's rule: mean loss, at least"),
                    row.undelivered_mean,
                    paper_loss_min,
                ),
                false => at_least(
                    format!("{name}, the paper's rule: loss of the slow rank, at least"),
                    row.undelivered_worst_rank,
                    PAPER_SLOW_LOSS_MIN,
                ),
            });
            report.rows.push(row);
        }
    }
    report
}

fn at_least(name: String, got: f64, bound: f64) -> Check {
    Check { name, passed: got >= bound, got, bound }
}

fn learned_checks(name: &str, target: f64, row: &Row) -> [Check; 2] {
    let bound = OVER_TARGET_MAX * target;
    let got = row.undelivered_worst_rank;
    let named = row.late_ranks == row.slow_ranks && row.late_ranks_agree;
    [
        Check {
            name: format!("{name}, target {target}: loss of the worst rank, at most"),
            passed: got <= bound,
            got,
            bound,
        },
        at_least(
            format!("{name}, target {target}: exactly the slow ranks named (1) or not (0)"),
            f64::from(u8::from(named)),
            1.0,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(targets: &[f64], seeds: &[u64]) -> Plan {
        Plan { ranks: 8, targets: targets.to_vec(), learning: 200, operations: 1000, seeds: seeds.to_vec() }
    }

    #[test]
    fn every_check_passes_with_seeds_that_were_not_used_for_tuning() {
        let report = timeouts(&plan(&[0.01, 0.05], &[901, 902]), &mut |_| ());
        let failed: Vec<&Check> = report.checks.iter().filter(|check| !check.passed).collect();
        assert!(failed.is_empty(), "{failed:#?}");
        assert_eq!(report.rows.len(), 3 * 2 * 3);
    }

    #[test]
    fn the_papers_rule_would_fail_the_learned_rules_checks() {
        let report = timeouts(&plan(&[0.01], &[903]), &mut |_| ());
        for row in report.rows.iter().filter(|row| row.rule == "paper") {
            let [budget, _] = learned_checks("", 0.01, row);
            assert!(!budget.passed, "{row:?}");
            assert!(row.cut > 0.4, "{row:?}");
        }
    }

    #[test]
    fn the_same_seeds_give_the_same_report() {
        let plan = plan(&[0.02], &[7]);
        assert_eq!(timeouts(&plan, &mut |_| ()), timeouts(&plan, &mut |_| ()));
    }
}
