//! Wakers of a connection's waiters: collected while the connection is locked, called when it is not.
//!
//! A waker belongs to the program and may do anything, such as asking the connection whether it has ended. So what
//! completes a message never calls one. It puts the waker here, and the thread that unlocks the connection calls what
//! has been collected.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::shared::Shared;

/// The wakers that are due.
#[derive(Default)]
pub(crate) struct Woken {
    has_any: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Woken {
    fn add(&self, waker: Waker) {
        lock(&self.wakers).push(waker);
        self.has_any.store(true, Ordering::Release);
    }

    /// Call them. The connection must not be locked by this thread.
    pub(crate) fn wake_all(&self) {
        if !self.has_any.load(Ordering::Acquire) {
            return;
        }
        self.has_any.store(false, Ordering::Release);
        let wakers = std::mem::take(&mut *lock(&self.wakers));
        for waker in wakers {
            // One that panics must not keep the others from being called.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

/// A future that a connection completes, polled with a waker that only notes the program's.
pub struct Waiting<F> {
    future: F,
    waiter: Arc<Waiter>,
}

struct Waiter {
    /// The program's.
    waker: Mutex<Option<Waker>>,
    woken: Arc<Woken>,
}

impl<F> Waiting<F> {
    /// For a future of this connection: the ticket of a message.
    pub fn new(future: F, connection: &Shared) -> Self {
        let woken = connection.woken.clone();
        Waiting { future, waiter: Arc::new(Waiter { waker: Mutex::default(), woken }) }
    }
}

impl<F: Future + Unpin> Future for Waiting<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let previous = {
            let mut waker = lock(&self.waiter.waker);
            match &*waker {
                Some(known) if known.will_wake(context.waker()) => None,
                _ => waker.replace(context.waker().clone()),
            }
        };
        drop(previous);
        let noting = Waker::from(self.waiter.clone());
        Pin::new(&mut self.future).poll(&mut Context::from_waker(&noting))
    }
}

impl<F> Drop for Waiting<F> {
    fn drop(&mut self) {
        // Nobody waits any more: the message may take long, and the waker may hold a task.
        let waker = lock(&self.waiter.waker).take();
        drop(waker);
    }
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            self.woken.add(waker);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
