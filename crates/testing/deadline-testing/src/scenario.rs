//! The rules next to each other: the same durations, what each loses, and how long it waits.

use std::ops::Range;
use std::time::Duration;

use longhaul_deadline::{DeadlineConfig, DeadlineRule, Ended, LearnedDeadline, LossRecord, PaperDeadline, RankLoss};

use crate::stragglers::{PathLoss, Stragglers};

/// p99/p50 of durations.
const TAILS: [f64; 3] = [1.12, 1.5, 3.0];
/// What the paper's rule loses in the mean at these tails if no rank is always slow, at least: the closed form for a
/// deadline at the median is 1.9, 6.3 and 14.4 %.
const PAPER_LOSS_MIN: [f64; 3] = [0.015, 0.05, 0.11];
/// What a rank that is twice as slow loses with it, at least.
const PAPER_SLOW_LOSS_MIN: f64 = 0.35;
/// A rank may lose this many times its budget.
const OVER_TARGET_MAX: f64 = 1.5;
/// What a path that loses packets loses, at this tail.
const PATH_LOSS: f64 = 0.05;
const PATH_LOSS_TAIL: f64 = 1.5;
/// Packets lost in transit make deadlines at most this many times later than they are without.
const PATH_LOSS_LATER_MAX: f64 = 1.1;
/// What is lost at once.
const PACKET_BYTES: u64 = 64 << 10;
/// Of operations of a single size, where sizes are mixed, it may be more: small ones arrive whole or not at all.
const OVER_TARGET_SIZE_MAX: f64 = 2.0;
/// Bytes of an operation, for each rank.
const BYTES: u64 = 8 << 20;
/// Median duration of such an operation.
const MEDIAN_NS: f64 = 1e7;
/// If sizes are mixed: these, drawn at random, at this tail, and the part of [`MEDIAN_NS`] that passes before anything
/// arrives.
const SIZES: [u64; 4] = [8, 16 << 10, 512 << 10, BYTES];
const SIZES_TAIL: f64 = 1.5;
const LATENCY: f64 = 0.25;

/// What is run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Ranks of the group, at least [`Plan::RANKS_MIN`].
    pub ranks: usize,
    /// Loss budgets.
    pub targets: Vec<f64>,
    /// Operations that do not count: the rules learn. Of mixed sizes, as many of each in the mean.
    pub learning: usize,
    /// Operations that count. Of mixed sizes, as many of each in the mean.
    pub operations: usize,
    /// Runs of each, each with a seed of its own.
    pub seeds: Vec<u64>,
}

impl Plan {
    /// With fewer, the slow rank is a large part of the group that it is compared with: of 3 ranks at a tail of 3,
    /// others are named too.
    pub const RANKS_MIN: usize = 5;
    /// Most operations of ranks in all runs of a row: for each operation, its durations are kept.
    pub const RANK_OPERATIONS_MAX: usize = 20_000_000;

    /// Whether it can be run. If not, why.
    pub fn check(&self) -> Result<(), String> {
        let Plan { ranks, learning, operations, seeds, .. } = self;
        if *ranks < Plan::RANKS_MIN {
            return Err(format!("{ranks} ranks: at least {}", Plan::RANKS_MIN));
        }
        let all = learning.checked_add(*operations).and_then(|all| all.checked_mul(*ranks));
        match all.and_then(|all| all.checked_mul(seeds.len())) {
            Some(0) => Err("nothing to run: expected targets, operations and seeds".into()),
            Some(all) if all <= Plan::RANK_OPERATIONS_MAX => Ok(()),
            _ => Err(format!(
                "{ranks} ranks with {operations} operations after {learning}, {} times: at most {} operations of ranks",
                seeds.len(),
                Plan::RANK_OPERATIONS_MAX
            )),
        }
    }
}

/// What a group is like.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// p99/p50 of durations.
    pub tail: f64,
    /// Ranks that are always twice as slow.
    pub slow_ranks: Vec<usize>,
    /// Share of packets that every rank's path loses.
    pub path_loss: f64,
    /// Whether sizes differ from operation to operation, on a path with a latency.
    pub mixed_sizes: bool,
}

