//! How programs hear that something waits for them.

use std::os::fd::BorrowedFd;

/// A descriptor that is readable while something waits.
pub trait Signal: Send + Sync {
    /// Something waits now.
    fn set(&self);
    /// Nothing waits any more.
    fn clear(&self);
    /// The descriptor.
    fn descriptor(&self) -> BorrowedFd<'_>;
}
