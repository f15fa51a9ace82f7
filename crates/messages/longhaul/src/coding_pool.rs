//! The threads that encode and decode for all connections of an endpoint, so that a long message holds up no driver.
//!
//! They are started when there is work for them, one more whenever all are busy, up to a limit: an endpoint whose
//! messages are not coded has none.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use longhaul_reliable::{Job, Workers};

/// Threads that carry out jobs in the order in which they come. When it is dropped, jobs that were submitted are done,
/// and the threads end.
pub(crate) struct CodingPool {
    shared: Arc<Shared>,
    threads_max: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Of `state`: there is a job, or the pool stops.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that wait for one.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    is_stopped: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread of the pool.
    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state();
            } else if state.is_stopped {
                return;
            } else {
                state.idle += 1;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

impl CodingPool {
    /// With at most this many threads.
    pub(crate) fn new(threads_max: NonZeroUsize) -> Self {
        CodingPool { shared: Arc::default(), threads_max: threads_max.get() }
    }

    /// As many threads as the host has processors that drive no connections, but one at least.
    pub(crate) fn default_threads(driver_threads: NonZeroUsize) -> usize {
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        processors.saturating_sub(driver_threads.get()).max(1)
    }
}

impl Workers for CodingPool {
    fn submit(&self, job: Job) {
        let mut state = self.shared.state();
        // Those that are idle may have been woken for other jobs already, and not have run since.
        if state.idle <= state.jobs.len() && state.threads.len() < self.threads_max {
            let shared = self.shared.clone();
            let started = thread::Builder::new().name("longhaul-coding".to_owned()).spawn(move || shared.work());
            match started {
                Ok(thread) => state.threads.push(thread),
                // The host has no more threads: the caller does the work.
                Err(error) if state.threads.is_empty() => {
                    drop(state);
                    tracing::debug!(%error, "no thread for coding; coding on the thread that drives the connection");
                    return job();
                }
                Err(_) => {}
            }
        }
        state.jobs.push_back(job);
        drop(state);
        self.shared.changed.notify_one();
    }
}

impl Drop for CodingPool {
    fn drop(&mut self) {
        let threads = {
            let mut state = self.shared.state();
            state.is_stopped = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.changed.notify_all();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    fn pool(threads_max: usize) -> CodingPool {
        CodingPool::new(NonZeroUsize::new(threads_max).expect("not 0"))
    }

    fn thread_count(pool: &CodingPool) -> usize {
        pool.shared.state().threads.len()
    }

    #[test]
    fn threads_are_started_for_work_and_no_more_than_allowed() {
        let pool = pool(2);
        assert_eq!(thread_count(&pool), 0);
        let (gates, done): (Vec<_>, AtomicUsize) = ((0..5).map(|_| channel::<()>()).collect(), AtomicUsize::new(0));
        let done = Arc::new(done);
        let (opens, waits): (Vec<_>, Vec<_>) = gates.into_iter().unzip();
        for (index, wait) in waits.into_iter().enumerate() {
            let done = done.clone();
            pool.submit(Box::new(move || {
                let _ = wait.recv();
                done.fetch_add(1, Ordering::SeqCst);
            }));
            assert_eq!(thread_count(&pool), (index + 1).min(2));
        }
        drop(opens);
        drop(pool);
        assert_eq!(done.load(Ordering::SeqCst), 5, "what was submitted is done before the pool is gone");
    }

    #[test]
    fn one_thread_works_in_order() {
        let pool = pool(1);
        let (sender, receiver) = channel();
        for number in 0..100 {
            let sender = sender.clone();
            pool.submit(Box::new(move || sender.send(number).expect("the test lives")));
        }
        drop((pool, sender));
        assert!(receiver.into_iter().eq(0..100));
    }

    #[test]
    fn there_is_always_a_thread_by_default() {
        assert!(CodingPool::default_threads(NonZeroUsize::MIN) >= 1);
        assert_eq!(CodingPool::default_threads(NonZeroUsize::MAX), 1);
    }
}
