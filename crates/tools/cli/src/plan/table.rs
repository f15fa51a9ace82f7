//! Answers as people read them.

use std::fmt::Write as _;

use longhaul_plan::digits::{four_digits, rounded, significant};
use longhaul_plan::question::{Objective, Question, Row};

use super::answered::Answered;
use super::notes::Note;

/// Columns that sentences are folded to.
const LINE_COLUMNS: usize = 100;

/// All answers, one below the other, and which scheme to take where if there are several.
pub(super) fn to_text(answered: &[Answered], notes: &[Note]) -> String {
    let mut text = String::new();
    for answered in answered {
        one(&mut text, answered);
    }
    if let [first, _, ..] = answered {
        overview(&mut text, answered, first.question.ring_sites);
    }
    if let Some(first) = answered.first() {
        let coding = first.question.coding;
        folded(
            &mut text,
            &format!(
                "Cores: a core that codes {} GB/s of data with MDS(32,8), {} GB/s with XOR. rc (RDMA NICs today) and lowar are there for comparison.",
                significant(coding.mds_bytes_per_second / 1e9),
                significant(coding.xor_bytes_per_second / 1e9)
            ),
        );
    }
    for note in notes {
        folded(&mut text, &format!("{}: {}.", note.heading, note.text));
    }
    text
}

fn one(text: &mut String, Answered { question, answer }: &Answered) {
    let least = question.least_seconds();
    let unit = TimeUnit::for_times_from(least);
    let what = match question.ring_sites {
        None => format!("A message of {}", bytes_text(question.message_bytes)),
        Some(sites) => format!(
            "An all-reduce of {} over {sites} sites ({} stages of {})",
            bytes_text(question.message_bytes),
            question.stages(),
            bytes_text(question.stage_bytes())
        ),
    };
    let _ = writeln!(text, "{}, {}", link_text(question), loss_text(question));
    let _ = writeln!(text, "{what} takes at least {} {}.", unit.text(least), unit.name);
    text.push('\n');
    let mut heads = format!(
        "  {:<13} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>6} {:>9}",
        "scheme",
        "chunk",
        format!("mean {}", unit.name),
        "p50",
        "p99",
        "p99.9",
        "slowdown",
        "extra",
        "cores",
        "window"
    );
    if question.deadline_seconds.is_some() {
        heads += &format!(" {:>9}", "in time");
    }
    let _ = writeln!(text, "{heads}");
    for row in &answer.rows {
        let _ = writeln!(text, "{}{}", if answer.is_recommended(row) { "> " } else { "  " }, row_text(row, unit));
    }
    for (candidate, error) in &answer.refused {
        let _ = writeln!(text, "  {:<13} not possible: {error}", candidate.to_string());
    }
    text.push('\n');
    let taken = &answer.recommendation;
    folded(
        text,
        &format!("Take {} in chunks of {}: {}.", taken.scheme, chunk_text(taken.chunk_bytes, question), taken.reason),
    );
    if let Some(second) = taken.second {
        let by = match question.objective {
            Objective::P99 => "at the 99th percentile",
            Objective::P999 => "at the 99.9th percentile",
            _ => "in the mean",
        };
        let margin = taken.margin;
        let how_close = match margin {
            margin if margin >= 1.0 => format!("{} times as long {by}", times(1.0 + margin)),
            margin if margin >= 0.0005 => format!("{} longer {by}", percent(margin)),
            margin if margin <= -0.0005 => {
                format!("{} shorter {by}, which is not worth what it costs", percent(-margin))
            }
            _ => format!("as long {by}"),
        };
        folded(text, &format!("Second: {second}, {how_close}."));
    }
    if let (Some(deadline), Some(arrived)) = (question.deadline_seconds, answer.arrived_once) {
        folded(
            text,
            &format!(
                "Sent only once, by {} {} on average {} of the bytes have arrived, at least {} in 99 of 100 messages and {} in 999 of 1000; \
                 nothing is missing in {}.",
                unit.text(deadline),
                unit.name,
                percent(arrived.mean),
                percent(arrived.p99),
                percent(arrived.p999),
                percent(arrived.all)
            ),
        );
    }
    if let Some(deadline) = question.deadline_seconds.filter(|deadline| *deadline < least) {
        folded(
            text,
            &format!(
                "No scheme is done in time: the deadline of {} {} is shorter than the least time of {} {}. Take a later deadline, a shorter \
                 message, or a faster or shorter link.",
                unit.text(deadline),
                unit.name,
                unit.text(least),
                unit.name
            ),
        );
    }
    text.push('\n');
}

