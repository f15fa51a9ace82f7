//! Notices when the host takes the link's processor away: a thread there that sleeps for a moment, again and again, before
//! the link's own thread, and wakes late only if nothing ran.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use longhaul_forward::priority;
use nix::time::{ClockId, clock_gettime};

const SLEEP: Duration = Duration::from_micros(100);
/// Later than this is a stall.
const LATE: Duration = Duration::from_micros(50);

/// A time in which nothing ran, by the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stall {
    from: Duration,
    to: Duration,
}

/// The stalls of a run, in order.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    stalls: Vec<Stall>,
    watched: Duration,
}

pub(super) struct Witness {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Stalls>,
}

/// The time of the monotonic clock.
pub(super) fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

impl Witness {
    pub(super) fn start(processor: usize) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let thread = std::thread::spawn(move || {
            let _ = priority::wake_on_time();
            let _ = priority::run_on(processor);
            let _ = priority::run_before_others(priority::LINK + 1);
            let begun = now();
            let mut stalls = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                let due = now() + SLEEP;
                std::thread::sleep(SLEEP);
                let woken = now();
                if woken.saturating_sub(due) > LATE {
                    stalls.push(Stall { from: due, to: woken });
                }
            }
            Stalls { stalls, watched: now() - begun }
        });
        Witness { is_over, thread }
    }

    pub(super) fn end(self) -> Stalls {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

impl Stalls {
    /// Whether a frame that was to leave at `due` and left at `left` met a stall: one between the two, or one that was so short
    /// ago that what waited for it was still being sent.
    pub(super) fn explain(&self, due: Duration, left: Duration) -> bool {
        // The first that ends, with its aftermath, after the frame was due.
        let after = |stall: &Stall| stall.to + (stall.to - stall.from) >= due;
        let first = self.stalls.partition_point(|stall| !after(stall) && stall.to < due);
        self.stalls[first.saturating_sub(1)..].iter().take_while(|stall| stall.from <= left).any(after)
    }

    /// Share of the time that was stalled.
    pub(super) fn share(&self) -> f64 {
        let stalled: Duration = self.stalls.iter().map(|stall| stall.to - stall.from).sum();
        stalled.as_secs_f64() / self.watched.as_secs_f64().max(1e-9)
    }
}

/// Processor time that the host gave to others, from here on.
pub(super) struct Steal {
    stolen: u64,
    all: u64,
}

pub(super) fn steal_share() -> Steal {
    // The first line: user, nice, system, idle, iowait, irq, softirq, steal.
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let numbers: Vec<u64> = line.split_whitespace().skip(1).take(8).filter_map(|number| number.parse().ok()).collect();
    Steal { stolen: numbers.get(7).copied().unwrap_or_default(), all: numbers.iter().sum() }
}

impl Steal {
    pub(super) fn so_far(&self) -> f64 {
        let now = steal_share();
        (now.stolen - self.stolen) as f64 / ((now.all - self.all) as f64).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_explains_what_it_touches_and_as_much_after_it() {
        let at = Duration::from_micros;
        let stall = |from, to| Stall { from: at(from), to: at(to) };
        let stalls = Stalls { stalls: vec![stall(100, 200), stall(1000, 1300)], watched: at(2000) };
        for (due, left, expected) in [
            (50, 60, false),
            (90, 210, true),
            (150, 205, true),
            (290, 295, true),
            (310, 320, false),
            (900, 990, false),
            (900, 1350, true),
            (1590, 1600, true),
            (1700, 1800, false),
        ] {
            assert_eq!(stalls.explain(at(due), at(left)), expected, "due {due}, left {left}");
        }
        assert_eq!(stalls.share(), 0.2);
        assert!(!Stalls::default().explain(at(1), at(2)));
    }
}
