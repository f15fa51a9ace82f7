//! Bounded messages on virtual time: they end on time, say exactly what is missing, and nothing that comes later changes them.

use std::ops::Range;

use longhaul_impair::{Loss, Profile};
use longhaul_reliable::{
    Bound, BoundedSendTicket, ConnectionError, Deadline, Delivery, Ending, Fill, MessageError, ReceiveTicket, Received,
    Sent,
};
use longhaul_scheme_testing::end_to_end::{Ground, GroundOptions, VirtualGround, scheme_by_name};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Mtu;

const PACKET: usize = 1024;
const BYTES: usize = 100 * PACKET + 300;
const DEADLINE: Duration = Duration::from_millis(20);
/// What the receiver's memory has before: no message has such bytes.
const STALE: u8 = 0xee;
/// Both ways together.
const ROUND_TRIP: Duration = Duration::from_millis(2);

fn link(loss: f64) -> Profile {
    let link = Profile::default().with_propagation_delay(ROUND_TRIP / 2).with_rate_bits_per_second(10_000_000_000);
    if loss == 0.0 { link } else { link.with_loss(Loss::Independent { probability: loss }) }
}

fn ground(scheme: &str, link: Profile, seed: u64, chunk_packets: u32) -> VirtualGround {
    let options = GroundOptions {
        seed,
        mtu: Mtu::Bytes1024,
        chunk_bytes: chunk_packets * PACKET as u32,
        grain: Duration::from_nanos(500),
        round_trip_guess: ROUND_TRIP,
        ..GroundOptions::new(link, 4 << 20)
    };
    let mut ground = VirtualGround::with_scheme(&options, scheme_by_name(scheme).expect("a scheme"));
    let memory = ground.receiver().1;
    memory.write(0..memory.len()).expect("nobody uses it").fill(STALE);
    ground
}

/// All of a message.
fn only(bytes: usize) -> Vec<Range<u64>> {
    std::iter::once(0..bytes as u64).collect()
}

fn byte_of(message: usize, place: usize) -> u8 {
    // Never one that missing bytes are filled with.
    (((message * 31 + place / 7 + place) % 199) + 1) as u8
}

fn bound(fill: Fill) -> Bound {
    Bound { deadline: Deadline::After(DEADLINE), fill }
}

fn range_of(message: usize) -> Range<usize> {
    message * 2 * BYTES..message * 2 * BYTES + BYTES
}

fn receive(ground: &mut VirtualGround, message: usize, bound: Bound) -> ReceiveTicket {
    let now = ground.now();
    let (connection, memory) = ground.receiver();
    connection.receive_bounded(memory, range_of(message), bound, now).expect("there is room")
}

fn send(ground: &mut VirtualGround, message: usize, deadline: Duration) -> BoundedSendTicket {
    let now = ground.now();
    let (connection, memory) = ground.sender();
    let range = range_of(message);
    let mut bytes = memory.write(range.clone()).expect("nobody uses it");
    bytes.iter_mut().enumerate().for_each(|(place, byte)| *byte = byte_of(message, place));
    drop(bytes);
    connection.send_bounded(memory, range, Deadline::After(deadline), now).expect("there is room")
}

/// Until that has ended, and when.
fn run_until(ground: &mut VirtualGround, limit: Duration, mut is_over: impl FnMut() -> bool) -> Instant {
    let end = ground.now() + limit;
    while !is_over() {
        assert!(ground.now() < end, "it does not end");
        ground.step(end).expect("the ends work");
    }
    ground.now()
}

fn received(ticket: &ReceiveTicket) -> Received {
    ticket.take().expect("it has ended").expect("it has not failed")
}

fn sent(ticket: &BoundedSendTicket) -> Sent {
    ticket.take().expect("it has ended").expect("it has not failed")
}

/// What is not missing is what was sent, and what is missing has been filled.
fn check_contents(message: usize, received: &Received, fill: u8) {
    let mut is_missing = vec![false; received.bytes().len()];
    let missing = received.missing();
    assert!(missing.windows(2).all(|pair| pair[0].end < pair[1].start), "{missing:?}");
    missing.iter().cloned().flatten().for_each(|place| is_missing[place as usize] = true);
    for (place, byte) in received.bytes().iter().enumerate() {
        let expected = if is_missing[place] { fill } else { byte_of(message, place) };
        assert_eq!(*byte, expected, "byte {place} of message {message}, missing {missing:?}");
    }
    let count = is_missing.iter().filter(|is_missing| **is_missing).count() as u64;
    assert_eq!(received.report().missing_bytes, count);
    assert_eq!(received.ending() == Ending::Whole, missing.is_empty());
}

