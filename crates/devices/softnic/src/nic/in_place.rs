//! Which packets are likely to arrive next, so that a port can have them written to where they belong.
//!
//! A port that receives with scatter lists can save a copy by guessing. A guess is harmless when it is wrong, because it only
//! covers bytes that nobody may look at yet: those of a WRITE whose first packet has been checked and carried out, that have not
//! been placed, and that are not in its last packet (programs poll the last bytes of a message to see it arrive). Whatever the
//! network writes there will be overwritten by the packet that belongs there before the message is complete.
//!
//! WRITEs with immediate of a packet each, one behind the other, are as good as one long WRITE if they go to a slot whose owner has
//! said that it is blank: nobody looks at bytes of it that no write has reached. Guessed is behind the last byte that any of them has
//! reached, and never the last packet of the slot.
//!
//! On an unreliable connection a message that is cut short leaves whatever was guessed there, and a copy of a message that is
//! complete could be cut short as well: so only packets that are newer than all before begin a message to guess for. (A program
//! that has the *same* bytes written again by a new message, and looks at them meanwhile, is told nothing by verbs about what
//! it sees; one that relies on them being the same must switch guessing off.)
//!
//! A guess is good only while the device stays locked: invalidation, deregistration and destruction wait for that lock, and so
//! for a receive in progress.

use longhaul_time::Instant;
use longhaul_verbs::{RemoteMemory, Transport};
use longhaul_wire::{Headers, Opcode, Psn, bth, immediate, packet, reth};

use crate::memory::{Payload, Piece};
use crate::nic::Nic;
use crate::port::Received;
use crate::queue_pair::QueuePair;

/// Headers of a WRITE with immediate that is one packet.
const SINGLE_WRITE_HEADER_BYTES: usize = bth::HEADER_BYTES + reth::HEADER_BYTES + immediate::HEADER_BYTES;

/// Packets, all with a full payload, that should arrive next, and where they belong. It holds for as long as the device stays
/// locked, and covers only bytes that nobody may look at yet: a wrong guess does no harm.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedPackets {
    queue_pair: u32,
    opcode: Opcode,
    first_psn: Psn,
    /// WRITEs of a packet each: where the peer says that the first one goes.
    remote: Option<RemoteMemory>,
    /// Bytes of the headers of each.
    header_bytes: usize,
    /// Where the first one's payload goes; the others follow.
    memory: *mut u8,
    /// Bytes of each payload.
    payload_bytes: usize,
    /// How many packets.
    count: usize,
}

impl ExpectedPackets {
    /// The longest headers that such a packet can have.
    pub const HEADER_BYTES_MAX: usize = SINGLE_WRITE_HEADER_BYTES;

    /// How many packets.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Expect no more than this many.
    pub fn truncate(&mut self, count_max: usize) {
        self.count = self.count.min(count_max);
    }

    /// Bytes of the headers of each.
    #[inline]
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Whether these are the headers of the `index`-th packet.
    #[inline]
    pub fn is_packet(&self, index: usize, headers: &[u8]) -> bool {
        let Ok((headers, header_bytes)) = Headers::parse_prefix(headers) else { return false };
        let expected_reth = self.remote.map(|RemoteMemory { address, key }| reth::Header {
            virtual_address: address + (index * self.payload_bytes) as u64,
            remote_key: key,
            dma_length: self.payload_bytes as u32,
        });
        header_bytes == self.header_bytes
            && headers.bth.opcode == self.opcode
            && headers.bth.pad_count == 0
            && headers.bth.destination_qp == self.queue_pair
            && headers.bth.psn == self.first_psn.add(index as u32)
            && headers.reth == expected_reth
    }

    /// Bytes of each datagram.
    #[inline]
    pub fn packet_bytes(&self) -> usize {
        packet::datagram_bytes(self.header_bytes, self.payload_bytes)
    }

    /// Where the payload of the `index`-th packet goes. Panics when fewer are expected.
    #[inline]
    pub fn payload(&self, index: usize) -> Piece {
        assert!(index < self.count, "packet {index} of {} that are expected", self.count);
        Piece { memory: self.memory.wrapping_add(index * self.payload_bytes), bytes: self.payload_bytes }
    }
}

impl Nic {
    /// The packets that should arrive next, at most `count_max`: those behind the packet of a WRITE that arrived last.
    pub fn expected_packets(&self, count_max: usize) -> Option<ExpectedPackets> {
        let queue_pair = self.queue_pairs.get(self.last_writer?)?;
        if !queue_pair.state().receives() {
            return None;
        }
        match queue_pair.arriving().single_write() {
            Some(behind) => self.expected_writes(queue_pair, behind, count_max),
            None => self.expected_of_write(queue_pair, count_max),
        }
    }

    /// WRITEs with immediate of one packet each, behind one that has just been carried out.
    fn expected_writes(
        &self,
        queue_pair: &QueuePair,
        behind: RemoteMemory,
        count_max: usize,
    ) -> Option<ExpectedPackets> {
        if !queue_pair.responder().is_message_new() {
            return None;
        }
        let mtu_bytes = queue_pair.mtu_bytes();
        let unwritten =
            self.shared.memory.find_unwritten(queue_pair.identity().accessor(), behind.key, behind.address)?;
        let count = ((unwritten.bytes / u64::from(mtu_bytes)) as usize).min(count_max);
        (count > 0).then_some(ExpectedPackets {
            queue_pair: queue_pair.identity().number,
            opcode: Opcode::UcWriteOnlyWithImmediate,
            first_psn: queue_pair.responder().expected_psn(),
            remote: Some(behind),
            header_bytes: SINGLE_WRITE_HEADER_BYTES,
            memory: unwritten.memory,
            payload_bytes: mtu_bytes as usize,
            count,
        })
    }

    /// The next packets of a long WRITE.
    fn expected_of_write(&self, queue_pair: &QueuePair, count_max: usize) -> Option<ExpectedPackets> {
        let mtu_bytes = queue_pair.mtu_bytes();
        let write = queue_pair.arriving().write_in_progress()?;
        // A reliable connection carries out each packet once; of an unreliable one's messages only those that are new will do.
        if queue_pair.identity().transport == Transport::UnreliableConnection
            && !queue_pair.responder().is_message_new()
        {
            return None;
        }
        // What a slot or a window is bound to now may have bytes that were placed already.
        if queue_pair.arriving().binding_count() != self.shared.memory.binding_count() {
            return None;
        }
        // Not the last packet.
        let count = ((write.left_bytes.saturating_sub(1) / mtu_bytes) as usize).min(count_max);
        if count == 0 {
            return None;
        }
        let bytes = count as u64 * u64::from(mtu_bytes);
        let who = queue_pair.identity().accessor();
        let memory = self.shared.memory.find_remote_write(who, write.key, write.address, bytes).ok()?;
        Some(ExpectedPackets {
            queue_pair: queue_pair.identity().number,
            opcode: match queue_pair.identity().transport {
                Transport::ReliableConnection => Opcode::RcWriteMiddle,
                _ => Opcode::UcWriteMiddle,
            },
            first_psn: queue_pair.responder().expected_psn(),
            remote: None,
            header_bytes: bth::HEADER_BYTES,
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
