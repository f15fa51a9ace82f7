//! The inner loop of the MDS code: a few sources, times their coefficients, added up in a few outputs.
//!
//! There are several forms of it, for what processors can do; all give the same bytes. `portable` is the definition,
//! and the others are tested against it.

#[cfg(target_arch = "x86_64")]
mod x86;

mod portable;

use std::fmt;

/// Most sources that a kernel takes at a time. Together with the outputs, their pieces fit into the first-level cache.
pub(crate) const SOURCES_MOST: usize = 8;
/// Bytes of each chunk that a kernel is given at a time: a page, the next one of which it asks for ahead of time.
pub(crate) const PIECE_BYTES: usize = 4096;
/// Most outputs that a kernel takes at a time: what fits into registers.
pub(crate) const OUTPUTS_MOST: usize = 8;

/// Coefficients of the sources of one call, `[source][output]`.
pub(crate) type Block = [[u8; OUTPUTS_MOST]; SOURCES_MOST];

/// Which form of the inner loop runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kernel {
    /// 64 bytes at a time, multiplied by matrices of bits.
    GfniAvx512,
    /// 32 bytes at a time, multiplied by matrices of bits.
    GfniAvx2,
    /// 32 bytes at a time, multiplied half byte by half byte with tables in registers.
    Avx2,
    /// Byte by byte, with a table: on any processor.
    Portable,
}

impl Kernel {
    /// All kernels, fastest first.
    pub const ALL: [Kernel; 4] = [Kernel::GfniAvx512, Kernel::GfniAvx2, Kernel::Avx2, Kernel::Portable];

    /// The fastest one that this processor has.
    pub fn fastest() -> Kernel {
        Kernel::ALL.into_iter().find(|kernel| kernel.is_available()).unwrap_or(Kernel::Portable)
    }

