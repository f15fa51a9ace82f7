//! Messages that are longer than one message of sdr, on virtual time: cut into parts by the sender, and one piece again
//! at the receiver.

use std::sync::Arc;

use longhaul_impair::{Loss, Profile};
use longhaul_reliable::{
    MessageError, MessageShape, Progress, ReceiveHalf, ReceiveIo, ReceiveTicket, Scheme, SelectiveRepeat, SendHalf,
    SendIo, SendTicket,
};
use longhaul_scheme_testing::end_to_end::{Case, Ground, GroundOptions, VirtualGround, run_case, scheme_by_name};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Mtu;

/// The longest message of sdr here. Parity of every scheme below fits.
const PART: usize = 40 << 10;

fn schemes() -> Vec<Arc<dyn Scheme>> {
    let names = ["sr:rto", "sr:nack", "ec:mds:32,8", "ec:xor:8,2", "twice"];
    names.map(|name| scheme_by_name(name).expect("a scheme")).into()
}

fn link() -> Profile {
    Profile::default().with_propagation_delay(Duration::from_micros(500)).with_rate_bits_per_second(4_000_000_000)
}

fn dead() -> Profile {
    link().with_loss(Loss::Independent { probability: 1.0 })
}

fn bad_links() -> Vec<(&'static str, Profile)> {
    let loss = |probability| link().with_loss(Loss::Independent { probability });
    vec![
        ("perfect", link()),
        ("loss 1e-2", loss(1e-2)),
        ("loss 2e-1", loss(2e-1)),
        ("bursts", link().with_loss(Loss::bursts(0.02, 8.0))),
        ("reordering", loss(1e-2).with_reordering(0.1, Duration::from_micros(200))),
        ("duplication", loss(1e-2).with_duplication(0.2).with_jitter(Duration::from_micros(30), false)),
    ]
}

fn options(link: Profile) -> GroundOptions {
    GroundOptions {
        mtu: Mtu::Bytes1024,
        chunk_bytes: 1024,
        message_bytes_max: Some([PART as u64; 2]),
        ..GroundOptions::new(link, 1 << 20)
    }
}

/// Every scheme over every link.
fn run_all(options: impl Fn(Profile) -> GroundOptions, cases: &[Case]) {
    for (name, link) in bad_links() {
        for scheme in schemes() {
            let mut ground = VirtualGround::with_scheme(&options(link.clone()), scheme.clone());
            for case in cases {
                if let Err(error) = run_case(&mut ground, case) {
                    panic!("{}, {name}, {} bytes: {error}", scheme.name(), case.message_bytes);
                }
            }
        }
    }
}

fn post(ground: &mut VirtualGround, at: usize, room: usize, length: usize) -> (ReceiveTicket, SendTicket) {
    let now = ground.now();
    let (receiver, memory) = ground.receiver();
    let receive = receiver.post_receive(memory, at..at + room).expect("there is room");
    let (sender, memory) = ground.sender();
    (receive, sender.send(memory, at..at + length, now).expect("there is room"))
}

fn pass(ground: &mut VirtualGround, time: Duration) {
    let end = ground.now() + time;
    ground.run_until(end).expect("the ends work");
}

fn errors(receive: &ReceiveTicket, send: &SendTicket) -> (MessageError, MessageError) {
    let receive = receive.take().expect("it has ended").expect_err("it has failed");
    (receive, send.take().expect("it has ended").expect_err("it has failed"))
}

#[test]
fn sizes_around_multiples_of_a_part() {
    let sizes = [PART - 1, PART, PART + 1, 2 * PART - 1, 2 * PART, 2 * PART + 1, 5 * PART + 123];
    let cases: Vec<Case> = sizes.into_iter().map(|bytes| Case { in_flight: 3, ..Case::new(6, bytes) }).collect();
    run_all(options, &cases);
}

#[test]
fn receives_that_have_more_parts_than_their_messages() {
    let case = |bytes| Case { slack_bytes: 5 * PART / 2, in_flight: 4, ..Case::new(8, bytes) };
    run_all(options, &[0, 1, PART, PART + 1, 3 * PART].map(case));
}

/// The smaller of the two ends' counts.
#[test]
fn ends_with_different_longest_messages() {
    for most in [[PART as u64, 24 << 10], [24 << 10, PART as u64]] {
        let case = |bytes| Case { in_flight: 3, ..Case::new(5, bytes) };
        let cases = [10_000, 24 << 10, 30_000, PART, 3 * PART].map(case);
        run_all(|link| GroundOptions { message_bytes_max: Some(most), ..options(link) }, &cases);
        let mut ground = VirtualGround::with_scheme(
            &GroundOptions { message_bytes_max: Some(most), ..options(link()) },
            Arc::new(SelectiveRepeat::default()),
        );
        assert_eq!(ground.sender().0.part_bytes(), Some(24 << 10));
        assert_eq!(ground.receiver().0.part_bytes(), Some(24 << 10));
    }
}

