//! What messages are made of: bytes that say to which message they belong, and where in it they stand.
//!
//! A message is a row of eight-byte words. Every byte has its top bit set; the other seven bits of the eight bytes hold
//! the message's number, the word's index and a check of both. Memory that no message has touched is filled with bytes
//! whose top bit is clear. So a byte that arrived can never be taken for one that did not, and a stray word shows where
//! it belongs.

/// The number of a message; unique within a run.
pub type MessageNumber = u32;

/// Most messages in one run: what 21 bits can count.
pub(super) const MESSAGE_COUNT_MAX: u32 = 1 << 21;
/// Most bytes in one message: 14 bits of words.
pub const MESSAGE_BYTES_MAX: usize = 8 << 14;
/// Bytes that name the message when they stand at the start of a word.
const NAMING_BYTES: usize = 8;

/// Word `index` of message `message`, first byte lowest.
fn word(message: MessageNumber, index: u32) -> u64 {
    debug_assert!(message < MESSAGE_COUNT_MAX && index < 1 << 14);
    let check = u64::from(message.wrapping_mul(0x9e37_79b1) ^ index.wrapping_mul(0x85eb_ca6b)) >> 11;
    let bits = u64::from(message) | u64::from(index) << 21 | check << 35;
    let mut spread = 0;
    for byte in 0..8 {
        spread |= (bits >> (7 * byte) & 0x7f) << (8 * byte);
    }
    spread | 0x8080_8080_8080_8080
}

/// Writes the bytes `offset..offset + bytes.len()` of a message.
pub(super) fn fill(message: MessageNumber, offset: usize, bytes: &mut [u8]) {
    let mut position = offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let within = position % 8;
        let count = rest.len().min(8 - within);
        let word = word(message, (position / 8) as u32).to_le_bytes();
        rest[..count].copy_from_slice(&word[within..within + count]);
        position += count;
        rest = &mut rest[count..];
    }
}

/// The whole message.
pub fn message_bytes(message: MessageNumber, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(message, 0, &mut bytes);
    bytes
}

/// The first byte, counted from the start of `bytes`, that is not the message's.
pub(super) fn first_difference(message: MessageNumber, offset: usize, bytes: &[u8]) -> Option<usize> {
    let mut position = 0;
    while position < bytes.len() {
        let within = (offset + position) % 8;
        let count = (bytes.len() - position).min(8 - within);
        let word = word(message, ((offset + position) / 8) as u32).to_le_bytes();
        let got = &bytes[position..position + count];
        let wanted = &word[within..within + count];
        if let Some(first) = got.iter().zip(wanted).position(|(got, wanted)| got != wanted) {
            return Some(position + first);
        }
        position += count;
    }
    None
}

/// Whether these are the bytes `offset..offset + bytes.len()` of the message.
pub(super) fn matches(message: MessageNumber, offset: usize, bytes: &[u8]) -> bool {
    first_difference(message, offset, bytes).is_none()
}

/// Which message a word belongs to, and which byte of it the word begins with. `None` if it is no whole word of any.
pub(super) fn identify(word_bytes: &[u8]) -> Option<(MessageNumber, usize)> {
    let bytes: [u8; NAMING_BYTES] = word_bytes.get(..NAMING_BYTES)?.try_into().ok()?;
    let got = u64::from_le_bytes(bytes);
    let mut bits = 0;
    for byte in 0..8 {
        bits |= (got >> (8 * byte) & 0x7f) << (7 * byte);
    }
    let message = (bits & 0x1f_ffff) as u32;
    let index = (bits >> 21 & 0x3fff) as u32;
    (word(message, index) == got).then_some((message, index as usize * 8))
}

/// Fills memory that no message has touched. Different `epoch`s give different bytes.
pub fn fill_untouched(epoch: u32, bytes: &mut [u8]) {
    for (offset, byte) in bytes.iter_mut().enumerate() {
        let mixed = (offset as u32).wrapping_mul(29).wrapping_add(epoch.wrapping_mul(53)) ^ (offset as u32 >> 7);
        *byte = (mixed & 0x7f) as u8;
    }
}

/// Odd, so that multiplication by it can be undone; large, so that a swapped byte order or a lost half shows.
const IMMEDIATE_FACTOR: u32 = 0x9e37_79b1;

/// The immediate that a message carries.
pub fn immediate(message: MessageNumber) -> u32 {
    message.wrapping_mul(IMMEDIATE_FACTOR)
}

/// The message that carries an immediate.
pub(super) fn message_of_immediate(immediate: u32) -> MessageNumber {
    immediate.wrapping_mul(inverse(IMMEDIATE_FACTOR))
}

/// The number that undoes multiplication by an odd one: each round of Newton's method doubles the right bits.
const fn inverse(odd: u32) -> u32 {
    let mut inverse = odd;
    let mut round = 0;
    while round < 5 {
        inverse = inverse.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
}

/// The message that the first whole word in these bytes belongs to.
pub(super) fn find(bytes: &[u8]) -> Option<MessageNumber> {
    (0..bytes.len().min(8)).find_map(|start| identify(&bytes[start..])).map(|(message, _)| message)
}

/// For people: what these bytes are.
pub(super) fn describe(bytes: &[u8]) -> String {
    for start in 0..bytes.len().min(8) {
        if let Some((message, offset)) = identify(&bytes[start..]) {
            return match offset.checked_sub(start) {
                Some(first) => format!("bytes of message {message} from its offset {first} on"),
                None => format!("bytes of message {message}"),
            };
        }
    }
    let shown: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let kind = if bytes.first().is_some_and(|byte| byte & 0x80 == 0) {
        "bytes that no message wrote"
    } else {
        "bytes of no known message"
    };
    format!("{kind} ({})", shown.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_names_its_message_and_place() {
        let bytes = message_bytes(1_234_567, 4096);
        assert_eq!(identify(&bytes[80..]), Some((1_234_567, 80)));
        assert_eq!(identify(&bytes[81..]), None);
        assert!(matches(1_234_567, 13, &bytes[13..999]));
        assert_eq!(first_difference(1_234_568, 0, &bytes), Some(0));
        assert!(bytes.iter().all(|byte| byte & 0x80 != 0));
    }

    #[test]
    fn pieces_make_the_whole() {
        let whole = message_bytes(77, 100);
        let mut pieces = vec![0; 100];
        for (start, end) in [(0, 3), (3, 9), (9, 64), (64, 100)] {
            fill(77, start, &mut pieces[start..end]);
        }
        assert_eq!(pieces, whole);
    }

    #[test]
    fn an_immediate_names_its_message() {
        for message in [0, 1, 2, 99_999, MESSAGE_COUNT_MAX - 1] {
            assert_eq!(message_of_immediate(immediate(message)), message);
        }
    }

    #[test]
    fn untouched_bytes_are_never_a_messages() {
        let mut bytes = vec![0xff; 300];
        fill_untouched(3, &mut bytes);
        assert!(bytes.iter().all(|byte| byte & 0x80 == 0));
        assert!(describe(&bytes).contains("no message wrote"));
        assert!(describe(&message_bytes(5, 64)[3..]).contains("message 5"));
    }
}
