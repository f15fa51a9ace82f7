//! QUIC on loopback: what is sent arrives whole, and what goes wrong is an error in time.

use std::net::{SocketAddr, UdpSocket};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use longhaul_wan::quic::{Amount, Congestion, QuicError, Received, Receiver, Sender, Settings};

const SETTINGS: Settings = Settings {
    congestion: Congestion::Cubic,
    link_mtu: 1500,
    bandwidth_delay_bytes: 1 << 20,
    silence: Duration::from_secs(20),
    limit: Duration::from_secs(60),
};

/// A receiver on a thread, where it listens, and its certificate.
struct Running {
    thread: JoinHandle<Result<Received, QuicError>>,
    address: SocketAddr,
    certificate: Vec<u8>,
}

fn receive(address: &str, settings: Settings) -> Running {
    let mut receiver = Receiver::listen(address.parse().expect("an address"), &settings).expect("it listens");
    let (address, certificate) = (receiver.address(), receiver.certificate().to_vec());
    Running { thread: std::thread::spawn(move || receiver.receive()), address, certificate }
}

impl Running {
    fn connect(&self, connections: usize, settings: &Settings) -> Result<Sender, QuicError> {
        Sender::connect(self.address, &self.certificate, connections, settings)
    }

    fn end(self) -> Result<Received, QuicError> {
        self.thread.join().expect("no panic")
    }
}

#[test]
fn bulk_and_messages_arrive_whole() {
    for (address, link_mtu, datagram_bytes) in [("127.0.0.1:0", 1500, 1472), ("127.0.0.1:0", 4200, 4172)] {
        let settings = Settings { link_mtu, ..SETTINGS };
        let running = receive(address, settings);
        let mut sender = running.connect(3, &settings).expect("connected");
        assert_eq!(sender.handshakes().len(), 3);
        let bulk = sender.send_bulk(Amount::Bytes(5_000_001)).expect("sent");
        assert_eq!(bulk.iter().map(|delivery| delivery.bytes).collect::<Vec<_>>(), [5_000_001; 3]);
        let messages = sender.send_messages(70_000, 4).expect("sent");
        assert_eq!(messages.iter().map(|delivery| delivery.bytes).collect::<Vec<_>>(), [70_000; 12]);
        for delivery in bulk.iter().chain(&messages) {
            let completion = delivery.completion.expect("both ends have one clock");
            assert!(completion > Duration::ZERO && completion <= delivery.answered, "{delivery:?}");
        }
        let statistics = sender.statistics();
        assert_eq!(statistics.datagram_bytes, datagram_bytes);
        let packets_min = (3 * 5_000_001 + 12 * 70_000) / u64::from(datagram_bytes);
        assert!(statistics.sent_packets > packets_min, "{statistics:?}");
        sender.close().expect("closed");
        let bytes = 3 * 5_000_001 + 12 * 70_000;
        let expected = Received { connections: 3, refused: 0, streams: 3 + 12, wrong_streams: 0, bytes };
        assert_eq!(running.end().expect("received"), expected);
    }
}

#[test]
fn every_congestion_control_sends_for_a_time() {
    for congestion in [Congestion::Cubic, Congestion::NewReno, Congestion::Bbr] {
        let settings = Settings { congestion, ..SETTINGS };
        let running = receive("[::1]:0", settings);
        let mut sender = running.connect(1, &settings).expect("connected");
        let time = Duration::from_millis(200);
        let sent = sender.send_bulk(Amount::Time(time)).expect("sent");
        sender.close().expect("closed");
        let received = running.end().expect("received");
        assert!(sent[0].bytes > 100_000 && sent[0].time() >= time, "{congestion:?}: {sent:?}");
        assert_eq!((received.bytes, received.wrong_streams), (sent[0].bytes, 0), "{congestion:?}");
    }
}

