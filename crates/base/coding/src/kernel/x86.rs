//! The kernels for x86-64.
//!
//! Each keeps the sums of all its outputs in registers while it goes through the sources, so that the sources are
//! loaded once, whatever the number of outputs; the coefficients come out of the first-level cache.
//!
//! The inner loops are loops over indices on purpose: a closure that is handed to `map` or `array::from_fn` is compiled
//! with the features of its surroundings, cannot become part of a function without them, and costs a call for every
//! vector.

#![allow(unsafe_code)]
// Loops over indices: see above.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;
use std::{array, ptr};

use super::{Block, OUTPUTS_MOST, PIECE_BYTES, SOURCES_MOST};
use crate::field::{BIT_MATRICES, NIBBLE_PRODUCTS};

/// Kernels work on whole steps of this many bytes.
pub(super) const STEP_BYTES: usize = 128;

/// Vectors of 64 bytes in a step.
const WIDE: usize = STEP_BYTES / 64;
/// Vectors of 32 bytes that the kernels with 16 registers take at a time.
const NARROW: usize = 2;
/// Outputs whose sums fit into 16 registers, next to the sources and coefficients.
const OUTPUTS_NARROW: usize = 4;

pub(super) fn has_gfni_avx512() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("gfni")
}

pub(super) fn has_gfni_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni")
}

pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
}

/// Checks, once for each call of a kernel, everything that its loads and stores rely on.
fn check(sources: &[&[u8]], outputs: &[&mut [u8]], bytes: usize, is_available: bool) {
    assert!(is_available, "a kernel for another processor");
    assert!(bytes.is_multiple_of(STEP_BYTES), "whole steps");
    assert!(sources.len() <= SOURCES_MOST && outputs.len() <= OUTPUTS_MOST, "more chunks than a kernel takes");
    assert!(sources.iter().all(|source| source.len() >= bytes), "sources that reach as far as asked");
    assert!(outputs.iter().all(|output| output.len() >= bytes), "outputs that reach as far as asked");
}

/// Calls the kernel for as many outputs as there are, of those in the brackets.
macro_rules! with_output_count {
    ($outputs:expr, [$($count:literal)*], $kernel:ident $arguments:tt) => {
        match $outputs.len() {
            // SAFETY: `check` has passed: the processor has the features, and all slices reach as far as `bytes`.
            $($count => unsafe { $kernel::<$count> $arguments },)*
            count => unreachable!("{count} outputs"),
        }
    };
}

/// As [`super::Kernel::combine`] does, on the first `bytes` bytes, which are whole steps.
pub(super) fn gfni_avx512(coefficients: &Block, sources: &[&[u8]], outputs: &mut [&mut [u8]], bytes: usize, add: bool) {
    check(sources, outputs, bytes, has_gfni_avx512());
    let matrices = coefficients.map(|factors| factors.map(|factor| BIT_MATRICES[usize::from(factor)]));
    with_output_count!(outputs, [1 2 3 4 5 6 7 8], gfni_avx512_outputs(outputs, &matrices, sources, bytes, add));
}

/// As [`gfni_avx512`], with registers half as long and half as many.
pub(super) fn gfni_avx2(coefficients: &Block, sources: &[&[u8]], outputs: &mut [&mut [u8]], bytes: usize, add: bool) {
    check(sources, outputs, bytes, has_gfni_avx2());
    let matrices = coefficients.map(|factors| factors.map(|factor| BIT_MATRICES[usize::from(factor)]));
    for (group, outputs) in outputs.chunks_mut(OUTPUTS_NARROW).enumerate() {
        let first = group * OUTPUTS_NARROW;
        with_output_count!(outputs, [1 2 3 4], gfni_avx2_outputs(outputs, first, &matrices, sources, bytes, add));
    }
}

/// As [`gfni_avx512`], for processors that have shuffles only.
pub(super) fn avx2(coefficients: &Block, sources: &[&[u8]], outputs: &mut [&mut [u8]], bytes: usize, add: bool) {
    check(sources, outputs, bytes, has_avx2());
    for (group, outputs) in outputs.chunks_mut(OUTPUTS_NARROW).enumerate() {
        let first = group * OUTPUTS_NARROW;
        with_output_count!(outputs, [1 2 3 4], avx2_outputs(outputs, first, coefficients, sources, bytes, add));
    }
}

