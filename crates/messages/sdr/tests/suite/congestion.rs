//! Congestion control of a queue pair, on a path with a bottleneck: it finds the rate, leaves the queue alone, hears of
//! marks, and goes on after a cut.

use crate::ends;

use std::collections::VecDeque;

use ends::{Ends, Options};
use longhaul_congestion::ControllerName;
use longhaul_impair::{EcnMarking, Loss, Profile};
use longhaul_sdr::{Receive, SendStatus, SendStream};
use longhaul_time::{Duration, Instant};

const RATE: u64 = 200_000_000;
/// 5 ms at that rate.
const QUEUE_BYTES: u64 = 125_000;
const DELAY: Duration = Duration::from_micros(12_500);
const BYTES: usize = 1 << 20;
/// IP, UDP, BTH, RETH, immediate, ICRC.
const HEADERS: usize = 20 + 8 + 12 + 16 + 4 + 4;

fn path() -> Profile {
    Profile::default().with_propagation_delay(DELAY).with_rate_bits_per_second(RATE).with_queue_limit_bytes(QUEUE_BYTES)
}

/// Messages without repeats, one after the other.
struct Stream {
    ends: Ends,
    open: VecDeque<(SendStream, Receive, Option<Instant>)>,
    started: usize,
}

/// What a while of sending has brought.
#[derive(Debug)]
struct Outcome {
    /// Payload that arrived, of what the link could carry.
    goodput: f64,
    /// In bits per second, at the end.
    rate: u64,
    /// That were sent since the beginning.
    writes: u64,
}

impl Stream {
    fn new(profile: Profile, congestion: ControllerName, channels: usize) -> Self {
        Stream::with(Options { profile, channels, ..Default::default() }, congestion)
    }

    /// Through a bottleneck whose queue drops what it has no room for.
    fn through_bottleneck(rate: u64, seed: u64) -> Self {
        let bottleneck = Profile::default()
            .with_propagation_delay(DELAY / 2)
            .with_rate_bits_per_second(rate)
            .with_queue_limit_bytes(rate / 8 / 200);
        Stream::with(Options { bottleneck: Some(bottleneck), seed, ..Default::default() }, ControllerName::Wan)
    }

    fn with(options: Options, congestion: ControllerName) -> Self {
        let ends = Ends::new(Options { memory_bytes: 4 * BYTES, ..options }, |attributes| {
            attributes.message_bytes_max = BYTES as u64;
            attributes.congestion = Some(congestion);
        });
        Stream { ends, open: VecDeque::new(), started: 0 }
    }

    /// Sends for so long.
    fn send_for(&mut self, duration: Duration) -> Outcome {
        let arrived = |ends: &Ends| ends.receiver.queue_pair.counters().1.arrived;
        let before = arrived(&self.ends);
        let end = self.ends.world.now() + duration;
        while self.ends.world.now() < end {
            self.step();
        }
        let bits = (arrived(&self.ends) - before) as f64 * (ends::MTU * 8) as f64;
        // Link rates count IP packets.
        let packet_share = ends::MTU as f64 / (ends::MTU + HEADERS) as f64;
        Outcome {
            goodput: bits / (RATE as f64 * packet_share * duration.as_secs_f64()),
            rate: self.ends.sender.queue_pair.bits_per_second().unwrap_or(u64::MAX),
            writes: self.ends.sender.queue_pair.counters().0.writes,
        }
    }

    fn step(&mut self) {
        let Stream { ends, open, started } = self;
        let now = ends.world.now();
        while open.len() < 4 {
            let range = *started % 4 * BYTES..(*started % 4 + 1) * BYTES;
            let Ok(receive) = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, range.clone()) else {
                break;
            };
            let send = ends.sender.queue_pair.post_send(&ends.sender.memory, range, None).unwrap();
            open.push_back((send, receive, None));
            *started += 1;
        }
        ends.step(Duration::from_micros(500));
        for (send, _, sent_at) in open.iter_mut() {
            if sent_at.is_none() && send.status() == SendStatus::Sent {
                *sent_at = Some(now);
            }
        }
        // What has not come a while after it has left is lost, and nobody repeats it.
        let is_over = |(_, receive, sent_at): &(SendStream, Receive, Option<Instant>)| {
            receive.bitmap().is_complete() || sent_at.is_some_and(|at| now >= at + Duration::from_millis(40))
        };
        while open.front().is_some_and(is_over) {
            open.pop_front();
        }
    }
}

#[test]
fn the_rate_is_found() {
    for channels in [1, 3] {
        let mut stream = Stream::new(path(), ControllerName::Wan, channels);
        let outcome = stream.send_for(Duration::from_secs(10));
        assert!(outcome.goodput > 0.9, "{channels} channels: {outcome:?}");
        assert!(outcome.rate < RATE * 4 / 3, "{channels} channels: {outcome:?}");
    }
}

