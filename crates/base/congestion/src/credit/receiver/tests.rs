//! The receiver's half of `credit`, driven by hand.

use super::*;

const PACKET: u64 = 1000;

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

/// 8 Gbit/s and 32 µs: 32 packets outstanding, grants of two.
fn receiver() -> Receiver {
    Receiver::new(&PathFacts {
        packet_bytes: PACKET as u32,
        round_trip: Some(Duration::from_micros(32)),
        line_bits_per_second: Some(8_000_000_000),
        seed: 1,
    })
}

fn wants(packets: u64) -> Announcement {
    Announcement { wanted_bytes: packets * PACKET, received_bytes: 0, uncredited_bytes: 0, lost_bytes: 0 }
}

/// A sender that has sent enough before.
fn trust(receiver: &mut Receiver, sender: u64) {
    let state = receiver.senders.get_mut(&sender).expect("it has announced something");
    state.trusted = state.bound;
}

/// All grants until then, with their times in nanoseconds.
fn grants(receiver: &mut Receiver, from: Instant, until: Instant) -> Vec<(u64, Grant)> {
    let (mut now, mut all) = (from, Vec::new());
    while now <= until {
        while let Some(grant) = receiver.poll(now) {
            all.push((now.as_nanos(), grant));
        }
        let Some(next) = receiver.next_deadline() else { break };
        assert!(next > now, "it waits for {next:?} at {now:?}");
        now = next;
    }
    all
}

#[test]
fn senders_have_their_turns_at_just_under_line_rate() {
    let mut receiver = receiver();
    for sender in [7, 3, 5] {
        receiver.on_announcement(at(0), sender, &wants(4));
    }
    let all = grants(&mut receiver, at(0), at(200));
    let order: Vec<u64> = all.iter().map(|(_, grant)| grant.sender).collect();
    assert_eq!(order, [7, 3, 5, 7, 3, 5]);
    assert!(all.iter().all(|(_, grant)| grant.bytes == 2 * PACKET));
    // 2,000 bytes at 0.97 · 8 Gbit/s.
    let nanos: Vec<u64> = all.iter().map(|(nanos, _)| *nanos).collect();
    assert_eq!(nanos[..3], [0, 2061, 4123]);
    assert_eq!(receiver.outstanding_bytes(), 0, "after four round trips it is written off");
}

#[test]
fn no_more_than_a_bandwidth_delay_product_is_outstanding() {
    let mut receiver = receiver();
    receiver.on_announcement(at(0), 1, &wants(1000));
    trust(&mut receiver, 1);
    assert_eq!(grants(&mut receiver, at(0), at(127)).len(), 16);
    assert_eq!((receiver.outstanding_bytes(), receiver.next_deadline()), (32 * PACKET, Some(at(128))));
    receiver.on_arrived(1, PACKET);
    assert_eq!(receiver.poll(at(127)), None, "a grant is two packets");
    receiver.on_arrived(1, PACKET);
    assert_eq!(receiver.poll(at(127)), Some(Grant { sender: 1, bytes: 2 * PACKET }));
}

#[test]
fn lost_packets_do_not_hold_up_the_rest() {
    let mut receiver = receiver();
    receiver.on_announcement(at(0), 1, &wants(100_000));
    // Every fifth packet is lost; the others arrive 30 µs after their grant. The sender knows after 46 µs.
    let (mut arrivals, mut losses) = (VecDeque::new(), VecDeque::new());
    let (mut sent, mut granted, mut lost_bytes) = (0, 0, 0);
    let take = |queue: &mut VecDeque<u64>, now| queue.pop_front_if(|due| *due <= now).is_some();
    for micros in 0..10_000 {
        while let Some(grant) = receiver.poll(at(micros)) {
            granted += grant.bytes;
            for _ in 0..grant.bytes / PACKET {
                sent += 1;
                if sent % 5 == 0 { losses.push_back(micros + 46) } else { arrivals.push_back(micros + 30) }
            }
        }
        while take(&mut arrivals, micros) {
            receiver.on_arrived(1, PACKET);
        }
        while take(&mut losses, micros) {
            lost_bytes += PACKET;
            let wanted_bytes = 100_000 * PACKET - granted;
            let announcement = Announcement { wanted_bytes, received_bytes: granted, lost_bytes, ..wants(0) };
            receiver.on_announcement(at(micros), 1, &announcement);
        }
    }
    // 10 ms at 0.97 GB/s are 9,700 packets. 32 are outstanding for 0.8 · 30 + 0.2 · 46 µs.
    assert!(granted > 9_000 * PACKET, "{granted}");
    assert!(receiver.outstanding_bytes() <= 32 * PACKET);
}