/// What a rule did in all runs with one tail and the same slow ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// `learned` or `paper`.
    pub rule: &'static str,
    /// The group.
    pub group: Group,
    /// The loss budget; the paper's rule has none.
    pub target: Option<f64>,
    /// Share of bytes that the rank with the largest loss of any run lost to deadlines.
    pub undelivered_worst_rank: f64,
    /// Share of its bytes that each rank lost to deadlines, in the mean of all runs.
    pub undelivered: Vec<f64>,
    /// Of any size of operations: the largest share that a rank lost of it to deadlines, in the mean of all runs.
    pub undelivered_worst_size: f64,
    /// Share of all bytes that were lost to deadlines.
    pub undelivered_mean: f64,
    /// Share of all bytes that were lost in transit, and would have arrived before the deadline.
    pub lost_in_transit: f64,
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
    /// For each rank and size, the operations, and the sum of shares that were lost to deadlines.
    late: Vec<[(f64, f64); SIZES.len()]>,
    /// Bytes of all ranks, and those that were lost in transit.
    in_transit: [f64; 2],
    cut: usize,
    deadlines_ns: f64,
    medians_ns: f64,
    ends_ns: Vec<f64>,
    whole_ns: Vec<f64>,
}

impl Totals {
    /// Share of a rank's bytes that were lost to deadlines.
    fn late_share(&self, rank: usize) -> f64 {
        let of = |(size, (operations, late)): (&u64, &(f64, f64))| (*size as f64 * operations, *size as f64 * late);
        let sums = SIZES.iter().zip(&self.late[rank]).map(of).reduce(|one, other| (one.0 + other.0, one.1 + other.1));
        sums.map_or(0.0, |(bytes, late)| late / bytes)
    }
}

/// An operation: its bytes for each rank, and until when which of them arrive.
struct Operation {
    bytes: u64,
    /// Of the duration, until the first byte; the others arrive evenly.
    until_first: f64,
    /// Of a rank that is not slow.
    median_ns: f64,
    /// Of each rank, without a deadline.
    durations: Vec<f64>,
}

impl Operation {
    fn new(group: &Group, stragglers: &mut Stragglers) -> Operation {
        let bytes = if group.mixed_sizes { SIZES[stragglers.next_choice(SIZES.len())] } else { BYTES };
        let latency = if group.mixed_sizes { LATENCY } else { 0.0 };
        let median = latency + (1.0 - latency) * bytes as f64 / BYTES as f64;
        let mut durations = stragglers.next_operation();
        durations.iter_mut().for_each(|duration| *duration *= median);
        Operation { bytes, until_first: latency / median, median_ns: median * MEDIAN_NS, durations }
    }

    /// Runs it: who has what at the deadline, and what share of it each rank lost to the deadline.
    fn run(&self, step: usize, deadline: Duration, path: &mut PathLoss) -> (LossRecord, Vec<f64>) {
        let (bytes, cut) = (self.bytes, deadline.as_nanos() as f64);
        let (mut ranks, mut late) = (Vec::new(), Vec::new());
        for duration in &self.durations {
            let first = duration * self.until_first;
            let share = if cut < *duration { ((cut - first) / (duration - first)).clamp(0.0, 1.0) } else { 1.0 };
            let arrived = (bytes as f64 * share) as u64;
            let mut missing: Vec<Range<u64>> = Vec::new();
            let lost = (0..bytes).step_by(PACKET_BYTES as usize).filter(|_| path.next_is_lost());
            let lost = lost.map(|start| start..(start + PACKET_BYTES).min(arrived)).filter(|range| !range.is_empty());
            for range in lost.chain(Some(arrived..bytes).filter(|late| !late.is_empty())) {
                match missing.last_mut() {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => missing.push(range),
                }
            }
            let ended = match (arrived < bytes, missing.is_empty()) {
                (true, _) => Ended::Deadline,
                (false, false) => Ended::Quiet,
                (false, true) => Ended::Whole,
            };
            late.push((bytes - arrived) as f64 / bytes as f64);
            ranks.push(RankLoss {
                started: Duration::ZERO,
                elapsed: Duration::from_nanos(duration.min(cut) as u64),
                bytes,
                ended,
                missing,
            });
        }
        (LossRecord { step: step as u64, operation: 0, bytes, deadline, state: 0, ranks }, late)
    }
}

