//! `longhaul perf sdr`: partial-completion messages without a reliability scheme, next to RC WRITEs.

use indicatif::{ProgressBar, ProgressStyle};
use longhaul_perf::sdr::{self, MEMORY_BYTES_MAX, ROUNDS, Row, SdrEvent, SdrRequest};
use longhaul_units::{bytes, bytes_text, bytes_within};
use longhaul_verbs::Mtu;
use serde_json::{Value, json};

use crate::stop::Stop;

/// Messages of SDR without a scheme next to RC WRITEs: the loop of the SDR paper's section 5.4.1
///
/// For each message the receiver polls the bitmap until every chunk has arrived and then acknowledges it; the sender
/// keeps a number of messages in flight and takes the time. Nothing is sent again: a message that lost a packet is
/// given up and counted. Both ends are threads of this process, each with a software RNIC on the loopback device; RC
/// WRITEs of the same size are measured in between.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Sizes of messages
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "16KiB,64KiB,512KiB,4MiB", value_parser = bytes_within::<usize>(1..=MEMORY_BYTES_MAX as u64))]
    sizes: Vec<usize>,

    /// Sizes of chunks, multiples of 4096
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "4KiB,64KiB", value_parser = chunk)]
    chunks: Vec<u32>,

    /// Messages in flight
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=128))]
    in_flight: u32,

    /// Seconds of the whole run, divided among its measurements
    #[arg(long, value_name = "SECONDS", default_value_t = 18.0, value_parser = longhaul_units::seconds_within(0.1..=3600.0))]
    seconds: f64,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

fn chunk(text: &str) -> Result<u32, String> {
    let packet = Mtu::Bytes4096.byte_count();
    let fits = |bytes: &u32| (packet..=1 << 20).contains(bytes) && bytes.is_multiple_of(packet);
    let bytes = bytes(text).ok().and_then(|bytes| u32::try_from(bytes).ok()).filter(fits);
    bytes.ok_or_else(|| format!("expected a multiple of {packet} up to 1 MiB, got \"{text}\""))
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let request = SdrRequest {
        sizes: arguments.sizes.clone(),
        chunks: arguments.chunks.clone(),
        in_flight: arguments.in_flight,
        seconds: arguments.seconds,
    };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} rounds, {msg}").expect("a valid template");
    let progress = ProgressBar::new(request.rounds() as u64).with_style(style);
    let rows = sdr::measure(&request, &mut |event| match event {
        SdrEvent::Size(message_bytes) => {
            progress.set_message(format!("messages of {}", bytes_text(message_bytes as u64)));
        }
        SdrEvent::Round => progress.inc(1),
    })?;
    progress.finish_and_clear();
    match arguments.json {
        true => println!("{}", to_json(arguments, &rows)),
        false => print!("{}", to_table(arguments, &rows)),
    }
    Ok(())
}

fn row_json(row: &Row) -> Value {
    json!({
        "message_bytes": row.message_bytes,
        "chunk_bytes": row.chunk_bytes,
        "gigabits_per_second": row.gigabits_per_second.median(),
        "rc_gigabits_per_second": row.rc_gigabits_per_second.median(),
        "ratio": row.ratio(),
        "messages": row.messages,
        "messages_incomplete": row.incomplete,
    })
}

fn to_json(arguments: &Arguments, rows: &[Row]) -> Value {
    json!({
        "schema": 1,
        "test": "sdr",
        "environment": "loopback",
        "messages_in_flight": arguments.in_flight,
        "mtu_bytes": Mtu::Bytes4096.byte_count(),
        "seconds": arguments.seconds,
        "rounds": ROUNDS,
        "rows": rows.iter().map(row_json).collect::<Vec<_>>(),
    })
}

fn to_table(arguments: &Arguments, rows: &[Row]) -> String {
    let mut text = format!(
        "SDR without a scheme and RC WRITEs, {} messages in flight, two software RNICs on the loopback device\n\n\
         {:>10} {:>10} {:>14} {:>14} {:>8} {:>12} {:>12}\n",
        arguments.in_flight, "message", "chunk", "SDR Gbit/s", "RC Gbit/s", "SDR/RC", "messages", "incomplete"
    );
    for row in rows {
        text += &format!(
            "{:>10} {:>10} {:>14.2} {:>14.2} {:>8.2} {:>12} {:>12}\n",
            bytes_text(row.message_bytes as u64),
            bytes_text(row.chunk_bytes.into()),
            row.gigabits_per_second.median(),
            row.rc_gigabits_per_second.median(),
            row.ratio(),
            row.messages,
            row.incomplete
        );
    }
    text + &format!(
        "\nMedians of {ROUNDS} rounds, SDR and RC interleaved. An incomplete message lost a packet, which nothing repeats here.\n"
    )
}
