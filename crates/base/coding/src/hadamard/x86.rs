//! The kernels for x86-64.
//!
//! The first butterflies, within vectors and between as many vectors as fit into registers, are done while the block
//! is loaded; the others in passes of several distances over the first-level cache, the last of which stores.
//! The sums are those of the portable kernel, in its order: only loads and stores differ.

#![allow(unsafe_code)]
// Loops over indices that the compiler unrolls into registers.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use super::element::{ElementKind, HadamardElement};
use super::kernel::Job;
use super::x86_memory::{prefetch, prefetch_for_writing};

pub(super) const LANES_AVX512: usize = 16;
pub(super) const LANES_AVX2: usize = 8;
/// Nearest, ties to even, without exceptions.
const ROUND: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

pub(super) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") && has_avx2()
}

pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// Checks, once for each block, everything that loads and stores rely on.
fn check<T, E>(job: &Job<'_>, from: &[T], to: &[E], scratch: &[f32], lanes: usize, is_available: bool) {
    assert!(is_available, "a kernel for another processor");
    assert!(from.len().is_power_of_two() && from.len() >= lanes, "whole vectors");
    assert!(to.len() == from.len() && scratch.len() == from.len(), "source, target and scratch of one length");
    assert!(job.signs.len() * 64 >= from.len(), "a sign for each element");
}

/// As [`super::kernel::HadamardKernel::transform`] does, of at least [`LANES_AVX512`] elements.
pub(super) fn transform_avx512<T: HadamardElement, E: HadamardElement>(
    job: Job<'_>,
    from: &[T],
    to: &mut [E],
    scratch: &mut [f32],
) {
    check(&job, from, to, scratch, LANES_AVX512, has_avx512());
    // SAFETY: `check` has passed: the processor has the features, and all slices have the same, suitable length.
    unsafe { block_avx512(job, from, to, scratch) }
}

/// As [`super::kernel::HadamardKernel::transform`] does, of at least [`LANES_AVX2`] elements.
pub(super) fn transform_avx2<T: HadamardElement, E: HadamardElement>(
    job: Job<'_>,
    from: &[T],
    to: &mut [E],
    scratch: &mut [f32],
) {
    check(&job, from, to, scratch, LANES_AVX2, has_avx2());
    // SAFETY: `check` has passed: the processor has the features, and all slices have the same, suitable length.
    unsafe { block_avx2(job, from, to, scratch) }
}

/// # Safety
///
/// [`check`] has passed.
#[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
unsafe fn block_avx512<T: HadamardElement, E: HadamardElement>(
    job: Job<'_>,
    from: &[T],
    to: &mut [E],
    scratch: &mut [f32],
) {
    // SAFETY: as the caller promises.
    unsafe {
        match job.signs_first {
            true => block::<__m512, T, E, true>(job, from, to, scratch),
            false => block::<__m512, T, E, false>(job, from, to, scratch),
        }
    }
}

/// # Safety
///
/// [`check`] has passed.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block_avx2<T: HadamardElement, E: HadamardElement>(
    job: Job<'_>,
    from: &[T],
    to: &mut [E],
    scratch: &mut [f32],
) {
    // SAFETY: as the caller promises.
    unsafe {
        match job.signs_first {
            true => block::<__m256, T, E, true>(job, from, to, scratch),
            false => block::<__m256, T, E, false>(job, from, to, scratch),
        }
    }
}

/// # Safety
///
/// [`check`] has passed, and this is part of a function with the features of `V`.
#[inline(always)]
unsafe fn block<V: Vector, T: HadamardElement, E: HadamardElement, const SIGNS_FIRST: bool>(
    job: Job<'_>,
    from: &[T],
    to: &mut [E],
    scratch: &mut [f32],
) {
    let elements = from.len();
    let (from, to, scratch) = (from.as_ptr(), to.as_mut_ptr(), scratch.as_mut_ptr());
    let vectors = (elements / V::LANES).min(V::FIRST_VECTORS);
    // SAFETY: each pass goes over `elements` elements, which all slices have, and every one is a multiple of what a
    // step of the pass takes, as all are powers of two.
    unsafe {
        match vectors {
            1 => first_pass::<V, T, E, 1, SIGNS_FIRST>(job, from, to, scratch, elements),
            2 => first_pass::<V, T, E, 2, SIGNS_FIRST>(job, from, to, scratch, elements),
            4 => first_pass::<V, T, E, 4, SIGNS_FIRST>(job, from, to, scratch, elements),
            8 => first_pass::<V, T, E, 8, SIGNS_FIRST>(job, from, to, scratch, elements),
            _ => first_pass::<V, T, E, 16, SIGNS_FIRST>(job, from, to, scratch, elements),
        }
        let mut distance = vectors * V::LANES;
        while distance < elements {
            let stages = (elements / distance).ilog2();
            let stages = stages.div_ceil(stages.div_ceil(V::PASS_STAGES));
            match stages {
                1 => pass::<V, T, E, 2, SIGNS_FIRST>(job, to, scratch, elements, distance),
                2 => pass::<V, T, E, 4, SIGNS_FIRST>(job, to, scratch, elements, distance),
                3 => pass::<V, T, E, 8, SIGNS_FIRST>(job, to, scratch, elements, distance),
                _ => pass::<V, T, E, 16, SIGNS_FIRST>(job, to, scratch, elements, distance),
            }
            distance <<= stages;
        }
    }
}

