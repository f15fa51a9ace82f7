//! What deadlines lose: of the worst rank over the tail, and of each rank.

use longhaul_charts::{Axis, Bar, BarChart, Guide, LineChart, Scale, Series, Style, side_by_side};
use longhaul_deadline_testing::{Plan, Report, Row};

/// The tail at which ranks are shown one by one.
const RANKS_TAIL: f64 = 1.5;
/// More would not fit next to each other.
const RANKS_MAX: usize = 12;

/// Names of files, and what they show.
pub(super) fn draw(plan: &Plan, report: &Report) -> Vec<(String, String)> {
    let is_plain = |row: &&Row| row.group.path_loss == 0.0 && !row.group.mixed_sizes;
    let of = |is_slow: bool| {
        let rows = report.rows.iter().filter(is_plain).filter(move |row| row.group.slow_ranks.is_empty() != is_slow);
        rows.collect::<Vec<&Row>>()
    };
    let subtitle = format!(
        "{} ranks, {} operations of 8 MiB, {} seeds; durations lognormal; what is not there at the deadline is lost",
        plan.ranks,
        plan.operations,
        plan.seeds.len()
    );
    let tails =
        [over_tails(plan, "No rank is slow", &of(false)), over_tails(plan, "One rank is twice as slow", &of(true))];
    let title = "Lost by the rank that loses most";
    let mut pictures = vec![("timeout-tails".to_owned(), side_by_side(title, &subtitle, &[&tails[0], &tails[1]]))];
    if plan.ranks <= RANKS_MAX {
        let ranks = [
            of_ranks("No rank is slow", plan, &of(false)),
            of_ranks("The last rank is twice as slow", plan, &of(true)),
        ];
        let title = format!("Lost by each rank, tail {RANKS_TAIL}");
        pictures.push(("timeout-ranks".to_owned(), side_by_side(&title, &subtitle, &[&ranks[0], &ranks[1]])));
    }
    pictures
}

/// The rules, as legends name them: the paper's, and ours with each budget.
fn rules(plan: &Plan) -> Vec<(String, Option<f64>)> {
    let learned = plan.targets.iter().map(|target| (format!("budget {} %", target * 100.0), Some(*target)));
    std::iter::once(("the paper's rule".to_owned(), None)).chain(learned).collect()
}

fn over_tails(plan: &Plan, title: &str, rows: &[&Row]) -> LineChart {
    let line = |(index, (name, target)): (usize, (String, Option<f64>))| {
        let rows = rows.iter().filter(|row| row.target == target);
        let points = rows.map(|row| (row.group.tail, row.undelivered_worst_rank * 100.0)).collect();
        Series::new(name, Style::numbered(index), points)
    };
    LineChart {
        title: title.to_owned(),
        subtitle: String::new(),
        x: Axis::new("Tail of durations, p99/p50", Scale::Linear).over(1.0, 3.0).every(0.5),
        y: Axis::new("Bytes lost by the worst rank, %", Scale::Log10).over(0.2, 100.0),
        series: rules(plan).into_iter().enumerate().map(line).collect(),
        guides: plan.targets.iter().map(|target| Guide::across(target * 100.0, "")).collect(),
        notes: Vec::new(),
    }
}

fn of_ranks(title: &str, plan: &Plan, rows: &[&Row]) -> BarChart {
    let rules = rules(plan);
    let row_of = |target: &Option<f64>| rows.iter().find(|row| row.group.tail == RANKS_TAIL && row.target == *target);
    let late = rules.iter().filter_map(|(_, target)| target.and(row_of(target))).next();
    let group = |rank: usize| {
        let bars = rules.iter().enumerate().filter_map(|(kind, (_, target))| {
            let height = *row_of(target)?.undelivered.get(rank)? * 100.0;
            let above = if height < 9.95 { format!("{height:.1}") } else { format!("{height:.0}") };
            Some(Bar { kind, height, above })
        });
        let is_late = late.is_some_and(|row| row.late_ranks.contains(&rank));
        (if is_late { format!("{rank}: late") } else { rank.to_string() }, bars.collect())
    };
    BarChart {
        title: title.to_owned(),
        subtitle: String::new(),
        x_title: "Rank; \"late\": named by our rule".to_owned(),
        y_title: "Bytes lost, %".to_owned(),
        groups: (0..plan.ranks).map(group).collect(),
        kinds: rules.iter().enumerate().map(|(kind, (name, _))| (name.clone(), Style::numbered(kind).colour)).collect(),
        guide: None,
        notes: Vec::new(),
    }
}
