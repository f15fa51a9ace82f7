//! `longhaul perf bitmap`: how fast completions become bits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use indicatif::ProgressBar;
use longhaul_sdr::MessageBitmap;
use longhaul_sdr::immediate::ImmediateLayout;
use longhaul_sdr::receive_table::{Lookups, ReceiveTable};
use longhaul_verbs::{CompletionFlags, CompletionOperation, WorkCompletion};
use serde_json::{Value, json};

use super::statistics::Sorted;
use crate::stop::{self, Stop};

const PACKET_BYTES: u32 = 4096;
const CHUNK_PACKETS: u32 = 16;
/// 256 MiB.
const MESSAGE_PACKETS: u32 = 1 << 16;
const MESSAGES: u32 = 16;

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

struct Measured {
    threads: usize,
    packets_per_second: f64,
    bare_per_second: f64,
    ratio: f64,
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

/// Completions of all messages, each thread's in order.
fn completions(threads: usize) -> Vec<Vec<WorkCompletion>> {
    let layout = ImmediateLayout::default();
    let arrival = |slot, packet| WorkCompletion {
        operation: CompletionOperation::ReceiveWriteWithImmediate,
        flags: CompletionFlags::IMMEDIATE,
        byte_count: PACKET_BYTES,
        immediate_or_key: layout.encode(slot, packet, 0x1234_5678),
        ..Default::default()
    };
    let of_thread = |thread| {
        let packets = (thread as u32..MESSAGE_PACKETS).step_by(threads);
        (0..MESSAGES).flat_map(|slot| packets.clone().map(move |packet| arrival(slot, packet))).collect()
    };
    (0..threads).map(of_thread).collect()
}

fn measure(threads: usize, rounds: u32) -> Measured {
    let completions = completions(threads);
    let mut pairs = Vec::new();
    // On standard error, and only when that is a terminal.
    let progress = ProgressBar::new(rounds.into()).with_message(format!("{threads} thread(s)"));
    for round in 1..=rounds {
        progress.inc(1);
        // In turn, and each first every other time.
        let both = match round % 2 {
            0 => [into_bitmaps(&completions), bare(&completions)],
            _ => {
                let bare = bare(&completions);
                [into_bitmaps(&completions), bare]
            }
        };
        pairs.push(both);
    }
    progress.finish_and_clear();
    let median = |of: fn(&[f64; 2]) -> f64| Sorted::new(pairs.iter().map(of)).median();
    Measured {
        threads,
        packets_per_second: median(|[ours, _]| *ours),
        bare_per_second: median(|[_, bare]| *bare),
        ratio: median(|[ours, bare]| ours / bare),
    }
}

/// Completions a second: one thread for each list, begun together.
fn rate(completions: &[Vec<WorkCompletion>], work: impl Fn(&[WorkCompletion]) + Sync) -> f64 {
    let barrier = Barrier::new(completions.len() + 1);
    let seconds = std::thread::scope(|scope| {
        for list in completions {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                barrier.wait();
                work(list);
                barrier.wait();
            });
        }
        barrier.wait();
        let begin = Instant::now();
        barrier.wait();
        begin.elapsed().as_secs_f64()
    });
    completions.iter().map(Vec::len).sum::<usize>() as f64 / seconds
}

fn into_bitmaps(completions: &[Vec<WorkCompletion>]) -> f64 {
    let table = ReceiveTable::new(ImmediateLayout::default(), 4, PACKET_BYTES);
    let bitmaps: Vec<_> = (0..MESSAGES).map(|_| Arc::new(MessageBitmap::new(MESSAGE_PACKETS, CHUNK_PACKETS))).collect();
    bitmaps.iter().enumerate().for_each(|(number, bitmap)| table.enter(number as u64, bitmap.clone()));
    let rate = rate(completions, |list| {
        let mut lookups = Lookups::default();
        list.iter().for_each(|completion| table.record(completion, 0, &mut lookups));
    });
    assert!(bitmaps.iter().all(|bitmap| bitmap.is_complete()), "every packet has arrived");
    rate
}

/// The same atomic operations: the packet's bit, and the chunk's when it was the last.
fn bare(completions: &[Vec<WorkCompletion>]) -> f64 {
    const FULL: u64 = (1 << CHUNK_PACKETS) - 1;
    let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let chunks_a_message = MESSAGE_PACKETS / CHUNK_PACKETS;
    let packets = zeros(MESSAGES * chunks_a_message);
    let chunks = zeros(MESSAGES * chunks_a_message / 64);
    let layout = ImmediateLayout::default();
    let rate = rate(completions, |list| {
        for completion in list {
            let fields = layout.decode(completion.immediate_or_key);
            let chunk = fields.slot * chunks_a_message + fields.packet / CHUNK_PACKETS;
            let bit = 1 << (fields.packet % CHUNK_PACKETS);
            let before = packets[chunk as usize].fetch_or(bit, Ordering::AcqRel);
            if before | bit == FULL {
                chunks[chunk as usize / 64].fetch_or(1 << (chunk % 64), Ordering::AcqRel);
            }
        }
    });
    assert!(chunks.iter().all(|word| word.load(Ordering::Acquire) == u64::MAX), "every packet has arrived");
    rate
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
