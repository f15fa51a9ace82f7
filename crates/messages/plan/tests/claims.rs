//! What the SDR paper claims, at 400 Gbit/s and 25 ms with chunks of 4 KiB. (What our protocol code takes is compared
//! by `longhaul plan validate`.)

use longhaul_plan::distribution::Summary;
use longhaul_plan::link::{Link, Loss};
use longhaul_plan::model::Case;
use longhaul_plan::question::{Candidate, Question};
use longhaul_plan::ring::{DRAWS, ring};
use longhaul_plan::scheme::Scheme;
use longhaul_scheme::{Code, NamedScheme};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn link(loss: f64) -> Link {
    Link::new(400e9, 0.025, Loss::Independent(loss))
}

fn case(scheme: &str, message_bytes: u64, loss: f64) -> Case {
    Case { link: link(loss), message_bytes, chunk_bytes: 4096, scheme: scheme.parse().expect("a scheme") }
}

fn summary(scheme: &str, message_bytes: u64, loss: f64) -> Summary {
    case(scheme, message_bytes, loss).completion().expect("a case").distribution.summary()
}

fn slowdown(scheme: &str, message_bytes: u64, loss: f64) -> f64 {
    summary(scheme, message_bytes, loss).mean / link(loss).least_seconds(message_bytes)
}

#[test]
fn mds_is_better_than_timeouts_from_128_kib_to_1_gib() {
    for exponent in 17..=30 {
        for loss in [1e-6, 1e-5, 1e-4, 1e-3, 1e-2] {
            let (mds, sr) = (summary("ec:mds:32,8", 1 << exponent, loss), summary("sr:rto", 1 << exponent, loss));
            assert!(mds.mean < sr.mean, "2^{exponent} bytes at {loss}: {mds:?} {sr:?}");
            // Where not one message in a thousand loses anything, the tail is the parity's own time.
            assert!(mds.p999 < sr.p999 * 1.01, "2^{exponent} bytes at {loss}: {mds:?} {sr:?}");
        }
    }
    // Up to 5 times in the mean, and more at the tail.
    let best = summary("sr:rto", 128 * MIB, 1e-2).mean / summary("ec:mds:32,8", 128 * MIB, 1e-2).mean;
    assert!((5.0..7.0).contains(&best), "{best}");
}

#[test]
fn timeouts_are_better_from_8_gib_at_one_in_a_million() {
    for bytes in [8 * GIB, 32 * GIB, 1 << 40] {
        let (mds, sr) = (summary("ec:mds:32,8", bytes, 1e-6), summary("sr:rto", bytes, 1e-6));
        assert!(sr.mean < mds.mean, "{bytes}: {sr:?} {mds:?}");
    }
}

/// The sizes, as powers of two, from which repeating is faster than MDS(32,8) in the mean.
#[test]
fn where_repeating_overtakes_parity() {
    let from = |scheme: &str, loss: f64| {
        let is_slower = |exponent: &u32| {
            summary(scheme, 1 << exponent, loss).mean >= summary("ec:mds:32,8", 1 << exponent, loss).mean
        };
        (17..=41).rev().find(is_slower).map_or(17, |last| last + 1)
    };
    let crossings = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2].map(|loss| (from("sr:rto", loss), from("sr:nack", loss)));
    println!("sr:rto and sr:nack, at 1e-6, 1e-5, 1e-4, 1e-3 and 1e-2: {crossings:?}");
    assert_eq!(crossings, [(33, 29), (34, 32), (34, 33), (35, 33), (36, 34)]);
}

#[test]
fn xor_falls_back_near_one_in_a_thousand() {
    assert!(slowdown("ec:xor:32,8", 128 * MIB, 1e-4) < 1.05);
    let at = slowdown("ec:xor:32,8", 128 * MIB, 1e-3);
    assert!((1.08..1.4).contains(&at), "{at}");
    assert!(slowdown("ec:xor:32,8", 128 * MIB, 1e-2) > 2.0);
    assert!(slowdown("ec:mds:32,8", 128 * MIB, 1e-2) < 1.05);
}

#[test]
fn in_a_ring_mds_is_three_to_six_times_better_at_the_tail() {
    // "From 3 times to more than 6 times", growing with the loss.
    for sites in 4..=8 {
        for (loss, expected) in [(1e-4, 3.0..6.0), (1e-3, 3.0..6.0), (1e-2, 6.0..9.0)] {
            let p999 = |scheme| {
                let stage = case(scheme, 128 * MIB / u64::from(sites), loss).completion().expect("a case").distribution;
                ring(&stage, sites, DRAWS, 1).expect("a ring").quantile(0.999)
            };
            let times = p999("sr:rto") / p999("ec:mds:32,8");
            println!("ring of {sites} at {loss}: {times:.2}");
            assert!(expected.contains(&times), "ring of {sites} at {loss}: {times}");
        }
    }
}

#[test]
fn mds_with_large_chunks_on_a_bad_link_is_not_chosen() {
    let coded = Scheme::Reliable(NamedScheme::Erasure(Code::mds(32, 8).expect("a code")));
    // With that chunk and that code it is bad, and something else is recommended.
    let question = Question { chunk_bytes: Some(65536), ..Question::new(link(1e-2), 128 * MIB) };
    let mut fixed = question.clone();
    fixed.candidates.push(Candidate::Scheme(coded));
    let answer = fixed.answer().expect("an answer");
    let row = answer.rows.iter().find(|row| row.scheme == coded).expect("it was asked for");
    // 2.2 times the least time, where chunks of 4 KiB take 1.03; with β = 1 it was 2.9. (The paper's model sends whole
    // submessages again, and takes 9.7.)
    assert!(row.slowdown > 2.0, "{}", row.slowdown);
    assert_ne!(answer.recommendation.scheme, coded);
    // With the chunk open, erasure coding is recommended, in small chunks.
    let open = Question { chunk_bytes: None, ..question }.answer().expect("an answer");
    let recommended = &open.recommendation;
    println!("{recommended:?}");
    assert!(recommended.scheme.erasure_code().is_some() && recommended.chunk_bytes <= 16384, "{recommended:?}");
}

/// A Monte Carlo of the paper's formulas: mean and 99.9th percentile (the timers differ a little from our protocol's).
#[test]
fn the_papers_own_figures() {
    for (loss, mean, p999) in [(1e-5, 1.75, 3.71), (1e-4, 3.57, 3.71), (1e-3, 3.79, 6.42), (1e-2, 6.36, 9.13)] {
        let least = link(loss).least_seconds(128 * MIB);
        let sr = summary("sr:rto", 128 * MIB, loss);
        assert!((sr.mean / least / mean - 1.0).abs() < 0.05, "{loss}: {sr:?}");
        assert!((sr.p999 / least / p999 - 1.0).abs() < 0.05, "{loss}: {sr:?}");
    }
}
