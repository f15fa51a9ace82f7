//! Moves a tile of blocks to its packets, a few columns at a time.

use super::element::HadamardElement;
use super::interleave::{Along, Pieces, Place, interleave};
use super::kernel::HadamardKernel;
use super::streaming::Streaming;

/// Columns that are moved at once are lines of the cache in the tile.
const LINE_BYTES: usize = 64;

/// A tile that has been transformed. It is moved while the next one is transformed: memory then takes what is written
/// while the processor computes, where moving a tile at once would wait for memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moving {
    pieces: Pieces,
    from_row: usize,
    to: Place,
    /// Columns that have been moved.
    moved: usize,
}

impl Moving {
    /// Nothing of it has been moved.
    pub(super) fn new(pieces: Pieces, from_row: usize, to: Place) -> Moving {
        Moving { pieces, from_row, to, moved: 0 }
    }

    /// Moves columns until about `part` of `parts` have been moved, and all with the last part.
    pub(super) fn advance<E: HadamardElement>(
        &mut self,
        tile: &[E],
        encoded: &mut [E],
        (part, parts): (usize, usize),
        streaming: Streaming,
        kernel: HadamardKernel,
    ) {
        let Pieces { rows, columns, elements } = self.pieces;
        // Columns and steps are powers of two.
        let step = (LINE_BYTES / size_of::<E>() / elements).clamp(1, columns);
        let end = columns * part / parts / step * step;
        if end <= self.moved {
            return;
        }
        let from = Place { first: self.moved * elements, row: self.from_row };
        let to = Place { first: self.to.first + self.moved * self.to.row, row: self.to.row };
        let pieces = Pieces { rows, columns: end - self.moved, elements };
        interleave(tile, from, encoded, to, pieces, Along::Target(streaming), kernel);
        self.moved = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_is_moved_once_whatever_the_parts() {
        for (rows, columns, elements) in [(32, 64, 1), (4, 8, 1), (2, 2, 1), (8, 64, 4), (4, 4, 64)] {
            let pieces = Pieces { rows, columns, elements };
            let from_row = columns * elements + 3;
            let tile: Vec<f32> = (1..=rows * from_row).map(|at| at as f32).collect();
            let mut expected = vec![0.0; columns * rows * elements];
            for (at, expected) in expected.iter_mut().enumerate() {
                let (column, row, element) = (at / elements / rows, at / elements % rows, at % elements);
                *expected = tile[row * from_row + column * elements + element];
            }
            for parts in [1, 2, 3, 32, 100] {
                for kernel in HadamardKernel::ALL.into_iter().filter(|kernel| kernel.is_available()) {
                    let mut encoded = vec![0.0; expected.len()];
                    let streaming = Streaming::for_target(&encoded, 1);
                    let mut moving = Moving::new(pieces, from_row, Place { first: 0, row: rows * elements });
                    for part in 1..=parts {
                        moving.advance(&tile, &mut encoded, (part, parts), streaming, kernel);
                        // What has been moved once is not moved again.
                        let moved = moving.moved * rows * elements;
                        assert!(encoded[..moved] == expected[..moved] && encoded[moved..].iter().all(|at| *at == 0.0));
                    }
                    assert!(encoded == expected, "{pieces:?} in {parts} parts, {kernel}");
                }
            }
        }
    }
}
