//! Go-back-N: what a reliable connection does, alone and over LoWAR's shim.
//!
//! Packets leave in order, τ apart. When one is lost, the next one that arrives makes the receiver say so, once; a
//! round trip later the sender goes on from the lost packet, and everything sent meanwhile was for nothing. So each
//! loss costs A = RTT + 2·τ, and τ for each packet lost right behind it. The receiver says it once only: when that is
//! lost, or the packet is lost again when it is repeated, the sender waits for its timeout Θ, and again each time that
//! the repetition is lost. The same holds when the last packet is lost, behind which nothing comes, or its
//! acknowledgement:
//!
//! ```text
//!   T = M·τ + RTT + A·(N − X) + Θ·(X + Y + Z)
//!
//!   N  losses, binomial: each of M − 1 packets counts once, with the probability that it is lost when the one before it was not
//!   X  of them whose report was lost: binomial of N
//!   Y  repetitions that were lost: one for each success of N, negative binomial
//!   Z  tries of the end that failed: geometric
//! ```
//!
//! Up to a thousand losses the sum is taken over all likely (N, X, Y + Z); for more it is near a gamma distribution
//! with its mean, variance and skewness.
//!
//! **The shim** LoWAR(r, c) sends c repair packets behind each r packets: an XOR code of interleaved groups
//! ([`Submessage`]). A block that it cannot recover is what a loss is without it. It shows at the end of the block, so
//! A is longer by the repair packets and by what is behind the first loss that is not recovered: of two single losses
//! the first is two thirds of a block from its end in the mean, a burst is anywhere. Where there are few losses, that
//! has a distribution.

use longhaul_scheme::Code;

use crate::distribution::Distribution;
use crate::losses::ChunkChain;
use crate::probability::{NEGLIGIBLE, binomial, failures_before, normal_quantile, skewed_quantile};
use crate::submessage::Submessage;

/// A message on a reliable connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GoBackN {
    /// Of packets.
    pub(crate) chain: ChunkChain,
    pub(crate) packets: u64,
    /// Time on the wire of a packet.
    pub(crate) packet_seconds: f64,
    pub(crate) round_trip: f64,
    pub(crate) timeout: f64,
    pub(crate) shim: Option<Code>,
}

/// Losses, and what each costs.
struct Costs {
    lossless: f64,
    trials: u64,
    loss: f64,
    going_back: f64,
    report_lost: f64,
    lost_again: f64,
    end_fails: f64,
    timeout: f64,
    /// The part of `going_back` that is not the same for each loss: what is behind it in its block.
    behind: Option<Behind>,
}

/// How much of a block is behind a loss that is not recovered.
#[derive(Clone, Copy)]
struct Behind {
    block_seconds: f64,
    /// Anywhere, or the first of two.
    is_burst: bool,
}

impl Behind {
    /// What one of these equally likely parts of all losses has behind it, all `count` together.
    fn seconds(self, count: u64, part: u32) -> f64 {
        let share = (f64::from(part) + 0.5) / f64::from(PARTS);
        let quantile = if self.is_burst { share } else { share.sqrt() };
        let [mean, variance] = if self.is_burst { [1.0 / 2.0, 1.0 / 12.0] } else { [2.0 / 3.0, 1.0 / 18.0] };
        let of_all = match count {
            1 => quantile,
            count => count as f64 * mean + (count as f64 * variance).sqrt() * normal_quantile(share),
        };
        self.block_seconds * of_all
    }
}

/// Parts that losses are looked at in.
const PARTS: u32 = 12;
/// With more losses, in the mean, where they are in their blocks evens out.
const LOSSES_LOOKED_AT_MAX: f64 = 4.0;

/// More losses are not counted one by one.
const LOSSES_COUNTED_MAX: f64 = 1000.0;
const ATOMS_MAX: f64 = 400_000.0;

impl GoBackN {
    pub(crate) fn distribution(&self) -> Distribution {
        self.costs().distribution()
    }

