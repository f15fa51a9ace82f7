//! The model against its twin, a quick look: with 10000 samples the 99.9th percentile is uncertain, and its window
//! wider than the one that the model is held to. `longhaul plan validate` compares many more points, with 100000
//! samples each.

use longhaul_plan::distribution::Distribution;
use longhaul_plan::link::{Link, Loss};
use longhaul_plan::model::Case;
use longhaul_plan::ring::{DRAWS, ring};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

struct Point {
    scheme: &'static str,
    message_bytes: u64,
    chunk_bytes: u32,
    loss: Loss,
    rate: f64,
    round_trip: f64,
}

fn long(scheme: &'static str, message_bytes: u64, chunk_bytes: u32, loss: Loss) -> Point {
    Point { scheme, message_bytes, chunk_bytes, loss, rate: 400e9, round_trip: 0.025 }
}

/// Cheap enough for every run.
fn quick_points() -> Vec<Point> {
    let single = Loss::Independent;
    vec![
        long("sr:rto", 128 * MIB, 4096, single(1e-5)),
        long("sr:rto", 128 * MIB, 4096, single(1e-4)),
        long("sr:rto", 128 * KIB, 4096, single(1e-3)),
        long("sr:rto", 16 * MIB, 65536, single(1e-3)),
        long("sr:rto", 8 * GIB, 4096, single(1e-6)),
        long("sr:rto", 128 * MIB, 4096, Loss::bursts(1e-4, 8.0)),
        long("sr:nack", 128 * MIB, 4096, single(1e-5)),
        long("sr:nack", 128 * MIB, 4096, single(1e-4)),
        long("sr:nack", 8 * GIB, 4096, single(1e-6)),
        long("sr:nack", 64 * KIB, 4096, single(1e-2)),
        long("ec:mds:32,8", 128 * MIB, 4096, single(1e-3)),
        long("ec:mds:8,2", 16 * MIB, 4096, single(1e-2)),
        long("ec:mds:32,8", 16 * MIB, 65536, single(1e-3)),
        long("ec:mds:32,8", 128 * MIB, 4096, Loss::bursts(1e-4, 4.0)),
        long("ec:xor:32,8", 128 * MIB, 4096, single(1e-4)),
        long("ec:xor:32,8", 16 * MIB, 4096, single(1e-3)),
        long("ec:xor:32,8", 128 * MIB, 4096, Loss::bursts(1e-4, 4.0)),
        long("rc", 128 * MIB, 4096, single(1e-5)),
        long("rc", 16 * MIB, 4096, single(1e-3)),
        long("rc", 128 * MIB, 4096, Loss::bursts(1e-3, 8.0)),
        long("lowar:32,1", 16 * MIB, 4096, single(1e-3)),
        Point {
            scheme: "sr:nack",
            message_bytes: 4 * MIB,
            chunk_bytes: 4096,
            loss: single(1e-2),
            rate: 1e9,
            round_trip: 0.01,
        },
        // Slow enough to distinguish chunks and packets.
        Point {
            scheme: "ec:mds:8,2",
            message_bytes: 4 * MIB,
            chunk_bytes: 65536,
            loss: single(1e-2),
            rate: 1e9,
            round_trip: 0.01,
        },
        Point {
            scheme: "ec:mds:16,4",
            message_bytes: 4 * MIB,
            chunk_bytes: 4096,
            loss: single(3e-2),
            rate: 1e9,
            round_trip: 0.01,
        },
        Point {
            scheme: "lowar:64,8",
            message_bytes: 64 * MIB,
            chunk_bytes: 4096,
            loss: Loss::bursts(1e-3, 4.0),
            rate: 10e9,
            round_trip: 0.04,
        },
    ]
}

fn case(point: &Point) -> Case {
    Case {
        link: Link::new(point.rate, point.round_trip, point.loss),
        message_bytes: point.message_bytes,
        chunk_bytes: point.chunk_bytes,
        scheme: point.scheme.parse().expect("a scheme"),
    }
}

