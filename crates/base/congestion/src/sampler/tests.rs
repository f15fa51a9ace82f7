use super::*;

const HORIZON: Duration = Duration::from_millis(50);

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn report(packets: u64, newest: u64) -> Arrivals {
    Arrivals { packets, marked: 0, newest: Some(newest), held: Duration::ZERO }
}

/// One packet of 1,000 bytes every millisecond, from `from` on.
fn send(sampler: &mut Sampler, from: u64, count: u64) {
    for millis in from..from + count {
        sampler.on_sent(at(millis), 1, 1000);
        sampler.on_left(at(millis), 1);
    }
}

#[test]
fn a_steady_flow_is_measured() {
    let mut sampler = Sampler::default();
    send(&mut sampler, 0, 10);
    let mut samples = Vec::new();
    for number in 0..20 {
        samples.push(sampler.on_report(at(10 + number), &report(number + 1, number), HORIZON));
        send(&mut sampler, 10 + number, 1);
    }
    assert!(samples.iter().all(|sample| sample.round_trip == Some(Duration::from_millis(10))));
    assert!(samples.iter().all(|sample| sample.lost_packets == 0 && sample.delivered_bytes == 1000));
    assert_eq!(samples[19].delivery_rate, Some(8_000_000), "a packet of 1,000 bytes a millisecond");
    assert_eq!(samples[19].in_flight_packets_at_sending, 10);
    assert_eq!((sampler.in_flight_packets(), sampler.in_flight_bytes()), (10, 10_000));
}

#[test]
fn a_train_shows_how_fast_it_arrives_but_no_faster_than_it_was_sent() {
    let mut sampler = Sampler::default();
    // 40 packets within 10 ms, 50 ms away; they arrive at one a millisecond, or all at once.
    for (begun, apart, expected) in [(0, 1000, 8_000_000), (1000, 1, 32_000_000)] {
        sampler.on_app_limited();
        let sent_before = sampler.sent_packets();
        let after = |micros: u64| at(begun) + Duration::from_micros(micros);
        for number in 0..40 {
            sampler.on_sent(after(number * 250), 1, 1000);
            sampler.on_left(after(number * 250), 1);
        }
        let mut rates = Vec::new();
        for number in [3, 19, 35, 39] {
            let newest = sent_before + number;
            let now = after(50_000 + number * apart);
            rates.push(sampler.on_report(now, &report(newest + 1, newest), HORIZON).train_rate);
        }
        assert_eq!(rates[0], None, "one report shows no rate");
        assert_eq!(rates[1..], [Some(expected); 3]);
    }
}

#[test]
fn what_is_still_missing_behind_three_later_packets_is_lost_and_found_if_it_arrives() {
    let mut sampler = Sampler::default();
    send(&mut sampler, 0, 20);
    // Number 4 is missing.
    assert_eq!(sampler.on_report(at(10), &report(4, 3), HORIZON).lost_packets, 0);
    assert_eq!(sampler.on_report(at(12), &report(6, 6), HORIZON).lost_packets, 0, "it may be late");
    let sample = sampler.on_report(at(15), &report(9, 9), HORIZON);
    assert_eq!((sample.lost_packets, sampler.in_flight_packets()), (1, 10));
    let sample = sampler.on_report(at(16), &report(11, 10), HORIZON);
    assert_eq!((sample.lost_packets, sample.found_packets), (0, 1), "late after all");
    assert_eq!((sampler.lost_packets(), sampler.in_flight_packets()), (0, 9));
}

#[test]
fn after_the_horizon_a_report_settles_everything() {
    let mut sampler = Sampler::default();
    send(&mut sampler, 0, 20);
    sampler.on_report(at(10), &report(5, 4), HORIZON);
    let known = Arrivals { packets: 5, newest: None, ..Arrivals::default() };
    let sample = sampler.on_report(at(100), &known, HORIZON);
    assert_eq!((sample.lost_packets, sampler.in_flight_packets(), sampler.in_flight_bytes()), (15, 0, 0));
    // They stay lost.
    for _ in 0..3 {
        let sample = sampler.on_report(at(101), &known, HORIZON);
        assert_eq!((sample.found_packets, sample.delivered_bytes, sampler.lost_packets()), (0, 0, 15));
    }
    // Packets that wait in the device are not lost.
    sampler.on_sent(at(100), 5, 5000);
    sampler.on_report(at(300), &Arrivals { packets: 5, newest: None, ..Arrivals::default() }, HORIZON);
    assert_eq!(sampler.in_flight_packets(), 5);
}

