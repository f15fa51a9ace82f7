//! Which packets are likely to arrive next, so that a port can have them written to where they belong.
//!
//! A port that receives with scatter lists can save a copy by guessing. A guess is harmless when it is wrong, because it only
//! covers bytes that nobody may look at yet: those of a WRITE whose first packet has been checked and carried out, that have not
//! been placed, and that are not in its last packet (programs poll the last bytes of a message to see it arrive). Whatever the
//! network writes there will be overwritten by the packet that belongs there before the message is complete.
//!
//! On an unreliable connection a message that is cut short leaves whatever was guessed there, and a copy of a message that is
//! complete could be cut short as well: so only packets that are newer than all before begin a message to guess for. (A program
//! that has the *same* bytes written again by a new message, and looks at them meanwhile, is told nothing by verbs about what
//! it sees; one that relies on them being the same must switch guessing off.)
//!
//! A guess is good only while the device stays locked: invalidation, deregistration and destruction wait for that lock, and so
//! for a receive in progress.

use longhaul_time::Instant;
use longhaul_verbs::Transport;
use longhaul_wire::{Headers, Opcode, Psn};

use crate::memory::{Payload, Piece};
use crate::nic::Nic;
use crate::port::Received;

/// Packets of a WRITE, all with a full payload, that should arrive next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedPackets {
    queue_pair: u32,
    opcode: Opcode,
    first_psn: Psn,
    /// Where the first one's payload goes; the others follow.
    pub(crate) memory: *mut u8,
    /// Bytes of each payload.
    pub(crate) payload_bytes: usize,
    /// How many packets.
    pub(crate) count: usize,
}

impl ExpectedPackets {
    /// Whether these are the headers of the `index`-th packet.
    pub(crate) fn is_packet(&self, index: usize, headers: &[u8]) -> bool {
        let Ok((headers, header_bytes)) = Headers::parse_prefix(headers) else { return false };
        header_bytes == longhaul_wire::bth::HEADER_BYTES
            && headers.bth.opcode == self.opcode
            && headers.bth.pad_count == 0
            && headers.bth.destination_qp == self.queue_pair
            && headers.bth.psn == self.first_psn.add(index as u32)
    }

    /// Where the payload of the `index`-th packet goes.
    pub(crate) fn payload(&self, index: usize) -> Piece {
        Piece { memory: self.memory.wrapping_add(index * self.payload_bytes), bytes: self.payload_bytes }
    }
}

impl Nic {
    /// The packets that should arrive next, at most `count_max`: those of the WRITE whose packet arrived last.
    pub(crate) fn expected_packets(&self, count_max: usize) -> Option<ExpectedPackets> {
        let queue_pair = self.queue_pairs.get(self.last_writer?)?;
        let mtu_bytes = queue_pair.mtu_bytes();
        let write = queue_pair.traffic.arriving.write_in_progress().filter(|_| queue_pair.state.receives())?;
        // A reliable connection carries out each packet once; of an unreliable one's messages only those that are new will do.
        if queue_pair.identity.transport == Transport::UnreliableConnection && !queue_pair.responder.is_message_new() {
            return None;
        }
        // What a slot or a window is bound to now may have bytes that were placed already.
        if queue_pair.traffic.arriving.binding_count != self.shared.memory.binding_count() {
            return None;
        }
        // Not the last packet.
        let count = ((write.left_bytes.saturating_sub(1) / mtu_bytes) as usize).min(count_max);
        if count == 0 {
            return None;
        }
        let bytes = count as u64 * u64::from(mtu_bytes);
        let who = queue_pair.identity.accessor();
        let memory = self.shared.memory.find_remote_write(who, write.key, write.address, bytes).ok()?;
        Some(ExpectedPackets {
            queue_pair: queue_pair.identity.number,
            opcode: match queue_pair.identity.transport {
                Transport::ReliableConnection => Opcode::RcWriteMiddle,
                _ => Opcode::UcWriteMiddle,
            },
            first_psn: queue_pair.responder.expected_psn,
            memory,
            payload_bytes: mtu_bytes as usize,
            count,
        })
    }

    /// Something else has arrived: expect nothing until a packet of a WRITE arrives again. Otherwise whatever strangers send
    /// would go on being written over what a peer that died has left unfinished.
    pub(crate) fn expect_nothing(&mut self) {
        self.last_writer = None;
    }

    /// A packet has arrived whose payload lies in registered memory already; `received` holds its headers.
    pub(crate) fn handle_in_place(&mut self, received: &Received<'_>, payload: Piece, now: Instant) {
        match Headers::parse_prefix(received.datagram) {
            Ok((headers, _)) => self.accept(&headers, Payload::Registered(payload), received, now),
            Err(_) => self.shared.counters.rx_malformed += 1,
        }
    }
}
