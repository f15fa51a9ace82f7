//! Operations that have begun: one value for blocking and for asynchronous programs.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use longhaul_runtime::{Attending, Shared, catch};

/// An operation in progress. [`Pending::wait`] blocks until it has completed; `.await` does the same on any executor,
/// since wakers are all it needs. Dropping it does not undo anything: what was begun goes on.
#[must_use = "the operation is in progress; wait() or .await returns its result"]
pub struct Pending<T, E> {
    future: Pin<Box<dyn Future<Output = Result<T, E>> + Send>>,
    /// The connection that has to be driven for it.
    connection: Option<Arc<Shared>>,
}

impl<T, E> Pending<T, E> {
    pub(crate) fn new(future: impl Future<Output = Result<T, E>> + Send + 'static) -> Self {
        Pending { future: Box::pin(future), connection: None }
    }

    /// An operation of a connection, which a thread that waits for it can drive.
    pub(crate) fn of(connection: Arc<Shared>, future: impl Future<Output = Result<T, E>> + Send + 'static) -> Self {
        Pending { future: Box::pin(future), connection: Some(connection) }
    }

    /// Wait until it has completed.
    pub fn wait(mut self) -> Result<T, E> {
        if let Some(result) = self.attend(None) {
            return result;
        }
        wait_until(self.future, None)
            .unwrap_or_else(|_| unreachable!("without a deadline it returns only when it has completed"))
    }

    /// Wait until it has completed, but not longer than this; after that it can be waited for again.
    pub fn wait_for(self, patience: Duration) -> Result<Result<T, E>, Self> {
        let deadline = Instant::now().checked_add(patience);
        let mut waiting = self;
        if let Some(result) = waiting.attend(deadline) {
            return Ok(result);
        }
        let Pending { future, connection } = waiting;
        wait_until(future, deadline).map_err(|future| Pending { future, connection })
    }

    /// Its result, if it has completed; otherwise ask again later. Never blocks.
    pub fn ask(mut self) -> Result<Result<T, E>, Self> {
        match self.future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Ok(output),
            Poll::Pending => Err(self),
        }
    }

    /// Drive the connection until the operation has completed, or nothing happens for a while, or it is too late.
    fn attend(&mut self, deadline: Option<Instant>) -> Option<Result<T, E>> {
        let Pending { future, connection } = self;
        let connection = connection.as_ref()?;
        let waker = THREAD_WAKER.try_with(Waker::clone).ok()?;
        let mut context = Context::from_waker(&waker);
        let mut result = None;
        connection.attend(|| match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => {
                result = Some(output);
                Attending::Done
            }
            Poll::Pending if deadline.is_some_and(|deadline| Instant::now() >= deadline) => Attending::TooLate,
            Poll::Pending => Attending::Waits,
        });
        result
    }
}

impl<T: Send + 'static, E: Send + 'static> Pending<T, E> {
    pub(crate) fn ready(result: Result<T, E>) -> Self {
        Pending::new(std::future::ready(result))
    }
}

impl<T, E> Future for Pending<T, E> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.future.as_mut().poll(context)
    }
}

impl<T, E> fmt::Debug for Pending<T, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Pending")
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// One for each thread, so that a holder of wakers can see that it has this one already.
    static THREAD_WAKER: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

/// Drive a future on this thread; gives it back when the deadline comes first.
pub(crate) fn wait_until<F: Future + Unpin>(mut future: F, deadline: Option<Instant>) -> Result<F::Output, F> {
    // A connection in a thread's own storage may be dropped after it.
    let waker =
        THREAD_WAKER.try_with(Waker::clone).unwrap_or_else(|_| Waker::from(Arc::new(Unpark(thread::current()))));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = pin!(&mut future).poll(&mut context) {
            return Ok(output);
        }
        match deadline {
            None => thread::park(),
            Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                None | Some(Duration::ZERO) => return Err(future),
                Some(left) => thread::park_timeout(left),
            },
        }
    }
}

/// A result that another thread will give.
pub(crate) struct Promised<T> {
    state: Mutex<PromisedState<T>>,
}

struct PromisedState<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

impl<T: Send + 'static> Promised<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Promised { state: Mutex::new(PromisedState { value: None, waker: None }) })
    }

    fn state(&self) -> MutexGuard<'_, PromisedState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn give(&self, value: T) {
        let waker = {
            let mut state = self.state();
            state.value = Some(value);
            state.waker.take()
        };
        // It is the program's, and this may be a driver's thread, which others need.
        let _ = catch(|| waker.into_iter().for_each(Waker::wake));
    }

    /// When it is there.
    pub(crate) fn taken(self: Arc<Self>) -> impl Future<Output = T> + Send + 'static {
        std::future::poll_fn(move |context| {
            let mut state = self.state();
            match state.value.take() {
                Some(value) => Poll::Ready(value),
                None => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_waits_for_another_one() {
        let promised = Promised::new();
        let pending: Pending<u32, ()> = Pending::new(promised.clone().taken());
        let pending = pending.wait_for(Duration::from_millis(5)).expect_err("it is not there yet");
        let pending = pending.ask().expect_err("nor when it is asked");
        let giver = thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            promised.give(Ok(7));
        });
        assert_eq!(pending.wait(), Ok(7));
        giver.join().expect("it ends");
        assert_eq!(Pending::<u32, u32>::ready(Err(3)).wait(), Err(3));
        assert_eq!(Pending::<u32, u32>::ready(Ok(4)).ask().expect("it has completed"), Ok(4));
    }
}
