//! The kernels for x86-64.
//!
//! Each keeps the sums of all its outputs in registers while it goes through the sources, so that the sources are loaded
//! once, whatever the number of outputs; the coefficients come out of the first-level cache.

#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::array;

use super::{Block, OUTPUTS_MOST, SOURCES_MOST};
use crate::field::{BIT_MATRICES, NIBBLE_PRODUCTS};

/// Kernels work on whole steps of this many bytes.
pub(super) const STEP_BYTES: usize = 128;

/// Vectors of 64 bytes in a step.
const WIDE: usize = STEP_BYTES / 64;
/// Vectors of 32 bytes that the kernels with 16 registers take at a time.
const NARROW: usize = 2;
/// Outputs whose sums fit into 16 registers, beside the sources and coefficients.
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
    let sources: [*const u8; SOURCES_MOST] =
        array::from_fn(|source| sources.get(source).map_or(std::ptr::null(), |source| source.as_ptr()));
    let count = sources.iter().take_while(|source| !source.is_null()).count();
    let load = |pointer: *const u8, at: usize| {
        // SAFETY: at + STEP_BYTES is at most `bytes`, which all slices have; no alignment is needed.
        array::from_fn::<_, WIDE, _>(|part| unsafe { _mm512_loadu_si512(pointer.add(at + 64 * part).cast()) })
    };
    for at in (0..bytes).step_by(STEP_BYTES) {
        let mut sums = [[_mm512_setzero_si512(); WIDE]; OUTPUTS];
        if add {
            sums = outputs.map(|output| load(output, at));
        }
        let mut pairs = sources[..count].chunks_exact(2);
        for (pair, factors) in (&mut pairs).zip(matrices.chunks_exact(2)) {
            let (left, right) = (load(pair[0], at), load(pair[1], at));
            for (output, sum) in sums.iter_mut().enumerate() {
                let left_matrix = _mm512_set1_epi64(factors[0][output] as i64);
                let right_matrix = _mm512_set1_epi64(factors[1][output] as i64);
                for part in 0..WIDE {
                    let left_product = _mm512_gf2p8affine_epi64_epi8::<0>(left[part], left_matrix);
                    let right_product = _mm512_gf2p8affine_epi64_epi8::<0>(right[part], right_matrix);
                    // 0x96: the XOR of all three.
                    sum[part] = _mm512_ternarylogic_epi64::<0x96>(sum[part], left_product, right_product);
                }
            }
        }
        if let [last] = pairs.remainder() {
            let source = load(*last, at);
            for (output, sum) in sums.iter_mut().enumerate() {
                let matrix = _mm512_set1_epi64(matrices[count - 1][output] as i64);
                for part in 0..WIDE {
                    let product = _mm512_gf2p8affine_epi64_epi8::<0>(source[part], matrix);
                    sum[part] = _mm512_xor_si512(sum[part], product);
                }
            }
        }
        for (output, sum) in outputs.iter().zip(&sums) {
            for (part, sum) in sum.iter().enumerate() {
                // SAFETY: as for the loads; the outputs are slices that only we hold.
                unsafe { _mm512_storeu_si512(output.add(at + 64 * part).cast(), *sum) };
            }
        }
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
    for at in (0..bytes).step_by(32 * NARROW) {
        let mut sums = [[_mm256_setzero_si256(); NARROW]; OUTPUTS];
        if add {
            // SAFETY: at + 32 · NARROW is at most `bytes`, which all slices have.
            sums = outputs.map(|output| unsafe { load_narrow(output, at) });
        }
        for (source, factors) in sources.iter().zip(matrices) {
            // SAFETY: as above.
            let source = unsafe { load_narrow(source.as_ptr(), at) };
            for (output, sum) in sums.iter_mut().enumerate() {
                let matrix = _mm256_set1_epi64x(factors[first + output] as i64);
                for part in 0..NARROW {
                    let product = _mm256_gf2p8affine_epi64_epi8::<0>(source[part], matrix);
                    sum[part] = _mm256_xor_si256(sum[part], product);
                }
            }
        }
        for (output, sum) in outputs.iter().zip(&sums) {
            // SAFETY: as above; the outputs are slices that only we hold.
            unsafe { store_narrow(*output, at, sum) };
        }
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
    for at in (0..bytes).step_by(32 * NARROW) {
        let mut sums = [[_mm256_setzero_si256(); NARROW]; OUTPUTS];
        if add {
            // SAFETY: at + 32 · NARROW is at most `bytes`, which all slices have.
            sums = outputs.map(|output| unsafe { load_narrow(output, at) });
        }
        for (source, factors) in sources.iter().zip(coefficients) {
            // SAFETY: as above.
            let source = unsafe { load_narrow(source.as_ptr(), at) };
            let low = source.map(|part| _mm256_and_si256(part, low_half));
            let high = source.map(|part| _mm256_and_si256(_mm256_srli_epi64::<4>(part), low_half));
            for (output, sum) in sums.iter_mut().enumerate() {
                let table = NIBBLE_PRODUCTS[usize::from(factors[first + output])].as_ptr();
                // SAFETY: a table has 32 bytes.
                let halves = unsafe { [_mm_loadu_si128(table.cast()), _mm_loadu_si128(table.add(16).cast())] };
                let [low_table, high_table] = halves.map(|half| _mm256_broadcastsi128_si256(half));
                for part in 0..NARROW {
                    let low_product = _mm256_shuffle_epi8(low_table, low[part]);
                    let high_product = _mm256_shuffle_epi8(high_table, high[part]);
                    sum[part] = _mm256_xor_si256(sum[part], _mm256_xor_si256(low_product, high_product));
                }
            }
        }
        for (output, sum) in outputs.iter().zip(&sums) {
            // SAFETY: as above; the outputs are slices that only we hold.
            unsafe { store_narrow(*output, at, sum) };
        }
    }
}

/// # Safety
///
/// `32 · NARROW` bytes at `pointer + at` may be read.
#[target_feature(enable = "avx2")]
unsafe fn load_narrow(pointer: *const u8, at: usize) -> [__m256i; NARROW] {
    // SAFETY: as the caller promises; no alignment is needed.
    array::from_fn(|part| unsafe { _mm256_loadu_si256(pointer.add(at + 32 * part).cast()) })
}

/// # Safety
///
/// `32 · NARROW` bytes at `pointer + at` may be written.
#[target_feature(enable = "avx2")]
unsafe fn store_narrow(pointer: *mut u8, at: usize, values: &[__m256i; NARROW]) {
    for (part, value) in values.iter().enumerate() {
        // SAFETY: as the caller promises; no alignment is needed.
        unsafe { _mm256_storeu_si256(pointer.add(at + 32 * part).cast(), *value) };
    }
}
