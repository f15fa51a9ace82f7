//! The Hadamard transform through the public interface: properties, equal bytes of all kernels, rounding.

use std::collections::HashSet;

use longhaul_coding::{
    Bf16, F16, Hadamard, HadamardElement, HadamardError, HadamardKernel, HadamardLayout, HadamardSigns, sum_encoded,
};
use proptest::prelude::*;

fn layout(block: usize, packet: usize, stride: usize) -> HadamardLayout {
    HadamardLayout::new(block, packet, stride).expect("a layout")
}

/// Any possible layout with blocks and packets of at most 512 elements.
fn layouts() -> impl Strategy<Value = HadamardLayout> {
    (0..10_u32, 0..10_u32, 0..10_u32)
        .prop_filter_map("not a layout", |(b, p, s)| HadamardLayout::new(1 << b, 1 << p, 1 << s).ok())
}

fn signs() -> impl Strategy<Value = Option<HadamardSigns>> {
    proptest::option::of((any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(a, b, c)| HadamardSigns::new(a, b, c)))
}

fn hadamard(layout: HadamardLayout, signs: Option<HadamardSigns>) -> Hadamard {
    let hadamard = Hadamard::new(layout);
    signs.map_or(hadamard, |signs| hadamard.with_signs(signs))
}

/// Numbers between -1 and 1 of many magnitudes.
fn tensor(elements: usize, seed: u64) -> Vec<f32> {
    let mut state = seed | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let value = (state >> 40) as f32 / (1 << 24) as f32 * 2.0 - 1.0;
        value / (1 << (state & 7)) as f32
    };
    (0..elements).map(next).collect()
}

fn encode<T: HadamardElement, E: HadamardElement>(hadamard: &Hadamard, tensor: &[T]) -> Vec<E> {
    let mut encoded = vec![E::default(); hadamard.layout().encoded_elements(tensor.len())];
    hadamard.encode(tensor, &mut encoded).expect("lengths fit");
    encoded
}

fn decode<T: HadamardElement, E: HadamardElement>(hadamard: &Hadamard, encoded: &[E], elements: usize) -> Vec<T> {
    let mut decoded = vec![T::default(); elements];
    hadamard.decode(&mut encoded.to_vec(), &[], &mut decoded).expect("lengths fit");
    decoded
}

fn energy(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum()
}

fn distance(one: &[f32], other: &[f32]) -> f64 {
    one.iter().zip(other).map(|(one, other)| f64::from(one - other).powi(2)).sum()
}

