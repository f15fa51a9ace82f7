//! What memory holds before and after: slots, one for each operation, with guard bytes around them.
//!
//! ```text
//!   slot:   guard, 64 bytes │ 0 to 7 bytes more │ header (datagrams) │ the message │ guard, 64 bytes and more
//! ```
//!
//! The message begins at another place in each slot, so that nothing is aligned by chance; only words for atomics are.
//! Guards, and messages that have not come, hold one byte over and over ([`FILL`]).

use crate::plan::{Check, Connection};

/// What memory holds where nothing was written.
pub(crate) const FILL: u8 = 0xe7;
/// Bytes before and behind a message that nobody may write.
const GUARD_BYTES: usize = 64;
/// Where messages begin in their slots goes round with this.
const SHIFTS: usize = 8;
/// Slots begin at cache lines.
const ALIGNMENT: usize = 64;

/// Well mixed bits of a number. (Sebastiano Vigna's SplitMix64, which is in the public domain.)
pub(crate) const fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The 32 bits that an operation carries. No two of a check have the same.
pub(crate) fn immediate(check: &Check, number: u64) -> u32 {
    // Multiplying by an odd number loses nothing, and no byte of the result is like another: a swapped order is seen.
    (number as u32).wrapping_mul(0x9e37_79b1) ^ mix(check.seed) as u32
}

/// The operation that carries these 32 bits.
pub(crate) fn operation_with(check: &Check, bits: u32) -> Option<u64> {
    (0..u64::from(check.operations)).find(|&number| immediate(check, number) == bits)
}

/// Writes what an operation carries.
pub(crate) fn fill_message(check: &Check, number: u64, message: &mut [u8]) {
    let base = mix(check.seed ^ mix(number));
    // One multiplication for eight bytes, and no more work than that: guests are slow.
    let bytes = |index: usize| {
        let word = base ^ (index as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95);
        (word ^ (word >> 29)).to_le_bytes()
    };
    let whole = message.len() / 8;
    let (words, rest) = message.as_chunks_mut::<8>();
    for (index, chunk) in words.iter_mut().enumerate() {
        *chunk = bytes(index);
    }
    rest.copy_from_slice(&bytes(whole)[..rest.len()]);
}

/// What a slot must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Nothing was written.
    Untouched,
    /// The message of the operation with this number.
    Message(u64),
    /// A word that atomics work on, or the old value that one has brought.
    Word(u64),
}

/// Where slots and messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    header_bytes: usize,
    message_bytes: usize,
    is_shifted: bool,
    stride: usize,
    count: usize,
}

impl Layout {
    /// At the end that sends, or is read or written: without headers.
    pub(crate) fn of(check: &Check) -> Layout {
        Layout::with_header(check, 0)
    }

    /// At the end that receives.
    pub(crate) fn of_receives(check: &Check) -> Layout {
        let header_bytes = if check.operation.is_send() { check.connection.header_bytes() } else { 0 };
        Layout::with_header(check, header_bytes)
    }

    fn with_header(check: &Check, header_bytes: usize) -> Layout {
        let message_bytes = check.bytes as usize;
        let stride = (GUARD_BYTES + SHIFTS + header_bytes + message_bytes + GUARD_BYTES).next_multiple_of(ALIGNMENT);
        let is_shifted = !check.operation.is_atomic();
        Layout { header_bytes, message_bytes, is_shifted, stride, count: check.operations as usize }
    }

    /// Slots, one for each operation.
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Bytes of all slots.
    pub(crate) const fn bytes(&self) -> usize {
        self.stride * self.count
    }

    /// Where a slot begins.
    pub(crate) const fn slot(&self, number: u64) -> usize {
        number as usize * self.stride
    }

    pub(crate) const fn stride(&self) -> usize {
        self.stride
    }

    /// Where in its slot the header begins, or the message if there is none.
    const fn start(&self, number: u64) -> usize {
        GUARD_BYTES + if self.is_shifted { number as usize % SHIFTS } else { 0 }
    }

    /// Where header and message are.
    pub(crate) fn receive(&self, number: u64) -> std::ops::Range<usize> {
        let start = self.slot(number) + self.start(number);
        start..start + self.header_bytes + self.message_bytes
    }

