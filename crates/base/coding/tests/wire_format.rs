//! Parity is a wire format: these bytes were computed with another program, from the definition in the crate's
//! documentation, and may never change.

use longhaul_coding::{Code, Coder, Kernel};

fn parity(code: Code, kernel: Kernel, data: &[&[u8]]) -> Vec<Vec<u8>> {
    let longest = data.iter().map(|chunk| chunk.len()).max().unwrap();
    let mut parity = vec![vec![0xee; longest]; code.parity_chunks()];
    let mut slices: Vec<&mut [u8]> = parity.iter_mut().map(|chunk| &mut chunk[..]).collect();
    Coder::with_kernel(code, kernel).encode(data, &mut slices).unwrap();
    parity
}

/// On every kernel that runs here.
fn check(code: Code, data: &[&[u8]], expected: &str) {
    for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.is_available()) {
        let bytes = parity(code, kernel, data).concat();
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, expected, "{code} on {kernel}");
    }
}

/// The first chunk is shorter than the others.
const SENTENCE: [&[u8]; 4] = [b"When", b" in d", b"oubt,", b" use "];

#[test]
fn mds_parity_never_changes() {
    check(Code::mds(4, 3).unwrap(), &SENTENCE, "f8e081d7d530631db94788c692a6c9");
    let numbers: Vec<[u8; 1]> = (0..32).map(|number| [number]).collect();
    let numbers: Vec<&[u8]> = numbers.iter().map(|number| &number[..]).collect();
    check(Code::mds(32, 8).unwrap(), &numbers, "9d1c8203a322bc3d");
    let many: Vec<[u8; 1]> = (0..200_u8).map(|number| [number.wrapping_mul(37).wrapping_add(11)]).collect();
    let many: Vec<&[u8]> = many.iter().map(|number| &number[..]).collect();
    check(
        Code::mds(200, 55).unwrap(),
        &many,
        "533d60c9219c8e32357b1402494c9813ddcb4a3ee08b4b863d444dab006351df8f0f915ba5d223c6ef5fe241c1edd3650e82083da957c7",
    );
}

#[test]
fn xor_parity_never_changes() {
    check(Code::xor(4, 2).unwrap(), &SENTENCE, "381d071a2c001c1d4544");
}

/// What a chunk adds to parity does not depend on how many chunks the code has.
#[test]
fn missing_chunks_and_missing_bytes_count_as_zeros() {
    for (code, short) in [
        (Code::mds(9, 3).unwrap(), Code::mds(4, 3).unwrap()),
        (Code::xor(9, 3).unwrap(), Code::xor(4, 3).unwrap()),
        (Code::xor(9, 8).unwrap(), Code::xor(9, 8).unwrap().shortened(4)),
    ] {
        let zeros: &[u8] = &[0; 5];
        let filled = [b"When\0", SENTENCE[1], SENTENCE[2], SENTENCE[3], zeros, zeros, zeros, zeros, zeros];
        let expected = parity(code, Kernel::Portable, &filled);
        assert_eq!(parity(code, Kernel::fastest(), &SENTENCE), expected);
        assert_eq!(parity(short, Kernel::fastest(), &SENTENCE), expected);
        let empty = [SENTENCE[0], SENTENCE[1], SENTENCE[2], SENTENCE[3], &[], &[], zeros, &[], &[]];
        assert_eq!(parity(code, Kernel::fastest(), &empty), expected);
    }
}
