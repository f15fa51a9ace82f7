//! Moves pieces of rows into columns: from blocks to packets, and back.

// Loops over indices that the compiler unrolls into registers.
#![allow(clippy::needless_range_loop)]

use super::element::HadamardElement;
use super::kernel::HadamardKernel;
use super::streaming::Streaming;
#[cfg(target_arch = "x86_64")]
use super::x86_memory;

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

/// Which side is walked along without a jump: the one that is in memory. The other one is in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Along {
    Source,
    /// And how it is written.
    Target(Streaming),
}

/// Piece `(row, column)` of the source becomes piece `(column, row)` of the target.
pub(super) fn interleave<E: HadamardElement>(
    source: &[E],
    from: Place,
    target: &mut [E],
    to: Place,
    pieces: Pieces,
    along: Along,
    kernel: HadamardKernel,
) {
    let Pieces { rows, columns, elements } = pieces;
    // Only x86-64 has kernels of its own for this.
    let _ = kernel;
    match elements {
        #[cfg(target_arch = "x86_64")]
        1 if kernel == HadamardKernel::Avx512
            && rows.is_multiple_of(x86_memory::turned_rows::<E>())
            && columns.is_multiple_of(x86_memory::TURNED_COLUMNS) =>
        {
            lines(source, from, target, to, pieces, along)
        }
        // Small pieces in squares, which are turned in registers.
        1 if size_of::<E>() == 2 && rows.is_multiple_of(8) && columns.is_multiple_of(8) => {
            squares::<E, 8>(source, from, target, to, pieces, along)
        }
        1 if size_of::<E>() == 4 && rows.is_multiple_of(4) && columns.is_multiple_of(4) => {
            squares::<E, 4>(source, from, target, to, pieces, along)
        }
        1 => sized::<E, 1>(source, from, target, to, pieces, along),
        2 => sized::<E, 2>(source, from, target, to, pieces, along),
        4 => sized::<E, 4>(source, from, target, to, pieces, along),
        8 => sized::<E, 8>(source, from, target, to, pieces, along),
        16 => sized::<E, 16>(source, from, target, to, pieces, along),
        32 => sized::<E, 32>(source, from, target, to, pieces, along),
        64 => sized::<E, 64>(source, from, target, to, pieces, along),
        _ => each(rows, columns, along, |row, column| {
            let source = &source[from.first + row * from.row + column * elements..][..elements];
            let target = &mut target[to.first + column * to.row + row * elements..][..elements];
            copy(source, target, along);
        }),
    }
}

/// Calls `work` with every row and column.
fn each(rows: usize, columns: usize, along: Along, mut work: impl FnMut(usize, usize)) {
    match along {
        Along::Source => (0..rows).for_each(|row| (0..columns).for_each(|column| work(row, column))),
        Along::Target(_) => (0..columns).for_each(|column| (0..rows).for_each(|row| work(row, column))),
    }
}

/// Past the caches, if it is worth it and long enough.
#[inline(always)]
fn copy<E: HadamardElement>(from: &[E], to: &mut [E], along: Along) {
    match along {
        Along::Target(streaming) if size_of_val(from) >= 16 => streaming.copy(from, to),
        _ => to.copy_from_slice(from),
    }
}

/// The same of a run of elements, after which another row of the target is written.
#[inline(always)]
fn copy_run<E: HadamardElement>(from: &[E], to: &mut [E], along: Along) {
    match along {
        Along::Target(streaming) => streaming.copy_alone(from, to),
        Along::Source => to.copy_from_slice(from),
    }
}

/// Pieces of a length that the compiler knows.
fn sized<E: HadamardElement, const ELEMENTS: usize>(
    source: &[E],
    from: Place,
    target: &mut [E],
    to: Place,
    pieces: Pieces,
    along: Along,
) {
    match along {
        Along::Source => {
            for row in 0..pieces.rows {
                let source = &source[from.first + row * from.row..][..pieces.columns * ELEMENTS];
                let mut at = to.first + row * ELEMENTS;
                for piece in source.as_chunks::<ELEMENTS>().0 {
                    *target[at..].first_chunk_mut().expect("the target has all columns") = *piece;
                    prefetch(piece.as_ptr().wrapping_add(from.row));
                    at += to.row;
                }
            }
        }
        Along::Target(_) => {
            for column in 0..pieces.columns {
                let target = &mut target[to.first + column * to.row..][..pieces.rows * ELEMENTS];
                let mut at = from.first + column * ELEMENTS;
                for piece in target.as_chunks_mut::<ELEMENTS>().0 {
                    copy(source[at..].first_chunk::<ELEMENTS>().expect("the source has all rows"), piece, along);
                    at += from.row;
                }
            }
        }
    }
}

