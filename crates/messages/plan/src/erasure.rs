//! Erasure coding with fallback: when every submessage is there or can be computed.
//!
//! Data and parity of the submessages leave one after the other. Without fallback, what decides is the last submessage:
//! all before it were computable before it was sent. It is computable after its data when nothing of it is lost, and
//! after j of its parity chunks with the probability that [`Submessage::computable_after`] has.
//!
//! Otherwise nothing new comes any more, and after β round trips (β = ¼) the receiver asks for what is missing of the
//! data that it cannot compute; it comes a round trip later, one packet after the other; and so on, with c packets
//! asked for:
//!
//! ```text
//!   T after r times of asking = (all data and parity)·t + RTT + Σ (β·RTT + RTT + c·t)
//! ```
//!
//! A submessage fails after e times with `f_e` ([`Submessage::failure`]), and all are computable with Π (1 − f_e).
//! Asking may be lost like everything: how many requests it takes for e to arrive is a negative binomial number. How
//! many chunks are asked for the first time has a distribution of its own ([`crate::asked`]). Only the packets are
//! asked for that a chunk lacks: the mean number of them ([`ChunkChain::lacking_after`]) for each chunk.
//!
//! In bursts neighbours fail together: without asking, Π is a power of the matrix of a submessage that is computable
//! ([`Submessage::computable`]); after asking it is taken to be as much larger than for submessages on their own.
//!
//! Approximated: that, the number of packets that a missing chunk lacks, and the number of chunks asked for after the
//! second time, which are taken at their means.

use longhaul_scheme::Code;

use crate::asked::{Failures, FirstAsked, Numbers, first_asked, gathered};
use crate::distribution::Distribution;
use crate::losses::ChunkChain;
use crate::probability::failures_before;
use crate::scheme::Timers;
use crate::submessage::Submessage;

/// A message that is sent with erasure coding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Erasure {
    pub(crate) chain: ChunkChain,
    pub(crate) code: Code,
    /// Of data.
    pub(crate) chunks: u64,
    /// Time on the wire of a chunk of data, and of one of parity.
    pub(crate) chunk_seconds: f64,
    pub(crate) parity_seconds: f64,
    /// Of the parity of a submessage.
    pub(crate) submessage_parity_bytes: u64,
    /// And of a packet of data.
    pub(crate) packet_seconds: f64,
    /// Loss of a packet: of what the receiver asks.
    pub(crate) packet_loss: f64,
    pub(crate) timers: Timers,
}

const ROUNDS_MAX: usize = 4000;
/// Fallback that is less likely does not show at the 99.9th percentile.
const SHOWN_MIN: f64 = 1e-4;

impl Erasure {
    pub(crate) fn submessages(&self) -> u64 {
        self.chunks.div_ceil(self.code.data_chunks() as u64)
    }

    /// Data chunks of the last submessage.
    fn last_data(&self) -> u32 {
        (self.chunks - (self.submessages() - 1) * self.code.data_chunks() as u64) as u32
    }

    /// Until all data and parity has left.
    pub(crate) fn end(&self) -> f64 {
        let parity = self.submessages() * self.code.parity_chunks() as u64;
        self.chunks as f64 * self.chunk_seconds + parity as f64 * self.parity_seconds
    }