/// More parts than the message table has places, and more than one generation of them.
#[test]
fn more_parts_than_places() {
    for scheme in [schemes().remove(0), schemes().remove(3)] {
        for parts_open_max in [1, 16, 4096] {
            let lossy = link().with_loss(Loss::Independent { probability: 1e-2 });
            let mut options = GroundOptions { message_bytes_max: Some([2048; 2]), ..options(lossy) };
            (options.memory_bytes, options.connection.parts_open_max) = (6 << 20, parts_open_max);
            let mut ground = VirtualGround::with_scheme(&options, scheme.clone());
            let case = Case { in_flight: 2, ..Case::new(3, (5 << 19) + 77) };
            let outcome = run_case(&mut ground, &case).unwrap_or_else(|error| panic!("{}: {error}", scheme.name()));
            assert_eq!(outcome.received[0].message_bytes, (5 << 19) + 77);
        }
    }
}

/// Long and short ones, all posted at once: those that follow one that fails are not disturbed.
#[test]
fn messages_that_are_too_long_fail_at_both_ends() {
    let rooms_and_lengths = [
        (10_000, 5 * PART),
        (10_000, 10_000),
        (5 * PART / 2, 5 * PART),
        (3 * PART, 3 * PART - 5),
        (PART, PART + 1),
        (PART / 2, PART),
        (2 * PART, 20),
        (10_000, 0),
        (2 * PART, 2 * PART),
    ];
    for (name, link) in bad_links() {
        for scheme in schemes() {
            let name = format!("{}, {name}", scheme.name());
            let mut ground =
                VirtualGround::with_scheme(&GroundOptions { memory_bytes: 4 << 20, ..options(link.clone()) }, scheme);
            let fill = |index: usize| index as u8 + 1;
            let tickets: Vec<_> = rooms_and_lengths
                .into_iter()
                .enumerate()
                .map(|(index, (room, length))| {
                    let at = index * 5 * PART;
                    ground.sender().1.write(at..at + length).expect("it is free").fill(fill(index));
                    post(&mut ground, at, room, length)
                })
                .collect();
            pass(&mut ground, Duration::from_secs(5));
            for (index, ((room, length), (receive, send))) in rooms_and_lengths.into_iter().zip(tickets).enumerate() {
                if length > room {
                    let (received, sent) = errors(&receive, &send);
                    let too_long = format!("a message of {length} bytes does not fit the receive of {room} bytes");
                    assert!(received.to_string().starts_with(&too_long), "{name}, {index}: {received}");
                    let ours = matches!(sent, MessageError::TooLong { bytes, .. } if bytes == length as u64);
                    assert!(
                        ours || matches!(sent, MessageError::TooLongForPeer(bytes) if bytes == length as u64),
                        "{name}, {index}: {sent}"
                    );
                    continue;
                }
                send.take().expect("it has ended").unwrap_or_else(|error| panic!("{name}, {index}: {error}"));
                let received = receive.take().expect("it has ended");
                let received = received.unwrap_or_else(|error| panic!("{name}, {index}: {error}"));
                assert_eq!(received.bytes().len(), length, "{name}, {index}");
                assert!(received.bytes().iter().all(|byte| *byte == fill(index)), "{name}, {index}");
            }
            run_case(&mut ground, &Case::new(3, 2 * PART)).expect("all arrives");
        }
    }
}