#[test]
fn a_fixed_rate_is_kept_over_channels_and_generations() {
    for channels in [1, 3] {
        let mut stream = Stream::new(path(), ControllerName::Fixed(RATE / 2), channels);
        let outcome = stream.send_for(Duration::from_secs(2));
        assert!((0.45..0.5 * 1.05).contains(&outcome.goodput), "{channels} channels: {outcome:?}");
    }
}

/// The device shows marks, the receiver counts them, and the sender's controller hears of them.
#[test]
fn marks_slow_the_sender_down() {
    let outcome = |marking| {
        let mut stream = Stream::new(path().with_ecn(marking), ControllerName::Wan, 1);
        stream.send_for(Duration::from_secs(10))
    };
    let without = outcome(EcnMarking::Off);
    let with = outcome(EcnMarking::Step { threshold_bytes: QUEUE_BYTES / 4 });
    assert!(with.goodput < without.goodput - 0.1, "{with:?}, without marks {without:?}");
    assert!(with.goodput > 0.5, "{with:?}");
}

#[test]
fn after_a_cut_it_goes_on_without_a_flood() {
    for seconds in [1, 5, 30] {
        let mut stream = Stream::new(path(), ControllerName::Wan, 1);
        let before = stream.send_for(Duration::from_secs(5));
        stream.ends.world.set_link_profile(path().with_loss(Loss::Independent { probability: 1.0 }));
        let cut = stream.send_for(Duration::from_secs(seconds));
        // What may be in flight is sent, and no more: 35 ms, and the bursts of a few probes.
        let in_flight = cut.writes - before.writes;
        assert!(in_flight < 2000, "{seconds} s: {in_flight} writes into nothing, {cut:?}");
        assert!(cut.goodput < 0.05, "{seconds} s: {cut:?}");
        stream.ends.world.set_link_profile(path());
        let first = stream.send_for(Duration::from_millis(100));
        let burst = (first.writes - cut.writes) as f64 * ((ends::MTU + HEADERS) * 8) as f64;
        assert!(burst < RATE as f64 * 0.135 * 1.05, "{seconds} s: {burst} bits in the first 100 ms");
        let after = stream.send_for(Duration::from_secs(5));
        assert!(after.goodput > 0.85, "{seconds} s: {after:?}");
    }
}

#[test]
fn a_receiver_that_stands_still_is_sent_to_as_before_when_it_goes_on() {
    for (seed, millis) in [(1, 150), (2, 400), (3, 1000), (4, 3000), (5, 4000)] {
        let mut stream = Stream::through_bottleneck(RATE, seed);
        let before = stream.send_for(Duration::from_secs(5));
        let end = stream.ends.world.now() + Duration::from_millis(millis);
        while stream.ends.world.now() < end {
            stream.ends.step_sender(Duration::from_micros(500));
        }
        let after = stream.send_for(Duration::from_secs(3));
        let later = stream.send_for(Duration::from_secs(3));
        println!("{millis} {before:?} {after:?} {later:?}");
        assert!(after.goodput > 0.8 && later.goodput > 0.85, "{millis} ms: {after:?}, {later:?}");
    }
}

/// Ends that get the processor now and then only: reports come in clumps, late and irregularly.
#[test]
fn ends_that_are_woken_late_do_not_flood_the_path() {
    for seed in 1..=6 {
        let mut stream = Stream::through_bottleneck(RATE / 6, seed);
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut up_to = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            Duration::from_micros((random >> 33) % most)
        };
        let end = stream.ends.world.now() + Duration::from_secs(30);
        while stream.ends.world.now() < end {
            stream.send_for(up_to(20_000));
            let pause = stream.ends.world.now() + up_to(60_000);
            while stream.ends.world.now() < pause {
                stream.ends.step_sender(Duration::from_micros(500));
            }
            if seed % 2 == 0 {
                let pause = up_to(40_000);
                stream.ends.world.run_for(pause);
            }
        }
        let writes = stream.ends.sender.queue_pair.counters().0.writes;
        let arrived = stream.ends.receiver.queue_pair.counters().1.arrived;
        let goodput = arrived as f64 * (ends::MTU + HEADERS) as f64 * 8.0 / 30.0 / (RATE / 6) as f64;
        let lost = 1.0 - arrived as f64 / writes as f64;
        println!("seed {seed}: goodput {goodput:.3}, lost {lost:.3}");
        assert!(lost < 0.05, "seed {seed}: {lost} lost, goodput {goodput}");
        // A sender that stands still for a third of the time, and catches up by one burst only, cannot reach much.
        assert!(goodput > if seed % 2 == 0 { 0.02 } else { 0.7 }, "seed {seed}: {lost} lost, goodput {goodput}");
    }
}
