//! The transform of one block: the inner loop, chosen at run time.
//!
//! What a block becomes is a fixed format, like parity: all ranks add up what others have encoded. So the order of the
//! additions is fixed: each element is multiplied by 1/√n (rounded to f32), then `(a, b)` becomes `(a + b, a - b)` at
//! distances 1, 2, 4, … n/2, in f32. `portable` is the definition; the other kernels give the same bytes, except which
//! of the many patterns that are no number (NaN) a NaN has.

use std::fmt;

use super::element::HadamardElement;

/// Which form of the inner loop runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HadamardKernel {
    /// 16 elements at a time.
    Avx512,
    /// 8 elements at a time.
    Avx2,
    /// One by one, or what the compiler makes of that: on any processor.
    Portable,
}

/// What is done to a block, apart from the butterflies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job<'a> {
    /// Signs come before the butterflies when encoding, after them when decoding.
    pub(super) signs_first: bool,
    /// A bit for each element, set if it is negated.
    pub(super) signs: &'a [u64],
    /// 1/√n.
    pub(super) scale: f32,
}

/// 1/√n, rounded to f32.
pub(super) fn scale(elements: usize) -> f32 {
    let power = elements.trailing_zeros();
    let even = 1.0 / (1_u64 << (power / 2)) as f32;
    if power.is_multiple_of(2) { even } else { even * std::f32::consts::FRAC_1_SQRT_2 }
}

impl HadamardKernel {
    /// All kernels, fastest first.
    pub const ALL: [HadamardKernel; 3] = [HadamardKernel::Avx512, HadamardKernel::Avx2, HadamardKernel::Portable];

    /// The fastest one that this processor has.
    pub fn fastest() -> HadamardKernel {
        let mut all = HadamardKernel::ALL.into_iter();
        all.find(|kernel| kernel.is_available()).unwrap_or(HadamardKernel::Portable)
    }

    /// Whether this processor has what the kernel needs.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        match self {
            HadamardKernel::Avx512 => super::x86::has_avx512(),
            HadamardKernel::Avx2 => super::x86::has_avx2(),
            HadamardKernel::Portable => true,
        }
        #[cfg(not(target_arch = "x86_64"))]
        matches!(self, HadamardKernel::Portable)
    }

    /// Transforms one block. `scratch` is as long as the block.
    ///
    /// # Panics
    ///
    /// When lengths differ or are no power of two, when there are fewer signs than elements, or when the kernel is not
    /// available here.
    pub(super) fn transform<T: HadamardElement, E: HadamardElement>(
        self,
        job: Job<'_>,
        from: &[T],
        to: &mut [E],
        scratch: &mut [f32],
    ) {
        let elements = from.len();
        assert!(elements.is_power_of_two(), "a block is a power of two");
        assert!(to.len() == elements && scratch.len() == elements, "source, target and scratch of one length");
        assert!(job.signs.len() * 64 >= elements, "a sign for each element");
        match self {
            #[cfg(target_arch = "x86_64")]
            HadamardKernel::Avx512 if elements >= super::x86::LANES_AVX512 => {
                super::x86::transform_avx512(job, from, to, scratch)
            }
            #[cfg(target_arch = "x86_64")]
            HadamardKernel::Avx2 if elements >= super::x86::LANES_AVX2 => {
                super::x86::transform_avx2(job, from, to, scratch)
            }
            _ => portable(job, from, to, scratch),
        }
    }
}

fn signed(job: &Job<'_>, index: usize, value: f32) -> f32 {
    if job.signs[index / 64] >> (index % 64) & 1 == 1 { -value } else { value }
}

fn portable<T: HadamardElement, E: HadamardElement>(job: Job<'_>, from: &[T], to: &mut [E], scratch: &mut [f32]) {
    for (index, (value, from)) in scratch.iter_mut().zip(from).enumerate() {
        let scaled = from.to_f32() * job.scale;
        *value = if job.signs_first { signed(&job, index, scaled) } else { scaled };
    }
    let mut distance = 1;
    while distance < scratch.len() {
        for pair in scratch.chunks_exact_mut(2 * distance) {
            let (low, high) = pair.split_at_mut(distance);
            for (low, high) in low.iter_mut().zip(high) {
                (*low, *high) = (*low + *high, *low - *high);
            }
        }
        distance *= 2;
    }
    for (index, (to, value)) in to.iter_mut().zip(&*scratch).enumerate() {
        *to = E::from_f32(if job.signs_first { *value } else { signed(&job, index, *value) });
    }
}

impl fmt::Display for HadamardKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HadamardKernel::Avx512 => "avx512",
            HadamardKernel::Avx2 => "avx2",
            HadamardKernel::Portable => "portable",
        })
    }
}
