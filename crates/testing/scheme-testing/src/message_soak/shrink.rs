//! A failing program, made short: items are left out as long as the same rule is still broken.

use super::plan::Plan;
use super::{MessageSeedReport, MessageSoakOptions, Rule, run_message_seed};

/// A short program that fails.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The items that are left.
    pub only: Vec<usize>,
    /// What they come to.
    pub report: MessageSeedReport,
    /// The same, in words.
    pub items: Vec<String>,
    /// Programs that were tried.
    pub runs: u32,
}

/// Shrink the program of a failing seed, with at most this many runs. `None` when it does not fail.
pub fn shrink(seed: u64, options: &MessageSoakOptions, runs_max: u32) -> Option<Shrunk> {
    let mut report = run_message_seed(seed, options);
    let rule = report.violations.first()?.rule;
    let mut only = options.only.clone().unwrap_or_else(|| (0..report.items).collect());
    let mut runs = 1;
    let mut span = only.len().div_ceil(2);
    while span > 0 {
        let mut start = 0;
        let mut is_shorter = false;
        while start < only.len() && runs < runs_max {
            let end = (start + span).min(only.len());
            let fewer: Vec<usize> = [&only[..start], &only[end..]].concat();
            runs += 1;
            let tried = run_message_seed(seed, &MessageSoakOptions { only: Some(fewer.clone()), ..options.clone() });
            if is_same(&tried, rule) {
                (only, report, is_shorter) = (fewer, tried, true);
            } else {
                start = end;
            }
        }
        span = match span {
            1 if is_shorter && runs < runs_max => 1,
            1 => 0,
            _ => span.div_ceil(2),
        };
    }
    let plan = Plan::draw(seed);
    let items = only.iter().filter_map(|index| plan.items.get(*index)).map(|item| format!("{item:?}")).collect();
    Some(Shrunk { only, report, items, runs })
}

fn is_same(report: &MessageSeedReport, rule: Rule) -> bool {
    report.violations.first().is_some_and(|violation| violation.rule == rule)
}