/// Packets of ranges.
fn packets(missing: &[Range<u64>]) -> u64 {
    missing.iter().map(|range| (range.end - range.start).div_ceil(PACKET as u64)).sum()
}

/// Data packets that have come to the receiver's device.
fn arrived_packets(ground: &mut VirtualGround) -> u64 {
    ground.receiver().0.queue_pair().counters().1.arrived
}

#[test]
fn what_is_missing_is_exact_at_both_ends_whatever_is_lost() {
    let (mut endings, mut lost) = ([0; 3], 0);
    for (index, loss) in [0.0, 0.001, 0.01, 0.05, 0.2, 0.5, 0.9, 0.99].into_iter().enumerate() {
        for seed in 0..12 {
            let chunk_packets = [1, 4, 64][seed as usize % 3];
            let mut ground = ground("be", link(loss), 100 * index as u64 + seed, chunk_packets);
            let begin = ground.now();
            let ticket = receive(&mut ground, 0, bound(Fill::Zero));
            let send = send(&mut ground, 0, 20 * DEADLINE);
            let ended = run_until(&mut ground, 2 * DEADLINE, || ticket.is_over());
            assert!(ended <= begin + DEADLINE + Duration::from_micros(1), "loss {loss}: ended at {ended:?}");
            let received = received(&ticket);
            check_contents(0, &received, 0);
            let ending = received.ending();
            endings[ending as usize] += 1;
            assert!(ending != Ending::Deadline || ended >= begin + DEADLINE);
            // Nothing is sent twice, so every packet that came is one that is not missing; and if the offer never came, one that came counts as
            // missing.
            let arrived = arrived_packets(&mut ground);
            let there = BYTES.div_ceil(PACKET) as u64 - packets(received.missing());
            let is_unheard = ending == Ending::Deadline;
            assert!(there == arrived || is_unheard && there + 1 == arrived, "{there} packets there, {arrived} arrived");
            lost += packets(received.missing());
            run_until(&mut ground, 40 * DEADLINE, || send.is_over());
            let Sent { report, delivery, .. } = sent(&send);
            match delivery {
                Delivery::Whole => assert_eq!(ending, Ending::Whole),
                Delivery::Partial { missing, is_coarse } => {
                    assert_eq!((&*missing, is_coarse), (received.missing(), false));
                    assert_eq!(report.missing_bytes, received.report().missing_bytes);
                }
                Delivery::Unknown => assert!(loss >= 0.5, "with a loss of {loss} the report comes through"),
            }
            assert!(report.data_packets_sent <= BYTES.div_ceil(PACKET) as u64 && report.data_packets_repeated == 0);
        }
    }
    assert!(endings.iter().all(|count| *count > 5) && lost > 1000, "{endings:?}, {lost} packets lost");
}

#[test]
fn a_receive_of_which_nothing_is_heard_ends_at_its_deadline_with_each_fill() {
    for scheme in ["be", "sr:nack", "ec:mds:8,4", "be+ec:mds:8,4"] {
        for (fill, expected) in [(Fill::Zero, 0), (Fill::Value(0xcc), 0xcc), (Fill::Stale, STALE)] {
            let mut ground = ground(scheme, link(0.0), 1, 1);
            ground.run_until(Instant::ZERO + Duration::from_millis(7)).expect("the ends work");
            let begin = ground.now();
            let tickets = [
                receive(&mut ground, 0, bound(fill)),
                receive(&mut ground, 1, Bound { deadline: Deadline::At(begin + 3 * DEADLINE), fill }),
                receive(&mut ground, 2, Bound { deadline: Deadline::At(begin), fill }),
            ];
            for (message, after) in [(2, 0), (0, 1), (1, 3)] {
                let ended = run_until(&mut ground, 4 * DEADLINE, || tickets[message].is_over());
                let due = begin + DEADLINE * after;
                assert!(ended >= due && ended <= due + Duration::from_micros(1), "{scheme}: {message} at {ended:?}");
                let received = received(&tickets[message]);
                assert_eq!((received.ending(), received.missing()), (Ending::Deadline, &*only(BYTES)));
                check_contents(message, &received, expected);
            }
        }
    }
}