/// # Safety
///
/// All slices have at least `bytes` bytes, which are whole steps; there are `OUTPUTS` outputs.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn gfni_avx512_outputs<const OUTPUTS: usize>(
    outputs: &mut [&mut [u8]],
    matrices: &[[u64; OUTPUTS_MOST]; SOURCES_MOST],
    sources: &[&[u8]],
    bytes: usize,
    add: bool,
) {
    let outputs: [*mut u8; OUTPUTS] = array::from_fn(|output| outputs[output].as_mut_ptr());
    let mut at = 0;
    while at < bytes {
        let mut sums = [[_mm512_setzero_si512(); WIDE]; OUTPUTS];
        if add {
            for output in 0..OUTPUTS {
                // SAFETY: at + STEP_BYTES is at most `bytes`, which all slices have.
                sums[output] = unsafe { load_wide(outputs[output], at) };
            }
        }
        for (pair, factors) in sources.chunks(2).zip(matrices.chunks_exact(2)) {
            // SAFETY: as above.
            let left = unsafe { load_wide(pair[0].as_ptr(), at) };
            prefetch(pair[0].as_ptr(), at, STEP_BYTES);
            let Some(second) = pair.get(1) else {
                for output in 0..OUTPUTS {
                    let matrix = _mm512_set1_epi64(factors[0][output] as i64);
                    for part in 0..WIDE {
                        let product = _mm512_gf2p8affine_epi64_epi8::<0>(left[part], matrix);
                        sums[output][part] = _mm512_xor_si512(sums[output][part], product);
                    }
                }
                break;
            };
            // SAFETY: as above.
            let right = unsafe { load_wide(second.as_ptr(), at) };
            prefetch(second.as_ptr(), at, STEP_BYTES);
            for output in 0..OUTPUTS {
                let left_matrix = _mm512_set1_epi64(factors[0][output] as i64);
                let right_matrix = _mm512_set1_epi64(factors[1][output] as i64);
                for part in 0..WIDE {
                    let left_product = _mm512_gf2p8affine_epi64_epi8::<0>(left[part], left_matrix);
                    let right_product = _mm512_gf2p8affine_epi64_epi8::<0>(right[part], right_matrix);
                    // 0x96: the XOR of all three.
                    sums[output][part] =
                        _mm512_ternarylogic_epi64::<0x96>(sums[output][part], left_product, right_product);
                }
            }
        }
        for output in 0..OUTPUTS {
            // SAFETY: as above; the outputs are slices that only we hold.
            unsafe { store_wide(outputs[output], at, sums[output]) };
        }
        at += STEP_BYTES;
    }
}

/// # Safety
///
/// All slices have at least `bytes` bytes, which are whole steps; there are `OUTPUTS` outputs.
#[target_feature(enable = "avx2,gfni")]
unsafe fn gfni_avx2_outputs<const OUTPUTS: usize>(
    outputs: &mut [&mut [u8]],
    first: usize,
    matrices: &[[u64; OUTPUTS_MOST]; SOURCES_MOST],
    sources: &[&[u8]],
    bytes: usize,
    add: bool,
) {
    let outputs: [*mut u8; OUTPUTS] = array::from_fn(|output| outputs[output].as_mut_ptr());
    let mut at = 0;
    while at < bytes {
        let mut sums = [[_mm256_setzero_si256(); NARROW]; OUTPUTS];
        if add {
            for output in 0..OUTPUTS {
                // SAFETY: at + 32 · NARROW is at most `bytes`, which all slices have.
                sums[output] = unsafe { load_narrow(outputs[output], at) };
            }
        }
        for (source, factors) in sources.iter().zip(matrices) {
            // SAFETY: as above.
            let vectors = unsafe { load_narrow(source.as_ptr(), at) };
            prefetch(source.as_ptr(), at, 32 * NARROW);
            for output in 0..OUTPUTS {
                let matrix = _mm256_set1_epi64x(factors[first + output] as i64);
                for part in 0..NARROW {
                    let product = _mm256_gf2p8affine_epi64_epi8::<0>(vectors[part], matrix);
                    sums[output][part] = _mm256_xor_si256(sums[output][part], product);
                }
            }
        }
        for output in 0..OUTPUTS {
            // SAFETY: as above; the outputs are slices that only we hold.
            unsafe { store_narrow(outputs[output], at, sums[output]) };
        }
        at += 32 * NARROW;
    }
}

