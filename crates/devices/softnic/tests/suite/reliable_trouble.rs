//! Reliable connections in trouble: stale, repeated and reordered answers, slow ports and paces, and peers that do not keep to
//! the rules. Each of these was once a mistake of ours.

use crate::two_ends;

use longhaul_congestion::ControllerName;
use longhaul_softnic::{Config, Device, Outgoing, PayloadMode, Received, Route, TransmitSink};
use longhaul_time::Instant;
use longhaul_verbs::{
    Access, CompletionStatus, Gid, Mtu, PathAttributes, QueuePairAttributes, QueuePairLimits, QueuePairNumber,
    QueuePairOptions, QueuePairState, ReceiveRequest, RemoteMemory, SendOperation, SendRequest, Transport,
};
use longhaul_wire::{Headers, NakCode, Opcode, Psn, Syndrome, aeth};
use two_ends::{
    Datagram, End, FIRST_PSN, MTU, Reliability, TIMEOUT_8, at, carry, datagram_bytes, forge, pair, pair_with,
};

const RC: Transport = Transport::ReliableConnection;

fn answer(from: &End, to: &End, psn: u32, syndrome: Syndrome) -> Datagram {
    let mut headers = Headers::new(Opcode::RcAcknowledge, to.queue_pair.number().value(), Psn::new(psn));
    headers.aeth = Some(aeth::Header { syndrome, message_sequence_number: 0 });
    forge(from, to, headers, &[])
}

/// A port that takes this many packets and no more.
struct Room(usize);

impl TransmitSink for Room {
    fn has_room(&self) -> bool {
        self.0 > 0
    }

    fn transmit(&mut self, _route: &Route, _datagram: &Outgoing<'_>) {
        self.0 = self.0.checked_sub(1).expect("nothing is sent without room");
    }
}

#[test]
fn copies_of_one_sequence_error_count_once() {
    let (one, two) = pair(RC);
    one.post_write(1, 1280, &two);
    let packets = one.poll(at(0));
    two.receive(&packets[0], at(1));
    two.receive(&packets[2], at(1));
    let answers = two.poll(at(1));
    for _ in 0..10 {
        one.receive(&answers[0], at(2));
    }
    assert_eq!(one.queue_pair.state(), QueuePairState::ReadyToSend);
    assert_eq!(one.poll(at(2)).len(), 4);
}

#[test]
fn a_stale_sequence_error_does_not_disturb_the_wait_for_a_receiver() {
    let (one, two) = pair(RC);
    one.post_send(1, 10);
    one.poll(at(0));
    // Timer 0 is the longest, 655 ms.
    one.receive(&answer(&two, &one, FIRST_PSN, Syndrome::RnrNak { timer: 0 }), at(10));
    one.receive(&answer(&two, &one, FIRST_PSN, Syndrome::Nak(NakCode::PsnSequenceError)), at(11));
    let mut now = at(11);
    while now < at(600_000) {
        assert!(one.poll(now).is_empty());
        now = one.next_deadline().unwrap_or(Instant::FAR_FUTURE);
    }
    assert_eq!(one.queue_pair.state(), QueuePairState::ReadyToSend);
    assert_eq!(one.poll(now).len(), 1);
}

#[test]
fn a_gap_that_closes_before_it_was_reported_still_reports_what_was_dropped_behind_it() {
    let (one, two) = pair(RC);
    one.post_write(1, 768, &two);
    let packets = one.poll(at(0));
    for index in [1, 2, 0] {
        two.receive(&packets[index], at(1));
    }
    for answer in two.poll(at(1)) {
        one.receive(&answer, at(2));
    }
    assert_eq!(one.poll(at(2)).len(), 2, "packets 1 and 2, without waiting for a time-out");
}

#[test]
fn a_gap_that_closes_whole_before_it_was_reported_is_acknowledged() {
    let (one, two) = pair(RC);
    one.post_write(1, 512, &two);
    let packets = one.poll(at(0));
    for index in [1, 0, 1] {
        two.receive(&packets[index], at(1));
    }
    for answer in two.poll(at(1)) {
        one.receive(&answer, at(2));
    }
    assert!(one.completions()[0].is_success());
}

