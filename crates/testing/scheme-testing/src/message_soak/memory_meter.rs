//! What memory a run takes, where the program counts it.

use std::cell::Cell;
use std::rc::Rc;

use longhaul_time::Instant;

use super::violation::{Rule, Violation};

/// What a run may take: its hosts, their messages, and what links hold back.
const BYTES_MAX: isize = 64 << 20;
/// What it may not give back: what the thread itself keeps for the next run.
const KEPT_BYTES_MAX: isize = 64 << 10;

/// Counts from when it was made.
#[derive(Clone)]
pub(super) struct MemoryMeter {
    bytes_in_use: Option<fn() -> isize>,
    before: isize,
    most: Rc<Cell<isize>>,
}

impl MemoryMeter {
    pub(super) fn new(bytes_in_use: Option<fn() -> isize>) -> Self {
        let before = bytes_in_use.map_or(0, |count| count());
        MemoryMeter { bytes_in_use, before, most: Rc::default() }
    }

    /// The most that was measured.
    pub(super) fn most(&self) -> u64 {
        self.most.get().max(0) as u64
    }

    /// Measure; says what was seen when it is too much.
    pub(super) fn measure(&self) -> Result<(), String> {
        let grown = self.grown();
        self.most.set(self.most.get().max(grown));
        match grown <= BYTES_MAX {
            true => Ok(()),
            false => Err(format!("{grown} bytes of memory, at most {BYTES_MAX} are explained")),
        }
    }

    /// What has not been given back at the end.
    pub(super) fn leak(&self, at: Instant) -> Option<Violation> {
        let kept = self.grown();
        let text = || format!("{kept} bytes of memory were not given back");
        (kept > KEPT_BYTES_MAX).then(|| Violation { rule: Rule::Growth, at, text: text() })
    }

    fn grown(&self) -> isize {
        self.bytes_in_use.map_or(0, |count| count().wrapping_sub(self.before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_and_what_is_kept_are_told() {
        thread_local! {
            static IN_USE: Cell<isize> = const { Cell::new(1000) };
        }
        let meter = MemoryMeter::new(Some(|| IN_USE.with(Cell::get)));
        assert_eq!((meter.measure(), meter.most()), (Ok(()), 0));
        IN_USE.with(|bytes| bytes.set(1000 + BYTES_MAX));
        assert_eq!((meter.measure(), meter.most()), (Ok(()), BYTES_MAX as u64));
        IN_USE.with(|bytes| bytes.set(1001 + BYTES_MAX));
        assert!(meter.measure().is_err());
        assert!(meter.leak(Instant::ZERO).is_some());
        IN_USE.with(|bytes| bytes.set(1000 + KEPT_BYTES_MAX));
        assert!(meter.leak(Instant::ZERO).is_none());
    }
}
