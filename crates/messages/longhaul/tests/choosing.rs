//! Messages of one connection whose senders choose different schemes and chunks.

use std::thread;
use std::time::Duration;

use longhaul::softnic::UdpPortChoice;
use longhaul::{
    Bound, Choice, ChoiceError, ConnectionError, Deadline, Delivery, DeviceChoice, Fill, Listener, Options,
    TransferError, connect,
};

const BYTES: usize = 300_000;

fn device() -> DeviceChoice {
    let mut device: DeviceChoice = "softnic".parse().expect("a device");
    device.udp.udp_port = UdpPortChoice::Free;
    device
}

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