fn row_text(row: &Row, unit: TimeUnit) -> String {
    let completion = &row.completion;
    let [mean, p50, p99, p999] =
        [completion.mean, completion.p50, completion.p99, completion.p999].map(|seconds| unit.text(seconds));
    let mut text = format!(
        "{:<13} {:>9} {mean:>9} {p50:>9} {p99:>9} {p999:>9} {:>9} {:>8} {:>6} {:>9}",
        row.scheme.to_string(),
        bytes_text(row.chunk_bytes.into()).replace(" bytes", " B"),
        four_digits(row.slowdown),
        percent(row.extra_bandwidth),
        tenths(row.cores),
        about(row.window_bytes),
    );
    if let Some(share) = row.within_deadline {
        text += &format!(" {:>9}", percent(share));
    }
    text
}

/// The link.
pub(super) fn link_text(question: &Question) -> String {
    let link = &question.link;
    let unit = TimeUnit::for_times_from(link.round_trip_seconds);
    format!(
        "{}, round trip {} {}, packets of {}",
        rate_text(link.rate_bits_per_second),
        unit.text(link.round_trip_seconds),
        unit.name,
        bytes_text(link.packet_bytes.into())
    )
}

/// What it does to packets.
pub(super) fn loss_text(question: &Question) -> String {
    let loss = share_text(question.link.loss.mean());
    match question.link.loss.burst_packets() {
        Some(packets) => format!("loss {loss} in bursts of {} packets", significant(packets)),
        None => format!("loss {loss}"),
    }
}

/// Which scheme to take, sizes downwards and losses to the right.
fn overview(text: &mut String, answered: &[Answered], ring_sites: Option<u32>) {
    let what = if ring_sites.is_some() { "buffer" } else { "message" };
    let mut sizes: Vec<u64> = Vec::new();
    let mut losses: Vec<f64> = Vec::new();
    for Answered { question, .. } in answered {
        let loss = question.link.loss.mean();
        if !sizes.contains(&question.message_bytes) {
            sizes.push(question.message_bytes);
        }
        if !losses.contains(&loss) {
            losses.push(loss);
        }
    }
    text.push_str("What to take, and its slowdown:\n\n");
    let mut line = format!("  {what:<10}");
    for loss in &losses {
        line += &format!(" {:<20}", format!("loss {}", share_text(*loss)));
    }
    let _ = writeln!(text, "{}", line.trim_end());
    for size in sizes {
        let mut line = format!("  {:<10}", bytes_text(size));
        for loss in &losses {
            let cell = answered
                .iter()
                .find(|Answered { question, .. }| question.message_bytes == size && question.link.loss.mean() == *loss);
            let cell = cell.and_then(|Answered { answer, .. }| answer.recommended());
            let cell = cell.map_or(String::new(), |row| format!("{} {}", row.scheme, times(row.slowdown)));
            line += &format!(" {cell:<20}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text.push('\n');
}

/// What a table's times are in.
#[derive(Clone, Copy)]
pub(super) struct TimeUnit {
    pub(super) name: &'static str,
    pub(super) seconds: f64,
}

impl TimeUnit {
    pub(super) fn for_times_from(seconds: f64) -> Self {
        match seconds {
            seconds if seconds >= 10.0 => TimeUnit { name: "s", seconds: 1.0 },
            seconds if seconds >= 1e-3 || seconds == 0.0 => TimeUnit { name: "ms", seconds: 1e-3 },
            _ => TimeUnit { name: "us", seconds: 1e-6 },
        }
    }

    fn text(self, seconds: f64) -> String {
        significant(seconds / self.seconds)
    }
}

/// How many times as long: 1.24, 12.34.
fn times(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { four_digits(value) }
}

/// With one digit behind the point, as long as there are no more than four.
fn tenths(value: f64) -> String {
    if value < 999.95 { format!("{value:.1}") } else { significant(value) }
}

fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".to_owned(),
        percent if percent < 0.01 => format!("{percent:.0e} %"),
        // So close to all that rounding would claim it.
        percent if percent > 99.9 && percent < 100.0 => format!("{:.2} %", (percent * 1e2).floor() / 1e2),
        percent if percent < 9.995 => format!("{percent:.2} %"),
        percent if percent < 999.95 => format!("{percent:.1} %"),
        percent => format!("{} x", significant((percent / 100.0).round())),
    }
}

fn share_text(share: f64) -> String {
    match share {
        0.0 => "0".to_owned(),
        share if share < 0.01 => {
            let text = format!("{share:.2e}");
            text.replace(".00e", "e").replace("0e", "e")
        }
        share => significant(share),
    }
}

/// A rate: 400 Gbit/s, 123.5 Gbit/s.
pub(super) fn rate_text(bits_per_second: f64) -> String {
    longhaul_units::rate_text(rounded(bits_per_second) as u64)
}

/// Bytes: whole if four digits are enough for that, and otherwise nearly.
pub(super) fn bytes_text(bytes: u64) -> String {
    let exact = longhaul_units::bytes_text(bytes);
    let digits: String = exact.chars().take_while(char::is_ascii_digit).collect();
    if digits.trim_end_matches('0').len() <= 4 && digits.len() <= 5 { exact } else { scaled(bytes as f64, significant) }
}

/// What to give as `--chunk`: in packets where its bytes have too many digits to show.
fn chunk_text(chunk_bytes: u32, question: &Question) -> String {
    let packet_bytes = question.link.packet_bytes.max(1);
    let text = bytes_text(chunk_bytes.into());
    match text == longhaul_units::bytes_text(chunk_bytes.into()) {
        true => text,
        false if chunk_bytes == packet_bytes => format!("one packet ({text})"),
        false => format!("{} packets ({text})", chunk_bytes / packet_bytes),
    }
}

/// Bytes, in three digits.
fn about(bytes: f64) -> String {
    scaled(bytes, |value| match value >= 99.95 || value.fract() == 0.0 {
        true => significant(value.round()),
        false => format!("{value:.1}"),
    })
}

/// Bytes in the largest unit that they fill.
fn scaled(bytes: f64, number: impl Fn(f64) -> String) -> String {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(size, _)| bytes >= *size as f64);
    let (size, name) = unit.unwrap_or((1, "B"));
    format!("{} {name}", number(bytes / size as f64))
}

