//! A map for numbers that are random already.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Random numbers need no hashing, only spreading: the map wants its upper bits to differ.
#[derive(Default)]
pub(crate) struct SpreadHasher(u64);

impl Hasher for SpreadHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(byte.into());
        }
    }
    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A map from numbers that the device drew at random. Never iterated.
pub(crate) type RandomNumberMap<V> = HashMap<u32, V, BuildHasherDefault<SpreadHasher>>;
