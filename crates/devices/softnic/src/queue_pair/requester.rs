//! Where a queue pair's sending half is in its send queue.

use longhaul_wire::Psn;

/// Where in the send queue the next packet comes from.
#[derive(Default)]
pub(crate) struct Requester {
    /// The sequence number of the next packet that no request has been given yet.
    next_psn: Psn,
    /// The request that the next packet is of: a place in the send queue. Requests before it have been sent and wait
    /// for acknowledgement (RC only).
    cursor_work: u32,
    /// The packet of that request.
    cursor_packet: u32,
}

impl Requester {
    /// Give out sequence numbers from this one on.
    pub(crate) fn start(&mut self, first: Psn) {
        self.next_psn = first;
    }

    /// The sequence number of the next packet that no request has been given yet.
    #[inline]
    pub(crate) fn next_psn(&self) -> Psn {
        self.next_psn
    }

    /// The sequence numbers of the next packets: the first of them.
    #[inline]
    pub(crate) fn take_psns(&mut self, packets: u32) -> Psn {
        let first = self.next_psn;
        self.next_psn = first.add(packets);
        first
    }

    /// The place in the send queue of the request that the next packet is of.
    #[inline]
    pub(crate) fn work(&self) -> usize {
        self.cursor_work as usize
    }

    /// The packet of that request.
    #[inline]
    pub(crate) fn packet(&self) -> u32 {
        self.cursor_packet
    }

    /// Back to the front of the send queue.
    pub(crate) fn rewind(&mut self) {
        self.go_back(0);
    }

    /// Back to a packet of the request at the front.
    pub(crate) fn go_back(&mut self, packet: u32) {
        self.cursor_work = 0;
        self.cursor_packet = packet;
    }

    /// Not before this packet of the request at the front: those before it have arrived.
    pub(crate) fn skip_to(&mut self, packet: u32) {
        if self.cursor_work == 0 {
            self.cursor_packet = self.cursor_packet.max(packet);
        }
    }

    /// The request at the front is done.
    pub(crate) fn leave_front(&mut self) {
        match self.cursor_work {
            // It had gone back into a request that turns out to have arrived.
            0 => self.cursor_packet = 0,
            _ => self.cursor_work -= 1,
        }
    }

    /// On by `packets` packets of a request with `packet_count` of them.
    #[inline]
    pub(crate) fn advance(&mut self, packets: u32, packet_count: u32) {
        self.cursor_packet += packets;
        if self.cursor_packet == packet_count {
            self.cursor_packet = 0;
            self.cursor_work += 1;
        }
    }
}
