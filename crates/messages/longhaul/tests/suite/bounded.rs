//! Bounded messages on real sockets of the loopback interface.

use crate::ends;

use std::ops::Range;
use std::time::{Duration, Instant};

use ends::{device, impaired_device, pair, pair_of, pattern};
use longhaul::{Bound, ConnectionError, Deadline, Delivery, Ending, Fill, Message, Options, TransferError};
use longhaul_impair::{Loss, Profile};

const BYTES: usize = 1_000_000;

fn zeros_within(deadline: Duration) -> Bound {
    Bound { deadline: Deadline::After(deadline), fill: Fill::Zero }
}

/// All of a message.
fn all() -> Vec<Range<u64>> {
    std::iter::once(0..BYTES as u64).collect()
}

/// What is not missing is what was sent, and the rest has this value.
fn check(message: &Message, sent: &[u8], fill: u8) {
    let mut expected = sent.to_vec();
    for range in message.missing() {
        expected[range.start as usize..range.end as usize].fill(fill);
    }
    assert!(message.bytes() == expected, "missing {:?}", message.missing());
    assert_eq!(message.ending() == Ending::Whole, message.missing().is_empty());
}

#[test]
fn both_ends_learn_the_same_ranges() {
    for scheme in ["be", "be+ec:mds:32,2"] {
        let loss = Profile::default().with_loss(Loss::Independent { probability: 0.05 });
        let options = Options::with_scheme(scheme).expect("a scheme");
        let (sender, receiver) = pair_of([impaired_device(loss, 7), device()], &options);
        let mut missing = 0;
        for number in 0..10 {
            let receiving = receiver.receive_bounded(BYTES, zeros_within(Duration::from_secs(2)));
            let writing = sender.write_bounded(pattern(BYTES, number), Deadline::After(Duration::from_secs(10)));
            let message = receiving.wait().expect("it ends");
            check(&message, &pattern(BYTES, number), 0);
            missing += message.missing().len();
            match writing.wait().expect("it ends").delivery {
                Delivery::Whole => assert!(message.missing().is_empty(), "{scheme}"),
                Delivery::Partial { missing, is_coarse } => {
                    assert_eq!((&*missing, is_coarse), (message.missing(), false), "{scheme}");
                }
                Delivery::Unknown => panic!("{scheme}: the report comes through"),
            }
        }
        assert!(missing > 0, "{scheme}: one packet of twenty is lost");
    }
}

#[test]
fn a_receive_of_which_nothing_is_heard_ends_on_time() {
    let (sender, receiver) = pair(&Options::with_scheme("be").expect("a scheme"));
    let memory = receiver.register(vec![0x5a; BYTES]).expect("memory");
    for (fill, expected) in [(Fill::Zero, 0), (Fill::Value(9), 9), (Fill::Stale, 0x5a)] {
        memory.write(0..BYTES).expect("nobody uses it").fill(0x5a);
        let begun = Instant::now();
        let together = receiver.deadline_at(begun + Duration::from_millis(50));
        let bound = Bound { deadline: together, fill };
        let message = receiver.receive_bounded_into(&memory, 0..BYTES, bound).wait().expect("it ends");
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(50) && took < Duration::from_millis(500), "{took:?}");
        assert_eq!((message.ending(), message.missing()), (Ending::Deadline, &*all()));
        check(&message, &[1; BYTES], expected);
    }
    // What is sent now was meant for the first of them; the fourth finds its receive.
    let receiving = receiver.receive_bounded(BYTES, zeros_within(Duration::from_secs(5)));
    let writes: Vec<_> = (0..4)
        .map(|number| sender.write_bounded(pattern(BYTES, number), Deadline::After(Duration::from_secs(5))))
        .collect();
    check(&receiving.wait().expect("it ends"), &pattern(BYTES, 3), 0);
    let deliveries: Vec<_> = writes.into_iter().map(|write| write.wait().expect("it ends").delivery).collect();
    let nothing = Delivery::Partial { missing: all(), is_coarse: false };
    assert_eq!(deliveries, [nothing.clone(), nothing.clone(), nothing, Delivery::Whole]);
}

