//! Work that takes long, such as encoding and decoding: done at once, or by workers that the driver of the connection
//! injects.
//!
//! ```text
//!   a half ── SendIo::start ──▶ Workers::submit ── at once, or on another thread ──▶ result in the Task
//!          ◀── Task::take ◀── poll of the connection ◀── wake, if somebody has asked in vain ──┘
//! ```
//!
//! A job owns what it works on. Dropping a [`Task`] gives the job's bytes back: a job that has not begun never does,
//! and one that is running is asked to stop and waited for. So a message that ends, fails, or goes with its connection
//! leaves nothing behind that still uses its memory.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Work of fewer bytes is done at once: handing it over and waking a thread would take longer.
pub(crate) const HANDED_OVER_BYTES_MIN: usize = 64 << 10;

/// A piece of work. It ends soon after its result is not wanted any more.
pub type Job = Box<dyn FnOnce() + Send>;

/// Who carries out jobs.
pub trait Workers: Send + Sync {
    /// Carry out a job, in this call or later, on any thread. Jobs do not panic. Each must be carried out, in about the order in which they come:
    /// messages wait for them.
    fn submit(&self, job: Job);
}

/// Carries out each job when it is submitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inline;

impl Workers for Inline {
    fn submit(&self, job: Job) {
        job();
    }
}

/// A job that was started, and its result.
pub struct Task<T> {
    slot: Arc<Slot<T>>,
}

struct Slot<T> {
    state: Mutex<State<T>>,
    /// Of `state`, when the job has ended.
    ended: Condvar,
    is_unwanted: AtomicBool,
}

struct State<T> {
    stage: Stage<T>,
    /// Somebody has asked for the result before it was there.
    is_awaited: bool,
}

type Work<T> = Box<dyn FnOnce(&dyn Fn() -> bool) -> T + Send>;

enum Stage<T> {
    Waits(Work<T>),
    Runs,
    Ended(Result<T, Box<dyn Any + Send>>),
    /// Its result was taken, or was not wanted any more.
    Over,
}

impl<T> Slot<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carry it out. Returns whether somebody has to be told that it has ended.
    fn run(&self) -> bool {
        let mut state = self.state();
        let work = match std::mem::replace(&mut state.stage, Stage::Runs) {
            Stage::Waits(work) => work,
            other => {
                state.stage = other;
                return false;
            }
        };
        drop(state);
        let is_wanted = || !self.is_unwanted.load(Ordering::Relaxed);
        // A panic shows where the result is wanted, as if the work had been done there.
        let result = catch_unwind(AssertUnwindSafe(|| work(&is_wanted)));
        let mut state = self.state();
        state.stage = Stage::Ended(result);
        self.ended.notify_all();
        state.is_awaited
    }
}

impl<T> Task<T> {
    /// The result, once: `None` when the job has not ended, and then the half is polled as soon as it has. If the job has panicked, so does this.
    pub fn take(&mut self) -> Option<T> {
        let mut state = self.slot.state();
        match std::mem::replace(&mut state.stage, Stage::Over) {
            Stage::Ended(result) => {
                drop(state);
                Some(result.unwrap_or_else(|payload| resume_unwind(payload)))
            }
            other => {
                (state.stage, state.is_awaited) = (other, true);
                None
            }
        }
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.slot.is_unwanted.store(true, Ordering::Relaxed);
        let state = self.slot.state();
        let runs = |state: &mut State<T>| matches!(state.stage, Stage::Runs);
        let mut state = self.slot.ended.wait_while(state, runs).unwrap_or_else(PoisonError::into_inner);
        let stage = std::mem::replace(&mut state.stage, Stage::Over);
        drop(state);
        // What it works on is given back here, and not when a worker comes across it.
        drop(stage);
    }
}

/// A part of a message that a job is for, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobOf {
    Send(u64),
    Receive(u64),
    /// A receive that ended before it had a number, by its own.
    Expired(u64),
}

/// How a connection has jobs done. Clones are of the same connection.
#[derive(Clone)]
pub(crate) struct Jobs {
    workers: Arc<dyn Workers>,
    ended: Arc<Ended>,
}

/// Jobs that have ended and were waited for.
struct Ended {
    parts: Mutex<Vec<JobOf>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Default for Jobs {
    fn default() -> Self {
        Jobs::new(Arc::new(Inline), Box::new(|| {}))
    }
}

impl Jobs {
    /// With workers, and how to have the connection polled.
    pub(crate) fn new(workers: Arc<dyn Workers>, wake: Box<dyn Fn() + Send + Sync>) -> Self {
        Jobs { workers, ended: Arc::new(Ended { parts: Mutex::default(), wake }) }
    }

