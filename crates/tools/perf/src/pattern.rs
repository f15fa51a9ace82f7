//! Contents of messages that can be checked: pseudo-random bytes that both ends can make from a seed and the number of
//! the message, so that a byte of another message, of another place in the message, or never written is seen.

use std::ops::Range;

/// The contents of messages, from a seed that both ends know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    seed: u64,
}

/// The first byte that is not what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message {sequence}, byte {offset}: expected {expected:#04x}, got {got:#04x}")]
pub(crate) struct Mismatch {
    sequence: u64,
    offset: usize,
    expected: u8,
    got: u8,
}

impl Pattern {
    pub(crate) const fn new(seed: u64) -> Self {
        Pattern { seed }
    }

    /// Eight bytes of a message. (Sebastiano Vigna's SplitMix64, a public-domain generator that can start anywhere.)
    const fn word(self, sequence: u64, index: u64) -> [u8; 8] {
        let start = self.seed ^ sequence.wrapping_mul(0xd134_2543_de82_ef95);
        let mut z = start.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    }

    /// Writes the contents of a message.
    pub(crate) fn fill(self, sequence: u64, message: &mut [u8]) {
        for (index, chunk) in message.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&self.word(sequence, index as u64)[..chunk.len()]);
        }
    }

    /// Whether these are the contents of a message.
    pub(crate) fn check(self, sequence: u64, message: &[u8]) -> Result<(), Mismatch> {
        self.check_part(sequence, 0, message)
    }

    /// Whether these are the contents of a message from an offset on, a multiple of 8.
    fn check_part(self, sequence: u64, from: usize, part: &[u8]) -> Result<(), Mismatch> {
        for (index, chunk) in part.chunks(8).enumerate() {
            let word = self.word(sequence, (from / 8 + index) as u64);
            if let Some(at) = chunk.iter().zip(&word).position(|(got, expected)| got != expected) {
                let offset = from + index * 8 + at;
                return Err(Mismatch { sequence, offset, expected: word[at], got: chunk[at] });
            }
        }
        Ok(())
    }

    /// Whether these are the contents of a message of which some ranges are missing, in order, and have been filled with zeros.
    pub(crate) fn check_bounded(self, sequence: u64, message: &[u8], missing: &[Range<u64>]) -> Result<(), Mismatch> {
        let mut from = 0;
        for range in missing {
            let (start, end) = (range.start as usize, range.end as usize);
            self.check_part(sequence, from, &message[from..start])?;
            if let Some(at) = message[start..end].iter().position(|byte| *byte != 0) {
                return Err(Mismatch { sequence, offset: start + at, expected: 0, got: message[start + at] });
            }
            from = end;
        }
        self.check_part(sequence, from, &message[from..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_filled_is_found_and_nothing_else() {
        let pattern = Pattern::new(7);
        let mut message = [0; 1003];
        pattern.fill(5, &mut message);
        assert_eq!(pattern.check(5, &message), Ok(()));
        assert!(pattern.check(6, &message).is_err(), "another message");
        assert!(Pattern::new(8).check(5, &message).is_err(), "another seed");
        assert!(pattern.check(5, &message[8..]).is_err(), "another place");
        message[1002] ^= 1;
        let error = pattern.check(5, &message).unwrap_err();
        assert_eq!((error.offset, error.got ^ error.expected), (1002, 1));
    }

    #[test]
    fn ranges_that_are_missing_are_zeros_and_all_else_is_the_message() {
        let pattern = Pattern::new(7);
        let mut message = [0; 1003];
        pattern.fill(5, &mut message);
        message[64..128].fill(0);
        message[960..].fill(0);
        let missing = [64..128, 960..1003];
        assert_eq!(pattern.check_bounded(5, &message, &missing), Ok(()));
        assert_eq!(pattern.check_bounded(5, &message, &missing[..1]).unwrap_err().offset, 960, "more is missing");
        assert_eq!(pattern.check_bounded(5, &message, &[0..128, 960..1003]).unwrap_err().offset, 0, "less is missing");
        message[100] = 1;
        assert_eq!(pattern.check_bounded(5, &message, &missing).unwrap_err().offset, 100, "not filled");
    }

    #[test]
    fn neighbouring_messages_have_nothing_in_common() {
        let pattern = Pattern::new(1);
        let (mut one, mut next) = ([0; 4096], [0; 4096]);
        pattern.fill(1, &mut one);
        pattern.fill(2, &mut next);
        let common = one.iter().zip(&next).filter(|(a, b)| a == b).count();
        assert!(common < 64, "{common} of 4096 bytes are the same, as chance has it about 16");
    }
}
