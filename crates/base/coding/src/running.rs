//! Parity that is updated as chunks pass, without keeping them.
//!
//! Each parity chunk is a sum, so chunks can be added one at a time, in any order, at either end. The sender's sums are
//! the parity. The receiver adds what has arrived to its own sums, and the parity that has arrived on top: what is left
//! in them are the lost chunks alone, as many equations as sums.

use crate::CodeKind;
use crate::combine::combine;
use crate::kernel::{Block, Kernel, OUTPUTS_MOST};
use crate::matrix::{Solver, parity_coefficient};

/// Adds chunks to running sums, and takes lost chunks out of them. Knows no block: any code, any length.
#[derive(Debug, Clone)]
pub struct RunningCoder {
    kernel: Kernel,
    solver: Solver,
}

impl Default for RunningCoder {
    fn default() -> RunningCoder {
        RunningCoder::new()
    }
}

impl RunningCoder {
    /// With the fastest kernel of this processor.
    pub fn new() -> RunningCoder {
        RunningCoder { kernel: Kernel::fastest(), solver: Solver::default() }
    }

    /// Adds data chunk `chunk` to the MDS sums from `first` on. What a chunk adds does not depend on how many there are.
    ///
    /// # Panics
    ///
    /// When a sum is shorter than the chunk, or `chunk` and the sums are more than the field has.
    pub fn add_mds(&self, chunk: usize, data: &[u8], first: usize, sums: &mut [&mut [u8]]) {
        assert!(chunk + first + sums.len() <= crate::CHUNKS_MAX, "more chunks than the field has");
        let mut first = first;
        for sums in sums.chunks_mut(OUTPUTS_MOST) {
            let mut factors = Block::default();
            let mut outputs: [&mut [u8]; OUTPUTS_MOST] = Default::default();
            let count = sums.len();
            for (index, sum) in sums.iter_mut().enumerate() {
                factors[0][index] = parity_coefficient(first + index, chunk);
                outputs[index] = &mut sum[..data.len()];
            }
            self.kernel.combine(&factors, &[data], &mut outputs[..count], true);
            first += count;
        }
    }

    /// Adds a chunk to a sum as it is: to the XOR sum of its group, or parity to a sum of either code.
    ///
    /// # Panics
    ///
    /// When the sum is shorter than the chunk.
    pub fn add_plain(&self, data: &[u8], sum: &mut [u8]) {
        let sum = &mut sum[..data.len()];
        sum.iter_mut().zip(data).for_each(|(sum, &byte)| *sum ^= byte);
    }

    /// Computes the lost data chunks from MDS sums in which only they are left. `rows` says which parity chunks the sums
    /// are; there is one for each lost chunk.
    ///
    /// # Panics
    ///
    /// When there are not as many rows, sums and outputs as lost chunks, when chunks and rows are not different numbers
    /// below 255 together, or when the lengths of sums and outputs differ.
    pub fn solve_mds(&mut self, lost: &[u8], rows: &[u8], sums: &[&[u8]], lost_chunks: &mut [&mut [u8]]) {
        assert!(lost.len() == sums.len() && lost.len() == lost_chunks.len(), "one sum for each lost chunk");
        self.solver.solve(lost, &[], rows);
        combine(self.kernel, &self.solver.coefficients, 0, sums, lost_chunks);
    }
}

/// The sum that a chunk is added to with the XOR code; with MDS it is added to all of them.
#[inline]
pub const fn xor_group(chunk: usize, parity_chunks: usize) -> usize {
    chunk % parity_chunks
}

