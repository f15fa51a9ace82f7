//! The operating system's randomness.

use std::io::Read as _;

use crate::stop::Stop;

/// Bytes that nobody can foresee.
pub(crate) fn random<const BYTES: usize>() -> Result<[u8; BYTES], Stop> {
    let mut bytes = [0; BYTES];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Stop::missing("cannot read /dev/urandom", error))?;
    Ok(bytes)
}

/// A number that nobody can foresee.
pub(crate) fn random_number() -> Result<u64, Stop> {
    random().map(u64::from_le_bytes)
}
