//! What can be recovered is recovered, byte for byte; what cannot is refused, and nothing is written.

use longhaul_coding::{Arrived, ChunkSet, Code, Coder, DecodeError, EncodeError, Kernel};
use proptest::prelude::*;

fn bytes(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|at| ((at + 1) * (2 * seed + 3)).wrapping_mul(0x9e37_79b1).rotate_right(13) as u8).collect()
}

/// A submessage as it was sent: chunks of `length` bytes, the last one of `last_length`.
struct Sent {
    coder: Coder,
    data: Vec<Vec<u8>>,
    parity: Vec<Vec<u8>>,
}

impl Sent {
    fn new(coder: Coder, data_chunks: usize, length: usize, last_length: usize) -> Sent {
        let mut data: Vec<Vec<u8>> = (0..data_chunks).map(|chunk| bytes(length, chunk)).collect();
        data[data_chunks - 1].truncate(last_length);
        let mut parity = vec![vec![0xcc; length]; coder.code().parity_chunks()];
        let sources: Vec<&[u8]> = data.iter().map(|chunk| &chunk[..]).collect();
        let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(|chunk| &mut chunk[..]).collect();
        coder.encode(&sources, &mut outputs).unwrap();
        Sent { coder, data, parity }
    }

    /// Decodes with what has arrived, and checks the outcome against the definition of the code.
    fn check(&mut self, arrived: &Arrived) {
        let code = self.coder.code().shortened(self.data.len());
        let is_lost = |chunk: usize| !arrived.data.contains(chunk);
        let damaged: Vec<Vec<u8>> = (0..self.data.len())
            .map(|chunk| if is_lost(chunk) { vec![0xdd; self.data[chunk].len()] } else { self.data[chunk].clone() })
            .collect();
        let lost_parity = [0xbb; 3];
        let parity: Vec<&[u8]> = (0..self.parity.len())
            .map(|chunk| if arrived.parity.contains(chunk) { &self.parity[chunk][..] } else { &lost_parity[..] })
            .collect();
        let mut data = damaged.clone();
        let mut slices: Vec<&mut [u8]> = data.iter_mut().map(|chunk| &mut chunk[..]).collect();
        let outcome = self.coder.decode(arrived, &mut slices, &parity);
        assert_eq!(outcome.is_ok(), code.can_decode(arrived), "{code} {arrived:?}");
        assert_eq!(outcome.is_ok(), should_decode(code, arrived), "{code} {arrived:?}");
        match outcome {
            Ok(()) => assert!(data == self.data, "{code} {arrived:?}: wrong bytes"),
            Err(DecodeError::TooMuchLost { .. }) => assert!(data == damaged, "{code} {arrived:?}: refused, but wrote"),
            Err(error) => panic!("{code} {arrived:?}: {error}"),
        }
    }
}

/// The definition, said in another way than the code says it.
fn should_decode(code: Code, arrived: &Arrived) -> bool {
    let (k, m) = (code.data_chunks(), code.parity_chunks());
    let lost: Vec<usize> = (0..k).filter(|&chunk| !arrived.data.contains(chunk)).collect();
    let there: Vec<usize> = (0..m).filter(|&chunk| arrived.parity.contains(chunk)).collect();
    if code.to_string().starts_with("mds") {
        return k - lost.len() + there.len() >= k;
    }
    let alone = |chunk: &usize| lost.iter().filter(|other| *other % m == chunk % m).count() == 1;
    lost.iter().all(|chunk| alone(chunk) && there.contains(&(chunk % m)))
}

fn subset(bits: usize, of: usize) -> ChunkSet {
    (0..of).filter(|chunk| bits >> chunk & 1 != 0).collect()
}

#[test]
fn every_pattern_of_small_codes() {
    let mut patterns = 0;
    for k in 1..=6 {
        for m in 1..=4 {
            for code in [Code::mds(k, m), Code::xor(k, m)].into_iter().flatten() {
                for data_chunks in 1..=k {
                    let mut sent = Sent::new(Coder::new(code), data_chunks, 37, 20 + data_chunks);
                    for bits in 0..1 << (data_chunks + m) {
                        let arrived =
                            Arrived { data: subset(bits, data_chunks), parity: subset(bits >> data_chunks, m) };
                        sent.check(&arrived);
                        patterns += 1;
                    }
                }
            }
        }
    }
    assert!(patterns > 5000, "only {patterns} patterns");
}

#[test]
fn every_loss_of_two_of_the_usual_code() {
    let mut sent = Sent::new(Coder::new(Code::mds(32, 8).unwrap()), 32, 130, 7);
    for first in 0..40 {
        for second in 0..40 {
            let mut arrived = Arrived { data: ChunkSet::first(32), parity: ChunkSet::first(8) };
            for lost in [first, second] {
                if lost < 32 { arrived.data.remove(lost) } else { arrived.parity.remove(lost - 32) }
            }
            sent.check(&arrived);
        }
    }
}