/// Whether the lost chunks can be computed: `lost` of the first `data_chunks`, with the parity chunks in `parity` of
/// `parity_chunks`.
pub fn can_restore(
    kind: CodeKind,
    parity_chunks: usize,
    lost: impl Iterator<Item = usize> + Clone,
    has_parity: impl Fn(usize) -> bool,
) -> bool {
    match kind {
        CodeKind::Mds => lost.count() <= (0..parity_chunks).filter(|&row| has_parity(row)).count(),
        CodeKind::Xor => {
            let group = |chunk| xor_group(chunk, parity_chunks);
            let is_alone = |chunk| lost.clone().filter(|&other| group(other) == group(chunk)).count() == 1;
            lost.clone().all(|chunk| has_parity(group(chunk)) && is_alone(chunk))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Code, Coder};

    fn chunks(count: usize, length: usize) -> Vec<Vec<u8>> {
        (0..count).map(|chunk| (0..length - chunk % 3).map(|at| (chunk * 31 + at * 7 + 5) as u8).collect()).collect()
    }

    #[test]
    fn running_sums_are_the_parity_of_the_wire_format() {
        for (data_chunks, parity_chunks) in [(1, 1), (5, 2), (32, 8), (20, 11)] {
            let data = chunks(data_chunks, 100);
            let refs: Vec<&[u8]> = data.iter().map(|chunk| &chunk[..]).collect();
            for kind in [CodeKind::Mds, CodeKind::Xor] {
                let mut parity = vec![vec![0; 100]; parity_chunks];
                let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(|chunk| &mut chunk[..]).collect();
                let coder = Coder::new(Code::new(kind, data_chunks, parity_chunks).unwrap());
                coder.encode(&refs, &mut outputs).unwrap();
                let mut sums = vec![vec![0; 100]; parity_chunks];
                let running = RunningCoder::new();
                for (chunk, bytes) in data.iter().enumerate().rev() {
                    let mut sums: Vec<&mut [u8]> = sums.iter_mut().map(|sum| &mut sum[..]).collect();
                    match kind {
                        CodeKind::Mds => running.add_mds(chunk, bytes, 0, &mut sums),
                        CodeKind::Xor => running.add_plain(bytes, sums[xor_group(chunk, parity_chunks)]),
                    }
                }
                assert_eq!(sums, parity, "{kind}:{data_chunks},{parity_chunks}");
            }
        }
    }

    #[test]
    fn lost_chunks_come_out_of_the_sums() {
        let (data_chunks, parity_chunks) = (20, 6);
        let data = chunks(data_chunks, 200);
        let lost = [3_u8, 0, 19, 7];
        let rows = [5_u8, 1, 0, 4];
        let mut running = RunningCoder::new();
        let sums_of = |include: &dyn Fn(usize) -> bool| {
            let mut sums = vec![vec![0; 200]; parity_chunks];
            for (chunk, bytes) in data.iter().enumerate().filter(|(chunk, _)| include(*chunk)) {
                let mut sums: Vec<&mut [u8]> = sums.iter_mut().map(|sum| &mut sum[..]).collect();
                running.add_mds(chunk, bytes, 0, &mut sums);
            }
            sums
        };
        let parity = sums_of(&|_| true);
        let mut sums = sums_of(&|chunk| !lost.contains(&(chunk as u8)));
        for (sum, parity) in sums.iter_mut().zip(&parity) {
            RunningCoder::new().add_plain(parity, sum);
        }
        let used: Vec<&[u8]> = rows.iter().map(|&row| &sums[usize::from(row)][..]).collect();
        let mut restored = vec![vec![0; 200]; lost.len()];
        let mut outputs: Vec<&mut [u8]> = restored.iter_mut().map(|chunk| &mut chunk[..]).collect();
        running.solve_mds(&lost, &rows, &used, &mut outputs);
        for (chunk, restored) in lost.iter().zip(&restored) {
            let (expected, zeros) = (&data[usize::from(*chunk)], &restored[data[usize::from(*chunk)].len()..]);
            assert_eq!(&restored[..expected.len()], &expected[..]);
            assert!(zeros.iter().all(|&byte| byte == 0), "filled up with zeros");
        }
    }

    #[test]
    fn what_can_be_restored_is_what_the_codes_promise() {
        let all = |_| true;
        assert!(can_restore(CodeKind::Mds, 2, [1, 5].into_iter(), all));
        assert!(!can_restore(CodeKind::Mds, 2, [1, 5, 6].into_iter(), all));
        assert!(!can_restore(CodeKind::Mds, 2, [1, 5].into_iter(), |row| row == 1));
        assert!(can_restore(CodeKind::Xor, 2, [2, 5].into_iter(), all));
        assert!(!can_restore(CodeKind::Xor, 2, [3, 5].into_iter(), all));
        assert!(!can_restore(CodeKind::Xor, 2, [2].into_iter(), |row| row == 1));
        assert!(can_restore(CodeKind::Xor, 2, std::iter::empty(), |_| false));
    }
}