#[test]
fn a_first_window_counts_as_outstanding() {
    let mut receiver = receiver();
    for sender in 0..4 {
        let announcement = Announcement { uncredited_bytes: 10 * PACKET, ..wants(5) };
        receiver.on_announcement(at(0), sender, &announcement);
    }
    assert_eq!((receiver.outstanding_bytes(), receiver.poll(at(0))), (40 * PACKET, None));
    for _ in 0..10 {
        receiver.on_arrived(0, PACKET);
    }
    assert_eq!(receiver.poll(at(5)), Some(Grant { sender: 0, bytes: 2 * PACKET }));
    assert_eq!(receiver.poll(at(128)), None, "something has arrived: the line may be slow");
    assert_eq!(receiver.poll(at(256)).map(|grant| grant.sender), Some(1), "what is lost of it is written off");
}

#[test]
fn lost_grants_are_made_again_when_the_sender_announces_again() {
    let mut receiver = receiver();
    receiver.on_announcement(at(0), 1, &wants(4));
    assert_eq!(grants(&mut receiver, at(0), at(10)).len(), 2);
    receiver.on_announcement(at(20), 1, &wants(4));
    assert_eq!(receiver.poll(at(20)), None, "they may still be in flight");
    receiver.on_announcement(at(200), 1, &wants(4));
    assert_eq!(grants(&mut receiver, at(200), at(210)).len(), 2);
    let announcement = Announcement { received_bytes: 8 * PACKET, ..wants(2) };
    receiver.on_announcement(at(220), 1, &announcement);
    assert_eq!(grants(&mut receiver, at(220), at(230)).len(), 1, "it has seen them, and wants more");
}

#[test]
fn a_sender_that_goes_or_withdraws_gets_nothing() {
    let mut receiver = receiver();
    receiver.on_announcement(at(0), 1, &wants(4));
    receiver.on_announcement(at(0), 2, &wants(4));
    receiver.poll(at(0));
    receiver.remove(1);
    receiver.on_announcement(at(1), 2, &wants(0));
    assert_eq!((grants(&mut receiver, at(1), at(1000)).len(), receiver.outstanding_bytes()), (0, 0));
}

#[test]
fn wild_announcements_get_no_more_than_their_turns() {
    let mut receiver = receiver();
    let wild = Announcement {
        wanted_bytes: u64::MAX,
        received_bytes: u64::MAX,
        uncredited_bytes: u64::MAX,
        lost_bytes: u64::MAX,
    };
    for sender in 0..3 {
        receiver.on_announcement(at(0), sender, &wild);
        receiver.on_arrived(sender, PACKET);
    }
    receiver.on_announcement(at(0), 3, &wants(10));
    trust(&mut receiver, 3);
    receiver.on_arrived(99, PACKET);
    let all = grants(&mut receiver, at(0), at(40));
    assert_eq!(all.iter().filter(|(_, grant)| grant.sender == 3).count(), 5);
    assert!((19..=21).contains(&all.len()), "the rate stays: {}", all.len());
    let honest = Announcement { lost_bytes: 0, ..wants(0) };
    receiver.on_announcement(at(41), 0, &honest);
    assert!(receiver.outstanding_bytes() <= 50 * PACKET);
}

