//! Pointers to objects of libibverbs, and whose they are.
#![allow(unsafe_code, reason = "says which pointers may go from thread to thread")]

use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::completion::CompletionQueue;
use crate::context::Context;

/// A pointer to an object that libibverbs made. Who holds one sees to it that it is destroyed once, and last of all.
pub(crate) struct Handle<T>(NonNull<T>);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

// SAFETY: libibverbs promises that its objects may be used from any thread, and from several at once.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    pub(crate) fn new(pointer: NonNull<T>) -> Self {
        Handle(pointer)
    }

    pub(crate) fn as_ptr(self) -> *mut T {
        self.0.as_ptr()
    }
}

/// An object that belongs to an open device.
pub(crate) trait Owned: Any {
    fn context(&self) -> &Arc<Context>;
}

/// An object of ours behind a verbs object, if it is of this very device. C would take any pointer.
pub(crate) fn own<'a, T: Owned>(context: &Arc<Context>, object: &'a dyn Any) -> Option<&'a T> {
    object.downcast_ref::<T>().filter(|ours| Arc::ptr_eq(ours.context(), context))
}

/// The lock of something that a panic cannot leave half done: what it holds are whole values.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Owned for CompletionQueue {
    fn context(&self) -> &Arc<Context> {
        CompletionQueue::context(self)
    }
}
