//! What holds for every profile, every seed and every sequence of packets.

use longhaul_impair::{Delivery, DropReason, EcnMarking, Impairment, Loss, LossTrace, Profile, ProfileError, Verdict};
use longhaul_time::{Duration, Instant};
use proptest::prelude::*;

/// Packets as (bytes, nanoseconds since the one before).
fn packets() -> impl Strategy<Value = Vec<(u32, u64)>> {
    prop::collection::vec((1u32..9000, prop_oneof![Just(0u64), 0u64..2_000]), 1..300)
}

fn any_loss() -> impl Strategy<Value = Loss> {
    prop_oneof![
        Just(Loss::None),
        (0.0..=1.0f64).prop_map(|probability| Loss::Independent { probability }),
        (0.0..=1.0f64, 0.0..=1.0f64, 0.0..=1.0f64, 0.0..=1.0f64).prop_map(
            |(p_good_to_bad, p_bad_to_good, loss_good, loss_bad)| Loss::GilbertElliott {
                p_good_to_bad,
                p_bad_to_good,
                loss_good,
                loss_bad
            }
        ),
        prop::collection::vec(any::<bool>(), 1..50).prop_map(|flags| Loss::Replayed(LossTrace::from_lost_flags(flags))),
    ]
}

fn any_ecn() -> impl Strategy<Value = EcnMarking> {
    prop_oneof![
        Just(EcnMarking::Off),
        (0u64..100_000).prop_map(|threshold_bytes| EcnMarking::Step { threshold_bytes }),
        (0u64..50_000, 1u64..50_000, 0.0..=1.0f64).prop_map(|(minimum_bytes, more, probability_max)| {
            EcnMarking::Ramp { minimum_bytes, maximum_bytes: minimum_bytes + more, probability_max }
        }),
    ]
}

prop_compose! {
    fn any_profile()(
        (delay_nanos, jitter_nanos, keeps_order) in (0u64..1_000_000, 0u64..100_000, any::<bool>()),
        (rate, queue_limit_bytes, overhead, ecn) in (1_000_000u64..1_000_000_000_000, 0u64..200_000, 0u32..60, any_ecn()),
        loss in any_loss(),
        (reordering, extra_nanos, duplication, corruption, bits) in
            (0.0..=1.0f64, 0u64..100_000, 0.0..=1.0f64, 0.0..=1.0f64, 1u8..=64),
    ) -> Profile {
        Profile::default()
            .with_propagation_delay(Duration::from_nanos(delay_nanos))
            .with_jitter(Duration::from_nanos(jitter_nanos), keeps_order)
            .with_rate_bits_per_second(rate)
            .with_queue_limit_bytes(queue_limit_bytes)
            .with_overhead_bytes_per_packet(overhead)
            .with_ecn(ecn)
            .with_loss(loss)
            .with_reordering(reordering, Duration::from_nanos(extra_nanos))
            .with_duplication(duplication)
            .with_corruption(corruption, bits)
    }
}

fn run(profile: &Profile, seed: u64, packets: &[(u32, u64)]) -> Vec<(Instant, Verdict)> {
    let mut impairment = Impairment::new(profile.clone(), seed).expect("a good profile");
    let mut now = Instant::ZERO;
    packets
        .iter()
        .map(|&(bytes, gap_nanos)| {
            now = now.saturating_add_nanos(gap_nanos);
            (now, impairment.handle(bytes, now))
        })
        .collect()
}

fn deliveries(verdict: Verdict) -> Vec<Delivery> {
    match verdict {
        Verdict::Dropped(_) => vec![],
        Verdict::Once(delivery) => vec![delivery],
        Verdict::Twice(first, second) => vec![first, second],
    }
}