/// A line about how well two agree, and whether they do.
fn compare(name: &str, model: &Distribution, samples: &[f64], window: [f64; 2]) -> (bool, String) {
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let at = |share: f64| samples[((samples.len() as f64 * share).ceil() as usize).clamp(1, samples.len()) - 1];
    let summary = model.summary();
    let deviation = summary.mean / mean - 1.0;
    let (low, high) = (at(window[0]), at(window[1]));
    // Where all messages take the same time, they do but for rounding.
    let is_good = deviation.abs() < 0.05 && (low * (1.0 - 1e-6)..=high * (1.0 + 1e-6)).contains(&summary.p999);
    let rank = samples.partition_point(|sample| *sample <= summary.p999 * (1.0 + 1e-9)) as f64 / samples.len() as f64;
    let line = format!(
        "{} {name:<60} mean {:>10.4} ms {:>+7.2} %   p99.9 {:>10.4} ms, of the twin {:>10.4} to {:>10.4}, its p{:.3}\n",
        if is_good { "  " } else { "! " },
        summary.mean * 1e3,
        deviation * 100.0,
        summary.p999 * 1e3,
        low * 1e3,
        high * 1e3,
        rank * 100.0,
    );
    (is_good, line)
}

fn check(points: &[Point], samples: usize, window: [f64; 2]) {
    let mut is_good = true;
    let mut lines = String::new();
    for point in points {
        let case = case(point);
        let model = case.completion().expect("a case").distribution;
        let twin = case.samples(samples, 1).expect("a case");
        let Point { scheme, message_bytes, chunk_bytes, loss, .. } = point;
        let name = format!("{scheme} {} KiB / {} KiB {}", message_bytes / KIB, chunk_bytes / 1024, loss_name(loss));
        let (good, line) = compare(&name, &model, &twin, window);
        is_good &= good;
        print!("{line}");
        lines += &line;
    }
    assert!(is_good, "the model and its twin differ where there is a !\n{lines}");
}

fn loss_name(loss: &Loss) -> String {
    match loss.burst_packets() {
        Some(packets) => format!("{:.0e} in bursts of {packets:.0}", loss.mean()),
        None => format!("{:.0e}", loss.mean()),
    }
}

#[test]
fn quick() {
    check(&quick_points(), 10_000, [0.996, 0.9998]);
}

#[test]
fn rings() {
    let mut is_good = true;
    let mut lines = String::new();
    for (scheme, loss, sites) in
        [("sr:rto", 1e-5, 4), ("ec:mds:32,8", 1e-3, 4), ("ec:xor:32,8", 3e-4, 8), ("rc", 1e-5, 4)]
    {
        let link = Link::new(400e9, 0.025, Loss::Independent(loss));
        let whole =
            Case { link, message_bytes: 128 * MIB, chunk_bytes: 4096, scheme: scheme.parse().expect("a scheme") };
        let stage = Case { message_bytes: whole.message_bytes / u64::from(sites), ..whole };
        let model = ring(&stage.completion().expect("a case").distribution, sites, DRAWS, 1).expect("a ring");
        let twin = whole.ring_samples(sites, 10_000, 1).expect("a ring");
        let (good, line) = compare(&format!("ring of {sites}, {scheme} {loss:.0e}"), &model, &twin, [0.997, 0.9997]);
        is_good &= good;
        lines += &line;
    }
    println!("{lines}");
    assert!(is_good, "{lines}");
}

#[test]
fn the_number_of_threads_does_not_matter_and_the_seed_does() {
    let case = case(&quick_points()[0]);
    let [one, same, other] = [1, 1, 2].map(|seed| case.samples(1000, seed).expect("a case"));
    assert_eq!(one, same);
    assert_ne!(one, other);
    // Blocks are the same whatever comes after them.
    assert!(case.samples(512, 1).expect("a case").iter().all(|sample| one.contains(sample)));
}