/// # Safety
///
/// All slices have at least `bytes` bytes, which are whole steps; there are `OUTPUTS` outputs.
#[target_feature(enable = "avx2")]
unsafe fn avx2_outputs<const OUTPUTS: usize>(
    outputs: &mut [&mut [u8]],
    first: usize,
    coefficients: &Block,
    sources: &[&[u8]],
    bytes: usize,
    add: bool,
) {
    let outputs: [*mut u8; OUTPUTS] = array::from_fn(|output| outputs[output].as_mut_ptr());
    let low_half = _mm256_set1_epi8(0x0f);
    let mut at = 0;
    while at < bytes {
        let mut sums = [[_mm256_setzero_si256(); NARROW]; OUTPUTS];
        if add {
            for output in 0..OUTPUTS {
                // SAFETY: at + 32 · NARROW is at most `bytes`, which all slices have.
                sums[output] = unsafe { load_narrow(outputs[output], at) };
            }
        }
        for (source, factors) in sources.iter().zip(coefficients) {
            // SAFETY: as above.
            let vectors = unsafe { load_narrow(source.as_ptr(), at) };
            prefetch(source.as_ptr(), at, 32 * NARROW);
            let (mut low, mut high) = (vectors, vectors);
            for part in 0..NARROW {
                low[part] = _mm256_and_si256(vectors[part], low_half);
                high[part] = _mm256_and_si256(_mm256_srli_epi64::<4>(vectors[part]), low_half);
            }
            for output in 0..OUTPUTS {
                let table: *const __m128i =
                    ptr::from_ref(&NIBBLE_PRODUCTS[usize::from(factors[first + output])]).cast();
                // SAFETY: a table has 32 bytes; no alignment is needed.
                let (low_table, high_table) = unsafe { (_mm_loadu_si128(table), _mm_loadu_si128(table.add(1))) };
                let low_table = _mm256_broadcastsi128_si256(low_table);
                let high_table = _mm256_broadcastsi128_si256(high_table);
                for part in 0..NARROW {
                    let low_product = _mm256_shuffle_epi8(low_table, low[part]);
                    let high_product = _mm256_shuffle_epi8(high_table, high[part]);
                    let product = _mm256_xor_si256(low_product, high_product);
                    sums[output][part] = _mm256_xor_si256(sums[output][part], product);
                }
            }
        }
        for output in 0..OUTPUTS {
            // SAFETY: as above; the outputs are slices that only we hold.
            unsafe { store_narrow(outputs[output], at, sums[output]) };
        }
        at += 32 * NARROW;
    }
}

/// Asks for the bytes of the next piece of a source, while this one is worked on: the processor's own prefetching ends
/// at the end of a page, and that is where a piece ends.
#[inline]
fn prefetch(pointer: *const u8, at: usize, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        let next = pointer.wrapping_add(at + PIECE_BYTES + line);
        // SAFETY: a hint, which reads nothing; any address will do, also one past the end of the source.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(next.cast()) };
    }
}

/// # Safety
///
/// `STEP_BYTES` bytes at `pointer + at` may be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_wide(pointer: *const u8, at: usize) -> [__m512i; WIDE] {
    // SAFETY: as the caller promises; no alignment is needed.
    unsafe { [_mm512_loadu_si512(pointer.add(at).cast()), _mm512_loadu_si512(pointer.add(at + 64).cast())] }
}

/// # Safety
///
/// `STEP_BYTES` bytes at `pointer + at` may be written.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_wide(pointer: *mut u8, at: usize, values: [__m512i; WIDE]) {
    // SAFETY: as the caller promises; no alignment is needed.
    unsafe {
        _mm512_storeu_si512(pointer.add(at).cast(), values[0]);
        _mm512_storeu_si512(pointer.add(at + 64).cast(), values[1]);
    }
}

/// # Safety
///
/// `32 · NARROW` bytes at `pointer + at` may be read.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_narrow(pointer: *const u8, at: usize) -> [__m256i; NARROW] {
    // SAFETY: as the caller promises; no alignment is needed.
    unsafe { [_mm256_loadu_si256(pointer.add(at).cast()), _mm256_loadu_si256(pointer.add(at + 32).cast())] }
}

/// # Safety
///
/// `32 · NARROW` bytes at `pointer + at` may be written.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_narrow(pointer: *mut u8, at: usize, values: [__m256i; NARROW]) {
    // SAFETY: as the caller promises; no alignment is needed.
    unsafe {
        _mm256_storeu_si256(pointer.add(at).cast(), values[0]);
        _mm256_storeu_si256(pointer.add(at + 32).cast(), values[1]);
    }
}