/// Loads, and does the butterflies of distances up to half of `VECTORS` vectors.
///
/// # Safety
///
/// There are `elements` elements at each pointer and signs for all of them, and they are a multiple of `VECTORS`
/// vectors; this is part of a function with the features of `V`.
#[inline(always)]
unsafe fn first_pass<
    V: Vector,
    T: HadamardElement,
    E: HadamardElement,
    const VECTORS: usize,
    const SIGNS_FIRST: bool,
>(
    job: Job<'_>,
    from: *const T,
    to: *mut E,
    scratch: *mut f32,
    elements: usize,
) {
    // SAFETY: `at + vector · LANES` with a vector's length is at most `elements`.
    unsafe {
        let scale = V::splat(job.scale);
        let constants = V::lane_constants();
        for at in (0..elements).step_by(VECTORS * V::LANES) {
            let mut values = [scale; VECTORS];
            for vector in 0..VECTORS {
                let at = at + vector * V::LANES;
                prefetch(from.wrapping_add(elements + at));
                let mut value = load::<V, T>(from.add(at)).multiply(scale);
                if SIGNS_FIRST {
                    value = value.negate(signs(job, at));
                }
                values[vector] = value.butterfly_lanes(&constants);
            }
            butterflies(&mut values);
            for vector in 0..VECTORS {
                let at = at + vector * V::LANES;
                match VECTORS * V::LANES == elements {
                    true => finish::<V, T, E, SIGNS_FIRST>(job, to, at, values[vector]),
                    false => values[vector].store(scratch.add(at)),
                }
            }
        }
    }
}

/// Does the butterflies of `distance` and of twice, four times … as much, as many as `VECTORS` vectors hold.
///
/// # Safety
///
/// There are `elements` elements at each pointer and signs for all of them, and they are a multiple of `VECTORS` times
/// the distance, which is a multiple of a vector; this is part of a function with the features of `V`.
#[inline(always)]
unsafe fn pass<V: Vector, T: HadamardElement, E: HadamardElement, const VECTORS: usize, const SIGNS_FIRST: bool>(
    job: Job<'_>,
    to: *mut E,
    scratch: *mut f32,
    elements: usize,
    distance: usize,
) {
    let is_last = distance * VECTORS == elements;
    for part in (0..elements).step_by(distance * VECTORS) {
        for at in (part..part + distance).step_by(V::LANES) {
            // SAFETY: `at + vector · distance` with a vector's length is at most `elements`.
            unsafe {
                let mut values = [V::splat(0.0); VECTORS];
                for vector in 0..VECTORS {
                    values[vector] = V::load(scratch.add(at + vector * distance));
                }
                butterflies(&mut values);
                for vector in 0..VECTORS {
                    let at = at + vector * distance;
                    if is_last {
                        prefetch_for_writing(to.wrapping_add(elements + at));
                    }
                    match is_last {
                        true => finish::<V, T, E, SIGNS_FIRST>(job, to, at, values[vector]),
                        false => values[vector].store(scratch.add(at)),
                    }
                }
            }
        }
    }
}

/// Butterflies between vectors.
///
/// # Safety
///
/// This is part of a function with the features of `V`.
#[inline(always)]
unsafe fn butterflies<V: Vector, const VECTORS: usize>(values: &mut [V; VECTORS]) {
    let mut distance = 1;
    while distance < VECTORS {
        for low in 0..VECTORS {
            if low & distance == 0 {
                let (a, b) = (values[low], values[low + distance]);
                // SAFETY: as the caller promises.
                (values[low], values[low + distance]) = unsafe { (a.add(b), a.subtract(b)) };
            }
        }
        distance *= 2;
    }
}

/// The signs of the elements from `at` on, the lowest bit first, at least up to a multiple of 64.
///
/// # Safety
///
/// The element has signs.
#[inline(always)]
unsafe fn signs(job: Job<'_>, at: usize) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { *job.signs.get_unchecked(at / 64) >> (at % 64) }
}