#[test]
fn another_certificate_is_refused_and_the_right_one_is_not() {
    let (running, other) = (receive("127.0.0.1:0", SETTINGS), receive("127.0.0.1:0", SETTINGS));
    let refused = Sender::connect(running.address, &other.certificate, 1, &SETTINGS);
    let Err(error) = refused else { panic!("it was trusted") };
    assert!(matches!(error, QuicError::WrongCertificate(address, _) if address == running.address), "{error:?}");
    assert!(error.to_string().contains("another certificate"), "{error}");
    let Err(error) = Sender::connect(running.address, b"nonsense", 1, &SETTINGS) else { panic!("it was trusted") };
    assert!(matches!(error, QuicError::NotACertificate(_)), "{error:?}");
    for running in [running, other] {
        let mut sender = running.connect(1, &SETTINGS).expect("connected");
        sender.send_messages(1, 1).expect("sent");
        sender.close().expect("closed");
        let received = running.end().expect("received");
        assert_eq!((received.connections, received.streams), (1, 1), "{received:?}");
    }
}

#[test]
fn nobody_there_is_an_error_in_time() {
    let certificate = receive("127.0.0.1:0", Settings { limit: Duration::from_millis(1), ..SETTINGS }).certificate;
    let settings = Settings { silence: Duration::from_millis(500), ..SETTINGS };
    // One where a socket takes packets and says nothing, and one where there is no socket.
    let silent = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let gone = UdpSocket::bind("127.0.0.1:0").expect("a socket").local_addr().expect("an address");
    for address in [silent.local_addr().expect("an address"), gone] {
        let begun = Instant::now();
        let Err(error) = Sender::connect(address, &certificate, 2, &settings) else { panic!("connected") };
        assert!(matches!(error, QuicError::NoAnswer(at, _) if at == address), "{error:?}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
}

#[test]
fn a_receiver_waits_for_its_limit_and_no_longer() {
    let begun = Instant::now();
    let alone = receive("127.0.0.1:0", Settings { limit: Duration::from_millis(300), ..SETTINGS });
    let error = alone.end().expect_err("nobody has sent");
    assert!(matches!(error, QuicError::OutOfTime { doing: "receiving", .. }), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn a_receiver_that_goes_ends_its_sender() {
    let running = receive("127.0.0.1:0", Settings { limit: Duration::from_millis(500), ..SETTINGS });
    let settings = Settings { silence: Duration::from_secs(1), ..SETTINGS };
    let mut sender = running.connect(1, &settings).expect("connected");
    let begun = Instant::now();
    let error = sender.send_bulk(Amount::Time(Duration::from_secs(50))).expect_err("nobody reads");
    assert!(matches!(error, QuicError::Ended(..)), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    running.end().expect_err("it was out of time");
}

/// As if its last packet, which says that it has finished, were lost.
#[test]
fn a_sender_that_goes_without_a_word_is_waited_for_in_vain_but_not_for_ever() {
    let settings = Settings { silence: Duration::from_millis(300), ..SETTINGS };
    for has_sent in [true, false] {
        let running = receive("127.0.0.1:0", settings);
        let mut sender = running.connect(1, &SETTINGS).expect("connected");
        if has_sent {
            sender.send_messages(1000, 2).expect("sent");
        }
        drop(sender);
        let begun = Instant::now();
        match (has_sent, running.end()) {
            (true, Ok(received)) => assert_eq!((received.streams, received.bytes), (2, 2000)),
            (false, Err(QuicError::Ended(..))) => {}
            (_, result) => panic!("has sent: {has_sent}: {result:?}"),
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}

#[test]
fn a_packet_that_quic_cannot_have_is_explained() {
    let settings = Settings { link_mtu: 576, ..SETTINGS };
    let Err(error) = Receiver::listen(([127, 0, 0, 1], 0).into(), &settings) else { panic!("it listens") };
    assert_eq!(error.to_string(), "QUIC needs a link MTU of 1280 to 9000 bytes, got 576");
}
