//! Where a queue pair's sending half is in its send queue.

use longhaul_wire::Psn;

/// Where in the send queue the next packet comes from.
#[derive(Default)]
pub(crate) struct Requester {
    /// The sequence number of the next packet that no request has been given yet.
    pub(crate) next_psn: Psn,
    /// The request that the next packet is of: a place in the send queue. Requests before it have been sent and wait
    /// for acknowledgement (RC only).
    pub(crate) cursor_work: u32,
    /// The packet of that request.
    pub(crate) cursor_packet: u32,
}

impl Requester {
    /// Back to the front of the send queue.
    pub(crate) fn rewind(&mut self) {
        self.cursor_work = 0;
        self.cursor_packet = 0;
    }

    /// On by `packets` packets of a request with `packet_count` of them.
    pub(crate) fn advance(&mut self, packets: u32, packet_count: u32) {
        self.cursor_packet += packets;
        if self.cursor_packet == packet_count {
            self.cursor_packet = 0;
            self.cursor_work += 1;
        }
    }
}