proptest! {
    #[test]
    fn decoding_gives_back_the_tensor(
        layout in layouts(), signs in signs(), elements in 0..3000_usize, seed in any::<u64>(),
    ) {
        let (hadamard, tensor) = (hadamard(layout, signs), tensor(elements, seed));
        let decoded: Vec<f32> = decode(&hadamard, &encode::<f32, f32>(&hadamard, &tensor), elements);
        prop_assert!(distance(&tensor, &decoded) <= 1e-11 * energy(&tensor));
    }

    /// A block that lies in its packets as in the tensor: encoding is the transform and nothing else.
    #[test]
    fn the_transform_twice_is_the_identity_and_keeps_the_energy(power in 0..13_u32, seed in any::<u64>()) {
        let block = 1 << power;
        let (hadamard, tensor) = (Hadamard::new(layout(block, block, 1)), tensor(3 * block, seed));
        let once: Vec<f32> = encode(&hadamard, &tensor);
        let twice: Vec<f32> = encode(&hadamard, &once);
        prop_assert!(distance(&tensor, &twice) <= 1e-11 * energy(&tensor));
        prop_assert!((energy(&once) / energy(&tensor) - 1.0).abs() < 1e-5);
    }

    #[test]
    fn every_layout_is_a_permutation(layout in layouts(), elements in 1..3000_usize) {
        let encoded = layout.encoded_elements(elements);
        prop_assert!(encoded >= elements && encoded - elements < layout.block().max(layout.packet()));
        let all: HashSet<usize> = (0..encoded)
            .map(|at| layout.encoded_index(elements, at / layout.block(), at % layout.block()))
            .collect();
        prop_assert_eq!(all.len(), encoded);
        prop_assert_eq!(all.into_iter().max(), Some(encoded - 1));
    }

    /// What is encoded lies where `encoded_index` says, whatever the kernel and the tiles.
    #[test]
    fn coefficients_lie_where_the_layout_says(
        layout in layouts(), signs in signs(), elements in 1..2000_usize, seed in any::<u64>(),
    ) {
        let (hadamard, tensor) = (hadamard(layout, signs), tensor(elements, seed));
        let mut in_order = tensor.clone();
        in_order.resize(layout.encoded_elements(elements), 0.0);
        if let Some(signs) = signs {
            in_order.iter_mut().enumerate().for_each(|(at, value)| if signs.is_negated(at) { *value = -*value });
        }
        let block = layout.block();
        let coefficients: Vec<f32> = encode(&Hadamard::new(self::layout(block, block, 1)), &in_order);
        let encoded: Vec<f32> = encode(&hadamard, &tensor);
        for (at, coefficient) in coefficients.iter().enumerate() {
            let place = layout.encoded_index(elements, at / block, at % block);
            prop_assert_eq!(encoded[place], *coefficient);
        }
    }

    #[test]
    fn every_kernel_gives_the_same_bytes(
        layout in layouts(), signs in signs(), elements in 0..2500_usize, seed in any::<u64>(),
    ) {
        let hadamard = hadamard(layout, signs);
        let tensor = tensor(elements, seed);
        kernels_agree::<f32, f32>(&hadamard, &tensor, f32::to_bits)?;
        kernels_agree::<Bf16, Bf16>(&hadamard, &tensor, |element| u32::from(element.0))?;
        kernels_agree::<F16, F16>(&hadamard, &tensor, |element| u32::from(element.0))?;
        kernels_agree::<F16, f32>(&hadamard, &tensor, f32::to_bits)?;
    }

    #[test]
    fn a_sum_of_what_is_encoded_is_the_encoded_sum(
        layout in layouts(), signs in signs(), elements in 1..2000_usize, ranks in 1..9_u64, seed in any::<u64>(),
    ) {
        let hadamard = hadamard(layout, signs);
        let tensors: Vec<Vec<f32>> = (0..ranks).map(|rank| tensor(elements, seed ^ rank << 32)).collect();
        let encoded: Vec<Vec<f32>> = tensors.iter().map(|tensor| encode(&hadamard, tensor)).collect();
        let contributions: Vec<&[f32]> = encoded.iter().map(Vec::as_slice).collect();
        let mut sum = vec![f32::NAN; encoded[0].len()];
        sum_encoded(&contributions, &mut sum).expect("lengths fit");
        let plain: Vec<f32> = (0..elements).map(|at| tensors.iter().map(|tensor| tensor[at]).sum()).collect();
        let scale: f64 = tensors.iter().map(|tensor| energy(tensor)).sum();
        prop_assert!(distance(&encode::<f32, f32>(&hadamard, &plain), &sum) <= 1e-11 * scale);
        prop_assert!(distance(&decode::<f32, f32>(&hadamard, &sum, elements), &plain) <= 1e-11 * scale);
    }
}