/// Stores what has been through all butterflies.
///
/// # Safety
///
/// A vector of elements at `to + at` may be written and has signs; this is part of a function with the features of `V`.
#[inline(always)]
unsafe fn finish<V: Vector, T: HadamardElement, E: HadamardElement, const SIGNS_FIRST: bool>(
    job: Job<'_>,
    to: *mut E,
    at: usize,
    value: V,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let value = if SIGNS_FIRST { value } else { value.negate(signs(job, at)) };
        let to = to.add(at);
        match E::KIND {
            ElementKind::F32 => value.store(to.cast()),
            // What is no number has come from the source, which had nothing in the lower half, or from an operation, which
            // puts nothing there.
            ElementKind::Bf16 if T::KIND == ElementKind::Bf16 => value.store_bf16::<false>(to.cast()),
            ElementKind::Bf16 => value.store_bf16::<true>(to.cast()),
            ElementKind::F16 => value.store_f16(to.cast()),
        }
    }
}

/// # Safety
///
/// A vector of elements at `from` may be read; this is part of a function with the features of `V`.
#[inline(always)]
unsafe fn load<V: Vector, T: HadamardElement>(from: *const T) -> V {
    // SAFETY: as the caller promises.
    unsafe {
        match T::KIND {
            ElementKind::F32 => V::load(from.cast()),
            ElementKind::Bf16 => V::load_bf16(from.cast()),
            ElementKind::F16 => V::load_f16(from.cast()),
        }
    }
}

/// A vector of f32. None of it needs alignment.
///
/// # Safety
///
/// Of all its functions: they are part of a function with the features of the vector; as many elements as there are
/// lanes may be read or written where a pointer points.
trait Vector: Copy {
    /// Elements of a vector.
    const LANES: usize;
    /// Vectors that the first pass keeps in registers, at most 16.
    const FIRST_VECTORS: usize;
    /// Distances of the other passes, at most 4.
    const PASS_STAGES: u32;
    /// For each distance within a vector: 1 in lanes that get a sum, -1 in those that get a difference.
    type LaneConstants: Copy;

    unsafe fn lane_constants() -> Self::LaneConstants;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn load_bf16(from: *const u16) -> Self;
    unsafe fn load_f16(from: *const u16) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// Without `ANY_NAN`, the lower half of what is no number is zero, and rounding leaves it what it is.
    unsafe fn store_bf16<const ANY_NAN: bool>(self, to: *mut u16);
    unsafe fn store_f16(self, to: *mut u16);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn subtract(self, other: Self) -> Self;
    unsafe fn multiply(self, other: Self) -> Self;
    /// Changes the sign of the lanes whose bits are set, the first lane's the lowest.
    unsafe fn negate(self, bits: u64) -> Self;
    /// All butterflies within the vector. A product with 1 or -1 is exact, so a fused multiply and add rounds as an
    /// addition or subtraction does.
    unsafe fn butterfly_lanes(self, constants: &Self::LaneConstants) -> Self;
}

/// Which 16 bits are the upper half of each lane.
///
/// # Safety
///
/// This is part of a function with AVX-512.
#[inline(always)]
unsafe fn upper_halves() -> __m512i {
    const INDICES: [u16; 32] = {
        let mut indices = [0; 32];
        let mut lane = 0;
        while lane < 16 {
            indices[lane] = 2 * lane as u16 + 1;
            lane += 1;
        }
        indices
    };
    // SAFETY: the array has 64 bytes; no alignment is needed.
    unsafe { _mm512_loadu_si512(INDICES.as_ptr().cast()) }
}

impl Vector for __m512 {
    const LANES: usize = LANES_AVX512;
    const FIRST_VECTORS: usize = 8;
    const PASS_STAGES: u32 = 3;
    type LaneConstants = [__m512; 4];

