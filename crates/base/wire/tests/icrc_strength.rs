//! How much of ICRC's protection is left when the identification is not known: the figures in the documentation of
//! `icrc::identification`, by exhaustive search where they are guarantees and by measurement where they are probabilities.

use longhaul_wire::icrc::{self, IcrcScope, IdentificationTracker, Verdict};
use std::net::{Ipv4Addr, SocketAddrV4};

const IDENTIFICATION: u16 = 0x8d7b;

fn scope() -> IcrcScope {
    let end = |last| SocketAddrV4::new(Ipv4Addr::new(10, 47, 91, last), 4791);
    IcrcScope::v4(end(1), end(2)).with_identification(IDENTIFICATION)
}

fn datagram(length: usize) -> Vec<u8> {
    let mut random = Random(length as u64);
    let mut datagram: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
    icrc::write(&scope(), &mut datagram);
    datagram
}

/// SplitMix64: the same numbers everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A bit of a datagram in the order in which the CRC sees them: least significant first in each byte.
fn flip(datagram: &mut [u8], bit: usize) {
    datagram[bit / 8] ^= 1 << (bit % 8);
}

/// The fifth byte of the BTH is not covered: errors in it are not errors.
fn is_covered(bit: usize) -> bool {
    bit / 8 != 4
}

#[test]
fn all_bursts_of_up_to_three_bits_are_found_and_nearly_all_of_four() {
    // One length stands for all up to it: how an error looks depends on its distance from the identification only.
    let mut datagram = datagram(6 * 1024);
    let bit_count = datagram.len() * 8;
    let mut missed_of_four_bits = 0;
    for first in 0..bit_count {
        for burst in (0b0001..=0b1111).step_by(2) {
            let bits = || (0..4).filter(move |bit| burst >> bit & 1 == 1).map(move |bit| first + bit);
            if bits().any(|bit| bit >= bit_count || !is_covered(bit)) {
                continue;
            }
            bits().for_each(|bit| flip(&mut datagram, bit));
            if icrc::solve_identification(&scope(), &datagram).is_some() {
                assert!(burst > 0b111, "the burst {burst:#b} from bit {first} on is missed");
                missed_of_four_bits += 1;
            }
            bits().for_each(|bit| flip(&mut datagram, bit));
        }
    }
    assert!(icrc::verify(&scope(), &datagram));
    assert_eq!(missed_of_four_bits, 4, "of {bit_count} places with four bursts each");
}

#[test]
fn two_bits_are_always_found_when_the_identification_is_known_and_nearly_always_when_not() {
    let mut datagram = datagram(128);
    let bit_count = datagram.len() * 8;
    let (mut pair_count, mut solved_count) = (0, 0);
    for first in (0..bit_count).filter(|&bit| is_covered(bit)) {
        flip(&mut datagram, first);
        for second in (first + 1..bit_count).filter(|&bit| is_covered(bit)) {
            flip(&mut datagram, second);
            assert!(!icrc::verify(&scope(), &datagram), "{first} {second}");
            solved_count += usize::from(icrc::solve_identification(&scope(), &datagram).is_some());
            pair_count += 1;
            flip(&mut datagram, second);
        }
        flip(&mut datagram, first);
    }
    println!("{solved_count} of {pair_count} pairs look like another identification");
    // 2^-16 of half a million is 8.
    assert!((1..=20).contains(&solved_count), "{solved_count} of {pair_count}");
}

#[test]
fn bursts_are_found_when_the_identification_is_known_and_nearly_always_when_not() {
    let mut random = Random(1);
    let datagram = datagram(1100);
    let (tries, mut solved_count) = (1 << 20, 0);
    for _ in 0..tries {
        let mut corrupted = datagram.clone();
        let burst = (random.next() as u16) | 1;
        let first = 5 * 8 + random.next() as usize % (datagram.len() * 8 - 5 * 8 - 16);
        (0..16).filter(|bit| burst >> bit & 1 == 1).for_each(|bit| flip(&mut corrupted, first + bit));
        assert!(!icrc::verify(&scope(), &corrupted));
        solved_count += usize::from(icrc::solve_identification(&scope(), &corrupted).is_some());
    }
    println!("{solved_count} of {tries} bursts of up to 16 bits look like another identification");
    assert!((4..=32).contains(&solved_count), "{solved_count}, and 16 are expected");
}

#[test]
fn noise_passes_as_often_as_the_table_says() {
    let mut random = Random(2);
    let mut good = datagram(96);
    let tries = 1 << 22;
    let (mut exact, mut predicted, mut solved) = (0, 0, 0);
    let mut tracker = IdentificationTracker::new();
    assert_eq!(tracker.check(&scope(), &good), Verdict::Solved);
    icrc::write(&scope().with_identification(IDENTIFICATION + 1), &mut good);
    assert_eq!(tracker.check(&scope(), &good), Verdict::Exact);
    for _ in 0..tries {
        let mut noise = good.clone();
        let first = 5 + random.next() as usize % (noise.len() - 5 - 16);
        for chunk in noise[first..].chunks_exact_mut(8).take(2) {
            chunk.copy_from_slice(&random.next().to_ne_bytes());
        }
        match { tracker }.check(&scope(), &noise) {
            Verdict::Exact => exact += 1,
            Verdict::Predicted => predicted += 1,
            Verdict::Solved => solved += 1,
            Verdict::Bad => {}
        }
    }
    println!("of {tries}: {exact} exact, {predicted} predicted, {solved} solved");
    // 2^22 tries: 2^-32 each for exact, 2^-22 for predicted, 2^-16 for solved.
    assert_eq!(exact, 0);
    assert!(predicted <= 6, "{predicted} predicted, and 1 is expected");
    assert!((40..=96).contains(&solved), "{solved} solved, and 64 are expected");
}
