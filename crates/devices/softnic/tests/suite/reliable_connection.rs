//! Go-back-N, packet by packet: what is sent, when, and what completes.

use crate::two_ends;

use longhaul_time::{Duration, Instant};
use longhaul_verbs::{AsyncEventKind, CompletionStatus, QueuePairAttributes, QueuePairState, Transport};
use longhaul_wire::{NakCode, Opcode, Syndrome};
use two_ends::{FIRST_PSN, NOT_READY_12, Reliability, TIMEOUT_8, at, pair, pair_with};

const RC: Transport = Transport::ReliableConnection;

#[test]
fn one_acknowledgement_serves_all_packets_that_arrive_together() {
    let (one, two) = pair(RC);
    one.region.copy_in(0, &[7; 300]);
    for id in 0..10 {
        one.post_write(id, 300, &two);
    }
    let packets = one.poll(at(0));
    assert_eq!(packets.len(), 20, "300 bytes are two packets of at most 256");
    for packet in &packets {
        two.receive(packet, at(5));
    }
    let answers = two.poll(at(5));
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].opcode(), Opcode::RcAcknowledge);
    // The sequence numbers wrap in between.
    assert_eq!(answers[0].psn(), (FIRST_PSN + 19) & 0xff_ffff);
    assert_eq!(answers[0].packet().headers.aeth.unwrap().message_sequence_number, 10);
    one.receive(&answers[0], at(10));
    assert_eq!(one.completions().iter().map(|done| done.id).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    assert_eq!(two.region.to_vec(0..301), [vec![7; 300], vec![0]].concat());
    assert!(one.poll(at(10)).is_empty());
    // The time-out that was set when sending has nothing left to do.
    assert!(one.poll(at(10) + TIMEOUT_8 * 10).is_empty());
}

#[test]
fn a_gap_is_answered_once_and_everything_from_it_is_sent_again() {
    let (one, two) = pair(RC);
    one.region.copy_in(0, &[9; 1280]);
    one.post_write(1, 1280, &two);
    let packets = one.poll(at(0));
    assert_eq!(packets.len(), 5);
    for packet in [&packets[0], &packets[2], &packets[3], &packets[4]] {
        two.receive(packet, at(5));
    }
    let answers = two.poll(at(5));
    assert_eq!(answers.len(), 1, "one sequence error for the whole gap");
    assert_eq!(answers[0].packet().headers.aeth.unwrap().syndrome, Syndrome::Nak(NakCode::PsnSequenceError));
    assert_eq!(answers[0].psn(), packets[1].psn());
    one.receive(&answers[0], at(10));
    let again = one.poll(at(10));
    let numbers: Vec<_> = again.iter().map(|packet| packet.psn()).collect();
    assert_eq!(numbers, packets[1..].iter().map(|packet| packet.psn()).collect::<Vec<_>>());
    for packet in &again {
        two.receive(packet, at(15));
    }
    for answer in two.poll(at(15)) {
        one.receive(&answer, at(20));
    }
    assert!(one.completions()[0].is_success());
    assert_eq!(two.region.to_vec(0..1280), vec![9; 1280]);
    assert_eq!(one.counters().retransmitted_pkts, 4);
    assert_eq!(two.counters().out_of_seq_request, 3);
}

#[test]
fn a_lost_acknowledgement_makes_a_duplicate_that_is_acknowledged_and_not_carried_out() {
    let (one, two) = pair(RC);
    two.post_receive(50, 100);
    one.post_send(1, 100);
    let first = one.poll(at(0));
    two.receive(&first[0], at(5));
    assert_eq!(two.poll(at(5)).len(), 1); // lost
    assert_eq!(two.completions().len(), 1);
    assert!(one.poll(at(0) + (TIMEOUT_8 - Duration::from_nanos(1))).is_empty());
    let deadline = one.next_deadline();
    assert_eq!(deadline, Some(at(0) + TIMEOUT_8));
    let again = one.poll(at(0) + TIMEOUT_8);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].bytes, first[0].bytes);
    two.post_receive(51, 100);
    two.receive(&again[0], at(2000));
    assert!(two.completions().is_empty(), "a duplicate consumes no receive");
    for answer in two.poll(at(2000)) {
        one.receive(&answer, at(2005));
    }
    assert!(one.completions()[0].is_success());
    assert_eq!(two.counters().duplicate_request, 1);
}