#[test]
fn the_largest_codes() {
    for (k, m) in [(128, 127), (127, 128), (1, 254), (254, 1), (200, 55)] {
        let mut sent = Sent::new(Coder::new(Code::mds(k, m).unwrap()), k, 65, 64);
        let lost = k.min(m);
        // As many as possible: the first ones, the last ones, one more.
        let all = Arrived { data: ChunkSet::first(k), parity: ChunkSet::first(m) };
        let mut arrived = all;
        (0..lost).for_each(|chunk| arrived.data.remove(chunk));
        sent.check(&arrived);
        arrived = all;
        (k - lost..k).for_each(|chunk| arrived.data.remove(chunk));
        sent.check(&arrived);
        (0..=m - lost).for_each(|chunk| arrived.parity.remove(chunk));
        sent.check(&arrived);
    }
}

fn random_code() -> impl Strategy<Value = Code> {
    let mds = (1..=60_usize, 1..=20_usize).prop_map(|(k, m)| Code::mds(k, m).unwrap());
    let xor = (1..=60_usize, 1..=20_usize).prop_map(|(k, m)| Code::xor(k, m.min(k)).unwrap());
    prop_oneof![mds, xor]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Codes, lengths, kernels and losses at random; about as many losses as can just be recovered.
    #[test]
    fn random_losses(
        code in random_code(),
        length in 1..9000_usize,
        cut in 0..9000_usize,
        short in 0..60_usize,
        losses in prop::collection::vec(any::<prop::sample::Index>(), 0..24),
        kernel in prop::sample::select(&Kernel::ALL[..]),
    ) {
        let kernel = if kernel.is_available() { kernel } else { Kernel::Portable };
        let data_chunks = 1 + (code.data_chunks() - 1).saturating_sub(short % code.data_chunks());
        let mut sent = Sent::new(Coder::with_kernel(code, kernel), data_chunks, length, length - cut % length);
        let m = code.parity_chunks();
        let mut arrived = Arrived { data: ChunkSet::first(data_chunks), parity: ChunkSet::first(m) };
        for loss in losses.iter().take(m + 1) {
            let chunk = loss.index(data_chunks + m);
            if chunk < data_chunks { arrived.data.remove(chunk) } else { arrived.parity.remove(chunk - data_chunks) }
        }
        sent.check(&arrived);
    }

    /// Parity one by one, and in ranges, is the same as all at once.
    #[test]
    fn parity_in_parts(code in random_code(), length in 1..500_usize, cut in any::<prop::sample::Index>()) {
        let sent = Sent::new(Coder::new(code), code.data_chunks(), length, length);
        let sources: Vec<&[u8]> = sent.data.iter().map(|chunk| &chunk[..]).collect();
        let cut = cut.index(code.parity_chunks() + 1);
        let mut parity = vec![vec![0x11; length]; code.parity_chunks()];
        let mut slices: Vec<&mut [u8]> = parity.iter_mut().map(|chunk| &mut chunk[..]).collect();
        let (first, second) = slices.split_at_mut(cut);
        sent.coder.encode_some(&sources, 0, first).unwrap();
        sent.coder.encode_some(&sources, cut, second).unwrap();
        prop_assert!(parity == sent.parity);
    }
}

#[test]
fn wrong_shapes_are_errors_that_say_what_was_expected() {
    let mut coder = Coder::new(Code::mds(2, 2).unwrap());
    let (mut a, mut b, mut c) = ([0; 8], [0; 8], [0; 9]);
    let chunk: &[u8] = &[1; 8];
    let encode = |data: &[&[u8]], parity: &mut [&mut [u8]]| coder.encode(data, parity).unwrap_err();
    assert!(matches!(encode(&[], &mut [&mut a, &mut b]), EncodeError::DataChunks { most: 2, got: 0, .. }));
    assert!(matches!(encode(&[chunk; 3], &mut [&mut a, &mut b]), EncodeError::DataChunks { got: 3, .. }));
    assert!(matches!(encode(&[chunk; 2], &mut [&mut a]), EncodeError::ParityChunks { count: 2, end: 1, .. }));
    assert!(matches!(encode(&[chunk; 2], &mut [&mut a, &mut c]), EncodeError::ParityLength { chunk: 1, got: 9, .. }));
    assert!(matches!(encode(&[&[1; 9]], &mut [&mut a, &mut b]), EncodeError::DataLength { most: 8, got: 9, .. }));
    let error = coder.encode_some(&[chunk; 2], 2, &mut [&mut a]).unwrap_err();
    assert_eq!(error.to_string(), "expected parity chunks below 2 for the code mds:2,2, got 2 to 3 (exclusive)");

    let arrived = Arrived { data: ChunkSet::first(1), parity: ChunkSet::first(2) };
    let mut decode = |data: &mut [&mut [u8]], parity: &[&[u8]]| coder.decode(&arrived, data, parity).unwrap_err();
    assert!(matches!(decode(&mut [], &[chunk; 2]), DecodeError::DataChunks { .. }));
    assert!(matches!(decode(&mut [&mut a, &mut b], &[chunk]), DecodeError::ParityChunks { expected: 2, got: 1, .. }));
    assert!(matches!(
        decode(&mut [&mut a, &mut b], &[chunk, &[1; 7]]),
        DecodeError::ParityLength { chunk: 1, expected: 8, got: 7 }
    ));
    assert!(matches!(
        decode(&mut [&mut a, &mut c], &[chunk; 2]),
        DecodeError::DataLength { chunk: 1, most: 8, got: 9 }
    ));
}
