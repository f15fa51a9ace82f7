//! Messages in flight on a connection of the library. The calling thread waits for the oldest, which drives the
//! connection; those that end before it leave word, with the time, so that none is held up by another or timed too
//! late.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use longhaul::{Pending, TransferError};

/// While the oldest is waited for, the others are looked at this often.
const LOOK_AT_OTHERS_EVERY: Duration = Duration::from_micros(200);

/// Messages in flight, the oldest first.
pub(crate) struct InFlight<T> {
    operations: VecDeque<Operation<T>>,
    /// Those that have ended and left word, and are still among the operations.
    ended: Arc<AtomicUsize>,
}

/// What has become of one of them.
pub(crate) struct Ended<T> {
    pub(crate) result: Result<T, TransferError>,
    pub(crate) number: u64,
    /// Where in memory it was.
    pub(crate) place: usize,
    /// From being handed over to being reported as done.
    pub(crate) duration: Duration,
}

impl<T> Ended<T> {
    /// The same with something else of its result.
    pub(crate) fn map<U>(self, of: impl FnOnce(T) -> U) -> Ended<U> {
        let Ended { result, number, place, duration } = self;
        Ended { result: result.map(of), number, place, duration }
    }
}

struct Operation<T> {
    state: State<T>,
    number: u64,
    place: usize,
    posted: Instant,
    word: Arc<Word>,
}

enum State<T> {
    Running(Pending<T, TransferError>),
    /// It had ended when it was first looked at.
    Over(Result<T, TransferError>),
}

/// What an operation leaves when it ends while nobody waits for it.
struct Word {
    at: OnceLock<Instant>,
    ended: Arc<AtomicUsize>,
}

impl Wake for Word {
    fn wake(self: Arc<Self>) {
        if self.at.set(Instant::now()).is_ok() {
            self.ended.fetch_add(1, Ordering::Release);
        }
    }
}

impl<T> Default for InFlight<T> {
    fn default() -> Self {
        InFlight { operations: VecDeque::new(), ended: Arc::default() }
    }
}

impl<T> InFlight<T> {
    pub(crate) fn len(&self) -> usize {
        self.operations.len()
    }

    /// One more, which was handed over at this time.
    pub(crate) fn add(
        &mut self,
        mut pending: Pending<T, TransferError>,
        (number, place): (u64, usize),
        posted: Instant,
    ) {
        let word = Arc::new(Word { at: OnceLock::new(), ended: self.ended.clone() });
        let waker = Waker::from(word.clone());
        let state = match Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => {
                waker.wake();
                State::Over(result)
            }
            Poll::Pending => State::Running(pending),
        };
        self.operations.push_back(Operation { state, number, place, posted, word });
    }

    /// Waits until the oldest has ended, but no longer than this, and not if another has left word. Takes those that
    /// have ended.
    pub(crate) fn wait(&mut self, patience: Duration, taken: &mut Vec<Ended<T>>) {
        let patience = match self.ended.load(Ordering::Acquire) {
            // Others may end while the oldest waits for what was lost.
            0 if self.operations.len() > 1 => patience.min(LOOK_AT_OTHERS_EVERY),
            0 => patience,
            _ => Duration::ZERO,
        };
        if !patience.is_zero()
            && let Some(oldest) = self.operations.pop_front()
        {
            match oldest.end(|pending| pending.wait_for(patience)) {
                Ok(ended) => taken.push(ended),
                Err(running) => self.operations.push_front(running),
            }
        }
        let mut at = 0;
        while self.ended.load(Ordering::Acquire) > 0 && at < self.operations.len() {
            match self.operations[at].word.at.get() {
                Some(_) => at = self.take(at, taken),
                None => at += 1,
            }
        }
    }

    /// Takes all that have ended, whether or not they have left word yet. Never waits.
    pub(crate) fn take_all(&mut self, taken: &mut Vec<Ended<T>>) {
        let mut at = 0;
        while at < self.operations.len() {
            at = self.take(at, taken);
        }
    }

    /// Takes the operation if it has ended; says which to look at next.
    fn take(&mut self, at: usize, taken: &mut Vec<Ended<T>>) -> usize {
        let Some(operation) = self.operations.remove(at) else { return at + 1 };
        // Asked with its own word, or it would leave none later.
        let waker = Waker::from(operation.word.clone());
        let ask = |mut pending: Pending<T, TransferError>| match Pin::new(&mut pending)
            .poll(&mut Context::from_waker(&waker))
        {
            Poll::Ready(result) => Ok(result),
            Poll::Pending => Err(pending),
        };
        match operation.end(ask) {
            Ok(ended) => {
                taken.push(ended);
                at
            }
            Err(running) => {
                self.operations.insert(at, running);
                at + 1
            }
        }
    }
}

type Asked<T> = Result<Result<T, TransferError>, Pending<T, TransferError>>;

impl<T> Operation<T> {
    /// How it ended, or itself if it has not.
    fn end(self, ask: impl FnOnce(Pending<T, TransferError>) -> Asked<T>) -> Result<Ended<T>, Self> {
        let Operation { state, number, place, posted, word } = self;
        let result = match state {
            State::Over(result) => result,
            State::Running(pending) => match ask(pending) {
                Ok(result) => result,
                Err(pending) => return Err(Operation { state: State::Running(pending), number, place, posted, word }),
            },
        };
        // From here on its word is not waited for; if it was left already, it counts no longer.
        let now = Instant::now();
        let ended = match word.at.set(now) {
            Ok(()) => now,
            Err(_) => {
                word.ended.fetch_sub(1, Ordering::AcqRel);
                word.at.get().copied().unwrap_or(posted)
            }
        };
        Ok(Ended { result, number, place, duration: ended.saturating_duration_since(posted) })
    }
}
