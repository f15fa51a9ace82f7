//! `longhaul perf sdr`: partial-completion messages without a reliability scheme, next to RC WRITEs.
//!
//! The loop of the SDR paper's section 5.4.1: a number of messages in flight, a receiver that polls the bitmap of each
//! and acknowledges it when every chunk has arrived, a sender that takes the time. Both ends are threads of this
//! process (`ends`), each with a software RNIC of its own on the loopback device. SDR and RC are interleaved in short
//! rounds, and medians are reported.

mod ends;
mod queue_pair;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use longhaul_softnic_udp::{UdpConfig, UdpPortChoice};
use longhaul_units::{bytes, bytes_text, bytes_within};
use longhaul_verbs::Mtu;
use serde_json::{Value, json};

use self::ends::{Pair, Work};
use super::statistics::Sorted;
use crate::opened_device::{DeviceChoice, OpenedDevice, Towards};
use crate::stop::Stop;

/// Memory of an end at most.
const MEMORY_BYTES_MAX: usize = 512 << 20;
/// Rounds of each measurement, of which the median counts.
const ROUNDS: u32 = 3;
/// A round that does not count, for memory that has never been touched.
const WARM_UP: Duration = Duration::from_millis(50);

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

/// One size of messages with one size of chunks.
struct Row {
    message_bytes: usize,
    chunk_bytes: u32,
    gigabits_per_second: Sorted,
    rc_gigabits_per_second: Sorted,
    messages: u64,
    /// Those that were given up because a packet was lost.
    incomplete: u64,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.gigabits_per_second.median() / self.rc_gigabits_per_second.median().max(1e-9)
    }

    fn to_json(&self) -> Value {
        json!({
            "message_bytes": self.message_bytes,
            "chunk_bytes": self.chunk_bytes,
            "gigabits_per_second": self.gigabits_per_second.median(),
            "rc_gigabits_per_second": self.rc_gigabits_per_second.median(),
            "ratio": self.ratio(),
            "messages": self.messages,
            "messages_incomplete": self.incomplete,
        })
    }
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let depth = arguments.in_flight as usize;
    let largest = arguments.sizes.iter().copied().max().unwrap_or(1);
    let most = MEMORY_BYTES_MAX / depth;
    if largest > most {
        return Err(Stop::Usage(format!(
            "--sizes {largest}: with {depth} messages in flight, expected at most {} bytes ({} of memory at each end)",
            most,
            bytes_text(MEMORY_BYTES_MAX as u64)
        )));
    }
    let measurements = arguments.sizes.len() * (arguments.chunks.len() + 1) * ROUNDS as usize;
    let duration = Duration::from_secs_f64(arguments.seconds / measurements as f64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} rounds, {msg}").expect("a valid template");
    let progress = ProgressBar::new(measurements as u64).with_style(style);
    let mut rows = Vec::new();
    for &message_bytes in &arguments.sizes {
        progress.set_message(format!("messages of {}", bytes_text(message_bytes as u64)));
        rows.extend(measure(arguments, message_bytes, duration, &progress)?);
    }
    progress.finish_and_clear();
    match arguments.json {
        true => println!("{}", to_json(arguments, &rows)),
        false => print!("{}", to_table(arguments, &rows)),
    }
    Ok(())
}

/// One size of messages: RC, and SDR with each size of chunks, interleaved.
fn measure(
    arguments: &Arguments,
    message_bytes: usize,
    duration: Duration,
    progress: &ProgressBar,
) -> Result<Vec<Row>, Stop> {
    let chunks = arguments.chunks.clone();
    let mut pair = Pair::start(Work { message_bytes, chunks, depth: arguments.in_flight })?;
    let subjects = arguments.chunks.len() + 1;
    let mut rates = vec![Vec::new(); subjects];
    let mut counts = vec![(0, 0); subjects];
    for subject in 0..subjects {
        pair.round(subject, WARM_UP.min(duration))?;
    }
    for _ in 0..ROUNDS {
        for subject in 0..subjects {
            let round = pair.round(subject, duration)?;
            rates[subject].push(round.gigabits_per_second(message_bytes));
            counts[subject].0 += round.messages;
            counts[subject].1 += round.incomplete;
            progress.inc(1);
        }
    }
    pair.end()?;
    let row = |(index, &chunk_bytes): (usize, &u32)| Row {
        message_bytes,
        chunk_bytes,
        gigabits_per_second: Sorted::new(rates[index + 1].iter().copied()),
        rc_gigabits_per_second: Sorted::new(rates[0].iter().copied()),
        messages: counts[index + 1].0,
        incomplete: counts[index + 1].1,
    };
    Ok(arguments.chunks.iter().enumerate().map(row).collect())
}

/// The device of an end.
fn open(address: IpAddr, peer: IpAddr) -> Result<OpenedDevice, Stop> {
    let mut udp = UdpConfig::default();
    udp.udp_port = UdpPortChoice::Free;
    let towards = Towards { local: address, peer, gid_index: None };
    OpenedDevice::open(&DeviceChoice::softnic_at(address), towards, udp)
}

const SENDER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const RECEIVER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

fn to_json(arguments: &Arguments, rows: &[Row]) -> Value {
    json!({
        "schema": 1,
        "test": "sdr",
        "environment": "loopback",
        "messages_in_flight": arguments.in_flight,
        "mtu_bytes": Mtu::Bytes4096.byte_count(),
        "seconds": arguments.seconds,
        "rounds": ROUNDS,
        "rows": rows.iter().map(Row::to_json).collect::<Vec<_>>(),
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
