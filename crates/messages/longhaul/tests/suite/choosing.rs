//! Messages of one connection whose senders choose different schemes and chunks.

use crate::ends;

use std::thread;
use std::time::Duration;

use ends::{device, impaired_device, pair_of};
use longhaul::{
    Bound, Choice, ChoiceError, ConnectionError, Deadline, Delivery, Fill, Listener, MessageError, Options,
    TransferError, connect,
};
use longhaul_impair::{Loss, Profile};

const BYTES: usize = 300_000;

fn message(index: usize) -> Vec<u8> {
    (0..BYTES).map(|place| (place * 7 + index * 31 + (place >> 8)) as u8).collect()
}

#[test]
fn each_message_has_what_its_sender_chooses() {
    let options = Options::with_scheme("sr:nack,ec:mds:8,4,be").expect("schemes");
    let listener = Listener::bind("127.0.0.1:0", device(), &options).expect("it listens");
    let address = listener.local_address();
    let choices = || {
        [
            Choice::default(),
            Choice::scheme("ec:mds:8,4"),
            Choice::scheme("sr:nack").with_chunk_bytes(64 << 10),
            Choice::scheme("ec:mds:8,4"),
        ]
    };
    let sender = thread::spawn(move || {
        let connection = connect(address, device(), &options).wait().expect("it connects");
        assert_eq!(connection.scheme(), "sr:nack,ec:mds:8,4,be");
        let writes: Vec<_> = choices().into_iter().enumerate().collect();
        let writes: Vec<_> =
            writes.into_iter().map(|(index, choice)| connection.choose(choice).write(message(index))).collect();
        for (index, write) in writes.into_iter().enumerate() {
            let report = write.wait().expect("it arrives");
            assert_eq!(report.parity_packets_sent > 0, index % 2 == 1, "message {index}");
        }
        let chosen = connection.choose(Choice::scheme("be"));
        let sent = chosen.write_bounded(message(4), Deadline::After(Duration::from_secs(20))).wait().expect("it ends");
        assert!(matches!(sent.delivery, Delivery::Whole | Delivery::Partial { .. }), "{sent:?}");
        let refused = connection.choose(Choice::scheme("sr:rto")).write("no").wait().expect_err("it is not agreed on");
        let is_named = matches!(&refused, TransferError::Refused(ConnectionError::Choice(ChoiceError::SchemeNotAgreed { scheme, .. })) if scheme == "sr:rto");
        assert!(is_named, "{refused:?}");
    });
    let connection = listener.accept().wait().expect("it connects");
    for index in 0..choices().len() {
        let received = connection.receive(BYTES).wait().expect("it arrives");
        assert!(received.missing().is_empty() && received.bytes() == message(index), "message {index}");
    }
    let bound = Bound { deadline: Deadline::After(Duration::from_secs(10)), fill: Fill::Zero };
    let received = connection.receive_bounded(BYTES, bound).wait().expect("it ends");
    assert_eq!(received.bytes().len(), BYTES);
    sender.join().expect("it sends");
}

#[test]
fn ends_with_other_lists_do_not_connect() {
    let ours = Options::with_scheme("sr:nack,be").expect("schemes");
    let listener = Listener::bind("127.0.0.1:0", device(), &ours).expect("it listens");
    let theirs = Options::with_scheme("sr:nack").expect("a scheme");
    let error = connect(listener.local_address(), device(), &theirs).wait().expect_err("the lists differ");
    let text = longhaul::with_sources(&error);
    assert!(text.contains("sr:nack,be"), "{text}");
}

/// An end whose schemes have names that are too long hears that, and how long they may be; the other end does not hear of "different schemes".
#[test]
fn names_of_schemes_that_are_too_long_are_refused_where_they_were_set() {
    let names = |count: usize| (1..=count).map(|data| format!("ec:mds:{data},2")).collect::<Vec<_>>().join(",");
    let (long, longest) = (names(30), format!("{},sr:nack,sr:rto", names(20)));
    assert!(long.len() > 256 && longest.len() <= 256 && longest.len() > 240, "{} and {}", long.len(), longest.len());
    let too_long = Options::with_scheme(&long).expect("schemes");
    let named = |text: String| {
        let is_named = text.contains(&format!("{} bytes", long.len())) && text.contains("256");
        assert!(is_named && !text.contains("different"), "{text}");
    };
    let error = Listener::bind("127.0.0.1:0", device(), &too_long).expect_err("a peer cannot be told these names");
    named(longhaul::with_sources(&error));
    let fitting = Options::with_scheme(&longest).expect("schemes");
    let listener = Listener::bind("127.0.0.1:0", device(), &fitting).expect("these fit");
    let error = connect(listener.local_address(), device(), &too_long).wait().expect_err("neither can the listener");
    named(longhaul::with_sources(&error));
    let connection = connect(listener.local_address(), device(), &fitting).wait().expect("it connects");
    assert_eq!(connection.scheme(), longest);
}

/// A program that has asked for a message gets all of it or an error; one that has asked for what arrives gets that.
#[test]
fn a_receive_has_all_of_a_best_effort_message_or_fails() {
    let options = Options::with_scheme("sr:nack,be").expect("schemes");
    let loss = Profile::default().with_loss(Loss::Independent { probability: 0.1 });
    let (sender, receiver) = pair_of([impaired_device(loss, 3), device()], &options);
    let be = || sender.choose(Choice::scheme("be"));
    let (plain, partial) = (receiver.receive(BYTES), receiver.receive_partial(BYTES));
    let writes = [be().write(message(0)), be().write(message(1))];
    let TransferError::Message(MessageError::Incomplete { missing }) = plain.wait().expect_err("a tenth is lost")
    else {
        panic!("another error");
    };
    let partial = partial.wait().expect("it has asked for what arrives");
    assert!(!partial.missing().is_empty() && partial.bytes().len() == BYTES);
    for (write, expected) in writes.into_iter().zip([&*missing, partial.missing()]) {
        match write.wait().expect_err("a tenth is lost") {
            TransferError::Message(MessageError::Incomplete { missing }) => assert_eq!(missing, expected),
            error => panic!("{error}"),
        }
    }
}
