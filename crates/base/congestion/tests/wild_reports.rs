//! Senders of every controller with reports that make no sense: old, repeated, impossible, at odd times.

use longhaul_congestion::{Arrivals, ControllerName, Flow, PathFacts};
use longhaul_time::{Duration, Instant};
use proptest::prelude::*;

const PACKET_BYTES: u32 = 1500;

/// What may happen to a flow.
#[derive(Clone, Debug)]
enum Event {
    /// As many packets as it allows, at most this many.
    Send(u64),
    Left(u64),
    Report(Arrivals),
    /// An honest one: everything up to here arrived but for some.
    HonestReport {
        missing: u64,
        is_marked: bool,
    },
    /// Of a receiver that takes packets in order only.
    Acknowledged {
        end: u64,
        is_repeat: bool,
    },
    WentBack(u64),
    Notification,
    Timeout,
    Credit(u64),
    Backlog(u64),
    AppLimited,
    Deadline,
    Wait(Duration),
}

fn events() -> impl Strategy<Value = Event> {
    let number = prop_oneof![0..1000_u64, any::<u64>()];
    let arrivals = (number.clone(), number.clone(), prop::option::of(number.clone()), any::<u64>()).prop_map(
        |(packets, marked, newest, held)| Arrivals { packets, marked, newest, held: Duration::from_nanos(held) },
    );
    prop_oneof![
        4 => (0..200_u64).prop_map(Event::Send),
        2 => number.clone().prop_map(Event::Left),
        2 => arrivals.prop_map(Event::Report),
        6 => (0..5_u64, any::<bool>()).prop_map(|(missing, is_marked)| Event::HonestReport { missing, is_marked }),
        2 => (number.clone(), any::<bool>()).prop_map(|(end, is_repeat)| Event::Acknowledged { end, is_repeat }),
        1 => number.clone().prop_map(Event::WentBack),
        1 => Just(Event::Notification),
        1 => Just(Event::Timeout),
        1 => number.clone().prop_map(Event::Credit),
        1 => number.prop_map(Event::Backlog),
        1 => Just(Event::AppLimited),
        1 => Just(Event::Deadline),
        4 => (0..100_000_000_u64).prop_map(|nanos| Event::Wait(Duration::from_nanos(nanos))),
    ]
}

fn controllers() -> impl Strategy<Value = ControllerName> {
    let names = ["wan", "dcqcn", "swift", "credit", "fixed:1G", "fixed:1000"];
    prop::sample::select(names.map(|name| name.parse().expect("a controller")).to_vec())
}

proptest! {
    #[test]
    fn no_report_makes_a_flow_panic_or_lose_count(
        name in controllers(),
        events in prop::collection::vec(events(), 0..300),
        round_trip_nanos in prop::option::of(any::<u64>()),
        line_bits_per_second in prop::option::of(1..u64::MAX),
        packet_bytes in prop_oneof![Just(PACKET_BYTES), any::<u32>()],
    ) {
        let round_trip = round_trip_nanos.map(Duration::from_nanos);
        let facts = PathFacts { packet_bytes, round_trip, line_bits_per_second, seed: 1 };
        let mut flow = Flow::new(name, &facts);
        let mut now = Instant::from_nanos(1);
        let (mut sent, mut arrived, mut marked) = (0, 0, 0);
        for event in events {
            match event {
                Event::Send(most) => {
                    let packets = (flow.room_bytes(now) / u64::from(packet_bytes.max(1))).min(most);
                    if packets > 0 {
                        prop_assert_eq!(flow.on_sent(now, packets, packets * u64::from(packet_bytes)), sent);
                        sent += packets;
                    }
                }
                Event::Left(packets) => flow.on_left(now, packets),
                Event::Report(arrivals) => {
                    let sample = flow.on_report(now, &arrivals, Duration::from_millis(200));
                    prop_assert!(sample.delivered_bytes_total <= sent * u64::from(packet_bytes));
                }
                Event::HonestReport { missing, is_marked } => {
                    arrived = arrived.max(sent.saturating_sub(missing));
                    marked += u64::from(is_marked);
                    let newest = sent.checked_sub(1);
                    let arrivals = Arrivals { packets: arrived, marked, newest, held: Duration::ZERO };
                    flow.on_report(now, &arrivals, Duration::from_millis(200));
                }
                Event::Acknowledged { end, is_repeat } => {
                    let sample = flow.on_acknowledged(now, end, is_repeat);
                    prop_assert!(sample.delivered_bytes_total <= sent * u64::from(packet_bytes));
                    prop_assert!(!is_repeat || sample.round_trip.is_none());
                }
                Event::WentBack(lost) => {
                    flow.on_went_back(now, lost);
                    prop_assert_eq!(flow.sampler().in_flight_packets(), 0);
                }
                Event::Notification => flow.on_notification(now),
                Event::Timeout => flow.on_timeout(now, Duration::from_millis(200)),
                Event::Credit(bytes) => flow.on_credit(now, bytes),
                Event::Backlog(bytes) => flow.on_backlog(now, bytes),
                Event::AppLimited => flow.on_app_limited(),
                Event::Deadline => {
                    if let Some(at) = flow.next_deadline().filter(|at| *at <= now) {
                        flow.on_deadline(now);
                        flow.announcement(now);
                        prop_assert!(flow.next_deadline().is_none_or(|next| next > at), "the deadline moves on");
                    }
                }
                Event::Wait(time) => now += time,
            }
            let sampler = flow.sampler();
            prop_assert!(sampler.in_flight_packets() <= sent && sampler.sent_packets() == sent);
            prop_assert!(sampler.lost_packets() <= sent);
            let in_flight = (sampler.in_flight_packets(), sampler.in_flight_bytes());
            prop_assert_eq!(in_flight.0 == 0, in_flight.1 == 0, "{:?}", in_flight);
            prop_assert!(flow.controller().bits_per_second().is_none_or(|rate| rate > 0), "{:?}", flow.controller());
        }
        // Everything is settled in the end: a window that never opens again would stop a sender for good.
        let everything = Arrivals { packets: sent, marked: 0, newest: sent.checked_sub(1), held: Duration::ZERO };
        now += Duration::from_secs(10);
        flow.on_left(now, sent);
        now += Duration::from_secs(10);
        flow.on_report(now, &everything, Duration::from_millis(200));
        prop_assert_eq!(flow.sampler().in_flight_packets(), 0);
        prop_assert_eq!(flow.sampler().in_flight_bytes(), 0);
        // Every rate but the slowest sends a packet within ten seconds, if it is none of gigabytes; credit waits for the receiver.
        let has_room = flow.room_bytes(now + Duration::from_secs(10)) >= u64::from(packet_bytes);
        let may_wait = matches!(name, ControllerName::Credit | ControllerName::Fixed(1000)) || packet_bytes > 1 << 16;
        prop_assert!(has_room || may_wait);
    }
}