#[test]
fn limits_hold_whatever_the_round_trips_are() {
    let limits = ReceiverLimits {
        outstanding_bytes_min: 64 * PACKET,
        outstanding_bytes_max: 128 * PACKET,
        patience_min: Duration::from_millis(1),
    };
    let mut receiver = receiver().with_limits(limits);
    receiver.on_announcement(at(0), 1, &wants(10_000));
    trust(&mut receiver, 1);
    grants(&mut receiver, at(0), at(900));
    assert_eq!(receiver.outstanding_bytes(), 64 * PACKET, "more than the product, and for longer than 128 µs");
    // One that holds its answers back has more, but no more than that, and it is not waited for for ever.
    receiver.on_announcement(at(900), 2, &wants(10_000));
    receiver.set_round_trip(2, Duration::from_secs(1000));
    trust(&mut receiver, 2);
    grants(&mut receiver, at(900), at(950));
    assert_eq!(receiver.outstanding_bytes(), 64 * PACKET, "the other has taken all that there is");
    receiver.on_arrived(1, 32 * PACKET);
    receiver.on_announcement(at(950), 1, &wants(0));
    grants(&mut receiver, at(950), at(1040));
    assert_eq!(receiver.outstanding_bytes(), 32 * PACKET + 64 * PACKET, "half of each bound");
    receiver.remove(1);
    receiver.on_announcement(at(1040), 2, &wants(0));
    assert_eq!(receiver.standing_of(2).map(|standing| standing.patience), Some(Duration::from_secs(4)));
    grants(&mut receiver, at(1040), at(5_100_000));
    assert_eq!(receiver.outstanding_bytes(), 0);
}

#[test]
fn each_sender_has_its_own_patience() {
    let mut receiver = receiver();
    for (sender, micros) in [(1, 1000), (2, 10)] {
        receiver.on_announcement(at(0), sender, &wants(2));
        receiver.set_round_trip(sender, Duration::from_micros(micros));
    }
    assert_eq!(grants(&mut receiver, at(0), at(10)).len(), 4, "of a packet each, as suits the near one");
    receiver.poll(at(44));
    assert_eq!(receiver.outstanding_bytes(), 2 * PACKET, "the near one is given up");
    receiver.poll(at(4003));
    assert_eq!(receiver.outstanding_bytes(), 0);
}

#[test]
fn a_sender_that_takes_credit_and_sends_nothing_must_ask_again() {
    let mut receiver = receiver();
    let liar = Announcement { wanted_bytes: u64::MAX, lost_bytes: u64::MAX, ..wants(0) };
    receiver.on_announcement(at(0), 1, &liar);
    receiver.on_announcement(at(0), 2, &wants(100_000));
    let mut counts = [0; 3];
    for micros in 0..1000 {
        while let Some(grant) = receiver.poll(at(micros)) {
            counts[grant.sender as usize] += 1;
            if grant.sender == 2 {
                receiver.on_arrived(2, grant.bytes);
            }
        }
    }
    // It had its turns for 16 grants and four round trips of 32 µs, and the other all of them afterwards.
    assert!((17..80).contains(&counts[1]) && counts[2] > 380, "{counts:?}");
    receiver.on_announcement(at(1000), 1, &liar);
    assert!(grants(&mut receiver, at(1000), at(1020)).iter().any(|(_, grant)| grant.sender == 1));
}

#[test]
fn copies_that_a_network_makes_are_no_room_for_more() {
    let mut receiver = receiver();
    receiver.on_announcement(at(0), 1, &wants(1000));
    trust(&mut receiver, 1);
    assert_eq!(grants(&mut receiver, at(0), at(100)).len(), 16);
    receiver.on_arrived_total(1, 1_000_000 * PACKET);
    receiver.on_arrived_total(1, 3);
    assert_eq!(receiver.outstanding_bytes(), 0);
    // Ten packets of a first window might have been among them.
    assert_eq!(grants(&mut receiver, at(100), at(200)).len(), 16 + 5);
}

#[test]
fn a_sender_that_wants_little_again_and_again_takes_no_memory() {
    let mut receiver = receiver();
    for step in 0..20_000 {
        if step == 10_000 {
            receiver.on_announcement(Instant::from_nanos(step), 2, &wants(1000));
        }
        let received_bytes = receiver.standing_of(1).map_or(0, |standing| standing.granted_bytes);
        let little = Announcement { wanted_bytes: 1, received_bytes, lost_bytes: u64::MAX, ..wants(0) };
        receiver.on_announcement(Instant::from_nanos(step), 1, &little);
        while receiver.poll(Instant::from_nanos(step)).is_some() {}
    }
    assert!(receiver.promises.len() <= 2 * PROMISES_MAX as usize, "{}", receiver.promises.len());
    let granted = receiver.standing_of(2).map_or(0, |standing| standing.granted_bytes);
    assert!(granted >= 6 * PACKET, "the other is not held up: {granted}");
}

