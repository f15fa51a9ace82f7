//! How programs hear that something waits for them.

#[cfg(unix)]
use std::os::fd::BorrowedFd;

/// Signals to a program that something waits: on Unix, a descriptor that becomes readable.
pub trait Signal: Send + Sync {
    /// Something waits now.
    fn set(&self);
    /// Nothing waits any more.
    fn clear(&self);
    /// The descriptor.
    #[cfg(unix)]
    fn descriptor(&self) -> BorrowedFd<'_>;
}