proptest! {
    #[test]
    fn the_same_seed_gives_the_same_schedule(profile in any_profile(), seed: u64, packets in packets()) {
        prop_assert_eq!(run(&profile, seed, &packets), run(&profile, seed, &packets));
    }

    #[test]
    fn counters_add_up_and_nothing_arrives_early(profile in any_profile(), seed: u64, packets in packets()) {
        let mut impairment = Impairment::new(profile.clone(), seed).expect("a good profile");
        let mut now = Instant::ZERO;
        let (mut arrivals, mut dropped, mut corrupted) = (0u64, 0u64, 0u64);
        for &(bytes, gap_nanos) in &packets {
            now = now.saturating_add_nanos(gap_nanos);
            let verdict = impairment.handle(bytes, now);
            dropped += u64::from(matches!(verdict, Verdict::Dropped(_)));
            for delivery in deliveries(verdict) {
                arrivals += 1;
                corrupted += u64::from(delivery.corruption.is_some());
                prop_assert!(delivery.at >= now + profile.propagation_delay);
            }
        }
        let counters = impairment.counters();
        prop_assert_eq!(counters.packets, packets.len() as u64);
        prop_assert_eq!(counters.bytes, packets.iter().map(|packet| u64::from(packet.0)).sum::<u64>());
        prop_assert_eq!(counters.queue_full + counters.lost, dropped);
        prop_assert_eq!(counters.deliveries(), arrivals);
        prop_assert_eq!(counters.corrupted, corrupted);
    }

    #[test]
    fn order_is_kept_when_asked(mut profile in any_profile(), seed: u64, packets in packets()) {
        profile.jitter.keeps_order = true;
        profile.reordering.probability = 0.0;
        let mut latest = Instant::ZERO;
        for (_, verdict) in run(&profile, seed, &packets) {
            for delivery in deliveries(verdict) {
                prop_assert!(delivery.at >= latest);
                latest = delivery.at;
            }
        }
    }

    /// Also behind packets that arrive twice, the first time held back.
    #[test]
    fn second_copies_keep_the_order_that_the_first_gave_up(
        mut profile in any_profile(), seed: u64, packets in packets(),
    ) {
        profile.jitter.keeps_order = true;
        profile.duplication_probability = 1.0;
        let mut latest = Instant::ZERO;
        for (_, verdict) in run(&profile, seed, &packets) {
            if let Verdict::Twice(_, second) = verdict {
                prop_assert!(second.at >= latest);
                latest = second.at;
            }
        }
    }

    /// The backlog is as many bytes after a change of rate as before it.
    #[test]
    fn a_changed_rate_keeps_the_bytes_queued(
        rate in 1_000_000u64..1_000_000_000_000,
        changed_rate in 1_000_000u64..1_000_000_000_000,
        packets in packets(),
        then_nanos in 0u64..100_000,
    ) {
        let profile = Profile::default().with_rate_bits_per_second(rate);
        let mut impairment = Impairment::new(profile.clone(), 0).expect("a good profile");
        let mut now = Instant::ZERO;
        for &(bytes, gap_nanos) in &packets {
            now = now.saturating_add_nanos(gap_nanos);
            impairment.handle(bytes, now);
        }
        now = now.saturating_add_nanos(then_nanos);
        let backlog_bytes = impairment.backlog_bytes(now);
        impairment.set_profile(profile.with_rate_bits_per_second(changed_rate), now).expect("a good profile");
        prop_assert_eq!(impairment.backlog_bytes(now), backlog_bytes);
    }

    /// Against a queue that is computed in exact fractions, packet by packet.
    #[test]
    fn rate_queue_limit_and_marks_are_exact(
        rate in 1_000_000u64..1_000_000_000_000,
        limit in 0u64..100_000,
        threshold_bytes in 0u64..100_000,
        packets in packets(),
    ) {
        let profile = Profile::default()
            .with_rate_bits_per_second(rate)
            .with_queue_limit_bytes(limit)
            .with_ecn(EcnMarking::Step { threshold_bytes });
        let mut impairment = Impairment::new(profile, 0).expect("a good profile");
        let mut now = Instant::ZERO;
        let work_per_byte = 8_000_000_000;
        let (limit, threshold) = (i128::from(limit) * work_per_byte, i128::from(threshold_bytes) * work_per_byte);
        // Work not done yet, in 10^-9 bits: a nanosecond does `rate` of it. Negative if the wire fell idle less than a
        // nanosecond ago.
        let mut backlog = 0i128;
        for &(bytes, gap_nanos) in &packets {
            now = now.saturating_add_nanos(gap_nanos);
            backlog -= i128::from(gap_nanos) * i128::from(rate);
            if backlog <= -i128::from(rate) {
                backlog = 0;
            }
            let found = backlog.max(0);
            prop_assert_eq!(u128::from(impairment.backlog_bytes(now)), (found as u128).div_ceil(work_per_byte as u128));
            let left = backlog + i128::from(bytes) * work_per_byte;
            let verdict = impairment.handle(bytes, now);
            if found > 0 && left > limit {
                prop_assert_eq!(verdict, Verdict::Dropped(DropReason::QueueFull));
                continue;
            }
            backlog = left;
            let at = now.saturating_add_nanos((left.max(0) as u128).div_ceil(u128::from(rate)) as u64);
            let ecn_mark = found > threshold;
            prop_assert_eq!(verdict, Verdict::Once(Delivery { at, ecn_mark, corruption: None }));
            prop_assert_eq!(impairment.idle_at(), at);
        }
    }
}

