//! Partial-completion messages without a reliability scheme, next to RC WRITEs.
//!
//! The loop of the SDR paper's section 5.4.1: a number of messages in flight, a receiver that polls the bitmap of each
//! and acknowledges it when every chunk has arrived, a sender that takes the time. Both ends are threads of this
//! process (`ends`), each with a software RNIC of its own on the loopback device. SDR and RC are interleaved in short
//! rounds, and medians are reported.

mod ends;
mod queue_pair;

use std::time::Duration;

use longhaul_units::bytes_text;

use self::ends::{Pair, Work};
use crate::error::PerfError;
use crate::statistics::Sorted;

/// Memory of an end at most.
pub const MEMORY_BYTES_MAX: usize = 512 << 20;
/// Rounds of each measurement, of which the median counts.
pub const ROUNDS: u32 = 3;
/// A round that does not count, for memory that has never been touched.
const WARM_UP: Duration = Duration::from_millis(50);

/// What is measured.
#[derive(Clone, Debug)]
pub struct SdrRequest {
    /// Sizes of messages.
    pub sizes: Vec<usize>,
    /// Sizes of chunks, multiples of 4096.
    pub chunks: Vec<u32>,
    /// Messages in flight.
    pub in_flight: u32,
    /// Of the whole run, divided among its measurements.
    pub seconds: f64,
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub enum SdrEvent {
    /// Messages of this many bytes begin.
    Size(usize),
    /// A round has ended.
    Round,
}

impl SdrRequest {
    /// Rounds of all measurements.
    pub fn rounds(&self) -> usize {
        self.sizes.len() * (self.chunks.len() + 1) * ROUNDS as usize
    }
}

/// One size of messages with one size of chunks.
pub struct Row {
    /// Bytes of a message.
    pub message_bytes: usize,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Of SDR, round by round.
    pub gigabits_per_second: Sorted,
    /// Of RC WRITEs.
    pub rc_gigabits_per_second: Sorted,
    /// Messages sent.
    pub messages: u64,
    /// Those that were given up because a packet was lost.
    pub incomplete: u64,
}

impl Row {
    /// SDR over RC.
    pub fn ratio(&self) -> f64 {
        self.gigabits_per_second.median() / self.rc_gigabits_per_second.median().max(1e-9)
    }
}

/// Measures, a row for each size of messages and of chunks.
pub fn measure(request: &SdrRequest, tell: &mut dyn FnMut(SdrEvent)) -> Result<Vec<Row>, PerfError> {
    let depth = request.in_flight as usize;
    let largest = request.sizes.iter().copied().max().unwrap_or(1);
    let most = MEMORY_BYTES_MAX / depth;
    if largest > most {
        return Err(PerfError::Request(format!(
            "--sizes {largest}: with {depth} messages in flight, expected at most {} bytes ({} of memory at each end)",
            most,
            bytes_text(MEMORY_BYTES_MAX as u64)
        )));
    }
    let duration = Duration::from_secs_f64(request.seconds / request.rounds() as f64);
    let mut rows = Vec::new();
    for &message_bytes in &request.sizes {
        tell(SdrEvent::Size(message_bytes));
        rows.extend(measure_size(request, message_bytes, duration, tell)?);
    }
    Ok(rows)
}

/// One size of messages: RC, and SDR with each size of chunks, interleaved.
fn measure_size(
    request: &SdrRequest,
    message_bytes: usize,
    duration: Duration,
    tell: &mut dyn FnMut(SdrEvent),
) -> Result<Vec<Row>, PerfError> {
    let chunks = request.chunks.clone();
    let mut pair = Pair::start(Work { message_bytes, chunks, depth: request.in_flight })?;
    let subjects = request.chunks.len() + 1;
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
            tell(SdrEvent::Round);
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
    Ok(request.chunks.iter().enumerate().map(row).collect())
}
