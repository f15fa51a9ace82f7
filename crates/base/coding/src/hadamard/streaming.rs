//! Writes past the caches: a long target is written without being read first, as copies of the system do it.

use super::element::HadamardElement;

/// Shorter targets stay in the cache, where the next to send or use them finds them.
const BYTES_MIN: usize = 4 << 20;
/// What a sequential write needs: whole steps of this many bytes, aligned to as many.
const STEP_BYTES: usize = 16;

/// Whether a target is written past the caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Streaming {
    is_on: bool,
    /// Whether steps of [`STEP_BYTES`] are aligned.
    has_steps: bool,
}

impl Streaming {
    /// As it suits the target, of which what is written in sequence is a multiple of `elements` elements from its start.
    pub(super) fn for_target<E>(target: &[E], elements: usize) -> Streaming {
        let is_aligned =
            target.as_ptr().addr().is_multiple_of(STEP_BYTES) && (elements * size_of::<E>()).is_multiple_of(STEP_BYTES);
        let is_on = cfg!(target_arch = "x86_64") && size_of_val(target) >= BYTES_MIN;
        Streaming { is_on, has_steps: is_on && is_aligned }
    }

    /// Whether [`Streaming::copy`] writes past the caches.
    pub(super) fn has_steps(self) -> bool {
        self.has_steps
    }

    /// Copies; what follows in the target is copied next. So lines may be written in parts: these meet before they are
    /// written to memory.
    #[inline]
    pub(super) fn copy<E: HadamardElement>(self, from: &[E], to: &mut [E]) {
        #[cfg(target_arch = "x86_64")]
        if self.has_steps {
            return super::x86_memory::stream(from, to);
        }
        to.copy_from_slice(from);
    }

    /// Copies; what follows in the target is copied much later. Memory is slow to write in parts of lines, so only whole
    /// lines go past the caches.
    #[inline]
    pub(super) fn copy_alone<E: HadamardElement>(self, from: &[E], to: &mut [E]) {
        #[cfg(target_arch = "x86_64")]
        if self.is_on {
            return super::x86_memory::stream_lines(from, to);
        }
        to.copy_from_slice(from);
    }

    /// Nothing more is written: makes it visible to others.
    pub(super) fn end(self) {
        #[cfg(target_arch = "x86_64")]
        if self.is_on {
            super::x86_memory::end_of_streams();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::element::Bf16;
    use super::*;

    #[test]
    fn runs_of_any_length_are_copied_to_any_address_and_nothing_else_is_written() {
        let mut target = vec![Bf16(0); BYTES_MIN / 2];
        let streaming = Streaming::for_target(&target, 1);
        assert!(streaming.is_on == cfg!(target_arch = "x86_64") && !streaming.has_steps);
        let from: Vec<Bf16> = (1..=200).map(Bf16).collect();
        let mut check = |copy: &dyn Fn(&[Bf16], &mut [Bf16])| {
            for (at, length) in (0..40).flat_map(|at| (0..=200).map(move |length| (at, length))) {
                target[..300].fill(Bf16(0));
                copy(&from[..length], &mut target[at..at + length]);
                streaming.end();
                assert!(target[at..at + length] == from[..length], "{length} elements at {at}");
                let mut around = target[..at].iter().chain(&target[at + length..300]);
                assert!(around.all(|element| element.0 == 0), "{length} elements at {at}");
            }
        };
        check(&|from, to| streaming.copy_alone(from, to));
        #[cfg(target_arch = "x86_64")]
        check(&|from, to| super::super::x86_memory::stream_lines_in_steps(from, to));
    }
}
