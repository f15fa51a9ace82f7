//! Messages that wait for a number, or for memory for parity: what they hold meanwhile, when they end, and what their successors find.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use longhaul_impair::Profile;
use longhaul_reliable::{
    Bound, Choice, Deadline, Delivery, Ending, Fill, Job, MessageError, ReceiveTicket, Scheme, SendTicket, Workers,
};
use longhaul_scheme_testing::end_to_end::{Ground, GroundOptions, VirtualGround, scheme_by_name};
use longhaul_sdr::PeerReceive;
use longhaul_sdr::immediate::ImmediateLayout;
use longhaul_time::Duration;
use longhaul_verbs::Mtu;

const MTU: usize = 1024;
const DEADLINE: Duration = Duration::from_millis(5);

fn schemes(names: &[&str]) -> Vec<Arc<dyn Scheme>> {
    names.iter().map(|name| scheme_by_name(name).expect("a scheme")).collect()
}

/// Two ends with places for `2^message_bits` messages of `sdr`.
fn ground(names: &[&str], message_bits: u8, change: impl FnOnce(&mut GroundOptions)) -> VirtualGround {
    let mut all = schemes(names);
    let link = Profile::default().with_propagation_delay(Duration::from_millis(1));
    let mut options = GroundOptions {
        mtu: Mtu::Bytes1024,
        chunk_bytes: MTU as u32,
        layout: ImmediateLayout::new(message_bits, 28 - message_bits, 4).expect("it sums up"),
        grain: Duration::from_nanos(500),
        other_schemes: all.split_off(1),
        round_trip_guess: Duration::from_millis(2),
        ..GroundOptions::new(link, 8 << 20)
    };
    change(&mut options);
    VirtualGround::with_scheme(&options, all.remove(0))
}

fn run_until(ground: &mut VirtualGround, limit: Duration, mut is_over: impl FnMut() -> bool) {
    let end = ground.now() + limit;
    while !is_over() {
        assert!(ground.now() < end, "it does not end");
        ground.step(end).expect("the ends work");
    }
}

fn pass(ground: &mut VirtualGround, time: Duration) {
    let end = ground.now() + time;
    ground.run_until(end).expect("the ends work");
}

fn zeros(after: Duration) -> Bound {
    Bound { deadline: Deadline::After(after), fill: Fill::Zero }
}

fn place(message: usize) -> Range<usize> {
    message * 64 * MTU..(message + 1) * 64 * MTU
}

fn receive(ground: &mut VirtualGround, message: usize) -> ReceiveTicket {
    let (connection, memory) = ground.receiver();
    connection.post_receive(memory, place(message)).expect("there is room")
}

fn send(ground: &mut VirtualGround, message: usize, choice: &Choice) -> SendTicket {
    let now = ground.now();
    let (connection, memory) = ground.sender();
    memory.write(place(message)).expect("nobody uses it").fill(message as u8 + 1);
    connection.send_chosen(memory, place(message), choice, now).expect("there is room")
}

/// The memory of a message that has ended for its program is the program's, whether its number has been used or not.
#[test]
fn a_message_that_expires_while_it_waits_for_a_number_gives_its_memory_back() {
    let mut ground = ground(&["sr:nack"], 1, |_| ());
    let now = ground.now();
    let open: Vec<_> = (0..2).map(|message| receive(&mut ground, message)).collect();
    let (connection, _) = ground.receiver();
    let own = connection.queue_pair().context().register(vec![1; 10 * MTU]).expect("there is room");
    let receive = connection.receive_bounded(&own, 0..10 * MTU, zeros(DEADLINE), now).expect("it can wait");
    run_until(&mut ground, 2 * DEADLINE, || receive.is_over());
    assert_eq!(ground.now(), now + DEADLINE);
    let received = receive.take().expect("it has ended").expect("it has not failed");
    assert!(received.ending() == Ending::Deadline && received.bytes().iter().all(|byte| *byte == 0));
    drop(received);
    assert!(own.into_buffer().is_ok(), "somebody has the memory of a receive that has ended");
    drop((open, ground));
    // The same at a sender whose messages have no receives.
    let mut ground = self::ground(&["sr:nack"], 1, |_| ());
    let sent: Vec<_> = (2..4).map(|message| send(&mut ground, message, &Choice::default())).collect();
    let now = ground.now();
    let (connection, _) = ground.sender();
    let own = connection.queue_pair().context().register(vec![1; 10 * MTU]).expect("there is room");
    let deadline = Deadline::After(DEADLINE);
    let late = connection.send_bounded(&own, 0..10 * MTU, deadline, now).expect("it can wait");
    run_until(&mut ground, 2 * DEADLINE, || late.is_over());
    assert_eq!(late.take().expect("it has ended").expect("it has not failed").delivery, Delivery::Unknown);
    assert!(own.into_buffer().is_ok(), "somebody has the memory of a send that has ended");
    drop(sent);
}