#[test]
fn reports_that_were_held_up_measure_the_packets_that_they_are_about() {
    let mut sampler = Sampler::default();
    send(&mut sampler, 0, 20);
    // The sender stood still for ten seconds. The first report settles everything, and it goes on.
    sampler.on_report(at(10_000), &report(5, 4), HORIZON);
    assert_eq!(sampler.in_flight_packets(), 0);
    send(&mut sampler, 10_000, 5);
    let sample = sampler.on_report(at(10_001), &report(10, 9), HORIZON);
    assert_eq!(sample.round_trip, Some(at(10_001) - at(9)), "not that of a packet of the last moment");
    assert_eq!((sample.found_packets, sample.delivered_bytes), (5, 5000));
    let sample = sampler.on_report(at(10_002), &report(20, 19), HORIZON);
    assert_eq!((sampler.lost_packets(), sample.delivered_bytes, sampler.in_flight_packets()), (0, 10_000, 5));
}

#[test]
fn a_packet_that_others_have_overtaken_hides_nothing() {
    let mut sampler = Sampler::default();
    send(&mut sampler, 0, 40);
    sampler.on_report(at(50), &report(10, 15), HORIZON);
    // The six that were missing have come, one of them last.
    let sample = sampler.on_report(at(51), &report(16, 12), HORIZON);
    assert_eq!((sample.round_trip, sampler.in_flight_packets()), (None, 24));
    // The next ones measure again, and nothing was lost.
    let sample = sampler.on_report(at(52), &report(20, 19), HORIZON);
    assert!(sample.round_trip.is_some());
    let sample = sampler.on_report(at(53), &report(30, 29), HORIZON);
    assert!(sample.round_trip.is_some());
    assert_eq!((sampler.lost_packets(), sampler.in_flight_packets()), (0, 10));
}

#[test]
fn all_that_was_sent_with_a_packet_may_overtake_it() {
    let mut sampler = Sampler::default();
    // Nine at once, of which the first arrives last: more than half of what is in flight, and reported in one go.
    sampler.on_sent(at(0), 9, 9000);
    sampler.on_left(at(0), 9);
    let sample = sampler.on_report(at(10), &report(9, 0), HORIZON);
    assert_eq!((sample.delivered_packets, sampler.in_flight_packets()), (9, 0));
    // Without that, one of them would be taken for a duplicate, and be missing for good.
    send(&mut sampler, 20, 10);
    sampler.on_report(at(40), &report(19, 18), HORIZON);
    assert_eq!((sampler.delivered_packets(), sampler.lost_packets()), (19, 0));
    // What was sent later than that cannot have: twelve more at half of a round trip.
    send(&mut sampler, 50, 12);
    sampler.on_report(at(62), &report(31, 19), HORIZON);
    assert!(sampler.delivered_packets() < 31, "{}", sampler.delivered_packets());
}

#[test]
fn duplicates_do_not_hide_what_is_in_flight() {
    let mut sampler = Sampler::default();
    let (mut arrived, mut lost) = (0, 0);
    for round in 0..1000 {
        send(&mut sampler, round * 10, 10);
        // One in ten is lost and one in twenty comes twice, all a round later.
        if round > 0 {
            arrived += 9 + round % 2;
            lost += 1;
            sampler.on_report(at(round * 10 + 9), &report(arrived, round * 10 - 1), HORIZON);
        }
    }
    let found = sampler.lost_packets();
    assert!(found * 2 > lost - 20, "{found} of {lost} lost");
    assert!((5..=10).contains(&sampler.in_flight_packets()), "{}", sampler.in_flight_packets());
}

#[test]
fn duplicates_do_not_hide_what_is_in_flight_on_a_path_that_has_become_longer() {
    let mut sampler = Sampler::default();
    // A packet a millisecond, first 10 ms away, then 100; later one in ten comes twice, too.
    let (mut next, mut extra) = (0, 0);
    for millis in 0..60_000 {
        send(&mut sampler, millis, 1);
        let distance = if millis < 5000 { 10 } else { 100 };
        if millis >= next + distance {
            extra += u64::from(millis > 40_000 && next % 10 == 0);
            sampler.on_report(at(millis), &report(next + 1 + extra, next), Duration::from_secs(1));
            next += 1;
        }
    }
    // Half of what is in flight may have overtaken the newest, for all that is known, but not nearly all of it.
    assert!((60..=101).contains(&sampler.in_flight_packets()), "{} of 100", sampler.in_flight_packets());
}

