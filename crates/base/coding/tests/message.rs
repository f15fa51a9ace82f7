//! Whole messages of all sizes, on one thread and on several.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Mutex;

use longhaul_coding::{
    Arrived, ChunkSet, Code, Coder, DecodeMessageError, EncodeMessageError, LayoutError, MessageLayout,
};

const CHUNK_BYTES: usize = 100;

fn threads(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

fn message(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 131 + at / 251) as u8).collect()
}

fn sizes() -> impl Iterator<Item = usize> {
    let submessage = 5 * CHUNK_BYTES;
    [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1]
        .into_iter()
        .chain((1..=3).flat_map(move |n| [n * submessage - 1, n * submessage, n * submessage + 1]))
        .chain([20 * submessage + 3 * CHUNK_BYTES + 17])
}

fn codes() -> [Code; 2] {
    [Code::mds(5, 3).unwrap(), Code::xor(5, 3).unwrap()]
}

fn encode(coder: &Coder, layout: &MessageLayout, count: usize, data: &[u8]) -> Vec<u8> {
    let mut parity = vec![0x77; layout.parity_bytes()];
    let ready = Mutex::new(Vec::new());
    coder
        .encode_message(layout, threads(count), data, &mut parity, |submessage| ready.lock().unwrap().push(submessage))
        .unwrap();
    let ready = ready.into_inner().unwrap();
    assert_eq!(ready.len(), layout.submessages(), "each submessage is said to be ready once");
    assert_eq!(ready.iter().copied().collect::<BTreeSet<_>>(), (0..layout.submessages()).collect());
    if count == 1 {
        assert!(ready.is_sorted());
    }
    parity
}

#[test]
fn parity_is_that_of_the_submessages() {
    for code in codes() {
        for size in sizes() {
            let (coder, data) = (Coder::new(code), message(size));
            let layout = MessageLayout::new(code, CHUNK_BYTES, size).unwrap();
            let parity = encode(&coder, &layout, 1, &data);
            assert_eq!(parity, encode(&coder, &layout, 3, &data), "{code}, {size} bytes");
            for submessage in 0..layout.submessages() {
                let chunks: Vec<&[u8]> = data[layout.data_range(submessage)].chunks(CHUNK_BYTES).collect();
                assert_eq!(layout.submessage_code(submessage).data_chunks(), chunks.len());
                let mut expected = [[0; CHUNK_BYTES]; 3];
                coder.encode(&chunks, &mut expected.each_mut().map(|chunk| &mut chunk[..])).unwrap();
                assert_eq!(parity[layout.parity_range(submessage)], *expected.as_flattened());
            }
        }
    }
}

#[test]
fn what_is_lost_is_computed_wherever_it_is() {
    for code in codes() {
        for (size, count) in sizes().flat_map(|size| [(size, 1), (size, 2), (size, 4)]) {
            let (mut coder, data) = (Coder::new(code), message(size));
            let layout = MessageLayout::new(code, CHUNK_BYTES, size).unwrap();
            let mut parity = encode(&coder, &layout, count, &data);
            let mut damaged = data.clone();
            // Of submessage n: data chunk n mod 5, and with it a parity chunk that is not needed for it.
            let lost_data = |submessage: usize| submessage % 5;
            let lost_parity = |submessage: usize| (submessage % 5 + 1) % 3;
            for submessage in 0..layout.submessages() {
                let lost = damaged[layout.data_range(submessage)].chunks_mut(CHUNK_BYTES).nth(lost_data(submessage));
                lost.into_iter().for_each(|chunk| chunk.fill(0xdd));
                let parity = &mut parity[layout.parity_range(submessage)];
                parity[lost_parity(submessage) * CHUNK_BYTES..][..CHUNK_BYTES].fill(0xbb);
            }
            let arrived = |submessage: usize| {
                let mut arrived = Arrived { data: ChunkSet::first(5), parity: ChunkSet::first(3) };
                arrived.data.remove(lost_data(submessage));
                arrived.parity.remove(lost_parity(submessage));
                arrived
            };
            coder.decode_message(&layout, threads(count), arrived, &mut damaged, &parity).unwrap();
            assert!(damaged == data, "{code}, {size} bytes, {count} threads");
        }
    }
}

#[test]
fn one_submessage_too_damaged_and_nothing_is_written() {
    let code = Code::mds(5, 3).unwrap();
    let layout = MessageLayout::new(code, CHUNK_BYTES, 3000).unwrap();
    let mut data = vec![0xdd; 3000];
    let parity = vec![0; layout.parity_bytes()];
    let arrived = |submessage: usize| Arrived {
        data: ChunkSet::first(if submessage == 4 { 1 } else { 2 }),
        parity: ChunkSet::first(3),
    };
    let error = Coder::new(code).decode_message(&layout, threads(2), arrived, &mut data, &parity).unwrap_err();
    assert!(matches!(error, DecodeMessageError::Submessage { submessage: 4, .. }), "{error}");
    assert_eq!(data, [0xdd; 3000]);
}

#[test]
fn wrong_sizes_are_errors() {
    let [code, other] = codes();
    assert_eq!(MessageLayout::new(code, 0, 1), Err(LayoutError::EmptyChunks));
    assert!(matches!(MessageLayout::new(code, usize::MAX / 2, 1), Err(LayoutError::TooLarge { .. })));
    // With more parity than data, the data alone would fit.
    let heavy = Code::mds(1, 9).unwrap();
    assert!(matches!(MessageLayout::new(heavy, 1, usize::MAX / 2), Err(LayoutError::TooLarge { .. })));
    let layout = MessageLayout::new(code, CHUNK_BYTES, 1000).unwrap();
    assert_eq!((layout.submessages(), layout.data_chunks(), layout.parity_bytes()), (2, 10, 600));
    let encode = |code: Code, data: usize, parity: usize| {
        let (data, mut parity) = (vec![0; data], vec![0; parity]);
        Coder::new(code).encode_message(&layout, threads(1), &data, &mut parity, |_| ()).unwrap_err()
    };
    assert!(matches!(encode(other, 1000, 600), EncodeMessageError::Code { .. }));
    assert!(matches!(encode(code, 999, 600), EncodeMessageError::DataBytes { expected: 1000, got: 999 }));
    assert!(matches!(encode(code, 1000, 601), EncodeMessageError::ParityBytes { expected: 600, got: 601 }));
    let decode = |code: Code, data: usize, parity: usize| {
        let (mut data, parity) = (vec![0; data], vec![0; parity]);
        Coder::new(code).decode_message(&layout, threads(1), |_| Arrived::default(), &mut data, &parity).unwrap_err()
    };
    assert!(matches!(decode(other, 1000, 600), DecodeMessageError::Code { .. }));
    assert!(matches!(decode(code, 999, 600), DecodeMessageError::DataBytes { .. }));
    assert!(matches!(decode(code, 1000, 601), DecodeMessageError::ParityBytes { .. }));
}