    #[inline(always)]
    unsafe fn lane_constants() -> [__m512; 4] {
        // SAFETY: as the trait says.
        unsafe {
            [0xaaaa_u16, 0xcccc, 0xf0f0, 0xff00]
                .map(|lanes| _mm512_mask_blend_ps(lanes, _mm512_set1_ps(1.0), _mm512_set1_ps(-1.0)))
        }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: as the trait says.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: as the trait says.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> __m512 {
        // SAFETY: as the trait says.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> __m512 {
        // SAFETY: as the trait says.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as the trait says.
        unsafe { _mm512_storeu_ps(to, self) }
    }
    #[inline(always)]
    unsafe fn store_bf16<const ANY_NAN: bool>(self, to: *mut u16) {
        // SAFETY: as the trait says.
        unsafe {
            let bits = _mm512_castps_si512(self);
            let cut = _mm512_srli_epi32::<16>(bits);
            let odd = _mm512_and_si512(cut, _mm512_set1_epi32(1));
            let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let mut rounded = _mm512_add_epi32(bits, half);
            if ANY_NAN {
                let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self, self);
                rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x40_0000));
            }
            let upper = _mm512_permutexvar_epi16(upper_halves(), rounded);
            _mm256_storeu_si256(to.cast(), _mm512_castsi512_si256(upper));
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        // SAFETY: as the trait says.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<ROUND>(self)) }
    }
    #[inline(always)]
    unsafe fn add(self, other: __m512) -> __m512 {
        // SAFETY: as the trait says.
        unsafe { _mm512_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn subtract(self, other: __m512) -> __m512 {
        // SAFETY: as the trait says.
        unsafe { _mm512_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn multiply(self, other: __m512) -> __m512 {
        // SAFETY: as the trait says.
        unsafe { _mm512_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn negate(self, bits: u64) -> __m512 {
        // SAFETY: as the trait says.
        unsafe {
            let value = _mm512_castps_si512(self);
            _mm512_castsi512_ps(_mm512_mask_xor_epi32(value, bits as u16, value, _mm512_set1_epi32(i32::MIN)))
        }
    }
    #[inline(always)]
    unsafe fn butterfly_lanes(self, constants: &[__m512; 4]) -> __m512 {
        // SAFETY: as the trait says.
        unsafe {
            let value = _mm512_fmadd_ps(self, constants[0], _mm512_permute_ps::<0b10_11_00_01>(self));
            let value = _mm512_fmadd_ps(value, constants[1], _mm512_permute_ps::<0b01_00_11_10>(value));
            let swapped = _mm512_shuffle_f32x4::<0b10_11_00_01>(value, value);
            let value = _mm512_fmadd_ps(value, constants[2], swapped);
            let swapped = _mm512_shuffle_f32x4::<0b01_00_11_10>(value, value);
            _mm512_fmadd_ps(value, constants[3], swapped)
        }
    }
}

impl Vector for __m256 {
    const LANES: usize = LANES_AVX2;
    const FIRST_VECTORS: usize = 8;
    const PASS_STAGES: u32 = 3;
    type LaneConstants = [__m256; 3];

    #[inline(always)]
    unsafe fn lane_constants() -> [__m256; 3] {
        // SAFETY: as the trait says.
        unsafe {
            [
                _mm256_setr_ps(1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0),
                _mm256_setr_ps(1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0),
                _mm256_setr_ps(1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0),
            ]
        }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        // SAFETY: as the trait says.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        // SAFETY: as the trait says.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> __m256 {
        // SAFETY: as the trait says.
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> __m256 {
        // SAFETY: as the trait says.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as the trait says.
        unsafe { _mm256_storeu_ps(to, self) }
    }
    #[inline(always)]
    unsafe fn store_bf16<const ANY_NAN: bool>(self, to: *mut u16) {
        // SAFETY: as the trait says.
        unsafe {
            let bits = _mm256_castps_si256(self);
            let cut = _mm256_srli_epi32::<16>(bits);
            let odd = _mm256_and_si256(cut, _mm256_set1_epi32(1));
            let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let mut rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
            if ANY_NAN {
                let quiet = _mm256_or_si256(cut, _mm256_set1_epi32(0x40));
                let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(self, self));
                rounded = _mm256_blendv_epi8(rounded, quiet, is_nan);
            }
            // Each half of the vector packs its own four.
            let packed = _mm256_permute4x64_epi64::<0b00_00_10_00>(_mm256_packus_epi32(rounded, rounded));
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(packed));
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        // SAFETY: as the trait says.
        unsafe { _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self)) }
    }
    #[inline(always)]
    unsafe fn add(self, other: __m256) -> __m256 {
        // SAFETY: as the trait says.
        unsafe { _mm256_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn subtract(self, other: __m256) -> __m256 {
        // SAFETY: as the trait says.
        unsafe { _mm256_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn multiply(self, other: __m256) -> __m256 {
        // SAFETY: as the trait says.
        unsafe { _mm256_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn negate(self, bits: u64) -> __m256 {
        // SAFETY: as the trait says.
        unsafe {
            let bits = _mm256_set1_epi32(bits as i32);
            // Each lane's bit becomes its sign.
            let signs = _mm256_sllv_epi32(bits, _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24));
            let signs = _mm256_and_si256(signs, _mm256_set1_epi32(i32::MIN));
            _mm256_xor_ps(self, _mm256_castsi256_ps(signs))
        }
    }
    #[inline(always)]
    unsafe fn butterfly_lanes(self, constants: &[__m256; 3]) -> __m256 {
        // SAFETY: as the trait says.
        unsafe {
            let value = _mm256_fmadd_ps(self, constants[0], _mm256_permute_ps::<0b10_11_00_01>(self));
            let value = _mm256_fmadd_ps(value, constants[1], _mm256_permute_ps::<0b01_00_11_10>(value));
            let swapped = _mm256_permute2f128_ps::<0b0001>(value, value);
            _mm256_fmadd_ps(value, constants[2], swapped)
        }
    }
}
