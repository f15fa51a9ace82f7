//! The keyed tag of repair packets: SipHash-2-4 with 64 bits (Aumasson and Bernstein).

use std::net::IpAddr;

use longhaul_wire::IcrcScope;
use longhaul_wire::repair::TAG_BYTES;

use crate::packet::Envelope;

/// The tag of a repair packet: over both addresses, unless the ICRC leaves them out, and everything before the tag.
pub(crate) fn tag(key: &[u8; 16], envelope: &Envelope, datagram: &[u8]) -> [u8; TAG_BYTES] {
    let mut hash = SipHash::new(key);
    if envelope.icrc_scope != IcrcScope::WITHOUT_ADDRESSES {
        for end in [envelope.source, envelope.destination] {
            match end.ip() {
                IpAddr::V4(address) => hash.write(&address.octets()),
                IpAddr::V6(address) => hash.write(&address.octets()),
            }
        }
    }
    hash.write(datagram);
    hash.finish().to_be_bytes()
}

struct SipHash {
    state: [u64; 4],
    /// Bytes that do not fill a word yet, the first in the lowest bits.
    word: u64,
    bytes: u64,
}

impl SipHash {
    fn new(key: &[u8; 16]) -> SipHash {
        let (low, high) = key.split_at(8);
        let half = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        let (low, high) = (half(low), half(high));
        let state = [
            low ^ 0x736f_6d65_7073_6575,
            high ^ 0x646f_7261_6e64_6f6d,
            low ^ 0x6c79_6765_6e65_7261,
            high ^ 0x7465_6462_7974_6573,
        ];
        SipHash { state, word: 0, bytes: 0 }
    }

    fn write(&mut self, data: &[u8]) {
        for &byte in data {
            self.word |= u64::from(byte) << (8 * (self.bytes % 8));
            self.bytes += 1;
            if self.bytes.is_multiple_of(8) {
                self.compress(self.word);
                self.word = 0;
            }
        }
    }

    fn compress(&mut self, word: u64) {
        self.state[3] ^= word;
        self.round();
        self.round();
        self.state[0] ^= word;
    }

    fn finish(mut self) -> u64 {
        self.compress(self.word | self.bytes << 56);
        self.state[2] ^= 0xff;
        (0..4).for_each(|_| self.round());
        self.state.iter().fold(0, |hash, part| hash ^ part)
    }

    fn round(&mut self) {
        let [a, b, c, d] = &mut self.state;
        *a = a.wrapping_add(*b);
        *b = b.rotate_left(13) ^ *a;
        *a = a.rotate_left(32);
        *c = c.wrapping_add(*d);
        *d = d.rotate_left(16) ^ *c;
        *a = a.wrapping_add(*d);
        *d = d.rotate_left(21) ^ *a;
        *c = c.wrapping_add(*b);
        *b = b.rotate_left(17) ^ *c;
        *c = c.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first vectors of the authors' reference implementation: key 00 01 … 0f, messages of 0, 1, 2, 8 and 15 bytes 00 01 ….
    #[test]
    fn the_authors_vectors() {
        let key: [u8; 16] = std::array::from_fn(|index| index as u8);
        let message: Vec<u8> = (0..15).collect();
        let expected = [
            (0, 0x726f_db47_dd0e_0e31),
            (1, 0x74f8_39c5_93dc_67fd),
            (2, 0x0d6c_8009_d9a9_4f5a),
            (8, 0x93f5_f579_9a93_2462),
            (15, 0xa129_ca61_49be_45e5_u64),
        ];
        for (length, hash) in expected {
            let mut sip = SipHash::new(&key);
            // In two pieces.
            sip.write(&message[..length / 2]);
            sip.write(&message[length / 2..length]);
            assert_eq!(sip.finish(), hash, "{length}");
        }
    }
}
