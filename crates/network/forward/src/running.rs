//! A forwarder on a thread of its own.

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::time::{ClockId, clock_gettime};
use thiserror::Error;

use crate::error::ForwardError;
use crate::forwarding::{Forwarding, Woken};
use crate::handler::Handler;
use crate::priority;

/// The loop looks whether it is to end at least this often.
const TURN_MAX: Duration = Duration::from_millis(500);

/// Why a forwarder's thread cannot be started, or has ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunningError {
    /// Frames cannot be moved.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// No thread, or no descriptor.
    #[error("its thread cannot be started")]
    Start(#[source] io::Error),
    /// It has panicked, which is a mistake in it.
    #[error("its thread has panicked")]
    Panicked,
    /// It has ended.
    #[error("it has ended")]
    Ended,
}

/// A forwarder on a thread of its own. Dropped, it ends. `T` is what its end says.
pub struct Running<H, T> {
    requests: Sender<Request<H>>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<Result<T, RunningError>>>,
    has_priority: bool,
}

type Question<H> = Box<dyn FnOnce(&mut Forwarding<H>) + Send>;

enum Request<H> {
    Ask(Question<H>),
    End,
}

impl<H: Handler + Send + 'static, T: Send + 'static> Running<H, T> {
    /// Starts a thread of this name, on this processor if there is one and it is there. It forwards when this returns. When it is told to
    /// end, it calls `finish`, with the descriptor that [`Forwarding::turn`] needs. Until it has ended, for whatever reason, it has `kept`.
    pub fn start(
        name: &str,
        processor: Option<usize>,
        forwarding: Forwarding<H>,
        kept: impl Send + 'static,
        finish: impl FnOnce(&mut Forwarding<H>, BorrowedFd<'_>) -> Result<T, ForwardError> + Send + 'static,
    ) -> Result<Self, RunningError> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| RunningError::Start(error.into()))?);
        let (requests, received) = mpsc::channel();
        let (prepared, is_prepared) = mpsc::channel();
        let waking = wake.clone();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            // Without it frames leave up to 50 µs late.
            let _ = priority::wake_on_time();
            let _ = processor.map(priority::run_on);
            let _ = prepared.send(priority::run_before_others(priority::LINK).is_ok());
            let _kept = kept;
            let mut forwarding = forwarding;
            serve(&mut forwarding, &waking, &received)?;
            Ok(finish(&mut forwarding, waking.as_fd())?)
        });
        let thread = thread.map_err(RunningError::Start)?;
        let has_priority = is_prepared.recv().unwrap_or(false);
        Ok(Running { requests, wake, thread: Some(thread), has_priority })
    }

    /// Whether its thread runs before all ordinary ones.
    pub fn has_priority(&self) -> bool {
        self.has_priority
    }

    /// What its thread answers between two turns.
    pub fn ask<A: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Forwarding<H>) -> A + Send + 'static,
    ) -> Result<A, RunningError> {
        let (answer, answered) = mpsc::channel();
        self.request(Request::Ask(Box::new(move |forwarding| {
            // Who has asked may be gone.
            let _ = answer.send(question(forwarding));
        })))?;
        answered.recv().map_err(|_| RunningError::Ended)
    }

    /// Whether it has ended by itself; [`Running::end`] says why.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it. Says why it ended, if it did before.
    pub fn end(mut self) -> Result<T, RunningError> {
        self.end_thread().unwrap_or(Err(RunningError::Ended))
    }
}

impl<H, T> Running<H, T> {
    fn request(&self, request: Request<H>) -> Result<(), RunningError> {
        self.requests.send(request).map_err(|_| RunningError::Ended)?;
        // Its counter is full only if the loop has not looked for ages, and then it will.
        let _ = self.wake.write(1);
        Ok(())
    }

    fn end_thread(&mut self) -> Option<Result<T, RunningError>> {
        let thread = self.thread.take()?;
        let _ = self.request(Request::End);
        Some(thread.join().unwrap_or(Err(RunningError::Panicked)))
    }
}

impl<H, T> Drop for Running<H, T> {
    fn drop(&mut self) {
        self.end_thread();
    }
}

impl<H, T> fmt::Debug for Running<H, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Running").field("has_priority", &self.has_priority).finish_non_exhaustive()
    }
}

/// What the calling thread has used.
pub fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Forwards until it is told to end.
fn serve<H: Handler>(
    forwarding: &mut Forwarding<H>,
    wake: &EventFd,
    requests: &Receiver<Request<H>>,
) -> Result<(), ForwardError> {
    loop {
        if forwarding.turn(wake.as_fd(), TURN_MAX)? == Woken::Other {
            let _ = wake.read();
        }
        for request in requests.try_iter() {
            match request {
                Request::Ask(question) => question(forwarding),
                Request::End => return Ok(()),
            }
        }
    }
}
