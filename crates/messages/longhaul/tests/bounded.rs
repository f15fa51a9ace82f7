//! Bounded messages on real sockets of the loopback interface.

mod ends;

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
