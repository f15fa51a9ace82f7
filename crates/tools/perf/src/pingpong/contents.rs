//! What the messages hold, and what they must hold when they come.
//!
//! rdma-core's programs send the bytes of one buffer and receive into the same one, so a server of theirs returns what
//! it was sent. That lets our client check a real thing: each of its messages is another one, and must come back as it
//! went. Their own option `-c` wants a zero at the start of each page, so there always is one.

use crate::pattern::Pattern;

/// Every byte of a buffer that nobody has checked, there as here.
const PLAIN: u8 = 0x7b;
/// There is a zero at each multiple of it: the smallest page that there is.
const PAGE_BYTES: usize = 4096;
/// Both ends know it.
const SEED: u64 = 0x1b7_9199;

/// What a client sends: rdma-core's buffer, or with `--chk` another message each time.
pub(super) fn fill(message: &mut [u8], number: u64, is_checked: bool) {
    if is_checked {
        Pattern::new(SEED).fill(number, message);
    } else {
        message.fill(PLAIN);
    }
    message.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 0);
}

/// Says where a message is neither ours of this number nor rdma-core's. A server does not know who its client is.
pub(super) fn check(message: &[u8], number: u64, is_from_server: bool) -> Result<(), String> {
    let mut expected = vec![0; message.len()];
    fill(&mut expected, number, true);
    let differs = message.iter().zip(&expected).position(|(got, expected)| got != expected);
    let Some(offset) = differs else {
        return Ok(());
    };
    let is_plain = |(offset, byte): (usize, &u8)| *byte == PLAIN || (*byte == 0 && offset.is_multiple_of(PAGE_BYTES));
    if !is_from_server && message.iter().enumerate().all(is_plain) {
        return Ok(());
    }
    let (got, expected) = (message[offset], expected[offset]);
    Err(format!("message {number}, byte {offset}: expected {expected:#04x}, got {got:#04x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_known_again() {
        let mut message = vec![1; 10_000];
        fill(&mut message, 7, true);
        assert_eq!((message[0], message[4096], message[8192]), (0, 0, 0));
        assert_eq!(check(&message, 7, true), Ok(()));
        assert!(check(&message, 8, true).is_err(), "another message");
        message[5000] ^= 1;
        assert!(check(&message, 7, false).is_err_and(|text| text.contains("byte 5000")));
    }

    #[test]
    fn a_server_takes_what_rdma_core_sends() {
        let mut message = vec![0; 5000];
        fill(&mut message, 0, false);
        assert_eq!(check(&message, 3, false), Ok(()));
        assert!(check(&message, 3, true).is_err(), "a server returns what it was sent");
        message[0] = PLAIN;
        assert_eq!(check(&message, 3, false), Ok(()), "without -c there is no zero");
        message[1] = 0;
        assert!(check(&message, 3, false).is_err());
    }
}
