//! Whose fault it is that frames were late: the link's, or the host's, which took the link's processor away.
//!
//! A virtual machine loses its processors for milliseconds now and then. Frames that were due meanwhile leave late, whatever
//! the link does, so a row is not run again for them unless they are many. The link only counts what was late; so its counter is
//! read every few milliseconds, and what it has gained meanwhile is put down to the host if the witness missed the
//! processor then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use longhaul_forward::priority;
use longhaul_link::RunningLink;

use crate::clock::now;
use crate::witness::{Stalls, Witness};

const EVERY: Duration = Duration::from_millis(5);
/// Shorter ones make no frame late by themselves.
const STALL_MIN: Duration = Duration::from_micros(500);

/// By how much the link's counter rose in this time.
#[derive(Clone, Copy, Debug)]
struct Step {
    from: Duration,
    to: Duration,
    late: u64,
}

pub(super) struct Watch<'scope> {
    witness: Witness,
    is_over: &'scope AtomicBool,
    steps: ScopedJoinHandle<'scope, Vec<Step>>,
}

impl<'scope> Watch<'scope> {
    pub(super) fn start(
        scope: &'scope Scope<'scope, '_>,
        link: &'scope RunningLink,
        processor: usize,
        is_over: &'scope AtomicBool,
    ) -> Self {
        let steps = scope.spawn(move || {
            // One that comes late itself would put more down to the host.
            let _ = priority::run_before_others(priority::LINK - 1);
            let (mut steps, mut from, mut late_before) = (Vec::new(), now(), 0);
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(EVERY);
                let Ok(counters) = link.counters() else { break };
                let (to, late) = (now(), counters.forwarded.late);
                if late > late_before {
                    steps.push(Step { from, to, late: late - late_before });
                }
                (from, late_before) = (to, late);
            }
            steps
        });
        Watch { witness: Witness::start(processor, STALL_MIN), is_over, steps }
    }

    /// Late frames that the host is to blame for.
    pub(super) fn end(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        late_by_host(&self.steps.join().unwrap_or_default(), &self.witness.end())
    }
}

fn late_by_host(steps: &[Step], stalls: &Stalls) -> u64 {
    steps.iter().filter(|step| stalls.explain(step.from, step.to)).map(|step| step.late).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_late_around_a_stall_is_the_hosts_fault() {
        let at = Duration::from_millis;
        let stalls = Stalls::between(&[(at(12), at(14)), (at(100), at(120))]);
        let step = |from, to, late| Step { from: at(from), to: at(to), late };
        assert_eq!(late_by_host(&[step(5, 10, 7)], &stalls), 0, "before it");
        assert_eq!(late_by_host(&[step(10, 15, 7), step(15, 20, 2), step(20, 25, 1)], &stalls), 9, "and just after it");
        assert_eq!(late_by_host(&[step(130, 135, 5), step(145, 150, 5)], &stalls), 5);
        assert_eq!(late_by_host(&[step(10, 15, 7)], &Stalls::default()), 0, "nobody watched");
    }
}
