//! Many seeds on many threads; the result does not depend on how many.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{SeedReport, SoakError, SoakOptions, Tally, Troubles, run_seed};

/// Seeds to run.
#[derive(Clone)]
pub struct Campaign {
    /// The first.
    pub first_seed: u64,
    /// How many.
    pub seed_count: u64,
    /// How each is run.
    pub options: SoakOptions,
    /// Threads to run them on.
    pub thread_count: usize,
    /// When this much time has passed no other seed is begun.
    pub time_limit: Option<Duration>,
}

/// The outcome of all seeds.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Seeds run.
    pub seeds: u64,
    /// Messages posted.
    pub messages: u64,
    /// Packets carried.
    pub packets: u64,
    /// Lost ones that forward error correction restored.
    pub restored: u64,
    /// Blocks of which it restored nothing because something was wrong.
    pub wrong_blocks: u64,
    /// Rules broken.
    pub violations: u64,
    /// Of all runs on virtual time, in the order of their seeds.
    pub trace_hash: u64,
    /// What bad networks did, on real time.
    pub troubles: Troubles,
    /// How requests ended.
    pub tally: Tally,
    /// Reports of the seeds with violations, in order.
    pub failing: Vec<SeedReport>,
}

impl Campaign {
    /// Runs all seeds; `progress` gets the report of each as it ends, in any order.
    pub fn run(&self, progress: impl Fn(&SeedReport) + Sync) -> Result<Summary, SoakError> {
        let begin = Instant::now();
        let next = AtomicU64::new(0);
        let reports: Mutex<Vec<SeedReport>> = Mutex::new(Vec::new());
        let work = || -> Result<(), SoakError> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let is_late = self.time_limit.is_some_and(|limit| begin.elapsed() >= limit);
                if index >= self.seed_count || is_late {
                    return Ok(());
                }
                let report = run_seed(self.first_seed.wrapping_add(index), &self.options)?;
                progress(&report);
                reports.lock().expect("no thread panics while it holds the lock").push(report);
            }
        };
        let thread_count = self.thread_count.clamp(1, 1024);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..thread_count).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                // A panic in a run is a bug of the device or of the soak: it stays a panic.
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        let mut reports = reports.into_inner().expect("all threads have ended well");
        reports.sort_by_key(|report| report.seed.wrapping_sub(self.first_seed));
        Ok(Summary::merge(reports))
    }
}

impl Summary {
    /// Merges reports, in order.
    fn merge(reports: Vec<SeedReport>) -> Self {
        let mut summary = Summary {
            seeds: reports.len() as u64,
            messages: 0,
            packets: 0,
            restored: 0,
            wrong_blocks: 0,
            violations: 0,
            // FNV-1a, over the eight bytes of each run's hash.
            trace_hash: 0xcbf2_9ce4_8422_2325,
            troubles: Troubles::default(),
            tally: Tally::default(),
            failing: Vec::new(),
        };
        for report in reports {
            summary.messages += report.messages;
            summary.packets += report.packets;
            summary.restored += report.restored;
            summary.wrong_blocks += report.wrong_blocks;
            summary.violations += report.violations.count();
            summary.troubles.add(&report.troubles);
            for byte in report.trace_hash.unwrap_or_default().to_le_bytes() {
                summary.trace_hash = (summary.trace_hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
            summary.tally.add(&report.tally);
            if !report.violations.is_empty() {
                summary.failing.push(report);
            }
        }
        summary
    }
}