#[test]
fn silence_is_given_up_after_the_retry_count() {
    let (one, two) = pair(RC);
    one.post_write(1, 10, &two);
    one.post_write(2, 10, &two);
    one.post_receive(3, 10);
    let mut now = at(0);
    let mut sent = one.poll(now).len();
    while let Some(deadline) = one.next_deadline() {
        now = deadline;
        sent += one.poll(now).len();
    }
    assert_eq!(sent, 2 * (1 + 3), "once, and three times again");
    assert_eq!(now, at(0) + TIMEOUT_8 * 4);
    let statuses: Vec<_> = one.completions().iter().map(|done| (done.id, done.status)).collect();
    use CompletionStatus::{FlushedError, RetryExceededError};
    assert_eq!(statuses, [(1, RetryExceededError), (2, FlushedError), (3, FlushedError)]);
    assert_eq!(one.queue_pair.state(), QueuePairState::Error);
}

#[test]
fn progress_gives_back_all_retries() {
    let (one, two) = pair(RC);
    one.post_write(1, 256 * 8, &two);
    let mut now = at(0);
    let mut packets = one.poll(now);
    for _ in 0..8 {
        // Each time only the first packet arrives, and the answers are lost but for what a duplicate asks for.
        two.receive(&packets[0], now);
        two.poll(now);
        for _ in 0..2 {
            now += TIMEOUT_8;
            packets = one.poll(now);
        }
        two.receive(&packets[0], now);
        for answer in two.poll(now) {
            one.receive(&answer, now);
        }
        now += TIMEOUT_8;
        packets = one.poll(now);
    }
    assert!(one.completions()[0].is_success());
}

#[test]
fn a_receiver_that_is_not_ready_is_given_its_time() {
    let (one, two) = pair(RC);
    one.post_send(1, 10);
    one.post_send(2, 10);
    for packet in one.poll(at(0)) {
        two.receive(&packet, at(5));
    }
    let answers = two.poll(at(5));
    assert_eq!(answers.len(), 1, "what follows the refused packet is dropped in silence");
    assert_eq!(answers[0].packet().headers.aeth.unwrap().syndrome, Syndrome::RnrNak { timer: 12 });
    one.receive(&answers[0], at(10));
    assert_eq!(one.next_deadline(), Some(at(10) + NOT_READY_12));
    assert!(one.poll(at(11)).is_empty());
    two.post_receive(60, 10);
    two.post_receive(61, 10);
    let again = one.poll(at(10) + NOT_READY_12);
    assert_eq!(again.len(), 2);
    for packet in &again {
        two.receive(packet, at(1000));
    }
    for answer in two.poll(at(1000)) {
        one.receive(&answer, at(1005));
    }
    assert_eq!(one.completions().len(), 2);
    assert_eq!(two.completions().iter().map(|done| done.id).collect::<Vec<_>>(), [60, 61]);
}

#[test]
fn a_receiver_that_is_never_ready_is_given_up() {
    let (one, two) = pair(RC);
    one.post_send(1, 10);
    let mut now = at(0);
    let mut sent = 0;
    for _ in 0..10 {
        for packet in one.poll(now) {
            sent += 1;
            two.receive(&packet, now);
        }
        for answer in two.poll(now) {
            one.receive(&answer, now);
        }
        now += NOT_READY_12;
    }
    assert_eq!(sent, 3, "once, and twice again");
    assert_eq!(one.completions()[0].status, CompletionStatus::ReceiverNotReadyRetryExceededError);
}

#[test]
fn only_the_connected_peer_is_heard() {
    let (one, two) = pair(RC);
    one.region.copy_in(0, &[1; 10]);
    one.post_write(1, 10, &two);
    let mut packet = one.poll(at(0)).remove(0);
    let source = packet.route.source;
    packet.route.source = "10.0.0.3".parse().unwrap();
    two.receive(&packet, at(5));
    assert!(two.poll(at(5)).is_empty());
    assert_eq!(two.region.to_vec(0..10), vec![0; 10]);
    assert_eq!(two.counters().rx_wrong_peer, 1);
    // Somebody else at the peer's address.
    packet.route.source = source;
    packet.route.source_port ^= 1;
    two.receive(&packet, at(6));
    assert!(two.poll(at(6)).is_empty());
    assert_eq!(two.region.to_vec(0..10), vec![0; 10]);
    assert_eq!(two.counters().rx_wrong_source_port, 1);
    packet.route.source_port ^= 1;
    two.receive(&packet, at(7));
    assert_eq!(two.region.to_vec(0..10), vec![1; 10]);
}

#[test]
fn acknowledgements_of_what_was_never_sent_are_ignored() {
    let (one, two) = pair(RC);
    one.post_write(1, 10, &two);
    two.receive(&one.poll(at(0))[0], at(1));
    let mut answer = two.poll(at(1)).remove(0);
    let byte = answer.bytes.len() - 4 - 4 - 1; // the last byte of the sequence number, before AETH and ICRC
    answer.bytes[byte] = answer.bytes[byte].wrapping_add(1);
    one.receive(&answer, at(2));
    assert!(one.completions().is_empty());
}