/// One run. `replay` gets each operation's record.
fn run(
    rule: &mut impl DeadlineRule,
    group: &Group,
    plan: &Plan,
    seed: u64,
    mut replay: impl FnMut(LossRecord),
) -> Totals {
    let mut stragglers = Stragglers::new(plan.ranks, group.tail, &group.slow_ranks, MEDIAN_NS, seed);
    let mut path = PathLoss::new(group.path_loss, seed);
    let mut totals = Totals { late: vec![[(0.0, 0.0); SIZES.len()]; plan.ranks], ..Totals::default() };
    let sizes = group.sizes();
    for step in 0..sizes * (plan.learning + plan.operations) {
        let operation = Operation::new(group, &mut stragglers);
        let bytes = operation.bytes;
        let deadline = rule.deadline(bytes);
        let (mut record, late) = operation.run(step, deadline, &mut path);
        let reports = record.reports();
        rule.observe(bytes, &reports).expect("a report of each rank");
        record.state = rule.digest();
        replay(record);
        if step < sizes * plan.learning {
            continue;
        }
        let size = SIZES.iter().position(|size| *size == bytes).expect("one of the sizes");
        for ((sums, late), report) in totals.late.iter_mut().zip(late).zip(&reports) {
            sums[size].0 += 1.0;
            sums[size].1 += late;
            totals.in_transit[0] += bytes as f64;
            totals.in_transit[1] += report.undelivered_bytes as f64 - late * bytes as f64;
        }
        totals.cut += reports.iter().filter(|report| report.ended == Ended::Deadline).count();
        let last = operation.durations.iter().copied().fold(0.0, f64::max);
        totals.medians_ns += operation.median_ns;
        totals.deadlines_ns += deadline.as_nanos() as f64;
        totals.ends_ns.push(last.min(deadline.as_nanos() as f64));
        totals.whole_ns.push(last);
    }
    totals
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
    group: &Group,
    runs: &[Totals],
    named: &[Vec<usize>],
) -> Row {
    let operations = (group.sizes() * plan.operations) as f64;
    let shares = || runs.iter().flat_map(|run| (0..plan.ranks).map(|rank| run.late_share(rank)));
    let of_rank = |rank| runs.iter().map(|run| run.late_share(rank)).sum::<f64>() / runs.len() as f64;
    let of_size = |rank: usize, size: usize| {
        let sums = runs.iter().map(|run| run.late[rank][size]);
        let (all, late) = sums.fold((0.0, 0.0), |one, other| (one.0 + other.0, one.1 + other.1));
        if all > 0.0 { late / all } else { 0.0 }
    };
    let of_sizes = (0..plan.ranks).flat_map(|rank| (0..SIZES.len()).map(move |size| (rank, size)));
    let count = (runs.len() * plan.ranks) as f64;
    let mut late_ranks = named.concat();
    late_ranks.sort_unstable();
    late_ranks.dedup();
    Row {
        rule,
        group: group.clone(),
        target,
        undelivered_worst_rank: shares().fold(0.0, f64::max),
        undelivered: (0..plan.ranks).map(of_rank).collect(),
        undelivered_worst_size: of_sizes.map(|(rank, size)| of_size(rank, size)).fold(0.0, f64::max),
        undelivered_mean: shares().sum::<f64>() / count,
        lost_in_transit: runs.iter().map(|run| run.in_transit[1] / run.in_transit[0]).sum::<f64>() / runs.len() as f64,
        cut: runs.iter().map(|run| run.cut).sum::<usize>() as f64 / (count * operations),
        late_ranks_agree: named.windows(2).all(|pair| pair[0] == pair[1]),
        late_ranks,
        deadline_of_median: runs.iter().map(|run| run.deadlines_ns).sum::<f64>()
            / runs.iter().map(|run| run.medians_ns).sum::<f64>(),
        p99_of_waiting: p99(runs.iter().flat_map(|run| run.ends_ns.iter().copied()))
            / p99(runs.iter().flat_map(|run| run.whole_ns.iter().copied())),
    }
}