#[test]
fn a_late_driver_catches_up_by_one_grant() {
    let mut receiver = receiver();
    receiver.on_announcement(at(0), 1, &wants(100));
    assert!(receiver.poll(at(0)).is_some());
    assert!(receiver.poll(at(50)).is_some());
    assert!(receiver.poll(at(50)).is_some());
    assert_eq!(receiver.poll(at(50)), None);
}

/// Senders' packets in the one queue in front of the receiver, which lets one out in `packet_micros`. The most that was
/// ever in it without being counted as outstanding, and the most that was in it after the first windows.
fn queue_in_front_of(mut receiver: Receiver, senders: u64, packet_micros: u64) -> (u64, u64) {
    let mut queue = VecDeque::new();
    for sender in 0..senders {
        receiver.on_announcement(at(0), sender, &Announcement { uncredited_bytes: 10 * PACKET, ..wants(100_000) });
        queue.extend([sender; 10]);
    }
    let (mut uncounted, mut longest) = (0, 0);
    for micros in 1..100_000 {
        if micros % packet_micros == 0
            && let Some(sender) = queue.pop_front()
        {
            receiver.on_arrived(sender, PACKET);
        }
        while let Some(grant) = receiver.poll(at(micros)) {
            queue.extend((0..grant.bytes / PACKET).map(|_| grant.sender));
        }
        let bytes = queue.len() as u64 * PACKET;
        uncounted = uncounted.max(bytes.saturating_sub(receiver.outstanding_bytes()));
        if micros > 10 * senders * packet_micros {
            longest = longest.max(bytes);
        }
    }
    (uncounted, longest)
}

#[test]
fn what_a_slow_line_has_not_carried_yet_is_not_written_off() {
    // 64 packets take 6.4 ms, and eight first windows 8 ms; the patience is 1 ms. The second port says that it is ten
    // times as fast, and the third one's packets take longer than the patience.
    for (line, packet_micros) in [(80_000_000, 100), (800_000_000, 100), (4_000_000, 2000)] {
        let facts = PathFacts {
            packet_bytes: PACKET as u32,
            round_trip: Some(Duration::from_micros(32)),
            line_bits_per_second: Some(line),
            seed: 1,
        };
        let receiver = Receiver::new(&facts).with_limits(ReceiverLimits {
            outstanding_bytes_min: 64 * PACKET,
            outstanding_bytes_max: 128 * PACKET,
            patience_min: Duration::from_millis(1),
        });
        let (uncounted, longest) = queue_in_front_of(receiver, 8, packet_micros);
        assert_eq!(uncounted, 0, "{line}: in the queue, and not outstanding");
        assert!(longest <= 80 * PACKET, "{line}: {longest}");
    }
}

#[test]
fn a_sender_that_sends_nothing_leaves_most_of_it_to_the_others() {
    let mut receiver = receiver();
    receiver.on_announcement(at(0), 1, &wants(1000));
    grants(&mut receiver, at(0), at(50));
    assert_eq!(receiver.outstanding_bytes(), 8 * PACKET, "a quarter, although it is alone");
    // What the other sends arrives 20 µs later.
    receiver.on_announcement(at(50), 2, &wants(1000));
    let (mut arrivals, mut counts) = (VecDeque::new(), [0; 3]);
    for micros in 50..125 {
        while let Some(grant) = receiver.poll(at(micros)) {
            counts[grant.sender as usize] += 1;
            arrivals.extend((grant.sender == 2).then_some((micros + 20, grant.bytes)));
        }
        while let Some((_, bytes)) = arrivals.pop_front_if(|(due, _)| *due <= micros) {
            receiver.on_arrived(2, bytes);
        }
    }
    assert!(counts[1] == 0 && counts[2] > 20, "{counts:?}");
}