#[test]
fn lowering_the_retry_count_below_what_was_used_ends_the_retries() {
    let (one, two) = pair_with(RC, Reliability { retry_count: 7, ..Default::default() }, |_| ());
    one.post_write(1, 10, &two);
    one.poll(at(0));
    for _ in 0..5 {
        let deadline = one.next_deadline().expect("still trying");
        one.poll(deadline);
    }
    let drained = QueuePairAttributes::to_state(QueuePairState::SendQueueDrained);
    one.queue_pair.modify(&drained).unwrap();
    one.queue_pair.modify(&QueuePairAttributes { retry_count: Some(2), ..drained }).unwrap();
    let deadline = one.next_deadline().expect("still trying");
    one.poll(deadline);
    assert_eq!(one.queue_pair.state(), QueuePairState::Error);
}

#[test]
fn a_port_without_room_uses_up_no_retries() {
    let (one, two) = pair(RC);
    one.post_write(1, 10, &two);
    one.poll(at(0)); // lost
    while let Some(deadline) = one.next_deadline() {
        one.device.nic().poll(deadline, &mut Room(0));
    }
    assert_eq!(one.queue_pair.state(), QueuePairState::ReadyToSend);
    assert_eq!(one.poll(at(1_000_000)).len(), 1);
}

#[test]
fn a_slow_pace_uses_up_no_retries() {
    let (one, two) =
        pair_with(RC, Reliability::default(), |config| config.congestion = Some(ControllerName::Fixed(100_000)));
    one.post_write(1, 256, &two);
    one.poll(at(0)); // lost
    let mut now = at(0);
    while let Some(deadline) = one.next_deadline() {
        now = deadline.max(now);
        for packet in one.poll(now) {
            two.receive(&packet, now);
        }
        for answer in two.poll(now) {
            one.receive(&answer, now);
        }
    }
    assert!(one.completions()[0].is_success());
}

#[test]
fn a_message_that_takes_longer_than_the_time_out_to_send_does_not_time_out() {
    // Four packets in a time-out of 1.05 ms; acknowledgements are asked for after 64.
    let (one, two) =
        pair_with(RC, Reliability::default(), |config| config.congestion = Some(ControllerName::Fixed(10_000_000)));
    one.post_write(1, 32 << 10, &two);
    let mut now = at(0);
    loop {
        for packet in one.poll(now) {
            two.receive(&packet, now);
        }
        for answer in two.poll(now) {
            one.receive(&answer, now);
        }
        match one.next_deadline() {
            Some(deadline) => now = deadline.max(now),
            None => break,
        }
    }
    assert!(one.completions()[0].is_success());
    assert_eq!((one.counters().local_ack_timeout_err, one.counters().retransmitted_pkts), (0, 0));
}

#[test]
fn nothing_is_sent_without_room() {
    let (one, two) = pair(RC);
    one.post_write(1, 10, &two);
    let packets = one.poll(at(0));
    // An acknowledgement and a congestion notification are due.
    two.receive_marked(&packets[0], at(1), 0b11);
    two.device.nic().poll(at(1), &mut Room(1));
    assert!(two.device.nic().has_output());
    assert_eq!(two.poll(at(1)).len(), 1);
    assert!(!two.device.nic().has_output());
}

#[test]
fn acknowledgements_do_not_wait_behind_the_data_of_others() {
    let (one, two) = pair(RC);
    two.poll(at(0));
    let mut others = Vec::new();
    for number in 0..200 {
        let options = QueuePairOptions::default();
        let transport = Transport::UnreliableConnection;
        let other = two.domain.create_queue_pair(transport, &two.completions, &two.completions, &options).unwrap();
        let path = PathAttributes::to(Gid::from_ip(one.address()));
        let peer = QueuePairNumber::new(1000 + number);
        other.modify(&QueuePairAttributes::init_connected(Access::empty())).unwrap();
        other.modify(&QueuePairAttributes::ready_to_receive(path, MTU, peer, 0)).unwrap();
        other.modify(&QueuePairAttributes::ready_to_send(0)).unwrap();
        let entry = [two.region.entry(0..16 * 256)];
        other.post_send(&[SendRequest::new(1, SendOperation::Write(RemoteMemory::default()), &entry)]).unwrap();
        others.push(other);
    }
    one.post_write(1, 10, &two);
    for packet in one.poll(at(0)) {
        two.receive(&packet, at(1));
    }
    let sent = two.poll(at(1));
    assert_eq!(sent[0].opcode(), Opcode::RcAcknowledge);
    assert_eq!(sent.len(), 1 + 200 * 16);
}

