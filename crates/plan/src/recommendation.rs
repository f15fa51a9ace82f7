//! Which scheme to take, why, and how close the second was.
//!
//! The shortest by the objective is not always the best answer: a hundredth shorter is not worth a fifth of the link. So the preference is, in
//! this order: what is within 2 % of the shortest by the objective; of that, what is within 2 % of the shortest 99.9th percentile; of that, what costs
//! least (bandwidth, then cores for coding); and of equals the larger chunk, because there is less to keep account of.

use crate::question::{Objective, Question, Row};
use crate::scheme::{Code, CodeKind, Family, Scheme};

/// Differences below this are none.
const INDIFFERENT: f64 = 1.02;

/// Which scheme to take.
#[derive(Clone, Debug, PartialEq)]
pub struct Recommendation {
    /// The scheme.
    pub scheme: Scheme,
    /// With this chunk.
    pub chunk_bytes: u32,
    /// Why, in a sentence.
    pub reason: String,
    /// The best of another kind.
    pub second: Option<Scheme>,
    /// How much longer the second takes, by the objective: 0.1 is a tenth. Negative when the second is shorter, but by too little for what
    /// it costs.
    pub margin: f64,
}

/// The preferred one of some rows.
pub(crate) fn prefer(objective: Objective, rows: &[Row]) -> Option<usize> {
    let shortest = |rows: &mut dyn Iterator<Item = f64>| rows.fold(f64::INFINITY, f64::min);
    let of = |row: &Row| objective.of(&row.completion);
    let limit = shortest(&mut rows.iter().map(of)) * INDIFFERENT;
    let near: Vec<usize> = (0..rows.len()).filter(|index| of(&rows[*index]) <= limit).collect();
    let tail = |index: usize| rows[index].completion.p999;
    let limit = shortest(&mut near.iter().map(|index| tail(*index))) * INDIFFERENT;
    // Costs that differ by less than a thousandth are equal.
    let cost = |row: &Row| ((row.extra_bandwidth * 1e3).round(), (row.cores * 10.0).round());
    near.into_iter().filter(|index| tail(*index) <= limit).min_by(|one, other| {
        let (one, other) = (&rows[*one], &rows[*other]);
        let (one_cost, other_cost) = (cost(one), cost(other));
        one_cost
            .0
            .total_cmp(&other_cost.0)
            .then(one_cost.1.total_cmp(&other_cost.1))
            .then(other.chunk_bytes.cmp(&one.chunk_bytes))
    })
}

pub(crate) fn recommend(question: &Question, rows: &[Row]) -> Option<Recommendation> {
    let available: Vec<Row> = rows.iter().filter(|row| row.scheme.is_available()).cloned().collect();
    let pool = if available.is_empty() { rows.to_vec() } else { available };
    let best = &pool[prefer(question.objective, &pool)?];
    let others: Vec<Row> = pool.iter().filter(|row| row.scheme.family() != best.scheme.family()).cloned().collect();
    let second = prefer(question.objective, &others).map(|index| &others[index]);
    let of = |row: &Row| question.objective.of(&row.completion);
    Some(Recommendation {
        scheme: best.scheme,
        chunk_bytes: best.chunk_bytes,
        reason: reason(question, best, second),
        second: second.map(|row| row.scheme),
        margin: second.map_or(0.0, |second| of(second) / of(best) - 1.0),
    })
}

fn reason(question: &Question, best: &Row, second: Option<&Row>) -> String {
    let link = &question.link;
    let bytes = question.stage_bytes();
    let packets = bytes.div_ceil(link.packet_bytes.into()) as f64;
    let lost_packets = packets * link.loss.mean();
    let hit = -f64::exp_m1(packets * (-link.loss.mean()).ln_1p());
    let sending = 8.0 * bytes as f64 / link.rate_bits_per_second;
    let instead = second.map_or(String::new(), |second| {
        format!(
            "; {} takes {:.2} times as long",
            second.scheme,
            question.objective.of(&second.completion) / question.objective.of(&best.completion)
        )
    });
    let percent = |share: f64| match share * 100.0 {
        share if share >= 10.0 => format!("{share:.0} %"),
        share if share >= 0.1 => format!("{share:.1} %"),
        share => format!("{share:.1e} %"),
    };
    if link.loss.mean() == 0.0 {
        return format!("nothing is lost on this link, so nothing has to be sent for losses{instead}");
    }
    match best.scheme {
        Scheme::Erasure(Code { kind, data, parity }) => {
            let mends = match kind {
                CodeKind::Mds => format!("any {parity} losses in {} chunks", data + parity),
                CodeKind::Xor => format!("a loss in each of {parity} groups of {data} chunks"),
            };
            format!(
                "{} of messages lose a packet and repeating it would cost a round trip of {:.3} ms, while parity mends {mends} at once for {} more \
                 bandwidth{instead}",
                percent(hit),
                link.round_trip_seconds * 1e3,
                percent(best.extra_bandwidth),
            )
        }
        _ if sending > link.round_trip_seconds => format!(
            "sending takes {:.3} ms, longer than the round trip of {:.3} ms, so that most repeating ({:.1} packets of a message) is hidden behind it and \
             parity would only take bandwidth{instead}",
            sending * 1e3,
            link.round_trip_seconds * 1e3,
            lost_packets,
        ),
        _ if best.scheme.family() == Family::GoBackN || hit < 0.5 => {
            format!(
                "only {} of messages lose a packet, so that parity would cost more than repeating{instead}",
                percent(hit)
            )
        }
        _ => format!(
            "{lost_packets:.1} packets of a message are lost, and among what can be used here repeating them takes the least time{instead}"
        ),
    }
}
