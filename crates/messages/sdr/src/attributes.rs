//! What a queue pair is made with.

use longhaul_congestion::ControllerName;
use longhaul_time::Duration;
use longhaul_verbs::{Gid, Mtu, PathAttributes};
use longhaul_wire::immediate_layout::ImmediateLayout;

use crate::queue_pair_error::CreateQueuePairError;

/// The largest first number of a message: no connection sends the other half of 64 bits.
const FIRST_NUMBER_MAX: u64 = 1 << 63;

/// Bytes of a chunk by default, for every scheme: one packet. A chunk is lost with any of its packets, so larger ones make a loss larger.
pub fn default_chunk_bytes(mtu: Mtu) -> u32 {
    mtu.byte_count()
}

/// What a queue pair is made with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueuePairAttributes {
    /// Our address, for the peer, and the UDP port there.
    pub gid: Gid,
    /// See [`QueuePairAttributes::gid`].
    pub udp_port: u16,
    /// The path to the peer; its destination comes with the peer's info.
    pub path: PathAttributes,
    /// Payload of a packet; the smaller of the two ends' counts.
    pub mtu: Mtu,
    /// Bytes of a chunk, a multiple of the MTU: what a bit of the bitmap stands for. By default [`default_chunk_bytes`].
    pub chunk_bytes: u32,
    /// The longest message.
    pub message_bytes_max: u64,
    /// How the immediate is divided.
    pub layout: ImmediateLayout,
    /// Generations of internal queue pairs: a packet may be late by one less than that many rounds of the message table.
    pub generations: u8,
    /// Packets in one write: 1 survives reordering; more save completions where the network keeps order.
    pub packets_per_write: u32,
    /// Receives posted to each internal queue pair, and so the data packets that may be in flight.
    pub receive_depth: u32,
    /// Writes in the send queue of each internal queue pair.
    pub send_depth: u32,
    /// How the rate and the window are controlled; `None` sends as fast as the device takes packets.
    pub congestion: Option<ControllerName>,
    /// Somebody grants the peer credit for this end ([`crate::QueuePair::take_credit_news`]), so that the peer may have the
    /// controller `credit`. An end that says so and grants nothing has the peer wait for ever.
    pub grants_credit: bool,
    /// The most that data is sent at, over all channels and generations, headers included, whatever congestion control says.
    pub rate_bits_per_second: Option<u64>,
    /// Taken for the round-trip time until it has been measured.
    pub round_trip_guess: Duration,
    /// The number of the first message in both directions, the same at both ends. Tests start near the end of the spaces that follow from it:
    /// slots, generations, addresses.
    pub first_number: u64,
    /// Random: keeps control messages of an earlier connection from being taken for this one's, and gives first sequence numbers.
    pub random: u64,
}

impl QueuePairAttributes {
    /// For an address of ours, with the paper's numbers.
    pub fn new(gid: Gid, udp_port: u16, mtu: Mtu) -> Self {
        QueuePairAttributes {
            gid,
            udp_port,
            path: PathAttributes::to(Gid::default()),
            mtu,
            chunk_bytes: default_chunk_bytes(mtu),
            message_bytes_max: 64 << 20,
            layout: ImmediateLayout::default(),
            generations: 4,
            packets_per_write: 1,
            receive_depth: 2048,
            send_depth: 512,
            congestion: None,
            grants_credit: false,
            rate_bits_per_second: None,
            round_trip_guess: Duration::from_millis(50),
            first_number: 0,
            random: 0,
        }
    }

    pub(crate) fn check(&self) -> Result<(), CreateQueuePairError> {
        let wrong = |what, expected: String| Err(CreateQueuePairError::Attribute { what, expected });
        let mtu = self.mtu.byte_count();
        if self.chunk_bytes == 0 || !self.chunk_bytes.is_multiple_of(mtu) {
            return wrong("chunk_bytes", format!("a multiple of the MTU, {mtu}"));
        }
        let most = self.layout.message_bytes_max(mtu);
        if self.message_bytes_max == 0 || self.message_bytes_max > most {
            return wrong("message_bytes_max", format!("1 to {most}: the packets that the immediate can count"));
        }
        if self.generations == 0 || self.packets_per_write == 0 || self.receive_depth == 0 || self.send_depth == 0 {
            return wrong("generations, packets_per_write, receive_depth, send_depth", "more than 0".to_owned());
        }
        if self.first_number > FIRST_NUMBER_MAX {
            return wrong("first_number", format!("at most {FIRST_NUMBER_MAX}: numbers never wrap"));
        }
        if self.packets_per_write > self.chunk_bytes / mtu {
            return wrong("packets_per_write", "at most a chunk's packets".to_owned());
        }
        Ok(())
    }
}

impl QueuePairAttributes {
    /// Random: control messages to this end carry it.
    pub(crate) fn receiver(&self) -> u32 {
        (self.random >> 32) as u32
    }

    pub(crate) fn first_psn(&self) -> u32 {
        self.random as u32 & 0xff_ffff
    }
}
