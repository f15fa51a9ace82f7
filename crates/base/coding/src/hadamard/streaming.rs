//! Writes past the caches: a long target is written without being read first, as copies of the system do it.

use super::element::HadamardElement;

/// Shorter targets stay in the cache, where the next to send or use them finds them.
const BYTES_MIN: usize = 4 << 20;
/// What a write needs: whole steps of this many bytes, aligned to as many.
const STEP_BYTES: usize = 16;

/// Whether a target is written past the caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Streaming(bool);

impl Streaming {
    /// As it suits the target, if everything that is written to it is a multiple of `elements` elements from its start.
    pub(super) fn for_target<E>(target: &[E], elements: usize) -> Streaming {
        let is_aligned =
            target.as_ptr().addr().is_multiple_of(STEP_BYTES) && (elements * size_of::<E>()).is_multiple_of(STEP_BYTES);
        Streaming(cfg!(target_arch = "x86_64") && is_aligned && size_of_val(target) >= BYTES_MIN)
    }

    pub(super) fn is_on(self) -> bool {
        self.0
    }

    /// Copies.
    #[inline]
    pub(super) fn copy<E: HadamardElement>(self, from: &[E], to: &mut [E]) {
        #[cfg(target_arch = "x86_64")]
        if self.0 {
            return super::x86_memory::stream(from, to);
        }
        to.copy_from_slice(from);
    }

    /// Nothing more is written: makes it visible to others.
    pub(super) fn end(self) {
        #[cfg(target_arch = "x86_64")]
        if self.0 {
            super::x86_memory::end_of_streams();
        }
    }
}
