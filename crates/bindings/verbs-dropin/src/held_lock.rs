//! A lock that is held from one call of a program to a later one.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Taken by a call that begins something, and released by the one that ends it, in the same thread.
#[derive(Default)]
pub(crate) struct HeldLock {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Default)]
struct State {
    is_held: bool,
    /// Threads that wait: without one, releasing makes no system call.
    waiting: usize,
}

impl HeldLock {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wait until nobody has it, and take it.
    pub(crate) fn take(&self) {
        let mut state = self.state();
        state.waiting += 1;
        while state.is_held {
            state = self.released.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
        state.is_held = true;
    }

    /// Let the next one have it.
    pub(crate) fn release(&self) {
        let mut state = self.state();
        state.is_held = false;
        if state.waiting > 0 {
            self.released.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_comes_second_waits_for_the_release() {
        let lock = HeldLock::default();
        lock.take();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                lock.take();
                lock.release();
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!second.is_finished(), "the first one has it");
            lock.release();
            second.join().unwrap();
        });
        lock.take();
        lock.release();
    }
}