#[test]
fn repeats_whose_number_is_not_known_leave_losses_and_flight_as_they_are() {
    let mut sampler = Sampler::default();
    send(&mut sampler, 0, 20);
    sampler.on_report(at(20), &report(9, 9), HORIZON);
    sampler.on_report(at(30), &report(19, 19), HORIZON);
    assert_eq!(sampler.lost_packets(), 1);
    send(&mut sampler, 30, 10);
    let unknown = Arrivals { packets: 29, newest: None, ..Arrivals::default() };
    let sample = sampler.on_report(at(45), &unknown, HORIZON);
    assert_eq!((sample.found_packets, sampler.lost_packets(), sampler.in_flight_packets()), (0, 1, 0));
}

#[test]
fn silence_writes_everything_off_and_what_arrives_is_found() {
    let mut sampler = Sampler::default();
    send(&mut sampler, 0, 20);
    sampler.on_timeout(at(100), HORIZON);
    assert_eq!((sampler.in_flight_packets(), sampler.in_flight_bytes()), (0, 0));
    let sample = sampler.on_report(at(101), &report(20, 19), HORIZON);
    assert_eq!((sample.delivered_bytes, sampler.lost_packets(), sampler.in_flight_bytes()), (20_000, 0, 0));
}

#[test]
fn short_packets_after_long_ones_count_as_short() {
    let mut sampler = Sampler::default();
    send(&mut sampler, 0, 1000);
    sampler.on_report(at(1000), &report(990, 999), HORIZON);
    sampler.on_report(at(1100), &Arrivals { packets: 990, ..Arrivals::default() }, HORIZON);
    for number in 0..100 {
        sampler.on_sent(at(1100 + number), 1, 64);
        sampler.on_left(at(1100 + number), 1);
    }
    let sample = sampler.on_report(at(1201), &report(1085, 1099), HORIZON);
    assert_eq!(sample.delivered_packets, 95);
    assert!((5000..=6400).contains(&sample.delivered_bytes), "{}", sample.delivered_bytes);
}

#[test]
fn wild_reports_change_nothing_for_the_worse() {
    let mut sampler = Sampler::default();
    send(&mut sampler, 0, 20);
    let wild = Arrivals { packets: u64::MAX, marked: u64::MAX, newest: Some(u64::MAX), held: Duration::MAX };
    let sample = sampler.on_report(at(10), &wild, HORIZON);
    assert_eq!((sample.delivered_packets, sample.lost_packets, sample.round_trip), (20, 0, None));
    let sample = sampler.on_report(at(11), &report(3, 2), HORIZON);
    assert_eq!((sample.delivered_packets, sample.delivered_bytes), (0, 0), "an old one");
    assert_eq!(sampler.in_flight_bytes(), 0);
}

#[test]
fn time_without_data_is_not_a_slow_path() {
    let mut sampler = Sampler::default();
    send(&mut sampler, 0, 5);
    sampler.on_app_limited();
    for number in 0..5 {
        sampler.on_report(at(10 + number), &report(number + 1, number), HORIZON);
    }
    send(&mut sampler, 10_000, 5);
    let sample = sampler.on_report(at(10_010), &report(6, 5), HORIZON);
    assert!(sample.is_app_limited, "it was, when this was sent");
    assert_eq!(sample.round_trip, Some(Duration::from_millis(10)));
    assert!(sample.delivery_rate.is_some_and(|rate| rate >= 800_000), "{:?}", sample.delivery_rate);
}

#[test]
fn memory_is_bounded_however_much_is_in_flight() {
    let mut sampler = Sampler::default();
    send(&mut sampler, 0, 100_000);
    assert!(sampler.bursts.len() <= BURSTS_MAX);
    let sample = sampler.on_report(at(100_000), &report(100_000, 99_999), HORIZON);
    assert_eq!((sample.delivered_bytes, sampler.in_flight_bytes()), (100_000_000, 0));
}
