//! One number for a whole run.
//!
//! Two runs are the same if the same frames arrived at the same instants over the same links. Keeping them all would
//! cost more than the simulation, so they are folded into 64 bits as they pass: sixteen bytes a multiplication, high
//! half of the product over the low half. The algorithm is written out here because the number ends up in tests and
//! reports: hashers of the standard library and of most crates may change between versions, and FNV-1a, which may
//! not, takes a multiplication a byte. It is no defence against somebody who wants two runs to look the same.
//!
//! Of a long frame only the two ends are read. The first holds the headers, or most of them: with IPv6 the longest RoCE
//! headers go on past it. The second holds the invariant CRC, with which a sender sums up all of the packet that no
//! router may change, so whatever two senders put between the ends, it counts. Bits flipped there in transit do not
//! count: a link flips them by its seed, and what a receiver makes of them shows in the frames that follow.

/// A hash of everything delivered so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceHash(u64);

/// How much of the beginning of each frame is looked at: IPv4, UDP and all RoCE headers but the last four bytes of an
/// atomic request, or IPv6, UDP, the base transport header and four bytes more.
const HEADER_BYTES: usize = 64;

/// How much of the end of each longer frame is looked at: the invariant CRC is its last four bytes.
const TRAILER_BYTES: usize = 16;

// Digits of π: numbers nobody chose.
const START: u64 = 0x243f_6a88_85a3_08d3;
const FACTOR: u64 = 0x1319_8a2e_0370_7345;

impl TraceHash {
    pub(crate) fn new() -> Self {
        TraceHash(START)
    }

    #[inline]
    pub(crate) fn add(&mut self, at_nanos: u64, lane: u64, wire_bytes: u32, bytes: &[u8]) {
        self.fold(at_nanos, (lane << 32) | u64::from(wire_bytes));
        let header = &bytes[..bytes.len().min(HEADER_BYTES)];
        let (pairs, rest) = header.as_chunks::<16>();
        for pair in pairs {
            self.fold_bytes(*pair);
        }
        if !rest.is_empty() {
            let mut padded = [0u8; 16];
            padded[..rest.len()].copy_from_slice(rest);
            self.fold_bytes(padded);
        }
        if bytes.len() > HEADER_BYTES
            && let Some(trailer) = bytes.last_chunk::<TRAILER_BYTES>()
        {
            self.fold_bytes(*trailer);
        }
    }

    pub(crate) fn value(self) -> u64 {
        self.0
    }

    #[inline]
    fn fold_bytes(&mut self, bytes: [u8; 16]) {
        let value = u128::from_le_bytes(bytes);
        self.fold(value as u64, (value >> 64) as u64);
    }

    #[inline]
    fn fold(&mut self, one: u64, other: u64) {
        let product = u128::from(one ^ self.0) * u128::from(other ^ FACTOR);
        // The rotated state keeps a product of zero from erasing earlier input.
        self.0 = self.0.rotate_left(23) ^ (product as u64) ^ ((product >> 64) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(at_nanos: u64, lane: u64, wire_bytes: u32, bytes: &[u8]) -> u64 {
        let mut hash = TraceHash::new();
        hash.add(at_nanos, lane, wire_bytes, bytes);
        hash.value()
    }

    /// A change here means that hashes in old reports can no longer be compared.
    #[test]
    fn the_algorithm_does_not_change() {
        assert_eq!(TraceHash::new().value(), START);
        assert_eq!(hash(1, 2, 3, b"longhaul, a trace hash over more than one word"), 0xd26b_a768_1b4a_e72a);
        let long: Vec<u8> = (0..200).collect();
        assert_eq!(hash(1, 2, 3, &long), 0x7ef0_d464_1398_a1b8);
    }

    #[test]
    fn every_part_counts() {
        let base = hash(1, 2, 4, b"abcd");
        for other in [hash(2, 2, 4, b"abcd"), hash(1, 3, 4, b"abcd"), hash(1, 2, 5, b"abcd"), hash(1, 2, 4, b"abce")] {
            assert_ne!(base, other);
        }
    }

    /// As headers beyond the first end do, by way of the invariant CRC.
    #[test]
    fn what_changes_the_last_bytes_counts() {
        let frame = [7u8; 128];
        let mut other = frame;
        other[80] ^= 1;
        other[124..].copy_from_slice(&[1, 2, 3, 4]);
        assert_ne!(hash(1, 2, 128, &frame), hash(1, 2, 128, &other));
    }

    #[test]
    fn every_byte_of_the_two_ends_counts() {
        for length in [1, 15, 16, 63, 64, 65, 79, 80, 81, 200] {
            let frame = vec![0u8; length];
            for index in (0..length.min(HEADER_BYTES)).chain(length.saturating_sub(TRAILER_BYTES)..length) {
                let mut other = frame.clone();
                other[index] = 1;
                assert_ne!(hash(1, 2, 3, &frame), hash(1, 2, 3, &other), "byte {index} of {length}");
            }
        }
    }
}