/// A bounded message with chunks that are too long waits behind another, and expires there, or does not: it never uses a number, so the messages
/// behind it find their receives.
#[test]
fn chunks_that_are_too_long_never_use_a_number() {
    for wait in [Duration::ZERO, 4 * DEADLINE] {
        // One message at a time: its data and its parity.
        let mut ground = ground(&["sr:nack", "ec:mds:32,8"], 1, |_| ());
        let first = send(&mut ground, 0, &Choice::default());
        pass(&mut ground, Duration::from_millis(1));
        let now = ground.now();
        let (connection, memory) = ground.sender();
        let choice = Choice::scheme("ec:mds:32,8").with_chunk_bytes(64 * MTU as u32);
        let deadline = Deadline::After(2 * DEADLINE);
        let too_long =
            connection.send_bounded_chosen(memory, place(9), deadline, &choice, now).expect("it is looked at later");
        let next = send(&mut ground, 1, &Choice::default());
        pass(&mut ground, wait);
        let receives = [receive(&mut ground, 0), receive(&mut ground, 1)];
        run_until(&mut ground, Duration::from_secs(1), || {
            too_long.is_over() && first.is_over() && next.is_over() && receives.iter().all(ReceiveTicket::is_over)
        });
        for (message, receive) in receives.iter().enumerate() {
            let received = receive.take().expect("it has ended").expect("its own message comes");
            assert!(received.bytes().iter().all(|byte| *byte == message as u8 + 1), "after {wait:?}");
        }
        let error = too_long.take().expect("it has ended").expect_err("it has failed");
        assert!(matches!(error, MessageError::ChunksTooLong { .. }), "after {wait:?}: {error}");
    }
}

/// All are announced long before the first of them has arrived: that clears no more memory for parity than the attributes say.
#[test]
fn announced_messages_count_for_the_memory_of_parity() {
    const COUNT: usize = 12;
    for scheme in ["ec:mds:8,4", "sr:nack"] {
        let mut ground = ground(&["sr:nack", "ec:mds:8,4"], 10, |options| {
            options.link = options.link.clone().with_rate_bits_per_second(50_000_000);
            // Parity of a message has half its bytes: room for three.
            options.connection.parity_bytes_max = 3 * 32 * MTU as u64;
        });
        let receives: Vec<_> = (0..COUNT).map(|message| receive(&mut ground, message)).collect();
        let sends: Vec<_> = (0..COUNT).map(|message| send(&mut ground, message, &Choice::scheme(scheme))).collect();
        let end = ground.now() + Duration::from_secs(10);
        let mut most = 0;
        while !(receives.iter().all(ReceiveTicket::is_over) && sends.iter().all(SendTicket::is_over)) {
            assert!(ground.now() < end, "they do not end");
            ground.step(end).expect("the ends work");
            let queue_pair = ground.sender().0.queue_pair();
            let is_posted = |number: &u64| queue_pair.peer_receive_of(*number) == PeerReceive::Posted;
            // The second number of each message is that of its parity.
            most = most.max((1..2 * COUNT as u64).step_by(2).filter(is_posted).count());
        }
        // A sender without parity is not told that the receiver has given the memory back.
        assert!(scheme == "sr:nack" || most == 3, "{most} parities with memory at a time");
        for (message, receive) in receives.iter().enumerate() {
            let received = receive.take().expect("it has ended").expect("it has not failed");
            assert!(received.bytes().iter().all(|byte| *byte == message as u8 + 1), "{message}");
        }
    }
}