    /// The distribution, without loss of the receiver's last report; and how many packets of data are sent again, in
    /// the mean.
    pub(crate) fn distribution(&self) -> (Distribution, f64) {
        let (count, parity) = (self.submessages(), self.code.parity_chunks());
        let last = Submessage::new(&self.chain, self.code, self.last_data());
        let data = self.code.data_chunks() as u32;
        let full = match count > 1 && self.last_data() != data {
            true => Submessage::new(&self.chain, self.code, data),
            false => last.clone(),
        };
        // In bursts neighbours fail together, and so fewer on their own: as many fewer as without asking, where it is
        // known exactly.
        let together = match (full.computable, last.computable, full.failure[0].0, last.failure[0].0) {
            (Some(each), Some(end), fails, last_fails) if fails > 1e-12 && fails < 0.999 && last_fails < 0.999 => {
                let all = (each.power(count - 1) * end).apply(self.chain.start).iter().sum::<f64>();
                let apart = (count - 1) as f64 * (-fails).ln_1p() + (-last_fails).ln_1p();
                if all > 1e-300 { (all.ln() / apart).clamp(0.1, 1.0) } else { 1.0 }
            }
            _ => 1.0,
        };
        // After `asked` requests that arrived: probability that all is computable, and chunks missing.
        let at = |asked: usize| {
            let of = |submessage: &Submessage| submessage.failure.get(asked).copied().unwrap_or((0.0, 0.0));
            let ((full_fails, full_missing), (last_fails, last_missing)) = (of(&full), of(&last));
            // Certain failure would be the logarithm of nothing.
            let [full_fails, last_fails] = [full_fails, last_fails].map(|fails| fails.min(1.0 - f64::EPSILON));
            let ln = (count - 1) as f64 * (-full_fails).ln_1p() + (-last_fails).ln_1p();
            let ln = ln * together;
            (-f64::exp_m1(ln), (count - 1) as f64 * full_missing + last_missing)
        };
        let end = self.end() + self.timers.round_trip;
        let (fallback, mut missing) = at(0);
        let mut atoms = Vec::new();
        let mut before = 0.0;
        let recovered = last.computable_after[parity];
        for (sent, probability) in last.computable_after.iter().enumerate() {
            let seconds = end - (parity - sent) as f64 * self.parity_seconds;
            atoms.push((seconds, (1.0 - fallback) * (probability - before).max(0.0) / recovered));
            before = *probability;
        }
        let mut repeated = 0.0;
        // Packets asked for before, in the mean.
        let mut packets_before = 0.0;
        // The second time of asking in chunks that lack as much as the first time, so that both can be added.
        let lacking_first = self.chain.lacking_after(0);
        let asked_again = at(1).1 / at(1).0.max(1e-300) * self.chain.lacking_after(1) / lacking_first;
        let first = self.first_asked(&full, fallback, together, asked_again);
        for asked in 1..=ROUNDS_MAX {
            let (fails_before, fails) = (at(asked - 1).0, at(asked).0);
            let missing_packets = missing * self.chain.lacking_after(asked as u32 - 1);
            let packets = if fails_before > 0.0 { missing_packets / fails_before } else { 0.0 };
            repeated += missing_packets;
            let done = (fails_before - fails).max(0.0);
            // The first times of asking make messages differ the most; later it is taken at its mean.
            let of_chunks = |numbers: &Numbers| -> Numbers {
                numbers.iter().map(|(number, share)| (number * lacking_first, *share)).collect()
            };
            let numbers = match &first {
                Some(first) if asked == 1 => of_chunks(&first.until_computable),
                Some(first) if asked == 2 => of_chunks(&first.until_computable_again),
                _ => vec![(packets_before + packets, 1.0)],
            };
            packets_before = match &first {
                Some(first) if asked == 2 => first.mean_again * lacking_first,
                _ => packets_before + packets,
            };
            // Asking may be lost, and is then done again: how many requests before this many arrived.
            for (lost, probability) in failures_before(asked as u64, self.packet_loss).iter().enumerate() {
                let (waited, weight) =
                    ((asked + lost) as f64 * (self.timers.fallback + self.timers.round_trip), done * probability);
                if weight > 1e-13 {
                    let few = gathered(&numbers, weight, fails);
                    let seconds = |number: f64| end + waited + number * self.packet_seconds;
                    atoms.extend(few.iter().map(|(number, share)| (seconds(*number), weight * share)));
                }
            }
            missing = at(asked).1;
            if fails < 1e-12 {
                break;
            }
        }
        atoms.retain(|atom| atom.1 > 0.0);
        (Distribution::of_atoms(atoms), repeated)
    }

    /// What is asked for first, where it shows at a percentile that anybody looks at.
    fn first_asked(&self, full: &Submessage, fallback: f64, together: f64, asked_again: f64) -> Option<FirstAsked> {
        if fallback < SHOWN_MIN || full.asked.is_empty() {
            return None;
        }
        let fails = full.failure[0].0;
        let again = full.failure.get(1).map_or(0.0, |failure| failure.0) / fails;
        // Clusters of failures: as many as the probability that there is none says.
        let clusters = -f64::exp_m1(together * (-fails.min(1.0 - f64::EPSILON)).ln_1p());
        let pairs = (fails / clusters - 1.0).clamp(0.0, 1.0);
        let (count, ways) = (self.submessages(), &full.asked);
        Some(first_asked(&Failures { count, ways, fails: clusters, again, pairs, asked_again: asked_again.max(1.0) }))
    }
}