#[test]
fn messages_find_their_own_receives_after_some_that_have_expired() {
    for scheme in ["be", "sr:nack", "be+ec:mds:8,4"] {
        let mut ground = ground(scheme, link(0.0), 3, 1);
        let expired = [receive(&mut ground, 0, bound(Fill::Stale)), receive(&mut ground, 1, bound(Fill::Stale))];
        run_until(&mut ground, 2 * DEADLINE, || expired.iter().all(ReceiveTicket::is_over));
        let ticket = receive(&mut ground, 2, bound(Fill::Zero));
        let sends = [0, 1, 2].map(|message| send(&mut ground, message, 10 * DEADLINE));
        run_until(&mut ground, 20 * DEADLINE, || ticket.is_over() && sends.iter().all(BoundedSendTicket::is_over));
        for (message, send) in sends.iter().enumerate() {
            let whole = only(BYTES);
            let expected = match message {
                2 => Delivery::Whole,
                _ => Delivery::Partial { missing: whole, is_coarse: false },
            };
            assert_eq!(sent(send).delivery, expected, "{scheme}: message {message}");
        }
        check_contents(2, &received(&ticket), 0);
        for (message, ticket) in expired.iter().enumerate() {
            check_contents(message, &received(ticket), STALE);
        }
    }
}

#[test]
fn late_packets_do_no_harm() {
    for scheme in ["be", "sr:nack", "ec:mds:8,4"] {
        // A third of all packets comes when every receive has ended.
        let late = link(0.0).with_reordering(0.3, 3 * DEADLINE);
        let mut ground = ground(scheme, late, 5, 1);
        let mut kept = Vec::new();
        for message in 0..10 {
            let ticket = receive(&mut ground, message, bound(Fill::Stale));
            let _send = send(&mut ground, message, DEADLINE);
            run_until(&mut ground, 2 * DEADLINE, || ticket.is_over());
            let received = received(&ticket);
            check_contents(message, &received, STALE);
            kept.push(received);
        }
        if scheme == "be" {
            assert!(kept.iter().all(|received| received.ending() != Ending::Whole), "{kept:?}");
        }
        let end = ground.now() + 10 * DEADLINE;
        ground.run_until(end).expect("the ends work");
        for (message, received) in kept.iter().enumerate() {
            check_contents(message, received, STALE);
        }
        let statistics = ground.receiver().0.queue_pair().counters().1;
        assert!(scheme != "be" || statistics.arrived > 0);
    }
}

#[test]
fn a_sender_without_a_receiver_ends_at_its_deadline_and_says_that_it_does_not_know() {
    for scheme in ["be", "sr:nack", "be+ec:mds:8,4"] {
        for loss in [0.0, 1.0] {
            let mut ground = ground(scheme, link(loss), 7, 1);
            let begin = ground.now();
            let send = send(&mut ground, 0, DEADLINE);
            let ended = run_until(&mut ground, 2 * DEADLINE, || send.is_over());
            assert!(ended >= begin + DEADLINE && ended <= begin + DEADLINE + Duration::from_micros(1), "{ended:?}");
            assert_eq!(sent(&send).delivery, Delivery::Unknown, "{scheme}");
            // Its receive is posted afterwards: the next message is not taken for it.
            let tickets = [0, 1].map(|message| receive(&mut ground, message, bound(Fill::Zero)));
            ground.world.set_link_profile(link(0.0));
            let next = self::send(&mut ground, 1, 4 * DEADLINE);
            run_until(&mut ground, 4 * DEADLINE, || tickets.iter().all(ReceiveTicket::is_over) && next.is_over());
            let first = received(&tickets[0]);
            assert_eq!(first.missing(), only(BYTES));
            let second = received(&tickets[1]);
            check_contents(1, &second, 0);
            assert!(second.missing().is_empty(), "{scheme}: {second:?}");
            assert_eq!(sent(&next).delivery, Delivery::Whole);
        }
    }
}

#[test]
fn parity_comes_first_and_the_deadline_then() {
    let (mut whole, mut partial, mut recovered) = (0, 0, 0);
    for seed in 0..60 {
        let mut ground = ground("be+ec:mds:8,4", link(0.2), seed, [1, 2][seed as usize % 2]);
        let ticket = receive(&mut ground, 0, bound(Fill::Zero));
        let send = send(&mut ground, 0, 20 * DEADLINE);
        run_until(&mut ground, 2 * DEADLINE, || ticket.is_over());
        let received = received(&ticket);
        check_contents(0, &received, 0);
        recovered += received.report().chunks_recovered;
        match received.missing().is_empty() {
            true => whole += 1,
            false => partial += 1,
        }
        run_until(&mut ground, 30 * DEADLINE, || send.is_over());
        match sent(&send).delivery {
            Delivery::Whole => assert!(received.missing().is_empty()),
            Delivery::Partial { missing, .. } => assert_eq!(missing, received.missing()),
            Delivery::Unknown => panic!("the report comes through"),
        }
    }
    assert!(whole > 5 && partial > 5 && recovered > 500, "{whole} whole, {partial} partial, {recovered} chunks");
}

