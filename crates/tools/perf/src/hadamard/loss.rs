//! What lost packets cost: the error of decoded tensors, and how it is distributed over blocks.

use std::f64::consts::TAU;
use std::ops::Range;

use longhaul_coding::{Bf16, ElementKind, F16, Hadamard, HadamardElement, HadamardLayout};

use super::request::{HadamardRequest, MeasuredLayout};
use crate::statistics::Sorted;

/// Elements of a decoded tensor, if a group is not longer.
pub(super) const ELEMENTS: usize = 1 << 18;
/// Streams of draws that a layout has for itself.
const STREAMS: u64 = 16;

/// Error of decoded tensors, over the energy of the tensor.
#[derive(Clone, Copy, Debug)]
pub struct MeanError {
    /// The mean of all trials.
    pub relative: f64,
    /// Of that mean: what the loss and the energies of the packets make it, whatever the trials were.
    pub standard_error: f64,
}

/// Errors of single blocks, over the energy of the block.
#[derive(Clone, Copy, Debug)]
pub struct BlockErrors {
    /// The 99.9th percentile, of blocks with one element that is not zero: all their coefficients have the same energy.
    pub p999: f64,
    /// The mean of the same blocks.
    pub mean: f64,
    /// What it is if each of the block's packets is lost on its own.
    pub binomial_p999: f64,
    /// The same of blocks of normal noise: the energy of their coefficients varies, too.
    pub noise_p999: f64,
    /// The largest difference between the error of a decoded block and the share of its energy that was lost.
    pub from_energy: f64,
}

/// Repeatable draws: SplitMix64.
pub(super) struct Draws(u64);

impl Draws {
    pub(super) fn new(seed: u64, stream: u64) -> Draws {
        Draws(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95))
    }

    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1, without 1.
    pub(super) fn share(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Normal, with mean 0 and variance 1 (Box and Muller).
    fn normal(&mut self) -> f64 {
        let (radius, angle) = ((-2.0 * (1.0 - self.share()).ln()).sqrt(), TAU * self.share());
        radius * angle.cos()
    }
}

/// The draws of a row, each purpose with a stream of its own.
#[derive(Clone, Copy)]
struct Streams {
    seed: u64,
    row: u64,
}

impl Streams {
    fn draws(self, purpose: u64) -> Draws {
        // The first are for what is not of a row.
        Draws::new(self.seed, (self.row + 1) * STREAMS + purpose)
    }
}

/// Loses packets of a layout and decodes. Rows with different numbers lose different packets.
pub(super) fn measure(row: usize, layout: &MeasuredLayout, request: &HadamardRequest) -> (MeanError, BlockErrors) {
    let streams = Streams { seed: request.seed, row: row as u64 };
    match layout.kind {
        ElementKind::F32 => measure_type::<f32>(streams, layout, request),
        ElementKind::Bf16 => measure_type::<Bf16>(streams, layout, request),
        ElementKind::F16 => measure_type::<F16>(streams, layout, request),
    }
}

fn measure_type<E: HadamardElement>(
    streams: Streams,
    layout: &MeasuredLayout,
    request: &HadamardRequest,
) -> (MeanError, BlockErrors) {
    let hadamard = layout.hadamard(request.seed);
    let group = layout.block * layout.stride;
    let mut draws = streams.draws(1);
    let noise: Vec<E> = (0..group.max(ELEMENTS)).map(|_| E::from_f32(draws.normal() as f32)).collect();
    let mean = mean_error(&hadamard, layout, &noise, request, streams.draws(4));
    let spikes: Vec<E> = spikes(layout, &mut draws);
    let shares = Shares::of(&hadamard, &spikes);
    let noise_shares = Shares::of(&hadamard, &noise[..group]);
    let errors = |shares: &Shares, stream| {
        let mut draws = streams.draws(stream);
        Sorted::new((0..request.samples).map(|sample| shares.lost(sample as usize, request.loss, &mut draws)))
    };
    let spike_errors = errors(&shares, 2);
    let blocks = BlockErrors {
        p999: spike_errors.percentile(99.9),
        mean: spike_errors.mean(),
        binomial_p999: binomial_p999(shares.packets, request.loss),
        noise_p999: errors(&noise_shares, 3).percentile(99.9),
        from_energy: from_energy(&hadamard, layout, &spikes, &shares, (request.loss, streams.draws(5))),
    };
    (mean, blocks)
}