/// Lost flags of many packets on a link that only loses.
fn losses(loss: Loss, seed: u64, packet_count: usize) -> Vec<bool> {
    let mut impairment = Impairment::new(Profile::default().with_loss(loss), seed).expect("a good profile");
    (0..packet_count).map(|_| impairment.handle(1000, Instant::ZERO) == Verdict::Dropped(DropReason::Loss)).collect()
}

#[test]
fn independent_loss_is_as_frequent_as_asked() {
    let packet_count = 1_000_000;
    for (seed, probability) in [1e-3, 0.02, 0.5, 0.9].into_iter().enumerate() {
        let lost = losses(Loss::Independent { probability }, seed as u64, packet_count);
        let lost_count = lost.iter().filter(|&&lost| lost).count() as f64;
        let mean = probability * packet_count as f64;
        let deviation = (mean * (1.0 - probability)).sqrt();
        assert!((lost_count - mean).abs() < 5.0 * deviation, "{probability}: {lost_count} of {packet_count} lost");
    }
    assert!(losses(Loss::Independent { probability: 1.0 }, 0, 1000).iter().all(|&lost| lost));
    assert!(losses(Loss::Independent { probability: 0.0 }, 0, 1000).iter().all(|&lost| !lost));
}

#[test]
fn gilbert_elliott_loses_as_often_and_in_such_bursts_as_the_formula_says() {
    let chains = [
        Loss::bursts(0.01, 5.0),
        Loss::bursts(0.2, 20.0),
        Loss::GilbertElliott { p_good_to_bad: 0.01, p_bad_to_good: 0.1, loss_good: 0.002, loss_bad: 0.6 },
        Loss::GilbertElliott { p_good_to_bad: 0.3, p_bad_to_good: 0.2, loss_good: 0.1, loss_bad: 0.9 },
    ];
    for (seed, loss) in chains.into_iter().enumerate() {
        let lost = losses(loss.clone(), seed as u64, 4_000_000);
        let lost_count = lost.iter().filter(|&&lost| lost).count() as f64;
        let burst_count = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        let mean_loss = lost_count / lost.len() as f64;
        let mean_burst = lost_count / burst_count;
        let burst_expected = loss.mean_burst_packets().expect("loses");
        // At least 8,000 bursts in each: 4 % is several deviations.
        assert!((mean_loss / loss.mean_loss() - 1.0).abs() < 0.04, "{loss:?}: {mean_loss}");
        assert!((mean_burst / burst_expected - 1.0).abs() < 0.04, "{loss:?}: {mean_burst} for {burst_expected}");
    }
}

#[test]
fn a_ramp_marks_in_proportion() {
    let ramp = EcnMarking::Ramp { minimum_bytes: 10_000, maximum_bytes: 20_000, probability_max: 0.4 };
    let profile = Profile::default().with_rate_bits_per_second(8_000_000_000).with_ecn(ramp);
    // One byte takes a nanosecond: after one large packet the queue is as long as we like.
    let marked_share = |found_bytes: u64| {
        let marked = (0..20_000)
            .filter(|&seed| {
                let mut impairment = Impairment::new(profile.clone(), seed).expect("a good profile");
                impairment.handle(30_000, Instant::ZERO);
                let now = Instant::from_nanos(30_000 - found_bytes);
                matches!(impairment.handle(1, now), Verdict::Once(delivery) if delivery.ecn_mark)
            })
            .count();
        marked as f64 / 20_000.0
    };
    assert_eq!(marked_share(10_000), 0.0);
    assert!((marked_share(15_000) - 0.2).abs() < 0.02);
    assert!((marked_share(20_000) - 0.4).abs() < 0.02);
    assert_eq!(marked_share(20_001), 1.0);
}

