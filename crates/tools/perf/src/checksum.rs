//! What checksums cost: the function that both ends call for each
//! message, timed on its own after the run, over the buffers that the run has sent from.

use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

use longhaul::with_sources;
use longhaul_sdr::Memory;

use crate::error::PerfError;
use crate::processor::thread_time_used;
use crate::statistics::Sorted;

/// Rounds, each of several messages if they are small, because reading the clock takes time too.
const ROUNDS_MIN: usize = 16;
const ROUND_BYTES: usize = 256 << 10;
/// How long to go on, once there are enough rounds.
const TIME_MAX: Duration = Duration::from_millis(200);

/// The cost of a checksum at one end.
#[derive(Clone, Copy, Debug)]
pub struct ChecksumCost {
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Processor time, in the median round: what it takes with a core for itself, however busy this machine is.
    pub ns_per_message: f64,
    /// What a message took in the run, with everything else at work at the same time.
    pub run_ns_per_message: f64,
}

impl ChecksumCost {
    /// Checksums messages at these places of the memory, one after the other and again. There must be some.
    pub(crate) fn measure(
        memory: &Memory,
        places: &[Range<usize>],
        message_bytes: u32,
        run_ns_per_message: f64,
    ) -> Result<Self, PerfError> {
        let round_messages = (ROUND_BYTES / message_bytes.max(1) as usize).max(1);
        let mut places = places.iter().cycle();
        let mut rounds = Vec::new();
        let begin = Instant::now();
        while rounds.len() < ROUNDS_MIN || begin.elapsed() < TIME_MAX {
            let used = thread_time_used()?;
            for range in places.by_ref().take(round_messages) {
                let bytes = memory.read(range.clone());
                let bytes =
                    bytes.map_err(|error| PerfError::failed("cannot read what was sent", with_sources(&error)))?;
                black_box(longhaul_reliable::checksum(black_box(&bytes)));
            }
            let time = thread_time_used()?.saturating_sub(used);
            rounds.push(time.as_secs_f64() * 1e9 / round_messages as f64);
        }
        Ok(ChecksumCost { message_bytes, ns_per_message: Sorted::new(rounds).median(), run_ns_per_message })
    }

    /// For each MiB of messages.
    pub fn ns_per_mebibyte(&self) -> f64 {
        self.ns_per_message * f64::from(1 << 20) / f64::from(self.message_bytes)
    }

    /// Bytes that a core checksums in a second.
    pub fn bytes_per_second(&self) -> f64 {
        f64::from(self.message_bytes) / (self.ns_per_message.max(1e-3) * 1e-9)
    }

    /// The share of a message's time in the run.
    pub fn over_message_time(&self) -> f64 {
        self.ns_per_message / self.run_ns_per_message.max(1e-3)
    }
}
