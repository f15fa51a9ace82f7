//! `longhaul perf bitmap`: how fast completions become bits.

use indicatif::ProgressBar;
use longhaul_perf::bitmap::{self, Measured};
use serde_json::{Value, json};

use crate::stop::{self, Stop};

/// Measure how many completions per second go into a message's bitmap
///
/// The completions are in memory as a poll of a completion queue returns them: 4 KiB packets of 256 MiB messages with
/// chunks of 64 KiB. Each is looked up in the message table (slot, generation) and sets its packet's bit; the last one
/// of a chunk also sets the chunk's bit. For comparison, a bare loop does the same atomic operations on the same
/// completions and nothing else. With two threads, each takes every other packet of every chunk. The two loops are
/// interleaved, and the median of many rounds counts, because other load disturbs single rounds.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Number of rounds
    #[arg(long, value_name = "NUMBER", default_value_t = 15, value_parser = longhaul_units::whole_number(1_u32..))]
    rounds: u32,

    /// Exit with status 1 if the ratio to the bare loop is below this for any number of threads
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    at_least: Option<f64>,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Nothing is smaller than what is no number.
fn ratio(text: &str) -> Result<f64, String> {
    let fits = text.parse().ok().filter(|ratio: &f64| ratio.is_finite());
    fits.ok_or_else(|| format!("expected a number such as 0.5, got \"{text}\""))
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let measured: Vec<Measured> = [1, 2].into_iter().map(|threads| measure(threads, arguments.rounds)).collect();
    let too_slow = arguments.at_least.and_then(|least| {
        let Measured { threads, ratio, .. } = measured.iter().find(|measured| measured.ratio < least)?;
        Some(Stop::Failed(format!(
            "too slow: {ratio:.2} of the bare loop with {threads} threads, --at-least wants {least}"
        )))
    });
    stop::tell(arguments.json, || to_json(&measured), || to_table(&measured), too_slow)
}

fn measure(threads: usize, rounds: u32) -> Measured {
    // On standard error, and only when that is a terminal.
    let progress = ProgressBar::new(rounds.into()).with_message(format!("{threads} thread(s)"));
    let measured = bitmap::measure(threads, rounds, &mut || progress.inc(1));
    progress.finish_and_clear();
    measured
}

fn to_json(measured: &[Measured]) -> Value {
    let row = |measured: &Measured| {
        json!({
            "threads": measured.threads,
            "packets_per_second": measured.packets_per_second,
            "bare_per_second": measured.bare_per_second,
            "ratio": measured.ratio,
        })
    };
    json!({ "schema": 1, "threads": measured.iter().map(row).collect::<Vec<_>>() })
}

fn to_table(measured: &[Measured]) -> String {
    let mut text = format!("{:>7} {:>18} {:>18} {:>7}\n", "threads", "million packets/s", "bare loop", "ratio");
    for row in measured {
        let (ours, bare) = (row.packets_per_second / 1e6, row.bare_per_second / 1e6);
        text += &format!("{:>7} {ours:>18.1} {bare:>18.1} {:>7.2}\n", row.threads, row.ratio);
    }
    text + "\nThe bare loop does the same atomic operations on the same completions. Medians.\n"
}
