//! The congestion notification packet: "one of your packets met congestion, send more slowly".
//!
//! ```text
//! | BTH: opcode 0x81, BECN set, MigReq 0, the sender's queue pair number, PSN 0 | 16 bytes of zero | ICRC |
//! ```
//!
//! A receiver that sees a packet marked in its IP header answers with one (A17.9.3). It has no extended header; the sixteen
//! bytes are a payload without meaning, zero when sent and ignored when received.

use crate::{Headers, Opcode, Psn};

/// Bytes of the payload.
pub const PAYLOAD_BYTES: usize = 16;

/// The payload.
pub const PAYLOAD: [u8; PAYLOAD_BYTES] = [0; PAYLOAD_BYTES];

/// The headers of a notification for the queue pair whose packet was marked, with the partition key of that packet (A17.9.3,
/// figure 6). BECN is not in the figure, and set by NICs all the same.
#[inline]
pub const fn headers(destination_qp: u32, partition_key: u16) -> Headers {
    let mut headers = Headers::new(Opcode::Cnp, destination_qp, Psn::new(0));
    headers.bth.migration = false;
    headers.bth.partition_key = partition_key;
    headers.bth.backward_ecn = true;
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emit() {
        let mut buffer = [0xa5; 13];
        assert_eq!(headers(0xd2, 0xffff).emit(&mut buffer), Ok(12));
        assert_eq!(buffer, [0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0xd2, 0, 0, 0, 0, 0xa5]);
    }
}
