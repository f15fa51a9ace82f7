//! The optional checksum of a message: XXH3 with 64 bits, over each of its parts.
//!
//! The sender computes it before the first byte of a part leaves, and says it in the offer. The receiver compares it when
//! it has all bytes, after erasure decoding, and before its program gets them. ICRC protects a packet between two devices;
//! this finds what ICRC cannot see: a buffer that the sender's program changed during the send, bad memory or a bad bus at
//! either end, chunks that were computed wrongly, packets that were placed at the wrong address.
//!
//! It is not a CRC on purpose. Damage that a CRC misses in a packet, the same CRC over the whole message misses as well.
//! It finds accidents, not attacks: anybody can compute it.

use std::hash::Hasher as _;
use std::ops::Range;

use longhaul_sdr::Memory;
use longhaul_sdr::memory::BorrowError;
use longhaul_time::Instant;
use twox_hash::XxHash3_64;

use crate::moment::Moment;
use crate::scheme::retry_after;

/// Bytes that all sends of a connection together checksum in one poll, so that a poll stays short (4 MiB take about a
/// millisecond from main memory) and the first parts leave while later ones are being read.
pub(crate) const BYTES_A_POLL: usize = 4 << 20;

/// The checksum of a message that is sent in one part, or of a part: XXH3 with 64 bits and no seed.
pub fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// The same, as long as it is wanted; otherwise of fewer bytes.
pub(crate) fn checksum_while(bytes: &[u8], is_wanted: &dyn Fn() -> bool) -> u64 {
    let mut hasher = XxHash3_64::new();
    bytes.chunks(BYTES_A_POLL).take_while(|_| is_wanted()).for_each(|piece| hasher.write(piece));
    hasher.finish()
}

/// The checksum of a part that is to be sent, as far as it has been computed.
pub(crate) struct SendChecksum {
    hasher: XxHash3_64,
    covered_bytes: usize,
    value: Option<u64>,
    /// Why the next bytes could not be read, and when to try again.
    in_use: Option<(BorrowError, Instant)>,
}

impl SendChecksum {
    pub(crate) fn new() -> Self {
        SendChecksum { hasher: XxHash3_64::new(), covered_bytes: 0, value: None, in_use: None }
    }

    /// Go on with the bytes in `range`, with at most `budget_bytes` of them, which are taken off. Returns whether it is done.
    pub(crate) fn advance(
        &mut self,
        memory: &Memory,
        range: &Range<usize>,
        budget_bytes: &mut usize,
        moment: &Moment,
    ) -> bool {
        if self.value.is_some() {
            return true;
        }
        let start = range.start + self.covered_bytes;
        let end = range.end.min(start + *budget_bytes);
        if start < end {
            match memory.read(start..end) {
                Ok(bytes) => {
                    self.in_use = None;
                    self.hasher.write(&bytes);
                    self.covered_bytes += bytes.len();
                    *budget_bytes -= bytes.len();
                }
                // The program or a receive may write to them. Wait until it has ended, as for computing parity.
                Err(error) => self.in_use = Some((error, moment.now + retry_after(moment.round_trip))),
            }
        }
        self.value = (self.covered_bytes == range.len()).then(|| self.hasher.finish());
        self.value.is_some()
    }

    /// The checksum, once it is known.
    pub(crate) fn value(&self) -> Option<u64> {
        self.value
    }

    /// When to go on; `None` when it is done.
    pub(crate) fn continues_at(&self, now: Instant) -> Option<Instant> {
        match (&self.value, &self.in_use) {
            (Some(_), _) => None,
            (None, Some((_, retry_at))) => Some(*retry_at),
            (None, None) => Some(now),
        }
    }

    /// Why it could not be computed.
    pub(crate) fn obstacle(&self) -> Option<&BorrowError> {
        self.in_use.as_ref().map(|(error, _)| error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends must compute the same, on every platform and with every version: these are XXH3's own values.
    #[test]
    fn golden_values() {
        assert_eq!(checksum(b""), 0x2d06_8005_38d3_94c2);
        let bytes: Vec<u8> = (0..100_000_u32).map(|index| (index * 7 + 13) as u8).collect();
        let mut in_pieces = XxHash3_64::new();
        bytes.chunks(4097).for_each(|piece| in_pieces.write(piece));
        assert_eq!(in_pieces.finish(), checksum(&bytes));
    }

    #[test]
    fn one_bit_changes_it() {
        let mut bytes = vec![0x5a; 5000];
        let before = checksum(&bytes);
        for at in [0, 1, 4095, 4999] {
            bytes[at] ^= 1;
            assert_ne!(checksum(&bytes), before, "byte {at}");
            bytes[at] ^= 1;
        }
        assert_ne!(checksum(&bytes[..4999]), before);
    }
}
