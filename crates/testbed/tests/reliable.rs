//! The end-to-end suite of reliability schemes on virtual time: every scheme, sizes from nothing to many chunks, over links that lose, in
//! bursts too, reorder and duplicate. And a scheme that is made up here, with the public trait alone.

mod twice;

use std::sync::Arc;

use longhaul_coding::Code;
use longhaul_impair::{Loss, Profile};
use longhaul_reliable::{Erasure, Scheme, SelectiveRepeat};
use longhaul_testbed::end_to_end::{Case, GroundOptions, VirtualGround, run_case};
use longhaul_time::Duration;
use longhaul_verbs::Mtu;
use twice::Twice;

fn schemes() -> Vec<Arc<dyn Scheme>> {
    let code = |text: &str| text.parse::<Code>().expect("a code");
    vec![
        Arc::new(SelectiveRepeat::default()),
        Arc::new(SelectiveRepeat::with_negative_acknowledgements()),
        Arc::new(Erasure::new(code("mds:32,8"))),
        Arc::new(Erasure::new(code("xor:32,8"))),
        Arc::new(Erasure::new(code("mds:4,2"))),
        Arc::new(Twice),
    ]
}

fn link() -> Profile {
    Profile::default()
        .with_propagation_delay(Duration::from_micros(500))
        .with_rate_bits_per_second(40_000_000_000)
}

fn bad_links() -> Vec<(&'static str, Profile)> {
    let loss = |probability| link().with_loss(Loss::Independent { probability });
    vec![
        ("perfect", link()),
        ("loss 1e-3", loss(1e-3)),
        ("loss 1e-2", loss(1e-2)),
        ("loss 1e-1", loss(1e-1)),
        ("bursts", link().with_loss(Loss::bursts(0.02, 8.0))),
        ("reordering", loss(1e-2).with_reordering(0.1, Duration::from_micros(200))),
        ("duplication", loss(1e-2).with_duplication(0.2).with_jitter(Duration::from_micros(30), false)),
    ]
}

/// Every scheme over every link.
fn run_all(options: impl Fn(Profile) -> GroundOptions, cases: &[Case]) {
    for (name, link) in bad_links() {
        for scheme in schemes() {
            let mut ground = VirtualGround::with_scheme(&options(link.clone()), scheme.clone());
            for case in cases {
                if let Err(error) = run_case(&mut ground, case) {
                    panic!("{}, {name}, {} bytes: {error}", scheme.name(), case.message_bytes);
                }
            }
        }
    }
}

#[test]
fn small_messages() {
    let sizes = [0, 1, 1023, 1024, 1025, 4096, 5000, 10_000, 65_536];
    let cases: Vec<Case> = sizes.into_iter().map(|bytes| Case::new(20, bytes)).collect();
    run_all(
        |link| GroundOptions { mtu: Mtu::Bytes1024, chunk_bytes: 4096, ..GroundOptions::new(link, 1 << 20) },
        &cases,
    );
}

#[test]
fn receives_that_are_longer_than_their_messages() {
    let sizes = [1, 4096, 5000, 100_000];
    let cases: Vec<Case> =
        sizes.into_iter().map(|bytes| Case { slack_bytes: 12_345, ..Case::new(10, bytes) }).collect();
    run_all(
        |link| GroundOptions { mtu: Mtu::Bytes1024, chunk_bytes: 4096, channels: 2, ..GroundOptions::new(link, 1 << 20) },
        &cases,
    );
}

#[test]
fn large_messages() {
    run_all(|link| GroundOptions::new(link, 4 << 20), &[Case::new(3, 1_000_001), Case { in_flight: 1, ..Case::new(1, 4 << 20) }]);
}