#[test]
fn a_sender_without_a_receiver_ends_on_time() {
    let (sender, _receiver) = pair(&Options::with_scheme("be").expect("a scheme"));
    let begun = Instant::now();
    let sent = sender.write_bounded(vec![1; BYTES], Deadline::After(Duration::from_millis(50))).wait();
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(50) && took < Duration::from_millis(500), "{took:?}");
    assert_eq!(sent.expect("it ends").delivery, Delivery::Unknown);
}

#[test]
fn a_message_that_is_too_long_to_be_bounded_is_refused() {
    let (sender, receiver) = pair(&Options::with_scheme("be").expect("a scheme"));
    let most = receiver.bounded_bytes_max().expect("it is connected");
    let memory = sender.register(vec![0; 1]).expect("memory");
    assert!(most >= 16 << 20, "{most}");
    // It is refused before its memory is looked at.
    let refused = sender.write_bounded_from(&memory, 0..most as usize + 1, Deadline::After(Duration::from_secs(1)));
    let refused = refused.wait().expect_err("it is too long");
    assert!(matches!(refused, TransferError::Refused(ConnectionError::TooLongToBound { .. })), "{refused}");
}

/// A thread that only sleeps until the same instant, and wakes later than this, shows that the machine was busy then.
const DISTURBED: Duration = Duration::from_micros(500);

/// How late receives end while the machine is not busy: the lower quartile, since it may become so at any time. `None`
/// when it nearly always is. With a sender, far more is sent than there is time for.
fn lateness(with_sender: bool) -> Option<Duration> {
    const FLOOD: usize = 16 << 20;
    let (sender, receiver) = pair(&Options::with_scheme("be").expect("a scheme"));
    let sending = sender.register(pattern(FLOOD, 1)).expect("memory");
    let receiving = receiver.register(vec![0x5a; FLOOD]).expect("memory");
    let mut late = Vec::new();
    for _ in 0..60 {
        let at = Instant::now() + Duration::from_millis(3);
        let bound = Bound { deadline: receiver.deadline_at(at), fill: Fill::Zero };
        let sleeper = std::thread::spawn(move || {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            at.elapsed()
        });
        let receive = receiver.receive_bounded_into(&receiving, 0..FLOOD, bound);
        let whole = Deadline::After(Duration::from_secs(5));
        let write = with_sender.then(|| sender.write_bounded_from(&sending, 0..FLOOD, whole));
        let message = receive.wait().expect("it ends");
        write.into_iter().for_each(|write| drop(write.wait().expect("it ends")));
        if sleeper.join().expect("it sleeps") < DISTURBED && message.ending() == Ending::Deadline {
            late.push(message.report().late);
        }
    }
    late.sort();
    (late.len() >= 8).then(|| late[late.len() / 4])
}

#[test]
fn receives_end_when_their_deadlines_come() {
    for with_sender in [false, true] {
        match lateness(with_sender) {
            None => eprintln!("not judged: this machine was too busy (with a sender: {with_sender})"),
            Some(late) => assert!(late < Duration::from_millis(1), "{late:?} late, with a sender: {with_sender}"),
        }
    }
}

/// What comes after the end takes about as long as filling the memory.
#[test]
fn after_the_end_missing_bytes_are_filled_and_nothing_else_takes_time() {
    const LARGE: usize = 16 << 20;
    let (_sender, receiver) = pair(&Options::with_scheme("be").expect("a scheme"));
    let memory = receiver.register(vec![0x5a; LARGE]).expect("memory");
    let least = |times: &mut dyn FnMut() -> Duration| (0..9).map(|_| times()).min().expect("nine");
    let after_end = least(&mut || {
        let at = Instant::now() + Duration::from_millis(5);
        let bound = Bound { deadline: receiver.deadline_at(at), fill: Fill::Zero };
        let message = receiver.receive_bounded_into(&memory, 0..LARGE, bound).wait().expect("it ends");
        assert_eq!(message.report().missing_bytes, LARGE as u64);
        at.elapsed().saturating_sub(message.report().late)
    });
    let filling = least(&mut || {
        let begun = Instant::now();
        memory.write(0..LARGE).expect("nobody uses it").fill(std::hint::black_box(0));
        begun.elapsed()
    });
    assert!(after_end < 4 * filling + Duration::from_millis(1), "{after_end:?}, and filling takes {filling:?}");
}
