//! Answers as a picture (`--plot`): slowdowns against sizes or losses if there are several, otherwise how likely it is
//! to take longer.

use longhaul_charts::{Axis, Guide, LineChart, Plot, Scale, Series, Style, side_by_side, svg};
use longhaul_plan::question::{Candidate, Question, Row};

use super::answered::Answered;
use super::looks::style_of;
use super::table::{TimeUnit, bytes_text, link_text, loss_text};
use crate::stop::Stop;

/// More would not fit next to each other.
const PANELS_MAX: usize = 3;
/// Messages that take longer than this share of all are not drawn.
const TAIL_EXPONENT_MIN: f64 = -4.0;
const TAIL_STEPS: i32 = 400;

/// An SVG file's text.
pub(super) fn to_svg(answered: &[Answered]) -> Result<String, Stop> {
    let (sizes, losses) = (distinct(answered, |question| question.message_bytes as f64), distinct(answered, loss));
    let first = &answered.first().ok_or_else(|| Stop::Usage("there is nothing to draw".to_owned()))?.question;
    if sizes.len() == 1 && losses.len() == 1 {
        return Ok(svg(&tails(&answered[0])));
    }
    // The longer of the two lies along the axis; each value of the other is a chart of its own.
    let is_by_size = sizes.len() >= losses.len();
    let panels = if is_by_size { &losses } else { &sizes };
    if panels.len() > PANELS_MAX {
        return Err(Stop::Usage(format!(
            "expected at most {PANELS_MAX} sizes or at most {PANELS_MAX} losses with --plot, since each is a chart of its own, got {} \
             sizes and {} losses: leave out some, or draw from --csv",
            sizes.len(),
            losses.len()
        )));
    }
    let of_panel = |question: &Question, panel: f64| match is_by_size {
        true => loss(question) == panel,
        false => question.message_bytes as f64 == panel,
    };
    let mut charts: Vec<LineChart> = panels
        .iter()
        .map(|panel| slowdowns(answered.iter().filter(|one| of_panel(&one.question, *panel)), is_by_size))
        .collect();
    if let [chart] = &charts[..] {
        return Ok(svg(chart));
    }
    // What all have in common stands above all.
    charts.iter_mut().for_each(|chart| chart.subtitle.clear());
    let plots: Vec<&dyn Plot> = charts.iter().map(|chart| chart as &dyn Plot).collect();
    Ok(side_by_side("Slowdown of reliability schemes", &link_text(first), &plots))
}

fn loss(question: &Question) -> f64 {
    question.link.loss.mean()
}

