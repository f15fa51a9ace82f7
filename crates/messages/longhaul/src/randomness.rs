//! The operating system's randomness.

use std::fs::File;
use std::io::{self, Read as _};

/// Bytes that nobody can foresee.
pub(crate) fn random<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
