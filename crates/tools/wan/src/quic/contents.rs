//! What is sent: bytes of which the receiver knows which belongs where.

/// A prime: a packet that took the place of another would not have its bytes.
const PERIOD: usize = 65_521;

/// Bytes that repeat.
pub(super) struct Contents {
    /// Two periods, so that a piece begins anywhere.
    bytes: Vec<u8>,
}

impl Contents {
    pub(super) fn new() -> Self {
        let mut state = 0x9e37_79b9_u32;
        let period: Vec<u8> = (0..PERIOD)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        Contents { bytes: [&period[..], &period[..]].concat() }
    }

    /// What stands from `offset` on in a stream: `most` bytes, or fewer.
    pub(super) fn piece(&self, offset: u64, most: u64) -> &[u8] {
        let begin = (offset % PERIOD as u64) as usize;
        &self.bytes[begin..begin + most.min(PERIOD as u64) as usize]
    }

    /// Whether these are the bytes from `offset` on.
    pub(super) fn has(&self, offset: u64, bytes: &[u8]) -> bool {
        let pieces = bytes.chunks(PERIOD).zip((offset..).step_by(PERIOD));
        pieces.into_iter().all(|(bytes, offset)| self.piece(offset, bytes.len() as u64) == bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_known_by_their_place() {
        let contents = Contents::new();
        let mut sent = Vec::new();
        while sent.len() < 200_000 {
            sent.extend_from_slice(contents.piece(sent.len() as u64, 1000));
        }
        assert!(contents.has(0, &sent) && contents.has(70_001, &sent[70_001..]) && contents.has(5, &[]));
        assert!(!contents.has(0, &sent[1200..]), "a packet that was left out");
        assert_eq!(contents.piece(7, u64::MAX).len(), PERIOD);
        sent[150_000] ^= 1;
        assert!(!contents.has(0, &sent));
    }
}
