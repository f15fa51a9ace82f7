//! `wan` with a sender of short messages, one at a time: it never fills the path, and still nothing may hold its messages up.

use longhaul_congestion::{Controller as _, PathFacts, Sample, Wan};
use longhaul_time::{Duration, Instant};

const PACKET_BYTES: u64 = 1088;
const PACKETS: u64 = 68;
const ROUND_TRIP: Duration = Duration::from_millis(25);
/// Packets that one report is about.
const REPORTED: u64 = 17;

/// The reports of one message, which began at `begins`; packets arrive at 200 Mbit/s.
fn send_message(wan: &mut Wan, begins: Instant, before: u64) {
    // Later ones never see the shortest round trip again.
    let round_trip = ROUND_TRIP + Duration::from_micros(if before > 0 { 100 } else { 0 });
    for sent in (REPORTED..=PACKETS).step_by(REPORTED as usize) {
        let on_wire = Duration::from_micros(sent * PACKET_BYTES * 8 / 200);
        let now = begins + round_trip + on_wire;
        wan.on_sample(&Sample {
            now,
            round_trip: Some(round_trip + on_wire),
            sent_at: begins,
            delivery_rate: Some(sent * PACKET_BYTES * 8 * 40),
            rate_interval: round_trip + on_wire,
            is_app_limited: true,
            train_rate: Some(200_000_000),
            train_bytes: sent * PACKET_BYTES,
            delivered_packets: REPORTED,
            delivered_bytes: REPORTED * PACKET_BYTES,
            delivered_bytes_total: before + sent * PACKET_BYTES,
            delivered_bytes_at_sending: before,
            lost_packets: 0,
            discarded_packets: 0,
            found_packets: 0,
            lost_packets_since_sending: 0,
            marked_packets: 0,
            in_flight_bytes_at_sending: sent * PACKET_BYTES,
            in_flight_packets_at_sending: sent,
            in_flight_bytes: (PACKETS - sent) * PACKET_BYTES,
        });
    }
}

#[test]
fn a_sender_that_never_fills_the_path_needs_no_probe_for_the_round_trip() {
    let round_trip = Some(ROUND_TRIP);
    let facts = PathFacts { packet_bytes: PACKET_BYTES as u32, round_trip, line_bits_per_second: None, seed: 1 };
    let mut wan = Wan::new(&facts);
    let message_bytes = PACKETS * PACKET_BYTES;
    for number in 0..1000 {
        let begins = Instant::ZERO + number * Duration::from_millis(28);
        send_message(&mut wan, begins, u64::from(number) * message_bytes);
        let window = wan.window_bytes();
        // Once start-up has had its round trips: a window that is shorter than a message costs a round trip.
        assert!(number < 20 || window >= message_bytes, "a window of {window} after message {number}");
    }
}
