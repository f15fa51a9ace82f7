//! The link: how fast, how long, how lossy; and what of that a message's chunks feel.
//!
//! Loss is given per packet. Both kinds of loss are one kind here, a chain of two states that moves once for each
//! packet's time on the wire (Gilbert 1960, Elliott 1963): independent loss is a chain that never leaves its good
//! state. With `P` the chain's matrix of moves and `l` the loss of each state, the matrices
//!
//! ```text
//!   kept[s][s'] = P[s][s'] · (1 − l[s'])        lost[s][s'] = P[s][s'] · l[s']
//! ```
//!
//! hold the probability that a packet is kept (lost) and the chain goes from `s` to `s'`. Consecutive packets multiply
//! matrices: a chunk of n packets is whole with `keptⁿ`, and is lost with `(kept + lost)ⁿ − keptⁿ`. For independent
//! loss that is the usual 1 − (1 − p)ⁿ.

use longhaul_scheme::CodeError;
use thiserror::Error;

use crate::losses::ChunkChain;
use crate::matrix::Matrix;

/// IPv4, UDP, BTH, RETH, immediate and ICRC around the payload of a WRITE with immediate: 20 + 8 + 12 + 16 + 4 + 4.
pub(crate) const WRITE_OVERHEAD_BYTES: u32 = 64;
/// Around a packet in the middle of a WRITE on a reliable connection, which has no RETH and no immediate.
pub(crate) const RELIABLE_OVERHEAD_BYTES: u32 = 44;
/// What Ethernet adds to each packet: preamble, header, checksum and gap.
pub const ETHERNET_OVERHEAD_BYTES: u32 = 38;

/// Which packets are lost.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Loss {
    /// Each packet on its own.
    Independent(f64),
    /// In bursts: a chain of two states that moves once for each packet's time.
    GilbertElliott {
        /// Of leaving the good state.
        p_good_to_bad: f64,
        /// Of leaving the bad state.
        p_bad_to_good: f64,
        /// Of losing a packet in the good state.
        loss_good: f64,
        /// Of losing a packet in the bad state.
        loss_bad: f64,
    },
}

impl Loss {
    /// A given share of packets lost, in bursts of a given mean length, nothing between bursts. A mean burst of 1 / (1
    /// − loss) packets is independent loss.
    pub fn bursts(mean_loss: f64, mean_burst_packets: f64) -> Self {
        let p_bad_to_good = 1.0 / mean_burst_packets;
        let p_good_to_bad = p_bad_to_good * mean_loss / (1.0 - mean_loss);
        Loss::GilbertElliott { p_good_to_bad, p_bad_to_good, loss_good: 0.0, loss_bad: 1.0 }
    }

    /// The share of packets lost in the long run.
    pub fn mean(&self) -> f64 {
        let (_, loss, bad) = self.chain();
        loss[0] * (1.0 - bad) + loss[1] * bad
    }

    /// The mean length of a burst; none where each packet is lost on its own.
    pub fn burst_packets(&self) -> Option<f64> {
        match *self {
            Loss::Independent(_) => None,
            Loss::GilbertElliott { p_bad_to_good, .. } => Some(1.0 / p_bad_to_good),
        }
    }

    /// The same kind of loss with another share: bursts keep their length.
    pub fn with_mean(&self, mean: f64) -> Self {
        match self.burst_packets() {
            None => Loss::Independent(mean),
            Some(packets) => Loss::bursts(mean, packets),
        }
    }

    /// Moves of the chain, loss of each state, and the share of time that it is in the bad one.
    pub(crate) fn chain(&self) -> (Matrix, [f64; 2], f64) {
        match *self {
            Loss::Independent(loss) => (Matrix::IDENTITY, [loss, loss], 0.0),
            Loss::GilbertElliott { p_good_to_bad, p_bad_to_good, loss_good, loss_bad } => {
                let moves = Matrix([[1.0 - p_good_to_bad, p_good_to_bad], [p_bad_to_good, 1.0 - p_bad_to_good]]);
                let bad = if p_good_to_bad == 0.0 { 0.0 } else { p_good_to_bad / (p_good_to_bad + p_bad_to_good) };
                (moves, [loss_good, loss_bad], bad)
            }
        }
    }
}

/// A link between two ends, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bits a second on the wire.
    pub rate_bits_per_second: f64,
    /// There and back.
    pub round_trip_seconds: f64,
    /// Which packets are lost.
    pub loss: Loss,
    /// Payload of a packet.
    pub packet_bytes: u32,
    /// What the link adds to each IP packet, such as [`ETHERNET_OVERHEAD_BYTES`].
    pub frame_overhead_bytes: u32,
}

/// As the paper counts: 3750 km are 25 ms there and back. (In glass light takes half as long again.)
const METRES_A_SECOND: f64 = 3e8;

impl Link {
    /// With packets of 4 KiB, and a rate that is that of IP packets.
    pub fn new(rate_bits_per_second: f64, round_trip_seconds: f64, loss: Loss) -> Self {
        Link { rate_bits_per_second, round_trip_seconds, loss, packet_bytes: 4096, frame_overhead_bytes: 0 }
    }

    /// The round trip over a distance, as the paper counts it: 25 ms for 3750 km.
    pub fn round_trip_over(kilometres: f64) -> f64 {
        2.0 * kilometres * 1000.0 / METRES_A_SECOND
    }