fn kernels_agree<T: HadamardElement, E: HadamardElement>(
    hadamard: &Hadamard,
    tensor: &[f32],
    bits: impl Fn(E) -> u32,
) -> Result<(), TestCaseError> {
    let tensor: Vec<T> = tensor.iter().map(|value| T::from_f32(*value)).collect();
    let portable = hadamard.with_kernel(HadamardKernel::Portable);
    let encoded: Vec<E> = encode(&portable, &tensor);
    let decoded: Vec<T> = decode(&portable, &encoded, tensor.len());
    for kernel in HadamardKernel::ALL.into_iter().filter(|kernel| kernel.is_available()) {
        let hadamard = hadamard.with_kernel(kernel);
        let encoded_here: Vec<E> = encode(&hadamard, &tensor);
        for (here, there) in encoded_here.iter().zip(&encoded) {
            prop_assert_eq!(bits(*here), bits(*there), "{} encodes differently", kernel);
        }
        let decoded_here: Vec<T> = decode(&hadamard, &encoded, tensor.len());
        for (here, there) in decoded_here.iter().zip(&decoded) {
            prop_assert_eq!(here.to_f32().to_bits(), there.to_f32().to_bits(), "{} decodes differently", kernel);
        }
    }
    Ok(())
}

/// Long blocks, several tiles in a group, all strides of a packet: more than the random layouts have.
#[test]
fn every_kernel_gives_the_same_bytes_for_long_blocks() {
    for (block, packet, stride, elements) in [
        // Long enough for writes past the caches, in all types.
        (1024, 1024, 1024, 1 << 21),
        (1024, 1024, 16, (1 << 21) + 5000),
        (512, 512, 256, 1 << 21),
        (1024, 1024, 1, 1 << 21),
        (1024, 1024, 16, 40_000),
        (2048, 2048, 64, 300_000),
        (4096, 1024, 256, 1 << 20),
        (32_768, 1024, 4, 200_000),
        (1 << 17, 512, 1, 300_000),
    ] {
        let hadamard = hadamard(layout(block, packet, stride), Some(HadamardSigns::new(1, 2, 3)));
        let tensor = tensor(elements, 5);
        let agree = || {
            kernels_agree::<f32, f32>(&hadamard, &tensor, f32::to_bits)?;
            kernels_agree::<Bf16, Bf16>(&hadamard, &tensor, |element| u32::from(element.0))?;
            kernels_agree::<F16, F16>(&hadamard, &tensor, |element| u32::from(element.0))
        };
        agree().unwrap_or_else(|difference: TestCaseError| panic!("block {block} stride {stride}: {difference}"));
        let decoded: Vec<f32> = decode(&hadamard, &encode::<f32, f32>(&hadamard, &tensor), elements);
        assert!(distance(&tensor, &decoded) <= 1e-10 * energy(&tensor), "block {block} stride {stride}");
    }
}

/// Lines of the cache begin anywhere in what is encoded, and long tensors are written in whole lines.
#[test]
fn what_is_encoded_is_the_same_at_every_address() {
    let hadamard = hadamard(layout(1024, 1024, 1024), Some(HadamardSigns::new(1, 2, 3)));
    let tensor: Vec<Bf16> = tensor((1 << 21) + 40_000, 6).into_iter().map(Bf16::from_f32).collect();
    let expected: Vec<Bf16> = encode(&hadamard, &tensor);
    for kernel in HadamardKernel::ALL.into_iter().filter(|kernel| kernel.is_available()) {
        let hadamard = hadamard.with_kernel(kernel);
        for offset in [0, 1, 8, 15, 24, 31] {
            let mut memory = vec![Bf16(7); expected.len() + 64];
            hadamard.encode(&tensor, &mut memory[offset..][..expected.len()]).expect("a fitting length");
            assert!(memory[offset..][..expected.len()] == expected, "{kernel} at {offset}");
            let around = memory[..offset].iter().chain(&memory[offset + expected.len()..]);
            assert!(around.into_iter().all(|element| element.0 == 7), "{kernel} at {offset}");
        }
    }
}