#[test]
fn quiet_ends_a_message_long_before_its_deadline_even_when_its_last_packets_are_lost() {
    let mut ended_quiet = 0;
    for seed in 0..40 {
        let mut ground = ground("be", link(0.3), seed, 1);
        let ticket = receive(&mut ground, 0, Bound { deadline: Deadline::After(50 * DEADLINE), fill: Fill::Zero });
        let _send = send(&mut ground, 0, 50 * DEADLINE);
        let ended = run_until(&mut ground, 51 * DEADLINE, || ticket.is_over());
        let received = received(&ticket);
        check_contents(0, &received, 0);
        if received.ending() == Ending::Quiet {
            ended_quiet += 1;
            assert!(ended < Instant::ZERO + 25 * DEADLINE, "{ended:?}");
        }
    }
    assert!(ended_quiet >= 38, "{ended_quiet} of 40");
}

#[test]
fn with_a_reliable_scheme_losses_are_repeated_until_the_deadline() {
    for scheme in ["sr:rto", "sr:nack", "ec:mds:8,4", "ec:xor:8,2"] {
        // Time enough.
        let mut enough = ground(scheme, link(0.05), 11, 1);
        let ticket = receive(&mut enough, 0, Bound { deadline: Deadline::After(50 * DEADLINE), fill: Fill::Zero });
        let ticket_of_send = send(&mut enough, 0, 50 * DEADLINE);
        run_until(&mut enough, 51 * DEADLINE, || ticket.is_over() && ticket_of_send.is_over());
        assert_eq!((received(&ticket).ending(), sent(&ticket_of_send).delivery), (Ending::Whole, Delivery::Whole));
        // A link on which a fifth of it arrives in time.
        let slow = link(0.05).with_rate_bits_per_second(BYTES as u64 * 8 * 50 / 5);
        let mut late = ground(scheme, slow, 12, 1);
        let begin = late.now();
        let ticket = receive(&mut late, 0, bound(Fill::Value(0xfe)));
        let ticket_of_send = send(&mut late, 0, 20 * DEADLINE);
        let ended = run_until(&mut late, 2 * DEADLINE, || ticket.is_over());
        assert!(ended >= begin + DEADLINE && ended <= begin + DEADLINE + Duration::from_micros(1), "{ended:?}");
        let received = received(&ticket);
        check_contents(0, &received, 0xfe);
        let there = BYTES as u64 - received.report().missing_bytes;
        assert!(there > 0 && received.ending() == Ending::Deadline, "{scheme}: {there} bytes in time");
        run_until(&mut late, 40 * DEADLINE, || ticket_of_send.is_over());
        let missing = received.missing().to_vec();
        assert_eq!(sent(&ticket_of_send).delivery, Delivery::Partial { missing, is_coarse: false }, "{scheme}");
    }
}