    /// Where the message is.
    pub(crate) fn message(&self, number: u64) -> std::ops::Range<usize> {
        let receive = self.receive(number);
        receive.start + self.header_bytes..receive.end
    }

    /// Writes what a slot holds into `slot`, which is as long as one.
    pub(crate) fn fill(&self, check: &Check, number: u64, contents: Contents, slot: &mut [u8]) {
        slot.fill(FILL);
        let begin = self.start(number) + self.header_bytes;
        let message = &mut slot[begin..begin + self.message_bytes];
        match contents {
            Contents::Untouched => {}
            Contents::Message(operation) => fill_message(check, operation, message),
            Contents::Word(word) => message.copy_from_slice(&word.to_ne_bytes()),
        }
    }

    /// Whether a slot holds what it must; if not, the first byte that differs. The header of a datagram is not looked
    /// at once a message is there.
    pub(crate) fn verify(&self, check: &Check, number: u64, contents: Contents, slot: &[u8]) -> Result<(), String> {
        let mut expected = vec![0; self.stride];
        self.fill(check, number, contents, &mut expected);
        let (start, message) = (self.start(number), self.start(number) + self.header_bytes);
        if contents != Contents::Untouched {
            expected[start..message].copy_from_slice(&slot[start..message]);
        }
        // Comparing all at once is far faster than finding the place.
        if expected == slot {
            return Ok(());
        }
        let differ = |(expected, got): (&u8, &u8)| expected != got;
        let at = expected
            .iter()
            .zip(slot)
            .position(differ)
            .expect("slots of one length that are not equal differ somewhere");
        let (wanted, got) = (expected[at], slot[at]);
        let place = match at {
            _ if at < start => format!("guard byte {} before the message", start - at),
            _ if at < message => format!("byte {} of the header", at - start),
            _ if at < message + self.message_bytes => format!("byte {}", at - message),
            _ => format!("guard byte {} behind the message", at - message - self.message_bytes),
        };
        let differing = expected.iter().zip(slot).filter(|&(expected, got)| expected != got).count();
        let hint = match got == FILL && (message..message + self.message_bytes).contains(&at) {
            true => ", as if never written",
            false => "",
        };
        Err(format!(
            "slot {number}: {place}: expected {wanted:#04x}, got {got:#04x}{hint}; bytes that differ in the slot: {differing}"
        ))
    }
}

/// The most memory that a check needs at either end.
pub(crate) fn memory_bytes(check: &Check) -> usize {
    Layout::of(check).bytes().max(Layout::of_receives(check).bytes())
}

