//! Frames of random bytes and lengths over a link that does everything to them: nothing panics, and memory stays bounded by what
//! the link may keep.

use std::time::Duration;

use crate::ground::{End, in_namespace, options};
use longhaul_forward::clock::Clock;
use longhaul_impair::{EcnMarking, Loss, Profile};
use longhaul_link::RunningLink;

/// Ordinary runs; `LONGHAUL_GARBAGE_FRAMES` has another number, such as 10000000.
const FRAMES: u64 = 200_000;
const KEPT_BYTES_MAX: u64 = 8 << 20;
/// The rings of both ends of the link and of the test, and what else a process takes.
const ALLOWED_BYTES: u64 = 160 << 20;

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn garbage(state: &mut u64) -> Vec<u8> {
    let length = 14 + (next(state) % 1501) as usize;
    let mut frame = Vec::with_capacity(length + 8);
    while frame.len() < length {
        frame.extend(next(state).to_le_bytes());
    }
    frame.truncate(length);
    // Types that something looks into: IP of both versions, and tags.
    let types: [[u8; 2]; 5] = [[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00], [0x88, 0xa8], [frame[12], frame[13]]];
    frame[12..14].copy_from_slice(&types[(next(state) % 5) as usize]);
    frame
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    4096 * text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number")
}

#[test]
fn garbage_changes_nothing_but_counters() {
    in_namespace("garbage::garbage_changes_nothing_but_counters", 1500, || {
        let count = std::env::var("LONGHAUL_GARBAGE_FRAMES").map_or(FRAMES, |text| text.parse().expect("a number"));
        let everything = Profile::default()
            .with_propagation_delay(Duration::from_millis(20))
            .with_jitter(Duration::from_millis(5), false)
            .with_rate_bits_per_second(2_000_000_000)
            .with_queue_limit_bytes(1 << 20)
            .with_ecn(EcnMarking::Step { threshold_bytes: 100 })
            .with_loss(Loss::bursts(0.01, 4.0))
            .with_reordering(0.01, Duration::from_millis(1))
            .with_duplication(0.01)
            .with_corruption(0.01, 3);
        let mut options = options(everything.clone(), everything, 11);
        options.towards_second.kept_bytes_max = KEPT_BYTES_MAX;
        options.towards_first.kept_bytes_max = KEPT_BYTES_MAX;
        let link = RunningLink::start(&options).expect("a link");
        let clock = Clock::start();
        let [mut left, mut right] = ["left", "right"].map(|name| End::open(name, clock));
        let (mut state, before, mut most) = (1, resident_bytes(), 0);
        // The same few thousand frames again and again, since making them takes longer than sending them.
        let frames: Vec<Vec<u8>> = (0..4096).map(|_| garbage(&mut state)).collect();
        for _ in 0..count.div_ceil(2 * frames.len() as u64) {
            for batch in frames.chunks(64) {
                left.send(batch);
                right.send(batch);
            }
            let counters = link.counters().expect("it runs");
            for direction in [counters.link.towards_second, counters.link.towards_first] {
                assert!(direction.kept_bytes <= KEPT_BYTES_MAX, "{} bytes kept", direction.kept_bytes);
            }
            most = most.max(resident_bytes().saturating_sub(before));
        }
        let counters = link.counters().expect("it runs");
        let entered = counters.link.towards_second.impaired.packets + counters.link.towards_first.impaired.packets;
        let no_room = counters.arrived[0].no_room + counters.arrived[1].no_room;
        // The kernel drops some of a flood before they reach the link.
        assert!(entered + no_room > count / 2, "{entered} of {count} frames entered, {no_room} found the ring full");
        // AddressSanitizer keeps memory that was given back.
        let is_watched = std::env::var_os("ASAN_OPTIONS").is_none();
        assert!(!is_watched || most < ALLOWED_BYTES, "{most} bytes more");
        link.end().expect("it ends well");
        eprintln!("{entered} frames entered, {no_room} found the ring full, at most {} KiB more", most >> 10);
    });
}