/// With less room than any message needs, two at a time have some, and all arrive.
#[test]
fn messages_arrive_whatever_room_there_is_for_parity() {
    const COUNT: usize = 6;
    let mut ground = ground(&["sr:nack", "ec:mds:8,4"], 10, |options| options.connection.parity_bytes_max = 0);
    let receives: Vec<_> = (0..COUNT).map(|message| receive(&mut ground, message)).collect();
    let choice = |message: usize| Choice::scheme(["ec:mds:8,4", "sr:nack"][message % 2]);
    let sends: Vec<_> = (0..COUNT).map(|message| send(&mut ground, message, &choice(message))).collect();
    run_until(&mut ground, Duration::from_secs(10), || {
        receives.iter().all(ReceiveTicket::is_over) && sends.iter().all(SendTicket::is_over)
    });
    for (message, receive) in receives.iter().enumerate() {
        let received = receive.take().expect("it has ended").expect("it has not failed");
        assert!(received.bytes().iter().all(|byte| *byte == message as u8 + 1), "{message}");
    }
}

/// Workers that do nothing until a test lets them.
#[derive(Default)]
struct Kept(Mutex<VecDeque<Job>>);

impl Workers for Kept {
    fn submit(&self, job: Job) {
        self.0.lock().expect("no panic").push_back(job);
    }
}

/// Long receives that expire while they wait for room for parity are filled by workers, not by the driver.
#[test]
fn long_receives_that_expire_while_they_wait_are_filled_by_workers() {
    const LONG: usize = 2 << 20;
    for is_connected in [true, false] {
        let mut ground = ground(&["ec:mds:8,4"], 10, |options| options.connection.parity_bytes_max = 0);
        let kept = Arc::new(Kept::default());
        if is_connected {
            pass(&mut ground, Duration::from_millis(10));
        }
        let now = ground.now();
        let (connection, memory) = ground.receiver();
        connection.set_workers(kept.clone(), || ());
        memory.write(0..4 * LONG).expect("nobody uses it").fill(9);
        let open: Vec<_> =
            (0..2).map(|index| connection.post_receive(memory, 4 * LONG - 2 + index..4 * LONG - 1 + index)).collect();
        let receives: Vec<_> = [0..LONG, LONG..2 * LONG, 2 * LONG..2 * LONG + 100]
            .into_iter()
            .map(|range| connection.receive_bounded(memory, range, zeros(DEADLINE), now).expect("it can wait"))
            .collect();
        // A short one is filled at once, whatever the others take.
        run_until(&mut ground, 2 * DEADLINE, || receives[2].is_over());
        assert_eq!(ground.now(), now + DEADLINE);
        assert!(!receives[0].is_over() && !receives[1].is_over(), "filled by the driver");
        pass(&mut ground, DEADLINE);
        let jobs: Vec<_> = kept.0.lock().expect("no panic").drain(..).collect();
        assert_eq!(jobs.len(), 2);
        jobs.into_iter().for_each(|job| job());
        assert!(ground.receiver().0.has_ended_work());
        pass(&mut ground, Duration::from_micros(1));
        for receive in &receives {
            let received = receive.take().expect("it has ended").expect("it has not failed");
            assert_eq!((received.ending(), received.report().late), (Ending::Deadline, Duration::ZERO));
            assert!(received.bytes().iter().all(|byte| *byte == 0));
        }
        drop(open);
    }
}

