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

/// Columns that [`turn_lines`] turns at once.
pub(super) const TURNED_COLUMNS: usize = 16;

/// Rows that [`turn_lines`] turns at once: each column becomes a line of 64 bytes.
pub(super) const fn turned_rows<E>() -> usize {
    64 / size_of::<E>()
}

/// Turns [`turned_rows`] rows of [`TURNED_COLUMNS`] elements, of 2 or 4 bytes, with AVX-512: column `c` of what is at
/// `from`, with `from_row` elements from row to row, is written to `to + c · to_row`.
pub(super) fn turn_lines<E: HadamardElement>(
    source: &[E],
    (from, from_row): (usize, usize),
    target: &mut [E],
    (to, to_row): (usize, usize),
) {
    let rows = turned_rows::<E>();
    assert!(super::x86::has_avx512(), "a processor with AVX-512");
    assert!(from + (rows - 1) * from_row + TURNED_COLUMNS <= source.len(), "the source has all rows");
    assert!(to + (TURNED_COLUMNS - 1) * to_row + rows <= target.len(), "the target has all columns");
    // SAFETY: the processor has the features, and all that is read and written is in the slices, as checked above.
    // Elements are plain numbers of 2 or 4 bytes, of which any bytes are valid.
    unsafe { turn_lines_avx512(source.as_ptr().add(from), from_row, target.as_mut_ptr().add(to), to_row) }
}

/// # Safety
///
/// [`turned_rows`] rows of 16 elements may be read at `from`, and 16 rows of 64 bytes written at `to`.
#[target_feature(enable = "avx512f")]
unsafe fn turn_lines_avx512<E: HadamardElement>(from: *const E, from_row: usize, to: *mut E, to_row: usize) {
    let mut lines = [_mm512_setzero_si512(); 16];
    for (number, line) in lines.iter_mut().enumerate() {
        // SAFETY: as the caller promises: two rows of 32 bytes for each line, or one of 64.
        *line = unsafe {
            if size_of::<E>() == 2 {
                // Elements of two rows, one next to the other, are turned as one.
                let low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.add(2 * number * from_row).cast()));
                let high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.add((2 * number + 1) * from_row).cast()));
                _mm512_or_si512(low, _mm512_slli_epi32::<16>(high))
            } else {
                _mm512_loadu_si512(from.add(number * from_row).cast())
            }
        };
    }
    // In fours: each quarter of `quads[k]` of four rows gets their column `4 · quarter + k`.
    for quads in lines.as_chunks_mut::<4>().0 {
        let [a, b, c, d] = *quads;
        let [low, high] = [_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)];
        let [low_next, high_next] = [_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d)];
        *quads = [
            _mm512_unpacklo_epi64(low, low_next),
            _mm512_unpackhi_epi64(low, low_next),
            _mm512_unpacklo_epi64(high, high_next),
            _mm512_unpackhi_epi64(high, high_next),
        ];
    }
    // And the quarters of four of those.
    for k in 0..4 {
        let [a, b, c, d] = [lines[k], lines[4 + k], lines[8 + k], lines[12 + k]];
        let [even, odd] = [_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b)];
        let [even_next, odd_next] = [_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d)];
        let columns = [
            _mm512_shuffle_i32x4::<0x88>(even, even_next),
            _mm512_shuffle_i32x4::<0x88>(odd, odd_next),
            _mm512_shuffle_i32x4::<0xdd>(even, even_next),
            _mm512_shuffle_i32x4::<0xdd>(odd, odd_next),
        ];
        for (quarter, column) in columns.into_iter().enumerate() {
            // SAFETY: as the caller promises: 64 bytes of each of 16 rows.
            unsafe { _mm512_storeu_si512(to.add((4 * quarter + k) * to_row).cast(), column) };
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

/// Bytes of a line of the cache.
const LINE_BYTES: usize = 64;

/// Copies whole lines of the target past the caches, and parts of lines, at its two ends, through them: there the rest
/// of the line will follow. [`end_of_streams`] must follow.
#[inline]
pub(super) fn stream_lines<E: HadamardElement>(from: &[E], to: &mut [E]) {
    assert!(from.len() == to.len(), "a target of the source's length");
    if super::x86::has_avx512() {
        // SAFETY: the processor has the features, and both have as many bytes. Elements are plain numbers without
        // padding, of which any bytes are valid. The target is a slice that only we hold, and `end_of_streams` makes it
        // visible before others get it.
        return unsafe { stream_lines_avx512(from.as_ptr().cast(), to.as_mut_ptr().cast(), size_of_val(from)) };
    }
    stream_lines_in_steps(from, to);
}

/// The same on every processor.
pub(super) fn stream_lines_in_steps<E: HadamardElement>(from: &[E], to: &mut [E]) {
    let in_line = LINE_BYTES / size_of::<E>();
    // An address is a multiple of the size of an element.
    let head = (to.as_ptr().addr().wrapping_neg() % LINE_BYTES / size_of::<E>()).min(to.len());
    let tail = head + (to.len() - head) / in_line * in_line;
    to[..head].copy_from_slice(&from[..head]);
    to[tail..].copy_from_slice(&from[tail..]);
    if tail > head {
        stream(&from[head..tail], &mut to[head..tail]);
    }
}

/// # Safety
///
/// `bytes` bytes may be read at `from` and written at `to`.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn stream_lines_avx512(from: *const u8, to: *mut u8, bytes: usize) {
    let part = |at: usize, bytes: usize| {
        let mask = (1 << bytes) - 1;
        // SAFETY: `at + bytes` is at most all bytes, and the mask leaves the others alone.
        unsafe { _mm512_mask_storeu_epi8(to.add(at).cast(), mask, _mm512_maskz_loadu_epi8(mask, from.add(at).cast())) };
    };
    let mut at = (to.addr().wrapping_neg() % LINE_BYTES).min(bytes);
    if at > 0 {
        part(0, at);
    }
    while at + LINE_BYTES <= bytes {
        // SAFETY: a line from `at` on is within all bytes, and `to + at` is aligned to one.
        unsafe { _mm512_stream_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast())) };
        at += LINE_BYTES;
    }
    if at < bytes {
        part(at, bytes - at);
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

/// The same, if a run of elements that begins or ends there shares its line with others: [`stream_lines`] then writes
/// through the cache.
#[inline(always)]
pub(super) fn prefetch_part_for_writing<T>(at: *const T) {
    if !at.addr().is_multiple_of(LINE_BYTES) {
        prefetch_for_writing(at);
    }
}
