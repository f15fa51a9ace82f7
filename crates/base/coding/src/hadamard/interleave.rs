//! Moves pieces of rows into columns: from blocks to packets, and back.

/// Where pieces come from, or where they go: the first one, and how far apart rows are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// The first element.
    pub(super) first: usize,
    /// Elements from one row to the next.
    pub(super) row: usize,
}

/// How many pieces, and how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pieces {
    /// Rows of the source, columns of the target.
    pub(super) rows: usize,
    /// Columns of the source, rows of the target.
    pub(super) columns: usize,
    /// Elements of a piece.
    pub(super) elements: usize,
}

/// Piece `(row, column)` of the source becomes piece `(column, row)` of the target.
pub(super) fn interleave<E: Copy>(source: &[E], from: Place, target: &mut [E], to: Place, pieces: Pieces) {
    let Pieces { rows, columns, elements } = pieces;
    match elements {
        // Small pieces in tiles, which the compiler turns into shuffles of vectors.
        1 if size_of::<E>() == 2 && rows.is_multiple_of(8) && columns.is_multiple_of(8) => {
            tiles::<E, 8>(source, from, target, to, rows, columns)
        }
        1 if rows.is_multiple_of(4) && columns.is_multiple_of(4) => {
            tiles::<E, 4>(source, from, target, to, rows, columns)
        }
        1 => sized::<E, 1>(source, from, target, to, pieces),
        2 => sized::<E, 2>(source, from, target, to, pieces),
        4 => sized::<E, 4>(source, from, target, to, pieces),
        8 => sized::<E, 8>(source, from, target, to, pieces),
        16 => sized::<E, 16>(source, from, target, to, pieces),
        32 => sized::<E, 32>(source, from, target, to, pieces),
        _ => {
            for column in 0..columns {
                for row in 0..rows {
                    let source = &source[from.first + row * from.row + column * elements..][..elements];
                    target[to.first + column * to.row + row * elements..][..elements].copy_from_slice(source);
                }
            }
        }
    }
}

/// Pieces of a length that the compiler knows. Of two short sides, the target's is walked along: writes to one place
/// after the other combine, reads are found in the cache.
fn sized<E: Copy, const ELEMENTS: usize>(source: &[E], from: Place, target: &mut [E], to: Place, pieces: Pieces) {
    for column in 0..pieces.columns {
        let target = &mut target[to.first + column * to.row..][..pieces.rows * ELEMENTS];
        let mut at = from.first + column * ELEMENTS;
        for piece in target.as_chunks_mut::<ELEMENTS>().0 {
            *piece = *source[at..].first_chunk().expect("the source has all rows");
            at += from.row;
        }
    }
}

/// Single elements, in squares.
fn tiles<E: Copy, const SIDE: usize>(
    source: &[E],
    from: Place,
    target: &mut [E],
    to: Place,
    rows: usize,
    columns: usize,
) {
    for column in (0..columns).step_by(SIDE) {
        for row in (0..rows).step_by(SIDE) {
            let at = from.first + row * from.row + column;
            let mut square = [*source[at..].first_chunk::<SIDE>().expect("the source has all columns"); SIDE];
            for line in 1..SIDE {
                square[line] = *source[at + line * from.row..].first_chunk().expect("the source has all rows");
            }
            let at = to.first + column * to.row + row;
            for line in 0..SIDE {
                let turned: &mut [E; SIDE] =
                    target[at + line * to.row..].first_chunk_mut().expect("the target has all columns");
                for element in 0..SIDE {
                    turned[element] = square[element][line];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<E: Copy + PartialEq + std::fmt::Debug + Default>(pieces: Pieces, number: fn(usize) -> E) {
        let Pieces { rows, columns, elements } = pieces;
        let (from, to) =
            (Place { first: 3, row: columns * elements + 5 }, Place { first: 7, row: rows * elements + 2 });
        let source: Vec<E> = (0..from.first + rows * from.row).map(number).collect();
        let mut target = vec![E::default(); to.first + columns * to.row];
        let mut expected = target.clone();
        for row in 0..rows {
            for at in 0..columns * elements {
                let (column, element) = (at / elements, at % elements);
                expected[to.first + column * to.row + row * elements + element] =
                    source[from.first + row * from.row + at];
            }
        }
        interleave(&source, from, &mut target, to, pieces);
        assert!(target == expected, "{pieces:?} of {} bytes", size_of::<E>());
    }

    #[test]
    fn pieces_change_rows_and_columns() {
        for rows in [1, 2, 4, 8, 16, 32] {
            for columns in [1, 2, 4, 8, 16] {
                for elements in [1, 2, 4, 8, 16, 32, 64] {
                    check(Pieces { rows, columns, elements }, |at| at as u16);
                    check(Pieces { rows, columns, elements }, |at| at as u32);
                }
            }
        }
    }
}
