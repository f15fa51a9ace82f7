//! What a packet costs on links of several kinds, in nanoseconds of one core.
//!
//!     cargo run --release -p longhaul-impair --example cost

use std::hint::black_box;
use std::time::Instant as WallClock;

use longhaul_impair::{EcnMarking, Impairment, Loss, Profile};
use longhaul_time::{Duration, Instant};

const PACKET_COUNT: u64 = 50_000_000;

fn main() {
    let perfect = Profile::default();
    let rated =
        perfect.clone().with_propagation_delay(Duration::from_millis(25)).with_rate_bits_per_second(400_000_000_000);
    let lossy = rated.clone().with_loss(Loss::Independent { probability: 1e-4 });
    measure("perfect", &perfect);
    measure("delay, rate", &rated);
    measure("delay, rate, ECN", &rated.clone().with_ecn(EcnMarking::Step { threshold_bytes: 65_536 }));
    measure("delay, rate, loss", &lossy);
    measure("delay, rate, loss in bursts", &rated.with_loss(Loss::bursts(1e-4, 5.0)));
    measure("delay, rate, loss, jitter", &lossy.clone().with_jitter(Duration::from_micros(10), true));
    measure(
        "everything",
        &lossy
            .with_jitter(Duration::from_micros(10), true)
            .with_reordering(0.01, Duration::from_micros(50))
            .with_duplication(0.001)
            .with_corruption(0.001, 1),
    );
}

fn measure(name: &str, profile: &Profile) {
    let mut impairment = Impairment::new(profile.clone(), 1).expect("a good profile");
    let start = WallClock::now();
    for packet in 0..PACKET_COUNT {
        // A little slower than 4 KiB packets at 400 Gbit/s.
        let now = Instant::from_nanos(packet * 82);
        black_box(impairment.handle(black_box(4096), now));
    }
    let nanos = start.elapsed().as_nanos() as f64 / PACKET_COUNT as f64;
    println!("{name:30} {nanos:6.1} ns");
}