/// Single elements, in squares whose lines have 16 bytes.
fn squares<E: HadamardElement, const SIDE: usize>(
    source: &[E],
    from: Place,
    target: &mut [E],
    to: Place,
    pieces: Pieces,
    along: Along,
) {
    let Pieces { rows, columns, .. } = pieces;
    match along {
        Along::Source => {
            for row in (0..rows).step_by(SIDE) {
                for column in (0..columns).step_by(SIDE) {
                    let at = from.first + row * from.row + column;
                    let square = turned::<E, SIDE>(source, at, from.row);
                    for line in 0..SIDE {
                        prefetch(source.as_ptr().wrapping_add(at + (SIDE + line) * from.row));
                        let at = to.first + (column + line) * to.row + row;
                        *target[at..].first_chunk_mut().expect("the target has all columns") = square[line];
                    }
                }
            }
        }
        Along::Target(_) => {
            // Lines of the target are put together in the cache: parts of lines, in several places at once, are slow to
            // write past it.
            let mut runs = [[E::default(); RUN]; SIDE];
            for column in (0..columns).step_by(SIDE) {
                for first in (0..rows).step_by(RUN) {
                    let run = RUN.min(rows - first);
                    for row in (0..run).step_by(SIDE) {
                        let at = from.first + (first + row) * from.row + column;
                        let square = turned::<E, SIDE>(source, at, from.row);
                        for line in 0..SIDE {
                            *runs[line][row..].first_chunk_mut().expect("a run has whole squares") = square[line];
                        }
                    }
                    for line in 0..SIDE {
                        let at = to.first + (column + line) * to.row + first;
                        copy_run(&runs[line][..run], &mut target[at..][..run], along);
                    }
                }
            }
        }
    }
}

/// Elements of a line of the target that are put together before they are written.
const RUN: usize = 256;

/// Single elements, in lines of 64 bytes.
#[cfg(target_arch = "x86_64")]
fn lines<E: HadamardElement>(source: &[E], from: Place, target: &mut [E], to: Place, pieces: Pieces, along: Along) {
    use x86_memory::{TURNED_COLUMNS, prefetch_part_for_writing, turn_lines, turned_rows};
    let Pieces { rows, columns, .. } = pieces;
    match along {
        Along::Source => {
            for row in (0..rows).step_by(turned_rows::<E>()) {
                for column in (0..columns).step_by(TURNED_COLUMNS) {
                    let at = from.first + row * from.row + column;
                    for line in turned_rows::<E>()..2 * turned_rows::<E>() {
                        prefetch(source.as_ptr().wrapping_add(at + line * from.row));
                    }
                    let turned = to.first + column * to.row + row;
                    turn_lines(source, (at, from.row), target, (turned, to.row));
                }
            }
        }
        Along::Target(_) => {
            // As in `squares`.
            let mut runs = [[E::default(); RUN]; TURNED_COLUMNS];
            for column in (0..columns).step_by(TURNED_COLUMNS) {
                for first in (0..rows).step_by(RUN) {
                    let run = RUN.min(rows - first);
                    // Parts of lines go through the cache.
                    for line in 0..TURNED_COLUMNS {
                        let at = target.as_ptr().wrapping_add(to.first + (column + line) * to.row + first);
                        prefetch_part_for_writing(at);
                        prefetch_part_for_writing(at.wrapping_add(run));
                    }
                    for row in (0..run).step_by(turned_rows::<E>()) {
                        let at = from.first + (first + row) * from.row + column;
                        turn_lines(source, (at, from.row), runs.as_flattened_mut(), (row, RUN));
                    }
                    for (line, turned) in runs.iter().enumerate() {
                        let at = to.first + (column + line) * to.row + first;
                        copy_run(&turned[..run], &mut target[at..][..run], along);
                    }
                }
            }
        }
    }
}

/// The square at `at`, rows as columns.
#[inline(always)]
fn turned<E: HadamardElement, const SIDE: usize>(source: &[E], at: usize, row: usize) -> [[E; SIDE]; SIDE] {
    let mut square = [[E::default(); SIDE]; SIDE];
    for line in 0..SIDE {
        square[line] = *source[at + line * row..].first_chunk().expect("the source has all rows");
    }
    #[cfg(target_arch = "x86_64")]
    x86_memory::turn(&mut square);
    #[cfg(not(target_arch = "x86_64"))]
    for line in 0..SIDE {
        for element in 0..line {
            (square[line][element], square[element][line]) = (square[element][line], square[line][element]);
        }
    }
    square
}

/// A hint that the part `part` of `parts` of the rows of a source is read after other work.
pub(super) fn prefetch_rows<E>(source: &[E], from: Place, pieces: Pieces, part: usize, parts: usize) {
    #[cfg(target_arch = "x86_64")]
    for row in pieces.rows * part / parts..pieces.rows * (part + 1) / parts {
        if let Some(row) =
            source.get(from.first + row * from.row..).and_then(|rest| rest.get(..pieces.columns * pieces.elements))
        {
            x86_memory::prefetch_for_later(row);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (source, from, pieces, part, parts);
}

/// A hint that this is read soon.
fn prefetch<E>(at: *const E) {
    #[cfg(target_arch = "x86_64")]
    x86_memory::prefetch(at);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::super::element::Bf16;
    use super::*;

    fn check<E: HadamardElement + PartialEq>(pieces: Pieces, number: fn(usize) -> E) {
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
        for along in [Along::Source, Along::Target(Streaming::for_target(&target, 1))] {
            for kernel in HadamardKernel::ALL.into_iter().filter(|kernel| kernel.is_available()) {
                target.fill(E::default());
                interleave(&source, from, &mut target, to, pieces, along, kernel);
                assert!(target == expected, "{pieces:?} of {} bytes along {along:?}, {kernel}", size_of::<E>());
            }
        }
    }

    #[test]
    fn pieces_change_rows_and_columns() {
        for rows in [1, 2, 4, 8, 16, 32, 64] {
            for columns in [1, 2, 4, 8, 16, 32] {
                for elements in [1, 2, 4, 8, 16, 32, 64] {
                    check(Pieces { rows, columns, elements }, |at| Bf16(at as u16));
                    check(Pieces { rows, columns, elements }, |at| at as f32);
                }
            }
        }
    }
}
