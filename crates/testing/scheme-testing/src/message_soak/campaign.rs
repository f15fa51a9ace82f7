//! Many seeds on many threads; the result does not depend on how many.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::{MessageSeedReport, MessageSoakOptions, run_message_seed};

/// A seed takes some milliseconds, seconds on a slow machine with sanitizers.
pub const SEED_TIME_MAX: Duration = Duration::from_secs(120);

/// Seeds to run.
#[derive(Clone)]
pub struct MessageCampaign {
    /// The first.
    pub first_seed: u64,
    /// How many.
    pub seed_count: u64,
    /// How each is run.
    pub options: MessageSoakOptions,
    /// Threads to run them on.
    pub thread_count: usize,
}

/// The outcome of all seeds.
#[derive(Clone, Debug, Default)]
pub struct MessageSummary {
    /// Seeds run.
    pub seeds: u64,
    /// Messages posted.
    pub messages: u64,
    /// Receives that completed.
    pub received: u64,
    /// Halves of messages that failed, as they may.
    pub failed: u64,
    /// Packets that devices sent.
    pub packets: u64,
    /// Packets of attackers and liars.
    pub forged_packets: u64,
    /// Packets that links held back.
    pub held_packets: u64,
    /// The most memory that one of them took, where that is counted.
    pub memory_bytes_max: u64,
    /// Rules broken.
    pub violations: u64,
    /// Of all runs, in the order of their seeds.
    pub trace_hash: u64,
    /// Reports of the seeds with violations, in order.
    pub failing: Vec<MessageSeedReport>,
}

impl MessageCampaign {
    /// Runs all seeds; `progress` gets the report of each as it ends, in any order. A seed that takes longer than
    /// [`SEED_TIME_MAX`] is reported to `stuck`, again and again: a poll that never returns cannot be ended from
    /// outside, only the whole process can.
    pub fn run(&self, progress: impl Fn(&MessageSeedReport) + Sync, stuck: impl Fn(u64) + Sync) -> MessageSummary {
        let next = AtomicU64::new(0);
        let reports = Mutex::new(Vec::new());
        let running = Mutex::new(BTreeMap::new());
        let is_over = (Mutex::new(false), Condvar::new());
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= self.seed_count {
                    return;
                }
                let seed = self.first_seed.wrapping_add(index);
                lock(&running).insert(seed, Instant::now());
                let report = run_message_seed(seed, &self.options);
                lock(&running).remove(&seed);
                progress(&report);
                lock(&reports).push(report);
            }
        };
        let watch = || {
            let mut ends = lock(&is_over.0);
            while !*ends {
                let late =
                    lock(&running).iter().find(|(_, begun)| begun.elapsed() > SEED_TIME_MAX).map(|(seed, _)| *seed);
                late.into_iter().for_each(&stuck);
                ends = is_over.1.wait_timeout(ends, Duration::from_secs(1)).expect("nobody panics with it").0;
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(watch);
            std::thread::scope(|scope| (0..self.thread_count.clamp(1, 1024)).for_each(|_| drop(scope.spawn(work))));
            *lock(&is_over.0) = true;
            is_over.1.notify_all();
        });
        let mut reports: Vec<MessageSeedReport> = reports.into_inner().expect("all threads have ended well");
        reports.sort_by_key(|report| report.seed.wrapping_sub(self.first_seed));
        MessageSummary::merge(reports)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}

impl MessageSummary {
    fn merge(reports: Vec<MessageSeedReport>) -> Self {
        // FNV-1a, over the eight bytes of each run's hash.
        let mut summary =
            MessageSummary { seeds: reports.len() as u64, trace_hash: 0xcbf2_9ce4_8422_2325, ..Default::default() };
        for report in reports {
            summary.messages += report.messages;
            summary.received += report.received;
            summary.failed += report.failed;
            summary.packets += report.packets;
            summary.forged_packets += report.forged_packets;
            summary.held_packets += report.held_packets;
            summary.memory_bytes_max = summary.memory_bytes_max.max(report.memory_bytes_max);
            summary.violations += report.violations.len() as u64;
            for byte in report.trace_hash.to_le_bytes() {
                summary.trace_hash = (summary.trace_hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
            if !report.violations.is_empty() {
                summary.failing.push(report);
            }
        }
        summary
    }
}
