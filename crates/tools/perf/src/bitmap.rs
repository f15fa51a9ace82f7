//! How fast completions become bits.
//!
//! The completions are in memory as a poll of a completion queue returns them: 4 KiB packets of 256 MiB messages with
//! chunks of 64 KiB. A bare loop does the same atomic operations on the same completions and nothing else; the two are
//! interleaved, and the median of many rounds counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use longhaul_sdr::MessageBitmap;
use longhaul_sdr::immediate::ImmediateLayout;
use longhaul_sdr::receive_table::{Lookups, ReceiveTable};
use longhaul_verbs::{CompletionFlags, CompletionOperation, WorkCompletion};

use crate::statistics::Sorted;

const PACKET_BYTES: u32 = 4096;
const CHUNK_PACKETS: u32 = 16;
/// 256 MiB.
const MESSAGE_PACKETS: u32 = 1 << 16;
const MESSAGES: u32 = 16;
/// Completions that a poll returns.
const BATCH: usize = 64;

/// What a number of threads reaches; medians.
pub struct Measured {
    /// Threads.
    pub threads: usize,
    /// Completions that become bits in a second.
    pub packets_per_second: f64,
    /// The same of the bare loop.
    pub bare_per_second: f64,
    /// The first over the second, round by round.
    pub ratio: f64,
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

/// Measures with this many threads. `step` is called at each round.
pub fn measure(threads: usize, rounds: u32, step: &mut dyn FnMut()) -> Measured {
    let completions = completions(threads);
    let mut pairs = Vec::new();
    for round in 1..=rounds {
        step();
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
        list.chunks(BATCH).for_each(|batch| {
            table.record(batch, 0, &mut lookups);
        });
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