    /// Packets that are sent for nothing, in the mean, and repair packets.
    pub(crate) fn extra_packets(&self) -> f64 {
        let costs = self.costs();
        let losses = costs.trials as f64 * costs.loss;
        let (packets, on_the_way) = (self.packets as f64, costs.going_back / self.packet_seconds);
        let wasted =
            if on_the_way >= packets { packets / 2.0 } else { on_the_way - on_the_way * on_the_way / (2.0 * packets) };
        losses * wasted + self.repair_packets() as f64
    }

    fn blocks(&self) -> u64 {
        self.shim.map_or(0, |code| self.packets.div_ceil(code.data_chunks() as u64))
    }

    fn repair_packets(&self) -> u64 {
        let Some(code) = self.shim else { return 0 };
        let last = self.packets - (self.blocks() - 1) * code.data_chunks() as u64;
        (self.blocks() - 1) * code.parity_chunks() as u64 + last.min(code.parity_chunks() as u64)
    }

    fn costs(&self) -> Costs {
        let (tau, packet_loss) = (self.packet_seconds, self.chain.loss);
        let data = self.packets as f64 * tau;
        match self.shim {
            None => Costs {
                lossless: data + self.round_trip,
                trials: self.packets - 1,
                loss: self.chain.beginning(),
                going_back: self.round_trip + (1.0 + self.chain.mean_run()) * tau,
                report_lost: packet_loss,
                lost_again: packet_loss,
                end_fails: 1.0 - (1.0 - packet_loss) * (1.0 - packet_loss),
                timeout: self.timeout,
                behind: None,
            },
            Some(code) => {
                let size = (code.data_chunks() as u64).min(self.packets) as u32;
                let parity = code.parity_chunks().min(size as usize);
                let short =
                    Code::new(code.kind(), code.data_chunks(), parity).expect("it has no more parity than the code");
                let block = Submessage::new(&self.chain, short, size);
                let on_its_own = block.failure[0].0;
                // After a burst the sender waits until it has ended: a block begins behind one that was recovered.
                let fails = match block.computable.filter(|_| on_its_own > 1e-9) {
                    None => on_its_own,
                    Some(recovered) => {
                        let before = recovered.apply(self.chain.start);
                        1.0 - recovered.apply(before).iter().sum::<f64>() / before.iter().sum::<f64>()
                    }
                };
                // The receiver says it once for each packet: only when the same one is lost again, and cannot be
                // recovered again, the sender waits for its timeout. That takes another loss in its group, or a burst
                // that reaches the next of the group.
                let group = f64::from(size) / parity as f64;
                let stays = (1.0 - 1.0 / self.chain.mean_run()).max(0.0);
                let another = -f64::exp_m1(group * (-packet_loss).ln_1p());
                let lost_again = packet_loss * (another + stays.powi(parity as i32)).min(1.0);
                let repair = ((self.blocks() - 1) * code.parity_chunks() as u64) as f64 * tau;
                let behind = Behind { block_seconds: f64::from(size) * tau, is_burst: !self.chain.is_independent };
                let share = if behind.is_burst { 1.0 / 2.0 } else { 2.0 / 3.0 };
                let rest = share * behind.block_seconds + parity as f64 * tau;
                Costs {
                    lossless: data + repair + self.round_trip,
                    trials: self.blocks(),
                    loss: fails,
                    going_back: self.round_trip + rest,
                    report_lost: packet_loss,
                    lost_again,
                    end_fails: packet_loss,
                    timeout: self.timeout,
                    behind: Some(behind).filter(|_| self.blocks() as f64 * fails < LOSSES_LOOKED_AT_MAX),
                }
            }
        }
    }
}

