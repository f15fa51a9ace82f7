//! Which scheme to take, why, and how close the second was.
//!
//! The shortest by the objective is not always the best answer: a hundredth shorter is not worth a fifth of the link.
//! So the preference is, in this order: if there is a deadline, what is done by then within a thousandth of most often;
//! of that, what is within 2 % of the shortest by the objective; of that, what is within 2 % of the shortest 99.9th
//! percentile; of that, what costs least (bandwidth, then cores for coding). Of equals it is the shorter scheme, and of
//! one scheme's chunks the larger, because there is less to keep account of.

use longhaul_scheme::{CodeKind, NamedScheme};

use crate::digits::significant;
use crate::question::{Question, Row};
use crate::scheme::{Family, Scheme};

/// Differences below this are none.
const INDIFFERENT: f64 = 1.02;
/// One in a thousand.
pub(crate) const TAIL_SHARE: f64 = 1e-3;
/// As are these of shares that are done in time.
const IN_TIME_INDIFFERENT: f64 = 1e-3;

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
    /// How much longer the second takes, by the objective: 0.1 is a tenth. Negative when the second is shorter, but by
    /// too little for what it costs.
    pub margin: f64,
}

/// What decides between equals.
#[derive(Clone, Copy)]
pub(crate) enum Tie {
    Shorter,
    LargerChunk,
}

/// The preferred one of some rows, whose tail is what that share of messages takes longer than.
pub(crate) fn prefer(question: &Question, rows: &[Row], tail_share: f64, tie: Tie) -> Option<usize> {
    let in_time = |row: &Row| row.within_deadline.unwrap_or(1.0);
    let most = rows.iter().map(in_time).fold(0.0, f64::max);
    let is_in_time = |index: &usize| in_time(&rows[*index]) >= most - IN_TIME_INDIFFERENT;
    let shortest = |rows: &mut dyn Iterator<Item = f64>| rows.fold(f64::INFINITY, f64::min);
    let of = |row: &Row| question.objective.of(&row.completion);
    let allowed: Vec<usize> = (0..rows.len()).filter(is_in_time).collect();
    let limit = shortest(&mut allowed.iter().map(|index| of(&rows[*index]))) * INDIFFERENT;
    let near: Vec<usize> = allowed.into_iter().filter(|index| of(&rows[*index]) <= limit).collect();
    let tail = |index: usize| rows[index].distribution.quantile(1.0 - tail_share);
    let limit = shortest(&mut near.iter().map(|index| tail(*index))) * INDIFFERENT;
    // Costs that differ by less than a thousandth are equal.
    let cost = |row: &Row| ((row.extra_bandwidth * 1e3).round(), (row.cores * 10.0).round());
    near.into_iter().filter(|index| tail(*index) <= limit).min_by(|one, other| {
        let (one, other) = (&rows[*one], &rows[*other]);
        let (one_cost, other_cost) = (cost(one), cost(other));
        one_cost.0.total_cmp(&other_cost.0).then(one_cost.1.total_cmp(&other_cost.1)).then(match tie {
            Tie::Shorter => of(one).total_cmp(&of(other)),
            Tie::LargerChunk => other.chunk_bytes.cmp(&one.chunk_bytes),
        })
    })
}

pub(crate) fn recommend(question: &Question, rows: &[Row]) -> Option<Recommendation> {
    let available: Vec<Row> = rows.iter().filter(|row| row.scheme.is_available()).cloned().collect();
    let pool = if available.is_empty() { rows.to_vec() } else { available };
    let best = &pool[prefer(question, &pool, TAIL_SHARE, Tie::Shorter)?];
    let others: Vec<Row> = pool.iter().filter(|row| row.scheme.family() != best.scheme.family()).cloned().collect();
    let second = prefer(question, &others, TAIL_SHARE, Tie::Shorter).map(|index| &others[index]);
    let is_coded = |row: &Row| row.scheme.erasure_code().is_some();
    let others: Vec<Row> = pool.iter().filter(|row| is_coded(row) != is_coded(best)).cloned().collect();
    let otherwise = prefer(question, &others, TAIL_SHARE, Tie::Shorter).map(|index| &others[index]);
    let of = |row: &Row| question.objective.of(&row.completion);
    Some(Recommendation {
        scheme: best.scheme,
        chunk_bytes: best.chunk_bytes,
        reason: reason(question, best, otherwise),
        second: second.map(|row| row.scheme),
        margin: second.map_or(0.0, |second| of(second) / of(best) - 1.0),
    })
}