/// Blocks with one element that is not zero, at a random place. Powers of two are exact in all types.
fn spikes<E: HadamardElement>(layout: &MeasuredLayout, draws: &mut Draws) -> Vec<E> {
    let mut tensor = vec![E::default(); layout.block * layout.stride];
    for block in tensor.chunks_exact_mut(layout.block) {
        let place = (draws.share() * block.len() as f64) as usize;
        block[place] = E::from_f32((draws.share() * 8.0).floor().exp2() as f32);
    }
    tensor
}

/// Loses each packet with the probability `loss`: ranges of bytes.
fn lose(packets: usize, packet_bytes: usize, loss: f64, draws: &mut Draws) -> Vec<Range<usize>> {
    let lost = (0..packets).filter(|_| draws.share() < loss);
    lost.map(|packet| packet * packet_bytes..(packet + 1) * packet_bytes).collect()
}

fn encode<E: HadamardElement>(hadamard: &Hadamard, tensor: &[E]) -> Vec<E> {
    let mut encoded = vec![E::default(); hadamard.layout().encoded_elements(tensor.len())];
    hadamard.encode(tensor, &mut encoded).expect("as long as the layout says");
    encoded
}

fn decode<E: HadamardElement>(hadamard: &Hadamard, encoded: &[E], missing: &[Range<usize>], decoded: &mut [E]) {
    hadamard.decode(&mut encoded.to_vec(), missing, decoded).expect("ranges of packets");
}

fn distance<E: HadamardElement>(one: &[E], other: &[E]) -> f64 {
    one.iter().zip(other).map(|(one, other)| f64::from(one.to_f32() - other.to_f32()).powi(2)).sum()
}

fn mean_error<E: HadamardElement>(
    hadamard: &Hadamard,
    layout: &MeasuredLayout,
    tensor: &[E],
    request: &HadamardRequest,
    mut draws: Draws,
) -> MeanError {
    let encoded = encode(hadamard, tensor);
    let energy: f64 = tensor.iter().map(|value| f64::from(value.to_f32()).powi(2)).sum();
    let mut decoded = vec![E::default(); tensor.len()];
    let errors = (0..request.trials).map(|_| {
        let packets = encoded.len() / layout.packet;
        let missing = lose(packets, layout.packet * layout.element_bytes(), request.loss, &mut draws);
        decode(hadamard, &encoded, &missing, &mut decoded);
        distance(tensor, &decoded) / energy
    });
    let relative = Sorted::new(errors).mean();
    MeanError { relative, standard_error: standard_error(&encoded, layout.packet, request) }
}

/// Of the mean share of energy that trials lose: packets are lost on their own, each with its part of the energy.
fn standard_error<E: HadamardElement>(encoded: &[E], packet: usize, request: &HadamardRequest) -> f64 {
    let energy = |values: &[E]| values.iter().map(|value| f64::from(value.to_f32()).powi(2)).sum::<f64>();
    let all = energy(encoded);
    let spread: f64 = encoded.chunks_exact(packet).map(|packet| (energy(packet) / all).powi(2)).sum();
    (request.loss * (1.0 - request.loss) * spread / f64::from(request.trials)).sqrt()
}

/// How the energy of each block of a group is shared among the group's packets.
struct Shares {
    packets: usize,
    /// `[block][packet]`.
    shares: Vec<f64>,
}

impl Shares {
    fn of<E: HadamardElement>(hadamard: &Hadamard, tensor: &[E]) -> Shares {
        let layout: &HadamardLayout = hadamard.layout();
        let encoded = encode(hadamard, tensor);
        let packets = encoded.len() / layout.packet();
        let mut shares = vec![0.0; layout.stride() * packets];
        for (block, shares) in shares.chunks_exact_mut(packets).enumerate() {
            for coefficient in 0..layout.block() {
                let at = layout.encoded_index(tensor.len(), block, coefficient);
                shares[at / layout.packet()] += f64::from(encoded[at].to_f32()).powi(2);
            }
            let energy: f64 = shares.iter().sum();
            shares.iter_mut().for_each(|share| *share /= energy);
        }
        Shares { packets, shares }
    }

    /// What one of the blocks loses when each packet is lost with the probability `loss`.
    fn lost(&self, sample: usize, loss: f64, draws: &mut Draws) -> f64 {
        let blocks = self.shares.len() / self.packets;
        let shares = &self.shares[sample % blocks * self.packets..][..self.packets];
        shares.iter().filter(|_| draws.share() < loss).sum()
    }
}