/// A sentence in lines that fit.
fn folded(text: &mut String, sentence: &str) {
    let mut column = 0;
    for word in sentence.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > LINE_COLUMNS {
            text.push('\n');
            column = 0;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_people_read_them() {
        assert_eq!(
            [0.25, 0.0, 1e-6, 0.99996, 1.0, 0.02, 0.09996, 9.9999, 123_456.0].map(percent),
            ["25.0 %", "0 %", "1e-4 %", "99.99 %", "100.0 %", "2.00 %", "10.0 %", "10 x", "123500 x"]
        );
        assert_eq!([1.236, 11.276, 9.997, 12_345.6].map(times), ["1.24", "11.28", "10.00", "12350"]);
        assert_eq!([0.0, 3.26, 1234.56].map(tenths), ["0.0", "3.3", "1235"]);
        assert_eq!([400e9, 123_456_789_012.0, 1500.0].map(rate_text), ["400 Gbit/s", "123.5 Gbit/s", "1.5 kbit/s"]);
        assert_eq!(
            [128 << 20, 1000, 23_232, 22_369_622, 12_000].map(bytes_text),
            ["128 MiB", "1000 bytes", "22.69 KiB", "21.33 MiB", "12000 bytes"]
        );
        assert_eq!([1e-5, 2.5e-3, 0.1, 0.0].map(share_text), ["1e-5", "2.5e-3", "0.1", "0"]);
        assert_eq!([134_217_728.0, 5e9, 1500.0, 12.0].map(about), ["128 MiB", "4.7 GiB", "1.5 KiB", "12 B"]);
    }

    #[test]
    fn sentences_are_folded_between_words() {
        let mut text = String::new();
        folded(&mut text, &"word ".repeat(41));
        assert!(text.lines().all(|line| line.len() <= LINE_COLUMNS) && text.lines().count() == 3, "{text}");
    }
}
