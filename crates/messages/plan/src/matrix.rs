//! Matrices of two rows and two columns, for chains of two states.

use std::ops::{Add, Mul, Sub};

/// Rows are where the chain comes from, columns are where it goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Matrix(pub(crate) [[f64; 2]; 2]);

impl Matrix {
    pub(crate) const IDENTITY: Matrix = Matrix([[1.0, 0.0], [0.0, 1.0]]);

    pub(crate) fn scaled(self, factor: f64) -> Matrix {
        Matrix(self.0.map(|row| row.map(|value| value * factor)))
    }

    /// By squaring, so that any number of equal chunks costs a few dozen multiplications.
    pub(crate) fn power(self, mut exponent: u64) -> Matrix {
        let (mut result, mut square) = (Matrix::IDENTITY, self);
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = result * square;
            }
            square = square * square;
            exponent >>= 1;
        }
        result
    }

    /// A row of probabilities, moved.
    pub(crate) fn apply(self, [good, bad]: [f64; 2]) -> [f64; 2] {
        let [[a, b], [c, d]] = self.0;
        [good * a + bad * c, good * b + bad * d]
    }
}

impl Mul for Matrix {
    type Output = Matrix;
    fn mul(self, other: Matrix) -> Matrix {
        Matrix(self.0.map(|row| other.apply(row)))
    }
}

impl Add for Matrix {
    type Output = Matrix;
    fn add(self, Matrix([[a, b], [c, d]]): Matrix) -> Matrix {
        let [[e, f], [g, h]] = self.0;
        Matrix([[e + a, f + b], [g + c, h + d]])
    }
}

impl Sub for Matrix {
    type Output = Matrix;
    fn sub(self, other: Matrix) -> Matrix {
        self + other.scaled(-1.0)
    }
}