    /// Start work on this many bytes for a part. The argument of the work says whether its result is still wanted.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        part: JobOf,
        bytes: usize,
        work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Task<T> {
        let state = State { stage: Stage::Waits(Box::new(work)), is_awaited: false };
        let slot =
            Arc::new(Slot { state: Mutex::new(state), ended: Condvar::new(), is_unwanted: AtomicBool::new(false) });
        let task = Task { slot: slot.clone() };
        let ended = self.ended.clone();
        let job = move || {
            if slot.run() {
                ended.parts().push(part);
                (ended.wake)();
            }
        };
        match bytes < HANDED_OVER_BYTES_MIN {
            true => job(),
            false => self.workers.submit(Box::new(job)),
        }
        task
    }

    /// Whether jobs that were waited for have ended.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.parts().is_empty()
    }

    /// The parts of those.
    pub(crate) fn take_ended(&self) -> Vec<JobOf> {
        std::mem::take(&mut *self.ended.parts())
    }
}

impl Ended {
    fn parts(&self) -> MutexGuard<'_, Vec<JobOf>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    const LONG: usize = HANDED_OVER_BYTES_MIN;

    /// Keeps jobs until the test does them.
    #[derive(Default)]
    struct Kept(Mutex<Vec<Job>>);

    impl Workers for Kept {
        fn submit(&self, job: Job) {
            self.0.lock().expect("no panic").push(job);
        }
    }

    impl Kept {
        fn do_all(&self) {
            let jobs = std::mem::take(&mut *self.0.lock().expect("no panic"));
            jobs.into_iter().for_each(|job| job());
        }
    }

    #[test]
    fn inline_work_has_ended_when_it_was_started() {
        let jobs = Jobs::default();
        assert_eq!(jobs.start(JobOf::Send(1), LONG, |_| 7).take(), Some(7));
        assert!(!jobs.has_ended(), "nobody waited for it");
    }

    #[test]
    fn whoever_asks_too_early_is_woken_and_others_are_not() {
        let kept = Arc::new(Kept::default());
        let (wakes, woken) = channel();
        let jobs = Jobs::new(kept.clone(), Box::new(move || wakes.send(()).expect("the test lives")));
        let mut asked = jobs.start(JobOf::Receive(3), LONG, |_| "asked");
        let mut unasked = jobs.start(JobOf::Send(4), LONG, |_| "unasked");
        let mut short = jobs.start(JobOf::Send(5), LONG - 1, |_| "short");
        assert_eq!((asked.take(), short.take()), (None, Some("short")));
        kept.do_all();
        assert_eq!((jobs.has_ended(), jobs.take_ended()), (true, vec![JobOf::Receive(3)]));
        assert_eq!(woken.try_iter().count(), 1);
        assert_eq!((asked.take(), asked.take(), unasked.take()), (Some("asked"), None, Some("unasked")));
    }

    #[test]
    fn what_an_unwanted_job_owns_is_given_back_at_once() {
        let kept = Arc::new(Kept::default());
        let jobs = Jobs::new(kept.clone(), Box::new(|| {}));
        let owned = Arc::new(());
        let inside = owned.clone();
        drop(jobs.start(JobOf::Send(1), LONG, move |_| drop(inside)));
        assert_eq!(Arc::strong_count(&owned), 1);
        kept.do_all();
    }

    #[test]
    fn a_running_job_is_stopped_and_waited_for() {
        let kept = Arc::new(Kept::default());
        let jobs = Jobs::new(kept.clone(), Box::new(|| {}));
        let owned = Arc::new(());
        let (inside, (begin, begun)) = (owned.clone(), channel());
        let task = jobs.start(JobOf::Send(1), LONG, move |is_wanted| {
            begin.send(()).expect("the test lives");
            while is_wanted() {
                thread::yield_now();
            }
            drop(inside);
        });
        thread::scope(|scope| {
            scope.spawn(|| kept.do_all());
            begun.recv().expect("it begins");
            drop(task);
            assert_eq!(Arc::strong_count(&owned), 1);
        });
    }

    #[test]
    fn a_panic_shows_where_the_result_is_wanted() {
        let mut task = Jobs::default().start(JobOf::Send(1), LONG, |_| -> () { panic!("on purpose") });
        let shown = catch_unwind(AssertUnwindSafe(|| task.take()));
        let payload = shown.expect_err("it shows");
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"on purpose"));
    }
}