/// The values of every kernel, worked out by hand.
#[test]
fn what_a_block_becomes_is_a_fixed_format() {
    let hadamard = Hadamard::new(layout(4, 4, 1));
    assert_eq!(encode::<f32, f32>(&hadamard, &[1.0, 2.0, 3.0, 5.0]), [5.5, -1.5, -2.5, 0.5]);
    let hadamard = Hadamard::new(layout(2, 2, 2));
    // Two blocks of two; a packet has one element of each. 1/√2 is rounded to f32.
    let half = std::f32::consts::FRAC_1_SQRT_2;
    let encoded: Vec<f32> = encode(&hadamard, &[1.0, 0.0, 0.0, 2.0]);
    assert_eq!(encoded, [half, 2.0 * half, half, -2.0 * half]);
}

#[test]
fn missing_bytes_count_as_zero_and_cost_a_block_their_share() {
    let hadamard = hadamard(layout(64, 64, 16), Some(HadamardSigns::new(9, 9, 9)));
    // One element a block: all coefficients have the same energy.
    let mut tensor = vec![0.0_f32; 16 * 64];
    (0..16).for_each(|block| tensor[block * 64 + block] = 1.0 + block as f32);
    let mut encoded: Vec<f32> = encode(&hadamard, &tensor);
    let mut decoded = vec![0.0_f32; tensor.len()];
    // Packets 3 and 5, the latter without its first and last byte in the report.
    let missing = [3 * 256..4 * 256, 5 * 256 + 1..6 * 256 - 1];
    encoded[3 * 64..4 * 64].fill(f32::NAN);
    hadamard.decode(&mut encoded, &missing, &mut decoded).expect("decodes");
    for block in 0..16 {
        let lost = distance(&tensor[block * 64..][..64], &decoded[block * 64..][..64]) / (1.0 + block as f64).powi(2);
        assert!((lost - 2.0 / 16.0).abs() < 1e-5, "block {block}: {lost}");
    }
}

#[test]
fn constant_blocks_overflow_in_f16_only_if_what_is_encoded_is_f16_without_signs() {
    let elements = 1 << 16;
    for value in [2048.0, 3000.0, 12_000.0] {
        let tensor = vec![F16::from_f32(value); elements];
        let plain = Hadamard::new(layout(1024, 1024, 64));
        let signed = plain.with_signs(HadamardSigns::new(1, 1, 1));
        let worst =
            |decoded: Vec<F16>| decoded.iter().map(|got| (got.to_f32() - value).abs() / value).fold(0.0, f32::max);
        // 32 times 2048 is more than f16 has.
        let encoded: Vec<F16> = encode(&plain, &tensor);
        assert!(encoded.iter().any(|element| element.to_f32().is_infinite()), "{value}");
        assert!(decode::<F16, F16>(&plain, &encoded, elements).iter().all(|element| !element.to_f32().is_finite()));
        // In f32 in transit, all is well, and exact.
        let encoded: Vec<f32> = encode(&plain, &tensor);
        assert_eq!(worst(decode(&plain, &encoded, elements)), 0.0, "{value}");
        // In bf16 the sum is one coefficient, rounded once.
        let encoded: Vec<Bf16> = encode(&plain, &tensor);
        assert!(worst(decode(&plain, &encoded, elements)) <= 1.0 / 256.0, "{value}");
        // With signs a coefficient is about as large as an element. Each is rounded to 11 bits, once.
        let encoded: Vec<F16> = encode(&signed, &tensor);
        assert!(encoded.iter().all(|element| element.to_f32().is_finite()), "{value}");
        assert!(worst(decode(&signed, &encoded, elements)) < 0.004, "{value}");
    }
}

/// Rounding after each butterfly would lose ten times as much.
#[test]
fn short_types_are_rounded_once() {
    let hadamard = hadamard(layout(1024, 1024, 64), Some(HadamardSigns::new(4, 5, 6)));
    let tensor = tensor(1 << 16, 77);
    let bf16: Vec<Bf16> = tensor.iter().map(|value| Bf16::from_f32(*value)).collect();
    let exact: Vec<f32> = encode::<Bf16, f32>(&hadamard, &bf16);
    let encoded: Vec<Bf16> = encode(&hadamard, &bf16);
    for (encoded, exact) in encoded.iter().zip(&exact) {
        assert_eq!(*encoded, Bf16::from_f32(*exact));
    }
    let f16: Vec<F16> = tensor.iter().map(|value| F16::from_f32(*value)).collect();
    let exact: Vec<f32> = encode::<F16, f32>(&hadamard, &f16);
    let encoded: Vec<F16> = encode(&hadamard, &f16);
    for (encoded, exact) in encoded.iter().zip(&exact) {
        assert_eq!(*encoded, F16::from_f32(*exact));
    }
}

