//! What a process uses, as Linux reports it.

use std::fs;
use std::io;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::error::PerfError;
use crate::processor;

/// What a process uses at one moment.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Usage {
    pub(super) threads: u64,
    pub(super) descriptors: u64,
    /// Without pages of files.
    pub(super) resident_bytes: u64,
    /// Since it started.
    pub(super) processor_time: Duration,
    /// Since some moment in the past.
    pub(super) at: Duration,
}

impl Usage {
    /// Of this process.
    pub(super) fn now() -> Result<Self, PerfError> {
        let unknown = |error: io::Error| PerfError::missing("cannot read what this process uses", error);
        let entries = |directory: &str| Ok::<u64, io::Error>(fs::read_dir(directory)?.count() as u64);
        Ok(Usage {
            threads: entries("/proc/self/task").map_err(unknown)?,
            // Without the one that the directory is read with.
            descriptors: entries("/proc/self/fd").map_err(unknown)? - 1,
            resident_bytes: resident_bytes().map_err(unknown)?,
            processor_time: processor::time_used(),
            at: clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).map_err(|error| unknown(error.into()))?,
        })
    }
}

/// `smaps_rollup` counts pages; the figures in `status` and `statm` lag behind by up to 64 pages of each thread. Pages
/// of the program's file are left out: the kernel maps them 64 KiB at a time when code is run for the first time, with
/// one connection as with a thousand.
fn resident_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    let kilobytes = |name: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse().ok())
    };
    let anonymous = kilobytes("Anonymous:").ok_or_else(|| io::Error::other("smaps_rollup has no Anonymous"))?;
    Ok(anonymous << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_threads_and_descriptors_are_seen() {
        let before = Usage::now().expect("Linux reports it");
        let bytes = vec![1_u8; 8 << 20];
        let file = fs::File::open("/dev/null").expect("it is there");
        let after = Usage::now().expect("Linux reports it");
        let growth = after.resident_bytes.saturating_sub(before.resident_bytes);
        assert!(growth >= 7 << 20, "{growth} bytes more for {}", bytes.len());
        assert!(after.descriptors > 0 && after.threads > 0);
        drop(file);
    }
}