#[test]
fn a_send_with_invalidate_is_refused_and_not_taken_for_a_plain_one() {
    let (one, two) = pair(RC);
    two.post_receive(1, 100);
    let number = two.queue_pair.number().value();
    let mut headers = Headers::new(Opcode::RcSendOnlyWithInvalidate, number, Psn::new(FIRST_PSN));
    headers.invalidate = Some(two.region.remote_key());
    two.receive(&forge(&one, &two, headers, &[]), at(1));
    // A region's key cannot be invalidated.
    assert_eq!(two.completions()[0].status, CompletionStatus::RemoteInvalidRequestError);
    let answers = two.poll(at(1));
    assert_eq!(answers[0].packet().headers.aeth.unwrap().syndrome, Syndrome::Nak(NakCode::RemoteAccessError));
}

#[test]
fn responses_are_not_taken_for_requests() {
    let (one, two) = pair(RC);
    let number = two.queue_pair.number().value();
    let mut headers = Headers::new(Opcode::RcReadResponseOnly, number, Psn::new(FIRST_PSN));
    headers.aeth = Some(aeth::Header { syndrome: Syndrome::Ack { credits: 31 }, message_sequence_number: 0 });
    two.receive(&forge(&one, &two, headers, &[]), at(1));
    assert_eq!(two.queue_pair.state(), QueuePairState::ReadyToSend);
    assert!(two.poll(at(1)).is_empty());
}

#[test]
fn a_message_without_end_is_refused_at_the_largest_size() {
    let mut config = Config::new("endless", vec!["10.0.0.1".parse().unwrap()], [1; 32]);
    config.payload = PayloadMode::Elided;
    let device = Device::new(config, || ());
    let verbs = device.verbs();
    let domain = verbs.allocate_protection_domain().unwrap();
    let completions = verbs.create_completion_queue(8).unwrap();
    let limits = QueuePairLimits { receive_entries: 8, ..Default::default() };
    let options = QueuePairOptions { limits, ..Default::default() };
    let queue_pair = domain.create_queue_pair(RC, &completions, &completions, &options).unwrap();
    queue_pair.modify(&QueuePairAttributes::init_connected(Access::LOCAL_WRITE)).unwrap();
    // More than 4 GiB: entries may overlap. Never touched, because nothing is copied.
    let region = domain.register_zeroed(1 << 30, Access::LOCAL_WRITE).unwrap();
    let entry = region.entry(0..1 << 30);
    queue_pair.post_receive(&[ReceiveRequest { id: 1, local: &[entry; 5] }]).unwrap();
    let peer = "10.0.0.22".parse().unwrap();
    let path = PathAttributes::to(Gid::from_ip(peer));
    let receive = QueuePairAttributes::ready_to_receive(path, Mtu::Bytes4096, QueuePairNumber::new(9), 0);
    queue_pair.modify(&receive.reliable_receive(0, 12)).unwrap();
    let packets_max = (1u32 << 31) / 4096;
    for number in 0..=packets_max {
        assert_ne!(queue_pair.state(), QueuePairState::Error, "packet {number} of {packets_max} still fits");
        let opcode = if number == 0 { Opcode::RcSendFirst } else { Opcode::RcSendMiddle };
        let received = Received {
            source: peer,
            source_port: 0xc000,
            destination: "10.0.0.1".parse().unwrap(),
            traffic_class: 0,
            hop_limit: 1,
            datagram: &datagram_bytes(Headers::new(opcode, queue_pair.number().value(), Psn::new(number)), &[]),
            elided_bytes: 4096,
        };
        device.nic().handle(&received, at(1));
    }
    assert_eq!(queue_pair.state(), QueuePairState::Error);
}