/// All groups, each without slow ranks and with one: at each tail; with paths that lose packets; with mixed sizes.
fn groups(ranks: usize) -> Vec<Group> {
    let mut groups = Vec::new();
    let tails = TAILS.map(|tail| (tail, 0.0, false)).into_iter();
    for (tail, path_loss, mixed_sizes) in tails.chain([(PATH_LOSS_TAIL, PATH_LOSS, false), (SIZES_TAIL, 0.0, true)]) {
        for slow_ranks in [vec![], vec![ranks - 1]] {
            groups.push(Group { tail, slow_ranks, path_loss, mixed_sizes });
        }
    }
    groups
}

impl Group {
    /// Sizes that operations have.
    fn sizes(&self) -> usize {
        if self.mixed_sizes { SIZES.len() } else { 1 }
    }

    fn name(&self) -> String {
        let mut name = format!("tail {}, {} slow", self.tail, self.slow_ranks.len());
        if self.path_loss > 0.0 {
            name += &format!(", {} % lost in transit", self.path_loss * 100.0);
        }
        if self.mixed_sizes {
            name += ", mixed sizes";
        }
        name
    }
}

/// Runs both rules with all groups. `step` is called when a group begins.
///
/// # Panics
///
/// When [`Plan::check`] fails.
pub fn timeouts(plan: &Plan, step: &mut dyn FnMut(&str)) -> Report {
    if let Err(reason) = plan.check() {
        panic!("{reason}");
    }
    let mut report = Report::default();
    for group in groups(plan.ranks) {
        step(&group.name());
        for &target in &plan.targets {
            learned(plan, &group, target, &mut report);
        }
        paper(plan, &group, &mut report);
    }
    report
}

fn warmup() -> Duration {
    Duration::from_nanos(MEDIAN_NS as u64)
}

fn learned(plan: &Plan, group: &Group, target: f64, report: &mut Report) {
    let config = DeadlineConfig { ranks: plan.ranks, target, ..DeadlineConfig::default() };
    let rule = || LearnedDeadline::new(config, warmup(), BYTES).expect("a possible configuration");
    let (mut runs, mut named, mut replayed) = (Vec::new(), Vec::new(), 0);
    for &seed in &plan.seeds {
        let (mut learned, mut other, mut is_repeated) = (rule(), rule(), true);
        runs.push(run(&mut learned, group, plan, seed, |record| {
            is_repeated = is_repeated && is_repeated_from_text(&record, &mut other);
        }));
        named.push(learned.late_ranks());
        replayed += usize::from(is_repeated);
    }
    let name = format!("{}, target {target}", group.name());
    let row = row(plan, ("learned", Some(target)), group, &runs, &named);
    report.checks.extend(learned_checks(&name, target, &row));
    report.checks.push(at_least(
        format!("{name}: runs with the same deadlines when replayed from their log, at least"),
        replayed as f64,
        plan.seeds.len() as f64,
    ));
    if group.mixed_sizes {
        let (got, bound) = (row.undelivered_worst_size, OVER_TARGET_SIZE_MAX * target);
        let name = format!("{name}: loss of a rank in operations of any size, at most");
        report.checks.push(Check { name, passed: got <= bound, got, bound });
    }
    // The same durations without losses were run before.
    let clean = Group { path_loss: 0.0, ..group.clone() };
    let clean = report.rows.iter().find(|row| row.group == clean && row.target == Some(target));
    if let Some(clean) = clean.filter(|_| group.path_loss > 0.0) {
        let (got, bound) = (row.deadline_of_median / clean.deadline_of_median, PATH_LOSS_LATER_MAX);
        let name = format!("{name}: deadline over that without losses, at most");
        report.checks.push(Check { name, passed: got <= bound, got, bound });
    }
    report.rows.push(row);
}