#[test]
fn sums_of_short_types_are_rounded_once() {
    // 256 + 1 + 1 is 256 when each sum is rounded to bf16, whose neighbor of 256 is 258.
    let contributions = [256.0, 1.0, 1.0].map(|value| [Bf16::from_f32(value)]);
    let mut sum = [Bf16::default()];
    sum_encoded(&contributions.each_ref().map(|contribution| &contribution[..]), &mut sum).expect("lengths fit");
    assert_eq!(sum[0].to_f32(), 258.0);
    // Partial sums may be larger than f16 has.
    let contributions = [60_000.0, 60_000.0, -60_000.0].map(|value| [F16::from_f32(value)]);
    let mut sum = [F16::default()];
    sum_encoded(&contributions.each_ref().map(|contribution| &contribution[..]), &mut sum).expect("lengths fit");
    assert_eq!(sum[0].to_f32(), 60_000.0);
}

/// Infinities and what is no number reach the whole block in all types: nothing is hidden.
#[test]
fn what_is_no_number_stays_none() {
    fn check<T: HadamardElement, E: HadamardElement>(bad: T) {
        for kernel in HadamardKernel::ALL.into_iter().filter(|kernel| kernel.is_available()) {
            let hadamard = Hadamard::new(layout(256, 256, 16)).with_kernel(kernel);
            let mut tensor = vec![T::from_f32(0.5); 16 * 256];
            tensor[3 * 256 + 77] = bad;
            let decoded: Vec<T> = decode(&hadamard, &encode::<T, E>(&hadamard, &tensor), tensor.len());
            for (at, value) in decoded.iter().enumerate() {
                assert_eq!(value.to_f32().is_finite(), at / 256 != 3, "{kernel}: {bad:?} at {at}");
            }
        }
    }
    for bits in [0x7fff, 0xffff, 0x7f81, 0x7fc0, 0x7f80] {
        check::<Bf16, Bf16>(Bf16(bits));
        check::<Bf16, f32>(Bf16(bits));
    }
    for bits in [0x7fff, 0xffff, 0x7c01, 0x7e00, 0x7c00] {
        check::<F16, F16>(F16(bits));
        check::<F16, Bf16>(F16(bits));
    }
    for bits in [0x7fff_ffff, 0xffff_ffff, 0x7f80_0001, 0x7fc0_0000, 0x7f80_0000] {
        check::<f32, f32>(f32::from_bits(bits));
        check::<f32, Bf16>(f32::from_bits(bits));
        check::<f32, F16>(f32::from_bits(bits));
    }
}

#[test]
fn wrong_lengths_and_ranges_are_errors() {
    let hadamard = Hadamard::new(layout(8, 8, 2));
    let error = hadamard.encode(&[0.0_f32; 9], &mut [0.0_f32; 9]).expect_err("too short");
    assert_eq!(error, HadamardError::EncodedLength { elements: 9, expected: 16, got: 9 });
    let error = hadamard.decode(&mut [0.0_f32; 16], &[0..4, 60..65], &mut [0.0_f32; 9]).expect_err("beyond the end");
    assert_eq!(error.to_string(), "bytes 60 to 65 are missing of 64");
    let error = sum_encoded(&[&[0.0_f32; 2][..], &[0.0; 3]], &mut [0.0; 2]).expect_err("another length");
    assert_eq!(error, HadamardError::ContributionLength { contribution: 1, expected: 2, got: 3 });
}