#[test]
fn draining_without_asking_for_the_event_raises_none() {
    let (one, two) = pair(RC);
    let drain = |event| QueuePairAttributes {
        send_queue_drained_event: event,
        ..QueuePairAttributes::to_state(QueuePairState::SendQueueDrained)
    };
    one.post_write(1, 10, &two);
    let packets = one.poll(at(0));
    one.queue_pair.modify(&drain(Some(true))).unwrap();
    one.queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::ReadyToSend)).unwrap();
    two.receive(&packets[0], at(1));
    for answer in two.poll(at(1)) {
        one.receive(&answer, at(2));
    }
    one.queue_pair.modify(&drain(None)).unwrap();
    assert_eq!(one.device.verbs().next_event().unwrap(), None);
}

/// A host was stopped for longer than a time-out, and the acknowledgement lies in its socket.
#[test]
fn silence_is_no_time_out_while_arrivals_wait_to_be_looked_at() {
    let (one, two) = pair(RC);
    one.post_write(1, 100, &two);
    one.poll(at(0)).iter().for_each(|packet| two.receive(packet, at(10)));
    let answers = two.poll(at(10));
    let late = at(0) + 3 * TIMEOUT_8;
    one.device.nic().note_arrivals_left(true, late);
    assert_eq!(one.poll(late).len(), 0, "nothing is sent again");
    assert!(one.next_deadline().is_some_and(|deadline| deadline <= late), "it comes back at once");
    answers.iter().for_each(|answer| one.receive(answer, late));
    one.device.nic().note_arrivals_left(false, late);
    assert_eq!(one.poll(late).len(), 0);
    assert_eq!((one.done(), one.counters().local_ack_timeout_err), (vec![1], 0));
    assert_eq!(one.next_deadline(), None);
}

#[test]
fn a_time_out_that_was_put_off_comes_when_all_arrivals_were_looked_at() {
    let (one, two) = pair(RC);
    one.post_write(1, 100, &two);
    one.poll(at(0));
    let late = at(0) + 3 * TIMEOUT_8;
    one.device.nic().note_arrivals_left(true, late);
    assert_eq!(one.poll(late).len(), 0);
    one.device.nic().note_arrivals_left(false, late);
    assert_eq!((one.poll(late).len(), one.counters().local_ack_timeout_err), (1, 1));
}

/// A caller that takes the last arrivals polls the device only if something is due. A connection that waits for room in the
/// window towards its peer gets no turn that would set its timer again: without a deadline of what was put off, nobody
/// polled, and the program waited forever.
#[test]
fn a_time_out_that_was_put_off_has_a_deadline() {
    const WINDOW_PACKETS: usize = 8;
    let (one, two) = pair_with(RC, Reliability::default(), |config| {
        config.mtu = MTU;
        // Headers and bookkeeping count as 768 bytes.
        config.peer_window_bytes = Some(WINDOW_PACKETS as u64 * 1024);
        config.local_addresses = ["10.0.0.1", "10.0.0.22"].map(|address| address.parse().unwrap()).to_vec();
    });
    one.post_write(1, 4 * WINDOW_PACKETS * 256, &two);
    assert_eq!(one.poll(at(0)).len(), WINDOW_PACKETS, "lost, and there is no room for more");
    let late = at(0) + 3 * TIMEOUT_8;
    one.device.nic().note_arrivals_left(true, late);
    assert_eq!(one.poll(late).len(), 0);
    assert_eq!(one.next_deadline(), Some(late), "while arrivals are left, they are looked at without delay");
    one.device.nic().note_arrivals_left(false, late);
    assert!(one.device.nic().has_due_work(late), "nobody would poll");
    // Driven by deadlines alone.
    carry((&one, &two), late, |_| true);
    assert_eq!((one.done(), one.counters().local_ack_timeout_err), (vec![1], 1));
}

#[test]
fn a_flood_of_arrivals_does_not_put_off_time_outs_for_ever() {
    let (one, two) = pair(RC);
    one.post_write(1, 100, &two);
    one.poll(at(0));
    let sent_again = |millis: u64| {
        one.device.nic().note_arrivals_left(true, at(1000 * millis));
        one.poll(at(1000 * millis)).len()
    };
    assert_eq!((2..200).map(sent_again).sum::<usize>(), 0);
    assert_eq!((200..300).map(sent_again).sum::<usize>(), 3, "all its retries");
    assert_eq!(one.completions()[0].status, CompletionStatus::RetryExceededError);
}
