//! How memory is read and written on x86-64: hints, stores past the caches, and squares turned in registers. All of it is
//! a part of every such processor.

#![allow(unsafe_code)]
// Loops over indices that the compiler unrolls into registers.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use super::element::HadamardElement;

/// Turns a square whose lines have 16 bytes: rows become columns.
#[inline(always)]
pub(super) fn turn<E: HadamardElement, const SIDE: usize>(square: &mut [[E; SIDE]; SIDE]) {
    let lines = square.as_mut_ptr();
    match (size_of::<E>(), SIDE) {
        // SAFETY: four lines of four elements of 4 bytes. SSE2 is a part of x86-64. Any bytes are a valid element.
        (4, 4) => unsafe {
            let line = |number: usize| _mm_loadu_ps(lines.add(number).cast());
            let [mut a, mut b, mut c, mut d] = [line(0), line(1), line(2), line(3)];
            _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
            _mm_storeu_ps(lines.add(0).cast(), a);
            _mm_storeu_ps(lines.add(1).cast(), b);
            _mm_storeu_ps(lines.add(2).cast(), c);
            _mm_storeu_ps(lines.add(3).cast(), d);
        },
        // SAFETY: eight lines of eight elements of 2 bytes; otherwise as above.
        (2, 8) => unsafe {
            let mut values = [_mm_setzero_si128(); 8];
            for number in 0..8 {
                values[number] = _mm_loadu_si128(lines.add(number).cast());
            }
            // Element (line, column) has number 8 · line + column, in bits. Each round moves them in a circle by one bit;
            // after three, line and column have changed places.
            for _ in 0..3 {
                let [a, b, c, d, e, f, g, h] = values;
                values = [
                    _mm_unpacklo_epi16(a, e),
                    _mm_unpackhi_epi16(a, e),
                    _mm_unpacklo_epi16(b, f),
                    _mm_unpackhi_epi16(b, f),
                    _mm_unpacklo_epi16(c, g),
                    _mm_unpackhi_epi16(c, g),
                    _mm_unpacklo_epi16(d, h),
                    _mm_unpackhi_epi16(d, h),
                ];
            }
            for number in 0..8 {
                _mm_storeu_si128(lines.add(number).cast(), values[number]);
            }
        },
        _ => {
            for line in 0..SIDE {
                for element in 0..line {
                    (square[line][element], square[element][line]) = (square[element][line], square[line][element]);
                }
            }
        }
    }
}

/// Copies past the caches, in steps of 16 bytes, which the target must be aligned to: the memory that is written need
/// not be read first. [`end_of_streams`] must follow.
#[inline]
pub(super) fn stream<E: HadamardElement>(from: &[E], to: &mut [E]) {
    let bytes = size_of_val(from);
    assert!(from.len() == to.len() && bytes.is_multiple_of(16), "whole steps");
    assert!(to.as_ptr().addr().is_multiple_of(16), "an aligned target");
    let (from, to) = (from.as_ptr().cast::<u8>(), to.as_mut_ptr().cast::<u8>());
    for at in (0..bytes).step_by(16) {
        // SAFETY: both have `bytes` bytes, `at` is at least 16 below that, and the target is aligned, as checked above.
        // Elements are plain numbers without padding, of which any bytes are valid. The target is a slice that only we
        // hold, and `end_of_streams` makes it visible before others get it.
        unsafe { _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(from.add(at).cast())) };
    }
}

/// Makes visible to other threads, and to devices, what was streamed.
pub(super) fn end_of_streams() {
    // SAFETY: orders stores, and does nothing else; all x86-64 processors have it.
    unsafe { _mm_sfence() };
}

/// Asks for memory that is read after other work: into the second-level cache.
#[inline(always)]
pub(super) fn prefetch_for_later<T>(from: &[T]) {
    for line in (0..size_of_val(from)).step_by(64) {
        // SAFETY: a hint, which reads nothing; the address is within the slice.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.as_ptr().cast::<i8>().add(line)) };
    }
}

/// Asks for memory that is read soon: of the block after this one, as the processor's own prefetching ends at the end of
/// a page.
#[inline(always)]
pub(super) fn prefetch<T>(at: *const T) {
    // SAFETY: a hint, which reads nothing; any address will do, also one past the end of the source.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

/// Asks for memory that is written soon.
#[inline(always)]
pub(super) fn prefetch_for_writing<T>(at: *const T) {
    // SAFETY: a hint, which writes nothing; any address will do, also one past the end of the target.
    unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.cast()) };
}
