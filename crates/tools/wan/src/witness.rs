//! Notices when the host takes the link's processor away: a thread there that sleeps for a moment, again and again, before
//! the link's own thread, and wakes late only if nothing ran.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use longhaul_forward::priority;

use crate::clock::now;

const SLEEP: Duration = Duration::from_micros(100);

/// A time in which nothing ran, by the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stall {
    from: Duration,
    to: Duration,
}

/// The stalls of a run, in order.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    stalls: Vec<Stall>,
    /// For each, until when the aftermath of it or of one before it lasts.
    aftermath_until: Vec<Duration>,
    watched: Duration,
}

pub(crate) struct Witness {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Stalls>,
}

impl Witness {
    /// Watches a processor. Waking up later than `stall_min` is a stall.
    pub(crate) fn start(processor: usize, stall_min: Duration) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let thread = std::thread::spawn(move || {
            let _ = priority::wake_on_time();
            // One that is not there, or not before the link, would take the link's own work for a stall.
            if priority::run_on(processor).is_err() || priority::run_before_others(priority::LINK + 1).is_err() {
                return Stalls::default();
            }
            let begun = now();
            let mut stalls = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                let due = now() + SLEEP;
                std::thread::sleep(SLEEP);
                let woken = now();
                if woken.saturating_sub(due) > stall_min {
                    stalls.push(Stall { from: due, to: woken });
                }
            }
            Stalls::new(stalls, now() - begun)
        });
        Witness { is_over, thread }
    }

    pub(crate) fn end(self) -> Stalls {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

impl Stalls {
    /// Stalls as a test needs them.
    #[cfg(test)]
    pub(crate) fn between(times: &[(Duration, Duration)]) -> Self {
        let stalls = times.iter().map(|&(from, to)| Stall { from, to }).collect();
        Stalls::new(stalls, Duration::from_secs(1))
    }

    fn new(stalls: Vec<Stall>, watched: Duration) -> Self {
        let mut latest = Duration::ZERO;
        let until = |stall: &Stall| {
            latest = latest.max(stall.to + (stall.to - stall.from));
            latest
        };
        Stalls { aftermath_until: stalls.iter().map(until).collect(), stalls, watched }
    }

    /// Whether a frame that was to leave at `due` and left at `left` met a stall: one between the two, or one that was so short
    /// ago that what waited for it was still being sent.
    pub(crate) fn explain(&self, due: Duration, left: Duration) -> bool {
        let begun = self.stalls.partition_point(|stall| stall.from <= left);
        // Of those that had begun: until when the longest aftermath lasts.
        begun > 0 && self.aftermath_until[begun - 1] >= due
    }

    /// Share of the time that was stalled.
    pub(crate) fn share(&self) -> f64 {
        let stalled: Duration = self.stalls.iter().map(|stall| stall.to - stall.from).sum();
        stalled.as_secs_f64() / self.watched.as_secs_f64().max(1e-9)
    }
}

/// Processor time that the host gave to others, from here on.
pub(crate) struct Steal {
    name: String,
    stolen: u64,
    all: u64,
}

/// Of all processors.
pub(crate) fn steal() -> Steal {
    read_steal("cpu".to_owned())
}

/// Of one processor.
pub(crate) fn steal_of(processor: usize) -> Steal {
    read_steal(format!("cpu{processor}"))
}

fn read_steal(name: String) -> Steal {
    // A line has a name, and user, nice, system, idle, iowait, irq, softirq, steal.
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let is_it = |line: &&str| line.split(' ').next() == Some(&name);
    let line = text.lines().find(is_it).unwrap_or_default();
    let numbers: Vec<u64> = line.split_whitespace().skip(1).take(8).filter_map(|number| number.parse().ok()).collect();
    Steal { stolen: numbers.get(7).copied().unwrap_or_default(), all: numbers.iter().sum(), name }
}

impl Steal {
    pub(crate) fn so_far(&self) -> f64 {
        let now = read_steal(self.name.clone());
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
        let stalls = Stalls::new(vec![stall(100, 200), stall(1000, 1300)], at(2000));
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
        let long = Stalls::new(vec![stall(0, 1000), stall(1100, 1160), stall(1300, 1360)], at(3000));
        assert!(long.explain(at(1500), at(1600)), "the first has the longest aftermath");
        assert!(!Stalls::default().explain(at(1), at(2)));
    }
}