fn distinct(answered: &[Answered], of: impl Fn(&Question) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = answered.iter().map(|Answered { question, .. }| of(question)).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

/// One question: the share that takes longer, against time.
fn tails(Answered { question, answer }: &Answered) -> LineChart {
    let slowest = answer.rows.iter().map(|row| row.distribution.quantile(1.0 - 1e-4)).fold(0.0, f64::max);
    let least = answer.rows.iter().map(|row| row.distribution.least()).fold(f64::INFINITY, f64::min);
    let unit = TimeUnit::for_times_from(least);
    let series = answer.rows.iter().map(|row| {
        let shares =
            (0..=TAIL_STEPS).map(|step| 10_f64.powf(TAIL_EXPONENT_MIN * f64::from(step) / f64::from(TAIL_STEPS)));
        let points = shares.map(|share| (row.distribution.quantile(1.0 - share) / unit.seconds, share));
        Series::new(row.scheme.to_string(), style_of(row.scheme.family()), points.collect())
    });
    LineChart {
        title: format!("How long {} takes", what(question)),
        subtitle: format!("{}, {}", link_text(question), loss_text(question)),
        x: Axis::new(
            format!("Completion time ({})", unit.name),
            if slowest > 12.0 * least { Scale::Log10 } else { Scale::Linear },
        ),
        y: Axis::new("Share that takes longer", Scale::Log10).over(10_f64.powf(TAIL_EXPONENT_MIN), 1.0),
        series: series.collect(),
        guides: question
            .deadline_seconds
            .map(|deadline| Guide::upwards(deadline / unit.seconds, "deadline"))
            .into_iter()
            .collect(),
        notes: Vec::new(),
    }
}

/// Several questions: mean slowdowns against sizes or losses.
fn slowdowns<'a>(answered: impl Iterator<Item = &'a Answered>, is_by_size: bool) -> LineChart {
    let mut answered: Vec<&Answered> = answered.collect();
    let x = |question: &Question| if is_by_size { question.message_bytes as f64 } else { loss(question) };
    answered.sort_by(|one, other| x(&one.question).total_cmp(&x(&other.question)));
    let first = &answered[0].question;
    let series = first.candidates.iter().map(|candidate| {
        let rows = answered.iter().filter_map(|one| Some((x(&one.question), row_of(one, *candidate)?)));
        let points: Vec<(f64, &Row)> = rows.collect();
        let style = points.first().map_or(Style::numbered(0), |(_, row)| style_of(row.scheme.family()));
        Series::new(candidate.to_string(), style, points.iter().map(|(x, row)| (*x, row.slowdown)).collect())
    });
    let ring = first.ring_sites.map_or(String::new(), |sites| format!(", ring of {sites} sites"));
    let message = if first.ring_sites.is_some() { "Buffer" } else { "Message" };
    let (title, x) = match is_by_size {
        true => {
            (format!("Slowdown at {}{ring}", loss_text(first)), Axis::new(format!("{message} size"), Scale::Log2Bytes))
        }
        false => (format!("Slowdown of {}", what(first)), Axis::new("Share of packets lost", Scale::Log10)),
    };
    LineChart {
        title,
        subtitle: link_text(first),
        x,
        y: Axis::new("Mean over the least time without loss", Scale::Log10),
        series: series.collect(),
        guides: Vec::new(),
        notes: Vec::new(),
    }
}

/// A candidate's row: there is one for each candidate that was not refused, in their order.
fn row_of(Answered { question, answer }: &Answered, candidate: Candidate) -> Option<&Row> {
    let is_refused = |candidate: &Candidate| answer.refused.iter().any(|(refused, _)| refused == candidate);
    let mut used = question.candidates.iter().filter(|candidate| !is_refused(candidate));
    answer.rows.get(used.position(|used| *used == candidate)?)
}

fn what(question: &Question) -> String {
    let bytes = bytes_text(question.message_bytes);
    match question.ring_sites {
        None => format!("a message of {bytes}"),
        Some(sites) => format!("an all-reduce of {bytes} over {sites} sites"),
    }
}

#[cfg(test)]
mod tests {
    use longhaul_plan::link::{Link, Loss};

    use super::*;

    fn answered(sizes: &[u64], losses: &[f64]) -> Vec<Answered> {
        let question = |size: u64, loss: f64| Question::new(Link::new(100e9, 0.01, Loss::Independent(loss)), size);
        let pairs = losses.iter().flat_map(|loss| sizes.iter().map(|size| question(*size, *loss)));
        pairs.map(|question| Answered { answer: question.answer().expect("an answer"), question }).collect()
    }

    #[test]
    fn what_varies_lies_along_the_axis() {
        let drawn = |sizes: &[u64], losses: &[f64]| to_svg(&answered(sizes, losses)).map_err(|stop| stop.to_string());
        assert!(drawn(&[1 << 20], &[1e-3]).is_ok_and(|svg| svg.contains("Share that takes longer")));
        assert!(drawn(&[1 << 20, 1 << 24], &[1e-3]).is_ok_and(|svg| svg.contains("Message size")));
        assert!(drawn(&[1 << 20], &[1e-3, 1e-2]).is_ok_and(|svg| svg.contains("Share of packets lost")));
        let both = drawn(&[1 << 20, 1 << 24], &[1e-4, 1e-3, 1e-2]).expect("two charts");
        assert!(both.contains("a message of 1 MiB") && both.contains("a message of 16 MiB"));
        let too_many = drawn(&[1, 2, 3, 4], &[1e-5, 1e-4, 1e-3, 1e-2]).expect_err("4 by 4");
        assert!(too_many.contains("leave out some"), "{too_many}");
    }
}
