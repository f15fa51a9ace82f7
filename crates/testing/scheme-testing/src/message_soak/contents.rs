//! Bytes that say which message they belong to, and where in it they are.

/// Memory before anything arrives.
pub(super) const UNTOUCHED: u8 = 0xa5;

/// The message that bytes belong to: its connection, the life of that, and the item that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(u64);

impl Label {
    pub(super) fn new(connection: usize, life: u32, item: usize) -> Self {
        Label((connection as u64) << 48 ^ u64::from(life) << 32 ^ item as u64)
    }

    /// The immediate that the message carries, where the program may choose it.
    pub(super) fn immediate(self) -> u32 {
        mix(self.0) as u32
    }

    fn word(self, index: usize) -> [u8; 8] {
        mix(self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64).to_le_bytes()
    }

    pub(super) fn fill(self, bytes: &mut [u8]) {
        for (index, chunk) in bytes.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&self.word(index)[..chunk.len()]);
        }
    }

    /// The first byte that is not the message's, when `bytes` are those from `offset` on, a multiple of 8.
    pub(super) fn first_wrong(self, offset: usize, bytes: &[u8]) -> Option<usize> {
        let first = offset / 8;
        bytes.chunks(8).enumerate().find_map(|(index, chunk)| {
            let expected = self.word(first + index);
            (chunk != &expected[..chunk.len()]).then_some(offset + index * 8)
        })
    }

    /// The first byte that is neither the message's nor untouched: a packet that counts as missing may have been placed
    /// in part.
    pub(super) fn first_foreign(self, offset: usize, bytes: &[u8]) -> Option<usize> {
        let place = bytes.iter().enumerate().position(|(index, byte)| {
            let place = offset + index;
            *byte != UNTOUCHED && *byte != self.word(place / 8)[place % 8]
        });
        place.map(|place| offset + place)
    }
}

/// A short hash of bytes, to see whether they have changed.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = mix(hash ^ u64::from_le_bytes(word));
    }
    hash ^ bytes.len() as u64
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
