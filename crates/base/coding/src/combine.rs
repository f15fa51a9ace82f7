//! Walks over chunks in pieces that fit into the first-level cache.
//!
//! A few sources at a time: many streams at once, all at the same distance from each other as chunks of a message are,
//! would fall into the same cache lines and outdo the processor's prefetching.

use crate::kernel::{Block, Kernel, OUTPUTS_MOST, PIECE_BYTES, SOURCES_MOST};
use crate::matrix::Coefficients;

/// `outputs[i] = Σ over j of coefficient (i + first_output, j) · sources[j]`; what is shorter counts as filled up with
/// zeros.
pub(crate) fn combine(
    kernel: Kernel,
    coefficients: &Coefficients,
    first_output: usize,
    sources: &[&[u8]],
    outputs: &mut [&mut [u8]],
) {
    let bytes = outputs.iter().map(|output| output.len()).max().unwrap_or(0);
    let mut at = 0;
    while at < bytes {
        let end = piece_end(at, sources, outputs);
        let mut first = first_output;
        for outputs in outputs.chunks_mut(OUTPUTS_MOST) {
            combine_piece(kernel, coefficients, first, sources, outputs, at, end);
            first += outputs.len();
        }
        at = end;
    }
}

/// Where the piece that begins at `at` ends: each chunk covers all of it or nothing.
fn piece_end(at: usize, sources: &[&[u8]], outputs: &[&mut [u8]]) -> usize {
    let lengths = sources.iter().map(|source| source.len()).chain(outputs.iter().map(|output| output.len()));
    lengths.filter(|&length| length > at).fold(at + PIECE_BYTES, usize::min)
}

fn combine_piece(
    kernel: Kernel,
    coefficients: &Coefficients,
    first_output: usize,
    sources: &[&[u8]],
    outputs: &mut [&mut [u8]],
    at: usize,
    end: usize,
) {
    let mut factors = Block::default();
    let mut parts: [&[u8]; SOURCES_MOST] = [&[]; SOURCES_MOST];
    let mut output_indices = [0; OUTPUTS_MOST];
    let mut output_parts: [&mut [u8]; OUTPUTS_MOST] = Default::default();
    let mut output_count = 0;
    for (index, output) in outputs.iter_mut().enumerate().filter(|(_, output)| output.len() >= end) {
        output_indices[output_count] = first_output + index;
        output_parts[output_count] = &mut output[at..end];
        output_count += 1;
    }
    let outputs = &mut output_parts[..output_count];
    let mut add = false;
    let mut waiting = 0;
    for (index, source) in sources.iter().enumerate().filter(|(_, source)| source.len() >= end) {
        let column = coefficients.of_source(index);
        for (factor, &output) in factors[waiting].iter_mut().zip(&output_indices[..output_count]) {
            *factor = column[output];
        }
        parts[waiting] = &source[at..end];
        waiting += 1;
        if waiting == SOURCES_MOST {
            kernel.combine(&factors, &parts, outputs, add);
            (add, waiting) = (true, 0);
        }
    }
    // Also when there was no source at all: then the sum is zero.
    if waiting > 0 || !add {
        kernel.combine(&factors, &parts[..waiting], outputs, add);
    }
}

/// `output` is the XOR of all sources; what is shorter counts as filled up with zeros.
///
/// No SIMD of our own: the compiler's is faster than memory.
pub(crate) fn exclusive_or<'a>(sources: impl Iterator<Item = &'a [u8]> + Clone, output: &mut [u8]) {
    for (piece, output) in output.chunks_mut(PIECE_BYTES).enumerate() {
        let mut parts = sources.clone().map(|source| source.get(piece * PIECE_BYTES..).unwrap_or(&[]));
        let first = parts.next().unwrap_or(&[]);
        let common = first.len().min(output.len());
        output[..common].copy_from_slice(&first[..common]);
        output[common..].fill(0);
        for part in parts {
            output.iter_mut().zip(part).for_each(|(sum, &byte)| *sum ^= byte);
        }
    }
}