#[test]
fn who_does_not_allow_missing_bytes_hears_of_an_error() {
    for is_partial in [false, true] {
        let mut ground = ground("be", link(0.5), 13, 1);
        let now = ground.now();
        let (connection, memory) = ground.receiver();
        let ticket = match is_partial {
            true => connection.post_receive_partial(memory, range_of(0)),
            false => connection.post_receive(memory, range_of(0)),
        };
        let ticket = ticket.expect("there is room");
        let (connection, memory) = ground.sender();
        let send = connection.send(memory, range_of(0), now).expect("there is room");
        run_until(&mut ground, 100 * DEADLINE, || send.is_over() && ticket.is_over());
        let missing = match is_partial {
            true => {
                let received = received(&ticket);
                assert_eq!(received.ending(), Ending::Quiet);
                received.missing().to_vec()
            }
            false => {
                let Some(Err(MessageError::Incomplete { missing })) = ticket.take() else {
                    panic!("a program that has not asked for it gets no message with holes");
                };
                ground.receiver().1.write(range_of(0)).expect("its memory is free");
                missing
            }
        };
        assert!(!missing.is_empty());
        match send.take().expect("it has ended") {
            Err(MessageError::Incomplete { missing: heard }) => assert_eq!(heard, missing),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn receives_that_wait_for_a_number_end_by_their_deadlines_too() {
    const COUNT: usize = 3000;
    let mut ground = ground("be", link(0.0), 17, 1);
    let begin = ground.now();
    let range = |message: usize| message * PACKET..(message + 1) * PACKET;
    let (connection, memory) = ground.receiver();
    let receives: Vec<_> = (0..COUNT)
        .map(|message| {
            connection.receive_bounded(memory, range(message), bound(Fill::Value(9)), begin).expect("it can wait")
        })
        .collect();
    let ended = run_until(&mut ground, 2 * DEADLINE, || receives.iter().all(ReceiveTicket::is_over));
    assert!(ended <= begin + DEADLINE + Duration::from_micros(1), "{ended:?}");
    for receive in &receives {
        let received = received(receive);
        assert_eq!((received.missing(), received.ending()), (&*only(PACKET), Ending::Deadline));
        assert!(received.bytes().iter().all(|byte| *byte == 9));
    }
    // Their senders find out, one after another, and the message after them finds its receive.
    let now = ground.now();
    let (connection, memory) = ground.receiver();
    let last = Bound { deadline: Deadline::After(100 * DEADLINE), fill: Fill::Zero };
    let last = connection.receive_bounded(memory, range(COUNT), last, now).expect("it can wait");
    let (connection, memory) = ground.sender();
    memory.write(range(COUNT)).expect("nobody uses it").fill(7);
    let sends: Vec<_> = (0..=COUNT)
        .map(|message| {
            let deadline = Deadline::After(100 * DEADLINE);
            connection.send_bounded(memory, range(message), deadline, now).expect("it can wait")
        })
        .collect();
    run_until(&mut ground, 101 * DEADLINE, || last.is_over() && sends.iter().all(BoundedSendTicket::is_over));
    let received = received(&last);
    assert!(received.missing().is_empty() && received.bytes().iter().all(|byte| *byte == 7));
    for (message, send) in sends.iter().enumerate() {
        assert_eq!(sent(send).delivery == Delivery::Whole, message == COUNT, "message {message}");
    }
}

#[test]
fn what_does_not_fit_one_part_is_refused() {
    let mut options = GroundOptions::new(link(0.0), 1 << 20);
    options.message_bytes_max = Some([64 << 10; 2]);
    let mut ground = VirtualGround::with_scheme(&options, scheme_by_name("be").expect("a scheme"));
    let now = ground.now();
    let (connection, memory) = ground.receiver();
    let refused = connection.receive_bounded(memory, 0..65 << 10, bound(Fill::Zero), now).err();
    assert!(matches!(refused, Some(ConnectionError::TooLongToBound { bytes: 66_560, most: 65_536 })), "{refused:?}");
    let (connection, memory) = ground.sender();
    let refused = connection.send_bounded(memory, 0..65 << 10, Deadline::After(DEADLINE), now).err();
    assert!(matches!(refused, Some(ConnectionError::TooLongToBound { .. })), "{refused:?}");
}

/// The sender gives up before its offer was ever heard: a receive without a deadline must not wait for ever.
#[test]
fn a_plain_receive_hears_that_its_best_effort_sender_has_given_up() {
    let mut ground = ground("be", link(1.0), 19, 1);
    let (connection, memory) = ground.receiver();
    let ticket = connection.post_receive(memory, range_of(0)).expect("there is room");
    // The sender learns of the receive, and nothing that it sends arrives.
    ground.world.set_link_profile(link(0.0));
    let end = ground.now() + 5 * DEADLINE;
    ground.run_until(end).expect("the ends work");
    ground.world.set_link_profile(link(1.0));
    let send = send(&mut ground, 0, DEADLINE);
    run_until(&mut ground, 2 * DEADLINE, || send.is_over());
    ground.world.set_link_profile(link(0.0));
    run_until(&mut ground, 200 * DEADLINE, || ticket.is_over());
    let outcome = ticket.take().expect("it has ended");
    assert!(matches!(outcome, Err(MessageError::Withdrawn)), "{outcome:?}");
}

/// The message is shorter than its receive, and its offer never comes: what lies behind it in its last packet is not taken for part of it.
#[test]
fn bytes_behind_a_short_message_are_never_shown() {
    for seed in 0..30 {
        let mut ground = ground("be", link(0.6), seed, 1);
        let begin = ground.now();
        let ticket = receive(&mut ground, 0, bound(Fill::Zero));
        let (connection, memory) = ground.sender();
        let bytes = 9 * PACKET + 100;
        let mut contents = memory.write(0..bytes).expect("nobody uses it");
        contents.iter_mut().enumerate().for_each(|(place, byte)| *byte = byte_of(0, place));
        drop(contents);
        let deadline = Deadline::After(2 * DEADLINE);
        let _send = connection.send_bounded(memory, 0..bytes, deadline, begin).expect("there is room");
        run_until(&mut ground, 2 * DEADLINE, || ticket.is_over());
        check_contents(0, &received(&ticket), 0);
    }
}