/// Whether a rule that knows only the lines of a run's loss log has the run's deadlines and states.
fn is_repeated_from_text(record: &LossRecord, rule: &mut LearnedDeadline) -> bool {
    let line = record.to_line().map(|line| line.parse::<LossRecord>());
    matches!(line, Ok(Ok(read)) if read.replay(rule).is_ok())
}

fn paper(plan: &Plan, group: &Group, report: &mut Report) {
    let rule = || PaperDeadline::new(plan.ranks, warmup(), BYTES);
    let runs: Vec<Totals> = plan.seeds.iter().map(|seed| run(&mut rule(), group, plan, *seed, |_| ())).collect();
    let row = row(plan, ("paper", None), group, &runs, &[]);
    let paper_loss_min = TAILS.iter().zip(PAPER_LOSS_MIN).find(|(tail, _)| **tail == group.tail);
    match paper_loss_min {
        // With losses in transit, its count of bytes takes durations for longer than they are; of mixed sizes, it has
        // one cost for all bytes.
        _ if group.path_loss > 0.0 || group.mixed_sizes => {}
        Some((_, bound)) if group.slow_ranks.is_empty() => report.checks.push(at_least(
            format!("{}, the paper's rule: mean loss, at least", group.name()),
            row.undelivered_mean,
            bound,
        )),
        _ => report.checks.push(at_least(
            format!("{}, the paper's rule: loss of the slow rank, at least", group.name()),
            row.undelivered_worst_rank,
            PAPER_SLOW_LOSS_MIN,
        )),
    }
    report.rows.push(row);
}

fn at_least(name: String, got: f64, bound: f64) -> Check {
    Check { name, passed: got >= bound, got, bound }
}

fn learned_checks(name: &str, target: f64, row: &Row) -> [Check; 2] {
    let bound = OVER_TARGET_MAX * target;
    let got = row.undelivered_worst_rank;
    let named = row.late_ranks == row.group.slow_ranks && row.late_ranks_agree;
    [
        Check { name: format!("{name}: loss of the worst rank, at most"), passed: got <= bound, got, bound },
        at_least(format!("{name}: exactly the slow ranks named (1) or not (0)"), f64::from(u8::from(named)), 1.0),
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
        assert_eq!(report.rows.len(), 5 * 2 * 3);
    }

    #[test]
    fn the_papers_rule_would_fail_the_learned_rules_checks() {
        let report = timeouts(&plan(&[0.01], &[903]), &mut |_| ());
        for row in report.rows.iter().filter(|row| row.rule == "paper" && row.group.path_loss == 0.0) {
            let [budget, _] = learned_checks("", 0.01, row);
            assert!(!budget.passed, "{row:?}");
            assert!(row.cut > 0.4, "{row:?}");
        }
    }

    #[test]
    fn plans_are_bounded() {
        let plan = plan(&[0.01], &[1]);
        assert_eq!(plan.check(), Ok(()));
        for ranks in [0, 3, 4] {
            assert!(Plan { ranks, ..plan.clone() }.check().is_err(), "{ranks}");
        }
        assert_eq!(timeouts(&Plan { ranks: Plan::RANKS_MIN, ..plan.clone() }, &mut |_| ()).checks.len(), 40);
        for (ranks, operations, seeds) in [(1024, 1_000_000, 1), (1024, 100, 1000), (8, usize::MAX, 1), (8, 100, 0)] {
            let plan = Plan { ranks, operations, seeds: (0..seeds).collect(), ..plan.clone() };
            assert!(plan.check().is_err(), "{plan:?}");
        }
    }

    #[test]
    fn the_same_seeds_give_the_same_report() {
        let plan = plan(&[0.02], &[7]);
        assert_eq!(timeouts(&plan, &mut |_| ()), timeouts(&plan, &mut |_| ()));
    }
}