    /// Whether this processor has what the kernel needs.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        match self {
            Kernel::GfniAvx512 => x86::has_gfni_avx512(),
            Kernel::GfniAvx2 => x86::has_gfni_avx2(),
            Kernel::Avx2 => x86::has_avx2(),
            Kernel::Portable => true,
        }
        #[cfg(not(target_arch = "x86_64"))]
        matches!(self, Kernel::Portable)
    }

    /// `outputs[i] = Σ over j of coefficients[j][i] · sources[j]`, or with `add` that much added to what is there.
    ///
    /// # Panics
    ///
    /// When there are more sources or outputs than fit, when their lengths differ, or when the kernel is not available
    /// here.
    pub(crate) fn combine(self, coefficients: &Block, sources: &[&[u8]], outputs: &mut [&mut [u8]], add: bool) {
        let Some(bytes) = outputs.first().map(|output| output.len()) else {
            return;
        };
        assert!(sources.len() <= SOURCES_MOST && outputs.len() <= OUTPUTS_MOST, "more chunks than a kernel takes");
        assert!(sources.iter().all(|source| source.len() == bytes), "sources as long as the outputs");
        assert!(outputs.iter().all(|output| output.len() == bytes), "outputs of one length");
        assert!(self.is_available(), "{self} does not run on this processor");
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::GfniAvx512 | Kernel::GfniAvx2 | Kernel::Avx2 => {
                self.combine_in_steps(coefficients, sources, outputs, add)
            }
            _ => portable::combine(coefficients, sources, outputs, add),
        }
    }

    /// What is a whole number of steps goes where it lies; the rest is filled up with zeros in buffers here.
    #[cfg(target_arch = "x86_64")]
    fn combine_in_steps(self, coefficients: &Block, sources: &[&[u8]], outputs: &mut [&mut [u8]], add: bool) {
        let run = match self {
            Kernel::GfniAvx512 => x86::gfni_avx512,
            Kernel::GfniAvx2 => x86::gfni_avx2,
            _ => x86::avx2,
        };
        let bytes = outputs[0].len();
        let whole = bytes / x86::STEP_BYTES * x86::STEP_BYTES;
        if whole > 0 {
            run(coefficients, sources, outputs, whole, add);
        }
        let rest = bytes - whole;
        if rest == 0 {
            return;
        }
        let mut source_ends = [[0; x86::STEP_BYTES]; SOURCES_MOST];
        let mut output_ends = [[0; x86::STEP_BYTES]; OUTPUTS_MOST];
        for (end, source) in source_ends.iter_mut().zip(sources) {
            end[..rest].copy_from_slice(&source[whole..]);
        }
        for (end, output) in output_ends.iter_mut().zip(&*outputs) {
            end[..rest].copy_from_slice(&output[whole..]);
        }
        let ends = source_ends.each_ref().map(|end| &end[..]);
        let mut outs = output_ends.each_mut().map(|end| &mut end[..]);
        run(coefficients, &ends[..sources.len()], &mut outs[..outputs.len()], x86::STEP_BYTES, add);
        for (end, output) in output_ends.iter().zip(outputs) {
            output[whole..].copy_from_slice(&end[..rest]);
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kernel::GfniAvx512 => "gfni-avx512",
            Kernel::GfniAvx2 => "gfni-avx2",
            Kernel::Avx2 => "avx2",
            Kernel::Portable => "portable",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(count: usize, seed: u32) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 11) as u8
        };
        (0..count).map(next).collect()
    }

    /// Runs `kernel` in the middle of guarded buffers; what it made of the outputs.
    fn run(kernel: Kernel, shape: (usize, usize, usize), offset: usize, add: bool) -> Vec<Vec<u8>> {
        const GUARD: usize = 70;
        let (source_count, output_count, length) = shape;
        let mut coefficients = Block::default();
        let random = bytes(SOURCES_MOST * OUTPUTS_MOST, 7);
        coefficients.as_flattened_mut().copy_from_slice(&random);
        // 0 and 1 are coefficients as well.
        (coefficients[0][0], coefficients[source_count - 1][output_count - 1]) = (0, 1);
        let sources: Vec<Vec<u8>> =
            (0..source_count).map(|source| bytes(offset + length, 100 + source as u32)).collect();
        let mut buffers: Vec<Vec<u8>> =
            (0..output_count).map(|output| bytes(2 * GUARD + offset + length, 200 + output as u32)).collect();
        let before = buffers.clone();
        {
            let sources: Vec<&[u8]> = sources.iter().map(|source| &source[offset..]).collect();
            let mut outputs: Vec<&mut [u8]> = buffers.iter_mut().map(|b| &mut b[GUARD + offset..][..length]).collect();
            kernel.combine(&coefficients, &sources, &mut outputs, add);
        }
        for (buffer, before) in buffers.iter().zip(&before) {
            let (start, end) = (GUARD + offset, GUARD + offset + length);
            assert_eq!(buffer[..start], before[..start], "{kernel} wrote before the output");
            assert_eq!(buffer[end..], before[end..], "{kernel} wrote after the output");
        }
        buffers
    }

    fn check(shape: (usize, usize, usize), offset: usize) {
        for add in [false, true] {
            let expected = run(Kernel::Portable, shape, offset, add);
            for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.is_available()) {
                let got = run(kernel, shape, offset, add);
                assert!(got == expected, "{kernel} differs at {shape:?} offset {offset} add {add}");
            }
        }
    }

    #[test]
    fn every_kernel_gives_the_same_bytes() {
        eprintln!("this processor has {:?}", Kernel::ALL.map(|kernel| (kernel, kernel.is_available())));
        for length in (0..=300).chain([511, 512, 513, 4095, 4096, 4097]) {
            check((5, 3, length), 0);
        }
        for sources in 1..=SOURCES_MOST {
            for outputs in 1..=OUTPUTS_MOST {
                check((sources, outputs, 64 * 5 + 7), 1);
                check((sources, outputs, 256), 0);
            }
        }
        for offset in 0..=64 {
            check((3, 2, 200), offset);
        }
    }

    #[test]
    fn the_portable_kernel_does_what_the_field_says() {
        let mut coefficients = Block::default();
        (coefficients[0][0], coefficients[1][0]) = (3, 0x8e);
        let (first, second) = (bytes(256, 1), bytes(256, 2));
        let mut output = vec![0xaa; 256];
        Kernel::Portable.combine(&coefficients, &[&first, &second], &mut [&mut output], false);
        for at in 0..256 {
            use crate::field::multiply;
            assert_eq!(output[at], multiply(3, first[at]) ^ multiply(0x8e, second[at]));
        }
    }
}
