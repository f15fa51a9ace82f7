//! Memory that the program brings: behind a pointer, with what keeps it alive, or borrowed for a scope.
#![allow(unsafe_code, reason = "registers memory behind pointers, and borrowed slices for the length of a scope")]

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use longhaul_reliable::MessageReport;
use longhaul_sdr::Memory;
use longhaul_sdr::memory::{BorrowError, ReadGuard, WriteGuard};
use thiserror::Error;

use crate::connection::Connection;
use crate::endpoint::{Endpoint, RegisterMemoryError};
use crate::message::Message;
use crate::pending::Pending;
use crate::transfer_error::TransferError;
use longhaul_runtime::{End, Shared};

/// Messages that are open when a scope is left have this long to end. After that their connections end.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
/// How long connections that have ended may take to give memory back.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// Why a connection ends that had messages open on memory of a scope.
#[derive(Clone, Copy, Debug, Error)]
#[error(
    "the scope that lent memory to messages of this connection was left before they ended; wait for them inside the scope"
)]
struct ScopeLeft;

impl Endpoint {
    /// Register memory behind a pointer, without a copy: a mapping of huge pages, a buffer of a program in C or Python.
    /// `owner` is dropped when the device and all messages have let go of the memory, so it should be what keeps the
    /// memory alive. If the device does not register the memory, `owner` is dropped at once. That may happen on any
    /// thread, while a connection is locked: dropping it must neither use Longhaul nor wait for a lock.
    ///
    /// # Safety
    ///
    /// - `pointer` is valid for reads and writes of `length` bytes until `owner` is dropped, from any thread. If the
    ///   device cannot let go of the memory, `owner` is never dropped.
    /// - While bytes are being sent, or a guard of [`Memory::read`] for them exists, nobody writes them by other means.
    /// - While a receive into them is open, or a [`Message`] or a guard of [`Memory::write`] for them exists, nobody
    ///   reads or writes them by other means. At all other times the pointer may be used as before.
    pub unsafe fn register_pointer(
        &self,
        pointer: NonNull<u8>,
        length: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Memory, RegisterMemoryError> {
        let runtime = self.runtime()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { Memory::register_pointer(runtime.domain(), pointer, length, owner) }?)
    }

    /// Register a borrowed slice while `work` runs, without a copy.
    ///
    /// Wait for messages inside the scope. Leaving it waits up to 5 seconds for those that are still open; then, or at
    /// once if `work` panics, their connections end. The bytes belong to the caller again when this returns. If a
    /// device cannot let go of them (or a guard or message was leaked with [`std::mem::forget`]), the process is
    /// aborted.
    ///
    /// ```no_run
    /// # fn example(endpoint: &longhaul::Endpoint, connection: &longhaul::Connection) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut numbers = vec![7; 1 << 20];
    /// endpoint.scope(&mut numbers, |memory| memory.write_from(connection, 0..memory.len()).wait())??;
    /// endpoint.scope(&mut numbers, |memory| memory.receive_into(connection, 0..100).wait().map(|message| message.len()))??;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A received message cannot leave the scope:
    ///
    /// ```compile_fail
    /// # fn example(endpoint: &longhaul::Endpoint, connection: &longhaul::Connection) {
    /// let mut bytes = vec![0; 100];
    /// let escaped = endpoint.scope(&mut bytes, |memory| memory.receive_into(connection, 0..100));
    /// # }
    /// ```
    pub fn scope<'env, F, T>(&self, bytes: &'env mut [u8], work: F) -> Result<T, RegisterMemoryError>
    where
        F: for<'scope> FnOnce(&'scope ScopedMemory<'scope, 'env>) -> T,
    {
        let runtime = self.runtime()?;
        let length = bytes.len();
        let pointer = NonNull::from(bytes).cast::<u8>();
        // SAFETY: the bytes are borrowed for longer than this call takes, so nobody else uses them. `Leaving` has the
        // region deregistered before this returns or unwinds, with no borrow left, or ends the process. Guards and
        // messages cannot be used after the scope: they have its lifetime, which the result cannot have.
        let memory = unsafe { Memory::register_pointer(runtime.domain(), pointer, length, Box::new(())) }?;
        let scoped = ScopedMemory { memory, used_by: Mutex::default(), scope: PhantomData, env: PhantomData };
        let _leaving = Leaving { memory: &scoped.memory, used_by: &scoped.used_by };
        Ok(work(&scoped))
    }
}

