//! The operating system's randomness.

use std::io::Read as _;

use crate::error::PerfError;

/// Bytes that nobody can foresee.
fn random<const BYTES: usize>() -> Result<[u8; BYTES], PerfError> {
    let mut bytes = [0; BYTES];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| PerfError::missing("cannot read /dev/urandom", error))?;
    Ok(bytes)
}

/// A number that nobody can foresee.
pub fn random_number() -> Result<u64, PerfError> {
    random().map(u64::from_le_bytes)
}
