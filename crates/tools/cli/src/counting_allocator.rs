//! The system's allocator, with a count of the bytes in use: how `longhaul sim scale` knows what a queue pair costs.
//!
//! Each thread counts for itself. So counting takes one addition to a place that no other processor touches, and what
//! other threads do (a progress bar, a device's driver) is not in the figure. A scenario runs on one thread.
#![allow(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static BYTES_IN_USE: Cell<isize> = const { Cell::new(0) };
}

/// Bytes that this thread has asked for and not given back. Less than zero where it gave back what others had asked
/// for.
pub(crate) fn bytes_in_use() -> isize {
    BYTES_IN_USE.with(Cell::get)
}

#[inline]
fn count(bytes: isize) {
    BYTES_IN_USE.with(|in_use| in_use.set(in_use.get().wrapping_add(bytes)));
}

/// The system's allocator, which counts.
pub(crate) struct CountingAllocator;

// SAFETY: everything is left to the system's allocator. Counting touches no memory of the caller's, and the counter,
// which has no destructor and begins with a constant, allocates nothing itself.
unsafe impl GlobalAlloc for CountingAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is the one that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above. (The default would write the zeros that the system has for nothing.)
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count((new_size as isize).wrapping_sub(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, new_size) }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count((layout.size() as isize).wrapping_neg());
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_and_given_back_is_counted() {
        let before = bytes_in_use();
        let mut bytes: Vec<u8> = Vec::with_capacity(1000);
        assert_eq!(bytes_in_use() - before, 1000);
        bytes.reserve_exact(3000);
        assert_eq!(bytes_in_use() - before, bytes.capacity() as isize);
        let zeros = vec![0_u64; 16];
        assert_eq!(bytes_in_use() - before, bytes.capacity() as isize + 128);
        drop((bytes, zeros));
        assert_eq!(bytes_in_use(), before);
    }

    #[test]
    fn other_threads_count_for_themselves() {
        let before = bytes_in_use();
        let thread = std::thread::spawn(|| {
            let own = bytes_in_use();
            let bytes = vec![1_u8; 1 << 20];
            assert_eq!(bytes_in_use() - own, 1 << 20);
            bytes.len()
        });
        assert_eq!(thread.join().ok(), Some(1 << 20));
        assert!(bytes_in_use() - before < 1 << 20);
    }
}