/// Borrowed memory that is registered for as long as a scope lasts ([`Endpoint::scope`]).
pub struct ScopedMemory<'scope, 'env: 'scope> {
    memory: Memory,
    /// Connections that had messages on it.
    used_by: Mutex<Vec<Arc<Shared>>>,
    /// Neither may become shorter or longer.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl<'scope> ScopedMemory<'scope, '_> {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// As [`Memory::read`].
    pub fn read(&'scope self, range: Range<usize>) -> Result<ReadGuard<'scope>, BorrowError> {
        self.memory.read(range)
    }

    /// As [`Memory::write`].
    pub fn write(&'scope self, range: Range<usize>) -> Result<WriteGuard<'scope>, BorrowError> {
        self.memory.write(range)
    }

    /// As [`Connection::write_from`].
    pub fn write_from(
        &'scope self,
        connection: &Connection,
        range: Range<usize>,
    ) -> Pending<MessageReport, TransferError> {
        self.note(connection);
        connection.write_from(&self.memory, range)
    }

    /// As [`Connection::receive_into`].
    pub fn receive_into(&'scope self, connection: &Connection, range: Range<usize>) -> ScopedReceive<'scope> {
        self.note(connection);
        ScopedReceive { pending: connection.receive_into(&self.memory, range), scope: PhantomData }
    }

    fn note(&self, connection: &Connection) {
        let mut used_by = self.used_by.lock().unwrap_or_else(PoisonError::into_inner);
        if !used_by.iter().any(|shared| Arc::ptr_eq(shared, connection.shared())) {
            used_by.push(connection.shared().clone());
        }
    }
}

impl fmt::Debug for ScopedMemory<'_, '_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ScopedMemory").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A receive into memory of a scope, as [`Pending`] is one into other memory.
#[must_use = "the operation is in progress; wait() or .await returns its result"]
pub struct ScopedReceive<'scope> {
    pending: Pending<Message, TransferError>,
    scope: PhantomData<&'scope ()>,
}

impl<'scope> ScopedReceive<'scope> {
    /// Wait until it has completed.
    pub fn wait(self) -> Result<ScopedMessage<'scope>, TransferError> {
        self.pending.wait().map(ScopedMessage::new)
    }

    /// Wait until it has completed, but not longer than this; after that it can be waited for again.
    pub fn wait_for(self, patience: Duration) -> Result<Result<ScopedMessage<'scope>, TransferError>, Self> {
        match self.pending.wait_for(patience) {
            Ok(result) => Ok(result.map(ScopedMessage::new)),
            Err(pending) => Err(ScopedReceive { pending, scope: PhantomData }),
        }
    }
}

impl<'scope> Future for ScopedReceive<'scope> {
    type Output = Result<ScopedMessage<'scope>, TransferError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.pending).poll(context).map(|result| result.map(ScopedMessage::new))
    }
}

impl fmt::Debug for ScopedReceive<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ScopedReceive")
    }
}

/// A message in memory of a scope. Its bytes are the slice's own.
#[derive(Debug)]
pub struct ScopedMessage<'scope> {
    /// Never lent mutably, so that nobody can take it out.
    message: Message,
    scope: PhantomData<&'scope ()>,
}

impl ScopedMessage<'_> {
    fn new(message: Message) -> Self {
        ScopedMessage { message, scope: PhantomData }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.message.bytes()
    }

    /// The ranges of bytes that did not arrive; none when the scheme is reliable.
    pub fn missing(&self) -> &[Range<u64>] {
        self.message.missing()
    }

    /// Its transfer, as this end saw it.
    pub fn report(&self) -> &MessageReport {
        self.message.report()
    }
}

impl Deref for ScopedMessage<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

/// When it is dropped, the borrow of the bytes is about to end.
struct Leaving<'a> {
    memory: &'a Memory,
    used_by: &'a Mutex<Vec<Arc<Shared>>>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let patience = if thread::panicking() { Duration::ZERO } else { LEAVE_PATIENCE };
        // Messages that are open have a clone of the memory, even while none of their bytes are in the device.
        if is_soon(patience, || self.memory.is_unshared()) && self.memory.retire() {
            return;
        }
        // Nothing begins from here on.
        self.memory.retire();
        let used_by = std::mem::take(&mut *self.used_by.lock().unwrap_or_else(PoisonError::into_inner));
        used_by.iter().for_each(|shared| shared.end_now(End::Failed(Arc::new(ScopeLeft))));
        drop(used_by);
        if !is_soon(END_PATIENCE, || self.memory.retire()) {
            // Going on would leave a device, or a leaked guard, with memory that is somebody else's.
            eprintln!("longhaul: borrowed memory is still in use although its scope was left; aborting");
            std::process::abort();
        }
    }
}

/// Whether something is so, now or within a time.
fn is_soon(patience: Duration, is_so: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() >= patience {
            return false;
        }
        thread::sleep(LOOK_EVERY);
    }
    true
}
