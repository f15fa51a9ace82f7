//! What checksums cost in `longhaul perf client --scheme S --checksum`: the function that both ends call for each
//! message, timed on its own after the run, over the buffers that the run has sent from.

use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

use longhaul_sdr::Memory;
use serde_json::{Value, json};

use super::processor::thread_time_used;
use super::statistics::Sorted;
use crate::message::with_sources;
use crate::stop::Stop;

/// Rounds, each of several messages if they are small, because reading the clock takes time too.
const ROUNDS_MIN: usize = 16;
const ROUND_BYTES: usize = 256 << 10;
/// How long to go on, once there are enough rounds.
const TIME_MAX: Duration = Duration::from_millis(200);

/// The cost of a checksum at one end.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChecksumCost {
    message_bytes: u32,
    /// Processor time, in the median round: what it takes with a core for itself, however busy this machine is.
    ns_per_message: f64,
    /// What a message took in the run, with everything else at work at the same time.
    run_ns_per_message: f64,
}

impl ChecksumCost {
    /// Checksums messages at these places of the memory, one after the other and again. There must be some.
    pub(super) fn measure(
        memory: &Memory,
        places: &[Range<usize>],
        message_bytes: u32,
        run_ns_per_message: f64,
    ) -> Result<Self, Stop> {
        let round_messages = (ROUND_BYTES / message_bytes.max(1) as usize).max(1);
        let mut places = places.iter().cycle();
        let mut rounds = Vec::new();
        let begin = Instant::now();
        while rounds.len() < ROUNDS_MIN || begin.elapsed() < TIME_MAX {
            let used = thread_time_used()?;
            for range in places.by_ref().take(round_messages) {
                let bytes = memory.read(range.clone());
                let bytes = bytes.map_err(|error| Stop::failed("cannot read what was sent", with_sources(&error)))?;
                black_box(longhaul_reliable::checksum(black_box(&bytes)));
            }
            let time = thread_time_used()?.saturating_sub(used);
            rounds.push(time.as_secs_f64() * 1e9 / round_messages as f64);
        }
        Ok(ChecksumCost { message_bytes, ns_per_message: Sorted::new(rounds).median(), run_ns_per_message })
    }

    fn ns_per_mebibyte(&self) -> f64 {
        self.ns_per_message * f64::from(1 << 20) / f64::from(self.message_bytes)
    }

    fn bytes_per_second(&self) -> f64 {
        f64::from(self.message_bytes) / (self.ns_per_message.max(1e-3) * 1e-9)
    }

    fn over_message_time(&self) -> f64 {
        self.ns_per_message / self.run_ns_per_message.max(1e-3)
    }

    /// For people: what is compared with what.
    pub(super) fn to_text(self) -> [String; 2] {
        let cost = format!(
            "a checksum takes {:.2} µs a message at each end ({:.1} GB/s), processor time, alone after the run on the same buffers;",
            self.ns_per_message / 1e3,
            self.bytes_per_second() / 1e9,
        );
        let run = format!(
            "that is {:.1} % of the {:.2} µs that each message took on average in the run",
            self.over_message_time() * 100.0,
            self.run_ns_per_message / 1e3
        );
        [cost, run]
    }

    /// The same, for programs; nulls when checksums are off.
    pub(super) fn add_to(cost: Option<&Self>, result: &mut Value) {
        let value = |of: fn(&Self) -> f64| json!(cost.map(of));
        result["checksum_ns_per_message"] = value(|cost| cost.ns_per_message);
        result["checksum_ns_per_mebibyte"] = value(Self::ns_per_mebibyte);
        result["checksum_bytes_per_second"] = value(Self::bytes_per_second);
        result["checksum_over_message_time"] = value(Self::over_message_time);
    }
}