/// How many times as long: 1.24, 12.34.
fn times_text(times: f64) -> String {
    if times < 10.0 { format!("{times:.2}") } else { significant(times) }
}

fn reason(question: &Question, best: &Row, otherwise: Option<&Row>) -> String {
    let link = &question.link;
    let bytes = question.stage_bytes();
    let packets = bytes.div_ceil(link.packet_bytes.into()) as f64;
    let lost_packets = packets * link.loss.mean();
    let hit = -f64::exp_m1(packets * (-link.loss.mean()).ln_1p());
    let sending = 8.0 * bytes as f64 / link.rate_bits_per_second;
    // The best of those that do otherwise: repeating instead of parity, parity instead of repeating.
    let instead = otherwise.map_or(String::new(), |other| {
        let times = question.objective.of(&other.completion) / question.objective.of(&best.completion);
        let tail_times = other.completion.p999 / best.completion.p999;
        match times < INDIFFERENT && tail_times > INDIFFERENT {
            true => format!(
                "; {} is as fast in general, but its slowest in a thousand take {} times as long",
                other.scheme,
                times_text(tail_times)
            ),
            false => format!("; {} takes {} times as long", other.scheme, times_text(times)),
        }
    });
    let milliseconds = |seconds: f64| format!("{} ms", significant(seconds * 1e3));
    let percent = |share: f64| match share * 100.0 {
        share if share >= 9999.5 => format!("{} %", significant(share)),
        share if share >= 10.0 => format!("{share:.0} %"),
        share if share >= 0.1 => format!("{share:.1} %"),
        share => format!("{share:.1e} %"),
    };
    let packets_text = |packets: f64| match packets < 100.0 {
        true => format!("{packets:.1}"),
        false => significant(packets.round()),
    };
    if link.loss.mean() == 0.0 {
        return format!("nothing is lost on this link, so nothing has to be sent for losses{instead}");
    }
    match best.scheme {
        Scheme::Reliable(NamedScheme::Erasure(code)) => {
            let (data, parity) = (code.data_chunks(), code.parity_chunks());
            let repairs = match code.kind() {
                CodeKind::Mds => format!("any {parity} losses in {} chunks", data + parity),
                CodeKind::Xor => format!("a loss in each of {parity} groups of {data} chunks"),
            };
            format!(
                "{} of messages lose a packet and repeating it would cost a round trip of {}, while parity repairs {repairs} at once for {} more \
                 bandwidth{instead}",
                percent(hit),
                milliseconds(link.round_trip_seconds),
                percent(best.extra_bandwidth),
            )
        }
        _ if best.scheme.family() == Family::GoBackN || hit < 0.5 => {
            format!(
                "only {} of messages lose a packet, so that parity would cost more than repeating{instead}",
                percent(hit)
            )
        }
        // Nearly as fast as a link can be that loses so much.
        _ if sending > link.round_trip_seconds && best.slowdown * (1.0 - link.loss.mean()) < 1.5 => format!(
            "sending takes {}, longer than the round trip of {}, so that most repeating ({} packets of a message) is hidden behind it and \
             parity would only take bandwidth{instead}",
            milliseconds(sending),
            milliseconds(link.round_trip_seconds),
            packets_text(lost_packets),
        ),
        _ => format!(
            "{} packets of a message are lost, and among what can be used here repeating them takes the least time{instead}",
            packets_text(lost_packets)
        ),
    }
}