#[test]
fn a_sender_that_has_sent_may_have_it_all_until_it_sends_nothing() {
    let mut receiver = receiver();
    receiver.on_announcement(at(0), 1, &wants(1000));
    assert_eq!(grants(&mut receiver, at(0), at(100)).len(), 4);
    receiver.on_arrived(1, 8 * PACKET);
    assert_eq!(grants(&mut receiver, at(100), at(120)).len(), 8, "as much more as has arrived");
    receiver.on_arrived(1, 16 * PACKET);
    assert_eq!(grants(&mut receiver, at(121), at(200)).len(), 16);
    assert_eq!(receiver.outstanding_bytes(), 32 * PACKET);
    grants(&mut receiver, at(200), at(400));
    assert_eq!(receiver.outstanding_bytes(), 0, "it is given up, and gets no more before it asks");
    receiver.on_announcement(at(400), 1, &wants(1000));
    assert_eq!(grants(&mut receiver, at(400), at(500)).len(), 4, "from the beginning");
}

#[test]
fn a_far_sender_is_no_reason_for_near_ones_to_have_more() {
    let mut receiver = receiver();
    for (sender, micros) in [(1, 32), (2, 3200)] {
        receiver.on_announcement(at(0), sender, &wants(100_000));
        receiver.set_round_trip(sender, Duration::from_micros(micros));
    }
    // The near one sends at once, the far one after its round trip; together they have all of the line.
    let (mut arrivals, mut granted) = (VecDeque::new(), [0; 3]);
    for micros in 0..30_000 {
        while let Some(grant) = receiver.poll(at(micros)) {
            let takes = if grant.sender == 1 { 30 } else { 3100 };
            arrivals.push_back((micros + takes, grant));
            if micros >= 20_000 {
                granted[grant.sender as usize] += grant.bytes / PACKET;
            }
        }
        while let Some(index) = arrivals.iter().position(|(due, _)| *due <= micros) {
            let (_, grant) = arrivals.remove(index).expect("it is there");
            receiver.on_arrived(grant.sender, grant.bytes);
        }
    }
    let near = |receiver: &Receiver| receiver.senders[&1].outstanding();
    assert!(granted[1] + granted[2] > 9_000 && granted[1] > 4_000 && granted[2] > 4_000, "{granted:?}");
    // Now the near one's port stands still.
    receiver.on_announcement(at(30_000), 2, &wants(0));
    let end = at(30_100);
    grants(&mut receiver, at(30_000), end);
    assert!(near(&receiver) <= 32 * PACKET, "{}", near(&receiver));
}

#[test]
fn a_driver_whose_clock_is_behind_has_nothing_written_off_early() {
    let mut receiver = receiver();
    receiver.on_announcement(at(1000), 1, &wants(2));
    assert!(receiver.poll(at(1000)).is_some());
    receiver.on_arrived(1, 2 * PACKET);
    // Other drivers read their clocks before that, and come only now.
    receiver.on_announcement(at(900), 2, &Announcement { uncredited_bytes: 3 * PACKET, ..wants(2) });
    assert!(receiver.poll(at(900)).is_some());
    assert_eq!(receiver.poll(at(950)), None, "the rate holds");
    receiver.poll(at(1127));
    assert_eq!(receiver.outstanding_bytes(), 5 * PACKET);
    receiver.poll(at(1128));
    assert_eq!((receiver.outstanding_bytes(), receiver.poll(at(0)), receiver.next_deadline()), (0, None, None));
}

#[test]
fn the_last_of_many_grants_is_waited_for_as_long_as_the_first() {
    let limits = ReceiverLimits {
        outstanding_bytes_min: 64 * PACKET,
        outstanding_bytes_max: 64 * PACKET,
        patience_min: Duration::from_millis(1),
    };
    let mut receiver = receiver().with_limits(limits);
    for step in 0..300 {
        let received_bytes = step * PACKET;
        receiver.on_announcement(at(2 * step), 1, &Announcement { received_bytes, ..wants(1) });
        assert!(receiver.poll(at(2 * step)).is_some());
        if step < 299 {
            receiver.on_arrived(1, PACKET);
        }
    }
    receiver.poll(at(598 + 999));
    assert_eq!(receiver.outstanding_bytes(), PACKET);
    receiver.poll(at(598 + 1000));
    assert_eq!(receiver.outstanding_bytes(), 0);
}