#[test]
fn a_million_packets_take_exactly_as_long_as_the_rate_says() {
    let profile = Profile::default().with_rate_bits_per_second(400_000_000_000).with_queue_limit_bytes(u64::MAX);
    let mut impairment = Impairment::new(profile, 0).expect("a good profile");
    for _ in 0..1_000_000 {
        impairment.handle(4096, Instant::ZERO);
    }
    // 81.92 ns each.
    assert_eq!(impairment.idle_at(), Instant::from_nanos(81_920_000));
}

#[test]
fn a_ramp_shorter_than_a_nanosecond_marks_in_proportion() {
    // A byte takes 0.02 ns: the ramp lies between 10 and 10.8 ns, and what is found is 10.4.
    let ramp = EcnMarking::Ramp { minimum_bytes: 500, maximum_bytes: 540, probability_max: 0.4 };
    let profile = Profile::default().with_rate_bits_per_second(400_000_000_000).with_ecn(ramp);
    let marked = (0..20_000)
        .filter(|&seed| {
            let mut impairment = Impairment::new(profile.clone(), seed).expect("a good profile");
            impairment.handle(520, Instant::ZERO);
            matches!(impairment.handle(1, Instant::ZERO), Verdict::Once(delivery) if delivery.ecn_mark)
        })
        .count();
    assert!((f64::from(marked as u32) / 20_000.0 - 0.2).abs() < 0.02, "{marked}");
}

#[test]
fn a_million_packets_paced_by_the_wire_take_no_longer() {
    let ecn = EcnMarking::Step { threshold_bytes: 0 };
    let profile = Profile::default().with_rate_bits_per_second(400_000_000_000).with_queue_limit_bytes(0).with_ecn(ecn);
    let mut impairment = Impairment::new(profile, 0).expect("a good profile");
    for _ in 0..1_000_000 {
        let now = impairment.idle_at();
        assert_eq!(impairment.backlog_bytes(now), 0);
        let verdict = impairment.handle(102, now);
        assert!(matches!(verdict, Verdict::Once(delivery) if !delivery.ecn_mark && delivery.at >= now), "{verdict:?}");
    }
    // 2.04 ns each.
    assert_eq!(impairment.idle_at(), Instant::from_nanos(2_040_000));
}

#[test]
fn a_packet_a_whole_nanosecond_late_finds_an_idle_wire() {
    let profile = Profile::default().with_rate_bits_per_second(400_000_000_000);
    let mut impairment = Impairment::new(profile, 0).expect("a good profile");
    impairment.handle(102, Instant::ZERO);
    impairment.handle(100, Instant::from_nanos(4));
    assert_eq!(impairment.idle_at(), Instant::from_nanos(6), "4 and 2 ns, not 2.04 and 2 ns");
}

#[test]
fn a_faster_wire_takes_packets_at_once() {
    let limit_bytes = 16 << 20;
    let slow = Profile::default().with_rate_bits_per_second(1_000_000).with_queue_limit_bytes(limit_bytes);
    let mut impairment = Impairment::new(slow.clone(), 0).expect("a good profile");
    while matches!(impairment.handle(4096, Instant::ZERO), Verdict::Once(_)) {}
    assert_eq!(impairment.backlog_bytes(Instant::ZERO), limit_bytes);
    let fast = slow.clone().with_rate_bits_per_second(100_000_000_000);
    impairment.set_profile(fast, Instant::ZERO).expect("a good profile");
    assert_eq!(impairment.backlog_bytes(Instant::ZERO), limit_bytes);
    assert_eq!(impairment.handle(4096, Instant::ZERO), Verdict::Dropped(DropReason::QueueFull));
    // 16 MiB at 100 Gbit/s: 1.342 ms, and 327.68 ns for the packet.
    let now = Instant::from_nanos(328);
    let taken = impairment.handle(4096, now);
    assert!(matches!(taken, Verdict::Once(delivery) if delivery.at == Instant::from_nanos(1_342_505)), "{taken:?}");
    // And back: what is left takes the slow wire as long as ever.
    let now = Instant::from_nanos(1_342_505 - 80);
    let backlog_bytes = impairment.backlog_bytes(now);
    impairment.set_profile(slow, now).expect("a good profile");
    assert_eq!(impairment.backlog_bytes(now), backlog_bytes);
    assert!(impairment.idle_at() > now.saturating_add_nanos((backlog_bytes - 1) * 8_000));
}