/// Whether a global route header has these addresses in it: those of an IPv6 header, or of an IPv4 header in its second
/// half.
pub(crate) fn verify_header(
    header: &[u8],
    source: std::net::IpAddr,
    destination: std::net::IpAddr,
) -> Result<(), String> {
    use std::net::IpAddr;
    let got = match (source, header.len() == Connection::Ud.header_bytes()) {
        (_, false) => return Err(format!("expected a header of 40 bytes, got {}", header.len())),
        (IpAddr::V4(_), true) => [32, 36].map(|at| {
            let octets: [u8; 4] = header[at..at + 4].try_into().expect("four bytes");
            IpAddr::from(octets)
        }),
        (IpAddr::V6(_), true) => [8, 24].map(|at| {
            let octets: [u8; 16] = header[at..at + 16].try_into().expect("sixteen bytes");
            IpAddr::from(octets)
        }),
    };
    if got != [source, destination] {
        let [from, to] = got;
        return Err(format!(
            "header of the datagram: expected from {source} to {destination}, got from {from} to {to}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Operation;

    fn check(connection: Connection, operation: Operation, bytes: u32) -> Check {
        Check { connection, operation, bytes, operations: 20, seed: 5 }
    }

    #[test]
    fn every_byte_of_a_slot_counts() {
        for (connection, operation, bytes) in [
            (Connection::Rc, Operation::Write, 0),
            (Connection::Rc, Operation::Write, 1),
            (Connection::Rc, Operation::Read, 1025),
            (Connection::Ud, Operation::Send, 300),
        ] {
            let check = check(connection, operation, bytes);
            let layout = Layout::of_receives(&check);
            for number in [0, 7, 13] {
                let mut slot = vec![0; layout.stride()];
                let contents = Contents::Message(number);
                layout.fill(&check, number, contents, &mut slot);
                assert_eq!(layout.verify(&check, number, contents, &slot), Ok(()));
                let header = layout.receive(number).start - layout.slot(number);
                let header = header..header + layout.header_bytes;
                for at in 0..slot.len() {
                    slot[at] ^= 1;
                    let is_seen = layout.verify(&check, number, contents, &slot).is_err();
                    assert_eq!(is_seen, !header.contains(&at), "byte {at} of {}", check.name());
                    slot[at] ^= 1;
                }
            }
        }
    }

    #[test]
    fn wrong_messages_are_seen_and_said() {
        let check = check(Connection::Rc, Operation::Write, 100);
        let layout = Layout::of(&check);
        let mut slot = vec![0; layout.stride()];
        let verify = |slot: &[u8]| layout.verify(&check, 3, Contents::Message(3), slot).expect_err("it is wrong");
        // Another operation's message, another check's, and none.
        layout.fill(&check, 3, Contents::Message(4), &mut slot);
        assert!(verify(&slot).contains("slot 3: byte 0"), "{}", verify(&slot));
        let other = Check { seed: 6, ..check };
        layout.fill(&other, 3, Contents::Message(3), &mut slot);
        verify(&slot);
        layout.fill(&check, 3, Contents::Untouched, &mut slot);
        assert!(verify(&slot).contains("never written"), "{}", verify(&slot));
        // Cut short by one byte, and one byte too long.
        layout.fill(&check, 3, Contents::Message(3), &mut slot);
        let end = layout.message(3).end - layout.slot(3);
        slot[end - 1] = FILL;
        assert!(verify(&slot).contains("byte 99"), "{}", verify(&slot));
        layout.fill(&check, 3, Contents::Message(3), &mut slot);
        slot[end] = 0;
        assert!(verify(&slot).contains("guard byte 0 behind"), "{}", verify(&slot));
        // Written where nothing was to be written.
        layout.fill(&check, 3, Contents::Message(3), &mut slot);
        assert!(layout.verify(&check, 3, Contents::Untouched, &slot).is_err());
    }

    #[test]
    fn immediates_name_their_operations() {
        let check = Check { operations: 3000, ..check(Connection::Uc, Operation::WriteImmediate, 1) };
        for number in [0, 1, 255, 256, 2999] {
            let bits = immediate(&check, number);
            assert_eq!(operation_with(&check, bits), Some(number));
            assert_ne!(operation_with(&check, bits.swap_bytes()), Some(number), "the order of bytes is seen");
        }
    }

    #[test]
    fn slots_do_not_overlap() {
        let check = check(Connection::Ud, Operation::Send, 4096);
        let layout = Layout::of_receives(&check);
        for number in 0..19 {
            assert!(layout.receive(number).end + GUARD_BYTES <= layout.slot(number + 1));
            assert_eq!(layout.message(number).len(), 4096);
        }
        assert!(layout.receive(19).end + GUARD_BYTES <= layout.bytes());
        assert!(memory_bytes(&check) >= layout.bytes());
    }

    #[test]
    fn headers_tell_who_sent_a_datagram_to_whom() {
        let (one, other) = ("192.0.2.1".parse().expect("an address"), "192.0.2.2".parse().expect("an address"));
        let mut header = [0; 40];
        header[32..36].copy_from_slice(&[192, 0, 2, 1]);
        header[36..40].copy_from_slice(&[192, 0, 2, 2]);
        assert_eq!(verify_header(&header, one, other), Ok(()));
        assert!(verify_header(&header, other, one).is_err());
        let (one, other) = ("fd00::1".parse().expect("an address"), "fd00::2".parse().expect("an address"));
        assert!(verify_header(&header, one, other).is_err());
        header = [0; 40];
        (header[8], header[23], header[24], header[39]) = (0xfd, 1, 0xfd, 2);
        assert_eq!(verify_header(&header, one, other), Ok(()));
    }
}