#[test]
fn congestion_is_reported_once_in_a_while_and_reaches_the_controller() {
    let (one, two) = pair(RC);
    for id in 0..4 {
        one.post_write(id, 10, &two);
    }
    for packet in one.poll(at(0)) {
        two.receive_marked(&packet, at(5), packet.route.traffic_class | 0b11);
    }
    let sent = two.poll(at(5));
    let notifications: Vec<_> = sent.iter().filter(|datagram| datagram.opcode() == Opcode::Cnp).collect();
    assert_eq!(notifications.len(), 1);
    one.receive(notifications[0], at(6));
    assert_eq!(one.counters().rp_cnp_handled, 1);
    assert_eq!(two.counters().np_ecn_marked_roce_packets, 4);
}

#[test]
fn a_rate_limit_spaces_packets() {
    // Without a time-out: nobody answers here.
    let reliability = Reliability { timeout: 0, ..Default::default() };
    let (one, two) = pair_with(RC, reliability, |_| ());
    // 8 Mbit/s is one byte a microsecond.
    let limit = QueuePairAttributes { rate_limit_kilobits_per_second: Some(8000), ..Default::default() };
    one.queue_pair.modify(&limit).unwrap();
    one.post_write(1, 256 * 10, &two);
    let start = at(1_000_000);
    let (mut now, mut sent) = (start, one.poll(start).len());
    while sent < 10 {
        now = one.next_deadline().expect("more to send");
        sent += one.poll(now).len();
        assert!(now < start + Duration::from_secs(1));
    }
    // Two packets leave at once. Of 256 bytes, with headers of IP 20, UDP 8, BTH 12, ICRC 4; the first also has RETH 16.
    let micros = (now - start).as_micros() as i64;
    let expected = 8 * (256 + 44) + 16;
    assert!((micros - expected).abs() <= 1, "{micros} µs, expected {expected}");
}

#[test]
fn draining_finishes_what_was_begun_and_says_so() {
    let (one, two) = pair(RC);
    one.post_write(1, 10, &two);
    let packets = one.poll(at(0));
    let drain = QueuePairAttributes {
        send_queue_drained_event: Some(true),
        ..QueuePairAttributes::to_state(QueuePairState::SendQueueDrained)
    };
    one.queue_pair.modify(&drain).unwrap();
    one.post_write(2, 10, &two);
    assert!(one.poll(at(1)).is_empty(), "nothing new is begun");
    let verbs = one.device.verbs();
    assert_eq!(verbs.next_event().unwrap(), None);
    two.receive(&packets[0], at(2));
    one.receive(&two.poll(at(2))[0], at(3));
    assert_eq!(one.completions().len(), 1);
    assert_eq!(verbs.next_event().unwrap().map(|event| event.kind), Some(AsyncEventKind::SendQueueDrained));
    one.queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::ReadyToSend)).unwrap();
    assert_eq!(one.poll(at(4)).len(), 1);
}

#[test]
fn a_window_holds_packets_back_and_acknowledgements_release_them() {
    let (one, two) = pair_with(RC, Reliability::default(), |config| config.window_packets_max = 4);
    one.post_write(1, 256 * 10, &two);
    let mut now = Instant::ZERO;
    let mut sent = Vec::new();
    for _ in 0..10 {
        let packets = one.poll(now);
        sent.push(packets.len());
        for packet in packets {
            two.receive(&packet, now);
        }
        for answer in two.poll(now) {
            one.receive(&answer, now);
        }
        now += Duration::from_micros(1);
    }
    assert_eq!(sent[..4], [4, 4, 2, 0]);
    assert!(one.completions()[0].is_success());
}

#[test]
fn a_request_that_cannot_be_read_waits_for_those_before_it() {
    let (one, two) = pair(RC);
    one.post_write(1, 10, &two);
    let bad = [longhaul_verbs::ScatterGatherEntry { local_key: one.region.local_key() ^ 1, ..one.region.entry(0..10) }];
    let write = longhaul_verbs::SendOperation::Write(two.region.remote(0));
    one.queue_pair.post_send(&[longhaul_verbs::SendRequest::new(2, write, &bad)]).unwrap();
    one.post_write(3, 10, &two);
    let packets = one.poll(at(0));
    assert_eq!(packets.len(), 1);
    assert!(one.completions().is_empty());
    two.receive(&packets[0], at(1));
    one.receive(&two.poll(at(1))[0], at(2));
    let statuses: Vec<_> = one.completions().iter().map(|done| (done.id, done.status)).collect();
    use CompletionStatus::{FlushedError, LocalProtectionError, Success};
    assert_eq!(statuses, [(1, Success), (2, LocalProtectionError), (3, FlushedError)]);
}