/// A connection that goes while they are being filled gives the memory back.
#[test]
fn receives_that_are_being_filled_end_with_their_connection() {
    let mut ground = ground(&["ec:mds:8,4"], 10, |options| options.connection.parity_bytes_max = 0);
    let kept = Arc::new(Kept::default());
    let now = ground.now();
    let (connection, memory) = ground.receiver();
    let memory = memory.clone();
    connection.set_workers(kept.clone(), || ());
    let open: Vec<_> = (0..2).map(|index| connection.post_receive(&memory, index..index + 1)).collect();
    let receive = connection.receive_bounded(&memory, 100..(2 << 20), zeros(DEADLINE), now).expect("it can wait");
    pass(&mut ground, 2 * DEADLINE);
    assert!(!receive.is_over());
    assert!(memory.write(100..200).is_err(), "it is being filled");
    drop((ground, open));
    assert!(matches!(receive.take(), Some(Err(MessageError::Closed))));
    memory.write(100..200).expect("nobody uses it");
    kept.0.lock().expect("no panic").drain(..).for_each(|job| job());
}

/// The data of a message has a number and its parity none: its sender ends by its deadline all the same, the receiver hears that nothing comes, and
/// the next message finds its own receive.
#[test]
fn a_send_whose_parity_has_no_number_ends_by_its_deadline() {
    let mut ground = ground(&["sr:nack", "ec:mds:8,4"], 1, |_| ());
    let number_0 = ground.sender().0.queue_pair().start_stream(None).expect("there is room");
    let now = ground.now();
    let (connection, memory) = ground.sender();
    let late = connection.send_bounded(memory, place(5), Deadline::After(DEADLINE), now).expect("there is room");
    run_until(&mut ground, 4 * DEADLINE, || late.is_over());
    assert_eq!(ground.now(), now + DEADLINE);
    assert_eq!(late.take().expect("it has ended").expect("it has not failed").delivery, Delivery::Unknown);
    let (connection, memory) = ground.receiver();
    let of_number_0 = connection.queue_pair().post_receive(memory, 0..0).expect("there is room");
    drop((number_0, of_number_0));
    let receives = [receive(&mut ground, 0), receive(&mut ground, 1)];
    let next = send(&mut ground, 1, &Choice::default());
    run_until(&mut ground, Duration::from_secs(1), || next.is_over() && receives.iter().all(ReceiveTicket::is_over));
    let [first, second] = receives.map(|receive| receive.take().expect("it has ended"));
    assert!(matches!(first, Err(MessageError::Withdrawn)), "{first:?}");
    assert!(second.expect("it has not failed").bytes().iter().all(|byte| *byte == 2));
}

/// The same at the receiver.
#[test]
fn a_receive_whose_parity_has_no_number_ends_by_its_deadline() {
    let mut ground = ground(&["sr:nack", "ec:mds:8,4"], 1, |_| ());
    let (connection, memory) = ground.receiver();
    let of_number_0 = connection.queue_pair().post_receive(memory, 0..0).expect("there is room");
    let now = ground.now();
    let (connection, memory) = ground.receiver();
    let receive_0 = connection.receive_bounded(memory, place(0), zeros(DEADLINE), now).expect("it can wait");
    let receive_1 = receive(&mut ground, 1);
    run_until(&mut ground, 4 * DEADLINE, || receive_0.is_over());
    assert_eq!(ground.now(), now + DEADLINE);
    drop((ground.sender().0.queue_pair().start_stream(None).expect("there is room"), of_number_0));
    let now = ground.now();
    let (connection, memory) = ground.sender();
    let late = Deadline::After(Duration::from_millis(500));
    let first = connection.send_bounded(memory, place(0), late, now).expect("there is room");
    let second = send(&mut ground, 1, &Choice::default());
    run_until(&mut ground, Duration::from_secs(1), || first.is_over() && second.is_over() && receive_1.is_over());
    let missing = std::iter::once(0..place(0).len() as u64).collect();
    let delivery = first.take().expect("it has ended").expect("it has not failed").delivery;
    assert_eq!(delivery, Delivery::Partial { missing, is_coarse: false });
    let received = receive_1.take().expect("it has ended").expect("it has not failed");
    assert!(received.bytes().iter().all(|byte| *byte == 2));
}