#[test]
fn a_changed_profile_keeps_backlog_counters_and_randomness() {
    let slow = Profile::default().with_rate_bits_per_second(8_000_000_000);
    let mut impairment = Impairment::new(slow.clone(), 3).expect("a good profile");
    impairment.handle(1_000, Instant::ZERO);
    let fast = slow.clone().with_rate_bits_per_second(80_000_000_000);
    let now = Instant::from_nanos(200);
    impairment.set_profile(fast, now).expect("a good profile");
    assert_eq!(impairment.backlog_bytes(now), 800);
    assert_eq!(impairment.idle_at(), Instant::from_nanos(280));
    assert_eq!(impairment.counters().packets, 1);
    assert_eq!(
        impairment.handle(1_000, now),
        Verdict::Once(Delivery { at: Instant::from_nanos(380), ecn_mark: false, corruption: None })
    );
    let refused = impairment.set_profile(slow.with_duplication(1.5), now);
    assert_eq!(refused, Err(ProfileError::Probability { name: "duplication probability", got: 1.5 }));
    assert_eq!(impairment.profile().duplication_probability, 0.0, "a refused profile changes nothing");
}

#[test]
fn a_packet_held_back_is_overtaken() {
    let profile = Profile::default()
        .with_propagation_delay(Duration::from_micros(10))
        .with_reordering(0.5, Duration::from_micros(5));
    let schedule = run(&profile, 1, &[(100, 1_000); 200]);
    let arrivals: Vec<Instant> =
        schedule.iter().flat_map(|&(_, verdict)| deliveries(verdict)).map(|delivery| delivery.at).collect();
    assert_eq!(arrivals.len(), 200);
    let overtaken = arrivals.windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert!((20..90).contains(&overtaken), "{overtaken}");
}

#[test]
fn senseless_profiles_are_refused_with_a_reason() {
    let check = |profile: Profile| profile.check().expect_err("refused").to_string();
    let perfect = Profile::default;
    assert_eq!(perfect().check(), Ok(()));
    assert_eq!(
        check(perfect().with_loss(Loss::Independent { probability: 1.5 })),
        "loss probability 1.5 is out of range: use 0 to 1"
    );
    assert_eq!(check(perfect().with_duplication(f64::NAN)), "duplication probability NaN is out of range: use 0 to 1");
    assert!(
        check(perfect().with_rate_bits_per_second(0)).contains("rate 0 bit/s is out of range: use 1 bit/s to 1 Pbit/s")
    );
    assert!(check(perfect().with_ecn(EcnMarking::Step { threshold_bytes: 1 })).contains("ECN marking needs a rate"));
    assert!(check(perfect().with_corruption(0.1, 65)).contains("cannot corrupt 65 bits"));
    assert!(check(perfect().with_propagation_delay(Duration::MAX)).contains("at most 24 hours"));
    assert!(check(perfect().with_loss(Loss::Replayed(LossTrace::from_lost_flags([])))).contains("empty"));
    let backwards = EcnMarking::Ramp { minimum_bytes: 2, maximum_bytes: 2, probability_max: 0.1 };
    assert!(
        check(perfect().with_rate_bits_per_second(1).with_ecn(backwards))
            .contains("the minimum must be below the maximum")
    );
    assert!(check(perfect().with_loss(Loss::bursts(0.9, 2.0))).contains("p_good_to_bad"));
    assert!(check(perfect().with_loss(Loss::bursts(0.2, 0.9))).contains("p_bad_to_good"));
    assert_eq!(perfect().with_loss(Loss::bursts(0.2, 1.1)).check(), Ok(()), "losses that avoid each other");
}
