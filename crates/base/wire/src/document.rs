//! The tables of docs/WIRE.md, for the tests that hold them against the code.

const TEXT: &str = include_str!("../../../../docs/WIRE.md");

/// The rows of the table with number `index` (from 0) below a heading, without the table's own head. A row has the cells that are asked for,
/// and may have more. Panics when there is no such table: then the document is wrong.
pub(crate) fn table<const CELLS: usize>(heading: &str, index: usize) -> impl Iterator<Item = [&'static str; CELLS]> {
    let is_heading = |line: &str| line.trim_start_matches('#').trim() == heading && line.starts_with('#');
    let mut lines = TEXT.lines();
    assert!(lines.any(is_heading), "docs/WIRE.md has no heading \"{heading}\"");
    let mut lines = lines.take_while(|line| !line.starts_with('#')).peekable();
    for _ in 0..index {
        while lines.next_if(|line| !line.starts_with('|')).is_some() {}
        while lines.next_if(|line| line.starts_with('|')).is_some() {}
    }
    let rows = lines.skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let mut rows = rows.skip(2).map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        core::array::from_fn(|_| cells.next().unwrap_or_default())
    });
    let first = rows.next();
    assert!(first.is_some(), "docs/WIRE.md has no table with rows below \"{heading}\"");
    first.into_iter().chain(rows)
}

/// Holds a table of `offset | bytes | field` against bytes whose fields are known: the fields are there in this order, without gaps, and each
/// has its value at its place. A field of 0 bytes goes to the end.
pub(crate) fn check_layout(heading: &str, index: usize, bytes: &[u8], expected: &[(&str, &[u8])]) {
    let mut rows = table::<3>(heading, index);
    let mut at = 0;
    for (name, value) in expected {
        let Some([offset, size, field]) = rows.next() else { panic!("\"{heading}\" ends before {name}") };
        assert_eq!(field, *name, "\"{heading}\"");
        assert_eq!(offset.parse(), Ok(at), "\"{heading}\": offset of {name}");
        let size: usize = size.parse().unwrap_or_else(|_| panic!("\"{heading}\": size of {name}"));
        assert!(size == 0 || size == value.len(), "\"{heading}\": {name} has {} bytes", value.len());
        assert_eq!(bytes.get(at..at + value.len()), Some(*value), "\"{heading}\": {name}");
        at += value.len();
    }
    assert_eq!(rows.next(), None, "\"{heading}\" has more fields than the code");
    assert_eq!(at, bytes.len(), "\"{heading}\" has fewer bytes than the code");
}

/// Holds a table of `number | name` against the code's.
pub(crate) fn check_numbers(heading: &str, index: usize, expected: &[(u16, &str)]) {
    let mut rows = table::<2>(heading, index);
    for (number, name) in expected {
        let Some([in_table, field]) = rows.next() else { panic!("\"{heading}\" ends before {name}") };
        assert_eq!((in_table.parse(), field), (Ok(*number), *name), "\"{heading}\"");
    }
    assert_eq!(rows.next(), None, "\"{heading}\" has more rows than the code");
}