/// The link dies at every moment of a message, and comes back when both ends have given it up. What follows is not
/// disturbed.
#[test]
fn a_link_that_dies_in_the_middle() {
    const LENGTH: usize = 10 * PART;
    for scheme in schemes() {
        for micros in [100, 300, 700, 1_200, 1_700, 2_000, 2_300] {
            let name = format!("{}, {micros} µs", scheme.name());
            let mut options = options(link());
            options.connection.message_timeout = Duration::from_millis(200);
            options.connection.parts_open_max = 4;
            let mut ground = VirtualGround::with_scheme(&options, scheme.clone());
            let (receive, send) = post(&mut ground, 0, LENGTH, LENGTH);
            pass(&mut ground, Duration::from_micros(micros));
            ground.world.set_link_profile(dead());
            pass(&mut ground, Duration::from_secs(1));
            ground.world.set_link_profile(link());
            let following = post(&mut ground, LENGTH, 2 * PART, 2 * PART - 1);
            pass(&mut ground, Duration::from_secs(4));
            let (received, sent) = (receive.take(), send.take());
            let (Some(received), Some(sent)) = (received, sent) else { panic!("{name}: not over") };
            match (received, sent) {
                (Err(received), Err(sent)) => {
                    let is_told = matches!(received, MessageError::TimedOut(_) | MessageError::Withdrawn);
                    assert!(is_told, "{name}: {received}");
                    assert!(matches!(sent, MessageError::TimedOut(_) | MessageError::PeerTimedOut), "{name}: {sent}");
                }
                (received, sent) => panic!("{name}: {received:?}, {sent:?}"),
            }
            let received = following.0.take().unwrap_or_else(|| panic!("{name}: the next is not over"));
            assert_eq!(received.expect("the next one arrives").bytes().len(), 2 * PART - 1, "{name}");
            assert!(following.1.take().is_some_and(|sent| sent.is_ok()), "{name}");
            run_case(&mut ground, &Case::new(3, 2 * PART)).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

/// The sender cannot read a part: the message fails at both ends, and only that.
#[test]
fn a_part_that_cannot_be_sent() {
    for scheme in schemes() {
        for (part, parts_open_max) in [(0, 16), (3, 16), (3, 2), (9, 2)] {
            let mut options = options(link());
            options.connection.parts_open_max = parts_open_max;
            let mut ground = VirtualGround::with_scheme(&options, scheme.clone());
            let name = format!("{}, part {part}", scheme.name());
            let (receive, send) = post(&mut ground, 0, 10 * PART, 10 * PART);
            let following = post(&mut ground, 10 * PART, 2 * PART, 2 * PART - 1);
            let memory = ground.sender().1.clone();
            let held = memory.write(part * PART + 5000..part * PART + 5001).expect("it is free");
            pass(&mut ground, Duration::from_millis(100));
            drop(held);
            pass(&mut ground, Duration::from_millis(500));
            if scheme.parity_bytes(1, 1024) > 0 {
                // Coding has to read first, and waits until it can.
                assert!(send.take().is_some_and(|sent| sent.is_ok()), "{name}");
                assert!(receive.take().is_some_and(|received| received.is_ok()), "{name}");
            } else {
                let (received, sent) = errors(&receive, &send);
                assert!(matches!(received, MessageError::Withdrawn), "{name}: {received}");
                assert!(matches!(sent, MessageError::Send(_)), "{name}: {sent}");
            }
            pass(&mut ground, Duration::from_secs(2));
            let received = following.0.take().unwrap_or_else(|| panic!("{name}: the next is not over"));
            assert_eq!(received.expect("the next one arrives").bytes().len(), 2 * PART - 1, "{name}");
            run_case(&mut ground, &Case::new(3, 2 * PART)).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

/// The timeout is for each part.
#[test]
fn a_message_may_take_longer_than_its_parts_may() {
    let slow =
        Profile::default().with_propagation_delay(Duration::from_micros(500)).with_rate_bits_per_second(4_000_000);
    for scheme in schemes() {
        let mut options = options(slow.clone());
        options.connection.message_timeout = Duration::from_millis(500);
        options.connection.parts_open_max = 4;
        let mut ground = VirtualGround::with_scheme(&options, scheme.clone());
        let outcome = run_case(&mut ground, &Case { in_flight: 1, ..Case::new(1, 12 * PART) });
        let outcome = outcome.unwrap_or_else(|error| panic!("{}: {error}", scheme.name()));
        assert!(outcome.sent[0].duration > Duration::from_millis(900), "{:?}", outcome.sent[0]);
    }
}

/// Places of what is missing are places of the whole message, and hold nothing of what was in the memory before.
#[test]
fn what_is_missing_of_a_message_in_parts() {
    const LENGTH: usize = 6 * PART + 100;
    let lossy = link().with_loss(Loss::Independent { probability: 0.1 });
    let mut ground = VirtualGround::with_scheme(&options(lossy), Arc::new(Once));
    ground.sender().1.write(0..LENGTH).expect("it is free").fill(1);
    ground.receiver().1.write(0..LENGTH).expect("it is free").fill(0xa5);
    let now = ground.now();
    let (receiver, memory) = ground.receiver();
    let receive = receiver.post_receive_partial(memory, 0..LENGTH).expect("there is room");
    let (sender, memory) = ground.sender();
    let send = sender.send(memory, 0..LENGTH, now).expect("there is room");
    pass(&mut ground, Duration::from_secs(1));
    let received = receive.take().expect("it has ended").expect("it is done");
    let missing = received.missing();
    // The sender hears of the same places.
    match send.take() {
        Some(Err(MessageError::Incomplete { missing: heard })) => assert_eq!(heard, missing),
        other => panic!("{other:?}"),
    }
    assert!(missing.len() > 5 && missing.windows(2).all(|pair| pair[0].end < pair[1].start), "{missing:?}");
    assert!(missing.iter().any(|range| range.start > 5 * PART as u64), "{missing:?}");
    for (place, byte) in received.bytes().iter().enumerate() {
        let is_missing = missing.iter().any(|range| range.contains(&(place as u64)));
        assert_eq!(*byte == 0, is_missing, "byte {place}, missing {missing:?}");
    }
}

/// Everything once; what has not come after a while is missing.
struct Once;

struct OnceSender {
    has_begun: bool,
}

struct OnceReceiver {
    ends: Option<Instant>,
}

impl Scheme for Once {
    fn name(&self) -> String {
        "once".to_owned()
    }

    fn sender(&self, _: &MessageShape) -> Box<dyn SendHalf> {
        Box::new(OnceSender { has_begun: false })
    }

    fn receiver(&self, _: &MessageShape) -> Box<dyn ReceiveHalf> {
        Box::new(OnceReceiver { ends: None })
    }
}

impl SendHalf for OnceSender {
    fn poll(&mut self, io: &mut SendIo<'_>) {
        if !std::mem::replace(&mut self.has_begun, true) {
            io.send_chunks(0..io.shape().chunk_count());
        }
    }

    fn on_feedback(&mut self, _: &[u8], _: &mut SendIo<'_>) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

impl ReceiveHalf for OnceReceiver {
    fn poll(&mut self, io: &mut ReceiveIo<'_>) -> Progress {
        let ends = *self.ends.get_or_insert(io.now() + Duration::from_millis(5));
        match ends <= io.now() {
            true => Progress::Finished,
            false => Progress::Waiting,
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.ends
    }
}

#[test]
fn reports_add_up() {
    let case = Case { in_flight: 1, ..Case::new(2, 5 * PART + 100) };
    let mut ground = VirtualGround::with_scheme(&options(link()), schemes().remove(2));
    let outcome = run_case(&mut ground, &case).expect("all arrives");
    let (sent, received) = (outcome.sent[1], outcome.received[1]);
    // Of the last part there is one packet, and its parity, which is as short, is one.
    assert_eq!((sent.data_packets_sent, sent.data_packets_repeated, sent.parity_packets_sent), (201, 0, 5 * 16 + 1));
    assert_eq!((sent.message_bytes, received.message_bytes), (5 * PART as u64 + 100, 5 * PART as u64 + 100));
    assert_eq!((received.parity_chunks_used, received.chunks_recovered, received.fallbacks), (0, 0, 0));
    assert!(sent.offers >= 5 && received.duration < sent.duration, "{sent:?}, {received:?}");
}

/// With parts of bandwidth × delay and more nothing is lost in speed.
#[test]
fn cutting_costs_no_time() {
    let took = |part: u64| {
        let mut options = GroundOptions::new(link(), 16 << 20);
        options.message_bytes_max = Some([part; 2]);
        let mut ground = VirtualGround::with_scheme(&options, Arc::new(SelectiveRepeat::default()));
        let outcome = run_case(&mut ground, &Case { in_flight: 1, ..Case::new(2, 16 << 20) }).expect("all arrives");
        outcome.sent[1].duration.as_secs_f64()
    };
    let (whole, cut) = (took(16 << 20), took(1 << 20));
    assert!(cut < 1.01 * whole, "{cut} s in parts, {whole} s in one");
}

#[test]
fn parity_that_never_fits_is_an_error() {
    let options = GroundOptions { message_bytes_max: Some([PART as u64, 4096]), ..options(link()) };
    let mut ground = VirtualGround::with_scheme(&options, schemes().remove(2));
    let (receive, send) = post(&mut ground, 0, 100, 100);
    pass(&mut ground, Duration::from_millis(10));
    let expected = "the parity of ec:mds:32,8 does not fit the longest message that both queue pairs take, 4096 bytes; \
                    make both for longer ones";
    let (received, sent) = errors(&receive, &send);
    assert_eq!((received.to_string(), sent.to_string()), (expected.to_owned(), expected.to_owned()));
}
