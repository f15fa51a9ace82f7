//! The coefficients: of data chunks in parity chunks, and of what has arrived in what was lost.

use crate::field::{invert, multiply};

/// The coefficient of data chunk `data` in parity chunk `parity` of the MDS code. Part of the wire format.
///
/// A Cauchy matrix, 1 / (x + y), with x = 255 − parity and y = data: all x and y are different as long as there are no
/// more than 256 of them together, and then every square part of it can be inverted.
pub(crate) fn parity_coefficient(parity: usize, data: usize) -> u8 {
    invert((255 - parity) as u8 ^ data as u8)
}

/// Coefficients of outputs in terms of sources, source by source: those of one source stand side by side, because the
/// inner loop takes a few sources at a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Coefficients {
    values: Vec<u8>,
    outputs: usize,
}

impl Coefficients {
    /// Of the parity chunks of a code in its data chunks.
    pub(crate) fn of_parity(data_chunks: usize, parity_chunks: usize) -> Coefficients {
        let mut coefficients = Coefficients::default();
        coefficients.reset(parity_chunks, data_chunks);
        for data in 0..data_chunks {
            for parity in 0..parity_chunks {
                *coefficients.at(parity, data) = parity_coefficient(parity, data);
            }
        }
        coefficients
    }

    fn reset(&mut self, outputs: usize, sources: usize) {
        self.values.clear();
        self.values.resize(outputs * sources, 0);
        self.outputs = outputs;
    }

    fn at(&mut self, output: usize, source: usize) -> &mut u8 {
        &mut self.values[source * self.outputs + output]
    }

    /// Those of one source, output by output.
    pub(crate) fn of_source(&self, source: usize) -> &[u8] {
        &self.values[source * self.outputs..][..self.outputs]
    }
}

/// Works out how lost data chunks follow from what has arrived. Kept, so that decoding allocates nothing after a while.
#[derive(Debug, Clone, Default)]
pub(crate) struct Solver {
    /// Of the lost chunks: in the data chunks that have arrived, then in the parity chunks that are used.
    pub(crate) coefficients: Coefficients,
    /// The equations' left side and what becomes of the right one, row by row: when the left half has been turned into
    /// the identity, the right half is its inverse.
    rows: Vec<u8>,
}

impl Solver {
    /// Fills `coefficients`. `lost` and `arrived` are data chunks, `parity` are as many parity chunks as are lost.
    ///
    /// Each parity chunk is an equation: Σ over lost of a·d = p + Σ over arrived of a·d. The left side is a square part
    /// of the Cauchy matrix; its inverse, times the right side, gives the lost chunks.
    pub(crate) fn solve(&mut self, lost: &[u8], arrived: &[u8], parity: &[u8]) {
        assert_eq!(lost.len(), parity.len(), "one equation for each lost chunk");
        self.invert_square(lost, parity);
        let (count, width) = (lost.len(), 2 * lost.len());
        self.coefficients.reset(count, arrived.len() + count);
        for output in 0..count {
            let inverse = &self.rows[output * width + count..][..count];
            for (source, &data) in arrived.iter().enumerate() {
                let terms = inverse.iter().zip(parity);
                let sum = terms.fold(0, |sum, (&factor, &parity)| {
                    sum ^ multiply(factor, parity_coefficient(usize::from(parity), usize::from(data)))
                });
                *self.coefficients.at(output, source) = sum;
            }
            for (equation, &factor) in inverse.iter().enumerate() {
                *self.coefficients.at(output, arrived.len() + equation) = factor;
            }
        }
    }

    /// Gauss and Jordan's elimination.
    fn invert_square(&mut self, columns: &[u8], equations: &[u8]) {
        let count = columns.len();
        let width = 2 * count;
        self.rows.clear();
        self.rows.resize(count * width, 0);
        for (row, &parity) in equations.iter().enumerate() {
            for (column, &data) in columns.iter().enumerate() {
                self.rows[row * width + column] = parity_coefficient(usize::from(parity), usize::from(data));
            }
            self.rows[row * width + count + row] = 1;
        }
        for pivot in 0..count {
            // Every leading square part of a Cauchy matrix can be inverted, so no pivot is 0 and no rows are exchanged.
            let factor = invert(self.rows[pivot * width + pivot]);
            self.rows[pivot * width..][..width].iter_mut().for_each(|value| *value = multiply(*value, factor));
            for row in (0..count).filter(|&row| row != pivot) {
                let factor = self.rows[row * width + pivot];
                let (low, high) = self.rows.split_at_mut(pivot.max(row) * width);
                let (pivot_row, row) = match row < pivot {
                    true => (&high[..width], &mut low[row * width..][..width]),
                    false => (&low[pivot * width..][..width], &mut high[..width]),
                };
                row.iter_mut().zip(pivot_row).for_each(|(value, &pivot)| *value ^= multiply(factor, pivot));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What decoding needs of the matrix, where it is largest and at random: the product with the inverse is the
    /// identity.
    fn check_inverse(solver: &mut Solver, columns: &[u8], equations: &[u8]) {
        let count = columns.len();
        solver.invert_square(columns, equations);
        for (row, &parity) in equations.iter().enumerate() {
            for column in 0..count {
                let terms = columns.iter().enumerate().map(|(middle, &data)| {
                    let inverse = solver.rows[middle * 2 * count + count + column];
                    multiply(parity_coefficient(usize::from(parity), usize::from(data)), inverse)
                });
                assert_eq!(terms.fold(0, |sum, term| sum ^ term), u8::from(row == column), "{columns:?} {equations:?}");
            }
        }
    }

    #[test]
    fn square_parts_of_every_code_can_be_inverted() {
        let mut solver = Solver::default();
        let mut random = 1_u32;
        let mut next = |below: usize| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) as usize % below
        };
        for data_chunks in 1..crate::CHUNKS_MAX {
            let parity_chunks = crate::CHUNKS_MAX - data_chunks;
            let most = data_chunks.min(parity_chunks).min(24);
            let size = 1 + next(most);
            let mut choose = |of: usize| {
                let mut all: Vec<u8> = (0..of as u8).collect();
                (0..size).map(|_| all.swap_remove(next(all.len()))).collect::<Vec<u8>>()
            };
            let (columns, equations) = (choose(data_chunks), choose(parity_chunks));
            check_inverse(&mut solver, &columns, &equations);
        }
        // The largest square there is.
        let all: Vec<u8> = (0..127).collect();
        check_inverse(&mut solver, &all, &all);
    }

    #[test]
    fn the_coefficients_are_those_of_the_wire_format() {
        // 1 / (255 + 0), 1 / (255 + 1), 1 / (254 + 0), 1 / (254 + 1).
        let first_four = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(parity, data)| parity_coefficient(parity, data));
        assert_eq!(first_four[0], first_four[3]);
        assert_eq!(first_four[1], first_four[2]);
        assert_eq!(multiply(first_four[0], 0xff), 1);
        assert_eq!(multiply(first_four[1], 0xfe), 1);
        assert_eq!(first_four, [0xfd, 0x7e, 0x7e, 0xfd]);
    }
}