/// Decodes with losses, and compares each block's error with its lost energy.
fn from_energy<E: HadamardElement>(
    hadamard: &Hadamard,
    layout: &MeasuredLayout,
    tensor: &[E],
    shares: &Shares,
    (loss, mut draws): (f64, Draws),
) -> f64 {
    const TRIALS: usize = 4;
    let encoded = encode(hadamard, tensor);
    let mut decoded = vec![E::default(); tensor.len()];
    let packet_bytes = layout.packet * layout.element_bytes();
    let mut worst: f64 = 0.0;
    for _ in 0..TRIALS {
        let missing = lose(shares.packets, packet_bytes, loss, &mut draws);
        decode(hadamard, &encoded, &missing, &mut decoded);
        let blocks = tensor.chunks_exact(layout.block).zip(decoded.chunks_exact(layout.block));
        for ((sent, got), shares) in blocks.zip(shares.shares.chunks_exact(shares.packets)) {
            let energy: f64 = sent.iter().map(|value| f64::from(value.to_f32()).powi(2)).sum();
            let lost: f64 = missing.iter().map(|range| shares[range.start / packet_bytes]).sum();
            worst = worst.max((distance(sent, got) / energy - lost).abs());
        }
    }
    worst
}

/// The 99.9th percentile of the share of `packets` packets that are lost.
fn binomial_p999(packets: usize, loss: f64) -> f64 {
    let mut probability = (packets as f64 * (1.0 - loss).ln()).exp();
    let mut sum = probability;
    let mut lost = 0;
    while sum < 0.999 && lost < packets {
        probability *= (packets - lost) as f64 / (lost + 1) as f64 * loss / (1.0 - loss);
        lost += 1;
        sum += probability;
    }
    lost as f64 / packets as f64
}

/// The share of the energy in the packet that has most of it, of weights 1 ± 0.1, block 1024 and the largest stride.
pub(super) fn heaviest_packet(signs: bool, seed: u64) -> f64 {
    let layout = MeasuredLayout { kind: ElementKind::F32, block: 1024, packet: 1024, stride: 1024, signs };
    let mut draws = Draws::new(seed, 6);
    let weights: Vec<f32> = (0..1 << 20).map(|_| (1.0 + 0.1 * draws.normal()) as f32).collect();
    let encoded = encode(&layout.hadamard(seed), &weights);
    let energy = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    let heaviest = encoded.chunks_exact(layout.packet).map(energy).fold(0.0, f64::max);
    heaviest / energy(&encoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_the_binomial_are_those_of_tables() {
        // Computed elsewhere, at 5 %.
        for (packets, lost) in [(1, 1.0), (16, 4.0), (64, 10.0), (1024, 74.0)] {
            assert_eq!(binomial_p999(packets, 0.05) * packets as f64, lost, "{packets}");
        }
    }

    #[test]
    fn the_standard_error_is_that_of_packets() {
        let request = HadamardRequest { buffer_bytes: 0, rounds: 0, loss: 0.05, trials: 100, samples: 0, seed: 1 };
        // 64 packets with the same energy; then one with all of it.
        let mut encoded = vec![1.0_f32; 64 * 16];
        let expected = (0.05_f64 * 0.95 / 6400.0).sqrt();
        assert!((standard_error(&encoded, 16, &request) / expected - 1.0).abs() < 1e-9);
        encoded[16..].fill(0.0);
        assert!((standard_error(&encoded, 16, &request) / (8.0 * expected) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn rows_lose_different_packets_and_a_row_the_same_again() {
        let draws = |seed, row, purpose| {
            let mut draws = Streams { seed, row }.draws(purpose);
            (draws.word(), draws.word())
        };
        let mut all: Vec<_> = (0..17).flat_map(|row| (0..6).map(move |purpose| draws(1, row, purpose))).collect();
        assert_eq!(draws(1, 3, 4), draws(1, 3, 4));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 17 * 6);
    }

    #[test]
    fn draws_are_fair_and_repeatable() {
        let draw = |stream| {
            let mut draws = Draws::new(1, stream);
            (0..10_000).map(|_| draws.normal()).collect::<Vec<f64>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let sorted = Sorted::new(draw(1));
        assert!(sorted.mean().abs() < 0.04 && (sorted.standard_deviation() - 1.0).abs() < 0.03);
    }
}
