//! Losses of consecutive chunks.
//!
//! The chain of packets (see [`crate::link`]) becomes a chain of chunks: [`ChunkChain`] has the matrices of a chunk
//! that is whole and of one that is lost. What is asked of it are numbers of losses among consecutive chunks, by the
//! usual recursion: the vector of (losses so far, state) is multiplied by `whole` where a chunk is not lost, and by
//! `lost` one row further where it is.

use crate::link::{Link, PlanError};
use crate::matrix::Matrix;

/// More than this share of chunks lost is not planned for: sums get long, and chunks of fewer packets are better in any
/// case.
const CHUNK_LOSS_MAX: f64 = 0.95;

/// Losses of chunks in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkChain {
    pub(crate) whole: Matrix,
    pub(crate) lost: Matrix,
    /// Share of time in each state.
    pub(crate) start: [f64; 2],
    /// Share of chunks that are lost.
    pub(crate) loss: f64,
    /// The same for each chunk, whatever happened to others.
    pub(crate) is_independent: bool,
    /// Packets of a chunk, and the share of packets that are lost.
    packets: u64,
    packet_loss: f64,
    /// In bursts. What is lost together is repeated together, and is then safer together than apart: the loss that each
    /// chunk of a run would have to have on its own for what the run lacks to come through as often. For the first
    /// repetition, and for the later ones: what a burst takes of a run is half of it in the mean, and that again is a
    /// run, of which losing any is losing it.
    repeated_loss: [f64; 2],
    /// The first of these over what it would be if whole chunks had to come again: 1 for chunks of one packet, less for
    /// more.
    pub(crate) lacking_share: f64,
}

impl ChunkChain {
    pub(crate) fn new(link: &Link, chunk_bytes: u32) -> Result<Self, PlanError> {
        let packets = u64::from(chunk_bytes / link.packet_bytes.max(1)).max(1);
        let (moves, loss, bad) = link.loss.chain();
        let keep = Matrix(moves.0.map(|[good, bad]| [good * (1.0 - loss[0]), bad * (1.0 - loss[1])]));
        let whole = keep.power(packets);
        let start = [1.0 - bad, bad];
        let is_independent = bad == 0.0;
        let loss = if is_independent {
            -f64::exp_m1(packets as f64 * (-loss[0]).ln_1p())
        } else {
            1.0 - whole.apply(start).iter().sum::<f64>()
        };
        if loss > CHUNK_LOSS_MAX {
            return Err(PlanError::Hopeless { chunk_bytes, chunk_loss: loss });
        }
        let lost = if is_independent { Matrix::IDENTITY.scaled(loss) } else { moves.power(packets) - whole };
        let whole = if is_independent { Matrix::IDENTITY.scaled(1.0 - loss) } else { whole };
        let packet_loss = link.loss.mean();
        let repeated_loss = [loss; 2];
        let mut chain = ChunkChain {
            whole,
            lost,
            start,
            loss,
            is_independent,
            packets,
            packet_loss,
            repeated_loss,
            lacking_share: 1.0,
        };
        if !is_independent && loss > 0.0 {
            (chain.repeated_loss, chain.lacking_share) = chain.loss_of_runs(keep);
        }
        Ok(chain)
    }

    /// Probability that a chunk is lost when the one before it was not: where a run of losses begins.
    pub(crate) fn beginning(&self) -> f64 {
        let whole = self.whole.apply(self.start);
        self.lost.apply(whole).iter().sum::<f64>() / (1.0 - self.loss)
    }

    /// Mean number of chunks lost in a row, where any is.
    pub(crate) fn mean_run(&self) -> f64 {
        match self.loss > 0.0 {
            true => self.loss / ((1.0 - self.loss) * self.beginning()),
            false => 1.0,
        }
    }

    /// From the matrix of a packet that is kept.
    fn loss_of_runs(&self, keep: Matrix) -> ([f64; 2], f64) {
        // The logarithm of the probability that some packets in a row are kept; they need not be a whole number.
        let ln_kept = |packets: f64| {
            let count = packets.floor() as u64;
            let ln_at = |count| keep.power(count).apply(self.start).iter().sum::<f64>().ln();
            ln_at(count) + (packets - packets.floor()) * (ln_at(count + 1) - ln_at(count))
        };
        let run = self.mean_run().max(1.0);
        // A chunk that is lost lacks this many of its packets.
        let lacking = (run * self.packets as f64 * self.packet_loss / self.loss).max(1.0);
        let first = -f64::exp_m1(ln_kept(lacking) / run);
        let of_whole = -f64::exp_m1(ln_kept(run * self.packets as f64) / run);
        ([first, -f64::exp_m1(ln_kept((lacking / 2.0).max(1.0)))], first / of_whole)
    }

    /// Probability that a chunk that was lost at first still is after this many repetitions. The receiver keeps
    /// packets, so that of a repeated chunk only those must come that it lacks: a packet is lost r + 1 times with pʳ⁺¹,
    /// and a chunk of n is there with (1 − pʳ⁺¹)ⁿ.
    pub(crate) fn missing_after(&self, repetitions: u32) -> f64 {
        if self.is_independent && self.loss > 0.0 {
            let tries = repetitions.saturating_add(1).min(1 << 20) as i32;
            return -f64::exp_m1(self.packets as f64 * (-self.packet_loss.powi(tries)).ln_1p()) / self.loss;
        }
        let [first, later] = self.repeated_loss;
        match repetitions {
            0 => 1.0,
            repetitions => first * later.powi(repetitions as i32 - 1),
        }
    }

    /// Packets that a chunk lacks, in the mean, when it is still missing after this many repetitions: these are asked
    /// for, not the chunk. In bursts it is as many as at first, because what takes one of them takes its neighbors.
    pub(crate) fn lacking_after(&self, repetitions: u32) -> f64 {
        let repetitions = if self.is_independent { repetitions.min(1 << 20) } else { 0 };
        let lost_packets = self.packets as f64 * self.packet_loss.powi(repetitions as i32 + 1);
        let lost_chunks = self.loss * self.missing_after(repetitions);
        // Where both are too small to be distinguished from zero, it is one packet.
        if lost_chunks > 0.0 { (lost_packets / lost_chunks).max(1.0) } else { 1.0 }
    }

    /// The same numbers of losses, one chunk further.
    pub(crate) fn step(&self, counts: &[[f64; 2]]) -> Vec<[f64; 2]> {
        let mut next = vec![[0.0; 2]; counts.len() + 1];
        for (lost, &row) in counts.iter().enumerate() {
            let (whole, gone) = (self.whole.apply(row), self.lost.apply(row));
            for state in 0..2 {
                next[lost][state] += whole[state];
                next[lost + 1][state] += gone[state];
            }
        }
        next
    }

    /// As if only one chunk in `apart` were looked at.
    pub(crate) fn thinned(&self, apart: u32) -> ChunkChain {
        let between = (self.whole + self.lost).power(u64::from(apart.saturating_sub(1)));
        match self.is_independent {
            true => *self,
            false => ChunkChain { whole: between * self.whole, lost: between * self.lost, ..*self },
        }
    }
}
