//! How much parity a message gets. The offer of a message carries the result, so this is part of the wire format.
//!
//! ```text
//!   message  | k chunks          | k chunks          | fewer |
//!   parity   | m chunks | m chunks | m chunks |
//! ```
//!
//! The chunk of a message that is shorter than a chunk is the message itself. Its parity chunks are as short, rounded
//! up to a power of two so that none lies in two packets of which it needs both; several share a packet. Whole chunks
//! of parity would be `m` packets for a message of one.

use longhaul_coding::Code;

/// Bytes of a chunk for the code: about those of the message, if it is shorter than a chunk.
pub fn coded_chunk_bytes(message_bytes: u64, chunk_bytes: u32) -> u64 {
    message_bytes.clamp(1, chunk_bytes.into()).next_power_of_two().min(chunk_bytes.into())
}

/// Bytes of the parity of one submessage.
pub fn submessage_parity_bytes(code: Code, message_bytes: u64, chunk_bytes: u32) -> u64 {
    code.parity_chunks() as u64 * coded_chunk_bytes(message_bytes, chunk_bytes)
}

/// Bytes of the parity of a whole message.
pub fn parity_bytes(code: Code, message_bytes: u64, chunk_bytes: u32) -> u64 {
    let submessage_bytes = code.data_chunks() as u64 * coded_chunk_bytes(message_bytes, chunk_bytes);
    let submessages = message_bytes.div_ceil(submessage_bytes);
    submessages.saturating_mul(submessage_parity_bytes(code, message_bytes, chunk_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parity_is_whole_chunks_of_whole_submessages_but_that_of_a_short_message_is_as_short() {
        let code = Code::mds(4, 2).expect("a code");
        let expected = [(0, 0), (1, 2), (33, 128), (64, 128), (65, 200), (101, 200), (400, 200), (401, 400)];
        for (message_bytes, bytes) in expected {
            assert_eq!(parity_bytes(code, message_bytes, 100), bytes, "{message_bytes} bytes");
        }
        assert_eq!(parity_bytes(code, u64::MAX, 1), u64::MAX / 4 * 2 + 2);
    }
}
