//! Events that a program was handed and has not acknowledged. Destroying what they are about waits for that, as the manual
//! of libibverbs says, so that no program looks at an object that is gone.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Events of one object.
#[derive(Default)]
pub(crate) struct Outstanding {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Outstanding {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One was handed over.
    pub(crate) fn add(&self) {
        *self.lock() += 1;
    }

    /// Some were acknowledged. More than were handed over is a mistake of the program, and is not counted.
    pub(crate) fn acknowledge(&self, events: u64) {
        let mut count = self.lock();
        *count = count.saturating_sub(events);
        self.changed.notify_all();
    }

    /// Wait until all are acknowledged.
    pub(crate) fn wait(&self) {
        let none_left = self.changed.wait_while(self.lock(), |count| *count > 0);
        drop(none_left.unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn waiting_ends_with_the_last_acknowledgement() {
        let events = Outstanding::default();
        events.wait();
        events.add();
        events.add();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| events.wait());
            events.acknowledge(1);
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waits.is_finished(), "one is left");
            events.acknowledge(1);
            waits.join().unwrap();
        });
        events.acknowledge(5);
        events.wait();
    }
}