    /// Whether there can be such a link, and such a message in such chunks.
    pub fn check(&self, message_bytes: u64, chunk_bytes: u32) -> Result<(), PlanError> {
        let probability = |name, value: f64| match (0.0..1.0).contains(&value) {
            true => Ok(()),
            false => Err(PlanError::Probability { name, value }),
        };
        if !(self.rate_bits_per_second.is_finite() && (1e3..=1e15).contains(&self.rate_bits_per_second)) {
            return Err(PlanError::Rate(self.rate_bits_per_second));
        }
        if !(0.0..=1e4).contains(&self.round_trip_seconds) {
            return Err(PlanError::RoundTrip(self.round_trip_seconds));
        }
        match self.loss {
            Loss::Independent(loss) => probability("loss", loss)?,
            Loss::GilbertElliott { p_good_to_bad, p_bad_to_good, loss_good, loss_bad } => {
                probability("p_good_to_bad", p_good_to_bad)?;
                probability("loss_good", loss_good)?;
                if !(0.0..=1.0).contains(&loss_bad) {
                    return Err(PlanError::Probability { name: "loss_bad", value: loss_bad });
                }
                if !(p_bad_to_good > 0.0 && p_bad_to_good <= 1.0) {
                    return Err(PlanError::Probability { name: "p_bad_to_good", value: p_bad_to_good });
                }
                probability("loss", self.loss.mean())?;
            }
        }
        if self.packet_bytes == 0 || chunk_bytes == 0 || !chunk_bytes.is_multiple_of(self.packet_bytes) {
            return Err(PlanError::Chunk { chunk_bytes, packet_bytes: self.packet_bytes });
        }
        if !(1..=MESSAGE_BYTES_MAX).contains(&message_bytes) {
            return Err(PlanError::Message(message_bytes));
        }
        Ok(())
    }

    /// The share of chunks that are lost: one packet of a chunk is enough.
    pub fn chunk_loss(&self, chunk_bytes: u32) -> Result<f64, PlanError> {
        self.check(chunk_bytes.into(), chunk_bytes)?;
        Ok(ChunkChain::new(self, chunk_bytes)?.loss)
    }

    /// Time on the wire of some bytes in packets, each with its headers.
    pub(crate) fn wire_seconds(&self, bytes: u64, overhead_bytes: u32) -> f64 {
        let packets = bytes.div_ceil(u64::from(self.packet_bytes));
        8.0 * (bytes as f64 + packets as f64 * f64::from(overhead_bytes + self.frame_overhead_bytes))
            / self.rate_bits_per_second
    }

    /// The least time that a message can take: its bytes without headers, and a round trip.
    pub fn least_seconds(&self, message_bytes: u64) -> f64 {
        8.0 * message_bytes as f64 / self.rate_bits_per_second + self.round_trip_seconds
    }
}

/// The longest message: 2 TiB.
pub const MESSAGE_BYTES_MAX: u64 = 2 << 40;

/// What a plan cannot be made for.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No rate.
    #[error("a rate of {0} bit/s is out of range: use 1 kbit/s to 1 Pbit/s")]
    Rate(f64),
    /// No time.
    #[error("a round trip of {0} s is out of range: use 0 to 10000 s")]
    RoundTrip(f64),
    /// No probability, or a link that brings nothing over.
    #[error("expected {name} to be at least 0 and less than 1, got {value}")]
    Probability {
        /// Which.
        name: &'static str,
        /// What was given.
        value: f64,
    },
    /// Not a number of packets.
    #[error("expected a chunk that is a multiple of the packet's {packet_bytes} bytes, got {chunk_bytes} bytes")]
    Chunk {
        /// What was given.
        chunk_bytes: u32,
        /// What it must be a multiple of.
        packet_bytes: u32,
    },
    /// Too short or too long.
    #[error("a message of {0} bytes is out of range: use 1 byte to 2 TiB")]
    Message(u64),
    /// Hardly a chunk would arrive at first.
    #[error(
        "{chunk_loss:.3} of all chunks would be lost at first, which no scheme is made for: take a chunk of fewer packets, or a \
         better link"
    )]
    Hopeless {
        /// Bytes of a chunk.
        chunk_bytes: u32,
        /// Share of chunks that are lost.
        chunk_loss: f64,
    },
    /// A name that stands for no scheme.
    #[error("unknown scheme \"{0}\"; use sr:rto, sr:nack, ec:mds:K,M, ec:xor:K,M, rc or lowar:R,C")]
    SchemeName(String),
    /// It has no completion time.
    #[error(
        "{0} repeats nothing, so it has no time until everything has arrived; ask with a deadline which share has arrived by then"
    )]
    BestEffort(longhaul_scheme::NamedScheme),
    /// No such code.
    #[error(transparent)]
    Code(CodeError),
    /// Not a ring.
    #[error("a ring of {0} sites is out of range: use 2 to 64")]
    Ring(u32),
    /// Nothing to choose from.
    #[error("none of the schemes can be used on this link: {0}")]
    NoScheme(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_packet_of_a_chunk_is_enough() {
        let lost = |loss: Loss, packets: u32| Link::new(400e9, 0.025, loss).chunk_loss(packets * 4096);
        let independent = lost(Loss::Independent(1e-2), 16).expect("a link");
        assert!((independent - (1.0 - 0.99_f64.powi(16))).abs() < 1e-12, "{independent}");
        // Packets that are lost together take fewer chunks with them.
        let bursts = lost(Loss::bursts(1e-2, 8.0), 16).expect("a link");
        assert!(bursts > 1e-2 && bursts < 0.5 * independent, "{bursts}");
        assert!(matches!(lost(Loss::Independent(0.5), 16), Err(PlanError::Hopeless { .. })));
        assert!(Link::new(400e9, 0.025, Loss::Independent(0.0)).chunk_loss(1000).is_err());
    }
}