impl Costs {
    fn distribution(&self) -> Distribution {
        let losses = self.trials as f64 * self.loss;
        let timeouts = losses * (self.report_lost + self.lost_again / (1.0 - self.lost_again)) + 1.0;
        let width = |mean: f64| 16.0 * mean.sqrt() + 8.0;
        if losses > LOSSES_COUNTED_MAX || width(losses) * width(timeouts) * width(timeouts) > ATOMS_MAX {
            let [mean, deviation, skewness] = self.moments();
            return Distribution::of_quantiles(|share| {
                self.lossless + skewed_quantile(mean, deviation, skewness, share).max(0.0)
            });
        }
        let end = failures_before(1, self.end_fails);
        let mut atoms = Vec::new();
        let (first, probabilities) = binomial(self.trials, self.loss);
        for (index, probability) in probabilities.iter().enumerate().filter(|(_, probability)| **probability > 1e-13) {
            let count = first + index as u64;
            // Y + Z.
            let again = failures_before(count, self.lost_again);
            let mut waits = vec![0.0; again.len() + end.len()];
            for (one, p) in again.iter().enumerate().filter(|(_, p)| **p > NEGLIGIBLE) {
                end.iter().enumerate().for_each(|(other, q)| waits[one + other] += p * q);
            }
            let (first_silent, silent) = binomial(count, self.report_lost);
            for (index, p) in silent.iter().enumerate().filter(|(_, p)| **p > 1e-12) {
                let silent = first_silent + index as u64;
                for (waited, q) in waits.iter().enumerate().filter(|(_, q)| **q > 1e-12) {
                    let weight = probability * p * q;
                    if weight > 1e-13 {
                        let timeouts = silent as f64 + waited as f64;
                        let seconds =
                            self.lossless + (count - silent) as f64 * self.going_back + timeouts * self.timeout;
                        match self.behind.filter(|_| count > silent) {
                            None => atoms.push((seconds, weight)),
                            Some(behind) => {
                                let mean = (0..PARTS).map(|part| behind.seconds(count - silent, part)).sum::<f64>();
                                let mean = mean / f64::from(PARTS);
                                atoms.extend((0..PARTS).map(|part| {
                                    let moved = behind.seconds(count - silent, part) - mean;
                                    (seconds + moved, weight / f64::from(PARTS))
                                }));
                            }
                        }
                    }
                }
            }
        }
        Distribution::of_atoms(atoms)
    }

    /// Mean, deviation and skewness of what is lost in time.
    fn moments(&self) -> [f64; 3] {
        let again = self.lost_again / (1.0 - self.lost_again);
        let again_variance = again / (1.0 - self.lost_again);
        let (back, silent) = (self.going_back, self.report_lost);
        let cost = back + silent * (self.timeout - back) + again * self.timeout;
        let variance = silent * (1.0 - silent) * (self.timeout - back).powi(2) + again_variance * self.timeout.powi(2);
        let third = silent * (self.timeout - back).powi(3) + again * self.timeout.powi(3);
        let (count, rest) = (self.trials as f64 * self.loss, 1.0 - self.loss);
        let end = self.end_fails / (1.0 - self.end_fails);
        let mean = count * cost + end * self.timeout;
        let all = count * (variance + rest * cost * cost) + end / (1.0 - self.end_fails) * self.timeout.powi(2);
        let skew = count * (rest * (1.0 - 2.0 * self.loss) * cost.powi(3) + 3.0 * rest * cost * variance + third);
        [mean, all.sqrt(), (skew / all.powf(1.5)).max(0.0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(trials: u64, loss: f64) -> Costs {
        Costs {
            lossless: 1.0,
            trials,
            loss,
            going_back: 0.1,
            report_lost: loss,
            lost_again: loss,
            end_fails: 2.0 * loss,
            timeout: 0.3,
            behind: None,
        }
    }

    #[test]
    fn counting_and_moments_agree() {
        for (trials, loss) in [(90_000, 1e-2), (900_000, 1e-3)] {
            let costs = costs(trials, loss);
            let counted = costs.distribution();
            let [mean, deviation, skewness] = costs.moments();
            assert!((counted.mean() / (1.0 + mean) - 1.0).abs() < 1e-3, "{} {mean}", counted.mean());
            for share in [0.01, 0.5, 0.99, 0.999] {
                let (one, other) = (counted.quantile(share), 1.0 + skewed_quantile(mean, deviation, skewness, share));
                assert!((one / other - 1.0).abs() < 3e-3, "{share}: {one} {other}");
            }
        }
        assert_eq!(costs(0, 0.0).distribution().mean(), 1.0);
    }
}
